/* dump_check.c: the rules that every record of a dump obeys. */
#include <math.h>
#include <stdlib.h>

#include "kernels/k.h"
#include "lib/dump_int.h"

/* ---- nodes ---- */

static int text_ok(const char *s, int empty_ok) {
    if (!s) return 0;
    size_t n = 0;
    for (; s[n]; n++)
        if (s[n] < 0x20 || s[n] > 0x7e || n >= Q4X_DUMP_NAME_MAX) return 0;
    return n > 0 || empty_ok;
}

/* Every index the judge follows leads to a smaller one, so that no chain of them can be a circle. */
static int links(const q4x_dump_node *nodes, int32_t i, int32_t n, int code, q4x_err *err) {
    const q4x_dump_node *d = &nodes[i];
    if (d->nin < 0 || d->nst < 0 || (d->nin && !d->in) || (d->nst && !d->st))
        return q4x_fail(err, code, "node %d (%s): nin and nst: expected 0 or more, found %d and %d", i, d->name, d->nin,
                        d->nst);
    if (d->alias < -1 || d->alias >= i)
        return q4x_fail(err, code, "node %d (%s): alias: expected -1 or an earlier node, found %d", i, d->name,
                        d->alias);
    for (int32_t k = 0; k < d->nin; k++)
        if (d->in[k] < Q4X_IN_IDS || d->in[k] >= i)
            return q4x_fail(err, code, "node %d (%s): input %d: expected -1 (ids) or an earlier node, found %d", i,
                            d->name, k, d->in[k]);
    for (int32_t k = 0; k < d->nst; k++)
        if (d->st[k] < 0 || d->st[k] >= n || !nodes[d->st[k]].is_state)
            return q4x_fail(err, code, "node %d (%s): state %d: expected a state record's node, found %d", i, d->name,
                            k, d->st[k]);
    return 0;
}

static int heads_ok(const q4x_heads *h) {
    if (h->axis == 0) return 1;
    if (h->axis < 0 || h->axis > 2 || h->off < 0 || h->width < 1 || h->nk < 1 || h->nv < 1 || h->nv % h->nk) return 0;
    return (h->gguf == 0 || h->gguf == 1) && (int64_t)h->off + (int64_t)h->nv * h->width <= INT32_MAX;
}

/* qsort has no context argument in C17, so the pairs carry their key. */
typedef struct {
    const char *name;
    int32_t index;
} named;

static int by_name(const void *a, const void *b) {
    const named *x = a, *y = b;
    int d = strcmp(x->name, y->name);
    return d ? d : (x->index > y->index) - (x->index < y->index);
}

int32_t *q4x_dump_by_name(const q4x_dump_node *nodes, int32_t n) {
    named *list = malloc((size_t)(n + 1) * sizeof *list);
    int32_t *order = malloc((size_t)(n + 1) * sizeof *order);
    if (list && order) {
        for (int32_t i = 0; i < n; i++) list[i] = (named){nodes[i].name, i};
        qsort(list, (size_t)n, sizeof *list, by_name);
        for (int32_t i = 0; i < n; i++) order[i] = list[i].index;
    } else {
        free(order);
        order = NULL;
    }
    free(list);
    return order;
}

int q4x_dump_check_nodes(const q4x_dump_node *nodes, int32_t n, int code, q4x_err *err) {
    int rc = 0;
    int32_t *order = NULL;
    for (int32_t i = 0; i < n; i++) {
        if (!text_ok(nodes[i].name, 0) || !text_ok(nodes[i].op, 0) || !text_ok(nodes[i].levers, 1))
            return q4x_fail(err, code, "node %d: name, op and levers: expected up to %d printable ASCII characters", i,
                            Q4X_DUMP_NAME_MAX);
        TRY(links(nodes, i, n, code, err));
        if (!heads_ok(&nodes[i].heads))
            return q4x_fail(err, code,
                            "node %d (%s): heads: found axis %d, %d groups of width %d at %d over %d key heads", i,
                            nodes[i].name, nodes[i].heads.axis, nodes[i].heads.nv, nodes[i].heads.width,
                            nodes[i].heads.off, nodes[i].heads.nk);
    }
    order = q4x_dump_by_name(nodes, n);
    if (!order) return q4x_fail(err, Q4X_E_NOMEM, "no memory for %d nodes", n);
    for (int32_t k = 1; k < n; k++)
        if (!strcmp(nodes[order[k - 1]].name, nodes[order[k]].name))
            TRY(q4x_fail(err, code, "nodes %d and %d have the same name, %s", order[k - 1], order[k],
                         nodes[order[k]].name));
done:
    free(order);
    return rc;
}

/* ---- taps ---- */

size_t q4x_dump_elem(int32_t dtype) {
    if (dtype == K_T_F32 || dtype == K_T_I32) return 4;
    return dtype == K_T_BF16 || dtype == K_T_F16 ? 2 : 0;
}

q4x_bits_kind q4x_dump_bits_kind(int32_t dtype) {
    if (dtype == K_T_F32) return Q4X_BITS_F32;
    if (dtype == K_T_BF16) return Q4X_BITS_BF16;
    return dtype == K_T_F16 ? Q4X_BITS_F16 : Q4X_BITS_RAW;
}

