/* map.h: for every node and comparable forward: are its inputs equal, how far do the outputs lie apart, was the
 * difference added there, is it within the pair's band, and if it was inherited, was it amplified out of proportion
 * (design.md 6, steps 7 and 8).
 *
 * A *source* is a node that differs while all its inputs and states are equal by bits: its whole difference was added
 * there, by what the arms declare or by a fault. Everything else that differs is inherited, at least in part.
 */
#ifndef BISECT_MAP_H
#define BISECT_MAP_H

#include "bisect/distance.h"
#include "bisect/flips.h"
#include "bisect/header.h"
#include "bisect/pair.h"

typedef enum {
    BIS_C_NONE,    /* equal, absent, or nothing can be said */
    BIS_C_WITHIN,  /* a source within 4 x rms of the pair's band, or a tie at the cut of a selection */
    BIS_C_OUT,     /* a source that is not: why says how */
    BIS_C_PASSED,  /* inherited, and its gain is that of its kind (or cannot be judged) */
    BIS_C_FLIPPED, /* inherited, behind a selection that differs: not judged by its gain */
    BIS_C_OUTLIER  /* inherited, and its gain is not that of its kind */
} bis_class;

typedef struct {
    uint8_t in; /* bis_eq of inputs and states together; ABSENT: the node has no record */
    uint8_t cls;
    uint8_t guessed; /* inputs are not recorded: everything before stands for them */
    bis_reason why;
    bis_dist *dist;    /* of a differing tap, else NULL */
    double rms, hard;  /* the pair's band; NaN: not recorded in both arms */
    double d_in, gain; /* largest relative distance of the inputs; rel / d_in; NaN: unknown */
    int32_t nout;      /* outlier rows */
} bis_cell;

/* The median gain of one kind of node ("moe") and the limit above which a gain is an outlier: 8 (1 + 12 / n) times the
 * median (n tensors: few know little about what is usual), or 3 standard deviations of the logarithm (by quantiles)
 * where the gains of the kind scatter more than that, as those that stand for several unrecorded nodes do; more where
 * the norm is over fewer than 256 elements (map_outliers.c says how much); of fewer than 3 tensors the usual gain is
 * taken to be 1; never below 2: what leaves a difference smaller than its largest input's amplifies nothing.
 * Rows: gains of single rows; each tensor has one vote. */
typedef struct {
    const char *kind;
    double median, row_median, limit, row_limit;
    int64_t n, row_n;
} bis_gain;

typedef struct {
    int32_t forward, node;
    double gain, median, limit; /* of the row when row >= 0 */
    int64_t n;
    int32_t row;   /* row of the tensor with the largest gain; -1: the tensor as a whole */
    int32_t nrows; /* outlier rows in this tensor */
} bis_outlier;

typedef struct {
    bis_cell *cell;                                  /* [ncomparable * nn] */
    int32_t first_f, first_n;                        /* first differing node; -1: none */
    int32_t out_f, out_n;                            /* first out-of-band node: a source, else an outlier; -1: none */
    int32_t fault_f, fault_n;                        /* first source that no rounding explains; -1: none */
    int32_t nonfinite_f, nonfinite_n, nonfinite_arm; /* first node that makes a non-finite value of finite inputs */
    int64_t nsources, nwithin, nout, nfault, ndiff;
    int64_t flat[2]; /* taps that are constant (or all zero) in one arm and not in the other, by arm */
    int32_t flat_f[2], flat_n[2];
    int64_t both_nonfinite; /* taps that hold non-finite values in both arms */
    int32_t both_f, both_n;
    int32_t ngains;
    bis_gain *gain;
    int32_t noutliers;
    bis_outlier *outlier;
    int64_t unjudged;        /* inherited differences whose gain is unknown */
    int32_t far_f, far_n;    /* the first of those that lies far from those inputs that are recorded; -1: none */
    int64_t states_unjudged; /* states that differ beside their op's output, without a band or a size */
} bis_map;

int bis_map_make(const bis_pair *p, const bis_header *h, const bis_flips *s, bis_map *ret, q4x_err *err);
void bis_map_free(bis_map *m, const bis_pair *p);

static inline bis_cell *bis_map_cell(const bis_map *m, const bis_pair *p, int32_t f, int32_t n) {
    return &m->cell[bis_at(p, f, n)];
}

/* Nearest ancestors of node n in forward f that differ and whose distance is known (or that are states), by which its
 * gain was judged. Writes at most max nodes, returns how many there are. */
int bis_map_between(const bis_map *m, const bis_pair *p, int32_t f, int32_t n, int32_t *ret, int max);

/* 1 when the op of this node is one of ours and states no band. */
int bis_states_no_band(const q4x_dump_node *k); /* map_sources.c */

/* 1 when the difference at this source is one that both arms' claims exclude (verdict FAULT). */
static inline int bis_is_fault(bis_reason r) {
    return r == BIS_R_same_arithmetic_bits_differ || r == BIS_R_above_hard_band || r == BIS_R_move_changed_bits;
}

/* A source is within its band up to 4 x rms. */
enum { BIS_GAIN_LIMIT = 8, BIS_GAIN_FLOOR = 2, BIS_GAIN_MIN_N = 3, BIS_BAND_LIMIT = 4 };

/* Steps of bis_map_make, one file each. */
void bis_map_inputs(bis_map *m, const bis_pair *p);                 /* map_inputs.c */
int bis_map_nonfinite(bis_map *m, const bis_pair *p, q4x_err *err); /* map_finite.c */
int bis_map_sources(bis_map *m, const bis_pair *p, const bis_header *h, const bis_flips *s,
                    q4x_err *err);                                                  /* map_sources.c */
int bis_map_gains(bis_map *m, const bis_pair *p, const bis_flips *s, q4x_err *err); /* map_gains.c */

#endif
