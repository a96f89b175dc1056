#include "kernels/tile.h"

#include <string.h>

#include "kernels/quant.h"
#include "kernels/reduce.h"

/* Elements of k at a time, so that a chunk of all streams stays in the first-level cache; rows of a thin chunk lie a
 * few cache lines off the power of two, or they would evict each other. */
enum { CHUNK = 512, THIN = 1024, THIN_LD = THIN + 16 };

void k_tile_acc_plain(const float *w, int64_t ldw, int R, const float *const *x, int C, int64_t n, int fresh,
                      float *acc) {
    if (fresh) memset(acc, 0, (size_t)(R * C) * 32 * sizeof *acc);
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
            const float *wr = w + r * ldw, *xc = x[c];
            float *a = acc + 32 * (r * C + c), v[32];
            memcpy(v, a, sizeof v);
            for (int64_t i = 0; i < n; i += 32)
                for (int l = 0; l < 32; l++) v[l] = fmaf(wr[i + l], xc[i + l], v[l]);
            memcpy(a, v, sizeof v);
        }
}

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

/* R x C outputs, G of the four lane groups in one pass over k: R * C * G <= 12 accumulators stay in registers. */
static inline __attribute__((always_inline)) void acc_block(const int R, const int C, const int G, const float *w,
                                                            int64_t ldw, const float *const *x, int64_t n, int fresh,
                                                            float *acc) {
    for (int g0 = 0; g0 < 4; g0 += G) {
        __m256 a[12];
        for (int o = 0; o < R * C; o++)
            for (int g = 0; g < G; g++)
                a[o * G + g] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(acc + 32 * o + 8 * (g0 + g));
        for (int64_t i = 8 * g0; i < n; i += 32)
            for (int g = 0; g < G; g++) {
                __m256 xv[3];
                for (int c = 0; c < C; c++) xv[c] = _mm256_loadu_ps(x[c] + i + 8 * g);
                for (int r = 0; r < R; r++) {
                    __m256 wv = _mm256_loadu_ps(w + r * ldw + i + 8 * g);
                    for (int c = 0; c < C; c++)
                        a[(r * C + c) * G + g] = _mm256_fmadd_ps(wv, xv[c], a[(r * C + c) * G + g]);
                }
            }
        for (int o = 0; o < R * C; o++)
            for (int g = 0; g < G; g++) _mm256_storeu_ps(acc + 32 * o + 8 * (g0 + g), a[o * G + g]);
    }
}

void k_tile_acc(const float *w, int64_t ldw, int R, const float *const *x, int C, int64_t n, int fresh, float *acc) {
    switch (4 * R + C) {
    case 4 * 1 + 1: acc_block(1, 1, 4, w, ldw, x, n, fresh, acc); break;
    case 4 * 1 + 2: acc_block(1, 2, 4, w, ldw, x, n, fresh, acc); break;
    case 4 * 1 + 3: acc_block(1, 3, 4, w, ldw, x, n, fresh, acc); break;
    case 4 * 2 + 1: acc_block(2, 1, 4, w, ldw, x, n, fresh, acc); break;
    case 4 * 2 + 2: acc_block(2, 2, 2, w, ldw, x, n, fresh, acc); break;
    case 4 * 2 + 3: acc_block(2, 3, 2, w, ldw, x, n, fresh, acc); break;
    case 4 * 3 + 1: acc_block(3, 1, 4, w, ldw, x, n, fresh, acc); break;
    case 4 * 3 + 2: acc_block(3, 2, 2, w, ldw, x, n, fresh, acc); break;
    case 4 * 3 + 3: acc_block(3, 3, 1, w, ldw, x, n, fresh, acc); break;
    case 4 * 4 + 1: acc_block(4, 1, 2, w, ldw, x, n, fresh, acc); break;
    case 4 * 4 + 2: acc_block(4, 2, 1, w, ldw, x, n, fresh, acc); break;
    case 4 * 4 + 3: acc_block(4, 3, 1, w, ldw, x, n, fresh, acc); break;
    }
}

