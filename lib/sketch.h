/* sketch.h: the signed bucket sums of one row; what lib/tapstat.c and the tests build sketches from.
 *
 * A row is cut into blocks of 256; block b has a permutation (bucket k <- element k xor m_b) and a sign per element,
 * both from q4x_sketch_h. They depend on b alone, so they are computed once and kept.
 */
#ifndef Q4X_SKETCH_H
#define Q4X_SKETCH_H

#include <stddef.h>
#include <stdint.h>

enum { Q4X_SKETCH_BLOCK = 256, Q4X_SKETCH_FOLD = 64 };

typedef struct {
    uint32_t flip;    /* m_b */
    uint64_t sign[4]; /* bit j & 63 of word j >> 6: element j is negated */
} q4x_sketch_pat;

/* The pattern of block b. */
void q4x_sketch_pattern(uint32_t b, q4x_sketch_pat *ret);

/* sum[k] += the signed element (k xor flip) of x, k < 256. x holds 256 finite values (absent and non-finite ones are
 * passed as 0: adding a zero of either sign to a sum that started at +0 changes no bit of it). */
void q4x_sketch_block(double *sum, const float *x, const q4x_sketch_pat *pat);

/* 256 buckets to 64: ((S[k] + S[k+64]) + S[k+128]) + S[k+192]. out may be sum. */
void q4x_sketch_fold(const double *sum, double *out);

#endif
