/* model_gguf.c: the GGUF container: one file or a split set (gguf-quants 1.3) as one model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/gguf.h"

enum { SUFFIX = 20 }; /* "-00001-of-00003.gguf" */

/* What a file says about the set it belongs to; -1: it does not say. */
typedef struct {
    int64_t no, count, tensors;
} split;

static int map_file(void *ctx, const char *path, q4x_map *ret, q4x_err *err) {
    (void)ctx;
    return q4x_map_open(path, ret, err);
}

/* ---- split sets ---- */

static int split_key(const q4x_gguf *g, const char *key, uint32_t type, int64_t most, int64_t *ret, q4x_err *err) {
    const q4x_gguf_kv *kv = q4x_gguf_find(g, key);
    *ret = -1;
    if (!kv) return 0;
    char found[32];
    unsigned long long at = kv->off;
    if (kv->type != type)
        return q4x_fail(err, Q4X_E_FORMAT, "%s at byte %llu: expected type %s, found %s", key, at,
                        type == Q4X_GGUF_U16 ? "u16" : "i32", q4x_gguf_type_name(kv, found));
    int64_t v = type == Q4X_GGUF_U16 ? (int64_t)kv->raw : (int32_t)(uint32_t)kv->raw;
    if (v < 0 || v > most)
        return q4x_fail(err, Q4X_E_FORMAT, "%s at byte %llu: expected 0 to %lld, found %lld", key, at, (long long)most,
                        (long long)v);
    *ret = v;
    return 0;
}

static int split_read(const q4x_gguf *g, split *ret, q4x_err *err) {
    int rc = 0;
    split s;
    TRY(split_key(g, "split.count", Q4X_GGUF_U16, Q4X_GGUF_MAX_SHARDS, &s.count, err));
    TRY(split_key(g, "split.no", Q4X_GGUF_U16, Q4X_GGUF_MAX_SHARDS - 1, &s.no, err));
    TRY(split_key(g, "split.tensors.count", Q4X_GGUF_I32, INT32_MAX, &s.tensors, err));
    if (s.count > 0 && s.no >= s.count)
        TRY(q4x_fail(err, Q4X_E_FORMAT, "split.no: expected a number below split.count = %lld, found %lld",
                     (long long)s.count, (long long)s.no));
    *ret = s;
done:
    return rc;
}

/* Number and count in a name "PREFIX-00001-of-00003.gguf". 1: it is one. */
static int name_parts(const char *path, long *no, long *count) {
    size_t n = strlen(path);
    if (n < SUFFIX) return 0;
    const char *s = path + n - SUFFIX;
    for (int i = 1; i <= 5; i++)
        if (s[i] < '0' || s[i] > '9' || s[i + 9] < '0' || s[i + 9] > '9') return 0;
    if (s[0] != '-' || strncmp(s + 6, "-of-", 4) != 0 || strcmp(s + 15, ".gguf") != 0) return 0;
    *no = strtol(s + 1, NULL, 10);
    *count = strtol(s + 10, NULL, 10);
    return 1;
}

/* Make the name of shard no (from 1) of that of any other shard: only the digits change, so a sibling lies in the same
 * folder whatever the files say. Both numbers are at most 1000. */
static void set_number(char *name, int64_t no, int64_t count) {
    char *s = name + strlen(name) - SUFFIX;
    for (int i = 5; i >= 1; i--, no /= 10, count /= 10) {
        s[i] = (char)('0' + no % 10);
        s[i + 9] = (char)('0' + count % 10);
    }
}

/* The given file's name must say what its content says, or its siblings' names would be guesses. */
static int check_name(const char *path, const split *s, q4x_err *err) {
    long no = 0, count = 0;
    if (!name_parts(path, &no, &count))
        return q4x_fail(
            err, Q4X_E_MISMATCH,
            "split.count: expected a name that ends in -%05lld-of-%05lld.gguf, as this is shard %lld of %lld, "
            "found another one; give the file its name back",
            (long long)s->no + 1, (long long)s->count, (long long)s->no + 1, (long long)s->count);
    if (no == s->no + 1 && count == s->count) return 0;
    return q4x_fail(
        err, Q4X_E_MISMATCH,
        "split.no: expected shard %ld of %ld, as the name says, found shard %lld of %lld; shards were renamed "
        "or swapped, give each its own name back",
        no, count, (long long)s->no + 1, (long long)s->count);
}

