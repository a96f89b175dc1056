/* The mixture-of-experts block of tests/t_moe_block.c on a device, op by op from the recorded inputs of each: every
 * output has the host's bits and stands as near to the recorded run as the host's; what ports get wrong first is
 * refused; calls that do not fit are refused before anything is launched; a logit that is no number closes its row and
 * no other. The emulator takes a token or two of each case, and the experts of one token. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "kernels/par.h"
#include "kernels/round.h"
#include "tests/cuda/h_mix.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_table.h"

static const int64_t no_par[K_MAXW];

/* Tokens of a case that are taken. */
static int32_t tokens(const h_moe_case *k) {
    return hm_emulated && k->T > 2 ? 2 : k->T;
}

static float *combined_of(const k_levers *lv, const h_moe_case *k) {
    k_weight g = h_block_weight(&hm_B, H_SHARED_EXPERT_GATE);
    float *sgate = hm_product(lv, &g, k->hidden, tokens(k), K_EPI_NONE),
          *y = hm_out(lv, k->expert_out, k->shared_out, sgate, tokens(k));
    free(sgate);
    return y;
}

/* ---- against the recorded run ---- */

static void router(void **state) {
    h_tally logits = {0}, w = {0}, chain = {0}, chosen = {0};
    k_weight gate = h_block_weight(&hm_B, H_GATE);
    (void)state;
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &hm_B.m.c[c];
        const int32_t T = tokens(k);
        hp_left(k->T - T, "tokens");
        float *y = hm_product(&hm_HF, &gate, k->hidden, T, K_EPI_ROUTER);
        h_steps(&logits, y, k->logits, (int64_t)T * hm_B.m.d.E);
        int32_t *own = hm_ids(&hm_HF, y, T);
        float *on_own = hm_weights(&hm_HF, y, own, T);
        h_steps(&chain, on_own, k->weights, (int64_t)T * hm_B.m.d.K);
        for (int64_t i = 0; i < (int64_t)T * hm_B.m.d.K; i++) chosen.same += own[i] == k->ids[i];
        chosen.n += (int64_t)T * hm_B.m.d.K;
        free(y), free(own), free(on_own);
        for (int tie = 0; tie < 4; tie++) {
            k_levers lv = hm_HF;
            lv.tie = tie;
            int32_t *ids = hm_ids(&lv, k->logits, T);
            for (int64_t i = 0; tie == K_TIE_TORCH && i < (int64_t)T * hm_B.m.d.K; i++)
                assert_int_equal(ids[i], k->ids[i]);
            free(ids);
        }
        y = hm_weights(&hm_HF, k->logits, k->ids, T);
        h_steps(&w, y, k->weights, (int64_t)T * hm_B.m.d.K);
        free(y);
    }
    assert_true(h_row("router logits, bf16 ulp", &logits, 1));
    assert_true(h_row("routing weights on recorded logits and ids, bf16 ulp", &w, 0));
    assert_true(h_row("chain: weights on our own logits, bf16 ulp", &chain, 0));
    chosen.worst = (double)(chosen.n - chosen.same);
    assert_true(h_row("chain: ids on our own logits, in rank order, differing", &chosen, 0));
}

static void shared(void **state) {
    h_tally branch = {0}, sum = {0};
    (void)state;
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &hm_B.m.c[c];
        const int64_t n = (int64_t)tokens(k) * hm_B.m.d.D;
        double *floor;
        float *y = hm_shared(&hm_HF, k->hidden, tokens(k), &floor);
        h_ulps(&branch, y, k->shared_out, floor, n);
        free(y), free(floor);
        y = combined_of(&hm_HF, k);
        h_steps(&sum, y, k->out, n);
        free(y);
    }
    assert_true(h_row("shared branch, share of 1 ulp + 2 2^-7 sqrt(sum (h w)^2)", &branch, 1));
    assert_true(h_row("combine: shared gate and sum on recorded parts, bf16 ulp", &sum, 0));
}

