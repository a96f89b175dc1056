#include "tests/h_mkdump.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/round.h"

enum { E = 16, K = 4, HEADS = 6, KEYS = 2 };

static void *need(void *p) {
    if (!p) abort();
    return p;
}

/* A number in [-1, 1) of three indices. */
static float noise(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t k[3] = {a, b, c};
    return (float)((double)(q4x_xxh64(k, sizeof k) >> 11) * 0x1p-52 - 1);
}

/* y[i] = sum of eight weighted elements of x: a sparse matrix that reaches every element in a few steps. */
static void mix(float *y, const float *x, int rows, int n, int d, uint32_t seed) {
    for (int t = 0; t < rows; t++)
        for (int i = 0; i < n; i++) {
            float s = 0;
            for (int j = 0; j < 8; j++)
                s += noise(seed, (uint32_t)i, (uint32_t)j) * x[t * d + (i * 7 + j * 13 + j * j) % d];
            y[t * n + i] = s * 0.6f;
        }
}

static void norm(float *y, const float *x, int rows, int d) {
    for (int t = 0; t < rows; t++) {
        double q = 0;
        for (int i = 0; i < d; i++) q += (double)x[t * d + i] * (double)x[t * d + i];
        float r = (float)(1 / sqrt(q / d + 1e-6));
        for (int i = 0; i < d; i++) y[t * d + i] = x[t * d + i] * r;
    }
}

/* ---- the dump under construction ---- */

typedef struct {
    mk_opts o;
    q4x_dump *d;
    int node_cap, tap_cap, f;
    q4x_tapstat *st;
} maker;

static int add_node(maker *m, const char *name, const char *op, int layer, int pub, int state, const int *in, int nin) {
    q4x_dump *d = m->d;
    if (d->nnodes == m->node_cap) {
        m->node_cap = m->node_cap ? 2 * m->node_cap : 64;
        d->nodes = need(realloc(d->nodes, sizeof *d->nodes * (size_t)m->node_cap));
    }
    q4x_dump_node *n = &d->nodes[d->nnodes];
    *n = (q4x_dump_node){.name = need(strdup(name)),
                         .op = need(strdup(op)),
                         .layer = layer,
                         .is_public = pub,
                         .is_state = state,
                         .alias = -1};
    n->levers = need(strdup(m->o.node_levers && !state ? m->o.node_levers : ""));
    n->in = need(calloc((size_t)nin + 1, sizeof *n->in));
    n->st = need(calloc(2, sizeof *n->st));
    for (int i = 0; i < nin && !m->o.no_graph; i++) n->in[n->nin++] = in[i];
    return d->nnodes++;
}

#define NODE(name, op, layer, pub, ...)                                                                                \
    add_node(m, name, op, layer, pub, 0, (int[]){__VA_ARGS__}, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)))

static void describe(maker *m) {
    char s[32];
    const mk_opts *o = &m->o;
    int emb = NODE("emb", "embed", -1, 1, Q4X_IN_IDS), h = emb;
    int core[64];
    for (int l = 0; l < o->layers; l++) {
#define N(x) (snprintf(s, sizeof s, "L%02d." x, l), s)
        int in = NODE(N("in"), "alias", l, 1, h);
        m->d->nodes[in].alias = h;
        int x = NODE(N("ahc.mix"), "rmsnorm", l, 1, in);
        core[l] = NODE(N("gdn.core"), "gdn_core", l, 0, x);
        int blk = NODE(N("blk"), "matmul", l, 1, core[l]);
        m->d->nodes[blk].heads = (q4x_heads){1, 0, o->D / HEADS, KEYS, HEADS, o->gguf_heads};
        int a = NODE(N("s.attn"), "hc_add", l, 1, in, blk);
        int lg = NODE(N("moe.logits"), "matmul", l, 0, a);
        int ids = NODE(N("moe.ids"), "moe_ids", l, 0, lg);
        m->d->nodes[ids].is_ids = 1;
        int w = NODE(N("moe.weights"), "moe_weights", l, 0, lg, ids);
        int y = NODE(N("moe"), "moe_out", l, 1, a, ids, w);
        h = NODE(N("s.mlp"), "hc_add", l, 1, a, y);
    }
    int out = NODE("out", "hc_mix", -1, 1, h);
    NODE("logits", "matmul", -1, 1, out);
    for (int l = 0; l < o->layers; l++) {
        int st = add_node(m, N("state.delta"), "state", l, 0, 1, NULL, 0);
        if (o->no_graph) continue;
        m->d->nodes[core[l]].st[0] = st;
        m->d->nodes[core[l]].nst = 1;
    }
}

