/* How far gdn_core can be, and is expected to be, from the exact rule on the same operands. Each rule is run again from
 * the state before the tile, in scratch, with the sizes that its errors need beside it.
 *
 * The exact token map on a column s of S is s -> (I - beta k k^T) e^g s + beta v k. So an error in S is carried on by
 * e^g times a matrix of norm at most lambda = max(1, |1 - beta |k|^2|), which is 1 for keys of length 1: it never
 * grows.
 *
 * By tokens, per column; h a bound, r2 a mean square of the error's L2 norm:
 *   scaling  h = w h + (u + 2u)|S1|                          r2 = w^2 r2 + .18 u^2 2|S1|^2   (exp is good to 2 u)
 *   dl       hd = |beta|(gamma(dk)|S1||k| + u|v-m|) + u|dl|
 *            rd = beta^2 (chain + .18 u^2 (v-m)^2) + .18 u^2 dl^2
 *   update   h = lambda h + |k| hd + u|S2|
 *            r2 = (1 - (2 beta - beta^2 |k|^2)|k|^2/dk) r2 + |k|^2 rd + .18 u^2 |S2|^2
 *   output   |q| h + (gamma(dk) + u)|S2||q|                 |q|^2/dk r2 + chain + .18 u^2 sum (S q)^2
 * In r2 an error is taken to point anywhere: a product with a vector x keeps |x|^2/dk of its square.
 * By chunks: gdn_band_chunk.c.
 *
 * First order in u, so hard is taken 1.01 times. The rd of the output is added to both. A tile takes its state as
 * given: what earlier tiles of the same call left in it is not counted again.
 */
#include <string.h>

#include "kernels/arith.h"
#include "kernels/band.h"
#include "kernels/gdn_head.h"
#include "kernels/par.h"
#include "kernels/vec8.h"

#define RU2 (K_RMS2 * K_U * K_U)

/* Bands of one head, as they lie in scratch. */
typedef struct {
    k_band out;
    k_gdn_turn turn;
} head_bands;

enum { B = 8, PER_HEAD = (int)(sizeof(head_bands) / sizeof(float)) };

/* Sizes of one token's step in B columns (missing ones are 0), then the two running errors. */
typedef struct {
    float m[B], sqm[B], s1[B], o[B], sqo[B], s2[B]; /* S1^T k, sum (S1 k)^2, |S1|^2; the same of S2 and q */
    double h[B], r2[B];
    double keep; /* what the tokens so far leave of the square of an error of S */
} columns;

/* The step of gdn.c once more (any order of the sums serves here). S: [dk, B]. */
static void sizes(const k_gdn_head *a, float *S, const float *k, const float *qs, const float *v, float w, float beta,
                  columns *x) {
    k_v8 m = k_v8_zero(), sqm = m, s1 = m, o = m, sqo = m, s2 = m;
    for (int32_t i = 0; i < a->dk; i++) {
        k_v8 s = k_v8_mul(k_v8_load(S + i * B), k_v8_set(w)), p = k_v8_mul(s, k_v8_set(k[i]));
        k_v8_store(S + i * B, s);
        m = k_v8_add(m, p);
        sqm = k_v8_fma(p, p, sqm);
        s1 = k_v8_fma(s, s, s1);
    }
    k_v8 dl = k_v8_mul(k_v8_sub(k_v8_load(v), m), k_v8_set(beta));
    for (int32_t i = 0; i < a->dk; i++) {
        k_v8 s = k_v8_fma(k_v8_set(k[i]), dl, k_v8_load(S + i * B)), p = k_v8_mul(s, k_v8_set(qs[i]));
        k_v8_store(S + i * B, s);
        o = k_v8_add(o, p);
        sqo = k_v8_fma(p, p, sqo);
        s2 = k_v8_fma(s, s, s2);
    }
    float *to[] = {x->m, x->sqm, x->s1, x->o, x->sqo, x->s2};
    const k_v8 from[] = {m, sqm, s1, o, sqo, s2};
    for (int f = 0; f < 6; f++) k_v8_store(to[f], from[f]);
}

