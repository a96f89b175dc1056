/* ple.cu: gate and gated value of ple.h. Row ids and the gather stay on the host, where the ids and the table are. */
#include "kernels/ple.h"

#include "kernels/cuda.cuh"

/* A warp a stream: the rounded products in lanes32. */
static __global__ void ple_gate_k(const __grid_constant__ k_args a) {
    int64_t k = k_warp(), D = a.c.in_cols[0] / a.c.cols;
    if (k >= a.c.T * a.c.cols) return;
    const float *key = a.c.in[0] + k * D, *query = a.c.in[1] + k * D;
    float acc = 0.0f;
    for (int64_t i = k_lane(); i < D; i += K_WARP) acc = acc + k_rd(key[i] * query[i], a.lv.act);
    float sum = k_warp_fold(acc);
    if (k_lane() == 0) a.c.out[k] = k_ple_gate1(sum, D, a.lv.act);
}
void ple_gate_cuda(const k_call *c, void *stream) {
    k_warps(ple_gate_k, c, c->T * c->cols, stream);
}

static __global__ void ple_mul_k(const __grid_constant__ k_args a) {
    int64_t i = k_tid(), N = a.c.in_cols[0], D = a.c.in_cols[1], k = i / D;
    if (i < a.c.T * a.c.cols) a.c.out[i] = k_rd(a.c.in[0][k] * a.c.in[1][k / N * D + i % D], a.lv.act);
}
void ple_mul_cuda(const k_call *c, void *stream) {
    k_each(ple_mul_k, c, c->T * c->cols, stream);
}
