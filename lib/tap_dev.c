/* tap_dev.c: taps of a run on a device. What nodes made is measured where it lies, beside the ops that follow; of it
 * only what must be here, full tensors, what is read twice and operands of bands, is copied. The records are finished
 * as a run on the host finishes them (tap_take.c), when what they need has come (tap_batch.c). */
#include <stdio.h>
#include <stdlib.h>

#include "lib/amount.h"
#include "lib/tap_dev_int.h"

int q4x_tapdev_refused(const q4x_tapset *t, int code, int32_t forward, q4x_err *err) {
    return q4x_run_device_failed(t->run, code, forward, err);
}

int q4x_tapdev_nomem(q4x_err *err) {
    return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory");
}

/* ---- memory ---- */

/* What of the options makes a block smaller: both hold results, and a pinned one tensors and operands of bands too. */
static void remedies(const q4x_tap_opts *o, int pinned, char *buf, size_t size) {
    const char *less = "";
    if (o->mode != Q4X_MODE_HASH) less = "fewer nodes (--node), --mode hash, ";
    if (o->mode == Q4X_MODE_FULL && pinned) less = "fewer nodes (--node), --mode sketch, ";
    snprintf(buf, size, "%s%s%s", less, o->bands ? "no --bands, " : "", *less || o->bands ? "or " : "");
}

/* The outputs that wait are no need, and take their memory later. */
static int too_little(const q4x_tapset *t, const q4x_tapdev_sizes *s, int pinned, const char *what, q4x_err *err) {
    char less[100];
    remedies(&t->o, pinned, less, sizeof less);
    return q4x_fail(err, Q4X_E_DEVICE,
                    "device cuda/%d: taps need %s of its memory on top of the run and %s of pinned memory: %s; use "
                    "%s--device cpu",
                    t->arm->device_index, q4x_amount(s->results).s, q4x_amount(s->results + s->copies).s, what, less);
}

static int refused(const q4x_tapset *t, int code, const char *what, q4x_err *err) {
    return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: %s: %s", t->arm->device_index, what, k_dev_text(code));
}

static int allocate_there(const q4x_tapset *t, q4x_tapdev *d, const q4x_tapdev_sizes *s, q4x_err *err) {
    uint64_t there = 0, total = 0;
    void *p = NULL;
    char why[100];
    int code = k_dev_memory(d->dev, &there, &total);
    if (code) return refused(t, code, "does not say how much memory it has", err);
    if (s->results > there) {
        snprintf(why, sizeof why, "%s more than the %s of %s that are free", q4x_amount(s->results - there).s,
                 q4x_amount(there).s, q4x_amount(total).s);
        return too_little(t, s, 0, why, err);
    }
    code = k_dev_alloc(d->dev, s->results, &p);
    d->there = p;
    if (code) return too_little(t, s, 0, k_dev_text(code), err);
    code = k_dev_zero(d->dev, d->there, s->results);
    return code ? refused(t, code, "memory of the taps cannot be cleared", err) : 0;
}

/* Both blocks; one that holds nothing is none. */
static int allocate(const q4x_tapset *t, q4x_tapdev *d, const q4x_tapdev_sizes *s, q4x_err *err) {
    void *p[2] = {NULL, NULL};
    int rc = allocate_there(t, d, s, err);
    if (rc) return rc;
    int code = k_dev_pinned(d->dev, s->results, &p[0]);
    d->here = p[0];
    if (!code && s->copies) code = k_dev_pinned(d->dev, s->copies, &p[1]);
    d->pinned = p[1];
    d->results.cap = s->results;
    d->copies.cap = d->pinned ? s->copies : 0;
    return code ? too_little(t, s, 1, k_dev_text(code), err) : 0;
}

int q4x_tapdev_new(q4x_tapset *t, q4x_tapdev **ret, q4x_err *err) {
    q4x_tapdev_sizes s;
    int rc = q4x_tapdev_size(t, q4x_run_ctx(t->run), q4x_run_tile(t->run), &s, err);
    if (rc) return rc;
    q4x_tapdev *d = calloc(1, sizeof *d);
    if (!d) return q4x_tapdev_nomem(err);
    d->dev = q4x_run_device(t->run);
    d->held = -1;
    *ret = d;
    d->bits = q4x_bits_new();
    d->cache = calloc((size_t)t->plan->nstates + 1, sizeof *d->cache);
    d->ncache = t->plan->nstates;
    if (!d->bits || !d->cache) return q4x_tapdev_nomem(err);
    /* a few parts are enough to go on side by side; what little comes of a forward otherwise comes at its end */
    const int many = t->o.mode == Q4X_MODE_FULL || t->o.controls || t->o.bands;
    d->most_results = s.many ? s.results / 4 : SIZE_MAX;
    d->most_copies = many ? s.copies / 4 : SIZE_MAX;
    return allocate(t, d, &s, err);
}

