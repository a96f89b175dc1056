/* attn_ctx.cu: the context of attn.h. Its chain over the visible tokens is serial by contract; columns do not meet, and
 * heads of a group read the same values. A block takes 32 columns of such heads: some of its warps bring the values of
 * the next tokens into shared memory while one a head adds those at hand.
 */
#include "kernels/attn_sweep.cuh"

static __global__ void append_k(const __grid_constant__ k_args a, int64_t kw) {
    const int64_t i = k_tid();
    if (i < a.c.T * kw) a.st.f[a.c.pos0 * kw + i] = k_kv_round(a.c.in[1][i], k_kv_type(&a.lv));
}
void k_attn_append(const k_call *c, void *stream) {
    const int64_t kw = (int64_t)c->d->G * c->d->hd;
    K_LAUNCH(append_k, dim3(k_blocks(c->T * kw, K_THREADS)), dim3(K_THREADS), 0, stream, k_args_of(c), kw);
    c->st[0]->rows = c->pos0 + c->T;
}

/* Tokens at once, the warps that bring them, and heads of a block at most. */
enum { TOKENS = 128, BRING = TOKENS / K_WARP, HEADS = K_CTX_HEADS };

typedef struct {
    float v[TOKENS][K_WARP], p[HEADS][TOKENS];
} tile;

/* Those of the warp that brings: 32 tokens of the list from `from` on, and what heads give them. v: the lane's column
 * of row 0, of which token 0 stands in for what is not there. */
static __device__ __forceinline__ void bring(const k_seen *see, int32_t from, const float *v, int64_t step,
                                             const float *p, int64_t Tc, int heads, tile *to) {
    const int32_t at = (int32_t)threadIdx.x / K_WARP * K_WARP, q = from + at + k_lane();
    const int32_t j = q < see->n ? k_seen_token(see, q) : 0;
    float x[K_WARP];
    if (from + at >= see->n) return;
#pragma unroll
    for (int l = 0; l < K_WARP; l++) x[l] = v[__shfl_sync(0xffffffffu, j, l) * step];
    for (int h = 0; h < heads; h++) to->p[h][at + k_lane()] = p[h * Tc + j];
#pragma unroll
    for (int l = 0; l < K_WARP; l++) to->v[at + l][k_lane()] = x[l];
}

/* blockIdx.x: columns of a row; y: heads of a group, `heads` of them a block, and groups. */
static __global__ void attn_ctx_k(const __grid_constant__ k_args a, int some, int heads) {
    __shared__ tile room[2];
    const int64_t Tc = a.c.Tc, H = a.d.H, G = a.d.G, hd = a.d.hd, per = H / G, parts = (per + heads - 1) / heads;
    const int64_t wide = k_words_of(hd), t = blockIdx.x / wide, g = blockIdx.y / parts, h0 = blockIdx.y % parts * heads;
    const int64_t row = t * H + g * per + h0, i = blockIdx.x % wide * K_WARP + k_lane(), step = G * hd;
    const int32_t warp = (int32_t)threadIdx.x / K_WARP, own = warp - BRING;
    const int n = per - h0 < heads ? (int)(per - h0) : heads;
    const float *v = a.st.f + g * hd + (i < hd ? i : 0), *p = a.c.in[0] + row * Tc;
    const k_seen see = k_seen_tokens(&a, some, t, a.c.in_cols[3]);
    float y = 0.0f;
    if (warp < BRING) bring(&see, 0, v, step, p, Tc, n, &room[0]);
    __syncthreads();
    for (int32_t from = 0, turn = 0; from < see.n; from += TOKENS, turn ^= 1) {
        const tile *x = &room[turn];
        const int32_t end = see.n - from < TOKENS ? see.n - from : TOKENS;
        if (warp < BRING) bring(&see, from + TOKENS, v, step, p, Tc, n, &room[turn ^ 1]);
#pragma unroll 8
        for (int32_t k = 0; own >= 0 && own < n && k < end; k++) y = fmaf(x->p[own][k], x->v[k][k_lane()], y);
        __syncthreads();
    }
    if (own >= 0 && own < n && i < hd) a.c.out[(row + own) * hd + i] = k_rd(y, a.lv.act);
}

/* A warp takes 32 columns of a row; its lanes make the steps of 32 tokens, which all of them then take. */
static __global__ void attn_ctx_online_k(const __grid_constant__ k_args a, int some, int half) {
    const int64_t Tc = a.c.Tc, H = a.d.H, hd = a.d.hd, parts = k_words_of(hd), step = a.d.G * hd;
    const int64_t k = k_warp(), row = k / parts, i = k % parts * K_WARP + k_lane(), t = row / H;
    if (t >= a.c.T) return;
    const float *s = a.c.in[2] + row * Tc, *v = a.st.f + row % H / (H / a.d.G) * hd + (i < hd ? i : 0);
    const k_seen see = k_seen_tokens(&a, some, t, a.c.in_cols[3]);
    float y = 0.0f, sum = 0.0f, max = -INFINITY;
    for (int32_t from = 0; from < see.n; from += K_WARP) {
        const int32_t n = see.n - from < K_WARP ? see.n - from : K_WARP;
        const int32_t j = k_lane() < n ? k_seen_token(&see, from + k_lane()) : 0;
        float shrink,
            e = k_sweep_word(n < K_WARP ? (1u << n) - 1 : 0xffffffffu, k_lane() < n ? s[j] : 0.0f, &max, &shrink);
#pragma unroll 8
        for (int l = 0; l < n; l++) {
            const float r = __shfl_sync(0xffffffffu, shrink, l), own = __shfl_sync(0xffffffffu, e, l);
            sum = k_sweep_sum(sum, r, own);
            y = k_sweep_ctx(y, v[__shfl_sync(0xffffffffu, j, l) * step], r, own, half);
        }
    }
    if (i < hd) a.c.out[row * hd + i] = k_rd(see.n ? y * (1.0f / sum) : 0.0f, a.lv.act);
}

/* Heads of a block: as few blocks a group as may be, of one size. */
static int heads_of(const k_dims *d) {
    const int per = d->H / d->G, parts = (per + HEADS - 1) / HEADS;
    return (per + parts - 1) / parts;
}
void attn_ctx_cuda(const k_call *c, void *stream) {
    const int some = k_see_cuda(c, 3, K_SEE_TOKENS, stream), heads = heads_of(c->d);
    const int64_t hd = c->d->hd, warps = (int64_t)c->T * c->d->H * k_words_of(hd);
    k_attn_append(c, stream);
    if (c->lv->sweep == K_SWEEP_ONLINE) {
        K_LAUNCH(attn_ctx_online_k, dim3(k_blocks(warps, K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream, k_args_of(c),
                 some, k_sweep_type(c) == K_KV_F16);
        return;
    }
    K_LAUNCH(attn_ctx_k,
             dim3((unsigned)(c->T * k_words_of(hd)), k_blocks(c->d->H / c->d->G, heads) * (unsigned)c->d->G),
             dim3((unsigned)(BRING + heads) * K_WARP), 0, stream, k_args_of(c), some, heads);
}
