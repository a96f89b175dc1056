/* tap_dev_plan.c: how much comes of a piece, and so how much memory taps take on a device, known from the plan. */
#include <stdlib.h>

#include "kernels/dev.h"
#include "lib/arena.h"
#include "lib/tap_dev_int.h"

static const q4x_node *node_of(const q4x_tapset *t, const q4x_piece *p) {
    return p->kind == Q4X_PIECE_NODE ? &t->plan->node[p->ev.node] : NULL;
}

int q4x_piece_is_ids(const q4x_tapset *t, const q4x_piece *p) {
    const q4x_node *n = node_of(t, p);
    return n && n->is_ids;
}

static size_t bytes_of(const q4x_node_event *ev) {
    return 4 * (size_t)ev->nrows * (size_t)ev->cols;
}

/* ---- a piece ---- */

static void lay_bits(const q4x_node_event *ev, q4x_piece_results *r) {
    const size_t bytes = bytes_of(ev), into = 4 * (size_t)ev->row0 * (size_t)ev->cols % Q4X_LEAF;
    r->head = into ? Q4X_LEAF - into : 0;
    if (r->head > bytes) r->head = bytes;
    r->body = bytes - r->head;
    r->tail = ev->row0 + ev->nrows == ev->total ? 0 : r->body % Q4X_LEAF; /* the tensor's last leaf may be short */
    r->body -= r->tail;
    r->head_at = q4x_tap_give(&r->bytes, r->head);
    r->tail_at = q4x_tap_give(&r->bytes, r->tail);
    r->body_at = q4x_tap_give(&r->bytes, (r->body + Q4X_LEAF - 1) / Q4X_LEAF * 16);
}

int q4x_piece_lay_out(const q4x_tapset *t, q4x_piece *p, q4x_err *err) {
    const q4x_node_event *ev = &p->ev;
    const q4x_node *n = node_of(t, p);
    const int ids = q4x_piece_is_ids(t, p);
    const size_t rows = (size_t)ev->nrows;
    int64_t row0, nrows, from;
    q4x_piece_results *r = &p->r;
    *r = (q4x_piece_results){0};
    if (p->kind == Q4X_PIECE_STATE_HERE) return 0;
    q4x_tap_kept_rows(&t->o, ev->total, &row0, &nrows);
    int rc = q4x_tapstat_shape(ev->total, ev->cols, row0, nrows, 1, &r->sk);
    if (rc) return q4x_fail(err, rc, "taps: cannot sketch %s", t->node[ev->node].name);
    r->has_words = ids || (n && n->weights_of);
    r->has_cut = ids && n->scores;
    lay_bits(ev, r);
    r->words_at = q4x_tap_give(&r->bytes, r->has_words ? bytes_of(ev) : 0);
    r->cut_at = q4x_tap_give(&r->bytes, r->has_cut ? 8 * rows : 0);
    r->part = ev->cols > 1 ? K_MEASURE_MOST / ev->cols : K_MEASURE_MOST;
    const int measured = q4x_tap_measured(t, ev->node, ids);
    const size_t parts = measured ? (rows + (size_t)r->part - 1) / (size_t)r->part : 1;
    r->seen_at = q4x_tap_give(&r->bytes, parts * sizeof(k_measured));
    if (!measured) return 0;
    r->sums_at = q4x_tap_give(&r->bytes, 16 * rows);
    const int64_t kept = q4x_tapstat_kept(&r->sk, ev->row0, ev->nrows, &from);
    r->kept_at = q4x_tap_give(&r->bytes, (size_t)kept * q4x_tapstat_kept_row(&r->sk));
    r->cut_width = r->sk.raw ? 0 : t->tap[ev->node].parts.width;
    if (!r->cut_width) return 0;
    r->cuts_at = q4x_tap_give(&r->bytes, 16 * (size_t)(kept * (ev->cols / r->cut_width)));
    r->spare_at = q4x_tap_give(&r->bytes, sizeof(k_measured));
    return 0;
}

