/* rope: f64 from the f32 angle, element by element; splits, levers, NaN. */
#include <math.h>
#include <stdlib.h>

#include "kernels/rope.h"
#include "tests/h_call.h"

typedef struct {
    k_dims d;
    k_levers lv;
    int32_t T, pos0, heads, G;
    float *x, *freq;
} task;

static task task_new(uint64_t seed, int heads, int G, int rot, int T, int pos0, int act) {
    h_rng r = {seed};
    task a = {.d = {.rot = rot}, .lv = {.act = act}, .T = T, .pos0 = pos0, .heads = heads, .G = G};
    a.x = h_normal(&r, (int64_t)T * heads * G, 1, act);
    a.freq = h_nans(rot / 2);
    for (int i = 0; i < rot / 2; i++) a.freq[i] = (float)pow(1e7, -2.0 * i / rot);
    return a;
}

static void task_free(task *a) {
    free(a->x), free(a->freq);
}
static int64_t cells(const task *a) {
    return (int64_t)a->T * a->heads * a->G;
}

/* The dtype of the table, written anew. */
static int table_act(const task *a) {
    return a->lv.table == K_FOLLOW ? a->lv.act == K_ACT_BF16 : a->lv.table == K_FOLLOW_BF16;
}

/* Rows t0 .. t0 + n as a call; band: NULL or added to. */
static void run_band(const task *a, int t0, int n, int nth, float *out, k_band *band) {
    k_call c = h_call(&a->d, &a->lv, a->T, a->pos0, nth, rope_scratch(&a->d));
    c.G = a->G, c.cols = c.in_cols[0] = (int64_t)a->heads * a->G;
    c.in[0] = a->x, c.out = out, c.par[0] = a->freq;
    k_call part = h_tile(&c, t0, n);
    rope_cpu(&part);
    if (band) rope_band(&part, band);
    h_scratch_free(&c);
}

static void run(const task *a, int t0, int n, int nth, float *out) {
    run_band(a, t0, n, nth, out, NULL);
}

enum { SOUND, NEXT_POSITION, PAIRS_ADJACENT, OTHER_WAY, FAULTS };

/* Largest share of its bound that an element uses; above 1 is outside. Bound: the table is off by 0.52 ulp (two u of a
 * value below 1), then by its store; product, product and sum round once each. */
static double share(const task *a, const float *out, int fault) {
    const double u = a->lv.act ? 0x1p-8 : 0x1p-24, ut = table_act(a) ? 0x1p-8 : 0x1p-24;
    const int half = a->d.rot / 2;
    double worst = 0;
    for (int64_t i = 0; i < cells(a); i++) {
        const int e = (int)(i % a->G), t = (int)(i / ((int64_t)a->heads * a->G));
        double want = (double)a->x[i], bound = 0;
        if (e < a->d.rot) {
            const int first = fault == PAIRS_ADJACENT ? e % 2 == 0 : e < half,
                      j = fault == PAIRS_ADJACENT ? e / 2 : e % half;
            const int64_t other = fault == PAIRS_ADJACENT ? i ^ 1 : first ? i + half : i - half;
            const float angle = a->freq[j] * (float)(a->pos0 + t + (fault == NEXT_POSITION));
            const double c = cos((double)angle), s = sin((double)angle) * (fault == OTHER_WAY ? -1 : 1);
            const double xc = (double)a->x[i] * c, ys = (double)a->x[other] * s * (first ? -1 : 1);
            want = xc + ys;
            bound = (fabs(xc) + fabs(ys)) * (u + ut + 0x1.2p-24) + fabs(want) * u;
            bound *= 1 + 2 * u + 2 * ut;
        }
        double d = fabs((double)out[i] - want);
        if (!(d <= bound)) return d > 0 && bound == 0 ? INFINITY : d / bound;
        if (bound > 0 && d / bound > worst) worst = d / bound;
    }
    return worst;
}

static const int lengths[] = {1, 3, 4, 5, 63, 64, 65, 70, 128, 130};

static void test_f64(void **state) {
    (void)state;
    for (int k = 0; k < 6; k++) { /* act x rope.table */
        const int act = k % 2;
        double worst = 0;
        for (int i = 0; i < 30; i++) {
            task a =
                task_new((uint64_t)i, 1 + i % 3, i % 2 ? 64 : 48, i % 2 ? 64 : 16, lengths[i / 3], i % 3 * 70001, act);
            a.lv.table = k / 2;
            float *out = h_nans(cells(&a));
            run(&a, 0, a.T, 1, out);
            double s = share(&a, out, SOUND);
            worst = fmax(worst, s);
            if (!(s <= 1)) fail_msg("T %d: %g of the bound", a.T, s);
            for (int f = 1; f < FAULTS; f++) {
                if (a.pos0 == 0 && a.T == 1 && f != NEXT_POSITION) continue; /* position 0 turns nothing */
                if (share(&a, out, f) <= 1) fail_msg("T %d: fault %d went unseen", a.T, f);
            }
            free(out), task_free(&a);
        }
        print_message("%s, table %s: up to %.2f of the bound\n", act ? "bf16" : "f32",
                      k / 2 == 0   ? "alike"
                      : k / 2 == 1 ? "f32"
                                   : "bf16",
                      worst);
    }
}

