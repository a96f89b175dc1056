/* run_dev.c: a forward on a device: one node of the plan after the other, and what comes back. */
#include <string.h>

#include "kernels/ops.h"
#include "lib/ahead.h"
#include "lib/arena.h"
#include "lib/run_dev_int.h"

k_dev *q4x_run_device(q4x_run *r) {
    return r->dev ? &r->dev->dev : NULL;
}

/* ---- states ---- */

void q4x_run_dev_reset(q4x_run *r) {
    q4x_run_dev *d = r->dev;
    int code = 0;
    for (int32_t i = 0; i < r->plan->nstates; i++) {
        k_state *st = &d->st[i];
        st->rows = r->st[i].rows;
        d->rows_here[i] = st->rows; /* nothing is everywhere */
        if (!st->f || r->plan->state[i].rows_kind != Q4X_ROWS_FIXED) continue;
        int e = k_dev_zero(&d->dev, st->f, (size_t)(st->cap * st->cols) * sizeof(float));
        if (e) code = e;
    }
    d->failed = code;
}

/* Enqueued: rows 0 .. to of state i are here. */
static int fetch_state(const q4x_run *r, int32_t i, int64_t to) {
    const k_state *there = &r->dev->st[i];
    const int64_t from = r->dev->rows_here[i], at = from * there->cols;
    if (!there->f || to <= from) return 0;
    int code =
        k_dev_get(&r->dev->dev, r->st[i].f + at, there->f + at, (size_t)((to - from) * there->cols) * sizeof(float));
    if (!code) r->dev->rows_here[i] = to;
    return code;
}

int q4x_run_dev_state(const q4x_run *r, int32_t i, q4x_err *err) {
    q4x_run_dev *d = r->dev;
    if (!d->failed && d->st[i].f && d->rows_here[i] < r->st[i].rows) {
        const int code = fetch_state(r, i, r->st[i].rows);
        d->failed = code ? code : k_dev_wait(&d->dev);
    }
    if (!d->failed) return 0;
    return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: state %s: %s; run again, or use --device cpu",
                    r->arm.device_index, r->plan->state[i].name, k_dev_text(d->failed));
}

k_state q4x_run_state_there(const q4x_run *r, int32_t i) {
    k_state st = r->dev->st[i];
    st.rows = r->st[i].rows;
    return st;
}

/* ---- forward ---- */

int q4x_run_dev_begin(q4x_run *r, q4x_err *err) {
    if (!r->dev->failed) return 0;
    return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: its states were lost: %s; begin a new run", r->arm.device_index,
                    k_dev_text(r->dev->failed));
}

/* This turn's place, where ids lie first. */
static float *turn_place(const q4x_run_dev *d) {
    return d->places + d->dev.turn % 2 * d->place_n;
}

int q4x_run_dev_tile(q4x_run *r, const int32_t *ids, int32_t t0, int32_t T, int all_logits, q4x_err *err) {
    q4x_run_dev *d = r->dev;
    d->tile_ids = ids;
    d->logits_at = all_logits ? (int64_t)t0 * r->plan->d.V : 0;
    d->at = -1;
    d->tile++;
    int code = k_dev_mark(&d->dev, q4x_run_dev_mark(d, 0));
    if (!code) code = k_dev_turn(&d->dev);
    if (code) return q4x_run_dev_failed_in(r, code, err);
    memcpy(turn_place(d), ids, (size_t)T * sizeof *ids);
    code = k_dev_put(&d->dev, d->ids, turn_place(d), (size_t)T * sizeof *ids);
    if (code) return q4x_run_dev_failed_in(r, code, err);
    q4x_read_ahead(q4x_net_model(r->net), r->plan, r->st, ids, T);
    return 0;
}

int q4x_run_dev_end(q4x_run *r, q4x_err *err) {
    int code = k_dev_wait(&r->dev->dev);
    return code ? q4x_run_dev_failed_in(r, code, err) : 0;
}

/* Rows of a state when all of this tile is in it. */
static int64_t rows_after(const q4x_run *r, int32_t state, const k_call *c) {
    switch (r->plan->state[state].rows_kind) {
    case Q4X_ROWS_FIXED: return r->st[state].rows;
    case Q4X_ROWS_BLOCK: return (c->pos0 + c->T) / r->plan->d.ratio;
    default: return c->pos0 + c->T;
    }
}

/* The states of node i have changed: those of fixed rows all over, others from this tile on. */
static void forget_changed(const q4x_run *r, int32_t i, const k_call *c) {
    const q4x_node *n = &r->plan->node[i];
    for (int32_t k = 0; k < n->nst; k++) {
        const q4x_rows_kind kind = r->plan->state[n->st[k]].rows_kind;
        int64_t *here = &r->dev->rows_here[n->st[k]];
        const int64_t same = kind == Q4X_ROWS_FIXED ? 0 : kind == Q4X_ROWS_BLOCK ? c->pos0 / r->plan->d.ratio : c->pos0;
        if (*here > same) *here = same;
    }
}

static size_t out_bytes(const k_call *c) {
    return (size_t)c->T * (size_t)c->cols * sizeof(float);
}

