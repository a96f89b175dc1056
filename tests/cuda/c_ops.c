/* Every op but the products (c_products.c) and attention (c_attn.c) on the device against the CPU by bits: shapes
 * around 32 and 64 and long ones, both acts, every lever that the op reads, random operands with NaN, infinities,
 * subnormals and signed zeros strewn in, states included. On the emulator the long shapes are left to a GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/arith.h"
#include "kernels/ops.h"
#include "kernels/quant.h"
#include "tests/cuda/h_kit.h"
#include "tests/cuda/h_pair.h"

/* ---- one output from a few numbers ---- */

typedef void (*elem_fn)(hk *k, int64_t n);

static void b_two(hk *k, int64_t n) {
    hk_input(k, 0, n, 3, 1);
    hk_input(k, 1, n, 3, 1);
    k->c.cols = n;
}
static void b_slice(hk *k, int64_t n) {
    hk_input(k, 0, n + 7, 3, 1);
    k->c.off = 5;
    k->c.cols = n;
}
static void b_widen(hk *k, int64_t n) {
    hk_input(k, 0, n, 3, 1);
    k->c.cols = 4 * n;
}
static void b_gate(hk *k, int64_t n) {
    k->d.hd = 8;
    k->c.cols = (n + 7) / 8 * 8;
    hk_input(k, 0, k->c.cols, 3, 1);
    hk_input(k, 1, 2 * k->c.cols, 3, 1);
}
static void b_gdn_g(hk *k, int64_t n) {
    hk_input(k, 0, n, 3, 1);
    hk_par(k, 0, n, 1);
    hk_par(k, 1, n, 1);
    k->c.cols = n;
}
static void b_hc_mix(hk *k, int64_t n) {
    hk_input(k, 0, 4 * n, 1, 1);
    hk_input(k, 1, 4 * n, 1, 1);
    k->c.cols = n;
}
static void b_hc_add(hk *k, int64_t n) {
    hk_input(k, 0, 4 * n, 1, 1);
    hk_input(k, 1, n, 1, 1);
    hk_input(k, 2, 4, 1, 1);
    k->c.cols = 4 * n;
}
static void b_moe_out(hk *k, int64_t n) {
    hk_input(k, 0, n, 1, 1);
    hk_input(k, 1, n, 1, 1);
    hk_input(k, 2, 1, 1, 1);
    k->c.cols = n;
}
static void b_ple_mul(hk *k, int64_t n) {
    hk_input(k, 0, 4, 1, 1);
    hk_input(k, 1, n, 1, 1);
    k->c.cols = 4 * n;
}
static void b_ple_gate(hk *k, int64_t n) {
    hk_input(k, 0, 4 * n, 1, 0);
    hk_input(k, 1, 4 * n, 1, h_int(&hk_rng, 0, 1));
    k->c.cols = 4;
}
static void b_rmsnorm(hk *k, int64_t n) {
    hk_input(k, 0, 4 * n + 3, 1, h_int(&hk_rng, 0, 1));
    hk_par(k, 0, 4 * n, 1);
    k->c.G = (int32_t)n;
    k->c.stride = (int32_t)n;
    k->c.off = 3;
    k->c.per = 1;
    k->c.cols = 4 * n;
}
static void b_l2norm(hk *k, int64_t n) {
    hk_input(k, 0, 2 * n + 3, 1, h_int(&hk_rng, 0, 1));
    k->c.G = (int32_t)n;
    k->c.off = 3;
    k->c.cols = 2 * n;
}
static void b_gdn_norm(hk *k, int64_t n) {
    hk_input(k, 0, 2 * n, 1, h_int(&hk_rng, 0, 1));
    hk_input(k, 1, 2 * n, 1, 1);
    hk_par(k, 0, n, 1);
    k->d.gate_silu = h_int(&hk_rng, 0, 1);
    k->c.G = (int32_t)n;
    k->c.cols = 2 * n;
}
static void b_rope(hk *k, int64_t n) {
    k->c.G = (int32_t)(n + 4);
    k->d.rot = (int32_t)(n / 2 * 2);
    hk_input(k, 0, 3 * (n + 4) + 1, 1, 1);
    hk_par(k, 0, n / 2 + 1, 1);
    k->c.pos0 = 1000;
    k->c.cols = 3 * (n + 4) + 1;
}
static void b_conv1d(hk *k, int64_t n) {
    k->d.Kc = 4;
    hk_input(k, 0, n, 1, 1);
    hk_par(k, 0, 4 * n, 1);
    hk_state(k, 3, n, 1);
    k->c.pos0 = h_int(&hk_rng, 0, 4);
    k->c.cols = n;
}
static void b_ple_conv(hk *k, int64_t n) {
    k->d.Kp = 4;
    k->d.n = 3;
    hk_input(k, 0, n, 1, 1);
    hk_par(k, 0, 4 * n, 1);
    hk_state(k, 9, n, 1);
    k->c.pos0 = h_int(&hk_rng, 0, 12);
    k->c.cols = n;
}

