/* hash.h: the two hashes of the house. Format and constants are fixed: dumps are compared by them. */
#ifndef Q4X_HASH_H
#define Q4X_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t b[16];
} q4x_hash; /* canonical big-endian XXH3-128 */

/* `bits` of a tensor: its row-major bytes cut into leaves of 4096, XXH3-128 of each leaf, then XXH3-128 of the
 * concatenated digests and LE64 of the byte length. NaNs are hashed as the quiet NaN of their dtype. Streaming:
 * rows may arrive in any portions, in order. */
typedef enum { Q4X_BITS_F32, Q4X_BITS_BF16, Q4X_BITS_F16, Q4X_BITS_RAW } q4x_bits_kind;

enum { Q4X_LEAF = 4096 };
typedef struct q4x_bits q4x_bits;
q4x_bits *q4x_bits_new(void); /* NULL: no memory */
void q4x_bits_free(q4x_bits *b);
void q4x_bits_begin(q4x_bits *b, q4x_bits_kind kind);          /* reusable */
int q4x_bits_add(q4x_bits *b, const void *data, size_t bytes); /* 0, or Q4X_E_NOMEM */
/* The next `bytes` bytes, whose leaves were digested elsewhere: 16 canonical bytes each. What came before filled its
 * last leaf; what fills no whole leaf ends the tensor. */
void q4x_bits_digests(q4x_bits *b, const void *digests, size_t bytes);
q4x_hash q4x_bits_end(q4x_bits *b);

/* One-shot form of the above; cannot fail for lack of memory (digests are hashed as they come). The second shares the
 * leaves of a large tensor among up to `threads` (the same hash), and says whether a value is not finite: it looked at
 * them all anyway. RAW has no such values. */
q4x_hash q4x_bits_of(q4x_bits_kind kind, const void *data, size_t bytes);
q4x_hash q4x_bits_shared(q4x_bits_kind kind, const void *data, size_t bytes, int threads, int *ret_nonfinite);

/* Plain XXH3-128 and XXH3-64, for checksums and identity. */
q4x_hash q4x_xxh128(const void *data, size_t bytes);
uint64_t q4x_xxh64(const void *data, size_t bytes);

void q4x_hash_hex(const q4x_hash *h, char hex[33]);
int q4x_hash_eq(const q4x_hash *a, const q4x_hash *b);

#endif
