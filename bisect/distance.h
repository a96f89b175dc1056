/* distance.h: how far two records of one tap lie apart, from the best that both dumps hold.
 *
 * d is the L2 norm of the difference; rel divides it by the L2 norm of arm A over the same rows (requirement R31).
 * Sources, best first: full tensors or raw rows (exact), sketches (estimate with its 95 % interval), norms (a lower
 * bound: | ||a|| - ||b|| |, never ranked, R30), nothing. Of a tensor that differs in rows that were not kept, none or
 * others were, the rows say nothing: its norms do.
 */
#ifndef BISECT_DISTANCE_H
#define BISECT_DISTANCE_H

#include "bisect/pair.h"

typedef enum { BIS_D_NONE, BIS_D_BOUND, BIS_D_SKETCH, BIS_D_EXACT } bis_how;

enum { BIS_NTOP = 16, BIS_NULP = 6 };

typedef struct {
    bis_how how;
    int partial;             /* not all rows of the tensor were kept: d, ranked, covers row0 .. row0+nrows-1 */
    int nonfinite;           /* non-finite elements stand in the way: d is NaN */
    int sparse, below_floor; /* of a sketch */
    double d, lo, hi;        /* L2 of the difference and its 95 % interval (equal when exact) */
    double norm, rel;        /* L2 of arm A over the same rows; d / norm */
    double max_abs;          /* largest |difference|; NaN unless exact */
    double share16;          /* share of d^2 in its 16 largest elements (exact) or buckets (sketch); NaN: unknown */
    int64_t ndiff;           /* elements that differ; -1: unknown */
    int ulp16;               /* 1: ulps are counted on the bf16 grid, where both arms' values lie */
    int64_t ulp_max;         /* -1: unknown */
    int64_t ulp[BIS_NULP];   /* elements at 1, 2, 3-4, 5-16, 17-256, more ulps */
    int32_t width;           /* buckets of the sketch, 0: exact */
    int32_t row0, nrows;
    double *row_d, *row_rel; /* [nrows] or NULL */
} bis_dist;

/* Distance of node n in forward f, which both tapped and which differs by bits. *ret owns row_d and row_rel. */
int bis_distance(const bis_pair *p, int32_t f, int32_t n, bis_dist *ret, q4x_err *err);
void bis_dist_free(bis_dist *d);

/* 1 when d is a number that gains and bands can use. */
static inline int bis_dist_ranked(const bis_dist *d) {
    return d && (d->how == BIS_D_SKETCH || d->how == BIS_D_EXACT);
}

#endif
