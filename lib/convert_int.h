/* convert_int.h: the inside of the converter, shared by lib/convert*.c. Nobody else includes it, tests aside. */
#ifndef Q4X_CONVERT_INT_H
#define Q4X_CONVERT_INT_H

#include "kernels/k.h"
#include "lib/convert.h"
#include "lib/gguf_write.h"
#include "lib/model.h"

/* How value heads lie along a tensor: `width` rows (or columns) a head from `first` on. Checkpoints have them by key
 * head, GGUF files round the key heads (spec 9.4). width 0: no heads. */
typedef struct {
    int64_t first, width;
    int columns;
} q4x_head_axis;

/* A tensor of the file to be: its values as they were bound, rows of all parts one behind the other. Either matrices,
 * views into the checkpoint, or a vector that the weights own. */
typedef struct {
    char name[64];
    int32_t type; /* k_type that it gets */
    int ndim;
    int64_t ne[4];
    const k_weight *w;
    int64_t nw;
    const float *v;
    q4x_head_axis heads;
} q4x_source;

typedef struct {
    const q4x_model *from;
    const k_dims *d; /* nk, nv: for the order of heads */
    q4x_gguf_out *out;
    int nth;
    q4x_log *log;
    double cost, spent; /* nanoseconds, roughly: for the time that is left */
} q4x_copy;

/* Where row (channel, column) i of the GGUF file's order lies in the checkpoint's. */
int64_t q4x_head_source(const k_dims *d, const q4x_head_axis *h, int64_t i);
/* How heads lie in a tensor of this name. */
q4x_head_axis q4x_head_axis_of(const k_dims *d, const char *name);

/* Encode every value of the item and write it, some rows at a time: memory does not depend on the item. */
int q4x_copy_source(q4x_copy *c, const q4x_source *item, q4x_err *err);
/* What that costs. */
double q4x_source_cost(const q4x_source *item);

#endif
