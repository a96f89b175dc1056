/* qdot_sum.h: the sums of quantised products, block by block (orders: gguf-quants.md 4.3 and 4.5, and qdot.h). One text
 * for gcc and nvcc.
 */
#ifndef K_QDOT_SUM_H
#define K_QDOT_SUM_H

#include "kernels/qdot.h"
#include "kernels/qdot_act.h"
#include "kernels/qdot_code.h"

/* The sum of one row and column so far. */
typedef struct {
    float f, lane[8];
} k_qsum;

K_HD int32_t k_idot(const int8_t *q, const int8_t *a, int32_t n) {
    int32_t s = 0;
    for (int32_t i = 0; i < n; i++) s += (int32_t)q[i] * (int32_t)a[i];
    return s;
}

/* Sum over groups of scale times the products of codes. */
K_HD int32_t k_scaled_idot(const k_qcodes *c, int32_t group, const int8_t *a) {
    int32_t s = 0;
    if (group == 32)
        for (int32_t j = 0; j < 8; j++) s += c->sc[j] * k_idot(c->q + 32 * j, a + 32 * j, 32);
    else
        for (int32_t j = 0; j < 16; j++) s += c->sc[j] * k_idot(c->q + 16 * j, a + 16 * j, 16);
    return s;
}

/* Sum over i of the activation's sums of sixteen and the minimum of their group. */
K_HD int32_t k_min_sum(const k_qcodes *c, int32_t group, const uint8_t *act) {
    int32_t s = 0;
    for (int32_t i = 0; i < 16; i++) s += (int32_t)(int16_t)k_u16_at(act, 260 + 2 * i) * c->mn[16 * i / group];
    return s;
}

/* Eight sums, of the elements e mod 8. */
K_HD void k_lane_idots(const k_qcodes *c, int32_t group, const int8_t *a, int32_t lane[8]) {
    for (int32_t l = 0; l < 8; l++) lane[l] = 0;
    for (int32_t g = 0; g < 32; g++) {
        const int32_t sc = c->sc[8 * g / group];
        for (int32_t l = 0; l < 8; l++) lane[l] += sc * (int32_t)c->q[8 * g + l] * (int32_t)a[8 * g + l];
    }
}

/* ---- blocks of up to 128 elements: activations in thirty-twos ---- */

K_HD void k_cpu_small(int32_t type, const k_qcodes *c, const uint8_t *act, k_qsum *s) {
    const float A = k_f16_at(act, 0);
    switch (type) {
    case K_T_Q4_0: s->f = s->f + (float)k_idot(c->q, (const int8_t *)act + 2, 32) * c->d * A; break;
    case K_T_Q4_1:
    case K_T_Q5_1: {
        float p = c->d * A * (float)k_idot(c->q, (const int8_t *)act + 4, 32);
        s->f = s->f + (p + c->m * k_f16_at(act, 2));
        break;
    }
    case K_T_NVFP4:
        for (int32_t i = 0; i < 4; i++) {
            const uint8_t *a = act + 34 * (i / 2);
            int32_t S = k_idot(c->q + 16 * i, (const int8_t *)a + 2 + 16 * (i % 2), 16);
            s->f = s->f + k_f16_at(a, 0) * c->fs[i] * (float)S;
        }
        break;
    case K_T_Q1_0:
    case K_T_Q2_0: {
        float P = 0.0f;
        for (int32_t i = 0; i < (type == K_T_Q1_0 ? 4 : 2); i++) {
            const uint8_t *a = act + 34 * i;
            P = P + k_f16_at(a, 0) * (float)k_idot(c->q + 32 * i, (const int8_t *)a + 2, 32);
        }
        s->f = s->f + c->d * P;
        break;
    }
    default: s->f = s->f + c->d * A * (float)k_idot(c->q, (const int8_t *)act + 2, 32);
    }
}

/* ---- super-blocks: activations as q8_K ---- */

/* IQ1_M: sum over groups of eight of scale, sign of delta and codes. */
K_HD int32_t k_delta_sum(const k_qcodes *c, const int8_t *a) {
    int32_t s = 0;
    for (int32_t g = 0; g < 32; g++) {
        int32_t t = 0;
        for (int32_t i = 0; i < 8; i++) t += a[8 * g + i];
        s += c->sc[g / 2] * c->sg[g] * t;
    }
    return s;
}

