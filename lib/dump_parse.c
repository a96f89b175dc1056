/* dump_parse.c: payloads of a dump's chunks into the structures of dump.h. Every byte may be hostile: a count is
 * believed only as far as the payload has bytes for it, so that memory never exceeds a small multiple of the file.
 */
#include <stdlib.h>

#include "kernels/k.h"
#include "lib/dump_int.h"

/* ---- memory ---- */

enum { POOL_BLOCK = 1 << 18 };

typedef struct pool_block {
    struct pool_block *next;
    uint64_t pad; /* what follows is aligned to 16 */
} pool_block;

void *q4x_dpool_take(q4x_dpool *p, size_t n) {
    if (n > SIZE_MAX / 2) return NULL;
    n = (n + 15) / 16 * 16;
    if (n > p->left || !p->at) {
        size_t size = n > POOL_BLOCK ? n : POOL_BLOCK;
        pool_block *b = malloc(sizeof *b + size);
        if (!b) return NULL;
        b->next = p->blocks;
        p->blocks = b;
        p->at = (uint8_t *)(b + 1);
        p->left = size;
    }
    void *ret = p->at;
    p->at += n;
    p->left -= n;
    return ret;
}

void q4x_dpool_free(q4x_dpool *p) {
    for (pool_block *b = p->blocks; b;) {
        pool_block *next = b->next;
        free(b);
        b = next;
    }
    *p = (q4x_dpool){0};
}

/* ---- reading ---- */

static void short_of(q4x_payload *c, const char *field, uint64_t need) {
    c->rc = q4x_fail(c->err, Q4X_E_FORMAT, "%s at byte %llu: expected %llu bytes, found %llu to the end of the chunk",
                     field, (unsigned long long)c->pos, (unsigned long long)need, (unsigned long long)c->left);
}

/* The next n bytes, or NULL (then c->rc is set). */
static const uint8_t *take(q4x_payload *c, uint64_t n, const char *field) {
    if (c->rc) return NULL;
    if (n > c->left) {
        short_of(c, field, n);
        return NULL;
    }
    const uint8_t *p = c->p;
    c->p += n;
    c->pos += n;
    c->left -= n;
    return p;
}

static void get(q4x_payload *c, void *ret, size_t n, const char *field) {
    const uint8_t *p = take(c, n, field);
    if (p)
        memcpy(ret, p, n);
    else
        memset(ret, 0, n);
}

static int32_t get_i32(q4x_payload *c, const char *field) {
    int32_t v;
    get(c, &v, sizeof v, field);
    return v;
}

static uint32_t get_u32(q4x_payload *c, const char *field) {
    uint32_t v;
    get(c, &v, sizeof v, field);
    return v;
}

static uint64_t get_u64(q4x_payload *c, const char *field) {
    uint64_t v;
    get(c, &v, sizeof v, field);
    return v;
}

static void *room(q4x_payload *c, uint64_t n) {
    void *p = n > SIZE_MAX / 2 ? NULL : q4x_dpool_take(c->pool, (size_t)n);
    if (!p) c->rc = q4x_fail(c->err, Q4X_E_NOMEM, "no memory for %llu bytes of a dump", (unsigned long long)n);
    return p;
}

/* A count that must be 0 or more, of things that take at least `each` bytes. */
static int32_t get_count(q4x_payload *c, uint64_t each, const char *field) {
    int32_t n = get_i32(c, field);
    if (c->rc) return 0;
    if (n < 0 || (each && (uint64_t)n > c->left / each)) {
        c->rc = q4x_fail(c->err, Q4X_E_FORMAT,
                         "%s at byte %llu: expected at most the %llu that the chunk has room for, "
                         "found %d",
                         field, (unsigned long long)(c->pos - 4), (unsigned long long)(each ? c->left / each : 0), n);
        return 0;
    }
    return n;
}

/* A copy of n * m elements of `elem` bytes. The product fits: n and m come from int32. */
static void *get_array(q4x_payload *c, uint64_t n, uint64_t m, size_t elem, const char *field) {
    const uint8_t *p =
        n * m > UINT64_MAX / 8 / elem ? (short_of(c, field, UINT64_MAX), NULL) : take(c, n * m * elem, field);
    void *copy = p ? room(c, n * m * elem) : NULL;
    if (copy && n && m) memcpy(copy, p, (size_t)(n * m * elem));
    return copy;
}

