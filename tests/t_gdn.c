/* gdn_core: the f64 rule written from the spec, both orders bit by bit in plain loops, whole numbers, invariances. */
#include <math.h>
#include <stdlib.h>

#include "kernels/gdn.h"
#include "kernels/round.h"
#include "tests/h_call.h"
#include "tests/h_gdn.h"

static const int lengths[] = {1, 3, 4, 5, 63, 64, 65, 70, 128, 130};
enum { NLEN = 10, RULES = 3 };
static const char *const names[RULES] = {"seq", "chunk64", "chunk64-bf16"};

/* ---- tests ---- */

static int inside(const float *out, const double *ref, int64_t n, const k_band *b) {
    double d = h_dist(out, ref, n);
    return d <= sqrt(b->hard2) && d <= 3 * sqrt(b->rms2);
}

static void test_f64(void **state) {
    (void)state;
    for (int rule = 0; rule < RULES; rule++) {
        double low = 1e9, high = 0, share = 0, slow = 1e9, shigh = 0;
        for (int i = 0; i < 2 * NLEN; i++) {
            h_gdn a =
                h_gdn_new((uint64_t)i, 2, i % 3 ? 6 : 4, i % 2 ? 24 : 16, i % 2 ? 20 : 16, lengths[i / 2], i % 2 * 7);
            int64_t n = h_gdn_nout(&a);
            float *out = h_nans(n), *S = h_nans(h_gdn_nstate(&a));
            double *ref = malloc((size_t)n * 8), *Sref = malloc((size_t)h_gdn_nstate(&a) * 8);
            k_band both[2] = {{0, 0}}, both3[2] = {{0, 0}}, b;
            assert_true(ref && Sref);
            a.lv.act = i % 4 == 3;
            h_gdn_run(&a, rule, 0, (int[]){0, a.T}, 3, out, S, both3);
            h_gdn_run1(&a, rule, out, S, both);
            b = both[0];
            assert_memory_equal(both, both3, sizeof both); /* threads */
            h_gdn_f64(&a, H_GDN_SOUND, ref, Sref);
            if (!inside(out, ref, n, &b)) fail_msg("rule %d, T %d: outside its band", rule, a.T);
            if (!inside(S, Sref, h_gdn_nstate(&a), &both[1]))
                fail_msg("rule %d, T %d: state outside its band", rule, a.T);
            double y = h_dist(S, Sref, h_gdn_nstate(&a)) / sqrt(both[1].rms2);
            slow = y < slow ? y : slow, shigh = y > shigh ? y : shigh;
            if (rule != K_GDN_CHUNK64_BF16 &&
                !(h_dist(S, Sref, h_gdn_nstate(&a)) <= 1e-5 * h_norm(Sref, h_gdn_nstate(&a))))
                fail_msg("rule %d, T %d: state", rule, a.T);
            double x = h_dist(out, ref, n) / sqrt(b.rms2);
            low = x < low ? x : low, high = x > high ? x : high;
            share = fmax(share, h_dist(out, ref, n) / sqrt(b.hard2));
            for (int f = 1; f < H_GDN_FAULTS; f++) {
                h_gdn_f64(&a, f, ref, Sref);
                if (f == H_GDN_LATE_DECAY && a.T == 1) continue;
                if (f == H_GDN_OLD_STATE && a.T == 1 && !a.pos0) continue;
                if (inside(out, ref, n, &b)) fail_msg("rule %d, T %d: fault %d went unseen", rule, a.T, f);
                if (f == H_GDN_OLD_STATE || f == H_GDN_UNSCALED) continue; /* faults of the outputs alone */
                if (inside(S, Sref, h_gdn_nstate(&a), &both[1]))
                    fail_msg("rule %d, T %d: fault %d of the state", rule, a.T, f);
            }
            free(out), free(S), free(ref), free(Sref), h_gdn_free(&a);
        }
        print_message("%s: distance %.2f to %.2f of rms, up to %.3f of hard\n", names[rule], low, high, share);
        print_message("    the state: %.2f to %.2f of rms\n", slow, shigh);
        assert_true(low >= 0.5 && high <= 2);
        assert_true(slow >= 0.25 && shigh <= 3);
    }
}

