/* tap_int.h: what the files of the tap set share. */
#ifndef Q4X_TAP_INT_H
#define Q4X_TAP_INT_H

#include "kernels/ops.h"
#include "lib/tap.h"

/* One node (or state record) being watched. */
typedef struct {
    int32_t want;     /* statistics, sketch, full tensor; bits are kept of all */
    int32_t gather;   /* reads nothing but ids: its band is kept in any case */
    int32_t pending;  /* ids node: its record waits for the weights that belong to it */
    q4x_bits *bits;   /* only while a forward has several tiles */
    q4x_bits *second; /* the same, of the second read */
    q4x_tapstat *stat;
    q4x_tap rec; /* this forward's record */
    double hard2, rms2;
    q4x_parts parts; /* in which ops norm its rows */
    k_band made;     /* of a state that its op makes: how far off after this forward */
    k_state_kind kind;
    char *full; /* rows so far, mode full, of a tensor that is copied */
    size_t full_cap;
    size_t sel_cap; /* rows of rec.sel's arrays */
} q4x_tap_node;

/* What is known of one item of the arm. */
typedef struct {
    int moved, reached, untried; /* moved a bit; was in scope and not the default; was so where that cannot be told */
    int32_t node, forward;       /* where it moved one */
} q4x_tap_lever;

/* What a tap set has on its run's device (tap_dev.c). */
typedef struct q4x_tapdev q4x_tapdev;

/* Ids and logits of one forward, to be found again without taps. */
typedef struct {
    int32_t chosen;
    q4x_hash logits;
} q4x_tap_choice;

struct q4x_tapset {
    q4x_run *run;
    const q4x_plan *plan; /* the run's, and its arm */
    const q4x_arm *arm;
    q4x_tap_opts o;
    const char *path;    /* the caller's */
    int32_t nplan;       /* nodes of the plan */
    int32_t nnodes;      /* and the state records behind them */
    q4x_dump_node *node; /* [nnodes] as recorded */
    int32_t *state;      /* [nnodes - nplan] plan state of each state record */
    q4x_tap_node *tap;   /* [nnodes] */
    char *mark;          /* [mark_n] zeros between uses: ids of one row of a selection */
    int64_t mark_n;
    q4x_tapstat *stat; /* shared by forwards of one tile */
    int32_t held;      /* node whose numbers stand in stat, -1: none */
    q4x_tapdev *dev;   /* NULL: the run is on the host */
    q4x_dumpw *w;
    q4x_hash prefix;
    int32_t pos;
    /* witness of the levers (tap_witness.c) */
    q4x_tap_lever lever[sizeof((q4x_arm *)0)->item / sizeof(q4x_item)];
    float *again; /* output of an op that is run again */
    size_t again_cap;
    k_state again_state; /* and its state */
    /* controls (tap_control.c) */
    q4x_bits *second;       /* shared by forwards of one tile */
    q4x_tap_choice *choice; /* [nchoice] */
    int32_t nchoice, choice_cap;
    q4x_tap_count read_twice, perturbation;
};

/* The event of state record s when its state has so many rows, all of it in one piece, without data. */
q4x_node_event q4x_tap_state_event(const q4x_tapset *t, int32_t s, int64_t rows, int64_t cols);
/* Set want on the chosen nodes. */
int q4x_tap_choose(q4x_tapset *t, const q4x_tap_opts *o, q4x_err *err);
/* 1 when this state is recorded with a row for each V head, so that all of it is among the rows that are kept. */
int q4x_tap_by_head(const q4x_state_desc *sd);
/* Describe plan and states as dump nodes (t->node, t->state), levers included. */
int q4x_tap_describe(q4x_tapset *t, q4x_err *err);
void q4x_tap_undescribe(q4x_tapset *t);
/* Fill in the header keys that model and arm know. */
int q4x_tap_header(const q4x_tapset *t, const q4x_net *n, json_t *header, q4x_err *err);
/* 1 when a node behind this one holds the weights of its ids. */
int q4x_tap_has_weights(const q4x_plan *p, int32_t ids);
/* The ids of a tile of an ids node; of a selection also the scores at the cut: of this tile [nrows, 2] as a device
 * found them, NULL: found here. */
int q4x_tap_selection(q4x_tapset *t, const q4x_node_event *ev, const float *cuts_there, q4x_err *err);

/* tap.c: the steps of a record, wherever it is measured. same 1: what the last measured node shows is shown again. */

