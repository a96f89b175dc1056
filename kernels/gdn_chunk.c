/* The chunked rule. Every sum is a serial fmaf chain over an ascending index, so a product of small matrices that keeps
 * its accumulators in registers (mm) computes all of them: rows 4, columns 16 at a time, the whole chain in one go. */
#include "kernels/arith.h"
#include "kernels/gdn_head.h"
#include "kernels/round.h"
#include "kernels/vec8.h"

enum { CH = K_GDN_CHUNK };

/* What becomes of acc = sum_e a_ie b_ej. */
typedef enum {
    SET,  /* c = acc */
    SUB,  /* c = c - acc */
    AXPY, /* c = fmaf(s_i, c, acc): what is in c is scaled, the sum added */
    SUMX  /* c = fmaf(s_i, acc, c): the sum is scaled, what is in c added */
} mode;

typedef struct {
    const float *a; /* element (i, e) at a[i * arow + e * acol] */
    int64_t arow, acol;
    const float *b; /* element (e, j) at b[e * brow + j] */
    int64_t brow;
    float *c; /* element (i, j) at c[i * crow + j] */
    int64_t crow;
    int64_t m, n, k;
    const float *s; /* s_i at s[i * sstep], modes AXPY and SUMX */
    int64_t sstep;
} mm_args;

static inline float put(mode md, float s, float c, float acc) {
    switch (md) {
    case SUB: return c - acc;
    case AXPY: return fmaf(s, c, acc);
    case SUMX: return fmaf(s, acc, c);
    default: return acc;
    }
}

static inline k_v8 put8(mode md, float s, k_v8 c, k_v8 acc) {
    switch (md) {
    case SUB: return k_v8_sub(c, acc);
    case AXPY: return k_v8_fma(k_v8_set(s), c, acc);
    case SUMX: return k_v8_fma(k_v8_set(s), acc, c);
    default: return acc;
    }
}

/* rows x 8 n8 outputs at (i, j); rows and n8 constants in every use. */
static inline __attribute__((always_inline)) void tile(const mm_args *x, mode md, int64_t i, int64_t j, const int rows,
                                                       const int n8) {
    k_v8 acc[4][4];
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < n8; b++) acc[r][b] = k_v8_zero();
    const float *a = x->a + i * x->arow, *bp = x->b + j;
    for (int64_t e = 0; e < x->k; e++, a += x->acol, bp += x->brow) {
        k_v8 bv[4];
        for (int b = 0; b < n8; b++) bv[b] = k_v8_load(bp + 8 * b);
        for (int r = 0; r < rows; r++) {
            k_v8 av = k_v8_set(a[r * x->arow]);
            for (int b = 0; b < n8; b++) acc[r][b] = k_v8_fma(av, bv[b], acc[r][b]);
        }
    }
    for (int r = 0; r < rows; r++) {
        float *c = x->c + (i + r) * x->crow + j, s = x->s ? x->s[(i + r) * x->sstep] : 0.0f;
        for (int b = 0; b < n8; b++) k_v8_store(c + 8 * b, put8(md, s, k_v8_load(c + 8 * b), acc[r][b]));
    }
}

/* Panels of columns outside, rows inside: a panel of b stays in the cache. */
static inline __attribute__((always_inline)) void mm(mode md, mm_args x) {
    int64_t i, j = 0;
    for (; j + 16 <= x.n; j += 16) {
        for (i = 0; i + 4 <= x.m; i += 4) tile(&x, md, i, j, 4, 2);
        for (; i < x.m; i++) tile(&x, md, i, j, 1, 2);
    }
    for (; j + 8 <= x.n; j += 8)
        for (i = 0; i < x.m; i++) tile(&x, md, i, j, 1, 1);
    for (; j < x.n; j++)
        for (i = 0; i < x.m; i++) {
            float acc = 0.0f, *c = x.c + i * x.crow + j;
            for (int64_t e = 0; e < x.k; e++) acc = fmaf(x.a[i * x.arow + e * x.acol], x.b[e * x.brow + j], acc);
            *c = put(md, x.s ? x.s[i * x.sstep] : 0.0f, *c, acc);
        }
}

