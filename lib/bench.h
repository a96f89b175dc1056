/* bench.h: how long forwards take here. Medians of repeats from an empty sequence; what is compared is interleaved, so
 * that a slow minute of the machine meets both sides. Ids are fixed: 1 + 37 i mod (V-1) for prompts, 1 + i mod (V-1)
 * for decode steps.
 */
#ifndef Q4X_BENCH_H
#define Q4X_BENCH_H

#include "lib/run.h"

typedef struct {
    double prompt, decode; /* ids a second */
} q4x_rate;

/* Rates with threads[i] threads for each i, into ret[i]. One warm-up, then `repeats` rounds over all i. */
int q4x_bench_rates(const q4x_net *net, const int *threads, int n, int n_prompt, int n_decode, int repeats,
                    q4x_rate *ret, q4x_err *err);

typedef struct {
    double plain_prompt, tapped_prompt; /* seconds of a forward */
    double plain_decode, tapped_decode;
} q4x_tap_cost;

/* The same forwards with sketch taps of all public nodes (into path, which is removed again) and without. */
int q4x_bench_taps(const q4x_net *net, int threads, int n_prompt, int n_decode, int repeats, const char *path,
                   q4x_tap_cost *ret, q4x_err *err);

typedef struct {
    uint64_t resident; /* of the process */
    uint64_t model;    /* of it, pages of the model's files */
    uint64_t run;      /* state, arena and scratch of a run after a prompt of n and some steps */
} q4x_memory;

int q4x_bench_memory(const q4x_net *net, int n_prompt, q4x_memory *ret, q4x_err *err);

/* Middle of n values (sorts them). */
double q4x_median(double *x, int n);

#endif
