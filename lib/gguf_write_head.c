/* gguf_write_head.c: which tensor lies in which file, and what stands before the data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/gguf_write_int.h"

typedef unsigned long long ull;

/* ---- the cut ---- */

/* Files that tensors fill when none may hold more than `most` bytes of data (one larger than that lies alone). first:
 * where each begins, when not NULL. at_least: cut early enough that so many files get a tensor. */
static int64_t fill(const q4x_gguf_out *o, uint64_t most, int64_t at_least, int64_t *first) {
    int64_t files = 0;
    uint64_t used = 0;
    for (int64_t i = 0; i < o->ntensors; i++) {
        uint64_t n = q4x_gpadded(o, o->tensor[i].bytes);
        int must = files + (o->ntensors - i) <= at_least; /* as many tensors are left as files still lack one */
        if (!files || must || n > most || used > most - n) {
            if (first) first[files] = i;
            files++;
            used = 0;
        }
        used = used > UINT64_MAX - n ? UINT64_MAX : used + n;
    }
    return files;
}

/* The smallest limit that needs at most `files` files: by bisection between nothing and everything. */
static uint64_t tightest(const q4x_gguf_out *o, uint64_t total, int64_t files) {
    uint64_t lo = 0, hi = total;
    for (int64_t i = 0; i < o->ntensors; i++) { /* a tensor larger than the limit lies alone: begin at the largest */
        uint64_t n = q4x_gpadded(o, o->tensor[i].bytes);
        if (n > lo) lo = n;
    }
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        if (fill(o, mid, 0, NULL) <= files)
            hi = mid;
        else
            lo = mid + 1;
    }
    return hi;
}

/* Total data of all tensors, padded. */
static int total_bytes(const q4x_gguf_out *o, uint64_t *ret, q4x_err *err) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < o->ntensors; i++)
        if (__builtin_add_overflow(sum, q4x_gpadded(o, o->tensor[i].bytes), &sum) || sum > SIZE_MAX / 4)
            return q4x_fail(err, Q4X_E_ARG, "%s: tensor '%s': expected data of less than 2^62 bytes in all",
                            q4x_tail(o->path), o->tensor[i].name);
    *ret = sum;
    return 0;
}

/* Number of files with data, and the limit and minimum for fill. */
static int choose(const q4x_gguf_out *o, uint64_t total, int64_t *files, uint64_t *most, int64_t *at_least,
                  q4x_err *err) {
    int n = o->cut.shards;
    *at_least = 0;
    *most = total;
    *files = 1;
    if (n > 1) {
        if (o->ntensors < n - 1)
            return q4x_fail(err, Q4X_E_ARG, "%s: expected at most %lld files for %lld tensors, one of them without any",
                            q4x_tail(o->path), (ull)o->ntensors + 1, (ull)o->ntensors);
        *at_least = *files = n - 1;
        *most = tightest(o, total, *files);
    } else if (!n && o->cut.shard_bytes && total > o->cut.shard_bytes) {
        *most = o->cut.shard_bytes;
        *files = fill(o, *most, 0, NULL);
    }
    return 0;
}

/* ---- names ---- */

/* Length of a path without ".gguf", or without "-00001-of-00003.gguf". */
static size_t prefix_len(const char *path) {
    size_t n = strlen(path);
    unsigned a, b;
    int end = 0;
    if (n < 5 || strcmp(path + n - 5, ".gguf") != 0) return n;
    if (n > 20 && sscanf(path + n - 20, "-%5u-of-%5u.gguf%n", &a, &b, &end) == 2 && end == 20) return n - 20;
    return n - 5;
}

static const char *shard_path(q4x_gguf_out *o, int i) {
    if (o->nshards == 1) return q4x_pool_str(&o->pool, o->path, strlen(o->path));
    size_t keep = prefix_len(o->path), cap = keep + 32;
    char *s = malloc(cap);
    if (!s) return NULL;
    int n = snprintf(s, cap, "%.*s-%05d-of-%05d.gguf", (int)keep, o->path, i + 1, o->nshards);
    char *copy = q4x_pool_str(&o->pool, s, (size_t)n);
    free(s);
    return copy;
}

/* ---- headers ---- */

static void put_key(q4x_bytes *b, const char *key, uint32_t type) {
    q4x_gput_str(b, key, strlen(key));
    q4x_put_u32(b, type);
}

