/* qdot_act.h: activations as blocks of 8-bit codes, the other operand of quantised products (qdot.h).
 *
 * computes  per 32 values, a = max |x|, d = a / 127:
 *             q8_0      codes raz(x (1 / d)); f16(d), codes                                34 bytes
 *             q8_0 neon the same with rne for raz                                          34
 *             q8_1 cpu  as q8_0; f16(d), f16(d sum of the codes), codes                    36
 *             q8_1 gpu  codes raz(x / d); f16(d), f16(sum of the x, butterfly), codes      36
 *           per 256: q8_K, quant.h                                                         292
 *           raz: to nearest, ties away from zero; rne: ties to even. Codes use the d that is not rounded yet.
 * rounds    each operator once, in the order written
 * special   a block of zeros has codes 0 and d = +0. A code of a NaN is 0, and codes stay within -127 .. 127 whatever
 *           the block holds; a NaN or an infinity in x is seen through d alone
 * source    gguf-quants.md 4.2, 4.4
 */
#ifndef K_QDOT_ACT_H
#define K_QDOT_ACT_H

#include "kernels/quant_scalar.h"
#include "kernels/reduce.h"

/* Formats of a row of activations, and the bytes of a block. */
enum { K_ACTQ_Q8_0, K_ACTQ_Q8_0_NEON, K_ACTQ_Q8_1, K_ACTQ_Q8_K, K_ACTQ_Q8_1_GPU };
K_HD int64_t k_actq_elems(int32_t format) {
    return format == K_ACTQ_Q8_K ? 256 : 32;
}
K_HD int64_t k_actq_bytes(int32_t format) {
    return format == K_ACTQ_Q8_K ? 292 : format <= K_ACTQ_Q8_0_NEON ? 34 : 36;
}

K_HD int32_t k_clamp127(float v) {
    return v >= 127.0f ? 127 : v > -127.0f ? (int32_t)v : v <= -127.0f ? -127 : 0;
}
/* To nearest, ties away from zero: what is left of the whole part is exact. */
K_HD int32_t k_raz8(float v) {
    int32_t t = k_clamp127(v);
    float left = v - (float)t;
    if (t < 127 && left >= 0.5f) return t + 1;
    if (t > -127 && left <= -0.5f) return t - 1;
    return t;
}
K_HD int32_t k_rne8(float v) {
    return k_clamp127(rintf(v));
}

K_HD void k_put_half(uint8_t *b, float v) {
    uint16_t h = k_f16_from_f32(v);
    b[0] = (uint8_t)h;
    b[1] = (uint8_t)(h >> 8);
}

/* The code of x in a block whose largest |x| is a; d = a / 127, r = 1 / d, or 0 where d is. */
K_HD int32_t k_actq_code(int32_t format, float x, float a, float d, float r) {
    if (format == K_ACTQ_Q8_0_NEON) return k_rne8(x * r);
    if (format == K_ACTQ_Q8_1_GPU) return a == 0.0f ? 0 : k_raz8(x / d);
    return k_raz8(x * r);
}

/* 32 values to one block. */
K_HD void k_actq_block32(int32_t format, const float *x, uint8_t *b) {
    float a = 0.0f;
    for (int32_t i = 0; i < 32; i++) a = fabsf(x[i]) > a || x[i] != x[i] ? fabsf(x[i]) : a;
    const float d = a / 127.0f, r = d != 0.0f ? 1.0f / d : 0.0f;
    uint8_t *q = b + (k_actq_bytes(format) - 32);
    int32_t sum = 0;
    for (int32_t i = 0; i < 32; i++) {
        const int32_t c = k_actq_code(format, x[i], a, d, r);
        q[i] = (uint8_t)c;
        sum += c;
    }
    k_put_half(b, d);
    if (format == K_ACTQ_Q8_1) k_put_half(b + 2, (float)sum * d);
    if (format == K_ACTQ_Q8_1_GPU) {
        float v[32];
        for (int32_t i = 0; i < 32; i++) v[i] = x[i];
        k_put_half(b + 2, k_lanes32_fold(v));
    }
}

#endif
