/* attn.cu: eager attention of attn.h. A warp a score, a warp a row of probabilities, a thread a column of the context,
 * whose chain over the visible tokens is serial by contract. Runs on a device refuse what these do not have: the online
 * softmax and extra tokens (lib/run.c). */
#include "kernels/attn.h"

#include "kernels/arith.h"
#include "kernels/cuda.cuh"

/* What a query may see: a bit a complete block, made by see_k; NULL: everything up to itself. */
static __device__ __forceinline__ int sees(const k_args *a, const uint32_t *bit, int64_t t, int64_t j) {
    const int64_t pos = a->c.pos0 + t;
    if (j > pos) return 0;
    if (!bit) return 1;
    const int64_t b = j / a->d.ratio;
    return b >= (pos + 1) / a->d.ratio || (bit[b / 32] >> (b % 32) & 1);
}

static __host__ __device__ __forceinline__ int64_t words_of(const k_dims *d, int64_t Tc) {
    return d->ratio ? (Tc / d->ratio + 31) / 32 : 0;
}

/* A block a token: its selected blocks as bits. */
static __global__ void see_k(const __grid_constant__ k_args a, const int32_t *sel, int64_t width) {
    const int64_t t = blockIdx.x, words = words_of(&a.d, a.c.Tc);
    const int32_t nb = (a.c.pos0 + (int32_t)t + 1) / a.d.ratio;
    uint32_t *bit = (uint32_t *)(void *)a.c.scratch + t * words;
    for (int64_t w = threadIdx.x; w < words; w += blockDim.x) bit[w] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
        int32_t b = sel[t * width + i];
        if (b >= 0 && b < nb) atomicOr(&bit[b / 32], 1u << (b % 32));
    }
}

/* Makes the bits of slot `slot`; returns whether there are any. */
static int see(const k_call *c, int slot, void *stream) {
    if (!c->in_i[slot]) return 0;
    K_LAUNCH(see_k, dim3((unsigned)c->T), dim3(64), 0, stream, k_args_of(c), c->in_i[slot], c->in_cols[slot]);
    return 1;
}

static __device__ __forceinline__ const uint32_t *bits_of(const k_args *a, int some, int64_t t) {
    return some ? (const uint32_t *)(const void *)a->c.scratch + t * words_of(&a->d, a->c.Tc) : NULL;
}

static __global__ void append_k(const __grid_constant__ k_args a, int64_t kw) {
    const int64_t i = k_tid();
    if (i < a.c.T * kw) a.st.f[a.c.pos0 * kw + i] = k_kv_round(a.c.in[1][i], k_kv_type(&a.lv));
}
static void append(const k_call *c, void *stream) {
    const int64_t kw = (int64_t)c->d->G * c->d->hd;
    K_LAUNCH(append_k, dim3(k_blocks(c->T * kw, K_THREADS)), dim3(K_THREADS), 0, stream, k_args_of(c), kw);
    c->st[0]->rows = c->pos0 + c->T;
}

/* A warp takes 32 tokens of a row, one after the other; lane l keeps the score of the l-th. */
static __global__ void attn_score_k(const __grid_constant__ k_args a, int some, float scale) {
    const int64_t Tc = a.c.Tc, H = a.d.H, hd = a.d.hd, parts = (Tc + K_WARP - 1) / K_WARP;
    const int64_t k = k_warp(), row = k / parts, j0 = k % parts * K_WARP, t = row / H;
    if (t >= a.c.T) return;
    const uint32_t *bit = bits_of(&a, some, t);
    const float *q = a.c.in[0] + row * hd, *key = a.st.f + row % H / (H / a.d.G) * hd;
    float mine = 0.0f;
    for (int l = 0; l < K_WARP && j0 + l < Tc; l++) {
        if (!sees(&a, bit, t, j0 + l)) continue;
        float y = k_attn_scaled(k_warp_dot(q, key + (j0 + l) * a.d.G * hd, hd), scale,
                                k_follow(a.lv.inner, a.lv.act));
        if (k_lane() == l) mine = y;
    }
    if (j0 + k_lane() < Tc) a.c.out[row * Tc + j0 + k_lane()] = mine;
}
void attn_score_cuda(const k_call *c, void *stream) {
    if (c->T == 0) return;
    const int some = see(c, 2, stream);
    append(c, stream);
    const int64_t n = (int64_t)c->T * c->d->H * ((c->Tc + K_WARP - 1) / K_WARP);
    K_LAUNCH(attn_score_k, dim3(k_blocks(n, K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream, k_args_of(c), some,
             k_attn_scale(c->d->hd));
}

/* Lane l is accumulator l of the sum: it takes tokens l, l + 32, .. */
static __global__ void attn_prob_k(const __grid_constant__ k_args a, int some) {
    const int64_t row = k_warp(), Tc = a.c.Tc, t = row / a.d.H;
    if (t >= a.c.T) return;
    const uint32_t *bit = bits_of(&a, some, t);
    const float *s = a.c.in[0] + row * Tc;
    float *y = a.c.out + row * Tc, max = -INFINITY, acc = 0.0f;
    for (int64_t j = k_lane(); j < Tc; j += K_WARP)
        if (sees(&a, bit, t, j)) max = s[j] > max ? s[j] : max;
    max = k_warp_max(max);
    for (int64_t j = k_lane(); j < Tc; j += K_WARP) {
        y[j] = 0.0f;
        if (!sees(&a, bit, t, j)) continue;
        y[j] = k_exp(s[j] - max);
        acc = acc + y[j];
    }
    const float sum = k_warp_fold(acc);
    for (int64_t j = k_lane(); j < Tc; j += K_WARP)
        if (sees(&a, bit, t, j)) y[j] = k_rd(y[j] / sum, k_follow(a.lv.inner, a.lv.act));
}
void attn_prob_cuda(const k_call *c, void *stream) {
    if (c->T == 0) return;
    const int some = see(c, 1, stream);
    K_LAUNCH(attn_prob_k, dim3(k_blocks((int64_t)c->T * c->d->H, K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream,
             k_args_of(c), some);
}

static __global__ void attn_ctx_k(const __grid_constant__ k_args a, int some) {
    const int64_t i = k_tid(), H = a.d.H, hd = a.d.hd, row = i / hd, t = row / H, step = a.d.G * hd;
    if (t >= a.c.T) return;
    const uint32_t *bit = bits_of(&a, some, t);
    const float *p = a.c.in[0] + row * a.c.Tc, *v = a.st.f + row % H / (H / a.d.G) * hd + i % hd;
    float y = 0.0f;
    for (int64_t j = 0; j <= a.c.pos0 + t; j++)
        if (sees(&a, bit, t, j)) y = fmaf(p[j], v[j * step], y);
    a.c.out[i] = k_rd(y, a.lv.act);
}
void attn_ctx_cuda(const k_call *c, void *stream) {
    if (c->T == 0) return;
    const int some = see(c, 3, stream);
    append(c, stream);
    K_LAUNCH(attn_ctx_k, dim3(k_blocks((int64_t)c->T * c->d->H * c->d->hd, K_THREADS)), dim3(K_THREADS), 0, stream,
             k_args_of(c), some);
}
