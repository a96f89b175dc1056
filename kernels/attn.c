#include "kernels/attn.h"

#include "kernels/arith.h"
#include "kernels/attn_runs.h"
#include "kernels/par.h"
#include "kernels/round.h"
#include "kernels/vec8.h"

int64_t attn_scratch(const k_dims *d, int64_t Tc) {
    return k_visible_work(d, Tc) + 2 * (int64_t)d->hd;
}

/* Tokens whose keys or values are worked on together, so that all heads of a group find them in the cache. */
enum { TILE = 16 };

/* A step of the parallel loops: one token and some heads of one group, all of them when there are steps enough. */
typedef struct {
    int64_t parts, heads; /* parts of a group, heads of a part */
} cut;

static cut cut_of(const k_call *c) {
    const int64_t per = c->d->H / c->d->G, steps = (int64_t)c->T * c->d->G;
    int64_t parts = (c->nth + steps - 1) / steps;
    if (parts > per) parts = per;
    if (parts < 1) parts = 1;
    return (cut){parts, (per + parts - 1) / parts};
}

/* The parallel loop over the steps of all tokens. Long prompts hand out whole tokens (their list is made once), dealt
 * round so that the growing rows spread. work: multiply-adds of a head and a pair of tokens. */
static void spread(const k_call *c, const cut *x, int64_t steps_a_token, int64_t work, k_steps f) {
    k_spread(c, c->T * steps_a_token, c->T >= 4 * c->nth ? steps_a_token : 1, c->T * c->Tc * c->d->H * work, f, x);
}

/* What one thread knows about the token it last worked on. */
typedef struct {
    int64_t t;
    k_runs see;
} token;

static void turn_to(token *k, const k_call *c, int64_t t, int slot) {
    if (k->t == t) return;
    k->t = t;
    k->see = k_visible(c, slot, (int32_t)t, k_slice(c));
}

/* Heads h0 .. h1 of a token, all of one group. */
typedef struct {
    int64_t t, h0, h1;
} part;

static part part_of(const k_call *c, const cut *x, int64_t i) {
    const int64_t per = c->d->H / c->d->G, g = i / x->parts % c->d->G;
    part p = {.t = i / (x->parts * c->d->G), .h0 = g * per + i % x->parts * x->heads};
    p.h1 = p.h0 + x->heads < (g + 1) * per ? p.h0 + x->heads : (g + 1) * per;
    return p;
}

/* The tile's rows of keys or values join their cache. */
static void append(const k_call *c) {
    const int64_t kw = (int64_t)c->d->G * c->d->hd;
    k_kv_store(c->st[0]->f + c->pos0 * kw, c->in[1], c->T * kw, c->lv);
    c->st[0]->rows = c->pos0 + c->T;
}

/* Tokens j .. end for all heads of the part, two heads at a time. */
static void score_tile(const k_call *c, const part *p, int64_t j, int64_t end, float scale) {
    const k_dims *d = c->d;
    const int64_t hd = d->hd, step = d->G * hd, Tc = c->Tc;
    const int32_t act = k_follow(c->lv->inner, c->lv->act);
    const float *k = c->st[0]->f + p->h0 / (d->H / d->G) * hd, *q = c->in[0] + (p->t * d->H + p->h0) * hd;
    float *y = c->out + (p->t * d->H + p->h0) * Tc, s[2];
    int64_t h = p->h0;
    for (; h + 2 <= p->h1; h += 2, q += 2 * hd, y += 2 * Tc)
        for (int64_t i = j; i < end; i++) {
            k_v8_dot2(q, q + hd, k + i * step, hd, s);
            y[i] = k_attn_scaled(s[0], scale, act);
            y[i + Tc] = k_attn_scaled(s[1], scale, act);
        }
    if (h < p->h1)
        for (int64_t i = j; i < end; i++) y[i] = k_attn_scaled(k_v8_dot(q, k + i * step, hd), scale, act);
}

/* Tokens j .. end for all heads of the part, from rounded queries. */
static void score_rounded(const k_call *c, const part *p, int64_t j, int64_t end, float scale) {
    const k_dims *d = c->d;
    const int64_t hd = d->hd, step = d->G * hd;
    const int32_t act = k_follow(c->lv->inner, c->lv->act);
    const float *k = c->st[0]->f + p->h0 / (d->H / d->G) * hd;
    float *q = k_slice(c) + k_visible_work(d, c->Tc);
    for (int64_t h = p->h0; h < p->h1; h++) {
        const float *from = c->in[0] + (p->t * d->H + h) * hd;
        for (int64_t i = 0; i < hd; i++) q[i] = k_kv_round(from[i], k_sweep_type(c));
        float *y = c->out + (p->t * d->H + h) * c->Tc;
        for (int64_t i = j; i < end; i++) y[i] = k_attn_scaled(k_v8_dot(q, k + i * step, hd), scale, act);
    }
}

static void score_steps(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const float scale = k_attn_scale(c->d->hd);
    const int rounded = k_sweep_type(c) != K_KV_F32;
    token k = {-1, {0, NULL}};
    for (int64_t i = lo; i < hi; i++) {
        const part p = part_of(c, ctx, i);
        if (p.h0 >= p.h1) continue;
        turn_to(&k, c, p.t, 2);
        memset(c->out + (p.t * c->d->H + p.h0) * c->Tc, 0, (size_t)((p.h1 - p.h0) * c->Tc) * sizeof(float));
        for (int32_t r = 0; r < k.see.n; r++)
            for (int64_t j = k.see.at[2 * r], end = k.see.at[2 * r + 1]; j < end; j += TILE)
                (rounded ? score_rounded : score_tile)(c, &p, j, j + TILE < end ? j + TILE : end, scale);
    }
}

