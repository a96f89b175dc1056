/* fate.h: what the judge made of a fault that is known: named at its place, named elsewhere, passed. For the selftest
 * and for the tests that count how often the judge is wrong.
 */
#ifndef BISECT_FATE_H
#define BISECT_FATE_H

#include "bisect/case.h"

/* What a case says of its pair of arms. */
typedef enum {
    BIS_A_SAME,    /* IDENTICAL */
    BIS_A_WITHIN,  /* WITHIN_BAND */
    BIS_A_TIE,     /* TIE */
    BIS_A_TOKENS,  /* TOKENS_DIFFER: ids differ, no cause is named */
    BIS_A_UNKNOWN, /* exit 125: what would tell is not recorded, or the pair cannot be compared */
    BIS_A_ALARM,   /* FAULT, DIVERGED, NON_FINITE: a node is named, or a difference that no source accounts for */
    BIS_ANSWERS
} bis_answer;
bis_answer bis_answer_of(const bis_case *c);

/* The node and forward that a case names: of a non-finite value, a fault, the first out of band; 0: it names none. */
int bis_named(const bis_case *c, int32_t *forward, int32_t *node);

/* What came of a fault that was planted into one arm of an honest pair. */
typedef enum {
    BIS_F_EXACT, /* named, in its forward; a state that keeps rows for its op counts as the op */
    BIS_F_NEXT,  /* its node is hashed only; the first node behind it whose distances are recorded is named, or one in
                       the same layer or the next. Of a state: all this one forward later, at the op that reads it */
    BIS_F_UNJUDGED, /* the verdict or the node's class says that it could not be judged: distances of its inputs, states
                       or own are not recorded, or it lies behind a selection that differs */
    BIS_F_MISSED,   /* judged, and passed */
    BIS_F_ASTRAY,   /* a node is named, and it is another one */
    BIS_FATES
} bis_fate;
/* forward, node (an index of arm A's dump): where the bits change first. */
bis_fate bis_fate_of(const bis_case *c, int32_t forward, int32_t node);
/* Of a missed one: the distance that the fault makes over the one that the honest pair has there, at the first recorded
 * node from the fault on; NaN: not recorded. clean: arm B without the fault. */
int bis_fate_ratio(const bis_case *c, int32_t forward, int32_t node, q4x_dump *clean, double *ret, q4x_err *err);
/* 1 when the last lever of the arm moved a bit in the run that left this dump. */
int bis_lever_moved(const q4x_dump *d);

#endif
