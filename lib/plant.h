/* plant.h: faults for the selftest (lib/plants.def lists them). They act in the run, on a node's output or on the state
 * it keeps, before anything reads it; never on what is recorded of it.
 *
 * A fault of arithmetic that a lever can say is a lever (eps, eps.floor, gdn.gate, moe.renorm, rope.freq ..).
 */
#ifndef Q4X_PLANT_H
#define Q4X_PLANT_H

#include "lib/run.h"

typedef struct {
    const char *name, *ops; /* ops as a lever's: at their nodes it has a meaning */
    int on_ids;             /* 1: it leaves ids valid */
    int first;              /* forward in which it can first act */
    const char *doc;
} q4x_plant_kind;
extern const q4x_plant_kind q4x_plant_kinds[];
extern const int q4x_nplant_kinds;

/* 0 when this item, a plant, has a meaning at the node; Q4X_E_ARG says why it has none. */
int q4x_plant_check(const q4x_item *it, const q4x_node *n, q4x_err *err);

/* What a run knows of the plants of its arm. */
typedef struct q4x_plants q4x_plants;

/* *ret NULL: the arm plants nothing. Plan and arm are borrowed. */
int q4x_plants_new(const q4x_plan *p, const q4x_arm *a, q4x_plants **ret, q4x_err *err);
void q4x_plants_free(q4x_plants *p); /* NULL is fine, as below */
/* The next forward is number `forward`; reset: the sequence is empty again. */
void q4x_plants_forward(q4x_plants *p, int32_t forward);
void q4x_plants_reset(q4x_plants *p);
/* Around the op of a node, on one tile, in the host's memory: before it (what it will read; 1: its first state was
 * changed), and after it, on its output in ev->data. The second sets ev->planted when a bit of the output or of what
 * the node keeps is no longer what the op made of sound inputs; *ret_kept 1: its first state was changed. */
int q4x_plants_before(q4x_plants *p, int32_t node, const k_call *c);
int q4x_plants_after(q4x_plants *p, q4x_node_event *ev, int *ret_kept, q4x_err *err);
/* 1 when item k of the arm has moved a bit since the run was new. */
int q4x_plants_moved(const q4x_plants *p, int k);

#endif
