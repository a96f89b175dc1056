/* encode_int.h: the inside of the encoders, shared by lib/encode*.c. Nobody else includes it. */
#ifndef Q4X_ENCODE_INT_H
#define Q4X_ENCODE_INT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/k.h"
#include "kernels/round.h"

/* One block: its values, their weights (0 or more, not all 0), and where it goes. */
typedef struct {
    const double *x, *w;
    uint8_t *out;
} q4x_block;

#define SINGLE(name, ns) void q4x_encode_##name(const float *x, int64_t n, uint8_t *out);
#define BLOCK(name, ns) void q4x_encode_##name(const q4x_block *b);
#include "lib/encoders.def"
#undef SINGLE
#undef BLOCK

/* To binary16 as bits, saturating, and what they decode to. */
static inline uint16_t q4x_half_bits(double v) {
    double lim = v < -65504.0 ? -65504.0 : v > 65504.0 ? 65504.0 : v;
    return k_f16_from_f32((float)lim);
}
static inline double q4x_half(double v) {
    return (double)k_f32_from_f16(q4x_half_bits(v));
}

static inline void q4x_put16(uint8_t *b, uint32_t v) {
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}
static inline void q4x_put32(uint8_t *b, uint32_t v) {
    q4x_put16(b, v);
    q4x_put16(b + 2, v >> 16);
}

/* To the nearest integer, ties to even, within lo .. hi. v is no NaN. */
static inline double q4x_nearest(double v, double lo, double hi) {
    double r = rint(v);
    return r < lo ? lo : r > hi ? hi : r;
}

#endif