static char *get_text(q4x_payload *c, const char *field) {
    uint16_t n;
    get(c, &n, sizeof n, field);
    const uint8_t *p = take(c, n, field);
    if (p && memchr(p, 0, n)) {
        c->rc = q4x_fail(c->err, Q4X_E_FORMAT, "%s at byte %llu: expected text, found a zero byte", field,
                         (unsigned long long)(c->pos - n));
        return NULL;
    }
    char *s = p ? room(c, (uint64_t)n + 1) : NULL;
    if (!s) return NULL;
    memcpy(s, p, n);
    s[n] = 0;
    return s;
}

/* ---- nodes ---- */

int q4x_parse_nodes(q4x_payload *c, q4x_dump_node **ret, int32_t *ret_n) {
    int32_t n = get_count(c, Q4X_NODE_MIN, "number of nodes");
    q4x_dump_node *nodes = c->rc ? NULL : room(c, (uint64_t)n * sizeof *nodes);
    for (int32_t i = 0; i < n && !c->rc; i++) {
        q4x_dump_node *d = &nodes[i];
        memset(d, 0, sizeof *d);
        d->name = get_text(c, "node name");
        d->op = get_text(c, "node op");
        d->levers = get_text(c, "node levers");
        d->layer = get_i32(c, "node layer");
        uint32_t flags = get_u32(c, "node flags");
        if (!c->rc && flags > 7)
            c->rc = q4x_fail(c->err, Q4X_E_FORMAT, "node flags at byte %llu: expected 0..7, found %u",
                             (unsigned long long)(c->pos - 4), flags);
        d->is_public = (flags & Q4X_NODE_PUBLIC) != 0;
        d->is_state = (flags & Q4X_NODE_STATE) != 0;
        d->is_ids = (flags & Q4X_NODE_IDS) != 0;
        d->alias = get_i32(c, "node alias");
        d->heads.axis = get_i32(c, "heads axis");
        d->heads.off = get_i32(c, "heads offset");
        d->heads.width = get_i32(c, "heads width");
        d->heads.nk = get_i32(c, "key heads");
        d->heads.nv = get_i32(c, "value heads");
        d->heads.gguf = get_i32(c, "heads order");
        d->nin = get_count(c, sizeof *d->in, "node inputs");
        d->in = get_array(c, (uint64_t)d->nin, 1, sizeof *d->in, "node inputs");
        d->nst = get_count(c, sizeof *d->st, "node states");
        d->st = get_array(c, (uint64_t)d->nst, 1, sizeof *d->st, "node states");
    }
    if (!c->rc) c->rc = q4x_dump_check_nodes(nodes, n, Q4X_E_FORMAT, c->err);
    if (c->rc) return c->rc;
    *ret = nodes;
    *ret_n = n;
    return 0;
}

/* ---- taps ---- */

static void get_stats(q4x_payload *c, q4x_stats *s) {
    uint64_t n[7];
    double v[5];
    get(c, n, sizeof n, "statistics");
    get(c, v, sizeof v, "statistics");
    *s =
        (q4x_stats){.n = n[0], .nan = n[1], .pinf = n[2], .ninf = n[3], .zeros = n[4], .on_bf16 = n[5], .on_f16 = n[6]};
    s->min = v[0], s->max = v[1], s->maxabs = v[2], s->sumabs = v[3], s->sumsq = v[4];
    s->ntop = get_count(c, sizeof *s->top_index + sizeof *s->top_value, "top elements");
    if (s->ntop > Q4X_NTOP) {
        c->rc = q4x_fail(c->err, Q4X_E_FORMAT, "top elements at byte %llu: expected at most %d, found %d",
                         (unsigned long long)(c->pos - 4), Q4X_NTOP, s->ntop);
        return;
    }
    get(c, s->top_index, (size_t)s->ntop * sizeof *s->top_index, "top elements");
    get(c, s->top_value, (size_t)s->ntop * sizeof *s->top_value, "top elements");
}

