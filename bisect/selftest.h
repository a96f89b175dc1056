/* selftest.h: the instrument proves itself. Faults that were planted in a run must be found where they were planted and
 * nowhere earlier; runs that must not differ must be silent. Every row says what it expected and what it found.
 */
#ifndef BISECT_SELFTEST_H
#define BISECT_SELFTEST_H

#include <stdint.h>

#include "bisect/fate.h"
#include "lib/err.h"
#include "lib/greedy.h"
#include "lib/tap.h"

/* Honest differences on top of which every fault is planted once more. */
enum { BIS_NHONEST = 3 };
extern const char *const bis_honest[BIS_NHONEST]; /* "act=bf16" */

/* A fault on top of one of them. */
typedef struct {
    int ran;   /* 0: no such trial (a null, a fault that is nowhere) */
    int moved; /* 0: the fault changed no bit there */
    bis_fate fate;
    char word[24];     /* "found", "next", "not judged", "below 2.5x", "MISSED 80x", "ASTRAY", "moved nothing" */
    bis_reason reason; /* by what it was judged */
    char named[48];    /* "L00.gdn.core#0", "" */
    double ratio;      /* of a missed one: fault / honest difference there; else NaN */
} bis_on_top;

typedef struct {
    char what[80];    /* "sign@L00.gdn.core#0", "two runs" */
    char found[80];   /* "L00.gdn.core, forward 0, inputs equal", "0 of 412 differ" */
    char verdict[32]; /* of bisect, "" where it was not asked */
    int good;         /* found at its place, or silent; and nothing else named on top of an honest difference */
    bis_on_top on[BIS_NHONEST];
} bis_trial;
typedef void (*bis_trial_fn)(void *ctx, const bis_trial *t);

/* What is planted (bisect/trials.def): fault, node, layer, forward, where the bits change first. */
typedef enum { BIS_AT_TOP, BIS_AT_FIRST, BIS_AT_LAST } bis_layer; /* none; the first that has the node; the last */
typedef struct {
    const char *fault, *node;
    bis_layer at;
    int forward;
    const char *seen; /* "": the node */
} bis_plant;
extern const bis_plant bis_plants[];
extern const int bis_nplants;

/* Faults on a tiny model: two arms, alike but for the fault, dumped into dir and judged: a fault that moves nothing or
 * is not found by bits at its place is bad. Then on top of each honest difference, where it must be named at its place,
 * or be told to be unjudged, or below what can be told: another node named is bad. Errors are those of files and
 * memory. *ret_bad: rows that are not good. */
int bis_selftest_plants(const char *model, const char *dir, const bis_plant *plant, int n, bis_trial_fn fn, void *ctx,
                        int *ret_bad, q4x_err *err);

/* A pair of arms without a fault, of which no node may be named. */
typedef enum {
    BIS_Q_EQUAL,  /* no bit may differ */
    BIS_Q_HONEST, /* some differ, by arithmetic that may be chosen */
    BIS_Q_TIED    /* the same, and nothing that reads the first layer's experts by their weights, nor what follows */
} bis_quiet_kind;
typedef struct {
    const char *what, *a, *b;
    bis_quiet_kind kind;
} bis_quiet;
int bis_quiet_pair(const q4x_net *net, const char *dir, const bis_quiet *q, bis_trial *ret, q4x_err *err);
/* Those of a tiny GGUF model: the same arm again, another number of threads, each honest difference, and an exact tie
 * of experts that weigh nothing (in a copy of the model, in dir, whose router gives all weight to one expert). */
int bis_selftest_quiet(const char *model, const char *dir, bis_trial_fn fn, void *ctx, int *ret_bad, q4x_err *err);

/* Nulls on any model: two runs, 1 against n threads, tapped against untapped, prefill against id by id, the file read
 * twice; and a twin that must differ, so that silence means something. device: "cpu", or "cuda/N", which has no threads
 * and is compared with the processor instead: every node recorded, every state and the logits. A device that fails, or
 * is not there, is an error, not a bad trial. */
int bis_selftest_nulls(const char *model, const char *device, const char *dir, bis_trial_fn fn, void *ctx, int *ret_bad,
                       q4x_err *err);

/* Run an arm under taps into a dump at path. */
int bis_dump_arm(const q4x_net *net, const char *spec, const q4x_greedy_opts *go, const q4x_tap_opts *o,
                 const char *path, q4x_err *err);
/* Run an arm on the selftest's own ids. bands 1: all nodes, rows and bands are recorded; 0: as q4x tap does by default.
 * The dump passes through a file in dir; *ret is the caller's. */
int bis_selftest_dump(const q4x_net *net, const char *spec, const char *dir, int bands, q4x_dump **ret, q4x_err *err);

#endif
