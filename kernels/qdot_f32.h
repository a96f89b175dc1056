/* qdot_f32.h: the f32 orders of qdot.h on decoded rows, in pieces: what a sum so far becomes with n more elements. One
 * text for gcc and nvcc; `blocked` is k_lanes32_dot of each block of K_DOT_BLOCK, added to the sum.
 */
#ifndef K_QDOT_F32_H
#define K_QDOT_F32_H

#include "kernels/qdot.h"
#include "kernels/round.h"

K_HD float k_serial_on(const float *w, const float *x, int64_t n, float s) {
    for (int64_t i = 0; i < n; i++) s = fmaf(w[i], x[i], s);
    return s;
}

K_HD double k_f64_on(const float *w, const float *x, int64_t n, double s) {
    for (int64_t i = 0; i < n; i++) s = s + (double)(w[i] * x[i]);
    return s;
}

/* x as weights of a type meet it: under a CPU's rules F16 and BF16 ones take it rounded to their own type. */
K_HD float k_as_weight(k_dot_rule rule, int32_t type, float x) {
    if (rule != K_RULE_F64 && rule != K_RULE_NEON_F32) return x;
    return type == K_T_F16 ? k_round_f16(x) : type == K_T_BF16 ? k_round_bf16(x) : x;
}

#endif
