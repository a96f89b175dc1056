/* cuda_runtime.h of the emulator: enough of the CUDA runtime for the .cu files to be compiled by a C++ compiler and run
 * on the host, so that the arithmetic of every kernel is tested where there is no GPU.
 *
 * A launch runs its blocks one after the other. The threads of a block are fibers, which change places where threads
 * wait for each other: __syncthreads, __syncwarp, shuffles and votes. A warp whose threads do not all come to such a
 * place, which is undefined on a device, ends the program with a message. Device memory is host memory, counted. What
 * is enqueued on some streams is done at once, on the others as late as it may be, when something waits for it; emu.h
 * says which. What it cannot show: races between blocks or warps, and anything that takes time.
 */
#ifndef EMU_CUDA_RUNTIME_H
#define EMU_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

/* The library's codes too. */
enum cudaError : int {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700
};
typedef cudaError cudaError_t;
enum { cudaStreamNonBlocking = 1, cudaHostAllocDefault = 0, cudaHostAllocMapped = 2, cudaEnableDefault = 0 };
enum { cudaEventDisableTiming = 2 };
typedef enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice } cudaMemcpyKind;
typedef enum { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound } cudaDriverEntryPointQueryResult;
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event {
    double at; /* ms */
    struct emu_stream *of;
    int64_t n; /* it is behind the first n things there */
} * cudaEvent_t;

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

typedef struct {
    char name[256];
    int major, minor, multiProcessorCount;
    size_t totalGlobalMem;
} cudaDeviceProp;

extern "C" {
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int i);
cudaError_t cudaRuntimeGetVersion(int *v);
cudaError_t cudaDriverGetVersion(int *v);
cudaError_t cudaSetDevice(int i);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaMalloc(void **p, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void **dev, void *host, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s);
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found);
}

/* The thread at hand. */
typedef struct {
    dim3 thread, block, size, grid;
    unsigned char *dynamic;
} emu_place;
extern emu_place emu_at;
#define threadIdx (emu_at.thread)
#define blockIdx (emu_at.block)
#define blockDim (emu_at.size)
#define gridDim (emu_at.grid)

/* size: of what ctx points at, which is copied. */
void emu_run(cudaStream_t s, dim3 grid, dim3 block, size_t shared, void (*body)(void *), void *ctx, size_t size);
/* Work of the host that takes its turn in a stream. */
void emu_work(void *stream, void (*f)(void *), const void *ctx, size_t size);
/* Counts a call; 0, or the code that it must fail with. */
int emu_call(const char *name);
int emu_is_gone(void);
void emu_sync_block(void);
/* All threads of the warp give a value; returns those of the warp, by lane, until its next exchange. */
const uint64_t *emu_exchange(uint64_t v);

template <typename F> static void emu_body(void *f) {
    (*(F *)f)();
}
template <typename... P, typename... A>
static void emu_launch(void (*kernel)(P...), cudaStream_t s, dim3 grid, dim3 block, size_t shared, A... args) {
    auto f = [=]() { kernel(args...); };
    emu_run(s, grid, block, shared, emu_body<decltype(f)>, &f, sizeof f);
}
#define K_LAUNCH(kernel, grid, block, shared, stream, ...)                                                             \
    emu_launch((kernel), (cudaStream_t)(stream), (grid), (block), (shared), __VA_ARGS__)
#define K_DYNAMIC(type, name) type *name = (type *)(void *)emu_at.dynamic

static inline void __syncthreads(void) {
    emu_sync_block();
}
static inline void __syncwarp(void) {
    emu_exchange(0);
}
template <typename T> static inline T emu_shuffle(T v, unsigned lane) {
    static_assert(sizeof v <= sizeof(uint64_t), "a slot of the exchange");
    uint64_t u = 0;
    memcpy(&u, &v, sizeof v);
    u = emu_exchange(u)[lane];
    memcpy(&v, &u, sizeof v);
    return v;
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int t) {
    (void)mask;
    return emu_shuffle(v, threadIdx.x % 32 ^ (unsigned)t);
}
template <typename T> static inline T __shfl_sync(unsigned mask, T v, int lane) {
    (void)mask;
    return emu_shuffle(v, (unsigned)lane);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by) {
    const unsigned lane = threadIdx.x % 32;
    (void)mask;
    return emu_shuffle(v, lane < by ? lane : lane - by);
}
static inline uint32_t __ballot_sync(unsigned mask, int yes) {
    const uint64_t *all = emu_exchange(yes != 0);
    uint32_t who = 0;
    (void)mask;
    for (int l = 0; l < 32; l++) who |= (uint32_t)all[l] << l;
    return who;
}
static inline int __all_sync(unsigned mask, int yes) {
    const uint64_t *all = emu_exchange(yes != 0);
    int every = 1;
    (void)mask;
    for (int l = 0; l < 32; l++) every &= (int)all[l];
    return every;
}
static inline uint32_t __funnelshift_r(uint32_t lo, uint32_t hi, uint32_t by) {
    return by % 32 ? lo >> by % 32 | hi << (32 - by % 32) : lo;
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t which) {
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t k = which >> 4 * i & 7;
        r |= ((k < 4 ? a : b) >> 8 * (k % 4) & 255) << 8 * i;
    }
    return r;
}
static inline int __popc(uint32_t x) {
    return __builtin_popcount(x);
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline int atomicAdd(int *p, int v) {
    int old = *p;
    *p += v;
    return old;
}
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v) {
    unsigned long long old = *p;
    *p += v;
    return old;
}
template <typename T> static inline T emu_atomic_max(T *p, T v) {
    const T old = *p;
    if (v > old) *p = v;
    return old;
}
static inline unsigned atomicMax(unsigned *p, unsigned v) {
    return emu_atomic_max(p, v);
}
static inline unsigned long long atomicMax(unsigned long long *p, unsigned long long v) {
    return emu_atomic_max(p, v);
}
static inline unsigned atomicOr(unsigned *p, unsigned v) {
    unsigned old = *p;
    *p |= v;
    return old;
}

/* cuda.cuh's copies beside a thread: done as late as they may be, when it waits for them. */
typedef unsigned char *k_shared;
static inline k_shared k_shared_at(void *p) {
    return (k_shared)p;
}
void emu_copy16(void *to, const void *from);
void emu_copy_commit(void);
void emu_copy_wait(int but);
static inline void k_copy16(k_shared to, const void *from) {
    emu_copy16(to, from);
}
static inline void k_copy_commit(void) {
    emu_copy_commit();
}
template <int N> static inline void k_copy_wait(void) {
    emu_copy_wait(N);
}
static inline int32_t k_lane_kept(void) {
    return (int32_t)(threadIdx.x % 32);
}

/* The loader, for cuBLAS alone (cublas.cpp). Whoever includes dlfcn.h does so before. */
extern "C" void *emu_dlopen(const char *name, int flags);
extern "C" void *emu_dlsym(void *so, const char *name);
#define dlopen emu_dlopen
#define dlsym emu_dlsym

#endif