static const struct {
    k_op op;
    elem_fn build;
} plain[] = {
    {K_OP_slice, b_slice},     {K_OP_widen, b_widen},       {K_OP_add, b_two},           {K_OP_sigmoid, b_two},
    {K_OP_swiglu, b_two},      {K_OP_attn_gate, b_gate},    {K_OP_gdn_g, b_gdn_g},       {K_OP_hc_mix, b_hc_mix},
    {K_OP_hc_add, b_hc_add},   {K_OP_moe_out, b_moe_out},   {K_OP_ple_mul, b_ple_mul},   {K_OP_ple_gate, b_ple_gate},
    {K_OP_rmsnorm, b_rmsnorm}, {K_OP_l2norm, b_l2norm},     {K_OP_gdn_norm, b_gdn_norm}, {K_OP_rope, b_rope},
    {K_OP_conv1d, b_conv1d},   {K_OP_ple_conv, b_ple_conv},
};

static void plain_ops(void **s) {
    int64_t bad = 0;
    (void)s;
    HK_EACH(o, plain)
    HK_EACH(K, hk_K)
    HK_EACH(T, hk_T)
    for (int v = 0; v < 4; v++) {
        const int32_t K = hk_K[K_i], T = hk_T[T_i];
        if (hk_too_long((int64_t)K * T * 8)) break;
        hk k = hk_fresh(T, v & 1);
        if (v & 2) { /* the other value of every lever that some of them read */
            k.lv.gated = K_GATED_GELU;
            k.lv.sgate = K_SGATE_OFF;
            k.lv.freq = K_FREQ_BF16;
            k.lv.gdn_gate = K_GATE_SILU;
            k.lv.resid = k.lv.table = v & 1 ? K_FOLLOW_F32 : K_FOLLOW_BF16;
            k.lv.eps = (int32_t)k_f32_bits(1e-2f);
            k.lv.eps_floor = (int32_t)k_f32_bits(K & 1 ? 1e-1f : 1e-3f);
            k.c.per = plain[o_i].op == K_OP_add; /* the residual stream */
        }
        char note[40];
        snprintf(note, sizeof note, "K=%d levers %d", K, v >> 1);
        plain[o_i].build(&k, K);
        bad += hk_run(&k, plain[o_i].op, note);
    }
    assert_int_equal(bad, 0);
}

static int64_t embedding(int32_t type, int64_t cols, int32_t T, int act) {
    char note[40];
    hk k = hk_fresh(T, act);
    int32_t *ids = hk_own(&k, (size_t)T * sizeof *ids);
    hk_weights(&k, type, 1, 11, cols, act);
    for (int i = 0; i < T; i++) ids[i] = i < 5 ? (int32_t[]){0, 10, 11, -1, 4}[i] : h_int(&hk_rng, -1, 11);
    k.c.in_i[0] = ids;
    k.c.in_cols[0] = 1;
    k.c.cols = cols;
    snprintf(note, sizeof note, "%s %lld columns", k_quant_get(type)->name, (long long)cols);
    return hk_run(&k, K_OP_embed, note);
}

