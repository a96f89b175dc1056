/* qdot_gpu.h: the sums of ggml's CUDA matrix-vector products (gguf-quants.md 4.5): 128 threads, of which each adds its
 * partial of every block it meets; then warps, then a butterfly. One text for gcc and nvcc.
 */
#ifndef K_QDOT_GPU_H
#define K_QDOT_GPU_H

#include "kernels/qdot_sum.h"

enum { K_GPU_THREADS = 128 };

/* Threads that share a block (P), and work units that each takes (VDR). 0 threads: no path for this type. */
K_HD int32_t k_gpu_threads(int32_t type, int32_t *ret_units) {
    *ret_units = 1;
    switch (type) {
    case K_T_Q4_0:
    case K_T_Q4_1:
    case K_T_Q5_0:
    case K_T_Q5_1:
    case K_T_IQ4_NL:
    case K_T_MXFP4: *ret_units = 2; return 2;
    case K_T_Q8_0: *ret_units = 2; return 4;
    case K_T_NVFP4: *ret_units = 4; return 2;
    case K_T_Q2_K:
    case K_T_Q3_K: return 16;
    case K_T_Q4_K:
    case K_T_Q5_K: *ret_units = 2; return 16;
    case K_T_Q6_K: return 32;
    case K_T_IQ2_XXS:
    case K_T_IQ2_XS:
    case K_T_IQ2_S:
    case K_T_IQ3_XXS:
    case K_T_IQ3_S: *ret_units = 2; return 8;
    case K_T_IQ1_S:
    case K_T_IQ1_M: return 8;
    case K_T_IQ4_XS: *ret_units = 4; return 8;
    case K_T_Q1_0: return 4;
    case K_T_Q2_0: return 2;
    default: return 0;
    }
}

/* Thirty-two j of a block's activations: codes, scale, sum. */
K_HD const int8_t *k_gpu_codes(const uint8_t *act, int32_t j) {
    return (const int8_t *)act + 36 * j + 4;
}
K_HD float k_gpu_d(const uint8_t *act, int32_t j) {
    return k_f16_at(act, 36 * j);
}

/* Blocks of 32: elements 4k .. 4k+7 and sixteen on, codes from `zero` on. */
K_HD float k_gpu_thirty_two(int32_t type, const k_qcodes *c, const uint8_t *act, int32_t k) {
    const int8_t *a = k_gpu_codes(act, 0);
    const float d8 = k_gpu_d(act, 0), s8 = k_f16_at(act, 2);
    const int32_t zero = type == K_T_Q4_0 ? 8 : type == K_T_Q5_0 ? 16 : 0;
    int32_t S = 0;
    for (int32_t e = 4 * k; e < 4 * k + 8; e++)
        S += ((int32_t)c->q[e] + zero) * (int32_t)a[e] + ((int32_t)c->q[e + 16] + zero) * (int32_t)a[e + 16];
    switch (type) {
    case K_T_Q4_0: return c->d * ((float)S * d8 - 4.0f * s8);
    case K_T_Q5_0: return c->d * ((float)S * d8 - 8.0f * s8);
    case K_T_Q4_1:
    case K_T_Q5_1: return (float)S * k_round_f16(c->d * d8) + k_round_f16(c->m * s8) / 2.0f;
    default: return c->d * d8 * (float)S;
    }
}

/* Q2_K, Q3_K: four elements of each thirty-two of a half. */
K_HD float k_gpu_half(int32_t type, const k_qcodes *c, const uint8_t *act, int32_t k) {
    const int32_t n = k / 8, o = 4 * (k % 8);
    float X = 0.0f, Y = 0.0f;
    for (int32_t i = 0; i < 4; i++) {
        const int32_t j = 4 * n + i, e = 32 * j + o;
        const int8_t *a = k_gpu_codes(act, j) + o;
        X = X + k_gpu_d(act, j) * (float)(k_idot(c->q + e, a, 4) * c->sc[e / 16]);
        if (type == K_T_Q2_K) Y = Y + k_gpu_d(act, j) * (float)(c->mn[e / 16] * (a[0] + a[1] + a[2] + a[3]));
    }
    return type == K_T_Q2_K ? c->d * X - c->m * Y : c->d * X;
}

/* Q4_K, Q5_K: eight elements of two neighbouring groups. */
K_HD float k_gpu_pair(const k_qcodes *c, const uint8_t *act, int32_t k) {
    const int32_t p = k / 8, o = 4 * (k / 2 % 4);
    float X = 0.0f, Y = 0.0f;
    for (int32_t j = 2 * p; j < 2 * p + 2; j++) {
        const int8_t *a = k_gpu_codes(act, j), *q = c->q + 32 * j;
        int32_t S = k_idot(q + o, a + o, 4) + k_idot(q + o + 16, a + o + 16, 4), w = 0;
        for (int32_t e = o; e < o + 4; e++) w += a[e] + a[e + 16];
        X = X + k_gpu_d(act, j) * (float)(S * c->sc[j]);
        Y = Y + k_gpu_d(act, j) * (float)(w * c->mn[j]);
    }
    return c->d * X - c->m * Y;
}

K_HD float k_gpu_q6(const k_qcodes *c, const uint8_t *act, int32_t k) {
    const int32_t n = k / 16, r = k % 16, o = 4 * (k % 8);
    float X = 0.0f;
    for (int32_t i = 0; i < 2; i++) {
        const int32_t j = 4 * n + r / 8 + 2 * i, e = 32 * j + o;
        X = X + k_gpu_d(act, j) * (float)(k_idot(c->q + e, k_gpu_codes(act, j) + o, 4) * c->sc[e / 16]);
    }
    return c->d * X;
}

