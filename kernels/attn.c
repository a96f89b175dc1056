#include "kernels/attn.h"

#include "kernels/arith.h"
#include "kernels/attn_runs.h"
#include "kernels/par.h"
#include "kernels/round.h"
#include "kernels/vec8.h"

int64_t attn_scratch(const k_dims *d, int64_t Tc) {
    return k_visible_work(d, Tc) + d->hd;
}

/* One (token, head) is one step of a parallel loop. Long prompts hand out whole tokens (their list is made once),
 * dealt round so that the growing rows spread; few tokens hand out heads. */
static int deal(const k_call *c) {
    return c->T >= 4 * c->nth ? c->d->H : 1;
}

static int worth(const k_call *c) {
    return c->nth > 1 && (int64_t)c->T * c->Tc * c->d->H > K_PAR_MIN / 32;
}

/* What one thread knows about the token it last worked on. */
typedef struct {
    int64_t t;
    k_runs see;
} token;

static void turn_to(token *k, const k_call *c, int64_t t, int slot) {
    if (k->t == t) return;
    k->t = t;
    k->see = k_visible(c, c->in_i[slot], c->in_cols[slot], (int32_t)t, k_slice(c));
}

static void score_row(const k_call *c, const k_runs *see, int64_t t, int64_t h, float scale) {
    const k_dims *d = c->d;
    const int64_t hd = d->hd, step = d->G * hd;
    const int32_t act = c->lv->act;
    const float *q = c->in[0] + (t * d->H + h) * hd, *k = c->st[0]->f + h / (d->H / d->G) * hd;
    float *y = c->out + (t * d->H + h) * c->Tc;
    memset(y, 0, (size_t)c->Tc * sizeof *y);
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++)
            y[j] = k_rd(k_rd(k_v8_dot(q, k + j * step, hd), act) * scale, act);
}

void attn_score_cpu(const k_call *c) {
    const int64_t H = c->d->H;
    const float scale = (float)(1.0 / sqrt((double)c->d->hd));
#pragma omp parallel num_threads(c->nth) if (worth(c))
    {
        token k = {-1, {0, NULL}};
#pragma omp for schedule(static, deal(c))
        for (int64_t i = 0; i < c->T * H; i++) {
            turn_to(&k, c, i / H, 2);
            score_row(c, &k.see, i / H, i % H, scale);
        }
    }
}

static void prob_row(const k_call *c, const k_runs *see, int64_t row) {
    const float *s = c->in[0] + row * c->Tc;
    float *y = c->out + row * c->Tc, max = -INFINITY, acc[32] = {0};
    memset(y, 0, (size_t)c->Tc * sizeof *y);
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) max = s[j] > max ? s[j] : max;
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) {
            y[j] = k_exp(s[j] - max);
            acc[j & 31] = acc[j & 31] + y[j];
        }
    float sum = k_lanes32_fold(acc);
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) y[j] = k_rd(y[j] / sum, c->lv->act);
}

void attn_prob_cpu(const k_call *c) {
    const int64_t H = c->d->H;
#pragma omp parallel num_threads(c->nth) if (worth(c))
    {
        token k = {-1, {0, NULL}};
#pragma omp for schedule(static, deal(c))
        for (int64_t i = 0; i < c->T * H; i++) {
            turn_to(&k, c, i / H, 1);
            prob_row(c, &k.see, i);
        }
    }
}

/* n8 vectors of output columns, n8 a constant in every use. */
static inline __attribute__((always_inline)) void ctx_cols(const k_runs *see, const float *p, const float *v,
                                                           int64_t step, float *y, const int n8) {
    k_v8 acc[8];
    for (int b = 0; b < n8; b++) acc[b] = k_v8_zero();
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) {
            k_v8 pj = k_v8_set(p[j]);
            for (int b = 0; b < n8; b++) acc[b] = k_v8_fma(pj, k_v8_load(v + j * step + 8 * b), acc[b]);
        }
    for (int b = 0; b < n8; b++) k_v8_store(y + 8 * b, acc[b]);
}

static void ctx_row(const k_call *c, const k_runs *see, int64_t t, int64_t h) {
    const k_dims *d = c->d;
    const int64_t hd = d->hd, step = d->G * hd;
    const float *p = c->in[0] + (t * d->H + h) * c->Tc, *v = c->st[0]->f + h / (d->H / d->G) * hd;
    float *y = c->out + (t * d->H + h) * hd;
    int64_t i = 0;
    for (; i + 64 <= hd; i += 64) ctx_cols(see, p, v + i, step, y + i, 8);
    for (; i + 8 <= hd; i += 8) ctx_cols(see, p, v + i, step, y + i, 1);
    for (; i < hd; i++) {
        float acc = 0.0f;
        for (int32_t r = 0; r < see->n; r++)
            for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) acc = fmaf(p[j], v[j * step + i], acc);
        y[i] = acc;
    }
    for (i = 0; i < hd; i++) y[i] = k_rd(y[i], c->lv->act);
}

void attn_ctx_cpu(const k_call *c) {
    const int64_t H = c->d->H, kw = (int64_t)c->d->G * c->d->hd;
    memcpy(c->st[0]->f + c->pos0 * kw, c->in[1], (size_t)(c->T * kw) * sizeof(float));
    c->st[0]->rows = c->pos0 + c->T;
#pragma omp parallel num_threads(c->nth) if (worth(c))
    {
        token k = {-1, {0, NULL}};
#pragma omp for schedule(static, deal(c))
        for (int64_t i = 0; i < c->T * H; i++) {
            turn_to(&k, c, i / H, 2);
            ctx_row(c, &k.see, i / H, i % H);
        }
    }
}
