/* t_tapstat.c: statistics and sketches against their definitions, bit for bit, and what the estimate is worth. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/round.h"
#include "lib/tapstat.h"
#include "tests/h_rand.h"

/* ---- the definitions, slowly ---- */

/* XXH3-64 of 8 bytes with a seed, written from its description. */
static uint64_t slow_h(uint32_t b, uint32_t i) {
    const uint64_t secret8 = 0x1cad21f72c81017cu, secret16 = 0xdb979083e96dd4deu;
    uint64_t seed = 0x71347820, lo = (uint32_t)seed;
    lo = (lo >> 24 & 0xff) | (lo >> 8 & 0xff00) | (lo << 8 & 0xff0000) | (lo << 24 & 0xff000000);
    seed ^= lo << 32;
    uint64_t h = ((uint64_t)i + ((uint64_t)b << 32)) ^ ((secret8 ^ secret16) - seed);
    h ^= (h << 49 | h >> 15) ^ (h << 24 | h >> 40);
    h *= 0x9FB21C651E98DF25u;
    h ^= (h >> 35) + 8;
    h *= 0x9FB21C651E98DF25u;
    return h ^ h >> 28;
}

static double tree(double *acc) {
    for (int n = 128; n >= 1; n /= 2)
        for (int k = 0; k < n; k++) acc[k] += acc[k + n];
    return acc[0];
}

static void slow_sums(const float *x, int64_t D, double *sumabs, double *sumsq) {
    double a[256] = {0}, s[256] = {0};
    for (int64_t i = 0; i < D; i++) {
        if (!isfinite(x[i])) continue;
        a[i % 256] += fabs((double)x[i]);
        s[i % 256] += (double)x[i] * (double)x[i];
    }
    *sumabs = tree(a);
    *sumsq = tree(s);
}

static uint64_t slow_sketch_row(const float *x, int64_t D, int width, double *out) {
    double S[256] = {0};
    uint64_t skipped = 0;
    for (int64_t b = 0; b * 256 < D; b++) {
        uint32_t m = (uint32_t)(slow_h((uint32_t)b, 0) & 255);
        for (uint32_t k = 0; k < 256; k++) {
            uint32_t j = k ^ m;
            if (b * 256 + j >= D) continue;
            float v = x[b * 256 + j];
            if (!isfinite(v)) {
                skipped++;
                continue;
            }
            int neg = (int)(slow_h((uint32_t)b, 1 + (j >> 6)) >> (j & 63) & 1);
            S[k] += neg ? -(double)v : (double)v;
        }
    }
    if (width == 256)
        memcpy(out, S, sizeof S);
    else
        for (int k = 0; k < 64; k++) out[k] = ((S[k] + S[k + 64]) + S[k + 128]) + S[k + 192];
    return skipped;
}

static void slow_stats(const float *x, int64_t T, int64_t D, q4x_stats *s) {
    *s = (q4x_stats){.n = (uint64_t)(T * D), .min = (double)NAN, .max = (double)NAN, .maxabs = (double)NAN};
    for (int64_t t = 0; t < T; t++) {
        double a, q;
        slow_sums(x + t * D, D, &a, &q);
        s->sumabs += a;
        s->sumsq += q;
    }
    for (int64_t i = 0; i < T * D; i++) {
        float v = x[i];
        s->nan += isnan(v) != 0;
        s->pinf += isinf(v) && v > 0;
        s->ninf += isinf(v) && v < 0;
        if (!isfinite(v)) continue;
        s->zeros += v == 0;
        s->on_bf16 += k_round_bf16(v) == v;
        s->on_f16 += k_f32_from_f16(k_f16_from_f32(v)) == v;
        if (!(s->min <= (double)v)) s->min = (double)v + 0.0;
        if (!(s->max >= (double)v)) s->max = (double)v + 0.0;
        if (!(s->maxabs >= fabs((double)v))) s->maxabs = fabs((double)v);
    }
    for (; s->ntop < Q4X_NTOP; s->ntop++) { /* selection sort: largest |x|, the earliest of equals */
        int64_t best = -1;
        for (int64_t i = 0; i < T * D; i++) {
            int taken = !isfinite(x[i]);
            for (int k = 0; k < s->ntop; k++) taken |= s->top_index[k] == (uint64_t)i;
            if (!taken && (best < 0 || fabsf(x[i]) > fabsf(x[best]))) best = i;
        }
        if (best < 0) break;
        s->top_index[s->ntop] = (uint64_t)best;
        s->top_value[s->ntop] = x[best];
    }
}