int mk_node(const q4x_dump *d, const char *node) {
    for (int i = 0; i < d->nnodes; i++)
        if (!strcmp(d->nodes[i].name, node)) return i;
    abort();
}

q4x_tap *mk_tap(q4x_dump *d, int f, const char *node) {
    int n = mk_node(d, node);
    for (int i = 0; i < d->forwards[f].ntaps; i++)
        if (d->forwards[f].taps[i].node == n) return &d->forwards[f].taps[i];
    abort();
}

static void *copy(const void *p, size_t n) {
    void *q = need(malloc(n ? n : 1));
    if (n) memcpy(q, p, n);
    return q;
}

/* HF order to file order, head by head: what an arm with gguf heads holds. */
static void to_gguf(const q4x_heads *h, float *x, int rows, int cols) {
    float *y = copy(x, sizeof(float) * (size_t)(rows * cols));
    for (int t = 0; t < rows; t++)
        for (int k = 0; k < h->nk; k++)
            for (int r = 0; r < h->nv / h->nk; r++)
                memcpy(x + t * cols + h->off + (r * h->nk + k) * h->width,
                       y + t * cols + h->off + (k * (h->nv / h->nk) + r) * h->width, sizeof(float) * (size_t)h->width);
    free(y);
}

static q4x_tap *add_tap(maker *m, const char *node, int64_t rows, int64_t cols) {
    q4x_forward *w = &m->d->forwards[m->f];
    if (w->ntaps == m->tap_cap) {
        m->tap_cap = m->tap_cap ? 2 * m->tap_cap : 64;
        w->taps = need(realloc(w->taps, sizeof *w->taps * (size_t)m->tap_cap));
    }
    q4x_tap *t = &w->taps[w->ntaps++];
    *t = (q4x_tap){.node = mk_node(m->d, node), .forward = m->f, .dtype = K_T_F32, .rows = rows, .cols = cols};
    return t;
}

static void record(maker *m, const char *node, int rows, int cols, float *x) {
    const mk_opts *o = &m->o;
    if (o->hook) o->hook(o->ctx, m->f, node, rows, cols, x, NULL);
    q4x_tap *t = add_tap(m, node, rows, cols);
    const q4x_dump_node *n = &m->d->nodes[t->node];
    size_t bytes = sizeof(float) * (size_t)(rows * cols);
    float *v = copy(x, bytes);
    if (n->heads.axis && n->heads.gguf) to_gguf(&n->heads, v, rows, cols);
    t->bits = q4x_bits_of(Q4X_BITS_F32, v, bytes);
    if ((n->is_public || o->sketch_all) && !o->hash_only) {
        q4x_sketch s;
        int keep = o->rows_kept ? o->rows_kept : 64;
        if (keep > rows) keep = rows;
        if (q4x_tapstat_begin(m->st, rows, cols, rows - keep, keep, 1)) abort();
        if (o->parts && cols % o->parts == 0 &&
            q4x_tapstat_parts(m->st, &(q4x_parts){0, cols / o->parts, cols / o->parts, o->parts}))
            abort();
        q4x_tapstat_rows(m->st, v, rows, 1);
        q4x_tapstat_end(m->st, &t->stats, &s);
        size_t nb = (size_t)s.nrows * (size_t)s.width;
        t->has_stats = t->has_sketch = 1;
        t->sketch = s;
        t->sketch.buckets = s.buckets ? copy(s.buckets, nb * sizeof(double)) : NULL;
        t->sketch.values = s.values ? copy(s.values, nb * sizeof(float)) : NULL;
        t->sketch.row_sumabs = copy(s.row_sumabs, (size_t)s.nrows * sizeof(double));
        t->sketch.row_sumsq = copy(s.row_sumsq, (size_t)s.nrows * sizeof(double));
        if (s.row_least) t->sketch.row_least = copy(s.row_least, (size_t)s.nrows * sizeof(double));
        if (o->rms > 0) {
            t->has_band = 1;
            t->band_rms = o->rms * sqrt(t->stats.sumsq);
            t->band_hard = o->hard * sqrt(t->stats.sumsq);
        }
    }
    if (o->full) {
        t->has_full = 1;
        t->full = v;
    } else {
        free(v);
    }
}

