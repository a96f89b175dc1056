/* gdn_head.cuh: what the kernels of gdn.h share. */
#ifndef K_GDN_HEAD_CUH
#define K_GDN_HEAD_CUH

#include "kernels/cuda.cuh"
#include "kernels/gdn.h"

/* One value head of the call, as in gdn_head.h. */
typedef struct {
    const float *q, *k, *v, *g, *beta;
    float *out, *S;
    int64_t kstep, vstep, hstep;
} k_dev_head;

static __device__ __forceinline__ k_dev_head k_dev_head_of(const k_args *a, int32_t h) {
    const int64_t kh = (int64_t)k_gdn_key_head(&a->d, h) * a->d.dk, vh = (int64_t)h * a->d.dv;
    k_dev_head x;
    x.q = a->c.in[0] + kh;
    x.k = a->c.in[1] + kh;
    x.v = a->c.in[2] + vh;
    x.g = a->c.in[3] + h;
    x.beta = a->c.in[4] + h;
    x.out = a->c.out + vh;
    x.S = a->st.f + (int64_t)h * a->d.dk * a->d.dv;
    x.kstep = (int64_t)a->d.nk * a->d.dk;
    x.vstep = (int64_t)a->d.nv * a->d.dv;
    x.hstep = a->d.nv;
    return x;
}

/* gdn_core by chunks: out and the state, but for its rows. */
void k_gdn_chunk_cuda(const k_call *c, void *stream);

#endif