/* An op that the device has not: here, while the device is at work on what was enqueued before; then its output goes
 * there, if anyone reads it there, ahead of the ops. Where hooks look or plants act all have it, in the order of the
 * nodes: what measures there may still read what lay there. */
static int step_on_host(q4x_run *r, int32_t i, const k_call *c, q4x_err *err) {
    q4x_run_dev *d = r->dev;
    const int seen = r->fn || r->plants;
    float *from = turn_place(d) + (d->place_n - d->host_n) + (c->out - r->arena) - (r->arena_n - d->host_n);
    k_call x = *c;
    int code = 0;
    if (!seen && d->wanted_there[i]) x.out = from;
    k_ops[r->plan->node[i].op].cpu(&x);
    d->made_here[i] = x.out == c->out;
    d->at = i;
    if (seen) {
        memcpy(from, c->out, out_bytes(c));
        code = k_dev_put(&d->dev, q4x_run_dev_out(r, i, c->out), from, out_bytes(c));
    } else if (d->wanted_there[i]) {
        code = k_dev_put_ahead(&d->dev, q4x_run_dev_out(r, i, c->out), from, out_bytes(c));
    }
    if (!code) code = k_dev_mark(&d->dev, q4x_run_dev_mark(d, i + 1));
    return code ? q4x_run_dev_failed_in(r, code, err) : 0;
}

int q4x_run_dev_operands(q4x_run *r, int32_t i, const k_call *c, q4x_err *err) {
    const q4x_node *n = &r->plan->node[i];
    q4x_run_dev *d = r->dev;
    int code = 0, fetched = 0;
    for (int32_t k = 0; k < n->nin && !code; k++) {
        if (n->in[k] == Q4X_IN_IDS || d->made_here[q4x_arena_owner(r->plan, n->in[k])]) continue;
        code = k_dev_get(&d->dev, (float *)(uintptr_t)c->in[k], q4x_run_there(r, c->in[k]),
                         (size_t)c->T * (size_t)c->in_cols[k] * sizeof(float));
        fetched = 1;
    }
    for (int32_t k = 0; k < n->nst && !code; k++) {
        fetched |= d->rows_here[n->st[k]] < r->st[n->st[k]].rows;
        code = fetch_state(r, n->st[k], r->st[n->st[k]].rows);
    }
    if (!code && fetched) code = k_dev_wait(&d->dev);
    return code ? q4x_run_dev_failed_in(r, code, err) : 0;
}

int q4x_run_dev_step(q4x_run *r, int32_t i, const k_call *c, int here, q4x_err *err) {
    const q4x_node *n = &r->plan->node[i];
    q4x_run_dev *d = r->dev;
    k_state st[K_MAXST];
    if (n->op == K_OP_alias && (!here || d->made_here[q4x_arena_owner(r->plan, i)])) return 0;
    if (k_dev_on_host((int32_t)n->op)) return step_on_host(r, i, c, err);
    int code = 0;
    if (n->op != K_OP_alias) {
        const k_call x = q4x_run_dev_call(r, i, c, st);
        d->at = i;
        const char *why = q4x_run_dev_misfit(r, i, &x);
        if (why)
            return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: node %s, forward %d: not run: %s", r->arm.device_index,
                            n->name, r->nforward, why);
        code = k_dev_run_fit(&d->dev, n->op, &x);
        for (int32_t k = 0; k < n->nst; k++) d->st[n->st[k]].rows = r->st[n->st[k]].rows = st[k].rows;
        forget_changed(r, i, c);
        if (!code) code = k_dev_mark(&d->dev, q4x_run_dev_mark(d, i + 1));
    }
    d->made_here[q4x_arena_owner(r->plan, i)] = (char)here;
    if (!code && (here || i == r->plan->logits))
        code = k_dev_get(&d->dev, c->out, q4x_run_there(r, c->out), out_bytes(c));
    for (int32_t k = 0; k < n->nst && here && !code; k++) code = fetch_state(r, n->st[k], rows_after(r, n->st[k], c));
    if (!code && here) code = k_dev_wait(&d->dev);
    return code ? q4x_run_dev_failed_in(r, code, err) : 0;
}

int q4x_run_dev_changed(q4x_run *r, int32_t i, const k_call *c, q4x_err *err) {
    int code = k_dev_put(&r->dev->dev, q4x_run_dev_out(r, i, c->out), c->out, out_bytes(c));
    if (!code) code = k_dev_wait(&r->dev->dev);
    return code ? q4x_run_dev_failed_in(r, code, err) : 0;
}

int q4x_run_dev_kept(q4x_run *r, int32_t i, q4x_err *err) {
    const int32_t s = r->plan->node[i].st[0];
    const k_state *here = &r->st[s];
    int code = k_dev_put(&r->dev->dev, r->dev->st[s].f, here->f, (size_t)(here->rows * here->cols) * sizeof(float));
    if (!code) code = k_dev_wait(&r->dev->dev);
    return code ? q4x_run_dev_failed_in(r, code, err) : 0;
}
