/* The house's transcendentals against MPFR (samples, adversarial points, every exponent), their special values, their
 * bits (one pinned hash a function: every compiler and build must give it), and, run with the argument `long`, against
 * double precision on all 2^32 inputs. Prints the worst ulp met. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <mpfr.h>

#include "kernels/arith.h"
#include "lib/machine.h"
#include "tests/h_pins.h"

enum { BLOCK = 4096, PREC = 120 };

/* ---- the functions: array forms (vector code), references ---- */

#define ARRAY(f)                                                                                                       \
    static void v_##f(const float *restrict x, float *restrict y, int n) {                                             \
        for (int i = 0; i < n; i++) y[i] = f(x[i]);                                                                    \
    }
ARRAY(k_exp)
ARRAY(k_log)
ARRAY(k_log1p)
ARRAY(k_sin)
ARRAY(k_cos)
ARRAY(k_tanh)
ARRAY(k_sigmoid)
ARRAY(k_silu)
ARRAY(k_softplus)
ARRAY(k_rsqrt)
ARRAY(k_erf)
ARRAY(k_gelu)

/* glibc is slow where exp overflows; there the answer is known. */
static double d_exp(double x) {
    return x < -200.0 ? 0.0 : x > 200.0 ? HUGE_VAL : exp(x);
}
static double d_tanh(double x) {
    return fabs(x) > 40.0 ? copysign(1.0, x) : tanh(x);
}
static double d_sigmoid(double x) {
    return 1.0 / (1.0 + d_exp(-x));
}
static double d_silu(double x) {
    return x / (1.0 + d_exp(-x));
}
static double d_softplus(double x) {
    return x > 20.0 ? x : log1p(d_exp(x));
}
static double d_rsqrt(double x) {
    return 1.0 / sqrt(x);
}

static double d_gelu(double x) {
    return 0.5 * x * erfc(-x * 0.70710678118654752440);
}

static void m_exp(mpfr_t y, float x) {
    mpfr_set_flt(y, x, MPFR_RNDN);
    mpfr_exp(y, y, MPFR_RNDN);
}
static void m_log(mpfr_t y, float x) {
    mpfr_set_flt(y, x, MPFR_RNDN);
    mpfr_log(y, y, MPFR_RNDN);
}
static void m_log1p(mpfr_t y, float x) {
    mpfr_set_flt(y, x, MPFR_RNDN);
    mpfr_log1p(y, y, MPFR_RNDN);
}
static void m_sin(mpfr_t y, float x) {
    mpfr_set_flt(y, x, MPFR_RNDN);
    mpfr_sin(y, y, MPFR_RNDN);
}
static void m_cos(mpfr_t y, float x) {
    mpfr_set_flt(y, x, MPFR_RNDN);
    mpfr_cos(y, y, MPFR_RNDN);
}
static void m_tanh(mpfr_t y, float x) {
    mpfr_set_flt(y, x, MPFR_RNDN);
    mpfr_tanh(y, y, MPFR_RNDN);
}
static void m_silu(mpfr_t y, float x) { /* x / (1 + e^-x) */
    mpfr_set_flt(y, -x, MPFR_RNDN);
    mpfr_exp(y, y, MPFR_RNDN);
    mpfr_add_ui(y, y, 1, MPFR_RNDN);
    mpfr_d_div(y, (double)x, y, MPFR_RNDN);
}
static void m_sigmoid(mpfr_t y, float x) {
    mpfr_set_flt(y, -x, MPFR_RNDN);
    mpfr_exp(y, y, MPFR_RNDN);
    mpfr_add_ui(y, y, 1, MPFR_RNDN);
    mpfr_ui_div(y, 1, y, MPFR_RNDN);
}
static void m_softplus(mpfr_t y, float x) {
    mpfr_set_flt(y, x, MPFR_RNDN);
    if (x > 20.0f) return;
    mpfr_exp(y, y, MPFR_RNDN);
    mpfr_log1p(y, y, MPFR_RNDN);
}
static void m_rsqrt(mpfr_t y, float x) {
    mpfr_set_flt(y, x, MPFR_RNDN);
    mpfr_rec_sqrt(y, y, MPFR_RNDN);
}

