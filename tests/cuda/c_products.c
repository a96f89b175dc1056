/* Products on the device against the CPU by bits: every stored type, every order of lever dot, experts; shapes around
 * the edges of warps and blocks and long ones, any bytes as weights, specials among activations. On the emulator the
 * long shapes are left to a GPU. And which calls are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/quant.h"
#include "tests/cuda/h_kit.h"
#include "tests/cuda/h_pair.h"

/* ---- products ---- */

static int64_t product(int32_t type, int64_t K, int32_t T, int act, int epi) {
    const int64_t O = 13;
    char note[60];
    hk k = hk_fresh(T, act);
    k.d.N = 3;
    k.c.epi = epi;
    k.c.cols = O;
    k.lv.router = epi == K_EPI_ROUTER ? K_ROUTER_BF16 : 0;
    hk_weights(&k, type, 1, O, K, K > 256 && T == 3);
    hk_input(&k, 0, K, 1, 0);
    snprintf(note, sizeof note, "%s K=%lld epilogue %d", k_quant_get(type)->name, (long long)K, epi);
    return hk_run(&k, K_OP_matmul, note);
}

static void matmul(void **s) {
    int64_t bad = 0;
    (void)s;
    HK_EACH(K, hk_K)
    HK_EACH(T, hk_T)
    if (!hk_too_long((int64_t)hk_K[K_i] * hk_T[T_i] * 13))
        for (int v = 0; v < 10; v++) bad += product(K_T_F32, hk_K[K_i], hk_T[T_i], v & 1, v >> 1);
    assert_int_equal(bad, 0);
}

static void matmul_types(void **s) {
    static const int32_t T[] = {1, 3, 4, 5, 15, 16, 63, 64, 65, 512};
    static const int64_t K[] = {1, 31, 33, 64, 96, 128, 160, 256, 320, 640, 1280, 2560, 10240};
    int64_t bad = 0;
    int types = 0;
    (void)s;
    for (int32_t id = 0; id < 64; id++) {
        if (!k_quant_get(id)) continue;
        types++;
        HK_EACH(T, T)
        HK_EACH(K, K)
        if (K[K_i] % k_quant_get(id)->elems == 0 && !hk_too_long(K[K_i] * T[T_i] * (K[K_i] > 5000 ? 36 : 60)))
            bad += product(id, K[K_i], T[T_i], (T_i + K_i) % 2, K_EPI_NONE);
    }
    print_message("%d types\n", types);
    assert_int_equal(bad, 0);
    assert_true(types > 30);
}

/* ---- orders of lever dot ---- */

static const struct {
    int32_t dot, repack;
    const char *name;
} dots[] = {
    {K_DOT_SERIAL, K_REPACK_OFF, "serial"},
    {K_DOT_BLOCKED, K_REPACK_OFF, "blocked"},
    {K_DOT_Q8K, K_REPACK_OFF, "q8k"},
    {K_DOT_Q8_1, K_REPACK_OFF, "q8_1"},
    {K_DOT_NEON, K_REPACK_OFF, "neon"},
    {K_DOT_Q8K, K_REPACK_Q8_0X4, "q8k, q8_0x4"},
    {K_DOT_NEON, K_REPACK_Q4_KX8, "neon, q4_kx8"},
};

/* wild: weights of any bytes, and specials among the activations. */
static int64_t dot_product(int which, int32_t type, int64_t K, int32_t T, int wild) {
    const int64_t O = wild ? 8 : 37; /* rows that lie interleaved, and more than a warp of them */
    char note[80];
    hk k = hk_fresh(T, T % 2 ? K_ACT_F32 : K_ACT_BF16);
    k.d.N = 1;
    k.lv.dot = dots[which].dot;
    k.lv.repack = dots[which].repack;
    k.c.cols = O;
    hk_weights(&k, type, 1, O, K, wild);
    hk_input(&k, 0, K, 1, wild);
    snprintf(note, sizeof note, "%s K=%lld %s%s", k_quant_get(type)->name, (long long)K, dots[which].name,
             wild ? ", wild" : "");
    return hk_run(&k, K_OP_matmul, note);
}

static void dot_orders(void **s) {
    static const int32_t T[] = {1, 2, 5, 8, 9, 70};
    int64_t bad = 0;
    (void)s;
    HK_EACH(d, dots)
    for (int32_t id = 0; id < 64; id++) {
        const k_quant *q = k_quant_get(id);
        if (!q) continue;
        HK_EACH(T, T)
        for (int64_t n = 1; n <= 45; n = n < 5 ? n + 2 : 9 * n) { /* blocks, or elements: odd numbers of them */
            if (hk_emulated && T_i % 2) {
                hp_left(1, "shapes");
                continue;
            }
            const int64_t K = q->elems == 1 ? 23 * n : q->elems * n;
            if (!hk_too_long(K * T[T_i] * 100)) bad += dot_product(d_i, id, K, T[T_i], (n + T_i) % 3 == 0);
        }
    }
    assert_int_equal(bad, 0);
}

