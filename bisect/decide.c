#include "bisect/decide.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/round.h"

static const float *last_row(const q4x_forward *w) {
    return w->logits && w->n_logits > 0 && w->vocab > 0 ? w->logits + (size_t)(w->n_logits - 1) * (size_t)w->vocab
                                                        : NULL;
}

static void best_two(const float *z, int32_t n, int32_t *best, int32_t *second) {
    *best = *second = -1;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(z[i])) continue;
        if (*best < 0 || z[i] > z[*best]) {
            *second = *best;
            *best = i;
        } else if (*second < 0 || z[i] > z[*second]) {
            *second = i;
        }
    }
}

static double margin(const float *z, int32_t best, int32_t second) {
    return best >= 0 && second >= 0 ? (double)z[best] - (double)z[second] : NAN;
}

/* Best minus second of the values that the choice was made on; NaN when they are not recorded. */
static double choice_margin(const q4x_forward *w) {
    if (w->top_id[0] < 0 || w->top_id[1] < 0) return NAN;
    return (double)w->top_val[0] - (double)w->top_val[1];
}

/* Was this arm's choice one between equal values of x and y? Only the two best rounded values are recorded: where more
 * than two tie, the other id is looked up in the raw row, on the bf16 grid. */
static int ties(const q4x_forward *w, const float *z, int32_t x, int32_t y) {
    if (!(w->top_val[0] == w->top_val[1]) || w->top_id[0] < 0 || w->top_id[1] < 0) return 0;
    const int32_t id[2] = {x, y};
    for (int i = 0; i < 2; i++) {
        if (id[i] == w->top_id[0] || id[i] == w->top_id[1]) continue;
        if (!z || id[i] < 0 || id[i] >= w->vocab) return 0;
        if (!(z[id[i]] == w->top_val[0] || k_round_bf16(z[id[i]]) == w->top_val[0])) return 0;
    }
    return 1;
}

static double contrast(const float *z, int32_t n, int32_t x, int32_t y) {
    return x >= 0 && y >= 0 && x < n && y < n ? (double)z[x] - (double)z[y] : NAN;
}

/* fmin ignores a NaN, as wanted here: the choice's margin counts where it is known. */
static double least(const bis_choice *c, int b) {
    return b ? fmin(c->margin_b, c->choice_b) : fmin(c->margin_a, c->choice_a);
}

static void weigh(const q4x_forward *x, const q4x_forward *y, bis_choice *c) {
    const float *za = last_row(x), *zb = last_row(y);
    c->margin_a = c->margin_b = c->max_dz = c->contrast_a = c->contrast_b = NAN;
    c->best_a = c->second_a = c->best_b = c->second_b = -1;
    c->choice_a = choice_margin(x);
    c->choice_b = choice_margin(y);
    c->aligned_a = x->top_id[0] == x->sampled;
    c->aligned_b = y->top_id[0] == y->sampled;
    c->tie_a = ties(x, za, c->a, c->b);
    c->tie_b = ties(y, zb, c->a, c->b);
    c->logits = za && zb && x->vocab == y->vocab;
    if (!c->logits) return;
    best_two(za, x->vocab, &c->best_a, &c->second_a);
    best_two(zb, y->vocab, &c->best_b, &c->second_b);
    c->margin_a = margin(za, c->best_a, c->second_a);
    c->margin_b = margin(zb, c->best_b, c->second_b);
    double big = 0;
    for (int32_t i = 0; i < x->vocab; i++) {
        double d = fabs((double)za[i] - (double)zb[i]);
        if (!(d <= big)) big = d; /* a NaN stays */
        if (isnan(big)) break;
    }
    c->max_dz = big;
    c->equal = bis_logits_equal(x, y);
    int32_t u = c->differ ? c->a : c->best_a, v = c->differ ? c->b : c->second_a;
    c->contrast_a = contrast(za, x->vocab, u, v);
    c->contrast_b = contrast(zb, x->vocab, u, v);
    c->at_risk = fmin(c->margin_a, c->margin_b) <= c->max_dz;
}

/* Share of the finite logits of an arm that lie on the bf16 grid. */
static double lattice(const q4x_dump *d, int32_t nf) {
    uint64_t n = 0, on = 0;
    for (int32_t f = 0; f < nf; f++) {
        const float *z = last_row(&d->forwards[f]);
        for (int32_t i = 0; z && i < d->forwards[f].vocab; i++) {
            if (!isfinite(z[i])) continue;
            n++;
            on += (k_f32_bits(z[i]) & 0xffffu) == 0;
        }
    }
    return n ? (double)on / (double)n : NAN;
}

/* min(m_A, m_B) <= max|dz| holds whenever the ids differ (F15): a choice that breaks it was not made on these rows. */
static int broken(const bis_choice *c) {
    double m = fmin(least(c, 0), least(c, 1));
    /* a choice made after rounding need not be the best of the raw row: the theorem is about rows and their best */
    if (!c->differ || !c->logits || c->tie_a || c->tie_b || isnan(c->max_dz) || isnan(m)) return 0;
    return !(m <= c->max_dz);
}

static void sum_up(bis_choices *r) {
    double sum = 0;
    r->first = r->broken = -1;
    for (int32_t f = 0; f < r->n; f++) {
        const bis_choice *c = &r->choice[f];
        r->ndiffer += c->differ;
        if (c->differ && r->first < 0) r->first = f;
        r->with_logits += c->logits;
        r->aligned += c->aligned_a && c->aligned_b;
        r->at_risk += c->at_risk;
        r->flipped_at_risk += c->at_risk && c->differ;
        r->exact_ties += c->choice_a == 0 || c->choice_b == 0;
        if (broken(c) && r->broken < 0) r->broken = f;
        if (c->differ || !c->logits) continue;
        double d = c->contrast_a - c->contrast_b;
        sum += d * d;
        r->s_n++;
    }
    r->s = r->s_n ? sqrt(sum / r->s_n) : NAN;
}

int bis_decide(const bis_pair *p, bis_choices *ret, q4x_err *err) {
    bis_choices r = {.n = p->ncomparable};
    r.choice = calloc((size_t)r.n + 1, sizeof *r.choice);
    if (!r.choice) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for %d choices", r.n);
    for (int32_t f = 0; f < r.n; f++) {
        bis_choice *c = &r.choice[f];
        c->forward = f;
        c->a = BIS_FA(p, f)->sampled;
        c->b = BIS_FB(p, f)->sampled;
        c->differ = c->a != c->b;
        weigh(BIS_FA(p, f), BIS_FB(p, f), c);
    }
    while (r.prefix < p->nf && BIS_FA(p, r.prefix)->sampled == BIS_FB(p, r.prefix)->sampled) r.prefix++;
    r.lattice_a = lattice(p->a, r.n);
    r.lattice_b = lattice(p->b, r.n);
    sum_up(&r);
    *ret = r;
    return 0;
}

void bis_choices_free(bis_choices *c) {
    free(c->choice);
    *c = (bis_choices){0};
}
