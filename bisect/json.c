/* json.c: the result for machines. Keys and their order: design.md 6, "JSON"; everything else stands under `details`.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/case.h"
#include "bisect/fmt.h"

static json_t *real(double x) {
    if (isfinite(x)) return json_real(x);
    return json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
}

/* For numbers that were not measured: null instead of a NaN. */
static json_t *known(double x, int is_known) {
    return is_known ? real(x) : json_null();
}

static json_t *layer_of(const bis_case *c, int32_t n) {
    int32_t l = c->pair->a->nodes[n].layer;
    return l < 0 ? json_null() : json_integer(l);
}

static json_t *text(const char *s) {
    return s ? json_string(s) : json_null();
}

/* ---- the keys of the design ---- */

static json_t *comparable(const bis_case *c) {
    json_t *a = json_array();
    for (int32_t f = 0; c->pair && f < c->pair->ncomparable; f++) json_array_append_new(a, json_integer(f));
    return a;
}

static json_t *excluded(const bis_case *c) {
    json_t *a = json_array();
    for (int32_t i = 0; c->pair && i < c->pair->nexcluded; i++) {
        const bis_excluded *x = &c->pair->excluded[i];
        json_array_append_new(a, json_pack("{s:i, s:s, s:o, s:o}", "forward", x->forward, "reason",
                                           bis_reason_word(x->why), "first_differing_id_a",
                                           x->id_a < 0 ? json_null() : json_integer(x->id_a), "first_differing_id_b",
                                           x->id_b < 0 ? json_null() : json_integer(x->id_b)));
    }
    return a;
}

static json_t *structure(const bis_case *c) {
    const bis_pair *p = c->pair;
    if (!p || p->a->nforwards < 1) return json_null();
    const q4x_forward *w = &p->a->forwards[0];
    int32_t rows = 0;
    for (int32_t f = 0; f < p->a->nforwards; f++) rows += p->a->forwards[f].logits != NULL;
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "forwards", p->a->nforwards, "prefill", w->n_ids,
                     "layers", p->layers, "nodes", p->nn - p->nstates, "public_nodes", p->npublic, "states", p->nstates,
                     "taps_per_forward", w->ntaps, "logit_rows", rows, "vocabulary", w->vocab);
}

static json_t *taps(const bis_case *c) {
    const bis_pair *p = c->pair;
    if (!p) return json_null();
    return json_pack("{s:I, s:I, s:i, s:i}", "compared", (json_int_t)p->compared, "identical", (json_int_t)p->identical,
                     "only_a", p->nonly_a, "only_b", p->nonly_b);
}

static json_t *first_disagreement(const bis_case *c) {
    if (!c->compared || c->choices.first < 0) return json_null();
    const bis_choice *x = &c->choices.choice[c->choices.first];
    return json_pack("{s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o}", "index", x->forward, "forward", x->forward, "a", x->a,
                     "b", x->b, "margin_a", known(x->margin_a, x->logits), "margin_b", known(x->margin_b, x->logits),
                     "contrast_a", known(x->contrast_a, x->logits), "contrast_b", known(x->contrast_b, x->logits));
}

static json_t *first_different(const bis_case *c) {
    const bis_map *m = &c->map;
    if (!c->compared || m->first_f < 0) return json_null();
    const bis_cell *x = bis_map_cell(m, c->pair, m->first_f, m->first_n);
    return json_pack("{s:i, s:s, s:o, s:b}", "forward", m->first_f, "node",
                     bis_printable(c->pair->a->nodes[m->first_n].name).s, "layer", layer_of(c, m->first_n),
                     "inputs_identical", x->in == BIS_SAME);
}

static const bis_outlier *outlier_at(const bis_map *m, int32_t f, int32_t n) {
    for (int32_t i = 0; i < m->noutliers; i++)
        if (m->outlier[i].forward == f && m->outlier[i].node == n) return &m->outlier[i];
    return NULL;
}

