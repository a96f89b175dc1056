/* quant_four.cuh: the stored types as eight lanes read a row that holds the 32 accumulators of order lanes32: lane t has
 * elements 4 t .. 4 t + 3 of each group of 32.
 *
 * What a group has once, its scale and minimum, one lane works out for all eight (step); then a value costs a few
 * instructions. All are the scalar cores of quant_all.h taken apart, with their bits: a product that is exact there may
 * be part of a fused step here. A type without such a form goes through its core. Blocks lie in shared memory.
 */
#ifndef K_QUANT_FOUR_CUH
#define K_QUANT_FOUR_CUH

#include "kernels/quant.cuh"

/* What a group of 32 has once. */
typedef struct __attribute__((aligned(8))) {
    float a, b;
} k_step;

/* Four bytes at p by words of shared memory. ALIGNED: p is a multiple of 4; else up to four bytes behind them are
 * read. */
template <int32_t ALIGNED> static __device__ __forceinline__ uint32_t k_word_at(const uint8_t *p) {
    if (ALIGNED % 4 == 0) return *(const uint32_t *)(const void *)p;
    const uint32_t skew = (uint32_t)((uintptr_t)p % 4), *a = (const uint32_t *)(const void *)(p - skew);
    return __funnelshift_r(a[0], a[1], 8 * skew);
}

/* k_f32_from_f16 by the device's own conversion, which is exact; of NaN another one may come. */
static __device__ __forceinline__ float k_half(uint16_t h) {
#ifdef __CUDA_ARCH__
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
#else
    return k_f32_from_f16(h);
#endif
}
/* b: a multiple of 2. */
static __device__ __forceinline__ float k_half_at(const uint8_t *b) {
    return k_half(*(const uint16_t *)(const void *)b);
}

/* Byte j of a word as 2^23 + byte: the slow conversion of whole numbers is not needed. */
static __device__ __forceinline__ float k_byte_up(uint32_t w, int32_t j) {
    return k_bits_f32(__byte_perm(w, 0x4b000000u, 0x7440u + (uint32_t)j));
}
static constexpr float k_up = 8388608.0f;

/* scale x (code - zero), codes by bytes. */
static __device__ __forceinline__ void k_scaled(uint32_t w, float zero, float scale, float v[4]) {
#pragma unroll
    for (int32_t j = 0; j < 4; j++) v[j] = scale * (k_byte_up(w, j) - (k_up + zero));
}
/* The same in one step, which is exact: s.a 128 x scale, s.b scale x (128 + zero). Codes below 128, their top bit set;
 * the scale neither zero nor infinite, and no code is zero. */
static __device__ __forceinline__ void k_scaled_once(uint32_t w, k_step s, float v[4]) {
#pragma unroll
    for (int32_t j = 0; j < 4; j++)
        v[j] = fmaf(s.a, k_bits_f32(__byte_perm(w, 0x3f000000u, 0x7044u | (uint32_t)j << 8)), -s.b);
}
/* Whether a step may be part of that. */
static __device__ __forceinline__ int k_plain_scale(float v) {
    const uint32_t u = k_f32_bits(v) << 1;
    return u != 0 && u < 0xff000000u;
}
/* scale x code - min, rounded once: the product is exact. */
static __device__ __forceinline__ void k_less_min(uint32_t w, k_step s, float v[4]) {
#pragma unroll
    for (int32_t j = 0; j < 4; j++) v[j] = fmaf(s.a, k_byte_up(w, j) - k_up, -s.b);
}

/* Bit j of the low four of n in byte j. */
static __device__ __forceinline__ uint32_t k_spread(uint32_t n) {
    return (n & 15) * 0x00204081u & 0x01010101u;
}

/* By the cores. */
template <int32_t TYPE>
static __device__ __forceinline__ void k_four_core(const uint8_t *b, int32_t g, int32_t t, float v[4]) {
#pragma unroll
    for (int32_t j = 0; j < 4; j++) v[j] = k_stored<TYPE>::at(b, 32 * g + 4 * t + j);
}

/* A type: raw, what a lane reads of a group; values, what that stands for. own: whether the type has its form; steps:
 * whether its groups have a step; fused: the step must be neither zero nor infinite for values to be right; aligned:
 * where rows must begin; room: entries of a table that the block keeps in shared memory. b: the block; g: the group in
 * it. */
