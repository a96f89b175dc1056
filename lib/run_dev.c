/* run_dev.c: the device side of a run: its memory there, one node of the plan, what comes back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dev_shape.h"
#include "kernels/matmul.h"
#include "kernels/ops.h"
#include "lib/ahead.h"
#include "lib/arena.h"
#include "lib/net_dev.h"
#include "lib/run_int.h"

struct q4x_run_dev {
    k_dev dev;
    const q4x_net_dev *net;
    float *block;           /* arena, states, scratch, ids */
    int64_t block_n, ids_n; /* all of it; ids */
    char *fit;              /* [nnodes]: its weights were looked at */
    float *arena, *scratch; /* in it */
    int64_t scratch_n;
    k_state *st;             /* [nstates], f in it; those that only the host has: NULL */
    float *logits;           /* rows of a pass */
    int32_t cap_logits;      /* there are so many; r->cap_logits are here */
    int64_t logits_at;       /* floats of r->logits before those that lie there now */
    int32_t *ids;            /* of the tile */
    const int32_t *tile_ids; /* the same on the host */
    float *places;           /* pinned, two: what copies of this turn and of the one before read */
    int64_t place_n;    /* floats of one: ids of a tile, behind them outputs of the host's ops as in the arena's end */
    int64_t host_n;     /* of these outputs */
    char *wanted_there; /* [nnodes]: another op of the device reads the output */
    int64_t *rows_here; /* [nstates] of each state: rows 0 .. that are here as they are there */
    char *made_here;    /* [nnodes]: its last output is here as it is there */
    struct {
        float *there, *here;
        int64_t *off, n;
    } other;          /* the arena that is not in use: outputs held to the end of the next layer, or not */
    int32_t held;     /* 1: in use they are */
    void *held_block; /* where the one that holds them lies on the device */
    int32_t at;       /* the node enqueued last, or being enqueued; -1: none of this tile */
    uint32_t tile;    /* serial number of the tile, for marks */
    int32_t failed;   /* code of a failure that could not be reported */
};

/* ---- errors ---- */

static int refused(const q4x_run *r, int code, const char *what, q4x_err *err) {
    return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: %s: %s", r->arm.device_index, what, k_dev_text(code));
}

/* Marks: the tile's serial number, then how many nodes are done. */
enum { NODE_BITS = 24 };

static uint32_t mark_of(const q4x_run_dev *d, int32_t nodes) {
    return d->tile << NODE_BITS | (uint32_t)nodes;
}

static int32_t nodes_of(uint32_t mark) {
    return (int32_t)(mark & ((1u << NODE_BITS) - 1));
}

/* The first node from i on that makes something; nnodes: none. */
static int32_t next_node(const q4x_plan *p, int32_t i) {
    while (i < p->nnodes && p->node[i].op == K_OP_alias) i++;
    return i;
}

/* "behind node X", X the last of so many. */
static void place(const q4x_plan *p, int32_t nodes, char *text, size_t size) {
    int32_t i = nodes - 1;
    while (i > 0 && p->node[i].op == K_OP_alias) i--;
    if (nodes > 0)
        snprintf(text, size, "behind node %s", p->node[i].name);
    else
        snprintf(text, size, "before node %s", p->node[next_node(p, 0)].name);
}

/* Where a device was when it was lost, as far as its marks tell; a failure is found by whoever asks next, many nodes
 * later. */
static void lost_at(const q4x_run *r, const k_dev_progress *p, char *text, size_t size) {
    const q4x_plan *plan = r->plan;
    const q4x_run_dev *d = r->dev;
    const int32_t done = nodes_of(p->done), i = next_node(plan, done),
                  last = p->done >> NODE_BITS == mark_of(d, 0) >> NODE_BITS ? d->at : plan->nnodes - 1;
    char there[160];
    place(plan, p->measuring ? nodes_of(p->behind) : done, there, sizeof there);
    if (!p->known)
        snprintf(text, size, "node unknown: this driver has no stream marks");
    else if (i > last)
        snprintf(text, size, "%s%s", p->measuring ? "taps " : "", there);
    else if (p->measuring)
        snprintf(text, size, "node %s or taps %s", plan->node[i].name, there);
    else
        snprintf(text, size, "node %s", plan->node[i].name);
}

