#include "tests/h_dump.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/k.h"
#include "kernels/round.h"
#include "tests/h_rand.h"

const h_dump_opts h_dump_small = {.seed = 5, .forwards = 3, .rows = 9, .wide = 520, .provenance = "monday"};

static const struct {
    const char *name, *op, *levers;
    int layer, pub, state, ids, alias, nin, in, st;
    q4x_heads heads;
} NODES[H_NODES] = {
    [H_EMB] = {"emb", "embed", "act=bf16", -1, 1, 0, 0, -1, 1, Q4X_IN_IDS, 0, {0}},
    [H_WIDE] = {"wide", "widen", "", -1, 1, 0, 0, -1, 1, H_EMB, 0, {0}},
    [H_IN] = {"L00.in", "alias", "", 0, 1, 0, 0, H_WIDE, 1, H_WIDE, 0, {0}},
    [H_V] = {"L00.gdn.v", "slice", "", 0, 0, 0, 0, -1, 1, H_WIDE, 0, {1, 2, 3, 2, 6, 1}},
    [H_IDS] = {"L00.moe.ids", "moe_ids", "topk.tie=torch", 0, 0, 0, 1, -1, 1, H_WIDE, 0, {0}},
    [H_WEIGHTS] = {"L00.moe.weights", "moe_weights", "", 0, 0, 0, 0, -1, 1, H_IDS, 0, {0}},
    [H_IDX] = {"L03.attn.idx.sel", "idx_sel", "", 3, 0, 0, 1, -1, 1, H_WIDE, 0, {0}},
    [H_HALF] = {"L03.moe", "moe_out", "", 3, 1, 0, 0, -1, 1, H_WIDE, 0, {0}},
    [H_LOGITS] = {"logits", "matmul", "", -1, 1, 0, 0, -1, 1, H_HALF, 0, {0}},
    [H_DELTA] = {"L00.state.delta", "state", "", 0, 0, 1, 0, -1, 0, 0, 0, {2, 0, 2, 2, 6, 1}},
    [H_HIST] = {"L01.state.hist", "state", "", 1, 0, 1, 1, -1, 0, 0, 0, {0}},
};

static json_t *make_header(const h_dump_opts *o) {
    json_t *h = json_pack("{s:i, s:s, s:{s:s}, s:{s:s, s:{s:s, s:f}, s:[s]}, s:{s:s}, s:{s:i}}", "format", 1, "mode",
                          o->full ? "full" : "sketch", "model", "path", "models/demo.gguf", "arm", "label", "A",
                          "levers", "act", "bf16", "eps", 1e-6, "scoped", "gdn=chunk64@L00.*", "free", "time",
                          o->provenance ? o->provenance : "?", "qsa", "ratio", 4);
    return h;
}

static void make_nodes(q4x_dump *d) {
    d->nnodes = H_NODES;
    d->nodes = calloc(H_NODES, sizeof *d->nodes);
    for (int i = 0; i < H_NODES; i++) {
        q4x_dump_node *n = &d->nodes[i];
        *n = (q4x_dump_node){.name = strdup(NODES[i].name),
                             .op = strdup(NODES[i].op),
                             .levers = strdup(NODES[i].levers),
                             .layer = NODES[i].layer,
                             .is_public = NODES[i].pub,
                             .is_state = NODES[i].state,
                             .is_ids = NODES[i].ids,
                             .alias = NODES[i].alias,
                             .heads = NODES[i].heads};
        n->nin = NODES[i].nin;
        n->in = malloc(sizeof *n->in);
        n->in[0] = NODES[i].in;
        n->nst = i == H_V;
        n->st = malloc(sizeof *n->st);
        n->st[0] = H_DELTA;
    }
}

static void shape(const h_dump_opts *o, int node, int forward, int64_t *rows, int64_t *cols) {
    static const int COLS[H_NODES] = {7, 0, 0, 22, 3, 3, 2, 5, 40, 4, 2};
    *rows = NODES[node].state ? (node == H_DELTA ? 12 : 2) : forward ? 1 : o->rows;
    *cols = node == H_WIDE ? o->wide : COLS[node];
    if (node == H_LOGITS) *rows = 1;
}

