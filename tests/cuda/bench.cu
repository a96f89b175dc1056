/* bench.cu: the device's clock and plain kernels for bench_cuda.c. */
#include "tests/cuda/bench.h"

#include "kernels/cuda.cuh"

static cudaEvent_t from, to;

int hb_start(const k_dev *d) {
    cudaError_t e = cudaSuccess;
    if (!from) e = cudaEventCreate(&from);
    if (e == cudaSuccess && !to) e = cudaEventCreate(&to);
    return (int)(e != cudaSuccess ? e : cudaEventRecord(from, (cudaStream_t)d->stream));
}

int hb_stop(const k_dev *d, double *ret_seconds) {
    float ms = 0;
    cudaError_t e = cudaEventRecord(to, (cudaStream_t)d->stream);
    if (e == cudaSuccess) e = cudaEventSynchronize(to);
    if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, from, to);
    *ret_seconds = 1e-3 * (double)ms;
    return (int)e;
}

int hb_copy(const k_dev *d, void *dst, const void *src, size_t bytes) {
    return (int)cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)d->stream);
}

typedef struct {
    float v[4];
} __attribute__((aligned(16))) four;

enum { STEP = 8 };

static __global__ void read_k(const four *x, int64_t n, float *sums) {
    const int64_t all = (int64_t)gridDim.x * blockDim.x;
    float s = 0;
    for (int64_t i = k_tid(); i < n; i += STEP * all) {
        four a[STEP];
        for (int k = 0; k < STEP; k++) a[k] = x[i + k * all < n ? i + k * all : i];
        for (int k = 0; k < STEP; k++) s += a[k].v[0] + a[k].v[1] + a[k].v[2] + a[k].v[3];
    }
    if (s != 0) sums[k_tid()] = s;
}

int hb_read(const k_dev *d, const void *src, size_t bytes, float *sums) {
    const int64_t n = (int64_t)(bytes / sizeof(four)), blocks = n / (STEP * K_THREADS);
    K_LAUNCH(read_k,
             dim3(blocks < 1      ? 1
                  : blocks > 1024 ? 1024
                                  : (unsigned)blocks),
             dim3(K_THREADS), 0, d->stream, (const four *)src, n, sums);
    return (int)cudaGetLastError();
}
