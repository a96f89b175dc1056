/* The two short convolutions and their states: kernels/conv.c. */
#include "tests/h_kern.h"

#include <math.h>

#include "kernels/conv.h"

/* conv1d and ple_conv differ in names of dimensions only; shape: {channels, taps, dilation}. pos0 > 0 has a state that
 * holds what came before. */
typedef struct {
    int64_t C;
    int32_t K, dil, pos0;
} geo;

static void build(hk *h, const geo *g) {
    h->d.Kc = h->d.Kp = g->K;
    h->d.n = g->dil;
    h->c.pos0 = g->pos0;
    h->c.cols = g->C;
    hk_state_new(h, (int64_t)(g->K - 1) * g->dil, g->C, 0);
    hk_in(h, 0, g->C, -3, 3);
    h->c.par[0] = hk_fill(h, g->C * g->K, -0.6, 0.6);
    int64_t L = h->st.rows;
    float *old = hk_fill(h, L * g->C, -3, 3);
    for (int64_t r = 0; r < L; r++) /* row r is position pos0 - L + r */
        if (g->pos0 - L + r >= 0) memcpy(h->st0 + r * g->C, old + r * g->C, (size_t)g->C * sizeof(float));
}

/* fresh and small; mid-sequence; a position whose window is half filled; more taps than the block holds; wide */
static void b_conv1d(hk *h, int32_t T, int s) {
    static const geo g[] = {{13, 4, 1, 0},  {300, 4, 1, 9}, {40, 4, 1, 2},
                            {31, 11, 1, 3}, {600, 3, 1, 0}, {20, 1, 1, 0}};
    (void)T;
    build(h, &g[s]);
}

static void b_ple(hk *h, int32_t T, int s) {
    static const geo g[] = {{13, 4, 3, 0}, {300, 4, 3, 20}, {40, 4, 3, 4},
                            {31, 9, 2, 3}, {600, 2, 4, 1},  {520, 4, 3, 0}};
    (void)T;
    build(h, &g[s]);
}

/* Column ch of the sequence at absolute position p. */
static float x_at(const hk *h, int64_t p, int64_t ch) {
    int64_t r = p - h->c.pos0;
    return r >= 0 ? h->c.in[0][r * h->c.cols + ch] : h->st0[(r + h->st.rows) * h->c.cols + ch];
}

static void walk(const hk *h, int32_t K, int32_t dil, float *y, double *e) {
    for (int64_t t = 0; t < h->c.T; t++)
        for (int64_t ch = 0; ch < h->c.cols; ch++) {
            float sum = 0;
            double exact = 0;
            for (int32_t j = 0; j < K; j++) {
                int64_t p = h->c.pos0 + t - (int64_t)dil * (K - 1 - j);
                if (p < 0) continue;
                sum = fmaf(h->c.par[0][ch * K + j], x_at(h, p, ch), sum);
                exact += (double)h->c.par[0][ch * K + j] * (double)x_at(h, p, ch);
            }
            if (y) {
                float u = hk_rd(h, 0, sum);
                y[t * h->c.cols + ch] = hk_rd(h, 1, u / (1.0f + k_exp(-u)));
            }
            if (e) e[t * h->c.cols + ch] = exact / (1 + exp(-exact));
        }
}

static void m_conv1d(const hk *h, float *y) {
    walk(h, h->d.Kc, 1, y, NULL);
}
static void e_conv1d(const hk *h, double *e) {
    walk(h, h->d.Kc, 1, NULL, e);
}
static void m_ple(const hk *h, float *y) {
    walk(h, h->d.Kp, h->d.n, y, NULL);
}
static void e_ple(const hk *h, double *e) {
    walk(h, h->d.Kp, h->d.n, NULL, e);
}

static const hk_op ops[] = {
    {"conv1d", conv1d_cpu, NULL, b_conv1d, m_conv1d, e_conv1d, 6, 3},
    {"ple_conv", ple_conv_cpu, NULL, b_ple, m_ple, e_ple, 6, 3},
};
enum { NOPS = sizeof ops / sizeof *ops };

/* The state after a call holds the last columns, whatever T: shorter than the state, equal, longer. */
static void state_rows(void **state) {
    (void)state;
    for (int k = 0; k < NOPS; k++)
        for (int32_t T = 1; T < 14; T++) {
            hk h = {.seed = 8, .drop = -1, .c.T = T, .c.nth = 1};
            ops[k].build(&h, T, 2);
            float *y = hk_alloc(&h, (size_t)(T * h.c.cols) * sizeof *y);
            hk_run(&h, ops[k].op, y, 0);
            int64_t L = h.st.rows, bad = 0, skewed = 0;
            for (int64_t r = 0; r < L; r++)
                for (int64_t ch = 0; ch < h.c.cols; ch++) {
                    int64_t p = h.c.pos0 + T - L + r;
                    float got = h.st.f[r * h.c.cols + ch], want = x_at(&h, p, ch);
                    bad += k_f32_bits(got) != k_f32_bits(want);
                    skewed += k_f32_bits(got) != k_f32_bits(p > h.c.pos0 - L ? x_at(&h, p - 1, ch) : 0);
                }
            assert_int_equal(bad, 0);
            assert_true(skewed > 0); /* twin: one column off is another state */
            hk_free(&h);
        }
}

/* Random against f64 within the bound from the taps: |sum - exact| <= K u / (1 - K u) sum|w x|, then the slope of silu
 * (below 1.1), silu's own 2 ulp, and the two stores. Prints the largest share used. */
