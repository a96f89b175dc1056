#include "lib/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "kernels/round.h"
#include "lib/io.h"
#include "lib/tap_int.h"

void q4x_tap_kept_rows(const q4x_tap_opts *o, int64_t total, int64_t *row0, int64_t *nrows) {
    *row0 = o->row0;
    *nrows = o->nrows;
    if (o->nrows < 0) {
        *row0 = 0;
        *nrows = total;
    } else if (o->nrows == 0 || o->row0 < 0) {
        int64_t last = o->nrows ? o->nrows : Q4X_SKETCH_ROWS;
        *nrows = total < last ? total : last;
        *row0 = total - *nrows;
    }
}

int q4x_tap_measured(const q4x_tapset *t, int32_t node, int is_ids) {
    return t->tap[node].want && !is_ids && t->o.mode != Q4X_MODE_HASH;
}

int q4x_tap_seen_already(const q4x_tapset *t, const q4x_node_event *ev, int32_t held) {
    if (ev->node >= t->nplan || ev->planted || ev->nrows != ev->total || held < 0) return 0;
    const q4x_node *n = &t->plan->node[ev->node];
    return n->op == K_OP_alias && n->in[0] == held && q4x_tap_measured(t, ev->node, n->is_ids);
}

/* The record of the state that this node makes, when its band is asked for; NULL: none. */
static q4x_tap_node *made_by(q4x_tapset *t, int32_t node) {
    const q4x_plan *p = t->plan;
    if (!t->o.bands || node >= t->nplan || !p->node[node].nst) return NULL;
    q4x_tap_node *state = &t->tap[t->nplan + p->node[node].st[0]];
    return state->kind == K_STATE_MADE ? state : NULL;
}

void q4x_tap_begin_bands(q4x_tapset *t, int32_t node) {
    q4x_tap_node *made = made_by(t, node);
    t->tap[node].hard2 = t->tap[node].rms2 = 0;
    if (made) made->made = (k_band){0, 0};
}

int q4x_tap_begin(q4x_tapset *t, const q4x_node_event *ev, int is_ids, int same, int32_t forward, q4x_err *err) {
    q4x_tap_node *tn = &t->tap[ev->node];
    q4x_tap *rec = &tn->rec;
    const int whole = ev->nrows == ev->total;
    q4x_selection keep = rec->sel;
    *rec = (q4x_tap){.node = ev->node,
                     .forward = forward,
                     .dtype = is_ids ? K_T_I32 : K_T_F32,
                     .rows = ev->total,
                     .cols = ev->cols,
                     .sel = keep};
    if (!whole && !tn->bits && !(tn->bits = q4x_bits_new())) goto nomem;
    if (!whole) q4x_bits_begin(tn->bits, is_ids ? Q4X_BITS_RAW : Q4X_BITS_F32);
    if (q4x_tap_measured(t, ev->node, is_ids) && !same) {
        if (!whole && !tn->stat && !(tn->stat = q4x_tapstat_new())) goto nomem;
        int64_t row0, nrows;
        q4x_tapstat *stat = whole ? t->stat : tn->stat;
        q4x_tap_kept_rows(&t->o, ev->total, &row0, &nrows);
        int rc = q4x_tapstat_begin(stat, ev->total, ev->cols, row0, nrows, 1);
        if (!rc) rc = q4x_tapstat_parts(stat, &tn->parts);
        if (rc) return q4x_fail(err, rc, "taps: cannot sketch %s", t->node[ev->node].name);
    }
    return 0;
nomem:
    return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory");
}

int q4x_tap_keep_full(q4x_tapset *t, const q4x_node_event *ev, int is_ids, q4x_err *err) {
    q4x_tap_node *tn = &t->tap[ev->node];
    if (ev->nrows == ev->total && !is_ids) {
        tn->rec.full = ev->data;
        return 0;
    }
    size_t row = (size_t)ev->cols * 4, need = row * (size_t)ev->total;
    if (need > tn->full_cap) {
        char *p = realloc(tn->full, need);
        if (!p) return q4x_fail(err, Q4X_E_NOMEM, "taps: no memory for %zu bytes of a full tensor", need);
        tn->full = p;
        tn->full_cap = need;
    }
    if (need) memcpy(tn->full + row * (size_t)ev->row0, ev->data, row * (size_t)ev->nrows); /* a state may be empty */
    tn->rec.full = tn->full;
    return 0;
}

int q4x_tap_band_wanted(const q4x_tapset *t, int32_t node) {
    if (node >= t->nplan) return 0; /* a state's comes from the op that makes it */
    const k_op_info *op = &k_ops[t->plan->node[node].op];
    if (!op->band) return 0;
    return t->o.bands || t->tap[node].gather;
}

