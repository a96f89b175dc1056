#include "bisect/fmt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bis_number bis_num(double x) {
    bis_number r;
    if (isnan(x))
        snprintf(r.s, sizeof r.s, "nan");
    else if (isinf(x))
        snprintf(r.s, sizeof r.s, "%sinf", x < 0 ? "-" : "");
    else if (x == 0)
        snprintf(r.s, sizeof r.s, "0");
    else if (fabs(x) >= 0.01 && fabs(x) < 1e5)
        snprintf(r.s, sizeof r.s, "%.3g", x);
    else
        snprintf(r.s, sizeof r.s, "%.2e", x);
    return r;
}

bis_str bis_interval(const bis_dist *d) {
    bis_str r;
    if (!d || d->how == BIS_D_NONE)
        snprintf(r.s, sizeof r.s, "?");
    else if (d->how == BIS_D_BOUND && d->rel > 0)
        snprintf(r.s, sizeof r.s, ">= %s", bis_num(d->rel).s);
    else if (d->how == BIS_D_BOUND)
        snprintf(r.s, sizeof r.s, "?"); /* equal norms of what differs */
    else if (d->how == BIS_D_EXACT || !(d->norm > 0))
        snprintf(r.s, sizeof r.s, "%s", bis_num(d->rel).s);
    else
        snprintf(r.s, sizeof r.s, "%s (%s .. %s)", bis_num(d->rel).s, bis_num(d->lo / d->norm).s,
                 bis_num(d->hi / d->norm).s);
    return r;
}

bis_str bis_percent(double share) {
    bis_str r;
    if (isnan(share))
        snprintf(r.s, sizeof r.s, "-");
    else if (fabs(share) < 10)
        snprintf(r.s, sizeof r.s, "%.3g %%", 100 * share);
    else
        snprintf(r.s, sizeof r.s, "%s x", bis_num(share).s);
    return r;
}

bis_str bis_count_text(const bis_count *arm, int n) {
    bis_str r;
    const bis_count all = n == 2 ? bis_both(arm) : arm[0];
    if (all.measured)
        snprintf(r.s, sizeof r.s, "%lld/%lld", (long long)all.differing, (long long)all.compared);
    else
        snprintf(r.s, sizeof r.s, "NOT MEASURED%s",
                 n < 2 || arm[0].measured == arm[1].measured ? ""
                 : arm[0].measured                           ? " (arm B)"
                                                             : " (arm A)");
    return r;
}

bis_str bis_range(int32_t first, int32_t last) {
    bis_str r;
    if (last < first)
        snprintf(r.s, sizeof r.s, "none");
    else if (first == last)
        snprintf(r.s, sizeof r.s, "%d", first);
    else
        snprintf(r.s, sizeof r.s, "%d-%d", first, last);
    return r;
}

bis_str bis_how_text(const bis_dist *d) {
    bis_str r;
    const char *part = d && d->partial ? ", kept rows" : "", *sparse = d && d->sparse ? ", sparse" : "";
    if (!d || d->how == BIS_D_NONE)
        snprintf(r.s, sizeof r.s, "bits only");
    else if (d->how == BIS_D_BOUND)
        snprintf(r.s, sizeof r.s, "norms");
    else if (d->how == BIS_D_EXACT)
        snprintf(r.s, sizeof r.s, "exact%s", part);
    else
        snprintf(r.s, sizeof r.s, "sketch %d%s%s", d->width, sparse, part);
    return r;
}

void bis_clean(char *text) {
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) *c = '?';
}

void bis_clean_code(char *text) {
    bis_clean(text);
    for (char *c = text; *c; c++)
        if (*c == '`') *c = '\'';
}

bis_str bis_printable(const char *text) {
    bis_str r;
    snprintf(r.s, 64, "%s", text);
    bis_clean_code(r.s);
    return r;
}

bis_str bis_arm(const bis_case *c, int arm) {
    const q4x_dump *d = arm ? c->rq.b : c->rq.a;
    const char *s = bis_header_str(d, "arm.label");
    if (!s || !*s) s = bis_header_str(d, "arm.spec");
    if (!s || !*s) s = arm ? "B" : "A";
    return bis_printable(s);
}

/* An arm's words say its levers best; without them the recorded values. */
void bis_arm_levers(const bis_case *c, int arm, FILE *out) {
    const q4x_dump *d = arm ? c->rq.b : c->rq.a;
    const char *k, *spec = bis_header_str(d, "arm.spec");
    json_t *v;
    int n = 0;
    if (spec && *spec) {
        fprintf(out, "%s", bis_printable(spec).s);
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)bis_header_get(d, "arm.levers"), k, v) {
        const char *s = json_string_value(v);
        fprintf(out, "%s%s=%s", n++ ? "," : "", bis_printable(k).s, bis_printable(s ? s : "?").s);
    }
    if (!n) fprintf(out, "not declared");
}

void bis_md(FILE *out, const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (strchr("|`<>*[]\\", c)) fputc('\\', out);
        fputc(c < 0x20 || c > 0x7e ? '?' : c, out);
    }
}

