/* quant_eight.cuh: the stored types as a lane reads them that holds eight accumulators of order lanes32: elements 8 t
 * .. 8 t + 7 of a group of 32, t = 0 .. 3.
 *
 * Eight elements in a row share a scale, a word of signs and a row of a code book in every type, so that a value costs
 * a few steps. All are the scalar cores of quant_all.h taken apart, with their bits: a product that is exact there may
 * be part of a fused step here. A type without such a form goes through its core.
 */
#ifndef K_QUANT_EIGHT_CUH
#define K_QUANT_EIGHT_CUH

#include "kernels/quant.cuh"

/* What a block has once. */
typedef struct {
    float d, m;
} k_head;

/* Levels of the 4-bit code book in f32, in shared memory. */
enum { K_LEVELS = 16 };

/* Eight bytes at p, whatever its alignment, by words of shared memory: up to four bytes behind them are read. */
static __device__ __forceinline__ void k_eight_bytes(const uint8_t *p, uint32_t w[2]) {
    const uint32_t skew = (uint32_t)((uintptr_t)p % 4), *a = (const uint32_t *)(const void *)(p - skew);
    w[0] = __funnelshift_r(a[0], a[1], 8 * skew);
    w[1] = __funnelshift_r(a[1], a[2], 8 * skew);
}

/* k_f16_at without branches: the product is exact, subnormals included. */
static __device__ __forceinline__ float k_half_at(const uint8_t *b, int32_t o) {
    const uint32_t h = k_u16_at(b, o), m = (h & 0x7fffu) << 13;
    const float v = k_bits_f32(m) * 0x1p112f;
    const uint32_t u = m >= 0x0f800000u ? m | 0x7f800000u : k_f32_bits(v);
    return k_bits_f32(u | (h & 0x8000u) << 16);
}

/* Byte j of a word as 2^23 + byte: the slow conversion of whole numbers is not needed. */
static __device__ __forceinline__ float k_byte_up(uint32_t w, int32_t j) {
    return k_bits_f32(__byte_perm(w, 0x4b000000u, 0x7440u + (uint32_t)j));
}
static constexpr float k_up = 8388608.0f;

/* scale x (code - zero), codes by bytes. */
static __device__ __forceinline__ void k_scaled(const uint32_t w[2], float zero, float scale, float v[8]) {
#pragma unroll
    for (int32_t j = 0; j < 8; j++) v[j] = scale * (k_byte_up(w[j / 4], j % 4) - (k_up + zero));
}
/* scale x code - min, rounded once: the product is exact. */
static __device__ __forceinline__ void k_less_min(const uint32_t w[2], float scale, float min, float v[8]) {
#pragma unroll
    for (int32_t j = 0; j < 8; j++) v[j] = fmaf(scale, k_byte_up(w[j / 4], j % 4) - k_up, -min);
}

/* b: the block; g: the group in it. */
template <int32_t TYPE> struct k_eight {
    static constexpr bool own = false;
    static __device__ __forceinline__ k_head head(const uint8_t *) {
        k_head h = {0.0f, 0.0f};
        return h;
    }
    static __device__ __forceinline__ void values(const uint8_t *b, k_head, int32_t g, int32_t t, const float *,
                                                  float v[8]) {
#pragma unroll
        for (int32_t j = 0; j < 8; j++) v[j] = k_stored<TYPE>::in(b, 32 * g + 8 * t + j);
    }
};

/* Types whose block begins with its scale. */
struct k_eight_scaled {
    static constexpr bool own = true;
    static __device__ __forceinline__ k_head head(const uint8_t *b) {
        k_head h = {k_half_at(b, 0), 0.0f};
        return h;
    }
};

template <> struct k_eight<K_T_Q8_0> : k_eight_scaled {
    static __device__ __forceinline__ void values(const uint8_t *b, k_head h, int32_t, int32_t t, const float *,
                                                  float v[8]) {
        uint32_t w[2];
        k_eight_bytes(b + 2 + 8 * t, w);
        w[0] ^= 0x80808080u;
        w[1] ^= 0x80808080u;
        k_scaled(w, 128.0f, h.d, v);
    }
};

