/* arith.h: the house's own transcendentals. EXACT: each is a fixed chain of correctly rounded f32 (sines: f64) steps,
 * so gcc, clang and nvcc give the same bits, scalar or vector. One text, C17 and C++17; no libm but fma and sqrt.
 *
 * Flags that this rests on: -ffp-contract=off, nvcc --fmad=false, no fast-math, subnormals kept, to-nearest rounding.
 * Selects instead of branches, so that loops over arrays become vector code. NaN results agree in position, not in
 * payload. Polynomials are minimax fits made for these intervals, low coefficients rounded to the format first.
 * "max" bounds the error in ulp of the result, found on all 2^32 inputs (tests/t_arith.c, which also pins the bits: a
 * sum over all inputs that gcc and an H200 gave alike).
 *
 *   function       computes                         range      special                                          max
 *   k_exp(x)       e^x                              all        > 88.72: inf; < -103.97: 0; subnormals rounded   0.90
 *                                                              once; -inf: 0; NaN: NaN
 *   k_log(x)       ln x                             all        +-0: -inf; < 0: NaN; inf: inf; subnormals right  0.94
 *   k_log1p(x)     ln(1 + x)                        all        -1: -inf; < -1: NaN; inf: inf; +-0: +-0          1.01
 *   k_sincos(x)    sin x, cos x                     |x| <=     beyond, inf, NaN: NaN; sin(+-0) = +-0            0.501
 *   k_sin, k_cos                                    2^30
 *   k_tanh(x)      tanh x                           all        +-inf: +-1; +-0: +-0; NaN: NaN                   1.37
 *   k_sigmoid(x)   1 / (1 + e^-x)                   all        < -88.72: +0; inf: 1; -inf: 0; NaN: NaN          2.49
 *   k_silu(x)      x / (1 + e^-x)                   all        < -88.72: -0; inf: inf; -inf: NaN; NaN: NaN      2.40
 *   k_softplus(x)  x > 20 ? x : ln(1 + e^x)         all        inf: inf; -inf: 0; NaN: NaN                      1.72
 *   k_rsqrt(x)     1 / sqrt(x), two steps           all        +0: inf; -0: -inf; < 0: NaN; inf: 0              1.50
 *   k_erf(x)       erf x                            all        +-inf: +-1; +-0: +-0; NaN: NaN                   1.09
 *   k_gelu(x)      x/2 (1 + erf(x / sqrt 2))        x >= 0     inf: inf; -inf: NaN; +-0: +-0; NaN: NaN          1.70
 *                                                   x < 0      within 0.88 2^-24 |x|: 1 + erf cancels, as in engines
 */
#ifndef K_ARITH_H
#define K_ARITH_H

#include <math.h>
#include <string.h>

#include "kernels/k.h"
#include "kernels/round.h"

K_HD uint64_t k_f64_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}

K_HD double k_bits_f64(uint64_t u) {
    double x;
    memcpy(&x, &u, 8);
    return x;
}

/* c ? a : b on the bits: gcc keeps this a select where it would branch around arithmetic, which ends vector code. */
K_HD float k_select(int c, float a, float b) {
    uint32_t m = 0u - (uint32_t)c;
    return k_bits_f32((k_f32_bits(a) & m) | (k_f32_bits(b) & ~m));
}

/* x = n ln2 + r, |r| <= ln2/2, n ln2 in two parts (the first step is exact); e^r by degree 6 (2^-28); then 2^n as two
 * factors, of which only the last can round. 1.5 * 2^23 as addend leaves the integer n in the low bits. */
