/* quant_avx2_k.h: the super-blocks of 256, eight elements at a time. Private to quant.c; see quant_avx2.h. */
#ifndef K_QUANT_AVX2_K_H
#define K_QUANT_AVX2_K_H

#include "kernels/quant_avx2.h"

#ifdef K_QUANT_AVX2

/* d times 16 small integers (unsigned or signed bytes), as floats. */
AVX void scales16(float *y, __m128i q, float d) {
    __m256 f = splat(d);
    put16(y, q, f);
}

static void avx2_Q2_K(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    const __m128i low = _mm_set1_epi8(15);
    float d[16], m[16];
    for (; n > 0; n--, b += 84, y += 256) {
        __m128i s = load128(b);
        scales16(d, _mm_and_si128(s, low), half_at(b, 80));
        scales16(m, _mm_and_si128(_mm_srli_epi16(s, 4), low), half_at(b, 82));
        for (int h = 0; h < 2; h++) {
            __m256i v = load256(b + 16 + 32 * h);
            for (int l = 0; l < 4; l++) {
                int j = 8 * h + 2 * l;
                put32_sub(y + 16 * j, shift_right(v, 2 * l, 3), splat(d[j]), splat(d[j + 1]), splat(m[j]),
                          splat(m[j + 1]));
            }
        }
    }
}

static void avx2_Q3_K(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    float d[16];
    int8_t s[16];
    for (; n > 0; n--, b += 110, y += 256) {
        __m256i mask = load256(b);
        for (int j = 0; j < 16; j++) s[j] = (int8_t)k_scale_q3k(b + 96, j);
        scales16(d, load128(s), half_at(b, 108));
        for (int h = 0; h < 2; h++) {
            __m256i v = load256(b + 32 + 32 * h);
            for (int l = 0; l < 4; l++) {
                int j = 8 * h + 2 * l;
                __m256i bit = bytes(1 << (4 * h + l)),
                        off = _mm256_cmpeq_epi8(_mm256_and_si256(mask, bit), _mm256_setzero_si256());
                __m256i q = _mm256_sub_epi8(shift_right(v, 2 * l, 3), _mm256_and_si256(off, bytes(4)));
                put32(y + 16 * j, q, splat(d[j]), splat(d[j + 1]));
            }
        }
    }
}

/* Eight scaled sub-scales and sub-minimums of Q4_K and Q5_K. */
AVX void scales6(const uint8_t *b, float d[8], float m[8]) {
    uint32_t a = k_u32_at(b, 4), c = k_u32_at(b, 8), e = k_u32_at(b, 12);
    uint64_t sc = (uint64_t)((e & 0x0f0f0f0f) | (a >> 2 & 0x30303030)) << 32 | (a & 0x3f3f3f3f);
    uint64_t mn = (uint64_t)((e >> 4 & 0x0f0f0f0f) | (c >> 2 & 0x30303030)) << 32 | (c & 0x3f3f3f3f);
    __m256 fd = widen8(_mm_cvtsi64_si128((int64_t)sc)), fm = widen8(_mm_cvtsi64_si128((int64_t)mn));
    _mm256_storeu_ps(d, _mm256_mul_ps(splat(half_at(b, 0)), fd));
    _mm256_storeu_ps(m, _mm256_mul_ps(splat(half_at(b, 2)), fm));
}

static void avx2_Q4_K(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    float d[8], m[8];
    for (; n > 0; n--, b += 144, y += 256) {
        scales6(b, d, m);
        for (int p = 0; p < 4; p++) {
            __m256i v = load256(b + 16 + 32 * p);
            for (int l = 0; l < 2; l++) {
                int j = 2 * p + l;
                __m256 dj = splat(d[j]), mj = splat(m[j]);
                put32_sub(y + 32 * j, shift_right(v, 4 * l, 15), dj, dj, mj, mj);
            }
        }
    }
}