/* ---- comparing with them ---- */

/* Bit for bit: -0 is not 0, and a NaN is itself. */
static int same(const void *a, const void *b, size_t n) {
    return memcmp(a, b, n) == 0;
}

static int same_stats(const q4x_stats *a, const q4x_stats *b) {
    return a->n == b->n && a->nan == b->nan && a->pinf == b->pinf && a->ninf == b->ninf && a->zeros == b->zeros &&
           a->on_bf16 == b->on_bf16 && a->on_f16 == b->on_f16 && same(&a->min, &b->min, 5 * sizeof(double)) &&
           a->ntop == b->ntop && same(a->top_index, b->top_index, (size_t)a->ntop * 8) &&
           same(a->top_value, b->top_value, (size_t)a->ntop * 4);
}

static int same_sketch(const q4x_sketch *s, const float *x, int64_t T, int64_t D, int64_t row0, int64_t nrows) {
    int raw = D <= 512, width = raw ? (int)D : T <= 8 ? 256 : 64;
    uint64_t skipped = 0;
    if (s->row0 != row0 || s->nrows != nrows || s->raw != raw || s->width != width) return 0;
    for (int64_t t = 0; t < nrows; t++) {
        const float *row = x + (row0 + t) * D;
        double a, q, S[256];
        slow_sums(row, D, &a, &q);
        skipped += slow_sketch_row(row, D, 256, S);
        if (!same(&s->row_sumabs[t], &a, 8) || !same(&s->row_sumsq[t], &q, 8)) return 0;
        if (raw && D && !same(s->values + t * D, row, (size_t)D * 4)) return 0;
        slow_sketch_row(row, D, width == 256 ? 256 : 64, S);
        if (!raw && !same(s->buckets + t * width, S, (size_t)width * 8)) return 0;
    }
    return s->skipped == skipped;
}

/* kind 0 normal, 1 bf16 values, 2 f16 with subnormals, 3 wild bits, 4 few values with ties and zeros, 5 with NaN, Inf
 */
static void fill(h_rand *r, float *x, size_t n, int kind) {
    for (size_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)h_rand64(r);
        x[i] = (float)h_gaussian(r);
        if (kind == 1) x[i] = k_round_bf16(x[i]);
        if (kind == 2) x[i] = k_f32_from_f16((uint16_t)(u & 0x83ff)) * (u >> 30 ? 1.0f : 1.00001f);
        if (kind == 3) x[i] = k_bits_f32(u);
        if (kind == 4) x[i] = (float)((int)(u % 7) - 3) * (u >> 31 ? 1.0f : -1.0f);
        if (kind == 5 && u % 300 == 0) x[i] = (const float[]){NAN, INFINITY, -INFINITY}[u / 300 % 3];
        if (kind == 6) x[i] = NAN;
    }
}

static void one_shape(q4x_tapstat *s, h_rand *r, int64_t T, int64_t D, int kind) {
    float *x = malloc((size_t)(T * D) * sizeof *x + 1);
    fill(r, x, (size_t)(T * D), kind);
    int64_t row0 = T ? h_below(r, (uint32_t)T) : 0, nrows = h_below(r, (uint32_t)T + 2);
    int64_t kept = nrows > T - row0 ? T - row0 : nrows;
    q4x_stats st, want;
    q4x_sketch sk;
    slow_stats(x, T, D, &want);
    for (int sketch = 0; sketch < 2; sketch++) {
        assert_int_equal(q4x_tapstat_begin(s, T, D, row0, nrows, sketch), 0);
        for (int64_t t = 0; t < T;) {
            int64_t step = 1 + h_below(r, 5);
            if (step > T - t) step = T - t;
            q4x_tapstat_rows(s, x + t * D, step, 1);
            t += step;
        }
        q4x_tapstat_end(s, &st, &sk);
        assert_true(same_stats(&st, &want));
        if (!sketch)
            assert_int_equal(sk.nrows, 0);
        else
            assert_true(same_sketch(&sk, x, T, D, row0, kept));
    }
    /* twins: the comparisons see a wrong bit */
    if (want.ntop) {
        st.top_index[want.ntop - 1]++;
        assert_false(same_stats(&st, &want));
    }
    if (kept && D && !sk.raw) {
        sk.buckets[(size_t)kept * (size_t)sk.width - 1] += 1e-9;
        int seen = !same_sketch(&sk, x, T, D, row0, kept);
        assert_true(seen || fabs(sk.buckets[(size_t)kept * (size_t)sk.width - 1]) > 1e6);
    }
    free(x);
}