static void *copy_of(const void *p, size_t n) {
    void *q = malloc(n ? n : 1);
    if (n) memcpy(q, p, n);
    return q;
}

static void add_stats(q4x_tap *t, const float *x, int parts) {
    q4x_tapstat *s = q4x_tapstat_new();
    q4x_sketch sk;
    const int32_t width = parts ? (int32_t)t->cols / parts : 0;
    q4x_tapstat_begin(s, t->rows, t->cols, 0, t->rows, 1);
    if (q4x_tapstat_parts(s, &(q4x_parts){0, width, width, parts})) abort();
    q4x_tapstat_rows(s, x, t->rows, 1);
    q4x_tapstat_end(s, &t->stats, &sk);
    size_t n = (size_t)sk.nrows, cells = n * (size_t)sk.width;
    t->sketch = sk;
    t->sketch.row_sumabs = copy_of(sk.row_sumabs, n * 8);
    t->sketch.row_sumsq = copy_of(sk.row_sumsq, n * 8);
    if (sk.row_least) t->sketch.row_least = copy_of(sk.row_least, n * 8);
    if (sk.raw)
        t->sketch.values = copy_of(sk.values, cells * 4);
    else
        t->sketch.buckets = copy_of(sk.buckets, cells * 8);
    t->has_stats = t->has_sketch = 1;
    q4x_tapstat_free(s);
}

static float value(h_rand *r, int nonfinite) {
    uint32_t u = (uint32_t)h_rand64(r);
    if (nonfinite && u % 5 == 0) return k_bits_f32((u & 0x80000000) | 0x7f800000 | (u >> 8 & 0x7fffff));
    if (nonfinite && u % 7 == 0) return u & 256 ? INFINITY : -INFINITY;
    return (float)h_gaussian(r);
}

static void add_selection(q4x_tap *t, h_rand *r, int weights) {
    size_t n = (size_t)(t->rows * t->cols), rows = (size_t)t->rows;
    q4x_selection *s = &t->sel;
    t->has_sel = 1;
    *s = (q4x_selection){.rows = (int32_t)t->rows, .k = (int32_t)t->cols};
    s->ids = copy_of(t->full, n * 4);
    if (!weights) return;
    s->weights = malloc(n * 4 + 4);
    s->lo = malloc(rows * 4 + 4);
    s->hi = malloc(rows * 4 + 4);
    for (size_t i = 0; i < n; i++) s->weights[i] = (float)h_uniform(r);
    for (size_t i = 0; i < rows; i++) s->lo[i] = (float)h_gaussian(r), s->hi[i] = i % 3 ? s->lo[i] - 1 : NAN;
}

static void make_tap(const h_dump_opts *o, h_rand *r, q4x_tap *t, int node, int forward, int pos0) {
    *t = (q4x_tap){.node = node, .forward = forward};
    shape(o, node, forward, &t->rows, &t->cols);
    size_t n = (size_t)(t->rows * t->cols);
    t->dtype = NODES[node].ids ? K_T_I32 : node == H_HALF ? K_T_BF16 : K_T_F32;
    size_t bytes = n * (t->dtype == K_T_BF16 ? 2 : 4);
    float *x = malloc(n * 4 + 4);
    int32_t *ids = (int32_t *)x;
    for (size_t i = 0; i < n; i++) {
        int64_t row = (int64_t)i / t->cols, blocks = (pos0 + row + 1) / 4, c = (int64_t)i % t->cols;
        if (node == H_IDX)
            ids[i] = c < blocks ? (int32_t)((blocks - 1 - c) % blocks) : -1;
        else if (NODES[node].ids)
            ids[i] = (int32_t)h_below(r, 8);
        else
            x[i] = value(r, o->nonfinite);
    }
    if (node == H_HALF)
        for (size_t i = 0; i < n; i++) {
            uint16_t h = (uint16_t)(k_f32_bits(x[i]) >> 16);
            memcpy((uint8_t *)x + 2 * i, &h, 2);
        }
    t->full = x;
    t->bits = q4x_bits_of(t->dtype == K_T_F32    ? Q4X_BITS_F32
                          : t->dtype == K_T_BF16 ? Q4X_BITS_BF16
                                                 : Q4X_BITS_RAW,
                          x, bytes);
    if (t->dtype == K_T_F32 && NODES[node].pub) add_stats(t, x, node == H_WIDE ? o->parts : 0);
    if (NODES[node].ids && !NODES[node].state) add_selection(t, r, node == H_IDS);
    t->has_band = node == H_WIDE || node == H_V;
    t->band_hard = t->has_band ? h_uniform(r) : 0;
    t->band_rms = t->has_band ? h_uniform(r) / 100 : 0;
    t->has_full = o->full;
    if (!o->full) free(t->full), t->full = NULL;
}

