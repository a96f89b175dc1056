/* topk.cuh: the selections of topk.h by one block. */
#ifndef K_TOPK_CUH
#define K_TOPK_CUH

#include "kernels/cuda.cuh"
#include "kernels/topk_core.h"

/* ids[0..k) by all threads of a block, which see score [n]; key, v: n words in device memory. Lowest and highest are
 * total orders: an element's place is the number of elements before it. The library's traces are serial: one thread. */
static __device__ __forceinline__ void k_topk_block(const float *score, int32_t n, int32_t k, int32_t tie, int32_t *ids,
                                                    uint32_t *key, int32_t *v) {
    if (tie != K_TIE_LOWEST && tie != K_TIE_HIGHEST) {
        if (threadIdx.x == 0) k_topk_of(score, n, k, tie, ids, key, v);
        return;
    }
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += (int32_t)blockDim.x) key[i] = k_topk_key(score[i]);
    __syncthreads();
    k_picks p;
    p.key = key;
    p.v = v;
    p.down = tie == K_TIE_HIGHEST;
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += (int32_t)blockDim.x) {
        int32_t at = 0;
        for (int32_t j = 0; j < n && at < k; j++) at += k_topk_before(&p, j, i);
        if (at < k) ids[at] = i;
    }
}

#endif
