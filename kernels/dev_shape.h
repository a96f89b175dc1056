/* dev_shape.h: what a call of each op must bring, in numbers: what its header says of its operands, said once more for
 * whoever checks calls, sizes memory or uploads parameters. Asks no device and follows no pointer to an operand.
 */
#ifndef K_DEV_SHAPE_H
#define K_DEV_SHAPE_H

#include "kernels/k.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { K_ANY = -1 /* whatever it has */ };
/* Blocks of a launch in its second and third direction; bytes of shared memory that every block may have. */
enum { K_DEV_GRID_YZ = 65535, K_DEV_SHARED = 48 * 1024 };

typedef struct {
    const char *wrong;        /* what no operand can mend: dims or columns that do not go together; else NULL */
    int64_t in[K_MAXIN];      /* columns of input k; 0: it is not read, or may be NULL */
    int64_t par[K_MAXW];      /* floats at par[k] */
    int64_t st_rows, st_cols; /* st[0] has so many columns, and room for so many rows; columns 0: no state */
    int64_t w_rows, w_cols;   /* of each of w[0]; columns 0: no weight */
    int w_list;               /* 1: w[0] is read as an array, at w_dev[0] too */
    int64_t scratch;          /* floats, at least */
} k_shape;

/* Of an op that k_dev_run takes; of others `wrong` says so. c: extents, group, offsets, levers, the lengths of what it
 * points at; d and lv must be there. */
k_shape k_shape_of(k_op op, const k_call *c);

#ifdef __cplusplus
}
#endif
#endif