/* taps: what failed was asked by them. A call that a device refuses which goes on is that of the node at hand. */
static int failed_at(const q4x_run *r, int code, int32_t forward, int taps, q4x_err *err) {
    const q4x_run_dev *d = r->dev;
    const k_dev_progress p = k_dev_reached(&r->dev->dev);
    char text[400], there[160];
    place(r->plan, d->at + 1, there, sizeof there);
    if (!p.lives)
        lost_at(r, &p, text, sizeof text);
    else if (taps || d->at < 0)
        snprintf(text, sizeof text, "%s%s", taps ? "taps " : "", there);
    else
        snprintf(text, sizeof text, "node %s", r->plan->node[d->at].name);
    return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: %s, forward %d: %s", r->arm.device_index, text, forward,
                    k_dev_text(code));
}

int q4x_run_device_failed(const q4x_run *r, int code, int32_t forward, q4x_err *err) {
    return failed_at(r, code, forward, 1, err);
}

static int failed_in(const q4x_run *r, int code, q4x_err *err) {
    return failed_at(r, code, r->nforward, 0, err);
}

/* ---- memory ---- */

/* What a lever needs of a library. */
static int open_library(const q4x_run *r, q4x_err *err) {
    char why[400], text[128];
    for (int i = 0; i < r->arm.nitems; i++) {
        if (!q4x_item_library(&r->arm.item[i])) continue;
        q4x_item_text(&r->arm.item[i], text, sizeof text);
        if (k_dev_gemm(&r->dev->dev, why, sizeof why)) return q4x_fail(err, Q4X_E_DEVICE, "lever %s: %s", text, why);
    }
    return 0;
}

int q4x_run_dev_open(q4x_run *r, q4x_err *err) {
    k_dev_info info;
    r->dev = calloc(1, sizeof *r->dev);
    if (!r->dev) return q4x_fail(err, Q4X_E_NOMEM, "run: out of memory");
    r->dev->at = -1;
    k_dev_query(&info);
    if (!info.count) return q4x_fail(err, Q4X_E_DEVICE, "device cuda: no GPU: %s; use --device cpu", info.reason);
    if (r->arm.device_index >= info.count)
        return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: there %s %d here, from 0 on", r->arm.device_index,
                        info.count == 1 ? "is" : "are", info.count);
    int code = k_dev_open(r->arm.device_index, &r->dev->dev);
    return code ? refused(r, code, "cannot be opened", err) : 0;
}

static int32_t rows_of_a_pass(const q4x_run *r) {
    return r->tile < r->n_ctx ? r->tile : (int32_t)r->n_ctx;
}

static double mib(uint64_t bytes) {
    return (double)bytes / (1 << 20);
}

/* n floats of the host, which copies need not wait for. */
static int pin(const q4x_run *r, int64_t n, const char *what, float **ret, q4x_err *err) {
    void *p = NULL;
    const int code = k_dev_pinned(&r->dev->dev, (size_t)n * sizeof(float), &p);
    *ret = p;
    if (!code) return 0;
    return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: no %.1f MiB of pinned memory of the host for %s: %s",
                    r->arm.device_index, mib(4 * (uint64_t)n), what, k_dev_text(code));
}

int q4x_run_dev_arena(q4x_run *r, q4x_err *err) {
    r->arena_n = q4x_arena_ahead(r->plan, rows_of_a_pass(r), r->arena_n, r->off);
    int rc = pin(r, r->arena_n, "activations", &r->arena, err);
    if (!rc) memset(r->arena, 0, (size_t)r->arena_n * sizeof(float));
    return rc;
}

/* Only the host has the history of ids. */
static int on_device(const q4x_run *r, int32_t state) {
    return !r->plan->state[state].is_ids;
}

static q4x_arena_device sizes_of(const q4x_run *r) {
    return q4x_arena_on_device(r->plan, r->arena_n, r->tile, r->n_ctx, r->all_logits);
}

void q4x_run_dev_memory(const q4x_run *r, uint64_t *arena, uint64_t *state, uint64_t *scratch) {
    const q4x_arena_device s = sizes_of(r);
    *arena = 4 * (uint64_t)(s.arena + r->dev->other.n);
    *state = 4 * (uint64_t)s.states;
    *scratch = 4 * (uint64_t)(s.scratch + s.ids);
}