static void bound(void **state) {
    (void)state;
    int bad = 0;
    for (int k = 0; k < NOPS; k++)
        for (int act = 0; act < 2; act++) {
            hk h = {.seed = 8, .drop = -1, .lv.act = act, .c.T = 60, .c.nth = 1};
            ops[k].build(&h, 60, 1);
            int64_t n = h.c.T * h.c.cols, K = h.d.Kc;
            float *y = hk_alloc(&h, (size_t)n * sizeof *y);
            double *e = hk_alloc(&h, (size_t)n * sizeof *e), worst = 0, twin = 0;
            hk_run(&h, ops[k].op, y, 0);
            ops[k].exact(&h, e);
            for (int64_t i = 0; i < n; i++) {
                double mag = 0, u = (double)K * 0x1p-24, store = act ? 0x1p-8 : 0;
                int32_t dil = k ? h.d.n : 1;
                for (int32_t j = 0; j < K; j++) {
                    int64_t p = h.c.pos0 + i / h.c.cols - (int64_t)dil * (K - 1 - j);
                    mag += fabs((double)h.c.par[0][i % h.c.cols * K + j] * (double)x_at(&h, p, i % h.c.cols));
                }
                /* the sum itself: silu^-1 is not needed, |sum| <= mag */
                double b = 1.1 * (u / (1 - u) * mag + store * mag) + (4 * 0x1p-24 + store) * fabs(e[i]) * 1.01;
                double share = fabs((double)y[i] - e[i]) / b;
                if (!(share <= worst)) worst = share;
                share = fabs((double)y[i] * 1.02 - e[i]) / b;
                if (share > twin) twin = share;
            }
            print_message("%-9s %s: %.3f of hard\n", ops[k].name, act ? "bf16" : "f32 ", worst);
            if (!(worst <= 1.0 && worst >= 0.05) || !(twin > 1.0)) bad++;
            hk_free(&h);
        }
    assert_int_equal(bad, 0);
}

/* One channel, taps {1, 2, 4, 8}: sums are exact and large enough (or 0) for silu to be the identity (or 0). */
static void exact_rows(void **state) {
    (void)state;
    static const float w[] = {1, 2, 4, 8};
    static const struct {
        float x[6], y[6];
        int32_t ple;
    } rows[] = {
        {{16, 0, 0, 16, 0, 32}, {128, 64, 32, 144, 64, 288}, 0}, /* the first 16 arrives at t=3 with weight 1 */
        {{16, 0, 0, 16, 0, 32}, {128, 0, 0, 192, 0, 256}, 1},    /* dilation 3: t=3 sees t=0 with weight 4 */
        {{0, -0.0f, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, 0},         /* the chain starts at +0 */
        {{NAN, 32, 32, 32, 32, 32}, {NAN, NAN, NAN, NAN, 480, 480}, 0},
        {{INFINITY, 32, 32, 32, 32, 32}, {INFINITY, INFINITY, INFINITY, INFINITY, 480, 480}, 0},
        {{-INFINITY, 32, 0, 0, 0, 0}, {NAN, NAN, NAN, NAN, 32, 0}, 0}, /* silu(-inf) */
    };
    int64_t bad = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int act = 0; act < 2; act++)
            for (int32_t chunk = 0; chunk < 4; chunk++) {
                hk h = {.drop = -1,
                        .lv.act = act,
                        .c = {.T = 6, .nth = 1, .cols = 1, .in = {rows[i].x}, .in_cols = {1}, .par = {w}}};
                h.d.Kc = h.d.Kp = 4;
                h.d.n = 3;
                hk_state_new(&h, rows[i].ple ? 9 : 3, 1, 0);
                float y[6];
                hk_run(&h, rows[i].ple ? ple_conv_cpu : conv1d_cpu, y, chunk);
                bad += hk_differ(rows[i].ple ? "ple_conv" : "conv1d", y, rows[i].y, 6);
                hk_free(&h);
            }
    assert_int_equal(bad, 0);
}

/* A tap before the sequence is skipped: an infinite weight there must not meet the state's zero. */
static void skipped(void **state) {
    (void)state;
    static const float w[] = {INFINITY, INFINITY, INFINITY, 2}, x[] = {32, 32};
    hk h = {.drop = -1, .c = {.T = 2, .nth = 1, .cols = 1, .in = {x}, .in_cols = {1}, .par = {w}}};
    h.d.Kc = 4;
    hk_state_new(&h, 3, 1, 0);
    float y[2];
    hk_run(&h, conv1d_cpu, y, 1);
    assert_true(y[0] == 64.0f);
    assert_true(y[1] == INFINITY);
    h.c.pos0 = 1; /* twin: at a later position the zero is a value, and inf 0 is NaN */
    hk_run(&h, conv1d_cpu, y, 1);
    assert_true(y[0] != y[0]);
    hk_free(&h);
}

static const hk_set set = {ops, NOPS};
#define SET (void *)(uintptr_t)&set

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_rows),
        cmocka_unit_test(skipped),
        cmocka_unit_test(state_rows),
        cmocka_unit_test_prestate(hk_model, SET),
        cmocka_unit_test_prestate(hk_needed, SET),
        cmocka_unit_test(bound),
        cmocka_unit_test_prestate(hk_splits, SET),
        cmocka_unit_test_prestate(hk_threads, SET),
        cmocka_unit_test_prestate(hk_twins, SET),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