static void test_orders(void **state) {
    (void)state;
    for (int i = 0; i < 2 * NLEN; i++) { /* dv 44: one block of 32, one of 8, four single columns */
        h_gdn a = h_gdn_new(100 + (uint64_t)i, 2, 4, i % 2 ? 20 : 16, i % 2 ? 44 : 16, lengths[i / 2], i % 2 * 9);
        for (int rule = 0; rule < 2; rule++) {
            if (rule && a.T == 1 && a.pos0) continue; /* goes by tokens */
            float *out = h_nans(h_gdn_nout(&a)), *S = h_nans(h_gdn_nstate(&a)), *want = h_nans(h_gdn_nout(&a)),
                  *Sw = h_copy(a.S0, h_gdn_nstate(&a));
            h_gdn_run1(&a, rule, out, S, NULL);
            for (int h = 0; h < 4; h++) rule ? h_gdn_order_chunk(&a, h, 0, want, Sw) : h_gdn_order_seq(&a, h, want, Sw);
            assert_bits_equal(rule ? "chunk64 out" : "seq out", out, want, (size_t)h_gdn_nout(&a));
            assert_bits_equal(rule ? "chunk64 state" : "seq state", S, Sw, (size_t)h_gdn_nstate(&a));
            free(out), free(S), free(want), free(Sw);
        }
        h_gdn_free(&a);
    }
}

/* Keys with one entry of +-1, beta 0 or 1, no decay: all is whole numbers, so both rules and f64 must agree exactly. */
static void test_whole(void **state) {
    (void)state;
    for (int i = 0; i < NLEN; i++) {
        h_gdn a = h_gdn_new(200 + (uint64_t)i, 2, 4, 16, 24, lengths[i], 0);
        h_rng r = {300 + (uint64_t)i};
        for (int t = 0; t < a.T * 2; t++)
            for (int e = 0, at = h_int(&r, 0, 15), sign = h_int(&r, 0, 1) * 2 - 1; e < 16; e++) {
                a.k[t * 16 + e] = e == at ? (float)sign : 0;
                a.q[t * 16 + e] = (float)h_int(&r, -3, 3);
            }
        for (int64_t e = 0; e < h_gdn_nout(&a); e++) a.v[e] = (float)h_int(&r, -50, 50);
        for (int e = 0; e < a.T * 4; e++) a.g[e] = 0, a.beta[e] = (float)h_int(&r, 0, 1);
        double *ref = malloc((size_t)h_gdn_nout(&a) * 8), *Sref = malloc((size_t)h_gdn_nstate(&a) * 8);
        float *out = h_nans(h_gdn_nout(&a)), *S = h_nans(h_gdn_nstate(&a));
        assert_true(ref && Sref);
        h_gdn_f64(&a, H_GDN_SOUND, ref, Sref);
        for (int rule = 0; rule < 2; rule++) {
            h_gdn_run1(&a, rule, out, S, NULL);
            for (int64_t e = 0; e < h_gdn_nout(&a); e++)
                if (!((double)out[e] == ref[e])) fail_msg("rule %d, T %d, [%d]: not exact", rule, a.T, (int)e);
            for (int64_t e = 0; e < h_gdn_nstate(&a); e++)
                if (!((double)S[e] == Sref[e])) fail_msg("rule %d, T %d: state not exact", rule, a.T);
        }
        a.beta[a.T * 4 - 1] = 1 - a.beta[a.T * 4 - 1]; /* the twin */
        h_gdn_run1(&a, 0, out, S, NULL);
        int moved = 0;
        for (int64_t e = 0; e < h_gdn_nstate(&a); e++) moved |= !((double)S[e] == Sref[e]);
        assert_true(moved);
        free(out), free(S), free(ref), free(Sref), h_gdn_free(&a);
    }
}

