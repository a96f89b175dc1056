/* map_sources.c: nodes that differ although their inputs are equal: may the arms' arithmetic differ there by so much?
 */
#include <math.h>

#include <string.h>

#include "bisect/map_int.h"
#include "kernels/ops.h"

/* An op that writes this state differs in its output too; *source 1: without a difference of its inputs. */
static int told_by_writer(const bis_map *m, const bis_pair *p, int32_t f, int32_t s, int *source) {
    int told = *source = 0;
    for (int32_t i = 0; i < p->nwriter[s]; i++) {
        if (p->eq[bis_at(p, f, p->writer[s][i])] != BIS_DIFF) continue;
        told = 1;
        *source |= bis_map_cell(m, p, f, p->writer[s][i])->in == BIS_SAME;
    }
    return told;
}

int bis_states_no_band(const q4x_dump_node *k) {
    const int op = bis_op_of(k);
    return op >= 0 && !k_ops[op].band;
}

static int claims_equal(const bis_pair *p, const bis_header *h, int32_t f, int32_t n) {
    if (!p->a->nodes[n].is_state) return bis_header_claims(h, p->a, p->b, n, p->to_b[n], f);
    for (int32_t i = 0; i < p->nwriter[n]; i++) {
        int32_t w = p->writer[n][i];
        if (p->to_b[w] < 0 || !bis_header_claims(h, p->a, p->b, w, p->to_b[w], f)) return 0;
    }
    return p->nwriter[n] > 0;
}

static int has_word(const bis_pair *p, int32_t n, const char *word) {
    const char *x = p->a->nodes[n].levers, *y = p->to_b[n] < 0 ? NULL : p->b->nodes[p->to_b[n]].levers;
    return (x && strstr(x, word)) || (y && strstr(y, word));
}

/* How far apart two scores may lie that an arm ranks in another order than their own. moe_ids ranks p = softmax(score):
 * p_i (1 + r) >= p_j (1 - r) as soon as z_j - z_i <= ln((1 + r) / (1 - r)) ~ 2 r, where r is the hard relative error of
 * a p: in f32 the rounding of z - max, below 2^-24 60, and 4 steps more; with moe.softmax=bf16 half an ulp of a store
 * besides, 2^-8. Other selections rank the scores themselves. */
static double cut_width(const bis_pair *p, int32_t n) {
    const char *op = p->a->nodes[n].op;
    if (!op || strcmp(op, "moe_ids")) return 0;
    return 0x1p-17 + (has_word(p, n, "moe.softmax=bf16") ? 0x1.01p-7 : 0);
}

/* May declared different rules have chosen this row's ids from equal scores? The margin of an arm is its lowest chosen
 * score minus its highest rejected one, so all ids that only one arm chose lie within the margins of both. */
static int near_tie(const bis_flip *x, double width) {
    return fabs(x->margin_a) <= width && fabs(x->margin_b) <= width;
}

/* What the arms chose differently weighed nothing: the weights of the chosen experts and the weighted sum of what they
 * made are equal by bits. Probabilities tie at 0 when exp underflows, however far apart the scores lie (the order of
 * experts is that of the probabilities, the margin is recorded of the scores). */
static int weighs_nothing(const bis_pair *p, int32_t f, int32_t n) {
    const q4x_dump_node *k = p->a->nodes;
    int weights = 0, sums = 0;
    if (!k[n].op || strcmp(k[n].op, "moe_ids")) return 0;
    for (int32_t m = n + 1; m < p->nn && k[m].layer == k[n].layer; m++) {
        const int w = k[m].op && !strcmp(k[m].op, "moe_weights"), s = k[m].op && !strcmp(k[m].op, "moe_routed");
        if ((w || s) && p->eq[bis_at(p, f, m)] != BIS_SAME) return 0;
        weights += w;
        sums += s;
    }
    return weights == 1 && sums == 1;
}

/* A selection made of equal scores by declared different rules: a tie at the cut of every flipped row explains it, and
 * so does a mere order. */
