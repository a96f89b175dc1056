#include "lib/inventory.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static void pattern(const void *ctx, const q4x_tensor *t, char *out, size_t size) {
    const char *name = t->name;
    size_t n = 0;
    (void)ctx;
    for (const char *p = name; *p && n + 1 < size;) {
        size_t digits = 0;
        if (p == name || p[-1] == '.')
            while (isdigit((unsigned char)p[digits])) digits++;
        if (digits && (p[digits] == '.' || !p[digits])) {
            out[n++] = '*';
            p += digits;
        } else {
            out[n++] = *p++;
        }
    }
    out[n] = 0;
}

/* Open addressing over (name, type): a file has few groups and may have a million tensors. */
typedef struct {
    q4x_group *g;
    int n, cap;
    int *slot; /* index + 1, 0: free */
    int nslots;
} table;

static unsigned hash(const char *s, int32_t type) {
    unsigned h = 2166136261u ^ (unsigned)type;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 16777619u;
    return h;
}

static int *probe(const table *t, const char *name, int32_t type) {
    unsigned mask = (unsigned)t->nslots - 1;
    for (unsigned i = hash(name, type) & mask;; i = (i + 1) & mask) {
        const q4x_group *g = t->slot[i] ? &t->g[t->slot[i] - 1] : NULL;
        if (!g || (g->type == type && !strcmp(g->name, name))) return &t->slot[i];
    }
}

static int grow(table *t) {
    int cap = t->cap ? 2 * t->cap : 64;
    q4x_group *g = realloc(t->g, (size_t)cap * sizeof *g);
    if (!g) return -1;
    t->g = g;
    t->cap = cap;
    free(t->slot);
    t->nslots = 4 * cap;
    t->slot = calloc((size_t)t->nslots, sizeof *t->slot);
    if (!t->slot) return -1;
    for (int i = 0; i < t->n; i++) *probe(t, g[i].name, g[i].type) = i + 1;
    return 0;
}

int q4x_inventory_by(const q4x_model *m, q4x_group_name name_of, const void *ctx, q4x_group **ret, int *ret_n,
                     q4x_err *err) {
    table t = {0};
    for (int64_t i = 0; i < q4x_model_ntensors(m); i++) {
        const q4x_tensor *x = q4x_model_tensor(m, i);
        char name[sizeof t.g->name];
        name_of(ctx, x, name, sizeof name);
        if (t.n == t.cap && grow(&t)) {
            free(t.g);
            free(t.slot);
            return q4x_fail(err, Q4X_E_NOMEM, "no memory for the table of %d kinds of tensors", t.n);
        }
        int *slot = probe(&t, name, x->type);
        if (!*slot) {
            t.g[t.n] = (q4x_group){.type = x->type};
            memcpy(t.g[t.n].name, name, sizeof name);
            *slot = ++t.n;
        }
        q4x_group *g = &t.g[*slot - 1];
        g->n++;
        g->elements += q4x_tensor_elements(x);
        g->bytes += x->bytes;
    }
    free(t.slot);
    *ret = t.g;
    *ret_n = t.n;
    return 0;
}

int q4x_inventory(const q4x_model *m, q4x_group **ret, int *ret_n, q4x_err *err) {
    return q4x_inventory_by(m, pattern, NULL, ret, ret_n, err);
}

static int more_bytes(const void *a, const void *b) {
    const q4x_group *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x->type > y->type) - (x->type < y->type);
}

int q4x_inventory_by_type(q4x_group *g, int n) {
    int kinds = 0;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < kinds && g[k].type != g[i].type) k++;
        if (k == kinds) {
            g[kinds] = g[i];
            g[kinds++].name[0] = 0;
        } else {
            g[k].n += g[i].n;
            g[k].elements += g[i].elements;
            g[k].bytes += g[i].bytes;
        }
    }
    if (kinds > 1) qsort(g, (size_t)kinds, sizeof *g, more_bytes);
    return kinds;
}
