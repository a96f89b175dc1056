/* Norms: kernels/norm.c. */
#include "tests/h_kern.h"

#include <math.h>

#include "kernels/norm.h"

/* ---- builders ---- */

/* 0: one group; 1: groups that are a window of wider, strided ones, shared gamma; 2: streams of a model, own gammas;
 * 3: as 0 but one value throughout, the case that a sum's hard bound is made for; 4: 31..33 and 1 around the lanes */
static void b_rms(hk *h, int32_t T, int s) {
    static const int32_t G[] = {37, 32, 2560, 1024, 33}, groups[] = {1, 3, 4, 1, 2};
    (void)T;
    h->d.eps = 1e-6f;
    h->c.G = G[s];
    h->c.cols = G[s] * groups[s];
    h->c.stride = s == 1 ? 2 * G[s] : G[s];
    h->c.off = s == 1 ? 5 : 0;
    h->c.per = s != 1;
    hk_in(h, 0, s == 1 ? 2 * h->c.cols + 9 : h->c.cols, s == 3 ? 1.7 : -3, s == 3 ? 1.7 : 3);
    int32_t act = h->lv.act;
    h->lv.act = K_ACT_F32; /* 1+w is an f32, whatever the activations are */
    h->c.par[0] = hk_fill(h, h->c.per ? h->c.cols : G[s], 0.5, 1.5);
    h->lv.act = act;
}

static void b_l2(hk *h, int32_t T, int s) {
    static const int32_t G[] = {37, 128, 16, 1};
    (void)T;
    h->c.G = G[s];
    h->c.cols = G[s] * 3;
    h->c.off = 11;
    hk_in(h, 0, h->c.cols + 29, -1, 1);
}

static void b_gdn(hk *h, int32_t T, int s) {
    static const int32_t G[] = {37, 128, 32};
    (void)T;
    h->d.eps = 1e-6f;
    h->d.gate_silu = s == 1;
    h->c.G = G[s];
    h->c.cols = G[s] * 3;
    hk_in(h, 0, h->c.cols, -0.2, 0.2);
    hk_in(h, 1, h->c.cols, -5, 5);
    h->c.par[0] = hk_fill(h, G[s], 0.5, 1.5);
}

/* The lever says otherwise than the file. */
static void b_gdn_gate(hk *h, int32_t T, int s) {
    b_gdn(h, T, s);
    h->lv.gdn_gate = h->d.gate_silu ? K_GATE_SIGMOID : K_GATE_SILU;
}

static int32_t bits(float f) {
    return (int32_t)k_f32_bits(f);
}

/* A number in place of the file's, and one below which none goes: each alone, and both. */
static void number_levers(hk *h, int s) {
    if (s % 3 != 1) h->lv.eps = bits(3e-3f);
    if (s % 3 != 0) h->lv.eps_floor = bits(2e-2f);
}

static void b_rms_eps(hk *h, int32_t T, int s) {
    b_rms(h, T, s);
    number_levers(h, s);
}

static void b_l2_eps(hk *h, int32_t T, int s) {
    b_l2(h, T, s);
    h->lv.eps_floor = bits(s ? 2e-2f : 1e-7f); /* below 1e-6 it changes nothing */
}

static void b_gdn_eps(hk *h, int32_t T, int s) {
    b_gdn(h, T, s);
    number_levers(h, s);
}

/* The epsilons as the contract has them, written anew. */
static float floored(const hk *h, float eps) {
    float floor = h->lv.eps_floor ? k_bits_f32((uint32_t)h->lv.eps_floor) : 0.0f;
    return floor > eps ? floor : eps;
}
static float eps_of(const hk *h) {
    return floored(h, h->lv.eps ? k_bits_f32((uint32_t)h->lv.eps) : h->d.eps);
}

static int gate_is_silu(const hk *h) {
    return h->lv.gdn_gate == K_GATE_SILU || (h->lv.gdn_gate == K_GATE_FILE && h->d.gate_silu);
}

/* ---- models ---- */

static void m_rms(const hk *h, float *y) {
    int64_t G = h->c.G, ng = h->c.cols / G;
    for (int64_t k = 0; k < h->c.T * ng; k++) {
        const float *x = h->c.in[0] + k / ng * h->c.in_cols[0] + h->c.off + k % ng * h->c.stride;
        float mean = hk_lanes(x, x, G) / (float)G;
        float r = 1.0f / sqrtf(mean + eps_of(h));
        for (int64_t i = 0; i < G; i++)
            y[k * G + i] = hk_rd(h, 0, (x[i] * r) * h->c.par[0][h->c.per ? k % ng * G + i : i]);
    }
}

static double square_sum(const float *x, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
    return s;
}

