#include "lib/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/k.h"
#include "lib/json_in.h"

/* The format's dtypes: bits of an element, and the house's type if it has one. */
static const struct {
    const char *name;
    int bits;
    int type;
} dtypes[] = {
    {"BF16", 16, K_T_BF16}, {"F32", 32, K_T_F32},   {"F16", 16, K_T_F16},   {"F64", 64, K_T_F64}, {"I8", 8, K_T_I8},
    {"I16", 16, K_T_I16},   {"I32", 32, K_T_I32},   {"I64", 64, K_T_I64},   {"U8", 8, -1},        {"U16", 16, -1},
    {"U32", 32, -1},        {"U64", 64, -1},        {"BOOL", 8, -1},        {"F8_E4M3", 8, -1},   {"F8_E5M2", 8, -1},
    {"F8_E8M0", 8, -1},     {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1}, {"F6_E2M3", 6, -1},   {"F6_E3M2", 6, -1},
    {"F4", 4, -1},          {"C64", 64, -1},
};

/* One entry: three keys, two short arrays. Metadata may be a whole configuration in a string. */
static const q4x_json_limits entry_limits = {65536, 2, 64, 256};
static const q4x_json_limits name_limits = {8 * Q4X_ST_MAXNAME, 0, 0, 0};
static const q4x_json_limits meta_limits = {4 << 20, 1, 1, 65536};

typedef struct {
    const char *where;
    const char *head; /* the JSON text */
    size_t n, pos;
    uint64_t data_bytes; /* behind the header */
    q4x_st *st;
    int64_t cap;
} reader;

static void skip_blanks(reader *r) {
    while (r->pos < r->n && strchr(" \t\r\n", r->head[r->pos]) && r->head[r->pos]) r->pos++;
}

static int expect(reader *r, char c, const char *what, q4x_err *err) {
    skip_blanks(r);
    if (r->pos < r->n && r->head[r->pos] == c) {
        r->pos++;
        return 0;
    }
    return q4x_fail(err, Q4X_E_FORMAT, "%s: header: expected '%c' %s at byte %zu of the JSON", r->where, c, what,
                    r->pos);
}

/* The next string or container, parsed by itself, so that no value can cost more memory than its own limits allow. */
static int next_value(reader *r, const q4x_json_limits *lim, char first, const char *what, json_t **ret, q4x_err *err) {
    skip_blanks(r);
    size_t at = r->pos;
    if (at >= r->n || r->head[at] != first)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: header: %s: expected '%c' at byte %zu of the JSON", r->where, what,
                        first, at);
    size_t span = q4x_json_span(r->head + at, r->n - at);
    if (!span)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: header: %s at byte %zu of the JSON does not end", r->where, what, at);
    int rc = q4x_json_read(r->head + at, span, lim, "JSON", ret, err);
    if (rc) {
        q4x_err_prefix(err, "%s: header: %s at byte %zu", r->where, what, at);
        return rc;
    }
    r->pos = at + span;
    return 0;
}

static int set_dtype(const json_t *j, const char *where, q4x_st_tensor *t, int *ret_bits, q4x_err *err) {
    if (!json_is_string(j))
        return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s: dtype is missing or no string", where, t->name);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, json_string_value(j))) continue;
        t->dtype = dtypes[i].name;
        t->type = dtypes[i].type;
        *ret_bits = dtypes[i].bits;
        return 0;
    }
    return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s: dtype %.40s is not one of the format's", where, t->name,
                    json_string_value(j));
}

static int set_shape(const json_t *j, const char *where, q4x_st_tensor *t, q4x_err *err) {
    if (!json_is_array(j))
        return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s: shape is missing or no array", where, t->name);
    size_t nd = json_array_size(j);
    if (nd > Q4X_ST_MAXDIM)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s: %zu dimensions, at most %d are read", where, t->name, nd,
                        Q4X_ST_MAXDIM);
    t->ndim = (int32_t)nd;
    t->elems = 1;
    for (size_t i = 0; i < nd; i++) {
        const json_t *d = json_array_get(j, i);
        json_int_t v = json_integer_value(d);
        if (!json_is_integer(d) || v < 0)
            return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s: shape[%zu] is no count", where, t->name, i);
        t->shape[i] = v;
        if (__builtin_mul_overflow(t->elems, (int64_t)v, &t->elems))
            return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s: the product of its dimensions overflows", where,
                            t->name);
    }
    return 0;
}