/* What ports get wrong first, through the same calls: refused. */
static void controls(void **state) {
    h_tally renorm = {0}, softmax = {0}, sgate = {0};
    (void)state;
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &hm_B.m.c[c];
        const int32_t T = tokens(k);
        k_levers lv = hm_HF;
        lv.renorm = K_RENORM_OFF;
        float *y = hm_weights(&lv, k->logits, k->ids, T);
        h_steps(&renorm, y, k->weights, (int64_t)T * hm_B.m.d.K);
        free(y);
        lv = hm_HF, lv.softmax = K_SOFTMAX_BF16;
        y = hm_weights(&lv, k->logits, k->ids, T);
        h_steps(&softmax, y, k->weights, (int64_t)T * hm_B.m.d.K);
        free(y);
        lv = hm_HF, lv.sgate = K_SGATE_OFF;
        y = combined_of(&lv, k);
        h_steps(&sgate, y, k->out, (int64_t)T * hm_B.m.d.D);
        free(y);
    }
    h_control("control, weights: moe.renorm=off, bf16 ulp", &renorm, 0, 1);
    h_control("control, weights: moe.softmax=bf16, bf16 ulp", &softmax, 0, 1);
    h_control("control, combine: moe.sgate=off, bf16 ulp", &sgate, 0, 1);
}

/* ---- the experts ---- */

typedef struct {
    int32_t n;    /* experts that any token asked for */
    int32_t *at;  /* [E] an expert's place among them, ascending; -1 */
    k_weight *w;  /* [3][n] gate, up, down rows */
    uint16_t *of; /* their values */
} wanted;

static void make_expert(const wanted *x, int32_t e) {
    const h_moe *m = &hm_B.m;
    const int64_t one = (int64_t)m->d.F * m->d.D;
    uint16_t *const part[] = {x->of, x->of + x->n * one, x->of + 2 * x->n * one};
    for (int p = 0; p < 3; p++) {
        uint16_t *to = part[p] + x->at[e] * one;
        h_moe_make(m, p < 2 ? &m->experts_in : &m->experts_out, p < 2 ? (2 * e + p) * one : e * one, one, to);
        x->w[p * x->n + x->at[e]] = (k_weight){to, p < 2 ? m->d.F : m->d.D, p < 2 ? m->d.D : m->d.F,
                                               2 * (size_t)(p < 2 ? m->d.D : m->d.F), K_T_BF16};
    }
}

static int takes_experts(int c) {
    return !hm_emulated || c == 0;
}
static int32_t expert_tokens(int c) {
    return hm_emulated ? 1 : hm_B.m.c[c].T;
}

static wanted want_experts(void) {
    const k_dims *d = &hm_B.m.d;
    wanted x = {.at = h_need(d->E, sizeof *x.at)};
    for (int32_t e = 0; e < d->E; e++) x.at[e] = -1;
    for (int c = 0; c < H_MOE_CASES; c++)
        for (int32_t i = 0; takes_experts(c) && i < expert_tokens(c) * d->K; i++) x.at[hm_B.m.c[c].ids[i]] = 0;
    for (int32_t e = 0; e < d->E; e++)
        if (x.at[e] == 0) x.at[e] = x.n++;
    x.w = h_need(3 * (int64_t)x.n, sizeof *x.w);
    x.of = h_need(3 * (int64_t)x.n * d->F * d->D, sizeof *x.of);
#pragma omp parallel for schedule(dynamic, 1)
    for (int32_t e = 0; e < d->E; e++)
        if (x.at[e] >= 0) make_expert(&x, e);
    return x;
}

static float *expert(const wanted *x, int part, const float *in, int64_t in_cols, const int32_t *at, int32_t T,
                     int64_t cols, int per) {
    k_call c = h_block_call(&hm_B, &hm_HF, T, cols, NULL);
    c.in[0] = in, c.in_cols[0] = in_cols, c.in_i[1] = at, c.in_cols[1] = hm_B.m.d.K;
    c.w[0] = x->w + (int64_t)part * x->n, c.nw[0] = x->n, c.per = per;
    c.nth = 1;
    return hm_run(K_OP_moe_expert, &c);
}

