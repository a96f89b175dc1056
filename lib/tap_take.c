/* tap_take.c: what a device measured of a piece, and what came here of it as it is, into its record. */
#include <stdlib.h>
#include <string.h>

#include "lib/tap_dev_int.h"

/* Its results from here on. */
static const char *results_of(const q4x_tapdev *d, const q4x_piece *p) {
    return d->here + p->r0;
}

/* Of a piece: its digests, and the parts of leaves that are shared with other tiles. */
static int take_bits(const q4x_piece *p, const char *r, q4x_bits *b, q4x_err *err) {
    if (q4x_bits_add(b, r + p->r.head_at, p->r.head)) return q4x_tapdev_nomem(err);
    if (p->r.body) q4x_bits_digests(b, r + p->r.body_at, p->r.body);
    return q4x_bits_add(b, r + p->r.tail_at, p->r.tail) ? q4x_tapdev_nomem(err) : 0;
}

static void take_rows(q4x_tapset *t, const q4x_piece *p, const char *r) {
    const q4x_node_event *ev = &p->ev;
    q4x_tapstat *s = ev->nrows == ev->total ? t->stat : t->tap[ev->node].stat;
    const double *sums = (const double *)(const void *)(r + p->r.sums_at);
    const k_measured *m = (const k_measured *)(const void *)(r + p->r.seen_at);
    const char *kept = r + p->r.kept_at;
    const double *cuts = (const double *)(const void *)(r + p->r.cuts_at);
    for (int64_t i = 0; i < ev->nrows; i += p->r.part, m++) {
        const int64_t n = ev->nrows - i < p->r.part ? ev->nrows - i : p->r.part;
        const size_t bytes = q4x_tapstat_there(s, n, m, sums + 2 * i, kept, p->r.cut_width ? cuts : NULL);
        kept += bytes; /* parts lie one behind the other */
        if (!p->r.cut_width) continue;
        cuts += 2 * (int64_t)(bytes / q4x_tapstat_kept_row(&p->r.sk)) * (ev->cols / p->r.cut_width);
    }
}

static void take_counts(q4x_tapset *t, const q4x_piece *p, const char *r) {
    const k_measured *m = (const k_measured *)(const void *)(r + p->r.seen_at);
    q4x_stats *s = &t->tap[p->ev.node].rec.stats;
    s->nan += m->nan;
    s->pinf += m->pinf;
    s->ninf += m->ninf;
    q4x_tap_count_nonfinite(s, (const float *)(const void *)(r + p->r.head_at), (int64_t)(p->r.head / 4));
    q4x_tap_count_nonfinite(s, (const float *)(const void *)(r + p->r.tail_at), (int64_t)(p->r.tail / 4));
}

/* A tile's results into its record. */
static int take_results(q4x_tapset *t, const q4x_piece *p, int ids, q4x_err *err) {
    const q4x_tapdev *d = t->dev;
    const q4x_node_event *ev = &p->ev;
    q4x_tap_node *tn = &t->tap[ev->node];
    const int whole = ev->nrows == ev->total;
    int rc;
    if (p->same) {
        tn->rec.bits = t->tap[t->held].rec.bits;
        return 0;
    }
    if (whole) q4x_bits_begin(d->bits, ids ? Q4X_BITS_RAW : Q4X_BITS_F32);
    if ((rc = take_bits(p, results_of(d, p), whole ? d->bits : tn->bits, err))) return rc;
    if (whole) tn->rec.bits = q4x_bits_end(d->bits);
    if (q4x_tap_measured(t, ev->node, ids))
        take_rows(t, p, results_of(d, p));
    else if (!ids)
        take_counts(t, p, results_of(d, p));
    return 0;
}

int q4x_tapdev_take(q4x_tapset *t, q4x_piece *p, q4x_err *err) {
    const char *r = results_of(t->dev, p);
    q4x_node_event *ev = &p->ev;
    const int ids = q4x_piece_is_ids(t, p);
    const float *cuts = p->r.has_cut ? (const float *)(const void *)(r + p->r.cut_at) : NULL;
    if (p->kind == Q4X_PIECE_STATE_HERE) return q4x_tap_state(t, ev, 1, p->forward, err);
    int rc = ev->row0 == 0 ? q4x_tap_begin(t, ev, ids, p->same, p->forward, err) : 0;
    if (rc || (rc = take_results(t, p, ids, err))) return rc;
    ev->data = p->c.out ? p->c0 + p->c.out_at : p->r.has_words ? (char *)(uintptr_t)(r + p->r.words_at) : NULL;
    if (t->tap[ev->node].want && t->o.mode == Q4X_MODE_FULL && (rc = q4x_tap_keep_full(t, ev, ids, err))) return rc;
    if (p->kind == Q4X_PIECE_STATE) return q4x_tap_end_state(t, ev, 0, err);
    if (p->c.band && (rc = q4x_tapdev_band_take(t, p, err))) return rc;
    if (ids && (rc = q4x_tap_selection(t, ev, cuts, err))) return rc;
    return q4x_tap_end_tile(t, ev, err);
}
