/* moe_band.c: what the router's weights and the sums over experts state about their own rounding. */
#include <math.h>

#include "kernels/arith.h"
#include "kernels/band.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/par.h"
#include "kernels/reduce.h"

typedef void (*token_band)(const k_call *c, int32_t t, k_band *part);

/* Tokens in fixed parts, added in order. */
static void over_tokens(const k_call *c, token_band f, k_band *add) {
    k_band part[K_BAND_PARTS] = {{0, 0}};
#pragma omp parallel for schedule(static) num_threads(c->nth)
    for (int b = 0; b < K_BAND_PARTS; b++)
        for (int64_t t = (int64_t)c->T * b / K_BAND_PARTS; t < (int64_t)c->T * (b + 1) / K_BAND_PARTS; t++)
            f(c, (int32_t)t, &part[b]);
    for (int b = 0; b < K_BAND_PARTS; b++) add->hard2 += part[b].hard2, add->rms2 += part[b].rms2;
}

/* One more rd of v in a chain whose error so far is bounded by h, with mean square r2. */
static void store(double v, int32_t act, double *h, double *r2) {
    *h += k_store_hard(act) * (fabs(v) + *h);
    *r2 += k_store_rms2(act, v * v);
}

/* One more f32 step with result v. */
static void step(double v, double *h, double *r2) {
    *h += K_U * (fabs(v) + *h);
    *r2 += K_RMS2 * K_U * K_U * v * v;
}

/* Relative error of exp(l - most): the subtraction, magnified by nothing but its own size, and 0.90 ulp. */
static double term_hard(double dist) {
    return K_U * (dist + 2);
}
static double term_rms2(double dist) {
    return K_RMS2 * K_U * K_U * (dist * dist + 2);
}

/* moe.softmax = bf16: stores of p, and with renorm of the sum, its terms' (each with its share) and the quotient, which
 * is then as round as act = bf16 would make it. All but the last, relative. */
static void softmax_stores(int renorm, double share2, double *hard, double *rms2) {
    if (!renorm) return; /* p's own store is the last */
    *hard += 3 * k_store_hard(K_ACT_BF16);
    *rms2 += k_store_rms2(K_ACT_BF16, 2 + share2);
}

static void weights_token(const k_call *c, int32_t t, k_band *part) {
    const int32_t *id = c->in_i[1] + t * c->cols;
    const float *l = c->in[0] + t * c->in_cols[0];
    int renorm = k_moe_renorm(c), coarse = c->lv->softmax == K_SOFTMAX_BF16;
    int64_t E = c->in_cols[0], n = renorm ? c->cols : E;
    double share2 = 0, most = -INFINITY, sum = 0, hard = 0, rms2 = 0;
    for (int64_t i = 0; i < E; i++) most = (double)l[i] > most ? (double)l[i] : most;
    for (int64_t i = 0; i < n; i++) { /* what is divided by: its error is the terms', each with its share */
        int64_t j = renorm ? id[i] : i;
        if (j < 0 || j >= E) continue;
        double dist = most - (double)l[j], e = (double)k_exp((float)-dist);
        sum += e, share2 += e * e, hard += e * term_hard(dist), rms2 += e * e * term_rms2(dist);
    }
    hard /= sum, rms2 /= sum * sum, share2 /= sum * sum;
    if (coarse) softmax_stores(renorm, share2, &hard, &rms2);
    /* renorm: two divisions, and K - 1 adds; else one division and the lanes32 sum */
    double chain = renorm ? k_gamma((double)c->cols + 2) : k_lanes32_gamma((double)E) + K_U;
    double chain2 = renorm ? 3 + (double)c->cols / 3 : 3 + (double)E / 3072;
    for (int64_t k = 0; k < c->cols; k++) {
        if (id[k] < 0 || id[k] >= E) continue;
        double dist = most - (double)l[id[k]], w = (double)k_exp((float)-dist) / sum;
        double h = w * (hard + term_hard(dist) + chain) * (1 + (coarse ? 0x1p-5 : 0x1p-10));
        double r2 = w * w * (rms2 + term_rms2(dist) + K_RMS2 * K_U * K_U * chain2);
        store(w, coarse ? K_ACT_BF16 : c->lv->act, &h, &r2);
        part->hard2 += h * h, part->rms2 += r2;
    }
}

void moe_weights_band(const k_call *c, k_band *add) {
    over_tokens(c, weights_token, add);
}

/* Slot that comes after slot k in the order of adding, or -1: ids ascending, equal ids in rank order. */
static int64_t next_slot(const int32_t *ids, int64_t K, int32_t combine, int64_t k) {
    if (combine != K_COMBINE_EXPERTS) return k + 1 < K ? k + 1 : -1;
    int64_t best = -1;
    for (int64_t j = 0; j < K; j++) {
        int after = k < 0 || ids[j] > ids[k] || (ids[j] == ids[k] && j > k);
        if (after && (best < 0 || ids[j] < ids[best])) best = j;
    }
    return best;
}

static void routed_token(const k_call *c, int32_t t, k_band *part) {
    int64_t K = c->in_cols[1], D = c->cols;
    int32_t act = c->lv->act, combine = c->lv->combine;
    const float *down = c->in[0] + t * K * D, *w = c->in[1] + t * K;
    const int32_t *ids = c->in_i[2] + t * K;
    for (int64_t i = 0; i < D; i++) {
        double acc = 0, h = 0, r2 = 0;
        int first = 1;
        for (int64_t k = next_slot(ids, K, combine, -1); k >= 0; k = next_slot(ids, K, combine, k), first = 0) {
            double v = (double)down[k * D + i] * (double)w[k], hv = 0, r2v = 0;
            step(v, &hv, &r2v);
            store(v, act, &hv, &r2v);
            acc += v, h += hv, r2 += r2v;
            if (first) continue; /* +0 and one value: exact */
            step(acc, &h, &r2);
            if (combine == K_COMBINE_EXPERTS) store(acc, act, &h, &r2);
        }
        if (combine != K_COMBINE_EXPERTS) store(acc, act, &h, &r2);
        part->hard2 += h * h, part->rms2 += r2;
    }
}

void moe_routed_band(const k_call *c, k_band *add) {
    over_tokens(c, routed_token, add);
}

static void out_token(const k_call *c, int32_t t, k_band *part) {
    int32_t act = c->lv->act;
    int on = c->lv->sgate == K_SGATE_ON;
    double g = on ? (double)k_sigmoid(c->in[2][t]) : 1, hg = on ? 5 * K_U * g : 0,
           r2g = 2.5 * K_RMS2 * K_U * K_U * g * g;
    if (on)
        store(g, act, &hg, &r2g);
    else
        r2g = 0;
    for (int64_t i = 0; i < c->cols; i++) {
        double s = (double)c->in[1][t * c->cols + i], v = g * s, h = hg * fabs(s), r2 = r2g * s * s;
        if (on) { /* else the product is exact, and as round as what it is made of */
            step(v, &h, &r2);
            store(v, act, &h, &r2);
        }
        v += (double)c->in[0][t * c->cols + i];
        step(v, &h, &r2);
        store(v, act, &h, &r2);
        part->hard2 += h * h, part->rms2 += r2;
    }
}

void moe_out_band(const k_call *c, k_band *add) {
    over_tokens(c, out_token, add);
}
