/* band.h: the constants of the bands that ops state (two numbers, k_band of k.h).
 *
 * A result rounded once to f32 is off by at most u |v| and, as roundings of unrelated values go, by a mean square of
 * K_RMS2 (u |v|)^2; a store to bf16 likewise with 2^-8. K_RMS2 is (0.737 / sqrt 3)^2, to two digits. A chain of m fmaf
 * and d tree levels over terms x_i with result y is off by at most gamma(m + d) sum|x_i| and by a mean square K_RMS2
 * u^2 [ (m/2 + d) sum x_i^2 + c y^2 ], c = m/96 + 2 in lanes32 (m the length of one of its chains), m/3 in a serial
 * chain.
 */
#ifndef K_BAND_H
#define K_BAND_H

#include "kernels/round.h"

#define K_U 0x1p-24
#define K_RMS2 0.18

/* Larger than the factor of a chain of k roundings, (1 + u)^k - 1. */
static inline double k_gamma(double k) {
    return k * K_U / (1.0 - k * K_U);
}

/* Mean square error of a serial chain of m steps: s2 the sum of the squared terms, y2 the squared result. */
static inline double k_serial_rms2(double m, double s2, double y2) {
    return K_RMS2 * K_U * K_U * (m / 2 * s2 + m / 3 * y2);
}

/* The same in lanes32 order, n terms. */
static inline double k_lanes32_rms2(double n, double s2, double y2) {
    double m = (double)(((int64_t)n + 31) / 32);
    return K_RMS2 * K_U * K_U * ((m / 2 + 5) * s2 + (m / 96 + 2) * y2);
}
static inline double k_lanes32_gamma(double n) {
    return k_gamma((double)(((int64_t)n + 31) / 32 + 5));
}

/* Sum of squares. */
static inline double k_norm2(const float *x, int64_t n) {
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
    return s;
}

/* What one rd adds: hard, relative to the value; mean square, for values with the sum of squares v2. */
static inline double k_store_hard(int32_t act) {
    return act == K_ACT_BF16 ? 0x1p-8 : 0.0;
}
static inline double k_store_rms2(int32_t act, double v2) {
    return act == K_ACT_BF16 ? K_RMS2 * 0x1p-16 * v2 : 0.0;
}

/* What rounding to a cache's type (k_kv_type) takes off n values: the sum of the squared differences. Of the values
 * alone: what the cache holds of them is what is judged by it. */
static inline double k_kept_error2(const float *x, int64_t n, int32_t type) {
    double s = 0.0;
    if (type == K_KV_F32) return s;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)k_kv_round(x[i], type);
        s += d * d;
    }
    return s;
}

/* The same as a band of the state: known, not estimated. */
static inline void k_kept_band(const float *x, int64_t n, const k_levers *lv, k_band *state) {
    const double e2 = k_kept_error2(x, n, k_kv_type(lv));
    state->hard2 += 1.01 * e2;
    state->rms2 += e2;
}

#endif