static void embed(void **s) {
    static const int64_t cols[] = {1, 31, 33, 96, 160, 256, 320, 640, 2560, 10240};
    int64_t bad = 0;
    (void)s;
    for (int32_t id = 0; id < 64; id++) HK_EACH(c, cols)
    HK_EACH(T, hk_T) {
        if (!k_quant_get(id) || cols[c_i] % k_quant_get(id)->elems) continue;
        if (hk_too_long(cols[c_i] * hk_T[T_i] * 20)) continue;
        for (int act = 0; act < 2; act++) bad += embedding(id, cols[c_i], hk_T[T_i], act);
    }
    assert_int_equal(bad, 0);
}

/* ---- experts ---- */

static void router(void **s) {
    static const int32_t Es[] = {1, 31, 33, 96, 128, 512};
    int64_t bad = 0;
    (void)s;
    HK_EACH(E, Es)
    HK_EACH(T, hk_T)
    for (int v = 0; v < 16; v++) {
        const int32_t E = Es[E_i], T = hk_T[T_i], K = E < 8 ? E : 8;
        if (hk_too_long((int64_t)T * E * 40)) break;
        for (int which = 0; which < 2; which++) {
            hk k = hk_fresh(T, v & 1);
            k.lv.softmax = v >> 1 & 1;
            k.lv.tie = v >> 2;
            k.lv.renorm = v >> 2 & 1;
            k.d.renorm = 1;
            k.d.E = E;
            k.d.K = K;
            hk_input(&k, 0, E, v & 8 ? 0.01 : 3, 0);
            float *x = (float *)(uintptr_t)k.c.in[0];
            for (int64_t i = 0; i < (int64_t)T * E; i += 3) x[i] = x[i / 2]; /* ties */
            if (T > 2) x[E + E / 2] = v & 2 ? NAN : -INFINITY;               /* a row that fails closed */
            k.c.cols = K;
            if (which) {
                k.c.in_i[1] = hk_some_ids(&k, (int64_t)T * K, E);
                k.c.in_cols[1] = K;
            }
            bad += hk_run(&k, which ? K_OP_moe_weights : K_OP_moe_ids, "");
        }
    }
    assert_int_equal(bad, 0);
}

static void routed(void **s) {
    int64_t bad = 0;
    (void)s;
    HK_EACH(K, hk_K)
    HK_EACH(T, hk_T)
    for (int v = 0; v < 4; v++) {
        const int32_t K = 7, D = hk_K[K_i], T = hk_T[T_i];
        if (hk_too_long((int64_t)T * K * D)) break;
        hk k = hk_fresh(T, v & 1);
        k.lv.combine = v >> 1;
        k.d.K = K;
        k.d.E = 9;
        hk_input(&k, 0, (int64_t)K * D, 1, 1);
        hk_input(&k, 1, K, 1, 0);
        k.c.in_i[2] = hk_some_ids(&k, (int64_t)T * K, 9);
        k.c.in_cols[2] = K;
        k.c.cols = D;
        bad += hk_run(&k, K_OP_moe_routed, v >> 1 ? "experts" : "slots");
    }
    assert_int_equal(bad, 0);
}

/* ---- delta rule ---- */

/* g: nk, nv, dk, dv. v: act, which rule, whose key heads; from 8 on the placements, all six and then some of them. */
static int64_t delta_rule(const int32_t *g, int32_t T, int v) {
    static const char *const notes[] = {"seq", "chunk64", "chunk64-bf16", "chunk64, placements"};
    const int rule = (v >> 1 & 1) + (v >> 3) * 2;
    char note[60];
    hk k = hk_fresh(T, v & 1);
    k.lv.gdn = rule < 3 ? rule : K_GDN_CHUNK64;
    int32_t *place[] = {&k.lv.gdn_h, &k.lv.gdn_hop, &k.lv.gdn_w, &k.lv.gdn_u, &k.lv.gdn_vnew, &k.lv.gdn_inv};
    for (int i = 0; i < 6 && rule == 3; i++) *place[i] = h_int(&hk_rng, 0, 1) ? K_FOLLOW_BF16 : K_FOLLOW;
    k.d.gguf_heads = v >> 2 & 1;
    k.d.nk = g[0], k.d.nv = g[1], k.d.dk = g[2], k.d.dv = g[3];
    k.c.pos0 = 64 * h_int(&hk_rng, 0, 1);
    hk_input(&k, 0, g[0] * g[2], 0.1, 0);
    hk_input(&k, 1, g[0] * g[2], 0.1, 0);
    hk_input(&k, 2, g[1] * g[3], 1, (v & 7) == 7);
    hk_input(&k, 3, g[1], 1, 0);
    hk_input(&k, 4, g[1], 1, 0);
    float *decay = (float *)(uintptr_t)k.c.in[3];
    for (int64_t i = 0; i < (int64_t)T * g[1]; i++) decay[i] = -fabsf(decay[i]);
    hk_state(&k, (int64_t)g[1] * g[2], g[3], 0.3);
    k.c.cols = g[1] * g[3];
    snprintf(note, sizeof note, "%s, key dims %d, value dims %d", notes[rule], g[2], g[3]);
    return hk_run(&k, K_OP_gdn_core, note);
}

