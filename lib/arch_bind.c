/* arch_bind.c: tensors by name, exact shape and class of types, then nothing left over. */
#include "lib/arch_bind.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/quant.h"
#include "kernels/round.h"

/* ---- memory of the weights ---- */

typedef struct q4x_owned {
    struct q4x_owned *next;
    char pad[64 - sizeof(void *)]; /* what follows is aligned for vectors */
} q4x_owned;

void *q4x_bind_alloc(q4x_bind *b, int64_t n, size_t size, q4x_err *err) {
    size_t bytes;
    q4x_owned *o = NULL;
    if (!__builtin_mul_overflow((size_t)n, size, &bytes) && bytes < SIZE_MAX / 2) {
        bytes = (bytes + sizeof *o + 63) & ~(size_t)63;
        o = aligned_alloc(64, bytes);
    }
    if (!o) {
        q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for %lld elements of the weights", b->cfg->where, (long long)n);
        return NULL;
    }
    memset(o, 0, bytes);
    o->next = *b->owned;
    *b->owned = o;
    return o + 1;
}

void q4x_bind_free(void *owned) {
    for (q4x_owned *o = owned, *next; o; o = next) {
        next = o->next;
        free(o);
    }
}

/* ---- finding tensors ---- */

static void note_missing(q4x_bind *b, const char *name) {
    size_t n = strlen(b->missing);
    if (b->nmissing++ < 3) snprintf(b->missing + n, sizeof b->missing - n, "%s%.80s", n ? ", " : "", name);
}

static int wrong_shape(const q4x_bind *b, const q4x_tensor *t, int ndim, const int64_t *ne, q4x_err *err) {
    char want[100] = "", have[100] = "";
    for (int i = 0; i < ndim; i++) {
        size_t n = strlen(want);
        snprintf(want + n, sizeof want - n, "%s%lld", i ? ", " : "", (long long)ne[i]);
    }
    for (int i = 0; i < t->ndim; i++) {
        size_t n = strlen(have);
        snprintf(have + n, sizeof have - n, "%s%lld", i ? ", " : "", (long long)t->ne[i]);
    }
    return q4x_fail(err, Q4X_E_MISMATCH, "%s: tensor %s: expected the shape (%s), fastest first, found (%s)",
                    b->cfg->where, t->name, want, have);
}

int q4x_bind_find(q4x_bind *b, const char *name, int ndim, const int64_t *ne, const q4x_tensor **ret, q4x_err *err) {
    const q4x_tensor *t = q4x_model_find(b->m, name);
    *ret = t;
    if (!t) {
        note_missing(b, name);
        return 0;
    }
    if (q4x_names_add(&b->used, t->name, strlen(t->name), 0) < 0)
        return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for its names", b->cfg->where);
    int same = t->ndim == ndim;
    for (int i = 0; same && i < ndim; i++) same = t->ne[i] == ne[i];
    return same ? 0 : wrong_shape(b, t, ndim, ne, err);
}

static const char *type_name(int32_t type) {
    const k_quant *q = k_quant_get(type);
    return q ? q->name : "an unknown type";
}

/* ---- matrices ---- */

/* Floats and block formats; integers and doubles hold no weights. */
static int is_matrix_type(int32_t type) {
    const k_quant *q = k_quant_get(type);
    if (!q || !q->stored) return 0;
    return type != K_T_I8 && type != K_T_I16 && type != K_T_I32 && type != K_T_I64 && type != K_T_F64;
}

int q4x_bind_view(q4x_bind *b, const q4x_tensor *t, int64_t rows, int64_t cols, k_weight *ret, q4x_err *err) {
    const k_quant *q = k_quant_get(t->type);
    if (!is_matrix_type(t->type))
        return q4x_fail(err, Q4X_E_MISMATCH, "%s: tensor %s: expected floats or a block format, found %s",
                        b->cfg->where, t->name, type_name(t->type));
    if (cols % q->elems)
        return q4x_fail(err, Q4X_E_MISMATCH, "%s: tensor %s: rows of %lld elements are no whole blocks of %s (%d)",
                        b->cfg->where, t->name, (long long)cols, q->name, q->elems);
    size_t row_bytes = (size_t)(cols / q->elems) * (size_t)q->bytes;
    Q4X_BUG_IF(t->bytes / row_bytes != (size_t)rows || t->bytes % row_bytes); /* the container checked it */
    *ret = (k_weight){.data = t->data, .rows = rows, .cols = cols, .row_bytes = row_bytes, .type = t->type};
    return 0;
}

static int give(const q4x_bind *b, const char *name, int ndim, const int64_t *ne, const k_weight *w, int64_t nw,
                const float *v, q4x_err *err) {
    return b->taker->take(b->taker->ctx, &(q4x_given){name, ndim, ne, w, nw, v}, err);
}