void q4x_tap_count_nonfinite(q4x_stats *s, const float *x, int64_t n) {
    uint64_t nan = 0, pinf = 0, ninf = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = k_f32_bits(x[i]), a = u & 0x7fffffffu;
        nan += a > 0x7f800000u;
        pinf += u == 0x7f800000u;
        ninf += u == 0xff800000u;
    }
    s->nan += nan;
    s->pinf += pinf;
    s->ninf += ninf;
}

/* Bits, and what is measured, of one tile. */
static int measure(q4x_tapset *t, const q4x_node_event *ev, int is_ids, q4x_err *err) {
    q4x_tap_node *tn = &t->tap[ev->node];
    const int whole = ev->nrows == ev->total, threads = q4x_run_threads(t->run);
    const size_t bytes = (size_t)ev->nrows * (size_t)ev->cols * 4;
    int rc, dirty = 1;
    if (whole)
        tn->rec.bits = q4x_bits_shared(is_ids ? Q4X_BITS_RAW : Q4X_BITS_F32, ev->data, bytes, threads, &dirty);
    else if ((rc = q4x_bits_add(tn->bits, ev->data, bytes)))
        return q4x_fail(err, rc, "taps: out of memory");
    if (q4x_tap_measured(t, ev->node, is_ids))
        q4x_tapstat_rows(whole ? t->stat : tn->stat, ev->data, ev->nrows, threads);
    else if (!is_ids && dirty)
        q4x_tap_count_nonfinite(&tn->rec.stats, ev->data, ev->nrows * ev->cols);
    return 0;
}

void q4x_tap_bands(q4x_tapset *t, int32_t node, const k_call *call) {
    q4x_tap_node *tn = &t->tap[node];
    if (!q4x_tap_band_wanted(t, node)) return;
    k_band b = {0, 0};
    k_op op = t->plan->node[node].op;
    q4x_tap_node *state = made_by(t, node);
    k_bands_fn both = NULL;
    if (state && k_op_state(op, &both) == K_STATE_MADE)
        both(call, &b, &state->made);
    else
        k_ops[op].band(call, &b);
    tn->hard2 += b.hard2;
    tn->rms2 += b.rms2;
}

/* Take in one tile. */
static int add_tile(q4x_tapset *t, const q4x_node_event *ev, int is_ids, int same, q4x_err *err) {
    q4x_tap_node *tn = &t->tap[ev->node];
    int rc;
    if (same)
        tn->rec.bits = t->tap[t->held].rec.bits;
    else if ((rc = measure(t, ev, is_ids, err)))
        return rc;
    return tn->want && t->o.mode == Q4X_MODE_FULL ? q4x_tap_keep_full(t, ev, is_ids, err) : 0;
}

static int write_rec(q4x_tapset *t, int32_t node, q4x_err *err) {
    return q4x_dumpw_tap(t->w, &t->tap[node].rec, err);
}

static void finish(q4x_tapset *t, const q4x_node_event *ev, int is_ids) {
    q4x_tap_node *tn = &t->tap[ev->node];
    q4x_tap *rec = &tn->rec;
    const int whole = ev->nrows == ev->total;
    if (!whole) rec->bits = q4x_bits_end(tn->bits);
    if (q4x_tap_measured(t, ev->node, is_ids)) {
        q4x_tapstat_end(whole ? t->stat : tn->stat, &rec->stats, &rec->sketch);
        rec->has_stats = rec->has_sketch = 1;
        if (whole) t->held = ev->node;
    } else if (rec->stats.nan + rec->stats.pinf + rec->stats.ninf) {
        rec->stats.n = (uint64_t)(rec->rows * rec->cols);
        rec->stats.min = rec->stats.max = rec->stats.maxabs = NAN;
        rec->has_stats = 1;
    }
    if (q4x_tap_band_wanted(t, ev->node)) {
        rec->has_band = 1;
        rec->band_hard = sqrt(tn->hard2);
        rec->band_rms = sqrt(tn->rms2);
    }
    if (t->o.bands && tn->kind != K_STATE_NONE && !is_ids) { /* a copy is exact: nothing, and no more */
        rec->has_band = 1;
        rec->band_hard = sqrt(tn->made.hard2);
        rec->band_rms = sqrt(tn->made.rms2);
    }
    rec->has_full = tn->want && t->o.mode == Q4X_MODE_FULL;
}

/* Weights of a selection arrive: they go into the ids' record, which was waiting for them. */
static int take_weights(q4x_tapset *t, const q4x_node_event *ev, int32_t ids, q4x_err *err) {
    q4x_tap_node *in = &t->tap[ids];
    const size_t row = (size_t)ev->cols * sizeof(float);
    memcpy(in->rec.sel.weights + (int64_t)ev->row0 * ev->cols, ev->data, row * (size_t)ev->nrows);
    if (!in->pending) return 0;
    in->pending = 0;
    return write_rec(t, ids, err);
}

