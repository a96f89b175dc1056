/* dump_read.c: the reader of dump.h: chunk by chunk, everything verified before the caller sees any of it. */
#include <stdlib.h>

#include "lib/dump_int.h"

typedef struct {
    const char *name; /* for messages */
    q4x_dump *d;
    q4x_dump_priv *p;
    q4x_content *content;
    q4x_dump_totals seen;
    uint64_t pos;
    uint32_t minor;
    int32_t forward_cap;
    q4x_tap *taps; /* records of the forward that is open */
    int32_t ntaps, taps_cap;
    int32_t parts; /* of them, before which sums of parts may come no more */
    int32_t open;  /* its index, -1: none */
    int has_header, has_nodes, done;
    q4x_err *err;
} reader;

typedef struct {
    uint32_t type, flags;
    uint64_t at, length, sum; /* at: position of the chunk's head */
    const uint8_t *payload;
    char name[5];
} chunk;

/* ---- memory ---- */

/* The array with room for one more element behind n; NULL, and p as it was: no memory. */
static void *grown(void *p, int32_t n, int32_t *cap, size_t elem) {
    if (n < *cap) return p;
    if (n >= INT32_MAX / 2) return NULL;
    int32_t want = n < 16 ? 16 : 2 * n;
    void *fresh = realloc(p, (size_t)want * elem);
    if (fresh) *cap = want;
    return fresh;
}

static int no_memory(const reader *r) {
    return q4x_fail(r->err, Q4X_E_NOMEM, "%s: no memory to read it", q4x_tail(r->name));
}

/* ---- chunks ---- */

static int in_chunk(const reader *r, const chunk *c, int rc) {
    if (rc) q4x_err_prefix(r->err, "%s: chunk %s at byte %llu", q4x_tail(r->name), c->name, (unsigned long long)c->at);
    return rc;
}

static int cut(const reader *r, uint64_t at, uint64_t need, const char *what) {
    const q4x_map *m = &r->p->map;
    const char *why = json_string_value(json_object_get(json_object_get(r->d->tail, "ended"), "error"));
    if (why && at == m->size)
        return q4x_fail(r->err, Q4X_E_TRUNCATED,
                        "%s: the run ended early: %s; %u whole forwards can be read, record it again for the rest",
                        q4x_tail(r->name), why, r->seen.nforwards);
    return q4x_fail(r->err, Q4X_E_TRUNCATED,
                    "%s: cut at byte %llu: expected %s of %llu bytes at byte %llu, found %llu before the end of the "
                    "file; %u whole forwards can be read, record it again for the rest",
                    q4x_tail(r->name), (unsigned long long)m->size, what, (unsigned long long)need,
                    (unsigned long long)at, (unsigned long long)(m->size - at), r->seen.nforwards);
}

static int bad_sum(const reader *r, uint64_t at, const char *what, uint64_t want, uint64_t found) {
    return q4x_fail(r->err, Q4X_E_CHECKSUM,
                    "%s: %s at byte %llu: checksum: expected %016llx, found %016llx; the file is damaged, copy or "
                    "record it again",
                    q4x_tail(r->name), what, (unsigned long long)at, (unsigned long long)want,
                    (unsigned long long)found);
}