int q4x_bind_give(q4x_bind *b, const char *name, const k_weight *w, int64_t n, q4x_err *err) {
    const int64_t ne[] = {w->cols, n * w->rows};
    return give(b, name, 2, ne, w, n, NULL, err);
}

int q4x_bind_mat(q4x_bind *b, const char *name, int64_t rows, int64_t cols, k_weight *ret, q4x_err *err) {
    const int64_t ne[] = {cols, rows};
    const q4x_tensor *t;
    if (b->taker) return q4x_bind_give(b, name, ret, 1, err);
    int rc = q4x_bind_find(b, name, 2, ne, &t, err);
    return rc || !t ? rc : q4x_bind_view(b, t, rows, cols, ret, err);
}

int q4x_bind_row(q4x_bind *b, const char *name, int64_t cols, k_weight *ret, q4x_err *err) {
    const int64_t ne[] = {cols, 1};
    if (b->taker) return give(b, name, 1, ne, ret, 1, NULL, err);
    const q4x_tensor *t = q4x_model_find(b->m, name);
    int rc = q4x_bind_find(b, name, t && t->ndim == 2 ? 2 : 1, ne, &t, err);
    return rc || !t ? rc : q4x_bind_view(b, t, 1, cols, ret, err);
}

k_weight q4x_rows(k_weight w, int64_t first, int64_t n) {
    if (w.data) w.data = (const char *)w.data + (size_t)first * w.row_bytes;
    w.rows = n;
    return w;
}

int q4x_bind_stack(q4x_bind *b, const char *name, int64_t n, int64_t rows, int64_t cols, k_weight **ret, q4x_err *err) {
    const int64_t ne[] = {cols, rows, n};
    const q4x_tensor *t;
    k_weight all;
    if (b->taker) return give(b, name, 3, ne, *ret, n, NULL, err);
    *ret = NULL;
    int rc = q4x_bind_find(b, name, 3, ne, &t, err);
    if (rc || !t) return rc;
    rc = q4x_bind_view(b, t, n * rows, cols, &all, err);
    if (rc) return rc;
    k_weight *w = q4x_bind_alloc(b, n, sizeof *w, err);
    if (!w) return Q4X_E_NOMEM;
    for (int64_t i = 0; i < n; i++) w[i] = q4x_rows(all, i * rows, rows);
    *ret = w;
    return 0;
}

int q4x_bind_split(q4x_bind *b, const k_weight *both, int64_t n, int64_t F, k_weight **ret_gate, k_weight **ret_up,
                   q4x_err *err) {
    if (!both) return 0;
    k_weight *gate = q4x_bind_alloc(b, n, sizeof *gate, err);
    k_weight *up = gate ? q4x_bind_alloc(b, n, sizeof *up, err) : NULL;
    if (!up) return Q4X_E_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        gate[i] = q4x_rows(both[i], 0, F);
        up[i] = q4x_rows(both[i], F, F);
    }
    *ret_gate = gate;
    *ret_up = up;
    return 0;
}

/* ---- vectors ---- */

static float value_at(const q4x_tensor *t, int64_t i) {
    float f;
    uint16_t h;
    if (t->type == K_T_F32) {
        memcpy(&f, (const char *)t->data + 4 * i, 4);
        return f;
    }
    memcpy(&h, (const char *)t->data + 2 * i, 2);
    return t->type == K_T_BF16 ? k_f32_from_bf16(h) : k_f32_from_f16(h);
}

int q4x_bind_vec(q4x_bind *b, const char *name, int ndim, const int64_t *ne, float add, float **ret, q4x_err *err) {
    const q4x_tensor *t;
    int64_t n = 1;
    *ret = NULL;
    int rc = q4x_bind_find(b, name, ndim, ne, &t, err);
    if (rc || !t) return rc;
    if (t->type != K_T_F32 && t->type != K_T_F16 && t->type != K_T_BF16)
        return q4x_fail(err, Q4X_E_MISMATCH, "%s: tensor %s: expected F32, F16 or BF16, found %s", b->cfg->where,
                        t->name, type_name(t->type));
    for (int i = 0; i < ndim; i++) n *= ne[i];
    float *v = q4x_bind_alloc(b, n, sizeof *v, err);
    if (!v) return Q4X_E_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        float x = value_at(t, i);
        v[i] = add != 0 ? add + x : x;
    }
    *ret = v;
    return 0;
}

/* Rounded to f32 at each step as the reference's buffer is: exponent, power, reciprocal. */
int q4x_bind_freq(q4x_bind *b, float **ret, q4x_err *err) {
    int64_t half = b->cfg->rot / 2;
    float *f = q4x_bind_alloc(b, half, sizeof *f, err);
    if (!f) return Q4X_E_NOMEM;
    for (int64_t j = 0; j < half; j++) {
        float e = (float)(2 * j) / (float)b->cfg->rot;
        float p = (float)pow((double)(float)b->cfg->theta, (double)e);
        f[j] = 1.0f / p;
    }
    *ret = f;
    return 0;
}