int q4x_tap_end_tile(q4x_tapset *t, const q4x_node_event *ev, q4x_err *err) {
    const q4x_plan *p = t->plan;
    const q4x_node *n = &p->node[ev->node];
    const int last = ev->row0 + ev->nrows == ev->total;
    int rc;
    if (last) finish(t, ev, n->is_ids);
    if (t->o.controls && (rc = q4x_tap_second_read(t, ev, n->is_ids, err))) return rc;
    if (n->weights_of && !last) return take_weights(t, ev, n->weights_of, err);
    if (!last) return 0;
    if (n->is_ids && n->scores && q4x_tap_has_weights(p, ev->node)) {
        t->tap[ev->node].pending = 1; /* the next node writes it */
        return 0;
    }
    if (n->weights_of && (rc = take_weights(t, ev, n->weights_of, err))) return rc;
    return write_rec(t, ev->node, err);
}

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    q4x_tapset *t = ctx;
    const int is_ids = t->plan->node[ev->node].is_ids, same = q4x_tap_seen_already(t, ev, t->held);
    int rc;
    if (t->dev) return q4x_tapdev_node(t, ev, err);
    if (ev->row0 == 0) {
        q4x_tap_begin_bands(t, ev->node);
        if ((rc = q4x_tap_begin(t, ev, is_ids, same, q4x_run_nforward(t->run), err))) return rc;
    }
    if ((rc = add_tile(t, ev, is_ids, same, err))) return rc;
    q4x_tap_bands(t, ev->node, ev->call);
    if (is_ids && (rc = q4x_tap_selection(t, ev, NULL, err))) return rc;
    if ((rc = q4x_tap_witness(t, ev, err))) return rc;
    return q4x_tap_end_tile(t, ev, err);
}

int q4x_tapset_open(q4x_run *r, const q4x_net *n, const q4x_tap_opts *o, const char *path, json_t *header,
                    q4x_tapset **ret, q4x_err *err) {
    int rc = 0;
    q4x_tapset *t = calloc(1, sizeof *t);
    if (!t) {
        rc = q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory");
        goto done;
    }
    t->run = r;
    t->plan = q4x_run_plan(r);
    t->arm = q4x_run_arm(r);
    t->o = *o;
    t->path = path;
    t->held = -1;
    TRY(q4x_tap_describe(t, err));
    TRY(q4x_tap_choose(t, o, err));
    TRY(q4x_tap_header(t, n, header, err));
    t->stat = q4x_tapstat_new();
    if (!t->stat) {
        rc = q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory");
        goto done;
    }
    if (q4x_run_device(r)) TRY(q4x_tapdev_new(t, &t->dev, err));
    TRY(q4x_dumpw_open(path, header, t->node, t->nnodes, &t->w, err));
    q4x_dumpw_threads(t->w, q4x_run_threads(r));
    q4x_run_on_node(r, on_node, t);
    if (t->dev) q4x_run_before_node(r, q4x_tapdev_before, t);
    q4x_run_hold(r, 1);
    q4x_run_keep_states(r, o->bands || q4x_tap_witness_states(t));
    *ret = t;
done:
    json_decref(header);
    if (rc) q4x_tapset_abort(t);
    return rc;
}

int q4x_tap_state(q4x_tapset *t, const q4x_node_event *ev, int is_ids, int32_t forward, q4x_err *err) {
    int rc = q4x_tap_begin(t, ev, is_ids, 0, forward, err);
    if (rc || (rc = add_tile(t, ev, is_ids, 0, err))) return rc;
    return q4x_tap_end_state(t, ev, is_ids, err);
}

int q4x_tap_end_state(q4x_tapset *t, const q4x_node_event *ev, int is_ids, q4x_err *err) {
    int rc;
    finish(t, ev, is_ids);
    if (t->o.controls && (rc = q4x_tap_second_read(t, ev, is_ids, err))) return rc;
    return write_rec(t, ev->node, err);
}

q4x_node_event q4x_tap_state_event(const q4x_tapset *t, int32_t s, int64_t rows, int64_t cols) {
    const q4x_state_desc *sd = &t->plan->state[t->state[s]];
    const int by_head = q4x_tap_by_head(sd);
    const int32_t n = by_head ? sd->heads.nv : (int32_t)rows;
    return (q4x_node_event){.node = t->nplan + s, .nrows = n, .total = n, .cols = by_head ? rows / n * cols : cols};
}