/* Told before the weights are moved, with all numbers. taken: what the library has of its part already. */
static int check_room(const q4x_run *r, const q4x_arena_device *s, uint64_t library, uint64_t taken, q4x_err *err) {
    uint64_t weights = 0, there, total;
    const uint64_t run = 4 * (uint64_t)(s->arena + s->scratch + s->ids), logits = 4 * (uint64_t)s->logits,
                   states = 4 * (uint64_t)s->states;
    char more[64] = "";
    if (!q4x_net_dev_has(r->net, r->arm.device_index)) {
        int rc = q4x_net_dev_bytes(r->net, &weights, err);
        if (rc) return rc;
    }
    const uint64_t all = weights + run + states + logits + library;
    int code = k_dev_memory(&r->dev->dev, &there, &total);
    if (code) return refused(r, code, "does not say how much memory it has", err);
    if (all - taken <= there) return 0;
    if (library) snprintf(more, sizeof more, ", cuBLAS %.1f", mib(library));
    return q4x_fail(err, Q4X_E_DEVICE,
                    "device cuda/%d: %.1f MiB are needed (weights %.1f, states of %lld positions %.1f, activations "
                    "%.1f, logits %.1f%s), %.1f of %.1f are free; use a smaller context, %sa smaller model or --device "
                    "cpu",
                    r->arm.device_index, mib(all), mib(weights), (long long)r->n_ctx, mib(states), mib(run),
                    mib(logits), more, mib(there + taken), mib(total), r->all_logits ? "the last logit row, " : "");
}

/* The library comes behind a first look, so that all is counted, and before another: it takes more than its part. */
static int find_room(q4x_run *r, const q4x_arena_device *s, q4x_err *err) {
    int uses = 0, rc;
    for (int i = 0; i < r->arm.nitems; i++) uses |= q4x_item_library(&r->arm.item[i]);
    if ((rc = check_room(r, s, uses ? K_GEMM_ROOM : 0, 0, err)) || !uses) return rc;
    if ((rc = open_library(r, err))) return rc;
    return check_room(r, s, K_GEMM_ROOM, K_GEMM_ROOM, err);
}

/* The places of the host's ops, and whose output goes there. */
static int make_places(q4x_run *r, const q4x_arena_device *s, q4x_err *err) {
    q4x_run_dev *d = r->dev;
    const q4x_plan *p = r->plan;
    d->host_n = s->host;
    d->place_n = s->ids + s->host;
    for (int32_t i = 0; i < p->nnodes; i++)
        for (int32_t k = 0; k < p->node[i].nin; k++)
            if (p->node[i].in[k] >= 0 && !k_dev_on_host((int32_t)p->node[i].op))
                d->wanted_there[q4x_arena_owner(p, p->node[i].in[k])] = 1;
    return pin(r, 2 * d->place_n, "ids and rows of tables", &d->places, err);
}

/* Room for so many rows of logits on the device; what is there is lost. */
static int logits_there(q4x_run *r, int32_t rows, q4x_err *err) {
    q4x_run_dev *d = r->dev;
    const size_t bytes = (size_t)rows * (size_t)r->plan->d.V * sizeof(float);
    void *p = NULL;
    char what[64];
    if (rows <= d->cap_logits) return 0;
    const int code = k_dev_alloc(&d->dev, bytes, &p);
    snprintf(what, sizeof what, "%d rows of %d logits", rows, r->plan->d.V);
    if (code) return q4x_dev_no_room(&d->dev, what, bytes, code, err);
    k_dev_free(&d->dev, d->logits);
    d->logits = p;
    d->cap_logits = rows;
    return 0;
}

/* And here. */
static int logits_here(q4x_run *r, int32_t rows, q4x_err *err) {
    char what[64];
    float *p;
    if (rows <= r->cap_logits) return 0;
    snprintf(what, sizeof what, "%d rows of %d logits", rows, r->plan->d.V);
    int rc = pin(r, (int64_t)rows * r->plan->d.V, what, &p, err);
    if (rc) return rc;
    k_dev_unpin(&r->dev->dev, r->logits);
    r->logits = p;
    r->cap_logits = rows;
    return 0;
}

int q4x_run_dev_logits(q4x_run *r, int32_t rows, q4x_err *err) {
    const int32_t pass = rows_of_a_pass(r);
    int rc = logits_there(r, rows < pass ? rows : pass, err);
    return rc ? rc : logits_here(r, rows, err);
}