static int preamble(reader *r) {
    const q4x_map *m = &r->p->map;
    const uint8_t *p = m->data;
    const uint64_t magic = Q4X_DUMP_MAGIC;
    size_t n = m->size < 8 ? (size_t)m->size : 8;
    if (n && memcmp(p, &magic, n) != 0)
        return q4x_fail(r->err, Q4X_E_FORMAT,
                        "%s: magic at byte 0: expected 89 'Q4D' 0d 0a 1a 0a, found other bytes; it is no q4x dump",
                        q4x_tail(r->name));
    if (m->size < Q4X_DUMP_PREAMBLE) return cut(r, 0, Q4X_DUMP_PREAMBLE, "a preamble");
    uint32_t version;
    uint64_t sum, found = q4x_xxh64(p, 16);
    memcpy(&version, p + 8, 4);
    memcpy(&r->minor, p + 12, 4);
    memcpy(&sum, p + 16, 8);
    if (sum != found) return bad_sum(r, 16, "preamble", sum, found);
    if (version < 1 || version > Q4X_DUMP_VERSION)
        return q4x_fail(r->err, Q4X_E_UNSUPPORTED,
                        "%s: version at byte 8: expected 1..%d, found %u; a newer q4x wrote it, read it with that one",
                        q4x_tail(r->name), Q4X_DUMP_VERSION, version);
    r->d->version = (int32_t)version;
    r->pos = Q4X_DUMP_PREAMBLE;
    return 0;
}

/* Head and payload of the chunk at pos, both checked. */
static int next_chunk(reader *r, chunk *c) {
    const q4x_map *m = &r->p->map;
    uint64_t head, found;
    *c = (chunk){.at = r->pos};
    if (m->size - r->pos < Q4X_DUMP_CHUNK) return cut(r, r->pos, Q4X_DUMP_CHUNK, "a chunk's head");
    const uint8_t *p = m->data + r->pos;
    memcpy(&c->type, p, 4);
    memcpy(&c->flags, p + 4, 4);
    memcpy(&c->length, p + 8, 8);
    memcpy(&c->sum, p + 16, 8);
    memcpy(&head, p + 24, 8);
    for (int i = 0; i < 4; i++) c->name[i] = p[i] > 0x20 && p[i] < 0x7f ? (char)p[i] : '?';
    found = q4x_xxh64(p, 24);
    if (head != found) return bad_sum(r, c->at + 24, "chunk head", head, found);
    if (c->length > m->size - r->pos - Q4X_DUMP_CHUNK)
        return cut(r, r->pos + Q4X_DUMP_CHUNK, c->length, "a chunk's payload");
    c->payload = p + Q4X_DUMP_CHUNK;
    found = q4x_xxh64(c->payload, (size_t)c->length);
    if (c->sum != found) return bad_sum(r, c->at + 16, c->name, c->sum, found);
    r->pos += Q4X_DUMP_CHUNK + c->length;
    return 0;
}

/* ---- what the chunks say ---- */

