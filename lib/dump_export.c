/* dump_export.c: the full tensors of a dump as one safetensors file. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/k.h"
#include "lib/dump_int.h"

typedef enum { FULL, IDS, MASK } source;

/* One tensor of the file to be. */
typedef struct {
    source from;
    const q4x_forward *f;
    const q4x_tap *t;
    uint64_t bytes;
    size_t seq;         /* place in the dump */
    int32_t ids_before; /* mask: ids that earlier forwards consumed */
} item;

typedef struct {
    const q4x_dump *d;
    item *list;
    size_t n, cap;
    int64_t ratio; /* tokens of an indexer block, 0 unknown */
    int left_out;  /* masks that could not be derived */
} exporter;

static const char *const SEL = ".attn.idx.sel";

/* Where SEL begins in a name that ends so, or NULL. */
static const char *sel_suffix(const char *name) {
    size_t n = strlen(name), k = strlen(SEL);
    return n > k && !strcmp(name + n - k, SEL) ? name + n - k : NULL;
}

static int add(exporter *x, item it, q4x_err *err) {
    if (x->n == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 64;
        item *p = realloc(x->list, cap * sizeof *p);
        if (!p) return q4x_fail(err, Q4X_E_NOMEM, "no memory for %zu tensors", cap);
        x->list = p;
        x->cap = cap;
    }
    it.seq = x->n;
    x->list[x->n++] = it;
    return 0;
}

static void key_of(const q4x_dump *d, const item *it, char *key, size_t size) {
    const char *name = d->nodes[it->t->node].name, *suffix = sel_suffix(name);
    if (it->from == MASK)
        snprintf(key, size, "f%d/%.*s.attn.sel", it->f->index, (int)(suffix - name), name);
    else
        snprintf(key, size, "f%d/%s", it->f->index, name);
}

/* The mask's name is a node's already: an importer recorded the mask itself. */
static int mask_recorded(const q4x_dump *d, const item *it) {
    char key[Q4X_DUMP_NAME_MAX + 32];
    item mask = *it;
    mask.from = MASK;
    key_of(d, &mask, key, sizeof key);
    return q4x_dump_node_find(d, strchr(key, '/') + 1) >= 0;
}

static int ids_cover(const q4x_tap *t) {
    return t->has_sel && t->dtype == K_T_I32 && t->sel.rows == t->rows && t->sel.k == t->cols;
}

/* ids_before: what the forwards before f consumed, which is f's position unless the dump lacks some of them. */
static int collect_tap(exporter *x, const q4x_forward *f, const q4x_tap *t, int64_t ids_before, q4x_err *err) {
    const q4x_dump *d = x->d;
    item it = {.f = f, .t = t};
    int rc = 0;
    size_t elem = q4x_dump_elem(t->dtype);
    if (!elem || t->rows < 0 || t->cols < 0 || t->rows > INT32_MAX || t->cols > INT32_MAX)
        return q4x_fail(err, Q4X_E_FORMAT, "f%d/%s: dtype %d [%lld,%lld] cannot be exported", f->index,
                        d->nodes[t->node].name, t->dtype, (long long)t->rows, (long long)t->cols);
    it.bytes = (uint64_t)t->rows * (uint64_t)t->cols * elem;
    it.from = t->has_full ? FULL : IDS;
    if (!t->has_full && !ids_cover(t)) return 0;
    TRY(add(x, it, err));
    if (!sel_suffix(d->nodes[t->node].name) || t->dtype != K_T_I32 || mask_recorded(d, &it)) return 0;
    if (x->ratio < 1 || f->pos0 != ids_before || t->rows != f->n_ids || ids_before > INT32_MAX - t->rows) {
        x->left_out++;
        return 0;
    }
    it.from = MASK;
    it.ids_before = (int32_t)ids_before;
    it.bytes = (uint64_t)t->rows * (uint64_t)(ids_before + t->rows) * sizeof(float);
    TRY(add(x, it, err));
done:
    return rc;
}

static int collect(exporter *x, q4x_err *err) {
    const q4x_dump *d = x->d;
    int64_t ids = 0;
    int any = 0;
    for (int32_t i = 0; i < d->nforwards; i++) {
        const q4x_forward *f = &d->forwards[i];
        for (int32_t k = 0; k < f->ntaps; k++) {
            any |= f->taps[k].has_full;
            int rc = collect_tap(x, f, &f->taps[k], ids, err);
            if (rc) return rc;
        }
        ids += f->n_ids;
    }
    if (any) return 0;
    return q4x_fail(err, Q4X_E_ARG, "%s: no full tensor to export; record it with --mode full",
                    q4x_tail(d->path ? d->path : "dump"));
}