static void errors(const k_gdn_head *a, const float *v, float w, float beta, double k2, double q2, int64_t n,
                   columns *x, k_band *add) {
    const double b = (double)beta, dk = a->dk, turn = fabs(1.0 - b * k2), lambda = turn > 1.0 ? turn : 1.0;
    const double keep = 1.0 - (2.0 * b - b * b * k2) * k2 / dk;
    x->keep *= keep * (double)w * (double)w;
    for (int64_t j = 0; j < n; j++) {
        const double m = (double)x->m[j], vm = (double)v[j] - m, dl = vm * b, o = (double)x->o[j];
        double h = (double)w * x->h[j] + 3.0 * K_U * sqrt((double)x->s1[j]);
        double r2 = (double)w * (double)w * x->r2[j] + 2.0 * RU2 * (double)x->s1[j];
        double hd = fabs(b) * (k_gamma(dk) * sqrt(k2) * sqrt((double)x->s1[j]) + K_U * fabs(vm)) + K_U * fabs(dl);
        double rd = b * b * (k_serial_rms2(dk, (double)x->sqm[j], m * m) + RU2 * vm * vm) + RU2 * dl * dl;
        x->h[j] = lambda * h + sqrt(k2) * hd + K_U * sqrt((double)x->s2[j]);
        x->r2[j] = keep * r2 + k2 * rd + RU2 * (double)x->s2[j];
        double oh = sqrt(q2) * (x->h[j] + (k_gamma(dk) + K_U) * sqrt((double)x->s2[j]));
        double or2 = q2 / dk * x->r2[j] + k_serial_rms2(dk, (double)x->sqo[j], o * o) + RU2 * (double)x->sqo[j];
        k_gdn_band_out(a->act, o, oh, or2, add);
    }
}

/* Columns j0 .. j0 + n. */
static void by_tokens(const k_gdn_head *a, int64_t j0, int64_t n, float *work, k_band *add, k_gdn_turn *turn) {
    float *qs = work, *S = work + a->dk, v[B] = {0};
    columns x = {.keep = 1.0};
    memset(S, 0, (size_t)(a->dk * B) * sizeof *S);
    for (int64_t i = 0; i < a->dk; i++) memcpy(S + i * B, a->S + i * a->dv + j0, (size_t)n * sizeof *S);
    for (int32_t t = 0; t < a->T; t++) {
        const float *q = a->q + t * a->kstep, *k = a->k + t * a->kstep;
        const float w = k_exp(a->g[t * a->hstep]), beta = a->beta[t * a->hstep];
        for (int32_t i = 0; i < a->dk; i++) qs[i] = q[i] / sqrtf((float)a->dk);
        memcpy(v, a->v + t * a->vstep + j0, (size_t)n * sizeof *v);
        sizes(a, S, k, qs, v, w, beta, &x);
        errors(a, v, w, beta, k_norm2(k, a->dk), k_norm2(qs, a->dk), n, &x, add);
    }
    for (int64_t j = 0; j < n; j++) k_gdn_band_state(x.h[j], x.r2[j], &turn->made);
    turn->keep = x.keep;
}

int64_t gdn_scratch(const k_dims *d) {
    return k_gdn_band_chunk_work(d) + (int64_t)d->dk * d->dv + PER_HEAD * d->nv;
}

void gdn_core_band(const k_call *c, k_band *add) {
    k_band state = {0.0, 0.0};
    gdn_core_bands(c, add, &state);
}

/* Over tiles an error of the state goes on by maps of norm at most 1 (keys of length 1): the bounds add up. */
static void carry_on(k_band *state, double hard2, double rms2) {
    double hard = sqrt(state->hard2) + sqrt(hard2);
    *state = (k_band){hard * hard, rms2};
}

void gdn_core_bands(const k_call *c, k_band *add, k_band *state) {
    const k_dims *d = c->d;
    const int64_t cells = (int64_t)d->dk * d->dv;
    const k_state *before = c->pos0 == 0 ? NULL : c->st[1] ? c->st[1] : c->st[0];
    float *per_head = c->scratch + c->scratch_n - PER_HEAD * d->nv; /* behind thread 0's work */
    double hard2 = 0.0, rms2 = 0.0;
#pragma omp parallel for schedule(static) num_threads(c->nth) if (c->nth > 1 && c->T * cells * d->nv > K_PAR_MIN)
    for (int32_t h = 0; h < d->nv; h++) {
        k_gdn_head a = k_gdn_head_of(c, h);
        head_bands b = {.turn.keep = 1.0};
        float *work = k_slice(c);
        a.S = work + k_gdn_band_chunk_work(d);
        if (before)
            memcpy(a.S, before->f + h * cells, (size_t)cells * sizeof *a.S);
        else
            memset(a.S, 0, (size_t)cells * sizeof *a.S);
        if (k_gdn_chunked(c))
            k_gdn_band_chunk(&a, work, &b.out, &b.turn);
        else
            for (int64_t j = 0; j < d->dv; j += B)
                by_tokens(&a, j, d->dv - j < B ? d->dv - j : B, work, &b.out, &b.turn);
        memcpy(per_head + h * (int64_t)PER_HEAD, &b, sizeof b);
    }
    for (int32_t h = 0; h < d->nv; h++) { /* one order whatever the threads */
        head_bands b;
        memcpy(&b, per_head + h * (int64_t)PER_HEAD, sizeof b);
        add->hard2 += b.out.hard2;
        add->rms2 += b.out.rms2;
        hard2 += b.turn.made.hard2;
        rms2 += b.turn.made.rms2 + b.turn.keep * state->rms2 / d->nv;
    }
    carry_on(state, hard2, rms2);
    if (before && !c->st[1]) add->hard2 = state->hard2 = (double)INFINITY;
}
