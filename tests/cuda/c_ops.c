/* Every op but the products (c_products.c) on the device against the CPU by bits: shapes around 32 and 64 and long ones,
 * both acts, every lever that the op reads, random operands with NaN, infinities, subnormals and signed zeros strewn
 * in, states included. On the emulator the long shapes are left to a GPU. */
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
        if (hk_too_long((int64_t)K * T * 8)) continue;
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

static void embed(void **s) {
    int64_t bad = 0;
    (void)s;
    for (int32_t id = 0; id < 64; id++)
        for (int act = 0; act < 2; act++) {
            if (!k_quant_get(id)) continue;
            hk k = hk_fresh(5, act);
            int32_t *ids = hk_own(&k, 5 * sizeof *ids);
            hk_weights(&k, id, 1, 11, 256, act);
            for (int i = 0; i < 5; i++) ids[i] = (int32_t[]){0, 10, 11, -1, 4}[i];
            k.c.in_i[0] = ids;
            k.c.in_cols[0] = 1;
            k.c.cols = 256;
            bad += hk_run(&k, K_OP_embed, k_quant_get(id)->name);
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
        if (hk_too_long((int64_t)T * E * 40)) continue;
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
        if (hk_too_long((int64_t)T * K * D)) continue;
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

static void gdn(void **s) {
    static const int32_t shapes[][4] = {{1, 2, 8, 8}, {2, 4, 33, 40}, {2, 2, 128, 128}, {1, 1, 400, 5}};
    int64_t bad = 0;
    (void)s;
    HK_EACH(g, shapes)
    HK_EACH(T, hk_T)
    for (int v = 0; v < 16; v++) { /* from 8 on: the placements, all six and then some of them */
        static const char *const notes[] = {"seq", "chunk64", "chunk64-bf16", "chunk64, placements"};
        const int32_t *g = shapes[g_i], T = hk_T[T_i], rule = (v >> 1 & 1) + (v >> 3) * 2;
        if (hk_too_long((int64_t)T * g[1] * g[2] * g[3] / 4)) continue;
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
        bad += hk_run(&k, K_OP_gdn_core, notes[rule]);
    }
    assert_int_equal(bad, 0);
}

/* ---- attention and indexer ---- */

/* Geometry of a call at pos0 whose queries see selected blocks (sel) or everything. */
static void attention_dims(hk *k, int32_t T, int32_t pos0, int sel) {
    k->d.H = 4;
    k->d.G = 2;
    k->d.hd = 40;
    k->d.ratio = sel ? 8 : 0;
    k->d.nsel = 3;
    k->c.pos0 = pos0;
    k->c.Tc = pos0 + T;
}

static int32_t *selection(hk *k, int32_t T, int32_t width, int32_t blocks) {
    int32_t *sel = hk_own(k, (size_t)T * (size_t)width * sizeof *sel);
    for (int64_t i = 0; i < (int64_t)T * width; i++) sel[i] = h_int(&hk_rng, -1, blocks);
    return sel;
}

/* What a query sees: all; selected blocks; and more tokens, some of them in those blocks, some of them none. */
enum { SEE_ALL, SEE_SELECTED, SEE_EXTRA, SEES };
static const char *const sees[SEES] = {"all", "selected", "selected and extra"};

static void visible(hk *k, int slot, int see) {
    const int32_t T = k->c.T, Tc = k->c.Tc;
    if (see == SEE_ALL) return;
    k->c.in_i[slot] = selection(k, T, 3, Tc / 8);
    k->c.in_cols[slot] = 3;
    if (see != SEE_EXTRA) return;
    k->c.in_i[slot + 1] = selection(k, T, 12, Tc); /* more than there may be: the first 8 count */
    k->c.in_cols[slot + 1] = 12;
}

static int64_t attention(int32_t T, int32_t pos0, int see, const k_levers *lv) {
    int64_t bad = 0;
    for (int which = 0; which < 3; which++) {
        static const k_op op[] = {K_OP_attn_score, K_OP_attn_prob, K_OP_attn_ctx};
        char note[80];
        hk k = hk_fresh(T, lv->act);
        k.lv = *lv;
        attention_dims(&k, T, pos0, see != SEE_ALL);
        const int64_t Tc = k.c.Tc, kw = 2 * 40;
        hk_input(&k, 0, which ? 4 * Tc : 4 * 40, which == 1 ? 4 : 1, which == 1 && T == 5);
        if (which != 1) {
            hk_input(&k, 1, kw, 1, T == 5);
            hk_state(&k, Tc + 3, kw, 1);
        }
        if (which == 2) hk_input(&k, 2, 4 * Tc, 4, T == 5 && pos0);
        visible(&k, which == 1 ? 1 : which == 2 ? 3 : 2, see);
        k.c.cols = which == 2 ? 4 * 40 : 4 * Tc;
        snprintf(note, sizeof note, "pos0 %d, %s, softmax %d, kv %d, round %d", pos0, sees[see], lv->sweep, lv->kv,
                 lv->inner);
        bad += hk_run(&k, op[which], note);
    }
    return bad;
}

static void attn(void **s) {
    static const k_levers sets[] = {
        {.act = K_ACT_F32},
        {.act = K_ACT_BF16},
        {.kv = K_KV_F16},
        {.act = K_ACT_BF16, .kv = K_KV_F32, .inner = K_FOLLOW_F32},
        {.sweep = K_SWEEP_ONLINE},
        {.sweep = K_SWEEP_ONLINE, .kv = K_KV_F16},
        {.act = K_ACT_BF16, .sweep = K_SWEEP_ONLINE},
        {.act = K_ACT_BF16, .sweep = K_SWEEP_ONLINE, .kv = K_KV_F16, .inner = K_FOLLOW_F32},
    };
    int64_t bad = 0;
    (void)s;
    HK_EACH(T, hk_T)
    HK_EACH(set, sets)
    for (int see = 0; see < SEES; see++)
        for (int32_t pos0 = hk_emulated ? 67 * (set_i % 2) : 0; pos0 < 200; pos0 += hk_emulated ? 134 : 67)
            if (!hk_too_long((int64_t)hk_T[T_i] * (hk_T[T_i] + pos0) * 80))
                bad += attention(hk_T[T_i], pos0, see, &sets[set_i]);
    assert_int_equal(bad, 0);
}

static int64_t indexing(int32_t T, int32_t pos0, int v) {
    int64_t bad = 0;
    for (int which = 0; which < 3; which++) {
        static const k_op op[] = {K_OP_idx_pool, K_OP_idx_score, K_OP_idx_sel};
        hk k = hk_fresh(T, v & 1);
        k.d.ih = 3, k.d.id = 40, k.d.ratio = 8, k.d.rot = 16, k.d.nsel = 5;
        k.lv.freq = v >> 1 & 1;
        k.lv.table = v & 2 ? K_FOLLOW_BF16 - (v & 1) : K_FOLLOW;
        k.lv.eps = v & 2 ? (int32_t)k_f32_bits(1e-2f) : 0;
        k.lv.tie = v >> 1;
        k.c.pos0 = pos0;
        k.c.Tc = pos0 + T;
        const int32_t nb = k.c.Tc / 8 > 0 ? k.c.Tc / 8 : 1;
        if (which == 0) {
            hk_input(&k, 0, 40, 1, 0);
            hk_par(&k, 0, 40, 1);
            hk_par(&k, 1, 8, 1);
            hk_state(&k, k.c.Tc, 40, 1);
            k.c.cols = 40;
        } else if (which == 1) {
            hk_input(&k, 0, 3 * 40, 1, 0);
            hk_input(&k, 1, 40, 1, 0);
            hk_state(&k, nb + 1, 40, 1);
            k.c.cols = nb;
        } else {
            hk_input(&k, 0, nb, 1, 0);
            float *x = (float *)(uintptr_t)k.c.in[0];
            for (int64_t i = 0; i < (int64_t)T * nb; i += 2) x[i] = x[i / 3]; /* ties */
            if (T > 2) x[nb] = NAN;
            k.c.cols = nb < 5 ? nb : 5;
        }
        bad += hk_run(&k, op[which], "");
    }
    return bad;
}

/* Extra tokens of queries over 8-token blocks of which many are equal, with fewer columns than the heap may leave. */
static int64_t extra(int32_t T, int32_t pos0, int on) {
    hk k = hk_fresh(T, K_ACT_F32);
    char note[40];
    k.d.ratio = 8, k.d.nsel = 5;
    k.lv.extra = on ? K_EXTRA_STL : K_EXTRA_OFF;
    k.c.pos0 = pos0;
    k.c.Tc = pos0 + T;
    const int32_t nb = k.c.Tc / 8 > 0 ? k.c.Tc / 8 : 1;
    hk_input(&k, 0, nb, 1, 0);
    float *x = (float *)(uintptr_t)k.c.in[0];
    for (int64_t i = 0; i < (int64_t)T * nb; i++) x[i] = h_int(&hk_rng, 0, 3) ? roundf(8 * x[i]) : x[i / 2];
    if (T > 2) x[nb] = NAN;
    k.c.in_i[1] = selection(&k, T, 5, nb);
    k.c.in_cols[1] = 5;
    k.c.cols = T % 2 ? 7 : 3;
    snprintf(note, sizeof note, "pos0 %d, %s", pos0, on ? "stl" : "off");
    return hk_run(&k, K_OP_idx_extra, note);
}

static void indexer(void **s) {
    int64_t bad = 0;
    (void)s;
    HK_EACH(T, hk_T)
    for (int v = 0; v < 8; v++)
        for (int32_t pos0 = 0; pos0 < 3000; pos0 = 7 * pos0 + 13)
            if (!hk_too_long((int64_t)hk_T[T_i] * (hk_T[T_i] + pos0) * 20)) bad += indexing(hk_T[T_i], pos0, v);
    HK_EACH(T, hk_T)
    for (int32_t pos0 = 0; pos0 < 3000; pos0 = 7 * pos0 + 13)
        if (!hk_too_long((int64_t)hk_T[T_i] * (hk_T[T_i] + pos0) * 20))
            for (int on = 0; on < 2; on++) bad += extra(hk_T[T_i], pos0, on);
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
    static const k_levers online = {.sweep = K_SWEEP_ONLINE, .kv = K_KV_F16};
    hp_flip(1, 0x80000000u); /* of a query, a score, and a probability, which the online softmax does not read */
    assert_true(attention(1, 3, SEE_ALL, &online) > 4);
    hp_flip(0, 0);
    hp_flip(0, 0x7f000000u); /* the first block's score, made a large one or a small one */
    int64_t seen = 0;
    for (int32_t pos0 = 330; pos0 < 340; pos0++) seen += extra(1, pos0, 1); /* where it is not selected anyhow */
    assert_true(seen > 0);
    hp_flip(0, 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_ops), cmocka_unit_test(embed), cmocka_unit_test(router),  cmocka_unit_test(routed),
        cmocka_unit_test(gdn),       cmocka_unit_test(attn),  cmocka_unit_test(indexer), cmocka_unit_test(twin),
    };
    hk_begin(argc, argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hp_close();
    return failed;
}
