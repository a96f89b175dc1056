/* t_moe_block.c: one mixture-of-experts block at the released geometry against its recorded run, op by op from the
 * recorded inputs of each, through the table of ops that the forward uses. About a gigaweight of experts is generated,
 * one expert at a time. Every comparison has controls that it must refuse; the table at the end says by how much.
 * Who made the recorded run is asserted when it is opened (t_moe_file.c proves that).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/round.h"
#include "lib/io.h"
#include "lib/machine.h"
#include "tests/h_block.h"
#include "tests/h_choice.h"
#include "tests/h_sanitizer.h"
#include "tests/h_table.h"

#define FIXTURE "tests/golden/moe-block"

/* As the run was made: transformers, eager experts, a bf16 model, torch's order among equal scores. */
static const k_levers HF = {.act = K_ACT_BF16, .tie = K_TIE_TORCH, .combine = K_COMBINE_EXPERTS};

static q4x_map FILE_ = {.fd = -1};

/* ---- distances ---- */

/* Twin of the distances: known ones, and what is no number never passes. */
static void distances(void **state) {
    (void)state;
    static const float one[] = {1.0f, -0.99609375f, 0x1p-130f, 0.0f},
                       off[] = {1.0078125f, -1.0f, 0x1.8p-130f, 0x1p-133f};
    static const double wide[] = {0x1p-7, 0, 0, 0};
    assert_true(h_bf16_ulp(1.0f) == 0x1p-7 && h_bf16_ulp(-0.99609375f) == 0x1p-8 && h_bf16_ulp(2.0f) == 0x1p-6 &&
                h_bf16_ulp(0x1p-130f) == 0x1p-133);
    for (int i = 0; i < 4; i++) {
        h_tally u = {0}, s = {0}, w = {0};
        h_ulps(&u, &off[i], &one[i], NULL, 1);
        h_steps(&s, &off[i], &one[i], 1);
        assert_true(u.worst == (i == 2 ? 4 : 1) && s.worst == (i == 2 ? 4 : 1) && !u.same && !s.same);
        h_ulps(&w, &off[i], &one[i], &wide[i], 1);
        assert_true(w.worst == (i == 0 ? 0.5 : u.worst));
    }
    static const float odd[] = {NAN, INFINITY, -0.0f}, want[] = {1.0f, 1.0f, 0.0f};
    for (int i = 0; i < 3; i++) {
        h_tally u = {0}, s = {0};
        h_ulps(&u, &odd[i], &want[i], NULL, 1);
        h_steps(&s, &odd[i], &want[i], 1);
        assert_true(i == 2 ? s.worst == 0.5 : u.worst > 1e9 && s.worst > 1e3);
    }
}

/* ---- the block ---- */

static h_block B;
static const h_moe *const M = &B.m;
static double T0;

static int open_block(void **state) {
    (void)state;
    q4x_map config = {.fd = -1};
    q4x_err err = {0};
    T0 = q4x_machine_now();
    if (q4x_map_open(FIXTURE "/frozen_config.json", &config, &err) ||
        q4x_map_open(FIXTURE "/moe-golden.safetensors", &FILE_, &err) ||
        h_block_open(config.data, config.size, FILE_.data, FILE_.size, &B, &err)) {
        print_error("%s\n", err.msg);
        return -1;
    }
    h_say("opened: sha256 of the config, geometry, the formula's tensors", 1, -1, 0, 0, 0);
    q4x_map_close(&config);
    return 0;
}

static int close_block(void **state) {
    (void)state;
    h_table();
    print_message("%.1f s on %d threads, at most %.0f MB resident\n", q4x_machine_now() - T0, B.nth,
                  (double)q4x_machine_resident_peak() * 1e-6);
    h_block_close(&B);
    q4x_map_close(&FILE_);
    return 0;
}

/* ---- router, routing ---- */

static float *router(const k_levers *lv, const h_moe_case *k) {
    k_weight gate = h_block_weight(&B, H_GATE);
    return h_block_product(&B, lv, &gate, k->hidden, k->T, K_EPI_ROUTER);
}