/* The K best of E scores, ties to the lowest id; the scores on both sides of the cut. */
static void choose(const float *z, int32_t *ids, float *lo, float *hi) {
    char used[E] = {0};
    for (int k = 0; k <= K; k++) {
        int best = -1;
        for (int e = 0; e < E; e++)
            if (!used[e] && !isnan(z[e]) && (best < 0 || z[e] > z[best])) best = e;
        if (best < 0) best = 0;
        used[best] = 1;
        if (k == K - 1) *lo = z[best];
        if (k == K)
            *hi = z[best];
        else
            ids[k] = best;
    }
}

static void record_ids(maker *m, const char *node, int rows, int32_t *ids, const float *lo, const float *hi) {
    const mk_opts *o = &m->o;
    if (o->hook) o->hook(o->ctx, m->f, node, rows, K, NULL, ids);
    q4x_tap *t = add_tap(m, node, rows, K);
    t->dtype = K_T_I32;
    t->bits = q4x_bits_of(Q4X_BITS_RAW, ids, sizeof *ids * (size_t)(rows * K));
    if (o->no_ids) return;
    t->has_sel = 1;
    t->sel = (q4x_selection){rows,
                             K,
                             copy(ids, sizeof *ids * (size_t)(rows * K)),
                             NULL,
                             copy(lo, sizeof *lo * (size_t)rows),
                             copy(hi, sizeof *hi * (size_t)rows)};
}

/* ---- one forward ---- */

static void layer(maker *m, int l, int T, float *H, float *state) {
    const int D = m->o.D;
    const size_t n = (size_t)(T * D);
    char s[32];
    float *x = need(calloc(n, 4)), *y = need(calloc(n, 4)), *z = need(calloc((size_t)(T * E), 4));
    float *w = need(calloc((size_t)(T * K), 4)), *lo = need(calloc((size_t)T, 4)), *hi = need(calloc((size_t)T, 4));
    int32_t *ids = need(calloc((size_t)(T * K), 4));
    const uint32_t seed = 100u * (uint32_t)l;
    record(m, N("in"), T, D, H);
    norm(x, H, T, D);
    record(m, N("ahc.mix"), T, D, x);
    mix(y, x, T, D, D, seed + 1);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < D; i++) y[t * D + i] = state[i] = 0.5f * state[i] + y[t * D + i];
    record(m, N("gdn.core"), T, D, y);
    mix(x, y, T, D, D, seed + 2);
    record(m, N("blk"), T, D, x);
    for (size_t i = 0; i < n; i++) H[i] += 0.5f * x[i];
    record(m, N("s.attn"), T, D, H);
    mix(z, H, T, E, D, seed + 3);
    record(m, N("moe.logits"), T, E, z);
    for (int t = 0; t < T; t++) choose(z + t * E, ids + t * K, &lo[t], &hi[t]);
    record_ids(m, N("moe.ids"), T, ids, lo, hi);
    for (int t = 0; t < T; t++) {
        float sum = 0;
        for (int k = 0; k < K; k++) sum += w[t * K + k] = expf(z[t * E + ids[t * K + k]]);
        for (int k = 0; k < K; k++) w[t * K + k] /= sum;
    }
    record(m, N("moe.weights"), T, K, w);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < D; i++) {
            float sum = 0;
            for (int k = 0; k < K; k++) {
                uint32_t e = (uint32_t)ids[t * K + k];
                sum += w[t * K + k] * noise(seed + 4, e, (uint32_t)i) * H[t * D + (i * 5 + 3) % D];
            }
            x[t * D + i] = sum;
        }
    record(m, N("moe"), T, D, x);
    for (size_t i = 0; i < n; i++) H[i] += 0.5f * x[i];
    record(m, N("s.mlp"), T, D, H);
    free(x);
    free(y);
    free(z);
    free(w);
    free(lo);
    free(hi);
    free(ids);
}

