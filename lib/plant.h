/* plant.h: faults for the selftest. They act in the run, on a node's output, before anything reads it. */
#ifndef Q4X_PLANT_H
#define Q4X_PLANT_H

#include "lib/run.h"

/* 1 when a fault of this kind can act on ids (it must leave them valid). */
int q4x_plant_on_ids(const char *kind);

/* Apply to one tile. sign: the whole tensor. swap: the last two rows of the call (a call of one row: its first two
 * columns). roll: every row of the tile by one (one row: its columns). ulp, nan, inf: the largest element of the
 * call's last row. Returns 1 when a bit moved. */
int q4x_plant(const char *kind, const q4x_node_event *ev);

#endif
