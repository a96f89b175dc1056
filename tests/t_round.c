/* Storage roundings of kernels/round.h against a reference through f64 arithmetic: every 16-bit code both ways, and f32
 * inputs of every exponent with the ties between codes. */
#include "tests/h_kern.h"

#include <inttypes.h>
#include <math.h>

/* A format of 1 sign, E exponent and M fraction bits. */
typedef struct {
    const char *name;
    int E, M;
    uint16_t (*from)(float);
    float (*to)(uint16_t);
} fmt16;

static const fmt16 formats[] = {{"bf16", 8, 7, k_bf16_from_f32, k_f32_from_bf16},
                                {"f16", 5, 10, k_f16_from_f32, k_f32_from_f16}};

/* Value of a code, from the definition. */
static double value(const fmt16 *f, uint16_t code) {
    int bias = (1 << (f->E - 1)) - 1, e = code >> f->M & ((1 << f->E) - 1), m = code & ((1 << f->M) - 1);
    double v = e == (1 << f->E) - 1 ? (m ? (double)NAN : HUGE_VAL)
               : e                  ? ldexp(1 + ldexp(m, -f->M), e - bias)
                                    : ldexp(m, 1 - bias - f->M);
    return code >> 15 ? -v : v;
}

/* Nearest code, ties to even, from f64 arithmetic. NaN is judged apart. */
static uint16_t nearest(const fmt16 *f, float x) {
    int bias = (1 << (f->E - 1)) - 1, e;
    uint16_t sign = signbit(x) ? 0x8000 : 0, inf = (uint16_t)(((1 << f->E) - 1) << f->M);
    double a = fabs((double)x);
    if (isinf(x)) return sign | inf;
    if (a == 0) return sign;
    frexp(a, &e);
    e = e - 1 < 1 - bias ? 1 - bias : e - 1;
    double q = rint(ldexp(a, f->M - e)); /* in units of the last place, to even */
    double v = ldexp(q, e - f->M);
    if (v >= ldexp(1, bias + 1)) return sign | inf;
    if (q < ldexp(1, f->M)) return sign | (uint16_t)q; /* subnormal */
    if (q == ldexp(1, f->M + 1)) q = ldexp(1, f->M), e++;
    return (uint16_t)(sign | (unsigned)((e + bias) << f->M) | ((unsigned)q & ((1u << f->M) - 1)));
}

static int to_ok(const fmt16 *f, uint16_t code, float got) {
    double want = value(f, code);
    if (want != want) return got != got && !!signbit(got) == code >> 15;
    return (double)got == want && !!signbit(got) == code >> 15;
}

/* NaN: sign kept, still NaN; bf16 keeps the upper payload and sets the quiet bit, f16 is the quiet NaN. */
static int from_ok(const fmt16 *f, float x, uint16_t got) {
    uint32_t u = k_f32_bits(x);
    if (x == x) return got == nearest(f, x);
    return got == (uint16_t)(f->E == 8 ? (u >> 16 | 0x40) : ((u >> 16 & 0x8000) | 0x7e00));
}

static void codes(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        const fmt16 *f = &formats[k];
        for (uint32_t c = 0; c < 65536; c++) {
            float x = f->to((uint16_t)c);
            assert_true(to_ok(f, (uint16_t)c, x));
            if (x == x)
                assert_int_equal(f->from(x), c);
            else
                assert_true(from_ok(f, x, f->from(x)));
        }
        /* twins: a neighbour's value, the other sign of zero */
        assert_false(to_ok(f, 0x3c00, f->to(0x3c01)));
        assert_false(to_ok(f, 0x8000, 0.0f));
        assert_false(to_ok(f, 0x7fff, 1.0f));
    }
}

static uint64_t checked;

static void check(const fmt16 *f, uint32_t u) {
    float x = k_bits_f32(u);
    checked++;
    if (!from_ok(f, x, f->from(x)))
        fail_msg("%s of 0x%08" PRIx32 " is 0x%04x, expected 0x%04x", f->name, u, f->from(x), nearest(f, x));
    if (f->E != 8) return;
    float r = k_round_bf16(x); /* the store of activations: the same code, widened */
    if (k_f32_bits(r) != (uint32_t)f->from(x) << 16) fail_msg("k_round_bf16 of 0x%08" PRIx32 " differs", u);
    assert_true(k_f32_bits(k_rd(x, K_ACT_F32)) == u && k_f32_bits(k_rd(x, K_ACT_BF16)) == k_f32_bits(r));
}

/* Around every code: the value, the tie to the next, one step of f32 to either side; then random bits, NaNs among them.
 */
static void rounding(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        const fmt16 *f = &formats[k];
        checked = 0;
        for (uint32_t c = 0; c < 65535; c++) {
            double a = value(f, (uint16_t)c), b = value(f, (uint16_t)(c + 1));
            if (!isfinite(a)) continue;
            if (!isfinite(b)) b = copysign(ldexp(1, 1 << (f->E - 1)), a); /* where the next code would be */
            float mid = (float)(a + (b - a) / 2);
            for (uint32_t i = 0; i < 5; i++) {
                check(f, k_f32_bits((float)a) + i - 2u);
                check(f, k_f32_bits(mid) + i - 2u);
            }
        }
        uint64_t seed = 12;
        for (int i = 0; i < 2000000; i++) check(f, (uint32_t)(hk_uniform(&seed) * 4294967296.0));
        static const uint32_t nans[] = {0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff,
                                        0xff800001, 0xffc12345, 0x7f808000};
        for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) check(f, nans[i]);
        print_message("%s: %" PRIu64 " f32 inputs\n", f->name, checked);
    }
}

/* Twins: truncation, ties away and flushed subnormals would each be found by the inputs above. */
static void rounding_twin(void **state) {
    (void)state;
    const fmt16 *b = &formats[0], *h = &formats[1];
    assert_false(from_ok(b, 0x1.01p+0f, (uint16_t)(k_f32_bits(0x1.01p+0f) >> 16) + 1)); /* tie: even is below */
    assert_true(from_ok(b, 0x1.01p+0f, 0x3f80));
    assert_true(from_ok(b, 0x1.03p+0f, 0x3f82)); /* tie: even is above */
    assert_false(from_ok(b, 0x1.03p+0f, 0x3f81));
    assert_true(from_ok(h, 0x1p-24f, 1) && from_ok(h, 0x1p-25f, 0) && from_ok(h, 0x1.8p-24f, 2));
    assert_false(from_ok(h, 0x1p-24f, 0));
    assert_true(from_ok(h, 65519.996f, 0x7bff) && from_ok(h, 65520.0f, 0x7c00));
    assert_false(from_ok(b, k_bits_f32(0x7f808000), 0x7f80)); /* NaN to infinity */
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes), cmocka_unit_test(rounding),
                                       cmocka_unit_test(rounding_twin)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
