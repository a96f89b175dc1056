#include "lib/tapstat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/sketch.h"
#include "lib/tapstat_look.h"

enum { BLOCK = Q4X_SKETCH_BLOCK };

struct q4x_tapstat {
    int64_t rows, cols, row; /* of the tensor; rows seen so far */
    int64_t keep0, keep1;    /* kept rows: keep0 <= row < keep1, as in sk */
    q4x_seen all;
    q4x_sketch sk;
    q4x_sketch_pat *pat; /* [npat], kept from one tensor to the next: they depend on the block's index alone */
    size_t npat;
    double *buckets;                /* grown, never shrunk, as the next: sk points into them */
    double *row_sumabs, *row_sumsq; /* [rows] each, the second behind the first */
    double *row_least;              /* [kept rows] */
    q4x_parts parts;                /* n 0: not asked for */
    float *values;
    size_t cap_buckets, cap_values, cap_rows, cap_least;
};

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
            for (int l = 0; l < n; l++) v[l] = q4x_magnitude(p[l]) < 0x7f800000u ? p[l] : 0;
            for (int l = n; l < BLOCK; l++) v[l] = 0;
            p = v;
        }
        add_sums(r, p, n, i == 0, used);
        if (pat) q4x_sketch_block(r->bucket, v, pat + i / BLOCK);
    }
}

/* The smallest sum of squares of a part of the row. */
static double least_part(const q4x_tapstat *s, const float *x, int clean) {
    const int used = lanes(s->parts.width);
    double least = 0;
    row_sums r;
    for (int32_t i = 0; i < s->parts.n; i++) {
        row_add(&r, x + s->parts.off + (int64_t)i * s->parts.step, s->parts.width, NULL, clean, used);
        const double q = halve(r.sq, used);
        if (i == 0 || q < least) least = q;
    }
    return least;
}

