#include "lib/plant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "lib/hash.h"
#include "lib/names.h"
#include "lib/plant_kept.h"

const q4x_plant_kind q4x_plant_kinds[] = {
#define PLANT(name, ops, on_ids, first, doc) {name, ops, on_ids, first, doc},
#include "lib/plants.def"
#undef PLANT
};
const int q4x_nplant_kinds = (int)(sizeof q4x_plant_kinds / sizeof *q4x_plant_kinds);

_Static_assert(sizeof((q4x_arm *)0)->item / sizeof(q4x_item) <= 32, "one bit an item in q4x_plants.moved");

/* The last row a node made: of the forward before, and of this one. */
typedef struct {
    uint32_t *before, *now;
    int64_t cap, n_before, n_now; /* columns; 0: none yet */
} kept_row;

struct q4x_plants {
    const q4x_plan *plan;
    const q4x_arm *arm;
    const char **kind; /* a node: what acts on it in this forward, the item's own text, or NULL */
    kept_row *row;     /* a node: rows, where some item looks back */
    uint32_t moved;    /* bit k: item k moved something (one bit an item) */
    int32_t forward;
    q4x_kept before; /* the state of the node at hand as it was before the call */
    int touched;     /* before the op of the node at hand: what it reads is not what was kept */
};

static const q4x_plant_kind *kind_of(const char *name) {
    for (int i = 0; i < q4x_nplant_kinds; i++)
        if (!strcmp(q4x_plant_kinds[i].name, name)) return &q4x_plant_kinds[i];
    return NULL;
}

static int is(const char *kind, const char *name) {
    return !strcmp(kind, name);
}

static int looks_back(const char *kind) {
    return is(kind, "stale") || is(kind, "tail");
}

int q4x_plant_check(const q4x_item *it, const q4x_node *n, q4x_err *err) {
    const q4x_plant_kind *k = kind_of(it->plant);
    if (!k) return 0; /* off */
    if (strcmp(k->ops, "*") && !q4x_word_in(k->ops, k_ops[n->op].name))
        return q4x_fail(err, Q4X_E_ARG, "lever plant: %s means nothing at %s (op %s); it acts at nodes of %s", k->name,
                        n->name, k_ops[n->op].name, k->ops);
    if (n->is_ids && !k->on_ids)
        return q4x_fail(err, Q4X_E_ARG, "lever plant: %s cannot act on %s, which holds ids; swap, roll and stale can",
                        k->name, n->name);
    if (is(k->name, "parts") && n->G == n->cols)
        return q4x_fail(err, Q4X_E_ARG, "lever plant: %s means nothing at %s, whose rows have one part", k->name,
                        n->name);
    if (it->forward >= 0 && it->forward < k->first)
        return q4x_fail(err, Q4X_E_ARG, "lever plant: %s@%s#%d has nothing to look back at; forward %d is the first",
                        k->name, n->name, it->forward, k->first);
    return 0;
}

/* ---- the plants of a run ---- */

static int room_for_rows(q4x_plants *p, q4x_err *err) {
    for (int k = 0; k < p->arm->nitems; k++) {
        const q4x_item *it = &p->arm->item[k];
        if (!it->plant[0] || !looks_back(it->plant)) continue;
        if (!p->row) p->row = calloc((size_t)p->plan->nnodes, sizeof *p->row);
        if (!p->row) return q4x_fail(err, Q4X_E_NOMEM, "plants: out of memory");
        for (int32_t i = 0; i < p->plan->nnodes; i++)
            if (q4x_node_match(it->glob, p->plan->node[i].name)) p->row[i].cap = -1; /* known when there is a row */
    }
    return 0;
}

int q4x_plants_new(const q4x_plan *plan, const q4x_arm *a, q4x_plants **ret, q4x_err *err) {
    int n = 0;
    *ret = NULL;
    for (int k = 0; k < a->nitems; k++) n += a->item[k].plant[0] != 0;
    if (!n) return 0;
    q4x_plants *p = calloc(1, sizeof *p);
    if (p) *p = (q4x_plants){.plan = plan, .arm = a, .kind = calloc((size_t)plan->nnodes, sizeof *p->kind)};
    int rc = p && p->kind ? room_for_rows(p, err) : q4x_fail(err, Q4X_E_NOMEM, "plants: out of memory");
    if (rc)
        q4x_plants_free(p);
    else
        *ret = p;
    return rc;
}

void q4x_plants_free(q4x_plants *p) {
    if (!p) return;
    for (int32_t i = 0; p->row && i < p->plan->nnodes; i++) {
        free(p->row[i].before);
        free(p->row[i].now);
    }
    free(p->row);
    free(p->kind);
    free(p->before.f);
    free(p);
}