/* Experts with uneven numbers of slots, the last without any. v: act, a row a slot or a token; from 4 on lever dot. */
static int64_t of_experts(int32_t type, int64_t in, int32_t T, int v) {
    const int32_t E = 9, K = 3, O = 8;
    hk k = hk_fresh(T, v & 1);
    k.c.per = v >> 1 & 1;
    if (v >= 4) {
        k.lv.dot = dots[v / 4 - 1].dot;
        k.lv.repack = dots[v / 4 - 1].repack;
    }
    hk_weights(&k, type, E, O, in, 0);
    hk_input(&k, 0, k.c.per ? K * in : in, 1, 0);
    k.c.in_i[1] = hk_uneven_ids(&k, (int64_t)T * K, E);
    k.c.in_cols[1] = K;
    k.c.cols = K * O;
    k.d.E = E;
    k.d.K = K;
    char note[80];
    snprintf(note, sizeof note, "%s K=%lld, %s, %s", k_quant_get(type)->name, (long long)in,
             k.c.per ? "a row a slot" : "a row a token", v < 4 ? "lanes32" : dots[v / 4 - 1].name);
    return hk_run(&k, K_OP_moe_expert, note);
}

static void experts(void **s) {
    static const int32_t types[] = {K_T_F32, K_T_BF16, K_T_Q8_0, K_T_Q4_K, K_T_IQ1_S};
    const int orders = sizeof dots / sizeof *dots;
    int64_t bad = 0;
    (void)s;
    HK_EACH(t, types)
    HK_EACH(T, hk_T)
    for (int order = 0; order <= orders; order++) { /* lanes32, then each order of lever dot */
        const int64_t in = types[t_i] == K_T_F32 ? 33 : 256;
        if (hk_too_long(hk_T[T_i] * 3 * 8 * in * (order ? 8 : 1))) continue;
        for (int v = 4 * order; v < 4 * order + 4; v++) bad += of_experts(types[t_i], in, hk_T[T_i], v);
    }
    assert_int_equal(bad, 0);
}

static void expert_types(void **s) {
    static const int64_t in[] = {33, 256, 640, 2560};
    int64_t bad = 0;
    (void)s;
    for (int32_t id = 0; id < 64; id++) {
        HK_EACH(K, in)
        HK_EACH(T, hk_T) {
            if (!k_quant_get(id) || in[K_i] % k_quant_get(id)->elems) continue;
            if (hk_too_long(hk_T[T_i] * 3 * 8 * in[K_i] * 4)) continue;
            bad += of_experts(id, in[K_i], hk_T[T_i], (id + K_i + T_i) % 4);
        }
    }
    assert_int_equal(bad, 0);
}

/* Who asks for which expert, against how slots are listed: numbers of experts around those of a block's threads and of
 * what shared memory counts; none asked for, all the same one, ids beyond both ends; two types among the experts. */
enum { ASK_ANY, ASK_ONE, ASK_NONE, ASK_BEYOND, ASKS };

static int64_t asking(int32_t E, int32_t T, int ask, int mixed) {
    const int32_t K = 3, O = 3, in = 64;
    char note[80];
    hk k = hk_fresh(T, K_ACT_F32);
    hk_weights(&k, K_T_F32, E, O, in, 0);
    for (int32_t e = 1; mixed && e < E; e += 2) {
        uint16_t *half = (uint16_t *)(uintptr_t)k.w[e].data;
        for (int i = 0; i < O * in; i++) half[i] = (uint16_t)(0x3f00 | (h_next(&hk_rng) & 0x80ff));
        k.w[e].type = K_T_BF16;
        k.w[e].row_bytes = (size_t)in * sizeof *half;
    }
    hk_input(&k, 0, in, 1, 0);
    int32_t *ids = hk_some_ids(&k, (int64_t)T * K, E);
    static const int32_t beyond[] = {INT32_MIN, -1, 0, INT32_MAX};
    for (int32_t i = 0; i < T * K; i++) {
        if (ask == ASK_ONE) ids[i] = E / 2;
        if (ask == ASK_NONE) ids[i] = -1;
        if (ask == ASK_BEYOND) ids[i] = i % 5 == 4 ? E - 1 : beyond[i % 5] ? beyond[i % 5] : E;
    }
    k.c.in_i[1] = ids;
    k.c.in_cols[1] = K;
    k.c.cols = K * O;
    k.d.E = E;
    k.d.K = K;
    snprintf(note, sizeof note, "%d experts, asked for in way %d, %d types", E, ask, 1 + mixed);
    return hk_run(&k, K_OP_moe_expert, note);
}

