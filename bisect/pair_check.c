/* pair_check.c: the structure of a dump, derived from its records and never from expectations (design.md 6, step 3). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/pair.h"

static bis_reason bad(bis_reason r, char where[240], const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static bis_reason bad(bis_reason r, char where[240], const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(where, 240, fmt, ap);
    va_end(ap);
    return r;
}

static bis_reason check_forwards(const q4x_dump *d, const char *arm, char where[240]) {
    if (d->nforwards < 1) return bad(BIS_R_no_forwards, where, "arm %s", arm);
    int64_t pos = d->forwards[0].pos0;
    for (int32_t f = 0; f < d->nforwards; f++) {
        const q4x_forward *w = &d->forwards[f];
        if (w->index != f)
            return bad(BIS_R_forwards_not_contiguous, where, "arm %s: forward %d stands where %d is due", arm, w->index,
                       f);
        if (w->n_ids < 1 || !w->ids)
            return bad(BIS_R_forwards_not_contiguous, where, "arm %s: forward %d consumed no id", arm, f);
        if (w->pos0 != pos)
            return bad(BIS_R_positions_not_contiguous, where, "arm %s: forward %d begins at position %d, due %lld", arm,
                       f, w->pos0, (long long)pos);
        pos += w->n_ids;
    }
    return BIS_R_none;
}

enum { MAX_LAYERS = 100000 }; /* tables and strips are as wide as there are layers */

static int by_name(const void *x, const void *y) {
    return strcmp(*(char *const *)x, *(char *const *)y);
}

static bis_reason check_nodes(const q4x_dump *d, const char *arm, char where[240]) {
    bis_reason r = BIS_R_none;
    const int32_t n = d->nnodes;
    char **name = malloc(sizeof *name * (size_t)(n > 0 ? n : 1));
    if (!name) return bad(BIS_R_bad_index, where, "arm %s: out of memory for %d names", arm, n);
    for (int32_t i = 0; i < n && r == BIS_R_none; i++) {
        const q4x_dump_node *k = &d->nodes[i];
        name[i] = k->name;
        int ok = k->layer < MAX_LAYERS && k->alias >= -1 && k->alias < n && k->nin >= 0 && k->nst >= 0;
        for (int32_t j = 0; ok && j < k->nin; j++) ok = k->in[j] >= Q4X_IN_IDS && k->in[j] < n;
        for (int32_t j = 0; ok && j < k->nst; j++) ok = k->st[j] >= 0 && k->st[j] < n;
        if (!ok) r = bad(BIS_R_bad_index, where, "arm %s: node %s", arm, k->name);
    }
    if (r == BIS_R_none) {
        qsort(name, (size_t)n, sizeof *name, by_name);
        for (int32_t i = 1; i < n && r == BIS_R_none; i++)
            if (!strcmp(name[i - 1], name[i])) r = bad(BIS_R_duplicate_keys, where, "arm %s: node %s", arm, name[i]);
    }
    free(name);
    return r;
}

/* Every forward must tap the same nodes, each once. seen[n]: forwards that tapped it so far. */
static bis_reason check_taps(const q4x_dump *d, const char *arm, char where[240]) {
    bis_reason r = BIS_R_none;
    int32_t *seen = calloc((size_t)(d->nnodes > 0 ? d->nnodes : 1), sizeof *seen);
    if (!seen) return bad(BIS_R_bad_index, where, "arm %s: out of memory", arm);
    for (int32_t f = 0; f < d->nforwards && r == BIS_R_none; f++) {
        const q4x_forward *w = &d->forwards[f];
        for (int32_t i = 0; i < w->ntaps && r == BIS_R_none; i++) {
            int32_t n = w->taps[i].node;
            if (n < 0 || n >= d->nnodes)
                r = bad(BIS_R_bad_index, where, "arm %s: tap %d of forward %d", arm, i, f);
            else if (seen[n] == f + 1)
                r = bad(BIS_R_duplicate_keys, where, "arm %s: %s twice in forward %d", arm, d->nodes[n].name, f);
            else if (seen[n] != f)
                r = bad(BIS_R_blocks_not_uniform, where, "arm %s: %s is not in forward %d", arm, d->nodes[n].name,
                        seen[n]);
            else
                seen[n] = f + 1;
        }
    }
    for (int32_t n = 0; n < d->nnodes && r == BIS_R_none; n++)
        if (seen[n] && seen[n] != d->nforwards)
            r = bad(BIS_R_blocks_not_uniform, where, "arm %s: %s is not in forward %d", arm, d->nodes[n].name, seen[n]);
    free(seen);
    return r;
}

bis_reason bis_check_dump(const q4x_dump *d, const char *arm, char where[240]) {
    bis_reason r = check_forwards(d, arm, where);
    if (r == BIS_R_none) r = check_nodes(d, arm, where);
    if (r == BIS_R_none) r = check_taps(d, arm, where);
    return r;
}

bis_reason bis_check_shapes(const bis_pair *p, char where[240]) {
    for (int32_t f = 0; f < p->ncomparable; f++) {
        for (int32_t n = 0; n < p->nn; n++) {
            const q4x_tap *a = p->ta[bis_at(p, f, n)], *b = p->tb[bis_at(p, f, n)];
            const char *name = p->a->nodes[n].name;
            if (!a) continue;
            if (a->dtype != b->dtype)
                return bad(BIS_R_dtypes_differ, where, "%s in forward %d: type %d and %d", name, f, a->dtype, b->dtype);
            if (a->rows != b->rows || a->cols != b->cols)
                return bad(BIS_R_shapes_differ, where, "%s in forward %d: %lld x %lld and %lld x %lld", name, f,
                           (long long)a->rows, (long long)a->cols, (long long)b->rows, (long long)b->cols);
        }
        const q4x_forward *x = BIS_FA(p, f), *y = BIS_FB(p, f);
        int hx = x->logits && x->n_logits > 0, hy = y->logits && y->n_logits > 0;
        if (hx != hy)
            return bad(BIS_R_logits_one_sided, where, "forward %d: only arm %s has logits", f, hx ? "A" : "B");
        if (hx && (x->vocab != y->vocab || x->n_logits != y->n_logits))
            return bad(BIS_R_logits_one_sided, where, "forward %d: %d x %d and %d x %d logits", f, x->n_logits,
                       x->vocab, y->n_logits, y->vocab);
    }
    return BIS_R_none;
}