/* ---- header ---- */

static const char *dtype_name(const item *it) {
    if (it->from == MASK || it->t->dtype == K_T_F32) return "F32";
    if (it->t->dtype == K_T_I32) return "I32";
    return it->t->dtype == K_T_BF16 ? "BF16" : "F16";
}

static int add_tensor(json_t *head, const q4x_dump *d, const item *it, uint64_t at, q4x_err *err) {
    char key[Q4X_DUMP_NAME_MAX + 32];
    json_int_t rows = it->t->rows, cols = it->t->cols, seen = (json_int_t)it->ids_before + rows;
    json_t *shape = it->from == MASK ? json_pack("[I,I,I]", (json_int_t)1, rows, seen) : json_pack("[I,I]", rows, cols);
    key_of(d, it, key, sizeof key);
    json_t *t = json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype_name(it), "shape", shape, "data_offsets",
                          (json_int_t)at, (json_int_t)at + (json_int_t)it->bytes);
    int twice = json_object_get(head, key) != NULL;
    if (!twice && t && !json_object_set_new(head, key, t)) return 0;
    if (twice) json_decref(t);
    return twice ? q4x_fail(err, Q4X_E_FORMAT, "%s: two records in one forward", key)
                 : q4x_fail(err, Q4X_E_NOMEM, "no memory for a header with %s", key);
}

static json_t *metadata(const exporter *x) {
    char hex[33], count[16];
    q4x_hash_hex(&x->d->content, hex);
    snprintf(count, sizeof count, "%d", x->left_out);
    return json_pack("{s:s, s:s, s:s}", "format", "q4x", "content", hex, "attn_sel_left_out", count);
}

/* Tensors of 4-byte elements come first, so that all lie on a multiple of their element's size. */
static int by_elem(const void *a, const void *b) {
    const item *x = a, *y = b;
    size_t ex = q4x_dump_elem(x->t->dtype), ey = q4x_dump_elem(y->t->dtype);
    if (ex != ey) return ex > ey ? -1 : 1;
    return (x->seq > y->seq) - (x->seq < y->seq);
}

static int write_header(exporter *x, q4x_out *out, q4x_err *err) {
    json_t *head = json_object();
    uint64_t at = 0;
    char *text = NULL;
    int rc = 0;
    if (!head || json_object_set_new(head, "__metadata__", metadata(x)))
        TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for a header of %zu tensors", x->n));
    for (size_t i = 0; i < x->n; i++) {
        if (x->list[i].bytes > (uint64_t)INT64_MAX - at)
            TRY(q4x_fail(err, Q4X_E_FORMAT, "tensors of more than 2^63 bytes cannot be exported"));
        TRY(add_tensor(head, x->d, &x->list[i], at, err));
        at += x->list[i].bytes;
    }
    text = json_dumps(head, JSON_COMPACT);
    if (!text) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for a header of %zu tensors", x->n));
    uint64_t n = strlen(text), whole = (n + 7) / 8 * 8;
    TRY(q4x_out_write(out, &whole, sizeof whole, err));
    TRY(q4x_out_write(out, text, (size_t)n, err));
    TRY(q4x_out_write(out, "       ", (size_t)(whole - n), err));
done:
    free(text);
    json_decref(head);
    return rc;
}

/* ---- data ---- */

/* A copy of the tensor (the caller frees it) whose bits are the record's. */
static int load(const exporter *x, const item *it, void **ret, q4x_err *err) {
    q4x_tap t = *it->t;
    const void *src = t.has_full ? t.full : t.sel.ids;
    if (t.has_full && !src) {
        int rc = q4x_dump_full(x->d, &t, err);
        if (!rc) *ret = t.full;
        return rc;
    }
    size_t n = (size_t)t.rows * (size_t)t.cols * q4x_dump_elem(t.dtype);
    q4x_hash h = q4x_bits_of(q4x_dump_bits_kind(t.dtype), src, n);
    const char *name = x->d->nodes[t.node].name;
    if (!q4x_hash_eq(&h, &t.bits))
        return q4x_fail(err, Q4X_E_CHECKSUM, "f%d/%s: the tensor's bits are not those of the record", t.forward, name);
    void *copy = malloc(n ? n : 1);
    if (!copy) return q4x_fail(err, Q4X_E_NOMEM, "f%d/%s: no memory for %zu bytes", t.forward, name, n);
    if (n) memcpy(copy, src, n);
    *ret = copy;
    return 0;
}