static void m_erf(mpfr_t y, float x) {
    mpfr_set_flt(y, x, MPFR_RNDN);
    mpfr_erf(y, y, MPFR_RNDN);
}
static void m_gelu(mpfr_t y, float x) { /* x/2 erfc(-x sqrt(1/2)) */
    MPFR_DECL_INIT(r, PREC);
    mpfr_set_d(r, 0.5, MPFR_RNDN);
    mpfr_sqrt(r, r, MPFR_RNDN);
    mpfr_mul_d(r, r, -(double)x, MPFR_RNDN);
    mpfr_erfc(r, r, MPFR_RNDN);
    mpfr_mul_d(y, r, 0.5 * (double)x, MPFR_RNDN);
}

typedef void (*array_fn)(const float *restrict, float *restrict, int);
typedef struct {
    const char *name;
    array_fn fn;
    double (*dbl)(double);
    void (*mp)(mpfr_t, float);
    float lo, hi;     /* where the ulp bound holds; outside, the table of special values speaks */
    double bound;     /* ulp, stated in arith.h */
    uint64_t pin;     /* hash of the bits on the fixed sample */
    uint64_t pin_all; /* hash of the bits on all 2^32 inputs */
} entry;

#define F_MAX 0x1.fffffep+127f
#define F_LOGMAX 0x1.62e42ep+6f /* last x with e^x finite */
#define SUB_MIN 0x1p-149f
static const entry entries[] = {
    {"exp", v_k_exp, d_exp, m_exp, -F_MAX, F_MAX, 0.90, 0x747d77bff192d53f, H_PIN_ALL_exp},
    {"log", v_k_log, log, m_log, SUB_MIN, F_MAX, 0.94, 0xe10b0046534b3f9e, H_PIN_ALL_log},
    {"log1p", v_k_log1p, log1p, m_log1p, -0x1.fffffep-1f, F_MAX, 1.01, 0x9f884b3aebb89ecd, H_PIN_ALL_log1p},
    {"sin", v_k_sin, sin, m_sin, -0x1p+30f, 0x1p+30f, 0.501, 0x3ed543e4164f5e40, H_PIN_ALL_sin},
    {"cos", v_k_cos, cos, m_cos, -0x1p+30f, 0x1p+30f, 0.501, 0x4f384cddabcd71d2, H_PIN_ALL_cos},
    {"tanh", v_k_tanh, d_tanh, m_tanh, -F_MAX, F_MAX, 1.37, 0xccf3194559229415, H_PIN_ALL_tanh},
    {"sigmoid", v_k_sigmoid, d_sigmoid, m_sigmoid, -F_LOGMAX, F_MAX, 2.49, 0xfb6eeeb414b9acd7, H_PIN_ALL_sigmoid},
    {"silu", v_k_silu, d_silu, m_silu, -F_LOGMAX, F_MAX, 2.40, 0x63c2cc37deb17f62, H_PIN_ALL_silu},
    {"softplus", v_k_softplus, d_softplus, m_softplus, -F_MAX, F_MAX, 1.72, 0x60527be4af72279b, H_PIN_ALL_softplus},
    {"rsqrt", v_k_rsqrt, d_rsqrt, m_rsqrt, SUB_MIN, F_MAX, 1.50, 0x9d987c0de74df898, H_PIN_ALL_rsqrt},
    {"erf", v_k_erf, erf, m_erf, -F_MAX, F_MAX, 1.09, 0x944d48d3b4540f42, H_PIN_ALL_erf},
    {"gelu", v_k_gelu, d_gelu, m_gelu, 0, F_MAX, 1.70, 0x2d3f161e6c6b64c2, H_PIN_ALL_gelu}, /* below 0: gelu_below */
};
enum { NENTRIES = sizeof entries / sizeof *entries };

/* ---- errors ---- */

/* 1 / ulp of ref's f32 binade (subnormals included), |ref| >= 2^128 counted as the binade below. */
static double inv_ulp(double ref) {
    int64_t e = (int64_t)(k_f64_bits(ref) >> 52 & 0x7ff) - 23;
    e = e < 1023 - 149 ? 1023 - 149 : e;
    e = e > 1023 + 104 ? 1023 + 104 : e;
    return k_bits_f64((uint64_t)(2046 - e) << 52);
}

/* |y - ref| in ulp. Infinity counts as 2^128; NaN is infinitely wrong. */
static double err_d(float y, double ref) {
    double v = (double)y, top = 0x1p+128;
    v = v > top ? top : v < -top ? -top : v;
    double r = ref > top ? top : ref < -top ? -top : ref;
    double d = fabs(v - r) * inv_ulp(r);
    return d == d ? d : HUGE_VAL;
}

