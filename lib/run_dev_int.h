/* run_dev_int.h: the device side of a run, shared by run_dev*.c. Nobody else includes it. */
#ifndef Q4X_RUN_DEV_INT_H
#define Q4X_RUN_DEV_INT_H

#include "lib/net_dev.h"
#include "lib/run_int.h"

struct q4x_run_dev {
    k_dev dev;
    const q4x_net_dev *net;
    float *block;           /* arena, states, scratch, ids */
    int64_t block_n, ids_n; /* all of it; ids */
    char *fit;              /* [nnodes]: its weights were looked at */
    float *arena, *scratch; /* in it */
    int64_t scratch_n;
    k_state *st;             /* [nstates], f in it; those that only the host has: NULL */
    float *logits;           /* rows of a pass */
    int32_t cap_logits;      /* there are so many; r->cap_logits are here */
    int64_t logits_at;       /* floats of r->logits before those that lie there now */
    int32_t *ids;            /* of the tile */
    const int32_t *tile_ids; /* the same on the host */
    float *places;           /* pinned, two: what copies of this turn and of the one before read */
    int64_t place_n;    /* floats of one: ids of a tile, behind them outputs of the host's ops as in the arena's end */
    int64_t host_n;     /* of these outputs */
    char *wanted_there; /* [nnodes]: another op of the device reads the output */
    int64_t *rows_here; /* [nstates] of each state: rows 0 .. that are here as they are there */
    char *made_here;    /* [nnodes]: its last output is here as it is there */
    struct {
        float *there, *here;
        int64_t *off, n;
    } other;          /* the arena that is not in use: outputs held to the end of the next layer, or not */
    int32_t held;     /* 1: in use they are */
    void *held_block; /* where the one that holds them lies on the device */
    int32_t at;       /* the node enqueued last, or being enqueued; -1: none of this tile */
    uint32_t tile;    /* serial number of the tile, for marks */
    int32_t failed;   /* code of a failure that could not be reported */
};

/* ---- run_dev_lost.c ---- */

/* What the device was asked for outside of any forward, and refused. */
int q4x_run_dev_refused(const q4x_run *r, int code, const char *what, q4x_err *err);
/* A failure within the forward at hand: its line names the node where the device was. */
int q4x_run_dev_failed_in(const q4x_run *r, int code, q4x_err *err);
/* What the device is to write down when so many nodes of this tile are done (k_dev_mark). */
uint32_t q4x_run_dev_mark(const q4x_run_dev *d, int32_t nodes);

/* ---- run_dev_call.c ---- */

/* Where the device has the output of node i, which is at out here. */
float *q4x_run_dev_out(const q4x_run *r, int32_t i, const float *out);

#endif