void q4x_plants_forward(q4x_plants *p, int32_t forward) {
    if (!p) return;
    p->forward = forward;
    for (int32_t i = 0; i < p->plan->nnodes; i++) {
        p->kind[i] = q4x_arm_plant(p->arm, p->plan->node[i].name, forward);
        if (!p->row || !p->row[i].cap) continue;
        kept_row *r = &p->row[i];
        uint32_t *old = r->before;
        r->before = r->now;
        r->n_before = r->n_now;
        r->now = old;
        r->n_now = 0;
    }
}

void q4x_plants_reset(q4x_plants *p) {
    for (int32_t i = 0; p && p->row && i < p->plan->nnodes; i++) p->row[i].n_before = p->row[i].n_now = 0;
}

int q4x_plants_moved(const q4x_plants *p, int k) {
    return p && (p->moved >> k & 1);
}

/* ---- faults of an output ---- */

/* Exchange two runs of n 4-byte elements. */
static void exchange(uint32_t *a, uint32_t *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t t = a[i];
        a[i] = b[i];
        b[i] = t;
    }
}

/* Rotate n runs of `size` elements by one: the last comes first. */
static void roll(uint32_t *x, int64_t n, int64_t size) {
    for (int64_t i = n - 1; i > 0; i--) exchange(x + i * size, x + (i - 1) * size, size);
}

static float *largest(float *x, int64_t n) {
    float *best = x;
    for (int64_t i = 1; i < n; i++)
        if (fabsf(x[i]) > fabsf(*best)) best = x + i;
    return best;
}

static void on_largest(const char *kind, float *row, int64_t cols) {
    float *v = largest(row, cols);
    if (is(kind, "ulp"))
        *v = nextafterf(*v, INFINITY);
    else if (is(kind, "nan"))
        *v = NAN;
    else if (is(kind, "inf"))
        *v = INFINITY;
}

static void look_back(const char *kind, const kept_row *r, uint32_t *row, int64_t cols) {
    const int64_t from = is(kind, "tail") ? cols - (cols + 3) / 4 : 0;
    const int64_t n = r->n_before < cols ? r->n_before : cols;
    if (n > from) memcpy(row + from, r->before + from, (size_t)(n - from) * sizeof *row);
}

static void on_output(const q4x_plants *p, const char *kind, const q4x_node_event *ev) {
    const int64_t rows = ev->nrows, cols = ev->cols, all = rows * cols;
    const int last = ev->row0 + ev->nrows == ev->total;
    uint32_t *x = ev->data, *end = x + (rows - 1) * cols;
    float *f = ev->data;
    if (is(kind, "sign")) {
        for (int64_t i = 0; i < all; i++) x[i] ^= 0x80000000u;
    } else if (is(kind, "scale")) {
        for (int64_t i = 0; i < all; i++) f[i] = f[i] * 2.0f;
    } else if (is(kind, "order")) {
        for (int64_t t = 0; t < rows && cols > 1; t++) exchange(x + t * cols, x + t * cols + 1, 1);
    } else if (is(kind, "roll")) {
        if (rows > 1)
            roll(x, rows, cols);
        else
            roll(x, cols, 1);
    } else if (last && is(kind, "swap")) {
        if (rows > 1)
            exchange(end - cols, end, cols);
        else if (cols > 1)
            exchange(x, x + 1, 1);
    } else if (last && is(kind, "parts")) {
        const int64_t w = p->plan->node[ev->node].G;
        exchange(end, end + cols - w, w);
    } else if (last && looks_back(kind)) {
        if (p->row) look_back(kind, &p->row[ev->node], end, cols);
    } else if (last) {
        on_largest(kind, (float *)end, cols);
    }
}

/* ---- faults of what an op reads: it runs again on other inputs, into the same output ---- */

static int row_of_another(k_op op, const q4x_node_event *ev, q4x_err *err) {
    k_call c = *ev->call;
    const int slot = op == K_OP_moe_expert ? 1 : 0;
    const int64_t n = c.T * c.in_cols[slot], at = n - c.in_cols[slot];
    if (ev->row0 + ev->nrows != ev->total) return 0;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    if (!ids) return q4x_fail(err, Q4X_E_NOMEM, "plants: no memory for %lld ids", (long long)n);
    memcpy(ids, c.in_i[slot], (size_t)n * sizeof *ids);
    if (ids[at] >= 0) ids[at] += ids[at] ? -1 : 1;
    c.in_i[slot] = ids;
    k_ops[op].cpu(&c);
    free(ids);
    return 0;
}

