/* map_int.h: what the files that judge gains share. */
#ifndef BISECT_MAP_INT_H
#define BISECT_MAP_INT_H

#include <math.h>

#include "bisect/map.h"

/* One gain: of a row of a tensor, or of the tensor. */
typedef struct {
    int32_t kind, f, n, row; /* row -1: whole tensor */
    int32_t soft;            /* a row judged across unrecorded nodes: it only names the row of an outlier */
    int64_t elems;           /* of the row, of the tensor: what the norm is over */
    double g;
} bis_sample;

/* From all gains, in any order: medians and limits of the kinds (m->gain, by index of kind_name), outliers (m->outlier
 * and the cells' classes). Reorders s. -1: no memory. */
int bis_map_outliers(bis_map *m, const bis_pair *p, bis_sample *s, int64_t n, const char *const *kind_name,
                     int32_t nkinds);

/* 1 when a gain by those inputs that are recorded, others being unknown, is above every limit that a node of this width
 * could have, and no rounding of the node's own explains the difference. NaN is no gain. */
int bis_map_far(const bis_pair *p, const bis_cell *c, int32_t f, int32_t n, double gain); /* map_outliers.c */

/* map_measure.c: how node n sees a difference of its inputs: by row as any other; by the root of that; by a measure of
 * its own of the first input (*ret: malloc'd, one number a row that was kept of it); not recorded. -1: no memory. */
enum { BIS_BY_ROW, BIS_BY_ROOT, BIS_BY_OWN, BIS_BY_NOTHING };
int bis_map_measure(const bis_map *m, const bis_pair *p, int32_t f, int32_t n, double **ret);

/* map_moves.c: 1 when node n, which hands on what it was given (an alias, a state that keeps rows), holds something
 * else in one arm alone; 0; -1: no memory. The cell of a state of which the rows hold in both arms is a gain of 1. */
int bis_map_broken_move(bis_map *m, const bis_pair *p, int32_t f, int32_t n);
int32_t bis_kept_from(const bis_pair *p, int32_t s); /* of state s of those: the node whose rows it keeps; else -1 */
int bis_op_of(const q4x_dump_node *k);               /* k_op; -1: none of ours */

/* 1 when a distance can be used in a gain. */
static inline int bis_dist_usable(const bis_dist *d) {
    return bis_dist_ranked(d) && isfinite(d->rel);
}

#endif
