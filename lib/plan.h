/* plan.h: the forward as a flat list of named nodes. Emitted once per model by lib/arch_*.c, walked by run.c.
 *
 * A node is one op with its inputs, weights and state; its name is public vocabulary (design, "Tap names"). The plan
 * depends on the model alone: levers are resolved by the run, so arms share one structure.
 */
#ifndef Q4X_PLAN_H
#define Q4X_PLAN_H

#include "kernels/k.h"
#include "lib/dump.h"
#include "lib/err.h"
#include "lib/lever.h"

/* How the width of an output is known: `cols`, or cols times positions, or one column a block of the indexer
 * (blocks known, blocks selected). */
typedef enum { Q4X_COLS_FIXED, Q4X_COLS_TC, Q4X_COLS_BLOCKS, Q4X_COLS_SEL } q4x_cols_kind;

typedef struct {
    char name[40];
    k_op op;
    int32_t layer; /* -1: none */
    int32_t is_public, is_ids;
    int32_t nin, in[K_MAXIN]; /* node index, or Q4X_IN_IDS */
    int32_t nst, st[K_MAXST]; /* state index */
    q4x_cols_kind cols_kind;
    int64_t cols;
    const k_weight *w[K_MAXW];
    int32_t nw[K_MAXW];
    const float *par[K_MAXW];
    const int64_t *ipar;
    int32_t epi, G, off, stride, per;
    int32_t weights_of; /* moe.weights: the ids node they belong to; 0: none (node 0 is no selection) */
    int32_t scores;     /* a selection: the node it ranks; 0: none */
    q4x_heads heads;
} q4x_node;

/* A persistent buffer of the run. rows_kind: fixed rows, one row a position, one row a block of `ratio` positions. */
typedef enum { Q4X_ROWS_FIXED, Q4X_ROWS_POS, Q4X_ROWS_BLOCK } q4x_rows_kind;
typedef struct {
    char name[40]; /* "L00.state.delta" */
    int32_t layer;
    q4x_rows_kind rows_kind;
    int64_t rows, cols;
    int32_t is_ids; /* i32 payload, filled with `fill` at the start */
    int32_t fill;
    q4x_heads heads;
} q4x_state_desc;

typedef struct q4x_plan {
    char arch[24];
    k_dims d;
    int64_t ctx_max; /* positions the model declares */
    int32_t nnodes, nstates;
    q4x_node *node;
    q4x_state_desc *state;
    int32_t logits; /* index of the logits node: only the rows asked for are computed */
} q4x_plan;

void q4x_plan_free(q4x_plan *p); /* NULL is fine */
/* The word under which a node's levers are looked up: its op's name, but for the logits node "logits", for what reads a
 * lever there is the choice of the token, for the router's product "moe_logits", for it alone reads moe.logits, and for
 * a sum that is the residual stream "add_resid". */
const char *q4x_plan_lever_word(const q4x_plan *p, int32_t node);
/* 1 when the node reads the lever: under its word, or, at the logits alone, as the product that it is too. */
int q4x_plan_reads_lever(const q4x_plan *p, int32_t node, const q4x_lever *l);
/* Levers that the node does not read go back to their defaults. */
void q4x_plan_keep_levers(const q4x_plan *p, int32_t node, k_levers *lv);
int32_t q4x_plan_find(const q4x_plan *p, const char *name); /* node index, -1: none */
/* How the ops that norm this node's rows part by part cut them, itself or through an alias; n 0: none does, or not in
 * one way that a dump can tell. */
q4x_parts q4x_plan_parts(const q4x_plan *p, int32_t node);

/* ---- for lib/arch_*.c ---- */

/* A plan being emitted. The first failure sticks (rc, err); later calls do nothing and return 0. */
typedef struct {
    q4x_plan *p;
    int32_t cap_nodes, cap_states;
    int32_t layer; /* of what is emitted now, -1: none; gives the "Lxx." */
    int rc;
    q4x_err *err;
} q4x_emit;

int q4x_emit_begin(q4x_emit *e, const char *arch, const k_dims *d, int64_t ctx_max, q4x_err *err);
/* Append a node: n.name is the name within the layer; nin and nst are taken as given. Returns its index. */
int32_t q4x_emit_node(q4x_emit *e, q4x_node n, const char *name);
int32_t q4x_emit_state(q4x_emit *e, q4x_state_desc s, const char *name);
/* Finish: the plan, or the first failure (everything freed). */
int q4x_emit_end(q4x_emit *e, q4x_plan **ret);

#endif
