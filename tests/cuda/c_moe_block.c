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
#include "lib/io.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_block.h"
#include "tests/h_table.h"

#define FIXTURE "tests/golden/moe-block"

static const k_levers HF = {.act = K_ACT_BF16, .tie = K_TIE_TORCH, .combine = K_COMBINE_EXPERTS};
static const int64_t no_par[K_MAXW];

static q4x_map file = {.fd = -1};
static h_block B;
static int emulated;
static int64_t compared;
static k_dev *dev;

static int open_block(void **state) {
    q4x_map config = {.fd = -1};
    q4x_err err = {0};
    (void)state;
    dev = hp_device(&emulated);
    if (q4x_map_open(FIXTURE "/frozen_config.json", &config, &err) ||
        q4x_map_open(FIXTURE "/moe-golden.safetensors", &file, &err) ||
        h_block_open(config.data, config.size, file.data, file.size, &B, &err)) {
        print_error("%s\n", err.msg);
        return -1;
    }
    q4x_map_close(&config);
    return 0;
}

static int close_block(void **state) {
    (void)state;
    h_table();
    print_message("%lld values compared with the host by bits\n", (long long)compared);
    h_block_close(&B);
    q4x_map_close(&file);
    hp_close();
    return 0;
}

/* Tokens of a case that are taken. */
static int32_t tokens(const h_moe_case *k) {
    return emulated && k->T > 2 ? 2 : k->T;
}

static int64_t unequal(const float *a, const float *b, int64_t n) {
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) bad += !(isnan(a[i]) && isnan(b[i])) && k_f32_bits(a[i]) != k_f32_bits(b[i]);
    return bad;
}

/* What the device makes of the call, malloc'd; the host must make the same. */
static void *both(k_op op, k_call *c) {
    const int64_t n = (int64_t)c->T * c->cols;
    float *got = h_need(n, sizeof *got), *host = h_need(n, sizeof *host);
    int64_t rows;
    int code = hp_run(k_ops[op].name, op, c, no_par, got, NULL, &rows);
    if (code) fail_msg("%s: %s", k_ops[op].name, k_dev_text(code));
    c->out = host;
    k_ops[op].cpu(c);
    const int64_t bad = unequal(got, host, n);
    if (bad) fail_msg("%s, T=%d: %lld of %lld differ", k_ops[op].name, c->T, (long long)bad, (long long)n);
    compared += n;
    free(host);
    return got;
}

/* ---- the ops ---- */

static float *product(const k_levers *lv, const k_weight *w, const float *x, int32_t T, int32_t epi) {
    k_call c = h_block_call(&B, lv, T, w->rows, NULL);
    c.in[0] = x, c.in_cols[0] = w->cols, c.w[0] = w, c.nw[0] = 1, c.epi = epi;
    return both(K_OP_matmul, &c);
}

static float *swiglu(const k_levers *lv, const float *g, const float *u, int32_t T, int64_t cols) {
    k_call c = h_block_call(&B, lv, T, cols, NULL);
    c.in[0] = g, c.in[1] = u, c.in_cols[0] = c.in_cols[1] = cols;
    return both(K_OP_swiglu, &c);
}

static int32_t *ids_of(const k_levers *lv, const float *logits, int32_t T) {
    k_call c = h_block_call(&B, lv, T, B.m.d.K, NULL);
    c.in[0] = logits, c.in_cols[0] = B.m.d.E;
    return both(K_OP_moe_ids, &c);
}

static float *weights_of(const k_levers *lv, const float *logits, const int32_t *ids, int32_t T) {
    k_call c = h_block_call(&B, lv, T, B.m.d.K, NULL);
    c.in[0] = logits, c.in_cols[0] = B.m.d.E, c.in_i[1] = ids, c.in_cols[1] = B.m.d.K;
    return both(K_OP_moe_weights, &c);
}

static float *routed_of(const k_levers *lv, const float *down, const float *w, const int32_t *ids, int32_t T) {
    k_call c = h_block_call(&B, lv, T, B.m.d.D, NULL);
    c.in[0] = down, c.in_cols[0] = (int64_t)B.m.d.K * B.m.d.D;
    c.in[1] = w, c.in_i[2] = ids, c.in_cols[1] = c.in_cols[2] = B.m.d.K;
    return both(K_OP_moe_routed, &c);
}

