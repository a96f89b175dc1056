/* moe_expert.c: products with the chosen experts, one decoding of a row for all tokens that chose its expert. */
#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/par.h"

/* Lists live in float scratch. */
typedef int32_t __attribute__((may_alias)) list_i32;

typedef struct {
    list_i32 *first; /* [E+1] slots of expert e: slot[first[e]] .. slot[first[e+1]-1] */
    list_i32 *slot;  /* [T*K] ascending within an expert */
    list_i32 *used;  /* [nused] experts with slots, ascending */
    int32_t nused;
} groups;

static int64_t lists_size(int64_t slots, int64_t E) {
    return E + 1 + 2 * slots;
}

static groups group(const int32_t *ids, int64_t slots, int32_t E, float *scratch) {
    groups g = {.first = (list_i32 *)scratch};
    g.slot = g.first + E + 1;
    g.used = g.slot + slots;
    for (int32_t e = 0; e <= E; e++) g.first[e] = 0;
    for (int64_t s = 0; s < slots; s++)
        if (ids[s] >= 0 && ids[s] < E) g.first[ids[s] + 1]++;
    for (int32_t e = 0; e < E; e++) {
        if (g.first[e + 1]) g.used[g.nused++] = e;
        g.first[e + 1] += g.first[e];
    }
    /* filling moves first[e] to the end of e's slots, which is where e + 1 begins */
    for (int64_t s = 0; s < slots; s++)
        if (ids[s] >= 0 && ids[s] < E) g.slot[g.first[ids[s]]++] = (int32_t)s;
    for (int32_t e = E; e > 0; e--) g.first[e] = g.first[e - 1];
    g.first[0] = 0;
    return g;
}

/* Rows r0 .. r1-1 of one expert for its slots. */
static void expert_rows(const k_call *c, const groups *g, int32_t e, k_panel p, int64_t r0, int64_t r1) {
    int64_t head = lists_size((int64_t)c->T * c->in_cols[1], c->nw[0]);
    p.slot = g->slot + g->first[e];
    p.n = g->first[e + 1] - g->first[e];
    const k_weight *w = &c->w[0][e];
    k_dot_rows(&p, w, k_dot_rule_of(c->lv, c->Tcall, w->type, w->rows), r0, r1, k_slice(c) + head, c->scratch_n - head);
    if (c->lv->act != K_ACT_BF16) return;
    for (int32_t j = 0; j < p.n; j++) {
        float *y = p.out + p.slot[j] * p.O;
        for (int64_t o = r0; o < r1; o++) y[o] = k_round_bf16(y[o]);
    }
}

/* The call's columns: one a slot, or one a token that its slots share. */
static k_panel panel(const k_call *c) {
    int32_t K = (int32_t)c->in_cols[1];
    k_panel p = {.x = c->in[0], .div = c->per || K == 0 ? 1 : K, .out = c->out};
    p.K = c->per && K > 0 ? c->in_cols[0] / K : c->in_cols[0];
    p.O = K > 0 ? c->cols / K : 0;
    return p;
}

/* What the threads share: a step is one block of rows of one expert. */
typedef struct {
    const groups *g;
    k_panel p;
    int64_t step; /* rows of a block */
} job;

/* An expert's row blocks go to different threads: experts differ in tokens, their rows do not. */
static void expert_blocks(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const job *j = ctx;
    for (int64_t i = lo; i < hi; i++) {
        int64_t r0 = i / j->g->nused * j->step, r1 = r0 + j->step < j->p.O ? r0 + j->step : j->p.O;
        expert_rows(c, j->g, j->g->used[i % j->g->nused], j->p, r0, r1);
    }
}

void moe_expert_cpu(const k_call *c) {
    int64_t slots = (int64_t)c->T * c->in_cols[1];
    k_panel p = panel(c);
    const int32_t *ids = c->in_i[1];
    groups g = group(ids, slots, c->nw[0], c->scratch);
    for (int64_t s = 0; s < slots; s++)
        if (ids[s] < 0 || ids[s] >= c->nw[0])
            for (int64_t o = 0; o < p.O; o++) c->out[s * p.O + o] = NAN;
    job j = {&g, p, k_tile_rows(p.K)};
    int64_t share = ((p.O + c->nth - 1) / c->nth + K_TILE_R - 1) / K_TILE_R * K_TILE_R;
    if (share < j.step && share > 0) j.step = share;
    k_spread(c, (p.O + j.step - 1) / j.step * g.nused, c->T > 1 ? 1 : 0, slots * p.K * p.O, expert_blocks, &j);
}

void moe_expert_band(const k_call *c, k_band *add) {
    int64_t slots = (int64_t)c->T * c->in_cols[1];
    k_panel all = panel(c);
    const int32_t *ids = c->in_i[1];
    groups g = group(ids, slots, c->nw[0], c->scratch);
    const int64_t head = lists_size(slots, c->nw[0]);
    double out[K_BAND_PARTS], y2 = 0;
    k_dot_terms sum = {.excess = 1};
    for (int32_t i = 0; i < g.nused; i++) {
        int32_t e = g.used[i];
        k_panel p = all;
        p.slot = g.slot + g.first[e];
        p.n = g.first[e + 1] - g.first[e];
        k_dot_terms t = k_dot_terms_of(c, &p, &c->w[0][e], c->scratch + head);
        sum = (k_dot_terms){t.rule, sum.q + t.q, sum.error + t.error, t.excess, t.scale};
    }
#pragma omp parallel for schedule(static) num_threads(c->nth)
    for (int b = 0; b < K_BAND_PARTS; b++) {
        out[b] = 0;
        for (int64_t s = k_band_part(slots, b, 1); s < k_band_part(slots, b + 1, 1); s++)
            for (int64_t o = 0; ids[s] >= 0 && ids[s] < c->nw[0] && o < all.O; o++)
                out[b] += (double)c->out[s * all.O + o] * (double)c->out[s * all.O + o];
    }
    for (int b = 0; b < K_BAND_PARTS; b++) y2 += out[b];
    k_dots_band(&sum, y2, all.K, c->lv->act, 1, add);
}