static void same(const h_gdn *a, const char *what, int rule, int calls, const int *at, int nth, int equal) {
    float *o1 = h_nans(h_gdn_nout(a)), *s1 = h_nans(h_gdn_nstate(a)), *o2 = h_nans(h_gdn_nout(a)),
          *s2 = h_nans(h_gdn_nstate(a));
    h_gdn_run1(a, rule, o1, s1, NULL);
    h_gdn_run(a, rule, calls, at, nth, o2, s2, NULL);
    if (equal) {
        assert_bits_equal(what, o2, o1, (size_t)h_gdn_nout(a));
        assert_bits_equal(what, s2, s1, (size_t)h_gdn_nstate(a));
    } else if (h_same(o2, o1, h_gdn_nout(a)) == 1) {
        fail_msg("%s: the same bits, where a difference was due", what);
    }
    free(o1), free(s1), free(o2), free(s2);
}

static void test_splits(void **state) {
    (void)state;
    int each[131];
    for (int i = 0; i <= 130; i++) each[i] = i;
    for (int pos0 = 0; pos0 < 10; pos0 += 9) {
        h_gdn a = h_gdn_new(400, 2, 6, 16, 40, 130, pos0);
        same(&a, "seq, one by one", K_GDN_SEQ, 1, each, 1, 1);
        same(&a, "seq, calls", K_GDN_SEQ, 1, (int[]){0, 1, 65, 70, 130}, 1, 1);
        same(&a, "seq, tiles", K_GDN_SEQ, 0, (int[]){0, 64, 128, 130}, 3, 1);
        same(&a, "chunk64, tiles", K_GDN_CHUNK64, 0, (int[]){0, 64, 128, 130}, 1, 1);
        same(&a, "chunk64, threads", K_GDN_CHUNK64, 0, (int[]){0, 128, 130}, 5, 1);
        same(&a, "chunk64, calls cut elsewhere", K_GDN_CHUNK64, 1, (int[]){0, 63, 130}, 1, 0); /* spec 4.4 */
        h_gdn_free(&a);
    }
    h_gdn a = h_gdn_new(500, 2, 6, 16, 40, 1, 5), b = h_gdn_new(500, 2, 6, 16, 40, 2, 5);
    float *o1 = h_nans(h_gdn_nout(&b)), *o2 = h_nans(h_gdn_nout(&b)), *s1 = h_nans(h_gdn_nstate(&a)),
          *s2 = h_nans(h_gdn_nstate(&a));
    h_gdn_run1(&a, K_GDN_SEQ, o1, s1, NULL);
    h_gdn_run1(&a, K_GDN_CHUNK64, o2, s2, NULL);
    assert_bits_equal("a single row goes by tokens", s2, s1, (size_t)h_gdn_nstate(&a));
    h_gdn_run1(&b, K_GDN_SEQ, o1, s1, NULL);
    h_gdn_run1(&b, K_GDN_CHUNK64, o2, s2, NULL);
    assert_true(h_same(s1, s2, h_gdn_nstate(&b)) < 1); /* the twin: two rows do not */
    free(o1), free(o2), free(s1), free(s2), h_gdn_free(&a), h_gdn_free(&b);
}

/* Value head r * nk + k of a GGUF is head k * nv / nk + r of HF (spec 9.4). */
static void test_head_order(void **state) {
    (void)state;
    for (int rule = 0; rule < RULES; rule++) {
        h_gdn a = h_gdn_new(600, 2, 6, 16, 16, 70, 0), b = h_gdn_new(600, 2, 6, 16, 16, 70, 0);
        b.d.gguf_heads = 1;
        for (int t = 0; t < 70; t++)
            for (int k = 0; k < 2; k++)
                for (int r = 0; r < 3; r++) {
                    int hf = t * 6 + k * 3 + r, gg = t * 6 + r * 2 + k;
                    memcpy(b.v + gg * 16, a.v + hf * 16, 64);
                    b.g[gg] = a.g[hf], b.beta[gg] = a.beta[hf];
                }
        float *o1 = h_nans(h_gdn_nout(&a)), *o2 = h_nans(h_gdn_nout(&a)), *s1 = h_nans(h_gdn_nstate(&a)),
              *s2 = h_nans(h_gdn_nstate(&a));
        h_gdn_run1(&a, rule, o1, s1, NULL);
        h_gdn_run1(&b, rule, o2, s2, NULL);
        for (int t = 0; t < 70; t++)
            for (int h = 0; h < 6; h++)
                assert_bits_equal("head order", o2 + (t * 6 + h % 3 * 2 + h / 3) * 16, o1 + (t * 6 + h) * 16, 16);
        b.d.gguf_heads = 0; /* the twin: the same values, read in the other order */
        h_gdn_run1(&b, rule, o2, s2, NULL);
        int moved = 0;
        for (int h = 0; h < 6; h++) moved |= h_same(o2 + (h % 3 * 2 + h / 3) * 16, o1 + h * 16, 16) < 1;
        assert_true(moved);
        free(o1), free(o2), free(s1), free(s2), h_gdn_free(&a), h_gdn_free(&b);
    }
}

