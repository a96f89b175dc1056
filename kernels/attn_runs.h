/* attn_runs.h: the tokens a query may see, as runs [begin, end) of consecutive positions in ascending order.
 *
 * Selected blocks come in rank order; sums over tokens go in ascending token order. A bitmap over the blocks turns one
 * into the other in O(nb / 32 + nsel), and neighbouring blocks become one run: with nothing pruned there is one run.
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

/* Visible tokens of row t of the tile. sel [T, width]: blocks in any order, or NULL: all tokens up to the query. */
k_runs k_visible(const k_call *c, const int32_t *sel, int64_t width, int32_t t, float *work);

#endif
