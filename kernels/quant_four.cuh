/* quant_four.cuh: the stored types as eight lanes read a row that holds the 32 accumulators of order lanes32: lane t
 * has elements 4 t .. 4 t + 3 of each group of 32.
 *
 * What a group has once, its scale and minimum, one lane works out for all eight (step); then a value costs a few
 * instructions. All are the scalar cores of quant_all.h taken apart, with their bits: a product that is exact there may
 * be part of a fused step here. A type without such a form goes through its core. Blocks lie in shared memory.
 */
#ifndef K_QUANT_FOUR_CUH
#define K_QUANT_FOUR_CUH

#include "kernels/quant.cuh"

/* What a group of 32 has once, or each half of one. */
typedef struct __attribute__((aligned(8))) {
    float a, b;
} k_step;
typedef struct __attribute__((aligned(16))) {
    k_step half[2];
} k_steps;

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
/* The same in one step, which is exact: up is 128 x scale, less scale x (128 + zero). Codes below 128, their top bit
 * set; the scale neither zero nor infinite, and no code is zero. */
static __device__ __forceinline__ void k_scaled_once(uint32_t w, float up, float less, float v[4]) {
#pragma unroll
    for (int32_t j = 0; j < 4; j++)
        v[j] = fmaf(up, k_bits_f32(__byte_perm(w, 0x3f000000u, 0x7044u | (uint32_t)j << 8)), -less);
}
/* Whether steps may be part of that. */
static __device__ __forceinline__ int k_sound(float v) {
    const uint32_t u = k_f32_bits(v) << 1;
    return u != 0 && u < 0xff000000u;
}
static __device__ __forceinline__ int k_sound(k_step s) {
    return k_sound(s.a) && k_sound(s.b);
}
static __device__ __forceinline__ int k_sound(k_steps) {
    return 1; /* of no such type */
}
/* scale x code - min, rounded once: the product is exact. */
static __device__ __forceinline__ void k_less_min(uint32_t w, float scale, float min, float v[4]) {
#pragma unroll
    for (int32_t j = 0; j < 4; j++) v[j] = fmaf(scale, k_byte_up(w, j) - k_up, -min);
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
 * whether its groups have a step; fused: the step's parts must be neither zero nor infinite for values to be right;
 * once: its type; aligned: where rows must begin; room: entries of a table that the block keeps in shared memory.
 * b: the block; g: the group in it. */
template <int32_t TYPE> struct k_four {
    static constexpr bool own = false, steps = false, fused = false;
    static constexpr int32_t aligned = 1, room = 0;
    typedef float entry, raw;
    typedef k_step once;
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
    typedef k_step once;
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

/* The fifth bits of a block of 32, a bit string at `bits`, at their place above nibbles. */
template <int32_t ALIGNED> static __device__ __forceinline__ uint32_t k_fifths(const uint8_t *bits, int32_t t) {
    return k_spread(k_word_at<ALIGNED>(bits) >> 4 * t) << 4;
}

template <> struct k_four<K_T_Q5_0> : k_four_own {
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t, int32_t t, const entry *) {
        return k_nibbles<aligned>(b + 6, t) | k_fifths<aligned>(b + 2, t);
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t, const entry *, float v[4]) {
        k_scaled(w, 16.0f, s.a, v);
    }
};

/* scale x code + minimum */
struct k_four_plus : k_four_own {
    static constexpr int32_t aligned = 4;
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t) {
        return k_step{k_half_at(b), -k_half_at(b + 2)};
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t, const entry *, float v[4]) {
        k_less_min(w, s.a, s.b, v);
    }
};

template <> struct k_four<K_T_Q4_1> : k_four_plus {
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t, int32_t t, const entry *) {
        return k_nibbles<aligned>(b + 4, t);
    }
};

template <> struct k_four<K_T_Q5_1> : k_four_plus {
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t, int32_t t, const entry *) {
        return k_nibbles<aligned>(b + 8, t) | k_fifths<aligned>(b + 4, t);
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

/* Types of 4-bit floats. */
struct k_four_fp4 : k_four_own {
    static constexpr int32_t room = 16;
    static __device__ __forceinline__ entry table(int32_t i) { return (float)K_TAB(k_fp4_levels)[i]; }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t t, const entry *levels, float v[4]) {
#pragma unroll
        for (int32_t j = 0; j < 4; j++) v[j] = (t < 4 ? s.a : s.b) * levels[w >> 8 * j & 15];
    }
};

