/* bytes.h: growing bytes, for records that are built before they are written. Zero-initialise; free p.
 *
 * After a failed allocation nothing is added and failed stays set: one look at the end is enough. Numbers are
 * little-endian, as they lie in memory.
 */
#ifndef Q4X_BYTES_H
#define Q4X_BYTES_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t *p;
    size_t n, cap;
    int failed; /* no memory: nothing is put any more */
} q4x_bytes;

void q4x_put(q4x_bytes *b, const void *p, size_t n);
void q4x_put_u32(q4x_bytes *b, uint32_t v);
void q4x_put_u64(q4x_bytes *b, uint64_t v);
void q4x_put_zeros(q4x_bytes *b, size_t n);

#endif
