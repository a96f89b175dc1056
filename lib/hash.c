#include "lib/hash.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/err.h"

enum { LEAF = 4096 };

struct q4x_bits {
    XXH3_state_t top;   /* over the leaves' digests; its type asks for 64-byte alignment */
    uint8_t leaf[LEAF]; /* a leaf that is not full yet, or the canonical copy of one that holds a NaN */
    size_t fill;        /* bytes in leaf */
    uint64_t bytes;     /* seen so far */
    q4x_bits_kind kind;
};

q4x_bits *q4x_bits_new(void) {
    q4x_bits *b = aligned_alloc(64, (sizeof *b + 63) / 64 * 64);
    if (b) q4x_bits_begin(b, Q4X_BITS_RAW);
    return b;
}

void q4x_bits_free(q4x_bits *b) {
    free(b);
}

void q4x_bits_begin(q4x_bits *b, q4x_bits_kind kind) {
    XXH3_128bits_reset(&b->top);
    b->fill = 0;
    b->bytes = 0;
    b->kind = kind;
}

static uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static uint16_t get16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

/* 1 when the leaf holds a NaN. Written as reductions without a branch: nearly every leaf has none. */
static int has_nan(q4x_bits_kind kind, const uint8_t *p, size_t n) {
    uint32_t bad = 0;
    if (kind == Q4X_BITS_F32) {
        for (size_t i = 0; i < n / 4; i++) bad |= (uint32_t)((int32_t)(get32(p + 4 * i) & 0x7fffffffu) > 0x7f800000);
    } else if (kind != Q4X_BITS_RAW) {
        int16_t inf = kind == Q4X_BITS_BF16 ? 0x7f80 : 0x7c00;
        uint16_t any = 0;
        for (size_t i = 0; i < n / 2; i++) any |= (uint16_t)((int16_t)(get16(p + 2 * i) & 0x7fff) > inf);
        bad = any;
    }
    return bad != 0;
}

/* Every NaN becomes the quiet NaN of its dtype, sign and payload dropped. dst may be src. */
static void canonical(q4x_bits_kind kind, uint8_t *dst, const uint8_t *src, size_t n) {
    memmove(dst, src, n);
    if (kind == Q4X_BITS_F32) {
        for (size_t i = 0; i < n / 4; i++)
            if ((get32(dst + 4 * i) & 0x7fffffffu) > 0x7f800000u) memcpy(dst + 4 * i, &(uint32_t){0x7fc00000u}, 4);
        return;
    }
    uint16_t inf = kind == Q4X_BITS_BF16 ? 0x7f80 : 0x7c00, quiet = kind == Q4X_BITS_BF16 ? 0x7fc0 : 0x7e00;
    for (size_t i = 0; i < n / 2; i++)
        if ((get16(dst + 2 * i) & 0x7fff) > inf) memcpy(dst + 2 * i, &quiet, 2);
}

/* One leaf: its digest joins the top. tmp (LEAF bytes, may be p itself) is used only when the leaf holds a NaN.
 * A leaf is a whole number of elements unless the tensor ends inside one; such a rest is hashed as it is. */
static void leaf(XXH3_state_t *top, q4x_bits_kind kind, const uint8_t *p, size_t n, uint8_t *tmp) {
    if (has_nan(kind, p, n)) {
        canonical(kind, tmp, p, n);
        p = tmp;
    }
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(p, n));
    XXH3_128bits_update(top, &digest, sizeof digest);
}

static q4x_hash finish(XXH3_state_t *top, uint64_t bytes) {
    uint8_t le[8];
    for (int i = 0; i < 8; i++) le[i] = (uint8_t)(bytes >> (8 * i));
    XXH3_128bits_update(top, le, sizeof le);
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(top));
    q4x_hash h;
    memcpy(h.b, digest.digest, sizeof h.b);
    return h;
}

int q4x_bits_add(q4x_bits *b, const void *data, size_t bytes) {
    const uint8_t *p = data;
    b->bytes += bytes;
    if (b->fill) {
        size_t n = LEAF - b->fill < bytes ? LEAF - b->fill : bytes;
        memcpy(b->leaf + b->fill, p, n);
        b->fill += n;
        p += n;
        bytes -= n;
        if (b->fill < LEAF) return 0;
        leaf(&b->top, b->kind, b->leaf, LEAF, b->leaf);
        b->fill = 0;
    }
    for (; bytes >= LEAF; bytes -= LEAF, p += LEAF) leaf(&b->top, b->kind, p, LEAF, b->leaf);
    if (bytes) memcpy(b->leaf, p, bytes);
    b->fill = bytes;
    return 0;
}

q4x_hash q4x_bits_end(q4x_bits *b) {
    if (b->fill) leaf(&b->top, b->kind, b->leaf, b->fill, b->leaf);
    b->fill = 0;
    return finish(&b->top, b->bytes);
}

q4x_hash q4x_bits_of(q4x_bits_kind kind, const void *data, size_t bytes) {
    XXH3_state_t top;
    uint8_t tmp[LEAF];
    const uint8_t *p = data;
    XXH3_128bits_reset(&top);
    for (size_t at = 0; at < bytes; at += LEAF) leaf(&top, kind, p + at, bytes - at < LEAF ? bytes - at : LEAF, tmp);
    return finish(&top, bytes);
}

q4x_hash q4x_xxh128(const void *data, size_t bytes) {
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(data, bytes));
    q4x_hash h;
    memcpy(h.b, digest.digest, sizeof h.b);
    return h;
}

uint64_t q4x_xxh64(const void *data, size_t bytes) {
    return XXH3_64bits(data, bytes);
}

void q4x_hash_hex(const q4x_hash *h, char hex[33]) {
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        hex[2 * i] = digit[h->b[i] >> 4];
        hex[2 * i + 1] = digit[h->b[i] & 15];
    }
    hex[32] = 0;
}

int q4x_hash_eq(const q4x_hash *a, const q4x_hash *b) {
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}