static void router_logits(void **state) {
    (void)state;
    h_tally t = {0};
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &M->c[c];
        float *y = router(&HF, k);
        for (int64_t i = 0; i < k->T * M->d.E; i++) assert_true(k_round_bf16(y[i]) == y[i]);
        h_steps(&t, y, k->logits, k->T * M->d.E);
        free(y);
    }
    assert_true(h_row("router logits, bf16 ulp", &t, 1));
}

/* Token t of a case with these ids, weights and probabilities for it, and the recorded ids' probabilities. */
static h_choice choice_of(const h_moe_case *k, int64_t t, const int32_t *id, const float *w, const float *p,
                          const float *p_want) {
    int64_t K = M->d.K, E = M->d.E;
    return (h_choice){.K = M->d.K,
                      .E = M->d.E,
                      .id = id + t * K,
                      .want = k->ids + t * K,
                      .logit = k->logits + t * E,
                      .p = p + t * K,
                      .p_want = p_want + t * K,
                      .w = w + t * K,
                      .w_want = k->weights + t * K};
}

/* Probabilities as they are before they are divided by their sum. */
static float *probabilities(const h_moe_case *k, const int32_t *ids) {
    static const k_levers plain = {.renorm = K_RENORM_OFF};
    return h_block_weights(&B, &plain, k->logits, ids, k->T);
}

/* Rows whose sets differ from the recorded ones, and are matched; -1: one is not (its reason in why). */
static int matched_sets(const k_levers *lv, int *tied_rows, h_tally *weights, const char **why) {
    int differ = 0;
    *tied_rows = 0;
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &M->c[c];
        int32_t *ids = h_block_ids(&B, lv, k->logits, k->T);
        float *w = h_block_weights(&B, lv, k->logits, ids, k->T), *p = probabilities(k, ids),
              *pw = probabilities(k, k->ids);
        h_steps(weights, w, k->weights, k->T * M->d.K);
        for (int t = 0; t < k->T && differ >= 0; t++) {
            h_choice s = choice_of(k, t, ids, w, p, pw);
            int subs, tied;
            *why = h_choice_matched(&s, &subs, &tied);
            *tied_rows += tied;
            differ = *why ? -1 : differ + (subs > 0);
        }
        free(ids);
        free(w);
        free(p);
        free(pw);
    }
    return differ;
}

static int64_t rows_of_all(void) {
    int64_t n = 0;
    for (int c = 0; c < H_MOE_CASES; c++) n += M->c[c].T;
    return n;
}

static void routing(void **state) {
    (void)state;
    static const char *const rule[] = {"lowest", "highest", "torch", "stl"};
    h_tally stored_ids = {0};
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &M->c[c];
        float *w = h_block_weights(&B, &HF, k->logits, k->ids, k->T);
        h_steps(&stored_ids, w, k->weights, k->T * M->d.K);
        int32_t *ids = h_block_ids(&B, &HF, k->logits, k->T);
        for (int i = 0; i < k->T * M->d.K; i++) assert_int_equal(ids[i], k->ids[i]);
        free(w);
        free(ids);
    }
    assert_true(h_row("routing weights on recorded logits and ids, bf16 ulp", &stored_ids, 0));
    h_say("ids on recorded logits, topk.tie=torch, in rank order", stored_ids.n, stored_ids.n, 0, 0, 0);
    for (int tie = 0; tie < 4; tie++) {
        k_levers lv = HF;
        h_tally w = {0};
        const char *why = NULL;
        char what[80];
        int tied;
        lv.tie = tie;
        int differ = matched_sets(&lv, &tied, &w, &why);
        if (differ < 0) fail_msg("topk.tie=%s: %s", rule[tie], why);
        snprintf(what, sizeof what, "sets, topk.tie=%s: %d of %d substituted, %d tied at the cut", rule[tie], differ,
                 (int)rows_of_all(), tied);
        assert_true(h_row(what, &w, 0)); /* by rank: equal probabilities, equal weights */
        assert_true(tied > 0 && differ <= tied && (tie != K_TIE_TORCH || differ == 0));
    }
}

