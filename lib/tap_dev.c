/* tap_dev.c: taps of a run on a device. What nodes made is measured where it lies, beside the ops that follow, by jobs
 * that wait in a table until it is full or the next node writes over what one of them reads; results gather in one
 * block there, which is copied here once a forward, or when it is full. Then the records are finished in the order of
 * the nodes, as a run on the host finishes them. Only what must be here, full tensors and what is read twice, is
 * copied, into pinned memory, while the device goes on. */
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "lib/tap_int.h"

/* Blocks grow to what a forward needs, up to MOST; what is larger alone has its own. */
enum { FIRST = 1 << 20, MOST = 64 << 20, ALIGN = 16, BUSY = 8 * K_MEASURE_JOBS };

/* One tile of a node, or a state, whose results are not here yet. Places are bytes in the block of results. */
typedef struct {
    q4x_node_event ev;
    int32_t forward;
    enum { A_NODE, A_STATE, A_STATE_HERE } what;
    int32_t same;      /* an alias shows again what was measured: no results */
    int32_t band;      /* wants the band of its output, of which there is a copy */
    k_levers lv;       /* for that */
    size_t head, tail; /* bytes that fill a leaf begun by the tile before, and that begin one: they come as they are */
    size_t body;       /* bytes between: digests of their leaves */
    int64_t part;      /* rows of a job of sums */
    q4x_sketch sk;     /* what is kept of the whole tensor */
    int has_words, has_cut;
    size_t head_at, tail_at, body_at, seen_at, sums_at, kept_at, words_at, cut_at; /* one k_measured a part */
    void *own; /* a copy too large for the block of copies */
} piece;

struct q4x_tapdev {
    k_dev *dev;
    char *there, *here; /* results, on the device and pinned */
    size_t cap, used;
    char *copies; /* pinned: tensors that must be here */
    size_t copies_cap, copies_used;
    k_measure_job job[K_MEASURE_JOBS]; /* that wait */
    int njobs;
    struct {
        const void *p;
        int64_t n; /* bytes */
        int64_t launch;
    } busy[BUSY]; /* what jobs read that were launched and may not be done */
    int nbusy;
    piece *piece;
    int32_t n, npieces;
    int32_t held; /* the node that t->held will be when all results are here */
    q4x_bits *bits;
};

static int refused(const q4x_tapset *t, int code, int32_t forward, q4x_err *err) {
    return q4x_run_device_failed(t->run, code, forward, err);
}

static int nomem(q4x_err *err) {
    return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory");
}

static int is_ids(const q4x_tapset *t, const piece *p) {
    return p->what == A_NODE && q4x_run_plan(t->run)->node[p->ev.node].is_ids;
}

