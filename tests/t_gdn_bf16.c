/* gdn=chunk64-bf16: each placement bit by bit in plain loops, needed and within the band; what the chunked rule moves
 * by reassociation alone, in f64 and in f32, and what its bf16 placements move. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gdn.h"
#include "kernels/round.h"
#include "tests/h_call.h"
#include "tests/h_gdn.h"

static const struct {
    const char *name;
    int32_t place;
    size_t field;
} subs[] = {
    {"h", K_PLACE_H, offsetof(k_levers, gdn_h)},          {"hop", K_PLACE_HOP, offsetof(k_levers, gdn_hop)},
    {"w", K_PLACE_W, offsetof(k_levers, gdn_w)},          {"u", K_PLACE_U, offsetof(k_levers, gdn_u)},
    {"vnew", K_PLACE_VNEW, offsetof(k_levers, gdn_vnew)}, {"inv", K_PLACE_INV, offsetof(k_levers, gdn_inv)},
};
enum { NSUB = sizeof subs / sizeof *subs, ALL = 63 };

static void set(h_gdn *a, int sub, int32_t value) {
    memcpy((char *)&a->lv + subs[sub].field, &value, sizeof value);
}

/* Two ways to say one set of placements: levers on top of chunk64, or levers taken from chunk64-bf16. */
static int say(h_gdn *a, int32_t places, int from) {
    for (int s = 0; s < NSUB; s++) {
        int on = (places & subs[s].place) != 0;
        set(a, s, from == K_GDN_CHUNK64 ? (on ? K_FOLLOW_BF16 : K_FOLLOW) : (on ? K_FOLLOW : K_FOLLOW_F32));
    }
    return from;
}

static void set_reads(void **state) {
    (void)state;
    k_levers lv = {.gdn = K_GDN_CHUNK64_BF16};
    assert_int_equal(k_gdn_places(&lv), ALL);
    lv.gdn = K_GDN_CHUNK64;
    assert_int_equal(k_gdn_places(&lv), 0);
    for (int s = 0; s < NSUB; s++) {
        h_gdn a = {.lv = {.gdn = K_GDN_CHUNK64}};
        set(&a, s, K_FOLLOW_BF16);
        assert_int_equal(k_gdn_places(&a.lv), subs[s].place);
        a.lv.gdn = K_GDN_CHUNK64_BF16;
        set(&a, s, K_FOLLOW_F32);
        assert_int_equal(k_gdn_places(&a.lv), ALL & ~subs[s].place);
    }
}

/* The op against plain loops, by both ways; and each placement missing from the loops shows. */
static void orders(void **state) {
    (void)state;
    static const int lengths[] = {1, 5, 64, 70, 130};
    for (int i = 0; i < 10; i++) {
        h_gdn a = h_gdn_new(1000 + (uint64_t)i, 2, 4, i % 2 ? 20 : 16, i % 2 ? 44 : 16, lengths[i / 2], i % 2 * 9);
        const int64_t no = h_gdn_nout(&a), ns = h_gdn_nstate(&a);
        float *out = h_nans(no), *S = h_nans(ns), *want = h_nans(no), *Sw = h_nans(ns);
        for (int s = 0; s <= NSUB && !(a.T == 1 && a.pos0); s++) {
            const int32_t places = s < NSUB ? subs[s].place : ALL;
            memcpy(Sw, a.S0, (size_t)ns * 4);
            for (int h = 0; h < 4; h++) h_gdn_order_chunk(&a, h, places, want, Sw);
            for (int from = K_GDN_CHUNK64; from <= K_GDN_CHUNK64_BF16; from++) {
                h_gdn_run1(&a, say(&a, places, from), out, S, NULL);
                assert_bits_equal(s < NSUB ? subs[s].name : "all", out, want, (size_t)no);
                assert_bits_equal("the state behind it", S, Sw, (size_t)ns);
            }
            for (int t = 0; t < NSUB && a.T == 130; t++) { /* the twin */
                if (!(places & subs[t].place)) continue;
                memcpy(Sw, a.S0, (size_t)ns * 4);
                for (int h = 0; h < 4; h++) h_gdn_order_chunk(&a, h, places & ~subs[t].place, want, Sw);
                if (h_same(out, want, no) == 1) fail_msg("%s of %d does not show", subs[t].name, (int)places);
            }
        }
        free(out), free(S), free(want), free(Sw), h_gdn_free(&a);
    }
}