/* Twins of h_choice_matched: every way in which a selection can be wrong is seen. */
static void set_twins(void **state) {
    (void)state;
    const h_moe_case *k = &M->c[0];
    int32_t K = M->d.K, E = M->d.E, id[64], worst = 0;
    float *p = probabilities(k, k->ids), w[64];
    h_choice s = choice_of(k, 0, k->ids, k->weights, p, p);
    int subs, tied;
    assert_null(h_choice_matched(&s, &subs, &tied));
    for (int e = 0; e < E; e++)
        if (s.logit[e] < s.logit[worst]) worst = e;
    int a = 0; /* two neighbours in rank that are not equal */
    while (a < K - 2 && s.logit[s.want[a]] == s.logit[s.want[a + 1]]) a++;
    s.id = id, s.w = w;
    for (int twin = 0; twin < 6; twin++) {
        memcpy(id, s.want, sizeof *id * (size_t)K);
        memcpy(w, s.w_want, sizeof *w * (size_t)K);
        if (twin == 0) id[a] = s.want[a + 1], id[a + 1] = s.want[a];
        if (twin == 1) id[3] = id[2];
        if (twin == 2) id[K - 1] = worst;
        if (twin == 3) id[1] = E;
        if (twin == 4) w[a] = s.w_want[a + 1];
        if (twin == 5) id[0] = -1;
        if (!h_choice_matched(&s, &subs, &tied)) fail_msg("wrong selection %d was accepted", twin);
    }
    float *q = h_need(K, sizeof(float));
    memcpy(q, p, sizeof *q * (size_t)K);
    memcpy(id, s.want, sizeof *id * (size_t)K);
    memcpy(w, s.w_want, sizeof *w * (size_t)K);
    q[4] = k_bits_f32(k_f32_bits(q[4]) + 1);
    s.p = q;
    assert_string_equal(h_choice_matched(&s, &subs, &tied), "another sequence of probabilities");
    free(p);
    free(q);
}

/* From the recorded input through our logits to ids and weights. */
static void chain(const k_levers *lv, h_tally *w, h_tally *ids) {
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &M->c[c];
        float *y = router(lv, k);
        int32_t *id = h_block_ids(&B, lv, y, k->T);
        float *got = h_block_weights(&B, lv, y, id, k->T);
        h_steps(w, got, k->weights, k->T * M->d.K);
        for (int i = 0; i < k->T * M->d.K; i++) ids->same += id[i] == k->ids[i];
        ids->n += k->T * M->d.K;
        free(y);
        free(id);
        free(got);
    }
    ids->worst = (double)(ids->n - ids->same);
}

static void router_to_routing(void **state) {
    (void)state;
    h_tally w = {0}, ids = {0};
    chain(&HF, &w, &ids);
    h_row("chain: weights on our own logits, bf16 ulp", &w, 0);
    h_row("chain: ids on our own logits, in rank order, differing", &ids, 0);
    assert_true(w.worst == 0 && ids.worst == 0);
}

/* ---- the shared expert, the sum ---- */

static void shared_branch(const k_levers *lv, h_tally *t) {
    const k_dims *d = &M->d;
    k_weight g = h_block_weight(&B, H_SHARED_GATE), u = h_block_weight(&B, H_SHARED_UP),
             down = h_block_weight(&B, H_SHARED_DOWN);
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &M->c[c];
        int64_t n = k->T * d->D;
        float *yg = h_block_product(&B, lv, &g, k->hidden, k->T, K_EPI_NONE),
              *yu = h_block_product(&B, lv, &u, k->hidden, k->T, K_EPI_NONE);
        float *h = h_block_swiglu(&B, lv, yg, yu, k->T * d->Fs),
              *y = h_block_product(&B, lv, &down, h, k->T, K_EPI_NONE);
        float *q = h_block_squares(&B, M->made[H_SHARED_DOWN], d->D, d->Fs, h, k->T);
        double *floor = h_need(n, sizeof *floor);
        for (int64_t i = 0; i < n; i++) floor[i] = 2 * 0x1p-7 * sqrt((double)q[i]);
        h_ulps(t, y, k->shared_out, floor, n);
        float *const owned[] = {yg, yu, h, y, q};
        for (int i = 0; i < 5; i++) free(owned[i]);
        free(floor);
    }
}

static void shared(void **state) {
    (void)state;
    h_tally t = {0};
    shared_branch(&HF, &t);
    assert_true(h_row("shared branch, 1 ulp + 2 2^-7 sqrt(sum (h w)^2)", &t, 1));
}