static float *combined_of(const k_levers *lv, const h_moe_case *k) {
    k_weight g = h_block_weight(&B, H_SHARED_EXPERT_GATE);
    float *sgate = product(lv, &g, k->hidden, tokens(k), K_EPI_NONE);
    k_call c = h_block_call(&B, lv, tokens(k), B.m.d.D, NULL);
    c.in[0] = k->expert_out, c.in[1] = k->shared_out, c.in[2] = sgate;
    c.in_cols[0] = c.in_cols[1] = B.m.d.D, c.in_cols[2] = 1;
    float *y = both(K_OP_moe_out, &c);
    free(sgate);
    return y;
}

/* ---- against the recorded run ---- */

static void router(void **state) {
    h_tally logits = {0}, w = {0};
    k_weight gate = h_block_weight(&B, H_GATE);
    (void)state;
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &B.m.c[c];
        const int32_t T = tokens(k);
        float *y = product(&HF, &gate, k->hidden, T, K_EPI_ROUTER);
        h_steps(&logits, y, k->logits, (int64_t)T * B.m.d.E);
        free(y);
        for (int tie = 0; tie < 4; tie++) {
            k_levers lv = HF;
            lv.tie = tie;
            int32_t *ids = ids_of(&lv, k->logits, T);
            for (int64_t i = 0; tie == K_TIE_TORCH && i < (int64_t)T * B.m.d.K; i++)
                assert_int_equal(ids[i], k->ids[i]);
            free(ids);
        }
        y = weights_of(&HF, k->logits, k->ids, T);
        h_steps(&w, y, k->weights, (int64_t)T * B.m.d.K);
        free(y);
    }
    assert_true(h_row("router logits, bf16 ulp", &logits, 1));
    assert_true(h_row("routing weights on recorded logits and ids, bf16 ulp", &w, 0));
}

static void shared(void **state) {
    k_weight g = h_block_weight(&B, H_SHARED_GATE), u = h_block_weight(&B, H_SHARED_UP),
             down = h_block_weight(&B, H_SHARED_DOWN);
    h_tally t = {0};
    (void)state;
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &B.m.c[c];
        const int32_t T = tokens(k);
        float *yg = product(&HF, &g, k->hidden, T, K_EPI_NONE), *yu = product(&HF, &u, k->hidden, T, K_EPI_NONE),
              *h = swiglu(&HF, yg, yu, T, B.m.d.Fs), *y = product(&HF, &down, h, T, K_EPI_NONE);
        free(yg), free(yu), free(h), free(y);
        y = combined_of(&HF, k);
        h_steps(&t, y, k->out, (int64_t)T * B.m.d.D);
        free(y);
    }
    assert_true(h_row("combine: shared gate and sum on recorded parts, bf16 ulp", &t, 0));
}

/* What ports get wrong first, through the same calls: refused. */
static void controls(void **state) {
    h_tally renorm = {0}, softmax = {0}, sgate = {0};
    (void)state;
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &B.m.c[c];
        const int32_t T = tokens(k);
        k_levers lv = HF;
        lv.renorm = K_RENORM_OFF;
        float *y = weights_of(&lv, k->logits, k->ids, T);
        h_steps(&renorm, y, k->weights, (int64_t)T * B.m.d.K);
        free(y);
        lv = HF, lv.softmax = K_SOFTMAX_BF16;
        y = weights_of(&lv, k->logits, k->ids, T);
        h_steps(&softmax, y, k->weights, (int64_t)T * B.m.d.K);
        free(y);
        lv = HF, lv.sgate = K_SGATE_OFF;
        y = combined_of(&lv, k);
        h_steps(&sgate, y, k->out, (int64_t)T * B.m.d.D);
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
    const h_moe *m = &B.m;
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
    return !emulated || c == 0;
}
static int32_t expert_tokens(int c) {
    return emulated ? 1 : B.m.c[c].T;
}

static wanted want_experts(void) {
    const k_dims *d = &B.m.d;
    wanted x = {.at = h_need(d->E, sizeof *x.at)};
    for (int32_t e = 0; e < d->E; e++) x.at[e] = -1;
    for (int c = 0; c < H_MOE_CASES; c++)
        for (int32_t i = 0; takes_experts(c) && i < expert_tokens(c) * d->K; i++) x.at[B.m.c[c].ids[i]] = 0;
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
    k_call c = h_block_call(&B, &HF, T, cols, NULL);
    c.in[0] = in, c.in_cols[0] = in_cols, c.in_i[1] = at, c.in_cols[1] = B.m.d.K;
    c.w[0] = x->w + (int64_t)part * x->n, c.nw[0] = x->n, c.per = per;
    c.nth = 1;
    return both(K_OP_moe_expert, &c);
}

