#include "kernels/qdot.h"

#include <string.h>

#include "kernels/qdot_f32.h"
#include "kernels/qdot_gpu.h"
#include "kernels/quant.h"
#include "kernels/vec8.h"

/* ---- which rule ---- */

/* A type whose blocks gguf-quants.md 4.1 gives codes to multiply. */
static int has_codes(int32_t type) {
    int32_t units;
    return type == K_T_TQ1_0 || type == K_T_TQ2_0 || k_gpu_threads(type, &units) > 0;
}

static k_dot_rule cpu_rule(const k_levers *lv, int32_t type, int64_t rows) {
    const int neon = lv->dot == K_DOT_NEON;
    if (type == K_T_F32 || type == K_T_F16 || type == K_T_BF16) return neon ? K_RULE_NEON_F32 : K_RULE_F64;
    if (!has_codes(type)) return K_RULE_LANES32;
    if (lv->repack == K_REPACK_Q8_0X4 && type == K_T_Q8_0 && rows % 4 == 0) return K_RULE_Q8_0X4;
    if (lv->repack == K_REPACK_Q4_KX8 && type == K_T_Q4_K && rows % 8 == 0) return K_RULE_Q4_KX8;
    return neon && type == K_T_Q8_0 ? K_RULE_NEON_Q8_0 : K_RULE_CPU;
}

k_dot_rule k_dot_rule_of(const k_levers *lv, int64_t columns, int32_t type, int64_t rows) {
    int32_t units;
    if (k_dot_plain(lv, columns)) return K_RULE_LANES32;
    switch (lv->dot) {
    case K_DOT_SERIAL: return K_RULE_SERIAL;
    case K_DOT_BLOCKED: return K_RULE_BLOCKED;
    case K_DOT_Q8_1: return k_gpu_threads(type, &units) ? K_RULE_GPU : K_RULE_LANES32;
    default: return cpu_rule(lv, type, rows);
    }
}

/* ---- activations ---- */

int32_t k_dot_format(k_dot_rule rule, int32_t type) {
    if (rule == K_RULE_GPU) return K_ACTQ_Q8_1_GPU;
    if (rule == K_RULE_NEON_Q8_0 || rule == K_RULE_Q8_0X4) return K_ACTQ_Q8_0_NEON;
    if (k_quant_get(type)->elems == 256) return K_ACTQ_Q8_K;
    return type == K_T_Q4_1 || type == K_T_Q5_1 ? K_ACTQ_Q8_1 : K_ACTQ_Q8_0;
}

int64_t k_dot_block_bytes(k_dot_rule rule, int32_t type) {
    const int32_t format = k_dot_format(rule, type);
    return k_quant_get(type)->elems / k_actq_elems(format) * k_actq_bytes(format);
}

void k_dot_quantise(k_dot_rule rule, int32_t type, const float *x, int64_t n, uint8_t *to) {
    const int32_t format = k_dot_format(rule, type);
    if (format == K_ACTQ_Q8_K)
        k_encode_q8_K(x, to, n);
    else
        for (int64_t i = 0; i + 32 <= n; i += 32, to += k_actq_bytes(format)) k_actq_block32(format, x + i, to);
}

void k_dot_errors(k_dot_rule rule, int32_t type, const float *x, int64_t n, float *e) {
    if (rule < K_RULE_CPU) {
        for (int64_t i = 0; i < n; i++) e[i] = fabsf(x[i] - k_as_weight(rule, type, x[i]));
        return;
    }
    const int64_t block = k_actq_elems(k_dot_format(rule, type));
    for (int64_t b = 0; b < n; b += block) {
        float a = 0.0f;
        for (int64_t i = b; i < b + block; i++) a = fabsf(x[i]) > a ? fabsf(x[i]) : a;
        for (int64_t i = b; i < b + block; i++) e[i] = a / 127.0f * 0x1.279a74p-2f; /* a step over sqrt 12 */
    }
}

double k_dot_scale_error(k_dot_rule rule, int32_t type) {
    return rule < K_RULE_CPU || k_dot_format(rule, type) == K_ACTQ_Q8_K ? 0.0 : 0x1p-11;
}

/* Types whose zero is not code 0 subtract the column's sum, in half precision (gguf-quants.md 4.6, measured there). */
double k_dot_excess(k_dot_rule rule, int32_t type) {
    if (rule != K_RULE_GPU) return 1.0;
    switch (type) {
    case K_T_Q5_0: return 16.0;
    case K_T_Q4_0:
    case K_T_Q4_1:
    case K_T_Q5_1:
    case K_T_IQ1_S: return 8.0;
    default: return 1.0;
    }
}

/* ---- decoded rows ---- */

static float blocked_dot(const float *w, const float *x, int64_t n) {
    float s = 0.0f;
    for (int64_t i = 0; i < n; i += K_DOT_BLOCK)
        s = s + k_v8_dot(w + i, x + i, n - i < K_DOT_BLOCK ? n - i : K_DOT_BLOCK);
    return s;
}

static float neon_dot(const float *w, const float *x, int64_t n) {
    float L[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++) L[l] = fmaf(w[i + l], x[i + l], L[l]);
    for (int t = 8; t >= 4; t /= 2)
        for (int l = 0; l < t; l++) L[l] = L[l] + L[l + t];
    float s = (L[0] + L[1]) + (L[2] + L[3]);
    for (; i < n; i++) s = fmaf(w[i], x[i], s);
    return s;
}

