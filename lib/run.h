/* run.h: one sequence of one arm: state, arena, and the loop that walks the plan.
 *
 * A forward may be cut into tiles of rows (memory stays flat in the prompt's length); tiles, threads and taps never
 * change a bit. The model is shared and constant, the run is mutable and owned by one thread.
 */
#ifndef Q4X_RUN_H
#define Q4X_RUN_H

#include "lib/lever.h"
#include "lib/model.h"
#include "lib/plan.h"

typedef struct q4x_net q4x_net;   /* a bound model: arch, weights */
typedef struct q4x_run q4x_run;

int q4x_net_open(const char *path, q4x_net **ret, q4x_err *err);
void q4x_net_close(q4x_net *n);
const q4x_model *q4x_net_model(const q4x_net *n);
const k_dims *q4x_net_dims(const q4x_net *n);

/* n_ctx: positions the run may reach. tile: rows per pass, 0 for the default (a multiple of 64 in any case).
 * Errors: a lever whose scope matches no node, a context beyond the model's, no memory. */
int q4x_run_new(const q4x_net *n, const q4x_arm *arm, int64_t n_ctx, int tile, q4x_run **ret, q4x_err *err);
void q4x_run_free(q4x_run *r);
const q4x_plan *q4x_run_plan(const q4x_run *r);
int q4x_run_threads(const q4x_run *r);

/* One call of the model on n ids. all_logits 1: a logit row for every id, else the last.
 * Errors: id out of range (named, with its index), n < 1, context overflow; the state is unchanged then. */
int q4x_run_forward(q4x_run *r, const int32_t *ids, int32_t n, int all_logits, q4x_err *err);
int32_t q4x_run_pos(const q4x_run *r);       /* positions consumed */
int32_t q4x_run_nforward(const q4x_run *r);  /* forwards done */

/* Logits of the last forward, f32 before the last rounding: [rows, V]. */
const float *q4x_run_logits(const q4x_run *r, int32_t *ret_rows);
/* Greedy choice on the last row after the arm's last rounding, and its two best entries. */
int32_t q4x_run_choose(const q4x_run *r, int32_t top_id[2], float top_val[2]);

/* Called after each node and tile: data is the tile's output [nrows, cols] and may be changed (grafts, plants);
 * what follows reads the changed values. row0 and total count rows of the call. */
typedef int (*q4x_node_fn)(void *ctx, int32_t node, int32_t row0, int32_t nrows, int32_t total, int64_t cols,
                           void *data, q4x_err *err);
void q4x_run_on_node(q4x_run *r, q4x_node_fn fn, void *ctx);
/* State record i after the last forward: its used rows. */
const k_state *q4x_run_state(const q4x_run *r, int32_t i);
/* Arena, state and scratch bytes. */
void q4x_run_memory(const q4x_run *r, uint64_t *arena, uint64_t *state, uint64_t *scratch);

#endif
