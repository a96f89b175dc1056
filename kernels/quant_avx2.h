/* quant_avx2.h: block decoders eight elements at a time. Private to quant.c; bits equal the scalar cores (quant_all.h),
 * which tests/t_quant.c checks for every type, because each product is exact and each minimum is one rounding.
 *
 * The shape of all: the integer codes of 32 elements in one register, then put32: widen, convert, scale, store.
 * Grid signs are folded into the codes: no grid magnitude is zero, so the sign of a zero product stays right.
 */
#ifndef K_QUANT_AVX2_H
#define K_QUANT_AVX2_H

#if defined(__AVX2__) && defined(__F16C__)
#define K_QUANT_AVX2 /* this machine has them */

#include <immintrin.h>

#include "kernels/quant_all.h"

#define AVX static inline __attribute__((always_inline))

AVX __m128i load128(const void *p) {
    return _mm_loadu_si128((const __m128i *)p);
}
AVX __m256i load256(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
AVX __m256i both(__m128i lo, __m128i hi) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
}
AVX __m256 splat(float x) {
    return _mm256_set1_ps(x);
}
AVX float half_at(const uint8_t *b, int o) {
    return _cvtsh_ss((uint16_t)k_u16_at(b, o));
}
AVX __m256i bytes(int x) {
    return _mm256_set1_epi8((char)x);
}

/* Eight codes in the low half of q. */
AVX __m256 widen8(__m128i q) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
}

/* 16 codes times d. */
AVX void put16(float *y, __m128i q, __m256 d) {
    _mm256_storeu_ps(y, _mm256_mul_ps(widen8(q), d));
    _mm256_storeu_ps(y + 8, _mm256_mul_ps(widen8(_mm_srli_si128(q, 8)), d));
}

/* 32 codes, a scale for each half. */
AVX void put32(float *y, __m256i q, __m256 d0, __m256 d1) {
    put16(y, _mm256_castsi256_si128(q), d0);
    put16(y + 16, _mm256_extracti128_si256(q, 1), d1);
}

/* 16 codes times d, plus or minus m: one rounding, the product being exact. */
AVX void put16_add(float *y, __m128i q, __m256 d, __m256 m) {
    _mm256_storeu_ps(y, _mm256_add_ps(_mm256_mul_ps(widen8(q), d), m));
    _mm256_storeu_ps(y + 8, _mm256_add_ps(_mm256_mul_ps(widen8(_mm_srli_si128(q, 8)), d), m));
}

AVX void put16_sub(float *y, __m128i q, __m256 d, __m256 m) {
    _mm256_storeu_ps(y, _mm256_sub_ps(_mm256_mul_ps(widen8(q), d), m));
    _mm256_storeu_ps(y + 8, _mm256_sub_ps(_mm256_mul_ps(widen8(_mm_srli_si128(q, 8)), d), m));
}

AVX void put32_add(float *y, __m256i q, __m256 d, __m256 m) {
    put16_add(y, _mm256_castsi256_si128(q), d, m);
    put16_add(y + 16, _mm256_extracti128_si256(q, 1), d, m);
}

AVX void put32_sub(float *y, __m256i q, __m256 d0, __m256 d1, __m256 m0, __m256 m1) {
    put16_sub(y, _mm256_castsi256_si128(q), d0, m0);
    put16_sub(y + 16, _mm256_extracti128_si256(q, 1), d1, m1);
}

/* 16 bytes to 32 nibbles: low ones first. */
AVX __m256i nibbles(const uint8_t *qs) {
    __m128i v = load128(qs);
    return _mm256_and_si256(both(v, _mm_srli_epi16(v, 4)), bytes(15));
}

AVX __m256i shift_right(__m256i v, int n, int mask) {
    return _mm256_and_si256(_mm256_srli_epi16(v, n), bytes(mask));
}

/* Byte masks (0 or 0xff) of the 32 bits of w, bit e for byte e. */
AVX __m256i bit_masks(uint32_t w) {
    const __m256i where = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)w), where), bit);
    return _mm256_cmpeq_epi8(v, bit);
}

/* ---- one element a block ---- */

static void avx2_F16(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n >= 8; n -= 8, b += 16, y += 8) _mm256_storeu_ps(y, _mm256_cvtph_ps(load128(b)));
    for (int32_t i = 0; i < n; i++) y[i] = k_at_F16(b, i);
}

static void avx2_BF16(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n >= 8; n -= 8, b += 16, y += 8) {
        __m256i v = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(b)), 16);
        _mm256_storeu_ps(y, _mm256_castsi256_ps(v));
    }
    for (int32_t i = 0; i < n; i++) y[i] = k_at_BF16(b, i);
}

/* ---- the 32-element family ---- */

static void avx2_Q4_0(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 18, y += 32) {
        __m256 d = splat(half_at(b, 0));
        put32(y, _mm256_sub_epi8(nibbles(b + 2), bytes(8)), d, d);
    }
}

static void avx2_Q4_1(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 20, y += 32) put32_add(y, nibbles(b + 4), splat(half_at(b, 0)), splat(half_at(b, 2)));
}

/* Nibbles at qs with a fifth bit from h. */
AVX __m256i five_bits(const uint8_t *qs, uint32_t h) {
    return _mm256_or_si256(nibbles(qs), _mm256_and_si256(bit_masks(h), bytes(16)));
}