static void bands(void **state) {
    (void)state;
    for (int s = 0; s < NSUB; s++) {
        double low = 1e9, high = 0, slow = 1e9, shigh = 0;
        for (int i = 0; i < 6; i++) {
            h_gdn a = h_gdn_new(1100 + (uint64_t)i, 2, 6, 32, 40, i % 3 == 0 ? 40 : 150, 11);
            const int64_t no = h_gdn_nout(&a), ns = h_gdn_nstate(&a);
            float *out = h_nans(no), *S = h_nans(ns);
            double *ref = malloc((size_t)no * 8), *Sref = malloc((size_t)ns * 8);
            k_band b[2] = {{0, 0}}, none[2] = {{0, 0}};
            assert_true(ref && Sref);
            if (i % 2) /* keys near each other: a solve that has work to do */
                for (int t = 2; t < a.T * 2; t++)
                    for (int e = 0; e < 32; e++) a.k[t * 32 + e] = a.k[t % 2 * 32 + e] + 0.3f * a.k[t * 32 + e];
            h_gdn_f64(&a, H_GDN_SOUND, ref, Sref);
            h_gdn_run1(&a, K_GDN_CHUNK64, out, S, none);
            h_gdn_run1(&a, say(&a, subs[s].place, K_GDN_CHUNK64), out, S, b);
            const double d = h_dist(out, ref, no), ds = h_dist(S, Sref, ns);
            assert_true(d <= sqrt(b[0].hard2) && ds <= sqrt(b[1].hard2));
            assert_true(b[0].rms2 > 4 * none[0].rms2 && d > 2 * sqrt(none[0].rms2)); /* f32's band would not hold it */
            low = fmin(low, d / sqrt(b[0].rms2)), high = fmax(high, d / sqrt(b[0].rms2));
            slow = fmin(slow, ds / sqrt(b[1].rms2)), shigh = fmax(shigh, ds / sqrt(b[1].rms2));
            free(out), free(S), free(ref), free(Sref), h_gdn_free(&a);
        }
        print_message("  gdn.%-5s distance %.2f to %.2f of rms, of the state %.2f to %.2f\n", subs[s].name, low, high,
                      slow, shigh);
        assert_true(low >= 0.4 && high <= 2);
        assert_true(slow >= 0.2 && shigh <= 3);
    }
}

/* ---- the split: what is reassociation, what is rounding ---- */

enum { C = 64 };

/* U or K of a chunk in f64: rows of `cols`, row i scaled by s_i, then substituted. */
static void solve_f64(double A[C][C], int n, const float *x, int64_t step, const double *s, int cols, double *y) {
    for (int i = 0; i < n; i++)
        for (int c = 0; c < cols; c++) {
            y[i * cols + c] = s[i] * (double)x[i * step + c];
            for (int j = 0; j < i; j++) y[i * cols + c] -= A[i][j] * y[j * cols + c];
        }
}

/* Rows t0 .. t0 + n of head h by the chunked rule in f64. */
static void chunk_f64(const h_gdn *a, int h, int t0, int n, double *out, double *S) {
    const int dk = a->d.dk, dv = a->d.dv, nk = a->d.nk, nv = a->d.nv, kh = h / (nv / nk);
    const float *q = a->q + ((int64_t)t0 * nk + kh) * dk, *k = a->k + ((int64_t)t0 * nk + kh) * dk;
    const float *v = a->v + ((int64_t)t0 * nv + h) * dv;
    const int64_t ks = (int64_t)nk * dk, vs = (int64_t)nv * dv;
    static double A[C][C], P[C][C], U[C * 128], K[C * 128];
    double G[C], b[C], bE[C], sum = 0;
    for (int i = 0; i < n; i++) {
        G[i] = sum += (double)a->g[(t0 + i) * nv + h];
        b[i] = (double)a->beta[(t0 + i) * nv + h];
        bE[i] = b[i] * exp(G[i]);
        for (int j = 0; j <= i; j++) {
            double kk = 0, qk = 0, X = exp(G[i] - G[j]);
            for (int e = 0; e < dk; e++) {
                kk += (double)k[i * ks + e] * (double)k[j * ks + e];
                qk += (double)q[i * ks + e] * (1 / sqrt(dk)) * (double)k[j * ks + e];
            }
            A[i][j] = b[i] * kk * X;
            P[i][j] = qk * X;
        }
    }
    solve_f64(A, n, v, vs, b, dv, U);
    solve_f64(A, n, k, ks, bE, dk, K);
    for (int c = 0; c < dv; c++) {
        for (int i = 0; i < n; i++) {
            double w = 0, o = 0;
            for (int e = 0; e < dk; e++) {
                w += K[i * dk + e] * S[e * dv + c];
                o += (double)q[i * ks + e] * (1 / sqrt(dk)) * S[e * dv + c];
            }
            U[i * dv + c] -= w;
            o *= exp(G[i]);
            for (int j = 0; j <= i; j++) o += P[i][j] * U[j * dv + c];
            out[(t0 + i) * vs + (int64_t)h * dv + c] = o;
        }
        for (int e = 0; e < dk; e++) {
            double s = exp(G[n - 1]) * S[e * dv + c];
            for (int i = 0; i < n; i++) s += (double)k[i * ks + e] * exp(G[n - 1] - G[i]) * U[i * dv + c];
            S[e * dv + c] = s;
        }
    }
}

static void chunked_f64(const h_gdn *a, double *out, double *S) {
    const int64_t cells = (int64_t)a->d.dk * a->d.dv;
    for (int64_t i = 0; i < h_gdn_nstate(a); i++) S[i] = (double)a->S0[i];
    for (int h = 0; h < a->d.nv; h++)
        for (int t = 0; t < a->T; t += C) chunk_f64(a, h, t, a->T - t < C ? a->T - t : C, out, S + h * cells);
}

