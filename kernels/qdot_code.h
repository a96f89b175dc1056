/* qdot_code.h: what a quantised product reads of a block of weights: whole-number codes, the whole-number scales of its
 * groups, and its scales in f32. Value of element e: d (or fs) x scale of its group x code, minus the minima.
 *
 * source    gguf-quants.md 2.4 to 2.7; the fields as the decoders of quant_*.h read them
 * Codes are those of arm (ii), gguf-quants.md 4.3. One text for gcc and nvcc.
 */
#ifndef K_QDOT_CODE_H
#define K_QDOT_CODE_H

#include "kernels/quant_all.h"

typedef struct {
    int8_t q[256];  /* codes; signed grid magnitudes for IQ2, IQ3 */
    int32_t sc[16]; /* scale of a group of `group` elements; 2 n + 1 where the type stores n and a half */
    int32_t mn[16]; /* Q2_K, Q4_K, Q5_K: minimum of a group; IQ1: sign of delta, of 32 (S) elements */
    int8_t sg[32];  /* IQ1_M: sign of delta, of 8 elements */
    float d, m;     /* scale and minimum (Q4_1, Q5_1) or scale of the minima */
    float fs[4];    /* NVFP4: scales of sixteen */
} k_qcodes;

K_HD int32_t k_signed_code(int32_t v, uint32_t signs, int32_t j) {
    return signs >> j & 1 ? -v : v;
}

/* Code e of a block. */
K_HD int32_t k_qcode(int32_t type, const uint8_t *b, int32_t e) {
    switch (type) {
    case K_T_Q4_0: return k_nibble(b + 2, e, 16) - 8;
    case K_T_Q4_1: return k_nibble(b + 4, e, 16);
    case K_T_Q5_0: return k_nibble(b + 6, e, 16) + 16 * k_bit(b + 2, e) - 16;
    case K_T_Q5_1: return k_nibble(b + 8, e, 16) + 16 * k_bit(b + 4, e);
    case K_T_Q8_0: return (int8_t)b[2 + e];
    case K_T_IQ4_NL: return K_TAB(k_iq4_levels)[k_nibble(b + 2, e, 16)];
    case K_T_MXFP4: return K_TAB(k_fp4_levels)[k_nibble(b + 1, e, 16)];
    case K_T_NVFP4: return K_TAB(k_fp4_levels)[k_nibble(b + 4 + 8 * (e / 16), e % 16, 8)];
    case K_T_Q1_0: return k_bit(b + 2, e) ? 1 : -1;
    case K_T_Q2_0: return (b[2 + e / 4] >> 2 * (e % 4) & 3) - 1;
    case K_T_Q2_K: return k_crumb(b + 16, e);
    case K_T_Q3_K: return k_crumb(b + 32, e) + 4 * (b[e % 32] >> e / 32 & 1) - 4;
    case K_T_Q4_K: return k_nibble_k(b + 16, e);
    case K_T_Q5_K: return k_nibble_k(b + 48, e) + 16 * (b[16 + e % 32] >> e / 32 & 1);
    case K_T_Q6_K: {
        int32_t n = e / 128, g = e % 128 / 32, l = e % 32;
        return ((b[64 * n + 32 * (g & 1) + l] >> 4 * (g >> 1) & 15) | (b[128 + 32 * n + l] >> 2 * g & 3) << 4) - 32;
    }
    case K_T_IQ2_XXS: {
        const uint8_t *g = b + 2 + 8 * (e / 32);
        int32_t l = e / 8 % 4;
        return k_signed_code((int32_t)k_plane_iq2(K_TAB(k_iq2xxs_grid)[g[l]], e % 8),
                             k_even_signs(k_u32_at(g, 4) >> 7 * l & 127), e % 8);
    }
    case K_T_IQ2_XS: {
        uint32_t q = k_u16_at(b, 2 + 2 * (e / 8));
        return k_signed_code((int32_t)k_plane_iq2(K_TAB(k_iq2xs_grid)[q & 511], e % 8), k_even_signs(q >> 9), e % 8);
    }
    case K_T_IQ2_S: {
        uint32_t hi = b[66 + e / 32] >> 2 * (e / 8 % 4) & 3;
        return k_signed_code((int32_t)k_plane_iq2(K_TAB(k_iq2s_grid)[b[2 + e / 8] | hi << 8], e % 8), b[34 + e / 8],
                             e % 8);
    }
    case K_T_IQ3_XXS:
        return k_signed_code((int32_t)k_nib_iq3xxs(K_TAB(k_iq3xxs_grid)[b[2 + e / 4]], e % 4),
                             k_even_signs(k_u32_at(b, 66 + 4 * (e / 32)) >> 7 * (e / 8 % 4) & 127), e % 8);
    case K_T_IQ3_S: {
        uint32_t hi = b[66 + e / 32] >> e / 4 % 8 & 1;
        return k_signed_code((int32_t)k_nib_iq3s(K_TAB(k_iq3s_grid)[b[2 + e / 4] | hi << 8], e % 4), b[74 + e / 8],
                             e % 8);
    }
    case K_T_IQ1_S: {
        uint32_t h = k_u16_at(b, 34 + 2 * (e / 32));
        return (int32_t)k_plane_iq1(K_TAB(k_iq1_grid)[b[2 + e / 8] | (h >> 3 * (e / 8 % 4) & 7) << 8], e % 8);
    }
    case K_T_IQ1_M: {
        uint32_t n = b[32 + e / 16] >> 4 * (e / 8 % 2) & 15;
        return (int32_t)k_plane_iq1(K_TAB(k_iq1_grid)[b[e / 8] | (n & 7) << 8], e % 8);
    }
    case K_T_IQ4_XS: return K_TAB(k_iq4_levels)[b[8 + 16 * (e / 32) + e % 16] >> (e % 32 < 16 ? 0 : 4) & 15];
    case K_T_TQ1_0: {
        int32_t i = e < 160 ? e % 32 : e < 240 ? 32 + (e - 160) % 16 : 48 + (e - 240) % 4;
        int32_t n = e < 160 ? e / 32 : e < 240 ? (e - 160) / 16 : (e - 240) / 4;
        uint32_t v = b[i];
        for (; n > 0; n--) v = v * 3 & 255;
        return (int32_t)(v * 3 >> 8) - 1;
    }
    case K_T_TQ2_0: return k_crumb(b, e) - 1;
    default: return 0;
    }
}