static void slots(void **s) {
    static const int32_t Es[] = {1, 2, 40, 41, 255, 256, 257, 511, 512, 8191, 8192}, Ts[] = {1, 2, 3, 7, 90};
    int64_t bad = 0;
    (void)s;
    HK_EACH(E, Es)
    HK_EACH(T, Ts)
    for (int ask = 0; ask < ASKS; ask++)
        if (Es[E_i] < 600 || Ts[T_i] > 7 || ask == ASK_BEYOND) bad += asking(Es[E_i], Ts[T_i], ask, ask == ASK_ANY);
    assert_int_equal(bad, 0);
}

/* ---- what is no call ---- */

/* Levers beyond their values are refused, and products and extra tokens that lack scratch or an operand. */
static void unfit(void **s) {
    static const struct {
        const char *values;
        size_t at;
    } levers[] = {
#define LEVER(field, name, values, kind, ops, doc) {values, offsetof(k_levers, field)},
#include "kernels/levers.def"
#undef LEVER
    };
    static float some[4096];
    (void)s;
    static const struct {
        k_op op;
        int64_t scratch; /* not a float more than is needed */
    } calls[] = {{K_OP_matmul, 2 * (64 / 32 * 9)},
                 {K_OP_idx_extra, 2 * 64 + 1},
                 {K_OP_moe_expert, (2 * (1 + 2) + 1 + 2 * 2 + 1) + 2 * (64 / 32 * 9)}};
    HK_EACH(call, calls) {
        const k_op op = calls[call_i].op;
        k_weight w = {some, op == K_OP_moe_expert ? 1 : 2, 64, 36, K_T_Q4_0};
        hk k = hk_fresh(2, K_ACT_F32);
        k.lv.dot = K_DOT_Q8_1;
        k.lv.extra = K_EXTRA_STL;
        k.d.ratio = 8, k.d.nsel = 2;
        k.c.Tc = 64, k.c.pos0 = 62;
        k.c.cols = 2, k.c.in_cols[0] = 64, k.c.in_cols[1] = 2;
        k.c.in[0] = k.c.in[1] = k.c.out = k.c.scratch = some;
        k.c.w[0] = k.c.w_dev[0] = &w, k.c.nw[0] = 1;
        k.c.d = &k.d, k.c.lv = &k.lv;
        k.c.scratch_n = calls[call_i].scratch;
        HK_EACH(l, levers) {
            int32_t *v = (int32_t *)(void *)((char *)&k.lv + levers[l_i].at), own = *v, words = 1;
            for (const char *p = levers[l_i].values; *p; p++) words += *p == '|';
            const int number = strstr(levers[l_i].values, "..") != NULL;
            for (*v = -1; *v <= words; ++*v)
                if ((k_dev_unfit(op, &k.c) == NULL) != (number || (*v >= 0 && *v < words)))
                    fail_msg("%s: value %d of %s", k_ops[op].name, *v, levers[l_i].values);
            *v = own;
        }
        assert_null(k_dev_unfit(op, &k.c));
        k.c.scratch_n--;
        assert_non_null(k_dev_unfit(op, &k.c));
        k.c.scratch_n++;
        k.c.in[0] = NULL;
        assert_non_null(k_dev_unfit(op, &k.c));
    }
}

/* ---- the harness sees ---- */

/* A sign in an operand that only the host sees shows under every order. */
static void twin(void **s) {
    (void)s;
    hp_flip(0, 0x80000000u);
    assert_true(asking(512, 1, ASK_ANY, 1) > 0 && asking(512, 90, ASK_ANY, 1) > 0);
    assert_true(product(K_T_Q4_0, 64, 1, 0, K_EPI_NONE) > 0);
    HK_EACH(d, dots)
    if (!dot_product(d_i, d_i == 6 ? K_T_Q4_K : K_T_Q8_0, 256, 1, 0))
        fail_msg("%s: a changed operand went unseen", dots[d_i].name);
    hp_flip(0, 0);
    assert_int_equal(dot_product(2, K_T_Q4_K, 256, 1, 0), 0);
    hp_cut(1); /* one float: the column of 256 in 292 bytes takes all that there is */
    assert_true(dot_product(2, K_T_Q4_K, 256, 1, 0) > 0);
    hp_cut(0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul),  cmocka_unit_test(matmul_types), cmocka_unit_test(dot_orders),
        cmocka_unit_test(experts), cmocka_unit_test(expert_types), cmocka_unit_test(slots),
        cmocka_unit_test(unfit),   cmocka_unit_test(twin),
    };
    hk_begin(argc, argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hp_close();
    return failed;
}
