/* attn_runs.h: the tokens a query may see, as runs [begin, end) of consecutive positions in ascending order.
 *
 * Selected blocks come in rank order; sums over tokens go in ascending token order. A bitmap over the blocks turns one
 * into the other in O(nb / 32 + nsel), and neighbouring blocks become one run: with nothing pruned there is one run.
 * Extra tokens (lever qsa.extra) are few, and fall into their places between the blocks.
 */
#ifndef K_ATTN_RUNS_H
#define K_ATTN_RUNS_H

#include "kernels/k.h"

typedef struct {
    int32_t n;
    const int32_t *at; /* n pairs: begin, end */
} k_runs;

/* Floats of work that k_visible needs for Tc positions. */
int64_t k_visible_work(const k_dims *d, int64_t Tc);

/* Visible tokens of row t of the tile, by the blocks [T, width] in slot `sel` of the call, in any order, and the tokens
 * [T, at most ratio] in slot sel + 1, or none when that is NULL. Slot sel NULL: all tokens up to the query. */
k_runs k_visible(const k_call *c, int sel, int32_t t, float *work);

#endif
