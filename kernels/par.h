/* par.h: which thread runs, and its slice of the call's scratch. */
#ifndef K_PAR_H
#define K_PAR_H

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/k.h"

/* Below this many inner steps a parallel region costs more than it saves (a fork and join: 2 to 5 us). */
enum { K_PAR_MIN = 1 << 15 };

/* For what only a pragma names: a build without OpenMP does not see it used. */
#define K_PAR_ONLY __attribute__((unused))

/* The calling thread's slice of c->scratch. */
static inline float *k_slice(const k_call *c) {
#ifdef _OPENMP
    return c->scratch + (int64_t)omp_get_thread_num() * c->scratch_n;
#else
    return c->scratch;
#endif
}

#endif
