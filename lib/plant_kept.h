/* plant_kept.h: faults of what an op keeps for the next forward. What is wrong is read later; the output is sound. */
#ifndef Q4X_PLANT_KEPT_H
#define Q4X_PLANT_KEPT_H

#include "lib/plant.h"

/* A state as it was before a call. Zero-initialise; free f. */
typedef struct {
    float *f;
    int64_t cells, cap; /* cells 0: there was no memory for it */
} q4x_kept;

/* 1 when the kind acts on what is kept, behind the op. */
int q4x_kept_is(const char *kind);
/* Before the first tile of a call, on the op's first state: what a kind does then (1: a bit moved), and what it will
 * put back. */
int q4x_kept_before(const char *kind, const k_state *s, int32_t forward, q4x_kept *b);
/* Behind a tile, of a kind that acts there: when it is the call's last, on the op's first state. plan: that of the
 * node. *ret 1: a bit moved. Q4X_E_NOMEM. */
int q4x_kept_after(const char *kind, const q4x_plan *plan, const q4x_node_event *ev, const q4x_kept *b, int *ret,
                   q4x_err *err);

#endif
