/* gguf_kv.c: the typed getters of model.h on parsed metadata. An array's bytes are never read as anything but the type
 * that the file declares. */
#include "lib/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[Q4X_GGUF_NTYPES] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                        "bool", "string", "array", "u64", "i64", "f64"};

const char *q4x_gguf_type_name(const q4x_gguf_kv *kv, char buf[32]) {
    const char *of = kv->type == Q4X_GGUF_ARR ? type_names[kv->etype] : NULL;
    snprintf(buf, 32, "%s%s%s", type_names[kv->type], of ? " of " : "", of ? of : "");
    return buf;
}

/* An integer of any width: its value modulo 2^64, and whether it is below zero. */
typedef struct {
    uint64_t bits;
    int negative;
} integer;

static int is_int(uint32_t type) {
    return type <= Q4X_GGUF_I32 || type == Q4X_GGUF_U64 || type == Q4X_GGUF_I64;
}

static integer widen(uint32_t type, const void *p) {
    int64_t v = 0;
    switch (type) {
    case Q4X_GGUF_U8:
    case Q4X_GGUF_BOOL: return (integer){*(const uint8_t *)p, 0};
    case Q4X_GGUF_I8: v = (*(const uint8_t *)p ^ 0x80) - 0x80; break; /* sign extension */
    case Q4X_GGUF_U16: {
        uint16_t x;
        memcpy(&x, p, sizeof x);
        return (integer){x, 0};
    }
    case Q4X_GGUF_I16: {
        int16_t x;
        memcpy(&x, p, sizeof x);
        v = x;
        break;
    }
    case Q4X_GGUF_U32: {
        uint32_t x;
        memcpy(&x, p, sizeof x);
        return (integer){x, 0};
    }
    case Q4X_GGUF_I32: {
        int32_t x;
        memcpy(&x, p, sizeof x);
        v = x;
        break;
    }
    case Q4X_GGUF_U64: {
        uint64_t x;
        memcpy(&x, p, sizeof x);
        return (integer){x, 0};
    }
    default: memcpy(&v, p, sizeof v); break;
    }
    return (integer){(uint64_t)v, v < 0};
}

static const q4x_gguf *gguf_of(const q4x_model *m) {
    return m->ops->id == Q4X_GGUF ? m->priv : NULL;
}

static const q4x_gguf_kv *find(const q4x_model *m, const char *key) {
    const q4x_gguf *g = gguf_of(m);
    return g ? q4x_gguf_find(g, key) : NULL;
}

static int mistyped(const q4x_model *m, const q4x_gguf_kv *kv, const char *expected, q4x_err *err) {
    char type[32];
    return q4x_fail(err, Q4X_E_FORMAT, "%s: key '%.64s' at byte %llu: expected %s, found type %s",
                    q4x_tail(m->shard[0].path), kv->key, (unsigned long long)kv->off, expected,
                    q4x_gguf_type_name(kv, type));
}

static int outside(const q4x_model *m, const q4x_gguf_kv *kv, integer v, const char *expected, q4x_err *err) {
    char num[32];
    if (v.negative)
        snprintf(num, sizeof num, "%lld", (long long)v.bits);
    else
        snprintf(num, sizeof num, "%llu", (unsigned long long)v.bits);
    return q4x_fail(err, Q4X_E_FORMAT, "%s: key '%.64s' at byte %llu: expected %s, found %s",
                    q4x_tail(m->shard[0].path), kv->key, (unsigned long long)kv->off, expected, num);
}

int q4x_kv_u64(const q4x_model *m, const char *key, uint64_t *ret, q4x_err *err) {
    const q4x_gguf_kv *kv = find(m, key);
    if (!kv) return 1;
    if (!is_int(kv->type)) return mistyped(m, kv, "an integer", err);
    integer v = widen(kv->type, &kv->raw);
    if (v.negative) return outside(m, kv, v, "an integer that is not negative", err);
    *ret = v.bits;
    return 0;
}

int q4x_kv_i64(const q4x_model *m, const char *key, int64_t *ret, q4x_err *err) {
    const q4x_gguf_kv *kv = find(m, key);
    if (!kv) return 1;
    if (!is_int(kv->type)) return mistyped(m, kv, "an integer", err);
    integer v = widen(kv->type, &kv->raw);
    if (!v.negative && v.bits > INT64_MAX) return outside(m, kv, v, "an integer below 2^63", err);
    *ret = (int64_t)v.bits;
    return 0;
}

int q4x_kv_f64(const q4x_model *m, const char *key, double *ret, q4x_err *err) {
    const q4x_gguf_kv *kv = find(m, key);
    if (!kv) return 1;
    if (kv->type == Q4X_GGUF_F64) {
        memcpy(ret, &kv->raw, sizeof *ret);
        return 0;
    }
    if (kv->type != Q4X_GGUF_F32) return mistyped(m, kv, "f32 or f64", err);
    float f;
    memcpy(&f, &kv->raw, sizeof f);
    *ret = (double)f;
    return 0;
}

