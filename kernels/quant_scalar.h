/* quant_scalar.h: types whose block is one element, and the loads that all families share.
 *
 * computes  F32 as is; F16, BF16 widened exactly; F64 and the integers rounded once to f32, to nearest, ties to even
 * special   NaN stays NaN (quiet), f64 beyond f32 goes to infinity
 * source    gguf-quants.md 2.3
 *
 * A core k_at_<TYPE>(b, e) is element e of the block at b; b needs no alignment.
 */
#ifndef K_QUANT_SCALAR_H
#define K_QUANT_SCALAR_H

#include "kernels/k.h"
#include "kernels/round.h"

K_HD uint32_t k_u16_at(const uint8_t *b, int32_t o) {
    return (uint32_t)b[o] | (uint32_t)b[o + 1] << 8;
}
K_HD uint32_t k_u32_at(const uint8_t *b, int32_t o) {
    return k_u16_at(b, o) | k_u16_at(b, o + 2) << 16;
}
K_HD float k_f16_at(const uint8_t *b, int32_t o) {
    return k_f32_from_f16((uint16_t)k_u16_at(b, o));
}

K_HD uint64_t k_u64_at(const uint8_t *b) {
    return (uint64_t)k_u32_at(b, 4) << 32 | k_u32_at(b, 0);
}

K_HD float k_at_F32(const uint8_t *b, int32_t e) {
    return k_bits_f32(k_u32_at(b + 4 * e, 0));
}
K_HD float k_at_F16(const uint8_t *b, int32_t e) {
    return k_f16_at(b, 2 * e);
}
K_HD float k_at_BF16(const uint8_t *b, int32_t e) {
    return k_bits_f32(k_u16_at(b, 2 * e) << 16);
}
K_HD float k_at_I8(const uint8_t *b, int32_t e) {
    return (float)(int8_t)b[e];
}
K_HD float k_at_I16(const uint8_t *b, int32_t e) {
    return (float)(int16_t)k_u16_at(b, 2 * e);
}
K_HD float k_at_I32(const uint8_t *b, int32_t e) {
    return (float)(int32_t)k_u32_at(b + 4 * e, 0);
}
K_HD float k_at_I64(const uint8_t *b, int32_t e) {
    return (float)(int64_t)k_u64_at(b + 8 * e);
}

K_HD float k_at_F64(const uint8_t *b, int32_t e) {
    uint64_t u = k_u64_at(b + 8 * e);
    double v;
    memcpy(&v, &u, 8);
    return (float)v;
}

#endif
