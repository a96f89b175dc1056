#include "kernels/indexer.h"

#include "kernels/indexer_extra.h"
#include "kernels/norm.h"
#include "kernels/par.h"
#include "kernels/rope.h"
#include "kernels/topk.h"
#include "kernels/vec8.h"

int64_t indexer_scratch(const k_dims *d, int64_t Tc) {
    if (!d->ratio) return d->rot;
    const int64_t tokens = k_extra_floats(Tc, d->ratio); /* idx_sel takes less */
    return d->rot > tokens ? d->rot : tokens;
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
    const float r = k_rms_r(k_v8_dot(y, y, id), id, k_eps(d, c->lv));
    for (int32_t i = 0; i < id; i++) y[i] = k_rmsnorm1(y[i], r, c->par[0][i], act);
    k_rope_angles(c->par[1], d->rot / 2, first, c->lv, cs);
    k_rope_head(y, d->rot / 2, cs, act);
}

static void pool_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const int64_t id = c->d->id;
    const int32_t ratio = c->d->ratio;
    (void)ctx;
    for (int64_t t = lo; t < hi; t++) {
        float *y = c->out + t * id;
        int32_t pos = c->pos0 + (int32_t)t;
        if (!k_completes(pos, ratio)) {
            memset(y, 0, (size_t)id * sizeof *y);
            continue;
        }
        int64_t b = pos / ratio;
        pool(c, c->st[0]->f + b * ratio * id, (int32_t)b * ratio, y, k_slice(c));
    }
}

void idx_pool_cpu(const k_call *c) {
    const int64_t id = c->d->id;
    k_state *raw = c->st[0];
    k_kv_store(raw->f + c->pos0 * id, c->in[0], c->T * id, c->lv);
    raw->rows = c->pos0 + c->T;
    k_spread(c, c->T, 0, 2 * c->T * id, pool_rows, NULL);
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

static int64_t steps_of(const k_call *c) {
    return (c->cols + STEP - 1) / STEP;
}

static void score_steps(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const k_dims *d = c->d;
    const int64_t id = d->id, ih = d->ih, steps = steps_of(c);
    const float root = sqrtf((float)d->id);
    (void)ctx;
    for (int64_t i = lo; i < hi; i++) {
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

void idx_score_cpu(const k_call *c) {
    store_pooled(c);
    k_spread(c, c->T * steps_of(c), 1, c->T * c->cols * c->d->ih * c->d->id, score_steps, NULL);
}

static void sel_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const int64_t width = c->in_cols[0];
    (void)ctx;
    for (int64_t t = lo; t < hi; t++) {
        int32_t nb = k_nblocks(c->pos0 + (int32_t)t, c->d->ratio), k = nb < c->d->nsel ? nb : c->d->nsel;
        int32_t *ids = c->out_i + t * c->cols;
        if (k) k_topk(c->in[0] + t * width, nb, k, c->lv->tie, ids, k_slice(c));
        for (int64_t i = k; i < c->cols; i++) ids[i] = -1;
    }
}

void idx_sel_cpu(const k_call *c) {
    k_spread(c, c->T, 1, 16 * c->T * c->in_cols[0], sel_rows, NULL);
}

/* Up to `most` extra tokens of the query in row t, ascending; their number. */
static int64_t extra_tokens(const k_call *c, int64_t t, int32_t *ids, int64_t most) {
    const int32_t n = c->pos0 + (int32_t)t + 1;
    if (n <= k_extra_list(c->d)) return 0; /* all tokens are seen */
    const k_extra_room r = k_extra_room_in(k_slice(c), n);
    for (int32_t j = 0; j < n; j++) k_extra_enter(&r, c->in[0] + t * c->in_cols[0], n, c->d->ratio, j);
    return k_extra_pick(&r, n, c->d, c->in_i[1] + t * c->in_cols[1], c->in_cols[1], ids, most);
}

static void extra_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    for (int64_t t = lo; t < hi; t++) {
        int32_t *ids = c->out_i + t * c->cols;
        int64_t n = c->lv->extra == K_EXTRA_STL ? extra_tokens(c, t, ids, c->cols) : 0;
        for (; n < c->cols; n++) ids[n] = -1;
    }
}

void idx_extra_cpu(const k_call *c) {
    const int64_t each = c->lv->extra == K_EXTRA_STL ? 16 * (int64_t)c->Tc : c->cols;
    k_spread(c, c->T, 1, c->T * each, extra_rows, NULL);
}
