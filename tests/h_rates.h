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
#include "bisect/fate.h"
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
    char kind[16], node[40], spec[256]; /* spec: the arm with the fault */
    int32_t n, forward;                 /* index of the node or state where the bits change first */
} h_fault;
h_fault h_rig_fault(h_rig *r, const char *arm);
/* The same of what an op keeps for the next forward: any kind of those, any state that it can act on. */
h_fault h_rig_kept(h_rig *r, const char *arm);
/* Upper end of the two-sided 95 % interval of a rate of which k in n were seen (Wilson); for k = 0, 3 / n. */
double h_rate_upper(int64_t k, int64_t n);

#endif
