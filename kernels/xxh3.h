/* xxh3.h: XXH3-128, and XXH3-64 of eight bytes, for both compilers: `bits` and sketches are made on a device of the
 * same hashes as on a host, where lib/hash.c takes the library's. tests/t_xxh3.c holds every length up to 9,000 against
 * it.
 *
 * computes  k_xxh3_128: XXH3-128 without a seed of n bytes; k_xxh3_64_of8: XXH3-64 of eight bytes with a seed
 * order     integers, modulo 2^64. Beyond 240 bytes the input is stripes of 64 bytes, eight lanes of 8 bytes each, and
 *           blocks of 16 stripes. Within a block what the stripes add to a lane may be added in any order
 *           (k_xxh3_part); between blocks the lanes are scrambled, so blocks follow each other
 * source    the XXH3 specification (xxHash, doc/xxhash_spec.md), version 0.8
 */
#ifndef K_XXH3_H
#define K_XXH3_H

#include <string.h>

#include "kernels/table.h"

enum { K_XXH3_SHORT = 240, K_XXH3_STRIPE = 64, K_XXH3_STRIPES = 16 /* of a block */, K_XXH3_LANES = 8 };
/* Where in the secret: what scrambles, the last stripe, what merges the low and the high half. */
enum { K_XXH3_AT_SCRAMBLE = 128, K_XXH3_AT_LAST = 121, K_XXH3_AT_LOW = 11, K_XXH3_AT_HIGH = 117 };

#define K_XXH3_P32_1 0x9e3779b1u
#define K_XXH3_P32_2 0x85ebca77u
#define K_XXH3_P32_3 0xc2b2ae3du
#define K_XXH3_P64_1 0x9e3779b185ebca87u
#define K_XXH3_P64_2 0xc2b2ae3d27d4eb4fu
#define K_XXH3_P64_3 0x165667b19e3779f9u
#define K_XXH3_P64_4 0x85ebca77c2b2ae63u
#define K_XXH3_P64_5 0x27d4eb2f165667c5u
#define K_XXH3_MIX 0x9fb21c651e98df25u

/* The default secret, 192 bytes as little-endian words. */
K_TABLE(uint64_t, k_xxh3_secret, 24, 0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
        0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c,
        0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9,
        0x3159b4cd4be0518a, 0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17,
        0x9e68d429265516d3, 0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af)

typedef struct {
    uint64_t low, high;
} k_u128;

K_HD uint64_t k_xxh3_key(int at) {
    const uint64_t *w = K_TAB(k_xxh3_secret) + at / 8;
    const int shift = at % 8 * 8;
    return shift ? w[0] >> shift | w[1] << (64 - shift) : w[0];
}

K_HD uint64_t k_xxh3_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

K_HD uint32_t k_xxh3_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

K_HD uint32_t k_xxh3_swap32(uint32_t x) {
    return x << 24 | (x << 8 & 0xff0000u) | (x >> 8 & 0xff00u) | x >> 24;
}

K_HD uint64_t k_xxh3_swap64(uint64_t x) {
    return (uint64_t)k_xxh3_swap32((uint32_t)x) << 32 | k_xxh3_swap32((uint32_t)(x >> 32));
}

K_HD uint64_t k_xxh3_rotl(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}

K_HD uint64_t k_xxh3_fold_right(uint64_t x, int n) {
    return x ^ x >> n;
}

K_HD k_u128 k_xxh3_mul(uint64_t a, uint64_t b) {
    const unsigned __int128 p = (unsigned __int128)a * b;
    const k_u128 r = {(uint64_t)p, (uint64_t)(p >> 64)};
    return r;
}

K_HD uint64_t k_xxh3_mul_fold(uint64_t a, uint64_t b) {
    const k_u128 p = k_xxh3_mul(a, b);
    return p.low ^ p.high;
}

K_HD uint64_t k_xxh3_avalanche(uint64_t h) {
    h = k_xxh3_fold_right(h, 37) * 0x165667919e3779f9u;
    return k_xxh3_fold_right(h, 32);
}

/* That of XXH64. */
K_HD uint64_t k_xxh3_avalanche64(uint64_t h) {
    h = k_xxh3_fold_right(h, 33) * K_XXH3_P64_2;
    h = k_xxh3_fold_right(h, 29) * K_XXH3_P64_3;
    return k_xxh3_fold_right(h, 32);
}

