#include "kernels/conv.h"

#include "kernels/elem.h"
#include "kernels/par.h"

/* Channels are worked in blocks: the taps of a block are turned to [K][BLOCK] once, then every row of the tile is a few
 * vector loops over the block. More taps than TAPS are read where they lie. */
enum { BLOCK = 256, TAPS = 8 };

typedef struct {
    int64_t C; /* channels */
    int32_t K, dil;
    int64_t L; /* rows of the state */
} geometry;

/* Row of x at offset back rows before row t of the tile: in the tile, or in the state. */
static const float *source(const k_call *c, const geometry *g, int64_t t, int64_t back) {
    int64_t r = t - back;
    return r >= 0 ? c->in[0] + r * g->C : c->st[0]->f + (r + g->L) * g->C;
}

static void tap(const float *restrict w, const float *restrict x, float *restrict acc, int64_t n) {
    for (int64_t i = 0; i < n; i++) acc[i] = fmaf(w[i], x[i], acc[i]);
}

static void tap_strided(const float *restrict w, int64_t step, const float *restrict x, float *restrict acc,
                        int64_t n) {
    for (int64_t i = 0; i < n; i++) acc[i] = fmaf(w[i * step], x[i], acc[i]);
}

K_INLINE void act_row(const float *restrict acc, float *restrict y, int64_t n, int32_t act) {
    for (int64_t i = 0; i < n; i++) y[i] = k_conv_act1(acc[i], act);
}

static void turn(const float *restrict w, int64_t K, float *restrict wt, int64_t n) {
    if (K == 4) { /* the shape of every released model: the compiler makes shuffles of it */
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < 4; j++) wt[j * BLOCK + i] = w[i * 4 + j];
        return;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < K; j++) wt[j * BLOCK + i] = w[i * K + j];
}

/* Shift the state by the tile: its new row r is row T + r of state and tile put together, never above what is read. */
static void shift(const k_call *c, const geometry *g, int64_t ch, int64_t n) {
    for (int64_t r = 0; r < g->L; r++)
        memcpy(c->st[0]->f + r * g->C + ch, source(c, g, c->T + r - g->L, 0) + ch, (size_t)n * sizeof(float));
}

static void block(const k_call *c, const geometry *g, int64_t ch, int64_t n) {
    float wt[TAPS * BLOCK], acc[BLOCK];
    const float *w = c->par[0] + ch * g->K;
    if (g->K <= TAPS) turn(w, g->K, wt, n);
    for (int64_t t = 0; t < c->T; t++) {
        memset(acc, 0, sizeof acc);
        for (int32_t j = 0; j < g->K; j++) {
            int64_t back = (int64_t)(g->K - 1 - j) * g->dil;
            if (c->pos0 + t < back) continue;
            if (g->K <= TAPS)
                tap(wt + j * BLOCK, source(c, g, t, back) + ch, acc, n);
            else
                tap_strided(w + j, g->K, source(c, g, t, back) + ch, acc, n);
        }
        K_BY_ACT(c->lv->act, act_row, acc, c->out + t * g->C + ch, n);
    }
    shift(c, g, ch, n);
}

static void blocks(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const geometry *g = ctx;
    for (int64_t ch = lo * BLOCK; ch < hi * BLOCK && ch < g->C; ch += BLOCK)
        block(c, g, ch, g->C - ch < BLOCK ? g->C - ch : BLOCK);
}

static void conv(const k_call *c, int32_t K, int32_t dil) {
    const geometry g = {.C = c->cols, .K = K, .dil = dil, .L = (int64_t)(K - 1) * dil};
    if (c->T == 0) return;
    k_spread(c, (g.C + BLOCK - 1) / BLOCK, 0, (K + K_PAR_EXP) * c->T * c->cols, blocks, &g);
    c->st[0]->rows = g.L;
}

void conv1d_cpu(const k_call *c) {
    conv(c, c->d->Kc, 1);
}
void ple_conv_cpu(const k_call *c) {
    conv(c, c->d->Kp, c->d->n);
}
