/* vec8.h: eight f32 at once. Host only. One text for AVX2 + FMA and for plain C: the same correctly rounded steps, so
 * the same bits (finite values; a NaN's payload may differ).
 *
 * k_v8_dot executes the order lanes32 of reduce.h: four vectors are its 32 accumulators.
 */
#ifndef K_VEC8_H
#define K_VEC8_H

#include "kernels/reduce.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

typedef __m256 k_v8;
static inline k_v8 k_v8_zero(void) {
    return _mm256_setzero_ps();
}
static inline k_v8 k_v8_set(float x) {
    return _mm256_set1_ps(x);
}
static inline k_v8 k_v8_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void k_v8_store(float *p, k_v8 v) {
    _mm256_storeu_ps(p, v);
}
static inline k_v8 k_v8_add(k_v8 a, k_v8 b) {
    return _mm256_add_ps(a, b);
}
static inline k_v8 k_v8_sub(k_v8 a, k_v8 b) {
    return _mm256_sub_ps(a, b);
}
static inline k_v8 k_v8_mul(k_v8 a, k_v8 b) {
    return _mm256_mul_ps(a, b);
}
static inline k_v8 k_v8_fma(k_v8 a, k_v8 b, k_v8 c) {
    return _mm256_fmadd_ps(a, b, c);
}

/* The levels t = 16, 8, 4, 2, 1 of lanes32; v[0] holds lanes 0..7, v[3] lanes 24..31. */
static inline float k_v8_fold(const k_v8 v[4]) {
    k_v8 a = _mm256_add_ps(_mm256_add_ps(v[0], v[2]), _mm256_add_ps(v[1], v[3]));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

#else

typedef struct {
    float f[8];
} k_v8;
#define K_V8_EACH(expr)                                                                                                \
    k_v8 r;                                                                                                            \
    for (int i = 0; i < 8; i++) r.f[i] = (expr);                                                                       \
    return r
static inline k_v8 k_v8_zero(void) {
    K_V8_EACH(0.0f);
}
static inline k_v8 k_v8_set(float x) {
    K_V8_EACH(x);
}
static inline k_v8 k_v8_load(const float *p) {
    K_V8_EACH(p[i]);
}
static inline void k_v8_store(float *p, k_v8 v) {
    for (int i = 0; i < 8; i++) p[i] = v.f[i];
}
static inline k_v8 k_v8_add(k_v8 a, k_v8 b) {
    K_V8_EACH(a.f[i] + b.f[i]);
}
static inline k_v8 k_v8_sub(k_v8 a, k_v8 b) {
    K_V8_EACH(a.f[i] - b.f[i]);
}
static inline k_v8 k_v8_mul(k_v8 a, k_v8 b) {
    K_V8_EACH(a.f[i] * b.f[i]);
}
static inline k_v8 k_v8_fma(k_v8 a, k_v8 b, k_v8 c) {
    K_V8_EACH(fmaf(a.f[i], b.f[i], c.f[i]));
}
#undef K_V8_EACH

static inline float k_v8_fold(const k_v8 v[4]) {
    float acc[32];
    for (int l = 0; l < 32; l++) acc[l] = v[l / 8].f[l % 8];
    return k_lanes32_fold(acc);
}

#endif

/* k_lanes32_dot of reduce.h, the same bits. */
static inline float k_v8_dot(const float *w, const float *x, int64_t n) {
    k_v8 a[4] = {k_v8_zero(), k_v8_zero(), k_v8_zero(), k_v8_zero()};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int b = 0; b < 4; b++) a[b] = k_v8_fma(k_v8_load(w + i + 8 * b), k_v8_load(x + i + 8 * b), a[b]);
    if (i == n) return k_v8_fold(a);
    float acc[32];
    for (int b = 0; b < 4; b++) k_v8_store(acc + 8 * b, a[b]);
    for (int l = 0; i + l < n; l++) acc[l] = fmaf(w[i + l], x[i + l], acc[l]);
    return k_lanes32_fold(acc);
}

/* Two dots with one x: y[0] = w0 . x, y[1] = w1 . x. Each has the bits of k_v8_dot; x is read once. */
static inline void k_v8_dot2(const float *w0, const float *w1, const float *x, int64_t n, float y[2]) {
    if (n % 32) {
        y[0] = k_v8_dot(w0, x, n);
        y[1] = k_v8_dot(w1, x, n);
        return;
    }
    k_v8 a[4] = {k_v8_zero(), k_v8_zero(), k_v8_zero(), k_v8_zero()}, c[4] = {a[0], a[0], a[0], a[0]};
    for (int64_t i = 0; i < n; i += 32)
        for (int b = 0; b < 4; b++) {
            k_v8 v = k_v8_load(x + i + 8 * b);
            a[b] = k_v8_fma(k_v8_load(w0 + i + 8 * b), v, a[b]);
            c[b] = k_v8_fma(k_v8_load(w1 + i + 8 * b), v, c[b]);
        }
    y[0] = k_v8_fold(a);
    y[1] = k_v8_fold(c);
}

#endif
