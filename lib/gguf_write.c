/* gguf_write.c: making, filling and finishing the files. */
#include <stdlib.h>
#include <string.h>

#include "lib/gguf_write_int.h"

typedef unsigned long long ull;

int q4x_gguf_out_new(const char *path, const q4x_gguf_cut *cut, q4x_gguf_out **ret, q4x_err *err) {
    q4x_gguf_cut c = cut ? *cut : (q4x_gguf_cut){0};
    if (!c.align) c.align = 32;
    if (c.align < Q4X_GGUF_MIN_ALIGN || c.align > Q4X_GGUF_MAX_ALIGN || c.align & (c.align - 1))
        return q4x_fail(err, Q4X_E_ARG, "%s: alignment: expected a power of two from 8 to 65536, found %u",
                        q4x_tail(path), (unsigned)c.align);
    if (c.shards < 0 || c.shards > (int)Q4X_GGUF_MAX_SHARDS)
        return q4x_fail(err, Q4X_E_ARG, "%s: expected 1 to %u files, found %d", q4x_tail(path), Q4X_GGUF_MAX_SHARDS,
                        c.shards);
    q4x_gguf_out *o = calloc(1, sizeof *o);
    char *copy = strdup(path);
    if (!o || !copy) {
        free(o);
        free(copy);
        return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to write it", q4x_tail(path));
    }
    o->path = copy;
    o->cut = c;
    *ret = o;
    return 0;
}

void q4x_gguf_out_abort(q4x_gguf_out *o) {
    if (!o) return;
    for (int i = 0; o->file && i < o->nshards; i++) q4x_out_abort(o->file[i]);
    free(o->file);
    free(o->first);
    free(o->shard);
    free(o->tensor);
    free(o->kv.p);
    q4x_names_free(&o->keys);
    q4x_names_free(&o->tensor_names);
    q4x_pool_free(&o->pool);
    free(o->path);
    free(o);
}

int64_t q4x_gguf_out_ntensors(const q4x_gguf_out *o) {
    return o->ntensors;
}

const q4x_tensor *q4x_gguf_out_tensors(const q4x_gguf_out *o) {
    return o->tensor;
}

int q4x_gguf_out_nshards(const q4x_gguf_out *o) {
    Q4X_BUG_IF(o->phase == Q4X_GOUT_DECLARE);
    return o->nshards;
}

const q4x_shard *q4x_gguf_out_shard(const q4x_gguf_out *o, int i) {
    Q4X_BUG_IF(o->phase == Q4X_GOUT_DECLARE || i < 0 || i >= o->nshards);
    return &o->shard[i];
}

static int begin_shard(q4x_gguf_out *o, int i, q4x_err *err) {
    uint8_t *head = NULL;
    size_t n = 0;
    int rc = 0;
    TRY(q4x_gguf_out_header(o, i, &head, &n, err));
    TRY(q4x_out_open(o->shard[i].path, &o->file[i], err));
    TRY(q4x_out_write(o->file[i], head, n, err));
done:
    free(head);
    return rc;
}

int q4x_gguf_out_begin(q4x_gguf_out *o, q4x_err *err) {
    int rc = 0;
    if (o->phase == Q4X_GOUT_DECLARE) TRY(q4x_gguf_out_layout(o, err));
    Q4X_BUG_IF(o->phase != Q4X_GOUT_LAID);
    for (int i = 0; i < o->nshards; i++) TRY(begin_shard(o, i, err)); /* all now: a bad name shows before the work */
    o->phase = Q4X_GOUT_DATA;
    o->left = o->ntensors ? o->tensor[0].bytes : 0;
    for (int i = 0; i < o->nshards; i++)
        if (o->first[i] == o->first[i + 1]) TRY(q4x_out_seal(o->file[i], err));
done:
    return rc;
}

const q4x_tensor *q4x_gguf_out_next(const q4x_gguf_out *o, uint64_t *ret_left) {
    if (ret_left) *ret_left = o->left;
    return o->at < o->ntensors ? &o->tensor[o->at] : NULL;
}

/* The tensor is complete: pad, and give a full shard to the disk. */
static int next_tensor(q4x_gguf_out *o, q4x_err *err) {
    int rc = 0;
    const q4x_tensor *t = &o->tensor[o->at++];
    TRY(q4x_out_zeros(o->file[t->shard], q4x_gpadded(o, t->bytes) - t->bytes, err));
    if (o->at == o->first[t->shard + 1]) TRY(q4x_out_seal(o->file[t->shard], err));
    o->left = o->at < o->ntensors ? o->tensor[o->at].bytes : 0;
done:
    return rc;
}

int q4x_gguf_out_write(q4x_gguf_out *o, const void *data, size_t n, q4x_err *err) {
    int rc = 0;
    Q4X_BUG_IF(o->phase != Q4X_GOUT_DATA);
    if (!n) return 0;
    if (o->at == o->ntensors)
        TRY(q4x_fail(err, Q4X_E_ARG, "%s: expected no more data after the last tensor, found %llu bytes",
                     q4x_tail(o->path), (ull)n));
    const q4x_tensor *t = &o->tensor[o->at];
    if (n > o->left)
        TRY(q4x_fail(err, Q4X_E_ARG, "%s: tensor '%s': expected %llu bytes in all, found %llu", q4x_tail(o->path),
                     t->name, (ull)t->bytes, (ull)(t->bytes - o->left) + n));
    TRY(q4x_out_write(o->file[t->shard], data, n, err));
    o->left -= n;
    if (!o->left) TRY(next_tensor(o, err));
done:
    return rc;
}

/* Shard 0 last: without it a set does not open. */
int q4x_gguf_out_finish(q4x_gguf_out *o, q4x_err *err) {
    int rc = 0;
    Q4X_BUG_IF(o->phase != Q4X_GOUT_DATA);
    if (o->at < o->ntensors) {
        const q4x_tensor *t = &o->tensor[o->at];
        TRY(q4x_fail(err, Q4X_E_ARG, "%s: tensor '%s': expected %llu bytes, found %llu before the end",
                     q4x_tail(o->path), t->name, (ull)t->bytes, (ull)(t->bytes - o->left)));
    }
    for (int i = o->nshards - 1; i >= 0; i--) {
        q4x_out *f = o->file[i];
        o->file[i] = NULL; /* close frees it whatever happens */
        TRY(q4x_out_close(f, err));
    }
done:
    q4x_gguf_out_abort(o);
    return rc;
}
