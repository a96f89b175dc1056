#include "lib/synth_fill.h"

#include <math.h>
#include <string.h>

#include "kernels/arith.h"
#include "kernels/quant.h"
#include "kernels/round.h"
#include "lib/err.h"
#include "lib/hash.h"

#define GAMMA UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t mix64(uint64_t z) {
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t q4x_fill_key(const char *name, uint64_t seed) {
    return mix64(q4x_xxh64(name, strlen(name)) + GAMMA * (seed + 1));
}

/* ---- fields ---- */

static inline uint16_t get16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
static inline void put16(uint8_t *p, uint16_t v) {
    memcpy(p, &v, 2);
}
static inline uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static inline void put32(uint8_t *p, uint32_t v) {
    memcpy(p, &v, 4);
}

/* A binary16 scale at `at` of every block. */
static void set_scales(uint8_t *p, int64_t n, size_t bytes, size_t at, const uint16_t tab[256]) {
    for (int64_t b = 0; b < n; b++, p += bytes) put16(p + at, tab[p[at]]);
}

/* Scale and minimum side by side at `at`. */
static void set_pairs(const q4x_fill *f, uint8_t *p, int64_t n, size_t bytes, size_t at) {
    for (int64_t b = 0; b < n; b++, p += bytes) {
        uint8_t r = p[at];
        put16(p + at, f->scale[r]);
        put16(p + at + 2, f->min[r]);
    }
}

/* Q4_K, Q5_K: every six-bit scale from 32 to 63, and the minimum its equal. */
static void set_scales6(uint8_t *p, int64_t n, size_t bytes) {
    for (int64_t b = 0; b < n; b++, p += bytes) {
        uint32_t lo = get32(p + 4) | 0xa0a0a0a0u, hi = (get32(p + 12) & 0x0f0f0f0fu) * 17;
        put32(p + 4, lo);
        put32(p + 8, lo);
        put32(p + 12, hi);
    }
}

/* Q2_K: every four-bit scale from 8 to 15, and the minimum its equal. */
static void set_scales4(uint8_t *p, int64_t n) {
    for (int64_t b = 0; b < n; b++, p += 84)
        for (int i = 0; i < 16; i += 4) put32(p + i, ((get32(p + i) & 0x07070707u) | 0x08080808u) * 17);
}

/* Q6_K: every scale from 64 to 127 in size, of either sign. */
static void set_scales8(uint8_t *p, int64_t n) {
    for (int64_t b = 0; b < n; b++, p += 210)
        for (int i = 192; i < 208; i += 4) {
            uint32_t v = get32(p + i);
            put32(p + i, (v & 0xbfbfbfbfu) | (~v & 0x80808080u) >> 1);
        }
}

/* TQ2_0: the code 3 becomes 1. */
static void set_trits(uint8_t *p, int64_t n) {
    for (int64_t b = 0; b < n; b++, p += 66)
        for (int i = 0; i < 64; i += 4) {
            uint32_t v = get32(p + i);
            put32(p + i, v & ~(v & (v << 1) & 0xaaaaaaaau));
        }
}

/* IQ1_M: the scale lies in the top nibbles of four words. */
static void set_nibbles(const q4x_fill *f, uint8_t *p, int64_t n) {
    for (int64_t b = 0; b < n; b++, p += 56) {
        uint32_t d = f->scale[p[49]];
        for (int i = 0; i < 4; i++) p[49 + 2 * i] = (uint8_t)((p[49 + 2 * i] & 15u) | (d >> 4 * i & 15u) << 4);
    }
}

static void set_codes(const q4x_fill *f, uint8_t *p, int64_t n, size_t bytes, int each) {
    for (int64_t b = 0; b < n; b++, p += bytes)
        for (int i = 0; i < each; i++) p[i] = f->code[p[i]];
}

static void set_halves(const q4x_fill *f, uint8_t *p, int64_t n) {
    for (int64_t i = 0; i < n; i++) put16(p + 2 * i, f->half[get16(p + 2 * i) & 4095]);
}

static void set_floats(const q4x_fill *f, uint8_t *p, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float v = f->lo + f->step * ((float)(get32(p + 4 * i) >> 8) * 0x1p-24f);
        memcpy(p + 4 * i, &v, 4);
    }
    for (int64_t i = 0; f->negative_exp && i < n; i++) {
        float v;
        memcpy(&v, p + 4 * i, 4);
        v = -k_exp(v);
        memcpy(p + 4 * i, &v, 4);
    }
}

/* ---- whole ---- */

static void random_bytes(uint64_t key, uint64_t first, size_t words, uint64_t *to) {
    for (size_t i = 0; i < words; i++) to[i] = mix64(key + GAMMA * (first + i + 1));
}