/* The same with an MPFR reference: the difference is taken before anything is rounded. */
static double err_m(float y, mpfr_t ref) {
    double r = mpfr_get_d(ref, MPFR_RNDN);
    if (y != y || r != r || fabs(r) >= 0x1p+128 || fabsf(y) > F_MAX) return err_d(y, r);
    MPFR_DECL_INIT(d, PREC);
    mpfr_set_flt(d, y, MPFR_RNDN);
    mpfr_sub(d, d, ref, MPFR_RNDN);
    return fabs(mpfr_get_d(d, MPFR_RNDN)) * inv_ulp(r);
}

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Hash of (input, output) pairs, summed, so whatever their order: the output's bits (NaNs as one) by an odd weight of
 * the input. One changed bit always shows. */
static uint64_t pair(float x, float y) {
    uint32_t b = y != y ? 0x7fc00000u : k_f32_bits(y), w = k_f32_bits(x) * 0x9e3779b1u | 1u;
    return (uint64_t)b * w;
}

/* ---- the sample ---- */

typedef struct {
    float *x;
    int n, cap;
} sample;

static void push(sample *s, float x) {
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 1 << 16;
        s->x = realloc(s->x, (size_t)s->cap * sizeof *s->x);
        assert_non_null(s->x);
    }
    s->x[s->n++] = x;
}

/* x, its four neighbours, and their negatives. */
static void push_around(sample *s, double v) {
    uint32_t b = k_f32_bits((float)v);
    for (uint32_t i = 0; i < 5; i++) {
        push(s, k_bits_f32(b + i - 2u));
        push(s, k_bits_f32((b + i - 2u) ^ 0x80000000u));
    }
}

static uint64_t rng(uint64_t *s) {
    return mix(*s += 0x9e3779b97f4a7c15u);
}

/* Every exponent with its ends and random mantissas; the constants where a formula changes; multiples of ln2, half
 * multiples (where n flips), multiples of pi/2 and pi/4 up to 2^18 and beyond; plain ranges where models live. */
static void make_sample(sample *s) {
    static const double marks[] = {
        1e-45,   0x1p-126, 0x1p-24, 2.0 / 3, 4.0 / 3, 1,      2,      0.625,           20,  88.72283935546875, 87.3365,
        103.972, 104,      89,      16.635,  0x1p18,  0x1p20, 0x1p30, 0x1.fffffep+127, 1.5, 1.0 / 3,           0.25};
    uint64_t seed = 7;
    for (uint32_t e = 0; e < 255; e++) {
        for (uint32_t i = 0; i < 60; i++) {
            uint32_t m = i == 0 ? 0 : i == 1 ? 0x7fffffu : (uint32_t)(rng(&seed) & 0x7fffffu);
            push(s, k_bits_f32(e << 23 | m));
            push(s, k_bits_f32(0x80000000u | e << 23 | m));
        }
    }
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) push_around(s, marks[i]);
    for (int n = 1; n < 300; n++) push_around(s, n * 0.34657359027997265471);
    for (int n = 1; n < 200; n++) push_around(s, n * 0.78539816339744830962);
    for (int i = 0; i < 600; i++) push_around(s, (double)(rng(&seed) % 333773) * 0.78539816339744830962);
    for (int i = 0; i < 200; i++) push_around(s, (double)(rng(&seed) % 1367130551) * 0.78539816339744830962);
    for (int i = 0; i < 8000; i++) push(s, (float)((double)(rng(&seed) >> 11) * 0x1p-53 * 40 - 20));
    for (int i = 0; i < 8000; i++) push(s, (float)((double)(rng(&seed) >> 11) * 0x1p-53 * 262144));
    /* the closest that f32 below 2^18 come to a multiple of pi/2 is found by the multiples above; add integers, the
     * angles of the first frequency */
    for (int i = 0; i < 4000; i++) push(s, (float)(rng(&seed) % 262145));
}

static int setup(void **state) {
    static sample s;
    make_sample(&s);
    *state = &s;
    return 0;
}

static int teardown(void **state) {
    sample *s = *state;
    free(s->x);
    return 0;
}

static int domain(const entry *e, float x) {
    return x >= e->lo && x <= e->hi;
}