/* Nibbles of a block of 32: bytes hold j and j + 16. */
static __device__ __forceinline__ void k_nibbles(const uint8_t *qs, int32_t t, uint32_t w[2]) {
    k_eight_bytes(qs + 8 * (t % 2), w);
    w[0] = w[0] >> 4 * (t / 2) & 0x0f0f0f0fu;
    w[1] = w[1] >> 4 * (t / 2) & 0x0f0f0f0fu;
}

template <> struct k_eight<K_T_Q4_0> : k_eight_scaled {
    static __device__ __forceinline__ void values(const uint8_t *b, k_head h, int32_t, int32_t t, const float *,
                                                  float v[8]) {
        uint32_t w[2];
        k_nibbles(b + 2, t, w);
        k_scaled(w, 8.0f, h.d, v);
    }
};

static __device__ __forceinline__ void k_leveled(const uint32_t w[2], float scale, const float *levels, float v[8]) {
#pragma unroll
    for (int32_t j = 0; j < 8; j++) v[j] = scale * levels[w[j / 4] >> 8 * (j % 4) & 15];
}

template <> struct k_eight<K_T_IQ4_NL> : k_eight_scaled {
    static __device__ __forceinline__ void values(const uint8_t *b, k_head h, int32_t, int32_t t, const float *levels,
                                                  float v[8]) {
        uint32_t w[2];
        k_nibbles(b + 2, t, w);
        k_leveled(w, h.d, levels, v);
    }
};

template <> struct k_eight<K_T_IQ4_XS> : k_eight_scaled {
    static __device__ __forceinline__ void values(const uint8_t *b, k_head h, int32_t g, int32_t t, const float *levels,
                                                  float v[8]) {
        uint32_t w[2];
        k_nibbles(b + 8 + 16 * g, t, w);
        k_leveled(w, h.d * (float)k_scale_iq4xs(b, g), levels, v);
    }
};

struct k_eight_min {
    static constexpr bool own = true;
    static __device__ __forceinline__ k_head head(const uint8_t *b) {
        k_head h = {k_half_at(b, 0), k_half_at(b, 2)};
        return h;
    }
    static __device__ __forceinline__ void out(const uint8_t *b, k_head h, int32_t g, const uint32_t w[2], float v[8]) {
        k_less_min(w, h.d * (float)k_scale6(b + 4, g), h.m * (float)k_min6(b + 4, g), v);
    }
    /* The low four bits: a byte holds e and e + 32. */
    static __device__ __forceinline__ void low(const uint8_t *qs, int32_t g, int32_t t, uint32_t w[2]) {
        k_eight_bytes(qs + 32 * (g / 2) + 8 * t, w);
        w[0] = w[0] >> 4 * (g % 2) & 0x0f0f0f0fu;
        w[1] = w[1] >> 4 * (g % 2) & 0x0f0f0f0fu;
    }
};

template <> struct k_eight<K_T_Q4_K> : k_eight_min {
    static __device__ __forceinline__ void values(const uint8_t *b, k_head h, int32_t g, int32_t t, const float *,
                                                  float v[8]) {
        uint32_t w[2];
        low(b + 16, g, t, w);
        out(b, h, g, w, v);
    }
};

template <> struct k_eight<K_T_Q5_K> : k_eight_min {
    static __device__ __forceinline__ void values(const uint8_t *b, k_head h, int32_t g, int32_t t, const float *,
                                                  float v[8]) {
        uint32_t w[2], hi[2];
        low(b + 48, g, t, w);
        k_eight_bytes(b + 16 + 8 * t, hi);
        w[0] |= (hi[0] >> g & 0x01010101u) << 4;
        w[1] |= (hi[1] >> g & 0x01010101u) << 4;
        out(b, h, g, w, v);
    }
};

