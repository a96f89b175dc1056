/* Elementwise ops, hyper-connections, the gated value: kernels/elem.c, kernels/hc.c, ple_mul. */
#include "tests/h_kern.h"

#include <math.h>

#include "kernels/band.h"
#include "kernels/elem.h"
#include "kernels/hc.h"
#include "kernels/ple.h"

/* ---- builders: shape 0 odd and small, shape 1 a vector's rest, shape 2 as wide as a model ---- */

static const int64_t widths[] = {13, 96, 2560};

static void b_two(hk *h, int32_t T, int s) {
    (void)T;
    h->c.cols = widths[s];
    hk_in(h, 0, widths[s], -6, 6);
    hk_in(h, 1, widths[s], -3, 3);
}

static void b_slice(hk *h, int32_t T, int s) {
    (void)T;
    h->c.cols = widths[s];
    h->c.off = 7;
    hk_in(h, 0, widths[s] + 11, -6, 6);
}

static void b_widen(hk *h, int32_t T, int s) {
    (void)T;
    h->c.cols = widths[s] * (s + 2);
    hk_in(h, 0, widths[s], -6, 6);
}

static void b_gate(hk *h, int32_t T, int s) {
    (void)T;
    h->d.hd = (int32_t)widths[s];
    h->c.cols = widths[s] * 3;
    hk_in(h, 0, h->c.cols, -2, 2);
    hk_in(h, 1, h->c.cols * 2, -6, 6);
}

static void b_gdn_g(hk *h, int32_t T, int s) {
    (void)T;
    h->c.cols = widths[s];
    hk_in(h, 0, widths[s], -10, 26);
    h->c.par[0] = hk_fill(h, widths[s], -8, -0.01);
    h->c.par[1] = hk_fill(h, widths[s], -6, 4);
}

static const int64_t streams[] = {4, 3, 4};

static void b_mix(hk *h, int32_t T, int s) {
    (void)T;
    h->c.cols = widths[s];
    hk_in(h, 0, widths[s] * streams[s], 0, 1);
    hk_in(h, 1, widths[s] * streams[s], -4, 4);
}

static void b_hc_add(hk *h, int32_t T, int s) {
    (void)T;
    h->c.cols = widths[s] * streams[s];
    hk_in(h, 0, h->c.cols, -4, 4);
    hk_in(h, 1, widths[s], -4, 4);
    hk_in(h, 2, streams[s], 0, 2);
}

/* Where lever resid decides alone: the dtype at hand is its word, act says the other one. */
static void b_resid(hk *h, int32_t T, int s) {
    b_two(h, T, s);
    h->lv.resid = h->lv.act == K_ACT_BF16 ? K_FOLLOW_BF16 : K_FOLLOW_F32;
    h->lv.act = h->lv.act == K_ACT_BF16 ? K_ACT_F32 : K_ACT_BF16;
    h->c.per = 1;
}

/* A sum that is not the residual stream is deaf to it. */
static void b_not_resid(hk *h, int32_t T, int s) {
    b_two(h, T, s);
    h->lv.resid = h->lv.act == K_ACT_BF16 ? K_FOLLOW_F32 : K_FOLLOW_BF16;
}

static void b_hc_product(hk *h, int32_t T, int s) {
    b_hc_add(h, T, s);
    h->lv.resid = K_FOLLOW_F32;
}

static void b_hc_sum(hk *h, int32_t T, int s) {
    b_hc_add(h, T, s);
    if (h->lv.act == K_ACT_F32) return;
    h->lv.act = K_ACT_F32;
    h->lv.resid = K_FOLLOW_BF16;
}

static void b_ple_mul(hk *h, int32_t T, int s) {
    (void)T;
    h->c.cols = widths[s] * streams[s];
    hk_in(h, 0, streams[s], 0, 1);
    hk_in(h, 1, widths[s], -4, 4);
}

/* ---- models (rounded step by step) and the formulas in f64 ---- */

#define EACH(h, i) for (int64_t i = 0; i < (h)->c.T * (h)->c.cols; i++)
#define ROW(h, i) ((i) / (h)->c.cols)
#define COL(h, i) ((i) % (h)->c.cols)

