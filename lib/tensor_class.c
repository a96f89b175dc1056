#include "lib/tensor_class.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const q4x_tensor_class_info q4x_tensor_classes[Q4X_TC_COUNT] = {
#define TENSOR_CLASS(id, name, doc) {name, doc},
#define BELONGS(glob, id)
#include "lib/tensor_classes.def"
#undef BELONGS
#undef TENSOR_CLASS
};

static const struct {
    const char *glob;
    q4x_tensor_class id;
} globs[] = {
#define TENSOR_CLASS(id, name, doc)
#define BELONGS(glob, id) {glob, Q4X_TC_##id},
#include "lib/tensor_classes.def"
#undef BELONGS
#undef TENSOR_CLASS
};

static int skip(const char **name, const char *prefix) {
    size_t n = strlen(prefix);
    if (strncmp(*name, prefix, n)) return 0;
    *name += n;
    return 1;
}

/* "N." is passed over; the number, or -1 when there is none. */
static int64_t skip_number(const char **name) {
    char *end;
    if (**name < '0' || **name > '9') return -1;
    long long n = strtoll(*name, &end, 10);
    if (*end != '.') return -1;
    *name = end + 1;
    return n;
}

q4x_tensor_class q4x_tensor_class_of(const char *name, int64_t trunk) {
    int64_t layer = -1;
    if (q4x_model_foreign(name)) return strncmp(name, "mtp.", 4) ? Q4X_TC_VISION : Q4X_TC_PREDICTION;
    if (skip(&name, "blk."))
        layer = skip_number(&name);
    else {
        skip(&name, "model.");
        skip(&name, "language_model.");
        if (skip(&name, "layers.")) layer = skip_number(&name);
    }
    if ((trunk >= 0 && layer >= trunk) || !strncmp(name, "nextn.", 6)) return Q4X_TC_PREDICTION;
    for (size_t i = 0; i < sizeof globs / sizeof *globs; i++)
        if (!fnmatch(globs[i].glob, name, 0)) return globs[i].id;
    return Q4X_TC_OTHER;
}

static int place(const q4x_group *g) {
    for (int i = 0; i < Q4X_TC_COUNT; i++)
        if (!strcmp(g->name, q4x_tensor_classes[i].name)) return i;
    return Q4X_TC_COUNT;
}

static int by_class(const void *a, const void *b) {
    const q4x_group *x = a, *y = b;
    int p = place(x), q = place(y);
    if (p != q) return p < q ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x->type > y->type) - (x->type < y->type);
}

static void class_name(const void *trunk, const q4x_tensor *t, char *name, size_t size) {
    snprintf(name, size, "%s", q4x_tensor_classes[q4x_tensor_class_of(t->name, *(const int64_t *)trunk)].name);
}

int q4x_inventory_by_class(const q4x_model *m, int64_t trunk, q4x_group **ret, int *ret_n, q4x_err *err) {
    int rc = q4x_inventory_by(m, class_name, &trunk, ret, ret_n, err);
    if (!rc && *ret_n > 1) qsort(*ret, (size_t)*ret_n, sizeof **ret, by_class);
    return rc;
}