/* XXH3-64 of the eight bytes of v, little-endian. */
K_HD uint64_t k_xxh3_64_of8(uint64_t v, uint64_t seed) {
    seed ^= (uint64_t)k_xxh3_swap32((uint32_t)seed) << 32;
    uint64_t h = (v >> 32 | v << 32) ^ ((k_xxh3_key(8) ^ k_xxh3_key(16)) - seed);
    h ^= k_xxh3_rotl(h, 49) ^ k_xxh3_rotl(h, 24);
    h *= K_XXH3_MIX;
    h ^= (h >> 35) + 8;
    h *= K_XXH3_MIX;
    return k_xxh3_fold_right(h, 28);
}

/* ---- up to 240 bytes ---- */

K_HD k_u128 k_xxh3_upto3(const uint8_t *p, uint32_t n) {
    const uint32_t low = (uint32_t)p[0] << 16 | (uint32_t)p[n >> 1] << 24 | p[n - 1] | n << 8;
    const uint32_t swapped = k_xxh3_swap32(low), high = swapped << 13 | swapped >> 19;
    const uint64_t a = k_xxh3_key(0), b = k_xxh3_key(8);
    const k_u128 r = {k_xxh3_avalanche64(low ^ (uint64_t)((uint32_t)a ^ (uint32_t)(a >> 32))),
                      k_xxh3_avalanche64(high ^ (uint64_t)((uint32_t)b ^ (uint32_t)(b >> 32)))};
    return r;
}

K_HD k_u128 k_xxh3_upto8(const uint8_t *p, uint32_t n) {
    const uint64_t v = k_xxh3_u32(p) | (uint64_t)k_xxh3_u32(p + n - 4) << 32;
    k_u128 m = k_xxh3_mul(v ^ k_xxh3_key(16) ^ k_xxh3_key(24), K_XXH3_P64_1 + ((uint64_t)n << 2));
    m.high += m.low << 1;
    m.low ^= m.high >> 3;
    m.low = k_xxh3_fold_right(m.low, 35) * K_XXH3_MIX;
    m.low = k_xxh3_fold_right(m.low, 28);
    m.high = k_xxh3_avalanche(m.high);
    return m;
}

K_HD k_u128 k_xxh3_upto16(const uint8_t *p, uint32_t n) {
    const uint64_t low = k_xxh3_u64(p);
    uint64_t high = k_xxh3_u64(p + n - 8);
    k_u128 m = k_xxh3_mul(low ^ high ^ k_xxh3_key(32) ^ k_xxh3_key(40), K_XXH3_P64_1);
    m.low += (uint64_t)(n - 1) << 54;
    high ^= k_xxh3_key(48) ^ k_xxh3_key(56);
    m.high += high + (uint64_t)(uint32_t)high * (K_XXH3_P32_2 - 1);
    m.low ^= k_xxh3_swap64(m.high);
    k_u128 h = k_xxh3_mul(m.low, K_XXH3_P64_2);
    h.high = k_xxh3_avalanche(h.high + m.high * K_XXH3_P64_2);
    h.low = k_xxh3_avalanche(h.low);
    return h;
}

K_HD uint64_t k_xxh3_mix16(const uint8_t *p, int at) {
    return k_xxh3_mul_fold(k_xxh3_u64(p) ^ k_xxh3_key(at), k_xxh3_u64(p + 8) ^ k_xxh3_key(at + 8));
}

K_HD void k_xxh3_mix32(k_u128 *acc, const uint8_t *a, const uint8_t *b, int at) {
    acc->low = (acc->low + k_xxh3_mix16(a, at)) ^ (k_xxh3_u64(b) + k_xxh3_u64(b + 8));
    acc->high = (acc->high + k_xxh3_mix16(b, at + 16)) ^ (k_xxh3_u64(a) + k_xxh3_u64(a + 8));
}

K_HD k_u128 k_xxh3_upto240(const uint8_t *p, uint32_t n) {
    k_u128 acc = {n * K_XXH3_P64_1, 0};
    if (n <= 128) { /* from both ends, the middle first */
        for (int k = (int)((n - 1) / 32); k >= 0; k--) k_xxh3_mix32(&acc, p + 16 * k, p + n - 16 * k - 16, 32 * k);
    } else {
        for (int k = 0; k < 4; k++) k_xxh3_mix32(&acc, p + 32 * k, p + 32 * k + 16, 32 * k);
        acc.low = k_xxh3_avalanche(acc.low);
        acc.high = k_xxh3_avalanche(acc.high);
        for (int k = 4; k < (int)(n / 32); k++) k_xxh3_mix32(&acc, p + 32 * k, p + 32 * k + 16, 3 + 32 * (k - 4));
        k_xxh3_mix32(&acc, p + n - 16, p + n - 32, 136 - 17 - 16);
    }
    const k_u128 h = {k_xxh3_avalanche(acc.low + acc.high),
                      0 - k_xxh3_avalanche(acc.low * K_XXH3_P64_1 + acc.high * K_XXH3_P64_4 + n * K_XXH3_P64_2)};
    return h;
}

