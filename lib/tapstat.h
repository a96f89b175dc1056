/* tapstat.h: what a tap keeps of a tensor besides its bits: statistics and the sketch.
 *
 * All sums are f64 in the order of the design (256 accumulators by element index mod 256 in ascending blocks, halved
 * 128, 64, .. 1; rows added in ascending order), so CPU and CUDA give the same bits. Streaming by rows.
 */
#ifndef Q4X_TAPSTAT_H
#define Q4X_TAPSTAT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/measure.h"
#include "lib/err.h"

enum { Q4X_NTOP = 8 };         /* largest |x| kept, ties by lower index */
enum { Q4X_SKETCH_RAW = 512 }; /* rows up to this wide are kept whole (f32) instead of sketched */
enum { Q4X_SKETCH_ROWS = 64 }; /* default: the last rows kept */
enum { Q4X_SKETCH_WIDE = 8 };  /* tensors of at most so many rows keep 256 buckets a row, others 64 */

typedef struct {
    uint64_t n, nan, pinf, ninf, zeros;
    uint64_t on_bf16, on_f16;     /* finite values that lie on that lattice (zeros do) */
    double min, max, maxabs;      /* over finite values, a zero as +0; NaN when there is none */
    double sumabs, sumsq;         /* over finite values */
    int32_t ntop;                 /* finite values only; fewer than Q4X_NTOP when there are fewer */
    uint64_t top_index[Q4X_NTOP]; /* flat index */
    float top_value[Q4X_NTOP];
} q4x_stats;

/* The sketch of the kept rows of one tap. width buckets a row: f64 sums, or, when raw, the row's f32 values. */
typedef struct {
    int32_t row0, nrows; /* first kept row, number of kept rows */
    int32_t width;       /* 256 (tensor of at most Q4X_SKETCH_WIDE rows), 64 or (raw) the row's length */
    int32_t raw;         /* 1: f32 values in `values` */
    double *buckets;     /* [nrows, width], or NULL */
    float *values;       /* [nrows, width], or NULL */
    double *row_sumabs;  /* [nrows]: floor of the estimate, and per-row statistics */
    double *row_sumsq;   /* [nrows] */
    double *row_least;   /* [nrows] smallest sum of squares of a part (q4x_parts), or NULL: has none, or raw */
    uint64_t skipped;    /* non-finite elements of the kept rows: left out of buckets and row sums; raw
                          * values keep them */
} q4x_sketch;

/* How ops that norm a row part by part cut it: part i is columns off + i step .. + width, i < n. The row is a number of
 * widths long, and so are off and step. n 0: no op does. */
typedef struct {
    int32_t off, width, step, n;
} q4x_parts;

typedef struct q4x_tapstat q4x_tapstat;

/* What begin will keep of such a tensor: row0, nrows, width and raw; the rest is 0. Q4X_E_ARG: an impossible shape. */
int q4x_tapstat_shape(int64_t total_rows, int64_t cols, int64_t row0, int64_t nrows, int want_sketch, q4x_sketch *ret);
/* Of rows row0 .. row0+nrows-1 of the tensor those that it keeps: *ret_from .. *ret_from + what is returned; and the
 * bytes of one. */
int64_t q4x_tapstat_kept(const q4x_sketch *sk, int64_t row0, int64_t nrows, int64_t *ret_from);
size_t q4x_tapstat_kept_row(const q4x_sketch *sk);
/* total_rows and cols are those of the whole tensor; rows row0 .. row0+nrows-1 are sketched (clipped to the tensor).
 * want_sketch 0: statistics only. Reusable. begin: Q4X_E_NOMEM, or Q4X_E_ARG for an impossible shape. */
q4x_tapstat *q4x_tapstat_new(void);
void q4x_tapstat_free(q4x_tapstat *s);
int q4x_tapstat_begin(q4x_tapstat *s, int64_t total_rows, int64_t cols, int64_t row0, int64_t nrows, int want_sketch);
/* Between begin and the first rows: the sketch says of each row how large its smallest part is: a sum of squares in the
 * order of a row's, of a row that is `width` long. Nothing where rows are kept whole. Q4X_E_NOMEM; Q4X_E_ARG when the
 * parts do not fit a row. */
int q4x_tapstat_parts(q4x_tapstat *s, const q4x_parts *parts);
/* The next nrows rows; up to `threads` share them, which changes no bit. */
void q4x_tapstat_rows(q4x_tapstat *s, const float *x, int64_t nrows, int threads);
/* The next rows as a device measured them (measure.h): sums [nrows, 2]; kept: what of them is kept, as the sketch has
 * it; parts, when they were asked for: sums of kept rows as if each were rows that are `width` long, one behind the
 * other: [kept, cols / width, 2]. Returns the bytes of kept. */
size_t q4x_tapstat_there(q4x_tapstat *s, int64_t nrows, const k_measured *m, const double *sums, const void *kept,
                         const double *parts);
void q4x_tapstat_end(q4x_tapstat *s, q4x_stats *stats, q4x_sketch *sketch /* borrowed until next begin */);

/* Estimate of ||a - b||^2 over the kept rows from two sketches of the same shape, with its 95 % interval. Exact
 * (lo = hi) when raw. A bucket difference of at most 2^-52 of the row's sum|x| counts as none; when that leaves
 * nothing, e = lo = 0, below_floor is set, hi bounds what could hide there, and `bits` decide.
 * Limit: the Chebyshev interval (sparse) holds for elements that meet in a bucket by chance. In a fold of 64 the
 * elements j, j+64, j+128, j+192 of one block always meet: a difference in those alone is outside it. */
typedef struct {
    double e, lo, hi; /* squared distance */
    double top_share; /* of the row with the largest e: share of it in its 16 heaviest buckets (raw: values) */
    int32_t m;        /* degrees of freedom used; 0 when exact */
    int32_t exact, sparse, below_floor;
    double dense_share; /* top_share of a difference spread evenly: 0.33 of 256 buckets, 0.72 of 64 */
    int32_t nonfinite;  /* 1: a value that is not finite was left out on either side; e is about the others */
} q4x_sketch_dist;
int q4x_sketch_compare(const q4x_sketch *a, const q4x_sketch *b, q4x_sketch_dist *ret,
                       double *row_e /* [nrows] or NULL */, q4x_err *err);

/* The sign and bucket permutation of block b, index i (exposed for tests and for the CUDA twin). */
uint64_t q4x_sketch_h(uint32_t b, uint32_t i);

#endif
