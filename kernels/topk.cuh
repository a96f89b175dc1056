/* topk.cuh: the selections of topk.h by one block.
 *
 * Under tie rules lowest and highest an element's rank is one number: its key, and below that its index, from either
 * end. No two are equal, so the k-th largest rank cuts off exactly the chosen ones. It is found digit by digit, the
 * highest first, from a histogram of those that agree with it so far: a pass over the n scores a digit, three when
 * scores differ, five at most for 65536 of them. What is chosen is then sorted. Counts are integers and ranks all
 * differ: no order of the threads shows. The traces of the library's rules are serial: one thread.
 */
#ifndef K_TOPK_CUH
#define K_TOPK_CUH

#include "kernels/block.cuh"
#include "kernels/topk_core.h"

enum { K_TOPK_DIGIT = 11, K_TOPK_BINS = 1 << K_TOPK_DIGIT, K_TOPK_KEPT = 2048, K_TOPK_AHEAD = 4 };

/* Shared memory of a block that selects. */
typedef struct {
    union {
        int32_t bin[K_TOPK_BINS];
        uint64_t chosen[K_TOPK_KEPT];
    };
    int32_t warp[K_WARP];
    int32_t digit, above, within; /* the k-th's digit, ranks with a larger one, ranks with that one */
    int32_t found;
} k_topk_room;

typedef struct {
    const float *score;
    uint32_t n;
    int down, bits; /* bits that an index takes */
} k_topk_ranks;

static __device__ __forceinline__ k_topk_ranks k_topk_ranks_of(const float *score, int32_t n, int32_t tie) {
    k_topk_ranks r = {score, (uint32_t)n, tie == K_TIE_HIGHEST, 0};
    while ((r.n - 1) >> r.bits) r.bits++;
    return r;
}
static __device__ __forceinline__ uint64_t k_topk_rank(const k_topk_ranks *r, float score, uint32_t i) {
    return (uint64_t)k_topk_key(score) << r->bits | (r->down ? i : r->n - 1 - i);
}
static __device__ __forceinline__ int32_t k_topk_index(const k_topk_ranks *r, uint64_t rank) {
    const uint32_t low = (uint32_t)rank & ((1u << r->bits) - 1);
    return (int32_t)(r->down ? low : r->n - 1 - low);
}

/* fn(rank, is) for the rank of every score, by whole warps: !is behind the last. Loads are on their way together. */
template <typename F> static __device__ __forceinline__ void k_topk_each(const k_topk_ranks *r, const F &fn) {
    for (uint32_t from = 0; from < r->n; from += K_TOPK_AHEAD * blockDim.x) {
        float x[K_TOPK_AHEAD];
#pragma unroll
        for (int u = 0; u < K_TOPK_AHEAD; u++) {
            const uint32_t i = from + (uint32_t)u * blockDim.x + threadIdx.x;
            x[u] = i < r->n ? r->score[i] : 0.0f;
        }
#pragma unroll
        for (int u = 0; u < K_TOPK_AHEAD; u++) {
            const uint32_t i = from + (uint32_t)u * blockDim.x + threadIdx.x;
            fn(k_topk_rank(r, x[u], i), i < r->n);
        }
    }
    __syncthreads();
}

/* How many ranks that begin with `prefix`, the bits from at + width on, have which digit at `at`. */
static __device__ __forceinline__ void k_topk_count(const k_topk_ranks *r, uint64_t prefix, int at, int width,
                                                    k_topk_room *room) {
    for (int32_t b = (int32_t)threadIdx.x; b < K_TOPK_BINS; b += (int32_t)blockDim.x) room->bin[b] = 0;
    __syncthreads();
    k_topk_each(r, [&](uint64_t rank, bool is) {
        if (is && rank >> (at + width) == prefix) atomicAdd(&room->bin[rank >> at & ((1 << width) - 1)], 1);
    });
}

