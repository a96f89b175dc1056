/* plan.h: the forward as a flat list of named nodes. Emitted once per model and arm by lib/arch_*.c, walked by run.c.
 *
 * A node is one op with its inputs, weights and state; its name is public vocabulary. Buffers have lifetimes: the
 * arena reuses a buffer once its last reader ran.
 */
#ifndef Q4X_PLAN_H
#define Q4X_PLAN_H

#include "kernels/k.h"
#include "lib/dump.h"
#include "lib/err.h"
#include "lib/lever.h"

/* Columns that depend on the call. */
enum { Q4X_COLS_FIXED, Q4X_COLS_TC, Q4X_COLS_BLOCKS, Q4X_COLS_SEL };

typedef struct {
    char name[48];
    k_op op;
    int32_t layer;               /* -1: none */
    int32_t is_public, is_ids, alias;
    int32_t nin, in[K_MAXIN];    /* node index, or Q4X_IN_IDS */
    int32_t nst, st[K_MAXST];    /* state index */
    int32_t cols_kind;           /* Q4X_COLS_*; cols multiplies */
    int64_t cols;
    const k_weight *w[K_MAXW];
    int32_t nw[K_MAXW];
    const float *par[K_MAXW];
    const int64_t *ipar;
    int32_t epi, G, off, stride, per;
    int32_t last_row_only;       /* logits: only the rows asked for */
    int32_t weights_of;          /* moe.ids: the node with their weights, else -1 */
    q4x_heads heads;
    /* arena */
    int32_t last_use;            /* index of the last node that reads it */
    int64_t slot;                /* offset in the arena, in floats per tile row */
} q4x_node;

typedef struct {
    char name[48];               /* "L00.state.delta" */
    int32_t layer;
    int64_t cols;
    int64_t rows;                /* fixed rows, or 0: one per position (KV), or -ratio: one per block */
    int32_t derived;             /* 1: no record (a cache of what another state implies) */
    int32_t is_ids;
    q4x_heads heads;
} q4x_state_desc;

typedef struct q4x_plan {
    k_dims d;
    int32_t nnodes, nstates;
    q4x_node *node;
    q4x_state_desc *state;
    int64_t arena_row;           /* floats of arena per tile row at fixed widths */
    int32_t logits;              /* index of the logits node */
    char arch[24];
    int64_t ctx_max;
} q4x_plan;

void q4x_plan_free(q4x_plan *p);

#endif
