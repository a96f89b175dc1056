/* What the device measures of a buffer (kernels/measure.h) against what the host does, bit for bit: leaves of every
 * kind of length, rows of widths around the blocks of 256, kept rows of all three forms, cuts; with NaN, infinities,
 * zeros, subnormals and equal values strewn in; many jobs in one launch. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/tapstat.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_rand.h"

static int emulated, quiet; /* quiet: a twin is at work */
static h_rand rng = {2027};

static void must(int code) {
    if (code) fail_msg("device: %s", k_dev_text(code));
}

/* Zeroed device memory, or a copy of what is here. */
static void *there(const void *here, size_t bytes) {
    void *p = NULL;
    k_dev *d = hp_device(&emulated);
    must(k_dev_alloc(d, bytes, &p));
    must(here ? k_dev_put(d, p, here, bytes) : k_dev_zero(d, p, bytes));
    must(k_dev_wait(d));
    return p;
}

static void *here(const void *there_, size_t bytes) {
    void *p = malloc(bytes + 1);
    assert_non_null(p);
    must(k_dev_join(hp_device(&emulated), hp_device(&emulated)->measured));
    must(k_dev_get(hp_device(&emulated), p, there_, bytes));
    must(k_dev_wait(hp_device(&emulated)));
    return p;
}

static void drop(void *p) {
    k_dev_free(hp_device(&emulated), p);
}

/* wild: one in so many is something special; 0: none. */
static float *values(size_t n, uint32_t wild) {
    static const uint32_t special[] = {0x7fc00000, 0xffc00001, 0x7f800001, 0x7f800000, 0xff800000,
                                       0,          0x80000000, 0x00000001, 0x80000123, 0x7f7fffff,
                                       0xff7fffff, 0x00800000, 0x33800000, 0x3f800000, 0xbf800000,
                                       0x477fe000, 0x477ff000, 0x38800000, 0x387fc000};
    float *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)h_gaussian(&rng);
        if (h_below(&rng, 7) == 0) x[i] = floorf(4 * x[i]) / 4; /* equal values, and those on a lattice */
        if (wild && h_below(&rng, wild) == 0)
            memcpy(x + i, &special[h_below(&rng, sizeof special / sizeof *special)], sizeof *x);
    }
    return x;
}

/* ---- leaves ---- */

static void leaves_of(const float *x, size_t n, int canonical, uint8_t *digest) {
    float *c = malloc((n + 1) * sizeof *c);
    assert_non_null(c);
    memcpy(c, x, n * sizeof *c);
    for (size_t i = 0; canonical && i < n; i++)
        if (isnan(c[i])) memcpy(c + i, &(uint32_t){0x7fc00000}, sizeof *c);
    for (size_t at = 0, k = 0; at < 4 * n; at += K_LEAF, k++)
        k_xxh3_canonical(k_xxh3_128((uint8_t *)c + at, 4 * n - at < K_LEAF ? 4 * n - at : K_LEAF), digest + 16 * k);
    free(c);
}

/* Digests and counts of n values that differ between the two; flip: the host's copy has another value in the middle. */
static int leaf_differs(size_t n, uint32_t wild, int canonical, int flip) {
    const size_t leaves = (4 * n + K_LEAF - 1) / K_LEAF;
    float *x = values(n, wild);
    uint8_t *want = calloc(leaves, 16);
    k_measured seen = {0};
    k_measure_job j = {.kind = K_MEASURE_BITS, .x = there(x, 4 * n), .rows = 4 * (int64_t)n, .canonical = canonical};
    j.out = there(NULL, 16 * leaves);
    j.seen = there(NULL, sizeof seen);
    must(k_dev_measure(hp_device(&emulated), &j, 1, NULL, 0));
    if (flip) x[n / 2] = 77;
    for (size_t i = 0; i < n; i++) {
        seen.nan += isnan(x[i]) != 0;
        seen.pinf += isinf(x[i]) && x[i] > 0;
        seen.ninf += isinf(x[i]) && x[i] < 0;
    }
    assert_non_null(want);
    leaves_of(x, n, canonical, want);
    uint8_t *got = here(j.out, 16 * leaves);
    k_measured *saw = here(j.seen, sizeof *saw);
    int bad = memcmp(got, want, 16 * leaves) != 0 || memcmp(saw, &seen, sizeof seen) != 0;
    drop((void *)(uintptr_t)j.x);
    drop(j.out);
    drop(j.seen);
    free(got);
    free(saw);
    free(want);
    free(x);
    return bad;
}