static void combined(const k_levers *lv, h_tally *t) {
    k_weight g = h_block_weight(&B, H_SHARED_EXPERT_GATE);
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &M->c[c];
        float *sgate = h_block_product(&B, lv, &g, k->hidden, k->T, K_EPI_NONE),
              *y = h_need(k->T * M->d.D, sizeof(float));
        k_call o = h_block_call(&B, lv, k->T, M->d.D, y);
        o.in[0] = k->expert_out, o.in[1] = k->shared_out, o.in[2] = sgate;
        o.in_cols[0] = o.in_cols[1] = M->d.D, o.in_cols[2] = 1;
        k_ops[K_OP_moe_out].cpu(&o);
        h_steps(t, y, k->out, k->T * M->d.D);
        free(sgate);
        free(y);
    }
}

static void combine(void **state) {
    (void)state;
    h_tally t = {0};
    combined(&HF, &t);
    assert_true(h_row("combine: shared gate and sum on recorded parts, bf16 ulp", &t, 0));
}

/* ---- the routed experts ---- */

/* One case's expert_out from its slots' parts. */
static void compare_experts(const k_levers *lv, const h_slots *s, int c, int way, h_tally *t) {
    const k_dims *d = &M->d;
    const h_moe_case *k = &M->c[c];
    int64_t D = d->D, first = s->first[c] * D, n = k->T * D;
    double *floor = h_need(n, sizeof *floor);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int j = 0; j < d->K; j++) {
            int64_t at = i / D * d->K + j;
            sum += pow((double)k->weights[at], 2) * (double)s->q[first + at * D + i % D];
        }
        floor[i] = 2 * 0x1p-7 * sqrt(sum);
    }
    float *y = h_block_routed(&B, lv, k, s->down[way] + first);
    h_ulps(t, y, k->expert_out, floor, n);
    free(y);
    free(floor);
}

static double differing(const h_tally *t) {
    return 100.0 * (double)(t->n - t->same) / (double)t->n;
}

static void experts(void **state) {
    (void)state;
    char what[96];
    h_tally all = {0}, gelu = {0}, slot_order = {0};
    k_levers slotwise = HF;
    slotwise.combine = K_COMBINE_SLOTS;
    double t0 = q4x_machine_now();
    h_slots s = h_slots_new(&B, &HF);
    print_message("%d experts, %.2f gigaweights: made and used in %.1f s\n", s.nexperts,
                  s.nexperts * 3e-9 * M->d.F * M->d.D, q4x_machine_now() - t0);
    for (int c = 0; c < H_MOE_CASES; c++) {
        h_tally t = {0}, swapped = {0}, up = {0};
        compare_experts(&HF, &s, c, H_PLAIN, &t);
        snprintf(what, sizeof what, "experts, case %d, 1 ulp + 2 2^-7 sqrt(sum w^2 (a d)^2)", c);
        assert_true(h_row(what, &t, 1));
        all.n += t.n, all.same += t.same;
        compare_experts(&HF, &s, c, H_SWAPPED, &swapped);
        snprintf(what, sizeof what, "twin, case %d: experts %d and %d swapped, beyond 10 x", c, M->c[c].ids[0],
                 M->c[c].ids[M->d.K - 1]);
        h_control(what, &swapped, 1, 10);
        compare_experts(&HF, &s, c, H_UP_FOR_GATE, &up);
        snprintf(what, sizeof what, "twin, case %d: up and gate rows swapped, beyond 10 x", c);
        h_control(what, &up, 1, 10);
        compare_experts(&HF, &s, c, H_GELU, &gelu);
        compare_experts(&slotwise, &s, c, H_PLAIN, &slot_order);
    }
    h_control("control, experts: moe.act=gelu", &gelu, 1, 1);
    /* Of all there is. Case 3 alone is 98.8 % equal: one of its 102400 inputs of the last product lies so near the
     * middle of two bf16 that the order of a sum decides, and it moves every seventh value of a row that one expert
     * dominates (with the sums in f64 the case is 99.8 % equal). */
    assert_true(h_say("experts: per cent of all that differ", all.n, all.same, differing(&all), 1, 0));
    assert_false(
        h_say("twin: the same with moe.combine=slots", slot_order.n, slot_order.same, differing(&slot_order), 1, 1));
    h_slots_free(&s);
}

/* ---- controls: what ports get wrong first must be refused ---- */

