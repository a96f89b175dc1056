/* advice.c: what a reader must know, what to record next, and what the comparison does not establish. Generated from
 * what is missing (requirement R57), so that no report can leave it out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/case.h"
#include "lib/tap.h"

static const char *node_name(const bis_case *c, int32_t n) {
    return c->pair->a->nodes[n].name;
}

/* ---- notes ---- */

static void note_levers(bis_case *c) {
    const bis_header *h = &c->header;
    if (h->device_null == BIS_NULL_NAMED)
        bis_say(
            &c->notes,
            "The device is not counted as a lever: the named pair of devices, with the levers of arm %c, is equal in "
            "all %lld records.",
            'A' + c->null_arm, (long long)c->null_compared);
    if (h->device_null == BIS_NULL_SESSION)
        bis_say(&c->notes,
                "The device is not counted as a lever: this session holds a device pair with the levers of an arm that "
                "was IDENTICAL.");
    if (c->null_tested && h->device_differs && h->device_null != BIS_NULL_NAMED)
        bis_say(&c->notes, "Device null failed: %lld of %lld records of the named pair differ, so the device counts.",
                (long long)c->null_differing, (long long)c->null_compared);
    for (int32_t i = 0; i < h->nlever && c->verdict == BIS_V_IDENTICAL; i++)
        bis_say(&c->notes, "INERT: lever %s (%s | %s) moved nothing in these runs.", h->lever[i].name, h->lever[i].a,
                h->lever[i].b);
    const bis_recording r = bis_header_recording(c->rq.a, c->rq.b);
    if (r != BIS_OTHER_RECORDING)
        bis_say(&c->notes, "Both arms %s one recording: equality says nothing.",
                r == BIS_SAME_RECORDING ? "are" : "may be copies of");
}

static void note_floor(bis_case *c, const bis_floor *f, const char *arm) {
    if (f->measured && f->differing)
        bis_say(
            &c->notes,
            "The floor of arm %s is not zero: %lld of %lld records differ between two recordings of it, first %s in "
            "forward %d. Differences of the pair may be that.",
            arm, (long long)f->differing, (long long)f->compared, f->first_node, f->first_forward);
}

static void note_instrument(bis_case *c) {
    for (int arm = 0; arm < 2; arm++) {
        const bis_count *p = &c->perturbation[arm], *r = &c->read_twice[arm];
        if (p->differing)
            bis_say(&c->notes,
                    "The taps moved arm %c: %lld of %lld chosen ids and logit rows differ when it runs without them.",
                    'A' + arm, (long long)p->differing, (long long)p->compared);
        if (r->differing)
            bis_say(&c->notes, "Arm %c was not read right: %lld of %lld buffers differ when they are read again.",
                    'A' + arm, (long long)r->differing, (long long)r->compared);
    }
}

/* Levers that the recorder found to move nothing. Of an identical pair that is said of both arms at once. */
static void note_inert(bis_case *c) {
    for (int arm = 0; arm < 2; arm++) {
        const json_t *list = json_object_get((arm ? c->rq.b : c->rq.a)->tail, "levers");
        for (size_t k = 0; k < json_array_size(list); k++) {
            const json_t *row = json_array_get(list, k);
            const char *item = json_string_value(json_object_get(row, "item")),
                       *outcome = json_string_value(json_object_get(row, "outcome"));
            if (item && outcome && !strcmp(outcome, "inert"))
                bis_say(&c->notes, "INERT: lever %.120s of arm %c moved nothing in its run.", item, 'A' + arm);
        }
    }
}