static void avx2_Q5_K(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    float d[8], m[8];
    for (; n > 0; n--, b += 176, y += 256) {
        scales6(b, d, m);
        __m256i high = load256(b + 16);
        for (int p = 0; p < 4; p++) {
            __m256i v = load256(b + 48 + 32 * p);
            for (int l = 0; l < 2; l++) {
                int j = 2 * p + l;
                __m256 dj = splat(d[j]), mj = splat(m[j]);
                __m256i h = _mm256_slli_epi16(shift_right(high, j, 1), 4);
                put32_sub(y + 32 * j, _mm256_or_si256(shift_right(v, 4 * l, 15), h), dj, dj, mj, mj);
            }
        }
    }
}

static void avx2_Q6_K(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    float d[16];
    for (; n > 0; n--, b += 210, y += 256) {
        scales16(d, load128(b + 192), half_at(b, 208));
        for (int h = 0; h < 2; h++) {
            __m256i l0 = load256(b + 64 * h), l1 = load256(b + 64 * h + 32), hi = load256(b + 128 + 32 * h);
            for (int g = 0; g < 4; g++) {
                int j = 8 * h + 2 * g;
                __m256i lo = shift_right(g & 1 ? l1 : l0, g & 2 ? 4 : 0, 15);
                __m256i q = _mm256_or_si256(lo, _mm256_slli_epi16(shift_right(hi, 2 * g, 3), 4));
                put32(y + 16 * j, _mm256_sub_epi8(q, bytes(32)), splat(d[j]), splat(d[j + 1]));
            }
        }
    }
}

static void avx2_Q8_K(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 292, y += 256) {
        __m256 d = splat(k_bits_f32(k_u32_at(b, 0)));
        for (int i = 0; i < 256; i += 32) put32(y + i, load256(b + 4 + i), d, d);
    }
}

static void avx2_IQ4_XS(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 136, y += 256) {
        float d = half_at(b, 0);
        for (int g = 0; g < 8; g++) {
            __m256 s = splat(d * (float)k_scale_iq4xs(b, g));
            put32(y + 32 * g, levels(k_iq4_levels, nibbles(b + 8 + 16 * g)), s, s);
        }
    }
}

/* ---- code books ---- */

AVX uint64_t four_rows(const uint16_t *grid, uint32_t i0, uint32_t i1, uint32_t i2, uint32_t i3) {
    return (uint64_t)grid[i0] | (uint64_t)grid[i1] << 16 | (uint64_t)grid[i2] << 32 | (uint64_t)grid[i3] << 48;
}

/* The two bit planes of four rows as byte masks of 32 elements. */
AVX void planes(uint64_t rows, __m256i *p0, __m256i *p1) {
    const __m256i where = _mm256_setr_epi64x(0, 0x0202020202020202, 0x0404040404040404, 0x0606060606060606);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i v = _mm256_set1_epi64x((int64_t)rows);
    __m256i a = _mm256_shuffle_epi8(v, where), b = _mm256_shuffle_epi8(v, _mm256_add_epi8(where, bytes(1)));
    *p0 = _mm256_cmpeq_epi8(_mm256_and_si256(a, bit), bit);
    *p1 = _mm256_cmpeq_epi8(_mm256_and_si256(b, bit), bit);
}

AVX __m256i negate_where(__m256i v, __m256i mask) {
    return _mm256_sub_epi8(_mm256_xor_si256(v, mask), mask);
}

/* 32 signed IQ2 codes. */
AVX __m256i iq2_codes(uint64_t rows, uint32_t signs) {
    __m256i p0, p1;
    planes(rows, &p0, &p1);
    __m256i v = _mm256_add_epi8(_mm256_and_si256(p0, bytes(17)), _mm256_and_si256(p1, bytes(35)));
    return negate_where(_mm256_add_epi8(v, bytes(8)), bit_masks(signs));
}

