#include "lib/sketch.h"

#include <math.h>
#include <string.h>

#include "kernels/measure.h"
#include "lib/tapstat.h"

uint64_t q4x_sketch_h(uint32_t b, uint32_t i) {
    return k_sketch_h(b, i);
}

void q4x_sketch_pattern(uint32_t b, q4x_sketch_pat *ret) {
    ret->flip = (uint32_t)(q4x_sketch_h(b, 0) & 255);
    for (uint32_t w = 0; w < 4; w++) ret->sign[w] = q4x_sketch_h(b, 1 + w);
}

/* Vectors of the compiler, so that one text serves AVX2 and others; every lane is a plain f32 or f64 operation. */
typedef float v8f __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));

static inline v8i all(int32_t x) {
    return (v8i){x, x, x, x, x, x, x, x};
}

/* All 256 buckets, eight at a time: the high bits of flip choose the group of eight elements, low (a constant in every
 * call, so the shuffles are fixed) exchanges its lanes. */
static inline __attribute__((always_inline)) void sweep(double *sum, const float *x, q4x_sketch_pat pat, int low) {
    const v8i lane_bit = {1, 2, 4, 8, 16, 32, 64, 128};
    const v8i sign_bit = all(INT32_MIN);
    float t[Q4X_SKETCH_BLOCK];
    for (uint32_t g = 0; g < 32; g++) {
        uint32_t h = g ^ (pat.flip >> 3); /* group of elements 8h .. 8h+7 */
        int32_t signs = (int32_t)((pat.sign[h >> 3] >> (8 * (h & 7))) & 255);
        v8i neg = (all(signs) & lane_bit) == lane_bit; /* all ones where negated */
        v8f v;
        memcpy(&v, x + 8 * h, sizeof v);
        v = (v8f)((v8i)v ^ (neg & sign_bit));
        if (low & 1) v = __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
        if (low & 2) v = __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
        if (low & 4) v = __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
        memcpy(t + 8 * g, &v, sizeof v);
    }
    for (int k = 0; k < Q4X_SKETCH_BLOCK; k++) sum[k] += (double)t[k];
}

void q4x_sketch_block(double *sum, const float *x, const q4x_sketch_pat *pat) {
    switch (pat->flip & 7) {
    case 0: sweep(sum, x, *pat, 0); break;
    case 1: sweep(sum, x, *pat, 1); break;
    case 2: sweep(sum, x, *pat, 2); break;
    case 3: sweep(sum, x, *pat, 3); break;
    case 4: sweep(sum, x, *pat, 4); break;
    case 5: sweep(sum, x, *pat, 5); break;
    case 6: sweep(sum, x, *pat, 6); break;
    default: sweep(sum, x, *pat, 7); break;
    }
}

void q4x_sketch_fold(const double *sum, double *out) {
    for (int k = 0; k < Q4X_SKETCH_FOLD; k++) out[k] = ((sum[k] + sum[k + 64]) + sum[k + 128]) + sum[k + 192];
}

/* ---- comparing ---- */

/* What one row of the pair says. */
typedef struct {
    double e;      /* sum of the squared bucket differences that are above the floor */
    double floor2; /* square of the floor of one bucket */
    int differing; /* buckets above the floor */
} row_dist;

/* f64 sums of one bucket err by less than 2^-53 of its sum|x| an addition; the row's sum|x|, an upper bound of the
 * bucket's, stands for it (design 4). NaN is never below the floor. */
static row_dist bucket_row(const q4x_sketch *a, const q4x_sketch *b, int32_t t, double *sq) {
    row_dist r = {0};
    double mass = 0;
    if (a->row_sumabs && b->row_sumabs) mass = fmax(a->row_sumabs[t], b->row_sumabs[t]);
    double limit = 0x1p-52 * mass;
    const double *x = a->buckets + (size_t)t * (size_t)a->width, *y = b->buckets + (size_t)t * (size_t)b->width;
    for (int32_t k = 0; k < a->width; k++) {
        double d = x[k] - y[k];
        int below = fabs(d) <= limit;
        sq[k] = below ? 0 : d * d;
        r.differing += !below;
        r.e += sq[k];
    }
    r.floor2 = limit * limit;
    return r;
}

/* A value that is not finite counts as absent, as in the buckets. */
static row_dist raw_row(const q4x_sketch *a, const q4x_sketch *b, int32_t t, double *sq) {
    row_dist r = {0};
    const float *x = a->values + (size_t)t * (size_t)a->width, *y = b->values + (size_t)t * (size_t)b->width;
    for (int32_t k = 0; k < a->width; k++) {
        double d = (isfinite(x[k]) ? (double)x[k] : 0) - (isfinite(y[k]) ? (double)y[k] : 0);
        sq[k] = d * d;
        r.differing += !(d == 0);
        r.e += sq[k];
    }
    return r;
}

