/* tap_sel.c: what a tap keeps of a selection: ids in rank order, their weights, the scores on both sides of the cut. */
#include "lib/tap_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Room for `rows` rows of k ids and what goes with them. */
static int grow(q4x_tap_node *tn, int32_t rows, int32_t k, int weights, int cuts) {
    q4x_selection *s = &tn->rec.sel;
    const size_t n = (size_t)rows * (size_t)k;
    if (n <= tn->sel_cap) return 0;
    void *p = realloc(s->ids, n * sizeof *s->ids);
    if (!p) return 1;
    s->ids = p;
    if (weights) {
        if (!(p = realloc(s->weights, n * sizeof *s->weights))) return 1;
        s->weights = p;
    }
    if (cuts) { /* n >= rows */
        if (!(p = realloc(s->lo, n * sizeof *s->lo))) return 1;
        s->lo = p;
        if (!(p = realloc(s->hi, n * sizeof *s->hi))) return 1;
        s->hi = p;
    }
    tn->sel_cap = n;
    return 0;
}

/* Smallest selected and largest rejected of n scores; NaN where there is none. mark: n zeros, and so again after. */
static void cut(const float *score, int32_t n, const int32_t *ids, int32_t k, char *mark, float *lo, float *hi) {
    *lo = *hi = NAN;
    for (int32_t j = 0; j < k; j++)
        if (ids[j] >= 0 && ids[j] < n) mark[ids[j]] = 1;
    for (int32_t i = 0; i < n; i++) {
        float *side = mark[i] ? lo : hi;
        if (isnan(*side) || (mark[i] ? score[i] < *side : score[i] > *side)) *side = score[i];
    }
    for (int32_t j = 0; j < k; j++)
        if (ids[j] >= 0 && ids[j] < n) mark[ids[j]] = 0;
}

static int room_to_mark(q4x_tapset *t, int64_t n) {
    if (n <= t->mark_n) return 0;
    free(t->mark);
    t->mark_n = 0;
    t->mark = calloc((size_t)n, 1);
    if (!t->mark) return 1;
    t->mark_n = n;
    return 0;
}

int q4x_tap_has_weights(const q4x_plan *p, int32_t ids) {
    for (int32_t i = ids + 1; i < p->nnodes && i <= ids + 2; i++)
        if (p->node[i].weights_of == ids) return 1;
    return 0;
}

int q4x_tap_selection(q4x_tapset *t, const q4x_node_event *ev, const float *cuts_there, q4x_err *err) {
    const q4x_plan *p = q4x_run_plan(t->run);
    q4x_tap_node *tn = &t->tap[ev->node];
    q4x_selection *s = &tn->rec.sel;
    const int32_t k = (int32_t)ev->cols;
    const int cuts = p->node[ev->node].scores != 0;
    if (grow(tn, ev->total, k, q4x_tap_has_weights(p, ev->node), cuts))
        return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory for a selection");
    s->rows = ev->total;
    s->k = k;
    memcpy(s->ids + (int64_t)ev->row0 * k, ev->data, (size_t)ev->nrows * (size_t)k * sizeof(int32_t));
    tn->rec.has_sel = 1;
    if (!cuts) return 0;
    for (int32_t r = 0; cuts_there && r < ev->nrows; r++) {
        s->lo[ev->row0 + r] = cuts_there[2 * r];
        s->hi[ev->row0 + r] = cuts_there[2 * r + 1];
    }
    if (cuts_there) return 0;
    const float *score = ev->call->in[0];
    const int64_t n = ev->call->in_cols[0];
    if (room_to_mark(t, n)) return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory for a selection");
    const int blocks = p->node[ev->node].op == K_OP_idx_sel;
    for (int32_t r = 0; r < ev->nrows; r++) {
        int32_t row = ev->row0 + r;
        int32_t visible = blocks ? (ev->call->pos0 + r + 1) / p->d.ratio : (int32_t)n;
        if (visible > n) visible = (int32_t)n;
        cut(score + r * n, visible, s->ids + (int64_t)row * k, k, t->mark, &s->lo[row], &s->hi[row]);
    }
    return 0;
}
