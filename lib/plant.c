#include "lib/plant.h"

#include <math.h>
#include <string.h>

#include "lib/hash.h"

int q4x_plant_on_ids(const char *kind) {
    return !strcmp(kind, "swap") || !strcmp(kind, "roll");
}

/* Exchange two runs of n 4-byte elements. */
static void exchange(uint32_t *a, uint32_t *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t t = a[i];
        a[i] = b[i];
        b[i] = t;
    }
}

/* Rotate n runs of `size` elements by one: the last comes first. */
static void roll(uint32_t *x, int64_t n, int64_t size) {
    for (int64_t i = n - 1; i > 0; i--) exchange(x + i * size, x + (i - 1) * size, size);
}

static float *largest(float *x, int64_t n) {
    float *best = x;
    for (int64_t i = 1; i < n; i++)
        if (fabsf(x[i]) > fabsf(*best)) best = x + i;
    return best;
}

static void plant(const char *kind, const q4x_node_event *ev) {
    const int64_t rows = ev->nrows, cols = ev->cols;
    const int last = ev->row0 + ev->nrows == ev->total;
    uint32_t *x = ev->data;
    if (!strcmp(kind, "sign")) {
        for (int64_t i = 0; i < rows * cols; i++) x[i] ^= 0x80000000u;
    } else if (!strcmp(kind, "roll")) {
        if (rows > 1)
            roll(x, rows, cols);
        else
            roll(x, cols, 1);
    } else if (last && !strcmp(kind, "swap")) {
        if (rows > 1)
            exchange(x + (rows - 2) * cols, x + (rows - 1) * cols, cols);
        else if (cols > 1)
            exchange(x, x + 1, 1);
    } else if (last) {
        float *v = largest((float *)x + (rows - 1) * cols, cols);
        if (!strcmp(kind, "ulp"))
            *v = nextafterf(*v, INFINITY);
        else if (!strcmp(kind, "nan"))
            *v = NAN;
        else if (!strcmp(kind, "inf"))
            *v = INFINITY;
    }
}

int q4x_plant(const char *kind, const q4x_node_event *ev) {
    const size_t bytes = (size_t)ev->nrows * (size_t)ev->cols * sizeof(uint32_t);
    uint64_t before = q4x_xxh64(ev->data, bytes);
    plant(kind, ev);
    return q4x_xxh64(ev->data, bytes) != before;
}
