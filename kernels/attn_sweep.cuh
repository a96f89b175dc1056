/* attn_sweep.cuh: what the kernels of attention share beside what is seen: the caches' new rows, and the steps of the
 * running softmax by a warp. */
#ifndef K_ATTN_SWEEP_CUH
#define K_ATTN_SWEEP_CUH

#include "kernels/attn_see.cuh"

/* in[1], rounded, becomes rows of the cache. */
void k_attn_append(const k_call *c, void *stream);

/* The steps of the running softmax through the tokens in m, *max the largest score before them and then after: lane l
 * makes the l-th, whose score is s. */
static __device__ __forceinline__ float k_sweep_word(uint32_t m, float s, float *max, float *ret_shrink) {
    float before = *max;
    for (; m; m &= m - 1) {
        const int l = __ffs((int)m) - 1;
        const float v = __shfl_sync(0xffffffffu, s, l);
        if (k_lane() == l) before = *max;
        *max = v > *max ? v : *max;
    }
    return k_sweep_on(&before, s, ret_shrink);
}

#endif