/* Statistics and a sketch are kept. Of any other f32 tensor only values that are not finite are counted. */
int q4x_tap_measured(const q4x_tapset *t, int32_t node, int is_ids);
/* Rows to sketch of a tensor of `total` rows. */
void q4x_tap_kept_rows(const q4x_tap_opts *o, int64_t total, int64_t *row0, int64_t *nrows);
/* 1 when the event shows again what the last measured node, `held`, made: an alias right behind it, and no plant in
 * between. */
int q4x_tap_seen_already(const q4x_tapset *t, const q4x_node_event *ev, int32_t held);
/* What is not measured keeps only these counts, and only when they say something: a value that is not finite must be
 * found where it arises, whatever was chosen. */
void q4x_tap_count_nonfinite(q4x_stats *s, const float *x, int64_t n);
int q4x_tap_band_wanted(const q4x_tapset *t, int32_t node);
/* Before the first tile of a node; then one tile's, from operands that are here. */
void q4x_tap_begin_bands(q4x_tapset *t, int32_t node);
void q4x_tap_bands(q4x_tapset *t, int32_t node, const k_call *call);
/* The record and what it is measured with, before its first tile. */
int q4x_tap_begin(q4x_tapset *t, const q4x_node_event *ev, int is_ids, int same, int32_t forward, q4x_err *err);
/* Mode full: keep the rows until the record is written. A whole tensor stays where the event has it, and must be there
 * until then; ids, whose record may wait for their weights, and what comes in tiles are copied. */
int q4x_tap_keep_full(q4x_tapset *t, const q4x_node_event *ev, int is_ids, q4x_err *err);
/* A tile is in, its data here as far as it is read here: finish and write what is whole. The same of a state. */
int q4x_tap_end_tile(q4x_tapset *t, const q4x_node_event *ev, q4x_err *err);
int q4x_tap_end_state(q4x_tapset *t, const q4x_node_event *ev, int is_ids, q4x_err *err);
/* All of a state that is here. */
int q4x_tap_state(q4x_tapset *t, const q4x_node_event *ev, int is_ids, int32_t forward, q4x_err *err);

/* tap_dev.c: taps of a run on a device. What a node made is measured there; records are finished here when the results
 * come, in the order of the nodes. All memory for it, on the device and pinned, is taken at the start: a clear error
 * when there is too little. */
int q4x_tapdev_new(q4x_tapset *t, q4x_tapdev **ret, q4x_err *err);
void q4x_tapdev_free(q4x_tapdev *d); /* NULL is fine */
/* The run's question (q4x_before_fn), and its event. */
int q4x_tapdev_before(void *ctx, const q4x_node_event *ev, int *ret_here, q4x_err *err);
int q4x_tapdev_node(q4x_tapset *t, const q4x_node_event *ev, q4x_err *err);
/* A state after the forward; there: where it lies, NULL: in ev->data, here. */
int q4x_tapdev_state(q4x_tapset *t, const q4x_node_event *ev, const void *there, int32_t forward, q4x_err *err);
/* The forward is over: wait for all results and finish their records. */
int q4x_tapdev_end(q4x_tapset *t, q4x_err *err);

/* tap_witness.c: has a lever moved a bit? Asked at every node until it has: the op runs again on its inputs, as if the
 * item had not been given, and its output is compared. */
int q4x_tap_witness(q4x_tapset *t, const q4x_node_event *ev, q4x_err *err);
/* 1 when that will be asked at this node, which then must be here. with: its levers. */
int q4x_tap_witness_wants(const q4x_tapset *t, int32_t node, const k_levers *with);
/* The same of the choice of the token, after a forward. */
int q4x_tap_witness_choice(q4x_tapset *t, q4x_err *err);
/* 1 while the state before gdn_core is wanted for it. */
int q4x_tap_witness_states(const q4x_tapset *t);
/* [{item, outcome, node, forward}]; NULL: no memory. */
json_t *q4x_tap_witness_json(const q4x_tapset *t);

/* tap_control.c: a tile of a node is read again, on another path, and compared when the tensor is whole. */
int q4x_tap_second_read(q4x_tapset *t, const q4x_node_event *ev, int is_ids, q4x_err *err);
/* Keep what the forward chose. */
int q4x_tap_keep_choice(q4x_tapset *t, int32_t chosen, q4x_err *err);
/* What the dump's tail says; NULL: no memory. */
json_t *q4x_tap_tail(const q4x_tapset *t);

#endif