/* Row number row of the tensor. What it writes belongs to that row alone, or to `to`. */
static void one_row(const q4x_tapstat *s, const float *x, int64_t row, q4x_seen *to) {
    row_sums r;
    int64_t kept = row >= s->keep0 && row < s->keep1 ? row - s->keep0 : -1;
    int sketched = kept >= 0 && !s->sk.raw, used = lanes(s->cols);
    uint64_t before = to->nonfinite;
    int clean = q4x_seen_row(to, x, s->cols, (uint64_t)row * (uint64_t)s->cols);
    if (sketched) memset(r.bucket, 0, sizeof r.bucket);
    if (s->cols)
        row_add(&r, x, s->cols, sketched ? s->pat : NULL, clean, used);
    else
        r.abs[0] = r.sq[0] = 0;
    s->row_sumabs[row] = halve(r.abs, used);
    s->row_sumsq[row] = halve(r.sq, used);
    if (kept < 0) return;
    to->skipped += to->nonfinite - before;
    if (s->parts.n) s->row_least[kept] = least_part(s, x, clean);
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
    free(s->row_least);
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

int q4x_tapstat_shape(int64_t total_rows, int64_t cols, int64_t row0, int64_t nrows, int want_sketch, q4x_sketch *ret) {
    if (total_rows < 0 || cols < 0 || total_rows > INT32_MAX || (cols && total_rows > INT64_MAX / 8 / cols))
        return Q4X_E_ARG;
    if (row0 < 0) nrows = nrows > -row0 ? nrows + row0 : 0, row0 = 0;
    if (row0 > total_rows) row0 = total_rows;
    if (nrows < 0 || !want_sketch) nrows = 0;
    if (nrows > total_rows - row0) nrows = total_rows - row0;
    *ret = (q4x_sketch){.row0 = (int32_t)row0, .nrows = (int32_t)nrows};
    if (!want_sketch) return 0;
    ret->raw = cols <= Q4X_SKETCH_RAW;
    ret->width = ret->raw ? (int32_t)cols : total_rows <= Q4X_SKETCH_WIDE ? BLOCK : Q4X_SKETCH_FOLD;
    return 0;
}

int q4x_tapstat_begin(q4x_tapstat *s, int64_t total_rows, int64_t cols, int64_t row0, int64_t nrows, int want_sketch) {
    int rc = q4x_tapstat_shape(total_rows, cols, row0, nrows, want_sketch, &s->sk);
    if (rc) return rc;
    s->rows = total_rows;
    s->cols = cols;
    s->row = 0;
    s->parts = (q4x_parts){0};
    s->keep0 = s->sk.row0;
    s->keep1 = s->keep0 + s->sk.nrows;
    s->all = q4x_seen_none();
    s->all.st.n = (uint64_t)(total_rows * cols);
    double *sums = grown(s->row_sumabs, &s->cap_rows, 2 * (size_t)(total_rows ? total_rows : 1), sizeof *sums);
    if (!sums) return Q4X_E_NOMEM;
    s->row_sumabs = sums;
    s->row_sumsq = sums + total_rows;
    return want_sketch ? keep_room(s, (size_t)s->sk.nrows) : 0;
}

int q4x_tapstat_parts(q4x_tapstat *s, const q4x_parts *p) {
    const int64_t w = p->width;
    if (p->n == 0 || s->sk.raw || s->sk.nrows == 0) return 0;
    if (p->n < 0 || w < 1 || p->off < 0 || p->step < w || s->cols % w || p->off % w || p->step % w ||
        p->off + (p->n - 1) * (int64_t)p->step + w > s->cols)
        return Q4X_E_ARG;
    double *least = grown(s->row_least, &s->cap_least, (size_t)s->sk.nrows, sizeof *least);
    if (!least) return Q4X_E_NOMEM;
    s->row_least = least;
    s->parts = *p;
    return 0;
}

/* The next nrows rows are in: their sums, in ascending order. */
static void add_up(q4x_tapstat *s, int64_t nrows) {
    for (int64_t t = s->row; t < s->row + nrows; t++) {
        s->all.st.sumabs += s->row_sumabs[t];
        s->all.st.sumsq += s->row_sumsq[t];
    }
    s->row += nrows;
}

enum { SHARES = 16, SHARE_MIN = 1 << 15 /* elements worth waking a thread for */ };

void q4x_tapstat_rows(q4x_tapstat *s, const float *x, int64_t nrows, int threads) {
    Q4X_BUG_IF(nrows > s->rows - s->row);
    q4x_seen part[SHARES];
    int64_t row0 = s->row, shares = threads < SHARES ? threads : SHARES;
    if (shares > nrows * s->cols / SHARE_MIN) shares = nrows * s->cols / SHARE_MIN;
    if (shares < 2) { /* a team of one costs a microsecond too */
        for (int64_t t = 0; t < nrows; t++) one_row(s, x + t * s->cols, row0 + t, &s->all);
    } else {
#pragma omp parallel for schedule(static, 1) num_threads((int)shares)
        for (int64_t k = 0; k < shares; k++) {
            part[k] = q4x_seen_none();
            for (int64_t t = nrows * k / shares; t < nrows * (k + 1) / shares; t++)
                one_row(s, x + t * s->cols, row0 + t, &part[k]);
        }
        for (int64_t k = 0; k < shares; k++) q4x_seen_join(&s->all, &part[k]);
    }
    add_up(s, nrows);
}

int64_t q4x_tapstat_kept(const q4x_sketch *sk, int64_t row0, int64_t nrows, int64_t *ret_from) {
    const int64_t end = (int64_t)sk->row0 + sk->nrows, from = sk->row0 > row0 ? sk->row0 : row0,
                  to = end < row0 + nrows ? end : row0 + nrows;
    *ret_from = from;
    return to > from ? to - from : 0;
}

size_t q4x_tapstat_kept_row(const q4x_sketch *sk) {
    return (size_t)sk->width * (sk->raw ? sizeof *sk->values : sizeof *sk->buckets);
}

/* The smallest of a row's parts, of sums [cols / width, 2]. */
static double least_there(const q4x_tapstat *s, const double *sums) {
    double least = 0;
    for (int32_t i = 0; i < s->parts.n; i++) {
        const double q = sums[2 * ((s->parts.off + (int64_t)i * s->parts.step) / s->parts.width) + 1];
        if (i == 0 || q < least) least = q;
    }
    return least;
}

size_t q4x_tapstat_there(q4x_tapstat *s, int64_t nrows, const k_measured *m, const double *sums, const void *kept,
                         const double *parts) {
    Q4X_BUG_IF(nrows > s->rows - s->row);
    int64_t from;
    const int64_t n = q4x_tapstat_kept(&s->sk, s->row, nrows, &from);
    const q4x_seen seen = q4x_seen_there(m, (uint64_t)s->row * (uint64_t)s->cols);
    q4x_seen_join(&s->all, &seen);
    for (int64_t t = 0; t < nrows; t++) {
        s->row_sumabs[s->row + t] = sums[2 * t];
        s->row_sumsq[s->row + t] = sums[2 * t + 1];
    }
    const size_t row = q4x_tapstat_kept_row(&s->sk), bytes = (size_t)n * row;
    char *to_here = s->sk.raw ? (char *)s->values : (char *)s->buckets;
    if (bytes) memcpy(to_here + (size_t)(from - s->keep0) * row, kept, bytes);
    for (int64_t t = from; t < from + n && s->parts.n; t++)
        s->row_least[t - s->keep0] = least_there(s, parts + 2 * (t - from) * (s->cols / s->parts.width));
    add_up(s, nrows);
    return bytes;
}

void q4x_tapstat_end(q4x_tapstat *s, q4x_stats *stats, q4x_sketch *sketch) {
    Q4X_BUG_IF(s->row != s->rows);
    if (stats) {
        *stats = s->all.st;
        q4x_seen_extremes(&s->all, stats);
    }
    if (!sketch) return;
    *sketch = s->sk;
    sketch->skipped = s->all.skipped;
    if (!s->sk.nrows) return;
    sketch->row_sumabs = s->row_sumabs + s->keep0;
    sketch->row_sumsq = s->row_sumsq + s->keep0;
    if (s->parts.n) sketch->row_least = s->row_least;
    if (s->sk.raw)
        sketch->values = s->values;
    else
        sketch->buckets = s->buckets;
}
