/* gguf_write_kv.c: what is declared: metadata records and tensors, held to the reader's rules. */
#include <stdlib.h>
#include <string.h>

#include "kernels/quant.h"
#include "lib/gguf_write_int.h"

static int no_memory(const q4x_gguf_out *o, q4x_err *err) {
    return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for its header", q4x_tail(o->path));
}

/* ---- keys ---- */

static int bad_key(const q4x_gguf_out *o, const char *key, const char *what, q4x_err *err) {
    return q4x_fail(err, Q4X_E_ARG, "%s: key '%.64s': %s", q4x_tail(o->path), key, what);
}

static int printable(const char *s, unsigned char lo) {
    for (; *s; s++)
        if ((unsigned char)*s < lo || (unsigned char)*s > 0x7e) return 0;
    return 1;
}

/* Check and enter the key, write it and its type. */
static int open_kv(q4x_gguf_out *o, const char *key, uint32_t type, q4x_err *err) {
    size_t n = strlen(key);
    Q4X_BUG_IF(o->phase != Q4X_GOUT_DECLARE);
    if (!n || n > Q4X_GGUF_MAX_KEY) return bad_key(o, key, "expected a length of 1 to 65535 bytes", err);
    if (!printable(key, 0x21)) return bad_key(o, key, "expected printable ASCII without blanks", err);
    if (!strcmp(key, "general.alignment") || !strncmp(key, "split.", 6))
        return bad_key(o, key, "the writer sets it by itself", err);
    if (o->nkv >= Q4X_GGUF_MAX_KV - 4) return bad_key(o, key, "expected at most 65532 keys", err);
    const char *copy = q4x_pool_str(&o->pool, key, n);
    int rc = copy ? q4x_names_add(&o->keys, copy, n, 0) : Q4X_E_NOMEM;
    if (rc == 1) return bad_key(o, key, "it is there already", err);
    if (rc) return no_memory(o, err);
    q4x_gput_str(&o->kv, key, n);
    q4x_put_u32(&o->kv, type);
    o->nkv++;
    return 0;
}

static int close_kv(const q4x_gguf_out *o, q4x_err *err) {
    return o->kv.failed ? no_memory(o, err) : 0;
}

static int scalar(q4x_gguf_out *o, const char *key, uint32_t type, const void *v, size_t size, q4x_err *err) {
    int rc = open_kv(o, key, type, err);
    if (rc) return rc;
    q4x_put(&o->kv, v, size);
    return close_kv(o, err);
}

int q4x_gguf_out_u32(q4x_gguf_out *o, const char *key, uint32_t v, q4x_err *err) {
    return scalar(o, key, Q4X_GGUF_U32, &v, sizeof v, err);
}
int q4x_gguf_out_i32(q4x_gguf_out *o, const char *key, int32_t v, q4x_err *err) {
    return scalar(o, key, Q4X_GGUF_I32, &v, sizeof v, err);
}
int q4x_gguf_out_u64(q4x_gguf_out *o, const char *key, uint64_t v, q4x_err *err) {
    return scalar(o, key, Q4X_GGUF_U64, &v, sizeof v, err);
}
int q4x_gguf_out_f32(q4x_gguf_out *o, const char *key, float v, q4x_err *err) {
    return scalar(o, key, Q4X_GGUF_F32, &v, sizeof v, err);
}
int q4x_gguf_out_bool(q4x_gguf_out *o, const char *key, int v, q4x_err *err) {
    uint8_t b = v != 0;
    return scalar(o, key, Q4X_GGUF_BOOL, &b, sizeof b, err);
}

int q4x_gguf_out_str(q4x_gguf_out *o, const char *key, const char *v, q4x_err *err) {
    size_t n = strlen(v);
    if (n > Q4X_GGUF_MAX_STR) return bad_key(o, key, "expected at most 64 MiB of text", err);
    int rc = open_kv(o, key, Q4X_GGUF_STR, err);
    if (rc) return rc;
    q4x_gput_str(&o->kv, v, n);
    return close_kv(o, err);
}

static int open_array(q4x_gguf_out *o, const char *key, uint32_t etype, size_t n, size_t most, q4x_err *err) {
    if (n > most) return bad_key(o, key, "its array has more elements than a reader takes", err);
    int rc = open_kv(o, key, Q4X_GGUF_ARR, err);
    if (rc) return rc;
    q4x_put_u32(&o->kv, etype);
    q4x_put_u64(&o->kv, n);
    return 0;
}

static int numbers(q4x_gguf_out *o, const char *key, uint32_t etype, const void *v, size_t n, size_t size,
                   q4x_err *err) {
    int rc = open_array(o, key, etype, n, Q4X_GGUF_MAX_NUMS, err);
    if (rc) return rc;
    q4x_put(&o->kv, v, n * size);
    return close_kv(o, err);
}