/* Worst error of fn on the sample, MPFR as the judge; where it was met. */
static double worst(const entry *e, array_fn fn, const sample *s, float *ret_at) {
    double w = 0;
    mpfr_t r;
    mpfr_init2(r, PREC);
    for (int i = 0; i < s->n; i += BLOCK) {
        float y[BLOCK];
        int n = s->n - i < BLOCK ? s->n - i : BLOCK;
        fn(s->x + i, y, n);
        for (int j = 0; j < n; j++) {
            float x = s->x[i + j];
            if (!domain(e, x)) continue;
            e->mp(r, x);
            double d = err_m(y[j], r);
            if (!(d <= w)) {
                w = d;
                *ret_at = x;
            }
        }
    }
    mpfr_clear(r);
    return w;
}

static void accuracy(void **state) {
    const sample *s = *state;
    int bad = 0;
    for (int k = 0; k < NENTRIES; k++) {
        float at = 0;
        double w = worst(&entries[k], entries[k].fn, s, &at);
        print_message("%-9s worst %.4f ulp at %a (bound %.3f, %d points)\n", entries[k].name, w, (double)at,
                      entries[k].bound, s->n);
        if (!(w <= entries[k].bound)) bad++;
    }
    mpfr_free_cache();
    assert_int_equal(bad, 0);
}

/* Twin of accuracy: results moved by two ulp must be seen, for every function and both directions. */
static const entry *moved;
static uint32_t moved_by;
static void v_moved(const float *restrict x, float *restrict y, int n) {
    moved->fn(x, y, n);
    for (int i = 0; i < n; i++) y[i] = k_bits_f32(k_f32_bits(y[i]) + moved_by);
}

static void accuracy_twin(void **state) {
    const sample *all = *state;
    sample s = {all->x + 64 * 120, 126 * 120, 0}; /* a part is enough: exponents 2^-63 .. 2^62 */
    for (int k = 0; k < NENTRIES; k++) {
        for (int up = 0; up < 2; up++) {
            float at;
            moved = &entries[k];
            moved_by = up ? 2u : -2u;
            double w = worst(&entries[k], v_moved, &s, &at);
            if (w <= entries[k].bound) fail_msg("%s off by two ulp passes (%.3f)", entries[k].name, w);
        }
    }
    mpfr_free_cache();
}

/* The array forms (vector code) and calls of one element (scalar code) give the same bits; and these are the bits
 * that every compiler and device must give. */
static void bits(void **state) {
    const sample *s = *state;
    int bad = 0;
    for (int k = 0; k < NENTRIES; k++) {
        uint64_t h = 0;
        for (int i = 0; i < s->n; i += BLOCK) {
            float y[BLOCK];
            int n = s->n - i < BLOCK ? s->n - i : BLOCK;
            entries[k].fn(s->x + i, y, n);
            for (int j = 0; j < n; j++) {
                float one;
                entries[k].fn(s->x + i + j, &one, 1);
                if (pair(s->x[i + j], one) != pair(s->x[i + j], y[j]))
                    fail_msg("%s(%a): vector %a, scalar %a", entries[k].name, (double)s->x[i + j], (double)y[j],
                             (double)one);
                h += pair(s->x[i + j], y[j]);
            }
        }
        if (h != entries[k].pin) {
            print_message("%-9s bits 0x%016" PRIx64 ", pinned 0x%016" PRIx64 "\n", entries[k].name, h, entries[k].pin);
            bad++;
        }
    }
    assert_int_equal(bad, 0);
}

/* Twin of the judge itself: distances that are known. */
static void distance(void **state) {
    (void)state;
    assert_true(err_d(1.0f, 1.0) == 0.0 && err_d(0x1.000004p+0f, 1.0) == 2.0 && err_d(0x1.fffffcp-1f, 1.0) == 1.0);
    assert_true(err_d(0x1p-148f, 0x1p-149) == 1.0 && err_d(0.0f, 0x1p-150) == 0.5 && err_d(-1.0f, 1.0) > 1e6);
    assert_true(err_d(INFINITY, 0x1.fffffep+127) == 1.0 && err_d(INFINITY, 1.0) > 1e6 && err_d(1.0f, HUGE_VAL) > 1e6);
    assert_true(err_d(NAN, 1.0) == HUGE_VAL && err_d(1.0f, (double)NAN) == HUGE_VAL &&
                err_d(NAN, (double)NAN) == HUGE_VAL);
    MPFR_DECL_INIT(one, PREC);
    mpfr_set_ui(one, 1, MPFR_RNDN);
    assert_true(err_m(0x1.000004p+0f, one) == 2.0 && err_m(NAN, one) == HUGE_VAL && err_m(INFINITY, one) > 1e6);
}