/* A NaN in one token's value: earlier tokens and other heads keep their bits, this head is NaN from there on. */
static void test_nan(void **state) {
    (void)state;
    for (int rule = 0; rule < RULES; rule++) {
        h_gdn a = h_gdn_new(700, 2, 4, 16, 16, 70, 0);
        float *o1 = h_nans(h_gdn_nout(&a)), *o2 = h_nans(h_gdn_nout(&a)), *s1 = h_nans(h_gdn_nstate(&a)),
              *s2 = h_nans(h_gdn_nstate(&a));
        h_gdn_run1(&a, rule, o1, s1, NULL);
        a.v[(20 * 4 + 1) * 16 + 3] = NAN;
        h_gdn_run1(&a, rule, o2, s2, NULL);
        for (int t = 0; t < 70; t++)
            for (int h = 0; h < 4; h++)
                for (int j = 0; j < 16; j++) {
                    int64_t i = (t * 4 + h) * 16 + j;
                    int hit = t >= 20 && h == 1 && j == 3;
                    if (hit ? o2[i] == o2[i] : memcmp(&o1[i], &o2[i], 4) != 0) fail_msg("t %d h %d j %d", t, h, j);
                }
        a.q[(30 * 2 + 1) * 16] = NAN; /* in a query: that token's outputs of the heads that read it, no state */
        memcpy(s1, s2, (size_t)h_gdn_nstate(&a) * 4);
        h_gdn_run1(&a, rule, o2, s2, NULL);
        assert_memory_equal(s1, s2, (size_t)h_gdn_nstate(&a) * 4);
        assert_true(o2[30 * 64 + 2 * 16] != o2[30 * 64 + 2 * 16] && o2[31 * 64 + 2 * 16] == o2[31 * 64 + 2 * 16]);
        free(o1), free(o2), free(s1), free(s2), h_gdn_free(&a);
    }
}

static void test_rules_agree(void **state) {
    (void)state;
    h_gdn a = h_gdn_new(800, 2, 6, 32, 32, 130, 0);
    float *o1 = h_nans(h_gdn_nout(&a)), *o2 = h_nans(h_gdn_nout(&a)), *s1 = h_nans(h_gdn_nstate(&a)),
          *s2 = h_nans(h_gdn_nstate(&a));
    k_band both[2] = {{0, 0}}, other[2] = {{0, 0}}, b;
    h_gdn_run1(&a, K_GDN_SEQ, o1, s1, both);
    h_gdn_run1(&a, K_GDN_CHUNK64, o2, s2, other);
    b = (k_band){both[0].hard2 + other[0].hard2, both[0].rms2 + other[0].rms2};
    double ds = 0, pair = sqrt(both[1].rms2 + other[1].rms2); /* the states, too */
    for (int64_t i = 0; i < h_gdn_nstate(&a); i++)
        ds += ((double)s1[i] - (double)s2[i]) * ((double)s1[i] - (double)s2[i]);
    print_message("their states: %.2f of the pair's rms\n", sqrt(ds) / pair);
    assert_true(ds > 0 && sqrt(ds) <= 2 * pair);
    double *x = malloc((size_t)h_gdn_nout(&a) * 8);
    assert_non_null(x);
    for (int64_t i = 0; i < h_gdn_nout(&a); i++) x[i] = (double)o1[i];
    double d = h_dist(o2, x, h_gdn_nout(&a)), n = h_norm(x, h_gdn_nout(&a));
    print_message("seq against chunk64: %.2e relative L2, %.2f of the pair's rms\n", d / n, d / sqrt(b.rms2));
    assert_true(d <= 2 * sqrt(b.rms2));
    assert_true(d > 0);
    a.lv.act = K_ACT_BF16; /* the store */
    h_gdn_run1(&a, K_GDN_SEQ, o2, s2, NULL);
    for (int64_t i = 0; i < h_gdn_nout(&a); i++) o1[i] = k_round_bf16(o1[i]);
    assert_bits_equal("rd of the outputs", o2, o1, (size_t)h_gdn_nout(&a));
    free(o1), free(o2), free(s1), free(s2), free(x), h_gdn_free(&a);
}