/* The writer's own keys: those of this shard's place in the set. Returns how many. */
static uint64_t own_keys(const q4x_gguf_out *o, int i, q4x_bytes *b) {
    uint64_t n = 0;
    if (o->cut.align != 32) {
        put_key(b, "general.alignment", Q4X_GGUF_U32);
        q4x_put_u32(b, o->cut.align);
        n++;
    }
    if (o->nshards == 1) return n;
    uint16_t no = (uint16_t)i, count = (uint16_t)o->nshards;
    put_key(b, "split.no", Q4X_GGUF_U16);
    q4x_put(b, &no, sizeof no);
    put_key(b, "split.count", Q4X_GGUF_U16);
    q4x_put(b, &count, sizeof count);
    put_key(b, "split.tensors.count", Q4X_GGUF_I32);
    q4x_put_u32(b, (uint32_t)o->ntensors);
    return n + 3;
}

static void put_tensor(q4x_bytes *b, const q4x_tensor *t, uint64_t off) {
    q4x_gput_str(b, t->name, strlen(t->name));
    q4x_put_u32(b, (uint32_t)t->ndim);
    for (int d = 0; d < t->ndim; d++) q4x_put_u64(b, (uint64_t)t->ne[d]);
    q4x_put_u32(b, (uint32_t)t->type);
    q4x_put_u64(b, off);
}

int q4x_gguf_out_header(const q4x_gguf_out *o, int i, uint8_t **ret, size_t *ret_n, q4x_err *err) {
    q4x_bytes b = {0}, own = {0};
    Q4X_BUG_IF(o->phase == Q4X_GOUT_DECLARE || i < 0 || i >= o->nshards);
    uint64_t nown = own_keys(o, i, &own), off = 0;
    q4x_put(&b, "GGUF\3\0\0\0", 8);
    q4x_put_u64(&b, (uint64_t)(o->first[i + 1] - o->first[i]));
    q4x_put_u64(&b, nown + (i ? 0 : o->nkv));
    if (!i) q4x_put(&b, o->kv.p, o->kv.n);
    q4x_put(&b, own.p, own.n);
    for (int64_t t = o->first[i]; t < o->first[i + 1]; t++) {
        put_tensor(&b, &o->tensor[t], off);
        off += q4x_gpadded(o, o->tensor[t].bytes);
    }
    q4x_put_zeros(&b, (size_t)(q4x_gpadded(o, b.n) - b.n));
    int failed = b.failed || own.failed;
    free(own.p);
    if (failed) {
        free(b.p);
        return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for its header", q4x_tail(o->path));
    }
    *ret = b.p;
    *ret_n = b.n;
    return 0;
}

/* Header sizes are those of the headers themselves; offsets need no second pass, being relative to their end. */
static int measure_shard(q4x_gguf_out *o, int i, q4x_err *err) {
    uint8_t *head = NULL;
    size_t n = 0;
    int rc = q4x_gguf_out_header(o, i, &head, &n, err);
    free(head);
    if (rc) return rc;
    q4x_shard *s = &o->shard[i];
    s->data_off = s->size = n;
    for (int64_t t = o->first[i]; t < o->first[i + 1]; t++) {
        s->size += q4x_gpadded(o, o->tensor[t].bytes);
        o->tensor[t].shard = i;
    }
    s->path = shard_path(o, i);
    if (!s->path) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for its header", q4x_tail(o->path));
    return 0;
}

int q4x_gguf_out_layout(q4x_gguf_out *o, q4x_err *err) {
    int rc = 0;
    int64_t files = 0, at_least = 0;
    uint64_t total = 0, most = 0;
    Q4X_BUG_IF(o->phase != Q4X_GOUT_DECLARE);
    TRY(total_bytes(o, &total, err));
    TRY(choose(o, total, &files, &most, &at_least, err));
    Q4X_BUG_IF(files < 1);
    int meta = o->cut.shards > 1 || files > 1; /* a first file of metadata alone */
    if (files + meta > (int64_t)Q4X_GGUF_MAX_SHARDS)
        TRY(q4x_fail(err, Q4X_E_ARG, "%s: expected at most %u files, found %lld; let them be larger", q4x_tail(o->path),
                     Q4X_GGUF_MAX_SHARDS, (long long)files + meta));
    o->nshards = (int)files + meta;
    o->shard = calloc((size_t)o->nshards, sizeof *o->shard);
    o->file = calloc((size_t)o->nshards, sizeof(q4x_out *));
    o->first = calloc((size_t)o->nshards + 1, sizeof *o->first);
    if (!o->shard || !o->file || !o->first)
        TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for its header", q4x_tail(o->path)));
    fill(o, most, at_least, o->first + meta);
    o->first[o->nshards] = o->ntensors;
    o->phase = Q4X_GOUT_LAID;
    for (int i = 0; i < o->nshards; i++) TRY(measure_shard(o, i, err));
done:
    return rc;
}
