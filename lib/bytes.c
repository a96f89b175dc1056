#include "lib/bytes.h"

#include <stdlib.h>
#include <string.h>

void q4x_put(q4x_bytes *b, const void *p, size_t n) {
    if (b->failed) return;
    if (n > b->cap - b->n) {
        size_t cap = b->cap < 4096 ? 4096 : b->cap;
        while (cap - b->n < n && cap <= SIZE_MAX / 2) cap *= 2;
        uint8_t *q = cap - b->n < n ? NULL : realloc(b->p, cap);
        if (!q) {
            b->failed = 1;
            return;
        }
        b->p = q;
        b->cap = cap;
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

void q4x_put_u32(q4x_bytes *b, uint32_t v) {
    q4x_put(b, &v, sizeof v);
}

void q4x_put_u64(q4x_bytes *b, uint64_t v) {
    q4x_put(b, &v, sizeof v);
}

void q4x_put_zeros(q4x_bytes *b, size_t n) {
    static const uint8_t zeros[256];
    for (size_t k; n; n -= k) {
        k = n < sizeof zeros ? n : sizeof zeros;
        q4x_put(b, zeros, k);
    }
}
