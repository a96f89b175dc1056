/* h_forward.h: run a model along a golden file and compare every node that has a golden. */
#ifndef H_FORWARD_H
#define H_FORWARD_H

#include "lib/run.h"
#include "tests/h_golden.h"

/* One comparison: a node's output in one forward against its golden. */
typedef struct {
    int forward, layer;
    const char *node;
    int64_t n;                                 /* elements */
    double rel;                                /* ||a - b|| / ||b||; NaN when anything is not finite */
    int64_t equal;                             /* bitwise equal elements */
    double worst_ulp;                          /* worst |a - b| in bf16 ulps of the row's largest element */
    int sets;                                  /* a selection: 1 rows compared as sets */
    int64_t set_rows, set_differ, rank_differ; /* rows, rows whose set / whose order differs */
    double margin; /* of the first row whose set differs: gap of the scores at our cut; else NaN */
} h_cmp;

typedef void (*h_cmp_fn)(void *ctx, const h_cmp *c);

typedef struct {
    const char *arm;  /* "cpu:act=bf16" */
    int step;         /* 1: every node that has a golden is replaced by it after it was compared */
    int max_forwards; /* 0: all that the golden's greedy ids allow */
    h_cmp_fn fn;
    void *ctx;
    /* results */
    int forwards, ids_equal, ids;
    int64_t compared;
} h_walk;

/* Runs prompt and greedy ids of g through the model; fail_msg on errors. */
void h_walk_golden(const q4x_net *net, const h_golden *g, h_walk *w);

q4x_net *h_net(const char *path);                        /* fail_msg when it cannot be opened */
const k_state *h_run_state(const q4x_run *r, int32_t i); /* q4x_run_state; fail_msg when it fails */

#endif