/* Four 7-bit sign codes, one a byte, to four sign bytes of even parity. */
AVX uint32_t even_signs4(uint32_t c) {
    uint32_t p = c ^ (c >> 4 & 0x07070707);
    p ^= p >> 2;
    p ^= p >> 1;
    return c | (p & 0x01010101) << 7;
}

/* The 28 sign bits of a group word, seven to a byte. */
AVX uint32_t spread7(uint32_t w) {
    return (w & 0x7f) | (w & 0x3f80) << 1 | (w & 0x1fc000) << 2 | (w & 0xfe00000) << 3;
}

static void avx2_IQ2_XXS(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 66, y += 256) {
        float d = half_at(b, 0);
        for (int g = 0; g < 8; g++) {
            const uint8_t *p = b + 2 + 8 * g;
            uint32_t w = k_u32_at(p, 4);
            uint64_t rows = four_rows(k_iq2xxs_grid, p[0], p[1], p[2], p[3]);
            __m256 s = splat(d * ((float)(w >> 28) + 0.5f) * 0.25f);
            put32(y + 32 * g, iq2_codes(rows, even_signs4(spread7(w))), s, s);
        }
    }
}

/* The two steps of a group of 32 (IQ2_XS, IQ2_S), from their nibbles. */
AVX void put_iq2(float *y, __m256i q, float d, uint32_t nibs) {
    put32(y, q, splat(d * ((float)(nibs & 15) + 0.5f) * 0.25f), splat(d * ((float)(nibs >> 4) + 0.5f) * 0.25f));
}

static void avx2_IQ2_XS(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 74, y += 256) {
        float d = half_at(b, 0);
        for (int g = 0; g < 8; g++) {
            uint32_t lo = k_u32_at(b, 2 + 8 * g), hi = k_u32_at(b, 6 + 8 * g);
            uint64_t rows = four_rows(k_iq2xs_grid, lo & 511, lo >> 16 & 511, hi & 511, hi >> 16 & 511);
            uint32_t c = (lo >> 9 & 0x7f) | (lo >> 25) << 8 | (hi >> 9 & 0x7f) << 16 | (hi >> 25) << 24;
            put_iq2(y + 32 * g, iq2_codes(rows, even_signs4(c)), d, b[66 + g]);
        }
    }
}

static void avx2_IQ2_S(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 82, y += 256) {
        float d = half_at(b, 0);
        for (int g = 0; g < 8; g++) {
            const uint8_t *q = b + 2 + 4 * g;
            uint32_t h = b[66 + g];
            uint64_t rows = four_rows(k_iq2s_grid, q[0] | (h & 3) << 8, q[1] | (h >> 2 & 3) << 8,
                                      q[2] | (h >> 4 & 3) << 8, q[3] | (h >> 6) << 8);
            put_iq2(y + 32 * g, iq2_codes(rows, k_u32_at(b, 34 + 4 * g)), d, b[74 + g]);
        }
    }
}

/* Eight rows of four nibbles to 32 magnitudes, then signs. */
AVX __m256i iq3_codes(const uint16_t *grid, const uint8_t *q, uint32_t high, __m256i values, uint32_t signs) {
    uint64_t a =
        four_rows(grid, q[0] | (high & 1) << 8, q[1] | (high & 2) << 7, q[2] | (high & 4) << 6, q[3] | (high & 8) << 5);
    uint64_t c = four_rows(grid, q[4] | (high & 16) << 4, q[5] | (high & 32) << 3, q[6] | (high & 64) << 2,
                           q[7] | (high & 128) << 1);
    __m128i v = _mm_set_epi64x((int64_t)c, (int64_t)a), lo = _mm_and_si128(v, _mm_set1_epi8(15));
    __m128i hi = _mm_and_si128(_mm_srli_epi16(v, 4), _mm_set1_epi8(15));
    __m256i code = both(_mm_unpacklo_epi8(lo, hi), _mm_unpackhi_epi8(lo, hi));
    return negate_where(_mm256_shuffle_epi8(values, code), bit_masks(signs));
}

