#include "tests/cuda/arith.h"

#include "kernels/arith.h"
#include "kernels/cuda.cuh"

/* t_arith.c's hash of an input and its output: summed, so whatever their order. */
K_HD uint64_t pair(float x, float y) {
    uint32_t b = y != y ? 0x7fc00000u : k_f32_bits(y), w = k_f32_bits(x) * 0x9e3779b1u | 1u;
    return (uint64_t)b * w;
}

K_HD float value(int f, float x) {
    switch (f) {
    case 0: return k_exp(x);
    case 1: return k_log(x);
    case 2: return k_log1p(x);
    case 3: return k_sin(x);
    case 4: return k_cos(x);
    case 5: return k_tanh(x);
    case 6: return k_sigmoid(x);
    case 7: return k_silu(x);
    case 8: return k_softplus(x);
    case 9: return k_rsqrt(x);
    case 10: return k_erf(x);
    default: return k_gelu(x);
    }
}

static __global__ void sums_k(uint32_t first, uint32_t step, uint64_t n, unsigned long long *sums) {
    const int f = (int)blockIdx.y;
    uint64_t sum = 0;
    for (uint64_t i = (uint64_t)k_tid(); i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        float x = k_bits_f32(first + (uint32_t)i * step);
        sum += pair(x, value(f, x));
    }
    atomicAdd(&sums[f], (unsigned long long)sum);
}

int ca_sums(k_dev *d, uint32_t first, uint32_t step, uint64_t n, uint64_t *sums) {
    K_LAUNCH(sums_k, dim3(n > 1000000 ? 4096 : 4, CA_COUNT), dim3(K_THREADS), 0, d->stream, first, step, n,
             (unsigned long long *)(void *)sums);
    return (int)cudaGetLastError();
}

void ca_sums_host(uint32_t first, uint32_t step, uint64_t n, uint64_t *sums) {
    for (int f = 0; f < CA_COUNT; f++) {
        sums[f] = 0;
        for (uint64_t i = 0; i < n; i++) {
            float x = k_bits_f32(first + (uint32_t)i * step);
            sums[f] += pair(x, value(f, x));
        }
    }
}