static void test_definition(void **state) {
    (void)state;
    q4x_tapstat *s = q4x_tapstat_new();
    h_rand r = {11};
    const int64_t T[] = {0, 1, 3, 8, 9, 70},
                  D[] = {0, 1, 4, 48, 128, 129, 255, 256, 257, 300, 511, 512, 513, 600, 1024, 2600};
    for (size_t i = 0; i < sizeof T / sizeof *T; i++)
        for (size_t j = 0; j < sizeof D / sizeof *D; j++)
            for (int kind = 0; kind < 7; kind++)
                if (T[i] * D[j] < 20000 || kind % 5 == 0) one_shape(s, &r, T[i], D[j], kind);
    q4x_tapstat_free(s);
}

static void test_pattern(void **state) {
    (void)state;
    h_rand r = {12};
    for (int i = 0; i < 2000; i++) {
        uint32_t b = i < 1000 ? (uint32_t)i : (uint32_t)h_rand64(&r),
                 k = i < 1000 ? (uint32_t)i % 5 : (uint32_t)h_rand64(&r);
        assert_true(q4x_sketch_h(b, k) == slow_h(b, k));
    }
    assert_true(q4x_sketch_h(0, 0) != q4x_sketch_h(0, 1) && q4x_sketch_h(0, 1) != q4x_sketch_h(1, 0));
}

/* The smallest sum of squares of a part, by its definition; of rows row0 .. of x. */
static int same_least(const q4x_sketch *s, const q4x_parts *p, const float *x, int64_t D) {
    for (int32_t t = 0; t < s->nrows; t++) {
        double least = 0, a, q;
        for (int32_t i = 0; i < p->n; i++) {
            slow_sums(x + (s->row0 + t) * D + p->off + i * p->step, p->width, &a, &q);
            if (i == 0 || q < least) least = q;
        }
        if (!same(&s->row_least[t], &least, 8)) return 0;
    }
    return 1;
}

/* Streams, heads with gates between them, keys behind queries, one part that is not the row; tiles, values that are not
 * finite, rows that are measured by parts as a device does it. */