static void get_sketch(q4x_payload *c, q4x_sketch *s) {
    *s = (q4x_sketch){0};
    s->row0 = get_i32(c, "sketch first row");
    s->nrows = get_count(c, 2 * sizeof(double), "sketch rows");
    s->width = get_count(c, 0, "sketch width");
    s->raw = get_i32(c, "sketch kind");
    s->skipped = get_u64(c, "sketch skipped elements");
    uint64_t n = (uint64_t)s->nrows, w = (uint64_t)s->width;
    s->row_sumabs = get_array(c, n, 1, sizeof(double), "sketch row sums");
    s->row_sumsq = get_array(c, n, 1, sizeof(double), "sketch row sums");
    if (s->raw)
        s->values = get_array(c, n, w, sizeof(float), "sketch values");
    else
        s->buckets = get_array(c, n, w, sizeof(double), "sketch buckets");
}

static void get_selection(q4x_payload *c, q4x_selection *s, uint32_t has) {
    *s = (q4x_selection){0};
    s->rows = get_count(c, 0, "selection rows");
    s->k = get_count(c, 0, "selection width");
    uint64_t n = (uint64_t)s->rows, k = (uint64_t)s->k;
    s->ids = get_array(c, n, k, sizeof(int32_t), "selection ids");
    if (has & Q4X_TAP_WEIGHTS) s->weights = get_array(c, n, k, sizeof(float), "selection weights");
    if (!(has & Q4X_TAP_CUT)) return;
    s->lo = get_array(c, n, 1, sizeof(float), "scores at the cut");
    s->hi = get_array(c, n, 1, sizeof(float), "scores at the cut");
}

int q4x_parse_records(q4x_payload *c, uint64_t least, int32_t *ret_forward, int32_t *ret_n) {
    *ret_forward = get_i32(c, "forward");
    *ret_n = get_count(c, least, "number of records");
    return c->rc;
}

int q4x_parse_part(q4x_payload *c, int32_t *ret_node, int32_t *ret_nrows, double **ret) {
    *ret_node = get_i32(c, "node");
    *ret_nrows = get_count(c, sizeof **ret, "rows");
    double *least = get_array(c, (uint64_t)*ret_nrows, 1, sizeof *least, "sums of parts");
    if (!c->rc && !q4x_dump_check_least(least, *ret_nrows))
        c->rc = q4x_fail(c->err, Q4X_E_FORMAT, "sums of parts of node %d: expected finite ones that are not negative",
                         *ret_node);
    if (!c->rc) *ret = least;
    return c->rc;
}

int q4x_parse_tap(q4x_payload *c, const q4x_dump_node *nodes, int32_t nnodes, int32_t forward, q4x_tap *ret) {
    q4x_tap t = {.forward = forward};
    uint64_t at = c->pos;
    t.node = get_i32(c, "tap node");
    t.dtype = get_i32(c, "tap dtype");
    t.rows = (int64_t)get_u64(c, "tap rows");
    t.cols = (int64_t)get_u64(c, "tap columns");
    get(c, t.bits.b, sizeof t.bits.b, "tap bits");
    uint32_t has = get_u32(c, "tap parts");
    uint32_t known = 2 * Q4X_TAP_CUT - 1;
    if (!c->rc && (has & ~known || (!(has & Q4X_TAP_SEL) && has & (Q4X_TAP_WEIGHTS | Q4X_TAP_CUT))))
        c->rc = q4x_fail(c->err, Q4X_E_FORMAT, "tap parts at byte %llu: expected known parts, found 0x%x",
                         (unsigned long long)(c->pos - 4), has);
    t.has_stats = (has & Q4X_TAP_STATS) != 0;
    t.has_sketch = (has & Q4X_TAP_SKETCH) != 0;
    t.has_band = (has & Q4X_TAP_BAND) != 0;
    t.has_full = (has & Q4X_TAP_FULL) != 0;
    t.has_sel = (has & Q4X_TAP_SEL) != 0;
    if (t.has_stats) get_stats(c, &t.stats);
    if (t.has_sketch) get_sketch(c, &t.sketch);
    if (t.has_band) get(c, &t.band_hard, sizeof t.band_hard, "band");
    if (t.has_band) get(c, &t.band_rms, sizeof t.band_rms, "band");
    if (t.has_sel) get_selection(c, &t.sel, has);
    if (!c->rc && (c->rc = q4x_dump_check_tap(nodes, nnodes, &t, Q4X_E_FORMAT, c->err)))
        q4x_err_prefix(c->err, "record at byte %llu", (unsigned long long)at);
    if (!c->rc) *ret = t;
    return c->rc;
}

