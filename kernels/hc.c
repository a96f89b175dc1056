#include "kernels/hc.h"

#include "kernels/elem.h"
#include "kernels/par.h"

/* Stream by stream over a row that stays in the nearest cache: plain vector loops whatever N is, and for each column
 * the chain of k_hc_mix1. */
K_INLINE void mix_row(const float *restrict m, const float *restrict xn, float *restrict y, int64_t D, int32_t N,
                      int32_t act) {
    for (int64_t i = 0; i < D; i++) y[i] = k_rd(m[i] * xn[i], act);
    for (int32_t s = 1; s < N; s++) {
        const float *ms = m + s * D, *xs = xn + s * D;
        for (int64_t i = 0; i < D; i++) y[i] = y[i] + k_rd(ms[i] * xs[i], act);
    }
    for (int64_t i = 0; i < D; i++) y[i] = k_rd(y[i] / (float)N, act);
}

static void hc_mix_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t D = c->cols, W = c->in_cols[0];
    int32_t N = (int32_t)(W / D);
    for (int64_t t = lo; t < hi; t++)
        K_BY_ACT(c->lv->act, mix_row, c->in[0] + t * W, c->in[1] + t * W, c->out + t * D, D, N);
}

void hc_mix_cpu(const k_call *c) {
    k_spread(c, c->T, 0, c->T * c->in_cols[0], hc_mix_rows, NULL);
}

K_INLINE void add_stream(const float *restrict h, const float *restrict y, float inj, float *restrict out, int64_t D,
                         int32_t act, int32_t resid) {
    for (int64_t i = 0; i < D; i++) out[i] = k_hc_add1(h[i], y[i], inj, act, resid);
}

K_INLINE void add_stream_alike(const float *h, const float *y, float inj, float *out, int64_t D, int32_t act) {
    add_stream(h, y, inj, out, D, act, act);
}

K_INLINE void add_stream_apart(const float *h, const float *y, float inj, float *out, int64_t D, int32_t act) {
    add_stream(h, y, inj, out, D, act, act == K_ACT_BF16 ? K_ACT_F32 : K_ACT_BF16);
}

static void hc_add_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t W = c->cols, D = c->in_cols[1], N = c->in_cols[2];
    const int32_t act = c->lv->act, resid = k_resid(c->lv);
    for (int64_t t = lo; t < hi; t++)
        for (int64_t s = 0; s < N; s++) {
            const float *h = c->in[0] + t * W + s * D, *y = c->in[1] + t * D, inj = c->in[2][t * N + s];
            float *out = c->out + t * W + s * D;
            if (resid == act) /* constants for the loop, one function for each pair */
                K_BY_ACT(act, add_stream_alike, h, y, inj, out, D);
            else
                K_BY_ACT(act, add_stream_apart, h, y, inj, out, D);
        }
}

void hc_add_cpu(const k_call *c) {
    k_spread(c, c->T, 0, c->T * c->cols, hc_add_rows, NULL);
}

/* ---- bands ---- */

/* Per column: each product stored (and N - 1 sums and a quotient in f32 of at most sum|p|), / N; the last store. */
void hc_mix_band(const k_call *c, k_band *add) {
    int64_t D = c->cols, W = c->in_cols[0], N = W / D;
    double store = k_store_hard(c->lv->act), store2 = k_store_rms2(c->lv->act, 1.0), n = (double)N;
    for (int64_t k = 0; k < c->T * D; k++) {
        const float *m = c->in[0] + k / D * W + k % D, *x = c->in[1] + k / D * W + k % D;
        double sum = 0.0, sum2 = 0.0, y = fabs((double)c->out[k]);
        for (int64_t s = 0; s < N; s++) {
            double p = fabs((double)m[s * D] * (double)x[s * D]);
            sum += p;
            sum2 += p * p;
        }
        double hard = (store + (n + 1.0) * K_STEP_HARD) * sum / n + store * y;
        hard *= 1.0 + 2.0 * store + 0x1p-18;
        add->hard2 += hard * hard;
        add->rms2 += (store2 + (n + 1.0) * K_STEP_RMS2) * sum2 / (n * n) + store2 * y * y;
    }
}

void hc_add_band(const k_call *c, k_band *add) {
    int64_t W = c->cols, D = c->in_cols[1], N = c->in_cols[2];
    const int32_t act = c->lv->act, resid = k_resid(c->lv);
    double hp = k_store_hard(act) + K_STEP_HARD, rp2 = k_store_rms2(act, 1.0) + K_STEP_RMS2;
    double hy = k_store_hard(resid) + K_STEP_HARD, ry2 = k_store_rms2(resid, 1.0) + K_STEP_RMS2;
    for (int64_t k = 0; k < c->T * W; k++) {
        int64_t t = k / W, s = k % W / D;
        double p = fabs((double)c->in[1][t * D + k % D] * (double)c->in[2][t * N + s]), y = fabs((double)c->out[k]);
        double hard = (hp * p + hy * y) * (1.0 + hp + hy);
        add->hard2 += hard * hard;
        add->rms2 += rp2 * p * p + ry2 * y * y;
    }
}