static void test_parts(void **state) {
    (void)state;
    enum { T = 5, D = 1280 };
    static const q4x_parts list[] = {{0, 320, 320, 4}, {0, 64, 128, 10}, {256, 128, 128, 2},
                                     {0, 640, 640, 1}, {0, 16, 16, 80},  {640, 640, 640, 1}};
    static float x[T * D];
    q4x_tapstat *s = q4x_tapstat_new();
    h_rand r = {14};
    for (size_t k = 0; k < sizeof list / sizeof *list; k++)
        for (int kind = 0; kind < 7; kind++) {
            const q4x_parts *p = &list[k];
            const int64_t per = D / p->width;
            q4x_sketch sk;
            fill(&r, x, T * D, kind);
            assert_int_equal(q4x_tapstat_begin(s, T, D, 1, 3, 1), 0);
            assert_int_equal(q4x_tapstat_parts(s, p), 0);
            q4x_tapstat_rows(s, x, 2, 1);
            q4x_tapstat_rows(s, x + 2 * D, 3, 1);
            q4x_tapstat_end(s, NULL, &sk);
            assert_true(sk.row0 == 1 && sk.nrows == 3 && same_least(&sk, p, x, D));
            sk.row_least[2] += 1 + sk.row_least[2] / 8;
            assert_false(same_least(&sk, p, x, D)); /* twin */

            double *sums = malloc((size_t)(T * per) * 16);
            static double none[2 * T], kept[3 * 256];
            k_measured m = {0};
            for (int64_t i = 0; i < T * per; i++) slow_sums(x + i * p->width, p->width, sums + 2 * i, sums + 2 * i + 1);
            assert_int_equal(q4x_tapstat_begin(s, T, D, 1, 3, 1), 0);
            assert_int_equal(q4x_tapstat_parts(s, p), 0);
            q4x_tapstat_there(s, 2, &m, none, kept, sums + 2 * per);
            q4x_tapstat_there(s, 3, &m, none, kept, sums + 4 * per);
            q4x_tapstat_end(s, NULL, &sk);
            assert_true(same_least(&sk, p, x, D));
            free(sums);
        }
    /* rows that are kept whole, and the next tensor, have none */
    q4x_sketch sk;
    assert_int_equal(q4x_tapstat_begin(s, 1, 512, 0, 1, 1), 0);
    assert_int_equal(q4x_tapstat_parts(s, &(q4x_parts){0, 128, 128, 4}), 0);
    q4x_tapstat_rows(s, x, 1, 1);
    q4x_tapstat_end(s, NULL, &sk);
    assert_null(sk.row_least);
    assert_int_equal(q4x_tapstat_begin(s, T, D, 0, T, 1), 0);
    q4x_tapstat_rows(s, x, T, 1);
    q4x_tapstat_end(s, NULL, &sk);
    assert_null(sk.row_least);
    static const q4x_parts bad[] = {{0, 320, 320, 5}, {0, 300, 300, 4}, {1, 320, 320, 3},   {0, 320, 160, 4},
                                    {0, 0, 0, 1},     {0, 64, 96, 4},   {-320, 320, 320, 4}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        assert_int_equal(q4x_tapstat_begin(s, T, D, 0, T, 1), 0);
        assert_int_equal(q4x_tapstat_parts(s, &bad[k]), Q4X_E_ARG);
    }
    q4x_tapstat_free(s);
}

/* Every f16 and its f32 neighbours: exactly the f16s are on the lattice. */
static void test_f16(void **state) {
    (void)state;
    q4x_tapstat *s = q4x_tapstat_new();
    q4x_stats st;
    static float x[3 * 65536 + 600];
    uint64_t want = 0;
    size_t n = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t u = k_f32_bits(k_f32_from_f16((uint16_t)h));
        for (uint32_t d = 0; d < 3; d++) {
            float v = k_bits_f32(u + d - 1);
            if (!isfinite(v)) continue;
            x[n++] = v;
            want += k_f32_from_f16(k_f16_from_f32(v)) == v;
        }
    }
    assert_true(want > 63000 && want < 64000);
    for (int e = -149; e < 128; e++) /* and the powers of two, of which 2^-24 .. 2^15 are */
        for (int m = 1; m < 4; m += 2) {
            float v = ldexpf((float)m, e);
            if (!isfinite(v)) continue;
            x[n++] = v;
            want += k_f32_from_f16(k_f16_from_f32(v)) == v;
        }
    assert_int_equal(q4x_tapstat_begin(s, 1, (int64_t)n, 0, 0, 0), 0);
    q4x_tapstat_rows(s, x, 1, 1);
    q4x_tapstat_end(s, &st, NULL);
    assert_true(st.on_f16 == want);
    q4x_tapstat_free(s);
}

/* A zero extreme is +0, whatever zeros there were. */
static void test_zero_extremes(void **state) {
    (void)state;
    q4x_tapstat *s = q4x_tapstat_new();
    const float x[4][2] = {{-0.0f, -0.0f}, {0.0f, -0.0f}, {-1, -0.0f}, {-0.0f, 1}};
    for (int i = 0; i < 4; i++) {
        q4x_stats st, want;
        assert_int_equal(q4x_tapstat_begin(s, 1, 2, 0, 0, 0), 0);
        q4x_tapstat_rows(s, x[i], 1, 1);
        q4x_tapstat_end(s, &st, NULL);
        slow_stats(x[i], 1, 2, &want);
        assert_true(same_stats(&st, &want));
        if (i < 3) assert_true(st.max == 0 && !signbit(st.max));
        if (i != 2) assert_true(st.min == 0 && !signbit(st.min));
    }
    q4x_tapstat_free(s);
}