template <int32_t TYPE> struct k_four {
    static constexpr bool own = false, steps = false, fused = false;
    static constexpr int32_t aligned = 1, room = 0;
    typedef float entry, raw;
    static __device__ __forceinline__ entry table(int32_t) { return 0.0f; }
    static __device__ __forceinline__ k_step step(const uint8_t *, int32_t) { return k_step{0.0f, 0.0f}; }
    static __device__ __forceinline__ raw read(const uint8_t *, int32_t, int32_t, const entry *) { return 0.0f; }
    static __device__ __forceinline__ void values(raw, k_step, int32_t, const entry *, float[4]) {}
};

/* Types with bytes of codes. */
struct k_four_own {
    static constexpr bool own = true, steps = true, fused = false;
    static constexpr int32_t aligned = 2, room = 0;
    typedef float entry;
    typedef uint32_t raw;
    static __device__ __forceinline__ entry table(int32_t) { return 0.0f; }
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t) { return k_step{k_half_at(b), 0.0f}; }
};

template <> struct k_four<K_T_Q8_0> : k_four_own {
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t, int32_t t, const entry *) {
        return k_word_at<aligned>(b + 2 + 4 * t) ^ 0x80808080u;
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t, const entry *, float v[4]) {
        k_scaled(w, 128.0f, s.a, v);
    }
};

/* Nibbles of a block of 32: bytes hold j and j + 16. */
template <int32_t ALIGNED> static __device__ __forceinline__ uint32_t k_nibbles(const uint8_t *qs, int32_t t) {
    return k_word_at<ALIGNED>(qs + 4 * (t % 4)) >> 4 * (t / 4) & 0x0f0f0f0fu;
}

template <> struct k_four<K_T_Q4_0> : k_four_own {
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t, int32_t t, const entry *) {
        return k_nibbles<aligned>(b + 2, t);
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t, const entry *, float v[4]) {
        k_scaled(w, 8.0f, s.a, v);
    }
};

struct k_four_levels : k_four_own {
    static constexpr int32_t room = 16;
    static __device__ __forceinline__ entry table(int32_t i) { return (float)K_TAB(k_iq4_levels)[i]; }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t, const entry *levels, float v[4]) {
#pragma unroll
        for (int32_t j = 0; j < 4; j++) v[j] = s.a * levels[w >> 8 * j & 15];
    }
};

template <> struct k_four<K_T_IQ4_NL> : k_four_levels {
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t, int32_t t, const entry *) {
        return k_nibbles<aligned>(b + 2, t);
    }
};

template <> struct k_four<K_T_IQ4_XS> : k_four_levels {
    static constexpr int32_t aligned = 4;
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        return k_step{k_half_at(b) * (float)k_scale_iq4xs(b, g), 0.0f};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *) {
        return k_nibbles<aligned>(b + 8 + 16 * g, t);
    }
};

struct k_four_min : k_four_own {
    static constexpr int32_t aligned = 4;
    /* k_scale6 and k_min6 of all groups by the same steps */
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        const uint32_t *w = (const uint32_t *)(const void *)(b + 4);
        const uint32_t by = 8 * ((uint32_t)g % 4), x = w[0] >> by, y = w[1] >> by, z = w[2] >> by,
                       scale = g < 4 ? x & 63 : (z & 15) | (x >> 2 & 48),
                       min = g < 4 ? y & 63 : (z >> 4 & 15) | (y >> 2 & 48);
        return k_step{k_half_at(b) * (float)scale, k_half_at(b + 2) * (float)min};
    }
    /* The low four bits: a byte holds e and e + 32. */
    static __device__ __forceinline__ uint32_t low(const uint8_t *qs, int32_t g, int32_t t) {
        return k_word_at<aligned>(qs + 32 * (g / 2) + 4 * t) >> 4 * (g % 2) & 0x0f0f0f0fu;
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t, const entry *, float v[4]) {
        k_less_min(w, s, v);
    }
};

template <> struct k_four<K_T_Q4_K> : k_four_min {
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *) {
        return low(b + 16, g, t);
    }
};

template <> struct k_four<K_T_Q5_K> : k_four_min {
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *) {
        return low(b + 48, g, t) | (k_word_at<aligned>(b + 16 + 4 * t) >> g & 0x01010101u) << 4;
    }
};

template <> struct k_four<K_T_Q6_K> : k_four_own {
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        const float d = k_half_at(b + 208);
        return k_step{d * (float)(int8_t)b[192 + 2 * g], d * (float)(int8_t)b[192 + 2 * g + 1]};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *) {
        const int32_t n = g / 4, k = g % 4;
        const uint32_t lo = k_word_at<aligned>(b + 64 * n + 32 * (k & 1) + 4 * t) >> 4 * (k >> 1) & 0x0f0f0f0fu,
                       hi = k_word_at<aligned>(b + 128 + 32 * n + 4 * t) >> 2 * k & 0x03030303u;
        return lo | hi << 4;
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t t, const entry *, float v[4]) {
        k_scaled(w, 32.0f, t < 4 ? s.a : s.b, v);
    }
};