/* ---- forwards, full tensors, the end ---- */

int q4x_parse_forward(q4x_payload *c, q4x_forward *ret, q4x_forward_counts *ret_counts) {
    q4x_forward f = {0};
    f.index = get_i32(c, "forward index");
    f.n_ids = get_count(c, sizeof *f.ids, "number of ids");
    f.pos0 = get_i32(c, "position");
    f.forced = get_i32(c, "forced");
    get(c, f.prefix.b, sizeof f.prefix.b, "prefix hash");
    f.sampled = get_i32(c, "sampled id");
    f.n_logits = get_i32(c, "logit rows");
    f.vocab = get_i32(c, "vocabulary");
    get(c, f.top_id, sizeof f.top_id, "top ids");
    get(c, f.top_val, sizeof f.top_val, "top values");
    get(c, ret_counts, sizeof *ret_counts, "declared counts");
    int32_t logits = get_i32(c, "logits present");
    if (!c->rc && logits != 0 && logits != 1)
        c->rc = q4x_fail(c->err, Q4X_E_FORMAT, "logits present at byte %llu: expected 0 or 1, found %d",
                         (unsigned long long)(c->pos - 4), logits);
    f.ids = get_array(c, (uint64_t)f.n_ids, 1, sizeof *f.ids, "ids");
    if (!c->rc) c->rc = q4x_dump_check_forward(&f, Q4X_E_FORMAT, c->err);
    if (c->rc) return c->rc;
    if (logits) f.logits = get_array(c, (uint64_t)f.n_logits, (uint64_t)f.vocab, sizeof *f.logits, "logits");
    if (!c->rc) *ret = f;
    return c->rc;
}

int q4x_parse_full(q4x_payload *c, q4x_full_ref *ret) {
    q4x_full_ref r = {0};
    r.forward = get_i32(c, "tensor forward");
    r.node = get_i32(c, "tensor node");
    r.encoding = get_u32(c, "tensor encoding");
    r.elem = get_u32(c, "tensor element size");
    r.raw = get_u64(c, "tensor bytes");
    if (c->rc) return c->rc;
    r.n = c->left;
    r.data = take(c, c->left, "tensor");
    if (r.encoding != Q4X_FULL_STORED && r.encoding != Q4X_FULL_PLANES)
        c->rc = q4x_fail(c->err, Q4X_E_FORMAT, "tensor encoding: expected 0 or 1, found %u", r.encoding);
    else if (r.encoding == Q4X_FULL_STORED ? r.raw != r.n : r.raw > q4x_planes_most(r.n) || r.raw > SIZE_MAX / 2)
        c->rc = q4x_fail(c->err, Q4X_E_FORMAT, "tensor bytes: %llu cannot be what %llu %s bytes hold",
                         (unsigned long long)r.raw, (unsigned long long)r.n, r.encoding ? "packed" : "stored");
    if (!c->rc) *ret = r;
    return c->rc;
}

int q4x_parse_done(q4x_payload *c, q4x_dump_totals *ret) {
    q4x_dump_totals t = {0};
    t.nforwards = get_u32(c, "declared forwards");
    t.nnodes = get_u32(c, "declared nodes");
    t.ntaps = get_u64(c, "declared records");
    t.nsel = get_u64(c, "declared selections");
    t.nfull = get_u64(c, "declared tensors");
    t.nlogits = get_u64(c, "declared logit rows");
    t.nchunks = get_u64(c, "declared chunks");
    get(c, t.content.b, sizeof t.content.b, "content hash");
    if (!c->rc) *ret = t;
    return c->rc;
}