/* What an op's band reads of its state: one of fixed rows as it was, of one that grows what is new. */
static void lay_state(const q4x_plan *p, const q4x_node *n, int32_t pos0, int32_t rows, int64_t have,
                      q4x_piece_copies *c) {
    c->state = n->st[0];
    const q4x_state_desc *sd = &p->state[c->state];
    if (sd->rows_kind == Q4X_ROWS_FIXED) {
        c->nrows = pos0 ? sd->rows : 0; /* before the first position it is empty */
    } else {
        c->rows = have;
        c->nrows = (pos0 + (int64_t)rows) / (sd->rows_kind == Q4X_ROWS_BLOCK ? p->d.ratio : 1) - have;
    }
    c->state_at = q4x_tap_give(&c->bytes, 4 * (size_t)c->nrows * (size_t)sd->cols);
}

void q4x_piece_lay_copies(const q4x_tapset *t, q4x_piece *p, const int64_t *in_cols, int32_t pos0, int here,
                          int64_t have) {
    const q4x_node *n = node_of(t, p);
    const q4x_node_event *ev = &p->ev;
    q4x_piece_copies c = {.state = -1};
    if (p->kind != Q4X_PIECE_STATE_HERE) {
        c.band = n && !here && !k_dev_on_host((int32_t)n->op) && q4x_tap_band_wanted(t, ev->node);
        c.reads = c.band && k_ops[n->op].cls != K_MOVE; /* where bits travel none is off */
        c.out = (t->tap[ev->node].want && t->o.mode == Q4X_MODE_FULL) || t->o.controls || c.reads;
        if (c.out) c.out_at = q4x_tap_give(&c.bytes, bytes_of(ev));
        for (int32_t k = 0; c.reads && k < n->nin; k++)
            c.in_at[k] = q4x_tap_give(&c.bytes, 4 * (size_t)ev->nrows * (size_t)in_cols[k]);
        if (c.reads && n->nst) lay_state(t->plan, n, pos0, ev->nrows, have, &c);
    }
    p->c = c;
}

/* ---- a forward ---- */

enum { MOST = 64 << 20, LEAST = 4096 };

/* The tile of T rows from t0 on of a forward of `total` that ends a context of so many positions. The logits may be
 * asked for of every row, or of the last. */
static q4x_piece tile_of(const q4x_tapset *t, int32_t node, int64_t t0, int64_t T, int64_t total) {
    return (q4x_piece){.kind = Q4X_PIECE_NODE,
                       .ev = {.node = node,
                              .row0 = (int32_t)t0,
                              .nrows = (int32_t)T,
                              .total = (int32_t)total,
                              .cols = q4x_node_cols(t->plan, node, total)}};
}

/* No piece of the node, or the state, has more results, whatever the forward: rows that are kept may all lie in one
 * tile, those of a narrow tensor as they are, of others the sums of their parts; leaves may begin and end within the
 * tile. */
static size_t most_of(const q4x_tapset *t, const q4x_piece *p) {
    const size_t width = (size_t)(p->ev.cols < Q4X_SKETCH_RAW ? p->ev.cols : Q4X_SKETCH_RAW);
    const int64_t kept = p->r.sk.nrows < p->ev.nrows ? p->r.sk.nrows : p->ev.nrows;
    size_t bytes = p->r.bytes + 2 * (size_t)Q4X_LEAF;
    if (q4x_tap_measured(t, p->ev.node, q4x_piece_is_ids(t, p)))
        bytes += q4x_tap_rounded((size_t)kept * width * sizeof(float));
    const int32_t part = t->tap[p->ev.node].parts.width;
    if (part) bytes += q4x_tap_rounded(16 * (size_t)(kept * (p->ev.cols / part))) + q4x_tap_rounded(sizeof(k_measured));
    return bytes;
}

/* Its results and copies added to those of the forward; *most: at least its results. */
static int add(const q4x_tapset *t, q4x_piece *p, int64_t pos0, q4x_tapdev_sizes *s, size_t *most, q4x_err *err) {
    const q4x_node *n = node_of(t, p);
    int64_t in_cols[K_MAXIN] = {0}, have = 0;
    int rc = q4x_piece_lay_out(t, p, err);
    if (rc) return rc;
    s->results += p->r.bytes;
    if (most_of(t, p) > *most) *most = most_of(t, p);
    for (int32_t k = 0; n && k < n->nin; k++)
        in_cols[k] = n->in[k] == Q4X_IN_IDS ? 1 : q4x_node_cols(t->plan, n->in[k], p->ev.total);
    if (n && n->nst && t->plan->state[n->st[0]].rows_kind != Q4X_ROWS_FIXED)
        have = pos0 / (t->plan->state[n->st[0]].rows_kind == Q4X_ROWS_BLOCK ? t->plan->d.ratio : 1);
    if (n && p->ev.node == t->plan->logits) p->ev.nrows = 1;
    q4x_piece_lay_copies(t, p, in_cols, (int32_t)pos0, 0, have);
    s->copies += p->c.bytes;
    return 0;
}