/* Everything but weights and logits, in one block. */
static int make_block(q4x_run *r, const q4x_arena_device *s, q4x_err *err) {
    q4x_run_dev *d = r->dev;
    const size_t bytes = 4 * (size_t)(s->arena + s->states + s->scratch + s->ids);
    void *p = NULL;
    int code = k_dev_alloc(&d->dev, bytes, &p);
    d->block = p;
    if (!code) code = k_dev_zero(&d->dev, d->block, bytes);
    return code ? q4x_dev_no_room(&d->dev, "activations and states", bytes, code, err) : 0;
}

int q4x_run_dev_ready(q4x_run *r, q4x_err *err) {
    q4x_run_dev *d = r->dev;
    const q4x_arena_device s = sizes_of(r);
    int rc = find_room(r, &s, err);
    if (rc || (rc = q4x_net_dev_get(r->net, r->arm.device_index, &d->net, err))) return rc;
    d->st = calloc((size_t)r->plan->nstates + 1, sizeof *d->st);
    d->rows_here = calloc((size_t)r->plan->nstates + 1, sizeof *d->rows_here);
    d->made_here = calloc((size_t)r->plan->nnodes, 1);
    d->wanted_there = calloc((size_t)r->plan->nnodes, 1);
    d->fit = calloc((size_t)r->plan->nnodes, 1);
    if (!d->st || !d->rows_here || !d->made_here || !d->wanted_there || !d->fit)
        return q4x_fail(err, Q4X_E_NOMEM, "run: out of memory for states");
    if ((rc = make_block(r, &s, err)) || (rc = make_places(r, &s, err)) ||
        (rc = logits_there(r, r->all_logits ? rows_of_a_pass(r) : 1, err)) || (rc = logits_here(r, 1, err)))
        return rc;
    d->arena = d->block;
    d->scratch = d->arena + s.arena;
    d->scratch_n = s.scratch;
    d->ids = (int32_t *)(void *)(d->scratch + s.scratch);
    d->ids_n = s.ids;
    d->block_n = s.arena + s.states + s.scratch + s.ids;
    float *at = d->scratch + s.scratch + s.ids;
    for (int32_t i = 0; i < r->plan->nstates; i++) {
        if (!on_device(r, i)) continue;
        d->st[i] = (k_state){.f = at, .cols = r->st[i].cols, .cap = r->st[i].cap};
        at += q4x_arena_device_state(r->plan, &r->plan->state[i], r->n_ctx);
    }
    return 0;
}

void q4x_run_dev_free(q4x_run *r) {
    q4x_run_dev *d = r->dev;
    if (d->dev.stream) k_dev_wait(&d->dev);
    k_dev_free(&d->dev, d->block);
    k_dev_free(&d->dev, d->logits);
    k_dev_free(&d->dev, d->held_block);
    k_dev_unpin(&d->dev, r->arena);
    k_dev_unpin(&d->dev, r->logits);
    k_dev_unpin(&d->dev, d->places);
    k_dev_unpin(&d->dev, d->other.here);
    free(d->other.off);
    k_dev_close(&d->dev);
    free(d->st);
    free(d->rows_here);
    free(d->made_here);
    free(d->wanted_there);
    free(d->fit);
    free(d);
}

/* ---- outputs that stay ---- */

/* A second arena, whose outputs stay to the end of the next layer; without it, when it would take more than half of
 * what is free, all goes on. */
static void make_held(q4x_run *r) {
    q4x_run_dev *d = r->dev;
    q4x_err ignored = {0};
    int64_t *off = calloc((size_t)r->plan->nnodes, sizeof *off);
    const int64_t n = off ? q4x_arena_held_fit(r->plan, r->tile, r->n_ctx, off) : 0;
    uint64_t there = 0, total;
    void *block = NULL;
    if (!n || k_dev_memory(&d->dev, &there, &total) || 4 * (uint64_t)n > there / 2 ||
        k_dev_alloc(&d->dev, 4 * (size_t)n, &block)) {
        free(off);
        return;
    }
    float *here = NULL;
    if (pin(r, n, "activations", &here, &ignored) || k_dev_zero(&d->dev, block, 4 * (size_t)n)) {
        k_dev_unpin(&d->dev, here);
        k_dev_free(&d->dev, block);
        free(off);
        return;
    }
    d->held_block = d->other.there = block;
    d->other.here = here;
    d->other.off = off;
    d->other.n = n;
}

