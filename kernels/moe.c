#include "kernels/moe.h"

#include "kernels/arith.h"
#include "kernels/par.h"
#include "kernels/reduce.h"
#include "kernels/topk.h"

/* 1 when every logit is a number. */
static int row_is_finite(const float *logit, int64_t E) {
    int finite = 1;
    for (int64_t i = 0; i < E; i++) finite &= k_moe_finite1(logit[i]);
    return finite;
}

/* e[i] = exp(logit_i - largest); the lanes32 sum of e is returned. */
static float softmax_terms(const float *logit, int64_t E, float *e) {
    float most = -INFINITY;
    for (int64_t i = 0; i < E; i++) most = logit[i] > most ? logit[i] : most;
    for (int64_t i = 0; i < E; i++) e[i] = k_exp(logit[i] - most);
    return k_lanes32_sum(e, E);
}

static void moe_ids_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t E = c->in_cols[0], K = c->cols;
    int32_t kept = k_moe_softmax_rd(c->lv);
    for (int64_t t = lo; t < hi; t++) {
        const float *logit = c->in[0] + t * E;
        int32_t *id = c->out_i + t * K;
        if (!row_is_finite(logit, E)) {
            for (int64_t k = 0; k < K; k++) id[k] = -1;
            continue;
        }
        float *p = k_slice(c), sum = softmax_terms(logit, E, p);
        for (int64_t i = 0; i < E; i++) p[i] = k_rd(p[i] / sum, kept);
        k_topk(p, (int32_t)E, (int32_t)K, c->lv->tie, id, p + E);
    }
}

void moe_ids_cpu(const k_call *c) {
    k_spread(c, c->T, 0, K_PAR_EXP * c->T * c->in_cols[0], moe_ids_rows, NULL);
}

/* One token's weights; e: E floats of scratch. */
static void weights_row(const k_call *c, const float *logit, const int32_t *id, float *w, float *e) {
    int64_t E = c->in_cols[0], K = c->cols;
    int32_t act = c->lv->act, kept = k_moe_softmax_rd(c->lv);
    float all = softmax_terms(logit, E, e), sum = 0;
    for (int64_t k = 0; k < K; k++) w[k] = id[k] >= 0 && id[k] < E ? k_rd(e[id[k]] / all, kept) : NAN;
    if (k_moe_renorm(c)) {
        for (int64_t k = 0; k < K; k++) sum += w[k];
        sum = k_rd(sum, kept);
        for (int64_t k = 0; k < K; k++) w[k] = k_rd(w[k] / sum, kept);
    }
    for (int64_t k = 0; k < K; k++) w[k] = k_rd(w[k], act);
}

static void moe_weights_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t E = c->in_cols[0], K = c->cols;
    for (int64_t t = lo; t < hi; t++) {
        const float *logit = c->in[0] + t * E;
        float *w = c->out + t * K;
        if (row_is_finite(logit, E))
            weights_row(c, logit, c->in_i[1] + t * K, w, k_slice(c));
        else
            for (int64_t k = 0; k < K; k++) w[k] = NAN;
    }
}

void moe_weights_cpu(const k_call *c) {
    k_spread(c, c->T, 0, K_PAR_EXP * c->T * c->in_cols[0], moe_weights_rows, NULL);
}

typedef int32_t __attribute__((may_alias)) list_i32;

/* Slots in the order in which they are added: rank order, or ascending id. */
static void slot_order(const int32_t *ids, int64_t K, int32_t combine, list_i32 *order) {
    for (int64_t k = 0; k < K; k++) {
        int64_t i = k;
        if (combine == K_COMBINE_EXPERTS)
            for (; i > 0 && ids[order[i - 1]] > ids[k]; i--) order[i] = order[i - 1];
        order[i] = (int32_t)k;
    }
}

static void moe_routed_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t K = c->in_cols[1], D = c->cols;
    int32_t act = c->lv->act, combine = c->lv->combine, each = k_moe_combine_rd(c->lv);
    for (int64_t t = lo; t < hi; t++) {
        const float *down = c->in[0] + t * K * D, *weight = c->in[1] + t * K;
        float *y = c->out + t * D;
        list_i32 *order = (list_i32 *)k_slice(c);
        slot_order(c->in_i[2] + t * K, K, combine, order);
        for (int64_t i = 0; i < D; i++) y[i] = 0;
        for (int64_t k = 0; k < K; k++) {
            const float *d = down + order[k] * D, w = weight[order[k]];
            for (int64_t i = 0; i < D; i++) y[i] = k_moe_routed1(y[i], d[i], w, act, each);
        }
        for (int64_t i = 0; i < D; i++) y[i] = k_rd(y[i], act);
    }
}

void moe_routed_cpu(const k_call *c) {
    k_spread(c, c->T, 0, c->T * c->in_cols[0], moe_routed_rows, NULL);
}

static void moe_out_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t D = c->cols;
    int32_t act = c->lv->act;
    for (int64_t t = lo; t < hi; t++) {
        const float *routed = c->in[0] + t * D, *shared = c->in[1] + t * D;
        float g = k_moe_sgate1(c->in[2][t], c->lv), *y = c->out + t * D;
        for (int64_t i = 0; i < D; i++) y[i] = k_moe_out1(routed[i], shared[i], g, act);
    }
}

void moe_out_cpu(const k_call *c) {
    k_spread(c, c->T, 0, c->T * c->cols, moe_out_rows, NULL);
}