template <> struct k_four<K_T_MXFP4> : k_four_fp4 {
    static constexpr int32_t aligned = 1;
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t) {
        return k_step{k_e8m0_half(b[0]), k_e8m0_half(b[0])};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t, int32_t t, const entry *) {
        return k_nibbles<aligned>(b + 1, t);
    }
};

template <> struct k_four<K_T_NVFP4> : k_four_fp4 {
    static constexpr int32_t aligned = 4;
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        return k_step{k_ue4m3_half(b[2 * g]), k_ue4m3_half(b[2 * g + 1])};
    }
    /* of each 16, bytes hold j and j + 8 */
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *) {
        return k_word_at<aligned>(b + 4 + 16 * g + 8 * (t / 4) + 4 * (t % 2)) >> 4 * (t / 2 % 2) & 0x0f0f0f0fu;
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
        k_less_min(w, s.a, s.b, v);
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

/* Two bits of each element: a byte holds e, e + 32, e + 64 and e + 96. */
template <int32_t ALIGNED>
static __device__ __forceinline__ uint32_t k_crumbs(const uint8_t *qs, int32_t g, int32_t t) {
    return k_word_at<ALIGNED>(qs + 32 * (g / 4) + 4 * t) >> 2 * (g % 4) & 0x03030303u;
}

template <> struct k_four<K_T_Q2_K> : k_four_own {
    static constexpr int32_t aligned = 4;
    typedef k_steps once;
    static __device__ __forceinline__ once step(const uint8_t *b, int32_t g) {
        const float d = k_half_at(b + 80), m = k_half_at(b + 82);
        const uint32_t x = b[2 * g], y = b[2 * g + 1];
        return k_steps{{{d * (float)(x & 15), m * (float)(x >> 4)}, {d * (float)(y & 15), m * (float)(y >> 4)}}};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *) {
        return k_crumbs<aligned>(b + 16, g, t);
    }
    static __device__ __forceinline__ void values(raw w, once s, int32_t t, const entry *, float v[4]) {
        k_less_min(w, t < 4 ? s.half[0].a : s.half[1].a, t < 4 ? s.half[0].b : s.half[1].b, v);
    }
};

template <> struct k_four<K_T_Q3_K> : k_four_own {
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        const float d = k_half_at(b + 108);
        return k_step{d * (float)k_scale_q3k(b + 96, 2 * g), d * (float)k_scale_q3k(b + 96, 2 * g + 1)};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *) {
        return k_crumbs<aligned>(b + 32, g, t) | (k_word_at<aligned>(b + 4 * t) >> g & 0x01010101u) << 2;
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t t, const entry *, float v[4]) {
        k_scaled(w, 4.0f, t < 4 ? s.a : s.b, v);
    }
};

template <> struct k_four<K_T_Q6_K> : k_four_own {
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        const float d = k_half_at(b + 208);
        return k_step{d * (float)(int8_t)b[192 + 2 * g], d * (float)(int8_t)b[192 + 2 * g + 1]};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *) {
        const int32_t n = g / 4, k = g % 4;
        const uint32_t lo = k_word_at<aligned>(b + 64 * n + 32 * (k & 1) + 4 * t) >> 4 * (k >> 1) & 0x0f0f0f0fu;
        return lo | k_crumbs<aligned>(b + 128, g, t) << 4;
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t t, const entry *, float v[4]) {
        k_scaled(w, 32.0f, t < 4 ? s.a : s.b, v);
    }
};

/* ---- code books: in shared memory, as bytes of codes ---- */

/* k_even_signs by the device's count of bits; only the low eight are meant. */
static __device__ __forceinline__ uint32_t k_even(uint32_t n) {
    return n | (uint32_t)__popc(n) << 7;
}

/* Magnitudes m below 64 with signs, a bit each: bytes of 64 + m or 64 - m, and the top bit. m ^ 127 is 127 - m, and no
 * byte carries into the next. */
