/* quant_lane.cuh: the stored types as a warp reads them in order lanes32: lane l takes elements l, 32 + l, 64 + l, ...
 *
 * A group is 32 elements in a row of the file, one a lane. What they share (a scale, a minimum, a word of signs) is made
 * once, by one lane, as a pair of words; an element is then a few steps. Both are the scalar cores of quant_all.h taken
 * apart, products and sums in their order: the bits are theirs. A type without such a form goes through its core.
 */
#ifndef K_QUANT_LANE_CUH
#define K_QUANT_LANE_CUH

#include "kernels/quant.cuh"

typedef struct {
    float a;
    union {
        float b;
        uint32_t u;
    };
} k_shared;

/* b: the block; g: the group in it; l: the lane. */
template <int32_t TYPE> struct k_split { static constexpr bool grouped = false; };

static __device__ __forceinline__ k_shared k_share(float a, float b) {
    k_shared s;
    s.a = a;
    s.b = b;
    return s;
}
static __device__ __forceinline__ k_shared k_share_word(float a, uint32_t u) {
    k_shared s;
    s.a = a;
    s.u = u;
    return s;
}

/* A whole number below 2^23 as f32: exact, and without the slow conversion. */
static __device__ __forceinline__ float k_small(int32_t q) {
    return k_bits_f32(0x4b000000u | (uint32_t)q) - 8388608.0f;
}

template <> struct k_split<K_T_Q4_K> {
    static constexpr bool grouped = true;
    static __device__ __forceinline__ k_shared group(const uint8_t *b, int32_t g) {
        return k_share(k_f16_at(b, 0) * (float)k_scale6(b + 4, g), k_f16_at(b, 2) * (float)k_min6(b + 4, g));
    }
    static __device__ __forceinline__ float value(const uint8_t *b, int32_t g, int32_t l, k_shared s) {
        float p = s.a * k_small(k_nibble_k(b + 16, 32 * g + l));
        return p - s.b;
    }
};

template <> struct k_split<K_T_Q5_K> {
    static constexpr bool grouped = true;
    static __device__ __forceinline__ k_shared group(const uint8_t *b, int32_t g) {
        return k_split<K_T_Q4_K>::group(b, g);
    }
    static __device__ __forceinline__ float value(const uint8_t *b, int32_t g, int32_t l, k_shared s) {
        float p = s.a * k_small(k_nibble_k(b + 48, 32 * g + l) + 16 * (b[16 + l] >> g & 1));
        return p - s.b;
    }
};

/* Two scales a group. */
template <> struct k_split<K_T_Q6_K> {
    static constexpr bool grouped = true;
    static __device__ __forceinline__ k_shared group(const uint8_t *b, int32_t g) {
        const float d = k_f16_at(b, 208);
        return k_share(d * (float)(int8_t)b[192 + 2 * g], d * (float)(int8_t)b[193 + 2 * g]);
    }
    static __device__ __forceinline__ float value(const uint8_t *b, int32_t g, int32_t l, k_shared s) {
        int32_t n = g / 4, k = g % 4;
        int32_t lo = b[64 * n + 32 * (k & 1) + l] >> 4 * (k >> 1) & 15, hi = b[128 + 32 * n + l] >> 2 * k & 3;
        return (l < 16 ? s.a : s.b) * (k_small(lo | hi << 4) - 32.0f);
    }
};

template <> struct k_split<K_T_Q8_0> {
    static constexpr bool grouped = true;
    static __device__ __forceinline__ k_shared group(const uint8_t *b, int32_t) {
        return k_share(k_f16_at(b, 0), 0.0f);
    }
    static __device__ __forceinline__ float value(const uint8_t *b, int32_t, int32_t l, k_shared s) {
        return (k_small(b[2 + l] ^ 128) - 128.0f) * s.a;
    }
};

template <> struct k_split<K_T_Q4_0> {
    static constexpr bool grouped = true;
    static __device__ __forceinline__ k_shared group(const uint8_t *b, int32_t) {
        return k_share(k_f16_at(b, 0), 0.0f);
    }
    static __device__ __forceinline__ float value(const uint8_t *b, int32_t, int32_t l, k_shared s) {
        return (k_small(k_nibble(b + 2, l, 16)) - 8.0f) * s.a;
    }
};

template <> struct k_split<K_T_IQ4_NL> {
    static constexpr bool grouped = true;
    static __device__ __forceinline__ k_shared group(const uint8_t *b, int32_t) {
        return k_share(k_f16_at(b, 0), 0.0f);
    }
    static __device__ __forceinline__ float value(const uint8_t *b, int32_t, int32_t l, k_shared s) {
        return s.a * (float)K_TAB(k_iq4_levels)[k_nibble(b + 2, l, 16)];
    }
};

template <> struct k_split<K_T_IQ4_XS> {
    static constexpr bool grouped = true;
    static __device__ __forceinline__ k_shared group(const uint8_t *b, int32_t g) {
        return k_share(k_f16_at(b, 0) * (float)k_scale_iq4xs(b, g), 0.0f);
    }
    static __device__ __forceinline__ float value(const uint8_t *b, int32_t g, int32_t l, k_shared s) {
        return s.a * (float)K_TAB(k_iq4_levels)[k_nibble(b + 8 + 16 * g, l, 16)];
    }
};

template <> struct k_split<K_T_IQ2_XXS> {
    static constexpr bool grouped = true;
    static __device__ __forceinline__ k_shared group(const uint8_t *b, int32_t g) {
        const uint32_t w = k_u32_at(b + 2 + 8 * g, 4);
        return k_share_word(k_half_step(b, w >> 28, 0.25f), w);
    }
    static __device__ __forceinline__ float value(const uint8_t *b, int32_t g, int32_t l, k_shared s) {
        float m = k_small(k_plane_iq2(K_TAB(k_iq2xxs_grid)[b[2 + 8 * g + l / 8]], l % 8));
        return k_signed(s.a * m, k_even_signs(s.u >> 7 * (l / 8) & 127), l % 8);
    }
};

template <> struct k_split<K_T_IQ1_S> {
    static constexpr bool grouped = true;
    static __device__ __forceinline__ k_shared group(const uint8_t *b, int32_t g) {
        const uint32_t h = k_u16_at(b, 34 + 2 * g);
        return k_share_word(k_f16_at(b, 0) * (float)(2 * (h >> 12 & 7) + 1), h);
    }
    static __device__ __forceinline__ float value(const uint8_t *b, int32_t g, int32_t l, k_shared s) {
        uint32_t row = K_TAB(k_iq1_grid)[b[2 + 4 * g + l / 8] | (s.u >> 3 * (l / 8) & 7) << 8];
        return k_iq1_value(s.a, row, l % 8, s.u & 0x8000);
    }
};

#endif
