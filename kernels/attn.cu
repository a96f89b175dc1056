/* attn.cu: eager attention of attn.h. A warp 32 scores, a warp a row of probabilities, a thread a column of the
 * context, whose chain over the visible tokens is serial by contract. Online: the steps of the softmax by a warp's
 * lanes, the chains through them by all of it.
 */
#include "kernels/attn.h"

#include "kernels/cuda.cuh"

/* ---- what a query may see ---- */

static __host__ __device__ __forceinline__ int64_t words_of(int64_t tokens) {
    return (tokens + 31) / 32;
}

static __device__ __forceinline__ void mark(uint32_t *bit, int32_t from, int32_t end) {
    for (int32_t next; from < end; from = next) {
        next = (from / 32 + 1) * 32 < end ? (from / 32 + 1) * 32 : end;
        atomicOr(&bit[from / 32], (0xffffffffu >> (32 - (next - from))) << (from % 32));
    }
}

/* A block a token: what it sees (attn_runs.h), a bit a token. */
static __global__ void see_k(const __grid_constant__ k_args a, const int32_t *sel, int64_t width, const int32_t *extra,
                             int64_t nextra) {
    const int64_t t = blockIdx.x, words = words_of(a.c.Tc);
    const int32_t ratio = a.d.ratio, end = a.c.pos0 + (int32_t)t + 1, nb = end / ratio;
    uint32_t *bit = (uint32_t *)(void *)a.c.scratch + t * words;
    for (int64_t w = threadIdx.x; w < words; w += blockDim.x) bit[w] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
        const int32_t b = sel[t * width + i];
        if (b >= 0 && b < nb) mark(bit, b * ratio, (b + 1) * ratio);
    }
    if (threadIdx.x) return;
    mark(bit, nb * ratio, end);
    for (int32_t i = 0, n = 0; i < nextra && n < ratio; i++) {
        const int32_t id = extra[t * nextra + i];
        if (id < 0 || id >= end) continue;
        mark(bit, id, id + 1);
        n++;
    }
}

/* Makes the bits of blocks in slot `slot` and extra tokens in the next; returns whether there are any. */
static int see(const k_call *c, int slot, void *stream) {
    const int32_t *extra = c->in_i[slot + 1];
    if (!c->in_i[slot]) return 0;
    K_LAUNCH(see_k, dim3((unsigned)c->T), dim3(64), 0, stream, k_args_of(c), c->in_i[slot], c->in_cols[slot], extra,
             extra ? c->in_cols[slot + 1] : (int64_t)0);
    return 1;
}

/* Bit l: the query in row t sees token 32 w + l. some: see_k made bits; else it sees everything up to itself. */
static __device__ __forceinline__ uint32_t seen(const k_args *a, int some, int64_t t, int64_t w) {
    if (some) return ((const uint32_t *)(const void *)a->c.scratch)[t * words_of(a->c.Tc) + w];
    const int64_t left = a->c.pos0 + t - 32 * w;
    return left < 0 ? 0 : left >= 31 ? 0xffffffffu : (2u << left) - 1;
}

/* ---- scores ---- */

static __global__ void append_k(const __grid_constant__ k_args a, int64_t kw) {
    const int64_t i = k_tid();
    if (i < a.c.T * kw) a.st.f[a.c.pos0 * kw + i] = k_kv_round(a.c.in[1][i], k_kv_type(&a.lv));
}
static void append(const k_call *c, void *stream) {
    const int64_t kw = (int64_t)c->d->G * c->d->hd;
    K_LAUNCH(append_k, dim3(k_blocks(c->T * kw, K_THREADS)), dim3(K_THREADS), 0, stream, k_args_of(c), kw);
    c->st[0]->rows = c->pos0 + c->T;
}

/* k_warp_dot with q as the online softmax reads it. */
template <int ROUNDED>
static __device__ __forceinline__ float score_dot(const float *q, const float *key, int64_t n, int32_t run) {
    float acc = 0.0f;
    for (int64_t i = k_lane(); i < n; i += K_WARP) acc = fmaf(ROUNDED ? k_kv_round(q[i], run) : q[i], key[i], acc);
    return k_warp_fold(acc);
}

