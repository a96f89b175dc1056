/* matmul_band.c: what products state about their own rounding. */
#include <math.h>

#include "kernels/band.h"
#include "kernels/matmul.h"
#include "kernels/par.h"

/* An L2 bound so far, and a mean square, of one op's outputs together. */
typedef struct {
    double hard, rms2;
} chain;

/* Roundings of a term on its way into the sum, by order: hard counts all, rms as measured for the order. */
static chain order_band(const k_dot_terms *t, double y2, int64_t K) {
    const double n = (double)K, u2 = K_RMS2 * K_U * K_U, q = t->q, all = sqrt(n * q);
    switch (t->rule) {
    case K_RULE_LANES32: return (chain){k_lanes32_gamma(n) * all, k_lanes32_rms2(n, q, y2)};
    case K_RULE_SERIAL: return (chain){k_gamma(n) * all, k_serial_rms2(n, q, y2)};
    case K_RULE_BLOCKED: {
        const double nb = ceil(n / K_DOT_BLOCK);
        return (chain){k_gamma(K_DOT_BLOCK / 32.0 + 5 + nb) * all,
                       k_lanes32_rms2(n < K_DOT_BLOCK ? n : K_DOT_BLOCK, q, y2) + u2 * nb / 3 * y2};
    }
    case K_RULE_F64: return (chain){2 * K_U * all, u2 * (q + y2)};
    case K_RULE_NEON_F32: return (chain){k_gamma(n / 16 + 20) * all, u2 * ((n / 32 + 4) * q + (n / 192 + 2) * y2)};
    default: return (chain){k_gamma(n / 32 + 16) * all, u2 * (4 * q + (n / 96 + 4) * y2)};
    }
}

/* And what became of the column before it met the weights. */
static chain dots(const k_dot_terms *t, double y2, int64_t K) {
    chain c = order_band(t, y2, K);
    c.hard += sqrt(3 * t->excess * (double)K * t->error) + 1.01 * t->scale * sqrt((double)K * t->q);
    c.rms2 += t->excess * t->error + K_RMS2 * t->scale * t->scale * t->q;
    return c;
}

double k_gemm_bound(k_gemm_by by, int64_t K) {
    if (by == K_BY_OWN) return k_lanes32_gamma((double)K);
    return k_gamma(by == K_BY_F32 ? (double)K : 3 * ((double)K + 16));
}

static int on_bf16_grid(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (k_f32_bits(x[i]) & 0xffff) return 0;
    return 1;
}

/* The products of this call, as lever gemm has them made. */
static chain products(const k_call *c, const k_dot_terms *t, double y2) {
    const k_gemm_by by = k_gemm_of(c);
    const int64_t K = c->in_cols[0];
    if (by == K_BY_OWN) return dots(t, y2, K);
    const double q = t->q;
    chain p = {k_gemm_bound(by, K) * sqrt((double)K * q), k_serial_rms2((double)K, q, y2)};
    if (by == K_BY_F32) return p;
    const double cut = 0.03 * (double)K * K_U;
    p.rms2 += cut * cut * y2;
    if (on_bf16_grid(c->in[0], c->T * K)) return p;
    p.hard += (1 + k_gemm_bound(by, K)) * k_store_hard(K_ACT_BF16) * sqrt((double)K * q);
    p.rms2 += k_store_rms2(K_ACT_BF16, q);
    return p;
}

/* One more rd of values with sum of squares v2. */
static void store(chain *c, int32_t act, double v2) {
    c->hard += k_store_hard(act) * (sqrt(v2) + c->hard);
    c->rms2 += k_store_rms2(act, v2);
}

/* The same of values of which only the rounded ones are known. */
static void store_rounded(chain *c, int32_t act, double y2) {
    store(c, act, y2 * (1 + 0x1p-7));
}

static void add_chain(const chain *c, k_band *add) {
    add->hard2 += c->hard * c->hard;
    add->rms2 += c->rms2;
}

