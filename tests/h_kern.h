/* What the op tests share: a call with its own geometry, levers and state; comparisons by bits; and the checks that
 * every op goes through (model of the roundings, each rounding needed, band, tiles, threads, twins). */
#ifndef H_KERN_H
#define H_KERN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/arith.h"
#include "kernels/k.h"
#include "kernels/round.h"

typedef struct {
    k_call c;
    k_dims d;
    k_levers lv;
    k_state st;
    float *st0; /* the state before the call: hk_run starts from it */
    uint64_t seed;
    int drop; /* model: index of a rounding to leave out, -1 none */
    void *owned[32];
    int nowned;
} hk;

typedef struct {
    const char *name;
    k_fn op;
    k_band_fn band;                             /* NULL: none stated */
    void (*build)(hk *h, int32_t T, int shape); /* inputs, geometry; lv.act and seed are set */
    void (*model)(const hk *h, float *y);       /* step by step, in the stated order, with hk_rd */
    void (*exact)(const hk *h, double *y);      /* the formula in f64, nothing rounded */
    int shapes;                                 /* build knows shapes 0 .. shapes-1 */
    uint32_t needed;                            /* bit i: leaving out rounding i must show in bf16 */
} hk_op;

void hk_free(hk *h);
void *hk_alloc(hk *h, size_t bytes); /* zeroed, freed with h */
/* n values, uniform in lo..hi, on the bf16 grid when h->lv.act is bf16. Input slot of that many columns. */
float *hk_fill(hk *h, int64_t n, double lo, double hi);
void hk_in(hk *h, int slot, int64_t cols, double lo, double hi);
void hk_state_new(hk *h, int64_t rows, int64_t cols, int ids);
double hk_uniform(uint64_t *seed);

/* Rounding to bf16 through f64 arithmetic, nothing shared with round.h; identity under f32 or when i == h->drop. */
float hk_rd(const hk *h, int i, float x);
float hk_bf16(double x);
/* lanes32 of n terms, written anew: term(ctx, i) is added, or fmaf'ed as a[i] * b[i]. */
float hk_lanes(const float *a, const float *b, int64_t n);
float hk_lanes_sum(const float *a, int64_t n);

/* Elements whose bits differ (any NaN equals any NaN); says the first when name is given. */
int64_t hk_differ(const char *name, const float *a, const float *b, int64_t n);

/* Run op over all T rows in calls of `chunk` rows (0: one call), from st0, into out [T, cols]. */
void hk_run(hk *h, k_fn op, float *out, int32_t chunk);

/* The tests of a list of ops, for cmocka_unit_test_prestate(hk_model, (void *)&set). */
typedef struct {
    const hk_op *ops;
    int n;
} hk_set;
void hk_model(void **set);  /* op == model, bits, both acts */
void hk_needed(void **set); /* a model that lacks a rounding is found out */
void hk_bands(void **set);  /* |op - exact| below hard, near rms; shares printed */
void hk_splits(void **set); /* tiles of any size, states included */
void hk_threads(void **set);
void hk_twins(void **set); /* one ulp, one sign, one place: seen */

#endif
