#include "lib/run_int.h"

#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/ops.h"
#include "kernels/round.h"
#include "kernels/topk.h"
#include "lib/amount.h"
#include "lib/arena.h"
#include "lib/hash.h"
#include "lib/plant.h"

const q4x_plan *q4x_run_plan(const q4x_run *r) {
    return r->plan;
}
const q4x_arm *q4x_run_arm(const q4x_run *r) {
    return &r->arm;
}
int32_t q4x_run_threads(const q4x_run *r) {
    return r->nth;
}
int q4x_run_planted(const q4x_run *r, int item) {
    return q4x_plants_moved(r->plants, item);
}
int64_t q4x_run_ctx(const q4x_run *r) {
    return r->n_ctx;
}
int32_t q4x_run_tile(const q4x_run *r) {
    return r->tile;
}
int32_t q4x_run_pos(const q4x_run *r) {
    return r->pos;
}
int32_t q4x_run_nforward(const q4x_run *r) {
    return r->nforward;
}
int q4x_run_state(const q4x_run *r, int32_t i, const k_state **ret, q4x_err *err) {
    *ret = &r->st[i];
    return r->dev ? q4x_run_dev_state(r, i, err) : 0;
}

const float *q4x_run_logits(const q4x_run *r, int32_t *ret_rows) {
    *ret_rows = r->n_logits;
    return r->logits;
}

void q4x_run_on_node(q4x_run *r, q4x_node_fn fn, void *ctx) {
    r->fn = fn;
    r->fn_ctx = ctx;
}

void q4x_run_before_node(q4x_run *r, q4x_before_fn fn, void *ctx) {
    r->before_fn = fn;
    r->before_ctx = ctx;
}

void q4x_run_keep_states(q4x_run *r, int on) {
    r->keep = on;
}

void q4x_run_memory(const q4x_run *r, uint64_t *arena, uint64_t *state, uint64_t *scratch) {
    if (r->dev) {
        q4x_run_dev_memory(r, arena, state, scratch);
        return;
    }
    *arena = (uint64_t)r->arena_n * sizeof(float);
    *state = r->st_bytes;
    *scratch = (uint64_t)r->scratch_n * (uint64_t)r->nth * sizeof(float);
}

/* ---- levers ---- */

static int check_item(const q4x_plan *p, const q4x_item *it, q4x_err *err) {
    const q4x_lever *l = &q4x_levers[it->lever];
    int n = 0;
    for (int32_t i = 0; i < p->nnodes; i++) {
        const q4x_node *node = &p->node[i];
        if (it->glob[0] && !q4x_node_match(it->glob, node->name)) continue;
        if (!q4x_plan_reads_lever(p, i, l)) continue;
        int rc = it->plant[0] ? q4x_plant_check(it, node, err) : 0;
        if (rc) return rc;
        n++;
    }
    if (n || it->soft) return 0;
    return q4x_fail(err, Q4X_E_ARG,
                    "lever %s: in scope at no node%s%s that reads it; `q4x levers --json` lists who does", l->name,
                    it->glob[0] ? " matching " : "", it->glob);
}

/* An op gets the levers that levers.def says it reads and no other: what it would read besides, no dump would claim. */
static void resolve(q4x_run *r) {
    for (int32_t i = 0; i < r->plan->nnodes; i++) {
        q4x_arm_resolve(&r->arm, r->plan->node[i].name, r->nforward, &r->lv[i]);
        q4x_plan_keep_levers(r->plan, i, &r->lv[i]);
    }
}

static int check_levers(q4x_run *r, q4x_err *err) {
    for (int i = 0; i < r->arm.nitems; i++) {
        int rc = check_item(r->plan, &r->arm.item[i], err);
        if (rc) return rc;
        if (!r->arm.cuda && q4x_item_library(&r->arm.item[i]))
            return q4x_fail(err, Q4X_E_ARG,
                            "lever %s: the arm's device is cpu, expected cuda: a CPU has its own products alone",
                            q4x_levers[r->arm.item[i].lever].name);
        if (r->arm.item[i].forward >= 0) r->dynamic = 1;
    }
    return 0;
}

/* ---- memory ---- */