q4x_dump *h_dump_make(const h_dump_opts *o) {
    h_rand r = {o->seed};
    q4x_dump *d = calloc(1, sizeof *d);
    d->header = make_header(o);
    d->path = strdup("made up");
    if (o->tail) d->tail = json_pack("{s:{s:{s:i, s:i}}}", "controls", "read_twice", "differing", 0, "compared", 7);
    make_nodes(d);
    d->nforwards = o->forwards;
    d->forwards = calloc((size_t)o->forwards + 1, sizeof *d->forwards);
    int pos = 0;
    for (int i = 0; i < o->forwards; i++) {
        q4x_forward *f = &d->forwards[i];
        *f = (q4x_forward){
            .index = i, .n_ids = i ? 1 : o->rows, .pos0 = pos, .sampled = 17 + i, .n_logits = 1, .vocab = 40};
        f->ids = malloc((size_t)f->n_ids * 4 + 4);
        for (int k = 0; k < f->n_ids; k++) f->ids[k] = (int32_t)h_below(&r, 40);
        f->prefix = q4x_xxh128(f->ids, (size_t)f->n_ids * 4);
        f->logits = malloc(40 * 4);
        h_gaussians(&r, f->logits, 40, 3);
        f->top_id[0] = 17 + i, f->top_id[1] = 3, f->top_val[0] = 9.5f, f->top_val[1] = 9.25f;
        f->taps = calloc(H_NODES, sizeof *f->taps);
        for (int node = 0; node < H_NODES; node++) {
            if (node == H_IN) continue;
            /* the ids' record comes after its weights', as when it waited for them */
            int which = node == H_IDS ? H_WEIGHTS : node == H_WEIGHTS ? H_IDS : node;
            make_tap(o, &r, &f->taps[f->ntaps++], which, i, pos);
        }
        pos += f->n_ids;
    }
    return d;
}

int h_dump_write(const q4x_dump *d, const char *path, q4x_hash *content, q4x_err *err) {
    q4x_dumpw *w = NULL;
    int rc = q4x_dumpw_open(path, d->header, d->nodes, d->nnodes, &w, err);
    if (rc) return rc;
    for (int32_t i = 0; i < d->nforwards && !rc; i++) {
        const q4x_forward *f = &d->forwards[i];
        for (int32_t k = 0; k < f->ntaps && !rc; k++) rc = q4x_dumpw_tap(w, &f->taps[k], err);
        if (!rc) rc = q4x_dumpw_forward(w, f, err);
    }
    if (!rc && d->tail) rc = q4x_dumpw_tail(w, d->tail, err);
    if (!rc) return q4x_dumpw_close(w, content, err);
    q4x_dumpw_abort(w);
    return rc;
}

/* ---- equality ---- */

static int mem(const void *a, const void *b, size_t n) {
    return !a == !b && (!a || !n || !memcmp(a, b, n));
}

static int text(const char *a, const char *b) {
    return !strcmp(a, b);
}

static int same_node(const q4x_dump_node *a, const q4x_dump_node *b) {
    return text(a->name, b->name) && text(a->op, b->op) && text(a->levers, b->levers) && a->layer == b->layer &&
           a->is_public == b->is_public && a->is_state == b->is_state && a->is_ids == b->is_ids &&
           a->alias == b->alias && a->nin == b->nin && a->nst == b->nst && mem(a->in, b->in, (size_t)a->nin * 4) &&
           mem(a->st, b->st, (size_t)a->nst * 4) && mem(&a->heads, &b->heads, sizeof a->heads);
}