/* The state records, as they stand after the forward. */
static int write_states(q4x_tapset *t, q4x_err *err) {
    const q4x_plan *p = t->plan;
    const int32_t forward = q4x_run_nforward(t->run) - 1; /* which is over */
    int rc = 0;
    for (int32_t s = 0; s < t->nnodes - t->nplan && !rc; s++) {
        const q4x_state_desc *sd = &p->state[t->state[s]];
        const int there = t->dev && !sd->is_ids;
        const k_state *here = NULL;
        if (!there && (rc = q4x_run_state(t->run, t->state[s], &here, err))) break;
        const k_state st = there ? q4x_run_state_there(t->run, t->state[s]) : *here;
        q4x_node_event ev = q4x_tap_state_event(t, s, st.rows, st.cols);
        if (!there) ev.data = st.f;
        if (t->dev)
            rc = q4x_tapdev_state(t, &ev, there ? st.f : NULL, forward, err);
        else
            rc = q4x_tap_state(t, &ev, sd->is_ids, forward, err);
    }
    if (t->dev && !rc) rc = q4x_tapdev_end(t, err);
    return rc;
}

/* prefix' = XXH3-128 of (prefix, position, ids). */
static void roll_prefix(q4x_tapset *t, const int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        uint8_t b[24];
        uint32_t pos = (uint32_t)(t->pos + i), id = (uint32_t)ids[i];
        memcpy(b, t->prefix.b, 16);
        for (int k = 0; k < 4; k++) {
            b[16 + k] = (uint8_t)(pos >> 8 * k);
            b[20 + k] = (uint8_t)(id >> 8 * k);
        }
        t->prefix = q4x_xxh128(b, sizeof b);
    }
    t->pos += n;
}

int q4x_tapset_forward(q4x_tapset *t, const int32_t *ids, int32_t n, int forced, int32_t sampled, q4x_err *err) {
    int rc = write_states(t, err);
    if (rc) return rc;
    q4x_forward f = {.index = q4x_run_nforward(t->run) - 1,
                     .n_ids = n,
                     .ids = (int32_t *)(uintptr_t)ids,
                     .pos0 = t->pos,
                     .forced = forced,
                     .sampled = sampled,
                     .vocab = t->plan->d.V};
    roll_prefix(t, ids, n);
    f.prefix = t->prefix;
    f.logits = (float *)(uintptr_t)q4x_run_logits(t->run, &f.n_logits);
    q4x_run_choose(t->run, f.top_id, f.top_val);
    if ((rc = q4x_tap_witness_choice(t, err))) return rc;
    if (t->o.controls && (rc = q4x_tap_keep_choice(t, sampled, err))) return rc;
    q4x_run_keep_states(t->run, t->o.bands || q4x_tap_witness_states(t));
    return q4x_dumpw_forward(t->w, &f, err);
}

static void tapset_free(q4x_tapset *t) {
    if (t->run) {
        q4x_run_on_node(t->run, NULL, NULL);
        q4x_run_before_node(t->run, NULL, NULL);
        q4x_run_hold(t->run, 0);
        q4x_run_keep_states(t->run, 0);
    }
    q4x_tapdev_free(t->dev);
    for (int32_t i = 0; t->tap && i < t->nnodes; i++) {
        q4x_tap_node *tn = &t->tap[i];
        q4x_bits_free(tn->bits);
        q4x_bits_free(tn->second);
        q4x_tapstat_free(tn->stat);
        free(tn->full);
        free(tn->rec.sel.ids);
        free(tn->rec.sel.weights);
        free(tn->rec.sel.lo);
        free(tn->rec.sel.hi);
    }
    free(t->tap);
    free(t->mark);
    free(t->again);
    free(t->again_state.f);
    free(t->choice);
    q4x_bits_free(t->second);
    q4x_tapstat_free(t->stat);
    q4x_tap_undescribe(t);
    free(t);
}

int q4x_tapset_close(q4x_tapset *t, q4x_hash *ret_content, q4x_err *err) {
    json_t *tail = q4x_tap_tail(t);
    int rc = tail ? q4x_dumpw_tail(t->w, tail, err) : q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory for the tail");
    json_decref(tail);
    if (rc)
        q4x_dumpw_abort(t->w);
    else
        rc = q4x_dumpw_close(t->w, ret_content, err);
    tapset_free(t);
    return rc;
}

void q4x_tapset_cut(q4x_tapset *t, q4x_err *err) {
    int32_t whole = 0;
    q4x_err why = {0};
    if (q4x_dumpw_cut(t->w, err->msg, &whole, &why))
        q4x_err_prefix(err, "%s; after", why.msg);
    else if (whole)
        q4x_err_prefix(err, "%s: cut behind %d whole forward%s", q4x_tail(t->path), whole, whole == 1 ? "" : "s");
    tapset_free(t);
}

void q4x_tapset_abort(q4x_tapset *t) {
    if (!t) return;
    q4x_dumpw_abort(t->w);
    tapset_free(t);
}
