/* cuda.cuh: what the .cu files share: a call as kernels see it, launches, and the sum order lanes32 in a warp.
 *
 * op_cuda(c, stream) is op_cpu on a device: c lies on the host, and so do its dims, levers, states and weights, but
 * what they point at (in, out, par, st->f, w->data, w_dev, scratch) lies in device memory. It enqueues and returns;
 * errors of a launch are left for cudaGetLastError. Same contract, same bits: nothing here rounds in another place or
 * adds in another order than the header of the op says.
 */
#ifndef K_CUDA_CUH
#define K_CUDA_CUH

#include <cuda_runtime.h>
#include <string.h>

#include "kernels/k.h"

#ifdef __CUDACC__
#define K_LAUNCH(kernel, grid, block, shared, stream, ...)                                                             \
    (kernel)<<<(grid), (block), (shared), (cudaStream_t)(stream)>>>(__VA_ARGS__)
/* The block's dynamic shared memory as an array. */
#define K_DYNAMIC(type, name)                                                                                          \
    extern __shared__ __align__(16) unsigned char k_dynamic[];                                                         \
    type *name = (type *)(void *)k_dynamic
#endif

extern "C" {
#define OP(name, cls, band) void name##_cuda(const k_call *c, void *stream);
#include "kernels/ops.def"
#undef OP
}

/* A call by value, as a kernel takes it. c.d, c.lv, c.w and c.st point nowhere there: d, lv, st hold copies. */
typedef struct {
    k_call c;
    k_dims d;
    k_levers lv;
    k_state st;
} k_args;

static inline k_args k_args_of(const k_call *c) {
    k_args a;
    a.c = *c;
    a.d = *c->d;
    a.lv = *c->lv;
    if (c->st[0])
        a.st = *c->st[0];
    else
        memset(&a.st, 0, sizeof a.st);
    return a;
}

enum { K_THREADS = 256, K_WARP = 32, K_WARPS = 4 /* of a block that works by warps */ };

/* Blocks of `per` that n takes. */
static inline unsigned k_blocks(int64_t n, int64_t per) {
    return (unsigned)((n + per - 1) / per);
}

/* One thread for each of n outputs, one warp for each of n sums. */
template <typename F> static void k_each(F kernel, const k_call *c, int64_t n, void *stream) {
    if (n > 0) K_LAUNCH(kernel, dim3(k_blocks(n, K_THREADS)), dim3(K_THREADS), 0, stream, k_args_of(c));
}
template <typename F> static void k_warps(F kernel, const k_call *c, int64_t n, void *stream) {
    if (n > 0) K_LAUNCH(kernel, dim3(k_blocks(n, K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream, k_args_of(c));
}

/* Bytes that travel at once. */
typedef struct __attribute__((aligned(16))) {
    uint32_t v[4];
} k_word16;

/* Copies into shared memory beside what the thread does: k_copy16 of sixteen bytes, both at multiples of 16;
 * k_copy_commit ends a batch; k_copy_wait<N> waits for all but the last N batches of this thread. k_lane_kept is
 * k_lane(), which a compiler shall hold and not read again. The emulator has its own. */
#ifdef __CUDACC__
typedef uint32_t k_shared;
static __device__ __forceinline__ k_shared k_shared_at(void *p) {
    return (k_shared)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void k_copy16(k_shared to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
static __device__ __forceinline__ void k_copy_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
static __device__ __forceinline__ int32_t k_lane_kept(void) {
    int32_t l;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(l));
    return l;
}
template <int N> static __device__ __forceinline__ void k_copy_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

static __device__ __forceinline__ int64_t k_tid(void) {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static __device__ __forceinline__ int k_lane(void) {
    return (int)(threadIdx.x % K_WARP);
}
static __device__ __forceinline__ int64_t k_warp(void) {
    return k_tid() / K_WARP;
}

/* The levels t = 16 .. 1 of lanes32 (reduce.h), lane l holding accumulator l. Every lane gets lane 0's result, since
 * both sides of an exchange add the same two numbers. */
static __device__ __forceinline__ float k_warp_fold(float v) {
    for (int t = 16; t >= 1; t >>= 1) v = v + __shfl_xor_sync(0xffffffffu, v, t);
    return v;
}

/* k_lanes32_dot by one warp. */
static __device__ __forceinline__ float k_warp_dot(const float *w, const float *x, int64_t n) {
    float acc = 0.0f;
    for (int64_t i = k_lane(); i < n; i += K_WARP) acc = fmaf(w[i], x[i], acc);
    return k_warp_fold(acc);
}

/* The largest, -inf of none; NaN is passed over as by x > most. */
static __device__ __forceinline__ float k_warp_max(float v) {
    for (int t = 16; t >= 1; t >>= 1) {
        float o = __shfl_xor_sync(0xffffffffu, v, t);
        v = o > v ? o : v;
    }
    return v;
}

#endif
