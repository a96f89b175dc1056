/* dump_write.c: the writer of dump.h. Records of a forward are gathered and written as chunks of about 1 MiB; a full
 * tensor is a chunk of its own and goes out at once.
 */
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/bytes.h"
#include "lib/dump_int.h"
#include "lib/io.h"

enum { GATHER = 1 << 20 };

struct q4x_dumpw {
    q4x_out *out;
    char *path;
    q4x_dump_node *nodes; /* names and is_state only: what the rules of a tap need */
    int32_t nnodes;
    uint8_t *seen; /* [nnodes]: has a record in the forward that is open */
    q4x_content *content;
    q4x_bytes taps;  /* records not written yet */
    uint32_t ntaps;  /* of them */
    q4x_bytes parts; /* what a PART chunk says of them */
    uint32_t nparts; /* of how many */
    int32_t forward; /* that is open, -1 none */
    int32_t last;    /* index of the last one that ended, -1 none */
    uint64_t end;    /* where it ends in the file */
    q4x_forward_counts open;
    q4x_dump_totals total;
    int has_tail;
    int threads; /* that share the work on a full tensor */
    int failed;  /* code of the first failure: nothing is written after it */
};

/* ---- bytes ---- */

static void put_i32(q4x_bytes *b, int32_t v) {
    q4x_put(b, &v, sizeof v);
}

static void put_text(q4x_bytes *b, const char *s) {
    uint16_t n = (uint16_t)strlen(s); /* at most Q4X_DUMP_NAME_MAX */
    q4x_put(b, &n, sizeof n);
    q4x_put(b, s, n);
}

/* ---- chunks ---- */

/* A chunk whose payload is two stretches (the second may be empty). */
static int chunk(q4x_dumpw *w, uint32_t type, const void *a, size_t an, const void *b, size_t bn, q4x_err *err) {
    int rc = 0;
    uint8_t head[Q4X_DUMP_CHUNK];
    uint32_t flags = type == Q4X_CHUNK_TAIL || type == Q4X_CHUNK_PART ? Q4X_CHUNK_SKIPPABLE : 0;
    uint64_t length = (uint64_t)an + bn, sum;
    if (bn) {
        XXH3_state_t x;
        XXH3_64bits_reset(&x);
        XXH3_64bits_update(&x, a, an);
        XXH3_64bits_update(&x, b, bn);
        sum = XXH3_64bits_digest(&x);
    } else {
        sum = q4x_xxh64(a, an);
    }
    memcpy(head, &type, 4);
    memcpy(head + 4, &flags, 4);
    memcpy(head + 8, &length, 8);
    memcpy(head + 16, &sum, 8);
    sum = q4x_xxh64(head, 24);
    memcpy(head + 24, &sum, 8);
    TRY(q4x_out_write(w->out, head, sizeof head, err));
    TRY(q4x_out_write(w->out, a, an, err));
    if (bn) TRY(q4x_out_write(w->out, b, bn, err));
    w->total.nchunks++;
done:
    return rc;
}

static int chunk_of(q4x_dumpw *w, uint32_t type, q4x_bytes *b, q4x_err *err) {
    if (b->failed) return q4x_fail(err, Q4X_E_NOMEM, "no memory to write a chunk of %zu bytes", b->n);
    return chunk(w, type, b->p, b->n, NULL, 0, err);
}

static int write_preamble(q4x_dumpw *w, q4x_err *err) {
    uint8_t p[Q4X_DUMP_PREAMBLE];
    uint32_t version = Q4X_DUMP_VERSION, minor = Q4X_DUMP_MINOR;
    const uint64_t magic = Q4X_DUMP_MAGIC;
    memcpy(p, &magic, 8);
    memcpy(p + 8, &version, 4);
    memcpy(p + 12, &minor, 4);
    uint64_t sum = q4x_xxh64(p, 16);
    memcpy(p + 16, &sum, 8);
    return q4x_out_write(w->out, p, sizeof p, err);
}

static int write_json(q4x_dumpw *w, uint32_t type, const json_t *value, const char *what, q4x_err *err) {
    if (!json_is_object(value)) return q4x_fail(err, Q4X_E_ARG, "%s: expected a JSON object", what);
    char *text = json_dumps(value, JSON_COMPACT);
    if (!text) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the %s", what);
    size_t n = strlen(text);
    int rc = n > Q4X_DUMP_HEADER_MAX
                 ? q4x_fail(err, Q4X_E_ARG, "%s: expected at most %d bytes, found %zu", what, Q4X_DUMP_HEADER_MAX, n)
                 : chunk(w, type, text, n, NULL, 0, err);
    free(text);
    return rc;
}

