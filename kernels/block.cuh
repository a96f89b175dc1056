/* block.cuh: sums of integers over the threads of a block, whose number is a multiple of K_WARP. */
#ifndef K_BLOCK_CUH
#define K_BLOCK_CUH

#include "kernels/cuda.cuh"

/* Sum of v over this lane and those before it. */
static __device__ __forceinline__ int32_t k_warp_up_to(int32_t v) {
    for (int d = 1; d < K_WARP; d *= 2) {
        const int32_t before = __shfl_up_sync(0xffffffffu, v, d);
        if (k_lane() >= d) v += before;
    }
    return v;
}

/* Sum of v over the threads before this one, *all: over all of them. All threads call; room: K_WARP words of shared
 * memory that no other call of this is given before the block's next barrier. */
static __device__ __forceinline__ int32_t k_block_before(int32_t v, int32_t *room, int32_t *all) {
    const int32_t warp = (int32_t)threadIdx.x / K_WARP, warps = (int32_t)blockDim.x / K_WARP, up = k_warp_up_to(v);
    if (k_lane() == K_WARP - 1) room[warp] = up;
    __syncthreads();
    const int32_t sums = k_warp_up_to(k_lane() < warps ? room[k_lane()] : 0); /* by every warp: one barrier less */
    *all = __shfl_sync(0xffffffffu, sums, K_WARP - 1);
    const int32_t others = __shfl_sync(0xffffffffu, sums, warp ? warp - 1 : 0);
    return (warp ? others : 0) + up - v;
}

#endif