/* Row i of the triangular products: n <= 32 columns of sum over e < k of a_e b_e, one row. */
static void row(mode md, const float *a, const float *b, int64_t brow, float *c, int64_t n, int64_t k) {
    const mm_args x = {
        .a = a, .arow = CH, .acol = 1, .b = b, .brow = brow, .c = c, .crow = brow, .m = 1, .n = n, .k = k};
    if (n == 32)
        tile(&x, md, 0, 0, 1, 4);
    else
        mm(md, x);
}

enum { PANEL = 32, PAD = 16 };

static int64_t width(int64_t n) {
    return (n + 15) / 16 * 16 + PAD;
}

int64_t k_gdn_chunk_work(const k_dims *d) {
    const int64_t kw = width(d->dk), vw = width(d->dv);
    return CH * 4 + 3 * CH * CH + 2 * CH * kw + d->dk * CH + CH * vw + 2 * d->dk * vw;
}

k_gdn_rows k_gdn_rows_of(const k_gdn_head *a, float *w) {
    k_gdn_rows x = {.a = a, .kw = width(a->dk), .vw = width(a->dv)};
    x.G = w;
    x.E = x.G + CH;
    x.L = x.E + CH;
    x.beta = x.L + CH;
    x.A = x.beta + CH;
    x.P = x.A + CH * CH;
    x.qs = x.P + CH * CH;
    x.K = x.qs + CH * x.kw;
    x.kt = x.K + CH * x.kw;
    x.U = x.kt + a->dk * CH;
    x.S = x.U + CH * x.vw;
    x.R = x.S + a->dk * x.vw;
    x.M = x.R + a->dk * x.vw;
    for (int64_t e = 0; e < a->dk; e++) memcpy(x.S + e * x.vw, a->S + e * a->dv, (size_t)a->dv * sizeof *x.S);
    return x;
}

void k_gdn_rows_end(const k_gdn_rows *x) {
    const k_gdn_head *a = x->a;
    for (int64_t e = 0; e < a->dk; e++) memcpy(a->S + e * a->dv, x->S + e * x->vw, (size_t)a->dv * sizeof *x->S);
}

static void load(k_gdn_rows *x) {
    const k_gdn_head *a = x->a;
    const float scale = (float)(1.0 / sqrt((double)a->dk));
    float sum = 0.0f;
    for (int32_t i = 0; i < x->n; i++) {
        const int64_t t = x->t + i;
        x->beta[i] = a->beta[t * a->hstep];
        sum = sum + a->g[t * a->hstep];
        x->G[i] = sum;
        for (int32_t e = 0; e < a->dk; e++) {
            x->qs[i * x->kw + e] = a->q[t * a->kstep + e] * scale;
            x->kt[e * CH + i] = a->k[t * a->kstep + e];
        }
    }
    for (int32_t i = 0; i < x->n; i++) {
        x->E[i] = k_exp(x->G[i]);
        x->L[i] = k_exp(sum - x->G[i]);
    }
}

/* A and P. What stands above their diagonals is never read. */
void k_gdn_chunk_weights(k_gdn_rows *x) {
    const k_gdn_head *a = x->a;
    load(x);
    const mm_args kk = {.a = a->k + x->t * a->kstep,
                        .arow = a->kstep,
                        .acol = 1,
                        .b = x->kt,
                        .brow = CH,
                        .c = x->A,
                        .crow = CH,
                        .m = x->n,
                        .n = x->n,
                        .k = a->dk};
    mm_args qk = kk;
    qk.a = x->qs;
    qk.arow = x->kw;
    qk.c = x->P;
    mm(SET, kk);
    mm(SET, qk);
    for (int32_t i = 0; i < x->n; i++) {
        float *A = x->A + i * CH, *P = x->P + i * CH;
        for (int32_t j = 0; j <= i; j++) {
            float e = k_exp(x->G[i] - x->G[j]);
            A[j] = (x->beta[i] * A[j]) * e;
            P[j] = P[j] * e;
        }
    }
}

static void round_rows(float *x, int64_t step, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) x[i * step + j] = k_round_bf16(x[i * step + j]);
}

/* y_i = y_i - sum_(j<i) A_ij y_j: columns do not meet, so a panel of them goes down all rows. */
static void substitute(const k_gdn_rows *x, float *y, int64_t step, int64_t cols) {
    for (int64_t j = 0; j < cols; j += PANEL)
        for (int32_t i = 0; i < x->n; i++)
            row(SUB, x->A + i * CH, y + j, step, y + i * step + j, cols - j < PANEL ? cols - j : PANEL, i);
}