static void avx2_IQ3_XXS(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    const __m256i values = _mm256_broadcastsi128_si256(_mm_set1_epi64x(0x3e342c241c140c04));
    for (; n > 0; n--, b += 98, y += 256) {
        float d = half_at(b, 0);
        for (int g = 0; g < 8; g++) {
            uint32_t w = k_u32_at(b, 66 + 4 * g);
            __m256 s = splat(d * ((float)(w >> 28) + 0.5f) * 0.5f);
            put32(y + 32 * g, iq3_codes(k_iq3xxs_grid, b + 2 + 8 * g, 0, values, even_signs4(spread7(w))), s, s);
        }
    }
}

static void avx2_IQ3_S(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    const __m256i values = _mm256_broadcastsi128_si256(_mm_set1_epi64x(0x0f0d0b0907050301));
    for (; n > 0; n--, b += 110, y += 256) {
        float d = half_at(b, 0);
        for (int g = 0; g < 8; g++) {
            uint32_t step = b[106 + g / 2] >> 4 * (g & 1) & 15;
            __m256 s = splat(d * (float)(1 + 2 * step));
            put32(y + 32 * g, iq3_codes(k_iq3s_grid, b + 2 + 8 * g, b[66 + g], values, k_u32_at(b, 74 + 4 * g)), s, s);
        }
    }
}

/* 32 IQ1 codes in eighths: 8 (grid + delta); delta8 holds +1 or -1. */
AVX __m256i iq1_codes(uint64_t rows, __m256i delta8) {
    __m256i up, down;
    planes(rows, &up, &down);
    __m256i v = _mm256_sub_epi8(_mm256_and_si256(up, bytes(8)), _mm256_and_si256(down, bytes(8)));
    return _mm256_add_epi8(v, delta8);
}

static void avx2_IQ1_S(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 50, y += 256) {
        float d = half_at(b, 0) * 0.125f;
        for (int g = 0; g < 8; g++) {
            const uint8_t *q = b + 2 + 4 * g;
            uint32_t h = k_u16_at(b, 34 + 2 * g);
            uint64_t rows = four_rows(k_iq1_grid, q[0] | (h & 7) << 8, q[1] | (h >> 3 & 7) << 8,
                                      q[2] | (h >> 6 & 7) << 8, q[3] | (h >> 9 & 7) << 8);
            __m256 s = splat(d * (float)(2 * (h >> 12 & 7) + 1));
            put32(y + 32 * g, iq1_codes(rows, bytes(h & 0x8000 ? -1 : 1)), s, s);
        }
    }
}

static void avx2_IQ1_M(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 56, y += 256) {
        float d = k_iq1m_scale(b) * 0.125f;
        for (int g = 0; g < 8; g++) {
            const uint8_t *q = b + 4 * g;
            uint32_t h = k_u16_at(b, 32 + 2 * g), c = k_u16_at(b, 48 + 2 * (g / 2)) >> 6 * (g & 1);
            uint64_t rows = four_rows(k_iq1_grid, q[0] | (h & 7) << 8, q[1] | (h >> 4 & 7) << 8,
                                      q[2] | (h >> 8 & 7) << 8, q[3] | (h >> 12 & 7) << 8);
            __m256i where = _mm256_setr_epi64x(0x08, 0x80, 0x800, 0x8000);
            __m256i up = _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(h), where), _mm256_setzero_si256());
            __m256i delta8 = _mm256_or_si256(_mm256_andnot_si256(up, bytes(-1)), _mm256_and_si256(up, bytes(1)));
            put32(y + 32 * g, iq1_codes(rows, delta8), splat(d * (float)(2 * (c & 7) + 1)),
                  splat(d * (float)(2 * (c >> 3 & 7) + 1)));
        }
    }
}

#endif
#endif
