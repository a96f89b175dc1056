#include "lib/net_dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dev_shape.h"
#include "lib/amount.h"

/* Bytes of the host that become bytes of the device. Each begins a piece of ALIGN bytes, at the distance that it has
 * here from a multiple of WIDEST: what can be loaded at once here can be there, and the sum of the pieces depends on
 * nothing but the file, as malloc gives multiples of WIDEST. */
typedef struct {
    const char *host;
    uint64_t bytes, off; /* off: in the device's block */
} range;

struct q4x_net_dev {
    q4x_net_dev *next;
    k_dev dev;
    void *block;
    uint64_t bytes; /* of it */
    range *range;
    int64_t nranges;
    k_weight *w; /* copies of all weights, data on the device */
    q4x_node_dev *node;
};

enum { ALIGN = 256, WIDEST = 16 };

/* ---- what there is ---- */

/* f32 values at par[k] of a node; 0: none. */
static int64_t par_floats(const k_dims *d, const q4x_node *n, int k) {
    static const k_levers defaults;
    const k_call c = {.d = d, .lv = &defaults, .cols = n->cols, .G = n->G, .per = n->per};
    return n->par[k] ? k_shape_of(n->op, &c).par[k] : 0;
}

typedef struct {
    range *v;
    int64_t n, cap;
    int64_t weights, arrays; /* weights on the device, those of them that lie in arrays */
} list;

static int add(list *l, const void *host, uint64_t bytes) {
    if (!host || !bytes) return 0;
    if (l->n == l->cap) {
        int64_t cap = l->cap ? 2 * l->cap : 1024;
        range *v = realloc(l->v, (size_t)cap * sizeof *v);
        if (!v) return -1;
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = (range){host, bytes, 0};
    return 0;
}

static int by_host(const void *a, const void *b) {
    const range *x = a, *y = b;
    return x->host < y->host ? -1 : x->host > y->host;
}

/* Pieces that touch or overlap become one. */
static void merge(list *l) {
    int64_t n = 0;
    if (!l->n) return;
    qsort(l->v, (size_t)l->n, sizeof *l->v, by_host);
    for (int64_t i = 1; i < l->n; i++) {
        range *last = &l->v[n];
        const range *x = &l->v[i];
        uint64_t at = (uint64_t)(x->host - last->host);
        if (at > last->bytes)
            l->v[++n] = *x;
        else if (at + x->bytes > last->bytes)
            last->bytes = at + x->bytes;
    }
    l->n = n + 1;
}

/* Weights that kernels read as an array. */
static int is_list(const q4x_node *n, int k) {
    return n->nw[k] > 1 || n->op == K_OP_moe_expert;
}

static int add_node(list *l, const k_dims *d, const q4x_node *n) {
    if (k_dev_on_host((int32_t)n->op)) return 0;
    for (int k = 0; k < K_MAXW; k++) {
        if (add(l, n->par[k], (uint64_t)par_floats(d, n, k) * sizeof(float))) return -1;
        for (int32_t i = 0; n->w[k] && i < n->nw[k]; i++)
            if (add(l, n->w[k][i].data, (uint64_t)n->w[k][i].rows * n->w[k][i].row_bytes)) return -1;
        if (!n->w[k]) continue;
        l->weights += n->nw[k];
        l->arrays += is_list(n, k) ? n->nw[k] : 0;
    }
    return 0;
}

/* Sorted ranges with their places; *ret_bytes: the block, the arrays of weights behind the ranges. */
static int collect(const q4x_net *n, list *l, uint64_t *ret_bytes, q4x_err *err) {
    const q4x_plan *p = q4x_net_plan(n);
    *l = (list){0};
    for (int32_t i = 0; i < p->nnodes; i++)
        if (add_node(l, &p->d, &p->node[i])) {
            free(l->v);
            return q4x_fail(err, Q4X_E_NOMEM, "weights: out of memory for a list of %lld", (long long)l->n);
        }
    merge(l);
    uint64_t at = 0;
    for (int64_t i = 0; i < l->n; i++) {
        range *x = &l->v[i];
        at = (at + ALIGN - 1) / ALIGN * ALIGN + (uintptr_t)x->host % WIDEST;
        x->off = at;
        at += x->bytes;
    }
    *ret_bytes = (at + ALIGN - 1) / ALIGN * ALIGN + (uint64_t)l->arrays * sizeof(k_weight);
    return 0;
}

int q4x_net_dev_bytes(const q4x_net *n, uint64_t *ret, q4x_err *err) {
    list l;
    int rc = collect(n, &l, ret, err);
    if (!rc) free(l.v);
    return rc;
}

int q4x_dev_no_room(const k_dev *d, const char *what, uint64_t bytes, int code, q4x_err *err) {
    uint64_t there = 0, total = 0;
    char seen[64] = "it does not say what is free";
    if (!k_dev_memory(d, &there, &total))
        snprintf(seen, sizeof seen, "%s of %s are free", q4x_amount(there).s, q4x_amount(total).s);
    return q4x_fail(err, Q4X_E_DEVICE,
                    "device cuda/%d: no room for %s: %s are needed, %s: %s; end what else uses the device, or use a "
                    "smaller model or --device cpu",
                    d->index, what, q4x_amount(bytes).s, seen, k_dev_text(code));
}

/* ---- upload ---- */

/* Where the device has what lies at host. */
static const void *there(const q4x_net_dev *d, const void *host) {
    int64_t lo = 0, hi = d->nranges;
    if (!host) return NULL;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (d->range[mid].host <= (const char *)host)
            lo = mid;
        else
            hi = mid;
    }
    return (const char *)d->block + d->range[lo].off + ((const char *)host - d->range[lo].host);
}