static double sig(double x) {
    return 1.0 / (1.0 + exp(-x));
}

static float at(const hk *h, int slot, int64_t row, int64_t col) {
    return h->c.in[slot][row * h->c.in_cols[slot] + col];
}

static void m_slice(const hk *h, float *y) {
    EACH(h, i) y[i] = at(h, 0, ROW(h, i), COL(h, i) + 7);
}
static void e_slice(const hk *h, double *y) {
    EACH(h, i) y[i] = (double)at(h, 0, ROW(h, i), COL(h, i) + 7);
}
static void m_widen(const hk *h, float *y) {
    EACH(h, i) y[i] = at(h, 0, ROW(h, i), COL(h, i) % h->c.in_cols[0]);
}
static void e_widen(const hk *h, double *y) {
    EACH(h, i) y[i] = (double)at(h, 0, ROW(h, i), COL(h, i) % h->c.in_cols[0]);
}
/* The store of the residual stream. */
static float rd_resid(const hk *h, int i, float x) {
    if (h->lv.resid == K_FOLLOW) return hk_rd(h, i, x);
    return h->lv.resid == K_FOLLOW_BF16 && i != h->drop ? hk_bf16((double)x) : x;
}

static void m_add(const hk *h, float *y) {
    EACH(h, i) {
        float sum = h->c.in[0][i] + h->c.in[1][i];
        y[i] = h->c.per ? rd_resid(h, 0, sum) : hk_rd(h, 0, sum);
    }
}
static void e_add(const hk *h, double *y) {
    EACH(h, i) y[i] = (double)h->c.in[0][i] + (double)h->c.in[1][i];
}
static void m_sigmoid(const hk *h, float *y) {
    EACH(h, i) y[i] = hk_rd(h, 0, k_sigmoid(h->c.in[0][i]));
}
static void e_sigmoid(const hk *h, double *y) {
    EACH(h, i) y[i] = sig((double)h->c.in[0][i]);
}

static void m_swiglu(const hk *h, float *y) {
    EACH(h, i) {
        float a = hk_rd(h, 0, k_silu(h->c.in[0][i]));
        y[i] = hk_rd(h, 1, a * h->c.in[1][i]);
    }
}
static void e_swiglu(const hk *h, double *y) {
    EACH(h, i) y[i] = (double)h->c.in[0][i] * sig((double)h->c.in[0][i]) * (double)h->c.in[1][i];
}

static void b_geglu(hk *h, int32_t T, int s) {
    h->lv.gated = K_GATED_GELU;
    b_two(h, T, s);
}
static void m_geglu(const hk *h, float *y) {
    EACH(h, i) {
        float a = hk_rd(h, 0, 0.5f * h->c.in[0][i] * (1.0f + k_erf(0x1.6a09e6p-1f * h->c.in[0][i])));
        y[i] = hk_rd(h, 1, a * h->c.in[1][i]);
    }
}
static void e_geglu(const hk *h, double *y) {
    EACH(h, i) {
        double g = (double)h->c.in[0][i];
        y[i] = 0.5 * g * erfc(-g * sqrt(0.5)) * (double)h->c.in[1][i];
    }
}

static float gate_of(const hk *h, int64_t i) {
    int64_t head = COL(h, i) / h->d.hd, k = COL(h, i) % h->d.hd;
    return at(h, 1, ROW(h, i), (2 * head + 1) * h->d.hd + k);
}
static void m_gate(const hk *h, float *y) {
    EACH(h, i) {
        float g = hk_rd(h, 0, k_sigmoid(gate_of(h, i)));
        y[i] = hk_rd(h, 1, h->c.in[0][i] * g);
    }
}
static void e_gate(const hk *h, double *y) {
    EACH(h, i) y[i] = (double)h->c.in[0][i] * sig((double)gate_of(h, i));
}