static __device__ __forceinline__ uint32_t k_signed_codes(uint32_t m, uint32_t signs) {
    const uint32_t s = 127 * k_spread(signs);
    return (m ^ s) + 0xc0c0c0c0u - s;
}

static __device__ __forceinline__ uint32_t k_four_bytes(int32_t a, int32_t b, int32_t c, int32_t d) {
    return (uint32_t)a | (uint32_t)b << 8 | (uint32_t)c << 16 | (uint32_t)d << 24;
}

struct k_four_book : k_four_own {
    static constexpr bool fused = true;
    typedef uint32_t entry;
    /* a: 128 x step */
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t, const entry *, float v[4]) {
        k_scaled_once(w, s.a, 1.5f * s.a, v);
    }
};

/* Half i % 2 of row i / 2. */
static __device__ __forceinline__ uint32_t k_iq2_half(const uint16_t *grid, int32_t i) {
    const uint32_t row = (uint32_t)grid[i / 2] >> 4 * (i % 2);
    return 0x08080808u + 17 * k_spread(row) + 35 * k_spread(row >> 8);
}

template <> struct k_four<K_T_IQ2_XXS> : k_four_book {
    static constexpr int32_t room = 2 * 256;
    static __device__ __forceinline__ entry table(int32_t i) { return k_iq2_half(K_TAB(k_iq2xxs_grid), i); }
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        return k_step{128.0f * (k_half_at(b) * ((float)(b[9 + 8 * g] >> 4) + 0.5f) * 0.25f), 1.0f};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *grid) {
        const uint8_t *at = b + 2 + 8 * g;
        return k_signed_codes(grid[2 * at[t / 2] + t % 2],
                              k_even(k_word_at<aligned>(at + 4) >> 7 * (t / 2) & 127) >> 4 * (t % 2));
    }
};

template <> struct k_four<K_T_IQ3_XXS> : k_four_book {
    static constexpr int32_t room = 256;
    static __device__ __forceinline__ entry table(int32_t i) {
        const uint16_t row = K_TAB(k_iq3xxs_grid)[i];
        return k_four_bytes(k_nib_iq3xxs(row, 0), k_nib_iq3xxs(row, 1), k_nib_iq3xxs(row, 2), k_nib_iq3xxs(row, 3));
    }
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        return k_step{128.0f * (k_half_at(b) * ((float)(b[69 + 4 * g] >> 4) + 0.5f) * 0.5f), 1.0f};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *grid) {
        return k_signed_codes(grid[b[2 + 8 * g + t]],
                              k_even(k_word_at<aligned>(b + 66 + 4 * g) >> 7 * (t / 2) & 127) >> 4 * (t % 2));
    }
};

template <> struct k_four<K_T_IQ3_S> : k_four_book {
    static constexpr int32_t room = 512;
    static __device__ __forceinline__ entry table(int32_t i) {
        const uint16_t row = K_TAB(k_iq3s_grid)[i];
        return k_four_bytes(k_nib_iq3s(row, 0), k_nib_iq3s(row, 1), k_nib_iq3s(row, 2), k_nib_iq3s(row, 3));
    }
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        return k_step{128.0f * (k_half_at(b) * (float)(1 + 2 * (b[106 + g / 2] >> 4 * (g % 2) & 15))), 1.0f};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *grid) {
        const uint32_t row = b[2 + 8 * g + t] | ((uint32_t)b[66 + g] >> t & 1) << 8;
        return k_signed_codes(grid[row], (uint32_t)b[74 + 4 * g + t / 2] >> 4 * (t % 2));
    }
};

/* A step each half: a and b are 128 x step. */
struct k_four_book_halves : k_four_book {
    static __device__ __forceinline__ k_step halves(const uint8_t *b, uint32_t n) {
        const float d = k_half_at(b);
        return k_step{128.0f * (d * ((float)(n & 15) + 0.5f) * 0.25f), 128.0f * (d * ((float)(n >> 4) + 0.5f) * 0.25f)};
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t t, const entry *, float v[4]) {
        const float up = t < 4 ? s.a : s.b;
        k_scaled_once(w, up, 1.5f * up, v);
    }
};