static int check_agrees(const char *key, int64_t expected, int64_t found, q4x_err *err) {
    if (found < 0 || found == expected) return 0;
    return q4x_fail(
        err, Q4X_E_MISMATCH,
        "%s: expected %lld, as in the first shard, found %lld; shards of different sets are mixed, fetch the "
        "whole set again",
        key, (long long)expected, (long long)found);
}

/* Does shard i belong to the set that shard 0 describes? */
static int check_sibling(const q4x_gguf *g0, const split *s0, const q4x_gguf *g, const split *s, int64_t i,
                         q4x_err *err) {
    int rc = 0;
    if (s->no < 0)
        TRY(q4x_fail(err, Q4X_E_MISMATCH, "split.no: expected %lld, found none; this file is no shard", (long long)i));
    if (s->no != i)
        TRY(q4x_fail(
            err, Q4X_E_MISMATCH,
            "split.no: expected %lld, found %lld; shards were swapped or one was copied over another, give each its "
            "own name back",
            (long long)i, (long long)s->no));
    TRY(check_agrees("split.count", s0->count, s->count, err));
    TRY(check_agrees("split.tensors.count", s0->tensors, s->tensors, err));
    if (g->arch && (!g0->arch || strcmp(g->arch, g0->arch) != 0))
        TRY(q4x_fail(
            err, Q4X_E_MISMATCH,
            "general.architecture: expected '%s', as in the first shard, found '%s'; shards of different models "
            "are mixed",
            g0->arch ? g0->arch : "", g->arch));
done:
    return rc;
}

/* Which shard of which set is the given file? Afterwards s->count > 1 means a set, whose names path tells. */
static int check_given(const char *path, split *s, q4x_err *err) {
    int rc = 0;
    long no, count;
    if (s->count < 0 && s->no > 0) {
        /* A later shard may leave the count to the first one; the name has it too. */
        if (!name_parts(path, &no, &count) || count < 2 || count > (long)Q4X_GGUF_MAX_SHARDS)
            TRY(q4x_fail(
                err, Q4X_E_MISMATCH,
                "split.no: expected a name that ends in -%05lld-of-NNNNN.gguf, as this is a later shard of a set, "
                "found another one; give the file its name back",
                (long long)s->no + 1));
        s->count = count;
    }
    if (s->count <= 1) return 0; /* 0 is what merging a set leaves behind */
    if (s->no < 0)
        TRY(q4x_fail(err, Q4X_E_FORMAT, "split.no: expected one beside split.count = %lld, found none",
                     (long long)s->count));
    TRY(check_name(path, s, err));
done:
    q4x_err_prefix(rc ? err : NULL, "%s", q4x_tail(path));
    return rc;
}

/* ---- opening ---- */

typedef struct {
    q4x_model *m;
    q4x_map_fn map;
    void *ctx;
    q4x_err *err;
} opener;

/* The place that a shard must have in a set; g0 NULL: none is asked for. */
typedef struct {
    const q4x_gguf *g0;
    split *s0; /* of shard 0, which may leave its total to a later one */
    int64_t i;
    split found;
    int synthetic; /* the file, or shard 0, says of itself that q4x synth made it */
} place;

static int is_synthetic(const q4x_gguf *g) {
    const q4x_gguf_kv *kv = g ? q4x_gguf_find(g, "q4x.synthetic") : NULL;
    return kv && kv->type == Q4X_GGUF_BOOL && kv->raw;
}

static int check_place(void *ctx, const q4x_gguf *g, q4x_err *err) {
    place *p = ctx;
    p->synthetic = is_synthetic(g) || is_synthetic(p->g0);
    int rc = split_read(g, &p->found, err);
    if (rc || !p->g0) return rc;
    if (p->s0->tensors < 0) p->s0->tensors = p->found.tensors;
    return check_sibling(p->g0, p->s0, g, &p->found, p->i, err);
}