static void note_selections(bis_case *c) {
    int64_t in = 0, in_all = 0, out = 0, out_all = 0;
    for (int32_t i = 0; i < c->flips.nrows; i++) {
        const bis_flip_row *r = &c->flips.row[i];
        if (r->comparable) {
            in += r->flips;
            in_all += r->slots;
            if (r->flips && r->swapped >= 2 * r->flips && (double)r->swapped > 0.3 * (double)r->ids)
                bis_say(&c->notes,
                        "Alarm: in forward %d the flipped %s keep only %.0f %% of their ids. Equal ids with so little "
                        "overlap point at different inputs, not at rounding.",
                        r->forward, r->kind, 100 * (1 - (double)r->swapped / (double)r->ids));
            if (r->wide_flips >= 4 && 2 * r->wide_flips > r->wide)
                bis_say(&c->notes,
                        "Alarm: in forward %d, %lld of %lld %s flip whose cut is more than 8 bf16 steps wide. Rounding "
                        "reaches so far now and then, not as a rule; look for different inputs.",
                        r->forward, (long long)r->wide_flips, (long long)r->wide, r->kind);
        } else {
            out += r->flips;
            out_all += r->slots;
        }
    }
    if (out_all && in_all)
        bis_say(&c->notes,
                "Exclusion matters: %lld of %lld selections (%.1f %%) flip in comparable forwards, %lld of %lld (%.1f "
                "%%) in "
                "the excluded ones; together it would be %.1f %%.",
                (long long)in, (long long)in_all, 100.0 * (double)in / (double)in_all, (long long)out,
                (long long)out_all, 100.0 * (double)out / (double)out_all,
                100.0 * (double)(in + out) / (double)(in_all + out_all));
}

static void note_logits(bis_case *c) {
    const bis_choices *k = &c->choices;
    if (k->aligned < k->n)
        bis_say(&c->notes,
                "In %d of %d forwards the chosen id is not the best of the recorded values, or those are missing.",
                k->n - k->aligned, k->n);
    if (k->lattice_a == 1 || k->lattice_b == 1)
        bis_say(&c->notes,
                "All finite logits of arm %s lie on the bf16 grid: they were rounded before they were recorded, so "
                "contrasts collapse into ties there.",
                k->lattice_a == 1 && k->lattice_b == 1 ? "A and B"
                : k->lattice_a == 1                    ? "A"
                                                       : "B");
}

static void notes(bis_case *c) {
    const bis_map *m = &c->map;
    note_levers(c);
    if (!c->compared) return;
    note_floor(c, &c->floor_a, "A");
    note_floor(c, &c->floor_b, "B");
    note_instrument(c);
    if (c->verdict != BIS_V_IDENTICAL) note_inert(c);
    if (m->both_nonfinite)
        bis_say(&c->notes, "Non-finite values in both arms at %lld taps, first %s in forward %d.",
                (long long)m->both_nonfinite, node_name(c, m->both_n), m->both_f);
    for (int arm = 0; arm < 2; arm++)
        if (m->flat[arm])
            bis_say(
                &c->notes,
                "Arm %s holds one value throughout in %lld taps where the other arm does not, first %s in forward %d.",
                arm ? "B" : "A", (long long)m->flat[arm], node_name(c, m->flat_n[arm]), m->flat_f[arm]);
    if (c->pair->unaligned)
        bis_say(
            &c->notes,
            "%lld taps could not be compared: V heads lie in file order in one arm and in HF order in the other, and "
            "hashes and sketches cannot be permuted.",
            (long long)c->pair->unaligned);
    if (c->pair->nonly_a + c->pair->nonly_b)
        bis_say(&c->notes, "%d nodes are recorded by arm A alone, %d by arm B alone; they are left out.",
                c->pair->nonly_a, c->pair->nonly_b);
    note_selections(c);
    note_logits(c);
}

/* ---- what to record next ---- */

