/* attn.cu: scores and probabilities of attn.h (attn_ctx.cu: the context). A warp 32 scores, a block a row of
 * probabilities: its warps make the exponentials, one adds them in the contract's order.
 */
#include "kernels/attn_sweep.cuh"

/* ---- scores ---- */

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
    const int64_t Tc = a.c.Tc, H = a.d.H, hd = a.d.hd, parts = k_words_of(Tc);
    const int64_t k = k_warp(), row = k / parts, w = k % parts, t = row / H, j = w * K_WARP + k_lane();
    if (t >= a.c.T) return;
    const float *q = a.c.in[0] + row * hd, *key = a.st.f + row % H / (H / a.d.G) * hd;
    float mine = 0.0f;
    for (uint32_t m = some ? k_seen_of(&a, t, a.c.in_cols[2])[w] : k_all_to(a.c.pos0 + t, w); m; m &= m - 1) {
        const int l = __ffs((int)m) - 1;
        const float y = k_attn_scaled(score_dot<ROUNDED>(q, key + (w * K_WARP + l) * a.d.G * hd, hd, run), scale,
                                      k_follow(a.lv.inner, a.lv.act));
        if (k_lane() == l) mine = y;
    }
    if (j < Tc) a.c.out[row * Tc + j] = mine;
}
void attn_score_cuda(const k_call *c, void *stream) {
    const int some = k_see_cuda(c, 2, K_SEE_BITS, stream);
    const int32_t run = k_sweep_type(c);
    k_attn_append(c, stream);
    const int64_t n = (int64_t)c->T * c->d->H * k_words_of(c->Tc);
    auto plain = attn_score_k<0>, rounded = attn_score_k<1>;
    K_LAUNCH(run == K_KV_F32 ? plain : rounded, dim3(k_blocks(n, K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream,
             k_args_of(c), some, k_attn_scale(c->d->hd), run);
}

/* ---- probabilities ---- */

enum { AT_ONCE = 128, MOST_WARPS = 16 };

/* The sum of the running softmax over row t's tokens, whose scores are s; by one warp. */
static __device__ __forceinline__ float sweep_sum(const k_seen *see, const float *s) {
    float max = -INFINITY, sum = 0.0f;
    for (int32_t k = 0; k < see->n; k++) {
        int64_t j;
        const uint32_t m = k_seen_word(see, k, &j);
        float shrink, e = k_sweep_word(m, m >> k_lane() & 1 ? s[j + k_lane()] : 0.0f, &max, &shrink);
        for (uint32_t b = m; b; b &= b - 1) {
            const int l = __ffs((int)b) - 1;
            sum = k_sweep_sum(sum, __shfl_sync(0xffffffffu, shrink, l), __shfl_sync(0xffffffffu, e, l));
        }
    }
    return sum;
}

/* The largest visible score of a row, by the block; room: a word a warp. */
static __device__ __forceinline__ float largest(const k_seen *see, const float *s, float *room) {
    const int32_t warps = (int32_t)blockDim.x / K_WARP;
    float max = -INFINITY;
#pragma unroll 4
    for (int32_t k = (int32_t)threadIdx.x / K_WARP; k < see->n; k += warps) {
        int64_t j;
        const uint32_t m = k_seen_word(see, k, &j);
        const float v = m >> k_lane() & 1 ? s[j + k_lane()] : -INFINITY;
        max = v > max ? v : max;
    }
    max = k_warp_max(max);
    if (k_lane() == 0) room[threadIdx.x / K_WARP] = max;
    __syncthreads();
    return k_warp_max(k_lane() < warps ? room[k_lane()] : -INFINITY);
}

/* A block a row. Lane l of the first warp is accumulator l of the sum: it takes tokens l, l + 32, .. A hidden token's
 * +0 stands in for what is skipped: a sum of exponentials is never -0, so it moves no bit. */
static __global__ void attn_prob_k(const __grid_constant__ k_args a, int some) {
    __shared__ float tile[AT_ONCE][K_WARP], room[MOST_WARPS], whole;
    const int64_t row = blockIdx.x, Tc = a.c.Tc, t = row / a.d.H;
    const int32_t warp = (int32_t)threadIdx.x / K_WARP, warps = (int32_t)blockDim.x / K_WARP, lane = k_lane();
    const int32_t act = k_follow(a.lv.inner, a.lv.act);
    const float *s = a.c.in[0] + row * Tc;
    float *y = a.c.out + row * Tc, acc = 0.0f;
    const k_seen see = k_seen_words(&a, some, t, a.c.in_cols[1]);
    const float max = largest(&see, s, room);
    for (int32_t from = 0; from < see.n; from += AT_ONCE) {
        const int32_t n = see.n - from < AT_ONCE ? see.n - from : AT_ONCE;
#pragma unroll 4
        for (int32_t k = warp; k < n; k += warps) {
            int64_t j;
            const uint32_t m = k_seen_word(&see, from + k, &j);
            const float e = m >> lane & 1 ? k_exp(s[j + lane] - max) : 0.0f;
            if (m >> lane & 1) y[j + lane] = e;
            tile[k][lane] = e;
        }
        __syncthreads();
#pragma unroll 8
        for (int32_t k = 0; warp == 0 && k < n; k++) acc = acc + tile[k][lane];
        __syncthreads();
    }
    if (warp == 0) {
        const float sum = a.lv.sweep == K_SWEEP_ONLINE ? sweep_sum(&see, s) : k_warp_fold(acc);
        if (lane == 0) whole = sum;
    }
    __syncthreads();
#pragma unroll 4
    for (int32_t k = warp; k < see.n; k += warps) {
        int64_t j;
        if (k_seen_word(&see, k, &j) >> lane & 1) y[j + lane] = k_rd(y[j + lane] / whole, act);
    }
    for (int64_t j = a.c.pos0 + t + 1 + threadIdx.x; !some && j < Tc; j += blockDim.x) y[j] = 0.0f;
}
void attn_prob_cuda(const k_call *c, void *stream) {
    const int64_t rows = (int64_t)c->T * c->d->H, words = k_words_of(c->Tc);
    const int some = k_see_cuda(c, 1, K_SEE_WORDS, stream);
    const unsigned warps = words < 4 * MOST_WARPS ? k_blocks(words, 4) : (unsigned)MOST_WARPS;
    if (some) cudaMemsetAsync(c->out, 0, (size_t)(rows * c->Tc) * sizeof(float), (cudaStream_t)stream); /* the hidden */
    K_LAUNCH(attn_prob_k, dim3((unsigned)rows), dim3(warps * K_WARP), 0, stream, k_args_of(c), some);
}