/* The digit of the rank that `need` - 1 of those counted exceed. */
static __device__ __forceinline__ void k_topk_find(int32_t need, k_topk_room *room) {
    const int32_t per = (K_TOPK_BINS + (int32_t)blockDim.x - 1) / (int32_t)blockDim.x;
    const int32_t top = K_TOPK_BINS - 1 - (int32_t)threadIdx.x * per, end = top - per > -1 ? top - per : -1;
    int32_t own = 0, all;
    for (int32_t b = top; b > end; b--) own += room->bin[b];
    int32_t above = k_block_before(own, room->warp, &all);
    if (above < need && need <= above + own) { /* one thread */
        int32_t b = top;
        for (; above + room->bin[b] < need; b--) above += room->bin[b];
        room->digit = b;
        room->above = above;
        room->within = room->bin[b];
    }
    __syncthreads();
}

/* A number such that k ranks, 0 < k <= n, are as large or larger. */
static __device__ __forceinline__ uint64_t k_topk_cut(const k_topk_ranks *r, int32_t k, k_topk_room *room) {
    uint64_t prefix = 0;
    int at = 32 + r->bits;
    for (;;) {
        const int width = at < K_TOPK_DIGIT ? at : K_TOPK_DIGIT;
        at -= width;
        k_topk_count(r, prefix, at, width, room);
        k_topk_find(k, room);
        prefix = prefix << width | (uint32_t)room->digit;
        k -= room->above;
        if (k == room->within) return prefix << at; /* all that begin so, as at the last digit, where one does */
    }
}

/* list: the k ranks from cut on, in any order. */
static __device__ __forceinline__ void k_topk_gather(const k_topk_ranks *r, uint64_t cut, int32_t *found,
                                                     uint64_t *list) {
    k_topk_each(r, [&](uint64_t rank, bool is) {
        const bool in = is && rank >= cut;
        const uint32_t who = __ballot_sync(0xffffffffu, in);
        if (!who) return; /* the whole warp */
        int32_t at = 0;
        if (k_lane() == 0) at = atomicAdd(found, __popc(who));
        at = __shfl_sync(0xffffffffu, at, 0);
        if (in) list[at + __popc(who & ((1u << k_lane()) - 1))] = rank;
    });
}

/* Descending, by merges of two runs at a time, the second read from its end. Larger numbers move down alone, so places
 * from n on, which a power of two would have, need not be there. */
static __device__ __forceinline__ void k_topk_descend(uint64_t *v, uint32_t n) {
    for (int run = 0; run < 31 && 1u << run < n; run++)
        for (int s = run; s >= 0; s--) {
            const uint32_t other = s == run ? (2u << run) - 1 : 1u << s;
            for (uint32_t t = threadIdx.x;; t += blockDim.x) {
                const uint32_t lo = t >> s << (s + 1) | (t & ((1u << s) - 1)), hi = lo ^ other;
                if (lo >= n) break;
                if (hi >= n || v[lo] >= v[hi]) continue;
                const uint64_t x = v[lo];
                v[lo] = v[hi];
                v[hi] = x;
            }
            __syncthreads();
        }
}

static __device__ __forceinline__ void k_topk_take(const k_topk_ranks *r, uint64_t cut, int32_t k, int32_t *found,
                                                   uint64_t *list, int32_t *ids) {
    k_topk_gather(r, cut, found, list);
    k_topk_descend(list, (uint32_t)k);
    for (int32_t i = (int32_t)threadIdx.x; i < k; i += (int32_t)blockDim.x) ids[i] = k_topk_index(r, list[i]);
}

/* ids[0..k), k <= n, by all threads of a block, which see score [n]. work: 2 n words of device memory at an address of
 * 8 bytes. */
static __device__ __forceinline__ void k_topk_block(const float *score, int32_t n, int32_t k, int32_t tie, int32_t *ids,
                                                    int32_t *work, k_topk_room *room) {
    if (k <= 0) return;
    if (tie != K_TIE_LOWEST && tie != K_TIE_HIGHEST) {
        if (threadIdx.x == 0) k_topk_of(score, n, k, tie, ids, (uint32_t *)work, work + n);
        return;
    }
    const k_topk_ranks r = k_topk_ranks_of(score, n, tie);
    if (threadIdx.x == 0) room->found = 0;
    const uint64_t cut = k_topk_cut(&r, k, room);
    if (k <= K_TOPK_KEPT)
        k_topk_take(&r, cut, k, &room->found, room->chosen, ids);
    else
        k_topk_take(&r, cut, k, &room->found, (uint64_t *)(void *)work, ids);
}

#endif