static void leaves(void **state) {
    int bad = 0, n = 0;
    (void)state;
    for (size_t i = 1; i <= 1100; i += emulated && i > 70 ? 37 : 1, n++) bad += leaf_differs(i, i % 3 ? 40 : 0, 1, 0);
    for (size_t i = 1; i < 9000; i = 2 * i + 5, n++) bad += leaf_differs(i, 9, i % 2, 0);
    for (size_t i = 1020; i < 1030; i++, n++) bad += leaf_differs(i, 0, 1, 0);
    print_message("    %d buffers\n", n);
    assert_int_equal(bad, 0);
    assert_int_equal(leaf_differs(3, 0, 1, 1) + leaf_differs(100, 0, 1, 1) + leaf_differs(5000, 0, 1, 1), 3);
}

/* ---- rows ---- */

typedef struct {
    int64_t rows, cols, row0, nrows;
    uint32_t wild;
} shape;

static int differ(const void *a, const void *b, size_t n, const char *what, const shape *s) {
    if (!memcmp(a, b, n)) return 0;
    if (!quiet) print_message("%s: [%lld, %lld]\n", what, (long long)s->rows, (long long)s->cols);
    return 1;
}

/* The device's results as the host's structures, beside the host's. */
static int rows_differ(const shape *s, float flip) {
    const size_t n = (size_t)(s->rows * s->cols), T = (size_t)s->rows;
    float *x = values(n, s->wild);
    q4x_tapstat *h = q4x_tapstat_new();
    q4x_stats st;
    q4x_sketch sk;
    assert_non_null(h);
    k_measure_job j = {.kind = K_MEASURE_ROWS, .x = there(x, 4 * n), .rows = s->rows, .cols = s->cols};
    if (flip != 0) x[n / 2] = flip;
    assert_int_equal(q4x_tapstat_begin(h, s->rows, s->cols, s->row0, s->nrows, 1), 0);
    q4x_tapstat_rows(h, x, s->rows, 1);
    q4x_tapstat_end(h, &st, &sk);
    const size_t cells = (size_t)sk.nrows * (size_t)sk.width, cell = sk.raw ? 4 : 8;
    j.keep0 = sk.row0;
    j.keep1 = sk.row0 + sk.nrows;
    j.width = sk.raw ? 0 : sk.width;
    j.seen = there(NULL, sizeof(k_measured));
    j.out = there(NULL, 16 * T + 1);
    j.kept = there(NULL, cells * cell + 1);
    must(k_dev_measure(hp_device(&emulated), &j, 1, NULL, 0));
    k_measured *m = here(j.seen, sizeof *m);
    double *sums = here(j.out, 16 * T);
    void *kept = here(j.kept, cells * cell);
    double all[2] = {0, 0}, two[2] = {st.sumabs, st.sumsq};
    int bad = 0, ntop = 0;
    for (size_t t = 0; t < T; t++) all[0] += sums[2 * t], all[1] += sums[2 * t + 1];
    bad |= differ(all, two, sizeof all, "sums", s);
    for (int32_t k = 0; k < sk.nrows; k++) {
        bad |= differ(&sums[2 * (sk.row0 + k)], &sk.row_sumabs[k], 8, "sum |x| of a row", s);
        bad |= differ(&sums[2 * (sk.row0 + k) + 1], &sk.row_sumsq[k], 8, "sum x^2 of a row", s);
    }
    bad |= differ(kept, sk.raw ? (void *)sk.values : (void *)sk.buckets, cells * cell, "kept", s);
    const uint64_t got[] = {m->nan, m->pinf, m->ninf, m->zeros, m->on_bf16, m->on_f16, m->skipped},
                   want[] = {st.nan, st.pinf, st.ninf, st.zeros, st.on_bf16, st.on_f16, sk.skipped};
    bad |= differ(got, want, sizeof got, "counts", s);
    while (ntop < K_MEASURE_TOP && m->top[ntop]) ntop++;
    bad |= differ(&ntop, &st.ntop, sizeof ntop, "number of the largest", s);
    for (int k = 0; k < ntop && k < st.ntop; k++) {
        const uint32_t u = k_measure_bits(m->top[k]);
        const uint64_t at = k_measure_index(m->top[k]);
        bad |= differ(&u, &st.top_value[k], 4, "a largest value", s) | differ(&at, &st.top_index[k], 8, "its place", s);
    }
    if (st.ntop) {
        const float lo = (float)st.min, hi = (float)st.max;
        const uint32_t a = k_f32_order(k_f32_bits(lo)), b = k_f32_order(k_f32_bits(hi));
        bad |= (~m->low != a && st.min != 0) || (m->high != b && st.max != 0); /* a zero may have been -0 */
    } else {
        bad |= m->low || m->high;
    }
    void *all_there[] = {(void *)(uintptr_t)j.x, j.seen, j.out, j.kept}, *all_here[] = {m, sums, kept, x};
    for (int i = 0; i < 4; i++) drop(all_there[i]), free(all_here[i]);
    q4x_tapstat_free(h);
    return bad;
}

