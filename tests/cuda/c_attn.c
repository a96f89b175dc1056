/* Attention and its indexer on the device against the CPU by bits: every lever they read, selections and extra tokens
 * in and out of range, lists of tokens around every edge inside the kernels, specials among operands and states. On the
 * emulator the long shapes are left to a GPU. (What idx_sel selects: c_topk.c.) */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "kernels/round.h"
#include "tests/cuda/h_kit.h"
#include "tests/cuda/h_pair.h"

/* ---- attention ---- */

typedef struct {
    int32_t H, G, hd, ratio, width, extras; /* width: selected blocks a query; extras: tokens beside them */
} shape;
static const shape usual = {4, 2, 40, 8, 3, 12};

static int32_t *selection(hk *k, int32_t T, int32_t width, int32_t blocks) {
    int32_t *sel = hk_own(k, (size_t)T * (size_t)width * sizeof *sel);
    for (int64_t i = 0; i < (int64_t)T * width; i++) sel[i] = h_int(&hk_rng, -1, blocks);
    return sel;
}

/* What a query sees: all; selected blocks; and more tokens, some of them in those blocks, some of them none. */
enum { SEE_ALL, SEE_SELECTED, SEE_EXTRA, SEES };
static const char *const sees[SEES] = {"all", "selected", "selected and extra"};

static void visible(hk *k, int slot, int see, const shape *g) {
    const int32_t T = k->c.T, Tc = k->c.Tc;
    if (see == SEE_ALL) return;
    k->c.in_i[slot] = selection(k, T, g->width, Tc / g->ratio);
    k->c.in_cols[slot] = g->width;
    if (see != SEE_EXTRA) return;
    k->c.in_i[slot + 1] = selection(k, T, g->extras, Tc); /* more than there may be: the first `ratio` count */
    k->c.in_cols[slot + 1] = g->extras;
}