static void e_rms(const hk *h, double *y) {
    int64_t G = h->c.G;
    for (int64_t t = 0; t < h->c.T; t++)
        for (int64_t g = 0; g < h->c.cols / G; g++) {
            const float *x = h->c.in[0] + t * h->c.in_cols[0] + h->c.off + g * h->c.stride;
            double r = 1 / sqrt(square_sum(x, G) / (double)G + (double)eps_of(h));
            for (int64_t i = 0; i < G; i++)
                y[t * h->c.cols + g * G + i] = (double)x[i] * r * (double)h->c.par[0][h->c.per ? g * G + i : i];
        }
}

static void m_l2(const hk *h, float *y) {
    int64_t G = h->c.G, ng = h->c.cols / G;
    for (int64_t k = 0; k < h->c.T * ng; k++) {
        const float *x = h->c.in[0] + k / ng * h->c.in_cols[0] + h->c.off + k % ng * G;
        float r = 1.0f / sqrtf(hk_lanes(x, x, G) + floored(h, 1e-6f));
        for (int64_t i = 0; i < G; i++) y[k * G + i] = x[i] * r;
    }
}

static void e_l2(const hk *h, double *y) {
    int64_t G = h->c.G;
    for (int64_t t = 0; t < h->c.T; t++)
        for (int64_t i = 0; i < h->c.cols; i++) {
            const float *x = h->c.in[0] + t * h->c.in_cols[0] + h->c.off + i / G * G;
            y[t * h->c.cols + i] = (double)x[i % G] / sqrt(square_sum(x, G) + (double)floored(h, 1e-6f));
        }
}

static void m_gdn(const hk *h, float *y) {
    int64_t G = h->c.G;
    float r = 0;
    for (int64_t i = 0; i < h->c.T * h->c.cols; i++) {
        const float *o = h->c.in[0] + i / G * G;
        float z = h->c.in[1][i];
        if (i % G == 0) r = 1.0f / sqrtf(hk_lanes(o, o, G) / (float)G + eps_of(h));
        float n = hk_rd(h, 0, o[i % G] * r);
        n = hk_rd(h, 1, h->c.par[0][i % G] * n);
        y[i] = hk_rd(h, 2, n * (gate_is_silu(h) ? z / (1.0f + k_exp(-z)) : 1.0f / (1.0f + k_exp(-z))));
    }
}

static void e_gdn(const hk *h, double *y) {
    int64_t G = h->c.G;
    for (int64_t i = 0; i < h->c.T * h->c.cols; i++) {
        const float *o = h->c.in[0] + i / G * G;
        double z = (double)h->c.in[1][i], f = 1 / (1 + exp(-z));
        y[i] = (double)o[i % G] / sqrt(square_sum(o, G) / (double)G + (double)eps_of(h)) * (double)h->c.par[0][i % G] *
               (gate_is_silu(h) ? z * f : f);
    }
}

static const hk_op ops[] = {
    {"rmsnorm", rmsnorm_cpu, rmsnorm_band, b_rms, m_rms, e_rms, 5, 1},
    {"l2norm", l2norm_cpu, l2norm_band, b_l2, m_l2, e_l2, 4, 0},
    {"gdn_norm", gdn_norm_cpu, gdn_norm_band, b_gdn, m_gdn, e_gdn, 3, 7},
    {"rms, eps", rmsnorm_cpu, rmsnorm_band, b_rms_eps, m_rms, e_rms, 3, 1},
    {"l2, floor", l2norm_cpu, l2norm_band, b_l2_eps, m_l2, e_l2, 4, 0},
    {"gdn, eps", gdn_norm_cpu, gdn_norm_band, b_gdn_eps, m_gdn, e_gdn, 3, 7},
    {"gdn.gate", gdn_norm_cpu, gdn_norm_band, b_gdn_gate, m_gdn, e_gdn, 3, 7},
};
enum { NOPS = sizeof ops / sizeof *ops };

/* ---- exact cases and special values ---- */

typedef struct {
    k_fn op;
    const char *name;
    int32_t G;
    float eps;
    float x[4], gamma, z; /* z: gate of every column */
    float y[4];
} row;

