/* quant.h: stored types. Decoding is MOVE-like: every value equals the correctly rounded real number of the
 * format's formula (for finite scales), so order, FMA and vector width cannot change a bit.
 *
 * The scalar decode cores live in quant_<family>.h and are shared with nvcc. Nothing here allocates or fails:
 * sizes are checked by the caller (lib/model.c) before any kernel sees a row.
 */
#ifndef K_QUANT_H
#define K_QUANT_H

#include "kernels/k.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *name; /* "Q4_K"; NULL for an id that is no type */
    int32_t id;
    int32_t elems;  /* elements of a block */
    int32_t bytes;  /* bytes of a block */
    int32_t stored; /* 1: may appear in a file */
    /* Decode nblocks consecutive blocks at src (any alignment) into nblocks * elems floats. */
    void (*decode)(const void *src, float *dst, int64_t nblocks);
} k_quant;

/* The type with this GGUF id, or NULL: removed, unknown and vendor ids have none. */
const k_quant *k_quant_get(int32_t id);

/* Its name, "?" when it is none. */
const char *k_quant_name(int32_t id);

/* The type of this name ("BF16"), or NULL. */
const k_quant *k_quant_by_name(const char *name);

/* Decode n elements of one row (n a multiple of the type's block). Type must exist. */
void k_decode_row(int32_t type, const void *row, float *dst, int64_t n);

/* The same through the scalar cores, element by element: what the vector decoders are tested against. Slow. */
void k_decode_plain(int32_t type, const void *row, float *dst, int64_t n);

/* Q8_K activation format: n floats (n % 256 == 0) to n/256 blocks of 292 bytes, rule of the format
 * (gguf-quants.md 4.2). A NaN gets code 0. Where -127 / max is no finite non-zero number (a block
 * with an infinity, or none above 2^-121) d is what 1 / (-127 / max) gives, and codes stay within -127..127. */
void k_encode_q8_K(const float *src, void *dst, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