/* y_i = sum_(j<=i) M_ij y_j, the last row first: it alone reads the last y. */
static void multiply(const k_gdn_rows *x, float *y, int64_t step, int64_t cols) {
    for (int64_t j = 0; j < cols; j += PANEL)
        for (int32_t i = x->n - 1; i >= 0; i--)
            row(SET, x->M + i * CH, y + j, step, y + i * step + j, cols - j < PANEL ? cols - j : PANEL, i + 1);
}

static void inverse(const k_gdn_rows *x) {
    memset(x->M, 0, sizeof(float[CH * CH]));
    for (int32_t i = 0; i < x->n; i++) x->M[i * CH + i] = 1.0f;
    substitute(x, x->M, CH, x->n);
    round_rows(x->M, CH, x->n, x->n);
}

void k_gdn_chunk_solve(const k_gdn_rows *x) {
    const k_gdn_head *a = x->a;
    for (int32_t i = 0; i < x->n; i++) {
        const float *v = a->v + (x->t + i) * a->vstep, *k = a->k + (x->t + i) * a->kstep;
        const float b = x->beta[i], be = b * x->E[i];
        for (int32_t j = 0; j < a->dv; j++) x->U[i * x->vw + j] = b * v[j];
        for (int32_t e = 0; e < a->dk; e++) x->K[i * x->kw + e] = be * k[e];
    }
    if (a->places & K_PLACE_INV) {
        inverse(x);
        multiply(x, x->U, x->vw, a->dv);
        multiply(x, x->K, x->kw, a->dk);
    } else {
        substitute(x, x->U, x->vw, a->dv);
        substitute(x, x->K, x->kw, a->dk);
    }
    if (a->places & K_PLACE_U) round_rows(x->U, x->vw, x->n, a->dv);
    if (a->places & K_PLACE_W) round_rows(x->K, x->kw, x->n, a->dk);
}

void k_gdn_chunk_new(const k_gdn_rows *x) {
    const k_gdn_head *a = x->a;
    if (a->places & (K_PLACE_H | K_PLACE_HOP)) {
        memcpy(x->R, x->S, (size_t)(a->dk * x->vw) * sizeof *x->R);
        round_rows(x->R, x->vw, a->dk, a->dv);
    }
    const mm_args ks = {.a = x->K,
                        .arow = x->kw,
                        .acol = 1,
                        .b = a->places & K_PLACE_HOP ? x->R : x->S,
                        .brow = x->vw,
                        .c = x->U,
                        .crow = x->vw,
                        .m = x->n,
                        .n = a->dv,
                        .k = a->dk};
    mm(SUB, ks);
    if (a->places & K_PLACE_VNEW) round_rows(x->U, x->vw, x->n, a->dv);
}

void k_gdn_chunk_finish(const k_gdn_rows *x, float *out, int64_t ostep) {
    const k_gdn_head *a = x->a;
    for (int64_t j = 0; j < a->dv; j += PANEL)
        for (int32_t i = 0; i < x->n; i++)
            row(SET, x->P + i * CH, x->U + j, x->vw, out + i * ostep + j, a->dv - j < PANEL ? a->dv - j : PANEL, i + 1);
    const mm_args qs = {.a = x->qs,
                        .arow = x->kw,
                        .acol = 1,
                        .b = a->places & K_PLACE_H ? x->R : x->S,
                        .brow = x->vw,
                        .c = out,
                        .crow = ostep,
                        .m = x->n,
                        .n = a->dv,
                        .k = a->dk,
                        .s = x->E,
                        .sstep = 1};
    mm(SUMX, qs);
    for (int32_t i = 0; i < x->n; i++)
        for (int32_t j = 0; j < a->dv; j++) out[i * ostep + j] = k_rd(out[i * ostep + j], a->act);
    for (int32_t e = 0; e < a->dk; e++)
        for (int32_t i = 0; i < x->n; i++) x->kt[e * CH + i] = x->kt[e * CH + i] * x->L[i];
    const mm_args kn = {.a = x->kt,
                        .arow = CH,
                        .acol = 1,
                        .b = x->U,
                        .brow = x->vw,
                        .c = x->S,
                        .crow = x->vw,
                        .m = a->dk,
                        .n = a->dv,
                        .k = x->n,
                        .s = &x->E[x->n - 1],
                        .sstep = 0};
    mm(AXPY, kn);
}
