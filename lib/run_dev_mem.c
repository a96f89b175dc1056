/* run_dev_mem.c: what a run has on its device: opened, counted before it is asked for, allocated, given back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/matmul.h"
#include "lib/amount.h"
#include "lib/arena.h"
#include "lib/need.h"
#include "lib/run_dev_int.h"

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
    return code ? q4x_run_dev_refused(r, code, "cannot be opened", err) : 0;
}

static int32_t rows_of_a_pass(const q4x_run *r) {
    return r->tile < r->n_ctx ? r->tile : (int32_t)r->n_ctx;
}

/* n floats of the host, which copies need not wait for. */
static int pin(const q4x_run *r, int64_t n, const char *what, float **ret, q4x_err *err) {
    void *p = NULL;
    const int code = k_dev_pinned(&r->dev->dev, (size_t)n * sizeof(float), &p);
    *ret = p;
    if (!code) return 0;
    return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: no %s of pinned memory of the host for %s: %s",
                    r->arm.device_index, q4x_amount(4 * (uint64_t)n).s, what, k_dev_text(code));
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

/* Bytes that a run is about to take of its device, part by part. */
typedef struct {
    uint64_t weights; /* 0: they are there */
    uint64_t states, arena, scratch, logits, library, taps;
} parts;

static uint64_t sum(const parts *p) {
    return p->weights + p->states + p->arena + p->scratch + p->logits + p->library + p->taps;
}

static int parts_of(const q4x_run *r, const q4x_arena_device *s, uint64_t library, parts *ret, q4x_err *err) {
    *ret = (parts){.states = 4 * (uint64_t)s->states,
                   .arena = 4 * (uint64_t)s->arena,
                   .scratch = 4 * (uint64_t)(s->scratch + s->ids),
                   .logits = 4 * (uint64_t)s->logits,
                   .library = library,
                   .taps = r->taps};
    return q4x_net_dev_has(r->net, r->arm.device_index) ? 0 : q4x_net_dev_bytes(r->net, &ret->weights, err);
}

static void add_word(char *buf, size_t size, int helps, const char *word) {
    const size_t n = strlen(buf);
    if (helps) snprintf(buf + n, size - n, "%s, ", word);
}

/* What would make it fit by itself, so that nobody shortens a prompt for weights that are too large. room: what there
 * is for all parts. */
static void remedies(const q4x_run *r, const parts *p, uint64_t room, char *buf, size_t size) {
    const uint64_t row = sizeof(float) * (uint64_t)r->plan->d.V;
    q4x_need one;
    parts q = *p;
    buf[0] = 0;
    if (!q4x_need_of(r->net, 1, 1, 0, &one, NULL)) {
        q.states = one.states, q.arena = one.arena, q.scratch = one.scratch, q.logits = one.logits;
        add_word(buf, size, sum(&q) <= room, "a shorter prompt or fewer ids");
    }
    add_word(buf, size, r->all_logits && sum(p) - p->logits + row <= room, "the last logit row");
    add_word(buf, size, p->library && sum(p) - p->library <= room, "gemm=own");
    add_word(buf, size, p->taps && sum(p) - p->taps <= room, "fewer taps (--node, --mode hash)");
}

static void name_parts(const q4x_run *r, const parts *p, char *buf, size_t size) {
    const struct {
        const char *name;
        uint64_t bytes;
    } more[] = {{"cuBLAS", p->library}, {"taps", p->taps}};
    int n = snprintf(buf, size, "weights %s, states of %lld positions %s, activations %s, scratch %s, logits %s",
                     q4x_amount(p->weights).s, (long long)r->n_ctx, q4x_amount(p->states).s, q4x_amount(p->arena).s,
                     q4x_amount(p->scratch).s, q4x_amount(p->logits).s);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (more[i].bytes && n > 0 && (size_t)n < size)
            n += snprintf(buf + n, size - (size_t)n, ", %s %s", more[i].name, q4x_amount(more[i].bytes).s);
}

/* Told before the weights are moved, with all numbers. taken: what the library has of its part already. */
static int check_room(const q4x_run *r, const q4x_arena_device *s, uint64_t library, uint64_t taken, q4x_err *err) {
    uint64_t there, total;
    char named[240], helps[120];
    parts p;
    int rc = parts_of(r, s, library, &p, err);
    if (rc) return rc;
    const int code = k_dev_memory(&r->dev->dev, &there, &total);
    if (code) return q4x_run_dev_refused(r, code, "does not say how much memory it has", err);
    const uint64_t room = there + taken;
    if (sum(&p) <= room) return 0;
    name_parts(r, &p, named, sizeof named);
    remedies(r, &p, room, helps, sizeof helps);
    return q4x_fail(err, Q4X_E_DEVICE,
                    "device cuda/%d: %s are needed (%s), %s more than the %s of %s that are free%s; use %sa smaller "
                    "model or --device cpu",
                    r->arm.device_index, q4x_amount(sum(&p)).s, named, q4x_amount(sum(&p) - room).s, q4x_amount(room).s,
                    q4x_amount(total).s, p.weights > room ? ", the weights alone do not fit" : "", helps);
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

/* Room for so many rows of logits in pinned memory of the host, where they are copied to; what is here is lost. */
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
    if (code) return q4x_dev_no_room(&d->dev, "activations and states", bytes, code, err);
    code = k_dev_zero(&d->dev, d->block, bytes);
    return code ? q4x_run_dev_refused(r, code, "memory of the run cannot be cleared", err) : 0;
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