#define R(op, ...)                                                                                                     \
    { op##_cpu, #op, __VA_ARGS__ }
#define N4                                                                                                             \
    { NAN, NAN, NAN, NAN }
static const row rows[] = {
    R(rmsnorm, 4, 0, {2, -2, 2, -2}, 3, 0, {3, -3, 3, -3}),              /* mean 4, r 1/2 */
    R(rmsnorm, 4, 12, {2, -2, 2, -2}, 3, 0, {1.5f, -1.5f, 1.5f, -1.5f}), /* eps inside the root: r 1/4 */
    R(rmsnorm, 2, 0, {1, 1, 4, -4}, 1, 0, {1, 1, 1, -1}),                /* two groups */
    R(rmsnorm, 4, 1, {0, -0.0f, 0, 0}, 1, 0, {0, -0.0f, 0, 0}),
    R(rmsnorm, 4, 0, {0, 0, 0, 0}, 1, 0, N4), /* 0 * inf: what eps is for */
    R(rmsnorm, 4, 0, {NAN, 1, 1, 1}, 1, 0, N4),
    R(rmsnorm, 4, 0, {INFINITY, 1, 1, 1}, 1, 0, {NAN, 0, 0, 0}),
    R(rmsnorm, 2, 0, {NAN, 1, 4, -4}, 1, 0, {NAN, NAN, 1, -1}), /* stays within its group */
    R(rmsnorm, 4, 0, {0x1p+70f, 0, 0, 0}, 1, 0, {0, 0, 0, 0}),  /* the sum overflows: r 0 */
    R(l2norm, 4, 0, {1024, -1024, 1024, -1024}, 0, 0, {0.5f, -0.5f, 0.5f, -0.5f}),
    R(l2norm, 2, 0, {0, -0.0f, 4096, 0}, 0, 0, {0, -0.0f, 1, 0}),
    R(l2norm, 4, 0, {NAN, 1, 1, 1}, 0, 0, N4),
    R(l2norm, 4, 0, {-INFINITY, 1, -1, 0}, 0, 0, {NAN, 0, -0.0f, 0}),
    R(gdn_norm, 4, 0, {2, -2, 2, -2}, 3, 0, {1.5f, -1.5f, 1.5f, -1.5f}), /* sigmoid(0) = 1/2 */
    R(gdn_norm, 4, 0, {2, -2, 2, -2}, 3, 64, {3, -3, 3, -3}),
    R(gdn_norm, 4, 0, {2, -2, 2, -2}, 3, NAN, N4),
    R(gdn_norm, 4, 1, {0, -0.0f, 0, 0}, 1, 0, {0, -0.0f, 0, 0}),
    R(gdn_norm, 4, 0, {2, NAN, 2, -2}, 3, 0, N4),
};

/* lv: what the arm says beside act. */
static void run_row_under(const row *t, int act, int silu, k_levers lv, float *y) {
    float gamma[4], z[4];
    for (int i = 0; i < 4; i++) {
        gamma[i] = t->gamma;
        z[i] = t->z;
    }
    k_dims d = {.eps = t->eps, .gate_silu = silu};
    lv.act = act;
    k_call c = {.T = 1,
                .nth = 1,
                .cols = 4,
                .out = y,
                .in = {t->x, z},
                .in_cols = {4, 4},
                .G = t->G,
                .stride = t->G,
                .per = 0,
                .par = {gamma},
                .d = &d,
                .lv = &lv};
    t->op(&c);
}

static void run_row(const row *t, int act, int silu, float *y) {
    run_row_under(t, act, silu, (k_levers){0}, y);
}

/* eps = 0 is a number, and not the file's; a floor of 0 is none. */
static void given_zero(void **state) {
    (void)state;
    float file[4], zero[4], none[4];
    row r = rows[1], without = rows[1];
    assert_true(r.eps > 0);
    without.eps = 0;
    run_row(&r, 0, 0, file);
    run_row(&without, 0, 0, none);
    run_row_under(&r, 0, 0, (k_levers){.eps = bits(-0.0f)}, zero);
    assert_int_equal(hk_differ("eps 0", zero, none, 4), 0);
    assert_int_equal(hk_differ(NULL, zero, file, 4), 4);
    run_row_under(&r, 0, 0, (k_levers){.eps_floor = bits(-0.0f)}, zero);
    assert_int_equal(hk_differ("a floor of 0", zero, file, 4), 0);
}

static void exact_rows(void **state) {
    (void)state;
    int64_t bad = 0;
    float y[4];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int act = 0; act < 2; act++) {
            run_row(&rows[i], act, 0, y);
            bad += hk_differ(rows[i].name, y, rows[i].y, 4);
        }
    row silu = R(gdn_norm, 4, 0, {2, -2, 2, -2}, 3, 64, {192, -192, 192, -192});
    run_row(&silu, 1, 1, y);
    bad += hk_differ("gdn_norm silu", y, silu.y, 4);
    assert_int_equal(bad, 0);
    row twin = rows[1]; /* eps left out */
    twin.eps = 0;
    run_row(&twin, 0, 0, y);
    assert_int_equal(hk_differ(NULL, y, rows[1].y, 4), 4);
}

static const hk_set set = {ops, NOPS};
#define SET (void *)(uintptr_t)&set

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_rows),
        cmocka_unit_test(given_zero),
        cmocka_unit_test_prestate(hk_model, SET),
        cmocka_unit_test_prestate(hk_needed, SET),
        cmocka_unit_test_prestate(hk_bands, SET),
        cmocka_unit_test_prestate(hk_splits, SET),
        cmocka_unit_test_prestate(hk_threads, SET),
        cmocka_unit_test_prestate(hk_twins, SET),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