static int same_tap(const q4x_tap *a, const q4x_tap *b) {
    if (a->node != b->node || a->forward != b->forward || a->dtype != b->dtype || a->rows != b->rows ||
        a->cols != b->cols)
        return 0;
    if (!mem(&a->bits, &b->bits, 16) || a->has_stats != b->has_stats || a->has_sketch != b->has_sketch) return 0;
    if (a->has_band != b->has_band || a->has_full != b->has_full || a->has_sel != b->has_sel) return 0;
    const q4x_stats *s = &a->stats, *t = &b->stats;
    if (a->has_stats &&
        (!mem(s, t, offsetof(q4x_stats, ntop) + 4) || !mem(s->top_index, t->top_index, 8 * (size_t)s->ntop) ||
         !mem(s->top_value, t->top_value, 4 * (size_t)s->ntop)))
        return 0;
    if (a->has_band && (!mem(&a->band_hard, &b->band_hard, 8) || !mem(&a->band_rms, &b->band_rms, 8))) return 0;
    const q4x_sketch *x = &a->sketch, *y = &b->sketch;
    size_t n = (size_t)x->nrows, cells = n * (size_t)x->width;
    if (a->has_sketch && (x->row0 != y->row0 || x->nrows != y->nrows || x->width != y->width || x->raw != y->raw ||
                          x->skipped != y->skipped || !mem(x->row_sumabs, y->row_sumabs, n * 8) ||
                          !mem(x->row_sumsq, y->row_sumsq, n * 8) || !mem(x->row_least, y->row_least, n * 8) ||
                          !mem(x->buckets, y->buckets, cells * 8) || !mem(x->values, y->values, cells * 4)))
        return 0;
    const q4x_selection *p = &a->sel, *q = &b->sel;
    size_t ids = (size_t)p->rows * (size_t)p->k * 4, rows = (size_t)p->rows * 4;
    return !a->has_sel || (p->rows == q->rows && p->k == q->k && mem(p->ids, q->ids, ids) &&
                           mem(p->weights, q->weights, ids) && mem(p->lo, q->lo, rows) && mem(p->hi, q->hi, rows));
}

static int same_forward(const q4x_forward *a, const q4x_forward *b) {
    return a->index == b->index && a->n_ids == b->n_ids && a->pos0 == b->pos0 && a->forced == b->forced &&
           a->sampled == b->sampled && a->n_logits == b->n_logits && a->vocab == b->vocab && a->ntaps == b->ntaps &&
           mem(&a->prefix, &b->prefix, 16) && mem(a->ids, b->ids, (size_t)a->n_ids * 4) &&
           mem(a->top_id, b->top_id, 8) && mem(a->top_val, b->top_val, 8) &&
           mem(a->logits, b->logits, (size_t)a->n_logits * (size_t)a->vocab * 4);
}

int h_dump_equal(const q4x_dump *a, q4x_dump *b) {
    if ((a->tail || b->tail) && !json_equal(a->tail, b->tail)) return 0;
    if (!json_equal(a->header, b->header) || a->nnodes != b->nnodes || a->nforwards != b->nforwards) return 0;
    for (int32_t i = 0; i < a->nnodes; i++)
        if (!same_node(&a->nodes[i], &b->nodes[i])) return 0;
    for (int32_t f = 0; f < a->nforwards; f++) {
        if (!same_forward(&a->forwards[f], &b->forwards[f])) return 0;
        for (int32_t k = 0; k < a->forwards[f].ntaps; k++) {
            const q4x_tap *x = &a->forwards[f].taps[k];
            q4x_tap *y = &b->forwards[f].taps[k];
            if (!same_tap(x, y)) return 0;
            if (!x->has_full) continue;
            size_t n = (size_t)(x->rows * x->cols) * (x->dtype == K_T_BF16 ? 2 : 4);
            if (q4x_dump_full(b, y, NULL) || !mem(x->full, y->full, n)) return 0;
        }
    }
    return 1;
}

/* ---- files ---- */

uint8_t *h_file_read(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *p = malloc(*n + 1);
    if (fread(p, 1, *n, f) != *n) abort();
    fclose(f);
    return p;
}

void h_file_write(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) abort();
}

static char folder[64];