static int write_nodes(q4x_dumpw *w, const q4x_dump_node *nodes, int32_t n, q4x_err *err) {
    q4x_bytes b = {0};
    put_i32(&b, n);
    for (int32_t i = 0; i < n; i++) {
        const q4x_dump_node *d = &nodes[i];
        put_text(&b, d->name);
        put_text(&b, d->op);
        put_text(&b, d->levers);
        put_i32(&b, d->layer);
        q4x_put_u32(&b, (d->is_public ? Q4X_NODE_PUBLIC : 0u) | (d->is_state ? Q4X_NODE_STATE : 0u) |
                            (d->is_ids ? Q4X_NODE_IDS : 0u));
        put_i32(&b, d->alias);
        put_i32(&b, d->heads.axis);
        put_i32(&b, d->heads.off);
        put_i32(&b, d->heads.width);
        put_i32(&b, d->heads.nk);
        put_i32(&b, d->heads.nv);
        put_i32(&b, d->heads.gguf);
        put_i32(&b, d->nin);
        q4x_put(&b, d->in, (size_t)d->nin * sizeof *d->in);
        put_i32(&b, d->nst);
        q4x_put(&b, d->st, (size_t)d->nst * sizeof *d->st);
    }
    int rc = chunk_of(w, Q4X_CHUNK_NODE, &b, err);
    free(b.p);
    return rc;
}

/* ---- open, abort ---- */

static void dumpw_free(q4x_dumpw *w) {
    for (int32_t i = 0; w->nodes && i < w->nnodes; i++) free(w->nodes[i].name);
    free(w->nodes);
    free(w->seen);
    free(w->path);
    free(w->taps.p);
    free(w->parts.p);
    q4x_content_free(w->content);
    free(w);
}

static int copy_nodes(q4x_dumpw *w, const q4x_dump_node *nodes, int32_t n) {
    w->nodes = calloc((size_t)n + 1, sizeof *w->nodes);
    w->seen = calloc((size_t)n + 1, 1);
    if (!w->nodes || !w->seen) return -1;
    w->nnodes = n;
    for (int32_t i = 0; i < n; i++)
        if (!(w->nodes[i].name = strdup(nodes[i].name))) return -1;
    return 0;
}

int q4x_dumpw_open(const char *path, const json_t *header, const q4x_dump_node *nodes, int32_t nnodes, q4x_dumpw **ret,
                   q4x_err *err) {
    int rc = 0;
    q4x_dumpw *w = calloc(1, sizeof *w);
    if (!w) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to write it", q4x_tail(path));
    w->forward = w->last = -1;
    w->threads = 1;
    if (nnodes < 0) TRY(q4x_fail(err, Q4X_E_ARG, "nodes: expected 0 or more, found %d", nnodes));
    TRY(q4x_dump_check_nodes(nodes, nnodes, Q4X_E_ARG, err));
    w->path = strdup(path);
    w->content = q4x_content_new(header);
    if (!w->path || !w->content || copy_nodes(w, nodes, nnodes)) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory"));
    TRY(q4x_out_open(path, &w->out, err));
    TRY(write_preamble(w, err));
    TRY(write_json(w, Q4X_CHUNK_HEAD, header, "header", err));
    TRY(write_nodes(w, nodes, nnodes, err));
    *ret = w;
    return 0;
done:
    if (rc == Q4X_E_ARG || rc == Q4X_E_NOMEM) q4x_err_prefix(err, "%s", q4x_tail(path));
    q4x_dumpw_abort(w);
    return rc;
}

void q4x_dumpw_threads(q4x_dumpw *w, int threads) {
    w->threads = threads;
}

void q4x_dumpw_abort(q4x_dumpw *w) {
    if (!w) return;
    q4x_out_abort(w->out);
    dumpw_free(w);
}

/* ---- taps ---- */

static void put_stats(q4x_bytes *b, const q4x_stats *s) {
    const uint64_t counts[] = {s->n, s->nan, s->pinf, s->ninf, s->zeros, s->on_bf16, s->on_f16};
    const double values[] = {s->min, s->max, s->maxabs, s->sumabs, s->sumsq};
    q4x_put(b, counts, sizeof counts);
    q4x_put(b, values, sizeof values);
    put_i32(b, s->ntop);
    q4x_put(b, s->top_index, (size_t)s->ntop * sizeof *s->top_index);
    q4x_put(b, s->top_value, (size_t)s->ntop * sizeof *s->top_value);
}