static json_t *between(const bis_case *c, int32_t f, int32_t n) {
    int32_t at[16];
    json_t *a = json_array();
    int k = bis_map_between(&c->map, c->pair, f, n, at, 16);
    for (int i = 0; i < k; i++) json_array_append_new(a, json_string(bis_printable(c->pair->a->nodes[at[i]].name).s));
    return a;
}

/* Distance, band and gain of a cell; what a report prints of it. */
static json_t *cell(const bis_case *c, int32_t f, int32_t n) {
    const bis_cell *x = bis_map_cell(&c->map, c->pair, f, n);
    const bis_dist *d = x->dist;
    const int has = d && d->how != BIS_D_NONE && (bis_dist_ranked(d) || d->rel != 0),
              band = x->rms >= 0 && x->hard >= 0;
    return json_pack("{s:i, s:s, s:o, s:b, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "forward", f, "node",
                     bis_printable(c->pair->a->nodes[n].name).s, "layer", layer_of(c, n), "inputs_identical",
                     x->in == BIS_SAME, "class", bis_cell_word(x), "distance", d ? bis_how_text(d).s : "ids", "rel_l2",
                     known(has ? d->rel : 0, has), "rel_l2_lo", known(has ? d->lo / d->norm : 0, has), "rel_l2_hi",
                     known(has ? d->hi / d->norm : 0, has), "max_abs",
                     known(has ? d->max_abs : 0, has && d->how == BIS_D_EXACT), "ulp_max",
                     has && d->ulp_max >= 0 ? json_integer(d->ulp_max) : json_null(), "share_rms",
                     known(has && band ? d->d / x->rms : 0, has && band), "share_hard",
                     known(has && band ? d->d / x->hard : 0, has && band), "gain", known(x->gain, !isnan(x->gain)));
}

static json_t *first_out_of_band(const bis_case *c) {
    const bis_map *m = &c->map;
    if (!c->compared || m->out_f < 0) return json_null();
    const bis_cell *x = bis_map_cell(m, c->pair, m->out_f, m->out_n);
    const bis_outlier *o = outlier_at(m, m->out_f, m->out_n);
    json_t *j = cell(c, m->out_f, m->out_n);
    if (!j) return NULL;
    json_object_set_new(j, "kind", json_string(x->cls == BIS_C_OUTLIER ? "GAIN" : "ADDED"));
    json_object_set_new(j, "reason", json_string(bis_reason_word(x->why)));
    if (o) {
        json_object_set_new(j, "median_gain", real(o->median));
        json_object_set_new(j, "limit_gain", real(o->limit));
        json_object_set_new(j, "median_n", json_integer(o->n));
        json_object_set_new(j, "worst_gain", real(o->gain));
        json_object_set_new(j, "worst_row", o->row < 0 ? json_null() : json_integer(o->row));
        json_object_set_new(j, "outlier_rows", json_integer(o->row < 0 ? 0 : o->nrows));
        json_object_set_new(j, "between", between(c, m->out_f, m->out_n));
    }
    return j;
}

static json_t *count_json(bis_count n) {
    if (!n.measured) return json_null();
    return json_pack("{s:I, s:I}", "differing", (json_int_t)n.differing, "compared", (json_int_t)n.compared);
}

static json_t *floor_json(const bis_floor *f) {
    return count_json(bis_floor_count(f));
}

static json_t *by_arm(const bis_count n[2]) {
    return json_pack("{s:o, s:o}", "a", count_json(n[0]), "b", count_json(n[1]));
}

/* ---- details ---- */

static json_t *arm(const bis_case *c, int b) {
    const q4x_dump *d = b ? c->rq.b : c->rq.a;
    bis_str content = bis_content_text(d);
    json_t *ids = json_array();
    for (int32_t f = 0; f < d->nforwards; f++) json_array_append_new(ids, json_integer(d->forwards[f].sampled));
    json_t *j = json_pack("{s:s, s:O?, s:O?, s:O?, s:O?, s:O?, s:s?, s:o}", "label", bis_arm(c, b).s, "device",
                          bis_header_get(d, "arm.device"), "spec", bis_header_get(d, "arm.spec"), "profile",
                          bis_header_get(d, "arm.profile"), "levers", bis_header_get(d, "arm.levers"), "scoped",
                          bis_header_get(d, "arm.scoped"), "content", content.s[0] ? content.s : NULL, "ids", ids);
    if (!j) json_decref(ids);
    return j;
}

