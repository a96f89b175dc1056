/* rope.cu: rope.h, one thread a pair, and one for each dimension that is copied. */
#include "kernels/rope.h"

#include "kernels/cuda.cuh"

static __global__ void rope_k(const __grid_constant__ k_args a) {
    int64_t k = k_tid(), cols = a.c.cols, G = a.c.G;
    if (k >= a.c.T * cols) return;
    int64_t t = k / cols, j = k % cols, half = a.d.rot / 2, i = j % G;
    const float *x = a.c.in[0] + k;
    int whole = j / G * G + G <= cols; /* a rest of a head is copied */
    if (!whole || i >= 2 * half) {
        a.c.out[k] = *x;
    } else if (i < half) {
        float cc, ss, u = x[0], v = x[half];
        k_rope_angle(a.c.par[0][i], a.c.pos0 + (int32_t)t, &a.lv, &cc, &ss);
        k_rope_pair(&u, &v, cc, ss, a.lv.act);
        a.c.out[k] = u;
        a.c.out[k + half] = v;
    }
}
void rope_cuda(const k_call *c, void *stream) {
    k_each(rope_k, c, c->T * c->cols, stream);
}
