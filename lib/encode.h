/* encode.h: rows of floats to blocks of a stored type: the way back of kernels/quant.h.
 *
 * computes  codes and scales that make the weighted squared error of what the block decodes to small. F32 is a copy,
 *           F16 and BF16 round once. Q8_0 takes the scale that its largest value asks for. All others search: scales
 *           near the one that the extremes ask for, each refitted by least squares to the codes it gives
 *           (encode_fit.h); for a code book (IQ1_S, IQ2_XXS) the best rows for a step are found exactly, so that only
 *           the block's one scale is searched (encode_book.h).
 * rounds    in f64 throughout; a scale is rounded to binary16 (saturating at 65504) before its codes are chosen
 * order     a block depends on nothing but its own values and their importance; threads share rows. So equal input
 *           gives equal bits whatever the threads.
 * special   every value must be finite, and stay finite in F16 and BF16: anything else is an error that names the
 *           element. A block of zeros decodes to zeros. Ties go to the first candidate.
 * source    gguf-quants.md 2 (layouts), 5
 */
#ifndef Q4X_ENCODE_H
#define Q4X_ENCODE_H

#include <stdint.h>

#include "lib/err.h"

typedef struct {
    const float *importance; /* [cols], 0 or more: weight of a column's squared error; NULL: all equal */
    int64_t first_row;       /* of the tensor, for messages */
    int64_t *bad_row;        /* where the row of a refused value goes, counted from x; may be NULL */
    int nth;                 /* threads to use */
} q4x_encode_opts;

/* 1: there is an encoder for this k_type. */
int q4x_can_encode(int32_t type);
/* Nanoseconds that a value of this type takes on one thread, roughly: to say how much is left. */
double q4x_encode_cost(int32_t type);

/* Encode rows x cols floats (row-major, no gaps) to rows * cols / elems * bytes bytes at dst. cols is a multiple of the
 * type's block (else Q4X_E_ARG). A value that is not finite, or that the type cannot hold, is Q4X_E_FORMAT; the message
 * begins "element [row, col]" and the caller puts the tensor in front. dst is undefined after an error. */
int q4x_encode(int32_t type, const float *x, int64_t rows, int64_t cols, const q4x_encode_opts *o, void *dst,
               q4x_err *err);

#endif