/* IQ2, IQ3: a thirty-two, its whole number divided as C divides. sc holds 2 n + 1. */
K_HD float k_gpu_grid(int32_t type, const k_qcodes *c, const uint8_t *act, int32_t j) {
    const int8_t *a = k_gpu_codes(act, j), *q = c->q + 32 * j;
    int32_t S0 = k_idot(q, a, 16), S1 = k_idot(q + 16, a + 16, 16), S = S0 + S1;
    switch (type) {
    case K_T_IQ2_XXS: S = S * c->sc[j] / 8; break;
    case K_T_IQ2_XS:
    case K_T_IQ2_S: S = (S0 * (c->sc[2 * j] / 2) + S1 * (c->sc[2 * j + 1] / 2) + S / 2) / 4; break;
    case K_T_IQ3_XXS: S = (c->sc[j] / 2 * S + S / 2) / 2; break;
    default: S = S * c->sc[j];
    }
    return c->d * k_gpu_d(act, j) * (float)S;
}

K_HD float k_gpu_iq1(int32_t type, const k_qcodes *c, const uint8_t *act, int32_t k) {
    const int8_t *a = k_gpu_codes(act, k), *q = c->q + 32 * k;
    const float d8 = k_gpu_d(act, k);
    if (type == K_T_IQ1_S) {
        int32_t S = 0;
        for (int32_t e = 0; e < 32; e++) S += ((int32_t)q[e] + 1) * (int32_t)a[e];
        return c->d * (float)c->sc[k] *
               (d8 * (float)S + k_f16_at(act, 36 * k + 2) * (-1.0f + 0.125f * (float)c->mn[k]));
    }
    float R[2];
    for (int32_t h = 0; h < 2; h++) {
        int32_t S = 0;
        float C = 0.0f;
        for (int32_t g = 2 * h; g < 2 * h + 2; g++) {
            int32_t t = 0;
            for (int32_t e = 8 * g; e < 8 * g + 8; e++) S += ((int32_t)q[e] + 1) * (int32_t)a[e], t += a[e];
            C = C + (-1.0f + 0.125f * (float)c->sg[4 * k + g]) * (float)t;
        }
        R[h] = ((float)S + C) * (float)c->sc[2 * k + h];
    }
    return c->d * d8 * (R[0] + R[1]);
}

/* What the thread at unit k of a block adds. act: the q8_1 blocks of this block. */
K_HD float k_gpu_part(int32_t type, const k_qcodes *c, const uint8_t *act, int32_t k) {
    switch (type) {
    case K_T_Q8_0: return c->d * k_gpu_d(act, 0) * (float)k_idot(c->q + 4 * k, k_gpu_codes(act, 0) + 4 * k, 8);
    case K_T_NVFP4: {
        float P = 0.0f;
        for (int32_t i = 0; i < 2; i++) {
            const int32_t s = k / 2 + i;
            P = P + c->fs[s] * k_gpu_d(act, s / 2) *
                        (float)k_idot(c->q + 16 * s, k_gpu_codes(act, s / 2) + 16 * (s % 2), 16);
        }
        return P;
    }
    case K_T_Q1_0:
    case K_T_Q2_0: return c->d * k_gpu_d(act, k) * (float)k_idot(c->q + 32 * k, k_gpu_codes(act, k), 32);
    case K_T_Q2_K:
    case K_T_Q3_K: return k_gpu_half(type, c, act, k);
    case K_T_Q4_K:
    case K_T_Q5_K: return k_gpu_pair(c, act, k);
    case K_T_Q6_K: return k_gpu_q6(c, act, k);
    case K_T_IQ1_S:
    case K_T_IQ1_M: return k_gpu_iq1(type, c, act, k);
    case K_T_IQ4_XS:
        return c->d * k_gpu_d(act, k / 4) * (float)(k_idot(c->q + 8 * k, k_gpu_codes(act, k / 4), 32) * c->sc[k / 4]);
    case K_T_IQ2_XXS:
    case K_T_IQ2_XS:
    case K_T_IQ2_S:
    case K_T_IQ3_XXS:
    case K_T_IQ3_S: return k_gpu_grid(type, c, act, k / 2);
    default: return k_gpu_thirty_two(type, c, act, k);
    }
}

/* Block i of a row, for all threads that meet it. acc: K_GPU_THREADS sums. */
K_HD void k_gpu_step(int32_t type, const k_qcodes *c, const uint8_t *act, int64_t i, float *acc) {
    int32_t units;
    const int32_t P = k_gpu_threads(type, &units);
    if (P <= 0) return; /* no such path: k_dot_rule_of names it for no such type */
    float *t = acc + i % (K_GPU_THREADS / P) * P;
    for (int32_t p = 0; p < P; p++) t[p] = t[p] + k_gpu_part(type, c, act, units * p);
}

/* Warps in order, then the butterfly. */
K_HD float k_gpu_end(float *acc) {
    for (int32_t l = 0; l < 32; l++)
        for (int32_t w = 1; w < K_GPU_THREADS / 32; w++) acc[l] = acc[l] + acc[32 * w + l];
    return k_lanes32_fold(acc);
}

#endif
