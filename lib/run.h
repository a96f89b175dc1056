/* run.h: one sequence of one arm: state, arena, and the loop that walks the plan.
 *
 * A forward is cut into tiles of rows, so that memory stays flat in the prompt's length; tiles, threads and taps never
 * change a bit. The model is shared and constant, a run is mutable and used by one caller at a time.
 */
#ifndef Q4X_RUN_H
#define Q4X_RUN_H

#include "kernels/dev.h"
#include "lib/lever.h"
#include "lib/model.h"
#include "lib/plan.h"

typedef struct q4x_net q4x_net; /* a model file with its architecture bound */
typedef struct q4x_run q4x_run;

int q4x_net_open(const char *path, q4x_net **ret, q4x_err *err);
void q4x_net_close(q4x_net *n); /* NULL is fine */
const q4x_model *q4x_net_model(const q4x_net *n);
const q4x_plan *q4x_net_plan(const q4x_net *n);
const k_dims *q4x_net_dims(const q4x_net *n);

/* n_ctx: positions the run may reach, 1 .. the model's. tile: rows a pass, a multiple of 64; 0 for the default. The arm
 * is copied, the net borrowed. Errors: a lever whose scope matches no node that reads it, a context out of range, a
 * device that is not there, no memory. */
int q4x_run_new(const q4x_net *n, const q4x_arm *arm, int64_t n_ctx, int32_t tile, q4x_run **ret, q4x_err *err);
/* The same for a run whose forwards may give a logit row for each id (all_logits), or of which taps are taken, which
 * need so many bytes: a device's memory is held to that from the start, not when it is asked for. */
int q4x_run_new_all(const q4x_net *n, const q4x_arm *arm, int64_t n_ctx, int32_t tile, int all_logits, uint64_t taps,
                    q4x_run **ret, q4x_err *err);
void q4x_run_free(q4x_run *r); /* NULL is fine */
/* Back to an empty sequence. */
void q4x_run_reset(q4x_run *r);
const q4x_plan *q4x_run_plan(const q4x_run *r);
const q4x_arm *q4x_run_arm(const q4x_run *r);
int32_t q4x_run_threads(const q4x_run *r);
int q4x_run_default_threads(void); /* when the arm does not say */
/* 1 when this item of the arm, a plant, has moved a bit since the run was new. */
int q4x_run_planted(const q4x_run *r, int item);

/* One call of the model on n ids. all_logits 1: a logit row for every id, else for the last. Errors leave the run as
 * it was (an id out of range, named with its index; n < 1; context overflow) or, from a hook, dead: only free or reset
 * it then. */
int q4x_run_forward(q4x_run *r, const int32_t *ids, int32_t n, int all_logits, q4x_err *err);
int32_t q4x_run_pos(const q4x_run *r);      /* positions consumed */
int64_t q4x_run_ctx(const q4x_run *r);      /* positions there is room for */
int32_t q4x_run_tile(const q4x_run *r);     /* rows a pass, at most */
int32_t q4x_run_nforward(const q4x_run *r); /* forwards done */

/* Logits of the last forward, f32 before the last rounding: [rows, V]. Valid until the next forward. */
const float *q4x_run_logits(const q4x_run *r, int32_t *ret_rows);
/* Greedy choice on the last row after the arm's last rounding, ties by lever topk.tie; its two best entries. */
int32_t q4x_run_choose(q4x_run *r, int32_t top_id[2], float top_val[2]);

/* Called after each node and tile. data: the tile's output [nrows, cols] (f32, or i32 when the node is_ids), which
 * may be changed: what follows reads the changed values. Rows row0 .. row0+nrows of total. call: what the op was given
 * (its inputs, for bands and boundary scores). A non-zero return ends the forward with that code. On a device: as if
 * the run were here, unless q4x_run_before_node says otherwise. */
typedef struct {
    int32_t node, row0, nrows, total;
    int64_t cols;
    void *data;
    const k_call *call;
    int32_t planted; /* a plant changed data, what was read or what is kept: not what the op made of its inputs */
} q4x_node_event;
typedef int (*q4x_node_fn)(void *ctx, const q4x_node_event *ev, q4x_err *err);
void q4x_run_on_node(q4x_run *r, q4x_node_fn fn, void *ctx); /* NULL: none */

/* ---- a run on a device ---- */

/* Its order of work, for what is to be measured there; NULL: the run is on the host. */
k_dev *q4x_run_device(q4x_run *r);
/* on 1: between forwards; until 0 outputs stay until the end of the layer behind their own (q4x_arena_held). Where
 * there is no room for that, or it is far too much, all stays as it is. */
void q4x_run_hold(q4x_run *r, int on);
/* Asked before each node and tile; its output is about to be written over what lies at q4x_run_there(ev->call->out).
 * *ret_here 1: the event must find everything here; else (it is 0) data is NULL, unless the host made it, and what call
 * points at lies on the device alone. A hook that comes with such a question only reads. */
typedef int (*q4x_before_fn)(void *ctx, const q4x_node_event *ev, int *ret_here, q4x_err *err);
void q4x_run_before_node(q4x_run *r, q4x_before_fn fn, void *ctx); /* NULL: none, everything is wanted here */
/* Where the device has what an operand or the output of a call has here: the values are those of the last node that
 * wrote there. NULL: nowhere. */
const void *q4x_run_there(const q4x_run *r, const void *operand);
/* For a call of its ops that the host is to state bands of: c->scratch and c->scratch_n are the host's, allocated when
 * first asked for. They may be given to others once the call was used. Errors: no memory. */
int q4x_run_scratch_here(q4x_run *r, k_call *c, q4x_err *err);
/* State buffer i as it lies there after the last forward; f is NULL where only the host has it. */
k_state q4x_run_state_there(const q4x_run *r, int32_t i);
/* The error of a device's failure in this forward, found by what the caller asked of it beside the nodes (taps): with
 * the node, or the jobs of k_dev_measure, that were at work, as far as that is known. */
int q4x_run_device_failed(const q4x_run *r, int code, int32_t forward, q4x_err *err);

/* on 1: from the next forward on, events of ops whose band needs it (gdn_core) carry a copy of the state before the
 * tile in call->st[1], which is NULL otherwise. Off in a new run. Costs that copy, for each such node and tile. */
void q4x_run_keep_states(q4x_run *r, int on);

/* State buffer i: its used rows are those after the last forward. Fails when a device does not give it. */
int q4x_run_state(const q4x_run *r, int32_t i, const k_state **ret, q4x_err *err);
/* Bytes, of the device's memory when the run is there; weights and logits come on top. */
void q4x_run_memory(const q4x_run *r, uint64_t *arena, uint64_t *state, uint64_t *scratch);

#endif