enum { HEAVY = 16 }; /* buckets of which the share is told */

/* Sum of the HEAVY largest of n squares. */
static double heaviest(const double *sq, int32_t n) {
    double top[HEAVY] = {0}, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!(sq[i] > top[HEAVY - 1])) continue;
        int k = HEAVY - 1;
        for (; k > 0 && sq[i] > top[k - 1]; k--) top[k] = top[k - 1];
        top[k] = sq[i];
    }
    for (int k = 0; k < HEAVY; k++) sum += top[k];
    return sum;
}

/* The share that a dense difference would have: of n squared normal variables, the part of the sum that the largest
 * 16 hold: q + 2 z phi(z) with P(|Z| > z) = q = 16 / n. */
static double dense_share(int32_t n) {
    if (n <= HEAVY) return 1;
    double q = (double)HEAVY / n, lo = 0, hi = 8, z = 0;
    for (int i = 0; i < 60; i++) {
        z = (lo + hi) / 2;
        if (erfc(z / sqrt(2.0)) > q)
            lo = z;
        else
            hi = z;
    }
    return q + 2 * z * exp(-z * z / 2) / sqrt(2 * 3.14159265358979323846);
}

/* m e / ||d||^2 is chi-square with m degrees of freedom, so ||d||^2 lies between e m / q with the 97.5 % and the 2.5 %
 * quantile q. */
static void chi_square(int32_t m, double *lo, double *hi) {
    int wide = m == Q4X_SKETCH_BLOCK;
    *lo = m / (wide ? 302.2118101022063 : 88.00405100649752);
    *hi = m / (wide ? 213.57466758600806 : 43.77595264256912);
}

static int same_shape(const q4x_sketch *a, const q4x_sketch *b, q4x_err *err) {
    if (a->row0 != b->row0 || a->nrows != b->nrows || a->width != b->width || !a->raw != !b->raw)
        return q4x_fail(
            err, Q4X_E_MISMATCH,
            "sketches cannot be compared: one keeps rows %d..%d with %d %s each, the other rows %d..%d with "
            "%d %s; record both arms with the same rows and shapes",
            a->row0, a->row0 + a->nrows - 1, a->width, a->raw ? "values" : "buckets", b->row0, b->row0 + b->nrows - 1,
            b->width, b->raw ? "values" : "buckets");
    if (!a->raw && a->width != Q4X_SKETCH_BLOCK && a->width != Q4X_SKETCH_FOLD)
        return q4x_fail(err, Q4X_E_MISMATCH, "a sketch row has %d buckets, expected 64 or 256", a->width);
    int have = a->raw ? a->values && b->values : a->buckets && b->buckets;
    if (a->nrows < 0 || a->width < 0 || (a->nrows > 0 && a->width > 0 && !have))
        return q4x_fail(err, Q4X_E_MISMATCH, "a sketch of %d rows has no values to compare", a->nrows);
    return 0;
}

int q4x_sketch_compare(const q4x_sketch *a, const q4x_sketch *b, q4x_sketch_dist *ret, double *row_e, q4x_err *err) {
    q4x_sketch_dist d = {.exact = a->raw != 0};
    double sq[Q4X_SKETCH_RAW], heavy = -1, floor2 = 0;
    int heavy_differing = 0, rc = same_shape(a, b, err);
    if (rc) return rc;
    if (a->width > Q4X_SKETCH_RAW)
        return q4x_fail(err, Q4X_E_MISMATCH, "a sketch row is %d wide, expected at most %d", a->width, Q4X_SKETCH_RAW);
    for (int32_t t = 0; t < a->nrows; t++) {
        row_dist r = a->raw ? raw_row(a, b, t, sq) : bucket_row(a, b, t, sq);
        if (row_e) row_e[t] = r.e;
        d.e += r.e;
        floor2 += r.floor2;
        if (!(r.e <= heavy)) {
            heavy = r.e;
            heavy_differing = r.differing;
            d.top_share = r.e > 0 ? heaviest(sq, a->width) / r.e : 0;
        }
    }
    d.nonfinite = a->skipped || b->skipped;
    d.dense_share = dense_share(a->width);
    d.lo = d.hi = d.e;
    if (!d.exact && a->nrows) {
        double lo, hi, m = a->width;
        d.m = a->width;
        d.sparse = 2 * heavy_differing < a->width;
        d.below_floor = d.e == 0;
        if (d.sparse)
            lo = 1 / (1 + sqrt(40 / m)), hi = 1 / (1 - sqrt(40 / m));
        else
            chi_square(d.m, &lo, &hi);
        d.lo = d.e * lo;
        d.hi = (d.below_floor ? m * floor2 : d.e) * hi;
    }
    *ret = d;
    return 0;
}
