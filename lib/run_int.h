/* run_int.h: the inside of a run, shared by run.c and run_dev*.c. Nobody else includes it.
 *
 * A run on a device keeps arena, states, scratch and logits there, laid out as here. The buffers on the host are then a
 * mirror: what a node reads, makes and changes is copied back where a hook asks for it (or a plant acts), so that it
 * sees what it sees of a run on the host; else nothing but the logits comes back, and nothing waits for the device
 * before the forward ends.
 */
#ifndef Q4X_RUN_INT_H
#define Q4X_RUN_INT_H

#include "lib/plant.h"
#include "lib/run.h"

typedef struct q4x_run_dev q4x_run_dev;

struct q4x_run {
    const q4x_net *net;
    const q4x_plan *plan;
    q4x_arm arm;
    int64_t n_ctx;
    int32_t tile; /* rows a pass */
    int32_t nth;
    int32_t dynamic; /* 1: levers or plants that depend on the forward */
    int32_t dead;    /* a hook failed in the middle of a forward */
    int32_t pos, nforward;
    k_levers *lv;       /* per node, for this forward */
    q4x_plants *plants; /* NULL when the arm plants nothing */
    float *arena;
    int64_t *off, arena_n;
    k_state *st;
    uint64_t st_bytes;
    int32_t keep;   /* hooks want the state from before the tile */
    k_state before; /* that copy, of the node at hand; allocated at the first forward that needs it */
    float *scratch;
    int64_t scratch_n;   /* floats a thread */
    int64_t scratch_cap; /* on a device, until an op runs here: what the choice needs */
    int32_t all_logits;  /* forwards may give a row for each id */
    uint64_t taps;       /* bytes of the device that the caller is going to take besides */
    float *logits;
    int32_t n_logits, cap_logits;
    int32_t chosen; /* 1: top_* hold the choice on the last forward's logits */
    int32_t top_id[2];
    float top_val[2];
    q4x_run_dev *dev; /* a run on a device; NULL: on the host */
    q4x_node_fn fn;
    void *fn_ctx;
    q4x_before_fn before_fn;
    void *before_ctx;
};

/* ---- run_dev_mem.c ---- */

/* Open the arm's device: before anything is allocated for it. */
int q4x_run_dev_open(q4x_run *r, q4x_err *err);
/* r->arena, of r->arena_n floats, for a run on a device; q4x_run_dev_free frees it. */
int q4x_run_dev_arena(q4x_run *r, q4x_err *err);
/* Upload the weights, if need be, and allocate the rest, once the layout is known. */
int q4x_run_dev_ready(q4x_run *r, q4x_err *err);
void q4x_run_dev_free(q4x_run *r);
/* q4x_run_memory of a run on a device; ids count as scratch. */
void q4x_run_dev_memory(const q4x_run *r, uint64_t *arena, uint64_t *state, uint64_t *scratch);
/* Room for so many logit rows here, in r->logits, and for those of a pass there. */
int q4x_run_dev_logits(q4x_run *r, int32_t rows, q4x_err *err);

/* ---- run_dev_call.c ---- */

/* The call of node i as the device takes it: the same distances from other beginnings. st: copies that the op may write
 * to. */
k_call q4x_run_dev_call(const q4x_run *r, int32_t i, const k_call *c, k_state st[K_MAXST]);
/* Why that call must not be made: k_dev_unfit's reasons, and operands that do not lie in what was allocated for them.
 * NULL: it may be. What is the net's is looked at until it was fit once: it stays. */
const char *q4x_run_dev_misfit(const q4x_run *r, int32_t i, const k_call *x);

/* ---- run_dev.c ---- */

/* Empty states, as those on the host are now; a failure shows in the next forward. */
void q4x_run_dev_reset(q4x_run *r);
/* A forward begins, a tile of T ids (all_logits: a row for each), a forward ends: its logits are here. */
int q4x_run_dev_begin(q4x_run *r, q4x_err *err);
int q4x_run_dev_tile(q4x_run *r, const int32_t *ids, int32_t t0, int32_t T, int all_logits, q4x_err *err);
int q4x_run_dev_end(q4x_run *r, q4x_err *err);
/* What node i is about to read is here too. */
int q4x_run_dev_operands(q4x_run *r, int32_t i, const k_call *c, q4x_err *err);
/* Run node i; c points into the host's buffers. here: its output and the states that it changes are here after. */
int q4x_run_dev_step(q4x_run *r, int32_t i, const k_call *c, int here, q4x_err *err);
/* The output of node i was changed here. */
int q4x_run_dev_changed(q4x_run *r, int32_t i, const k_call *c, q4x_err *err);
/* The first state of node i, of fixed rows, was changed here. */
int q4x_run_dev_kept(q4x_run *r, int32_t i, q4x_err *err);
/* Bring state i back if it is not here. */
int q4x_run_dev_state(const q4x_run *r, int32_t i, q4x_err *err);

#endif
