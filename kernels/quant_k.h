/* quant_k.h: super-blocks of 256 with scaled sub-blocks: Q2_K .. Q6_K, Q8_K, and the ternary TQ1_0, TQ2_0.
 *
 * computes  (d x sub-scale) x code, minus (dmin x sub-minimum) for Q2_K, Q4_K, Q5_K
 * rounds    once: the subtraction, or the product of Q8_K (whose scale is f32); all other products are exact
 * special   -0 as in the format's formulas
 * source    gguf-quants.md 2.5, 2.6
 */
#ifndef K_QUANT_K_H
#define K_QUANT_K_H

#include "kernels/quant_scalar.h"

/* Two bits of element e where a byte holds e, e + 32, e + 64, e + 96. */
K_HD int32_t k_crumb(const uint8_t *qs, int32_t e) {
    return qs[32 * (e / 128) + e % 32] >> 2 * (e % 128 / 32) & 3;
}

/* Six-bit scale and minimum j of Q4_K and Q5_K from the 12 packed bytes. */
K_HD int32_t k_scale6(const uint8_t *s, int32_t j) {
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}
K_HD int32_t k_min6(const uint8_t *s, int32_t j) {
    return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

K_HD int32_t k_scale_q3k(const uint8_t *s, int32_t j) {
    int32_t lo = j < 8 ? s[j] & 15 : s[j - 8] >> 4, hi = s[8 + j % 4] >> 2 * (j / 4) & 3;
    return (lo | hi << 4) - 32;
}

K_HD float k_at_Q2_K(const uint8_t *b, int32_t e) {
    int32_t s = b[e / 16];
    float p = k_f16_at(b, 80) * (float)(s & 15) * (float)k_crumb(b + 16, e);
    float m = k_f16_at(b, 82) * (float)(s >> 4);
    return p - m;
}

K_HD float k_at_Q3_K(const uint8_t *b, int32_t e) {
    int32_t q = k_crumb(b + 32, e) + 4 * (b[e % 32] >> e / 32 & 1) - 4;
    return k_f16_at(b, 108) * (float)k_scale_q3k(b + 96, e / 16) * (float)q;
}

/* The low four bits of Q4_K and Q5_K: a byte holds e and e + 32. */
K_HD int32_t k_nibble_k(const uint8_t *qs, int32_t e) {
    return qs[32 * (e / 64) + e % 32] >> 4 * (e / 32 % 2) & 15;
}

K_HD float k_scaled_min(const uint8_t *b, int32_t q, int32_t j) {
    float p = k_f16_at(b, 0) * (float)k_scale6(b + 4, j) * (float)q;
    float m = k_f16_at(b, 2) * (float)k_min6(b + 4, j);
    return p - m;
}

K_HD float k_at_Q4_K(const uint8_t *b, int32_t e) {
    return k_scaled_min(b, k_nibble_k(b + 16, e), e / 32);
}

K_HD float k_at_Q5_K(const uint8_t *b, int32_t e) {
    return k_scaled_min(b, k_nibble_k(b + 48, e) + 16 * (b[16 + e % 32] >> e / 32 & 1), e / 32);
}

/* A byte of the low bits holds e and e + 64. */
K_HD float k_at_Q6_K(const uint8_t *b, int32_t e) {
    int32_t n = e / 128, g = e % 128 / 32, l = e % 32;
    int32_t lo = b[64 * n + 32 * (g & 1) + l] >> 4 * (g >> 1) & 15, hi = b[128 + 32 * n + l] >> 2 * g & 3;
    return k_f16_at(b, 208) * (float)(int8_t)b[192 + e / 16] * (float)((lo | hi << 4) - 32);
}

K_HD float k_at_Q8_K(const uint8_t *b, int32_t e) {
    return k_bits_f32(k_u32_at(b, 0)) * (float)(int8_t)b[4 + e];
}
/* The code of x in a block of activations; r = -127 / the value of largest size. */
K_HD int32_t k_code_q8_K(float x, float r) {
    const float v = rintf(r * x);
    return v >= 127.0f ? 127 : v >= -127.0f ? (int32_t)v : 0; /* below -127 there is only NaN */
}

/* Five trits a byte: trit n is the leading base-3 digit of (byte x 3^n mod 256) / 256. */
K_HD float k_at_TQ1_0(const uint8_t *b, int32_t e) {
    int32_t i, n;
    if (e < 160)
        i = e % 32, n = e / 32;
    else if (e < 240)
        i = 32 + (e - 160) % 16, n = (e - 160) / 16;
    else
        i = 48 + (e - 240) % 4, n = (e - 240) / 4;
    uint32_t v = b[i];
    for (; n > 0; n--) v = v * 3 & 255;
    return (float)((int32_t)(v * 3 >> 8) - 1) * k_f16_at(b, 52);
}

K_HD float k_at_TQ2_0(const uint8_t *b, int32_t e) {
    return (float)(k_crumb(b, e) - 1) * k_f16_at(b, 64);
}

#endif
