/* matmul_band.c: what products state about their own rounding. */
#include <math.h>

#include "kernels/band.h"
#include "kernels/matmul.h"
#include "kernels/par.h"

/* An L2 bound so far, and a mean square, of one op's outputs together. */
typedef struct {
    double hard, rms2;
} chain;

static chain dots(double q, double y2, int64_t K) {
    return (chain){k_lanes32_gamma((double)K) * sqrt((double)K * q), k_lanes32_rms2((double)K, q, y2)};
}

/* One more rd of values with sum of squares v2. */
static void store(chain *c, int32_t act, double v2) {
    c->hard += k_store_hard(act) * (sqrt(v2) + c->hard);
    c->rms2 += k_store_rms2(act, v2);
}

static void add_chain(const chain *c, k_band *add) {
    add->hard2 += c->hard * c->hard;
    add->rms2 += c->rms2;
}

void k_dots_band(double q, double y2, int64_t K, int32_t act, int round, k_band *add) {
    chain c = dots(q, y2, K);
    if (round) store(&c, act, y2 * (1 + 0x1p-7)); /* y2 may be of rounded values */
    add_chain(&c, add);
}

/* ---- the two epilogues of the hyper-connections ---- */

/* Sums over outputs: y^2, v^2, slope^2, (slope y)^2. */
typedef struct {
    double y2, v2, s2, sy2;
} outputs;

enum { ROWS = 16 };

/* Rows r0 .. r1-1 of the products again, a small block at a time. */
static outputs hc_outputs(const k_call *c, int64_t r0, int64_t r1) {
    outputs s = {0, 0, 0, 0};
    int64_t K = c->in_cols[0];
    for (int64_t r = r0; r < r1; r += ROWS)
        for (int32_t j = 0; j < c->T; j += K_TILE_WIDE) {
            float y[ROWS * K_TILE_WIDE];
            int64_t rows = r1 - r < ROWS ? r1 - r : ROWS;
            k_weight w = *c->w[0];
            w.data = (const uint8_t *)w.data + (size_t)r * w.row_bytes, w.rows = rows;
            k_panel p = {.x = c->in[0] + j * K, .K = K, .div = 1, .out = y, .O = rows};
            p.n = c->T - j < K_TILE_WIDE ? c->T - j : K_TILE_WIDE;
            k_panel_rows(&p, &w, 0, rows, k_slice(c), c->scratch_n);
            for (int64_t i = 0; i < p.n * rows; i++) {
                double z = (double)y[i] / c->d->N, sig = (double)k_sigmoid((float)z);
                double slope = c->epi == K_EPI_HCDOWN ? sig * (1 + z * (1 - sig)) : 2 * sig * (1 - sig);
                double v = c->epi == K_EPI_HCDOWN ? z * sig : 2 * sig;
                s.y2 += (double)y[i] * (double)y[i], s.v2 += v * v;
                s.s2 += slope * slope, s.sy2 += slope * slope * (double)y[i] * (double)y[i];
            }
        }
    return s;
}

static void hc_band(const k_call *c, double q, const outputs *s, k_band *add) {
    int32_t act = c->lv->act, N = c->d->N;
    double n = (double)c->T * (double)c->cols, S = k_store_hard(act), y = sqrt(s->y2);
    chain h = dots(q, s->y2, c->in_cols[0]);
    h.hard = (h.hard + S * (y + h.hard)) / N;
    h.rms2 = (h.rms2 * s->s2 / n + k_store_rms2(act, s->sy2)) / ((double)N * N);
    if ((N & (N - 1)) != 0) { /* else y / N is exact, and as round as y */
        h.hard += (S + K_U) * (y / N + h.hard);
        h.rms2 += (k_store_rms2(act, s->sy2) + K_RMS2 * K_U * K_U * s->sy2) / ((double)N * N);
    }
    h.hard = (c->epi == K_EPI_HCDOWN ? 1.0999 : 0.5) * h.hard + 5 * K_U * sqrt(s->v2);
    h.rms2 += 2.5 * K_RMS2 * K_U * K_U * s->v2; /* as measured, both functions */
    store(&h, act, s->v2);
    add_chain(&h, add);
}

void matmul_band(const k_call *c, k_band *add) {
    int64_t K = c->in_cols[0], O = c->cols;
    k_panel p = {.x = c->in[0], .K = K, .n = c->T, .div = 1};
    int hc = c->epi == K_EPI_HCDOWN || c->epi == K_EPI_HCINJ;
    double part[K_BAND_PARTS], q = 0;
    outputs out[K_BAND_PARTS], sum = {0, 0, 0, 0};
#pragma omp parallel for schedule(static) num_threads(c->nth)
    for (int b = 0; b < K_BAND_PARTS; b++) {
        part[b] = k_panel_energy(&p, c->w[0], k_band_part(K, b, 256), k_band_part(K, b + 1, 256));
        int64_t r0 = k_band_part(O, b, 1), r1 = k_band_part(O, b + 1, 1);
        out[b] = (outputs){0, 0, 0, 0};
        if (hc)
            out[b] = hc_outputs(c, r0, r1);
        else
            for (int64_t t = 0; t < c->T; t++)
                for (int64_t o = r0; o < r1; o++) out[b].y2 += (double)c->out[t * O + o] * (double)c->out[t * O + o];
    }
    for (int b = 0; b < K_BAND_PARTS; b++) {
        q += part[b];
        sum.y2 += out[b].y2, sum.v2 += out[b].v2, sum.s2 += out[b].s2, sum.sy2 += out[b].sy2;
    }
    if (hc)
        hc_band(c, q, &sum, add);
    else
        k_dots_band(q, sum.y2, K, k_epilogue_act(c->epi, c->lv), c->epi != K_EPI_RAW, add);
}