static void put_sketch(q4x_bytes *b, const q4x_sketch *s) {
    size_t n = (size_t)s->nrows, cells = n * (size_t)s->width;
    put_i32(b, s->row0);
    put_i32(b, s->nrows);
    put_i32(b, s->width);
    put_i32(b, s->raw);
    q4x_put_u64(b, s->skipped);
    q4x_put(b, s->row_sumabs, n * sizeof *s->row_sumabs);
    q4x_put(b, s->row_sumsq, n * sizeof *s->row_sumsq);
    if (s->raw)
        q4x_put(b, s->values, cells * sizeof *s->values);
    else
        q4x_put(b, s->buckets, cells * sizeof *s->buckets);
}

static void put_selection(q4x_bytes *b, const q4x_selection *s, int cut) {
    size_t n = (size_t)s->rows * (size_t)s->k;
    put_i32(b, s->rows);
    put_i32(b, s->k);
    q4x_put(b, s->ids, n * sizeof *s->ids);
    if (s->weights) q4x_put(b, s->weights, n * sizeof *s->weights);
    if (cut) q4x_put(b, s->lo, (size_t)s->rows * sizeof *s->lo);
    if (cut) q4x_put(b, s->hi, (size_t)s->rows * sizeof *s->hi);
}

static void put_tap(q4x_bytes *b, const q4x_tap *t) {
    int weights = t->has_sel && t->sel.weights, cut = t->has_sel && t->sel.lo && t->sel.hi;
    put_i32(b, t->node);
    put_i32(b, t->dtype);
    q4x_put_u64(b, (uint64_t)t->rows);
    q4x_put_u64(b, (uint64_t)t->cols);
    q4x_put(b, t->bits.b, sizeof t->bits.b);
    q4x_put_u32(b, (t->has_stats ? Q4X_TAP_STATS : 0u) | (t->has_sketch ? Q4X_TAP_SKETCH : 0u) |
                       (t->has_band ? Q4X_TAP_BAND : 0u) | (t->has_full ? Q4X_TAP_FULL : 0u) |
                       (t->has_sel ? Q4X_TAP_SEL : 0u) | (weights ? Q4X_TAP_WEIGHTS : 0u) | (cut ? Q4X_TAP_CUT : 0u));
    if (t->has_stats) put_stats(b, &t->stats);
    if (t->has_sketch) put_sketch(b, &t->sketch);
    if (t->has_band) q4x_put(b, &t->band_hard, sizeof t->band_hard);
    if (t->has_band) q4x_put(b, &t->band_rms, sizeof t->band_rms);
    if (t->has_sel) put_selection(b, &t->sel, cut);
}

/* Gathered records become a chunk. Its first 8 bytes were left free for forward and count. */
static int flush(q4x_dumpw *w, uint32_t type, q4x_bytes *b, uint32_t *n, q4x_err *err) {
    if (!*n) return 0;
    if (!b->failed) {
        memcpy(b->p, &w->forward, 4);
        memcpy(b->p + 4, n, 4);
    }
    int rc = chunk_of(w, type, b, err);
    *n = 0;
    b->n = 0;
    return rc;
}

static int flush_taps(q4x_dumpw *w, q4x_err *err) {
    int rc = flush(w, Q4X_CHUNK_TAPS, &w->taps, &w->ntaps, err);
    return rc ? rc : flush(w, Q4X_CHUNK_PART, &w->parts, &w->nparts, err);
}

static void gather_part(q4x_dumpw *w, const q4x_tap *t) {
    const q4x_sketch *s = &t->sketch;
    if (!t->has_sketch || !s->row_least || !s->nrows) return;
    if (!w->nparts++) q4x_put_u64(&w->parts, 0);
    put_i32(&w->parts, t->node);
    put_i32(&w->parts, s->nrows);
    q4x_put(&w->parts, s->row_least, (size_t)s->nrows * sizeof *s->row_least);
}

