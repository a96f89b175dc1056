/* attn_see.cu: what a query may see: bits from its blocks and extra tokens, then the list that is asked for. A block a
 * query; the bits lie in shared memory where they fit. */
#include "kernels/attn_see.cuh"
#include "kernels/block.cuh"

enum { KEPT = 10240 /* words of 32 tokens */ };

static __device__ __forceinline__ void mark(uint32_t *bit, int32_t from, int32_t end) {
    for (int32_t next; from < end; from = next) {
        next = (from / 32 + 1) * 32 < end ? (from / 32 + 1) * 32 : end;
        atomicOr(&bit[from / 32], (0xffffffffu >> (32 - (next - from))) << (from % 32));
    }
}

/* The first `most` extra tokens below end, by one warp. */
static __device__ __forceinline__ void mark_extra(uint32_t *bit, const int32_t *extra, int64_t n, int32_t most,
                                                  int32_t end) {
    int32_t found = 0;
    for (int64_t from = 0; from < n && found < most; from += K_WARP) {
        const int32_t id = from + k_lane() < n ? extra[from + k_lane()] : -1;
        const uint32_t who = __ballot_sync(0xffffffffu, id >= 0 && id < end);
        const int32_t place = found + __popc(who & ((1u << k_lane()) - 1));
        if (who >> k_lane() & 1 && place < most) mark(bit, id, id + 1);
        found += __popc(who);
    }
}

/* The words that hold a token, or the tokens, ascending, by the whole block. */
static __device__ __forceinline__ void list_words(const uint32_t *bit, int32_t words, k_see what,
                                                  int32_t (*sums)[K_WARP], uint32_t *list) {
    int32_t n = 0, turn = 0;
    for (int32_t from = 0; from < words; from += (int32_t)blockDim.x, turn ^= 1) {
        const int32_t w = from + (int32_t)threadIdx.x;
        uint32_t m = w < words ? bit[w] : 0;
        int32_t all, at = 1 + n;
        at += k_block_before(what == K_SEE_WORDS ? m != 0 : __popc(m), sums[turn], &all);
        n += all;
        if (what == K_SEE_WORDS && m) {
            list[at] = (uint32_t)w;
            list[at + words] = m;
        }
        for (; what == K_SEE_TOKENS && m; m &= m - 1) list[at++] = (uint32_t)(32 * w + __ffs((int)m) - 1);
    }
    if (threadIdx.x == 0) list[0] = (uint32_t)n;
}

static __global__ void see_k(const __grid_constant__ k_args a, const int32_t *sel, int64_t width, const int32_t *extra,
                             int64_t nextra, k_see what, int kept) {
    K_DYNAMIC(uint32_t, shared);
    __shared__ int32_t sums[2][K_WARP];
    const int64_t t = blockIdx.x, each = k_see_floats(a.c.Tc, a.d.ratio, width);
    const int32_t ratio = a.d.ratio, end = a.c.pos0 + (int32_t)t + 1, nb = end / ratio;
    const int32_t words = (int32_t)k_words_of(a.c.Tc);
    uint32_t *list = (uint32_t *)(void *)a.c.scratch + t * each, *bit = kept ? shared : list + each - words;
    for (int32_t w = (int32_t)threadIdx.x; w < words; w += (int32_t)blockDim.x) bit[w] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
        const int32_t b = sel[t * width + i];
        if (b >= 0 && b < nb) mark(bit, b * ratio, (b + 1) * ratio);
    }
    if (threadIdx.x < K_WARP) mark_extra(bit, extra + t * nextra, nextra, ratio, end);
    if (threadIdx.x == 0) mark(bit, nb * ratio, end);
    __syncthreads();
    if (what == K_SEE_BITS)
        for (int32_t w = (int32_t)threadIdx.x; w < words; w += (int32_t)blockDim.x) list[w] = bit[w];
    else
        list_words(bit, words, what, sums, list);
}

int k_see_cuda(const k_call *c, int slot, k_see what, void *stream) {
    const int32_t *sel = c->in_i[slot], *extra = c->in_i[slot + 1];
    const int64_t words = k_words_of(c->Tc);
    if (!sel) return 0;
    K_LAUNCH(see_k, dim3((unsigned)c->T),
             dim3(words < K_THREADS ? k_blocks(words, K_WARP) * K_WARP : (unsigned)K_THREADS),
             words > KEPT ? 0 : (size_t)words * sizeof(uint32_t), stream, k_args_of(c), sel, c->in_cols[slot], extra,
             extra ? c->in_cols[slot + 1] : (int64_t)0, what, words <= KEPT);
    return 1;
}