static void bits_twin(void **state) {
    (void)state;
    assert_true(pair(1.0f, 2.0f) != pair(1.0f, 0x1.000002p+1f));
    assert_true(pair(1.0f, 0.0f) != pair(1.0f, -0.0f));
    assert_true(pair(1.0f, 0.0f) + pair(2.0f, 1.0f) != pair(2.0f, 0.0f) + pair(1.0f, 1.0f));
    assert_true(pair(1.0f, NAN) == pair(1.0f, k_bits_f32(0xffc12345u)));
}

/* ---- special values ---- */

typedef struct {
    int fn;
    float x, y;
} special;
enum { EXP, LOG, LOG1P, SIN, COS, TANH, SIGMOID, SILU, SOFTPLUS, RSQRT, ERF, GELU };
#define INF INFINITY
static const special specials[] = {
    {EXP, 0, 1},
    {EXP, -0.0f, 1},
    {EXP, INF, INF},
    {EXP, -INF, 0},
    {EXP, NAN, NAN},
    {EXP, F_MAX, INF},
    {EXP, -F_MAX, 0},
    {EXP, 0x1.62e430p+6f, INF},
    {EXP, -0x1.9fe368p+6f, SUB_MIN},
    {EXP, -104.0f, 0},
    {EXP, SUB_MIN, 1},
    {LOG, 1, 0},
    {LOG, 0, -INF},
    {LOG, -0.0f, -INF},
    {LOG, INF, INF},
    {LOG, -INF, NAN},
    {LOG, -1, NAN},
    {LOG, -SUB_MIN, NAN},
    {LOG, NAN, NAN},
    {LOG, -F_MAX, NAN},
    {LOG1P, 0, 0},
    {LOG1P, -0.0f, -0.0f},
    {LOG1P, -1, -INF},
    {LOG1P, INF, INF},
    {LOG1P, -INF, NAN},
    {LOG1P, -2, NAN},
    {LOG1P, NAN, NAN},
    {LOG1P, SUB_MIN, SUB_MIN},
    {LOG1P, -SUB_MIN, -SUB_MIN},
    {SIN, 0, 0},
    {SIN, -0.0f, -0.0f},
    {SIN, INF, NAN},
    {SIN, -INF, NAN},
    {SIN, NAN, NAN},
    {SIN, SUB_MIN, SUB_MIN},
    {SIN, -SUB_MIN, -SUB_MIN},
    {SIN, 0x1.000002p+30f, NAN},
    {SIN, -F_MAX, NAN},
    {COS, 0, 1},
    {COS, -0.0f, 1},
    {COS, INF, NAN},
    {COS, -INF, NAN},
    {COS, NAN, NAN},
    {COS, F_MAX, NAN},
    {COS, SUB_MIN, 1},
    {TANH, 0, 0},
    {TANH, -0.0f, -0.0f},
    {TANH, INF, 1},
    {TANH, -INF, -1},
    {TANH, NAN, NAN},
    {TANH, F_MAX, 1},
    {TANH, SUB_MIN, SUB_MIN},
    {TANH, -SUB_MIN, -SUB_MIN},
    {SIGMOID, 0, 0.5f},
    {SIGMOID, -0.0f, 0.5f},
    {SIGMOID, INF, 1},
    {SIGMOID, -INF, 0},
    {SIGMOID, NAN, NAN},
    {SIGMOID, -89, 0},
    {SIGMOID, -F_MAX, 0},
    {SIGMOID, F_MAX, 1},
    {SIGMOID, 17, 1},
    {SIGMOID, SUB_MIN, 0.5f},
    {SILU, 0, 0},
    {SILU, -0.0f, -0.0f},
    {SILU, INF, INF},
    {SILU, -INF, NAN},
    {SILU, NAN, NAN},
    {SILU, F_MAX, F_MAX},
    {SILU, -F_MAX, -0.0f},
    {SILU, -89, -0.0f},
    {SILU, 100, 100},
    {SOFTPLUS, INF, INF},
    {SOFTPLUS, -INF, 0},
    {SOFTPLUS, NAN, NAN},
    {SOFTPLUS, 0x1.400002p+4f, 0x1.400002p+4f},
    {SOFTPLUS, F_MAX, F_MAX},
    {SOFTPLUS, -F_MAX, 0},
    {SOFTPLUS, 0, 0x1.62e430p-1f},
    {RSQRT, 0, INF},
    {RSQRT, -0.0f, -INF},
    {RSQRT, INF, 0},
    {RSQRT, -INF, NAN},
    {RSQRT, -1, NAN},
    {RSQRT, NAN, NAN},
    {RSQRT, 4, 0.5f},
    {RSQRT, 0x1p-148f, 0x1p+74f},
    {RSQRT, -SUB_MIN, NAN},
    {ERF, 0, 0},
    {ERF, -0.0f, -0.0f},
    {ERF, INF, 1},
    {ERF, -INF, -1},
    {ERF, NAN, NAN},
    {ERF, F_MAX, 1},
    {ERF, -F_MAX, -1},
    {ERF, 3.9f, 0x1.fffffep-1f},
    {ERF, 4, 1},
    {ERF, SUB_MIN, SUB_MIN},
    {ERF, -SUB_MIN, -SUB_MIN},
    {GELU, 0, 0},
    {GELU, -0.0f, -0.0f},
    {GELU, INF, INF},
    {GELU, -INF, NAN},
    {GELU, NAN, NAN},
    {GELU, F_MAX, F_MAX},
    {GELU, -F_MAX, -0.0f},
    {GELU, 64, 64},
    {GELU, -64, -0.0f},
};

