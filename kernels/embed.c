#include "kernels/embed.h"

#include "kernels/band.h"
#include "kernels/par.h"
#include "kernels/quant.h"
#include "kernels/round.h"

/* Row id of a table in shards of equal rows, stored; NaN when there is none. */
static void gather(const k_weight *w, int32_t nw, int64_t id, float *y, int64_t n, int32_t act) {
    int64_t R = w[0].rows, s = id >= 0 && R > 0 ? id / R : -1, r = s >= 0 ? id - s * R : 0;
    if (s < 0 || s >= nw || r >= w[s].rows) {
        for (int64_t i = 0; i < n; i++) y[i] = NAN;
        return;
    }
    k_decode_row(w[s].type, (const uint8_t *)w[s].data + (size_t)r * w[s].row_bytes, y, n);
    if (act == K_ACT_BF16)
        for (int64_t i = 0; i < n; i++) y[i] = k_round_bf16(y[i]);
}

/* heads ids a token, each a row of width floats. */
static void gather_all(const k_call *c, int32_t nw, int64_t heads) {
    const k_weight *w = c->w[0];
    int64_t n = c->T * heads, width = heads > 0 ? c->cols / heads : 0;
    int work = n * width >= 4 * (int64_t)K_PAR_MIN;
    (void)work;
#pragma omp parallel for schedule(static) num_threads(c->nth) if (work)
    for (int64_t i = 0; i < n; i++) gather(w, nw, c->in_i[0][i], c->out + i * width, width, c->lv->act);
}

void embed_cpu(const k_call *c) {
    gather_all(c, 1, 1);
}

void ple_gather_cpu(const k_call *c) {
    gather_all(c, c->nw[0], c->in_cols[0]);
}

/* The store of every output, the decoded rows being exact. */
static void stored(const k_call *c, k_band *add) {
    double v2 = 0;
    for (int64_t i = 0; i < c->T * c->cols; i++) v2 += (double)c->out[i] * (double)c->out[i];
    double hard = k_store_hard(c->lv->act);
    add->hard2 += hard * hard * v2 * (1 + 0x1p-7); /* out is the rounded value */
    add->rms2 += k_store_rms2(c->lv->act, v2);
}

void embed_band(const k_call *c, k_band *add) {
    stored(c, add);
}

void ple_gather_band(const k_call *c, k_band *add) {
    stored(c, add);
}