/* Of one case's outputs: 2 2^-7 sqrt(sum over its slots of weight^2 sum (d a)^2). a [T,K,F]; at: places of experts. */
static double *expert_floor(const wanted *x, const h_moe_case *k, const int32_t *at, const float *a, int32_t T) {
    const int64_t K = hm_B.m.d.K, D = hm_B.m.d.D, F = hm_B.m.d.F;
    double *floor = h_need(T * D, sizeof *floor);
    memset(floor, 0, (size_t)(T * D) * sizeof *floor);
    for (int64_t i = 0; i < T * K; i++) {
        float *q = h_block_squares(&hm_B, x->w[2 * x->n + at[i]].data, D, F, a + i * F, 1);
        for (int64_t o = 0; o < D; o++)
            floor[i / K * D + o] += (double)k->weights[i] * (double)k->weights[i] * (double)q[o];
        free(q);
    }
    for (int64_t i = 0; i < T * D; i++) floor[i] = 2 * 0x1p-7 * sqrt(floor[i]);
    return floor;
}

/* The row sees one value off by twice what it may be, and one that is no number. */
static void twin_experts(float *y, const float *want, const double *floor, int64_t n) {
    const float keep = y[n / 2];
    for (int k = 0; k < 2; k++) {
        h_tally t = {0};
        y[n / 2] = k ? NAN : (float)((double)want[n / 2] + 2 * (h_bf16_ulp(want[n / 2]) + floor[n / 2]));
        h_ulps(&t, y, want, floor, n);
        assert_false(t.worst <= 1);
    }
    y[n / 2] = keep;
}

static void experts(void **state) {
    const k_dims *d = &hm_B.m.d;
    wanted x = want_experts();
    (void)state;
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &hm_B.m.c[c];
        const int32_t T = takes_experts(c) ? expert_tokens(c) : 0, K = d->K;
        hp_left(k->T - T, "tokens");
        if (!T) continue;
        int32_t *at = h_need((int64_t)T * K, sizeof *at);
        for (int64_t i = 0; i < (int64_t)T * K; i++) at[i] = x.at[k->ids[i]];
        float *g = expert(&x, 0, k->hidden, d->D, at, T, (int64_t)K * d->F, 0),
              *u = expert(&x, 1, k->hidden, d->D, at, T, (int64_t)K * d->F, 0),
              *a = hm_swiglu(&hm_HF, g, u, T, (int64_t)K * d->F),
              *down = expert(&x, 2, a, (int64_t)K * d->F, at, T, (int64_t)K * d->D, 1);
        double *floor = expert_floor(&x, k, at, a, T);
        h_tally t = {0};
        char what[96];
        for (int order = 0; order < 2; order++) {
            k_levers lv = hm_HF;
            lv.combine = order ? K_COMBINE_SLOTS : K_COMBINE_EXPERTS;
            float *y = hm_routed(&lv, down, k->weights, at, T);
            if (!order) h_ulps(&t, y, k->expert_out, floor, (int64_t)T * d->D);
            if (!order) twin_experts(y, k->expert_out, floor, (int64_t)T * d->D);
            free(y);
        }
        snprintf(what, sizeof what, "experts, case %d, share of 1 ulp + 2 2^-7 sqrt(sum w^2 (a d)^2)", c);
        assert_true(h_row(what, &t, 1));
        snprintf(what, sizeof what, "experts, case %d, %d tokens: values equal to the recorded, per cent", c, T);
        const double share = 100.0 * (double)t.same / (double)t.n;
        h_say(what, t.n, t.same, share, 100, 0);
        assert_true(share > 98); /* t_moe_block.c says why not all are */
        free(g), free(u), free(a), free(down), free(at), free(floor);
    }
    print_message("%d experts\n", x.n);
    free(x.at), free(x.w), free(x.of);
}

/* ---- a logit that is no number ---- */