static void rows(void **state) {
    static const int64_t cols[] = {1, 2, 7, 8, 31, 64, 255, 256, 257, 511, 512, 513, 768, 1000, 2560, 20000},
                         count[] = {1, 2, 3, 8, 9, 70, 300};
    int bad = 0, n = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        for (size_t k = 0; k < sizeof count / sizeof *count; k++) {
            if (emulated && cols[i] * count[k] > 9000 && cols[i] * count[k] != 20000) continue;
            const int64_t last = count[k] < 64 ? count[k] : 64;
            const shape s = {count[k], cols[i], k % 2 ? count[k] / 2 : count[k] - last, k % 2 ? 2 : last,
                             k % 3 == 2 ? 2
                             : k % 3    ? 30
                                        : 0};
            bad += rows_differ(&s, 0);
            n++;
        }
    print_message("    %d shapes\n", n);
    assert_int_equal(bad, 0);
    quiet = 1;
    const shape raw = {3, 100, 0, 3, 0}, wide = {3, 700, 0, 3, 0}, fold = {9, 700, 0, 9, 0};
    assert_int_equal(rows_differ(&raw, 9.5f) + rows_differ(&wide, 9.5f) + rows_differ(&fold, 9.5f), 3);
}

/* ---- cuts ---- */

/* As lib/tap_sel.c has it. */
static void slow_cut(const float *score, int64_t n, const int32_t *ids, int32_t k, float out[2]) {
    out[0] = out[1] = NAN;
    for (int64_t i = 0; i < n; i++) {
        int side = 1;
        for (int32_t j = 0; j < k; j++) side &= ids[j] != i;
        if (isnan(out[side]) || (side ? score[i] > out[1] : score[i] < out[0])) out[side] = score[i];
    }
}

