/* elem.cu: the ops of elem.h, one thread an output. */
#include "kernels/elem.h"

#include "kernels/cuda.cuh"

static __global__ void slice_k(const __grid_constant__ k_args a) {
    int64_t i = k_tid();
    if (i < a.c.T * a.c.cols) a.c.out[i] = a.c.in[0][i / a.c.cols * a.c.in_cols[0] + a.c.off + i % a.c.cols];
}
void slice_cuda(const k_call *c, void *stream) {
    k_each(slice_k, c, c->T * c->cols, stream);
}

static __global__ void widen_k(const __grid_constant__ k_args a) {
    int64_t i = k_tid(), D = a.c.in_cols[0];
    if (i < a.c.T * a.c.cols) a.c.out[i] = a.c.in[0][i / a.c.cols * D + i % a.c.cols % D];
}
void widen_cuda(const k_call *c, void *stream) {
    k_each(widen_k, c, c->T * c->cols, stream);
}

static __global__ void add_k(const __grid_constant__ k_args a) {
    int64_t i = k_tid();
    if (i < a.c.T * a.c.cols) a.c.out[i] = k_add1(a.c.in[0][i], a.c.in[1][i], a.c.per ? k_resid(&a.lv) : a.lv.act);
}
void add_cuda(const k_call *c, void *stream) {
    k_each(add_k, c, c->T * c->cols, stream);
}

static __global__ void sigmoid_k(const __grid_constant__ k_args a) {
    int64_t i = k_tid();
    if (i < a.c.T * a.c.cols) a.c.out[i] = k_sigmoid1(a.c.in[0][i], a.lv.act);
}
void sigmoid_cuda(const k_call *c, void *stream) {
    k_each(sigmoid_k, c, c->T * c->cols, stream);
}

static __global__ void swiglu_k(const __grid_constant__ k_args a) {
    int64_t i = k_tid();
    if (i >= a.c.T * a.c.cols) return;
    float g = a.c.in[0][i], u = a.c.in[1][i];
    a.c.out[i] = a.lv.gated == K_GATED_GELU ? k_geglu1(g, u, a.lv.act) : k_swiglu1(g, u, a.lv.act);
}
void swiglu_cuda(const k_call *c, void *stream) {
    k_each(swiglu_k, c, c->T * c->cols, stream);
}

static __global__ void attn_gate_k(const __grid_constant__ k_args a) {
    int64_t i = k_tid(), hd = a.d.hd;
    if (i >= a.c.T * a.c.cols) return;
    int64_t t = i / a.c.cols, h = i % a.c.cols / hd;
    a.c.out[i] = k_gate1(a.c.in[0][i], a.c.in[1][t * 2 * a.c.cols + 2 * h * hd + hd + i % hd], a.lv.act);
}
void attn_gate_cuda(const k_call *c, void *stream) {
    k_each(attn_gate_k, c, c->T * c->cols, stream);
}

static __global__ void gdn_g_k(const __grid_constant__ k_args a) {
    int64_t i = k_tid(), h = i % a.c.cols;
    if (i < a.c.T * a.c.cols) a.c.out[i] = k_gdn_g1(a.c.in[0][i], a.c.par[0][h], a.c.par[1][h]);
}
void gdn_g_cuda(const k_call *c, void *stream) {
    k_each(gdn_g_k, c, c->T * c->cols, stream);
}