static bis_reason selection(const bis_pair *p, const bis_flips *s, int32_t f, int32_t n) {
    const q4x_tap *a = p->ta[bis_at(p, f, n)], *b = p->tb[bis_at(p, f, n)];
    const double width = cut_width(p, n);
    if (!bis_is_selection(p, n)) return BIS_R_selection_differs; /* no tie can excuse ids that follow from ids */
    if (!a->has_sel || !b->has_sel) return BIS_R_distance_not_recorded;
    if (weighs_nothing(p, f, n)) return BIS_R_none;
    for (int64_t i = 0; i < s->n; i++) {
        const bis_flip *x = &s->flip[i];
        if (x->forward == f && x->node == n && !near_tie(x, width)) return BIS_R_selection_differs;
    }
    return BIS_R_none;
}

/* BIS_R_none: within 4 x the pair's rms. Whatever is not known to be within is out. */
static bis_reason against_band(const bis_cell *c) {
    const bis_dist *d = c->dist;
    const int band = c->rms >= 0 && c->hard >= 0;
    if (c->hard == 0) return BIS_R_above_hard_band; /* what is moved does not round: no need to know how far */
    if (d->nonfinite) return BIS_R_distance_not_finite;
    if (band && d->how != BIS_D_NONE && d->lo > c->hard) return BIS_R_above_hard_band;
    if (band && d->how != BIS_D_NONE && d->lo > BIS_BAND_LIMIT * c->rms) return BIS_R_above_rms_band;
    if (!band) return BIS_R_band_not_recorded;
    if (d->partial) return BIS_R_rows_not_kept;
    if (!bis_dist_ranked(d)) return BIS_R_distance_not_recorded;
    return d->hi <= BIS_BAND_LIMIT * c->rms ? BIS_R_none : BIS_R_above_rms_band;
}

static bis_reason judge(const bis_pair *p, const bis_header *h, const bis_flips *s, const bis_cell *c, int32_t f,
                        int32_t n) {
    if (claims_equal(p, h, f, n)) return BIS_R_same_arithmetic_bits_differ;
    return p->a->nodes[n].is_ids ? selection(p, s, f, n) : against_band(c);
}

static void add_source(bis_map *m, bis_cell *c, int32_t f, int32_t n) {
    m->nsources++;
    c->cls = c->why == BIS_R_none ? BIS_C_WITHIN : BIS_C_OUT;
    m->nwithin += c->why == BIS_R_none;
    m->nout += c->why != BIS_R_none;
    if (!bis_is_fault(c->why)) return;
    m->nfault++;
    if (m->fault_f >= 0) return;
    m->fault_f = f;
    m->fault_n = n;
}

int bis_map_sources(bis_map *m, const bis_pair *p, const bis_header *h, const bis_flips *s, q4x_err *err) {
    for (int32_t f = 0; f < p->ncomparable; f++)
        for (int32_t n = 0; n < p->nn; n++) {
            bis_cell *c = bis_map_cell(m, p, f, n);
            const int broken = c->in != BIS_SAME ? bis_map_broken_move(m, p, f, n) : 0;
            if (broken < 0) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for the rows of a state");
            if (broken) {
                c->why = BIS_R_move_changed_bits;
                add_source(m, c, f, n);
            }
            if (p->eq[bis_at(p, f, n)] != BIS_DIFF || c->in != BIS_SAME) continue;
            int source = 0;
            const int told = p->a->nodes[n].is_state && told_by_writer(m, p, f, n, &source);
            /* equal claims: the op is the fault, and its state tells of the same event */
            if (source && claims_equal(p, h, f, n)) continue;
            c->why = judge(p, h, s, c, f, n);
            if (told && bis_unmeasured(c->why)) { /* the op is judged by its output; of its state nothing is known */
                c->why = BIS_R_none;
                m->states_unjudged++;
                continue;
            }
            add_source(m, c, f, n);
        }
    return 0;
}