static void m_gdn_g(const hk *h, float *y) {
    EACH(h, i) {
        float s = h->c.in[0][i] + h->c.par[1][COL(h, i)];
        y[i] = h->c.par[0][COL(h, i)] * (s > 20.0f ? s : k_log1p(k_exp(s)));
    }
}
/* The threshold is part of the formula, on the f32 sum. */
static void e_gdn_g(const hk *h, double *y) {
    EACH(h, i) {
        double s = (double)h->c.in[0][i] + (double)h->c.par[1][COL(h, i)];
        y[i] = (double)h->c.par[0][COL(h, i)] * ((float)s > 20.0f ? s : log1p(exp(s)));
    }
}

static void m_mix(const hk *h, float *y) {
    int64_t D = h->c.cols, N = h->c.in_cols[0] / D;
    EACH(h, i) {
        float sum = 0;
        for (int64_t s = 0; s < N; s++) {
            float p = hk_rd(h, 0, at(h, 0, ROW(h, i), s * D + COL(h, i)) * at(h, 1, ROW(h, i), s * D + COL(h, i)));
            sum = s ? sum + p : p;
        }
        y[i] = hk_rd(h, 1, sum / (float)N);
    }
}
static void e_mix(const hk *h, double *y) {
    int64_t D = h->c.cols, N = h->c.in_cols[0] / D;
    EACH(h, i) {
        y[i] = 0;
        for (int64_t s = 0; s < N; s++)
            y[i] += (double)at(h, 0, ROW(h, i), s * D + COL(h, i)) * (double)at(h, 1, ROW(h, i), s * D + COL(h, i));
        y[i] /= (double)N;
    }
}

static void m_hc_add(const hk *h, float *y) {
    EACH(h, i) {
        int64_t D = h->c.in_cols[1];
        float p = hk_rd(h, 0, at(h, 1, ROW(h, i), COL(h, i) % D) * at(h, 2, ROW(h, i), COL(h, i) / D));
        y[i] = rd_resid(h, 1, h->c.in[0][i] + p);
    }
}
static void e_hc_add(const hk *h, double *y) {
    EACH(h, i) {
        int64_t D = h->c.in_cols[1];
        y[i] = (double)h->c.in[0][i] +
               (double)at(h, 1, ROW(h, i), COL(h, i) % D) * (double)at(h, 2, ROW(h, i), COL(h, i) / D);
    }
}

static void m_ple_mul(const hk *h, float *y) {
    int64_t D = h->c.in_cols[1];
    EACH(h, i) y[i] = hk_rd(h, 0, at(h, 0, ROW(h, i), COL(h, i) / D) * at(h, 1, ROW(h, i), COL(h, i) % D));
}
static void e_ple_mul(const hk *h, double *y) {
    int64_t D = h->c.in_cols[1];
    EACH(h, i) y[i] = (double)at(h, 0, ROW(h, i), COL(h, i) / D) * (double)at(h, 1, ROW(h, i), COL(h, i) % D);
}

static const hk_op ops[] = {
    {"slice", slice_cpu, move_band, b_slice, m_slice, e_slice, 3, 0},
    {"widen", widen_cpu, move_band, b_widen, m_widen, e_widen, 3, 0},
    {"add", add_cpu, add_band, b_two, m_add, e_add, 3, 1},
    {"add, resid", add_cpu, add_band, b_resid, m_add, e_add, 3, 1},
    {"add, other", add_cpu, add_band, b_not_resid, m_add, e_add, 3, 1},
    {"sigmoid", sigmoid_cpu, sigmoid_band, b_two, m_sigmoid, e_sigmoid, 3, 1},
    {"swiglu", swiglu_cpu, swiglu_band, b_two, m_swiglu, e_swiglu, 3, 3},
    {"geglu", swiglu_cpu, swiglu_band, b_geglu, m_geglu, e_geglu, 3, 3},
    {"attn_gate", attn_gate_cpu, attn_gate_band, b_gate, m_gate, e_gate, 3, 3},
    {"gdn_g", gdn_g_cpu, gdn_g_band, b_gdn_g, m_gdn_g, e_gdn_g, 3, 0},
    {"hc_mix", hc_mix_cpu, hc_mix_band, b_mix, m_mix, e_mix, 3, 3},
    {"hc_add", hc_add_cpu, hc_add_band, b_hc_add, m_hc_add, e_hc_add, 3, 3},
    {"hc_add, y", hc_add_cpu, hc_add_band, b_hc_product, m_hc_add, e_hc_add, 3, 1},
    {"hc_add, H", hc_add_cpu, hc_add_band, b_hc_sum, m_hc_add, e_hc_add, 3, 2},
    {"ple_mul", ple_mul_cpu, ple_mul_band, b_ple_mul, m_ple_mul, e_ple_mul, 3, 1},
};
enum { NOPS = sizeof ops / sizeof *ops };

