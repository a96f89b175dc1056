#include "kernels/rope.h"

#include "kernels/par.h"

void rope_cpu(const k_call *c) {
    const int32_t half = c->d->rot / 2, act = c->lv->act;
    const int64_t cols = c->cols;
#pragma omp parallel for schedule(static) num_threads(c->nth) if (c->nth > 1 && c->T * cols > K_PAR_MIN)
    for (int32_t t = 0; t < c->T; t++) {
        float *cs = k_slice(c), *y = c->out + t * cols;
        memcpy(y, c->in[0] + t * cols, (size_t)cols * sizeof *y);
        k_rope_angles(c->par[0], half, c->pos0 + t, c->lv, cs); /* once a row: every head shares them */
        for (int64_t h = 0; h + c->G <= cols; h += c->G) k_rope_head(y + h, half, cs, act);
    }
    k_state *s = c->st[0];
    if (!s) return;
    memcpy(s->f + c->pos0 * cols, c->out, (size_t)(c->T * cols) * sizeof *c->out);
    s->rows = c->pos0 + c->T;
}
