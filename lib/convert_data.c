/* convert_data.c: the values of one tensor from the checkpoint into the file, a slab of rows after the other. */
#include <stdlib.h>
#include <string.h>

#include "kernels/par.h"
#include "kernels/quant.h"
#include "lib/convert_int.h"
#include "lib/encode.h"
#include "lib/io.h"

/* ---- heads ---- */

/* GGUF head r nk + k is head k (nv / nk) + r of the checkpoint. */
int64_t q4x_head_source(const k_dims *d, const q4x_head_axis *h, int64_t i) {
    if (!h->width || i < h->first) return i;
    int64_t at = i - h->first, head = at / h->width, each = d->nv / d->nk;
    return h->first + (head % d->nk * each + head / d->nk) * h->width + at % h->width;
}

q4x_head_axis q4x_head_axis_of(const k_dims *d, const char *name) {
    const int64_t keys = 2 * (int64_t)d->nk * d->dk;
    const struct {
        const char *name;
        q4x_head_axis h;
    } known[] = {
        {"attn_qkv.weight", {keys, d->dv, 0}},
        {"ssm_conv1d.weight", {keys, d->dv, 0}},
        {"attn_gate.weight", {0, d->dv, 0}},
        {"ssm_out.weight", {0, d->dv, 1}},
        {"ssm_beta.weight", {0, 1, 0}},
        {"ssm_alpha.weight", {0, 1, 0}},
        {"ssm_a", {0, 1, 1}},
        {"ssm_dt.bias", {0, 1, 1}},
    };
    const char *rest = strncmp(name, "blk.", 4) ? NULL : strchr(name + 4, '.');
    for (size_t i = 0; rest && i < sizeof known / sizeof *known; i++)
        if (!strcmp(rest + 1, known[i].name)) return known[i].h;
    return (q4x_head_axis){0};
}

/* ---- slabs ---- */

enum { SLAB = 1 << 20 }; /* values, or one row */

typedef struct {
    const q4x_source *t;
    const k_dims *d;
    int64_t cols, first; /* first row of the slab */
    float *x, *row;      /* [rows, cols]; a row a thread */
} slab;

static const void *row_of(const q4x_source *t, int64_t r, int32_t *ret_type) {
    if (!t->w) {
        *ret_type = K_T_F32;
        return t->v + r * t->ne[0];
    }
    const k_weight *w = &t->w[r / t->w[0].rows];
    *ret_type = w->type;
    return (const char *)w->data + (size_t)(r % w->rows) * w->row_bytes;
}

static void load_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const slab *s = ctx;
    const q4x_head_axis *h = &s->t->heads;
    for (int64_t i = lo; i < hi; i++) {
        int32_t type;
        const void *from = row_of(s->t, h->columns ? s->first + i : q4x_head_source(s->d, h, s->first + i), &type);
        float *to = s->x + i * s->cols;
        if (!h->columns) {
            k_decode_row(type, from, to, s->cols);
            continue;
        }
        float *tmp = k_slice(c);
        k_decode_row(type, from, tmp, s->cols);
        for (int64_t j = 0; j < s->cols; j++) to[j] = tmp[q4x_head_source(s->d, h, j)];
    }
}

/* The checkpoint's name of the tensor that data lie in, for messages. */
static const char *name_there(const q4x_model *m, const void *data) {
    for (int64_t i = 0; i < q4x_model_ntensors(m); i++) {
        const q4x_tensor *t = q4x_model_tensor(m, i);
        if ((const char *)data >= (const char *)t->data && (const char *)data < (const char *)t->data + t->bytes)
            return t->name;
    }
    return NULL;
}

static void say_where(const q4x_copy *c, const q4x_source *t, int64_t row, q4x_err *err) {
    int32_t type;
    const void *data = row_of(t, t->heads.columns ? row : q4x_head_source(c->d, &t->heads, row), &type);
    const char *from = t->w ? name_there(c->from, data) : NULL;
    q4x_err_prefix(err, "%s: tensor %s%s%.120s%s", q4x_tail(q4x_model_path(c->from)), t->name, from ? " (from " : "",
                   from ? from : "", from ? ")" : "");
}

/* Pages of the checkpoint that are done with: of rows first .. first+n when they lie in one part. */
static void release(const q4x_copy *c, const q4x_source *t, int64_t first, int64_t n) {
    int32_t type;
    for (int64_t r = first; t->w && r < first + n;) {
        const k_weight *w = &t->w[r / t->w[0].rows];
        int64_t end = (r / w->rows + 1) * w->rows, take = (end < first + n ? end : first + n) - r;
        q4x_model_release(c->from, row_of(t, r, &type), (uint64_t)take * w->row_bytes);
        r += take;
    }
}

static int copy_slab(q4x_copy *c, const slab *s, int64_t n, uint8_t *out, size_t row_bytes, q4x_err *err) {
    int rc = q4x_model_check(c->from, err);
    if (rc) return rc;
    k_call call = {.nth = c->nth, .scratch = s->row, .scratch_n = s->cols};
    k_spread(&call, n, 0, n * s->cols * 8, load_rows, s);
    int64_t bad = 0;
    const q4x_encode_opts o = {.first_row = s->first, .bad_row = &bad, .nth = c->nth};
    rc = q4x_encode(s->t->type, s->x, n, s->cols, &o, out, err);
    if (rc) {
        say_where(c, s->t, s->first + bad, err);
        return rc;
    }
    if (!s->t->heads.width) release(c, s->t, s->first, n);
    return q4x_gguf_out_write(c->out, out, (size_t)n * row_bytes, err);
}

static int64_t rows_of(const q4x_source *t) {
    return t->ne[1] * t->ne[2] * t->ne[3];
}

double q4x_source_cost(const q4x_source *t) {
    return (double)(t->ne[0] * rows_of(t)) * (1 + q4x_encode_cost(t->type)); /* 1: reading */
}

int q4x_copy_source(q4x_copy *c, const q4x_source *t, q4x_err *err) {
    const k_quant *q = k_quant_get(t->type);
    const int64_t cols = t->ne[0], rows = rows_of(t), nth = c->nth > 0 ? c->nth : 1;
    const int64_t most = cols < SLAB ? SLAB / cols : 1, each = rows < most ? rows : most;
    const size_t row_bytes = (size_t)(cols / q->elems) * (size_t)q->bytes;
    slab s = {.t = t, .d = c->d, .cols = cols};
    uint8_t *out = NULL;
    int rc = 0;
    s.x = malloc((size_t)(each * cols) * sizeof *s.x);
    s.row = malloc((size_t)(nth * cols) * sizeof *s.row);
    out = malloc((size_t)each * row_bytes);
    if (!s.x || !s.row || !out)
        TRY(q4x_fail(err, Q4X_E_NOMEM, "tensor %s: no memory for %lld rows of %lld values", t->name, (long long)each,
                     (long long)cols));
    for (; s.first < rows; s.first += each) {
        int64_t n = rows - s.first < each ? rows - s.first : each;
        TRY(copy_slab(c, &s, n, out, row_bytes, err));
        c->spent += q4x_source_cost(t) * ((double)n / (double)rows);
        if (c->log) q4x_log_progress(c->log, t->name, (uint64_t)(1000 * c->spent / c->cost), 1000);
    }
    if (t->heads.width) release(c, t, 0, rows);
done:
    free(s.x);
    free(s.row);
    free(out);
    return rc;
}