/* ---- single values: exact integers, and the table of special ones ---- */

#define INF INFINITY
typedef struct {
    k_fn op;
    const char *name;
    float a, b, c; /* in[0], in[1], in[2] (or par) of one element */
    float y;
} single;

/* One element: hc_mix has two equal streams, attn_gate one head of one column (gate b), gdn_g par = {b, c}. */
static float one(k_fn op, float a, float b, float c, int act) {
    float in0[2] = {a, a}, in1[2] = {b, b}, in2[1] = {c}, y = -77;
    k_dims d = {.hd = 1};
    k_levers lv = {.act = act};
    k_call k = {.T = 1,
                .nth = 1,
                .cols = 1,
                .out = &y,
                .in = {in0, in1, in2},
                .in_cols = {1, 1, 1},
                .par = {&b, &c},
                .d = &d,
                .lv = &lv};
    if (op == hc_mix_cpu) k.in_cols[0] = k.in_cols[1] = 2;
    if (op == attn_gate_cpu) k.in_cols[1] = 2;
    op(&k);
    return y;
}

#define S(op, a, b, c, y)                                                                                              \
    { op##_cpu, #op, a, b, c, y }
static const single singles[] = {
    S(add, 3, 4, 0, 7),
    S(add, 0, -0.0f, 0, 0),
    S(add, -0.0f, -0.0f, 0, -0.0f),
    S(add, INF, -INF, 0, NAN),
    S(add, NAN, 1, 0, NAN),
    S(add, INF, 1, 0, INF),
    S(add, 5, -5, 0, 0),
    S(sigmoid, 0, 0, 0, 0.5f),
    S(sigmoid, 40, 0, 0, 1),
    S(sigmoid, -INF, 0, 0, 0),
    S(sigmoid, NAN, 0, 0, NAN),
    S(sigmoid, -200, 0, 0, 0),
    S(swiglu, 32, 3, 0, 96),
    S(swiglu, 0, 3, 0, 0),
    S(swiglu, -0.0f, 3, 0, -0.0f),
    S(swiglu, 64, -2, 0, -128),
    S(swiglu, -INF, 1, 0, NAN),
    S(swiglu, INF, 0, 0, NAN),
    S(swiglu, -200, 4, 0, -0.0f),
    S(swiglu, 1, NAN, 0, NAN),
    S(attn_gate, 6, 0, 0, 3),
    S(attn_gate, 6, 64, 0, 6),
    S(attn_gate, -6, -200, 0, -0.0f),
    S(attn_gate, INF, -INF, 0, NAN),
    S(attn_gate, NAN, 0, 0, NAN),
    S(attn_gate, 1, NAN, 0, NAN),
    S(attn_gate, -0.0f, 0, 0, -0.0f),
    S(gdn_g, 30, -2, 5, -70),
    S(gdn_g, -INF, -2, 0, -0.0f),
    S(gdn_g, INF, -2, 0, -INF),
    S(gdn_g, NAN, -2, 0, NAN),
    S(gdn_g, 20, -1, 1, -21),
    S(hc_mix, 3, 4, 0, 12),
    S(hc_mix, -0.0f, 4, 0, -0.0f),
    S(hc_mix, INF, 0, 0, NAN),
    S(hc_mix, INF, -1, 0, -INF),
    S(hc_mix, NAN, 1, 0, NAN),
    S(hc_add, 3, 4, 2, 11),
    S(hc_add, -0.0f, 0, 1, 0),
    S(hc_add, -0.0f, -0.0f, 1, -0.0f),
    S(hc_add, INF, -INF, 1, NAN),
    S(hc_add, 1, INF, 0, NAN),
    S(hc_add, 2, NAN, 1, NAN),
    S(ple_mul, 3, -4, 0, -12),
    S(ple_mul, 0, -4, 0, -0.0f),
    S(ple_mul, INF, 0, 0, NAN),
    S(ple_mul, NAN, 1, 0, NAN),
    S(slice, -0.0f, 0, 0, -0.0f),
    S(slice, NAN, 0, 0, NAN),
    S(slice, INF, 0, 0, INF),
    S(widen, -0.0f, 0, 0, -0.0f),
    S(widen, 0x1p-149f, 0, 0, 0x1p-149f),
    S(widen, NAN, 0, 0, NAN),
};

static void single_values(void **state) {
    (void)state;
    int64_t bad = 0;
    for (size_t i = 0; i < sizeof singles / sizeof *singles; i++)
        for (int act = 0; act < 2; act++) {
            const single *t = &singles[i];
            float y = one(t->op, t->a, t->b, t->c, act);
            bad += hk_differ(t->name, &y, &t->y, 1);
        }
    assert_int_equal(bad, 0);
    float minus = one(hc_add_cpu, -0.0f, -0.0f, 1, 0), zero = 0, nan = one(add_cpu, INF, -INF, 0, 0);
    assert_int_equal(hk_differ(NULL, &minus, &zero, 1),
                     1); /* the comparison sees signs of zero, and NaN as no number */
    assert_int_equal(hk_differ(NULL, &nan, &zero, 1), 1);
}

/* Small integers through every op at once: nothing rounds, so f32, bf16 and naive f64 agree in every bit. */
static void integers(void **state) {
    (void)state;
    int64_t bad = 0;
    for (int k = 0; k < NOPS; k++)
        for (int act = 0; act < 2; act++) {
            hk h = {.lv.act = act, .seed = 1, .drop = -1, .c.T = 7, .c.nth = 1};
            ops[k].build(&h, 7, 0);
            for (int s = 0; s < 3; s++) /* gates in {0, 32}, else -3..3 */
                for (int64_t i = 0; h.c.in[s] && i < h.c.T * h.c.in_cols[s]; i++) {
                    int gate = ops[k].op == sigmoid_cpu || (ops[k].op == swiglu_cpu && s == 0) ||
                               (ops[k].op == attn_gate_cpu && s == 1);
                    double u = hk_uniform(&h.seed);
                    ((float *)(uintptr_t)h.c.in[s])[i] = (float)(gate ? 64 * floor(2 * u) : 2 * floor(7 * u) - 6);
                    if (ops[k].op == gdn_g_cpu) ((float *)(uintptr_t)h.c.in[s])[i] = (float)(30 + floor(7 * u));
                }
            for (int64_t i = 0; ops[k].op == gdn_g_cpu && i < h.c.cols; i++) {
                ((float *)(uintptr_t)h.c.par[0])[i] = (float)(-1 - i % 2);
                ((float *)(uintptr_t)h.c.par[1])[i] = (float)(i % 5);
            }
            int64_t n = h.c.T * h.c.cols;
            float *y = hk_alloc(&h, (size_t)n * sizeof *y), *f = hk_alloc(&h, (size_t)n * sizeof *f);
            double *e = hk_alloc(&h, (size_t)n * sizeof *e);
            hk_run(&h, ops[k].op, y, 0);
            ops[k].exact(&h, e);
            for (int64_t i = 0; i < n; i++) {
                f[i] = (float)e[i];
                y[i] = y[i] + 0.0f; /* -0 and +0 are one integer */
                f[i] = f[i] + 0.0f;
            }
            bad += hk_differ(ops[k].name, y, f, n);
            hk_free(&h);
        }
    assert_int_equal(bad, 0);
}

static const hk_set set = {ops, NOPS};
#define SET (void *)(uintptr_t)&set

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_values),
        cmocka_unit_test(integers),
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