const char *h_temp(const char *name) {
    static char path[512];
    if (!folder[0]) {
        strcpy(folder, "/tmp/q4x-test-XXXXXX");
        if (!mkdtemp(folder)) abort();
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int each_file(int remove_them) {
    int n = 0;
    if (!folder[0]) return 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        n++;
        if (remove_them) unlink(h_temp(e->d_name));
    }
    if (d) closedir(d);
    return n;
}

int h_temp_count(void) {
    return each_file(0);
}

void h_temp_remove(void) {
    each_file(1);
    if (folder[0]) rmdir(folder);
    folder[0] = 0;
}

/* ---- chunks ---- */

static const uint8_t MAGIC[8] = {0x89, 'Q', '4', 'D', '\r', '\n', 0x1a, '\n'};

h_chunks h_chunks_split(const uint8_t *file, size_t n) {
    h_chunks c = {0};
    memcpy(&c.version, file + 8, 4);
    memcpy(&c.minor, file + 12, 4);
    for (size_t at = 24; at + 32 <= n && c.n < 64;) {
        h_chunk *k = &c.c[c.n++];
        uint64_t len;
        memcpy(&k->type, file + at, 4);
        memcpy(&k->flags, file + at + 4, 4);
        memcpy(&len, file + at + 8, 8);
        k->n = (size_t)len;
        k->data = copy_of(file + at + 32, k->n);
        at += 32 + k->n;
    }
    return c;
}

static void sums(uint8_t *chunk, uint64_t n) {
    uint64_t s = q4x_xxh64(chunk + 32, (size_t)n);
    memcpy(chunk + 16, &s, 8);
    s = q4x_xxh64(chunk, 24);
    memcpy(chunk + 24, &s, 8);
}

uint8_t *h_chunks_join(const h_chunks *c, size_t *n) {
    *n = 24;
    for (int i = 0; i < c->n; i++) *n += 32 + c->c[i].n;
    uint8_t *f = malloc(*n);
    memcpy(f, MAGIC, 8);
    memcpy(f + 8, &c->version, 4);
    memcpy(f + 12, &c->minor, 4);
    uint64_t s = q4x_xxh64(f, 16);
    memcpy(f + 16, &s, 8);
    uint8_t *p = f + 24;
    for (int i = 0; i < c->n; i++) {
        const h_chunk *k = &c->c[i];
        uint64_t len = k->n;
        memcpy(p, &k->type, 4);
        memcpy(p + 4, &k->flags, 4);
        memcpy(p + 8, &len, 8);
        if (k->n) memcpy(p + 32, k->data, k->n);
        sums(p, len);
        p += 32 + k->n;
    }
    return f;
}

void h_chunks_free(h_chunks *c) {
    for (int i = 0; i < c->n; i++) free(c->c[i].data);
    c->n = 0;
}

int h_chunks_find(const h_chunks *c, const char *type, int nth) {
    for (int i = 0; i < c->n; i++)
        if (!memcmp(&c->c[i].type, type, 4) && nth-- == 0) return i;
    abort();
}

void h_chunks_insert(h_chunks *c, int at, const char *type, uint32_t flags, const void *data, size_t n) {
    if (c->n == 64) abort();
    memmove(&c->c[at + 1], &c->c[at], (size_t)(c->n - at) * sizeof *c->c);
    c->n++;
    memcpy(&c->c[at].type, type, 4);
    c->c[at].flags = flags;
    c->c[at].n = n;
    c->c[at].data = copy_of(data, n);
}

void h_chunks_remove(h_chunks *c, int at) {
    free(c->c[at].data);
    memmove(&c->c[at], &c->c[at + 1], (size_t)(c->n - at - 1) * sizeof *c->c);
    c->n--;
}

void h_resum(uint8_t *file, size_t n) {
    if (n < 24) return;
    uint64_t s = q4x_xxh64(file, 16);
    memcpy(file + 16, &s, 8);
    for (size_t at = 24; n - at >= 32;) {
        uint64_t len;
        memcpy(&len, file + at + 8, 8);
        if (len > n - at - 32) len = n - at - 32; /* a length past the end: the head alone is made right */
        sums(file + at, len);
        at += 32 + (size_t)len;
    }
}