static void test_refusals(void **state) {
    (void)state;
    q4x_tapstat *s = q4x_tapstat_new();
    q4x_sketch sk;
    assert_int_equal(q4x_tapstat_begin(s, -1, 4, 0, 1, 1), Q4X_E_ARG);
    assert_int_equal(q4x_tapstat_begin(s, 1, -4, 0, 1, 1), Q4X_E_ARG);
    assert_int_equal(q4x_tapstat_begin(s, INT32_MAX, INT64_MAX, 0, 1, 1), Q4X_E_ARG);
    assert_int_equal(q4x_tapstat_begin(s, INT64_MAX, 1, 0, 1, 1), Q4X_E_ARG);
#ifndef __SANITIZE_ADDRESS__ /* which aborts where malloc says no */
    assert_int_equal(q4x_tapstat_begin(s, INT32_MAX, 600, 0, INT32_MAX, 1), Q4X_E_NOMEM);
#endif
    float x[2 * 3] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(q4x_tapstat_begin(s, 2, 3, -1, 2, 1), 0); /* clipped to row 0 */
    q4x_tapstat_rows(s, x, 2, 1);
    q4x_tapstat_end(s, NULL, &sk);
    assert_true(sk.row0 == 0 && sk.nrows == 1 && sk.values[2] == 3);
    assert_int_equal(q4x_tapstat_begin(s, 2, 3, 5, INT64_MAX, 1), 0);
    q4x_tapstat_rows(s, x, 2, 1);
    q4x_tapstat_end(s, NULL, &sk);
    assert_int_equal(sk.nrows, 0);
    q4x_tapstat_free(s);
}

/* Threads share rows and change nothing: equal magnitudes on both sides of a border keep their order too. */
static void test_threads(void **state) {
    (void)state;
    enum { T = 300, D = 700 };
    h_rand r = {77};
    static float x[T * D];
    for (int kind = 0; kind <= 6; kind++) {
        fill(&r, x, T * D, kind);
        q4x_stats want, got;
        slow_stats(x, T, D, &want);
        for (int threads = 1; threads < 20; threads += 3) {
            q4x_tapstat *s = q4x_tapstat_new();
            q4x_sketch sk;
            assert_int_equal(q4x_tapstat_begin(s, T, D, 100, 64, 1), 0);
            q4x_tapstat_rows(s, x, 7, threads);
            q4x_tapstat_rows(s, x + 7 * D, T - 7, threads);
            q4x_tapstat_end(s, &got, &sk);
            assert_true(same_stats(&got, &want));
            assert_true(same_sketch(&sk, x, T, D, 100, 64));
            q4x_tapstat_free(s);
        }
    }
}

/* ---- the estimate ---- */

/* A sketch whose arrays are the caller's to free. */
static q4x_sketch keep(const float *x, int64_t T, int64_t D) {
    q4x_tapstat *s = q4x_tapstat_new();
    q4x_sketch sk;
    assert_int_equal(q4x_tapstat_begin(s, T, D, 0, T, 1), 0);
    q4x_tapstat_rows(s, x, T, 1);
    q4x_tapstat_end(s, NULL, &sk);
    size_t n = (size_t)T, cells = n * (size_t)sk.width;
    const q4x_sketch from = sk;
    sk.row_sumabs = memcpy(malloc(n * 8), from.row_sumabs, n * 8);
    sk.row_sumsq = memcpy(malloc(n * 8), from.row_sumsq, n * 8);
    if (sk.raw)
        sk.values = memcpy(malloc(cells * 4), from.values, cells * 4);
    else
        sk.buckets = memcpy(malloc(cells * 8), from.buckets, cells * 8);
    q4x_tapstat_free(s);
    return sk;
}

static void drop(q4x_sketch *s) {
    free(s->row_sumabs), free(s->row_sumsq), free(s->values), free(s->buckets);
}

static q4x_sketch_dist compare(const float *a, const float *b, int64_t T, int64_t D) {
    q4x_sketch x = keep(a, T, D), y = keep(b, T, D);
    q4x_sketch_dist d;
    q4x_err err = {0};
    assert_int_equal(q4x_sketch_compare(&x, &y, &d, NULL, &err), 0);
    drop(&x);
    drop(&y);
    return d;
}