/* What the query at position pos sees of seen tokens: the tokens of its k blocks and those past its last whole block.
 */
static int mask_row(const int32_t *blocks, int64_t k, int64_t pos, int64_t ratio, int64_t seen, float *row) {
    int64_t whole = (pos + 1) / ratio;
    for (int64_t j = 0; j < seen; j++) row[j] = j >= whole * ratio && j <= pos ? 0 : -FLT_MAX;
    for (int64_t i = 0; i < k; i++) {
        if (blocks[i] == -1) continue;
        if (blocks[i] < 0 || blocks[i] >= whole) return -1;
        for (int64_t j = 0; j < ratio; j++) row[blocks[i] * ratio + j] = 0;
    }
    return 0;
}

/* The extra tokens that stand beside a selection (lever qsa.extra), a row a query; NULL: none were recorded. */
static const q4x_selection *extra_of(const exporter *x, const item *it) {
    const char *name = x->d->nodes[it->t->node].name, *suffix = sel_suffix(name);
    char beside[Q4X_DUMP_NAME_MAX + 32];
    snprintf(beside, sizeof beside, "%.*s.attn.idx.extra", (int)(suffix - name), name);
    const int32_t node = q4x_dump_node_find(x->d, beside);
    const q4x_tap *t = node < 0 ? NULL : q4x_dump_tap(x->d, it->f->index, node);
    return t && ids_cover(t) && t->rows == it->t->rows ? &t->sel : NULL;
}

/* 0, and row[token] = 0 for the tokens; -1 when one is not of the past. */
static int add_extra(const q4x_selection *s, int64_t t, int64_t pos, float *row) {
    for (int64_t i = 0; i < s->k; i++) {
        const int32_t id = s->ids[t * s->k + i];
        if (id == -1) continue;
        if (id < 0 || id > pos) return -1;
        row[id] = 0;
    }
    return 0;
}

static int write_mask(const exporter *x, const item *it, const int32_t *ids, q4x_out *out, q4x_err *err) {
    int64_t seen = it->ids_before + it->t->rows;
    const q4x_selection *extra = extra_of(x, it);
    float *row = malloc((size_t)seen * sizeof *row + 1);
    int rc = 0;
    if (!row) return q4x_fail(err, Q4X_E_NOMEM, "no memory for a mask row of %lld tokens", (long long)seen);
    for (int64_t t = 0; t < it->t->rows; t++) {
        if (mask_row(ids + t * it->t->cols, it->t->cols, it->ids_before + t, x->ratio, seen, row) ||
            (extra && add_extra(extra, t, it->ids_before + t, row)))
            TRY(q4x_fail(err, Q4X_E_FORMAT, "f%d/%s row %lld: expected blocks or tokens of the past, found another id",
                         it->f->index, x->d->nodes[it->t->node].name, (long long)t));
        TRY(q4x_out_write(out, row, (size_t)seen * sizeof *row, err));
    }
done:
    free(row);
    return rc;
}

static int write_item(const exporter *x, const item *it, q4x_out *out, q4x_err *err) {
    void *data = NULL;
    int rc = 0;
    TRY(load(x, it, &data, err));
    if (it->from == MASK) {
        TRY(write_mask(x, it, data, out, err));
    } else {
        TRY(q4x_heads_to_hf(&x->d->nodes[it->t->node].heads, data, q4x_dump_elem(it->t->dtype), it->t->rows,
                            it->t->cols, err));
        TRY(q4x_out_write(out, data, (size_t)it->bytes, err));
    }
done:
    free(data);
    return rc;
}

int q4x_dump_export(const q4x_dump *d, const char *path, q4x_export_done *ret, q4x_err *err) {
    exporter x = {.d = d};
    q4x_out *out = NULL;
    const json_t *ratio = json_object_get(json_object_get(d->header, "qsa"), "ratio");
    if (json_is_integer(ratio) && json_integer_value(ratio) <= INT32_MAX) x.ratio = json_integer_value(ratio);
    int rc = 0;
    TRY(collect(&x, err));
    qsort(x.list, x.n, sizeof *x.list, by_elem);
    TRY(q4x_out_open(path, &out, err));
    TRY(write_header(&x, out, err));
    for (size_t i = 0; i < x.n; i++) TRY(write_item(&x, &x.list[i], out, err));
    const q4x_export_done done = {.tensors = (int64_t)x.n, .bytes = q4x_out_pos(out)};
    q4x_out *whole = out;
    out = NULL;
    TRY(q4x_out_close(whole, err));
    if (ret) *ret = done;
done:
    q4x_out_abort(out);
    free(x.list);
    return rc;
}
