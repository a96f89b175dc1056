#include "kernels/gdn.h"

#include "kernels/arith.h"
#include "kernels/gdn_head.h"
#include "kernels/par.h"
#include "kernels/round.h"
#include "kernels/vec8.h"

k_gdn_head k_gdn_head_of(const k_call *c, int32_t h) {
    const k_dims *d = c->d;
    const int64_t kh = (int64_t)k_gdn_key_head(d, h) * d->dk, vh = (int64_t)h * d->dv;
    return (k_gdn_head){.T = c->T,
                        .dk = d->dk,
                        .dv = d->dv,
                        .act = c->lv->act,
                        .places = k_gdn_places(c->lv),
                        .q = c->in[0] + kh,
                        .k = c->in[1] + kh,
                        .v = c->in[2] + vh,
                        .g = c->in[3] + h,
                        .beta = c->in[4] + h,
                        .out = c->out + vh,
                        .S = c->st[0]->f + (int64_t)h * d->dk * d->dv,
                        .kstep = (int64_t)d->nk * d->dk,
                        .vstep = (int64_t)d->nv * d->dv,
                        .hstep = d->nv};
}

/* One token on 8 n8 columns (n8 a constant in every use). S is scaled in the pass that sums m, and gets k dl^T in the
 * pass that sums o: two passes. */
static inline __attribute__((always_inline)) void step_cols(float *S, int64_t ld, int32_t dk, const float *k,
                                                            const float *qs, const float *v, float w, float beta,
                                                            float *o, const int n8) {
    k_v8 m[4], y[4], ww = k_v8_set(w), bb = k_v8_set(beta);
    for (int b = 0; b < n8; b++) m[b] = y[b] = k_v8_zero();
    for (int32_t i = 0; i < dk; i++) {
        k_v8 ki = k_v8_set(k[i]);
        for (int b = 0; b < n8; b++) {
            k_v8 s = k_v8_mul(k_v8_load(S + i * ld + 8 * b), ww);
            k_v8_store(S + i * ld + 8 * b, s);
            m[b] = k_v8_fma(s, ki, m[b]);
        }
    }
    for (int b = 0; b < n8; b++) m[b] = k_v8_mul(k_v8_sub(k_v8_load(v + 8 * b), m[b]), bb); /* dl */
    for (int32_t i = 0; i < dk; i++) {
        k_v8 ki = k_v8_set(k[i]), qi = k_v8_set(qs[i]);
        for (int b = 0; b < n8; b++) {
            k_v8 s = k_v8_fma(ki, m[b], k_v8_load(S + i * ld + 8 * b));
            k_v8_store(S + i * ld + 8 * b, s);
            y[b] = k_v8_fma(s, qi, y[b]);
        }
    }
    for (int b = 0; b < n8; b++) k_v8_store(o + 8 * b, y[b]);
}

/* The same on one column. */
static void step_col(float *S, int64_t ld, int32_t dk, const float *k, const float *qs, float v, float w, float beta,
                     float *o) {
    float m = 0.0f, y = 0.0f;
    for (int32_t i = 0; i < dk; i++) {
        S[i * ld] = S[i * ld] * w;
        m = fmaf(S[i * ld], k[i], m);
    }
    float dl = (v - m) * beta;
    for (int32_t i = 0; i < dk; i++) {
        S[i * ld] = fmaf(k[i], dl, S[i * ld]);
        y = fmaf(S[i * ld], qs[i], y);
    }
    *o = y;
}

/* Columns j0 .. j0 + n of all tokens; column j0 of S at S, rows ld apart. */
static void seq(const k_gdn_head *a, float *S, int64_t ld, int64_t j0, int64_t n, float *qs) {
    const float root = sqrtf((float)a->dk);
    for (int32_t t = 0; t < a->T; t++) {
        const float *q = a->q + t * a->kstep, *k = a->k + t * a->kstep, *v = a->v + t * a->vstep + j0;
        const float w = k_exp(a->g[t * a->hstep]), beta = a->beta[t * a->hstep];
        float *o = a->out + t * a->vstep + j0;
        for (int32_t i = 0; i < a->dk; i++) qs[i] = q[i] / root;
        int64_t j = 0;
        for (; j + 32 <= n; j += 32) step_cols(S + j, ld, a->dk, k, qs, v + j, w, beta, o + j, 4);
        for (; j + 8 <= n; j += 8) step_cols(S + j, ld, a->dk, k, qs, v + j, w, beta, o + j, 1);
        for (; j < n; j++) step_col(S + j, ld, a->dk, k, qs, v[j], w, beta, o + j);
        for (j = 0; j < n; j++) o[j] = k_rd(o[j], a->act);
    }
}

/* A block of columns moves into one piece of memory when it pays (it fills the cache's sets evenly there). */
void k_gdn_seq(const k_gdn_head *a, int64_t j0, int64_t n, float *work) {
    float *S = work + a->dk;
    if (a->T < 4) {
        seq(a, a->S + j0, a->dv, j0, n, work);
        return;
    }
    for (int64_t i = 0; i < a->dk; i++) memcpy(S + i * n, a->S + i * a->dv + j0, (size_t)n * sizeof *S);
    seq(a, S, n, j0, n, work);
    for (int64_t i = 0; i < a->dk; i++) memcpy(a->S + i * a->dv + j0, S + i * n, (size_t)n * sizeof *S);
}

static void by_chunks(const k_gdn_head *a, float *work) {
    k_gdn_rows x = k_gdn_rows_of(a, work);
    for (x.t = 0; x.t < a->T; x.t += K_GDN_CHUNK) {
        x.n = a->T - x.t < K_GDN_CHUNK ? a->T - x.t : K_GDN_CHUNK;
        k_gdn_chunk_weights(&x);
        k_gdn_chunk_solve(&x);
        k_gdn_chunk_new(&x);
        k_gdn_chunk_finish(&x, a->out + x.t * a->vstep, a->vstep);
    }
    k_gdn_rows_end(&x);
}

static void heads_by_chunks(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    for (int64_t h = lo; h < hi; h++) {
        k_gdn_head a = k_gdn_head_of(c, (int32_t)h);
        by_chunks(&a, k_slice(c));
    }
}

static int64_t blocks_of(const k_dims *d) {
    return (d->dv + K_GDN_BLOCK - 1) / K_GDN_BLOCK;
}

static void blocks_by_tokens(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const int64_t dv = c->d->dv, blocks = blocks_of(c->d);
    (void)ctx;
    for (int64_t i = lo; i < hi; i++) {
        k_gdn_head a = k_gdn_head_of(c, (int32_t)(i / blocks));
        int64_t j = i % blocks * K_GDN_BLOCK;
        k_gdn_seq(&a, j, dv - j < K_GDN_BLOCK ? dv - j : K_GDN_BLOCK, k_slice(c));
    }
}

void gdn_core_cpu(const k_call *c) {
    const k_dims *d = c->d;
    const int64_t work = (int64_t)c->T * d->nv * d->dk * d->dv;
    if (k_gdn_chunked(c))
        k_spread(c, d->nv, 0, work, heads_by_chunks, NULL);
    else
        k_spread(c, d->nv * blocks_of(d), 0, work, blocks_by_tokens, NULL);
    c->st[0]->rows = (int64_t)d->nv * d->dk;
}