static json_t *levers(const bis_case *c) {
    json_t *a = json_array();
    for (int32_t i = 0; i < c->header.nlever; i++) {
        const bis_lever *l = &c->header.lever[i];
        json_array_append_new(a, json_pack("{s:s, s:s, s:s}", "lever", bis_printable(l->name).s, "a", l->a, "b", l->b));
    }
    return a;
}

static json_t *fields(const bis_case *c, int free_ones) {
    static const char *const word[] = {"free", "lever", "fatal"};
    json_t *a = json_array();
    for (int32_t i = 0; i < c->header.ndiff; i++) {
        const bis_hdiff *d = &c->header.diff[i];
        if ((d->cls == BIS_H_FREE) != free_ones) continue;
        json_array_append_new(
            a, json_pack("{s:s, s:s, s:s, s:s}", "field", d->key, "class", word[d->cls], "a", d->a, "b", d->b));
    }
    return a;
}

static json_t *nodes(const bis_case *c) {
    int32_t f[20], n[20];
    json_t *a = json_array();
    int k = bis_differing(c, f, n, 20);
    for (int i = 0; i < k; i++) json_array_append_new(a, cell(c, f[i], n[i]));
    return a;
}

static json_t *selections(const bis_case *c) {
    json_t *a = json_array();
    for (int32_t i = 0; i < c->flips.nrows; i++) {
        const bis_flip_row *r = &c->flips.row[i];
        json_array_append_new(a, json_pack("{s:i, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "forward",
                                           r->forward, "comparable", r->comparable, "kind", bis_printable(r->kind).s,
                                           "slots", (json_int_t)r->slots, "flips", (json_int_t)r->flips, "order_only",
                                           (json_int_t)r->order, "ids_swapped", (json_int_t)r->swapped, "ties",
                                           (json_int_t)r->ties, "tie_flips", (json_int_t)r->tie_flips, "unrecorded",
                                           (json_int_t)r->unrecorded, "first_layer",
                                           r->first_layer < 0 ? json_null() : json_integer(r->first_layer)));
    }
    return a;
}

static json_t *choices(const bis_case *c) {
    json_t *a = json_array();
    for (int32_t f = 0; f < c->choices.n; f++) {
        const bis_choice *x = &c->choices.choice[f];
        json_array_append_new(a, json_pack("{s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:b, s:b}", "forward", f, "a",
                                           x->a, "b", x->b, "label", bis_id_label(c, f).s, "margin_a",
                                           known(x->margin_a, x->logits), "margin_b", known(x->margin_b, x->logits),
                                           "contrast_a", known(x->contrast_a, x->logits), "contrast_b",
                                           known(x->contrast_b, x->logits), "max_abs", known(x->max_dz, x->logits),
                                           "at_risk", x->at_risk, "tie", x->tie_a || x->tie_b));
    }
    return a;
}

static json_t *lines(const bis_lines *l) {
    json_t *a = json_array();
    for (int i = 0; i < l->n; i++) json_array_append_new(a, json_string(l->line[i]));
    return a;
}

static json_t *commands(const bis_case *c, int with_path) {
    json_t *a = json_array();
    for (int arm = 0; arm < 2; arm++) {
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);
        if (!f) break;
        int any = bis_again(c, arm, with_path, f);
        fclose(f);
        if (any && text) json_array_append_new(a, json_string(text));
        free(text);
    }
    return a;
}