static int read_json(reader *r, const chunk *c, const char *what, json_t **ret) {
    json_error_t je;
    if (c->length > Q4X_DUMP_HEADER_MAX)
        return q4x_fail(r->err, Q4X_E_FORMAT, "%s: expected at most %d bytes, found %llu", what, Q4X_DUMP_HEADER_MAX,
                        (unsigned long long)c->length);
    *ret = json_loadb((const char *)c->payload, (size_t)c->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    if (!*ret && !je.text[0]) return no_memory(r); /* jansson has no words for it */
    if (!*ret) return q4x_fail(r->err, Q4X_E_FORMAT, "%s: expected JSON, found: %s", what, je.text);
    return json_is_object(*ret) ? 0 : q4x_fail(r->err, Q4X_E_FORMAT, "%s: expected an object", what);
}

static int read_header(reader *r, const chunk *c) {
    int rc = read_json(r, c, "header", &r->d->header);
    if (rc) return rc;
    r->content = q4x_content_new(r->d->header);
    r->has_header = 1;
    return r->content ? 0 : no_memory(r);
}

static int read_nodes(reader *r, q4x_payload *c) {
    int rc = q4x_parse_nodes(c, &r->d->nodes, &r->d->nnodes);
    if (rc) return rc;
    r->has_nodes = 1;
    r->seen.nnodes = (uint32_t)r->d->nnodes;
    r->p->by_name = q4x_dump_by_name(r->d->nodes, r->d->nnodes);
    return r->p->by_name ? 0 : no_memory(r);
}

static int read_taps(reader *r, q4x_payload *c) {
    int32_t forward, n, last = r->d->nforwards ? r->d->forwards[r->d->nforwards - 1].index : -1;
    int rc = q4x_parse_records(c, Q4X_TAP_MIN, &forward, &n);
    if (rc) return rc;
    if (forward <= last || (r->open >= 0 && forward != r->open))
        return q4x_fail(r->err, Q4X_E_FORMAT, "forward: expected %d%s, found %d", r->open >= 0 ? r->open : last + 1,
                        r->open >= 0 ? "" : " or later", forward);
    r->open = forward;
    for (int32_t i = 0; i < n; i++) {
        q4x_tap *taps = grown(r->taps, r->ntaps, &r->taps_cap, sizeof *taps);
        if (!taps) return no_memory(r);
        r->taps = taps;
        q4x_tap *t = &taps[r->ntaps];
        if ((rc = q4x_parse_tap(c, r->d->nodes, r->d->nnodes, forward, t))) return rc;
        r->ntaps++;
        q4x_content_tap(r->content, r->d->nodes[t->node].name, t);
    }
    return 0;
}

/* Sums of parts find their records in order, so that each is looked at once. */
static int read_parts(reader *r, const chunk *head, q4x_payload *c) {
    int32_t forward, n, node, nrows;
    double *least = NULL;
    if (head->flags != Q4X_CHUNK_SKIPPABLE)
        return q4x_fail(r->err, Q4X_E_FORMAT, "chunk flags: expected %d, found %u", Q4X_CHUNK_SKIPPABLE, head->flags);
    int rc = q4x_parse_records(c, Q4X_PART_MIN, &forward, &n);
    if (!rc && (r->open < 0 || forward != r->open))
        rc = q4x_fail(r->err, Q4X_E_FORMAT, "sums of parts: expected records of forward %d before them", forward);
    for (int32_t i = 0; i < n && !rc; i++) {
        if ((rc = q4x_parse_part(c, &node, &nrows, &least))) break;
        while (r->parts < r->ntaps && r->taps[r->parts].node != node) r->parts++;
        q4x_tap *t = r->parts < r->ntaps ? &r->taps[r->parts++] : NULL;
        if (!t || !t->has_sketch || t->sketch.raw || t->sketch.nrows != nrows)
            rc = q4x_fail(r->err, Q4X_E_FORMAT,
                          "sums of parts of node %d: expected a record before them, in order, of which %d rows are "
                          "sketched",
                          node, nrows);
        else
            t->sketch.row_least = least;
    }
    return rc;
}

static int read_full(reader *r, q4x_payload *c) {
    q4x_full_ref ref;
    q4x_dump_priv *p = r->p;
    int rc = q4x_parse_full(c, &ref);
    if (rc) return rc;
    if (p->nfull == p->full_cap) {
        size_t cap = p->full_cap ? 2 * p->full_cap : 64;
        q4x_full_ref *q = realloc(p->full, cap * sizeof *q);
        if (!q) return no_memory(r);
        p->full = q;
        p->full_cap = cap;
    }
    p->full[p->nfull++] = ref;
    return 0;
}

typedef struct {
    int32_t node, index;
} placed;

static int by_node(const void *a, const void *b) {
    const placed *x = a, *y = b;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* The order of the open forward's taps by node (NULL when they lie so), which shows a node with two records. */
static int order_taps(reader *r, int32_t **ret) {
    int sorted = 1, rc = 0;
    placed *list = NULL;
    int32_t *order = NULL, n = r->ntaps;
    for (int32_t i = 1; i < n; i++) sorted &= r->taps[i - 1].node < r->taps[i].node;
    *ret = NULL;
    if (sorted) return 0;
    list = malloc((size_t)n * sizeof *list);
    order = malloc((size_t)n * sizeof *order);
    if (!list || !order) TRY(no_memory(r));
    for (int32_t i = 0; i < n; i++) list[i] = (placed){r->taps[i].node, i};
    qsort(list, (size_t)n, sizeof *list, by_node);
    for (int32_t i = 0; i < n; i++) {
        order[i] = list[i].index;
        if (i && list[i - 1].node == list[i].node)
            TRY(q4x_fail(r->err, Q4X_E_FORMAT, "forward %d has two records of %s", r->open,
                         r->d->nodes[list[i].node].name));
    }
    *ret = order;
    order = NULL;
done:
    free(list);
    free(order);
    return rc;
}

/* Tensors and the records that announce them belong together one to one. */
static int match_full(reader *r, const int32_t *order, int32_t nfull) {
    q4x_dump_priv *p = r->p;
    size_t i = p->full_done;
    if (p->nfull > i) qsort(p->full + i, p->nfull - i, sizeof *p->full, q4x_full_by_place);
    for (int32_t k = 0; k < r->ntaps; k++) {
        const q4x_tap *t = &r->taps[order ? order[k] : k];
        if (!t->has_full) continue;
        const char *name = r->d->nodes[t->node].name;
        if (i == p->nfull || p->full[i].node != t->node || p->full[i].forward != t->forward)
            return q4x_fail(r->err, Q4X_E_FORMAT, "forward %d: expected a tensor of %s, found none or another's",
                            r->open, name);
        uint64_t want = (uint64_t)t->rows * (uint64_t)t->cols * q4x_dump_elem(t->dtype);
        if (p->full[i].raw != want || p->full[i].elem != q4x_dump_elem(t->dtype))
            return q4x_fail(r->err, Q4X_E_FORMAT, "forward %d: tensor of %s: expected %llu bytes, found %llu", r->open,
                            name, (unsigned long long)want, (unsigned long long)p->full[i].raw);
        i++;
    }
    if (i != p->nfull || i - p->full_done != (size_t)nfull)
        return q4x_fail(r->err, Q4X_E_FORMAT,
                        "forward %d: expected %d full tensors, found %zu of which %zu have a record", r->open, nfull,
                        p->nfull - p->full_done, i - p->full_done);
    p->full_done = i;
    return 0;
}

/* Room for one more forward. */
static int more_forwards(reader *r) {
    q4x_dump *d = r->d;
    int32_t cap = r->forward_cap;
    int32_t **order = grown(r->p->by_node, d->nforwards, &cap, sizeof *order);
    if (!order) return -1;
    r->p->by_node = order;
    q4x_forward *f = grown(d->forwards, d->nforwards, &r->forward_cap, sizeof *f);
    if (!f) return -1;
    d->forwards = f;
    return 0;
}

/* The open forward ends: its declared counts hold, its records become the dump's. */
static int read_forward(reader *r, q4x_payload *c) {
    q4x_dump *d = r->d;
    q4x_forward f;
    q4x_forward_counts want;
    int32_t *order = NULL, nsel = 0, last = d->nforwards ? d->forwards[d->nforwards - 1].index : -1;
    int rc = q4x_parse_forward(c, &f, &want);
    if (rc) return rc;
    if (f.index <= last || (r->open >= 0 && f.index != r->open))
        return q4x_fail(r->err, Q4X_E_FORMAT, "forward index: expected %d%s, found %d",
                        r->open >= 0 ? r->open : last + 1, r->open >= 0 ? "" : " or later", f.index);
    for (int32_t i = 0; i < r->ntaps; i++) nsel += r->taps[i].has_sel;
    if (want.ntaps != r->ntaps || want.nsel != nsel)
        return q4x_fail(r->err, Q4X_E_FORMAT, "forward %d: expected %d records and %d selections, found %d and %d",
                        f.index, want.ntaps, want.nsel, r->ntaps, nsel);
    r->open = f.index;
    TRY(order_taps(r, &order));
    TRY(match_full(r, order, want.nfull));
    if (more_forwards(r)) TRY(no_memory(r));
    if (r->ntaps) {
        f.taps = q4x_dpool_take(&r->p->pool, (size_t)r->ntaps * sizeof *f.taps);
        if (!f.taps) TRY(no_memory(r));
        memcpy(f.taps, r->taps, (size_t)r->ntaps * sizeof *f.taps);
    }
    f.ntaps = r->ntaps;
    r->p->by_node[d->nforwards] = order;
    d->forwards[d->nforwards++] = f;
    order = NULL;
    q4x_content_forward(r->content, &f);
    r->seen.nforwards++;
    r->seen.ntaps += (uint64_t)r->ntaps;
    r->seen.nsel += (uint64_t)nsel;
    r->seen.nfull += (uint64_t)want.nfull;
    r->seen.nlogits += f.logits ? (uint64_t)f.n_logits : 0;
    r->ntaps = r->parts = 0;
    r->open = -1;
done:
    free(order);
    return rc;
}

static int read_done(reader *r, q4x_payload *c) {
    q4x_dump_totals want;
    int rc = q4x_parse_done(c, &want);
    if (rc) return rc;
    const q4x_dump_totals *s = &r->seen;
    if (r->open >= 0 || r->p->nfull != r->p->full_done)
        return q4x_fail(r->err, Q4X_E_FORMAT, "end marker: forward %d has records but no end", r->open);
    const struct {
        const char *what;
        uint64_t want, found;
    } list[] = {
        {"forwards", want.nforwards, s->nforwards}, {"nodes", want.nnodes, s->nnodes},
        {"records", want.ntaps, s->ntaps},          {"selections", want.nsel, s->nsel},
        {"full tensors", want.nfull, s->nfull},     {"logit rows", want.nlogits, s->nlogits},
        {"chunks", want.nchunks, s->nchunks},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].want != list[i].found)
            return q4x_fail(r->err, Q4X_E_FORMAT, "declared %s: expected %llu, found %llu", list[i].what,
                            (unsigned long long)list[i].want, (unsigned long long)list[i].found);
    r->d->content = q4x_content_end(r->content);
    if (!q4x_hash_eq(&r->d->content, &want.content)) {
        char a[33], b[33];
        q4x_hash_hex(&want.content, a);
        q4x_hash_hex(&r->d->content, b);
        return q4x_fail(r->err, Q4X_E_CHECKSUM, "content hash: expected %s, found %s", a, b);
    }
    r->done = 1;
    return 0;
}

/* Whole forwards stand before the tail, and only the end marker behind it. */
static int read_tail(reader *r, const chunk *c) {
    if (c->flags != Q4X_CHUNK_SKIPPABLE)
        return q4x_fail(r->err, Q4X_E_FORMAT, "chunk flags: expected %d, found %u", Q4X_CHUNK_SKIPPABLE, c->flags);
    if (!r->has_nodes || r->d->tail || r->open >= 0 || r->p->nfull != r->p->full_done)
        return q4x_fail(r->err, Q4X_E_FORMAT, "order of chunks: expected one tail, after the last forward");
    return read_json(r, c, "tail", &r->d->tail);
}

/* HEAD NODE ((TAPS | FULL | PART)* FWRD)* TAIL? DONE; chunks of a newer minor version may stand between when they say
 * so. */
static int take_chunk(reader *r, const chunk *c) {
    q4x_payload pay = {
        .p = c->payload, .left = c->length, .pos = c->at + Q4X_DUMP_CHUNK, .pool = &r->p->pool, .err = r->err};
    const int part = c->type == Q4X_CHUNK_PART && r->minor >= 2;
    int known = part || c->type == Q4X_CHUNK_HEAD || c->type == Q4X_CHUNK_NODE || c->type == Q4X_CHUNK_TAPS ||
                c->type == Q4X_CHUNK_FULL || c->type == Q4X_CHUNK_FWRD || c->type == Q4X_CHUNK_DONE;
    if (c->type == Q4X_CHUNK_TAIL && r->minor >= 1) return read_tail(r, c);
    if (!known) {
        if (r->minor > Q4X_DUMP_MINOR && c->flags == Q4X_CHUNK_SKIPPABLE && r->has_header) return 0;
        return q4x_fail(r->err, r->minor > Q4X_DUMP_MINOR ? Q4X_E_UNSUPPORTED : Q4X_E_FORMAT,
                        "chunk type: expected a known one, found %08x in a dump of version %d.%u", c->type,
                        r->d->version, r->minor);
    }
    if (r->d->tail && c->type != Q4X_CHUNK_DONE)
        return q4x_fail(r->err, Q4X_E_FORMAT, "order of chunks: expected the end marker behind the tail");
    if (c->flags && !part) return q4x_fail(r->err, Q4X_E_FORMAT, "chunk flags: expected 0, found %u", c->flags);
    int order_ok = c->type == Q4X_CHUNK_HEAD   ? !r->has_header
                   : c->type == Q4X_CHUNK_NODE ? !r->has_nodes
                                               : r->has_nodes;
    if (!order_ok || (c->type == Q4X_CHUNK_NODE && !r->has_header))
        return q4x_fail(r->err, Q4X_E_FORMAT, "order of chunks: expected header, nodes, records, each in its place");
    int rc;
    switch (c->type) {
    case Q4X_CHUNK_HEAD: return read_header(r, c);
    case Q4X_CHUNK_NODE: rc = read_nodes(r, &pay); break;
    case Q4X_CHUNK_TAPS: rc = read_taps(r, &pay); break;
    case Q4X_CHUNK_FULL: rc = read_full(r, &pay); break;
    case Q4X_CHUNK_PART: rc = read_parts(r, c, &pay); break;
    case Q4X_CHUNK_FWRD: rc = read_forward(r, &pay); break;
    default: rc = read_done(r, &pay); break;
    }
    if (!rc && pay.left)
        rc = q4x_fail(r->err, Q4X_E_FORMAT, "at byte %llu: expected the end of the chunk, found %llu more bytes",
                      (unsigned long long)pay.pos, (unsigned long long)pay.left);
    return rc;
}

static int read_all(reader *r) {
    int rc = preamble(r);
    while (!rc && !r->done) {
        chunk c;
        rc = next_chunk(r, &c);
        if (rc) break;
        rc = in_chunk(r, &c, take_chunk(r, &c));
        if (!r->done) r->seen.nchunks++;
    }
    if (!rc && r->pos != r->p->map.size)
        rc = q4x_fail(r->err, Q4X_E_FORMAT, "%s: at byte %llu: expected the end of the file, found %llu more bytes",
                      q4x_tail(r->name), (unsigned long long)r->pos, (unsigned long long)(r->p->map.size - r->pos));
    return rc;
}

/* Takes the map over. */
static int read_map(q4x_map map, const char *name, q4x_dump **ret, q4x_err *err) {
    int rc = 0;
    reader r = {.name = name, .err = err, .open = -1, .d = calloc(1, sizeof *r.d), .p = calloc(1, sizeof *r.p)};
    if (!r.d || !r.p) {
        free(r.d);
        free(r.p);
        q4x_map_close(&map);
        return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to read it", q4x_tail(name));
    }
    r.p->map = map;
    r.d->priv = r.p;
    r.d->path = strdup(name);
    rc = r.d->path ? read_all(&r) : no_memory(&r);
    if (!rc || (rc == Q4X_E_TRUNCATED && r.has_nodes)) {
        *ret = r.d;
        r.d = NULL;
    }
    q4x_dump_free(r.d);
    q4x_content_free(r.content);
    free(r.taps);
    return rc;
}

int q4x_dump_read(const char *path, q4x_dump **ret, q4x_err *err) {
    q4x_map map;
    int rc = q4x_map_open(path, &map, err);
    return rc ? rc : read_map(map, path, ret, err);
}

int q4x_dump_read_mem(const void *data, size_t n, const char *name, q4x_dump **ret, q4x_err *err) {
    return read_map(q4x_map_mem(data, n), name, ret, err);
}