/* Map and parse one more shard. Messages get the file's name in front and what to do behind. */
static int open_shard(const opener *o, const char *path, place *p, q4x_gguf *ret) {
    int rc = 0;
    q4x_map f;
    q4x_gguf g = {0};
    if ((rc = o->map(o->ctx, path, &f, o->err))) return rc;
    TRY(q4x_model_add_shard(o->m, path, f, 0, o->err));
    TRY(q4x_gguf_parse(o->m, check_place, p, &g, o->err));
    o->m->shard[o->m->nshards - 1].data_off = g.data_off;
    o->m->shard[o->m->nshards - 1].data_end = g.data_end;
    *ret = g;
    return 0;
done:
    q4x_gguf_free(&g);
    if (!o->err) return rc;
    const char *remedy = "";
    if (rc == Q4X_E_TRUNCATED && p->synthetic)
        remedy =
            "; the file is synthetic and incomplete: make it again, or after q4x synth --header-only give it holes "
            "for data by the `truncate -s SIZE FILE` that it printed, enough for q4x info";
    else if (rc == Q4X_E_TRUNCATED)
        remedy = "; the file is incomplete, fetch it again";
    if (rc == Q4X_E_FORMAT) remedy = "; the file is damaged or its writer is broken, fetch or convert it again";
    if (rc == Q4X_E_UNSUPPORTED) remedy = "; convert it with a current tool";
    size_t n = strlen(o->err->msg);
    snprintf(o->err->msg + n, sizeof o->err->msg - n, "%s", remedy);
    q4x_err_prefix(o->err, "%s", q4x_tail(path));
    return rc;
}

static void say_which(q4x_err *err, int rc, int64_t i, int64_t count) {
    q4x_err_prefix(rc ? err : NULL, "shard %lld of %lld%s", (long long)i + 1, (long long)count,
                   rc == Q4X_E_IO ? " is needed beside the others" : "");
}

/* Shards 1 .. count-1 beside name, which is shard 0's and is changed. */
static int open_rest(const opener *o, char *name, const q4x_gguf *g0, split *s0) {
    int rc = 0;
    int64_t i;
    for (i = 1; i < s0->count; i++) {
        q4x_gguf g;
        place p = {.g0 = g0, .s0 = s0, .i = i};
        set_number(name, i + 1, s0->count);
        TRY(open_shard(o, name, &p, &g));
        q4x_gguf_free(&g);
    }
done:
    say_which(o->err, rc, i, s0->count);
    return rc;
}

/* The given file is a later shard: begin again with shard 0, whose name goes to name. */
static int open_zero(const opener *o, char *name, q4x_gguf *g, split *s) {
    int rc = 0;
    long long count = s->count;
    place p = {0};
    q4x_gguf_free(g);
    q4x_model_clear(o->m);
    set_number(name, 1, count);
    TRY(open_shard(o, name, &p, g));
    *s = p.found;
    if (s->no != 0 || s->count != count) {
        rc = q4x_fail(
            o->err, Q4X_E_MISMATCH,
            "split.no: expected shard 1 of %lld, found split.no %lld and split.count %lld (-1: none); shards were "
            "renamed, swapped or mixed, fetch the whole set again",
            count, (long long)s->no, (long long)s->count);
        q4x_err_prefix(o->err, "%s", q4x_tail(name));
    }
done:
    say_which(o->err, rc, 0, count);
    return rc;
}