K_HD float k_exp(float x) {
    const float magic = 0x1.8p+23f;
    float c = x < -104.0f ? -104.0f : x;
    c = c > 89.0f ? 89.0f : c;
    float t = fmaf(c, 0x1.715476p+0f, magic);
    float n = t - magic;
    float r = fmaf(n, -0x1.62e430p-1f, c);
    r = fmaf(n, 0x1.05c610p-29f, r);
    float p = 0x1.6a4f6cp-10f;
    p = fmaf(p, r, 0x1.123986p-7f);
    p = fmaf(p, r, 0x1.5558aep-5f);
    p = fmaf(p, r, 0x1.555492p-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* n + 256 is positive; a NaN leaves rubbish here, and NaN times it is NaN */
    uint32_t m = k_f32_bits(t) - 0x4b400000u + 256u, h = m >> 1;
    return p * k_bits_f32((h - 1u) << 23) * k_bits_f32((m - h - 1u) << 23);
}

/* ln(1 + f + lo) + e ln2 for 1 + f in [2/3, 4/3): f - f^2/2 + f^3 p(f), p of degree 7 (2^-27.7 of the whole). The large
 * terms e ln2 + f are added with their error kept, so little more than the last rounding is lost. */
K_HD float k_log_core(float f, float lo, float e) {
    float p = -0x1.07aad6p-3f;
    p = fmaf(p, f, 0x1.1e71a2p-3f);
    p = fmaf(p, f, -0x1.f33c2ap-4f);
    p = fmaf(p, f, 0x1.1ed480p-3f);
    p = fmaf(p, f, -0x1.559c30p-3f);
    p = fmaf(p, f, 0x1.99d05ap-3f);
    p = fmaf(p, f, -0x1.fffefap-3f);
    p = fmaf(p, f, 0x1.555506p-2f);
    p = fmaf(p, f, -0.5f);
    float q = fmaf(p, f * f, lo);
    q = fmaf(e, -0x1.05c610p-29f, q);
    float h = fmaf(e, 0x1.62e430p-1f, f);
    float c = fmaf(e, 0x1.62e430p-1f, -h) + f;
    return h + (c + q);
}

K_HD float k_log(float x) {
    int small = x < 0x1p-126f;
    uint32_t u = k_f32_bits(k_select(small, x * 0x1p+23f, x));
    uint32_t e = (u - 0x3f2aaaabu) & 0xff800000u; /* exponent that brings u into [2/3, 4/3) */
    float y = k_log_core(k_bits_f32(u - e) - 1.0f, 0.0f, (float)(((int32_t)e >> 23) - 23 * small));
    y = k_select(x <= 0x1.fffffep+127f, y, x); /* inf, NaN */
    y = k_select(x == 0.0f, -INFINITY, y);
    return k_select(x < 0.0f, NAN, y);
}

/* The exponent e is that of 1 + x; f + lo = x 2^-e + (2^-e - 1) keeps what 1 + x lost. 4 * 2^-e stays normal. */
K_HD float k_log1p(float x) {
    float u = 1.0f + x;
    uint32_t e = (k_f32_bits(u) - 0x3f2aaaabu) & 0xff800000u;
    float a = k_bits_f32(k_f32_bits(x) - e), b = fmaf(0.25f, k_bits_f32(0x40800000u - e), -1.0f);
    float f = a + b, g = f - a;
    float lo = (a - (f - g)) + (b - g);
    lo = fmaf(-lo, f, lo); /* the slope 1 / (1 + f) */
    float y = k_log_core(f, lo, (float)((int32_t)e >> 23));
    y = k_select(x <= 0x1.fffffep+127f, y, x); /* inf, NaN */
    y = k_select(x == 0.0f, x, y);
    y = k_select(x == -1.0f, -INFINITY, y);
    return k_select(x < -1.0f, NAN, y);
}

/* r = x - n pi/2 in f64: pi/2 in two doubles, the first fma is exact (|n| < 2^30, result a multiple of 2^-52 below 1),
 * so r is good to 2^-53 of itself however close x is to a multiple of pi/2. Polynomials in f64: 2^-37 and 2^-43. */
K_HD void k_sincos(float x, float *ret_sin, float *ret_cos) {
    const double magic = 0x1.8p+52;
    double d = (double)x;
    double t = fma(d, 0x1.45f306dc9c883p-1, magic);
    double n = t - magic;
    double r = fma(n, -0x1.921fb54442d18p+0, d);
    r = fma(n, -0x1.1a62633145c07p-54, r);
    double z = r * r;
    double a = 0x1.6cd1b096b9fb8p-19;
    a = fma(a, z, -0x1.a00f7e14bd17bp-13);
    a = fma(a, z, 0x1.111108690be20p-7);
    a = fma(a, z, -0x1.5555554c6ffc8p-3);
    a = fma(a * z, r, r);
    double b = -0x1.23c9481be5793p-22;
    b = fma(b, z, 0x1.a00eb883f4af0p-16);
    b = fma(b, z, -0x1.6c16b34687bf9p-10);
    b = fma(b, z, 0x1.55555545c1d5ap-5);
    b = fma(b, z, -0x1.ffffffffe9851p-2);
    b = fma(b, z, 1.0);
    /* quadrant: odd n swaps, n & 2 negates the sine, (n + 1) & 2 the cosine */
    uint64_t q = k_f64_bits(t);
    uint64_t swap = (uint64_t)0 - (q & 1u);
    uint64_t ab = k_f64_bits(a), bb = k_f64_bits(b);
    uint64_t s = ((ab & ~swap) | (bb & swap)) ^ ((q & 2u) << 62);
    uint64_t c = ((bb & ~swap) | (ab & swap)) ^ (((q + 1u) & 2u) << 62);
    float fs = (float)k_bits_f64(s), fc = (float)k_bits_f64(c);
    int in = fabsf(x) <= 0x1p+30f;
    fs = k_select(x == 0.0f, x, fs);
    *ret_sin = k_select(in, fs, NAN);
    *ret_cos = k_select(in, fc, NAN);
}

K_HD float k_sin(float x) {
    float s, c;
    k_sincos(x, &s, &c);
    return s;
}

K_HD float k_cos(float x) {
    float s, c;
    k_sincos(x, &s, &c);
    return c;
}

/* Below 0.625 an odd polynomial (2^-27.7), above 1 - 2 / (e^2|x| + 1); the sign is x's. */
K_HD float k_tanh(float x) {
    float a = fabsf(x), z = x * x;
    float p = -0x1.750ce2p-8f;
    p = fmaf(p, z, 0x1.51f8cep-6f);
    p = fmaf(p, z, -0x1.b835a4p-5f);
    p = fmaf(p, z, 0x1.1106f6p-3f);
    p = fmaf(p, z, -0x1.555532p-2f);
    float near = fmaf(p * z, a, a);
    float far = 1.0f - 2.0f / (k_exp(2.0f * a) + 1.0f);
    float y = k_select(a < 0.625f, near, far);
    return k_bits_f32(k_f32_bits(y) | (k_f32_bits(x) & 0x80000000u));
}

K_HD float k_sigmoid(float x) {
    return 1.0f / (1.0f + k_exp(-x));
}

/* x over the denominator, not times the sigmoid: one rounding less, and the form in which the engines compute it. */
K_HD float k_silu(float x) {
    return x / (1.0f + k_exp(-x));
}

K_HD float k_softplus(float x) {
    float y = k_log1p(k_exp(x));
    return k_select(x > 20.0f, x, y);
}

K_HD float k_rsqrt(float x) {
    return 1.0f / sqrtf(x);
}

/* Below 0.921875 x + x p(x^2) (2^-30 of it), above 1 - e^q(|x|) with q = ln erfc (2^-34); from 4 on it is 1 in f32. */
K_HD float k_erf(float x) {
    float a = fabsf(x), z = x * x;
    float p = 0x1.4f562ep-14f;
    p = fmaf(p, z, -0x1.a606c2p-11f);
    p = fmaf(p, z, 0x1.5449e4p-8f);
    p = fmaf(p, z, -0x1.b80118p-6f);
    p = fmaf(p, z, 0x1.ce2d64p-4f);
    p = fmaf(p, z, -0x1.812740p-2f);
    p = fmaf(p, z, 0x1.06eba8p-3f);
    float near = fmaf(p, a, a);
    float c = a > 4.0f ? 4.0f : a;
    float q = -0x1.637072p-16f;
    q = fmaf(q, c, 0x1.c8a580p-12f);
    q = fmaf(q, c, -0x1.11acd8p-8f);
    q = fmaf(q, c, 0x1.9bc364p-6f);
    q = fmaf(q, c, -0x1.bb97eap-4f);
    q = fmaf(q, c, -0x1.4443d2p-1f);
    q = fmaf(q, c, -0x1.21286ep+0f);
    q = fmaf(q, c, 0x1.71db2ap-13f);
    float y = k_select(a < 0.921875f, near, 1.0f - k_exp(q));
    return k_bits_f32(k_f32_bits(y) | (k_f32_bits(x) & 0x80000000u));
}

/* The chain of the engines that call it gelu: the argument is rounded, and for x < 0 the sum cancels. */
K_HD float k_gelu(float x) {
    return 0.5f * x * (1.0f + k_erf(0x1.6a09e6p-1f * x));
}

#endif
