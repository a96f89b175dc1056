#include "kernels/elem.h"

#include "kernels/par.h"

/* Rows are the unit: a row function sees plain arrays that do not overlap, which is what makes it vector code. */

void slice_cpu(const k_call *c) {
    for (int64_t t = 0; t < c->T; t++)
        memcpy(c->out + t * c->cols, c->in[0] + t * c->in_cols[0] + c->off, (size_t)c->cols * sizeof(float));
}

void widen_cpu(const k_call *c) {
    int64_t D = c->in_cols[0];
    for (int64_t t = 0; t < c->T; t++)
        for (int64_t s = 0; s + D <= c->cols; s += D)
            memcpy(c->out + t * c->cols + s, c->in[0] + t * D, (size_t)D * sizeof(float));
}

K_INLINE void add_row(const float *restrict a, const float *restrict b, float *restrict y, int64_t n, int32_t act) {
    for (int64_t i = 0; i < n; i++) y[i] = k_add1(a[i], b[i], act);
}

static void add_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const int32_t act = c->per ? k_resid(c->lv) : c->lv->act;
    (void)ctx;
    for (int64_t t = lo; t < hi; t++)
        K_BY_ACT(act, add_row, c->in[0] + t * c->cols, c->in[1] + t * c->cols, c->out + t * c->cols, c->cols);
}

void add_cpu(const k_call *c) {
    k_spread(c, c->T, 0, c->T * c->cols, add_rows, NULL);
}

K_INLINE void sigmoid_row(const float *restrict x, float *restrict y, int64_t n, int32_t act) {
    for (int64_t i = 0; i < n; i++) y[i] = k_sigmoid1(x[i], act);
}

static void sigmoid_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    for (int64_t t = lo; t < hi; t++)
        K_BY_ACT(c->lv->act, sigmoid_row, c->in[0] + t * c->cols, c->out + t * c->cols, c->cols);
}

void sigmoid_cpu(const k_call *c) {
    k_spread(c, c->T, 0, K_PAR_EXP * c->T * c->cols, sigmoid_rows, NULL);
}

K_INLINE void swiglu_row(const float *restrict g, const float *restrict u, float *restrict y, int64_t n, int32_t act) {
    for (int64_t i = 0; i < n; i++) y[i] = k_swiglu1(g[i], u[i], act);
}

K_INLINE void geglu_row(const float *restrict g, const float *restrict u, float *restrict y, int64_t n, int32_t act) {
    for (int64_t i = 0; i < n; i++) y[i] = k_geglu1(g[i], u[i], act);
}

static void swiglu_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t n = c->cols;
    for (int64_t t = lo; t < hi; t++)
        if (c->lv->gated == K_GATED_GELU)
            K_BY_ACT(c->lv->act, geglu_row, c->in[0] + t * n, c->in[1] + t * n, c->out + t * n, n);
        else
            K_BY_ACT(c->lv->act, swiglu_row, c->in[0] + t * n, c->in[1] + t * n, c->out + t * n, n);
}

void swiglu_cpu(const k_call *c) {
    k_spread(c, c->T, 0, K_PAR_EXP * c->T * c->cols, swiglu_rows, NULL);
}

K_INLINE void gate_row(const float *restrict o, const float *restrict g, float *restrict y, int64_t n, int32_t act) {
    for (int64_t i = 0; i < n; i++) y[i] = k_gate1(o[i], g[i], act);
}

static void attn_gate_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t hd = c->d->hd;
    for (int64_t t = lo; t < hi; t++)
        for (int64_t h = 0; h < c->cols; h += hd)
            K_BY_ACT(c->lv->act, gate_row, c->in[0] + t * c->cols + h, c->in[1] + t * 2 * c->cols + 2 * h + hd,
                     c->out + t * c->cols + h, hd);
}

void attn_gate_cpu(const k_call *c) {
    k_spread(c, c->T, 0, K_PAR_EXP * c->T * c->cols, attn_gate_rows, NULL);
}

static void gdn_g_row(const float *restrict a, const float *restrict na, const float *restrict dt, float *restrict y,
                      int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = k_gdn_g1(a[i], na[i], dt[i]);
}

void gdn_g_cpu(const k_call *c) {
    for (int64_t t = 0; t < c->T; t++)
        gdn_g_row(c->in[0] + t * c->cols, c->par[0], c->par[1], c->out + t * c->cols, c->cols);
}

/* ---- bands ---- */

static void store_band(const k_call *c, int32_t act, int32_t stores, int32_t steps, k_band *add) {
    double e = stores * k_store_hard(act) + steps * K_STEP_HARD, sum = 0.0;
    /* the product of the (1 + e_i) is below e^e, the exact value at most 1 / (1 - (e^e - 1)) of the stored one, and
     * e^e - 1 < e + e^2 for e < 1: all of it below e (1 + 3 e) for the few per mille that e is */
    double hard = e * (1.0 + 3.0 * e);
    for (int64_t i = 0; i < c->T * c->cols; i++) sum += (double)c->out[i] * (double)c->out[i];
    add->hard2 += hard * hard * sum;
    add->rms2 += k_store_rms2(act, stores * sum) + steps * K_STEP_RMS2 * sum;
}

void k_store_band(const k_call *c, int32_t stores, int32_t steps, k_band *add) {
    store_band(c, c->lv->act, stores, steps, add);
}

void move_band(const k_call *c, k_band *add) {
    (void)c;
    (void)add;
}

void add_band(const k_call *c, k_band *add) {
    store_band(c, c->per ? k_resid(c->lv) : c->lv->act, 1, 1, add);
}
void sigmoid_band(const k_call *c, k_band *add) {
    k_store_band(c, 1, 5, add);
}

/* The error of gelu is a share of |g| (arith.h: below 0 0.88 2^-24, above 1.70 ulp of a result that |g| exceeds), which
 * what follows makes a little larger; the stores and the product are relative to the result. */
static void geglu_band(const k_call *c, k_band *add) {
    k_band rest = {0, 0};
    double sum = 0.0;
    for (int64_t i = 0; i < c->T * c->cols; i++) {
        double gu = (double)c->in[0][i] * (double)c->in[1][i];
        sum += gu * gu;
    }
    k_store_band(c, 2, 1, &rest);
    double hard = 3.4 * (1.0 + 0x1p-6) * K_STEP_HARD * sqrt(sum) + sqrt(rest.hard2);
    add->hard2 += hard * hard;
    add->rms2 += K_STEP_RMS2 * sum + rest.rms2;
}

void swiglu_band(const k_call *c, k_band *add) {
    if (c->lv->gated == K_GATED_GELU)
        geglu_band(c, add);
    else
        k_store_band(c, 2, 6, add);
}
void attn_gate_band(const k_call *c, k_band *add) {
    k_store_band(c, 2, 6, add);
}

/* The rounding of s = a + dt passes through the slope of the softplus, which is below 1. */
void gdn_g_band(const k_call *c, k_band *add) {
    for (int64_t t = 0; t < c->T; t++) {
        for (int64_t h = 0; h < c->cols; h++) {
            double s = fabs((double)c->in[0][t * c->cols + h] + (double)c->par[1][h]) * fabs((double)c->par[0][h]);
            double y = fabs((double)c->out[t * c->cols + h]), hard = K_STEP_HARD * (s + 4.0 * y) * (1.0 + 0x1p-20);
            add->hard2 += hard * hard;
            add->rms2 += K_STEP_RMS2 * (s * s + 4.0 * y * y);
        }
    }
}