void q4x_fill_blocks(const q4x_fill *f, uint64_t key, int64_t first, int64_t n, void *dst) {
    const k_quant *q = k_quant_get(f->type);
    size_t bytes = (size_t)q->bytes;
    uint8_t *p = dst;
    Q4X_BUG_IF(first % 8 || (uintptr_t)dst % 8);
    random_bytes(key, (uint64_t)first / 8 * bytes, ((size_t)n * bytes + 7) / 8, dst);
    switch (f->type) {
    case K_T_F32: set_floats(f, p, n); break;
    case K_T_F16:
    case K_T_BF16: set_halves(f, p, n); break;
    case K_T_Q4_1:
    case K_T_Q5_1: set_pairs(f, p, n, bytes, 0); break;
    case K_T_Q2_K:
        set_scales4(p, n);
        set_pairs(f, p, n, bytes, 80);
        break;
    case K_T_Q4_K:
    case K_T_Q5_K:
        set_scales6(p, n, bytes);
        set_pairs(f, p, n, bytes, 0);
        break;
    case K_T_Q3_K: set_scales(p, n, bytes, 108, f->scale); break;
    case K_T_Q6_K:
        set_scales8(p, n);
        set_scales(p, n, bytes, 208, f->scale);
        break;
    case K_T_TQ1_0: set_scales(p, n, bytes, 52, f->scale); break;
    case K_T_TQ2_0:
        set_trits(p, n);
        set_scales(p, n, bytes, 64, f->scale);
        break;
    case K_T_IQ1_M: set_nibbles(f, p, n); break;
    case K_T_MXFP4: set_codes(f, p, n, bytes, 1); break;
    case K_T_NVFP4: set_codes(f, p, n, bytes, 4); break;
    default: set_scales(p, n, bytes, 0, f->scale); break;
    }
}

/* ---- scales ---- */

/* Five significant bits. */
static double coarse(double x) {
    int e;
    double m = frexp(x, &e);
    return ldexp(rint(m * 32) / 32, e);
}

/* Sizes from 3/4 to 5/4 of d, with both signs when asked; minimum: -min_of scales. */
static void scale_table(q4x_fill *f, double d, int both, double min_of) {
    for (int i = 0; i < 256; i++) {
        double v = coarse(d * (0.75 + 0.5 * (i & 127) / 127));
        if (both && i & 128) v = -v;
        f->scale[i] = k_f16_from_f32((float)v);
        f->min[i] = k_f16_from_f32((float)(v * min_of));
    }
}

/* UE4M3 code as a half scale (gguf-quants 2.3), without the sign bit. */
static double ue4m3(int b) {
    int e = b >> 3, m = b & 7;
    if (b == 127) return 0;
    return e ? ldexp(8 + m, e - 11) : ldexp(m, -10);
}

/* Scales about d among the powers of two (MXFP4) or the UE4M3 codes (NVFP4), the nearest to each wanted size. */
static void code_table(q4x_fill *f, double d) {
    for (int i = 0; i < 256; i++) {
        double v = d * (0.75 + 0.5 * i / 255);
        int best = 0;
        for (int c = 0; c < (f->type == K_T_MXFP4 ? 253 : 127); c++) {
            double a = f->type == K_T_MXFP4 ? ldexp(1, c - 128) : ue4m3(c);
            double b = f->type == K_T_MXFP4 ? ldexp(1, best - 128) : ue4m3(best);
            if (fabs(a - v) < fabs(b - v)) best = c;
        }
        f->code[i] = (uint8_t)best;
    }
}

static void half_table(q4x_fill *f, double rms) {
    for (int i = 0; i < 4096; i++) {
        float v = (float)(rms * sqrt(3) * ((2 * i + 1) / 4096.0 - 1));
        f->half[i] = f->type == K_T_F16 ? k_f16_from_f32(v) : k_bf16_from_f32(v);
    }
}

/* Everything for scales about d. */
static void set_tables(q4x_fill *f, double d) {
    switch (f->type) {
    case K_T_F32:
        f->step = (float)(2 * sqrt(3) * d);
        f->lo = -(float)(sqrt(3) * d);
        break;
    case K_T_F16:
    case K_T_BF16: half_table(f, d); break;
    case K_T_MXFP4:
    case K_T_NVFP4: code_table(f, d); break;
    case K_T_Q4_1: scale_table(f, d, 1, -7.5); break;
    case K_T_Q5_1: scale_table(f, d, 1, -15.5); break;
    case K_T_Q2_K: scale_table(f, d, 0, 1.5); break;
    case K_T_Q4_K: scale_table(f, d, 0, 7.5); break;
    case K_T_Q5_K: scale_table(f, d, 0, 15.5); break;
    default: scale_table(f, d, 1, 0); break;
    }
}

/* The rms of values whose scales are about 1: made and decoded. */
static double unit_rms(int32_t type) {
    enum { BLOCKS = 64, ELEMS = 256 };
    static const int64_t rounds = 32;
    union {
        uint64_t align;
        uint8_t b[BLOCKS * 256 + 8];
    } blocks = {0};
    float x[BLOCKS * ELEMS];
    const k_quant *q = k_quant_get(type);
    q4x_fill f = {.type = type};
    double sum = 0;
    set_tables(&f, 1);
    for (int64_t r = 0; r < rounds; r++) {
        q4x_fill_blocks(&f, 1, r * BLOCKS, BLOCKS, blocks.b);
        q->decode(blocks.b, x, BLOCKS);
        for (int i = 0; i < BLOCKS * q->elems; i++) sum += (double)x[i] * (double)x[i];
    }
    return sqrt(sum / (double)(rounds * BLOCKS * q->elems));
}

int q4x_fill_spread(int32_t type, double rms, q4x_fill *ret) {
    const k_quant *q = k_quant_get(type);
    if (!q || !q->stored || (type >= K_T_I8 && type <= K_T_F64)) return -1;
    *ret = (q4x_fill){.type = type};
    int plain = type == K_T_F32 || type == K_T_F16 || type == K_T_BF16;
    set_tables(ret, plain ? rms : rms / unit_rms(type));
    return 0;
}

void q4x_fill_range(double lo, double hi, int negative_exp, q4x_fill *ret) {
    *ret = (q4x_fill){.type = K_T_F32, .lo = (float)lo, .step = (float)(hi - lo), .negative_exp = negative_exp};
}