void q4x_tapdev_free(q4x_tapdev *d) {
    if (!d) return;
    k_dev_wait(d->dev); /* a copy may be under way */
    for (int32_t i = 0; i < d->n; i++) q4x_piece_forget(&d->piece[d->first + i]);
    q4x_piece_forget(&d->next);
    for (int32_t i = 0; d->cache && i < d->ncache; i++) free(d->cache[i].f);
    k_dev_free(d->dev, d->there);
    k_dev_unpin(d->dev, d->here);
    k_dev_unpin(d->dev, d->pinned);
    q4x_bits_free(d->bits);
    free(d->cache);
    free(d->piece);
    free(d);
}

/* ---- a tile comes ---- */

/* Rows of a tile, seen as rows as long as the parts that they are normed in: their sums. */
static int add_parts(q4x_tapdev *d, const q4x_piece *p, const float *x, int64_t rows, char *sums) {
    const k_measure_job j = {.kind = K_MEASURE_ROWS,
                             .x = x,
                             .rows = rows * (p->ev.cols / p->r.cut_width),
                             .cols = p->r.cut_width,
                             .seen = (k_measured *)(void *)(d->there + p->r0 + p->r.spare_at),
                             .out = sums};
    return q4x_tapdev_add_job(d, &j);
}

/* Jobs of the sums of a tile, which lies at x. */
static int add_rows(q4x_tapdev *d, const q4x_piece *p, const float *x) {
    const q4x_node_event *ev = &p->ev;
    char *r = d->there + p->r0, *kept = r + p->r.kept_at, *cuts = r + p->r.cuts_at;
    int code = 0;
    for (int64_t i = 0, k = 0; i < ev->nrows && !code; i += p->r.part, k++) {
        const int64_t n = ev->nrows - i < p->r.part ? ev->nrows - i : p->r.part, row0 = ev->row0 + i;
        int64_t from, keep = q4x_tapstat_kept(&p->r.sk, row0, n, &from);
        const k_measure_job j = {.kind = K_MEASURE_ROWS,
                                 .x = x + i * ev->cols,
                                 .rows = n,
                                 .cols = ev->cols,
                                 .seen = (k_measured *)(void *)(r + p->r.seen_at) + k,
                                 .out = r + p->r.sums_at + 16 * (size_t)i,
                                 .kept = kept,
                                 .keep0 = (int32_t)(from - row0),
                                 .keep1 = (int32_t)(from - row0 + keep),
                                 .width = p->r.sk.raw ? 0 : p->r.sk.width};
        kept += (size_t)keep * q4x_tapstat_kept_row(&p->r.sk);
        code = q4x_tapdev_add_job(d, &j);
        if (code || !p->r.cut_width) continue;
        code = add_parts(d, p, x + (from - ev->row0) * ev->cols, keep, cuts);
        cuts += 16 * (size_t)(keep * (ev->cols / p->r.cut_width));
    }
    return code;
}

static int add_copy(q4x_tapdev *d, const void *x, size_t bytes, char *to) {
    const k_measure_job j = {.kind = K_MEASURE_COPY, .x = x, .rows = (int64_t)(bytes / 4), .out = to};
    return q4x_tapdev_add_job(d, &j);
}

static int add_bits(q4x_tapdev *d, const q4x_piece *p, const char *x, int ids, int counted) {
    char *r = d->there + p->r0;
    const k_measure_job j = {.kind = K_MEASURE_BITS,
                             .x = x + p->r.head,
                             .rows = (int64_t)p->r.body,
                             .seen = counted ? (k_measured *)(void *)(r + p->r.seen_at) : NULL,
                             .out = r + p->r.body_at,
                             .canonical = !ids};
    int code = q4x_tapdev_add_job(d, &j);
    if (!code) code = add_copy(d, x, p->r.head, r + p->r.head_at);
    return code ? code : add_copy(d, x + p->r.head + p->r.body, p->r.tail, r + p->r.tail_at);
}

static int add_cut(q4x_tapset *t, const q4x_piece *p, const void *x, const k_call *call) {
    const k_measure_job j = {.kind = K_MEASURE_CUT,
                             .x = q4x_run_there(t->run, call->in[0]),
                             .rows = p->ev.nrows,
                             .cols = call->in_cols[0],
                             .out = t->dev->there + p->r0 + p->r.cut_at,
                             .ids = x,
                             .k = (int32_t)p->ev.cols,
                             .pos0 = call->pos0,
                             .ratio = t->plan->node[p->ev.node].op == K_OP_idx_sel ? t->plan->d.ratio : 0};
    return q4x_tapdev_add_job(t->dev, &j);
}

