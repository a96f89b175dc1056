#include "kernels/rope.h"

#include "kernels/par.h"

static void rope_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    const int32_t half = c->d->rot / 2, act = c->lv->act;
    const int64_t cols = c->cols;
    for (int64_t t = lo; t < hi; t++) {
        float *cs = k_slice(c), *y = c->out + t * cols;
        memcpy(y, c->in[0] + t * cols, (size_t)cols * sizeof *y);
        k_rope_angles(c->par[0], half, c->pos0 + (int32_t)t, c->lv, cs); /* once a row: every head shares them */
        for (int64_t h = 0; h + c->G <= cols; h += c->G) k_rope_head(y + h, half, cs, act);
    }
}

void rope_cpu(const k_call *c) {
    k_spread(c, c->T, 0, 4 * c->T * c->cols, rope_rows, NULL);
}

/* Three roundings a rotated element (table, products, sum), as in idx_pool; angles count as given, but for frequencies
 * that this arm rounds. */
void rope_band(const k_call *c, k_band *add) {
    const int32_t half = c->d->rot / 2;
    const double turn = k_rope_turn_hard(c->lv);
    for (int64_t t = 0; t < c->T; t++)
        for (int64_t h = 0; h + c->G <= c->cols; h += c->G) {
            const float *y = c->out + t * c->cols + h;
            double len2 = 0.0, hard2, rms2;
            for (int32_t i = 0; i < 2 * half; i++) len2 += (double)y[i] * (double)y[i];
            k_rope_freq_moves(y, c->par[0], half, c->pos0 + (int32_t)t, c->lv, &hard2, &rms2);
            double hard = turn * sqrt(len2) + sqrt(hard2);
            add->hard2 += hard * hard;
            add->rms2 += k_rope_turn_rms2(c->lv) * len2 + rms2;
        }
}