static json_t *details(const bis_case *c) {
    json_t *j = json_object();
    json_object_set_new(j, "verdict_name", json_string(bis_verdict_name(c->verdict)));
    json_object_set_new(j, "contaminated", json_boolean(c->contaminated));
    json_object_set_new(j, "confounded", json_integer(c->confounded));
    json_object_set_new(j, "where", json_string(c->where));
    json_object_set_new(j, "text", json_string(bis_reason_text(c->reason)));
    json_object_set_new(j, "a", arm(c, 0));
    json_object_set_new(j, "b", arm(c, 1));
    json_object_set_new(j, "levers", levers(c));
    json_object_set_new(j, "header", fields(c, 0));
    if (c->compared) {
        json_object_set_new(j, "perturbation", by_arm(c->perturbation));
        json_object_set_new(j, "read_twice", by_arm(c->read_twice));
        json_object_set_new(j, "contrast_rms", known(c->choices.s, c->choices.s_n > 0));
        json_object_set_new(j, "contrast_n", json_integer(c->choices.s_n));
        json_object_set_new(j, "choices", choices(c));
        json_object_set_new(j, "inherited_unjudged", json_integer(c->map.unjudged));
        json_object_set_new(j, "differing", nodes(c));
        json_object_set_new(j, "selections", selections(c));
    }
    json_object_set_new(j, "notes", lines(&c->notes));
    json_object_set_new(j, "next", lines(&c->next));
    json_object_set_new(j, "next_commands", commands(c, 0));
    json_object_set_new(j, "not_established", lines(&c->limits));
    return j;
}

static json_t *provenance(const bis_case *c, const bis_names *n) {
    json_t *j = json_object();
    json_object_set_new(j, "command", text(n->command));
    json_object_set_new(j, "a", text(n->a));
    json_object_set_new(j, "b", text(n->b));
    json_object_set_new(j, "floor_a", text(n->floor_a));
    json_object_set_new(j, "floor_b", text(n->floor_b));
    const json_t *fa = bis_header_get(c->rq.a, "free"), *fb = bis_header_get(c->rq.b, "free");
    const json_t *ta = bis_header_get(c->rq.a, "tool"), *tb = bis_header_get(c->rq.b, "tool");
    json_object_set_new(j, "tool_a", ta ? json_deep_copy(ta) : json_null());
    json_object_set_new(j, "tool_b", tb ? json_deep_copy(tb) : json_null());
    json_object_set_new(j, "free_a", fa ? json_deep_copy(fa) : json_null());
    json_object_set_new(j, "free_b", fb ? json_deep_copy(fb) : json_null());
    json_object_set_new(j, "free_differences", fields(c, 1));
    json_object_set_new(j, "next_commands", commands(c, 1));
    return j;
}

json_t *bis_json(const bis_case *c, const bis_names *names) {
    json_t *j = json_object();
    int bad = !j;
    const struct {
        const char *key;
        json_t *value;
    } item[] = {
        {"verdict", json_string(c->name)},
        {"reason", json_string(bis_reason_word(c->reason))},
        {"exit", json_integer(c->exit)},
        {"comparable", comparable(c)},
        {"excluded", excluded(c)},
        {"structure", structure(c)},
        {"common_prefix", c->compared ? json_integer(c->choices.prefix) : json_null()},
        {"taps", taps(c)},
        {"first_disagreement", first_disagreement(c)},
        {"first_different", first_different(c)},
        {"first_out_of_band", first_out_of_band(c)},
        {"controls", json_pack("{s:o, s:o, s:o, s:o}", "floor_a", floor_json(&c->floor_a), "floor_b",
                               floor_json(&c->floor_b), "perturbation", count_json(bis_both(c->perturbation)),
                               "read_twice", count_json(bis_both(c->read_twice)))},
        {"details", details(c)},
        {"provenance", provenance(c, names)},
    };
    for (size_t i = 0; i < sizeof item / sizeof *item; i++)
        bad |= json_object_set_new(j, item[i].key, item[i].value) != 0;
    if (!bad) return j;
    json_decref(j);
    return NULL;
}