void k_dots_band(const k_dot_terms *t, double y2, int64_t K, int32_t act, int round, k_band *add) {
    chain c = dots(t, y2, K);
    if (round) store_rounded(&c, act, y2);
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

static void hc_band(const k_call *c, const k_dot_terms *t, const outputs *s, k_band *add) {
    int32_t act = c->lv->act, N = c->d->N;
    double n = (double)c->T * (double)c->cols, S = k_store_hard(act), y = sqrt(s->y2);
    chain h = products(c, t, s->y2);
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

/* Energy of a panel with the weight, in the fixed parts. */
static double energy(const k_call *c, const k_panel *p, const k_weight *w) {
    (void)c; /* without OpenMP nothing asks for threads */
    double part[K_BAND_PARTS], q = 0;
#pragma omp parallel for schedule(static) num_threads(c->nth)
    for (int b = 0; b < K_BAND_PARTS; b++)
        part[b] = k_panel_energy(p, w, k_band_part(p->K, b, 256), k_band_part(p->K, b + 1, 256));
    for (int b = 0; b < K_BAND_PARTS; b++) q += part[b];
    return q;
}

k_dot_terms k_dot_terms_of(const k_call *c, const k_panel *p, const k_weight *w, float *scratch) {
    k_dot_terms t = {.rule = k_dot_rule_of(c->lv, c->Tcall, w->type, w->rows), .q = energy(c, p, w)};
    t.scale = k_dot_scale_error(t.rule, w->type);
    t.excess = k_dot_excess(t.rule, w->type);
    if (t.rule <= K_RULE_BLOCKED || ((t.rule == K_RULE_F64 || t.rule == K_RULE_NEON_F32) && w->type == K_T_F32))
        return t;
    for (int32_t j = 0; j < p->n; j += K_DOT_COLUMNS) { /* the errors as columns of their own */
        k_panel e = {.x = scratch, .K = p->K, .div = 1};
        for (e.n = 0; e.n < K_DOT_COLUMNS && j + e.n < p->n; e.n++) {
            const int64_t s = p->slot ? p->slot[j + e.n] : j + e.n;
            k_dot_errors(t.rule, w->type, p->x + s / p->div * p->K, p->K, scratch + e.n * p->K);
        }
        t.error += energy(c, &e, w);
    }
    return t;
}

void matmul_band(const k_call *c, k_band *add) {
    int64_t K = c->in_cols[0], O = c->cols;
    k_panel p = {.x = c->in[0], .K = K, .n = c->T, .div = 1};
    int hc = c->epi == K_EPI_HCDOWN || c->epi == K_EPI_HCINJ;
    const k_dot_terms t = k_dot_terms_of(c, &p, c->w[0], c->scratch);
    outputs out[K_BAND_PARTS], sum = {0, 0, 0, 0};
#pragma omp parallel for schedule(static) num_threads(c->nth)
    for (int b = 0; b < K_BAND_PARTS; b++) {
        int64_t r0 = k_band_part(O, b, 1), r1 = k_band_part(O, b + 1, 1);
        out[b] = (outputs){0, 0, 0, 0};
        if (hc)
            out[b] = hc_outputs(c, r0, r1);
        else
            for (int64_t j = 0; j < c->T; j++)
                for (int64_t o = r0; o < r1; o++) out[b].y2 += (double)c->out[j * O + o] * (double)c->out[j * O + o];
    }
    for (int b = 0; b < K_BAND_PARTS; b++) {
        sum.y2 += out[b].y2, sum.v2 += out[b].v2, sum.s2 += out[b].s2, sum.sy2 += out[b].sy2;
    }
    if (hc) {
        hc_band(c, &t, &sum, add);
        return;
    }
    chain h = products(c, &t, sum.y2);
    if (c->epi != K_EPI_RAW) store_rounded(&h, k_epilogue_act(c->epi, c->lv), sum.y2);
    add_chain(&h, add);
}