/* Elements that share a scale in k_qcodes.sc. */
K_HD int32_t k_qgroup(int32_t type) {
    switch (type) {
    case K_T_Q4_K:
    case K_T_Q5_K:
    case K_T_IQ2_XXS:
    case K_T_IQ3_XXS:
    case K_T_IQ3_S:
    case K_T_IQ1_S:
    case K_T_IQ4_XS: return 32;
    default: return 16;
    }
}

/* Scale of group j of a super-block, and its minimum or the sign of its delta. */
K_HD int32_t k_qscale(int32_t type, const uint8_t *b, int32_t j, int32_t *ret_min) {
    *ret_min = 0;
    switch (type) {
    case K_T_Q2_K: *ret_min = b[j] >> 4; return b[j] & 15;
    case K_T_Q3_K: return k_scale_q3k(b + 96, j);
    case K_T_Q4_K:
    case K_T_Q5_K: *ret_min = k_min6(b + 4, j); return k_scale6(b + 4, j);
    case K_T_Q6_K: return (int8_t)b[192 + j];
    case K_T_IQ2_XXS: return 2 * (int32_t)(k_u32_at(b + 2 + 8 * j, 4) >> 28) + 1;
    case K_T_IQ2_XS: return 2 * (b[66 + j / 2] >> 4 * (j % 2) & 15) + 1;
    case K_T_IQ2_S: return 2 * (b[74 + j / 2] >> 4 * (j % 2) & 15) + 1;
    case K_T_IQ3_XXS: return 2 * (int32_t)(k_u32_at(b, 66 + 4 * j) >> 28) + 1;
    case K_T_IQ3_S: return 2 * (b[106 + j / 2] >> 4 * (j % 2) & 15) + 1;
    case K_T_IQ1_S: {
        uint32_t h = k_u16_at(b, 34 + 2 * j);
        *ret_min = h & 0x8000 ? -1 : 1;
        return 2 * (int32_t)(h >> 12 & 7) + 1;
    }
    case K_T_IQ1_M: return 2 * (int32_t)(k_u16_at(b, 48 + 2 * (j / 4)) >> 3 * (j % 4) & 7) + 1;
    case K_T_IQ4_XS: return k_scale_iq4xs(b, j);
    default: return 1;
    }
}

/* The scale of a block in f32. */
K_HD float k_qblock_scale(int32_t type, const uint8_t *b) {
    switch (type) {
    case K_T_MXFP4: return k_e8m0_half(b[0]);
    case K_T_Q2_K: return k_f16_at(b, 80);
    case K_T_Q3_K: return k_f16_at(b, 108);
    case K_T_Q6_K: return k_f16_at(b, 208);
    case K_T_IQ1_M: return k_iq1m_scale(b);
    case K_T_TQ1_0: return k_f16_at(b, 52);
    case K_T_TQ2_0: return k_f16_at(b, 64);
    default: return k_f16_at(b, 0);
    }
}

/* Groups of a block of n elements that have a scale in k_qcodes. */
K_HD int32_t k_qgroups(int32_t type, int32_t n) {
    return n < 256 ? 0 : 256 / k_qgroup(type);
}

/* All but the codes, in pieces that know nothing of each other: what the block has once, group j, IQ1_M's sign g. */
K_HD void k_qcodes_block(int32_t type, const uint8_t *b, k_qcodes *c) {
    c->d = k_qblock_scale(type, b);
    c->m = type == K_T_Q2_K ? k_f16_at(b, 82) : k_f16_at(b, 2);
    if (type == K_T_NVFP4)
        for (int32_t s = 0; s < 4; s++) c->fs[s] = k_ue4m3_half(b[s]);
}
K_HD void k_qcodes_group(int32_t type, const uint8_t *b, int32_t j, k_qcodes *c) {
    c->sc[j] = k_qscale(type, b, j, &c->mn[j]);
}
K_HD int8_t k_qdelta(const uint8_t *b, int32_t g) {
    return (b[32 + g / 2] >> 4 * (g % 2) & 8) ? -1 : 1;
}

#endif
