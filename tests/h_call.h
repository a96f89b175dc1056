/* h_call.h: for tests of ops: seeded numbers, buffers that die loudly, calls with scratch, distances. */
#ifndef H_CALL_H
#define H_CALL_H

#include "kernels/k.h"
#include "tests/check.h"

/* A seeded stream (splitmix64). */
typedef struct {
    uint64_t s;
} h_rng;
uint64_t h_next(h_rng *r);
double h_unit(h_rng *r);             /* [0, 1) */
double h_gauss(h_rng *r);            /* mean 0, variance 1, near enough (12 uniforms) */
int h_int(h_rng *r, int lo, int hi); /* lo .. hi */

/* n floats: all NaN; normal times amp (rounded to bf16 when act says so); whole numbers in lo .. hi. Caller frees. */
float *h_nans(int64_t n);
float *h_normal(h_rng *r, int64_t n, double amp, int32_t act);
float *h_whole(h_rng *r, int64_t n, int lo, int hi);
float *h_copy(const float *x, int64_t n);

/* A call of T rows at pos0 in one tile; scratch of n floats a thread, filled with NaN. h_scratch_free frees it. */
k_call h_call(const k_dims *d, const k_levers *lv, int32_t T, int32_t pos0, int nth, int64_t scratch_n);
void h_scratch_free(k_call *c);

/* The part of a call that is its rows t0 .. t0 + n (row-wise slots in[], out moved; in_cols and cols must be set). */
k_call h_tile(const k_call *c, int32_t t0, int32_t n);

k_state h_state(int64_t cap, int64_t cols, float fill);
void h_state_free(k_state *s);

/* L2 of got - want; NaN or infinite when anything is. */
double h_dist(const float *got, const double *want, int64_t n);
double h_norm(const double *x, int64_t n);
/* Share of elements with the same bits. */
double h_same(const float *got, const float *want, int64_t n);

#endif
