/* dump.c: a dump as an object: freeing it, finding records in it, decoding its full tensors. */
#include <stdlib.h>

#include "lib/dump_int.h"

void q4x_dump_free(q4x_dump *d) {
    if (!d) return;
    q4x_dump_priv *p = d->priv;
    for (int32_t f = 0; f < d->nforwards; f++) {
        q4x_forward *fw = &d->forwards[f];
        for (int32_t k = 0; k < fw->ntaps; k++) {
            q4x_tap *t = &fw->taps[k];
            free(t->full);
            if (p) continue;
            free(t->sketch.buckets), free(t->sketch.values), free(t->sketch.row_sumabs), free(t->sketch.row_sumsq);
            free(t->sketch.row_least);
            free(t->sel.ids), free(t->sel.weights), free(t->sel.lo), free(t->sel.hi);
        }
        if (!p)
            free(fw->ids), free(fw->logits), free(fw->taps);
        else
            free(p->by_node ? p->by_node[f] : NULL);
    }
    for (int32_t i = 0; !p && i < d->nnodes; i++) {
        q4x_dump_node *n = &d->nodes[i];
        free(n->name), free(n->op), free(n->in), free(n->st), free(n->levers);
    }
    if (p) {
        q4x_map_close(&p->map);
        q4x_dpool_free(&p->pool);
        free(p->by_name), free(p->by_node), free(p->full);
        free(p);
    } else {
        free(d->nodes);
    }
    json_decref(d->header);
    json_decref(d->tail);
    free(d->forwards), free(d->path);
    free(d);
}

int32_t q4x_dump_node_find(const q4x_dump *d, const char *name) {
    const q4x_dump_priv *p = d->priv;
    if (!p) {
        for (int32_t i = 0; i < d->nnodes; i++)
            if (!strcmp(d->nodes[i].name, name)) return i;
        return -1;
    }
    for (int32_t lo = 0, hi = d->nnodes; lo < hi;) {
        int32_t mid = lo + (hi - lo) / 2, i = p->by_name[mid], c = strcmp(name, d->nodes[i].name);
        if (!c) return i;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return -1;
}

q4x_tap *q4x_dump_tap(const q4x_dump *d, int32_t forward_index, int32_t node) {
    const q4x_dump_priv *p = d->priv;
    int32_t f = 0, hi = d->nforwards;
    if (!p) {
        while (f < d->nforwards && d->forwards[f].index != forward_index) f++;
    } else {
        while (f < hi) { /* the first that is not before it */
            int32_t mid = f + (hi - f) / 2;
            if (d->forwards[mid].index < forward_index)
                f = mid + 1;
            else
                hi = mid;
        }
    }
    if (f == d->nforwards || d->forwards[f].index != forward_index) return NULL;
    q4x_forward *fw = &d->forwards[f];
    for (int32_t k = 0; !p && k < fw->ntaps; k++)
        if (fw->taps[k].node == node) return &fw->taps[k];
    for (int32_t lo = 0, top = p ? fw->ntaps : 0; lo < top;) {
        int32_t mid = lo + (top - lo) / 2;
        q4x_tap *t = &fw->taps[p->by_node[f] ? p->by_node[f][mid] : mid];
        if (t->node == node) return t;
        if (t->node < node)
            lo = mid + 1;
        else
            top = mid;
    }
    return NULL;
}

int q4x_full_by_place(const void *a, const void *b) {
    const q4x_full_ref *x = a, *y = b;
    if (x->forward != y->forward) return x->forward < y->forward ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

static const q4x_full_ref *find_full(const q4x_dump_priv *p, int32_t forward, int32_t node) {
    q4x_full_ref key = {.forward = forward, .node = node};
    return p && p->full_done ? bsearch(&key, p->full, p->full_done, sizeof key, q4x_full_by_place) : NULL;
}

int q4x_dump_full(const q4x_dump *d, q4x_tap *t, q4x_err *err) {
    int rc = 0;
    if (t->full) return 0;
    const q4x_dump_priv *p = d->priv;
    const q4x_full_ref *ref = t->has_full ? find_full(p, t->forward, t->node) : NULL;
    const char *file = q4x_tail(d->path ? d->path : "?"), *name = d->nodes[t->node].name;
    if (!ref)
        return q4x_fail(err, Q4X_E_ARG, "%s: f%d/%s: the dump has no full tensor of it; record it with --mode full",
                        file, t->forward, name);
    uint8_t *full = malloc(ref->raw ? (size_t)ref->raw : 1);
    if (!full)
        return q4x_fail(err, Q4X_E_NOMEM, "%s: f%d/%s: no memory for %llu bytes", file, t->forward, name,
                        (unsigned long long)ref->raw);
    TRY(q4x_map_check(&p->map, file, err));
    if (ref->encoding == Q4X_FULL_PLANES)
        TRY(q4x_planes_unpack(ref->data, (size_t)ref->n, ref->elem, full, (size_t)ref->raw, err));
    else if (ref->raw)
        memcpy(full, ref->data, (size_t)ref->raw);
    q4x_hash h = q4x_bits_of(q4x_dump_bits_kind(t->dtype), full, (size_t)ref->raw);
    if (!q4x_hash_eq(&h, &t->bits)) {
        char a[33], b[33];
        q4x_hash_hex(&t->bits, a);
        q4x_hash_hex(&h, b);
        TRY(q4x_fail(err, Q4X_E_CHECKSUM, "bits: expected %s, found %s; the file is damaged, record it again", a, b));
    }
    t->full = full;
    full = NULL;
done:
    if (rc && rc != Q4X_E_TRUNCATED) q4x_err_prefix(err, "%s: f%d/%s", file, t->forward, name);
    free(full);
    return rc;
}
