/* arena.h: where the outputs of a plan lie. One buffer a run, sized before the first op; a node's space is reused once
 * its last reader ran. */
#ifndef Q4X_ARENA_H
#define Q4X_ARENA_H

#include "lib/plan.h"

/* Columns of a node's output when Tc positions are known. */
int64_t q4x_node_cols(const q4x_plan *p, int32_t node, int64_t Tc);

/* Lay out the outputs for tiles of `rows` rows and up to n_ctx positions. ret_off[node] in floats (aliases share their
 * source's; the logits node has none: -1). Returns the floats needed, or a negative error (overflow, no memory). */
int64_t q4x_arena_layout(const q4x_plan *p, int64_t rows, int64_t n_ctx, int64_t *ret_off, q4x_err *err);

#endif
