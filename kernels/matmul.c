#include "kernels/matmul.h"

#include "kernels/par.h"

/* Outputs r0 .. r1-1 of all rows of the tile through the epilogue. */
static void finish(const k_call *c, int64_t r0, int64_t r1) {
    int32_t epi = c->epi, N = c->d->N, act = c->lv->act;
    if (epi == K_EPI_RAW || (epi == K_EPI_NONE && act == K_ACT_F32)) return;
    for (int32_t t = 0; t < c->T; t++) {
        float *y = c->out + t * c->cols;
        for (int64_t o = r0; o < r1; o++) y[o] = k_epilogue_of(y[o], epi, N, act);
    }
}

/* Output rows that one thread takes at a time: a cache line of outputs at least, a decoded block at most, and no more
 * than leaves a share to every thread. */
static int64_t rows_at_once(const k_call *c) {
    int64_t most = c->T > K_TILE_C ? k_tile_rows(c->in_cols[0]) : 16, share = (c->cols + c->nth - 1) / c->nth;
    share = (share + K_TILE_R - 1) / K_TILE_R * K_TILE_R;
    return share < most ? share : most;
}

void matmul_cpu(const k_call *c) {
    const k_weight *w = c->w[0];
    int64_t K = c->in_cols[0], step = rows_at_once(c), n = (c->cols + step - 1) / step;
    k_panel p = {.x = c->in[0], .K = K, .n = c->T, .div = 1, .out = c->out, .O = c->cols};
    int work = (int64_t)c->T * K * c->cols >= 3 * (int64_t)K_PAR_MIN;
    (void)work;
#pragma omp parallel for schedule(static) num_threads(c->nth) if (work)
    for (int64_t b = 0; b < n; b++) {
        int64_t r0 = b * step, r1 = r0 + step < c->cols ? r0 + step : c->cols;
        k_panel_rows(&p, w, r0, r1, k_slice(c), c->scratch_n);
        finish(c, r0, r1);
    }
}