typedef struct {
    double mean, max, l2; /* of |a - b|; |a - b| / |b| in L2 */
} split;

static split split_of(const double *x, const double *y, int64_t n) {
    split s = {0, 0, 0};
    double d2 = 0, y2 = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(x[i] - y[i]);
        s.mean += d / (double)n;
        s.max = d <= s.max ? s.max : d;
        d2 += d * d;
        y2 += y[i] * y[i];
    }
    s.l2 = sqrt(d2 / y2);
    return s;
}

static double *widened(const float *x, int64_t n) {
    double *y = malloc((size_t)n * sizeof *y);
    assert_non_null(y);
    for (int64_t i = 0; i < n; i++) y[i] = (double)x[i];
    return y;
}

/* Outputs of the op under these levers, widened. */
static double *by_op(h_gdn *a, int rule, int32_t places) {
    float *out = h_nans(h_gdn_nout(a)), *S = h_nans(h_gdn_nstate(a));
    if (rule == K_GDN_CHUNK64) say(a, places, rule);
    h_gdn_run1(a, rule, out, S, NULL);
    double *y = widened(out, h_gdn_nout(a));
    free(out), free(S);
    return y;
}

static split print_split(const char *what, const double *x, const double *y, int64_t n) {
    split s = split_of(x, y, n);
    print_message("  %-30s mean %.1e  max %.1e  rel L2 %.1e\n", what, s.mean, s.max, s.l2);
    return s;
}

/* lo <= x <= hi, NaN is outside. */
static void within(const char *what, double x, double lo, double hi) {
    if (!(x >= lo && x <= hi)) fail_msg("%s: %.2e, expected %.0e to %.0e", what, x, lo, hi);
}

/* Random operands as layers see them: heads of 128, keys of length 1, the prompt's 5 tokens and three chunks. */
static void decomposition(void **state) {
    (void)state;
    static const int T[] = {5, 150};
    for (int i = 0; i < 2; i++) {
        h_gdn a = h_gdn_new(1200 + (uint64_t)i, 2, 6, 128, 128, T[i], 0);
        const int64_t n = h_gdn_nout(&a), ns = h_gdn_nstate(&a);
        double *seq = malloc((size_t)n * 8), *chunk = malloc((size_t)n * 8), *S = malloc((size_t)ns * 8);
        assert_true(seq && chunk && S);
        h_gdn_f64(&a, H_GDN_SOUND, seq, S);
        chunked_f64(&a, chunk, S);
        double *s32 = by_op(&a, K_GDN_SEQ, 0), *c32 = by_op(&a, K_GDN_CHUNK64, 0), *all = by_op(&a, K_GDN_CHUNK64, ALL);
        print_message("%d tokens\n", T[i]);
        const split r64 = print_split("reassociation in f64", chunk, seq, n);
        const split r32 = print_split("reassociation in f32", c32, s32, n);
        const split b16 = print_split("all bf16 placements", all, c32, n);
        double sum2 = 0;
        for (int s = 0; s < NSUB; s++) {
            char what[32];
            double *one = by_op(&a, K_GDN_CHUNK64, subs[s].place);
            snprintf(what, sizeof what, "  gdn.%s alone", subs[s].name);
            split x = print_split(what, one, c32, n);
            /* a call of one chunk begins with an empty state: nothing to round there, and no w S */
            if (T[i] <= C && (subs[s].place & (K_PLACE_H | K_PLACE_HOP | K_PLACE_W)))
                assert_true(x.l2 == 0);
            else
                within(what, x.l2, 1e-5, 1e-2);
            sum2 += x.l2 * x.l2;
            free(one);
        }
        print_message("  %-34s rel L2 %.1e\n", "  the six as independent errors", sqrt(sum2));
        /* reported of one model, on its own operands: 1e-17, 4e-8, 2e-4 */
        within("f64", r64.max, 1e-18, 2e-16);
        within("f32", r32.max, 4e-9, 4e-7);
        within("bf16", b16.max, 2e-5, 2e-3);
        /* in any statistic: 29 bits from f64 to f32; one bf16 rounding is 2^16 of an f32 one, a sum has many */
        within("f32 over f64", r32.l2 / r64.l2, 0x1p27, 0x1p31);
        within("bf16 over f32", b16.l2 / r32.l2, 5e2, 5e4);
        within("the whole over its independent parts", b16.l2 / sqrt(sum2), 0.5, 2);
        within("chunks in f32 against f64", split_of(c32, seq, n).l2, 1e-8, 1e-6);
        /* twins: a rounding to bf16 is no reassociation, and a fault is neither */
        assert_false(b16.max <= 4e-7);
        assert_false(b16.l2 / r64.l2 <= 0x1p31);
        h_gdn_f64(&a, H_GDN_NO_BETA, seq, S);
        assert_false(split_of(c32, seq, n).max <= 2e-3);
        free(seq), free(chunk), free(S), free(s32), free(c32), free(all), h_gdn_free(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(set_reads), cmocka_unit_test(orders), cmocka_unit_test(bands),
                                       cmocka_unit_test(decomposition)};
    return cmocka_run_group_tests_name("gdn_bf16", tests, NULL, NULL);
}