void bis_fold(FILE *out, const char *first, const char *rest, const char *text) {
    enum { WIDTH = 100 };
    size_t col = strlen(first);
    fputs(first, out);
    for (int begin = 1; *text; begin = 0) {
        size_t n = strcspn(text, " ");
        if (!begin && col + 1 + n > WIDTH) {
            fprintf(out, "\n%s", rest);
            col = strlen(rest);
        } else if (!begin) {
            fputc(' ', out);
            col++;
        }
        fprintf(out, "%.*s", (int)n, text);
        col += n;
        text += n;
        while (*text == ' ') text++;
    }
    fputc('\n', out);
}

bis_str bis_id_label(const bis_case *c, int32_t f) {
    bis_str r;
    const bis_choices *k = &c->choices;
    const int differ = BIS_FA(c->pair, f)->sampled != BIS_FB(c->pair, f)->sampled;
    if (f < c->pair->ncomparable)
        snprintf(r.s, sizeof r.s, "%s", differ ? "ROOT" : "same");
    else if (!differ)
        snprintf(r.s, sizeof r.s, "coincidental");
    else
        snprintf(r.s, sizeof r.s, "DOWNSTREAM(%d)", k->first >= 0 ? k->first : c->pair->ncomparable - 1);
    return r;
}

bis_str bis_content_text(const q4x_dump *d) {
    static const q4x_hash none;
    bis_str r = {""};
    if (!q4x_hash_eq(&d->content, &none)) q4x_hash_hex(&d->content, r.s);
    return r;
}

const char *bis_stream(const bis_pair *p) {
    static const char *const kinds[] = {"s.mlp", "out"};
    for (int i = 0; i < 2; i++)
        for (int32_t n = 0; n < p->nn; n++)
            if (p->a->nodes[n].layer >= 0 && !strcmp(bis_kind(p->a->nodes[n].name), kinds[i])) return kinds[i];
    return NULL;
}

int bis_depth(const bis_case *c, int32_t f, double *rel) {
    const bis_pair *p = c->pair;
    const char *stream = bis_stream(p);
    int any = 0;
    for (int32_t l = 0; l < p->layers; l++) rel[l] = NAN;
    for (int32_t n = 0; n < p->nn && stream; n++) {
        const q4x_dump_node *k = &p->a->nodes[n];
        if (k->layer < 0 || k->is_state || strcmp(bis_kind(k->name), stream)) continue;
        bis_eq e = p->eq[bis_at(p, f, n)];
        const bis_dist *d = bis_map_cell(&c->map, p, f, n)->dist;
        if (e == BIS_SAME) rel[k->layer] = 0;
        if (e == BIS_DIFF && bis_dist_ranked(d)) rel[k->layer] = d->rel;
        any |= e == BIS_SAME || e == BIS_DIFF;
    }
    return any;
}

int bis_differing(const bis_case *c, int32_t *rf, int32_t *rn, int max) {
    const bis_pair *p = c->pair;
    int k = 0;
    for (int32_t f = 0; f < p->ncomparable && k < max; f++)
        for (int32_t n = 0; n < p->nn && k < max; n++)
            if (p->eq[bis_at(p, f, n)] == BIS_DIFF) {
                rf[k] = f;
                rn[k++] = n;
            }
    return k;
}

int bis_worst(const bis_case *c, int32_t *rf, int32_t *rn, int max) {
    const bis_pair *p = c->pair;
    int k = 0;
    for (int32_t f = 0; f < p->ncomparable; f++)
        for (int32_t n = 0; n < p->nn; n++) {
            const bis_dist *d = bis_map_cell(&c->map, p, f, n)->dist;
            if (!bis_dist_ranked(d) || p->a->nodes[n].is_state || p->a->nodes[n].alias >= 0) continue;
            int i = k < max ? k++ : max;
            /* a NaN stands before every number */
            while (i > 0) {
                const bis_dist *o = bis_map_cell(&c->map, p, rf[i - 1], rn[i - 1])->dist;
                if (isnan(o->rel) || (!isnan(d->rel) && d->rel <= o->rel)) break;
                if (i < max) {
                    rf[i] = rf[i - 1];
                    rn[i] = rn[i - 1];
                }
                i--;
            }
            if (i < max) {
                rf[i] = f;
                rn[i] = n;
            }
        }
    return k;
}

const char *bis_cell_word(const bis_cell *x) {
    switch ((bis_class)x->cls) {
    case BIS_C_WITHIN: return "added, within band";
    case BIS_C_OUT:
        if (bis_unmeasured(x->why)) return "added, not judged";
        return bis_is_fault(x->why) ? "added, FAULT" : "added, out of band";
    case BIS_C_FLIPPED: return "behind a flip";
    case BIS_C_OUTLIER: return "gain outlier";
    case BIS_C_PASSED: return bis_unmeasured(x->why) ? "inherited, not judged" : "inherited";
    case BIS_C_NONE: break;
    }
    return x->in == BIS_SAME ? "added" : "inherited";
}

void bis_sentence(FILE *out, const char *first, const char *text) {
    char *copy = NULL;
    if (asprintf(&copy, "%s.", text) < 0) return;
    if (*copy >= 'a' && *copy <= 'z') *copy = (char)(*copy - 'a' + 'A');
    bis_fold(out, first, "", copy);
    free(copy);
}