void q4x_run_hold(q4x_run *r, int on) {
    q4x_run_dev *d = r->dev;
    if (!d || d->held == on) return;
    if (!d->other.off) make_held(r);
    if (!d->other.off || k_dev_wait(&d->dev)) return; /* a failure shows in the next forward */
    float *there = d->arena, *here = r->arena;
    int64_t *off = r->off, n = r->arena_n;
    d->arena = d->other.there, r->arena = d->other.here, r->off = d->other.off, r->arena_n = d->other.n;
    d->other.there = there, d->other.here = here, d->other.off = off, d->other.n = n;
    memset(d->made_here, 0, (size_t)r->plan->nnodes);
    d->held = on;
}

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

/* ---- states ---- */

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

void q4x_run_dev_state(const q4x_run *r, int32_t i) {
    q4x_run_dev *d = r->dev;
    if (d->failed || !d->st[i].f || d->rows_here[i] >= r->st[i].rows) return;
    const int code = fetch_state(r, i, r->st[i].rows);
    d->failed = code ? code : k_dev_wait(&d->dev);
}

k_state q4x_run_state_there(const q4x_run *r, int32_t i) {
    k_state st = r->dev->st[i];
    st.rows = r->st[i].rows;
    return st;
}

/* ---- forward ---- */

int q4x_run_dev_begin(q4x_run *r, q4x_err *err) {
    return r->dev->failed ? refused(r, r->dev->failed, "its states were lost", err) : 0;
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
    int code = k_dev_mark(&d->dev, mark_of(d, 0));
    if (!code) code = k_dev_turn(&d->dev);
    if (code) return failed_in(r, code, err);
    memcpy(turn_place(d), ids, (size_t)T * sizeof *ids);
    code = k_dev_put(&d->dev, d->ids, turn_place(d), (size_t)T * sizeof *ids);
    if (code) return failed_in(r, code, err);
    q4x_read_ahead(q4x_net_model(r->net), r->plan, r->st, ids, T);
    return 0;
}

int q4x_run_dev_end(q4x_run *r, q4x_err *err) {
    int code = k_dev_wait(&r->dev->dev);
    return code ? failed_in(r, code, err) : 0;
}

/* Where the device has the output of node i, which is at out here. */
static float *out_there(const q4x_run *r, int32_t i, const float *out) {
    const q4x_run_dev *d = r->dev;
    return i == r->plan->logits ? d->logits + (out - r->logits - d->logits_at) : d->arena + (out - r->arena);
}

k_call q4x_run_dev_call(const q4x_run *r, int32_t i, const k_call *c, k_state st[K_MAXST]) {
    const q4x_node *n = &r->plan->node[i];
    const q4x_run_dev *d = r->dev;
    const q4x_node_dev *w = q4x_net_dev_node(d->net, i);
    k_call x = *c;
    for (int32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == Q4X_IN_IDS)
            x.in_i[k] = d->ids + (c->in_i[k] - d->tile_ids);
        else
            x.in[k] = d->arena + (c->in[k] - r->arena);
    }
    x.out = out_there(r, i, c->out);
    memcpy(x.w, w->w, sizeof x.w);
    memcpy(x.w_dev, w->w_dev, sizeof x.w_dev);
    memcpy(x.par, w->par, sizeof x.par);
    for (int32_t k = 0; k < K_MAXST; k++) {
        x.st[k] = NULL;
        if (k >= n->nst) continue;
        st[k] = d->st[n->st[k]];
        x.st[k] = &st[k];
    }
    x.scratch = d->scratch;
    x.scratch_n = d->scratch_n;
    return x;
}

/* 1 when n floats from p on lie in a buffer of cap floats. */
static int inside(const float *p, int64_t n, const float *buffer, int64_t cap) {
    return p >= buffer && n >= 0 && n <= cap && p - buffer <= cap - n;
}

const void *q4x_run_there(const q4x_run *r, const void *operand) {
    const q4x_run_dev *d = r->dev;
    if (!d) return NULL;
    if (inside(operand, 1, r->arena, r->arena_n)) return d->arena + ((const float *)operand - r->arena);
    if (r->logits && inside(operand, 1, r->logits + d->logits_at, (int64_t)d->cap_logits * r->plan->d.V))
        return d->logits + ((const float *)operand - r->logits - d->logits_at);
    return NULL;
}

k_dev *q4x_run_device(q4x_run *r) {
    return r->dev ? &r->dev->dev : NULL;
}