static void fails_closed(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const h_moe_case *k = &hm_B.m.c[3];
    const int32_t T = tokens(k), K = hm_B.m.d.K, E = hm_B.m.d.E, D = hm_B.m.d.D;
    float *logits = h_need((int64_t)T * E, sizeof *logits),
          *down = calloc((size_t)T * (size_t)K * (size_t)D, sizeof *down);
    (void)state;
    assert_non_null(down);
    for (int b = 0; b < 3; b++)
        for (int r = 0; r < T; r += hm_emulated ? 1 : 5) {
            memcpy(logits, k->logits, (size_t)T * (size_t)E * sizeof *logits);
            int32_t *was = hm_ids(&hm_HF, logits, T);
            float *w_was = hm_weights(&hm_HF, logits, was, T);
            logits[r * E + (r % 2 ? was[r * K + 3] : E - 1 - r)] = bad[b];
            int32_t *id = hm_ids(&hm_HF, logits, T);
            float *w = hm_weights(&hm_HF, logits, id, T), *on_old = hm_weights(&hm_HF, logits, was, T),
                  *y = hm_routed(&hm_HF, down, w, id, T);
            for (int32_t i = 0; i < T * K; i++) {
                const int mine = i / K == r;
                assert_int_equal(id[i], mine ? -1 : was[i]);
                assert_int_equal(isnan(w[i]), mine);
                assert_int_equal(isnan(on_old[i]), mine);
                if (!mine) assert_int_equal(k_f32_bits(w[i]), k_f32_bits(w_was[i]));
            }
            for (int64_t i = 0; i < (int64_t)T * D; i++) assert_int_equal(isnan(y[i]), i / D == r);
            free(was), free(w_was), free(id), free(w), free(on_old), free(y);
        }
    free(logits), free(down);
}

/* ---- calls that do not fit ---- */

static float some[16];
static k_weight one_expert = {some, 4, 8, 32, K_T_F32};
static k_dims small = {.E = 8, .K = 2, .D = 4};

/* A call of two tokens that fits; nothing is read of it. */
static k_call fitting(k_op op) {
    k_call c = {
        .T = 2, .Tcall = 2, .Tc = 2, .cols = 2, .out = some, .d = &small, .lv = &hm_HF, .scratch = some, .nth = 1};
    c.scratch_n = 1000;
    for (int i = 0; i < 3; i++) c.in[i] = some;
    c.w[0] = c.w_dev[0] = &one_expert, c.nw[0] = 1;
    if (op == K_OP_moe_ids) c.in_cols[0] = 8;
    if (op == K_OP_moe_weights) c.in_cols[0] = 8, c.in_cols[1] = 2;
    if (op == K_OP_moe_expert) c.in_cols[0] = 8, c.in_cols[1] = 2, c.cols = 8;
    if (op == K_OP_moe_routed) c.in_cols[0] = 8, c.in_cols[1] = c.in_cols[2] = 2, c.cols = 4;
    if (op == K_OP_moe_out) c.in_cols[0] = c.in_cols[1] = 4, c.in_cols[2] = 1, c.cols = 4;
    return c;
}

