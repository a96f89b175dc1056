#include "lib/need.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/matmul.h"
#include "kernels/ops.h"
#include "lib/arena.h"
#include "lib/net_dev.h"
#include "lib/tapstat.h"

const char *const q4x_need_states[Q4X_NEED_STATES] = {"kv", "indexer", "conv", "delta", "ngram"};

/* ---- weights ---- */

/* A tensor, by where its data lie. */
typedef struct {
    const q4x_tensor *t;
    int64_t at;           /* in file order */
    int mapped, gathered; /* read by a node as a matrix; row by row */
} place;

static int by_data(const void *a, const void *b) {
    const char *x = ((const place *)a)->t->data, *y = ((const place *)b)->t->data;
    return (x > y) - (x < y);
}

/* The tensor that these bytes lie in; NULL: none. */
static place *find(place *u, int64_t n, const void *data) {
    int64_t lo = 0, hi = n;
    while (lo < hi) { /* the first behind data */
        int64_t mid = lo + (hi - lo) / 2;
        if ((const char *)u[mid].t->data <= (const char *)data)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (!lo || (const char *)data >= (const char *)u[lo - 1].t->data + u[lo - 1].t->bytes) return NULL;
    return &u[lo - 1];
}

static int gathers(k_op op) {
    return op == K_OP_embed || op == K_OP_ple_gather;
}

static void read_plan(const q4x_plan *p, place *u, int64_t n) {
    for (int32_t i = 0; i < p->nnodes; i++)
        for (int k = 0; k < K_MAXW; k++)
            for (int32_t j = 0; j < p->node[i].nw[k]; j++) {
                place *x = find(u, n, p->node[i].w[k][j].data);
                if (x) *(gathers(p->node[i].op) ? &x->gathered : &x->mapped) = 1;
            }
}

static q4x_tensor_class class_of(const q4x_net *n, const q4x_tensor *t) {
    return q4x_tensor_class_of(t->name, q4x_net_dims(n)->L);
}

/* What is in no node is a vector, but for parts that are not run and a head that stands beside a tied embedding. */
static q4x_use use_of(const place *x, q4x_tensor_class c) {
    if (x->mapped) return Q4X_USE_MAPPED;
    if (x->gathered) return Q4X_USE_ROWS;
    return c == Q4X_TC_PREDICTION || c == Q4X_TC_VISION || c == Q4X_TC_HEAD ? Q4X_USE_NOT_RUN : Q4X_USE_COPIED;
}

const char *q4x_use_name(q4x_use u) {
    static const char *const names[] = {"mapped", "rows", "copied", "not run"};
    return names[u];
}

int q4x_need_uses(const q4x_net *n, q4x_use **ret, q4x_err *err) {
    const q4x_model *m = q4x_net_model(n);
    const int64_t nt = q4x_model_ntensors(m);
    const size_t room = (size_t)(nt ? nt : 1);
    int rc = 0;
    place *x = calloc(room, sizeof *x);
    q4x_use *u = calloc(room, sizeof *u);
    if (!x || !u) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory to look at %lld tensors", (long long)nt));
    for (int64_t i = 0; i < nt; i++) x[i] = (place){.t = q4x_model_tensor(m, i), .at = i};
    qsort(x, (size_t)nt, sizeof *x, by_data);
    read_plan(q4x_net_plan(n), x, nt);
    for (int64_t i = 0; i < nt; i++) u[x[i].at] = use_of(&x[i], class_of(n, x[i].t));
    *ret = u;
    u = NULL;
done:
    free(u);
    free(x);
    return rc;
}

static void add_class(q4x_need_class *k, const q4x_tensor *t, q4x_use u) {
    k->tensors++;
    switch (u) {
    case Q4X_USE_MAPPED: k->mapped += t->bytes; break;
    case Q4X_USE_ROWS: k->gathered += t->bytes; break;
    case Q4X_USE_COPIED: k->copied += q4x_tensor_elements(t) * (t->type == K_T_I64 ? 8 : 4); break;
    default: k->unused += t->bytes; break;
    }
}

/* What one token reads: a row of each gathering node and head of the hash, of experts those that are chosen. */
static uint64_t token_bytes(const q4x_need *d, const q4x_plan *p) {
    uint64_t sum = 0;
    for (int c = 0; c < Q4X_TC_COUNT; c++) {
        if (c == Q4X_TC_EXPERTS && p->d.E)
            sum += d->cls[c].mapped / (uint64_t)p->d.E * (uint64_t)p->d.K;
        else
            sum += d->cls[c].mapped;
    }
    for (int32_t i = 0; i < p->nnodes; i++)
        if (gathers(p->node[i].op))
            sum += p->node[i].w[0][0].row_bytes * (uint64_t)(p->node[i].op == K_OP_embed ? 1 : p->d.P);
    return sum;
}

static int weights(const q4x_net *n, q4x_need *d, q4x_err *err) {
    const q4x_model *m = q4x_net_model(n);
    q4x_use *u = NULL;
    int rc = q4x_need_uses(n, &u, err);
    if (rc) return rc;
    for (int64_t i = 0; i < q4x_model_ntensors(m); i++) {
        const q4x_tensor *t = q4x_model_tensor(m, i);
        add_class(&d->cls[class_of(n, t)], t, u[i]);
    }
    free(u);
    d->token = token_bytes(d, q4x_net_plan(n));
    return 0;
}

/* ---- states ---- */

static q4x_need_state state_kind(const char *name) {
    static const struct {
        const char *word;
        q4x_need_state kind;
    } words[] = {{".state.k", Q4X_NEED_KV},         {".state.v", Q4X_NEED_KV},        {".state.idx", Q4X_NEED_INDEXER},
                 {".state.pool", Q4X_NEED_INDEXER}, {".state.delta", Q4X_NEED_DELTA}, {".state.conv", Q4X_NEED_CONV}};
    const char *s = strstr(name, ".state.");
    for (size_t i = 0; s && i < sizeof words / sizeof *words; i++)
        if (!strcmp(s, words[i].word)) return words[i].kind;
    return Q4X_NEED_NGRAM;
}

static int states(const q4x_plan *p, q4x_need *d, q4x_err *err) {
    for (int32_t i = 0; i < p->nstates; i++) {
        const q4x_state_desc *s = &p->state[i];
        uint64_t bytes;
        if (__builtin_mul_overflow((uint64_t)q4x_state_rows(p, s, d->n_ctx), (uint64_t)s->cols * sizeof(float), &bytes))
            return q4x_fail(err, Q4X_E_NOMEM, "state %s: too large; use a smaller context", s->name);
        if (d->cuda) bytes = (uint64_t)q4x_arena_device_state(p, s, d->n_ctx) * sizeof(float);
        d->state[state_kind(s->name)] += bytes;
        d->states += bytes;
    }
    return 0;
}

/* ---- activations ---- */

static int arena(const q4x_plan *p, q4x_need *d, q4x_err *err) {
    int64_t *off = calloc((size_t)p->nnodes, sizeof *off);
    if (!off) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the layout of %d nodes", p->nnodes);
    int64_t n = q4x_arena_fit(p, d->cuda, 0, d->n_ctx, off, &d->tile, err);
    const int32_t rows = d->tile < d->n_ctx ? d->tile : (int32_t)d->n_ctx;
    if (n > 0 && d->cuda) n = q4x_arena_ahead(p, rows, n, off);
    free(off);
    if (n < 0) return (int)n;
    d->arena = (uint64_t)n * sizeof(float);
    d->logits = (uint64_t)p->d.V * sizeof(float);
    d->logits_all = d->logits * (uint64_t)d->n_ctx;
    if (d->cuda) {
        const q4x_arena_device s = q4x_arena_on_device(p, n, d->tile, d->n_ctx, 0),
                               all = q4x_arena_on_device(p, n, d->tile, d->n_ctx, 1);
        d->arena = (uint64_t)s.arena * sizeof(float);
        d->scratch = (uint64_t)(s.scratch + s.ids) * sizeof(float);
        d->logits = (uint64_t)s.logits * sizeof(float);
        d->logits_all = (uint64_t)all.logits * sizeof(float);
        d->pinned = (uint64_t)s.pinned * sizeof(float);
        d->pinned_all = (uint64_t)all.pinned * sizeof(float);
        d->library = K_GEMM_ROOM;
    } else {
        d->scratch = (uint64_t)k_scratch_floats(&p->d, d->tile, d->n_ctx) * sizeof(float) * (uint64_t)d->threads;
    }
    d->tile = rows; /* there are no more */
    return 0;
}

static int taps(const q4x_plan *p, q4x_need *d, q4x_err *err) {
    int rc = 0;
    for (int32_t i = 0; i < p->nnodes; i++) {
        if (!p->node[i].is_public) continue;
        uint64_t cols = (uint64_t)q4x_node_cols(p, i, 1);
        d->tap_full += cols * sizeof(float);
        d->tap_sketch += cols <= Q4X_SKETCH_RAW ? cols * sizeof(float) : 256 * sizeof(double);
    }
    for (int mode = 0; mode <= Q4X_MODE_FULL && d->cuda && !rc; mode++) {
        const q4x_tap_opts o = {.mode = (q4x_mode)mode};
        rc = q4x_tap_memory_of(p, &o, d->n_ctx, d->tile, &d->tap[mode], err);
    }
    return rc;
}

static int sums(const q4x_net *n, q4x_need *d, q4x_err *err) {
    uint64_t mapped = 0, copied = 0;
    for (int c = 0; c < Q4X_TC_COUNT; c++) {
        mapped += d->cls[c].mapped;
        copied += d->cls[c].copied;
    }
    d->weights = mapped;
    int rc = d->cuda ? q4x_net_dev_bytes(n, &d->weights, err) : 0;
    d->own = (d->cuda ? d->weights : copied) + d->states + d->arena + d->logits + d->scratch;
    return rc;
}

int q4x_need_of(const q4x_net *n, int cuda, int64_t n_ctx, int threads, q4x_need *ret, q4x_err *err) {
    const q4x_plan *p = q4x_net_plan(n);
    q4x_need d = {.cuda = cuda, .n_ctx = n_ctx, .threads = cuda ? 0 : threads ? threads : q4x_run_default_threads()};
    int rc = 0;
    if (n_ctx < 1 || n_ctx > p->ctx_max)
        return q4x_fail(err, Q4X_E_ARG, "context: %lld positions, expected 1 to the model's %lld", (long long)n_ctx,
                        (long long)p->ctx_max);
    TRY(weights(n, &d, err));
    TRY(states(p, &d, err));
    TRY(arena(p, &d, err));
    TRY(taps(p, &d, err));
    TRY(sums(n, &d, err));
    d.least = d.own;
    if (n_ctx > 1) {
        q4x_need one;
        TRY(q4x_need_of(n, cuda, 1, threads, &one, err));
        d.least = one.own;
    }
    *ret = d;
done:
    return rc;
}
