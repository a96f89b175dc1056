#include "kernels/indexer.h"

#include "kernels/norm.h"
#include "kernels/par.h"
#include "kernels/rope.h"
#include "kernels/topk.h"
#include "kernels/vec8.h"

int64_t indexer_scratch(const k_dims *d, int64_t Tc) {
    int64_t nb = d->ratio ? Tc / d->ratio : 0;
    return d->rot > 2 * nb ? d->rot : 2 * nb;
}

/* Mean of the block's raw keys (first row at raw), norm, rotation, into y. */
static void pool(const k_call *c, const float *raw, int32_t first, float *y, float *cs) {
    const k_dims *d = c->d;
    const int32_t act = c->lv->act, id = d->id;
    for (int32_t i = 0; i < id; i++) {
        float s = raw[i];
        for (int32_t r = 1; r < d->ratio; r++) s = s + raw[(int64_t)r * id + i];
        y[i] = k_rd(s / (float)d->ratio, act);
    }
    const float r = k_rms_r(k_v8_dot(y, y, id), id, d->eps);
    for (int32_t i = 0; i < id; i++) y[i] = k_rmsnorm1(y[i], r, c->par[0][i], act);
    k_rope_angles(c->par[1], d->rot / 2, first, c->lv, cs);
    k_rope_head(y, d->rot / 2, cs, act);
}

void idx_pool_cpu(const k_call *c) {
    const int64_t id = c->d->id;
    const int32_t ratio = c->d->ratio;
    k_state *raw = c->st[0];
    memcpy(raw->f + c->pos0 * id, c->in[0], (size_t)(c->T * id) * sizeof(float));
    raw->rows = c->pos0 + c->T;
#pragma omp parallel for schedule(static) num_threads(c->nth) if (c->nth > 1 && c->T * id > K_PAR_MIN)
    for (int32_t t = 0; t < c->T; t++) {
        float *y = c->out + t * id;
        int32_t pos = c->pos0 + t;
        if (!k_completes(pos, ratio)) {
            memset(y, 0, (size_t)id * sizeof *y);
            continue;
        }
        int64_t b = pos / ratio;
        pool(c, raw->f + b * ratio * id, (int32_t)b * ratio, y, k_slice(c));
    }
}

/* The keys of the blocks that this tile completes, as they arrive: what changed them on the way is kept. */
static void store_pooled(const k_call *c) {
    const int64_t id = c->d->id;
    const int32_t ratio = c->d->ratio;
    k_state *pooled = c->st[0];
    for (int32_t t = 0; t < c->T; t++) {
        int32_t pos = c->pos0 + t;
        if (k_completes(pos, ratio))
            memcpy(pooled->f + pos / ratio * id, c->in[1] + t * id, (size_t)id * sizeof(float));
    }
    pooled->rows = (c->pos0 + c->T) / ratio;
}

/* A few hundred blocks make a step of the parallel loop: enough steps for one long decode row to be shared. */
enum { STEP = 256 };

void idx_score_cpu(const k_call *c) {
    const k_dims *d = c->d;
    const int64_t id = d->id, ih = d->ih, steps = (c->cols + STEP - 1) / STEP;
    const float root = sqrtf((float)d->id);
    store_pooled(c);
#pragma omp parallel for schedule(static, 1) num_threads(c->nth) if (c->nth > 1 && c->T * c->cols * ih * id > K_PAR_MIN)
    for (int64_t i = 0; i < c->T * steps; i++) {
        int64_t t = i / steps, b = i % steps * STEP, end = b + STEP < c->cols ? b + STEP : c->cols;
        int64_t nb = k_nblocks(c->pos0 + (int32_t)t, d->ratio);
        const float *q = c->in[0] + t * ih * id;
        float *y = c->out + t * c->cols;
        for (; b < end && b < nb; b++) {
            float s = 0.0f;
            for (int64_t h = 0; h < ih; h++) s = s + k_relu(k_v8_dot(q + h * id, c->st[0]->f + b * id, id));
            y[b] = s / root;
        }
        for (; b < end; b++) y[b] = -1.0f;
    }
}

void idx_sel_cpu(const k_call *c) {
    const int64_t width = c->in_cols[0];
#pragma omp parallel for schedule(static, 1) num_threads(c->nth) if (c->nth > 1 && c->T * width > K_PAR_MIN / 16)
    for (int32_t t = 0; t < c->T; t++) {
        int32_t nb = k_nblocks(c->pos0 + t, c->d->ratio), k = nb < c->d->nsel ? nb : c->d->nsel;
        int32_t *ids = c->out_i + t * c->cols;
        if (k) k_topk(c->in[0] + t * width, nb, k, c->lv->tie, ids, k_slice(c));
        for (int64_t i = k; i < c->cols; i++) ids[i] = -1;
    }
}