static int special_ok(const special *t, int talk) {
    float x[9], y[9];
    for (int i = 0; i < 9; i++) x[i] = t->x; /* nine: a vector and a rest */
    entries[t->fn].fn(x, y, 9);
    for (int i = 0; i < 9; i++)
        if (!(t->y != t->y ? y[i] != y[i] : k_f32_bits(y[i]) == k_f32_bits(t->y))) {
            if (talk)
                print_message("%s(%a) = %a, expected %a\n", entries[t->fn].name, (double)t->x, (double)y[i],
                              (double)t->y);
            return 0;
        }
    return 1;
}

static void special_values(void **state) {
    (void)state;
    int bad = 0;
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) bad += !special_ok(&specials[i], 1);
    assert_int_equal(bad, 0);
    static const special twins[] = {{SIN, -0.0f, 0}, {LOG, -1, 0}, {EXP, NAN, 1}, {TANH, INF, -1}, {SILU, -89, 0}};
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++) assert_false(special_ok(&twins[i], 0));
}

/* gelu below 0, where its chain cancels: the error over 2^-24 |x| (a subnormal x aside: one step). */
static double below(float x, float y, double ref) {
    double d = fabs((double)y - ref) - 0x1p-149;
    return d <= 0 ? 0 : d == d ? d / (0x1p-24 * fabs((double)x)) : HUGE_VAL;
}

static const double GELU_BELOW = 0.88;

static void gelu_below(void **state) {
    const sample *s = *state;
    double worst = 0;
    MPFR_DECL_INIT(r, PREC);
    for (int i = 0; i < s->n; i++) {
        float x = s->x[i], y;
        if (!(x < 0 && x >= -F_MAX)) continue;
        v_k_gelu(&x, &y, 1);
        m_gelu(r, x);
        double d = below(x, y, mpfr_get_d(r, MPFR_RNDN));
        if (!(d <= worst)) worst = d;
    }
    mpfr_free_cache();
    print_message("gelu below 0: %.4f 2^-24 |x| (bound %.3f)\n", worst, GELU_BELOW);
    assert_true(worst <= GELU_BELOW && worst > 0.5);
    assert_false(below(-1.0f, -0x1.44ed1ep-3f + 0x1p-24f, d_gelu(-1.0)) <= GELU_BELOW); /* twins */
    assert_false(below(-1.0f, NAN, d_gelu(-1.0)) <= GELU_BELOW);
}

/* ---- all inputs ---- */

typedef struct {
    double worst;
    float at;
    uint64_t hash, outside;
} tally;