static void controls(void **state) {
    (void)state;
    k_levers lv = HF;
    h_tally t = {0}, ids = {0};
    const char *why = NULL;
    int tied;
    lv.renorm = K_RENORM_OFF;
    matched_sets(&lv, &tied, &t, &why);
    h_control("control, weights: moe.renorm=off, bf16 ulp", &t, 0, 1);
    assert_non_null(why);
    lv = HF, lv.softmax = K_SOFTMAX_BF16, t = (h_tally){0};
    matched_sets(&lv, &tied, &t, &why);
    h_control("control, weights: moe.softmax=bf16, bf16 ulp", &t, 0, 1);
    assert_non_null(why);
    lv = HF, lv.sgate = K_SGATE_OFF, t = (h_tally){0};
    combined(&lv, &t);
    h_control("control, combine: moe.sgate=off, bf16 ulp", &t, 0, 1);
    lv = HF, lv.gated = K_GATED_GELU, t = (h_tally){0};
    shared_branch(&lv, &t);
    h_control("control, shared branch: moe.act=gelu", &t, 1, 1);
    lv = HF, lv.router = K_ROUTER_F32, t = (h_tally){0};
    chain(&lv, &t, &ids);
    h_control("control, chain: moe.logits=f32, weights, bf16 ulp", &t, 0, 1);
    h_control("control, chain: moe.logits=f32, ids", &ids, 0, 1);
}

/* ---- a logit that is no number ---- */

static void fails_closed(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const h_moe_case *k = &M->c[3];
    int64_t K = M->d.K, E = M->d.E, D = M->d.D, other_rows = 0;
    float *logits = h_need(k->T * E, sizeof *logits), *down = calloc((size_t)(k->T * K * D), sizeof *down);
    assert_non_null(down);
    for (int tie = 0; tie < 4; tie++)
        for (int b = 0; b < 3; b++)
            for (int r = 0; r < k->T; r += 5) {
                k_levers lv = HF;
                lv.tie = tie;
                memcpy(logits, k->logits, (size_t)(k->T * E) * 4);
                int32_t *was = h_block_ids(&B, &lv, logits, k->T);
                float *w_was = h_block_weights(&B, &lv, logits, was, k->T);
                logits[r * E + (r % 2 ? was[r * K + 3] : 511 - r)] = bad[b];
                int32_t *id = h_block_ids(&B, &lv, logits, k->T);
                float *w = h_block_weights(&B, &lv, logits, id, k->T),
                      *on_old = h_block_weights(&B, &lv, logits, was, k->T);
                h_moe_case moved = *k;
                moved.ids = id, moved.weights = w;
                float *y = h_block_routed(&B, &lv, &moved, down);
                for (int64_t i = 0; i < k->T * K; i++) {
                    int mine = i / K == r;
                    assert_int_equal(id[i], mine ? -1 : was[i]);
                    assert_int_equal(isnan(w[i]), mine);
                    assert_int_equal(isnan(on_old[i]), mine); /* ids from elsewhere do not help */
                    if (mine) continue;
                    assert_int_equal(k_f32_bits(w[i]), k_f32_bits(w_was[i]));
                    other_rows++;
                }
                for (int64_t i = 0; i < k->T * D; i++) assert_int_equal(isnan(y[i]), i / D == r);
                free(was);
                free(w_was);
                free(id);
                free(w);
                free(on_old);
                free(y);
            }
    h_say("a logit of NaN, +inf, -inf: its row closed, others by bits", other_rows, other_rows, 0, 0, 0);
    free(logits);
    free(down);
}

static void memory(void **state) {
    (void)state;
    double mb = (double)q4x_machine_resident_peak() * 1e-6;
    if (!H_SANITIZER) assert_true(h_say("resident at most, MB", 1, -1, mb, 1000, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances),

        cmocka_unit_test(router_logits), cmocka_unit_test(routing),
        cmocka_unit_test(set_twins),     cmocka_unit_test(router_to_routing),
        cmocka_unit_test(shared),        cmocka_unit_test(combine),
        cmocka_unit_test(experts),       cmocka_unit_test(controls),
        cmocka_unit_test(fails_closed),  cmocka_unit_test(memory),
    };
    return cmocka_run_group_tests_name("moe_block", tests, open_block, close_block);
}