static int64_t attention(int32_t T, int32_t pos0, int see, const k_levers *lv, const shape *g) {
    int64_t bad = 0;
    for (int which = 0; which < 3; which++) {
        static const k_op op[] = {K_OP_attn_score, K_OP_attn_prob, K_OP_attn_ctx};
        char note[120];
        hk k = hk_fresh(T, lv->act);
        k.lv = *lv;
        k.d.H = g->H, k.d.G = g->G, k.d.hd = g->hd, k.d.nsel = g->width;
        k.d.ratio = see == SEE_ALL ? 0 : g->ratio;
        k.c.pos0 = pos0;
        k.c.Tc = pos0 + T;
        const int64_t Tc = k.c.Tc, kw = g->G * g->hd, qw = g->H * g->hd;
        hk_input(&k, 0, which ? g->H * Tc : qw, which == 1 ? 4 : 1, which == 1 && T == 5);
        if (which != 1) {
            hk_input(&k, 1, kw, 1, T == 5);
            hk_state(&k, Tc + 3, kw, 1);
        }
        if (which == 2) hk_input(&k, 2, g->H * Tc, 4, T == 5 && pos0);
        visible(&k, which == 1 ? 1 : which == 2 ? 3 : 2, see, g);
        k.c.cols = which == 2 ? qw : g->H * Tc;
        snprintf(note, sizeof note, "pos0 %d, %d heads, %s, softmax %d, kv %d, round %d", pos0, g->H, sees[see],
                 lv->sweep, lv->kv, lv->inner);
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
    static const int32_t heads[] = {40, 128, 256};
    int64_t bad = 0;
    (void)s;
    HK_EACH(hd, heads)
    HK_EACH(T, hk_T)
    for (int32_t pos0 = 0; pos0 < 200; pos0 += 67) {
        shape g = usual;
        g.hd = heads[hd_i];
        if (hd_i && pos0 != 67) continue; /* the long heads: once, and under some of the levers */
        if (hk_too_long((int64_t)hk_T[T_i] * (hk_T[T_i] + pos0) * 2 * heads[hd_i])) continue;
        HK_EACH(set, sets)
        for (int see = 0; see < SEES; see++) {
            if (hd_i ? (set_i + hd_i) % 2 : hk_emulated && pos0 / 67 % 2 != set_i % 2) continue;
            if (hk_emulated && hk_T[T_i] >= 63 && see != (int)set_i % SEES) continue;
            bad += attention(hk_T[T_i], pos0, see, &sets[set_i], &g);
        }
    }
    assert_int_equal(bad, 0);
}

/* Lists of visible tokens around the edges of what a block takes at once: 128 tokens or words of 32, a word a thread,
 * words beyond shared memory; nothing at all; heads of a group that one block does not take; more extra tokens than a
 * warp has lanes. */
static void lists(void **s) {
    static const struct {
        int32_t pos0;
        int see;
        shape g;
    } cases[] = {
        {126, SEE_ALL, {4, 2, 40, 0, 0, 0}},        {127, SEE_ALL, {9, 1, 32, 0, 0, 0}},
        {128, SEE_ALL, {16, 2, 33, 0, 0, 0}},       {255, SEE_ALL, {17, 1, 5, 0, 0, 0}},
        {256, SEE_ALL, {24, 2, 64, 0, 0, 0}},       {4095, SEE_ALL, {2, 1, 8, 0, 0, 0}},
        {4096, SEE_ALL, {2, 2, 8, 0, 0, 0}},        {7, SEE_SELECTED, {4, 2, 40, 8, 0, 0}},
        {500, SEE_SELECTED, {12, 1, 40, 4, 30, 0}}, {511, SEE_EXTRA, {12, 1, 40, 4, 32, 3}},
        {700, SEE_EXTRA, {4, 1, 8, 40, 4, 50}},     {5000, SEE_SELECTED, {3, 1, 8, 4, 300, 0}},
        {9001, SEE_EXTRA, {2, 1, 8, 4, 512, 3}},    {20000, SEE_SELECTED, {2, 1, 8, 4, 512, 0}},
        {327678, SEE_EXTRA, {1, 1, 4, 4, 200, 3}},  {327679, SEE_SELECTED, {1, 1, 4, 4, 200, 0}},
        {327680, SEE_EXTRA, {1, 1, 4, 4, 200, 3}},
    };
    int64_t bad = 0;
    (void)s;
    HK_EACH(case, cases)
    for (int sweep = 0; sweep < 2; sweep++) {
        if (hk_emulated && cases[case_i].pos0 > 4000 && (case_i + sweep) % 2) continue;
        const k_levers lv = {.sweep = sweep ? K_SWEEP_ONLINE : K_SWEEP_TWO_PASS};
        bad +=
            attention(cases[case_i].pos0 > 10000 ? 1 : 2, cases[case_i].pos0, cases[case_i].see, &lv, &cases[case_i].g);
    }
    assert_int_equal(bad, 0);
}

/* A call whose lists do not fit into its scratch is refused. */
static void scratch(void **s) {
    static const k_op op[] = {K_OP_attn_score, K_OP_attn_prob, K_OP_attn_ctx};
    static float some[64];
    (void)s;
    for (int which = 0; which < 3; which++) {
        hk k = hk_fresh(3, K_ACT_F32);
        k.d.ratio = 8, k.d.nsel = 2, k.d.H = k.d.G = 1, k.d.hd = 4;
        const int64_t width[3] = {4, 100, 100}, cols[3] = {100, 100, 4};
        k_state st = {.f = some, .cols = 4, .cap = 100};
        k.c.pos0 = 97, k.c.Tc = 100, k.c.cols = cols[which], k.c.out = k.c.scratch = some;
        k.c.in[0] = some, k.c.in_cols[0] = width[which];
        if (which != 1) k.c.in[1] = some, k.c.in_cols[1] = 4, k.c.st[0] = &st;
        k.c.d = &k.d, k.c.lv = &k.lv;
        const int slot = (int[]){2, 1, 3}[which];
        k.c.in_i[slot] = (const int32_t *)(const void *)some;
        k.c.in_cols[slot] = 2;
        k.c.scratch_n = 3 * (1 + 32 + 4); /* a number, the tokens of two blocks, the tail and extras; bits */
        assert_null(k_dev_unfit(op[which], &k.c));
        k.c.scratch_n--;
        assert_non_null(k_dev_unfit(op[which], &k.c));
        k.c.scratch_n++;
        k.d.ratio = 0;
        assert_non_null(k_dev_unfit(op[which], &k.c));
        k.c.in_i[slot] = NULL; /* nothing is listed */
        assert_null(k_dev_unfit(op[which], &k.c));
    }
}

/* ---- the indexer ---- */

static int64_t indexing(int32_t id, int32_t T, int32_t pos0, int v) {
    int64_t bad = 0;
    for (int which = 0; which < 3; which++) {
        static const k_op op[] = {K_OP_idx_pool, K_OP_idx_score, K_OP_idx_sel};
        hk k = hk_fresh(T, v & 1);
        k.d.ih = 3, k.d.id = id, k.d.ratio = 8, k.d.rot = 16, k.d.nsel = 5;
        k.lv.freq = v >> 1 & 1;
        k.lv.table = v & 2 ? K_FOLLOW_BF16 - (v & 1) : K_FOLLOW;
        k.lv.eps = v & 2 ? (int32_t)k_f32_bits(1e-2f) : 0;
        k.lv.tie = v >> 1;
        k.c.pos0 = pos0;
        k.c.Tc = pos0 + T;
        const int32_t nb = k.c.Tc / 8 > 0 ? k.c.Tc / 8 : 1;
        if (which == 0) {
            hk_input(&k, 0, id, 1, 0);
            hk_par(&k, 0, id, 1);
            hk_par(&k, 1, 8, 1);
            hk_state(&k, k.c.Tc, id, 1);
            k.c.cols = id;
        } else if (which == 1) {
            hk_input(&k, 0, 3 * id, 1, 0);
            hk_input(&k, 1, id, 1, 0);
            hk_state(&k, nb + 1, id, 1);
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
    for (int32_t pos0 = 0; pos0 < 3000; pos0 = 7 * pos0 + 13) {
        if (!hk_too_long((int64_t)hk_T[T_i] * (hk_T[T_i] + pos0) * 20)) {
            for (int v = 0; v < 8; v++) bad += indexing(40, hk_T[T_i], pos0, v);
            for (int on = 0; on < 2; on++) bad += extra(hk_T[T_i], pos0, on);
        }
        if (!hk_too_long((int64_t)hk_T[T_i] * (hk_T[T_i] + pos0) * 64))
            for (int v = 0; v < 8; v += 3) bad += indexing(128, hk_T[T_i], pos0, v);
    }
    assert_int_equal(bad, 0);
}

/* ---- the harness sees ---- */

static void twin(void **s) {
    (void)s;
    static const k_levers online = {.sweep = K_SWEEP_ONLINE, .kv = K_KV_F16};
    hp_flip(1, 0x80000000u); /* of a query, a score, and a probability, which the online softmax does not read */
    assert_true(attention(1, 3, SEE_ALL, &online, &usual) > 4);
    static const k_levers two_pass = {.sweep = K_SWEEP_TWO_PASS};
    assert_true(attention(1, 3, SEE_ALL, &two_pass, &usual) > 4 + 40); /* a head's columns of the context too */
    hp_flip(0, 0);
    hp_flip(0, 0x7f000000u); /* the first block's score, made a large one or a small one */
    int64_t seen = 0;
    for (int32_t pos0 = 330; pos0 < 430; pos0++) seen += extra(1, pos0, 1); /* where it is not selected anyhow */
    assert_true(seen > 0);
    hp_flip(0, 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(attn), cmocka_unit_test(lists), cmocka_unit_test(scratch),
                                       cmocka_unit_test(indexer), cmocka_unit_test(twin)};
    hk_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("attn", tests, NULL, NULL);
    hp_close();
    return failed;
}
