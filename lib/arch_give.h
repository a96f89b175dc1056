/* arch_give.h: weights that were bound from a checkpoint, handed out as a GGUF file holds them: keys and tensors under
 * their names there, in the order of such a file. The way back of lib/arch_bind.h, over the same lists of names.
 *
 * What a value becomes on the way in is not undone: norms have their 1, the decay is -exp(A_log), the gate and up
 * halves of fused experts are apart, as GGUF files have them (spec 9.2). Value heads are in the checkpoint's order.
 */
#ifndef Q4X_ARCH_GIVE_H
#define Q4X_ARCH_GIVE_H

#include "kernels/k.h"
#include "lib/err.h"
#include "lib/gguf_write.h"

/* One tensor; borrowed for the call. Either matrices of one shape, the rows of all of them one behind the other, or f32
 * values, which live as long as the weights. */
typedef struct {
    const char *name;
    int ndim;
    const int64_t *ne; /* fastest first */
    const k_weight *w;
    int64_t nw;
    const float *v;
} q4x_given;

typedef struct {
    void *ctx;
    int (*take)(void *ctx, const q4x_given *t, q4x_err *err);
} q4x_taker;

#endif
