/* ops.h: the table of ops (ops.def) and what they need besides their operands. */
#ifndef K_OPS_H
#define K_OPS_H

#include "kernels/k.h"

#define OP(name, cls, band) void name##_cpu(const k_call *c);
#include "kernels/ops.def"
#undef OP

/* What an op leaves in its state (op_states.def). */
typedef enum {
    K_STATE_NONE,   /* it has none, or nothing is known of it */
    K_STATE_COPIED, /* rows of its inputs, bit for bit: equal inputs leave equal states, whatever the levers */
    K_STATE_MADE    /* its own arithmetic; `bands` states how far off */
} k_state_kind;
k_state_kind k_op_state(k_op op, k_bands_fn *bands); /* *bands is set for K_STATE_MADE alone */

/* Which rows of its input number *in an op that keeps a state keeps there: each a row as it came, but for the rounding
 * to a cache's type; what they push out or stand behind are rows of the state before, as they were. *in is set for all
 * but K_KEEPS_MIXED. */
typedef enum {
    K_KEEPS_MIXED, /* none as such, or it keeps no state */
    K_KEEPS_LAST,  /* the last, as many as the state has; it moves on by the others */
    K_KEEPS_EVERY, /* all, at their positions */
    K_KEEPS_BLOCKS /* those that complete a block of `ratio` positions, at the block's number */
} k_keeps;
k_keeps k_op_keeps(k_op op, int *in);

/* Floats of scratch a thread needs so that every op can run on tiles of `tile` rows with up to n_ctx positions, and
 * at least the 3 V that choosing a token takes. */
int64_t k_scratch_floats(const k_dims *d, int64_t tile, int64_t n_ctx);

#endif