static float float_dot(k_dot_rule rule, const float *w, const float *x, int64_t n) {
    switch (rule) {
    case K_RULE_SERIAL: return k_serial_on(w, x, n, 0.0f);
    case K_RULE_BLOCKED: return blocked_dot(w, x, n);
    case K_RULE_F64: return (float)k_f64_on(w, x, n, 0.0);
    default: return neon_dot(w, x, n);
    }
}

/* Columns j .. j+C-1: where they are, and their outputs. */
typedef struct {
    const float *x[K_DOT_COLUMNS];
    float *y[K_DOT_COLUMNS];
    int C;
} columns;

static columns columns_of(const k_panel *p, int32_t j) {
    columns c = {.C = p->n - j < K_DOT_COLUMNS ? p->n - j : K_DOT_COLUMNS};
    for (int i = 0; i < c.C; i++) {
        int64_t s = p->slot ? p->slot[j + i] : j + i;
        c.x[i] = p->x + s / p->div * p->K;
        c.y[i] = p->out + s * p->O;
    }
    return c;
}

static void float_rows(const k_panel *p, const k_weight *w, k_dot_rule rule, int64_t r0, int64_t r1, float *scratch) {
    const int64_t K = p->K;
    float *row = scratch, *rounded = scratch + K;
    for (int32_t j = 0; j < p->n; j += K_DOT_COLUMNS) {
        const columns c = columns_of(p, j);
        for (int i = 0; i < c.C; i++)
            for (int64_t k = 0; k < K; k++) rounded[i * K + k] = k_as_weight(rule, w->type, c.x[i][k]);
        for (int64_t r = r0; r < r1; r++) {
            k_decode_row(w->type, (const uint8_t *)w->data + (size_t)r * w->row_bytes, row, K);
            for (int i = 0; i < c.C; i++) c.y[i][r] = float_dot(rule, row, rounded + i * K, K);
        }
    }
}

/* ---- rows of codes ---- */

__attribute__((flatten)) static void codes_of(int32_t type, const uint8_t *b, k_qcodes *c) {
    switch (type) {
#define QUANT(id, name, elems, bytes, stored)                                                                          \
    case id:                                                                                                           \
        for (int32_t e = 0; e < elems; e++) c->q[e] = (int8_t)k_qcode(id, b, e);                                       \
        k_qcodes_block(id, b, c);                                                                                      \
        for (int32_t j = 0; j < k_qgroups(id, elems); j++) k_qcodes_group(id, b, j, c);                                \
        for (int32_t g = 0; id == K_T_IQ1_M && g < 32; g++) c->sg[g] = k_qdelta(b, g);                                 \
        break;
#include "kernels/quants.def"
#undef QUANT
    }
}

/* A row's sum with each of the columns, whatever the rule. */
typedef struct {
    k_qsum cpu[K_DOT_COLUMNS];
    float gpu[K_DOT_COLUMNS][K_GPU_THREADS];
} sums;

static void step(k_dot_rule rule, int32_t type, int32_t elems, const k_qcodes *c, const uint8_t *act, int64_t i,
                 int64_t nb, sums *s, int col) {
    k_whole w;
    if (rule == K_RULE_GPU) {
        k_gpu_step(type, c, act, i, s->gpu[col]);
        return;
    }
    k_whole_of(rule, type, elems, c, act, &w);
    k_code_step(rule, type, c, act, i, nb, &w, &s->cpu[col]);
}

static void code_rows(const k_panel *p, const k_weight *w, k_dot_rule rule, int64_t r0, int64_t r1, float *scratch) {
    const k_quant *q = k_quant_get(w->type);
    const int64_t nb = p->K / q->elems, per = k_dot_block_bytes(rule, w->type);
    uint8_t *act = (uint8_t *)scratch;
    for (int32_t j = 0; j < p->n; j += K_DOT_COLUMNS) {
        const columns c = columns_of(p, j);
        for (int i = 0; i < c.C; i++) k_dot_quantise(rule, w->type, c.x[i], p->K, act + i * nb * per);
        for (int64_t r = r0; r < r1; r++) {
            const uint8_t *b = (const uint8_t *)w->data + (size_t)r * w->row_bytes;
            k_qcodes codes;
            sums s;
            if (rule == K_RULE_GPU)
                memset(s.gpu, 0, sizeof s.gpu);
            else
                memset(s.cpu, 0, sizeof s.cpu);
            for (int64_t k = 0; k < nb; k++, b += q->bytes) {
                codes_of(w->type, b, &codes);
                for (int i = 0; i < c.C; i++)
                    step(rule, w->type, q->elems, &codes, act + (i * nb + k) * per, k, nb, &s, i);
            }
            for (int i = 0; i < c.C; i++)
                c.y[i][r] = rule == K_RULE_GPU ? k_gpu_end(s.gpu[i]) : k_code_end(rule, w->type, nb, &s.cpu[i]);
        }
    }
}

void k_dot_rows(const k_panel *p, const k_weight *w, k_dot_rule rule, int64_t r0, int64_t r1, float *scratch,
                int64_t scratch_n) {
    if (rule == K_RULE_LANES32)
        k_panel_rows(p, w, r0, r1, scratch, scratch_n);
    else if (rule < K_RULE_CPU)
        float_rows(p, w, rule, r0, r1, scratch);
    else
        code_rows(p, w, rule, r0, r1, scratch);
}