static int stats_ok(const q4x_stats *s, uint64_t n) {
    if (s->n != n || s->nan > n || s->pinf > n - s->nan || s->ninf > n - s->nan - s->pinf) return 0;
    uint64_t finite = n - s->nan - s->pinf - s->ninf;
    if (s->zeros > finite || s->on_bf16 > finite || s->on_f16 > finite) return 0;
    if (s->ntop < 0 || s->ntop > Q4X_NTOP) return 0;
    for (int32_t i = 0; i < s->ntop; i++)
        if (s->top_index[i] >= n) return 0;
    return 1;
}

static int all_finite(const double *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return 0;
    return 1;
}

int q4x_dump_check_least(const double *row_least, int32_t nrows) {
    for (int32_t t = 0; t < nrows; t++)
        if (!isfinite(row_least[t]) || !(row_least[t] >= 0)) return 0;
    return 1;
}

static int sketch_ok(const q4x_sketch *s, const q4x_tap *t) {
    if (s->row0 < 0 || s->nrows < 0 || s->row0 > t->rows || s->nrows > t->rows - s->row0) return 0;
    if (s->raw != 0 && s->raw != 1) return 0;
    if (s->raw ? s->width != t->cols || s->width > Q4X_SKETCH_RAW : s->width != 64 && s->width != 256) return 0;
    size_t nrows = (size_t)s->nrows, cells = nrows * (size_t)s->width;
    if (cells && !(s->raw ? s->values != NULL : s->buckets != NULL)) return 0;
    if (nrows && (!s->row_sumabs || !s->row_sumsq)) return 0;
    if (!all_finite(s->row_sumabs, nrows) || !all_finite(s->row_sumsq, nrows)) return 0;
    if (s->row_least && (s->raw || !q4x_dump_check_least(s->row_least, s->nrows))) return 0;
    return s->raw || all_finite(s->buckets, cells);
}

/* Ids and payload are the same thing twice when a selection's record covers the tensor: they must agree (R50). */
static int selection_ok(const q4x_selection *s, const q4x_tap *t) {
    if (s->rows < 0 || s->k < 0 || s->rows > t->rows) return 0;
    size_t n = (size_t)s->rows * (size_t)s->k;
    if (n && !s->ids) return 0;
    if (t->dtype != K_T_I32 || s->rows != t->rows || s->k != t->cols) return 1;
    q4x_hash h = q4x_bits_of(Q4X_BITS_RAW, s->ids, n * sizeof *s->ids);
    return q4x_hash_eq(&h, &t->bits);
}

int q4x_dump_check_tap(const q4x_dump_node *nodes, int32_t n, const q4x_tap *t, int code, q4x_err *err) {
    if (t->node < 0 || t->node >= n) return q4x_fail(err, code, "tap: node: expected 0..%d, found %d", n - 1, t->node);
    const char *name = nodes[t->node].name;
    if (t->forward < 0) return q4x_fail(err, code, "tap %s: forward: expected 0 or more, found %d", name, t->forward);
    size_t elem = q4x_dump_elem(t->dtype);
    if (!elem) return q4x_fail(err, code, "tap %s: dtype: expected F32, I32, BF16 or F16, found %d", name, t->dtype);
    if (t->rows < 0 || t->cols < 0 || t->rows > INT32_MAX || t->cols > INT32_MAX)
        return q4x_fail(err, code, "tap %s: shape: expected 0..2147483647 rows and columns, found [%lld,%lld]", name,
                        (long long)t->rows, (long long)t->cols);
    uint64_t count = (uint64_t)t->rows * (uint64_t)t->cols;
    if (t->has_stats && !stats_ok(&t->stats, count))
        return q4x_fail(err, code, "tap %s: statistics: counts or indices do not fit %llu elements (n is %llu)", name,
                        (unsigned long long)count, (unsigned long long)t->stats.n);
    if (t->has_sketch && !sketch_ok(&t->sketch, t))
        return q4x_fail(err, code,
                        "tap %s: sketch: rows %d.. (%d of them) of width %d do not fit [%lld,%lld], or a sum is not "
                        "finite",
                        name, t->sketch.row0, t->sketch.nrows, t->sketch.width, (long long)t->rows, (long long)t->cols);
    if (t->has_sel && !selection_ok(&t->sel, t))
        return q4x_fail(err, code, "tap %s: selection: [%d,%d] ids do not fit [%lld,%lld] or its bits", name,
                        t->sel.rows, t->sel.k, (long long)t->rows, (long long)t->cols);
    return 0;
}

int q4x_dump_check_forward(const q4x_forward *f, int code, q4x_err *err) {
    if (f->index < 0 || f->n_ids < 0 || f->pos0 < 0 || f->n_logits < 0 || f->vocab < 0 || (f->n_ids && !f->ids))
        return q4x_fail(
            err, code,
            "forward: index, ids, position, logit rows, vocabulary: expected 0 or more each, found %d %d %d "
            "%d %d",
            f->index, f->n_ids, f->pos0, f->n_logits, f->vocab);
    if (f->forced != 0 && f->forced != 1)
        return q4x_fail(err, code, "forward %d: forced: expected 0 or 1, found %d", f->index, f->forced);
    return 0;
}
