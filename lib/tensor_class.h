/* tensor_class.h: what part of a model a tensor belongs to, by its name in either container. */
#ifndef Q4X_TENSOR_CLASS_H
#define Q4X_TENSOR_CLASS_H

#include "lib/inventory.h"

typedef enum {
#define TENSOR_CLASS(id, name, doc) Q4X_TC_##id,
#define BELONGS(glob, id)
#include "lib/tensor_classes.def"
#undef BELONGS
#undef TENSOR_CLASS
    Q4X_TC_COUNT
} q4x_tensor_class;

typedef struct {
    const char *name, *doc;
} q4x_tensor_class_info;
extern const q4x_tensor_class_info q4x_tensor_classes[Q4X_TC_COUNT];

/* trunk: layers of the text model, blocks of a GGUF file behind them are its prediction head; -1: not known. */
q4x_tensor_class q4x_tensor_class_of(const char *name, int64_t trunk);

/* Tensors of one class and type: n is the class's name, in a table as of lib/inventory.h. *ret is malloc'd, in the
 * order of the classes, then of falling bytes. */
int q4x_inventory_by_class(const q4x_model *m, int64_t trunk, q4x_group **ret, int *ret_n, q4x_err *err);

#endif