static size_t rounded(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

int q4x_tapdev_new(q4x_tapset *t, q4x_tapdev **ret, q4x_err *err) {
    q4x_tapdev *d = calloc(1, sizeof *d);
    if (!d) return nomem(err);
    d->dev = q4x_run_device(t->run);
    d->held = -1;
    *ret = d;
    d->bits = q4x_bits_new();
    return d->bits ? 0 : nomem(err);
}

void q4x_tapdev_free(q4x_tapdev *d) {
    if (!d) return;
    k_dev_wait(d->dev); /* a copy may be under way */
    for (int32_t i = 0; i < d->n; i++) free(d->piece[i].own);
    k_dev_free(d->dev, d->there);
    k_dev_unpin(d->dev, d->here);
    k_dev_unpin(d->dev, d->copies);
    q4x_bits_free(d->bits);
    free(d->piece);
    free(d);
}

/* ---- jobs ---- */

/* Behind what comes now these launches are done. */
static int join(q4x_tapdev *d, int64_t launch) {
    int n = 0;
    for (int i = 0; i < d->nbusy; i++)
        if (d->busy[i].launch > launch) d->busy[n++] = d->busy[i];
    d->nbusy = n;
    return k_dev_join(d->dev, launch);
}

static int64_t bytes_read(const k_measure_job *j) {
    if (j->kind == K_MEASURE_BITS) return j->rows;
    return 4 * j->rows * (j->kind == K_MEASURE_COPY ? 1 : j->cols);
}

static int64_t ids_read(const k_measure_job *j) {
    return j->ids ? 4 * j->rows * j->k : 0;
}

static void set_busy(q4x_tapdev *d, const void *p, int64_t bytes) {
    if (!p) return;
    d->busy[d->nbusy].p = p;
    d->busy[d->nbusy].n = bytes;
    d->busy[d->nbusy++].launch = d->dev->measured;
}

static int launch(q4x_tapdev *d) {
    int code = d->nbusy > BUSY - 2 * K_MEASURE_JOBS ? join(d, d->dev->measured) : 0;
    if (!code) code = k_dev_measure(d->dev, d->job, d->njobs);
    for (int i = 0; i < d->njobs; i++) {
        set_busy(d, d->job[i].x, bytes_read(&d->job[i]));
        set_busy(d, d->job[i].ids, ids_read(&d->job[i]));
    }
    d->njobs = 0;
    return code;
}

static int add_job(q4x_tapdev *d, const k_measure_job *j) {
    int code = d->njobs == K_MEASURE_JOBS ? launch(d) : 0;
    if (!code && j->rows > 0) d->job[d->njobs++] = *j;
    return code;
}

static int meets(const void *a, int64_t an, const void *b, int64_t bn) {
    return (uintptr_t)a < (uintptr_t)b + (size_t)bn && (uintptr_t)b < (uintptr_t)a + (size_t)an;
}

/* These bytes are about to be written: what reads them goes before. */
static int make_way(q4x_tapdev *d, const void *p, int64_t bytes) {
    int waits = 0, code = 0;
    int64_t last = 0;
    for (int i = 0; i < d->njobs && !waits; i++) {
        const k_measure_job *j = &d->job[i];
        waits = meets(j->x, bytes_read(j), p, bytes) || meets(j->ids, ids_read(j), p, bytes);
    }
    if (waits) code = launch(d);
    for (int i = 0; i < d->nbusy; i++)
        if (d->busy[i].launch > last && meets(d->busy[i].p, d->busy[i].n, p, bytes)) last = d->busy[i].launch;
    return code || !last ? code : join(d, last);
}

int q4x_tapdev_before(void *ctx, const q4x_node_event *ev, int *ret_here, q4x_err *err) {
    q4x_tapset *t = ctx;
    const q4x_node *n = &q4x_run_plan(t->run)->node[ev->node];
    *ret_here = (t->o.bands && q4x_tap_band_wanted(t, ev->node)) || q4x_tap_witness_wants(t, ev->node, ev->call->lv);
    if (n->op == K_OP_alias) return 0; /* writes nothing */
    int code = make_way(t->dev, q4x_run_there(t->run, ev->call->out), 4 * (int64_t)ev->nrows * ev->cols);
    return code ? refused(t, code, q4x_run_nforward(t->run), err) : 0;
}

/* ---- results are here ---- */

/* Of a piece: its digests, and the parts of leaves that are shared with other tiles. */
static int take_bits(const q4x_tapdev *d, const piece *p, q4x_bits *b, q4x_err *err) {
    if (q4x_bits_add(b, d->here + p->head_at, p->head)) return nomem(err);
    if (p->body) q4x_bits_digests(b, d->here + p->body_at, p->body);
    return q4x_bits_add(b, d->here + p->tail_at, p->tail) ? nomem(err) : 0;
}

static void take_rows(q4x_tapset *t, const piece *p) {
    const q4x_tapdev *d = t->dev;
    const q4x_node_event *ev = &p->ev;
    q4x_tapstat *s = ev->nrows == ev->total ? t->stat : t->tap[ev->node].stat;
    const double *sums = (const double *)(const void *)(d->here + p->sums_at);
    const k_measured *m = (const k_measured *)(const void *)(d->here + p->seen_at);
    const char *kept = d->here + p->kept_at;
    for (int64_t r = 0; r < ev->nrows; r += p->part, m++) {
        const int64_t n = ev->nrows - r < p->part ? ev->nrows - r : p->part;
        kept += q4x_tapstat_there(s, n, m, sums + 2 * r, kept); /* parts lie one behind the other */
    }
}

static void take_counts(q4x_tapset *t, const piece *p) {
    const q4x_tapdev *d = t->dev;
    const k_measured *m = (const k_measured *)(const void *)(d->here + p->seen_at);
    q4x_stats *s = &t->tap[p->ev.node].rec.stats;
    s->nan += m->nan;
    s->pinf += m->pinf;
    s->ninf += m->ninf;
    q4x_tap_count_nonfinite(s, (const float *)(const void *)(d->here + p->head_at), (int64_t)(p->head / 4));
    q4x_tap_count_nonfinite(s, (const float *)(const void *)(d->here + p->tail_at), (int64_t)(p->tail / 4));
}

/* A tile's results into its record. */
static int take(q4x_tapset *t, const piece *p, int ids, q4x_err *err) {
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
    if ((rc = take_bits(d, p, whole ? d->bits : tn->bits, err))) return rc;
    if (whole) tn->rec.bits = q4x_bits_end(d->bits);
    if (q4x_tap_measured(t, ev->node, ids))
        take_rows(t, p);
    else if (!ids)
        take_counts(t, p);
    return 0;
}

static int finish_piece(q4x_tapset *t, piece *p, q4x_err *err) {
    const q4x_tapdev *d = t->dev;
    q4x_node_event *ev = &p->ev;
    const int ids = is_ids(t, p);
    const float *cuts = p->has_cut ? (const float *)(const void *)(d->here + p->cut_at) : NULL;
    int rc = ev->row0 == 0 ? q4x_tap_begin(t, ev, ids, p->same, p->forward, err) : 0;
    if (rc || (rc = take(t, p, ids, err))) return rc;
    if (!ev->data && p->has_words) ev->data = (void *)(uintptr_t)(d->here + p->words_at);
    if (t->tap[ev->node].want && t->o.mode == Q4X_MODE_FULL && (rc = q4x_tap_keep_full(&t->tap[ev->node], ev, err)))
        return rc;
    if (p->what == A_STATE) return q4x_tap_end_state(t, ev, 0, err);
    if (p->band) {
        const k_call c = {.T = ev->nrows, .cols = ev->cols, .out = ev->data, .lv = &p->lv};
        q4x_tap_bands(t, ev->node, &c);
    }
    if (ids && (rc = q4x_tap_selection(t, ev, cuts, err))) return rc;
    return q4x_tap_end_tile(t, ev, err);
}

int q4x_tapdev_flush(q4x_tapset *t, q4x_err *err) {
    q4x_tapdev *d = t->dev;
    int rc = 0;
    if (!d->n) return 0;
    int code = launch(d);
    if (!code) code = join(d, d->dev->measured);
    if (!code && d->used) code = k_dev_get(d->dev, d->here, d->there, d->used);
    if (!code && d->used) code = k_dev_zero(d->dev, d->there, d->used); /* for the next ones */
    if (!code) code = k_dev_wait(d->dev);
    if (code) return refused(t, code, d->piece[d->n - 1].forward, err);
    for (int32_t i = 0; i < d->n && !rc; i++) {
        piece *p = &d->piece[i];
        rc = p->what == A_STATE_HERE ? q4x_tap_state(t, &p->ev, 1, p->forward, err) : finish_piece(t, p, err);
    }
    for (int32_t i = 0; i < d->n; i++) free(d->piece[i].own);
    d->n = 0;
    d->used = d->copies_used = 0;
    return rc;
}

/* ---- a tile comes ---- */

/* So many bytes of a block that is given out one piece after the other. */
static size_t give(size_t *used, size_t bytes) {
    const size_t at = *used;
    *used += rounded(bytes);
    return at;
}

/* Rows of this tile that the sketch keeps: *ret_from .. returned. */
static int64_t kept_of(const piece *p, int64_t row0, int64_t nrows, int64_t *ret_from) {
    const int64_t keep1 = p->sk.row0 + p->sk.nrows, from = p->sk.row0 > row0 ? p->sk.row0 : row0,
                  to = keep1 < row0 + nrows ? keep1 : row0 + nrows;
    *ret_from = from;
    return to > from ? to : from;
}

static size_t kept_row(const piece *p) {
    return (size_t)p->sk.width * (p->sk.raw ? sizeof(float) : sizeof(double));
}

/* Places for a piece's results from *used on. */
static void lay_out(const q4x_tapset *t, piece *p, size_t *used) {
    const q4x_node_event *ev = &p->ev;
    const q4x_node *n = p->what == A_NODE ? &q4x_run_plan(t->run)->node[ev->node] : NULL;
    const int ids = is_ids(t, p);
    const size_t bytes = 4 * (size_t)ev->nrows * (size_t)ev->cols, rows = (size_t)ev->nrows,
                 into = 4 * (size_t)ev->row0 * (size_t)ev->cols % Q4X_LEAF;
    int64_t from;
    p->has_words = ids || (n && n->weights_of);
    p->has_cut = ids && n->scores;
    p->head = into ? Q4X_LEAF - into : 0;
    if (p->head > bytes) p->head = bytes;
    p->body = bytes - p->head;
    p->tail = ev->row0 + ev->nrows == ev->total ? 0 : p->body % Q4X_LEAF; /* the tensor's last leaf may be short */
    p->body -= p->tail;
    p->head_at = give(used, p->head);
    p->tail_at = give(used, p->tail);
    p->body_at = give(used, (p->body + Q4X_LEAF - 1) / Q4X_LEAF * 16);
    p->words_at = give(used, p->has_words ? bytes : 0);
    p->cut_at = give(used, p->has_cut ? 8 * rows : 0);
    p->part = ev->cols > 1 ? K_MEASURE_MOST / ev->cols : K_MEASURE_MOST;
    const int measured = q4x_tap_measured(t, ev->node, ids);
    p->seen_at = give(used, (measured ? (rows + (size_t)p->part - 1) / (size_t)p->part : 1) * sizeof(k_measured));
    if (!measured) return;
    p->sums_at = give(used, 16 * rows);
    const int64_t kept = kept_of(p, ev->row0, ev->nrows, &from) - from;
    p->kept_at = give(used, (size_t)kept * kept_row(p));
}

/* A block on the device and its copy here, larger than before; what was in it is gone. */
static int grow_results(q4x_tapdev *d, size_t need) {
    size_t cap = d->cap ? 2 * d->cap : FIRST;
    void *there = NULL, *here = NULL;
    if (cap > MOST) cap = MOST;
    if (cap < need) cap = need;
    k_dev_free(d->dev, d->there);
    k_dev_unpin(d->dev, d->here);
    d->there = d->here = NULL;
    d->cap = 0;
    int code = k_dev_alloc(d->dev, cap, &there);
    if (code && cap > need) code = k_dev_alloc(d->dev, cap = need, &there); /* rather more often than not at all */
    d->there = there;
    if (!code) code = k_dev_zero(d->dev, there, cap);
    if (!code) code = k_dev_pinned(d->dev, cap, &here);
    d->here = here;
    if (!code) d->cap = cap;
    return code;
}

static int grow_copies(q4x_tapdev *d, size_t need) {
    size_t cap = d->copies_cap ? 2 * d->copies_cap : FIRST;
    void *copies = NULL;
    if (cap > MOST) cap = MOST;
    if (cap < need) cap = need;
    k_dev_unpin(d->dev, d->copies);
    d->copies_cap = 0;
    int code = k_dev_pinned(d->dev, cap, &copies);
    d->copies = copies;
    if (!code) d->copies_cap = cap;
    return code;
}

/* Room for so many bytes of results and of copies: what is there is finished before, if need be. */
static int make_room(q4x_tapset *t, size_t results, size_t copy, int32_t forward, q4x_err *err) {
    q4x_tapdev *d = t->dev;
    const int more = results > d->cap - d->used, longer = copy > d->copies_cap - d->copies_used;
    int code = 0;
    if (d->n == d->npieces) {
        const int32_t cap = d->npieces ? 2 * d->npieces : 256;
        piece *p = realloc(d->piece, (size_t)cap * sizeof *p);
        if (!p) return nomem(err);
        d->piece = p;
        d->npieces = cap;
    }
    if (!more && !longer) return 0;
    int rc = q4x_tapdev_flush(t, err);
    if (rc) return rc;
    if (more && (results > d->cap || d->cap < MOST)) code = grow_results(d, results);
    if (!code && longer && (copy > d->copies_cap || d->copies_cap < MOST)) code = grow_copies(d, copy);
    return code ? refused(t, code, forward, err) : 0;
}

/* Jobs of the sums of a tile, which lies at x. */
static int add_rows(q4x_tapdev *d, const piece *p, const float *x) {
    const q4x_node_event *ev = &p->ev;
    size_t kept = p->kept_at;
    int code = 0;
    for (int64_t r = 0, i = 0; r < ev->nrows && !code; r += p->part, i++) {
        const int64_t n = ev->nrows - r < p->part ? ev->nrows - r : p->part, row0 = ev->row0 + r;
        int64_t from, to = kept_of(p, row0, n, &from);
        const k_measure_job j = {.kind = K_MEASURE_ROWS,
                                 .x = x + r * ev->cols,
                                 .rows = n,
                                 .cols = ev->cols,
                                 .seen = (k_measured *)(void *)(d->there + p->seen_at) + i,
                                 .out = d->there + p->sums_at + 16 * (size_t)r,
                                 .kept = d->there + kept,
                                 .keep0 = (int32_t)(from - row0),
                                 .keep1 = (int32_t)(to - row0),
                                 .width = p->sk.raw ? 0 : p->sk.width};
        kept += (size_t)(to - from) * kept_row(p);
        code = add_job(d, &j);
    }
    return code;
}

static int add_copy(q4x_tapdev *d, const void *x, size_t bytes, size_t at) {
    const k_measure_job j = {.kind = K_MEASURE_COPY, .x = x, .rows = (int64_t)(bytes / 4), .out = d->there + at};
    return add_job(d, &j);
}

static int add_bits(q4x_tapdev *d, const piece *p, const char *x, int ids, int counted) {
    const k_measure_job j = {.kind = K_MEASURE_BITS,
                             .x = x + p->head,
                             .rows = (int64_t)p->body,
                             .seen = counted ? (k_measured *)(void *)(d->there + p->seen_at) : NULL,
                             .out = d->there + p->body_at,
                             .canonical = !ids};
    int code = add_job(d, &j);
    if (!code) code = add_copy(d, x, p->head, p->head_at);
    return code ? code : add_copy(d, x + p->head + p->body, p->tail, p->tail_at);
}

static int add_cut(q4x_tapset *t, const piece *p, const void *x, const k_call *call) {
    const q4x_plan *plan = q4x_run_plan(t->run);
    const k_measure_job j = {.kind = K_MEASURE_CUT,
                             .x = q4x_run_there(t->run, call->in[0]),
                             .rows = p->ev.nrows,
                             .cols = call->in_cols[0],
                             .out = t->dev->there + p->cut_at,
                             .ids = x,
                             .k = (int32_t)p->ev.cols,
                             .pos0 = call->pos0,
                             .ratio = plan->node[p->ev.node].op == K_OP_idx_sel ? plan->d.ratio : 0};
    return add_job(t->dev, &j);
}

/* All that is to be known of a piece, which lies at x, is on its way. */
static int measure(q4x_tapset *t, piece *p, const void *x, const k_call *call) {
    q4x_tapdev *d = t->dev;
    const int ids = is_ids(t, p), measured = q4x_tap_measured(t, p->ev.node, ids);
    int code = p->same ? 0 : add_bits(d, p, x, ids, !measured && !ids);
    if (!code && measured && !p->same) code = add_rows(d, p, x);
    if (!code && p->has_words) code = add_copy(d, x, 4 * (size_t)p->ev.nrows * (size_t)p->ev.cols, p->words_at);
    if (!code && p->has_cut) code = add_cut(t, p, x, call);
    return code;
}

/* A copy of it is on its way to where the event's data will be. */
static int fetch(q4x_tapdev *d, piece *p, const void *x, size_t bytes) {
    p->ev.data = p->own ? p->own : d->copies + give(&d->copies_used, bytes);
    return k_dev_get(d->dev, p->ev.data, x, bytes);
}

/* Take up a piece that lies at x. call: of a node. */
static int enqueue(q4x_tapset *t, piece *p, const void *x, const k_call *call, q4x_err *err) {
    q4x_tapdev *d = t->dev;
    const q4x_node_event *ev = &p->ev;
    const size_t bytes = 4 * (size_t)ev->nrows * (size_t)ev->cols;
    const int here = (t->tap[ev->node].want && t->o.mode == Q4X_MODE_FULL) || t->o.controls || p->band;
    int64_t row0, nrows;
    size_t need = 0;
    q4x_tap_kept_rows(&t->o, ev->total, &row0, &nrows);
    int rc = q4x_tapstat_shape(ev->total, ev->cols, row0, nrows, 1, &p->sk);
    if (rc) return q4x_fail(err, rc, "taps: cannot sketch %s", t->node[ev->node].name);
    lay_out(t, p, &need);
    if ((rc = make_room(t, need, here && bytes <= MOST ? rounded(bytes) : 0, p->forward, err))) return rc;
    if (here && bytes > MOST && !(p->own = malloc(bytes))) return nomem(err);
    p->same = p->what == A_NODE && q4x_tap_seen_already(t, ev, d->held);
    lay_out(t, p, &d->used);
    int code = measure(t, p, x, call);
    if (!code && here) code = fetch(d, p, x, bytes);
    if (q4x_tap_measured(t, ev->node, is_ids(t, p)) && ev->nrows == ev->total) d->held = ev->node;
    d->piece[d->n++] = *p;
    return code ? refused(t, code, p->forward, err) : 0;
}

int q4x_tapdev_node(q4x_tapset *t, const q4x_node_event *ev, q4x_err *err) {
    piece p = {.ev = *ev, .what = A_NODE, .forward = q4x_run_nforward(t->run), .lv = *ev->call->lv};
    int rc = 0;
    if (ev->row0 == 0) q4x_tap_begin_bands(t, ev->node);
    p.band = q4x_tap_band_wanted(t, ev->node) && !ev->data;
    p.ev.data = NULL;
    p.ev.call = NULL;
    if (ev->data) { /* with all that the op was given */
        q4x_tap_bands(t, ev->node, ev->call);
        rc = q4x_tap_witness(t, ev, err);
    }
    return rc ? rc : enqueue(t, &p, q4x_run_there(t->run, ev->call->out), ev->call, err);
}

int q4x_tapdev_state(q4x_tapset *t, const q4x_node_event *ev, const void *there, int32_t forward, q4x_err *err) {
    piece p = {.ev = *ev, .what = there ? A_STATE : A_STATE_HERE, .forward = forward};
    if (there) return enqueue(t, &p, there, NULL, err);
    int rc = make_room(t, 0, 0, forward, err);
    if (!rc) t->dev->piece[t->dev->n++] = p;
    return rc;
}
