/* h_rates.h: many small models that nobody tuned anything on, and the judge's answers on runs of them: how often does
 * it raise a false alarm, how often does it miss a planted fault?
 *
 * A rig is a model with a prompt, all of it by its seed: a synthetic one (lib/synth.h) with architecture, block types,
 * layers, widths, heads, experts, or, one in eight, a shipped one; length of the prompt, ids forced or free. Equal
 * seeds give equal rigs.
 */
#ifndef H_RATES_H
#define H_RATES_H

#include "bisect/case.h"
#include "lib/run.h"
#include "tests/h_rand.h"

typedef struct {
    uint64_t seed;
    h_rand rand; /* what follows from the seed and is no part of the model: which nodes faults are planted at */
    q4x_net *net;
    char what[96]; /* "qwen35 Q8_0, 5 layers of 64, 12 ids" */
    char path[64], dump[64];
    int32_t prompt[200], n_prompt;
    int32_t force[16], n; /* forwards; ids consumed after the prompt */
    int flash;            /* architecture: qwen4exp, else qwen35 */
    int made;             /* synthetic, in a file of the test's own */
    int forced;           /* 0: the arm's own choices */
    int all;              /* 1: every node and row is recorded; 0: as q4x tap does by default */
} h_rig;

/* dir: a folder of the test's own. Failures end the test. */
void h_rig_open(uint64_t seed, const char *dir, h_rig *ret);
void h_rig_close(h_rig *r);

/* Record the arm. The dump is the caller's. */
q4x_dump *h_rig_record(const h_rig *r, const char *spec);

bis_case *h_rig_judge(q4x_dump *a, q4x_dump *b);

/* What a pair of arms without a fault was called. */
typedef enum {
    H_SAME,    /* IDENTICAL */
    H_WITHIN,  /* WITHIN_BAND */
    H_TIE,     /* TIE */
    H_TOKENS,  /* TOKENS_DIFFER: ids differ, no cause is named */
    H_UNKNOWN, /* DIVERGED with exit 125: what would tell is not recorded */
    H_ALARM,   /* FAULT, DIVERGED, NON_FINITE: a node is named, or a difference that no source accounts for */
    H_ANSWERS
} h_answer;
h_answer h_answer_of(const bis_case *c);

/* Pairs that differ by arithmetic that may be chosen, or not at all: A | B. */
typedef struct {
    const char *a, *b;
    int flash; /* 1: of ops that qwen4exp alone has */
    int same;  /* 1: no bit may differ */
} h_honest;
extern const h_honest h_honest_pairs[];
extern const int h_nhonest;
/* A pair that this rig's model can run; differing 1: not one of those that must be equal. */
const h_honest *h_rig_pair(h_rig *r, int differing);

/* A fault, drawn for this rig: any kind, at any node that it can act on, in any forward. */
typedef struct {
    char kind[8], node[40], spec[256]; /* spec: the arm with the fault */
    int32_t n, forward;                /* index of the node */
} h_fault;
h_fault h_rig_fault(h_rig *r, const char *arm);
/* 1 when the fault moved a bit in the run that left this dump. */
int h_fault_moved(const q4x_dump *d);

/* The node and forward that a case names: of a non-finite value, a fault, the first out of band; 0: it names none. */
int h_named(const bis_case *c, int32_t *forward, int32_t *node);

/* What came of a fault that was planted into one arm of an honest pair. */
typedef enum {
    H_EXACT, /* named, in its forward */
    H_NEXT,  /* its node is hashed only; the first node behind it whose distances are recorded is named, or one in the
                   same layer or the next */
    H_UNJUDGED, /* the verdict or the node's class says that it could not be judged: distances of its inputs, states or
                   own are not recorded, or it lies behind a selection that differs */
    H_MISSED,   /* judged, and passed */
    H_ASTRAY,   /* a node is named, and it is another one */
    H_FATES
} h_fate;
h_fate h_fate_of(const bis_case *c, const h_fault *x);
/* Of a missed one: the distance that the fault makes over the one that the honest pair has there, at the first recorded
 * node from the fault on. clean: arm B without the fault. */
double h_fault_ratio(const bis_case *c, const h_fault *x, q4x_dump *clean);

/* Upper end of the two-sided 95 % interval of a rate of which k in n were seen (Wilson); for k = 0, 3 / n. */
double h_rate_upper(int64_t k, int64_t n);

#endif
