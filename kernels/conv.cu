/* conv.cu: the convolutions of conv.h, a thread a channel and row; then the state moves on, a thread a channel. */
#include "kernels/conv.h"

#include "kernels/cuda.cuh"

/* Channel ch of the row `back` rows before row t of the tile: in the tile, or in the state of L rows. */
static __device__ __forceinline__ float conv_at(const k_args *a, int64_t L, int64_t t, int64_t back, int64_t ch) {
    int64_t r = t - back;
    return r >= 0 ? a->c.in[0][r * a->c.cols + ch] : a->st.f[(r + L) * a->c.cols + ch];
}

static __global__ void conv_k(const __grid_constant__ k_args a, int32_t K, int32_t dil) {
    int64_t i = k_tid(), C = a.c.cols, t = i / C, ch = i % C;
    if (i >= a.c.T * C) return;
    float acc = 0.0f;
    for (int32_t j = 0; j < K; j++) {
        int64_t back = (int64_t)(K - 1 - j) * dil;
        if (a.c.pos0 + t >= back)
            acc = fmaf(a.c.par[0][ch * K + j], conv_at(&a, (int64_t)(K - 1) * dil, t, back, ch), acc);
    }
    a.c.out[i] = k_conv_act1(acc, a.lv.act);
}

/* Ascending rows, so that none is read after it was written. */
static __global__ void conv_shift_k(const __grid_constant__ k_args a, int64_t L) {
    int64_t ch = k_tid();
    if (ch >= a.c.cols) return;
    for (int64_t r = 0; r < L; r++) a.st.f[r * a.c.cols + ch] = conv_at(&a, L, a.c.T + r - L, 0, ch);
}

static void conv(const k_call *c, int32_t K, int32_t dil, void *stream) {
    const int64_t n = c->T * c->cols, L = (int64_t)(K - 1) * dil;
    K_LAUNCH(conv_k, dim3(k_blocks(n, K_THREADS)), dim3(K_THREADS), 0, stream, k_args_of(c), K, dil);
    K_LAUNCH(conv_shift_k, dim3(k_blocks(c->cols, K_THREADS)), dim3(K_THREADS), 0, stream, k_args_of(c), L);
    c->st[0]->rows = L;
}

void conv1d_cuda(const k_call *c, void *stream) {
    conv(c, c->d->Kc, 1, stream);
}
void ple_conv_cuda(const k_call *c, void *stream) {
    conv(c, c->d->Kp, c->d->n, stream);
}
