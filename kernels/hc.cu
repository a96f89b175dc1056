/* hc.cu: the hyper-connections of hc.h, one thread an output. */
#include "kernels/hc.h"

#include "kernels/cuda.cuh"
#include "kernels/elem.h"

static __global__ void hc_mix_k(const __grid_constant__ k_args a) {
    int64_t k = k_tid(), D = a.c.cols, W = a.c.in_cols[0], at = k / D * W + k % D;
    if (k < a.c.T * D) a.c.out[k] = k_hc_mix1(a.c.in[0] + at, a.c.in[1] + at, D, (int32_t)(W / D), a.lv.act);
}
void hc_mix_cuda(const k_call *c, void *stream) {
    k_each(hc_mix_k, c, c->T * c->cols, stream);
}

static __global__ void hc_add_k(const __grid_constant__ k_args a) {
    int64_t k = k_tid(), W = a.c.cols, D = a.c.in_cols[1], N = a.c.in_cols[2];
    if (k >= a.c.T * W) return;
    int64_t t = k / W, s = k % W / D;
    a.c.out[k] = k_hc_add1(a.c.in[0][k], a.c.in[1][t * D + k % W % D], a.c.in[2][t * N + s], a.lv.act, k_resid(&a.lv));
}
void hc_add_cuda(const k_call *c, void *stream) {
    k_each(hc_add_k, c, c->T * c->cols, stream);
}
