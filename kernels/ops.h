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

/* Floats of scratch a thread needs so that every op can run on tiles of `tile` rows with up to n_ctx positions, and
 * at least the 3 V that choosing a token takes. */
int64_t k_scratch_floats(const k_dims *d, int64_t tile, int64_t n_ctx);

#endif