/* What the op reads of its first part, with the weights that it has. */
static void unnormed(k_op op, const k_call *c) {
    for (int32_t t = 0; t < c->T; t++) {
        const float *x = c->in[0] + (int64_t)t * c->in_cols[0] + c->off;
        float *y = c->out + (int64_t)t * c->cols;
        for (int32_t i = 0; i < c->G; i++) y[i] = op == K_OP_rmsnorm ? k_rd(x[i] * c->par[0][i], c->lv->act) : x[i];
    }
}

/* Row t of a call as a call of its own, at another position. */
static k_call one_row(const k_call *c, int32_t t, int32_t pos) {
    k_call x = *c;
    x.T = 1;
    x.t0 = c->t0 + t;
    x.pos0 = pos;
    x.out = c->out + t * c->cols;
    for (int k = 0; k < K_MAXIN; k++)
        if (c->in[k]) x.in[k] = c->in[k] + t * c->in_cols[k];
    return x;
}

/* Positions are those of the row: 2 p for the rotation, p + 1 or p - 1 for what a query sees. None lies behind the
 * positions that are known. */
static void moved_rows(const char *kind, k_op op, const k_call *c) {
    for (int32_t t = 0; t < c->T; t++) {
        const int32_t p = c->pos0 + t;
        const int32_t at = is(kind, "window+1") ? p + 1 : is(kind, "window-1") ? p - 1 : 2 * p;
        k_call x = one_row(c, t, at);
        if (op == K_OP_attn_prob && at >= c->Tc) continue;
        if (at < 0) /* nothing left to see */
            memset(x.out, 0, (size_t)x.cols * sizeof *x.out);
        else
            k_ops[op].cpu(&x);
    }
}

static int again(const q4x_plants *p, const char *kind, const q4x_node_event *ev, q4x_err *err) {
    const k_op op = p->plan->node[ev->node].op;
    if (is(kind, "row")) return row_of_another(op, ev, err);
    if (is(kind, "unnormed"))
        unnormed(op, ev->call);
    else
        moved_rows(kind, op, ev->call);
    return 0;
}

/* ---- around an op ---- */

int q4x_plants_before(q4x_plants *p, int32_t node, const k_call *c) {
    if (!p) return 0;
    p->touched = p->kind[node] && !c->t0 && q4x_kept_before(p->kind[node], c->st[0], p->forward, &p->before);
    return p->touched;
}

/* The row as the op made it, for the next forward. */
static int keep_row(kept_row *r, const q4x_node_event *ev, q4x_err *err) {
    if (ev->row0 + ev->nrows != ev->total) return 0;
    if (ev->cols > r->cap) { /* rows grow with the positions known: room for twice as many */
        uint32_t *a = realloc(r->before, 2 * (size_t)ev->cols * sizeof *a);
        if (a) r->before = a;
        uint32_t *b = realloc(r->now, 2 * (size_t)ev->cols * sizeof *b);
        if (b) r->now = b;
        if (!a || !b) return q4x_fail(err, Q4X_E_NOMEM, "plants: no memory for a row of %lld", (long long)ev->cols);
        r->cap = 2 * ev->cols;
    }
    r->n_now = ev->cols;
    memcpy(r->now, (const uint32_t *)ev->data + (ev->nrows - 1) * ev->cols, (size_t)ev->cols * sizeof *r->now);
    return 0;
}

int q4x_plants_after(q4x_plants *p, q4x_node_event *ev, int *ret_kept, q4x_err *err) {
    *ret_kept = 0;
    if (!p) return 0;
    const char *kind = p->kind[ev->node];
    const size_t bytes = (size_t)ev->nrows * (size_t)ev->cols * sizeof(uint32_t);
    int rc = p->row && p->row[ev->node].cap ? keep_row(&p->row[ev->node], ev, err) : 0, kept = p->touched;
    p->touched = 0;
    if (rc || !kind || is(kind, "conv-off-by-one")) goto done;
    const uint64_t was = q4x_xxh64(ev->data, bytes);
    if (q4x_kept_is(kind)) {
        rc = q4x_kept_after(kind, p->plan, ev, &p->before, ret_kept, err);
        kept = *ret_kept;
    } else if (is(kind, "row") || is(kind, "window+1") || is(kind, "window-1") || is(kind, "no-rope-scale") ||
               is(kind, "unnormed"))
        rc = again(p, kind, ev, err);
    else
        on_output(p, kind, ev);
    kept = kept || q4x_xxh64(ev->data, bytes) != was;
done:
    ev->planted = kept;
    for (int k = 0; kept && k < p->arm->nitems; k++) /* the kind is the item's own text */
        if (kind == p->arm->item[k].plant) p->moved |= 1u << k;
    return rc;
}
