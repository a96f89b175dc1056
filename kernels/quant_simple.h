/* quant_simple.h: one scale a block (or a sixteenth): Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 IQ4_NL MXFP4 NVFP4 Q1_0 Q2_0.
 *
 * computes  scale x code, plus the minimum for Q4_1 and Q5_1. A nibble byte j holds element j low and j + n/2 high.
 * rounds    once, only where a minimum is added; every product is exact (gguf-quants.md 2.2)
 * special   a zero code times a negative scale is -0, as in the format's formulas
 * source    gguf-quants.md 2.3, 2.4
 */
#ifndef K_QUANT_SIMPLE_H
#define K_QUANT_SIMPLE_H

#include "kernels/quant_grids.h"
#include "kernels/quant_scalar.h"

/* Code e of 2 n nibbles in n bytes. */
K_HD int32_t k_nibble(const uint8_t *qs, int32_t e, int32_t n) {
    return (e < n ? qs[e] : qs[e - n] >> 4) & 15;
}

/* Bit e of a bit string, low bits first. */
K_HD int32_t k_bit(const uint8_t *bits, int32_t e) {
    return bits[e / 8] >> (e % 8) & 1;
}

K_HD float k_at_Q4_0(const uint8_t *b, int32_t e) {
    return (float)(k_nibble(b + 2, e, 16) - 8) * k_f16_at(b, 0);
}

K_HD float k_at_Q4_1(const uint8_t *b, int32_t e) {
    float p = (float)k_nibble(b + 4, e, 16) * k_f16_at(b, 0);
    return p + k_f16_at(b, 2);
}

K_HD float k_at_Q5_0(const uint8_t *b, int32_t e) {
    return (float)(k_nibble(b + 6, e, 16) + 16 * k_bit(b + 2, e) - 16) * k_f16_at(b, 0);
}

K_HD float k_at_Q5_1(const uint8_t *b, int32_t e) {
    float p = (float)(k_nibble(b + 8, e, 16) + 16 * k_bit(b + 4, e)) * k_f16_at(b, 0);
    return p + k_f16_at(b, 2);
}

K_HD float k_at_Q8_0(const uint8_t *b, int32_t e) {
    return (float)(int8_t)b[2 + e] * k_f16_at(b, 0);
}
K_HD float k_at_Q8_1(const uint8_t *b, int32_t e) {
    return (float)(int8_t)b[4 + e] * k_f16_at(b, 0);
}

K_HD float k_at_IQ4_NL(const uint8_t *b, int32_t e) {
    return k_f16_at(b, 0) * (float)K_TAB(k_iq4_levels)[k_nibble(b + 2, e, 16)];
}

/* Half of the E8M0 scale: 2^(c - 128), subnormal for c < 2. */
K_HD float k_e8m0_half(uint32_t c) {
    return k_bits_f32(c < 2 ? 0x200000u << c : (c - 1) << 23);
}

K_HD float k_at_MXFP4(const uint8_t *b, int32_t e) {
    return (float)K_TAB(k_fp4_levels)[k_nibble(b + 1, e, 16)] * k_e8m0_half(b[0]);
}

/* Half of the UE4M3 scale; bit 7 is ignored, codes 0 and 0x7f are zero. */
K_HD float k_ue4m3_half(uint32_t c) {
    uint32_t e = c >> 3 & 15, m = c & 7;
    if (c == 0x7f) return 0.0f;
    if (e == 0) return (float)m * 0x1p-10f;
    return (float)(8 + m) * k_bits_f32((e + 127 - 11) << 23);
}

K_HD float k_at_NVFP4(const uint8_t *b, int32_t e) {
    int32_t s = e / 16;
    return (float)K_TAB(k_fp4_levels)[k_nibble(b + 4 + 8 * s, e % 16, 8)] * k_ue4m3_half(b[s]);
}

K_HD float k_at_Q1_0(const uint8_t *b, int32_t e) {
    float d = k_f16_at(b, 0);
    return k_bit(b + 2, e) ? d : -d;
}

K_HD float k_at_Q2_0(const uint8_t *b, int32_t e) {
    return (float)((b[2 + e / 4] >> 2 * (e % 4) & 3) - 1) * k_f16_at(b, 0);
}

#endif
