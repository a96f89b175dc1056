/* ahead.h: rows of n-gram tables are asked for from the disk before they are gathered. */
#ifndef Q4X_AHEAD_H
#define Q4X_AHEAD_H

#include "lib/model.h"
#include "lib/plan.h"

enum { Q4X_AHEAD_MOST = 1024 }; /* rows; more are gathered by threads, which wait for the disk beside each other */

/* The next T ids are about to be run, st the states before them: the pages of the rows that they need begin to come.
 * Returns how many rows that are; 0 where there are none, or too many. Changes nothing that can be seen. */
int64_t q4x_read_ahead(const q4x_model *m, const q4x_plan *p, const k_state *st, const int32_t *ids, int32_t T);

#endif