/* Operands that the run allocated. */
static const char *outside(const q4x_run *r, int32_t i, const k_call *x) {
    const q4x_node *n = &r->plan->node[i];
    const q4x_run_dev *d = r->dev;
    const int64_t made = x->T * x->cols;
    for (int32_t k = 0; k < n->nin; k++)
        if (n->in[k] == Q4X_IN_IDS) {
            if (!inside(x->in[k], x->T, (const float *)(const void *)d->ids, d->ids_n)) return "ids beyond their tile";
        } else if (!inside(x->in[k], x->T * x->in_cols[k], d->arena, r->arena_n)) {
            return "an input beyond the arena";
        }
    if (i == r->plan->logits ? !inside(x->out, made, d->logits, (int64_t)d->cap_logits * r->plan->d.V)
                             : !inside(x->out, made, d->arena, r->arena_n))
        return "an output beyond its buffer";
    for (int32_t k = 0; k < n->nst; k++)
        if (x->st[k]->f && !inside(x->st[k]->f, x->st[k]->cap * x->st[k]->cols, d->block, d->block_n))
            return "a state beyond those of the run";
    return inside(x->scratch, x->scratch_n, d->block, d->block_n) ? NULL : "scratch beyond the run's";
}

/* Parameters, and weights. */
static const char *outside_net(const q4x_run *r, int32_t i, const k_call *x) {
    const k_shape s = k_shape_of(r->plan->node[i].op, x);
    const q4x_net_dev *net = r->dev->net;
    for (int k = 0; k < K_MAXW; k++) {
        if (s.par[k] && !q4x_net_dev_holds(net, x->par[k], (uint64_t)s.par[k] * sizeof(float)))
            return "a parameter beyond those of the model";
        if (x->w_dev[k] && !q4x_net_dev_holds(net, x->w_dev[k], (uint64_t)x->nw[k] * sizeof(k_weight)))
            return "a list of weights beyond those of the model";
        for (int32_t e = 0; x->w[k] && e < x->nw[k]; e++)
            if (!q4x_net_dev_holds(net, x->w[k][e].data, (uint64_t)x->w[k][e].rows * x->w[k][e].row_bytes))
                return "a weight beyond those of the model";
    }
    return NULL;
}

const char *q4x_run_dev_misfit(const q4x_run *r, int32_t i, const k_call *x) {
    const k_op op = r->plan->node[i].op;
    char *fit = &r->dev->fit[i];
    const char *why = *fit ? k_dev_unfit_call(op, x) : k_dev_unfit(op, x);
    if (!why) why = outside(r, i, x);
    if (!why && !*fit) why = outside_net(r, i, x);
    if (!why) *fit = 1;
    return why;
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
        code = k_dev_put(&d->dev, out_there(r, i, c->out), from, out_bytes(c));
    } else if (d->wanted_there[i]) {
        code = k_dev_put_ahead(&d->dev, out_there(r, i, c->out), from, out_bytes(c));
    }
    if (!code) code = k_dev_mark(&d->dev, mark_of(d, i + 1));
    return code ? failed_in(r, code, err) : 0;
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
    return code ? failed_in(r, code, err) : 0;
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
        if (!code) code = k_dev_mark(&d->dev, mark_of(d, i + 1));
    }
    d->made_here[q4x_arena_owner(r->plan, i)] = (char)here;
    if (!code && (here || i == r->plan->logits))
        code = k_dev_get(&d->dev, c->out, q4x_run_there(r, c->out), out_bytes(c));
    for (int32_t k = 0; k < n->nst && here && !code; k++) code = fetch_state(r, n->st[k], rows_after(r, n->st[k], c));
    if (!code && here) code = k_dev_wait(&d->dev);
    return code ? failed_in(r, code, err) : 0;
}

int q4x_run_dev_changed(q4x_run *r, int32_t i, const k_call *c, q4x_err *err) {
    int code = k_dev_put(&r->dev->dev, out_there(r, i, c->out), c->out, out_bytes(c));
    if (!code) code = k_dev_wait(&r->dev->dev);
    return code ? failed_in(r, code, err) : 0;
}

int q4x_run_dev_kept(q4x_run *r, int32_t i, q4x_err *err) {
    const int32_t s = r->plan->node[i].st[0];
    const k_state *here = &r->st[s];
    int code = k_dev_put(&r->dev->dev, r->dev->st[s].f, here->f, (size_t)(here->rows * here->cols) * sizeof(float));
    if (!code) code = k_dev_wait(&r->dev->dev);
    return code ? failed_in(r, code, err) : 0;
}
