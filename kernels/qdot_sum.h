/* qdot_sum.h: the sums of quantised products, block by block (orders: gguf-quants.md 4.3 and qdot.h). One text for gcc
 * and nvcc.
 *
 * What a block and a column give is first whole numbers, exact in any order, so that many lanes may share them; then a
 * few steps in f32, in the order of the blocks, by one thread.
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

/* The whole numbers of one block and column. */
typedef struct {
    int32_t n[8], j; /* products of codes as k_gather_of says; minima or deltas with the column's codes */
} k_whole;

K_HD int32_t k_idot(const int8_t *q, const int8_t *a, int32_t n) {
    int32_t s = 0;
    for (int32_t i = 0; i < n; i++) s += (int32_t)q[i] * (int32_t)a[i];
    return s;
}

/* ---- whole numbers ---- */

/* n[] is: one sum of scale times products; the same, element e to n[e mod 8]; sums of thirty-twos, of sixteens; Arm's
 * four lanes. */
enum { K_GATHER_ALL, K_GATHER_LANES, K_GATHER_32, K_GATHER_16, K_GATHER_NEON };

K_HD int k_is_small(int32_t type) {
    switch (type) {
    case K_T_Q4_0:
    case K_T_Q4_1:
    case K_T_Q5_0:
    case K_T_Q5_1:
    case K_T_Q8_0:
    case K_T_IQ4_NL:
    case K_T_MXFP4:
    case K_T_NVFP4:
    case K_T_Q1_0:
    case K_T_Q2_0: return 1;
    default: return 0;
    }
}

K_HD int32_t k_gather_of(k_dot_rule rule, int32_t type) {
    if (rule == K_RULE_NEON_Q8_0) return K_GATHER_NEON;
    if (rule == K_RULE_Q4_KX8) return K_GATHER_ALL;
    switch (type) {
    case K_T_Q3_K:
    case K_T_Q4_K:
    case K_T_Q5_K:
    case K_T_Q6_K: return K_GATHER_LANES;
    case K_T_NVFP4: return K_GATHER_16;
    case K_T_IQ4_XS: return K_GATHER_32;
    default: return k_is_small(type) ? K_GATHER_32 : K_GATHER_ALL;
    }
}

/* The column's code at element e of a block, and on to the end of its thirty-two; act: the column's blocks that this
 * block meets. */
K_HD const int8_t *k_cpu_codes(int32_t type, const uint8_t *act, int32_t e) {
    if (!k_is_small(type)) return (const int8_t *)act + 4 + e;
    const int32_t head = type == K_T_Q4_1 || type == K_T_Q5_1 ? 4 : 2;
    return (const int8_t *)act + e / 32 * (head + 32) + head + e % 32;
}

/* Terms of k_whole's j. */
K_HD int32_t k_minima(int32_t type) {
    switch (type) {
    case K_T_Q2_K:
    case K_T_Q4_K:
    case K_T_Q5_K:
    case K_T_IQ1_S: return 16;
    case K_T_IQ1_M: return 32;
    default: return 0;
    }
}
/* One of them: a sum of sixteen codes of the column (IQ1_M: of eight), times its group's minimum or delta. */
K_HD int32_t k_minimum(int32_t type, const k_qcodes *c, const uint8_t *act, int32_t i) {
    if (type == K_T_IQ1_M) {
        const int8_t *a = (const int8_t *)act + 4 + 8 * i;
        int32_t t = 0;
        for (int32_t e = 0; e < 8; e++) t += a[e];
        return c->sc[i / 2] * c->sg[i] * t;
    }
    const int32_t g = 16 * i / k_qgroup(type), m = type == K_T_IQ1_S ? c->sc[g] * c->mn[g] : c->mn[g];
    return (int32_t)(int16_t)k_u16_at(act, 260 + 2 * i) * m;
}

/* Elements e .. e+7 of a block, e a multiple of 8, to eight sums by lane; their groups have one scale. */
K_HD void k_eight_lanes(const k_qcodes *c, int32_t group, int32_t e, const int8_t *a, int32_t n[8]) {
    const int32_t sc = c->sc[e / group];
    for (int32_t l = 0; l < 8; l++) n[l] += sc * (int32_t)c->q[e + l] * (int32_t)a[l];
}

/* All of a block of so many elements. */
K_HD void k_whole_of(k_dot_rule rule, int32_t type, int32_t elems, const k_qcodes *c, const uint8_t *act, k_whole *w) {
    const int32_t group = k_qgroup(type), gather = k_gather_of(rule, type), each = gather == K_GATHER_16 ? 16 : 32;
    const int8_t *a = k_cpu_codes(type, act, 0);
    for (int32_t l = 0; l < 8; l++) w->n[l] = 0;
    w->j = 0;
    switch (gather) {
    case K_GATHER_ALL:
        for (int32_t e = 0; e < 256; e += group) w->n[0] += c->sc[e / group] * k_idot(c->q + e, a + e, group);
        break;
    case K_GATHER_LANES:
        for (int32_t e = 0; e < 256; e += 8) k_eight_lanes(c, group, e, a + e, w->n);
        break;
    case K_GATHER_NEON:
        for (int32_t l = 0; l < 4; l++)
            w->n[l] = k_idot(c->q + 4 * l, a + 4 * l, 4) + k_idot(c->q + 16 + 4 * l, a + 16 + 4 * l, 4);
        break;
    default:
        for (int32_t e = 0; e < elems; e += each) w->n[e / each] = k_idot(c->q + e, k_cpu_codes(type, act, e), each);
    }
    for (int32_t i = 0; i < k_minima(type); i++) w->j += k_minimum(type, c, act, i);
}