static void avx2_Q5_0(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 22, y += 32) {
        __m256 d = splat(half_at(b, 0));
        put32(y, _mm256_sub_epi8(five_bits(b + 6, k_u32_at(b, 2)), bytes(16)), d, d);
    }
}

static void avx2_Q5_1(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 24, y += 32)
        put32_add(y, five_bits(b + 8, k_u32_at(b, 4)), splat(half_at(b, 0)), splat(half_at(b, 2)));
}

static void avx2_Q8_0(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 34, y += 32) {
        __m256 d = splat(half_at(b, 0));
        put32(y, load256(b + 2), d, d);
    }
}

static void avx2_Q8_1(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 36, y += 32) {
        __m256 d = splat(half_at(b, 0));
        put32(y, load256(b + 4), d, d);
    }
}

AVX __m256i levels(const int8_t *table, __m256i code) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(table)), code);
}

static void avx2_IQ4_NL(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 18, y += 32) {
        __m256 d = splat(half_at(b, 0));
        put32(y, levels(k_iq4_levels, nibbles(b + 2)), d, d);
    }
}

static void avx2_MXFP4(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 17, y += 32) {
        __m256 d = splat(k_e8m0_half(b[0]));
        put32(y, levels(k_fp4_levels, nibbles(b + 1)), d, d);
    }
}

static void avx2_NVFP4(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 36, y += 64) {
        for (int s = 0; s < 4; s += 2) { /* 8 bytes are 16 elements: low nibbles, then high ones */
            __m256i v = nibbles(b + 4 + 8 * s);
            v = _mm256_permute4x64_epi64(v, 0xd8);
            put32(y + 16 * s, levels(k_fp4_levels, v), splat(k_ue4m3_half(b[s])), splat(k_ue4m3_half(b[s + 1])));
        }
    }
}

static void avx2_Q1_0(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    for (; n > 0; n--, b += 18, y += 128) {
        __m256 d = splat(half_at(b, 0));
        for (int i = 0; i < 16; i++) {
            __m256i clear =
                _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(b[2 + i]), bit), _mm256_setzero_si256());
            __m256i sign = _mm256_slli_epi32(clear, 31);
            _mm256_storeu_ps(y + 8 * i, _mm256_xor_ps(d, _mm256_castsi256_ps(sign)));
        }
    }
}

static void avx2_Q2_0(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    const __m128i three = _mm_set1_epi8(3), one = _mm_set1_epi8(1);
    for (; n > 0; n--, b += 18, y += 64) {
        __m256 d = splat(half_at(b, 0));
        __m128i v = load128(b + 2), v0 = _mm_and_si128(v, three), v1 = _mm_and_si128(_mm_srli_epi16(v, 2), three);
        __m128i v2 = _mm_and_si128(_mm_srli_epi16(v, 4), three), v3 = _mm_and_si128(_mm_srli_epi16(v, 6), three);
        __m128i lo01 = _mm_unpacklo_epi8(v0, v1), hi01 = _mm_unpackhi_epi8(v0, v1);
        __m128i lo23 = _mm_unpacklo_epi8(v2, v3), hi23 = _mm_unpackhi_epi8(v2, v3);
        put16(y, _mm_sub_epi8(_mm_unpacklo_epi16(lo01, lo23), one), d);
        put16(y + 16, _mm_sub_epi8(_mm_unpackhi_epi16(lo01, lo23), one), d);
        put16(y + 32, _mm_sub_epi8(_mm_unpacklo_epi16(hi01, hi23), one), d);
        put16(y + 48, _mm_sub_epi8(_mm_unpackhi_epi16(hi01, hi23), one), d);
    }
}

/* ---- ternary ---- */

static void avx2_TQ2_0(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 66, y += 256) {
        __m256 d = splat(half_at(b, 64));
        for (int h = 0; h < 2; h++) {
            __m256i v = load256(b + 32 * h);
            for (int l = 0; l < 4; l++)
                put32(y + 128 * h + 32 * l, _mm256_sub_epi8(shift_right(v, 2 * l, 3), bytes(1)), d, d);
        }
    }
}

/* The leading trit, less one: (3 v) >> 8 counts the thresholds 86 and 171 that v reaches. */
AVX __m256i trit(__m256i v) {
    __m256i one = _mm256_cmpeq_epi8(_mm256_max_epu8(v, bytes(86)), v);
    __m256i two = _mm256_cmpeq_epi8(_mm256_max_epu8(v, bytes(171)), v);
    return _mm256_sub_epi8(_mm256_sub_epi8(bytes(-1), one), two);
}

AVX __m256i times3(__m256i v) {
    return _mm256_add_epi8(_mm256_add_epi8(v, v), v);
}

static void avx2_TQ1_0(const void *src, float *y, int64_t n) {
    const uint8_t *b = (const uint8_t *)src;
    for (; n > 0; n--, b += 54, y += 256) {
        __m256 d = splat(half_at(b, 52));
        __m256i v = load256(b), w = _mm256_castsi128_si256(load128(b + 32));
        for (int i = 0; i < 5; i++, v = times3(v), w = times3(w)) {
            put32(y + 32 * i, trit(v), d, d);
            put16(y + 160 + 16 * i, _mm256_castsi256_si128(trit(w)), d);
        }
        for (int32_t e = 240; e < 256; e++) y[e] = k_at_TQ1_0(b, e);
    }
}

#endif
#endif
