/* inventory.h: what a model file holds, as a table: tensors grouped by the shape of their name and their type. */
#ifndef Q4X_INVENTORY_H
#define Q4X_INVENTORY_H

#include "lib/err.h"
#include "lib/model.h"

/* Tensors whose names are alike but for their numbers ("blk.*.attn_q.weight") and whose type is the same. */
typedef struct {
    char name[96]; /* every run of digits between dots replaced by '*' */
    int32_t type;
    int64_t n; /* tensors */
    uint64_t elements, bytes;
} q4x_group;

/* The name of the group that a tensor belongs to, cut to size. */
typedef void (*q4x_group_name)(const void *ctx, const q4x_tensor *t, char *name, size_t size);

/* Tensors of one name and type, in order of first appearance; *ret is malloc'd. */
int q4x_inventory_by(const q4x_model *m, q4x_group_name name_of, const void *ctx, q4x_group **ret, int *ret_n,
                     q4x_err *err);
/* The same by the pattern of their names. */
int q4x_inventory(const q4x_model *m, q4x_group **ret, int *ret_n, q4x_err *err);
/* The same table by type alone (name ""), in order of falling bytes. In place; returns the new length. */
int q4x_inventory_by_type(q4x_group *g, int n);

#endif