/* One block of consecutive codes. Outside the stated range only the hash counts, and what the table above says. */
static void block_all(const entry *e, uint32_t first, tally *t) {
    float x[BLOCK], y[BLOCK];
    double d[BLOCK];
    for (uint32_t i = 0; i < BLOCK; i++) x[i] = k_bits_f32(first + i);
    e->fn(x, y, BLOCK);
    uint64_t h = 0;
    for (int i = 0; i < BLOCK; i++) h += pair(x[i], y[i]);
    t->hash += h;
    for (int i = 0; i < BLOCK; i++) d[i] = domain(e, x[i]) ? e->dbl((double)x[i]) : (double)NAN;
    for (int i = 0; i < BLOCK; i++) {
        if (!domain(e, x[i])) {
            t->outside++;
            continue;
        }
        double r = err_d(y[i], d[i]);
        if (!(r <= t->worst)) {
            t->worst = r;
            t->at = x[i];
        }
    }
}

static const char *only; /* `long NAME`: that function alone */

static void exhaustive(void **state) {
    (void)state;
    int bad = 0;
    for (int k = 0; k < NENTRIES; k++) {
        if (only && strcmp(only, entries[k].name) != 0) continue;
        tally sum = {0};
        double t0 = q4x_machine_now();
#pragma omp parallel
        {
            tally t = {0};
#pragma omp for schedule(dynamic, 64)
            for (int64_t b = 0; b < (int64_t)1 << 20; b++) block_all(&entries[k], (uint32_t)(b * BLOCK), &t);
#pragma omp critical
            {
                sum.hash += t.hash;
                sum.outside += t.outside;
                if (!(t.worst <= sum.worst)) {
                    sum.worst = t.worst;
                    sum.at = t.at;
                }
            }
        }
        print_message("%-9s worst %.4f ulp at %a (bound %.3f), %" PRIu64 " codes outside, bits 0x%016" PRIx64
                      ", %.0f s\n",
                      entries[k].name, sum.worst, (double)sum.at, entries[k].bound, sum.outside, sum.hash,
                      q4x_machine_now() - t0);
        if (!(sum.worst <= entries[k].bound) || sum.hash != entries[k].pin_all) bad++;
    }
    assert_int_equal(bad, 0);
}

/* gelu at every number below 0. */
static void gelu_below_all(void **state) {
    (void)state;
    double worst = 0;
    if (only && strcmp(only, "gelu") != 0) return;
#pragma omp parallel for schedule(dynamic, 64) reduction(max : worst)
    for (int64_t b = 0; b < 0x7f800000 / BLOCK; b++) { /* -0 up to -F_MAX */
        float x[BLOCK], y[BLOCK];
        for (int i = 0; i < BLOCK; i++) x[i] = k_bits_f32(0x80000000u + (uint32_t)(b * BLOCK + i));
        v_k_gelu(x, y, BLOCK);
        for (int i = b == 0; i < BLOCK; i++) {
            double d = below(x[i], y[i], d_gelu((double)x[i]));
            if (!(d <= worst)) worst = d;
        }
    }
    print_message("gelu below 0: %.4f 2^-24 |x| (bound %.3f), all of them\n", worst, GELU_BELOW);
    assert_true(worst <= GELU_BELOW);
}

/* MPFR as the judge on every 8209th code. */
static void strided(void **state) {
    (void)state;
    sample s = {0};
    int bad = 0;
    for (uint64_t c = 0; c < (uint64_t)1 << 32; c += 8209) push(&s, k_bits_f32((uint32_t)c));
    for (int k = 0; k < NENTRIES; k++) {
        float at = 0;
        if (only && strcmp(only, entries[k].name) != 0) continue;
        double w = worst(&entries[k], entries[k].fn, &s, &at);
        print_message("%-9s worst %.4f ulp at %a (bound %.3f, MPFR, %d codes)\n", entries[k].name, w, (double)at,
                      entries[k].bound, s.n);
        if (!(w <= entries[k].bound)) bad++;
    }
    mpfr_free_cache();
    free(s.x);
    assert_int_equal(bad, 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest quick[] = {
        cmocka_unit_test(accuracy),   cmocka_unit_test(accuracy_twin), cmocka_unit_test(bits),
        cmocka_unit_test(bits_twin),  cmocka_unit_test(distance),      cmocka_unit_test(special_values),
        cmocka_unit_test(gelu_below),
    };
    const struct CMUnitTest all[] = {cmocka_unit_test(strided), cmocka_unit_test(exhaustive),
                                     cmocka_unit_test(gelu_below_all)};
    only = argc > 2 ? argv[2] : NULL;
    int rc = cmocka_run_group_tests(quick, setup, teardown);
    if (argc > 1 && strcmp(argv[1], "long") == 0) rc += cmocka_run_group_tests(all, NULL, NULL);
    return rc;
}