int q4x_kv_bool(const q4x_model *m, const char *key, int *ret, q4x_err *err) {
    const q4x_gguf_kv *kv = find(m, key);
    if (!kv) return 1;
    if (kv->type != Q4X_GGUF_BOOL) return mistyped(m, kv, "a bool", err);
    *ret = kv->raw != 0;
    return 0;
}

/* The payload of a string or array, with the file's size looked at again: metadata lie in shard 0. */
static int payload(const q4x_model *m, const q4x_gguf_kv *kv, const uint8_t **ret, q4x_err *err) {
    int rc = q4x_map_check(&m->map[0], m->shard[0].path, err);
    if (!rc) *ret = m->map[0].data + kv->off;
    return rc;
}

int q4x_kv_str(const q4x_model *m, const char *key, const char **ret, size_t *ret_len, q4x_err *err) {
    const q4x_gguf_kv *kv = find(m, key);
    if (!kv) return 1;
    if (kv->type != Q4X_GGUF_STR) return mistyped(m, kv, "a string", err);
    const uint8_t *p;
    int rc = payload(m, kv, &p, err);
    if (rc) return rc;
    *ret = (const char *)p;
    *ret_len = (size_t)kv->len;
    return 0;
}

int q4x_kv_ints(const q4x_model *m, const char *key, int64_t **ret, int64_t *ret_n, q4x_err *err) {
    const q4x_gguf_kv *kv = find(m, key);
    if (!kv) return 1;
    int rc = 0;
    int64_t *v = NULL;
    if (kv->type != Q4X_GGUF_ARR || !(is_int(kv->etype) || kv->etype == Q4X_GGUF_BOOL))
        TRY(mistyped(m, kv, "an array of integers or bools", err));
    const uint8_t *p;
    TRY(payload(m, kv, &p, err));
    size_t n = (size_t)kv->count; /* at most 2^28 */
    v = malloc((n ? n : 1) * sizeof *v);
    if (!v) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for key '%.64s'", q4x_tail(m->path), kv->key));
    size_t size = n ? (size_t)kv->len / n : 0;
    for (size_t i = 0; i < n; i++) {
        integer x = widen(kv->etype, p + i * size);
        if (!x.negative && x.bits > INT64_MAX) TRY(outside(m, kv, x, "integers below 2^63", err));
        v[i] = (int64_t)x.bits;
    }
    *ret = v;
    *ret_n = (int64_t)n;
    return 0;
done:
    free(v);
    return rc;
}

static int strings(const q4x_model *m, const q4x_gguf_kv *kv, q4x_err *err) {
    if (kv->type == Q4X_GGUF_ARR && kv->etype == Q4X_GGUF_STR) return 0;
    return mistyped(m, kv, "an array of strings", err);
}

int q4x_kv_strs_count(const q4x_model *m, const char *key, int64_t *ret_n, q4x_err *err) {
    const q4x_gguf_kv *kv = find(m, key);
    if (!kv) return 1;
    const uint8_t *p;
    int rc = strings(m, kv, err);
    if (!rc) rc = payload(m, kv, &p, err);
    if (!rc) *ret_n = (int64_t)kv->count;
    return rc;
}

/* Lengths come from the index, not from the file again: it may have been written to since. The size of the file is not
 * looked at either, which would be a system call a token; the count's getter does that. */
int q4x_kv_strs_get(const q4x_model *m, const char *key, int64_t i, const char **ret, size_t *ret_len, q4x_err *err) {
    const q4x_gguf_kv *kv = find(m, key);
    if (!kv) return 1;
    int rc = strings(m, kv, err);
    if (rc) return rc;
    if (i < 0 || (uint64_t)i >= kv->count)
        return q4x_fail(err, Q4X_E_ARG, "%s: key '%.64s': expected an index below %llu, found %lld",
                        q4x_tail(m->shard[0].path), kv->key, (unsigned long long)kv->count, (long long)i);
    uint64_t at = kv->index[i] + 8;
    *ret = (const char *)m->map[0].data + at;
    *ret_len = (size_t)(kv->index[i + 1] - at);
    return 0;
}

int64_t q4x_kv_count(const q4x_model *m) {
    const q4x_gguf *g = gguf_of(m);
    return g ? (int64_t)g->nkv : 0;
}

const char *q4x_kv_key(const q4x_model *m, int64_t i) {
    Q4X_BUG_IF(i < 0 || i >= q4x_kv_count(m));
    const q4x_gguf *g = m->priv;
    return g->kv[i].key;
}
