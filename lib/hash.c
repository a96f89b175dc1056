#include "lib/hash.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/err.h"

enum { LEAF = Q4X_LEAF };

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

enum { FINITE, INFINITE, A_NAN };

/* What the leaf holds at worst. Written as reductions without a branch: nearly every leaf is finite. */
static int worst(q4x_bits_kind kind, const uint8_t *p, size_t n) {
    int32_t most = 0, inf = kind == Q4X_BITS_F32 ? 0x7f800000 : kind == Q4X_BITS_BF16 ? 0x7f80 : 0x7c00;
    if (kind == Q4X_BITS_F32) {
        for (size_t i = 0; i < n / 4; i++) {
            int32_t a = (int32_t)(get32(p + 4 * i) & 0x7fffffffu);
            most = a > most ? a : most;
        }
    } else if (kind != Q4X_BITS_RAW) {
        int16_t m = 0;
        for (size_t i = 0; i < n / 2; i++) {
            int16_t a = (int16_t)(get16(p + 2 * i) & 0x7fff);
            m = a > m ? a : m;
        }
        most = m;
    }
    return most < inf ? FINITE : most > inf ? A_NAN : INFINITE;
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

/* The digest of one leaf; 1 when it holds what is not finite. tmp (LEAF bytes, may be p itself) is used only when that
 * is a NaN. A leaf is a whole number of elements unless the tensor ends inside one; such a rest is hashed as it is. */
static int digest_leaf(uint8_t digest[16], q4x_bits_kind kind, const uint8_t *p, size_t n, uint8_t *tmp) {
    int bad = worst(kind, p, n);
    if (bad == A_NAN) {
        canonical(kind, tmp, p, n);
        p = tmp;
    }
    XXH128_canonical_t d;
    XXH128_canonicalFromHash(&d, XXH3_128bits(p, n));
    memcpy(digest, d.digest, sizeof d.digest);
    return bad != FINITE;
}

static void leaf(XXH3_state_t *top, q4x_bits_kind kind, const uint8_t *p, size_t n, uint8_t *tmp) {
    uint8_t digest[16];
    digest_leaf(digest, kind, p, n, tmp);
    XXH3_128bits_update(top, digest, sizeof digest);
}

static void put_le64(uint8_t le[8], uint64_t v) {
    for (int i = 0; i < 8; i++) le[i] = (uint8_t)(v >> (8 * i));
}

static q4x_hash canonical_hash(XXH128_hash_t x) {
    XXH128_canonical_t digest;
    q4x_hash h;
    XXH128_canonicalFromHash(&digest, x);
    memcpy(h.b, digest.digest, sizeof h.b);
    return h;
}

static q4x_hash finish(XXH3_state_t *top, uint64_t bytes) {
    uint8_t le[8];
    put_le64(le, bytes);
    XXH3_128bits_update(top, le, sizeof le);
    return canonical_hash(XXH3_128bits_digest(top));
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

void q4x_bits_digests(q4x_bits *b, const void *digests, size_t bytes) {
    Q4X_BUG_IF(b->fill);
    b->bytes += bytes;
    XXH3_128bits_update(&b->top, digests, (bytes + LEAF - 1) / LEAF * 16);
}

q4x_hash q4x_bits_end(q4x_bits *b) {
    if (b->fill) leaf(&b->top, b->kind, b->leaf, b->fill, b->leaf);
    b->fill = 0;
    return finish(&b->top, b->bytes);
}

/* Leaves at a time: their digests and the length fit a page's worth of stack. */
enum { BATCH = 256, SHARE = 1 << 16 /* bytes worth waking a thread for */ };

/* Leaf i of these bytes. */
static int digest_one(uint8_t *digest, q4x_bits_kind kind, const uint8_t *p, size_t bytes, size_t i) {
    uint8_t tmp[LEAF];
    size_t at = i * LEAF;
    return digest_leaf(digest + 16 * i, kind, p + at, bytes - at < LEAF ? bytes - at : LEAF, tmp);
}

static int digest_leaves(uint8_t *digest, q4x_bits_kind kind, const uint8_t *p, size_t bytes, size_t n, int threads) {
    int bad = 0;
    if (threads < 2 || bytes < 2 * (size_t)SHARE) { /* a team of one costs a microsecond too */
        for (size_t i = 0; i < n; i++) bad |= digest_one(digest, kind, p, bytes, i);
        return bad;
    }
#pragma omp parallel for schedule(static) num_threads(threads) reduction(| : bad)
    for (size_t i = 0; i < n; i++) bad |= digest_one(digest, kind, p, bytes, i);
    return bad;
}

q4x_hash q4x_bits_shared(q4x_bits_kind kind, const void *data, size_t bytes, int threads, int *ret_nonfinite) {
    uint8_t digest[16 * BATCH + 8];
    const uint8_t *p = data;
    size_t n = (bytes + LEAF - 1) / LEAF;
    if (n <= BATCH) { /* one call for the top */
        *ret_nonfinite = digest_leaves(digest, kind, p, bytes, n, threads);
        put_le64(digest + 16 * n, bytes);
        return canonical_hash(XXH3_128bits(digest, 16 * n + 8));
    }
    XXH3_state_t top;
    XXH3_128bits_reset(&top);
    *ret_nonfinite = 0;
    for (size_t i = 0; i < n; i += BATCH) {
        size_t m = n - i < BATCH ? n - i : BATCH, rest = bytes - i * LEAF;
        *ret_nonfinite |= digest_leaves(digest, kind, p + i * LEAF, rest < m * LEAF ? rest : m * LEAF, m, threads);
        XXH3_128bits_update(&top, digest, 16 * m);
    }
    return finish(&top, bytes);
}

q4x_hash q4x_bits_of(q4x_bits_kind kind, const void *data, size_t bytes) {
    int nonfinite;
    return q4x_bits_shared(kind, data, bytes, 1, &nonfinite);
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