/* ---- the rest of the contract ---- */

/* Parts that are not run. */
static int is_allowed(const q4x_bind *b, const char *name, int64_t skip_from, int64_t skip_to) {
    if (b->cfg->container == Q4X_HF)
        return q4x_model_foreign(name) || (b->cfg->tied && !strcmp(name, "lm_head.weight"));
    if (strncmp(name, "blk.", 4) || name[4] < '0' || name[4] > '9') return 0;
    long n = strtol(name + 4, NULL, 10);
    return n >= skip_from && n < skip_to;
}

int q4x_bind_complete(const q4x_bind *b, int64_t skip_from, int64_t skip_to, q4x_err *err) {
    int64_t surplus = 0;
    char names[256] = "";
    for (int64_t i = 0; i < q4x_model_ntensors(b->m); i++) {
        const char *name = q4x_model_tensor(b->m, i)->name;
        size_t n = strlen(names);
        if (q4x_names_find(&b->used, name, strlen(name)) >= 0 || is_allowed(b, name, skip_from, skip_to)) continue;
        if (surplus++ < 3) snprintf(names + n, sizeof names - n, "%s%.80s", n ? ", " : "", name);
    }
    const char *where = b->cfg->where;
    if (b->nmissing && surplus)
        return q4x_fail(err, Q4X_E_MISMATCH,
                        "%s: %lld tensors are missing (%s%s) and %lld unknown ones are there (%s%s)", where,
                        (long long)b->nmissing, b->missing, b->nmissing > 3 ? ", .." : "", (long long)surplus, names,
                        surplus > 3 ? ", .." : "");
    if (b->nmissing)
        return q4x_fail(err, Q4X_E_MISMATCH, "%s: %lld tensors are missing: %s%s", where, (long long)b->nmissing,
                        b->missing, b->nmissing > 3 ? ", .." : "");
    if (surplus)
        return q4x_fail(err, Q4X_E_MISMATCH, "%s: %lld tensors that the architecture does not have: %s%s", where,
                        (long long)surplus, names, surplus > 3 ? ", .." : "");
    return 0;
}

/* ---- names in their places ---- */

q4x_scope q4x_scope_whole(q4x_bind *b, const char *known, const char *known2) {
    static const char multimodal[] = "model.language_model.";
    const char *const names[] = {known, known2};
    q4x_scope s = {.b = b, .root = "model.", .layer = -1};
    for (int i = 0; i < 2; i++) {
        snprintf(s.name, sizeof s.name, "%s%s", multimodal, names[i]);
        if (q4x_model_find(b->m, s.name)) s.root = multimodal;
    }
    return s;
}

const char *q4x_scope_name(q4x_scope *s, const char *suffix) {
    const int hf = s->b->cfg->container == Q4X_HF;
    if (s->layer < 0)
        snprintf(s->name, sizeof s->name, "%s%s", hf ? s->root : "", suffix);
    else
        snprintf(s->name, sizeof s->name, "%s%s%d.%s", hf ? s->root : "", hf ? "layers." : "blk.", s->layer, suffix);
    return s->name;
}

int q4x_scope_mat(q4x_scope *s, const char *suffix, int64_t rows, int64_t cols, k_weight *ret, q4x_err *err) {
    return q4x_bind_mat(s->b, q4x_scope_name(s, suffix), rows, cols, ret, err);
}

/* The bound vector is ours until here, const from now on. */
static int vec(q4x_scope *s, const char *suffix, int ndim, const int64_t *ne, float add, const float **ret,
               q4x_err *err) {
    float *v;
    if (s->b->taker) return give(s->b, q4x_scope_name(s, suffix), ndim, ne, NULL, 0, *ret, err);
    int rc = q4x_bind_vec(s->b, q4x_scope_name(s, suffix), ndim, ne, add, &v, err);
    if (!rc) *ret = v;
    return rc;
}

int q4x_scope_vec(q4x_scope *s, const char *suffix, int64_t n, const float **ret, q4x_err *err) {
    return vec(s, suffix, 1, &n, 0, ret, err);
}

int q4x_scope_norm(q4x_scope *s, const char *suffix, int64_t n, const float **ret, q4x_err *err) {
    return vec(s, suffix, 1, &n, s->b->cfg->container == Q4X_HF, ret, err);
}

int q4x_scope_taps(q4x_scope *s, const char *suffix, int64_t channels, int64_t n, const float **ret, q4x_err *err) {
    const int hf = s->b->cfg->container == Q4X_HF;
    const int64_t ne[] = {n, hf ? 1 : channels, channels};
    return vec(s, suffix, hf ? 3 : 2, ne, 0, ret, err);
}
