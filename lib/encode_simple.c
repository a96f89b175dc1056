/* Encoders of single values, and of blocks with one scale: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL. */
#include "kernels/quant_grids.h"
#include "lib/encode_fit.h"

void q4x_encode_F32(const float *x, int64_t n, uint8_t *out) {
    memcpy(out, x, (size_t)n * sizeof *x);
}
void q4x_encode_F16(const float *x, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i < n; i++) q4x_put16(out + 2 * i, k_f16_from_f32(x[i]));
}
void q4x_encode_BF16(const float *x, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i < n; i++) q4x_put16(out + 2 * i, k_bf16_from_f32(x[i]));
}

enum { N = 32 };

/* Codes as nibbles: byte j holds j and j + 16. */
static void pack(uint8_t *out, const int *q) {
    for (int j = 0; j < N / 2; j++) out[j] = (uint8_t)((q[j] & 15) | (q[j + N / 2] & 15) << 4);
}

/* The fifth bits, element e in bit e. */
static uint32_t fifth(const int *q) {
    uint32_t h = 0;
    for (int e = 0; e < N; e++) h |= (uint32_t)(q[e] >> 4 & 1) << e;
    return h;
}

static void symmetric(const q4x_block *b, int zero, int *q, double *ret_d) {
    double d = q4x_fit_scale(b->x, b->w, N, -zero, zero - 1, 1);
    for (int e = 0; e < N; e++) q[e] = zero + (d != 0 ? (int)q4x_nearest(b->x[e] / d, -zero, zero - 1) : 0);
    *ret_d = d;
}

/* The minimum is rounded first: the scale then makes good what that moved. */
static void affine(const q4x_block *b, int hi, int *q, double *ret_d, double *ret_m) {
    double s, m;
    q4x_fit_affine(b->x, b->w, N, hi, 0, &s, &m);
    m = q4x_half(m);
    s = q4x_half(s);
    for (int e = 0; e < N; e++) q[e] = s != 0 ? (int)q4x_nearest((b->x[e] - m) / s, 0, hi) : 0;
    *ret_d = s;
    *ret_m = m;
}

void q4x_encode_Q4_0(const q4x_block *b) {
    int q[N];
    double d;
    symmetric(b, 8, q, &d);
    q4x_put16(b->out, q4x_half_bits(d));
    pack(b->out + 2, q);
}

void q4x_encode_Q5_0(const q4x_block *b) {
    int q[N];
    double d;
    symmetric(b, 16, q, &d);
    q4x_put16(b->out, q4x_half_bits(d));
    q4x_put32(b->out + 2, fifth(q));
    pack(b->out + 6, q);
}

void q4x_encode_Q4_1(const q4x_block *b) {
    int q[N];
    double d, m;
    affine(b, 15, q, &d, &m);
    q4x_put16(b->out, q4x_half_bits(d));
    q4x_put16(b->out + 2, q4x_half_bits(m));
    pack(b->out + 4, q);
}

void q4x_encode_Q5_1(const q4x_block *b) {
    int q[N];
    double d, m;
    affine(b, 31, q, &d, &m);
    q4x_put16(b->out, q4x_half_bits(d));
    q4x_put16(b->out + 2, q4x_half_bits(m));
    q4x_put32(b->out + 4, fifth(q));
    pack(b->out + 8, q);
}

/* 255 codes: nothing to win by a search. */
void q4x_encode_Q8_0(const q4x_block *b) {
    double most = 0;
    for (int e = 0; e < N; e++)
        if (fabs(b->x[e]) > most) most = fabs(b->x[e]);
    double d = q4x_half(most / 127);
    q4x_put16(b->out, q4x_half_bits(d));
    for (int e = 0; e < N; e++) b->out[2 + e] = (uint8_t)(d != 0 ? (int)q4x_nearest(b->x[e] / d, -127, 127) : 0);
}

void q4x_encode_IQ4_NL(const q4x_block *b) {
    int q[N];
    double d = q4x_fit_levels(b->x, b->w, N);
    for (int e = 0; e < N; e++) q[e] = q4x_level_code(d != 0 ? b->x[e] / d : 0);
    q4x_put16(b->out, q4x_half_bits(d));
    pack(b->out + 2, q);
}