static void gdn(void **s) {
    static const int32_t shapes[][4] = {{1, 2, 8, 8}, {2, 4, 33, 40}, {2, 2, 128, 128}, {1, 1, 400, 5}};
    int64_t bad = 0;
    (void)s;
    HK_EACH(g, shapes)
    HK_EACH(T, hk_T)
    for (int v = 0; v < 16; v++) {
        const int32_t *g = shapes[g_i], T = hk_T[T_i];
        const int chunked = (v & 10) != 0;
        if (hk_too_long((int64_t)T * g[1] * g[2] * g[3] / 4)) break;
        if (hk_emulated && chunked && T > 5 && (v + (v >> 2) + T_i + g_i) % 4) continue;
        bad += delta_rule(g, T, v);
    }
    assert_int_equal(bad, 0);
}

/* Chunks against the edges of their kernels: key dims at once and value columns of a block, one less and one more;
 * columns of the state that just fit into shared memory, and just do not; rows of a block, and of three chunks. */
static void gdn_chunks(void **s) {
    static const int32_t shapes[][4] = {{1, 1, 64, 32},  {1, 1, 65, 33}, {1, 1, 31, 65},
                                        {1, 1, 160, 31}, {1, 1, 161, 9}, {1, 2, 36, 64}};
    static const int32_t Ts[] = {16, 17, 130};
    int64_t bad = 0;
    (void)s;
    HK_EACH(g, shapes)
    HK_EACH(T, Ts)
    for (int v = 2; v < 16; v += 3) /* 2, 5, 8, 11, 14 */
        if (!hk_emulated || Ts[T_i] < 100 || (v / 3 + g_i) % 3 == 0) bad += delta_rule(shapes[g_i], Ts[T_i], v);
    hp_flip(shapes[0][2], 0x80000000u); /* the twin: a sign in a query of the second row */
    assert_true(delta_rule(shapes[0], 17, 2) > 0);
    hp_flip(0, 0);
    assert_int_equal(bad, 0);
}

/* ---- the harness sees ---- */

/* One ulp, one sign, in an operand that only the host sees, shows in every op that reads it. */
static void twin(void **s) {
    (void)s;
    static const uint32_t flips[] = {1, 0x80000000u};
    HK_EACH(o, plain)
    HK_EACH(f, flips) {
        if (f_i == 0 && plain[o_i].op != K_OP_slice) continue; /* an ulp may round away */
        hk k = hk_fresh(1, K_ACT_F32);
        plain[o_i].build(&k, 33);
        float *x = (float *)(uintptr_t)k.c.in[0];
        for (int64_t i = 0; i < k.c.in_cols[0]; i++) x[i] = 1.0f + (float)i;
        hp_flip(k.c.off, flips[f_i]);
        int64_t bad = hk_run(&k, plain[o_i].op, "twin");
        hp_flip(0, 0);
        if (!bad) fail_msg("%s: a changed operand went unseen", k_ops[plain[o_i].op].name);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_ops), cmocka_unit_test(embed),      cmocka_unit_test(router), cmocka_unit_test(routed),
        cmocka_unit_test(gdn),       cmocka_unit_test(gdn_chunks), cmocka_unit_test(twin),
    };
    hk_begin(argc, argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hp_close();
    return failed;
}