static int refused(const q4x_net_dev *d, int code, const char *what, q4x_err *err) {
    return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: %s: %s", d->dev.index, what, k_dev_text(code));
}

/* The file's pages are not needed here any more; what reads them again brings them back. */
static int upload_data(const q4x_net *n, q4x_net_dev *d, q4x_err *err) {
    int rc = q4x_model_check(q4x_net_model(n), err);
    if (rc) return rc;
    for (int64_t i = 0; i < d->nranges; i++) {
        const range *x = &d->range[i];
        int code = k_dev_put(&d->dev, (char *)d->block + x->off, x->host, x->bytes);
        if (!code) code = k_dev_wait(&d->dev);
        if (code) return refused(d, code, "weights cannot be copied to it", err);
        q4x_model_release(q4x_net_model(n), x->host, x->bytes);
    }
    return 0;
}

/* Copies of the weights that point at the device, arrays also in its memory, from at on. */
static int upload_views(const q4x_net *n, q4x_net_dev *d, char *at, q4x_err *err) {
    const q4x_plan *p = q4x_net_plan(n);
    k_weight *w = d->w;
    for (int32_t i = 0; i < p->nnodes; i++) {
        const q4x_node *x = &p->node[i];
        if (k_dev_on_host((int32_t)x->op)) continue;
        for (int k = 0; k < K_MAXW; k++) {
            d->node[i].par[k] = there(d, x->par[k]);
            if (!x->w[k]) continue;
            memcpy(w, x->w[k], (size_t)x->nw[k] * sizeof *w);
            for (int32_t e = 0; e < x->nw[k]; e++) w[e].data = there(d, w[e].data);
            d->node[i].w[k] = w;
            if (is_list(x, k)) {
                int code = k_dev_put(&d->dev, at, w, (size_t)x->nw[k] * sizeof *w);
                if (code) return refused(d, code, "weights cannot be copied to it", err);
                d->node[i].w_dev[k] = (const k_weight *)(const void *)at;
                at += (size_t)x->nw[k] * sizeof *w;
            }
            w += x->nw[k];
        }
    }
    int code = k_dev_wait(&d->dev);
    return code ? refused(d, code, "weights cannot be copied to it", err) : 0;
}

static void free_one(q4x_net_dev *d) {
    k_dev_free(&d->dev, d->block);
    k_dev_close(&d->dev);
    free(d->range);
    free(d->w);
    free(d->node);
    free(d);
}

static int make(const q4x_net *n, int index, q4x_net_dev **ret, q4x_err *err) {
    int rc = 0, code;
    uint64_t bytes = 0;
    list l = {0};
    q4x_net_dev *d = calloc(1, sizeof *d);
    if (!d) return q4x_fail(err, Q4X_E_NOMEM, "weights: out of memory");
    TRY(collect(n, &l, &bytes, err));
    d->range = l.v;
    d->nranges = l.n;
    d->w = calloc((size_t)l.weights + 1, sizeof *d->w);
    d->node = calloc((size_t)q4x_net_plan(n)->nnodes, sizeof *d->node);
    if (!d->w || !d->node) TRY(q4x_fail(err, Q4X_E_NOMEM, "weights: out of memory"));
    d->dev.index = index;
    if ((code = k_dev_open(index, &d->dev))) TRY(refused(d, code, "cannot be opened", err));
    if ((code = k_dev_alloc(&d->dev, bytes, &d->block))) TRY(q4x_dev_no_room(&d->dev, "the weights", bytes, code, err));
    d->bytes = bytes;
    TRY(upload_data(n, d, err));
    TRY(upload_views(n, d, (char *)d->block + bytes - (uint64_t)l.arrays * sizeof(k_weight), err));
    *ret = d;
    return 0;
done:
    free_one(d);
    return rc;
}

static q4x_net_dev *find(const q4x_net *n, int index) {
    q4x_net_dev *d = q4x_net_devices(n)->first;
    while (d && d->dev.index != index) d = d->next;
    return d;
}

int q4x_net_dev_has(const q4x_net *n, int index) {
    return find(n, index) != NULL;
}

int q4x_net_dev_get(const q4x_net *n, int index, const q4x_net_dev **ret, q4x_err *err) {
    q4x_net_dev *d = find(n, index);
    if (!d) {
        int rc = make(n, index, &d, err);
        if (rc) return rc;
        d->next = q4x_net_devices(n)->first;
        q4x_net_devices(n)->first = d;
    }
    *ret = d;
    return 0;
}

const q4x_node_dev *q4x_net_dev_node(const q4x_net_dev *d, int32_t node) {
    return &d->node[node];
}

int q4x_net_dev_holds(const q4x_net_dev *d, const void *p, uint64_t bytes) {
    const uintptr_t at = (uintptr_t)p, from = (uintptr_t)d->block;
    return at >= from && bytes <= d->bytes && at - from <= d->bytes - bytes;
}

void q4x_net_dev_free(q4x_net_devs *d) {
    while (d->first) {
        q4x_net_dev *next = d->first->next;
        free_one(d->first);
        d->first = next;
    }
}