/* A warp takes 32 tokens of a row, one after the other; lane l keeps the score of the l-th. */
template <int ROUNDED>
static __global__ void attn_score_k(const __grid_constant__ k_args a, int some, float scale, int32_t run) {
    const int64_t Tc = a.c.Tc, H = a.d.H, hd = a.d.hd, parts = words_of(Tc);
    const int64_t k = k_warp(), row = k / parts, w = k % parts, t = row / H, j = w * K_WARP + k_lane();
    if (t >= a.c.T) return;
    const float *q = a.c.in[0] + row * hd, *key = a.st.f + row % H / (H / a.d.G) * hd;
    float mine = 0.0f;
    for (uint32_t m = seen(&a, some, t, w); m; m &= m - 1) {
        const int l = __ffs((int)m) - 1;
        const float y = k_attn_scaled(score_dot<ROUNDED>(q, key + (w * K_WARP + l) * a.d.G * hd, hd, run), scale,
                                      k_follow(a.lv.inner, a.lv.act));
        if (k_lane() == l) mine = y;
    }
    if (j < Tc) a.c.out[row * Tc + j] = mine;
}
void attn_score_cuda(const k_call *c, void *stream) {
    if (c->T == 0) return;
    const int some = see(c, 2, stream);
    const int32_t run = k_sweep_type(c);
    append(c, stream);
    const int64_t n = (int64_t)c->T * c->d->H * words_of(c->Tc);
    auto plain = attn_score_k<0>, rounded = attn_score_k<1>;
    K_LAUNCH(run == K_KV_F32 ? plain : rounded, dim3(k_blocks(n, K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream,
             k_args_of(c), some, k_attn_scale(c->d->hd), run);
}

/* ---- the running softmax ---- */

/* Its steps through the tokens in m, *max the largest score before them and then after: lane l makes the l-th, whose
 * score is s. */
static __device__ __forceinline__ float sweep_word(uint32_t m, float s, float *max, float *ret_shrink) {
    float before = *max;
    for (; m; m &= m - 1) {
        const int l = __ffs((int)m) - 1;
        const float v = __shfl_sync(0xffffffffu, s, l);
        if (k_lane() == l) before = *max;
        *max = v > *max ? v : *max;
    }
    return k_sweep_on(&before, s, ret_shrink);
}

/* The sum of the running softmax over row t's tokens, whose scores are s. */
static __device__ __forceinline__ float sweep_sum(const k_args *a, int some, int64_t t, const float *s) {
    float max = -INFINITY, sum = 0.0f;
    for (int64_t w = 0; w < words_of(a->c.Tc); w++) {
        const uint32_t m = seen(a, some, t, w);
        float shrink, e = sweep_word(m, m >> k_lane() & 1 ? s[w * K_WARP + k_lane()] : 0.0f, &max, &shrink);
        for (uint32_t k = m; k; k &= k - 1) {
            const int l = __ffs((int)k) - 1;
            sum = k_sweep_sum(sum, __shfl_sync(0xffffffffu, shrink, l), __shfl_sync(0xffffffffu, e, l));
        }
    }
    return sum;
}

/* ---- probabilities ---- */

/* Lane l is accumulator l of the sum: it takes tokens l, l + 32, .. */
static __global__ void attn_prob_k(const __grid_constant__ k_args a, int some) {
    const int64_t row = k_warp(), Tc = a.c.Tc, t = row / a.d.H, words = words_of(Tc);
    if (t >= a.c.T) return;
    const float *s = a.c.in[0] + row * Tc;
    float *y = a.c.out + row * Tc, max = -INFINITY, acc = 0.0f;
    for (int64_t w = 0; w < words; w++) {
        const int64_t j = w * K_WARP + k_lane();
        if (seen(&a, some, t, w) >> k_lane() & 1) max = s[j] > max ? s[j] : max;
    }
    max = k_warp_max(max);
    for (int64_t w = 0; w < words; w++) {
        const int64_t j = w * K_WARP + k_lane();
        const int sees = seen(&a, some, t, w) >> k_lane() & 1;
        const float e = sees ? k_exp(s[j] - max) : 0.0f;
        if (sees) acc = acc + e;
        if (j < Tc) y[j] = e;
    }
    const float sum = a.lv.sweep == K_SWEEP_ONLINE ? sweep_sum(&a, some, t, s) : k_warp_fold(acc);
    for (int64_t w = 0; w < words; w++) {
        const int64_t j = w * K_WARP + k_lane();
        if (seen(&a, some, t, w) >> k_lane() & 1) y[j] = k_rd(y[j] / sum, k_follow(a.lv.inner, a.lv.act));
    }
}
void attn_prob_cuda(const k_call *c, void *stream) {
    if (c->T == 0) return;
    const int some = see(c, 1, stream);
    K_LAUNCH(attn_prob_k, dim3(k_blocks((int64_t)c->T * c->d->H, K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream,
             k_args_of(c), some);
}

/* ---- context ---- */

static __global__ void attn_ctx_k(const __grid_constant__ k_args a, int some) {
    const int64_t i = k_tid(), H = a.d.H, hd = a.d.hd, row = i / hd, t = row / H, step = a.d.G * hd;
    if (t >= a.c.T) return;
    const float *p = a.c.in[0] + row * a.c.Tc, *v = a.st.f + row % H / (H / a.d.G) * hd + i % hd;
    float y = 0.0f;
    for (int64_t j = 0; j <= a.c.pos0 + t; j += K_WARP) {
        uint32_t m = seen(&a, some, t, j / K_WARP);
        if (m == 0xffffffffu) {
#pragma unroll 8
            for (int l = 0; l < K_WARP; l++) y = fmaf(p[j + l], v[(j + l) * step], y);
            continue;
        }
        for (; m; m &= m - 1) {
            const int64_t e = j + __ffs((int)m) - 1;
            y = fmaf(p[e], v[e * step], y);
        }
    }
    a.c.out[i] = k_rd(y, a.lv.act);
}

/* A warp takes 32 columns of a row; its lanes make the steps of 32 tokens, which all of them then take. */
static __global__ void attn_ctx_online_k(const __grid_constant__ k_args a, int some, int half) {
    const int64_t Tc = a.c.Tc, H = a.d.H, hd = a.d.hd, parts = words_of(hd), step = a.d.G * hd;
    const int64_t k = k_warp(), row = k / parts, i = k % parts * K_WARP + k_lane(), t = row / H;
    if (t >= a.c.T) return;
    const float *s = a.c.in[2] + row * Tc, *v = a.st.f + row % H / (H / a.d.G) * hd + (i < hd ? i : 0);
    float y = 0.0f, sum = 0.0f, max = -INFINITY;
    uint32_t any = 0;
    for (int64_t j = 0; j <= a.c.pos0 + t; j += K_WARP) {
        uint32_t m = seen(&a, some, t, j / K_WARP);
        float shrink, e = sweep_word(m, m >> k_lane() & 1 ? s[j + k_lane()] : 0.0f, &max, &shrink);
        any |= m;
        for (; m; m &= m - 1) {
            const int l = __ffs((int)m) - 1;
            const float r = __shfl_sync(0xffffffffu, shrink, l), own = __shfl_sync(0xffffffffu, e, l);
            sum = k_sweep_sum(sum, r, own);
            y = k_sweep_ctx(y, v[(j + l) * step], r, own, half);
        }
    }
    if (i < hd) a.c.out[row * hd + i] = k_rd(any ? y * (1.0f / sum) : 0.0f, a.lv.act);
}
void attn_ctx_cuda(const k_call *c, void *stream) {
    if (c->T == 0) return;
    const int some = see(c, 3, stream);
    const int64_t rows = (int64_t)c->T * c->d->H, hd = c->d->hd;
    append(c, stream);
    if (c->lv->sweep == K_SWEEP_ONLINE)
        K_LAUNCH(attn_ctx_online_k, dim3(k_blocks(rows * words_of(hd), K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream,
                 k_args_of(c), some, k_sweep_type(c) == K_KV_F16);
    else
        K_LAUNCH(attn_ctx_k, dim3(k_blocks(rows * hd, K_THREADS)), dim3(K_THREADS), 0, stream, k_args_of(c), some);
}