static int set_offsets(const json_t *j, const reader *r, q4x_st_tensor *t, int bits, q4x_err *err) {
    const json_t *a = json_array_get(j, 0), *b = json_array_get(j, 1);
    if (json_array_size(j) != 2 || !json_is_integer(a) || !json_is_integer(b))
        return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s: data_offsets: expected two integers", r->where, t->name);
    json_int_t begin = json_integer_value(a), end = json_integer_value(b);
    if (begin < 0 || end < begin)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s: data_offsets [%lld, %lld] are no range", r->where, t->name,
                        (long long)begin, (long long)end);
    int64_t nbits;
    if (__builtin_mul_overflow(t->elems, (int64_t)bits, &nbits) || nbits % 8)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s: %lld elements of %s are no whole number of bytes", r->where,
                        t->name, (long long)t->elems, t->dtype);
    if (end - begin != nbits / 8)
        return q4x_fail(err, Q4X_E_FORMAT,
                        "%s: tensor %s: data_offsets hold %lld bytes, its %lld elements of %s need %lld", r->where,
                        t->name, (long long)(end - begin), (long long)t->elems, t->dtype, (long long)(nbits / 8));
    if ((uint64_t)end > r->data_bytes)
        return q4x_fail(err, Q4X_E_TRUNCATED,
                        "%s: tensor %s: data end at byte %lld behind the header, the file has %llu there: it is cut",
                        r->where, t->name, (long long)end, (unsigned long long)r->data_bytes);
    t->off = r->st->data_off + (uint64_t)begin;
    t->bytes = (uint64_t)(end - begin);
    return 0;
}

static int check_name(const char *s, const char *where, q4x_err *err) {
    size_t n = strlen(s);
    if (n < 1 || n > Q4X_ST_MAXNAME)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: header: a tensor name of %zu bytes, expected 1 to %d", where, n,
                        Q4X_ST_MAXNAME);
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return q4x_fail(err, Q4X_E_FORMAT, "%s: header: a tensor name holds control character 0x%02x", where,
                            (unsigned)(unsigned char)*s);
    return 0;
}

static int add_tensor(reader *r, const char *name, const json_t *entry, q4x_err *err) {
    q4x_st *st = r->st;
    if (st->n == r->cap) {
        if (st->n >= Q4X_ST_MAXTENSORS)
            return q4x_fail(err, Q4X_E_FORMAT, "%s: header: more than %d tensors", r->where, Q4X_ST_MAXTENSORS);
        int64_t cap = r->cap ? 2 * r->cap : 64;
        q4x_st_tensor *t = realloc(st->t, (size_t)cap * sizeof *t);
        if (!t) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for %lld tensors", r->where, (long long)cap);
        st->t = t;
        r->cap = cap;
    }
    q4x_st_tensor *t = &st->t[st->n];
    memset(t, 0, sizeof *t);
    t->name = strdup(name);
    if (!t->name) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for a tensor's name", r->where);
    st->n++;
    int bits = 0, rc = set_dtype(json_object_get(entry, "dtype"), r->where, t, &bits, err);
    if (!rc) rc = set_shape(json_object_get(entry, "shape"), r->where, t, err);
    if (!rc) rc = set_offsets(json_object_get(entry, "data_offsets"), r, t, bits, err);
    return rc;
}

static int set_metadata(reader *r, json_t *meta, q4x_err *err) {
    const char *key;
    json_t *v;
    if (r->st->metadata) {
        json_decref(meta);
        return q4x_fail(err, Q4X_E_FORMAT, "%s: header: __metadata__ stands twice", r->where);
    }
    r->st->metadata = meta;
    json_object_foreach(meta, key, v) {
        if (!json_is_string(v))
            return q4x_fail(err, Q4X_E_FORMAT, "%s: header: __metadata__: %.40s is no string", r->where, key);
    }
    return 0;
}

/* One `name: value` of the header. */
static int read_entry(reader *r, q4x_err *err) {
    json_t *name = NULL, *value = NULL;
    int rc;
    TRY(next_value(r, &name_limits, '"', "a tensor name", &name, err));
    TRY(check_name(json_string_value(name), r->where, err));
    TRY(expect(r, ':', "after a name", err));
    if (!strcmp(json_string_value(name), "__metadata__")) {
        TRY(next_value(r, &meta_limits, '{', "__metadata__", &value, err));
        rc = set_metadata(r, value, err);
        value = NULL;
    } else {
        TRY(next_value(r, &entry_limits, '{', "a tensor's entry", &value, err));
        rc = add_tensor(r, json_string_value(name), value, err);
    }
done:
    json_decref(name);
    json_decref(value);
    return rc;
}

static int read_header(reader *r, q4x_err *err) {
    int rc = 0;
    r->pos = 1; /* the opening brace was seen */
    skip_blanks(r);
    if (r->pos < r->n && r->head[r->pos] == '}')
        r->pos++;
    else
        for (;;) {
            rc = read_entry(r, err);
            if (rc) return rc;
            skip_blanks(r);
            if (r->pos < r->n && r->head[r->pos] == ',') {
                r->pos++;
                continue;
            }
            rc = expect(r, '}', "after the last tensor", err);
            if (rc) return rc;
            break;
        }
    skip_blanks(r);
    if (r->pos < r->n)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: header: something follows the JSON object at byte %zu", r->where,
                        r->pos);
    return 0;
}