static double true_sq(const float *a, const float *b, int64_t n) {
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return s;
}

/* S(a) - S(b) is S(a - b) where the f64 sums are exact. */
static void test_linear(void **state) {
    (void)state;
    h_rand r = {21};
    enum { T = 9, D = 1500 };
    static float a[T * D], b[T * D], d[T * D];
    for (int i = 0; i < T * D; i++) {
        a[i] = (float)h_below(&r, 1u << 20) - 5e5f;
        b[i] = (float)h_below(&r, 1u << 20) - 5e5f;
        d[i] = a[i] - b[i];
    }
    q4x_sketch x = keep(a, T, D), y = keep(b, T, D), z = keep(d, T, D);
    for (int k = 0; k < T * 64; k++) assert_true(x.buckets[k] - y.buckets[k] == z.buckets[k]);
    y.buckets[5] += 1;
    assert_false(x.buckets[5] - y.buckets[5] == z.buckets[5]);
    drop(&x), drop(&y), drop(&z);
}

/* Over many random differences: the mean of e / ||d||^2 is 1, its variance 2 / m at most, and the interval holds in
 * 95 % of them: of one row, or of rows whose differences are alike and so share their error; rows that differ
 * independently do better. */
static void coverage(int64_t T, int64_t D, int alike, double at_least, double at_most) {
    enum { N = 1500 };
    h_rand r = {(uint64_t)(31 + T * 1000 + D)};
    float *a = malloc((size_t)(T * D) * sizeof *a), *b = malloc((size_t)(T * D) * sizeof *b);
    double mean = 0, var = 0;
    int in = 0, narrow = 0, m = 0;
    for (int i = 0; i < N; i++) {
        h_gaussians(&r, a, (size_t)(T * D), 1);
        for (int64_t k = 0; k < T * D; k++) {
            int64_t col = k % D;
            float delta = 1e-3f * (float)h_gaussian(&r);
            if (alike && k >= D) delta = b[col] - a[col];
            b[k] = a[k] + delta;
        }
        q4x_sketch_dist d = compare(a, b, T, D);
        double truth = true_sq(a, b, T * D), q = d.e / truth;
        mean += q / N;
        var += (q - 1) * (q - 1) / N;
        in += d.lo <= truth && truth <= d.hi;
        narrow += 1.05 * d.lo <= truth && truth <= d.hi / 1.05;
        assert_false(d.sparse || d.exact || d.below_floor);
        m = d.m;
    }
    double rows = alike ? 1 : (double)T;
    assert_true(fabs(mean - 1) <= 4 * sqrt(2 / (m * rows * N)));
    /* of D / m elements in a bucket, the pairs of different ones are what varies */
    double spread = 2 / (m * rows) * (1 - m / (double)D);
    assert_true(var <= 1.2 * spread && var >= 0.8 * spread);
    assert_true(in >= at_least * N && in <= at_most * N);
    /* twin: an interval narrower by 5 % at each end does not hold so often */
    if (rows == 1) assert_true(narrow < at_least * N);
    free(a);
    free(b);
}

static void test_coverage(void **state) {
    (void)state;
    coverage(1, 4000, 0, 0.935, 0.97);
    coverage(9, 640, 1, 0.935, 0.975);
    coverage(9, 640, 0, 0.99, 1.0);
    coverage(4, 700, 0, 0.99, 1.0);
}

/* Few elements differ: the interval is Chebyshev's and holds. */
static void test_sparse(void **state) {
    (void)state;
    enum { N = 2000, D = 2560 };
    h_rand r = {41};
    static float a[D], b[D];
    int in = 0, tight = 0;
    for (int i = 0; i < N; i++) {
        h_gaussians(&r, a, D, 1);
        memcpy(b, a, sizeof b);
        int k = 1 + (int)h_below(&r, 20);
        for (int j = 0; j < k; j++) b[h_below(&r, D)] += 0.01f * (float)h_gaussian(&r);
        q4x_sketch_dist d = compare(a, b, 1, D);
        double truth = true_sq(a, b, D);
        assert_true(d.sparse == 1);
        assert_true(fabs(d.lo * (1 + sqrt(40.0 / 256)) - d.e) <= 1e-12 * d.e);
        assert_true(fabs(d.hi * (1 - sqrt(40.0 / 256)) - d.e) <= 1e-12 * d.e);
        in += d.lo <= truth && truth <= d.hi;
        tight += fabs(d.e / truth - 1) < 1e-9;
        assert_true(d.top_share > 0.9);
    }
    assert_true(in >= 0.95 * N);
    assert_true(tight > N / 2 && tight < N); /* mostly no two meet in a bucket; sometimes they do */
}

