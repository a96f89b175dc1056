/* h_judge.h: pairs of arms for the tests of the judge, with the hooks that make them differ. */
#ifndef H_JUDGE_H
#define H_JUDGE_H

#include "bisect/case.h"
#include "tests/h_mkdump.h"

/* What a hook does to an arm, in this order. Forward -1: every forward; row -1: every row. */
typedef struct {
    const char *round; /* nodes whose name ends so are rounded to bf16 */
    const char *plant; /* node */
    int plant_f, plant_row;
    float factor; /* the row times this */
    float set;    /* element 0 of the row is set to this when use_set */
    int use_set;
    const char *tie_node; /* moe.logits node: two scores at the cut are made near-equal in row tie_row */
    int tie_f, tie_row;
    float tie_gap;  /* score of expert 3 over expert 11 */
    int top_f;      /* forward whose logits get two best ids 10 and 11; -1: none */
    float top_gap;  /* z[10] - z[11] */
    float top_base; /* z[11]; 0: 9 */
} arm_hook;

arm_hook hook_none(void);
void hook_fn(void *ctx, int f, const char *node, int rows, int cols, float *x, int32_t *ids);

/* Two arms that differ honestly: B rounds `round` ("gdn.core") to bf16 and declares act=bf16. Every node is sketched
 * and has a band of 1 (rms) and 2 (hard) times its norm. */
typedef struct {
    mk_opts a, b;
    arm_hook ha, hb;
    q4x_dump *da, *db;
    bis_request rq;
    bis_case *c;
    q4x_err err;
} pair;

void pair_equal(pair *p); /* the same arm twice, other label */
void pair_honest(pair *p);
void pair_make(pair *p);  /* makes the dumps; further edits are possible before pair_judge */
void pair_judge(pair *p); /* asserts success */
void pair_free(pair *p);

/* make, judge, compare name and reason and exit, free unless keep. */
void pair_expect(pair *p, const char *name, const char *reason, int exit);

#endif
