#include "tests/h_rand.h"

#include <math.h>

uint64_t h_rand64(h_rand *r) {
    uint64_t z = r->s += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint32_t h_below(h_rand *r, uint32_t n) {
    return (uint32_t)((h_rand64(r) >> 32) * n >> 32);
}

double h_uniform(h_rand *r) {
    return ((double)(h_rand64(r) >> 11) + 0.5) * 0x1p-53;
}

double h_gaussian(h_rand *r) {
    double u = h_uniform(r), v = h_uniform(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

void h_gaussians(h_rand *r, float *x, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) x[i] = scale * (float)h_gaussian(r);
}
