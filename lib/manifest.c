#include "lib/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/quant.h"
#include "lib/sha256.h"

static int by_name(const void *a, const void *b) {
    const q4x_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static void add_line(q4x_sha256 *s, const q4x_tensor *t) {
    char num[24];
    q4x_sha256_add(s, t->name, strlen(t->name));
    for (int d = t->ndim - 1; d >= 0; d--) {
        int n = snprintf(num, sizeof num, "%c%lld", d == t->ndim - 1 ? '|' : ',', (long long)t->ne[d]);
        q4x_sha256_add(s, num, (size_t)n);
    }
    const char *type = k_quant_get(t->type)->name;
    q4x_sha256_add(s, "|", 1);
    q4x_sha256_add(s, type, strlen(type));
}

int q4x_manifest(const q4x_tensor *t, int64_t n, char hex[65], q4x_err *err) {
    q4x_sha256 s;
    const q4x_tensor **order = malloc((size_t)(n ? n : 1) * sizeof *order);
    if (!order) return q4x_fail(err, Q4X_E_NOMEM, "no memory to sort %lld tensors", (long long)n);
    for (int64_t i = 0; i < n; i++) order[i] = &t[i];
    qsort(order, (size_t)n, sizeof *order, by_name);
    q4x_sha256_begin(&s);
    for (int64_t i = 0; i < n; i++) {
        if (i) q4x_sha256_add(&s, "\n", 1);
        add_line(&s, order[i]);
    }
    q4x_sha256_end(&s, hex);
    free(order);
    return 0;
}