/* k_lanes32_fold in registers. */
static float fold(const float *v) {
    __m256 a = _mm256_add_ps(_mm256_loadu_ps(v), _mm256_loadu_ps(v + 16));
    __m256 b = _mm256_add_ps(_mm256_loadu_ps(v + 8), _mm256_loadu_ps(v + 24));
    a = _mm256_add_ps(a, b);
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
#else
void k_tile_acc(const float *w, int64_t ldw, int R, const float *const *x, int C, int64_t n, int fresh, float *acc) {
    k_tile_acc_plain(w, ldw, R, x, C, n, fresh, acc);
}

static float fold(float *v) {
    return k_lanes32_fold(v);
}
#endif

/* n elements, the last of their rows unless n is a multiple of 32: lanes without an element stay as they are. */
static void accumulate(const float *w, int64_t ldw, int R, const float *const *x, int C, int64_t n, int fresh,
                       float *acc) {
    int64_t full = n / 32 * 32;
    if (full)
        k_tile_acc(w, ldw, R, x, C, full, fresh, acc);
    else if (fresh)
        memset(acc, 0, (size_t)(R * C) * 32 * sizeof *acc);
    if (full == n) return;
    for (int o = 0; o < R * C; o++) {
        const float *wr = w + o / C * ldw, *xc = x[o % C];
        for (int64_t i = full; i < n; i++) acc[32 * o + i - full] = fmaf(wr[i], xc[i], acc[32 * o + i - full]);
    }
}

static int64_t slot_of(const k_panel *p, int32_t j) {
    return p->slot ? p->slot[j] : j;
}

/* Columns j .. j+C-1: where they are, and where their outputs begin. */
static void columns(const k_panel *p, int32_t j, int C, const float **x, float **y) {
    for (int c = 0; c < C; c++) {
        int64_t s = slot_of(p, j + c);
        x[c] = p->x + s / p->div * p->K;
        y[c] = p->out + s * p->O;
    }
}

/* f32 rows that can be read where they lie. */
static int direct(const k_weight *w) {
    return w->type == K_T_F32 && (uintptr_t)w->data % sizeof(float) == 0 && w->row_bytes % sizeof(float) == 0;
}

/* How rows are decoded for few columns: chunk by chunk of THIN elements, K_TILE_R rows together. */
typedef struct {
    const k_quant *q;
    const uint8_t *row; /* row 0 */
    size_t row_bytes;
    size_t chunk;  /* bytes of THIN elements */
    int64_t tail;  /* blocks of what a row has left behind whole chunks */
    int32_t whole; /* rows are shorter than a chunk and lie one behind the other: decoded in one go */
    int32_t raw;   /* read where they lie */
} reader;

static reader reader_of(const k_weight *w, int64_t K) {
    const k_quant *q = k_quant_get(w->type);
    reader d = {.q = q, .row = w->data, .row_bytes = w->row_bytes, .raw = direct(w)};
    d.chunk = (size_t)(THIN / q->elems) * (size_t)q->bytes;
    d.tail = K % THIN / q->elems;
    d.whole = K < THIN && (size_t)d.tail * (size_t)q->bytes == w->row_bytes;
    return d;
}

/* Elements k .. k+n-1 of rows r .. r+R-1; *ld from one to the next. buf: K_TILE_R * THIN_LD. */
static const float *read_rows(const reader *d, int64_t r, int R, int64_t k, int64_t n, float *buf, int64_t *ld) {
    const uint8_t *at = d->row + (size_t)r * d->row_bytes;
    if (d->raw) {
        *ld = (int64_t)(d->row_bytes / sizeof(float));
        return (const float *)(const void *)at + k;
    }
    if (d->whole) {
        *ld = n;
        d->q->decode(at, buf, R * d->tail);
        return buf;
    }
    *ld = THIN_LD;
    for (int i = 0; i < R; i++)
        d->q->decode(at + (size_t)i * d->row_bytes + (size_t)(k / THIN) * d->chunk, buf + i * THIN_LD,
                     n == THIN ? THIN / d->q->elems : d->tail);
    return buf;
}

/* Rows r .. r+R-1 times C columns from j on. */
static void thin(const k_panel *p, const reader *d, int64_t r, int R, int32_t j, int C) {
    float buf[K_TILE_R * THIN_LD], acc[32 * K_TILE_R * K_TILE_C];
    const float *x[K_TILE_C];
    float *y[K_TILE_C];
    int64_t ld;
    columns(p, j, C, x, y);
    if (p->K == 0) memset(acc, 0, sizeof acc);
    for (int64_t k = 0; k < p->K; k += THIN) {
        int64_t n = p->K - k < THIN ? p->K - k : THIN;
        const float *v = read_rows(d, r, R, k, n, buf, &ld);
        accumulate(v, ld, R, x, C, n, k == 0, acc);
        for (int c = 0; c < C; c++) x[c] += n;
    }
    for (int o = 0; o < R * C; o++) y[o % C][r + o / C] = fold(acc + 32 * o);
}

static void thin_rows(const k_panel *p, const k_weight *w, int64_t r0, int64_t r1) {
    const reader d = reader_of(w, p->K);
    for (int64_t r = r0; r < r1; r += K_TILE_R) {
        int R = r1 - r < K_TILE_R ? (int)(r1 - r) : K_TILE_R;
        for (int32_t j = 0; j < p->n; j += K_TILE_C) thin(p, &d, r, R, j, p->n - j < K_TILE_C ? p->n - j : K_TILE_C);
    }
}

/* What a block of decoded rows brings: row r0 + i at v + i * ld, and one set of accumulators for each register block.
 */
typedef struct {
    const float *v;
    int64_t ld, r0, rows;
    float *acc;
} block;

enum { SET = 32 * K_TILE_R * K_TILE_C };

/* The block times columns j .. j+n-1. k advances for all of them together: their chunks stay in the caches. */
static void fat(const k_panel *p, const block *b, int32_t j, int32_t n) {
    const float *x[K_TILE_C];
    float *y[K_TILE_C];
    int64_t tiles = (b->rows + K_TILE_R - 1) / K_TILE_R;
    if (p->K == 0) memset(b->acc, 0, (size_t)(tiles * ((n + K_TILE_C - 1) / K_TILE_C)) * SET * sizeof(float));
    for (int64_t k = 0; k < p->K; k += CHUNK) {
        int64_t len = p->K - k < CHUNK ? p->K - k : CHUNK;
        float *acc = b->acc;
        for (int32_t c = 0; c < n; c += K_TILE_C) {
            int C = n - c < K_TILE_C ? n - c : K_TILE_C;
            columns(p, j + c, C, x, y);
            for (int i = 0; i < C; i++) x[i] += k;
            for (int64_t r = 0; r < b->rows; r += K_TILE_R, acc += SET) {
                int R = b->rows - r < K_TILE_R ? (int)(b->rows - r) : K_TILE_R;
                accumulate(b->v + r * b->ld + k, b->ld, R, x, C, len, k == 0, acc);
            }
        }
    }
    float *acc = b->acc;
    for (int32_t c = 0; c < n; c += K_TILE_C) {
        int C = n - c < K_TILE_C ? n - c : K_TILE_C;
        columns(p, j + c, C, x, y);
        for (int64_t r = 0; r < b->rows; r += K_TILE_R, acc += SET)
            for (int o = 0; o < K_TILE_R * C && r + o / C < b->rows; o++)
                y[o % C][b->r0 + r + o / C] = fold(acc + 32 * o);
    }
}

/* scratch: rows decoded rows (none when they can be read in place), then accumulators. */
static void fat_rows(const k_panel *p, const k_weight *w, int64_t r0, int64_t r1, float *scratch, int64_t rows) {
    int raw = direct(w), wide = k_tile_cols(p->K);
    block b = {.ld = raw ? (int64_t)(w->row_bytes / sizeof(float)) : k_tile_stride(p->K), .acc = scratch};
    if (!raw) b.acc += rows * b.ld;
    for (b.r0 = r0; b.r0 < r1; b.r0 += rows) {
        b.rows = r1 - b.r0 < rows ? r1 - b.r0 : rows;
        const uint8_t *row = (const uint8_t *)w->data + (size_t)b.r0 * w->row_bytes;
        for (int64_t r = 0; !raw && r < b.rows; r++)
            k_decode_row(w->type, row + (size_t)r * w->row_bytes, scratch + r * b.ld, p->K);
        b.v = raw ? (const float *)(const void *)row : scratch;
        for (int32_t j = 0; j < p->n; j += wide) fat(p, &b, j, p->n - j < wide ? p->n - j : wide);
    }
}

void k_panel_rows(const k_panel *p, const k_weight *w, int64_t r0, int64_t r1, float *scratch, int64_t scratch_n) {
    int64_t rows = scratch_n / (k_tile_stride(p->K) + 32 * (int64_t)k_tile_cols(p->K)) / K_TILE_R * K_TILE_R;
    if (rows > k_tile_rows(p->K)) rows = k_tile_rows(p->K);
    if (p->n <= K_TILE_C || rows < K_TILE_R)
        thin_rows(p, w, r0, r1);
    else
        fat_rows(p, w, r0, r1, scratch, rows);
}

enum { SLICE = 256 };

double k_panel_energy(const k_panel *p, const k_weight *w, int64_t k0, int64_t k1) {
    const k_quant *q = k_quant_get(w->type);
    float v[SLICE];
    double sum = 0;
    for (int64_t k = k0; k < k1; k += SLICE) {
        int64_t n = k1 - k < SLICE ? k1 - k : SLICE;
        double e[SLICE] = {0};
        const uint8_t *at = (const uint8_t *)w->data + (size_t)(k / q->elems) * (size_t)q->bytes;
        for (int64_t r = 0; r < w->rows; r++, at += w->row_bytes) {
            q->decode(at, v, n / q->elems);
            for (int64_t i = 0; i < n; i++) e[i] += (double)v[i] * (double)v[i];
        }
        for (int32_t j = 0; j < p->n; j++) {
            const float *x = p->x + slot_of(p, j) / p->div * p->K + k;
            for (int64_t i = 0; i < n; i++) sum += e[i] * ((double)x[i] * (double)x[i]);
        }
    }
    return sum;
}