static int open_set(const opener *o, const char *path) {
    int rc = 0;
    split s;
    place p = {0};
    q4x_gguf *g = calloc(1, sizeof *g);
    char *name = strdup(path);
    o->m->priv = g;
    if (!g || !name) TRY(q4x_fail(o->err, Q4X_E_NOMEM, "%s: no memory to open the model", q4x_tail(path)));
    TRY(open_shard(o, path, &p, g));
    s = p.found;
    TRY(check_given(path, &s, o->err));
    if (s.count > 1 && s.no > 0) TRY(open_zero(o, name, g, &s));
    if (s.count > 1) TRY(open_rest(o, name, g, &s));
    if (s.tensors >= 0 && s.tensors != o->m->ntensors)
        TRY(q4x_fail(
            o->err, Q4X_E_MISMATCH,
            "%s: split.tensors.count: expected %lld, the number of tensors in %s, found %lld; a shard belongs to "
            "another set, fetch the whole set again",
            q4x_tail(path), (long long)o->m->ntensors, s.count > 1 ? "all shards" : "the file", (long long)s.tensors));
    o->m->arch = g->arch;
done:
    free(name);
    return rc;
}

static void gguf_close(q4x_model *m) {
    if (!m->priv) return;
    q4x_gguf_free(m->priv);
    free(m->priv);
    m->priv = NULL;
}

static int gguf_open(q4x_model *m, const char *path, q4x_err *err) {
    return open_set(&(opener){m, map_file, NULL, err}, path);
}

static int gguf_claims(const q4x_probe *p) {
    size_t n = strlen(p->path);
    if (p->is_dir) return 0;
    return (p->nhead >= 4 && !memcmp(p->head, "GGUF", 4)) || (n >= 5 && !strcmp(p->path + n - 5, ".gguf"));
}

/* ---- fingerprint ---- */

/* Every key but split.*, which says how the model is cut and not what it is. */
static int gguf_meta(const q4x_model *m, q4x_sink sink, void *ctx, q4x_err *err) {
    (void)err;
    const q4x_gguf *g = m->priv;
    for (uint64_t i = 0; i < g->nkv; i++) {
        const q4x_gguf_kv *kv = &g->kv[i];
        if (!strncmp(kv->key, "split.", 6)) continue;
        uint64_t head[5] = {strlen(kv->key), kv->type, kv->etype, kv->count, kv->len};
        sink(ctx, head, sizeof head);
        sink(ctx, kv->key, (size_t)head[0]);
        int scalar = kv->type != Q4X_GGUF_STR && kv->type != Q4X_GGUF_ARR;
        sink(ctx, scalar ? (const void *)&kv->raw : m->map[0].data + kv->off, (size_t)kv->len);
    }
    return 0;
}

const q4x_container_ops q4x_gguf_ops = {
    .id = Q4X_GGUF,
    .wants = "a .gguf file",
    .claims = gguf_claims,
    .open = gguf_open,
    .meta = gguf_meta,
    .close = gguf_close,
};

/* ---- without a file system ---- */

int q4x_gguf_open_with(q4x_map_fn map, void *ctx, const char *path, q4x_model **ret, q4x_err *err) {
    q4x_model *m = q4x_model_new(&q4x_gguf_ops, path);
    if (!m) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to open the model", q4x_tail(path));
    int rc = open_set(&(opener){m, map, ctx, err}, path);
    if (rc)
        q4x_model_close(m);
    else
        *ret = m;
    return rc;
}

typedef struct {
    const q4x_mem_file *files;
    int n;
} mem_files;

static int map_mem(void *ctx, const char *path, q4x_map *ret, q4x_err *err) {
    const mem_files *f = ctx;
    for (int i = 0; i < f->n; i++) {
        if (strcmp(f->files[i].path, path) != 0) continue;
        *ret = q4x_map_mem(f->files[i].data, f->files[i].size);
        return 0;
    }
    return q4x_fail(err, Q4X_E_IO, "%s: cannot open: no such file", q4x_tail(path));
}

int q4x_gguf_open_mem(const q4x_mem_file *files, int n, const char *path, q4x_model **ret, q4x_err *err) {
    mem_files f = {files, n};
    return q4x_gguf_open_with(map_mem, &f, path, ret, err);
}

int q4x_gguf_parse_mem(const void *data, size_t size, const char *path, q4x_model **ret, q4x_err *err) {
    q4x_mem_file f = {path, data, size};
    return q4x_gguf_open_mem(&f, 1, path, ret, err);
}