/* The band, for each dtype of the table and of the products. */
static void test_band(void **state) {
    (void)state;
    for (int k = 0; k < 6; k++) {
        task a = task_new(80, 4, 64, 64, 200, 3000, k % 2);
        a.lv.table = k / 2;
        const int64_t n = cells(&a);
        float *out = h_nans(n);
        double *want = malloc((size_t)n * 8);
        k_band b = {0, 0};
        assert_non_null(want);
        for (int64_t i = 0; i < n; i++) {
            const int e = (int)(i % 64), j = e % 32;
            const double angle = (double)(a.freq[j] * (float)(3000 + i / 256)), c = cos(angle), s = sin(angle);
            want[i] = (double)a.x[i] * c + (double)a.x[e < 32 ? i + 32 : i - 32] * (e < 32 ? -s : s);
        }
        run_band(&a, 0, 200, 1, out, &b);
        const double d = h_dist(out, want, n);
        print_message("act %d, table %d: %.2f of rms, %.2f of hard\n", k % 2, k / 2, d / sqrt(b.rms2),
                      d / sqrt(b.hard2));
        assert_true(d <= sqrt(b.hard2) && d <= 1.5 * sqrt(b.rms2) && d >= 0.5 * sqrt(b.rms2));
        for (int64_t i = 0; i < n; i++) out[i] *= 1.0f + 0x1p-6f; /* the twin */
        assert_false(h_dist(out, want, n) <= 1.5 * sqrt(b.rms2));
        free(out), free(want), task_free(&a);
    }
}

/* Dims behind rot are moved, position 0 moves all (whole numbers stay what they are), the rest turns. */
static void test_partial(void **state) {
    (void)state;
    task a = task_new(50, 3, 48, 16, 5, 0, K_ACT_BF16);
    h_rng r = {51};
    free(a.x);
    a.x = h_whole(&r, cells(&a), -100, 100);
    float *out = h_nans(cells(&a));
    run(&a, 0, 5, 1, out);
    assert_bits_equal("position 0", out, a.x, 3 * 48);
    for (int row = 3; row < 15; row++) {
        assert_bits_equal("dims behind", out + row * 48 + 16, a.x + row * 48 + 16, 32);
        assert_true(h_same(out + row * 48, a.x + row * 48, 16) < 1);
    }
    free(out), task_free(&a);
}

static void test_order(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++) { /* act x freq x table */
        task a = task_new(60, 2, 40, 32, 70, 1000, i & 1);
        a.lv.freq = i >> 1 & 1;
        a.lv.table = i >> 2;
        float *out = h_nans(cells(&a)), *want = h_copy(a.x, cells(&a));
        run(&a, 0, 70, 1, out);
        for (int64_t row = 0; row < 140; row++)
            for (int e = 0; e < 16; e++) {
                float f = a.lv.freq ? k_round_bf16(a.freq[e]) : a.freq[e], s, c, *x = want + row * 40 + e, lo = x[0],
                      hi = x[16];
                k_sincos(f * (float)(1000 + row / 2), &s, &c);
                if (table_act(&a)) s = k_round_bf16(s), c = k_round_bf16(c);
                x[0] = k_rd(k_rd(lo * c, a.lv.act) - k_rd(hi * s, a.lv.act), a.lv.act);
                x[16] = k_rd(k_rd(hi * c, a.lv.act) + k_rd(lo * s, a.lv.act), a.lv.act);
            }
        assert_bits_equal("order", out, want, (size_t)cells(&a));
        a.lv.freq = !a.lv.freq; /* the levers are alive */
        run(&a, 0, 70, 1, out);
        assert_true(h_same(out, want, cells(&a)) < 1);
        a.lv.freq = !a.lv.freq;
        a.lv.table = table_act(&a) ? K_FOLLOW_F32 : K_FOLLOW_BF16;
        run(&a, 0, 70, 1, out);
        assert_true(h_same(out, want, cells(&a)) < 1);
        free(out), free(want), task_free(&a);
    }
}

static void test_splits(void **state) {
    (void)state;
    for (int act = 0; act < 2; act++) {
        task a = task_new(70, 4, 256, 64, 130, 20, act);
        const int64_t row = 4 * 256, n = cells(&a);
        float *o1 = h_nans(n), *o2 = h_nans(n);
        run(&a, 0, 130, 1, o1);
        for (int t = 0; t < 130; t++) run(&a, t, 1, 1, o2);
        assert_bits_equal("token by token", o2, o1, (size_t)n);
        run(&a, 0, 64, 3, o2), run(&a, 64, 66, 2, o2);
        assert_bits_equal("tiles and threads", o2, o1, (size_t)n);
        a.x[5 * row + 300] = NAN; /* head 1, dim 44 of a pair (12, 44) */
        run(&a, 0, 130, 1, o2);
        for (int64_t i = 0; i < n; i++) {
            int hit = i == 5 * row + 300 || i == 5 * row + 268;
            if (hit ? o2[i] == o2[i] : memcmp(&o1[i], &o2[i], 4) != 0) fail_msg("NaN at [%d]", (int)i);
        }
        a.pos0 = 21; /* the twin */
        run(&a, 0, 130, 1, o2);
        assert_true(h_same(o1, o2, n) < 1);
        free(o1), free(o2), task_free(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_f64), cmocka_unit_test(test_band),
                                       cmocka_unit_test(test_partial), cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_splits)};
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
