#include "kernels/matmul.h"

#include "kernels/par.h"

/* Outputs r0 .. r1-1 of all rows of the tile through the epilogue. */
static void finish(const k_call *c, int64_t r0, int64_t r1) {
    int32_t epi = c->epi, N = c->d->N, act = k_epilogue_act(epi, c->lv);
    if (epi == K_EPI_RAW || ((epi == K_EPI_NONE || epi == K_EPI_ROUTER) && act == K_ACT_F32)) return;
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

static void blocks(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    int64_t step = rows_at_once(c), r0 = lo * step, end = hi * step < c->cols ? hi * step : c->cols;
    k_panel p = {.x = c->in[0], .K = c->in_cols[0], .n = c->T, .div = 1, .out = c->out, .O = c->cols};
    (void)ctx;
    if (k_dot_plain(c->lv, c->Tcall))
        k_panel_rows(&p, c->w[0], r0, end, k_slice(c), c->scratch_n);
    else
        k_dot_rows(&p, c->w[0], k_dot_rule_of(c->lv, c->Tcall, c->w[0]->type, c->w[0]->rows), r0, end, k_slice(c),
                   c->scratch_n);
    finish(c, r0, end);
}

void matmul_cpu(const k_call *c) {
    int64_t step = rows_at_once(c);
    k_spread(c, (c->cols + step - 1) / step, c->T > K_TILE_C ? 1 : 0, c->T * c->in_cols[0] * c->cols, blocks, NULL);
}
