/* dump_heads.c: V heads from GGUF's order to HF's. */
#include <stdlib.h>
#include <string.h>

#include "lib/dump.h"

/* groups of `size` bytes: GGUF's group r * nk + k is HF's k * (nv / nk) + r (spec 9.4). */
static void permute(const q4x_heads *h, uint8_t *data, uint8_t *tmp, size_t size) {
    size_t nk = (size_t)h->nk, per = (size_t)(h->nv / h->nk);
    for (size_t r = 0; r < per; r++)
        for (size_t k = 0; k < nk; k++) memcpy(tmp + (k * per + r) * size, data + (r * nk + k) * size, size);
    memcpy(data, tmp, (size_t)h->nv * size);
}

int q4x_heads_to_hf(const q4x_heads *h, void *data, size_t elem, int64_t rows, int64_t cols, q4x_err *err) {
    if (h->axis == 0 || !h->gguf || rows == 0 || cols == 0) return 0;
    int64_t along = h->axis == 1 ? cols : rows;
    if (h->axis < 0 || h->axis > 2 || h->off < 0 || h->width < 1 || h->nk < 1 || h->nv < 1 || h->nv % h->nk ||
        h->off > along || (int64_t)h->nv * h->width > along - h->off)
        return q4x_fail(err, Q4X_E_FORMAT,
                        "heads: %d of width %d at %d over %d key heads do not fit axis %d of [%lld,%lld]", h->nv,
                        h->width, h->off, h->nk, h->axis, (long long)rows, (long long)cols);
    size_t line = (size_t)cols * elem, step = h->axis == 1 ? elem : line;
    size_t size = (size_t)h->width * step; /* of one group; all of them lie within data */
    uint8_t *tmp = malloc((size_t)h->nv * size), *p = (uint8_t *)data + (size_t)h->off * step;
    if (!tmp) return q4x_fail(err, Q4X_E_NOMEM, "no memory to reorder %d heads", h->nv);
    if (h->axis == 2) permute(h, p, tmp, size);
    for (int64_t t = 0; h->axis == 1 && t < rows; t++) permute(h, p + (size_t)t * line, tmp, size);
    free(tmp);
    return 0;
}