/* The faults that sums cannot see (peers A.0): a 64 x 1024 tensor. */
static void test_faults(void **state) {
    (void)state;
    enum { T = 64, D = 1024, N = T * D };
    h_rand r = {51};
    static float a[N], b[N];
    h_gaussians(&r, a, N, 1);
    for (int fault = 0; fault < 6; fault++) {
        double truth, want = 0;
        for (int i = 0; i < N; i++) {
            int t = i / D, c = i % D;
            b[i] = a[i];
            if (fault == 0) b[i] = -a[i], want = 2;
            if (fault == 1) b[i] = a[(t == 7 ? 40 : t == 40 ? 7 : t) * D + c], want = 0.25;
            if (fault == 2) b[i] = a[(t + T - 1) % T * D + c], want = 1.41;
            if (fault == 3) b[i] = t == 33 ? (float)h_gaussian(&r) : a[i], want = 0.175;
            if (fault == 4) b[i] = a[i] * (1 + 1e-3f * (float)h_gaussian(&r)), want = 1e-3;
            if (fault == 5) b[i] = i == 12345 ? a[i] + 0.5f : a[i], want = 0.5 / 256;
        }
        q4x_sketch_dist d = compare(a, b, T, D);
        double norm = 0, abs_a = 0, abs_b = 0;
        for (int i = 0; i < N; i++) {
            norm += (double)a[i] * (double)a[i];
            abs_a += fabs((double)a[i]), abs_b += fabs((double)b[i]);
        }
        truth = true_sq(a, b, N);
        assert_true(fabs(sqrt(truth / norm) / want - 1) < 0.1);
        assert_true(d.lo <= truth && truth <= d.hi);
        assert_true(fabs(sqrt(d.e / truth) - 1) < 0.2);
        if (fault < 3) assert_true(fabs(abs_a - abs_b) <= 1e-12 * abs_a); /* a sum sees nothing */
        /* one element is told from many by concentration: a dense difference has about dense_share */
        if (fault == 5)
            assert_true(d.sparse && d.top_share == 1);
        else
            assert_true(!d.sparse && fabs(d.top_share - d.dense_share) < 0.12);
        assert_true(fabs(d.dense_share - 0.7235) < 1e-3);
    }
}