/* Spoil the call in the way `how`; 0: this op has no such way. */
static int spoil(k_op op, int how, k_call *c, k_levers *lv, k_dims *d, k_weight *w) {
    const int expert_only = op == K_OP_moe_expert, chooses = op == K_OP_moe_ids || op == K_OP_moe_weights;
    c->lv = lv, c->d = d, c->w[0] = w;
    switch (how) {
    case 0: c->T = -1; return 1;
    case 1: c->cols = -4; return 1;
    case 2: c->in_cols[0]++; return 1;
    case 3: c->in_cols[1]--; return op != K_OP_moe_ids;
    case 4: c->in_cols[2]++; return op == K_OP_moe_routed || op == K_OP_moe_out;
    case 5: c->in[0] = NULL; return 1;
    case 6: c->in[1] = NULL; return op != K_OP_moe_ids;
    case 7: c->in[2] = NULL; return op == K_OP_moe_routed || op == K_OP_moe_out;
    case 8: c->out = NULL; return 1;
    case 9: c->d = NULL; return 1;
    case 10: c->lv = NULL; return 1;
    case 11: lv->tie = 4; return 1;
    case 12: lv->renorm = -1; return 1;
    case 13: lv->act = 2; return 1;
    case 14: d->E = chooses ? 1 : d->E; return chooses;
    case 15: c->scratch_n = 3; return op == K_OP_moe_ids || expert_only;
    case 16: c->scratch = NULL; return op == K_OP_moe_ids || expert_only;
    case 17: c->nw[0] = 0; return expert_only;
    case 18: c->w[0] = NULL; return expert_only;
    case 19: c->w_dev[0] = NULL; return expert_only;
    case 20: w->data = NULL; return expert_only;
    case 21: w->rows++; return expert_only;
    case 22: w->cols--; return expert_only;
    case 23: w->type = -1; return expert_only;
    case 24: c->per = 2; return expert_only;
    case 25: c->in_cols[1] = 0; return expert_only;
    case 26: c->in_cols[3] = -1; return 1;
    default: return -1;
    }
}

static void unfit(void **state) {
    static const k_op ops[] = {K_OP_moe_ids, K_OP_moe_weights, K_OP_moe_expert, K_OP_moe_routed, K_OP_moe_out};
    int refused = 0;
    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        k_call c = fitting(ops[i]);
        if (k_dev_unfit(ops[i], &c)) fail_msg("%s: %s", k_ops[ops[i]].name, k_dev_unfit(ops[i], &c)); /* the twin */
        for (int how = 0, is;
             (is = spoil(ops[i], how, &(k_call){0}, &(k_levers){0}, &(k_dims){0}, &(k_weight){0})) >= 0; how++) {
            k_levers lv = hm_HF;
            k_dims d = small;
            k_weight w = one_expert;
            c = fitting(ops[i]);
            if (!spoil(ops[i], how, &c, &lv, &d, &w)) continue;
            if (!k_dev_unfit(ops[i], &c)) fail_msg("%s: way %d was accepted", k_ops[ops[i]].name, how);
            assert_int_equal(k_dev_run(hm_dev, ops[i], &c), 1); /* and these pointers were never followed */
            refused++;
        }
        /* nothing to do: no operand is asked for */
        for (int empty = 0; empty < 2; empty++) {
            c = (k_call){.T = empty ? 2 : 0, .cols = empty ? 0 : 2, .d = &small, .lv = &hm_HF};
            assert_null(k_dev_unfit(ops[i], &c));
            assert_int_equal(k_dev_run(hm_dev, ops[i], &c), 0);
        }
    }
    assert_int_equal(k_dev_wait(hm_dev), 0);
    print_message("%d calls refused\n", refused);
}

/* A bit of an input moved for the host alone is seen. */
static void twin(void **state) {
    const h_moe_case *k = &hm_B.m.c[0];
    float *x = h_need(hm_B.m.d.E, sizeof *x);
    k_call c = h_block_call(&hm_B, &hm_HF, 1, hm_B.m.d.K, NULL);
    (void)state;
    memcpy(x, k->logits, (size_t)hm_B.m.d.E * sizeof *x);
    c.in[0] = x, c.in_cols[0] = hm_B.m.d.E, c.in_i[1] = k->ids, c.in_cols[1] = hm_B.m.d.K;
    hp_flip(k->ids[0], 1u << 20);
    assert_true(hp_differ("twin", K_OP_moe_weights, &c, no_par) > 0);
    hp_flip(0, 0);
    free(x);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router),       cmocka_unit_test(shared), cmocka_unit_test(controls), cmocka_unit_test(experts),
        cmocka_unit_test(fails_closed), cmocka_unit_test(unfit),  cmocka_unit_test(twin)};
    return cmocka_run_group_tests_name("moe_block", tests, hm_open, hm_close);
}
