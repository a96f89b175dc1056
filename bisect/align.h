/* align.h: exact values of a tap in both arms, brought to one head order (design.md 4, head order).
 *
 * Values exist where both dumps hold the full tensor, or where both hold raw sketches (rows of up to 512 values kept
 * whole) of the same rows. V heads that lie in file order in one arm and in HF order in the other are brought to HF
 * order; a record that is only hashed or sketched cannot be permuted, and its equality is then unknown.
 */
#ifndef BISECT_ALIGN_H
#define BISECT_ALIGN_H

#include "bisect/pair.h"

typedef struct {
    const float *a, *b; /* [nrows, cols] */
    int64_t row0, nrows, cols;
    int full; /* from full tensors (else from raw sketches) */
    float *own_a, *own_b;
    q4x_tap *read_a, *read_b; /* full tensors decoded for this: given back to the file when done, so that a dump of full
                                 tensors is never in memory as a whole */
} bis_values;

/* Values of node n in forward f. *ret_have 0: there are none (ret untouched). Free with bis_values_free. */
int bis_values_get(const bis_pair *p, int32_t f, int32_t n, bis_values *ret, int *ret_have, q4x_err *err);
void bis_values_free(bis_values *v);

/* Equality of a tap whose head order differs: SAME or DIFF from aligned values of every row, else UNKNOWN. */
int bis_align_equal(const bis_pair *p, int32_t f, int32_t n, bis_eq *ret, q4x_err *err);

#endif
