/* round.h: storage roundings, bit by bit. EXACT; one text for gcc and nvcc.
 *
 * computes  bf16 and f16 from f32 and back; k_rd = the store of an activation under lever act, k_kv_round of a cache
 * rounds    once, to nearest, ties to even
 * special   NaN stays NaN (bf16: payload truncated, quiet bit set, as the format's rule; f16: quiet), infinities stay,
 *           overflow goes to infinity, subnormals are kept, -0 is kept
 * bound     hard 2^-8 |v| (bf16), 2^-11 |v| (f16) above the subnormals
 */
#ifndef K_ROUND_H
#define K_ROUND_H

#include <math.h>
#include <string.h>

#include "kernels/k.h"

K_HD uint32_t k_f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

K_HD float k_bits_f32(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

K_HD uint16_t k_bf16_from_f32(float x) {
    uint32_t u = k_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

K_HD float k_f32_from_bf16(uint16_t h) {
    return k_bits_f32((uint32_t)h << 16);
}

K_HD float k_round_bf16(float x) {
    uint32_t u = k_f32_bits(x);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    uint32_t nan = (u | 0x400000u) & 0xffff0000u;
    return k_bits_f32((u & 0x7fffffffu) > 0x7f800000u ? nan : r);
}

K_HD float k_f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 0x3ff;
    if (e == 31) return k_bits_f32(sign | 0x7f800000u | (m ? 0x400000u : 0) | (m << 13));
    if (e) return k_bits_f32(sign | ((e + 112) << 23) | (m << 13));
    float v = (float)m * 0x1p-24f; /* exact */
    return k_bits_f32(sign | k_f32_bits(v));
}

K_HD uint16_t k_f16_from_f32(float x) {
    uint32_t u = k_f32_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
    if (a < 0x38800000u) { /* below 2^-14: a multiple of 2^-24, adding 0.5 leaves it in the low bits, rounded */
        float v = k_bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (k_f32_bits(v) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

/* The number a lever holds, or `otherwise` when it has none. 0 is no number: a lever that is given as 0 holds -0. */
K_HD float k_number(int32_t bits, float otherwise) {
    return bits ? k_bits_f32((uint32_t)bits) : otherwise;
}

/* K_ACT_* of a store whose lever says `own` and otherwise follows one that says `lead`. */
K_HD int32_t k_follow(int32_t own, int32_t lead) {
    return own == K_FOLLOW ? lead : own == K_FOLLOW_BF16 ? K_ACT_BF16 : K_ACT_F32;
}

K_HD float k_round_f16(float x) {
    return k_f32_from_f16(k_f16_from_f32(x));
}

/* The spec's rd(): how an activation is stored. */
K_HD float k_rd(float x, int32_t act) {
    return act == K_ACT_BF16 ? k_round_bf16(x) : x;
}

/* The type of the caches, as a value of lever kv that is not K_KV_ACT. */
K_HD int32_t k_kv_type(const k_levers *lv) {
    if (lv->kv != K_KV_ACT) return lv->kv;
    return lv->act == K_ACT_BF16 ? K_KV_BF16 : K_KV_F32;
}

/* A value as a cache of this type (not K_KV_ACT) holds it. */
K_HD float k_kv_round(float x, int32_t type) {
    return type == K_KV_F16 ? k_round_f16(x) : type == K_KV_BF16 ? k_round_bf16(x) : x;
}

/* n values into a cache. */
static inline void k_kv_store(float *to, const float *x, int64_t n, const k_levers *lv) {
    const int32_t type = k_kv_type(lv);
    if (type == K_KV_F32)
        memcpy(to, x, (size_t)n * sizeof *to);
    else
        for (int64_t i = 0; i < n; i++) to[i] = k_kv_round(x[i], type);
}

#endif
