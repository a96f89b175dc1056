/* greedy.h: the loop that commands share: a prompt, then one id after the other, chosen or given.
 *
 * Forward 0 consumes the prompt; forward k > 0 consumes one id: the k-1st given one while there are any, else the id
 * chosen after forward k-1. N ids take N forwards; the last id is chosen and not consumed.
 */
#ifndef Q4X_GREEDY_H
#define Q4X_GREEDY_H

#include "lib/run.h"

typedef struct {
    const int32_t *prompt, *force, *stop;
    int32_t n_prompt, n_force, n_stop;
    int32_t n;      /* ids to make, at least 1 */
    int all_logits; /* a logit row for every consumed id */
    int one_by_one; /* 1: the prompt goes in as n_prompt calls of one id (forwards 0 .. n_prompt-1) */
} q4x_greedy_opts;

/* What a forward left, as the callback sees it. */
typedef struct {
    int32_t forward;
    const int32_t *ids; /* consumed */
    int32_t n_ids;
    int forced;        /* 1: the ids were given */
    int32_t chosen;    /* after the arm's last rounding; -1 inside a prompt fed one by one */
    int32_t top_id[2]; /* best two of the raw row, the lower id first on a tie; -1: there is none */
    float top[2];      /* their raw logits */
    double margin;     /* best minus second of the raw row; NaN when the row has one */
    int32_t vocab;     /* logits of the raw row */
    int32_t nonfinite; /* NaNs and infinities among them: not 0 means that the choice may say nothing of the model */
} q4x_step;
typedef int (*q4x_step_fn)(void *ctx, const q4x_step *s, q4x_err *err);

/* Positions that such a sequence reaches. */
int64_t q4x_greedy_positions(const q4x_greedy_opts *o);
/* Forwards that it makes when nothing stops it. */
int32_t q4x_greedy_forwards(const q4x_greedy_opts *o);
/* fn (NULL: none) is called after each forward; a non-zero return ends the loop with that code. Refused before anything
 * runs: an arm with a lever at a forward that never comes, an id that the model does not have (prompt, force, stop),
 * ids to force for which there is no forward. */
int q4x_greedy(q4x_run *r, const q4x_greedy_opts *o, q4x_step_fn fn, void *ctx, q4x_err *err);
/* Best two of n values, the lower index first on a tie, NaN below every number. Unused places: id -1, value NaN. */
void q4x_top2(const float *x, int32_t n, int32_t id[2], float val[2]);
/* NaNs and infinities among n values. */
int32_t q4x_nonfinite(const float *x, int32_t n);

#endif
