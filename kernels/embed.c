#include "kernels/embed.h"

#include "kernels/band.h"
#include "kernels/par.h"
#include "kernels/quant.h"
#include "kernels/round.h"

/* Row id, stored; NaN when there is none. */
static void gather(const k_weight *w, int32_t nw, int64_t id, float *y, int64_t n, int32_t act) {
    int64_t s;
    const void *row = k_table_row(w, nw, id, &s);
    if (!row) {
        for (int64_t i = 0; i < n; i++) y[i] = NAN;
        return;
    }
    k_decode_row(w[s].type, row, y, n);
    if (act == K_ACT_BF16)
        for (int64_t i = 0; i < n; i++) y[i] = k_round_bf16(y[i]);
}

typedef struct {
    int32_t shards;
    int64_t width; /* of a row */
} table;

static void gather_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const table *x = ctx;
    for (int64_t i = lo; i < hi; i++)
        gather(c->w[0], x->shards, c->in_i[0][i], c->out + i * x->width, x->width, c->lv->act);
}

/* heads ids a token. */
static void gather_all(const k_call *c, int32_t shards, int64_t heads) {
    table x = {shards, heads > 0 ? c->cols / heads : 0};
    k_spread(c, c->T * heads, 0, c->T * c->cols, gather_rows, &x);
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