/* Strong decays and repeated keys, where sums of exponents and the solve are at their worst; unknown state. */
static void test_band_corners(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int rule = 0; rule < RULES; rule++) {
            h_gdn a = h_gdn_new(900, 2, 4, 32, 32, 200, 3);
            for (int i = 0; i < 200 * 4; i++) a.g[i] = kind == 0 ? -3.0f : kind == 1 ? -1e-3f : -0.1f;
            if (kind == 2)
                for (int t = 2; t < 400; t++)
                    for (int e = 0; e < 32; e++) a.k[t * 32 + e] = a.k[t % 2 * 32 + e] + 0.1f * a.k[t * 32 + e];
            float *out = h_nans(h_gdn_nout(&a)), *S = h_nans(h_gdn_nstate(&a));
            double *ref = malloc((size_t)h_gdn_nout(&a) * 8), *Sref = malloc((size_t)h_gdn_nstate(&a) * 8);
            k_band both[2] = {{0, 0}}, tiled[2] = {{0, 0}}, b;
            assert_true(ref && Sref);
            h_gdn_run(&a, rule, 0, (int[]){0, 64, 128, 200}, 1, out, S, tiled);
            h_gdn_run1(&a, rule, out, S, both);
            b = both[0];
            h_gdn_f64(&a, H_GDN_SOUND, ref, Sref);
            for (int k = 0; k < 2; k++) { /* in one tile, and from one to the next of three */
                const k_band *s = k ? &tiled[1] : &both[1];
                double ds = h_dist(S, Sref, h_gdn_nstate(&a));
                print_message("    state%s: %.2f of rms, %.1e of hard\n", k ? ", three tiles" : "", ds / sqrt(s->rms2),
                              ds / sqrt(s->hard2));
                assert_true(ds <= sqrt(s->hard2) && ds <= 4 * sqrt(s->rms2) && ds >= sqrt(s->rms2) / 4);
            }
            double d = h_dist(out, ref, h_gdn_nout(&a));
            print_message("%s, %s: %.2f of rms, %.1e of hard\n", names[rule],
                          kind == 0   ? "strong decay"
                          : kind == 1 ? "hardly any decay"
                                      : "repeated keys",
                          d / sqrt(b.rms2), d / sqrt(b.hard2));
            assert_true(d <= sqrt(b.hard2));
            assert_true(d <= 4 * sqrt(b.rms2) && d >= sqrt(b.rms2) / 4);
            free(out), free(S), free(ref), free(Sref), h_gdn_free(&a);
        }
    h_gdn a = h_gdn_new(901, 2, 4, 16, 16, 8, 3);
    k_call c = h_gdn_call(&a, 1);
    k_state st = {.cols = 16, .cap = 64};
    k_band b = {0, 0};
    st.f = a.S0, c.st[0] = &st, c.out = h_nans(h_gdn_nout(&a));
    gdn_core_cpu(&c);
    gdn_core_band(&c, &b);
    assert_true(isinf(b.hard2) && b.rms2 > 0 && isfinite(b.rms2));
    free(c.out), h_scratch_free(&c), h_gdn_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f64),         cmocka_unit_test(test_orders),       cmocka_unit_test(test_whole),
        cmocka_unit_test(test_splits),      cmocka_unit_test(test_head_order),   cmocka_unit_test(test_nan),
        cmocka_unit_test(test_rules_agree), cmocka_unit_test(test_band_corners),
    };
    return cmocka_run_group_tests_name("gdn", tests, NULL, NULL);
}