static void test_exact_and_floor(void **state) {
    (void)state;
    h_rand r = {61};
    static float a[4 * 2000], b[4 * 2000];
    h_gaussians(&r, a, 8000, 1);
    h_gaussians(&r, b, 8000, 1);
    /* raw: the distance itself, whatever differs */
    q4x_sketch_dist d = compare(a, b, 4, 512);
    double truth = true_sq(a, b, 4 * 512);
    assert_true(d.exact && d.e == d.lo && d.e == d.hi && fabs(d.e / truth - 1) < 1e-12 && d.m == 0);
    /* equal: 0, said to be below the floor, and the bound is tiny */
    d = compare(a, a, 4, 2000);
    assert_true(!d.exact && d.e == 0 && d.lo == 0 && d.below_floor && d.hi > 0 && d.hi < 1e-20 && d.m == 256);
    memcpy(b, a, sizeof b);
    b[77] = nextafterf(b[77], 10); /* one ulp of one element is seen */
    d = compare(a, b, 4, 2000);
    assert_true(!d.below_floor && fabs(d.e / true_sq(a, b, 8000) - 1) < 1e-6);
    /* a difference of 2^-60 of the row's sum is rounding of the sums: not told */
    a[5] = 0;
    memcpy(b, a, sizeof b);
    b[5] = 1e-15f;
    d = compare(a, b, 4, 2000);
    assert_true(d.e == 0 && d.below_floor);
    /* shape, and the share of a dense difference in 256 buckets */
    q4x_sketch x = keep(a, 4, 2000), y = keep(a, 4, 2000), z = keep(a, 3, 2000);
    q4x_err err = {0};
    double row_e[4];
    assert_int_equal(q4x_sketch_compare(&x, &z, &d, NULL, &err), Q4X_E_MISMATCH);
    assert_non_null(strstr(err.msg, "rows 0..3"));
    y.buckets[256 * 2 + 9] += 3;
    y.buckets[256 * 3 + 9] += 1;
    assert_int_equal(q4x_sketch_compare(&x, &y, &d, row_e, &err), 0);
    assert_true(row_e[0] == 0 && row_e[1] == 0 && fabs(row_e[2] - 9) < 1e-9 && fabs(row_e[3] - 1) < 1e-9);
    assert_true(fabs(d.e - 10) < 1e-9 && d.sparse && d.top_share == 1 && fabs(d.dense_share - 0.3256) < 1e-3);
    /* half of the heaviest row's buckets: from there on it is dense */
    for (int n = 1; n <= 256; n++) {
        y.buckets[256 * 2 + n - 1] += 3;
        assert_int_equal(q4x_sketch_compare(&x, &y, &d, NULL, &err), 0);
        assert_int_equal(d.sparse, n < 128 - (n < 10)); /* bucket 9 differs already */
    }
    y.buckets[3] = (double)NAN; /* NaN is a difference, never below a floor */
    assert_int_equal(q4x_sketch_compare(&x, &y, &d, NULL, &err), 0);
    assert_true(isnan(d.e) && !d.below_floor);
    drop(&x), drop(&y), drop(&z);
}

static void test_nonfinite(void **state) {
    (void)state;
    h_rand r = {71};
    static float a[2 * 1024], b[2 * 1024];
    h_gaussians(&r, a, 2048, 1);
    memcpy(b, a, sizeof b);
    b[100] = NAN;
    b[1500] = INFINITY;
    for (int raw = 0; raw < 2; raw++) {
        int64_t D = raw ? 512 : 1024, T = 2048 / D;
        q4x_sketch_dist d = compare(a, b, T, D);
        double want = (double)a[100] * (double)a[100] + (double)a[1500] * (double)a[1500];
        assert_true(d.nonfinite == 1 && fabs(d.e / want - 1) < 1e-9);
        d = compare(a, a, T, D);
        assert_true(d.nonfinite == 0);
    }
}

/* 95 % of a chi-square variable with m degrees of freedom lie between the quantiles that the interval uses. */
static double chi_cdf(double x, int m) {
    double sum = 0, step = x / 200000; /* density integrated by the midpoint rule */
    for (int i = 0; i < 200000; i++) {
        double t = (i + 0.5) * step;
        sum += exp((m / 2.0 - 1) * log(t) - t / 2 - m / 2.0 * log(2.0) - lgamma(m / 2.0)) * step;
    }
    return sum;
}

static void test_quantiles(void **state) {
    (void)state;
    h_rand r = {81};
    static float a[9 * 1024], b[9 * 1024];
    h_gaussians(&r, a, 9 * 1024, 1);
    h_gaussians(&r, b, 9 * 1024, 1);
    for (int T = 1; T <= 9; T += 8) {
        q4x_sketch_dist d = compare(a, b, T, 1024);
        assert_int_equal(d.m, T == 1 ? 256 : 64);
        assert_true(fabs(chi_cdf(d.m * d.e / d.lo, d.m) - 0.975) < 1e-6);
        assert_true(fabs(chi_cdf(d.m * d.e / d.hi, d.m) - 0.025) < 1e-6);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),   cmocka_unit_test(test_parts),     cmocka_unit_test(test_definition),
        cmocka_unit_test(test_pattern),   cmocka_unit_test(test_f16),       cmocka_unit_test(test_zero_extremes),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_linear),    cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_sparse),    cmocka_unit_test(test_faults),    cmocka_unit_test(test_exact_and_floor),
        cmocka_unit_test(test_nonfinite), cmocka_unit_test(test_quantiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