/* Options that record what is missing, as a sentence and, where it is the first, as a command. */
static void again(bis_case *c, const char *options, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void again(bis_case *c, const char *options, const char *fmt, ...) {
    char why[240];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (!c->next.n) snprintf(c->again, sizeof c->again, "%s", options);
    bis_say(&c->next, "Both arms again with `%s`: %s", options, why);
}

/* Is a node kept by --bands alone, or must it be asked for? */
static int kept_by_default(const bis_case *c, int32_t n) {
    const q4x_dump_node *k = &c->pair->a->nodes[n];
    return k->is_public || k->is_state || q4x_tap_reads_choice(k->op ? k->op : "");
}

static int bands_recorded(const bis_case *c) {
    return json_is_true(bis_header_get(c->rq.a, "bands")) && json_is_true(bis_header_get(c->rq.b, "bands"));
}

static int is_full(const q4x_dump *d) {
    const char *mode = bis_header_str(d, "mode");
    return mode && !strcmp(mode, "full");
}

static int rows_chosen(const q4x_dump *d) {
    const json_t *r = bis_header_get(d, "rows");
    return json_integer_value(json_array_get(r, 0)) || json_integer_value(json_array_get(r, 1));
}

/* Bands of every node in every layer: fewer would leave out what is recorded now, and the next record would lack that.
 * Full tensors, rows and controls stay too. all_rows: those are what is missing. */
static void again_all(bis_case *c, int all_rows, const char *before, const char *what, const char *after) {
    char options[120];
    snprintf(options, sizeof options, "%s--bands%s --node '*'%s",
             is_full(c->rq.a) && is_full(c->rq.b) ? "--mode full " : "",
             all_rows || rows_chosen(c->rq.a) || rows_chosen(c->rq.b) ? " --rows all" : "",
             bis_both(c->perturbation).measured && bis_both(c->read_twice).measured ? " --controls" : "");
    again(c, options, "%s %s%s", before, what, after);
}

/* Is there a node that differs and whose distance --node '*' would record? *all_rows 1: or --rows all. */
static int more_to_record(const bis_case *c, int *all_rows) {
    const bis_pair *p = c->pair;
    int more = *all_rows = 0;
    for (int32_t f = 0; f < p->ncomparable; f++)
        for (int32_t n = 0; n < p->nn; n++) {
            const bis_dist *d = bis_map_cell(&c->map, p, f, n)->dist;
            if (!d || d->nonfinite || bis_dist_ranked(d)) continue;
            more = 1;
            *all_rows |= d->partial;
        }
    return more;
}

/* Silence about differences that nothing judged. */
static void next_for_unjudged(bis_case *c) {
    const int quiet = c->verdict == BIS_V_WITHIN_BAND || c->verdict == BIS_V_TIE || c->verdict == BIS_V_TOKENS_DIFFER;
    int all_rows;
    if (!c->map.unjudged || !(quiet || c->reason == BIS_R_inputs_not_recorded) || !more_to_record(c, &all_rows)) return;
    char n[24];
    snprintf(n, sizeof n, "%lld", (long long)c->map.unjudged);
    again_all(c, all_rows, "judges", n, " inherited differences, whose inputs' distances are not recorded.");
}

/* A difference was judged at equal inputs in another layer: a record of this layer alone would lack what judged it, and
 * the next verdict would stop there. A FAULT is one by its bits, which every record has. */
static int needs_other_layers(const bis_case *c) {
    const bis_pair *p = c->pair;
    const int32_t layer = p->a->nodes[c->map.out_n].layer;
    if (c->verdict == BIS_V_FAULT) return 0;
    for (int32_t f = 0; f < p->ncomparable; f++)
        for (int32_t n = 0; n < p->nn; n++)
            if (p->a->nodes[n].layer >= 0 && p->a->nodes[n].layer != layer &&
                bis_map_cell(&c->map, p, f, n)->cls == BIS_C_WITHIN)
                return 1;
    return 0;
}

/* The tensors of some nodes, with the bands that are recorded now. Nothing is said where both arms have that of this
 * node: no record adds to it. */
static void again_full(bis_case *c, const char *nodes, const char *what) {
    const bis_map *m = &c->map;
    const q4x_tap *a = c->pair->ta[bis_at(c->pair, m->out_f, m->out_n)],
                  *b = c->pair->tb[bis_at(c->pair, m->out_f, m->out_n)];
    char options[120];
    if (a->has_full && b->has_full) return;
    snprintf(options, sizeof options, "--mode full%s%s", bands_recorded(c) ? " --bands" : "",
             needs_other_layers(c) ? " --node '*'" : nodes);
    again(c, options, "%s", what);
}

static void next_for_node(bis_case *c) {
    const bis_map *m = &c->map;
    char lay[24] = "", only[96], wide[96];
    if (m->out_f < 0) return;
    const bis_cell *x = bis_map_cell(m, c->pair, m->out_f, m->out_n);
    const q4x_dump_node *k = &c->pair->a->nodes[m->out_n];
    const char *name = node_name(c, m->out_n);
    if (k->layer >= 0) snprintf(lay, sizeof lay, " --layer %d", k->layer);
    snprintf(only, sizeof only, "%s --node '%.60s'", lay, bis_kind(name)); /* this node */
    snprintf(wide, sizeof wide, "%s --node '*'", lay);                     /* its layer */
    char what[240];
    switch (x->why) {
    case BIS_R_band_not_recorded:
        if (bis_states_no_band(k)) {
            snprintf(what, sizeof what,
                     "the tensors of %.80s themselves; its op states no band, so no record can judge it.", name);
            again_full(c, only, what);
        } else if (bands_recorded(c)) {
            again_all(c, 0, "says whether", name, " is within its rounding.");
        } else {
            again(c, "--bands", "says whether %s is within its rounding.", name);
        }
        break;
    case BIS_R_distance_not_recorded:
        if (kept_by_default(c, m->out_n))
            again(c, "--bands", "says how far %s lies apart, and whether that is its rounding.", name);
        else
            again_all(c, 0, "says how far", name, " lies apart, and whether that is its rounding.");
        break;
    case BIS_R_rows_not_kept:
        if (kept_by_default(c, m->out_n))
            again(c, "--bands --rows all", "not all rows of %s were kept.", name);
        else
            again_all(c, 1, "not all rows of", name, " were kept.");
        break;
    case BIS_R_gain_outlier:
    case BIS_R_distance_not_finite:
        snprintf(what, sizeof what,
                 "with the inputs of %.80s in forward %d at hand, added and inherited difference can be told apart.",
                 name, m->out_f);
        again_full(c, wide, what);
        break;
    default:
        snprintf(what, sizeof what, "the tensors of %.80s themselves.", name);
        again_full(c, only, what);
        break;
    }
}

static void next_for_tokens(bis_case *c) {
    const bis_choices *k = &c->choices;
    if (k->first >= 0 && !k->choice[k->first].logits)
        bis_say(&c->next, "Logit rows of forward %d in both arms: nothing else says what decides the id.", k->first);
    if (k->ndiffer && k->s_n < BIS_TIE_MIN_N)
        bis_say(&c->next,
                "More agreeing forwards: a longer run (`-n`), or other prompts; the noise of the pair has n = %d here.",
                k->s_n);
    if (c->pair->nexcluded) {
        char *ids = NULL;
        size_t size = 0;
        FILE *s = open_memstream(&ids, &size);
        for (int32_t f = 0; s && f + 1 < c->pair->nf && f < 32; f++)
            fprintf(s, "%s%d", f ? "," : "", BIS_FA(c->pair, f)->sampled);
        if (s) fclose(s);
        if (!c->next.n) {
            c->again_forced = 1;
            snprintf(c->again, sizeof c->again, "%s", bands_recorded(c) ? "--bands" : "--mode sketch");
        }
        bis_say(&c->next,
                "Both arms on one list of ids, `--force-ids %s`: makes the %d excluded forwards comparable.%s",
                ids ? ids : "...", c->pair->nexcluded, c->pair->nf > 33 ? " (The list is cut here after 32 ids.)" : "");
        free(ids);
    }
}

static void next_separating(bis_case *c) {
    const bis_header *h = &c->header;
    if (h->nlever < 2) return;
    const int first = c->next.n;
    bis_say(&c->next, "One lever at a time, to tell %d declared differences apart:", h->nlever);
    for (int32_t i = 0; i < h->nlever; i++)
        bis_say(&c->next, "arm A against arm A with %s = %s (here %s).", h->lever[i].name, h->lever[i].b,
                h->lever[i].a);
    if (!first) c->next_list = c->next.n - 1;
}

/* The op of the FAULT multiplies or gathers by weights that may be longer than what the fingerprint reads of them. */
static int fault_reads_weights(const bis_case *c) {
    static const char *const ops[] = {"embed", "rmsnorm", "matmul", "conv1d", "moe_expert", "ple_gather", "ple_conv"};
    const char *op = c->verdict == BIS_V_FAULT ? c->pair->a->nodes[c->map.fault_n].op : NULL;
    for (size_t i = 0; op && i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(op, ops[i])) return 1;
    return 0;
}

static void next(bis_case *c) {
    const bis_request *q = &c->rq;
    if (c->verdict == BIS_V_TRUNCATED)
        bis_say(&c->next, "Arm %s again: its dump is cut short.",
                q->truncated_a && q->truncated_b ? "A and arm B"
                : q->truncated_a                 ? "A"
                                                 : "B");
    if (c->reason == BIS_R_keys_differ || c->reason == BIS_R_forward_count_differs ||
        c->reason == BIS_R_logits_one_sided)
        bis_say(&c->next, "Both arms with the same version, the same taps and the same number of ids.");
    if (c->reason == BIS_R_prompt_differs || c->reason == BIS_R_forward0_differs)
        bis_say(&c->next, "Both arms on the same prompt ids (`--ids`).");
    if (c->compared) {
        next_for_node(c);
        next_for_tokens(c);
        next_for_unjudged(c);
    }
    if (c->compared && fault_reads_weights(c))
        bis_say(&c->next, "`q4x info --hash MODEL` of the models of both arms: are all their weights equal?");
    next_separating(c);
    if (c->compared && !q->floor_a)
        bis_say(&c->next, "Arm A a second time, given as `--floor-a`: is it equal to itself?");
    if (c->compared && !q->floor_b) bis_say(&c->next, "Arm B a second time, given as `--floor-b`.");
    if (c->compared && !(bis_both(c->perturbation).measured && bis_both(c->read_twice).measured))
        bis_say(&c->next, "Both arms with `--controls`: do the taps move the run, are the buffers read right?");
    if (c->compared && c->pair->unaligned)
        bis_say(&c->next, "`--mode full` for tensors with V heads: then they can be brought to one order.");
    if (c->compared && !c->logit_rows) bis_say(&c->next, "Logit rows in both arms.");
}

/* ---- what this does not establish ---- */

/* "arm A", "arm B", "either arm": which of two was not measured; NULL: both were. */
static const char *lacking(int a, int b) {
    return a && b ? NULL : a ? "arm B" : b ? "arm A" : "either arm";
}

static void limits_controls(bis_case *c) {
    const char *floor = lacking(c->floor_a.measured, c->floor_b.measured),
               *taps = lacking(c->perturbation[0].measured, c->perturbation[1].measured),
               *twice = lacking(c->read_twice[0].measured, c->read_twice[1].measured);
    if (floor)
        bis_say(&c->limits, "Floor of %s: NOT MEASURED. That two runs of one arm are equal is assumed, not shown.",
                floor);
    if (taps)
        bis_say(&c->limits,
                "Tapped against untapped of %s: NOT MEASURED (`q4x tap --controls` does). That the taps did not move "
                "the runs is assumed.",
                taps);
    if (twice)
        bis_say(&c->limits,
                "Read twice of %s: NOT MEASURED (`q4x tap --controls` does). That the buffers were read right is "
                "assumed.",
                twice);
}

/* A source is judged by what its op can do to equal inputs. Of every other difference nobody knows which part was
 * added where it stands. */
static void limits_unequal(bis_case *c) {
    const bis_map *m = &c->map;
    const int64_t behind = m->ndiff - m->nsources;
    if (behind <= 0) return;
    bis_say(
        &c->limits,
        "That no fault hides behind unequal inputs: %lld of %lld differences were judged by their gain alone, or not "
        "at all, and a fault that stays below the limit of its kind is not seen.%s",
        (long long)behind, (long long)m->ndiff,
        c->confounded ? " Where one declared difference makes inputs unequal, what another does is not seen either: "
                        "pairs that differ in one lever leave fewer such nodes."
                      : "");
}

static void limits_weights(bis_case *c) {
    if (fault_reads_weights(c))
        bis_say(&c->limits,
                "That both arms read equal weights: a model's fingerprint samples 4096 bytes at each end of every "
                "tensor, and other weights between them would look like this FAULT (`q4x info --hash MODEL` reads "
                "all).");
}

static void limits_verdict(bis_case *c) {
    const bis_map *m = &c->map;
    if (c->verdict == BIS_V_WITHIN_BAND || c->verdict == BIS_V_TIE || c->verdict == BIS_V_TOKENS_DIFFER)
        limits_unequal(c);
    switch (c->verdict) {
    case BIS_V_IDENTICAL:
    case BIS_V_WITHIN_BAND:
        bis_say(&c->limits, "One prompt, %d comparable forwards (n = 1). Other prompts and later forwards may differ.",
                c->pair->ncomparable);
        break;
    case BIS_V_TIE:
    case BIS_V_TOKENS_DIFFER:
        bis_say(&c->limits, "Which difference moved the id. Two records show where arms differ; only replacing one "
                            "difference by the other shows what it does.");
        break;
    case BIS_V_DIVERGED:
    case BIS_V_FAULT:
    case BIS_V_NON_FINITE:
        bis_say(&c->limits,
                "That the named node moved any id: a difference is located here, its effect is not measured.");
        bis_say(&c->limits, "Which arm is right. Both may be wrong.");
        break;
    default: break;
    }
    if (c->contaminated)
        bis_say(&c->limits,
                "That the named node adds a difference: its inputs differ too, so part or all may be inherited.");
    if (m->states_unjudged)
        bis_say(&c->limits,
                "%lld states differ beside the output of their op and were not judged: their bands or sizes are not "
                "recorded (`--bands` does).",
                (long long)m->states_unjudged);
    if (m->unjudged)
        bis_say(&c->limits,
                "%lld inherited differences were not judged by their gain: distances of inputs or states are not "
                "recorded (`--bands --node '*'` keeps them).",
                (long long)m->unjudged);
}

static void limits(bis_case *c) {
    if (!c->compared) {
        bis_say(&c->limits, "Anything about the two runs: they were not compared.");
        return;
    }
    limits_verdict(c);
    limits_weights(c);
    if (c->confounded)
        bis_say(&c->limits, "Which of the %d declared differences is responsible: nothing is attributed to a lever.",
                c->confounded);
    else if (c->header.nlever == 1 && c->verdict != BIS_V_IDENTICAL)
        bis_say(&c->limits, "More than that the arms differ in %s and in nothing else that their headers record.",
                c->header.lever[0].name);
    if (c->pair->nexcluded)
        bis_say(&c->limits, "Anything about forwards %d to %d: their inputs differ. Equal ids there are coincidental.",
                c->pair->excluded[0].forward, c->pair->excluded[c->pair->nexcluded - 1].forward);
    if (!c->logit_rows) bis_say(&c->limits, "What decides the ids: no logit rows are recorded.");
    limits_controls(c);
}

void bis_advise(bis_case *c) {
    notes(c);
    next(c);
    limits(c);
}