/* ---- blocks of up to 128 elements: activations in thirty-twos ---- */

K_HD void k_cpu_small(int32_t type, const k_qcodes *c, const uint8_t *act, const k_whole *w, k_qsum *s) {
    const float A = k_f16_at(act, 0), S = (float)w->n[0];
    switch (type) {
    case K_T_Q4_0: s->f = s->f + S * c->d * A; break;
    case K_T_Q4_1:
    case K_T_Q5_1: {
        float p = c->d * A * S;
        s->f = s->f + (p + c->m * k_f16_at(act, 2));
        break;
    }
    case K_T_NVFP4:
        for (int32_t i = 0; i < 4; i++) s->f = s->f + k_f16_at(act, 34 * (i / 2)) * c->fs[i] * (float)w->n[i];
        break;
    case K_T_Q1_0:
    case K_T_Q2_0: {
        float P = 0.0f;
        for (int32_t i = 0; i < (type == K_T_Q1_0 ? 4 : 2); i++) P = P + k_f16_at(act, 34 * i) * (float)w->n[i];
        s->f = s->f + c->d * P;
        break;
    }
    default: s->f = s->f + c->d * A * S;
    }
}

/* ---- super-blocks: activations as q8_K ---- */

K_HD void k_cpu_super(int32_t type, const k_qcodes *c, const uint8_t *act, const k_whole *w, k_qsum *s) {
    const float A = k_bits_f32(k_u32_at(act, 0)), I = (float)w->n[0], J = (float)w->j;
    switch (type) {
    case K_T_TQ1_0:
    case K_T_TQ2_0: s->f = s->f + I * (c->d * A); break;
    case K_T_Q2_K: {
        float p = A * c->d * I, m = A * c->m * J;
        s->f = s->f + (p - m);
        break;
    }
    case K_T_Q3_K:
    case K_T_Q6_K:
    case K_T_Q4_K:
    case K_T_Q5_K: {
        const float d = c->d * A;
        for (int32_t l = 0; l < 8; l++) s->lane[l] = s->lane[l] + d * (float)w->n[l];
        if (type == K_T_Q4_K || type == K_T_Q5_K) s->f = s->f - c->m * A * J;
        break;
    }
    case K_T_IQ1_S:
    case K_T_IQ1_M: s->f = s->f + c->d * A * (I + 0.125f * J); break;
    case K_T_IQ4_XS: {
        const float d = c->d * A;
        for (int32_t b = 0; b < 8; b++) s->f = s->f + d * (float)c->sc[b] * (float)w->n[b];
        break;
    }
    default: s->f = s->f + c->d * A * I;
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

/* Block i of nb. */
K_HD void k_neon_step(const k_qcodes *c, const uint8_t *act, int64_t i, int64_t nb, const k_whole *w, k_qsum *s) {
    const float d = c->d * k_f16_at(act, 0);
    if (i + 1 == nb && nb % 2) {
        s->f = (float)(w->n[0] + w->n[1] + w->n[2] + w->n[3]) * d;
        return;
    }
    for (int32_t l = 0; l < 4; l++)
        if (i % 2)
            s->lane[4 + l] = fmaf((float)w->n[l], d, s->lane[4 + l]);
        else
            s->lane[l] = fmaf((float)w->n[l], d, s->lane[l]);
}
K_HD float k_neon_end(int64_t nb, const k_qsum *s) {
    const float *L = s->lane;
    float f = ((L[0] + L[1]) + (L[2] + L[3])) + ((L[4] + L[5]) + (L[6] + L[7]));
    return nb % 2 ? f + s->f : f;
}

K_HD void k_q8_0x4_step(const k_qcodes *c, const uint8_t *act, const k_whole *w, k_qsum *s) {
    s->f = fmaf((float)w->n[0], c->d * k_f16_at(act, 0), s->f);
}

K_HD void k_q4_kx8_step(const k_qcodes *c, const uint8_t *act, const k_whole *w, k_qsum *s) {
    const float A = k_bits_f32(k_u32_at(act, 0));
    s->f = fmaf((float)w->n[0], c->d * A, s->f);
    s->lane[0] = fmaf((float)w->j, c->m * A, s->lane[0]);
}

/* ---- by rule: K_RULE_CPU and the orders behind it, but K_RULE_GPU ---- */

/* Block i of nb. */
K_HD void k_code_step(k_dot_rule rule, int32_t type, const k_qcodes *c, const uint8_t *act, int64_t i, int64_t nb,
                      const k_whole *w, k_qsum *s) {
    switch (rule) {
    case K_RULE_NEON_Q8_0: k_neon_step(c, act, i, nb, w, s); break;
    case K_RULE_Q8_0X4: k_q8_0x4_step(c, act, w, s); break;
    case K_RULE_Q4_KX8: k_q4_kx8_step(c, act, w, s); break;
    default:
        if (k_is_small(type))
            k_cpu_small(type, c, act, w, s);
        else
            k_cpu_super(type, c, act, w, s);
    }
}

K_HD float k_code_end(k_dot_rule rule, int32_t type, int64_t nb, const k_qsum *s) {
    switch (rule) {
    case K_RULE_NEON_Q8_0: return k_neon_end(nb, s);
    case K_RULE_Q8_0X4: return s->f;
    case K_RULE_Q4_KX8: return s->f - s->lane[0];
    default: return k_cpu_end(type, s);
    }
}

#endif
