#include "kernels/norm.h"

#include "kernels/elem.h"
#include "kernels/par.h"
#include "kernels/reduce.h"

K_INLINE void rms_row(const float *restrict x, const float *restrict gamma, float r, float *restrict y, int64_t n,
                      int32_t act) {
    for (int64_t i = 0; i < n; i++) y[i] = k_rmsnorm1(x[i], r, gamma[i], act);
}

static const float *rms_in(const k_call *c, int64_t t, int64_t g) {
    return c->in[0] + t * c->in_cols[0] + c->off + g * c->stride;
}

static void rmsnorm_groups(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t G = c->G, ng = c->cols / G;
    for (int64_t k = lo; k < hi; k++) {
        const float *x = rms_in(c, k / ng, k % ng), *gamma = c->par[0] + (c->per ? k % ng * G : 0);
        float r = k_rms_r(k_lanes32_dot(x, x, G), G, k_eps(c->d, c->lv));
        K_BY_ACT(c->lv->act, rms_row, x, gamma, r, c->out + k * G, G);
    }
}

void rmsnorm_cpu(const k_call *c) {
    k_spread(c, c->T * (c->cols / c->G), 0, 2 * c->T * c->cols, rmsnorm_groups, NULL);
}

static void l2_row(const float *restrict x, float r, float *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * r;
}

static void l2norm_groups(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t G = c->G, ng = c->cols / G;
    for (int64_t k = lo; k < hi; k++) {
        const float *x = c->in[0] + k / ng * c->in_cols[0] + c->off + k % ng * G;
        l2_row(x, k_l2_r(k_lanes32_dot(x, x, G), k_l2_eps(c->lv)), c->out + k * G, G);
    }
}

void l2norm_cpu(const k_call *c) {
    k_spread(c, c->T * (c->cols / c->G), 0, 2 * c->T * c->cols, l2norm_groups, NULL);
}

K_INLINE void gdn_row(const float *restrict o, const float *restrict gamma, const float *restrict z, float r,
                      float *restrict y, int64_t n, int32_t silu, int32_t act) {
    for (int64_t i = 0; i < n; i++) y[i] = k_gdn_norm1(o[i], r, gamma[i], z[i], silu, act);
}

static void gdn_norm_groups(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    int64_t G = c->G;
    (void)ctx;
    for (int64_t k = lo; k < hi; k++) {
        const float *o = c->in[0] + k * G, *z = c->in[1] + k * G;
        float r = k_rms_r(k_lanes32_dot(o, o, G), G, k_eps(c->d, c->lv));
        if (k_gdn_gate_silu(c->d, c->lv))
            K_BY_ACT(c->lv->act, gdn_row, o, c->par[0], z, r, c->out + k * G, G, 1);
        else
            K_BY_ACT(c->lv->act, gdn_row, o, c->par[0], z, r, c->out + k * G, G, 0);
    }
}

void gdn_norm_cpu(const k_call *c) {
    k_spread(c, c->T * (c->cols / c->G), 0, K_PAR_EXP * c->T * c->cols, gdn_norm_groups, NULL);
}

/* ---- bands ---- */

/* Relative error of r from the sum of squares of n elements (chains m, depth 5), halved by the root. The terms have one
 * sign, so sum|x x| = y: hard is relative too. */
static void group_band(const float *x, const float *y, int64_t n, int32_t stores, int32_t steps, int32_t act,
                       k_band *add) {
    const int64_t chain = (n + 31) / 32;
    double m = (double)chain, d = 5.0, s2 = 0.0, s4 = 0.0, out = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double q = (double)x[i] * (double)x[i];
        s2 += q;
        s4 += q * q;
        out += (double)y[i] * (double)y[i];
    }
    double ku = (m + d) * K_STEP_HARD, e = 0.5 * ku / (1.0 - ku) + steps * K_STEP_HARD + stores * k_store_hard(act);
    double spread = s2 > 0.0 ? s4 / (s2 * s2) : 0.0;
    double sum = 0.25 * K_STEP_RMS2 * ((m / 2.0 + d) * spread + m / 96.0 + 2.0);
    double hard = e * (1.0 + 3.0 * e);
    add->hard2 += hard * hard * out;
    add->rms2 += (sum + steps * K_STEP_RMS2) * out + k_store_rms2(act, stores * out);
}

/* steps: mean, + eps, root (these three halved or not: counted whole), quotient, and the products */
void rmsnorm_band(const k_call *c, k_band *add) {
    int64_t ng = c->cols / c->G;
    for (int64_t k = 0; k < c->T * ng; k++)
        group_band(rms_in(c, k / ng, k % ng), c->out + k * c->G, c->G, 1, 6, c->lv->act, add);
}

void l2norm_band(const k_call *c, k_band *add) {
    int64_t ng = c->cols / c->G;
    for (int64_t k = 0; k < c->T * ng; k++)
        group_band(c->in[0] + k / ng * c->in_cols[0] + c->off + k % ng * c->G, c->out + k * c->G, c->G, 0, 4,
                   c->lv->act, add);
}

void gdn_norm_band(const k_call *c, k_band *add) {
    int64_t ng = c->cols / c->G;
    for (int64_t k = 0; k < c->T * ng; k++)
        group_band(c->in[0] + k * c->G, c->out + k * c->G, c->G, 3, 12, c->lv->act, add);
}