static int by_offset(const void *pa, const void *pb) {
    const q4x_st_tensor *a = pa, *b = pb;
    if (a->off != b->off) return a->off < b->off ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int by_name(const void *pa, const void *pb) {
    const q4x_st_tensor *const *a = pa, *const *b = pb;
    return strcmp((*a)->name, (*b)->name);
}

/* Each tensor begins where the one before ends, the last ends with the file. */
static int check_layout(q4x_st *st, uint64_t size, const char *where, q4x_err *err) {
    uint64_t at = st->data_off;
    const char *before = "the header";
    for (int64_t i = 0; i < st->n; i++) {
        const q4x_st_tensor *t = &st->t[i];
        if (t->off != at)
            return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s begins at byte %llu, %s ends at %llu: %s", where, t->name,
                            (unsigned long long)t->off, before, (unsigned long long)at,
                            t->off < at ? "they overlap" : "a hole");
        at += t->bytes; /* cannot pass the file's size: set_offsets */
        before = t->name;
    }
    if (at != size)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: the last tensor ends at byte %llu, the file at %llu", where,
                        (unsigned long long)at, (unsigned long long)size);
    return 0;
}

static int check_tensors(q4x_st *st, uint64_t size, const char *where, q4x_err *err) {
    if (st->n) qsort(st->t, (size_t)st->n, sizeof *st->t, by_offset);
    st->by_name = malloc((size_t)(st->n + 1) * sizeof *st->by_name);
    if (!st->by_name) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for its index", where);
    for (int64_t i = 0; i < st->n; i++) st->by_name[i] = &st->t[i];
    if (st->n) qsort(st->by_name, (size_t)st->n, sizeof *st->by_name, by_name);
    for (int64_t i = 1; i < st->n; i++)
        if (!strcmp(st->by_name[i - 1]->name, st->by_name[i]->name))
            return q4x_fail(err, Q4X_E_FORMAT, "%s: header: tensor %s stands twice", where, st->by_name[i]->name);
    return check_layout(st, size, where, err);
}

int q4x_st_head(const void *begin, uint64_t size, const char *where, size_t *ret, q4x_err *err) {
    const unsigned char *p = begin;
    uint64_t n = 0;
    if (size < 8)
        return q4x_fail(err, Q4X_E_TRUNCATED, "%s: %llu bytes are no safetensors file, its header length alone needs 8",
                        where, (unsigned long long)size);
    for (int i = 7; i >= 0; i--) n = n << 8 | p[i];
    if (n < 2 || n > Q4X_ST_MAXHEADER)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: header length %llu, expected 2 to %d: no safetensors file?", where,
                        (unsigned long long)n, Q4X_ST_MAXHEADER);
    if (n > size - 8)
        return q4x_fail(err, Q4X_E_TRUNCATED, "%s: header length %llu, but only %llu bytes follow: the file is cut",
                        where, (unsigned long long)n, (unsigned long long)size - 8);
    *ret = (size_t)n + 8;
    return 0;
}

int q4x_st_parse(const void *data, uint64_t size, const char *where, q4x_st **ret, q4x_err *err) {
    const unsigned char *p = data;
    size_t head = 0;
    int rc = q4x_st_head(data, size, where, &head, err);
    if (rc) return rc;
    if (p[8] != '{')
        return q4x_fail(err, Q4X_E_FORMAT, "%s: the header begins with byte 0x%02x, expected '{'", where, p[8]);
    q4x_st *st = calloc(1, sizeof *st);
    if (!st) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory", where);
    st->data_off = head;
    reader r = {.where = where, .head = (const char *)p + 8, .n = head - 8, .data_bytes = size - head, .st = st};
    TRY(read_header(&r, err));
    TRY(check_tensors(st, size, where, err));
    *ret = st;
    st = NULL;
done:
    q4x_st_free(st);
    return rc;
}

void q4x_st_free(q4x_st *st) {
    if (!st) return;
    for (int64_t i = 0; i < st->n; i++) free(st->t[i].name);
    free(st->t);
    free(st->by_name);
    json_decref(st->metadata);
    free(st);
}

const q4x_st_tensor *q4x_st_find(const q4x_st *st, const char *name) {
    q4x_st_tensor key = {.name = (char *)(uintptr_t)name};
    const q4x_st_tensor *kp = &key, **hit;
    if (!st->n) return NULL;
    hit = bsearch(&kp, st->by_name, (size_t)st->n, sizeof *st->by_name, by_name);
    return hit ? *hit : NULL;
}

const char *q4x_st_meta(const q4x_st *st, const char *key) {
    return json_string_value(json_object_get(st->metadata, key));
}