static void pick(maker *m, const float *z) {
    q4x_forward *w = &m->d->forwards[m->f];
    w->top_id[0] = w->top_id[1] = -1;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < m->o.vocab; i++) {
            float v = m->o.round_top ? k_round_bf16(z[i]) : z[i];
            if (i == w->top_id[0] || isnan(v)) continue;
            if (w->top_id[pass] < 0 || v > w->top_val[pass]) {
                w->top_id[pass] = i;
                w->top_val[pass] = v;
            }
        }
    w->sampled = m->o.sampled ? m->o.sampled[m->f] : w->top_id[0];
}

static void forward(maker *m, const int32_t *ids, int T, int pos0, float *state, q4x_hash *prefix) {
    const mk_opts *o = &m->o;
    q4x_forward *w = &m->d->forwards[m->f];
    char s[32];
    const int D = o->D;
    float *H = need(calloc((size_t)(T * D), 4)), *x = need(calloc((size_t)(T * D), 4));
    float *z = need(calloc((size_t)(T * o->vocab), 4));
    *w = (q4x_forward){.index = m->f, .n_ids = T, .pos0 = pos0, .forced = m->f == 0 || o->force, .vocab = o->vocab};
    w->ids = copy(ids, sizeof *ids * (size_t)T);
    m->tap_cap = 0;
    for (int t = 0; t < T; t++)
        for (int i = 0; i < D; i++) H[t * D + i] = noise(7, (uint32_t)ids[t], (uint32_t)i);
    record(m, "emb", T, D, H);
    for (int l = 0; l < o->layers; l++) layer(m, l, T, H, state + l * D);
    norm(x, H, T, D);
    record(m, "out", T, D, x);
    mix(z, x, T, o->vocab, D, 9);
    if (o->logit_scale > 0)
        for (int i = 0; i < T * o->vocab; i++) z[i] *= (float)o->logit_scale;
    record(m, "logits", T, o->vocab, z);
    for (int l = 0; l < o->layers; l++) record(m, N("state.delta"), 1, D, state + l * D);
    pick(m, z + (T - 1) * o->vocab);
    if (!o->no_logits) {
        w->n_logits = 1;
        w->logits = copy(z + (T - 1) * o->vocab, sizeof(float) * (size_t)o->vocab);
    }
    struct {
        q4x_hash h;
        int32_t id, pos;
    } roll;
    for (int t = 0; t < T; t++) {
        memset(&roll, 0, sizeof roll);
        roll.h = *prefix;
        roll.id = ids[t];
        roll.pos = pos0 + t;
        *prefix = q4x_xxh128(&roll, sizeof roll);
    }
    w->prefix = *prefix;
    free(H);
    free(x);
    free(z);
}

/* ---- the header ---- */

static json_t *words(const char *text, const char *otherwise) {
    return need(json_loads(text ? text : otherwise, JSON_DECODE_ANY, NULL));
}