int q4x_gguf_out_u32s(q4x_gguf_out *o, const char *key, const uint32_t *v, size_t n, q4x_err *err) {
    return numbers(o, key, Q4X_GGUF_U32, v, n, sizeof *v, err);
}
int q4x_gguf_out_i32s(q4x_gguf_out *o, const char *key, const int32_t *v, size_t n, q4x_err *err) {
    return numbers(o, key, Q4X_GGUF_I32, v, n, sizeof *v, err);
}
int q4x_gguf_out_u64s(q4x_gguf_out *o, const char *key, const uint64_t *v, size_t n, q4x_err *err) {
    return numbers(o, key, Q4X_GGUF_U64, v, n, sizeof *v, err);
}
int q4x_gguf_out_f32s(q4x_gguf_out *o, const char *key, const float *v, size_t n, q4x_err *err) {
    return numbers(o, key, Q4X_GGUF_F32, v, n, sizeof *v, err);
}
int q4x_gguf_out_bools(q4x_gguf_out *o, const char *key, const uint8_t *v, size_t n, q4x_err *err) {
    for (size_t i = 0; i < n; i++)
        if (v[i] > 1) return bad_key(o, key, "expected bools of 0 or 1", err);
    return numbers(o, key, Q4X_GGUF_BOOL, v, n, sizeof *v, err);
}

int q4x_gguf_out_strs(q4x_gguf_out *o, const char *key, const char *const *v, const size_t *len, size_t n,
                      q4x_err *err) {
    for (size_t i = 0; i < n; i++)
        if ((len ? len[i] : strlen(v[i])) > Q4X_GGUF_MAX_STR)
            return bad_key(o, key, "expected at most 64 MiB of text in a string", err);
    int rc = open_array(o, key, Q4X_GGUF_STR, n, Q4X_GGUF_MAX_STRS, err);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) q4x_gput_str(&o->kv, v[i], len ? len[i] : strlen(v[i]));
    return close_kv(o, err);
}

/* ---- tensors ---- */

static int bad_tensor(const q4x_gguf_out *o, const char *name, const char *what, q4x_err *err) {
    return q4x_fail(err, Q4X_E_ARG, "%s: tensor '%.64s': %s", q4x_tail(o->path), name, what);
}

/* Shape and type to bytes, as the reader does it. */
static int measure(const q4x_gguf_out *o, q4x_tensor *t, const int64_t *ne, q4x_err *err) {
    const k_quant *q = k_quant_get(t->type);
    uint64_t elems = 1, bytes;
    if (!q || !q->stored) return bad_tensor(o, t->name, "expected a type that files hold", err);
    if (t->ndim < 1 || t->ndim > 4) return bad_tensor(o, t->name, "expected 1 to 4 dimensions", err);
    for (int i = 0; i < t->ndim; i++) {
        if (ne[i] < 1 || (uint64_t)ne[i] > Q4X_GGUF_MAX_DIM)
            return bad_tensor(o, t->name, "expected dimensions of 1 to 2^40", err);
        if (__builtin_mul_overflow(elems, (uint64_t)ne[i], &elems) || elems > Q4X_GGUF_MAX_ELEMS)
            return bad_tensor(o, t->name, "expected at most 2^48 elements", err);
        t->ne[i] = ne[i];
    }
    if (ne[0] % q->elems)
        return q4x_fail(err, Q4X_E_ARG, "%s: tensor '%.64s': expected rows in whole blocks of %d for %s, found %lld",
                        q4x_tail(o->path), t->name, q->elems, q->name, (long long)ne[0]);
    if (__builtin_mul_overflow(elems / (uint64_t)q->elems, (uint64_t)q->bytes, &bytes) || bytes > SIZE_MAX)
        return bad_tensor(o, t->name, "its size does not fit in 64 bits", err);
    t->bytes = (size_t)bytes;
    return 0;
}

static int more_tensors(q4x_gguf_out *o, q4x_err *err) {
    if (o->ntensors < o->cap) return 0;
    int64_t cap = o->cap ? 2 * o->cap : 256;
    q4x_tensor *t = realloc(o->tensor, (size_t)cap * sizeof *t);
    if (!t) return no_memory(o, err);
    o->tensor = t;
    o->cap = cap;
    return 0;
}

int q4x_gguf_out_tensor(q4x_gguf_out *o, const char *name, int32_t type, int ndim, const int64_t *ne, q4x_err *err) {
    int rc = 0;
    size_t n = strlen(name);
    q4x_tensor t = {.name = name, .type = type, .ndim = ndim, .ne = {1, 1, 1, 1}};
    Q4X_BUG_IF(o->phase != Q4X_GOUT_DECLARE);
    if (!n || n > Q4X_GGUF_MAX_NAME) TRY(bad_tensor(o, name, "expected a name of 1 to 63 bytes", err));
    if (!printable(name, 0x20)) TRY(bad_tensor(o, name, "expected printable ASCII", err));
    if (o->ntensors >= Q4X_GGUF_MAX_TENSORS) TRY(bad_tensor(o, name, "expected at most 2^20 tensors", err));
    TRY(measure(o, &t, ne, err));
    TRY(more_tensors(o, err));
    t.name = q4x_pool_str(&o->pool, name, n);
    rc = t.name ? q4x_names_add(&o->tensor_names, t.name, n, o->ntensors) : Q4X_E_NOMEM;
    if (rc == 1) TRY(bad_tensor(o, name, "it is there already", err));
    if (rc) TRY(no_memory(o, err));
    o->tensor[o->ntensors++] = t;
done:
    return rc;
}
