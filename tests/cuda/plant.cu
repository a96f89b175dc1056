#include "tests/cuda/plant.h"

#ifdef __CUDACC__
#include <cstring>

#include <cuda_runtime.h>

/* one word past n, which lies in the same page of the device */
static __global__ void past_k(float *x, int n) {
    if (threadIdx.x == 0) x[n] = 1.0f;
}

/* each warp reads what the other one writes, and nothing orders the two */
static __global__ void race_k(float *x) {
    __shared__ float word[64];
    word[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = word[63 - threadIdx.x];
}

static __global__ void sum_k(const float *x, float *y) {
    y[threadIdx.x] = x[threadIdx.x] + 1.0f;
}

int ct_plant(const char *fault) {
    enum { N = 64 };
    float *x = nullptr, *y = nullptr;
    if (cudaMalloc(&x, N * sizeof *x) != cudaSuccess || cudaMalloc(&y, N * sizeof *y) != cudaSuccess) return 1;
    int unknown = 0;
    if (!strcmp(fault, "memcheck"))
        past_k<<<1, 1>>>(x, N);
    else if (!strcmp(fault, "racecheck"))
        race_k<<<1, N>>>(x);
    else if (!strcmp(fault, "initcheck"))
        sum_k<<<1, N>>>(x, y);
    else
        unknown = 1;
    cudaDeviceSynchronize();
    cudaGetLastError();
    cudaFree(x);
    cudaFree(y);
    return unknown;
}
#else
int ct_plant(const char *fault) {
    (void)fault;
    return 1;
}
#endif