/* flip 1: the first score of the host's copy is another. */
static int cut_differs(int64_t T, int64_t n, int32_t k, int32_t pos0, int32_t ratio, uint32_t wild, int flip) {
    float *x = values((size_t)(T * n), wild), *want = calloc((size_t)T, 8);
    int32_t *ids = calloc((size_t)(T * k), sizeof *ids);
    int bad = 0;
    assert_true(want && ids);
    for (int64_t i = 0; i < T * k; i++) ids[i] = (int32_t)h_below(&rng, (uint32_t)n + 1) - 1;
    k_measure_job j = {.kind = K_MEASURE_CUT, .x = there(x, (size_t)(4 * T * n)), .rows = T, .cols = n};
    if (flip) x[0] = 1e30f;
    for (int64_t t = 0; t < T; t++) {
        int64_t see = ratio ? (pos0 + t + 1) / ratio : n;
        slow_cut(x + t * n, see < n ? see : n, ids + t * k, k, want + 2 * t);
    }
    j.ids = there(ids, (size_t)(T * k) * 4);
    j.k = k;
    j.pos0 = pos0;
    j.ratio = ratio;
    j.out = there(NULL, (size_t)(8 * T));
    must(k_dev_measure(hp_device(&emulated), &j, 1, NULL, 0));
    float *got = here(j.out, (size_t)(8 * T));
    bad = memcmp(got, want, (size_t)(8 * T)) != 0;
    drop((void *)(uintptr_t)j.x);
    drop((void *)(uintptr_t)j.ids);
    drop(j.out);
    free(got);
    free(x);
    free(want);
    free(ids);
    return bad;
}

static void cuts(void **state) {
    int bad = 0;
    (void)state;
    for (uint32_t wild = 0; wild < 4; wild++) {
        bad += cut_differs(5, 32, 8, 0, 0, wild, 0) + cut_differs(3, 500, 10, 0, 0, wild, 0);
        bad += cut_differs(9, 7, 4, 11, 4, wild, 0) + cut_differs(2, 70000, 40, 900000, 8, wild, 0);
        bad += cut_differs(1, 1, 1, 0, 0, wild, 0);
    }
    assert_int_equal(bad, 0);
    assert_int_equal(cut_differs(1, 500, 1, 0, 0, 0, 1) + cut_differs(2, 70000, 1, 900000, 8, 0, 1), 2);
}

/* ---- a launch ---- */

/* As many jobs as one takes, each of its own kind and length; a copy is words; one more is refused. */
static void table(void **state) {
    enum { N = 5000 };
    k_measure_job j[K_MEASURE_JOBS + 1];
    uint32_t *x = malloc(4 * N);
    k_dev *d = hp_device(&emulated);
    (void)state;
    assert_non_null(x);
    for (uint32_t i = 0; i < N; i++) x[i] = i;
    void *from = there(x, 4 * N), *to[K_MEASURE_JOBS];
    memset(j, 0, sizeof j);
    for (int i = 0; i < K_MEASURE_JOBS; i++) {
        to[i] = there(NULL, 4 * N);
        j[i] = (k_measure_job){.kind = i % 5 == 4 ? K_MEASURE_BITS : K_MEASURE_COPY, .x = from, .out = to[i]};
        j[i].rows = i % 5 == 4 ? 4 * N : 137 * i;
    }
    must(k_dev_measure(d, j, K_MEASURE_JOBS, NULL, 0));
    for (int i = 0; i < K_MEASURE_JOBS; i++) {
        uint32_t *got = here(to[i], 4 * N);
        uint8_t want[16];
        if (i % 5 == 4) {
            k_xxh3_canonical(k_xxh3_128((uint8_t *)x + 4096, 4096), want);
            assert_memory_equal(got + 4, want, 16);
        } else {
            assert_true(!memcmp(got, x, 4 * (size_t)j[i].rows));
            for (int64_t k = j[i].rows; k < N; k++) assert_int_equal(got[k], 0); /* and not a word more */
        }
        free(got);
        drop(to[i]);
    }
    assert_int_not_equal(k_dev_measure(d, j, K_MEASURE_JOBS + 1, NULL, 0), 0);
    drop(from);
    free(x);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(leaves), cmocka_unit_test(rows), cmocka_unit_test(cuts),
                                       cmocka_unit_test(table)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    hp_device(&emulated);
    int failed = cmocka_run_group_tests_name("c_measure", tests, NULL, NULL);
    hp_close();
    return failed;
}
