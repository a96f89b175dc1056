/* quant.cuh: the stored types as types of C++: element i of a row through the scalar cores of quant_all.h. */
#ifndef K_QUANT_CUH
#define K_QUANT_CUH

#include "kernels/cuda.cuh"
#include "kernels/quant_all.h"

template <int32_t TYPE> struct k_stored;

#define QUANT(id, name, n, size, in_file)                                                                              \
    template <> struct k_stored<id> {                                                                                  \
        static constexpr int32_t elems = n, bytes = size;                                                              \
        static __device__ __forceinline__ float in(const uint8_t *b, int32_t e) { return k_at_##name(b, e); }          \
        static __device__ __forceinline__ float at(const uint8_t *row, int64_t i) {                                    \
            return k_at_##name(row + i / (n) * (size), (int32_t)(i % (n)));                                            \
        }                                                                                                              \
    };
#include "kernels/quants.def"
#undef QUANT

/* Rows r0 .. of the weight, decoded: n values, w.cols a row. */
template <int32_t TYPE>
static __global__ void k_decode_k(const __grid_constant__ k_weight w, int64_t r0, int64_t n, float *y) {
    int64_t i = k_tid();
    if (i < n) y[i] = k_stored<TYPE>::at((const uint8_t *)w.data + (size_t)(r0 + i / w.cols) * w.row_bytes, i % w.cols);
}

/* Call job.run<TYPE>() of the type at hand. */
template <typename J> static void k_by_type(int32_t type, const J &job) {
    switch (type) {
#define QUANT(id, name, n, size, in_file)                                                                              \
    case id:                                                                                                           \
        job.template run<id>();                                                                                        \
        break;
#include "kernels/quants.def"
#undef QUANT
    default: break;
    }
}

#endif