/* A prompt of n ids. Behind its first tile, which has the largest pieces, it is looked at no further once both blocks
 * are as large as they may be. */
static int forward(const q4x_tapset *t, int64_t n, int32_t tile, size_t limit, q4x_tapdev_sizes *s, size_t *most,
                   q4x_err *err) {
    int rc = 0;
    for (int32_t i = 0; i < t->nnodes - t->nplan && !rc; i++) {
        const q4x_state_desc *sd = &t->plan->state[t->state[i]];
        q4x_piece p = {.kind = sd->is_ids ? Q4X_PIECE_STATE_HERE : Q4X_PIECE_STATE,
                       .ev = q4x_tap_state_event(t, i, q4x_state_rows(t->plan, sd, n), sd->cols)};
        rc = add(t, &p, 0, s, most, err);
    }
    for (int64_t t0 = 0; t0 < n && !rc && (t0 == 0 || s->results <= limit || s->copies <= limit); t0 += tile)
        for (int32_t i = 0; i < t->nplan && !rc; i++) {
            q4x_piece p = tile_of(t, i, t0, n - t0 < tile ? n - t0 : tile, n);
            rc = add(t, &p, t0, s, most, err);
        }
    return rc;
}

static int held(const q4x_tapset *t, int64_t n_ctx, int32_t tile, size_t *ret, q4x_err *err) {
    int64_t *off = calloc((size_t)t->nplan, sizeof *off);
    if (!off) return q4x_tapdev_nomem(err);
    *ret = 4 * (size_t)q4x_arena_held_fit(t->plan, tile, n_ctx, off);
    free(off);
    return 0;
}

/* Rows of a few rows keep more of each: the larger of the two. */
int q4x_tapdev_size(const q4x_tapset *t, int64_t n_ctx, int32_t tile, q4x_tapdev_sizes *ret, q4x_err *err) {
    const size_t limit = t->o.most > 0 ? (size_t)t->o.most : MOST;
    const int64_t few = n_ctx < Q4X_SKETCH_WIDE ? n_ctx : Q4X_SKETCH_WIDE;
    q4x_tapdev_sizes s = {0}, wide = {0};
    size_t most = 0;
    int rc = forward(t, n_ctx, tile, limit, &s, &most, err);
    if (!rc) rc = forward(t, few, tile, limit, &wide, &most, err);
    if (!rc) rc = held(t, n_ctx, tile, &s.held, err);
    if (rc) return rc;
    if (wide.results > s.results) s.results = wide.results;
    s.many = s.results > limit;
    if (s.many) s.results = limit;
    if (s.results < most) s.results = q4x_tap_rounded(most);
    if (s.copies > limit) s.copies = q4x_tap_rounded(limit);
    if (s.copies && s.copies < LEAST) s.copies = LEAST;
    *ret = s;
    return 0;
}

int q4x_tap_memory_of(const q4x_plan *p, const q4x_tap_opts *o, int64_t n_ctx, int32_t tile, q4x_tap_memory *ret,
                      q4x_err *err) {
    static const q4x_arm plain;
    q4x_tapdev_sizes s;
    int rc = 0;
    q4x_tapset *t = calloc(1, sizeof *t);
    if (!t) return q4x_tapdev_nomem(err);
    t->plan = p;
    t->arm = &plain;
    t->o = *o;
    TRY(q4x_tap_describe(t, err));
    TRY(q4x_tap_choose(t, o, err));
    TRY(q4x_tapdev_size(t, n_ctx, tile, &s, err));
    *ret = (q4x_tap_memory){.device = s.results + s.held, .pinned = s.results + s.copies + s.held, .least = s.results};
done:
    q4x_tap_undescribe(t);
    free(t->tap);
    free(t);
    return rc;
}
