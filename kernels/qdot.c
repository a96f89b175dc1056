#include "kernels/qdot.h"

#include <string.h>

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

static int32_t format_of(k_dot_rule rule, int32_t type) {
    if (rule == K_RULE_GPU) return K_ACTQ_Q8_1_GPU;
    if (rule == K_RULE_NEON_Q8_0 || rule == K_RULE_Q8_0X4) return K_ACTQ_Q8_0_NEON;
    if (k_quant_get(type)->elems == 256) return K_ACTQ_Q8_K;
    return type == K_T_Q4_1 || type == K_T_Q5_1 ? K_ACTQ_Q8_1 : K_ACTQ_Q8_0;
}

void k_dot_quantise(k_dot_rule rule, int32_t type, const float *x, int64_t n, uint8_t *to) {
    const int32_t format = format_of(rule, type);
    if (format == K_ACTQ_Q8_K)
        k_encode_q8_K(x, to, n);
    else
        for (int64_t i = 0; i + 32 <= n; i += 32, to += k_actq_bytes(format)) k_actq_block32(format, x + i, to);
}

/* x as F16 and BF16 weights of a CPU rule meet it. */
static float as_weight(k_dot_rule rule, int32_t type, float x) {
    if (rule != K_RULE_F64 && rule != K_RULE_NEON_F32) return x;
    return type == K_T_F16 ? k_round_f16(x) : type == K_T_BF16 ? k_round_bf16(x) : x;
}

void k_dot_errors(k_dot_rule rule, int32_t type, const float *x, int64_t n, float *e) {
    if (rule < K_RULE_CPU) {
        for (int64_t i = 0; i < n; i++) e[i] = fabsf(x[i] - as_weight(rule, type, x[i]));
        return;
    }
    const int64_t block = k_actq_elems(format_of(rule, type));
    for (int64_t b = 0; b < n; b += block) {
        float a = 0.0f;
        for (int64_t i = b; i < b + block; i++) a = fabsf(x[i]) > a ? fabsf(x[i]) : a;
        for (int64_t i = b; i < b + block; i++) e[i] = a / 127.0f * 0x1.279a74p-2f; /* a step over sqrt 12 */
    }
}

double k_dot_scale_error(k_dot_rule rule, int32_t type) {
    return rule < K_RULE_CPU || format_of(rule, type) == K_ACTQ_Q8_K ? 0.0 : 0x1p-11;
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

static float serial_dot(const float *w, const float *x, int64_t n) {
    float s = 0.0f;
    for (int64_t i = 0; i < n; i++) s = fmaf(w[i], x[i], s);
    return s;
}

static float blocked_dot(const float *w, const float *x, int64_t n) {
    float s = 0.0f;
    for (int64_t i = 0; i < n; i += K_DOT_BLOCK)
        s = s + k_v8_dot(w + i, x + i, n - i < K_DOT_BLOCK ? n - i : K_DOT_BLOCK);
    return s;
}

static float f64_dot(const float *w, const float *x, int64_t n) {
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s = s + (double)(w[i] * x[i]);
    return (float)s;
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
    case K_RULE_SERIAL: return serial_dot(w, x, n);
    case K_RULE_BLOCKED: return blocked_dot(w, x, n);
    case K_RULE_F64: return f64_dot(w, x, n);
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
            for (int64_t k = 0; k < K; k++) rounded[i * K + k] = as_weight(rule, w->type, c.x[i][k]);
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
        k_qcodes_scales(id, b, elems, c);                                                                              \
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

static void step(k_dot_rule rule, int32_t type, const k_qcodes *c, const uint8_t *act, int64_t i, int64_t nb, sums *s,
                 int col) {
    switch (rule) {
    case K_RULE_GPU: k_gpu_step(type, c, act, i, s->gpu[col]); break;
    case K_RULE_NEON_Q8_0: k_neon_step(c, act, i, nb, &s->cpu[col]); break;
    case K_RULE_Q8_0X4: k_q8_0x4_step(c, act, &s->cpu[col]); break;
    case K_RULE_Q4_KX8: k_q4_kx8_step(c, act, &s->cpu[col]); break;
    default:
        if (k_quant_get(type)->elems == 256)
            k_cpu_super(type, c, act, &s->cpu[col]);
        else
            k_cpu_small(type, c, act, &s->cpu[col]);
    }
}

static float end(k_dot_rule rule, int32_t type, int64_t nb, sums *s, int col) {
    switch (rule) {
    case K_RULE_GPU: return k_gpu_end(s->gpu[col]);
    case K_RULE_NEON_Q8_0: return k_neon_end(nb, &s->cpu[col]);
    case K_RULE_Q8_0X4: return s->cpu[col].f;
    case K_RULE_Q4_KX8: return s->cpu[col].f - s->cpu[col].lane[0];
    default: return k_cpu_end(type, &s->cpu[col]);
    }
}

static void code_rows(const k_panel *p, const k_weight *w, k_dot_rule rule, int64_t r0, int64_t r1, float *scratch) {
    const k_quant *q = k_quant_get(w->type);
    const int32_t format = format_of(rule, w->type);
    const int64_t nb = p->K / q->elems, per = q->elems / k_actq_elems(format) * k_actq_bytes(format);
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
                for (int i = 0; i < c.C; i++) step(rule, w->type, &codes, act + (i * nb + k) * per, k, nb, &s, i);
            }
            for (int i = 0; i < c.C; i++) c.y[i][r] = end(rule, w->type, nb, &s, i);
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