void attn_score_cpu(const k_call *c) {
    const cut x = cut_of(c);
    append(c);
    spread(c, &x, c->d->G * x.parts, c->d->hd, score_steps);
}

/* The sum of exponentials of a row whose largest score is max, which stand in y. */
static float prob_sum(const k_call *c, const k_runs *see, const float *s, const float *y) {
    float acc[32] = {0}, max = -INFINITY, sum = 0.0f, shrink;
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++)
            if (c->lv->sweep == K_SWEEP_ONLINE) {
                const float e = k_sweep_on(&max, s[j], &shrink);
                sum = k_sweep_sum(sum, shrink, e);
            } else
                acc[j & 31] = acc[j & 31] + y[j];
    return c->lv->sweep == K_SWEEP_ONLINE ? sum : k_lanes32_fold(acc);
}

static void prob_row(const k_call *c, const k_runs *see, int64_t row) {
    const int32_t act = k_follow(c->lv->inner, c->lv->act);
    const float *s = c->in[0] + row * c->Tc;
    float *y = c->out + row * c->Tc, max = -INFINITY;
    memset(y, 0, (size_t)c->Tc * sizeof *y);
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) max = s[j] > max ? s[j] : max;
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) y[j] = k_exp(s[j] - max);
    const float sum = prob_sum(c, see, s, y);
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) y[j] = k_rd(y[j] / sum, act);
}

static void prob_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    token k = {-1, {0, NULL}};
    (void)ctx;
    for (int64_t i = lo; i < hi; i++) {
        turn_to(&k, c, i / c->d->H, 1);
        prob_row(c, &k.see, i);
    }
}

void attn_prob_cpu(const k_call *c) {
    spread(c, NULL, c->d->H, K_PAR_EXP, prob_rows);
}

/* 8 n8 columns on from what stands in y: y += sum over j .. end of p_j v_j; n8 a constant in every use. */
static inline __attribute__((always_inline)) void ctx_cols(const float *p, const float *v, int64_t step, int64_t j,
                                                           int64_t end, float *y, const int n8) {
    k_v8 acc[8];
    for (int b = 0; b < n8; b++) acc[b] = k_v8_load(y + 8 * b);
    for (; j < end; j++) {
        k_v8 pj = k_v8_set(p[j]);
        for (int b = 0; b < n8; b++) acc[b] = k_v8_fma(pj, k_v8_load(v + j * step + 8 * b), acc[b]);
    }
    for (int b = 0; b < n8; b++) k_v8_store(y + 8 * b, acc[b]);
}

/* The chains of all heads of the part, on through tokens j .. end. */
static void ctx_tile(const k_call *c, const part *x, int64_t j, int64_t end) {
    const k_dims *d = c->d;
    const int64_t hd = d->hd, step = d->G * hd;
    const float *v = c->st[0]->f + x->h0 / (d->H / d->G) * hd;
    for (int64_t h = x->h0; h < x->h1; h++) {
        const float *p = c->in[0] + (x->t * d->H + h) * c->Tc;
        float *y = c->out + (x->t * d->H + h) * hd;
        int64_t i = 0;
        for (; i + 64 <= hd; i += 64) ctx_cols(p, v + i, step, j, end, y + i, 8);
        for (; i + 8 <= hd; i += 8) ctx_cols(p, v + i, step, j, end, y + i, 1);
        for (; i < hd; i++)
            for (int64_t e = j; e < end; e++) y[i] = fmaf(p[e], v[e * step + i], y[i]);
    }
}

/* Flash attention of one head as attn.h writes it. */
static void ctx_online(const k_call *c, const k_runs *see, int64_t t, int64_t h) {
    const k_dims *d = c->d;
    const int64_t hd = d->hd, step = d->G * hd;
    const int half = k_sweep_type(c) == K_KV_F16;
    const float *v = c->st[0]->f + h / (d->H / d->G) * hd, *s = c->in[2] + (t * d->H + h) * c->Tc;
    float *y = c->out + (t * d->H + h) * hd;
    float max = -INFINITY, sum = 0.0f;
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) {
            float shrink, e = k_sweep_on(&max, s[j], &shrink);
            sum = k_sweep_sum(sum, shrink, e);
            for (int64_t i = 0; i < hd; i++) y[i] = k_sweep_ctx(y[i], v[j * step + i], shrink, e, half);
        }
    if (!see->n) return;
    const float one = 1.0f / sum;
    for (int64_t i = 0; i < hd; i++) y[i] = y[i] * one;
}

static void ctx_steps(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const int64_t hd = c->d->hd;
    token k = {-1, {0, NULL}};
    for (int64_t i = lo; i < hi; i++) {
        const part p = part_of(c, ctx, i);
        if (p.h0 >= p.h1) continue;
        turn_to(&k, c, p.t, 3);
        float *y = c->out + (p.t * c->d->H + p.h0) * hd;
        const int64_t n = (p.h1 - p.h0) * hd;
        memset(y, 0, (size_t)n * sizeof *y);
        if (c->lv->sweep == K_SWEEP_ONLINE)
            for (int64_t h = p.h0; h < p.h1; h++) ctx_online(c, &k.see, p.t, h);
        else
            for (int32_t r = 0; r < k.see.n; r++)
                for (int64_t j = k.see.at[2 * r], end = k.see.at[2 * r + 1]; j < end; j += TILE)
                    ctx_tile(c, &p, j, j + TILE < end ? j + TILE : end);
        for (int64_t e = 0; e < n; e++) y[e] = k_rd(y[e], c->lv->act);
    }
}

void attn_ctx_cpu(const k_call *c) {
    const cut x = cut_of(c);
    append(c);
    spread(c, &x, c->d->G * x.parts, c->d->hd, ctx_steps);
}