template <> struct k_four<K_T_IQ2_XS> : k_four_book_halves {
    static constexpr int32_t room = 2 * 512;
    static __device__ __forceinline__ entry table(int32_t i) { return k_iq2_half(K_TAB(k_iq2xs_grid), i); }
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) { return halves(b, b[66 + g]); }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *grid) {
        const uint32_t q = *(const uint16_t *)(const void *)(b + 2 + 8 * g + 2 * (t / 2));
        return k_signed_codes(grid[2 * (q & 511) + (uint32_t)t % 2], k_even(q >> 9) >> 4 * (t % 2));
    }
};

template <> struct k_four<K_T_IQ2_S> : k_four_book_halves {
    static constexpr int32_t room = 2 * 1024;
    static __device__ __forceinline__ entry table(int32_t i) { return k_iq2_half(K_TAB(k_iq2s_grid), i); }
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) { return halves(b, b[74 + g]); }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *grid) {
        const uint32_t l = (uint32_t)t / 2, row = b[2 + 4 * g + l] | ((uint32_t)b[66 + g] >> 2 * l & 3) << 8;
        return k_signed_codes(grid[2 * row + (uint32_t)t % 2], (uint32_t)b[34 + 4 * g + l] >> 4 * (t % 2));
    }
};

/* Grid + 1 of elements 0 .. 3 at bits 3 and 4 of the bytes, of 4 .. 7 at bits 5 and 6. Codes are eighths: 8 x
 * (grid + 1). */
struct k_four_iq1 : k_four_book {
    static constexpr int32_t room = 2048;
    static __device__ __forceinline__ entry table(int32_t i) {
        const uint32_t row = K_TAB(k_iq1_grid)[i], one = 0x01010101u, lo = one + k_spread(row) - k_spread(row >> 8),
                       hi = one + k_spread(row >> 4) - k_spread(row >> 12);
        return lo << 3 | hi << 5;
    }
    static __device__ __forceinline__ uint32_t eighths(const entry *grid, uint32_t row, int32_t t) {
        return grid[row] >> 2 * (t % 2) & 0x18181818u;
    }
};

template <> struct k_four<K_T_IQ1_S> : k_four_iq1 {
    /* a: 128 x an eighth of the step; b: that plus one code of 8 less delta */
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        const uint32_t q = *(const uint16_t *)(const void *)(b + 34 + 2 * g);
        const float step = 0.125f * (k_half_at(b) * (float)(2 * (q >> 12 & 7) + 1));
        return k_step{128.0f * step, step * (q & 0x8000 ? 137.0f : 135.0f)};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *grid) {
        const uint32_t q = *(const uint16_t *)(const void *)(b + 34 + 2 * g), l = (uint32_t)t / 2;
        return eighths(grid, b[2 + 4 * g + l] | (q >> 3 * l & 7) << 8, t) | 0x80808080u;
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t, const entry *, float v[4]) {
        k_scaled_once(w, s.a, s.b, v);
    }
};

/* Each eight have a delta: codes are 8 x (grid + 2) + delta. */
template <> struct k_four<K_T_IQ1_M> : k_four_iq1 {
    static __device__ __forceinline__ k_step step(const uint8_t *b, int32_t g) {
        const uint32_t c = *(const uint16_t *)(const void *)(b + 48 + 2 * (g / 2)) >> 6 * (g % 2);
        const float d = 16.0f * k_iq1m_scale(b);
        return k_step{d * (float)(2 * (c & 7) + 1), d * (float)(2 * (c >> 3 & 7) + 1)};
    }
    static __device__ __forceinline__ raw read(const uint8_t *b, int32_t g, int32_t t, const entry *grid) {
        const uint32_t n = (uint32_t)b[32 + 2 * g + t / 4] >> 4 * (t / 2 % 2) & 15;
        return eighths(grid, b[4 * g + t / 2] | (n & 7) << 8, t) + (n & 8 ? 0x87878787u : 0x89898989u);
    }
    static __device__ __forceinline__ void values(raw w, k_step s, int32_t t, const entry *, float v[4]) {
        const float up = t < 4 ? s.a : s.b;
        k_scaled_once(w, up, 1.125f * up, v);
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