static int write_full(q4x_dumpw *w, const q4x_tap *t, q4x_err *err) {
    size_t elem = q4x_dump_elem(t->dtype), n = (size_t)t->rows * (size_t)t->cols * elem, packed_n = 0;
    uint8_t *packed = NULL;
    int rc = 0;
    if (n && !t->full) return q4x_fail(err, Q4X_E_ARG, "tap %s: has_full without a tensor", w->nodes[t->node].name);
    int odd;
    q4x_hash h = q4x_bits_shared(q4x_dump_bits_kind(t->dtype), t->full, n, w->threads, &odd);
    if (!q4x_hash_eq(&h, &t->bits))
        return q4x_fail(err, Q4X_E_ARG, "tap %s: the tensor's bits are not those of the record",
                        w->nodes[t->node].name);
    q4x_bytes b = {0};
    TRY(q4x_planes_pack(t->full, n, elem, w->threads, &packed, &packed_n, err));
    put_i32(&b, t->forward);
    put_i32(&b, t->node);
    q4x_put_u32(&b, packed ? Q4X_FULL_PLANES : Q4X_FULL_STORED);
    q4x_put_u32(&b, (uint32_t)elem);
    q4x_put_u64(&b, n);
    if (b.failed) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for a full tensor"));
    TRY(chunk(w, Q4X_CHUNK_FULL, b.p, b.n, packed ? packed : t->full, packed ? packed_n : n, err));
done:
    free(packed);
    free(b.p);
    return rc;
}

static int tap(q4x_dumpw *w, const q4x_tap *t, q4x_err *err) {
    int rc = q4x_dump_check_tap(w->nodes, w->nnodes, t, Q4X_E_ARG, err);
    if (rc) return rc;
    const char *name = w->nodes[t->node].name;
    if (t->forward <= w->last || (w->forward >= 0 && t->forward != w->forward))
        return q4x_fail(err, Q4X_E_ARG, "tap %s: forward: expected %d%s, found %d", name,
                        w->forward >= 0 ? w->forward : w->last + 1, w->forward >= 0 ? "" : " or later", t->forward);
    if (w->has_tail) return q4x_fail(err, Q4X_E_ARG, "tap %s: after the tail", name);
    if (w->seen[t->node]) return q4x_fail(err, Q4X_E_ARG, "tap %s: a second record in forward %d", name, t->forward);
    w->forward = t->forward;
    if (t->has_full) TRY(write_full(w, t, err));
    if (!w->ntaps) q4x_put_u64(&w->taps, 0);
    put_tap(&w->taps, t);
    gather_part(w, t);
    w->ntaps++;
    w->seen[t->node] = 1;
    w->open.ntaps++;
    w->open.nsel += t->has_sel != 0;
    w->open.nfull += t->has_full != 0;
    q4x_content_tap(w->content, name, t);
    if (w->taps.n >= GATHER || w->taps.failed) TRY(flush_taps(w, err));
done:
    return rc;
}

/* The first failure stays: what comes after it is refused, and close reports it again. */
static int keep(q4x_dumpw *w, int rc, q4x_err *err) {
    if (rc && !w->failed) {
        w->failed = rc;
        if (rc == Q4X_E_ARG || rc == Q4X_E_NOMEM) q4x_err_prefix(err, "%s", q4x_tail(w->path));
    }
    return rc;
}

static int refuse(const q4x_dumpw *w, q4x_err *err) {
    return q4x_fail(err, w->failed, "%s: an earlier record could not be written", q4x_tail(w->path));
}

int q4x_dumpw_tap(q4x_dumpw *w, const q4x_tap *t, q4x_err *err) {
    if (w->failed) return refuse(w, err);
    return keep(w, tap(w, t, err), err);
}

/* ---- forwards, close ---- */

static int forward(q4x_dumpw *w, const q4x_forward *f, q4x_err *err) {
    q4x_bytes b = {0};
    int rc = q4x_dump_check_forward(f, Q4X_E_ARG, err);
    if (rc) return rc;
    if (w->has_tail) return q4x_fail(err, Q4X_E_ARG, "forward %d: after the tail", f->index);
    if (f->index <= w->last || (w->forward >= 0 && f->index != w->forward))
        return q4x_fail(err, Q4X_E_ARG, "forward: index: expected %d%s, found %d",
                        w->forward >= 0 ? w->forward : w->last + 1, w->forward >= 0 ? "" : " or later", f->index);
    TRY(flush_taps(w, err));
    put_i32(&b, f->index);
    put_i32(&b, f->n_ids);
    put_i32(&b, f->pos0);
    put_i32(&b, f->forced);
    q4x_put(&b, f->prefix.b, sizeof f->prefix.b);
    put_i32(&b, f->sampled);
    put_i32(&b, f->n_logits);
    put_i32(&b, f->vocab);
    q4x_put(&b, f->top_id, sizeof f->top_id);
    q4x_put(&b, f->top_val, sizeof f->top_val);
    q4x_put(&b, &w->open, sizeof w->open);
    put_i32(&b, f->logits != NULL);
    q4x_put(&b, f->ids, (size_t)f->n_ids * sizeof *f->ids);
    if (f->logits) q4x_put(&b, f->logits, (size_t)f->n_logits * (size_t)f->vocab * sizeof *f->logits);
    TRY(chunk_of(w, Q4X_CHUNK_FWRD, &b, err));
    q4x_content_forward(w->content, f);
    w->total.nforwards++;
    w->total.ntaps += (uint64_t)w->open.ntaps;
    w->total.nsel += (uint64_t)w->open.nsel;
    w->total.nfull += (uint64_t)w->open.nfull;
    w->total.nlogits += f->logits ? (uint64_t)f->n_logits : 0;
    w->open = (q4x_forward_counts){0};
    w->last = f->index;
    w->end = q4x_out_pos(w->out);
    w->forward = -1;
    memset(w->seen, 0, (size_t)w->nnodes);
done:
    free(b.p);
    return rc;
}