static void *zalloc(int64_t n, size_t size) {
    size_t bytes;
    if (n < 1) n = 1;
    if (__builtin_mul_overflow((size_t)n, size, &bytes) || bytes > SIZE_MAX - 63) return NULL;
    bytes = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

static int alloc_states(q4x_run *r, q4x_err *err) {
    r->st = calloc((size_t)r->plan->nstates + 1, sizeof *r->st);
    if (!r->st) return q4x_fail(err, Q4X_E_NOMEM, "run: out of memory for states");
    for (int32_t i = 0; i < r->plan->nstates; i++) {
        const q4x_state_desc *s = &r->plan->state[i];
        k_state *st = &r->st[i];
        int64_t n;
        st->cols = s->cols;
        st->cap = q4x_state_rows(r->plan, s, r->n_ctx);
        /* Not touched before use: a cache costs memory for the positions that were reached. */
        if (__builtin_mul_overflow(st->cap, st->cols, &n) || !(st->f = calloc((size_t)(n > 0 ? n : 1), sizeof(float))))
            return q4x_fail(err, Q4X_E_NOMEM, "state %s: no memory for %lld x %lld values; use a smaller context",
                            s->name, (long long)st->cap, (long long)st->cols);
        r->st_bytes += (uint64_t)n * sizeof(float);
    }
    return 0;
}

static int keeps(const q4x_run *r, int32_t node) {
    return r->keep && r->fn && r->plan->node[node].op == K_OP_gdn_core;
}

/* The copy that hooks are shown, as large as the largest state that is copied into it. */
static int room_for_before(q4x_run *r, q4x_err *err) {
    int64_t n = 0;
    for (int32_t i = 0; i < r->plan->nnodes && !r->before.f; i++) {
        if (!keeps(r, i)) continue;
        const k_state *st = &r->st[r->plan->node[i].st[0]];
        if (st->cap * st->cols > n) n = st->cap * st->cols;
    }
    if (!n) return 0;
    r->before.f = zalloc(n, sizeof(float));
    if (!r->before.f) return q4x_fail(err, Q4X_E_NOMEM, "run: no memory for a copy of %lld state values", (long long)n);
    r->st_bytes += (uint64_t)n * sizeof(float);
    return 0;
}

/* The state before the call also as a copy, where it is kept. */
static void keep_before(q4x_run *r, int32_t node, k_call *c) {
    const k_state *st = c->st[0];
    if (!r->before.f || !st || !keeps(r, node)) return;
    r->before = (k_state){.f = r->before.f, .cols = st->cols, .cap = st->cap, .rows = st->rows};
    memcpy(r->before.f, st->f, (size_t)(st->cap * st->cols) * sizeof(float));
    c->st[1] = &r->before;
}

enum { CHOICE = 3 /* floats of scratch a logit, to choose */ };

static int room_for_scratch(q4x_run *r, int64_t n, const char *remedy, q4x_err *err) {
    if (n <= r->scratch_cap) return 0;
    free(r->scratch);
    r->scratch = zalloc(n, sizeof(float));
    r->scratch_cap = r->scratch ? n : 0;
    if (r->scratch) return 0;
    return q4x_fail(err, Q4X_E_NOMEM, "run: no memory for %s of scratch; %s", q4x_amount(sizeof(float) * (uint64_t)n).s,
                    remedy);
}

/* For ops that run here, all threads together. */
static int room_for_ops(q4x_run *r, q4x_err *err) {
    return room_for_scratch(r, r->scratch_n * r->nth,
                            r->nth > 1 ? "use fewer threads or a smaller context" : "use a smaller context", err);
}

static int alloc_arena(q4x_run *r, q4x_err *err) {
    const q4x_plan *p = r->plan;
    r->off = calloc((size_t)p->nnodes, sizeof *r->off);
    if (!r->off) return q4x_fail(err, Q4X_E_NOMEM, "run: out of memory");
    r->arena_n = q4x_arena_fit(p, r->dev != NULL, r->tile, r->n_ctx, r->off, &r->tile, err);
    if (r->arena_n < 0) return (int)r->arena_n;
    r->scratch_n = k_scratch_floats(&p->d, r->tile, r->n_ctx);
    if (r->dev) {
        int rc = q4x_run_dev_arena(r, err);
        return rc ? rc : room_for_scratch(r, CHOICE * (int64_t)p->d.V, Q4X_MORE_MEMORY, err);
    }
    r->arena = zalloc(r->arena_n, sizeof(float));
    if (!r->arena)
        return q4x_fail(err, Q4X_E_NOMEM, "run: no memory for %s of activations; use a smaller context",
                        q4x_amount(sizeof(float) * (uint64_t)r->arena_n).s);
    return room_for_ops(r, err);
}

int q4x_run_default_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

int q4x_run_new(const q4x_net *n, const q4x_arm *arm, int64_t n_ctx, int32_t tile, q4x_run **ret, q4x_err *err) {
    return q4x_run_new_all(n, arm, n_ctx, tile, 0, 0, ret, err);
}

int q4x_run_new_all(const q4x_net *n, const q4x_arm *arm, int64_t n_ctx, int32_t tile, int all_logits, uint64_t taps,
                    q4x_run **ret, q4x_err *err) {
    int rc = 0;
    const q4x_plan *p = q4x_net_plan(n);
    if (n_ctx < 1 || n_ctx > p->ctx_max)
        return q4x_fail(err, Q4X_E_ARG, "context: %lld positions, expected 1 to the model's %lld", (long long)n_ctx,
                        (long long)p->ctx_max);
    Q4X_BUG_IF(tile < 0 || tile % Q4X_TILE_MIN);
    q4x_run *r = calloc(1, sizeof *r);
    if (!r) return q4x_fail(err, Q4X_E_NOMEM, "run: out of memory");
    r->net = n;
    r->plan = p;
    r->arm = *arm;
    r->n_ctx = n_ctx;
    r->tile = tile;
    r->all_logits = all_logits;
    r->taps = taps;
    r->nth = arm->threads ? arm->threads : q4x_run_default_threads();
    TRY(check_levers(r, err));
    r->lv = calloc((size_t)p->nnodes, sizeof *r->lv);
    if (!r->lv) {
        rc = q4x_fail(err, Q4X_E_NOMEM, "run: out of memory");
        goto done;
    }
    TRY(q4x_plants_new(p, &r->arm, &r->plants, err));
    if (arm->cuda) TRY(q4x_run_dev_open(r, err));
    TRY(alloc_states(r, err));
    TRY(alloc_arena(r, err));
    if (arm->cuda) TRY(q4x_run_dev_ready(r, err));
    resolve(r);
    q4x_run_reset(r);
    *ret = r;
    return 0;
done:
    q4x_run_free(r);
    return rc;
}

void q4x_run_free(q4x_run *r) {
    if (!r) return;
    for (int32_t i = 0; r->st && i < r->plan->nstates; i++) free(r->st[i].f);
    free(r->st);
    free(r->before.f);
    free(r->lv);
    q4x_plants_free(r->plants);
    if (r->dev) {
        q4x_run_dev_free(r);
    } else {
        free(r->arena);
        free(r->logits);
    }
    free(r->off);
    free(r->scratch);
    free(r);
}

void q4x_run_reset(q4x_run *r) {
    for (int32_t i = 0; i < r->plan->nstates; i++) {
        const q4x_state_desc *s = &r->plan->state[i];
        k_state *st = &r->st[i];
        int fixed = s->rows_kind == Q4X_ROWS_FIXED;
        int64_t n = (fixed ? st->cap : st->rows) * st->cols;
        if (s->is_ids)
            for (int64_t k = 0; k < n; k++) st->i[k] = s->fill;
        else
            memset(st->f, 0, (size_t)n * sizeof(float));
        st->rows = fixed ? st->cap : 0;
    }
    r->pos = r->nforward = r->n_logits = r->dead = 0;
    q4x_plants_reset(r->plants);
    if (r->dev) q4x_run_dev_reset(r);
    if (r->dynamic) resolve(r);
}

/* ---- the loop ---- */

/* Fill the call of node i for a tile; row_only >= 0: only that row of the inputs. */
static void make_call(const q4x_run *r, int32_t i, k_call *c, const int32_t *ids, int32_t row_only) {
    const q4x_node *n = &r->plan->node[i];
    int64_t skip = row_only > 0 ? row_only : 0;
    for (int32_t k = 0; k < n->nin; k++) {
        int64_t cols = n->in[k] == Q4X_IN_IDS ? 1 : q4x_node_cols(r->plan, n->in[k], c->Tc);
        c->in_cols[k] = cols;
        if (n->in[k] == Q4X_IN_IDS)
            c->in_i[k] = ids + skip;
        else
            c->in[k] = r->arena + r->off[n->in[k]] + skip * cols;
    }
    for (int32_t k = n->nin; k < K_MAXIN; k++) c->in[k] = NULL;
    for (int32_t k = 0; k < K_MAXST; k++) c->st[k] = k < n->nst ? &r->st[n->st[k]] : NULL;
    memcpy(c->w, n->w, sizeof c->w);
    memcpy(c->nw, n->nw, sizeof c->nw);
    memcpy(c->par, n->par, sizeof c->par);
    c->ipar = n->ipar;
    c->epi = n->epi;
    c->G = n->G;
    c->off = n->off;
    c->stride = n->stride;
    c->per = n->per;
    c->lv = &r->lv[i];
    c->cols = q4x_node_cols(r->plan, i, c->Tc);
}

/* Tell the hook. */
static int show(q4x_run *r, q4x_node_event *ev, q4x_err *err) {
    return r->fn ? r->fn(r->fn_ctx, ev, err) : 0;
}

int q4x_run_scratch_here(q4x_run *r, k_call *c, q4x_err *err) {
    const int rc = room_for_ops(r, err);
    c->scratch = r->scratch;
    c->scratch_n = rc ? 0 : r->scratch_n;
    return rc;
}

/* What the node reads is here, the state before it also as a copy if it is kept; and what the op would need to run. */
static int bring_here(q4x_run *r, int32_t i, k_call *c, q4x_err *err) {
    int rc = q4x_run_dev_operands(r, i, c, err);
    if (!rc) rc = q4x_run_scratch_here(r, c, err);
    if (!rc) keep_before(r, i, c);
    return rc;
}

/* A hook that may write: what it changes here is changed there too. */
static int show_writer(q4x_run *r, int32_t i, q4x_node_event *ev, q4x_err *err) {
    const size_t bytes = (size_t)ev->nrows * (size_t)ev->cols * sizeof(float);
    const uint64_t made = q4x_xxh64(ev->data, bytes);
    const int rc = show(r, ev, err);
    return rc || q4x_xxh64(ev->data, bytes) == made ? rc : q4x_run_dev_changed(r, i, ev->call, err);
}

/* On a device; a plant acts here, and what it changes is changed there before anything else is told. */
static int step_on_device(q4x_run *r, int32_t i, k_call *c, q4x_node_event *ev, q4x_err *err) {
    const int reads = r->before_fn != NULL;
    int asked = 0, kept, rc = 0;
    void *data = ev->data;
    ev->data = NULL;
    if (reads) rc = r->before_fn(r->before_ctx, ev, &asked, err);
    const int here = r->plants || (r->fn && !reads) || asked;
    if (rc || (here && (rc = bring_here(r, i, c, err)))) return rc;
    kept = q4x_plants_before(r->plants, i, c);
    if ((kept && (rc = q4x_run_dev_kept(r, i, err))) || (rc = q4x_run_dev_step(r, i, c, here, err))) return rc;
    if (here || k_dev_on_host((int32_t)r->plan->node[i].op)) ev->data = data;
    if ((rc = q4x_plants_after(r->plants, ev, &kept, err)) || (kept && (rc = q4x_run_dev_kept(r, i, err))) ||
        (ev->planted && (rc = q4x_run_dev_changed(r, i, c, err))))
        return rc;
    return r->fn && !reads ? show_writer(r, i, ev, err) : show(r, ev, err);
}

/* Run node i on the tile described by base, plant, tell the hook. */
static int step(q4x_run *r, int32_t i, const k_call *base, const int32_t *ids, int all_logits, q4x_err *err) {
    k_call c = *base;
    q4x_node_event ev = {i, c.t0, c.T, c.Tcall, 0, NULL, &c, 0};
    if (i == r->plan->logits) {
        if (!all_logits && c.t0 + c.T < c.Tcall) return 0; /* the last row alone is asked for */
        make_call(r, i, &c, ids, all_logits ? 0 : c.T - 1);
        c.out = r->logits + (all_logits ? (int64_t)c.t0 * c.cols : 0);
        if (!all_logits) {
            c.T = c.Tcall = 1; /* a product of one column, as engines count them */
            ev.row0 = 0;
            ev.nrows = ev.total = 1;
        }
    } else {
        make_call(r, i, &c, ids, 0);
        c.out = r->arena + r->off[i];
    }
    ev.cols = c.cols;
    ev.data = c.out;
    if (r->dev) return step_on_device(r, i, &c, &ev, err);
    keep_before(r, i, &c);
    int kept, rc;
    q4x_plants_before(r->plants, i, &c);
    if (r->plan->node[i].op != K_OP_alias) k_ops[r->plan->node[i].op].cpu(&c);
    rc = q4x_plants_after(r->plants, &ev, &kept, err);
    return rc ? rc : show(r, &ev, err);
}

static int check_ids(const q4x_run *r, const int32_t *ids, int32_t n, q4x_err *err) {
    if (r->dead) return q4x_fail(err, Q4X_E_ARG, "run: an earlier forward failed half-way; reset it");
    if (n < 1) return q4x_fail(err, Q4X_E_ARG, "ids: none given, expected at least one");
    if (n > r->n_ctx - r->pos)
        return q4x_fail(err, Q4X_E_ARG,
                        "context: %d positions consumed and %d more ids exceed %lld; ask for a longer context", r->pos,
                        n, (long long)r->n_ctx);
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= r->plan->d.V)
            return q4x_fail(err, Q4X_E_ARG, "ids[%d]: %d, expected 0 to %d (the vocabulary)", i, ids[i],
                            r->plan->d.V - 1);
    return 0;
}

