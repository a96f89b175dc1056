/* h_rand.h: seeded random numbers for tests. Equal seeds give equal tests. */
#ifndef H_RAND_H
#define H_RAND_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t s;
} h_rand;

uint64_t h_rand64(h_rand *r);
uint32_t h_below(h_rand *r, uint32_t n); /* 0 .. n-1 */
double h_uniform(h_rand *r);             /* (0, 1) */
double h_gaussian(h_rand *r);
void h_gaussians(h_rand *r, float *x, size_t n, float scale);

#endif