K_HD void k_cpu_super(int32_t type, const k_qcodes *c, const uint8_t *act, k_qsum *s) {
    const float A = k_bits_f32(k_u32_at(act, 0));
    const int8_t *a = (const int8_t *)act + 4;
    const int32_t group = k_qgroup(type);
    switch (type) {
    case K_T_TQ1_0:
    case K_T_TQ2_0: s->f = s->f + (float)k_idot(c->q, a, 256) * (c->d * A); break;
    case K_T_Q2_K: {
        float p = A * c->d * (float)k_scaled_idot(c, group, a), m = A * c->m * (float)k_min_sum(c, group, act);
        s->f = s->f + (p - m);
        break;
    }
    case K_T_Q3_K:
    case K_T_Q6_K:
    case K_T_Q4_K:
    case K_T_Q5_K: {
        int32_t lane[8];
        const float d = c->d * A;
        k_lane_idots(c, group, a, lane);
        for (int32_t l = 0; l < 8; l++) s->lane[l] = s->lane[l] + d * (float)lane[l];
        if (type == K_T_Q4_K || type == K_T_Q5_K) s->f = s->f - c->m * A * (float)k_min_sum(c, group, act);
        break;
    }
    case K_T_IQ1_S: {
        const float I = (float)k_scaled_idot(c, group, a);
        int32_t J = 0;
        for (int32_t b = 0; b < 8; b++)
            J += c->sc[b] * c->mn[b] *
                 ((int16_t)k_u16_at(act, 260 + 4 * b) + (int32_t)(int16_t)k_u16_at(act, 262 + 4 * b));
        s->f = s->f + c->d * A * (I + 0.125f * (float)J);
        break;
    }
    case K_T_IQ1_M:
        s->f = s->f + c->d * A * ((float)k_scaled_idot(c, group, a) + 0.125f * (float)k_delta_sum(c, a));
        break;
    case K_T_IQ4_XS: {
        const float d = c->d * A;
        for (int32_t b = 0; b < 8; b++) {
            int32_t S = k_idot(c->q + 32 * b, a + 32 * b, 32);
            s->f = s->f + d * (float)c->sc[b] * (float)S;
        }
        break;
    }
    default: s->f = s->f + c->d * A * (float)k_scaled_idot(c, group, a);
    }
}

/* What stands in s after the last block. */
K_HD float k_cpu_end(int32_t type, const k_qsum *s) {
    float f = s->f;
    switch (type) {
    case K_T_Q3_K:
    case K_T_Q4_K:
    case K_T_Q5_K:
    case K_T_Q6_K:
        for (int32_t l = 0; l < 8; l++) f = f + s->lane[l];
        return f;
    case K_T_IQ2_XXS:
    case K_T_IQ2_XS:
    case K_T_IQ2_S: return 0.125f * f;
    case K_T_IQ3_XXS: return 0.25f * f;
    default: return f;
    }
}

/* ---- the other CPU orders (qdot.h) ---- */

/* Block i of n. */
K_HD void k_neon_step(const k_qcodes *c, const uint8_t *act, int64_t i, int64_t n, k_qsum *s) {
    const int8_t *a = (const int8_t *)act + 2;
    const float d = c->d * k_f16_at(act, 0);
    float *L = s->lane + 4 * (i % 2);
    if (i + 1 == n && n % 2) {
        s->f = (float)k_idot(c->q, a, 32) * d;
        return;
    }
    for (int32_t l = 0; l < 4; l++)
        L[l] =
            fmaf((float)(k_idot(c->q + 4 * l, a + 4 * l, 4) + k_idot(c->q + 16 + 4 * l, a + 16 + 4 * l, 4)), d, L[l]);
}
K_HD float k_neon_end(int64_t n, const k_qsum *s) {
    const float *L = s->lane;
    float f = ((L[0] + L[1]) + (L[2] + L[3])) + ((L[4] + L[5]) + (L[6] + L[7]));
    return n % 2 ? f + s->f : f;
}

K_HD void k_q8_0x4_step(const k_qcodes *c, const uint8_t *act, k_qsum *s) {
    s->f = fmaf((float)k_idot(c->q, (const int8_t *)act + 2, 32), c->d * k_f16_at(act, 0), s->f);
}

K_HD void k_q4_kx8_step(const k_qcodes *c, const uint8_t *act, k_qsum *s) {
    const float A = k_bits_f32(k_u32_at(act, 0));
    s->f = fmaf((float)k_scaled_idot(c, 32, (const int8_t *)act + 4), c->d * A, s->f);
    s->lane[0] = fmaf((float)k_min_sum(c, 32, act), c->m * A, s->lane[0]);
}

#endif
