/* par.h: how a loop is shared by threads, and each thread's slice of the call's scratch. */
#ifndef K_PAR_H
#define K_PAR_H

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/k.h"

/* Below this many multiply-adds (an eighth of a nanosecond each) waking threads, 2 to 4 microseconds, costs more than
 * it saves. */
enum { K_PAR_MIN = 1 << 17 };

/* What one transcendental counts in multiply-adds. */
enum { K_PAR_EXP = 8 };

/* Steps lo .. hi-1 of a loop none of whose steps depends on another; ctx is the caller's. */
typedef void (*k_steps)(const k_call *c, const void *ctx, int64_t lo, int64_t hi);

/* Steps 0 .. n-1, on the call's threads when `work` multiply-adds in all pay for that: `chunk` steps at a time to
 * whoever is free, 0 for one equal share a thread. Who does what changes no bit, since steps are independent. */
static inline void k_spread(const k_call *c, int64_t n, int64_t chunk, int64_t work, k_steps f, const void *ctx) {
    if (c->nth < 2 || n < 2 || work < K_PAR_MIN) {
        if (n > 0) f(c, ctx, 0, n);
        return;
    }
    if (chunk < 1) chunk = (n + c->nth - 1) / c->nth;
    int64_t chunks = (n + chunk - 1) / chunk;
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->nth)
    for (int64_t b = 0; b < chunks; b++) f(c, ctx, b * chunk, (b + 1) * chunk < n ? (b + 1) * chunk : n);
}

/* The calling thread's slice of c->scratch. A call that is given one thread has one slice, whichever of the caller's
 * threads that is. */
static inline float *k_slice(const k_call *c) {
#ifdef _OPENMP
    return c->nth < 2 ? c->scratch : c->scratch + (int64_t)omp_get_thread_num() * c->scratch_n;
#else
    return c->scratch;
#endif
}

#endif
