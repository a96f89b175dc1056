#include "lib/ahead.h"

#include "kernels/embed.h"
#include "kernels/ple.h"

/* The rows of node `gather` for the ids of node `hash`. */
static int64_t of_node(const q4x_model *m, const q4x_plan *p, const q4x_node *gather, const q4x_node *hash,
                       const k_state *st, const int32_t *ids, int32_t T) {
    const k_dims *d = &p->d;
    const int64_t *mult = hash->ipar, *size = mult + d->n, *off = size + d->P;
    const k_weight *w = gather->w[0];
    int32_t row[Q4X_AHEAD_MOST];
    int64_t n = 0, s;
    for (int32_t t = 0; t < T; t++) {
        k_ple_row(ids, t, st[hash->st[0]].i, d->n, d->P / (d->n - 1), d->eos, mult, size, off, row);
        for (int32_t h = 0; h < d->P; h++) {
            const void *data = k_table_row(w, gather->nw[0], row[h], &s);
            if (data) q4x_model_wanted(m, data, w[s].row_bytes);
            n += data != NULL;
        }
    }
    return n;
}

int64_t q4x_read_ahead(const q4x_model *m, const q4x_plan *p, const k_state *st, const int32_t *ids, int32_t T) {
    int64_t n = 0;
    if ((int64_t)T * p->d.P > Q4X_AHEAD_MOST) return 0;
    for (int32_t i = 0; i < p->nnodes; i++) {
        const q4x_node *x = &p->node[i];
        if (x->op == K_OP_ple_gather) n += of_node(m, p, x, &p->node[x->in[0]], st, ids, T);
    }
    return n;
}