/* n <= K_XXH3_SHORT. */
K_HD k_u128 k_xxh3_128_short(const uint8_t *p, uint32_t n) {
    if (n > 16) return k_xxh3_upto240(p, n);
    if (n > 8) return k_xxh3_upto16(p, n);
    if (n > 3) return k_xxh3_upto8(p, n);
    if (n) return k_xxh3_upto3(p, n);
    const k_u128 none = {k_xxh3_avalanche64(k_xxh3_key(64) ^ k_xxh3_key(72)),
                         k_xxh3_avalanche64(k_xxh3_key(80) ^ k_xxh3_key(88))};
    return none;
}

/* ---- beyond ---- */

/* What a lane starts with. */
K_HD uint64_t k_xxh3_start(int lane) {
    switch (lane) {
    case 0: return K_XXH3_P32_3;
    case 1: return K_XXH3_P64_1;
    case 2: return K_XXH3_P64_2;
    case 3: return K_XXH3_P64_3;
    case 4: return K_XXH3_P64_4;
    case 5: return K_XXH3_P32_2;
    case 6: return K_XXH3_P64_5;
    default: return K_XXH3_P32_1;
    }
}

/* What 8 bytes of a stripe add to their lane; the bytes themselves go to the lane beside it (lane xor 1). */
K_HD uint64_t k_xxh3_part(uint64_t bytes, uint64_t key) {
    const uint64_t x = bytes ^ key;
    return (x & 0xffffffffu) * (x >> 32);
}

K_HD uint64_t k_xxh3_scramble(uint64_t acc, uint64_t key) {
    return (k_xxh3_fold_right(acc, 47) ^ key) * K_XXH3_P32_1;
}

/* What a pair of lanes adds to a half of the hash; at: K_XXH3_AT_LOW or _HIGH. */
K_HD uint64_t k_xxh3_merge(uint64_t even, uint64_t odd, int pair, int at) {
    return k_xxh3_mul_fold(even ^ k_xxh3_key(at + 16 * pair), odd ^ k_xxh3_key(at + 16 * pair + 8));
}

/* The hash from the sums of what the pairs of lanes added. */
K_HD k_u128 k_xxh3_finish(uint64_t low, uint64_t high, uint64_t n) {
    const k_u128 h = {k_xxh3_avalanche(n * K_XXH3_P64_1 + low), k_xxh3_avalanche(~(n * K_XXH3_P64_2) + high)};
    return h;
}

K_HD k_u128 k_xxh3_128(const uint8_t *p, uint64_t n) {
    if (n <= K_XXH3_SHORT) return k_xxh3_128_short(p, (uint32_t)n);
    uint64_t acc[K_XXH3_LANES], low = 0, high = 0;
    const uint64_t stripes = (n - 1) / K_XXH3_STRIPE; /* the last 64 bytes come apart */
    for (int l = 0; l < K_XXH3_LANES; l++) acc[l] = k_xxh3_start(l);
    for (uint64_t s = 0; s <= stripes; s++) {
        const int in_block = (int)(s % K_XXH3_STRIPES), last = s == stripes;
        const uint8_t *x = last ? p + n - K_XXH3_STRIPE : p + s * K_XXH3_STRIPE;
        for (int l = 0; l < K_XXH3_LANES; l++) {
            const uint64_t v = k_xxh3_u64(x + 8 * l);
            acc[l ^ 1] += v;
            acc[l] += k_xxh3_part(v, k_xxh3_key((last ? K_XXH3_AT_LAST : 8 * in_block) + 8 * l));
        }
        if (!last && in_block == K_XXH3_STRIPES - 1)
            for (int l = 0; l < K_XXH3_LANES; l++)
                acc[l] = k_xxh3_scramble(acc[l], k_xxh3_key(K_XXH3_AT_SCRAMBLE + 8 * l));
    }
    for (int k = 0; k < K_XXH3_LANES / 2; k++) {
        low += k_xxh3_merge(acc[2 * k], acc[2 * k + 1], k, K_XXH3_AT_LOW);
        high += k_xxh3_merge(acc[2 * k], acc[2 * k + 1], k, K_XXH3_AT_HIGH);
    }
    return k_xxh3_finish(low, high, n);
}

/* The canonical form: big-endian, the high half first. */
K_HD void k_xxh3_canonical(k_u128 h, uint8_t digest[16]) {
    const uint64_t words[2] = {k_xxh3_swap64(h.high), k_xxh3_swap64(h.low)};
    memcpy(digest, words, sizeof words);
}

#endif
