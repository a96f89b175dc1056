/* control.h: controls of the comparison: the floor of an arm, how far it lies from a second recording of itself
 * (requirement R15), and what a recording says of its own instrument (R9, R10). */
#ifndef BISECT_CONTROL_H
#define BISECT_CONTROL_H

#include "bisect/pair.h"

/* A control that a recording carries in its tail. */
typedef struct {
    int measured;
    int64_t differing, compared;
} bis_count;

/* key: "perturbation" or "read_twice". What is no pair of sensible numbers is not measured. */
bis_count bis_recorded(const q4x_dump *d, const char *key);
/* Of both arms together: measured when both are. */
bis_count bis_both(const bis_count arm[2]);

typedef struct {
    char *kind; /* "moe" */
    int64_t differing, compared;
} bis_stage;

typedef struct {
    int measured;
    int64_t compared, differing; /* taps, states and logit rows of all forwards */
    int32_t unequal_forwards;    /* forwards that consumed other ids than the first time; all their records differ */
    int32_t nstages;             /* kinds with differences, most first */
    bis_stage *stage;
    int32_t first_forward;
    char *first_node; /* NULL: none differs */
} bis_floor;

bis_count bis_floor_count(const bis_floor *f);

/* Compare d with a second recording of the same arm. Q4X_E_MISMATCH when `again` is another arm, another structure or
 * the same file; the message says what differs. arm: "A" or "B", for the message. */
int bis_floor_measure(q4x_dump *d, q4x_dump *again, const char *arm, bis_floor *ret, q4x_err *err);
void bis_floor_free(bis_floor *f);

#endif
