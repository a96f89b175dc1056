/* tapstat_look.h: counts, extremes and largest elements of rows: the part of the statistics that is no sum. */
#ifndef Q4X_TAPSTAT_LOOK_H
#define Q4X_TAPSTAT_LOOK_H

#include <string.h>

#include "kernels/measure.h"
#include "lib/tapstat.h"

/* What some rows, in ascending order, add up to; their sums apart. */
typedef struct {
    q4x_stats st;
    uint64_t nonfinite, skipped; /* skipped: in kept rows */
    uint32_t amax;               /* bits of the largest finite |x| */
    int32_t kmin, kmax;          /* smallest and largest finite value as ordered keys */
} q4x_seen;

q4x_seen q4x_seen_none(void);
/* A row of cols elements, the first of which has this index in the tensor. 1 when all its values are finite. */
int q4x_seen_row(q4x_seen *s, const float *x, int64_t cols, uint64_t index0);
/* b comes behind a: where magnitudes are equal, a's elements rank first, as they would in one pass. */
void q4x_seen_join(q4x_seen *a, const q4x_seen *b);
/* The same as a device measured it; the first element has this index in the tensor. */
q4x_seen q4x_seen_there(const k_measured *m, uint64_t index0);
/* min, max and maxabs of what was seen; NaN when nothing of it is finite. */
void q4x_seen_extremes(const q4x_seen *s, q4x_stats *stats);

static inline uint32_t q4x_magnitude(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u & 0x7fffffffu;
}

#endif