static void experts(void **state) {
    const k_dims *d = &B.m.d;
    wanted x = want_experts();
    (void)state;
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &B.m.c[c];
        if (!takes_experts(c)) continue;
        const int32_t T = expert_tokens(c), K = d->K;
        int32_t *at = h_need((int64_t)T * K, sizeof *at);
        for (int64_t i = 0; i < (int64_t)T * K; i++) at[i] = x.at[k->ids[i]];
        float *g = expert(&x, 0, k->hidden, d->D, at, T, (int64_t)K * d->F, 0),
              *u = expert(&x, 1, k->hidden, d->D, at, T, (int64_t)K * d->F, 0),
              *a = swiglu(&HF, g, u, T, (int64_t)K * d->F),
              *down = expert(&x, 2, a, (int64_t)K * d->F, at, T, (int64_t)K * d->D, 1);
        h_tally t = {0};
        char what[80];
        for (int order = 0; order < 2; order++) {
            k_levers lv = HF;
            lv.combine = order ? K_COMBINE_SLOTS : K_COMBINE_EXPERTS;
            float *y = routed_of(&lv, down, k->weights, at, T);
            if (!order) h_ulps(&t, y, k->expert_out, NULL, (int64_t)T * d->D);
            free(y);
        }
        snprintf(what, sizeof what, "experts, case %d, %d tokens: values equal to the recorded, per cent", c, T);
        const double share = 100.0 * (double)t.same / (double)t.n;
        h_say(what, t.n, t.same, share, 100, 0);
        assert_true(share > 98); /* t_moe_block.c says why not all are */
        free(g), free(u), free(a), free(down), free(at);
    }
    print_message("%d experts\n", x.n);
    free(x.at), free(x.w), free(x.of);
}

/* ---- a logit that is no number ---- */

static void fails_closed(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const h_moe_case *k = &B.m.c[3];
    const int32_t T = tokens(k), K = B.m.d.K, E = B.m.d.E, D = B.m.d.D;
    float *logits = h_need((int64_t)T * E, sizeof *logits),
          *down = calloc((size_t)T * (size_t)K * (size_t)D, sizeof *down);
    (void)state;
    assert_non_null(down);
    for (int b = 0; b < 3; b++)
        for (int r = 0; r < T; r += emulated ? 1 : 5) {
            memcpy(logits, k->logits, (size_t)T * (size_t)E * sizeof *logits);
            int32_t *was = ids_of(&HF, logits, T);
            float *w_was = weights_of(&HF, logits, was, T);
            logits[r * E + (r % 2 ? was[r * K + 3] : E - 1 - r)] = bad[b];
            int32_t *id = ids_of(&HF, logits, T);
            float *w = weights_of(&HF, logits, id, T), *on_old = weights_of(&HF, logits, was, T),
                  *y = routed_of(&HF, down, w, id, T);
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
    k_call c = {.T = 2, .Tcall = 2, .Tc = 2, .cols = 2, .out = some, .d = &small, .lv = &HF, .scratch = some, .nth = 1};
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
            k_levers lv = HF;
            k_dims d = small;
            k_weight w = one_expert;
            c = fitting(ops[i]);
            if (!spoil(ops[i], how, &c, &lv, &d, &w)) continue;
            if (!k_dev_unfit(ops[i], &c)) fail_msg("%s: way %d was accepted", k_ops[ops[i]].name, how);
            assert_int_equal(k_dev_run(dev, ops[i], &c), 1); /* and these pointers were never followed */
            refused++;
        }
        /* nothing to do: no operand is asked for */
        for (int empty = 0; empty < 2; empty++) {
            c = (k_call){.T = empty ? 2 : 0, .cols = empty ? 0 : 2, .d = &small, .lv = &HF};
            assert_null(k_dev_unfit(ops[i], &c));
            assert_int_equal(k_dev_run(dev, ops[i], &c), 0);
        }
    }
    assert_int_equal(k_dev_wait(dev), 0);
    print_message("%d calls refused\n", refused);
}

/* A bit of an input moved for the host alone is seen. */
static void twin(void **state) {
    const h_moe_case *k = &B.m.c[0];
    float *x = h_need(B.m.d.E, sizeof *x);
    k_call c = h_block_call(&B, &HF, 1, B.m.d.K, NULL);
    (void)state;
    memcpy(x, k->logits, (size_t)B.m.d.E * sizeof *x);
    c.in[0] = x, c.in_cols[0] = B.m.d.E, c.in_i[1] = k->ids, c.in_cols[1] = B.m.d.K;
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
    return cmocka_run_group_tests_name("moe_block", tests, open_block, close_block);
}
