/* norm.cu: the norms of norm.h, a warp a group: lane l holds accumulator l of the sum of squares. */
#include "kernels/norm.h"

#include "kernels/cuda.cuh"

static __global__ void rmsnorm_k(const __grid_constant__ k_args a) {
    int64_t k = k_warp(), G = a.c.G, ng = a.c.cols / G;
    if (k >= a.c.T * ng) return;
    const float *x = a.c.in[0] + k / ng * a.c.in_cols[0] + a.c.off + k % ng * a.c.stride;
    const float *gamma = a.c.par[0] + (a.c.per ? k % ng * G : 0);
    float r = k_rms_r(k_warp_dot(x, x, G), G, k_eps(&a.d, &a.lv));
    for (int64_t i = k_lane(); i < G; i += K_WARP) a.c.out[k * G + i] = k_rmsnorm1(x[i], r, gamma[i], a.lv.act);
}
void rmsnorm_cuda(const k_call *c, void *stream) {
    k_warps(rmsnorm_k, c, c->T * (c->cols / c->G), stream);
}

static __global__ void l2norm_k(const __grid_constant__ k_args a) {
    int64_t k = k_warp(), G = a.c.G, ng = a.c.cols / G;
    if (k >= a.c.T * ng) return;
    const float *x = a.c.in[0] + k / ng * a.c.in_cols[0] + a.c.off + k % ng * G;
    float r = k_l2_r(k_warp_dot(x, x, G), k_l2_eps(&a.lv));
    for (int64_t i = k_lane(); i < G; i += K_WARP) a.c.out[k * G + i] = x[i] * r;
}
void l2norm_cuda(const k_call *c, void *stream) {
    k_warps(l2norm_k, c, c->T * (c->cols / c->G), stream);
}

static __global__ void gdn_norm_k(const __grid_constant__ k_args a) {
    int64_t k = k_warp(), G = a.c.G, ng = a.c.cols / G;
    if (k >= a.c.T * ng) return;
    const float *o = a.c.in[0] + k * G, *z = a.c.in[1] + k * G;
    float r = k_rms_r(k_warp_dot(o, o, G), G, k_eps(&a.d, &a.lv));
    for (int64_t i = k_lane(); i < G; i += K_WARP)
        a.c.out[k * G + i] = k_gdn_norm1(o[i], r, a.c.par[0][i], z[i], k_gdn_gate_silu(&a.d, &a.lv), a.lv.act);
}
void gdn_norm_cuda(const k_call *c, void *stream) {
    k_warps(gdn_norm_k, c, c->T * (c->cols / c->G), stream);
}