static int room_for_logits(q4x_run *r, int32_t rows, q4x_err *err) {
    if (r->dev) return q4x_run_dev_logits(r, rows, err);
    if (rows <= r->cap_logits) return 0;
    float *p = realloc(r->logits, (size_t)rows * (size_t)r->plan->d.V * sizeof(float));
    if (!p) return q4x_fail(err, Q4X_E_NOMEM, "logits: no memory for %d rows of %d", rows, r->plan->d.V);
    r->logits = p;
    r->cap_logits = rows;
    return 0;
}

int q4x_run_forward(q4x_run *r, const int32_t *ids, int32_t n, int all_logits, q4x_err *err) {
    int rc = check_ids(r, ids, n, err);
    if (rc) return rc;
    if ((rc = room_for_logits(r, all_logits ? n : 1, err)) || (rc = room_for_before(r, err))) return rc;
    if (r->dynamic) resolve(r);
    q4x_plants_forward(r->plants, r->nforward);
    if (r->dev && (rc = q4x_run_dev_begin(r, err))) return rc;
    k_call base = {.Tcall = n,
                   .Tc = r->pos + n,
                   .d = &r->plan->d,
                   .scratch = r->dev ? NULL : r->scratch,
                   .scratch_n = r->dev ? 0 : r->scratch_n,
                   .nth = r->nth};
    for (int32_t t0 = 0; t0 < n; t0 += r->tile) {
        base.t0 = t0;
        base.T = n - t0 < r->tile ? n - t0 : r->tile;
        base.pos0 = r->pos + t0;
        if (r->dev) rc = q4x_run_dev_tile(r, ids + t0, t0, base.T, all_logits, err);
        for (int32_t i = 0; i < r->plan->nnodes && !rc; i++) rc = step(r, i, &base, ids + t0, all_logits, err);
        if (rc) break;
    }
    if (r->dev && !rc) rc = q4x_run_dev_end(r, err);
    if (rc) {
        r->dead = 1;
        return rc;
    }
    r->pos += n;
    r->nforward++;
    r->n_logits = all_logits ? n : 1;
    r->chosen = 0;
    for (int32_t i = 0; i < r->plan->nstates; i++) {
        if (r->plan->state[i].rows_kind == Q4X_ROWS_POS) r->st[i].rows = r->pos;
        if (r->plan->state[i].rows_kind == Q4X_ROWS_BLOCK) r->st[i].rows = r->pos / r->plan->d.ratio;
    }
    return 0;
}

/* Once a forward: the caller that samples and the tap set both ask. */
static void choose(q4x_run *r) {
    const int32_t V = r->plan->d.V;
    const float *row = r->logits + (int64_t)(r->n_logits - 1) * V;
    const k_levers *lv = &r->lv[r->plan->logits];
    float *rounded = r->scratch, *work = r->scratch + V;
    for (int32_t i = 0; i < V; i++) rounded[i] = k_rd(row[i], k_follow(lv->logits, lv->act));
    int32_t k = V < 2 ? 1 : 2, best[2] = {-1, -1};
    k_topk(rounded, V, k, lv->tie, best, work);
    for (int32_t i = 0; i < 2; i++) {
        r->top_id[i] = best[i];
        r->top_val[i] = best[i] < 0 ? NAN : rounded[best[i]];
    }
    r->chosen = 1;
}

int32_t q4x_run_choose(q4x_run *r, int32_t top_id[2], float top_val[2]) {
    if (!r->chosen) choose(r);
    memcpy(top_id, r->top_id, sizeof r->top_id);
    memcpy(top_val, r->top_val, sizeof r->top_val);
    return r->top_id[0];
}
