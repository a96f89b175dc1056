/* Encoders of super-blocks of 256 with scaled sub-blocks: Q4_K Q5_K Q6_K. */
#include "lib/encode_fit.h"

/* ---- Q4_K, Q5_K: eight sub-blocks, x ~ d S q - dmin M ---- */

enum { SUBS = 8, SUB = 32, TOP6 = 63 };

typedef struct {
    double d, dmin;
    int S[SUBS], M[SUBS], q[256];
    double err;
} scaled;

/* Codes for the scales of t, and the error they leave. */
static void choose_codes(const q4x_block *b, int hi, scaled *t) {
    t->err = 0;
    for (int e = 0; e < 256; e++) {
        int j = e / SUB;
        double s = t->d * t->S[j], m = t->dmin * t->M[j];
        t->q[e] = s != 0 ? (int)q4x_nearest((b->x[e] + m) / s, 0, hi) : 0;
        double r = s * t->q[e] - m - b->x[e];
        t->err += b->w[e] * r * r;
    }
}

/* d and dmin that suit the codes of t best; 0 when they decide nothing. */
static int refit(const q4x_block *b, scaled *t) {
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (int e = 0; e < 256; e++) {
        int j = e / SUB;
        double p = (double)t->S[j] * t->q[e], m = -(double)t->M[j];
        aa += b->w[e] * p * p;
        ab += b->w[e] * p * m;
        bb += b->w[e] * m * m;
        ax += b->w[e] * p * b->x[e];
        bx += b->w[e] * m * b->x[e];
    }
    double det = aa * bb - ab * ab;
    if (det > 1e-9 * aa * bb) {
        t->d = (ax * bb - bx * ab) / det;
        t->dmin = (bx * aa - ax * ab) / det;
    } else if (aa > 0) {
        t->d = (ax - t->dmin * ab) / aa;
    } else {
        return 0;
    }
    if (t->d < 0 || t->dmin < 0) return 0;
    t->d = q4x_half(t->d);
    t->dmin = q4x_half(t->dmin);
    return 1;
}

static void pack_scales(uint8_t *s, const int *S, const int *M) {
    memset(s, 0, 12);
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(S[j] | S[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(M[j] | M[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((S[j + 4] & 15) | (M[j + 4] & 15) << 4);
    }
}

static void encode_scaled(const q4x_block *b, int hi, scaled *best) {
    double s[SUBS], m[SUBS], smax = 0, mmax = 0;
    for (int j = 0; j < SUBS; j++) {
        q4x_fit_affine(b->x + SUB * j, b->w + SUB * j, SUB, hi, 1, &s[j], &m[j]);
        if (s[j] > smax) smax = s[j];
        if (-m[j] > mmax) mmax = -m[j];
    }
    scaled t = {.d = q4x_half(smax / TOP6), .dmin = q4x_half(mmax / TOP6)};
    for (int j = 0; j < SUBS; j++) {
        t.S[j] = t.d != 0 ? (int)q4x_nearest(s[j] / t.d, 0, TOP6) : 0;
        t.M[j] = t.dmin != 0 ? (int)q4x_nearest(-m[j] / t.dmin, 0, TOP6) : 0;
    }
    choose_codes(b, hi, &t);
    *best = t;
    for (int k = 0; k < 3 && refit(b, &t); k++) {
        choose_codes(b, hi, &t);
        if (!(t.err < best->err)) break;
        *best = t;
    }
    q4x_put16(b->out, q4x_half_bits(best->d));
    q4x_put16(b->out + 2, q4x_half_bits(best->dmin));
    pack_scales(b->out + 4, best->S, best->M);
}

/* A byte of low bits holds e and e + 32. */
static void pack_nibbles(uint8_t *out, const int *q) {
    for (int p = 0; p < 4; p++)
        for (int l = 0; l < 32; l++) out[32 * p + l] = (uint8_t)((q[64 * p + l] & 15) | (q[64 * p + 32 + l] & 15) << 4);
}

void q4x_encode_Q4_K(const q4x_block *b) {
    scaled t;
    encode_scaled(b, 15, &t);
    pack_nibbles(b->out + 16, t.q);
}

void q4x_encode_Q5_K(const q4x_block *b) {
    scaled t;
    encode_scaled(b, 31, &t);
    for (int l = 0; l < 32; l++) {
        int h = 0;
        for (int j = 0; j < SUBS; j++) h |= (t.q[32 * j + l] >> 4) << j;
        b->out[16 + l] = (uint8_t)h;
    }
    pack_nibbles(b->out + 48, t.q);
}

/* ---- Q6_K: sixteen sub-blocks, x ~ d S q ---- */

enum { SUBS6 = 16, SUB6 = 16 };

typedef struct {
    double d;
    int S[SUBS6], q[256]; /* q: -32 .. 31 */
    double err;
} signed6;

static void choose_codes6(const q4x_block *b, signed6 *t) {
    t->err = 0;
    for (int e = 0; e < 256; e++) {
        int j = e / SUB6;
        double s = t->d * t->S[j];
        t->q[e] = s != 0 ? (int)q4x_nearest(b->x[e] / s, -32, 31) : 0;
        double r = s * t->q[e] - b->x[e];
        t->err += b->w[e] * r * r;
    }
}

static int refit6(const q4x_block *b, signed6 *t) {
    double pp = 0, px = 0;
    for (int e = 0; e < 256; e++) {
        int j = e / SUB6;
        double p = (double)t->S[j] * t->q[e];
        pp += b->w[e] * p * p;
        px += b->w[e] * p * b->x[e];
    }
    if (!(pp > 0)) return 0;
    t->d = q4x_half(px / pp);
    return 1;
}

void q4x_encode_Q6_K(const q4x_block *b) {
    double s[SUBS6], smax = 0;
    for (int j = 0; j < SUBS6; j++) {
        s[j] = q4x_fit_scale(b->x + SUB6 * j, b->w + SUB6 * j, SUB6, -32, 31, 0);
        if (fabs(s[j]) > fabs(smax)) smax = s[j];
    }
    signed6 t = {.d = q4x_half(smax / -128)}, best;
    for (int j = 0; j < SUBS6; j++) t.S[j] = t.d != 0 ? (int)q4x_nearest(s[j] / t.d, -128, 127) : 0;
    choose_codes6(b, &t);
    best = t;
    for (int k = 0; k < 3 && refit6(b, &t); k++) {
        choose_codes6(b, &t);
        if (!(t.err < best.err)) break;
        best = t;
    }
    uint8_t *lo = b->out, *hi = b->out + 128;
    memset(b->out, 0, 192);
    for (int e = 0; e < 256; e++) {
        int n = e / 128, g = e % 128 / 32, l = e % 32, c = best.q[e] + 32;
        lo[64 * n + 32 * (g & 1) + l] |= (uint8_t)((c & 15) << 4 * (g >> 1));
        hi[32 * n + l] |= (uint8_t)((c >> 4) << 2 * g);
    }
    for (int j = 0; j < SUBS6; j++) b->out[192 + j] = (uint8_t)best.S[j];
    q4x_put16(b->out + 208, q4x_half_bits(best.d));
}