int q4x_dumpw_forward(q4x_dumpw *w, const q4x_forward *f, q4x_err *err) {
    if (w->failed) return refuse(w, err);
    return keep(w, forward(w, f, err), err);
}

static int records_open(const q4x_dumpw *w, q4x_err *err) {
    return q4x_fail(err, Q4X_E_ARG, "%d records of forward %d were not followed by the forward itself", w->open.ntaps,
                    w->forward);
}

static int tail(q4x_dumpw *w, const json_t *value, q4x_err *err) {
    if (w->forward >= 0) return records_open(w, err);
    if (w->has_tail) return q4x_fail(err, Q4X_E_ARG, "tail: a second one");
    w->has_tail = 1;
    return write_json(w, Q4X_CHUNK_TAIL, value, "tail", err);
}

int q4x_dumpw_tail(q4x_dumpw *w, const json_t *value, q4x_err *err) {
    if (w->failed) return refuse(w, err);
    return keep(w, tail(w, value, err), err);
}

static int done_marker(q4x_dumpw *w, q4x_hash *content, q4x_err *err) {
    if (w->forward >= 0) return records_open(w, err);
    q4x_bytes b = {0};
    *content = q4x_content_end(w->content);
    q4x_put_u32(&b, w->total.nforwards);
    put_i32(&b, w->nnodes);
    q4x_put_u64(&b, w->total.ntaps);
    q4x_put_u64(&b, w->total.nsel);
    q4x_put_u64(&b, w->total.nfull);
    q4x_put_u64(&b, w->total.nlogits);
    q4x_put_u64(&b, w->total.nchunks);
    q4x_put(&b, content->b, sizeof content->b);
    int rc = chunk_of(w, Q4X_CHUNK_DONE, &b, err);
    free(b.p);
    return rc;
}

int q4x_dumpw_close(q4x_dumpw *w, q4x_hash *ret_content, q4x_err *err) {
    int rc = 0;
    q4x_hash content;
    if (w->failed) TRY(refuse(w, err));
    TRY(keep(w, done_marker(w, &content, err), err));
    q4x_out *out = w->out;
    w->out = NULL;
    TRY(q4x_out_close(out, err)); /* frees it whatever happens */
    if (ret_content) *ret_content = content;
done:
    q4x_dumpw_abort(w);
    return rc;
}

/* Through a pipe records cannot be taken back: there they stay, and no tail says why. */
static int cut(q4x_dumpw *w, const char *why, q4x_err *err) {
    int rc = 0;
    json_t *tail = json_pack("{s:{s:i, s:s}}", "ended", "forwards", (int)w->total.nforwards, "error", why);
    if (!tail) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for its tail", q4x_tail(w->path));
    rc = q4x_out_back(w->out, w->end, err);
    if (!rc)
        rc = write_json(w, Q4X_CHUNK_TAIL, tail, "tail", err);
    else if (rc == Q4X_E_UNSUPPORTED)
        rc = 0;
    json_decref(tail);
    return rc;
}

int q4x_dumpw_cut(q4x_dumpw *w, const char *why, int32_t *ret_forwards, q4x_err *err) {
    int rc = 0;
    const int32_t whole = (int32_t)w->total.nforwards;
    if (w->failed) TRY(refuse(w, err));
    if (whole) {
        TRY(cut(w, why, err));
        q4x_out *out = w->out;
        w->out = NULL;
        TRY(q4x_out_close(out, err));
    }
    *ret_forwards = whole;
done:
    q4x_dumpw_abort(w);
    return rc;
}