/* All that is to be known of a piece, which lies at x, is on its way. */
static int measure(q4x_tapset *t, const q4x_piece *p, const void *x, const k_call *call) {
    q4x_tapdev *d = t->dev;
    const size_t bytes = 4 * (size_t)p->ev.nrows * (size_t)p->ev.cols;
    const int ids = q4x_piece_is_ids(t, p), measured = q4x_tap_measured(t, p->ev.node, ids);
    int code = p->same ? 0 : add_bits(d, p, x, ids, !measured && !ids);
    if (!code && measured && !p->same) code = add_rows(d, p, x);
    if (!code && p->r.has_words) code = add_copy(d, x, bytes, d->there + p->r0 + p->r.words_at);
    if (!code && call && p->r.has_cut) code = add_cut(t, p, x, call);
    return code || !p->c.out ? code : q4x_tapdev_bring(d, p, p->c.out_at, x, bytes);
}

/* The next piece, which lies at x. call: of a node. */
static int enqueue(q4x_tapset *t, const void *x, const k_call *call, q4x_err *err) {
    q4x_tapdev *d = t->dev;
    q4x_piece *p = &d->next;
    const q4x_node_event *ev = &p->ev;
    p->same = p->kind == Q4X_PIECE_NODE && q4x_tap_seen_already(t, ev, d->held);
    const int code = measure(t, p, x, call);
    int rc = code ? q4x_tapdev_refused(t, code, p->forward, err) : 0;
    if (!rc && p->c.band) rc = q4x_tapdev_band_bring(t, p, call, err);
    if (rc) return rc;
    if (q4x_tap_measured(t, ev->node, q4x_piece_is_ids(t, p)) && ev->nrows == ev->total) d->held = ev->node;
    const q4x_piece taken = *p;
    *p = (q4x_piece){0};
    return q4x_tapdev_push(t, &taken, err);
}

/* ---- hooks ---- */

int q4x_tapdev_before(void *ctx, const q4x_node_event *ev, int *ret_here, q4x_err *err) {
    q4x_tapset *t = ctx;
    q4x_piece *p = &t->dev->next;
    const k_call *c = ev->call;
    *ret_here = q4x_tap_witness_wants(t, ev->node, c->lv);
    *p = (q4x_piece){.ev = *ev, .kind = Q4X_PIECE_NODE, .forward = q4x_run_nforward(t->run)};
    p->ev.data = NULL;
    p->ev.call = NULL;
    int rc = q4x_piece_lay_out(t, p, err);
    if (rc) return rc;
    q4x_piece_lay_copies(t, p, c->in_cols, c->pos0, *ret_here, q4x_tapdev_band_have(t, ev->node, c));
    if ((rc = q4x_tapdev_room(t, p, err))) return rc;
    int code = q4x_tapdev_band_before(t, p);
    if (!code && t->plan->node[ev->node].op != K_OP_alias) /* which writes nothing */
        code = q4x_tapdev_make_way(t->dev, q4x_run_there(t->run, c->out), 4 * (int64_t)ev->nrows * ev->cols);
    return code ? q4x_tapdev_refused(t, code, p->forward, err) : 0;
}

/* The last node that a forward shows; behind it there are only states. */
static int is_last(const q4x_tapset *t, const q4x_node_event *ev) {
    return ev->node == t->nplan - 1 && ev->row0 + ev->nrows == ev->total;
}

int q4x_tapdev_node(q4x_tapset *t, const q4x_node_event *ev, q4x_err *err) {
    q4x_tapdev *d = t->dev;
    int rc = 0;
    if (ev->row0 == 0) q4x_tap_begin_bands(t, ev->node);
    d->next.ev.planted = ev->planted;
    if (ev->data) { /* with all that the op was given */
        d->next.c.band = 0;
        q4x_tap_bands(t, ev->node, ev->call);
        rc = q4x_tap_witness(t, ev, err);
    }
    if (!rc) rc = enqueue(t, q4x_run_there(t->run, ev->call->out), ev->call, err);
    /* while the device comes to the end of a forward that is finished in parts, so does this */
    return rc || !d->parted || !is_last(t, ev) ? rc : q4x_tapdev_flush(t, err);
}

int q4x_tapdev_state(q4x_tapset *t, const q4x_node_event *ev, const void *there, int32_t forward, q4x_err *err) {
    q4x_piece *p = &t->dev->next;
    *p = (q4x_piece){.ev = *ev, .kind = there ? Q4X_PIECE_STATE : Q4X_PIECE_STATE_HERE, .forward = forward};
    int rc = q4x_piece_lay_out(t, p, err);
    if (rc) return rc;
    q4x_piece_lay_copies(t, p, NULL, 0, 0, 0);
    if ((rc = q4x_tapdev_room(t, p, err))) return rc;
    if (there) return enqueue(t, there, NULL, err);
    const q4x_piece taken = *p;
    *p = (q4x_piece){0};
    return q4x_tapdev_push(t, &taken, err);
}

int q4x_tapdev_end(q4x_tapset *t, q4x_err *err) {
    t->dev->parted = 0;
    return q4x_tapdev_flush(t, err);
}