template <> struct k_eight<K_T_Q6_K> {
    static constexpr bool own = true;
    static __device__ __forceinline__ k_head head(const uint8_t *b) {
        k_head h = {k_half_at(b, 208), 0.0f};
        return h;
    }
    static __device__ __forceinline__ void values(const uint8_t *b, k_head h, int32_t g, int32_t t, const float *,
                                                  float v[8]) {
        const int32_t n = g / 4, k = g % 4;
        uint32_t w[2], hi[2];
        k_eight_bytes(b + 64 * n + 32 * (k & 1) + 8 * t, w);
        k_eight_bytes(b + 128 + 32 * n + 8 * t, hi);
#pragma unroll
        for (int i = 0; i < 2; i++) w[i] = (w[i] >> 4 * (k >> 1) & 0x0f0f0f0fu) | (hi[i] >> 2 * k & 0x03030303u) << 4;
        k_scaled(w, 32.0f, h.d * (float)(int8_t)b[192 + 2 * g + t / 2], v);
    }
};

template <> struct k_eight<K_T_IQ2_XXS> : k_eight_scaled {
    static __device__ __forceinline__ void values(const uint8_t *b, k_head h, int32_t g, int32_t t, const float *,
                                                  float v[8]) {
        const uint8_t *at = b + 2 + 8 * g;
        const uint32_t w = k_u32_at(at, 4), row = K_TAB(k_iq2xxs_grid)[at[t]], signs = k_even_signs(w >> 7 * t & 127);
        const float step = h.d * ((float)(w >> 28) + 0.5f) * 0.25f, v8 = step * 8.0f, v25 = step * 25.0f,
                    v43 = step * 43.0f;
#pragma unroll
        for (int32_t j = 0; j < 8; j++) v[j] = k_signed(row >> (8 + j) & 1 ? v43 : row >> j & 1 ? v25 : v8, signs, j);
    }
};

template <> struct k_eight<K_T_IQ1_S> : k_eight_scaled {
    static __device__ __forceinline__ void values(const uint8_t *b, k_head h, int32_t g, int32_t t, const float *,
                                                  float v[8]) {
        const uint32_t q = k_u16_at(b, 34 + 2 * g), row = K_TAB(k_iq1_grid)[b[2 + 4 * g + t] | (q >> 3 * t & 7) << 8];
        const float step = h.d * (float)(2 * (q >> 12 & 7) + 1), delta = q & 0x8000 ? -0.125f : 0.125f;
        const float none = step * delta, plus = step * (1.0f + delta), minus = step * (-1.0f + delta);
#pragma unroll
        for (int32_t j = 0; j < 8; j++) v[j] = row >> j & 1 ? plus : row >> (8 + j) & 1 ? minus : none;
    }
};

/* Eight elements at p of the types whose block is one element, p at 16 bytes. */
template <int32_t TYPE> struct k_eight_wide { static constexpr bool own = false; };
template <> struct k_eight_wide<K_T_F32> {
    static constexpr bool own = true;
    static __device__ __forceinline__ void values(const uint8_t *p, float v[8]) {
        const k_word16 *w = (const k_word16 *)(const void *)p, a = w[0], b = w[1];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = k_bits_f32(a.v[j]);
            v[4 + j] = k_bits_f32(b.v[j]);
        }
    }
};
template <> struct k_eight_wide<K_T_BF16> {
    static constexpr bool own = true;
    static __device__ __forceinline__ void values(const uint8_t *p, float v[8]) {
        const k_word16 a = *(const k_word16 *)(const void *)p;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[2 * j] = k_bits_f32(a.v[j] << 16);
            v[2 * j + 1] = k_bits_f32(a.v[j] & 0xffff0000u);
        }
    }
};
template <> struct k_eight_wide<K_T_F16> {
    static constexpr bool own = true;
    static __device__ __forceinline__ void values(const uint8_t *p, float v[8]) {
        const k_word16 a = *(const k_word16 *)(const void *)p;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[2 * j] = k_f32_from_f16((uint16_t)(a.v[j] & 0xffff));
            v[2 * j + 1] = k_f32_from_f16((uint16_t)(a.v[j] >> 16));
        }
    }
};

#endif
