#include "lib/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/k.h"

typedef unsigned long long ull;

static const uint8_t scalar_size[Q4X_GGUF_NTYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
/* Stored types by id; a gap has elems 0. */
typedef struct {
    const char *name;
    uint32_t elems, bytes, stored;
} stored_type;
static const stored_type stored_types[] = {
#define QUANT(id, name, elems, bytes, stored) [id] = {#name, elems, bytes, stored},
#include "kernels/quants.def"
#undef QUANT
};
enum { NSTORED = sizeof stored_types / sizeof *stored_types };

/* What one parse carries. */
typedef struct {
    q4x_cur c;
    q4x_model *m;
    q4x_gguf *g;
    uint64_t ntensors;
    uint64_t running; /* where the next tensor's data must begin (gguf-quants 1.2) */
    q4x_err *err;
} parser;

/* "FIELD at byte N: expected ..., found ...": what every message of this file begins with. */
#define BAD(p, code, at, field, fmt, ...)                                                                              \
    q4x_fail((p)->err, code, "%s at byte %llu: expected " fmt, field, (ull)(at), __VA_ARGS__)

/* ---- head ---- */

static int parse_head(parser *p) {
    int rc = 0;
    const uint8_t *magic;
    uint32_t version;
    uint64_t nkv;
    TRY(q4x_cur_take(&p->c, 4, "magic", &magic, p->err));
    if (memcmp(magic, "GGUF", 4) != 0)
        TRY(BAD(p, Q4X_E_FORMAT, 0, "magic", "'GGUF', found bytes %02x %02x %02x %02x", magic[0], magic[1], magic[2],
                magic[3]));
    TRY(q4x_cur_u32(&p->c, "version", &version, p->err));
    if (version && !(version & 0xffff))
        TRY(BAD(p, Q4X_E_UNSUPPORTED, 4, "version", "a little-endian file, found 0x%08x, the mark of a big-endian one",
                (unsigned)version));
    if (version != 2 && version != 3)
        TRY(BAD(p, Q4X_E_UNSUPPORTED, 4, "version", "2 or 3, found %u", (unsigned)version));
    TRY(q4x_cur_u64(&p->c, "n_tensors", &p->ntensors, p->err));
    TRY(q4x_cur_u64(&p->c, "n_kv", &nkv, p->err));
    /* 13 and 24 bytes are the smallest records: a count that cannot be true is refused before anything is made of it.
     */
    uint64_t room = p->c.size - 24, most_kv = room / 13, most_t = room / 24;
    if (most_kv > Q4X_GGUF_MAX_KV) most_kv = Q4X_GGUF_MAX_KV;
    if (most_t > Q4X_GGUF_MAX_TENSORS) most_t = Q4X_GGUF_MAX_TENSORS;
    if (p->ntensors > most_t)
        TRY(BAD(p, Q4X_E_FORMAT, 8, "n_tensors", "at most %llu in a file of %llu bytes, found %llu", (ull)most_t,
                (ull)p->c.size, (ull)p->ntensors));
    if (nkv > most_kv)
        TRY(BAD(p, Q4X_E_FORMAT, 16, "n_kv", "at most %llu in a file of %llu bytes, found %llu", (ull)most_kv,
                (ull)p->c.size, (ull)nkv));
    p->g->version = version;
    p->g->nkv = nkv;
done:
    return rc;
}

/* A key or tensor name: length min .. max, every byte in lo .. 0x7e. */
static int parse_name(parser *p, const char *field, uint32_t max, uint8_t lo, const uint8_t **ret, uint64_t *ret_len) {
    int rc = 0;
    uint64_t at = p->c.pos, len;
    TRY(q4x_cur_u64(&p->c, field, &len, p->err));
    if (len < 1 || len > max)
        TRY(BAD(p, Q4X_E_FORMAT, at, field, "a length of 1 to %u bytes, found %llu", max, (ull)len));
    const uint8_t *s;
    TRY(q4x_cur_take(&p->c, len, field, &s, p->err));
    for (uint64_t i = 0; i < len; i++)
        if (s[i] < lo || s[i] > 0x7e)
            TRY(BAD(p, Q4X_E_FORMAT, at + 8 + i, field, "printable ASCII, found byte 0x%02x", s[i]));
    *ret = s;
    *ret_len = len;
done:
    return rc;
}

/* ---- values ---- */

static int parse_bool_bytes(parser *p, uint64_t n) {
    int rc = 0;
    while (n) {
        uint64_t k = n < Q4X_CUR_TAKE ? n : Q4X_CUR_TAKE, at = p->c.pos;
        const uint8_t *b;
        TRY(q4x_cur_take(&p->c, k, "bool", &b, p->err));
        for (uint64_t i = 0; i < k; i++)
            if (b[i] > 1) TRY(BAD(p, Q4X_E_FORMAT, at + i, "bool", "0 or 1, found %u", b[i]));
        n -= k;
    }
done:
    return rc;
}

static int parse_str_len(parser *p, const char *field, uint64_t *ret) {
    int rc = 0;
    uint64_t at = p->c.pos, len;
    TRY(q4x_cur_u64(&p->c, field, &len, p->err));
    if (len > Q4X_GGUF_MAX_STR)
        TRY(BAD(p, Q4X_E_FORMAT, at, field, "at most %u bytes, found %llu", Q4X_GGUF_MAX_STR, (ull)len));
    if (!q4x_cur_need(&p->c, len))
        TRY(BAD(p, Q4X_E_TRUNCATED, at, field, "at most the %llu bytes that are left in the file, found %llu",
                (ull)(p->c.size - p->c.pos), (ull)len));
    *ret = len;
done:
    return rc;
}

/* Walk the strings once and keep where each one is. The index grows with what was really read, whatever the count
 * claims. */
static int parse_strs(parser *p, q4x_gguf_kv *kv) {
    int rc = 0;
    uint64_t cap = 0;
    for (uint64_t i = 0; i <= kv->count; i++) {
        if (i == cap) {
            cap = cap ? cap * 2 : 16;
            if (cap > kv->count + 1) cap = kv->count + 1;
            uint64_t *big = realloc(kv->index, (size_t)cap * sizeof *big);
            if (!big) TRY(q4x_fail(p->err, Q4X_E_NOMEM, "no memory for an index of %llu strings", (ull)cap));
            kv->index = big;
        }
        kv->index[i] = p->c.pos;
        if (i == kv->count) break;
        uint64_t len;
        TRY(parse_str_len(p, "length of a string in an array", &len));
        TRY(q4x_cur_skip(&p->c, len, "string in an array", p->err));
    }
done:
    return rc;
}

static int parse_array(parser *p, q4x_gguf_kv *kv) {
    int rc = 0;
    uint64_t at = p->c.pos;
    TRY(q4x_cur_u32(&p->c, "element type", &kv->etype, p->err));
    if (kv->etype >= Q4X_GGUF_NTYPES || kv->etype == Q4X_GGUF_ARR)
        TRY(BAD(p, Q4X_E_FORMAT, at, "element type", "a scalar or string type (0 to 12, not 9), found %u%s",
                (unsigned)kv->etype, kv->etype == Q4X_GGUF_ARR ? ", a nested array" : ""));
    at = p->c.pos;
    TRY(q4x_cur_u64(&p->c, "element count", &kv->count, p->err));
    int strs = kv->etype == Q4X_GGUF_STR;
    uint64_t size = strs ? 8 : scalar_size[kv->etype], left = p->c.size - p->c.pos;
    uint64_t most = strs ? Q4X_GGUF_MAX_STRS : Q4X_GGUF_MAX_NUMS;
    if (kv->count > most)
        TRY(BAD(p, Q4X_E_FORMAT, at, "element count", "at most %llu, found %llu", (ull)most, (ull)kv->count));
    if (kv->count > left / size)
        TRY(BAD(p, Q4X_E_TRUNCATED, at, "element count", "at most %llu in the %llu bytes that are left, found %llu",
                (ull)(left / size), (ull)left, (ull)kv->count));
    kv->off = p->c.pos;
    if (strs)
        TRY(parse_strs(p, kv));
    else if (kv->etype == Q4X_GGUF_BOOL)
        TRY(parse_bool_bytes(p, kv->count));
    else
        TRY(q4x_cur_skip(&p->c, kv->count * size, "array", p->err));
    kv->len = p->c.pos - kv->off;
done:
    return rc;
}

static int parse_value(parser *p, q4x_gguf_kv *kv) {
    int rc = 0;
    uint64_t at = p->c.pos;
    TRY(q4x_cur_u32(&p->c, "value type", &kv->type, p->err));
    if (kv->type >= Q4X_GGUF_NTYPES)
        TRY(BAD(p, Q4X_E_FORMAT, at, "value type", "0 to 12, found %u", (unsigned)kv->type));
    if (kv->type == Q4X_GGUF_ARR) return parse_array(p, kv);
    kv->count = 1;
    kv->len = scalar_size[kv->type];
    if (kv->type == Q4X_GGUF_STR) {
        TRY(parse_str_len(p, "length of the string", &kv->len));
        kv->count = kv->len;
        kv->off = p->c.pos;
        TRY(q4x_cur_skip(&p->c, kv->len, "string", p->err));
        return 0;
    }
    kv->off = p->c.pos;
    const uint8_t *b;
    TRY(q4x_cur_take(&p->c, kv->len, "value", &b, p->err));
    memcpy(&kv->raw, b, (size_t)kv->len);
    if (kv->type == Q4X_GGUF_BOOL && kv->raw > 1)
        TRY(BAD(p, Q4X_E_FORMAT, kv->off, "value", "a bool of 0 or 1, found %u", (unsigned)kv->raw));
done:
    return rc;
}

/* The one string that is needed before anybody asks: short, printable, copied. */
static int keep_arch(parser *p, const q4x_gguf_kv *kv) {
    int rc = 0;
    char type[32];
    q4x_cur c = {.fd = -1};
    if (kv->type != Q4X_GGUF_STR)
        TRY(BAD(p, Q4X_E_FORMAT, kv->off, "value", "a string, found type %s", q4x_gguf_type_name(kv, type)));
    if (kv->len < 1 || kv->len > Q4X_GGUF_MAX_NAME)
        TRY(BAD(p, Q4X_E_FORMAT, kv->off, "value", "1 to %u bytes, found %llu", Q4X_GGUF_MAX_NAME, (ull)kv->len));
    TRY(q4x_cur_open(&p->m->map[p->m->nshards - 1], &c, p->err));
    c.pos = kv->off;
    const uint8_t *s;
    TRY(q4x_cur_take(&c, kv->len, "value", &s, p->err));
    for (uint64_t i = 0; i < kv->len; i++)
        if (s[i] < 0x21 || s[i] > 0x7e)
            TRY(BAD(p, Q4X_E_FORMAT, kv->off + i, "value", "printable ASCII, found byte 0x%02x", s[i]));
    p->g->arch = q4x_pool_str(&p->g->pool, s, (size_t)kv->len);
    if (!p->g->arch) TRY(q4x_fail(p->err, Q4X_E_NOMEM, "no memory for the architecture's name"));
done:
    q4x_cur_close(&c);
    return rc;
}

/* ---- keys ---- */

static int parse_kv(parser *p, uint64_t i) {
    int rc = 0;
    q4x_gguf *g = p->g;
    q4x_gguf_kv *kv = &g->kv[i];
    const uint8_t *s;
    uint64_t len, at = p->c.pos;
    TRY(parse_name(p, "key", Q4X_GGUF_MAX_KEY, 0x21, &s, &len));
    kv->key = q4x_pool_str(&g->pool, s, (size_t)len);
    if (!kv->key) TRY(q4x_fail(p->err, Q4X_E_NOMEM, "no memory for a key"));
    int there = q4x_names_add(&g->keys, kv->key, (size_t)len, (int64_t)i);
    if (there < 0) TRY(q4x_fail(p->err, Q4X_E_NOMEM, "no memory for the key table"));
    if (there)
        TRY(BAD(p, Q4X_E_FORMAT, at, "key", "a key that is not used yet, found one that key %lld has already",
                (long long)q4x_names_find(&g->keys, kv->key, (size_t)len)));
    TRY(parse_value(p, kv));
    if (!strcmp(kv->key, "general.architecture")) TRY(keep_arch(p, kv));
done:
    if (rc)
        q4x_err_prefix(p->err, "key %llu%s%.64s%s", (ull)i, kv->key ? " '" : "", kv->key ? kv->key : "",
                       kv->key ? "'" : "");
    return rc;
}

static int parse_kvs(parser *p) {
    int rc = 0;
    q4x_gguf *g = p->g;
    uint64_t n = g->nkv, cap = 0;
    for (g->nkv = 0; g->nkv < n;) {
        if (g->nkv == cap) {
            cap = cap ? cap * 2 : 16;
            q4x_gguf_kv *big = realloc(g->kv, (size_t)cap * sizeof *big);
            if (!big) TRY(q4x_fail(p->err, Q4X_E_NOMEM, "no memory for %llu keys", (ull)cap));
            g->kv = big;
        }
        g->kv[g->nkv] = (q4x_gguf_kv){0};
        g->nkv++; /* counted before it is whole: its index is freed with the rest */
        TRY(parse_kv(p, g->nkv - 1));
    }
done:
    return rc;
}

static int parse_align(parser *p) {
    p->g->align = 32;
    const q4x_gguf_kv *kv = q4x_gguf_find(p->g, "general.alignment");
    if (!kv) return 0;
    char type[32];
    if (kv->type != Q4X_GGUF_U32)
        return BAD(p, Q4X_E_FORMAT, kv->off, "general.alignment", "type u32, found %s", q4x_gguf_type_name(kv, type));
    uint32_t a = (uint32_t)kv->raw;
    if (a < Q4X_GGUF_MIN_ALIGN || a > Q4X_GGUF_MAX_ALIGN || (a & (a - 1)))
        return BAD(p, Q4X_E_FORMAT, kv->off, "general.alignment", "a power of two from %u to %u, found %u",
                   Q4X_GGUF_MIN_ALIGN, Q4X_GGUF_MAX_ALIGN, (unsigned)a);
    p->g->align = a;
    return 0;
}

/* ---- tensors ---- */

static int parse_dims(parser *p, q4x_tensor *t, uint64_t *ret_elems) {
    int rc = 0;
    uint64_t at = p->c.pos, elems = 1;
    uint32_t n;
    TRY(q4x_cur_u32(&p->c, "n_dims", &n, p->err));
    if (n < 1 || n > 4) TRY(BAD(p, Q4X_E_FORMAT, at, "n_dims", "1 to 4, found %u", (unsigned)n));
    t->ndim = (int32_t)n;
    for (uint32_t i = 0; i < 4; i++) t->ne[i] = 1;
    for (uint32_t i = 0; i < n; i++) {
        char field[32];
        snprintf(field, sizeof field, "dimension %u", (unsigned)i);
        at = p->c.pos;
        uint64_t d;
        TRY(q4x_cur_u64(&p->c, field, &d, p->err));
        if (d < 1 || d > Q4X_GGUF_MAX_DIM) TRY(BAD(p, Q4X_E_FORMAT, at, field, "1 to 2^40, found %llu", (ull)d));
        if (__builtin_mul_overflow(elems, d, &elems) || elems > Q4X_GGUF_MAX_ELEMS)
            TRY(BAD(p, Q4X_E_FORMAT, at, field, "a tensor of at most 2^48 elements, found %llu as factor %u", (ull)d,
                    (unsigned)i + 1));
        t->ne[i] = (int64_t)d;
    }
    *ret_elems = elems;
done:
    return rc;
}

static int parse_type(parser *p, q4x_tensor *t, uint64_t elems) {
    int rc = 0;
    uint64_t at = p->c.pos, bytes;
    uint32_t id;
    TRY(q4x_cur_u32(&p->c, "type", &id, p->err));
    const stored_type *s = id < NSTORED ? &stored_types[id] : NULL;
    if (!s || !s->elems)
        TRY(BAD(p, Q4X_E_UNSUPPORTED, at, "type", "a known tensor type, found %d, which is removed or foreign",
                (int32_t)id));
    if (!s->stored)
        TRY(BAD(p, Q4X_E_FORMAT, at, "type", "a type that files hold, found %s (%u), which activations alone use",
                s->name, (unsigned)id));
    if ((uint64_t)t->ne[0] % s->elems)
        TRY(BAD(p, Q4X_E_FORMAT, at, "type", "rows in whole blocks of %u for %s, found dimension 0 = %lld", s->elems,
                s->name, (long long)t->ne[0]));
    if (__builtin_mul_overflow(elems / s->elems, (uint64_t)s->bytes, &bytes) || bytes > SIZE_MAX)
        TRY(BAD(p, Q4X_E_FORMAT, at, "type", "a tensor whose size fits in 64 bits, found %llu elements", (ull)elems));
    t->type = (int32_t)id;
    t->bytes = (size_t)bytes;
done:
    return rc;
}

/* The data of one tensor begin where the last one's end, rounded up (gguf-quants 1.2): no gap, no overlap. */
static int parse_offset(parser *p, const q4x_tensor *t) {
    int rc = 0;
    uint64_t at = p->c.pos, off, end;
    TRY(q4x_cur_u64(&p->c, "offset", &off, p->err));
    if (off != p->running)
        TRY(BAD(p, Q4X_E_FORMAT, at, "offset", "%llu, where the tensor before ends, found %llu", (ull)p->running,
                (ull)off));
    if (__builtin_add_overflow(off, (uint64_t)t->bytes, &end) ||
        __builtin_add_overflow(end, (uint64_t)p->g->align - 1, &end))
        TRY(BAD(p, Q4X_E_FORMAT, at, "offset", "an end that fits in 64 bits, found %llu + %llu", (ull)off,
                (ull)t->bytes));
    p->running = end & ~((uint64_t)p->g->align - 1);
done:
    return rc;
}

static int parse_tensor(parser *p, uint64_t i) {
    int rc = 0;
    char name[Q4X_GGUF_MAX_NAME + 1] = "";
    q4x_tensor t = {.name = name, .shard = p->m->nshards - 1};
    const uint8_t *s;
    uint64_t at = p->c.pos, len, elems;
    TRY(parse_name(p, "name", Q4X_GGUF_MAX_NAME, 0x20, &s, &len));
    memcpy(name, s, (size_t)len);
    TRY(parse_dims(p, &t, &elems));
    TRY(parse_type(p, &t, elems));
    TRY(parse_offset(p, &t));
    rc = q4x_model_add(p->m, &t, p->err);
    if (rc) q4x_err_prefix(p->err, "name at byte %llu", (ull)at);
done:
    if (rc) q4x_err_prefix(p->err, "tensor %llu%s%s%s", (ull)i, name[0] ? " '" : "", name, name[0] ? "'" : "");
    return rc;
}

/* Every tensor's data must lie in the file; the padding after the last may be absent. */
static int place_data(parser *p, int64_t first) {
    q4x_gguf *g = p->g;
    uint64_t size = p->c.size;
    /* pos <= size <= SIZE_MAX / 2, so this cannot wrap. */
    g->data_off = (p->c.pos + g->align - 1) & ~((uint64_t)g->align - 1);
    if (g->data_off > size && p->ntensors)
        return BAD(p, Q4X_E_TRUNCATED, p->c.pos, "padding",
                   "tensor data from byte %llu on, found the end of the file at %llu", (ull)g->data_off, (ull)size);
    if (g->data_off > size) g->data_off = size;
    const uint8_t *base = p->m->map[p->m->nshards - 1].data;
    uint64_t at = g->data_off;
    for (int64_t i = first; i < p->m->ntensors; i++) {
        q4x_tensor *t = &p->m->tensor[i];
        uint64_t room = at < size ? size - at : 0;
        if (t->bytes > room)
            return q4x_fail(
                p->err, Q4X_E_TRUNCATED,
                "tensor %lld '%s': data at byte %llu: expected %llu bytes, found %llu before the end of the "
                "file at %llu",
                (long long)(i - first), t->name, (ull)at, (ull)t->bytes, (ull)room, (ull)size);
        t->data = base + at;
        at += (t->bytes + g->align - 1) & ~((uint64_t)g->align - 1); /* parse_offset added the same without overflow */
    }
    g->data_end = at < size ? at : size;
    return 0;
}

/* ---- whole ---- */

int q4x_gguf_parse(q4x_model *m, q4x_gguf_check check, void *ctx, q4x_gguf *ret, q4x_err *err) {
    int rc = 0;
    Q4X_BUG_IF(m->nshards < 1);
    int64_t first = m->ntensors;
    q4x_gguf g = {0};
    parser p = {.c = {.fd = -1}, .m = m, .g = &g, .err = err};
    TRY(q4x_cur_open(&m->map[m->nshards - 1], &p.c, err));
    TRY(parse_head(&p));
    TRY(parse_kvs(&p));
    TRY(parse_align(&p));
    TRY(check(ctx, &g, err));
    for (uint64_t i = 0; i < p.ntensors; i++) TRY(parse_tensor(&p, i));
    TRY(place_data(&p, first));
    *ret = g;
    g = (q4x_gguf){0};
done:
    q4x_cur_close(&p.c);
    q4x_gguf_free(&g);
    return rc;
}

const q4x_gguf_kv *q4x_gguf_find(const q4x_gguf *g, const char *key) {
    int64_t i = q4x_names_find(&g->keys, key, strlen(key));
    return i < 0 ? NULL : &g->kv[i];
}

void q4x_gguf_free(q4x_gguf *g) {
    for (uint64_t i = 0; i < g->nkv; i++) free(g->kv[i].index);
    free(g->kv);
    q4x_names_free(&g->keys);
    q4x_pool_free(&g->pool);
    *g = (q4x_gguf){0};
}
