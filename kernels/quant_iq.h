/* quant_iq.h: super-blocks of 256 whose codes are rows of a code book: IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S,
 * and IQ4_XS with its level table. Eight groups of 32 (b), four quarters of 8 (l).
 *
 * computes  step x magnitude, negated where the sign bit is set; IQ1: step x (grid + delta)
 * rounds    never (gguf-quants.md 2.2)
 * special   the sign is applied after the product, so a zero step gives -0 where the sign bit is set
 * source    gguf-quants.md 2.6, 2.7
 */
#ifndef K_QUANT_IQ_H
#define K_QUANT_IQ_H

#include "kernels/quant_grids.h"
#include "kernels/quant_scalar.h"

K_HD float k_signed(float v, uint32_t signs, int32_t j) {
    return signs >> j & 1 ? -v : v;
}

/* step of the types that store it as n + 1/2 */
K_HD float k_half_step(const uint8_t *b, uint32_t n, float f) {
    return k_f16_at(b, 0) * ((float)n + 0.5f) * f;
}

K_HD float k_at_IQ2_XXS(const uint8_t *b, int32_t e) {
    const uint8_t *g = b + 2 + 8 * (e / 32);
    int32_t l = e / 8 % 4, j = e % 8;
    uint32_t w = k_u32_at(g, 4);
    float m = (float)k_plane_iq2(K_TAB(k_iq2xxs_grid)[g[l]], j);
    return k_signed(k_half_step(b, w >> 28, 0.25f) * m, k_even_signs(w >> 7 * l & 127), j);
}

K_HD float k_at_IQ2_XS(const uint8_t *b, int32_t e) {
    uint32_t q = k_u16_at(b, 2 + 2 * (e / 8)), n = b[66 + e / 32] >> 4 * (e / 16 % 2) & 15;
    float m = (float)k_plane_iq2(K_TAB(k_iq2xs_grid)[q & 511], e % 8);
    return k_signed(k_half_step(b, n, 0.25f) * m, k_even_signs(q >> 9), e % 8);
}

K_HD float k_at_IQ2_S(const uint8_t *b, int32_t e) {
    uint32_t n = b[74 + e / 32] >> 4 * (e / 16 % 2) & 15, hi = b[66 + e / 32] >> 2 * (e / 8 % 4) & 3;
    float m = (float)k_plane_iq2(K_TAB(k_iq2s_grid)[b[2 + e / 8] | hi << 8], e % 8);
    return k_signed(k_half_step(b, n, 0.25f) * m, b[34 + e / 8], e % 8);
}

K_HD float k_at_IQ3_XXS(const uint8_t *b, int32_t e) {
    uint32_t w = k_u32_at(b, 66 + 4 * (e / 32));
    float m = (float)k_nib_iq3xxs(K_TAB(k_iq3xxs_grid)[b[2 + e / 4]], e % 4);
    return k_signed(k_half_step(b, w >> 28, 0.5f) * m, k_even_signs(w >> 7 * (e / 8 % 4) & 127), e % 8);
}

K_HD float k_at_IQ3_S(const uint8_t *b, int32_t e) {
    uint32_t n = b[106 + e / 64] >> 4 * (e / 32 % 2) & 15, hi = b[66 + e / 32] >> e / 4 % 8 & 1;
    float m = (float)k_nib_iq3s(K_TAB(k_iq3s_grid)[b[2 + e / 4] | hi << 8], e % 4);
    return k_signed(k_f16_at(b, 0) * (float)(1 + 2 * n) * m, b[74 + e / 8], e % 8);
}

K_HD float k_iq1_value(float step, uint32_t row, int32_t j, uint32_t down) {
    float g = (float)k_plane_iq1(row, j) + (down ? -0.125f : 0.125f);
    return step * g;
}

K_HD float k_at_IQ1_S(const uint8_t *b, int32_t e) {
    uint32_t h = k_u16_at(b, 34 + 2 * (e / 32));
    uint32_t row = K_TAB(k_iq1_grid)[b[2 + e / 8] | (h >> 3 * (e / 8 % 4) & 7) << 8];
    return k_iq1_value(k_f16_at(b, 0) * (float)(2 * (h >> 12 & 7) + 1), row, e % 8, h & 0x8000);
}

/* The binary16 scale of IQ1_M lies in the top nibbles of its four scale words. */
K_HD float k_iq1m_scale(const uint8_t *b) {
    uint32_t u = 0;
    for (int32_t i = 0; i < 4; i++) u |= (uint32_t)(b[49 + 2 * i] >> 4) << 4 * i;
    return k_f32_from_f16((uint16_t)u);
}

K_HD float k_at_IQ1_M(const uint8_t *b, int32_t e) {
    uint32_t c = k_u16_at(b, 48 + 2 * (e / 64)) >> 3 * (e / 16 % 4) & 7, n = b[32 + e / 16] >> 4 * (e / 8 % 2) & 15;
    uint32_t row = K_TAB(k_iq1_grid)[b[e / 8] | (n & 7) << 8];
    return k_iq1_value(k_iq1m_scale(b) * (float)(2 * c + 1), row, e % 8, n & 8);
}

K_HD int32_t k_scale_iq4xs(const uint8_t *b, int32_t g) {
    return (int32_t)((b[4 + g / 2] >> 4 * (g & 1) & 15) | (k_u16_at(b, 2) >> 2 * g & 3) << 4) - 32;
}

K_HD float k_at_IQ4_XS(const uint8_t *b, int32_t e) {
    int32_t g = e / 32, j = e % 32, n = b[8 + 16 * g + j % 16] >> (j < 16 ? 0 : 4) & 15;
    return k_f16_at(b, 0) * (float)k_scale_iq4xs(b, g) * (float)K_TAB(k_iq4_levels)[n];
}

#endif