static json_t *header(const mk_opts *o, const int32_t *prompt) {
    json_t *h = need(json_object()), *ids = json_array();
    for (int i = 0; i < o->T; i++) json_array_append_new(ids, json_integer(prompt[i]));
    json_object_set_new(h, "format", json_integer(Q4X_DUMP_VERSION));
    json_object_set_new(h, "vocabulary_version", json_integer(Q4X_VOCABULARY_VERSION));
    json_object_set_new(h, "mode", json_string(o->full ? "full" : o->hash_only ? "hash" : "sketch"));
    if (!o->imported)
        json_object_set_new(h, "tool",
                            json_pack("{s:s, s:s, s:s, s:s, s:s}", "version", "0.1", "commit", "c0ffee", "kernels_hash",
                                      o->kernels ? o->kernels : "11aa", "compiler", o->compiler ? o->compiler : "gcc",
                                      "flags", "-O3"));
    if (o->imported < 2) {
        json_object_set_new(h, "model",
                            json_pack("{s:s, s:s, s:s}", "path", "models/m.gguf", "arch", "toy", "fingerprint",
                                      o->model ? o->model : "00ff"));
        json_object_set_new(h, "arm",
                            json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "label", o->label, "device",
                                      o->device ? o->device : "cpu", "spec",
                                      o->spec     ? o->spec
                                      : o->device ? o->device
                                                  : "cpu",
                                      "profile", o->profile ? o->profile : "", "levers",
                                      words(o->levers, "{\"act\":\"f32\",\"gdn\":\"seq\"}"), "scoped",
                                      words(o->scoped, "[]")));
    }
    json_object_set_new(h, "prompt", json_pack("{s:o, s:s}", "ids", ids, "text", o->text ? o->text : ""));
    const char *when = o->free_time ? o->free_time : "2026-01-01T00:00:00Z";
    json_object_set_new(h, "free",
                        json_pack("{s:o, s:s, s:s, s:i}", "recording", json_sprintf("%s %s", o->label, when), "time",
                                  when, "boot", "b007", "threads", 2));
    return h;
}

mk_opts mk_default(const char *label) {
    return (mk_opts){.label = label, .layers = 4, .T = 5, .D = 48, .forwards = 6, .vocab = 40};
}

q4x_dump *mk_dump(const mk_opts *o) {
    maker mk = {.o = *o, .d = need(calloc(1, sizeof(q4x_dump)))}, *m = &mk;
    q4x_dump *d = m->d;
    int32_t *prompt = need(calloc((size_t)o->T, sizeof *prompt)), id;
    float *state = need(calloc((size_t)(o->layers * o->D), sizeof *state));
    q4x_hash prefix = {{0}};
    m->st = need(q4x_tapstat_new());
    for (int i = 0; i < o->T; i++) prompt[i] = 3 + 5 * (i % 7);
    d->path = need(strdup(o->path ? o->path : o->label));
    d->version = Q4X_DUMP_VERSION;
    d->header = header(o, prompt);
    describe(m);
    d->nforwards = o->forwards;
    d->forwards = need(calloc((size_t)o->forwards, sizeof *d->forwards));
    for (m->f = 0; m->f < o->forwards; m->f++) {
        if (m->f) id = o->force ? o->force[m->f - 1] : d->forwards[m->f - 1].sampled;
        forward(m, m->f ? &id : prompt, m->f ? 1 : o->T, m->f ? o->T + m->f - 1 : 0, state, &prefix);
    }
    q4x_hash sum = prefix;
    for (int f = 0; f < d->nforwards; f++)
        for (int i = 0; i < d->forwards[f].ntaps; i++) {
            q4x_hash two[2] = {sum, d->forwards[f].taps[i].bits};
            sum = q4x_xxh128(two, sizeof two);
        }
    d->content = sum;
    q4x_tapstat_free(m->st);
    free(prompt);
    free(state);
    return d;
}

int mk_write(const q4x_dump *d, const char *path, q4x_err *err) {
    q4x_dumpw *w = NULL;
    int rc;
    TRY(q4x_dumpw_open(path, d->header, d->nodes, d->nnodes, &w, err));
    for (int f = 0; f < d->nforwards; f++) {
        for (int i = 0; i < d->forwards[f].ntaps; i++) TRY(q4x_dumpw_tap(w, &d->forwards[f].taps[i], err));
        TRY(q4x_dumpw_forward(w, &d->forwards[f], err));
    }
    rc = q4x_dumpw_close(w, NULL, err);
    w = NULL;
done:
    q4x_dumpw_abort(w);
    return rc;
}
