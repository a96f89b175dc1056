#include "lib/tapstat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/sketch.h"

enum { BLOCK = Q4X_SKETCH_BLOCK };

struct q4x_tapstat {
    int64_t rows, cols, row; /* of the tensor; rows seen so far */
    int64_t keep0, keep1;    /* kept rows: keep0 <= row < keep1 */
    q4x_stats st;
    uint64_t nonfinite;
    uint32_t amax;      /* bits of the largest finite |x| */
    int32_t kmin, kmax; /* smallest and largest finite value as ordered keys */
    q4x_sketch sk;
    q4x_sketch_pat *pat; /* [npat], kept from one tensor to the next: they depend on the block's index alone */
    size_t npat;
    double *buckets, *row_sumabs; /* grown, never shrunk; sk points into them */
    double *row_sumsq;            /* behind row_sumabs */
    float *values;
    size_t cap_buckets, cap_values, cap_rows;
};

/* What one block adds, over its finite values. */
typedef struct {
    uint32_t nonfinite, zeros, bf16, f16;
    uint32_t amax;
    int32_t kmin, kmax;
} block_stat;

/* ---- keys: integers in the order of the floats, so that minima are plain integer reductions ---- */

static inline int32_t key_of(uint32_t u) {
    return (int32_t)(u ^ ((0u - (u >> 31)) & 0x7fffffffu));
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static float key_value(int32_t key) {
    uint32_t u = (uint32_t)key;
    return float_of(u ^ ((0u - (u >> 31)) & 0x7fffffffu)) + 0.0f; /* a zero extreme is +0 */
}

/* 1 when the finite value with magnitude bits a is an f16: at most 65504, and the mantissa bits below the f16 grid
 * clear: 13 of them, one more for each power of two under 2^-14, all but zero itself under 2^-24. */
static inline uint32_t on_f16(uint32_t a) {
    int32_t e = (int32_t)(a >> 23), drop = 126 - e;
    drop = drop < 13 ? 13 : drop;
    drop = e < 103 ? 31 : drop;
    return (uint32_t)((a & ((1u << drop) - 1)) == 0) & (uint32_t)(a <= 0x477fe000u);
}

/* No branches, integer reductions only: compilers make vectors of it. Meaningful when amax says that all are finite. */
static inline __attribute__((always_inline)) void look(const float *x, int n, block_stat *s) {
    uint32_t zeros = 0, bf16 = 0, f16 = 0;
    int32_t amax = 0, kmin = INT32_MAX, kmax = INT32_MIN;
    for (int i = 0; i < n; i++) {
        uint32_t u, a;
        memcpy(&u, x + i, 4);
        a = u & 0x7fffffffu;
        int32_t key = key_of(u);
        amax = (int32_t)a > amax ? (int32_t)a : amax;
        kmin = key < kmin ? key : kmin;
        kmax = key > kmax ? key : kmax;
        zeros += a == 0;
        bf16 += (u & 0xffff) == 0;
        f16 += on_f16(a);
    }
    s->nonfinite = 0, s->zeros = zeros, s->bf16 = bf16, s->f16 = f16;
    s->amax = (uint32_t)amax, s->kmin = kmin, s->kmax = kmax;
}

/* The block holds something that is not finite: look at the others, one by one. */
static void look_dirty(q4x_stats *st, const float *x, int n, block_stat *s) {
    *s = (block_stat){.kmin = INT32_MAX, .kmax = INT32_MIN};
    for (int i = 0; i < n; i++) {
        block_stat one;
        if (isnan(x[i]) || isinf(x[i])) {
            s->nonfinite++;
            if (isnan(x[i]))
                st->nan++;
            else if (x[i] > 0)
                st->pinf++;
            else
                st->ninf++;
            continue;
        }
        look(x + i, 1, &one);
        s->zeros += one.zeros, s->bf16 += one.bf16, s->f16 += one.f16;
        s->amax = one.amax > s->amax ? one.amax : s->amax;
        s->kmin = one.kmin < s->kmin ? one.kmin : s->kmin;
        s->kmax = one.kmax > s->kmax ? one.kmax : s->kmax;
    }
}

/* ---- the largest |x| ---- */

static uint32_t magnitude(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u & 0x7fffffffu;
}

static uint32_t threshold(const q4x_stats *st) {
    return st->ntop < Q4X_NTOP ? 0 : magnitude(st->top_value[Q4X_NTOP - 1]);
}

static void top_insert(q4x_stats *st, float x, uint64_t index) {
    uint32_t a = magnitude(x);
    int k = st->ntop < Q4X_NTOP ? st->ntop++ : Q4X_NTOP - 1;
    for (; k > 0 && a > magnitude(st->top_value[k - 1]); k--) {
        st->top_value[k] = st->top_value[k - 1];
        st->top_index[k] = st->top_index[k - 1];
    }
    st->top_value[k] = x;
    st->top_index[k] = index;
}

/* Elements come in ascending index, so one that only equals a kept magnitude ranks behind it. Eight are tested at
 * once: most blocks that hold one candidate hold few. */
static void top_scan(q4x_stats *st, const float *x, int n, uint64_t index0) {
    for (int i = 0; i < n; i += 8) {
        int m = n - i < 8 ? n - i : 8, hit = st->ntop < Q4X_NTOP;
        int32_t limit = (int32_t)threshold(st);
        if (m == 8)
            for (int l = 0; l < 8; l++) hit |= (int32_t)magnitude(x[i + l]) > limit;
        else
            hit = 1;
        if (!hit) continue;
        for (int l = 0; l < m; l++) {
            uint32_t a = magnitude(x[i + l]);
            if (a < 0x7f800000u && (st->ntop < Q4X_NTOP || a > threshold(st)))
                top_insert(st, x[i + l], index0 + (uint64_t)(i + l));
        }
    }
}

/* ---- one row ---- */

typedef struct {
    double abs[BLOCK], sq[BLOCK], bucket[BLOCK];
} row_sums;

/* Vectors of the compiler; every lane is a plain f64 operation. */
typedef double v4d __attribute__((vector_size(32)));
typedef int64_t v4l __attribute__((vector_size(32)));

static inline v4d widen(const float *x) {
    return (v4d){(double)x[0], (double)x[1], (double)x[2], (double)x[3]};
}

/* Accumulators k .. k+15 over all whole blocks: they stay in registers. x * x is exact in f64, so a fused
 * multiply-add would give the same bits. */
static void strip(row_sums *r, const float *x, int64_t blocks, int k) {
    const v4l magn = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    v4d a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (int64_t b = 0; b < blocks; b++) {
        const float *v = x + b * BLOCK + k;
        v4d d0 = widen(v), d1 = widen(v + 4), d2 = widen(v + 8), d3 = widen(v + 12);
        a0 += (v4d)((v4l)d0 & magn), a1 += (v4d)((v4l)d1 & magn);
        a2 += (v4d)((v4l)d2 & magn), a3 += (v4d)((v4l)d3 & magn);
        s0 += d0 * d0, s1 += d1 * d1, s2 += d2 * d2, s3 += d3 * d3;
    }
    memcpy(r->abs + k, &a0, sizeof a0), memcpy(r->abs + k + 4, &a1, sizeof a1);
    memcpy(r->abs + k + 8, &a2, sizeof a2), memcpy(r->abs + k + 12, &a3, sizeof a3);
    memcpy(r->sq + k, &s0, sizeof s0), memcpy(r->sq + k + 4, &s1, sizeof s1);
    memcpy(r->sq + k + 8, &s2, sizeof s2), memcpy(r->sq + k + 12, &s3, sizeof s3);
}

/* A block, or the part of one, whose first element has index 0 mod 256. The row's first block starts the sums; `used`
 * accumulators are read later. */
static void add_sums(row_sums *r, const float *x, int n, int first, int used) {
    if (first) {
        for (int i = 0; i < n; i++) r->abs[i] = (double)fabsf(x[i]);
        for (int i = 0; i < n; i++) r->sq[i] = (double)x[i] * (double)x[i];
        for (int i = n; i < used; i++) r->abs[i] = r->sq[i] = 0;
        return;
    }
    for (int i = 0; i < n; i++) r->abs[i] += (double)fabsf(x[i]);
    for (int i = 0; i < n; i++) r->sq[i] += (double)x[i] * (double)x[i];
}

/* Accumulators in use: those that no element of the row reaches are +0, adding them changes no bit of a sum of
 * magnitudes, so the tree of a narrow row starts lower. */
static int lanes(int64_t cols) {
    int n = BLOCK;
    while (n > 1 && n / 2 >= cols) n /= 2;
    return n;
}

/* Halved 128, 64, .. 1; row_add wrote all n. */
static double halve(double *acc, int n) {
    for (n /= 2; n >= 4; n /= 2)
        for (int k = 0; k < n; k += 4) {
            v4d a, b;
            memcpy(&a, acc + k, sizeof a);
            memcpy(&b, acc + k + n, sizeof b);
            a += b;
            memcpy(acc + k, &a, sizeof a);
        }
    for (; n >= 1; n /= 2)
        for (int k = 0; k < n; k++) acc[k] += acc[k + n]; /* NOLINT(clang-analyzer-core.uninitialized.Assign) */
    return acc[0];                                        /* NOLINT(clang-analyzer-core.uninitialized.UndefReturn) */
}

/* Counts and extremes of the row; 1 when all its values are finite. */
static int row_look(q4x_tapstat *s, const float *x) {
    int clean = 1;
    uint64_t index0 = (uint64_t)s->row * (uint64_t)s->cols;
    for (int64_t i = 0; i < s->cols; i += BLOCK) {
        int n = s->cols - i < BLOCK ? (int)(s->cols - i) : BLOCK;
        block_stat b;
        if (n == BLOCK)
            look(x + i, BLOCK, &b);
        else
            look(x + i, n, &b);
        if (b.amax >= 0x7f800000u) {
            look_dirty(&s->st, x + i, n, &b);
            clean = 0;
        }
        s->nonfinite += b.nonfinite;
        s->st.zeros += b.zeros, s->st.on_bf16 += b.bf16, s->st.on_f16 += b.f16;
        s->amax = b.amax > s->amax ? b.amax : s->amax;
        s->kmin = b.kmin < s->kmin ? b.kmin : s->kmin;
        s->kmax = b.kmax > s->kmax ? b.kmax : s->kmax;
        if (s->st.ntop < Q4X_NTOP || b.amax > threshold(&s->st)) top_scan(&s->st, x + i, n, index0 + (uint64_t)i);
    }
    return clean;
}

/* Sums, and the sketch when pat is given. Whole blocks of a clean row are taken where they lie; what is left goes block
 * by block, through a copy with zeros where that needs one: for values that are not finite and behind the row's end. */
static void row_add(row_sums *r, const float *x, int64_t cols, const q4x_sketch_pat *pat, int clean, int used) {
    int64_t whole = clean ? cols / BLOCK : 0;
    float v[BLOCK];
    if (whole)
        for (int k = 0; k < BLOCK; k += 16) strip(r, x, whole, k);
    if (whole && pat)
        for (int64_t b = 0; b < whole; b++) q4x_sketch_block(r->bucket, x + b * BLOCK, pat + b);
    for (int64_t i = whole * BLOCK; i < cols; i += BLOCK) {
        const float *p = x + i;
        int n = cols - i < BLOCK ? (int)(cols - i) : BLOCK;
        if (!clean || pat) {
            for (int l = 0; l < n; l++) v[l] = magnitude(p[l]) < 0x7f800000u ? p[l] : 0;
            for (int l = n; l < BLOCK; l++) v[l] = 0;
            p = v;
        }
        add_sums(r, p, n, i == 0, used);
        if (pat) q4x_sketch_block(r->bucket, v, pat + i / BLOCK);
    }
}

static void one_row(q4x_tapstat *s, const float *x) {
    row_sums r;
    int64_t kept = s->row >= s->keep0 && s->row < s->keep1 ? s->row - s->keep0 : -1;
    int sketched = kept >= 0 && !s->sk.raw, used = lanes(s->cols);
    uint64_t before = s->nonfinite;
    int clean = row_look(s, x);
    if (sketched) memset(r.bucket, 0, sizeof r.bucket);
    if (s->cols)
        row_add(&r, x, s->cols, sketched ? s->pat : NULL, clean, used);
    else
        r.abs[0] = r.sq[0] = 0;
    double sumabs = halve(r.abs, used), sumsq = halve(r.sq, used);
    s->st.sumabs += sumabs;
    s->st.sumsq += sumsq;
    s->row++;
    if (kept < 0) return;
    s->row_sumabs[kept] = sumabs;
    s->row_sumsq[kept] = sumsq;
    s->sk.skipped += s->nonfinite - before;
    size_t w = (size_t)s->sk.width;
    if (s->sk.raw) {
        if (w) memcpy(s->values + (size_t)kept * w, x, w * sizeof *x);
    } else if (w == BLOCK)
        memcpy(s->buckets + (size_t)kept * w, r.bucket, sizeof r.bucket);
    else
        q4x_sketch_fold(r.bucket, s->buckets + (size_t)kept * w);
}

/* ---- the object ---- */

q4x_tapstat *q4x_tapstat_new(void) {
    return calloc(1, sizeof(q4x_tapstat));
}

void q4x_tapstat_free(q4x_tapstat *s) {
    if (!s) return;
    free(s->pat);
    free(s->buckets);
    free(s->row_sumabs);
    free(s->values);
    free(s);
}

/* The array with room for n elements, whose old contents are not needed; NULL, and p as it was: no memory. */
static void *grown(void *p, size_t *cap, size_t n, size_t elem) {
    if (n <= *cap) return p;
    void *fresh = n <= SIZE_MAX / elem ? malloc(n * elem) : NULL;
    if (!fresh) return NULL;
    free(p);
    *cap = n;
    return fresh;
}

static int keep_room(q4x_tapstat *s, size_t nrows) {
    size_t width = s->sk.width > 0 ? (size_t)s->sk.width : 1;
    if (!nrows) nrows = 1;
    if (nrows > SIZE_MAX / sizeof(double) / width) return Q4X_E_NOMEM;
    double *sums = grown(s->row_sumabs, &s->cap_rows, 2 * nrows, sizeof *sums);
    if (!sums) return Q4X_E_NOMEM;
    s->row_sumabs = sums;
    s->row_sumsq = sums + nrows;
    if (s->sk.raw) {
        float *values = grown(s->values, &s->cap_values, nrows * width, sizeof *values);
        if (values) s->values = values;
        return values ? 0 : Q4X_E_NOMEM;
    }
    double *buckets = grown(s->buckets, &s->cap_buckets, nrows * width, sizeof *buckets);
    if (!buckets) return Q4X_E_NOMEM;
    s->buckets = buckets;
    size_t npat = (size_t)((s->cols + BLOCK - 1) / BLOCK), had = s->npat;
    if (npat <= had) return 0;
    q4x_sketch_pat *p = npat <= UINT32_MAX ? realloc(s->pat, npat * sizeof *p) : NULL;
    if (!p) return Q4X_E_NOMEM;
    s->pat = p;
    s->npat = npat;
    for (size_t b = had; b < npat; b++) q4x_sketch_pattern((uint32_t)b, &p[b]);
    return 0;
}

int q4x_tapstat_begin(q4x_tapstat *s, int64_t total_rows, int64_t cols, int64_t row0, int64_t nrows, int want_sketch) {
    if (total_rows < 0 || cols < 0 || total_rows > INT32_MAX || (cols && total_rows > INT64_MAX / 8 / cols))
        return Q4X_E_ARG;
    if (row0 < 0) nrows = nrows > -row0 ? nrows + row0 : 0, row0 = 0;
    if (row0 > total_rows) row0 = total_rows;
    if (nrows < 0 || !want_sketch) nrows = 0;
    if (nrows > total_rows - row0) nrows = total_rows - row0;
    s->rows = total_rows;
    s->cols = cols;
    s->row = 0;
    s->keep0 = row0;
    s->keep1 = row0 + nrows;
    s->st = (q4x_stats){.n = (uint64_t)(total_rows * cols)};
    s->nonfinite = 0;
    s->amax = 0;
    s->kmin = INT32_MAX;
    s->kmax = INT32_MIN;
    s->sk = (q4x_sketch){.row0 = (int32_t)row0, .nrows = (int32_t)nrows};
    if (!want_sketch) return 0;
    s->sk.raw = cols <= Q4X_SKETCH_RAW;
    s->sk.width = s->sk.raw ? (int32_t)cols : total_rows <= Q4X_SKETCH_WIDE ? BLOCK : Q4X_SKETCH_FOLD;
    return keep_room(s, (size_t)nrows);
}

void q4x_tapstat_rows(q4x_tapstat *s, const float *x, int64_t nrows) {
    Q4X_BUG_IF(nrows > s->rows - s->row);
    for (int64_t t = 0; t < nrows; t++) one_row(s, x + t * s->cols);
}

void q4x_tapstat_end(q4x_tapstat *s, q4x_stats *stats, q4x_sketch *sketch) {
    Q4X_BUG_IF(s->row != s->rows);
    if (stats) {
        *stats = s->st;
        int none = s->nonfinite == s->st.n;
        stats->min = none ? (double)NAN : (double)key_value(s->kmin);
        stats->max = none ? (double)NAN : (double)key_value(s->kmax);
        stats->maxabs = none ? (double)NAN : (double)float_of(s->amax);
    }
    if (!sketch) return;
    *sketch = s->sk;
    if (!s->sk.nrows) return;
    sketch->row_sumabs = s->row_sumabs;
    sketch->row_sumsq = s->row_sumsq;
    if (s->sk.raw)
        sketch->values = s->values;
    else
        sketch->buckets = s->buckets;
}