/* k_even_signs by the device's count of bits; only the low eight are meant. */
static __device__ __forceinline__ uint32_t k_even(uint32_t n) {
    return n | (uint32_t)__popc(n) << 7;
}

/* Types of code books: the book in shared memory, as bytes of codes. */
struct k_four_book : k_four_own {
    static constexpr bool fused = true;
    typedef uint32_t entry;
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t, const entry *, float v[4]) {
        k_scaled_once(w, s, v);
    }
};

template <> struct k_four<K_T_IQ2_XXS> : k_four_book {
    static constexpr int32_t room = 2 * 256;
    /* Half i % 2 of row i / 2: magnitudes. */
    static __device__ __forceinline__ entry table(int32_t i) {
        const uint32_t row = (uint32_t)K_TAB(k_iq2xxs_grid)[i / 2] >> 4 * (i % 2);
        return 0x08080808u + 17 * k_spread(row) + 35 * k_spread(row >> 8);
    }
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        const float step = k_half_at(b) * ((float)(b[9 + 8 * g] >> 4) + 0.5f) * 0.25f;
        return k_step{128.0f * step, 192.0f * step};
    }
    /* 64 + m, or 64 - m, and the top bit: m ^ 127 is 127 - m, and no byte carries into the next. */
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *grid) {
        const uint8_t *at = b + 2 + 8 * g;
        const uint32_t m = grid[2 * at[t / 2] + t % 2],
                       sign = 127 * k_spread(k_even(k_word_at<aligned>(at + 4) >> 7 * (t / 2) & 127) >> 4 * (t % 2));
        return (m ^ sign) + 0xc0c0c0c0u - sign;
    }
};

template <> struct k_four<K_T_IQ1_S> : k_four_book {
    static constexpr int32_t room = 2048;
    /* Grid + 1 of elements 0 .. 3 at bits 3 and 4 of the bytes, of 4 .. 7 at bits 5 and 6. */
    static __device__ __forceinline__ entry table(int32_t i) {
        const uint32_t row = K_TAB(k_iq1_grid)[i], one = 0x01010101u, lo = one + k_spread(row) - k_spread(row >> 8),
                       hi = one + k_spread(row >> 4) - k_spread(row >> 12);
        return lo << 3 | hi << 5;
    }
    /* Codes are eighths: 8 x (grid + 1), and delta with the offset. */
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        const uint32_t q = *(const uint16_t *)(const void *)(b + 34 + 2 * g);
        const float step = 0.125f * (k_half_at(b) * (float)(2 * (q >> 12 & 7) + 1));
        return k_step{128.0f * step, step * (q & 0x8000 ? 137.0f : 135.0f)};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *grid) {
        const uint32_t q = *(const uint16_t *)(const void *)(b + 34 + 2 * g), l = (uint32_t)t / 2,
                       row = grid[b[2 + 4 * g + l] | (q >> 3 * l & 7) << 8];
        return (row >> 2 * (t % 2) & 0x18181818u) | 0x80808080u;
    }
};

/* Types whose block is one element: 32 of them are a piece. */
struct k_four_plain : k_four_own {
    static constexpr bool steps = false;
};

template <> struct k_four<K_T_F32> : k_four_plain {
    static constexpr int32_t aligned = 16;
    typedef k_word16 raw;
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t, int32_t t, const entry *) {
        return *(const raw *)(const void *)(b + 16 * t);
    }
    static __device__ __forceinline__ void values(raw w, k_step, int32_t, const entry *, float v[4]) {
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = k_bits_f32(w.v[j]);
    }
};

typedef struct __attribute__((aligned(8))) {
    uint32_t v[2];
} k_word8;

struct k_four_halves : k_four_plain {
    static constexpr int32_t aligned = 8;
    typedef k_word8 raw;
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t, int32_t t, const entry *) {
        return *(const raw *)(const void *)(b + 8 * t);
    }
};

template <> struct k_four<K_T_BF16> : k_four_halves {
    static __device__ __forceinline__ void values(raw w, k_step, int32_t, const entry *, float v[4]) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            v[2 * j] = k_bits_f32(w.v[j] << 16);
            v[2 * j + 1] = k_bits_f32(w.v[j] & 0xffff0000u);
        }
    }
};

template <> struct k_four<K_T_F16> : k_four_halves {
    static __device__ __forceinline__ void values(raw w, k_step, int32_t, const entry *, float v[4]) {
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = k_half((uint16_t)(w.v[j / 2] >> 16 * (j % 2) & 0xffff));
    }
};

#endif
