#include "tests/h_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/round.h"
#include "tests/check.h"
#include "tests/h_forward.h"
#include "tests/h_hf.h"
#include "tests/h_moe.h"

typedef struct {
    int n;
    int32_t *v;
} list;

struct h_oracle {
    char *dir;
    q4x_net *net;
    h_golden *g;
    list calls, rows, ids, sampled;
    int ntaps;
    char **taps;
    char given[64]; /* node whose output is replaced, "" none */
    int64_t given_cols;
    float *given_rows; /* by position */
};

/* ---- weights.txt ---- */

/* Tensor t of the seed. A base is added to the rounded number, and the sum rounded. */
static uint16_t *counted(uint64_t seed, uint64_t t, int amp, double base, int64_t n) {
    const h_moe m = {.seed = seed};
    const h_moe_formula f = {.id = t, .amp = ldexpf(1.0f, amp)};
    uint16_t *w = malloc((size_t)n * sizeof *w);
    assert_non_null(w);
    h_moe_make(&m, &f, 0, n, w);
    for (int64_t i = 0; base != 0 && i < n; i++) w[i] = k_bf16_from_f32(k_f32_from_bf16(w[i]) + (float)base);
    return w;
}

typedef struct {
    h_oracle *o;
    h_hf *h;
    uint64_t seed, t; /* tensors so far */
    int ndim, amp;
    int64_t shape[8], n;
    double base;
} page;

static void one(page *p, const char *name) {
    uint16_t *w = counted(p->seed, ++p->t, p->amp, p->base, p->n);
    if (*name == '@') {
        h_oracle *o = p->o;
        snprintf(o->given, sizeof o->given, "%s", name + 1);
        o->given_cols = p->shape[1];
        o->given_rows = malloc((size_t)p->n * sizeof *o->given_rows);
        assert_non_null(o->given_rows);
        for (int64_t i = 0; i < p->n; i++) o->given_rows[i] = k_f32_from_bf16(w[i]);
    } else {
        h_hf_add(p->h, name, "BF16", p->ndim, p->shape, w);
    }
    free(w);
}

/* Every name that the pattern stands for; the first braces outermost. */
static void expand(page *p, const char *pattern) {
    const char *from = strchr(pattern, '{'), *to = from ? strchr(from, '}') : NULL;
    if (!to) {
        one(p, pattern);
        return;
    }
    for (const char *item = from + 1; item <= to;) {
        const int len = (int)strcspn(item, ",}");
        int lo = 0, hi = 0;
        char name[256];
        if (sscanf(item, "%d-%d", &lo, &hi) == 2) {
            for (int i = lo; i <= hi; i++) {
                snprintf(name, sizeof name, "%.*s%d%s", (int)(from - pattern), pattern, i, to + 1);
                expand(p, name);
            }
        } else {
            snprintf(name, sizeof name, "%.*s%.*s%s", (int)(from - pattern), pattern, len, item, to + 1);
            expand(p, name);
        }
        item += len + 1;
    }
}

static void shape_of(page *p, const char *text) {
    p->ndim = 0, p->n = 1;
    for (char *end; *text && p->ndim < 8; text = *end ? end + 1 : end) {
        p->shape[p->ndim] = strtoll(text, &end, 10);
        assert_true(p->shape[p->ndim] > 0);
        p->n *= p->shape[p->ndim++];
    }
}

static void read_weights(h_oracle *o, h_hf *h, const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s cannot be read", path);
    page p = {.o = o, .h = h};
    char line[320], name[240], shape[64];
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "seed %lu", &p.seed) == 1) continue;
        p.base = 0;
        if (sscanf(line, "%239s %63s %d %lf", name, shape, &p.amp, &p.base) < 3) fail_msg("%s: %s", path, line);
        shape_of(&p, shape);
        expand(&p, name);
    }
    fclose(f);
}

/* ---- the record ---- */

static list numbers(const h_golden *g, const char *key) {
    const char *s = q4x_st_meta(g->st, key);
    if (!s) fail_msg("the record has no %s", key);
    list l = {0, calloc(strlen(s) / 2 + 1, sizeof(int32_t))};
    assert_non_null(l.v);
    for (char *end; *s; s = end) {
        l.v[l.n++] = (int32_t)strtol(s, &end, 10);
        assert_true(end > s);
    }
    return l;
}

static void read_taps(h_oracle *o) {
    char *s = strdup(q4x_st_meta(o->g->st, "taps")), *save = NULL;
    assert_non_null(s);
    o->taps = calloc(strlen(s) / 2 + 1, sizeof *o->taps);
    assert_non_null(o->taps);
    for (char *w = strtok_r(s, " ", &save); w; w = strtok_r(NULL, " ", &save)) o->taps[o->ntaps++] = strdup(w);
    free(s);
}

/* The hash's constants go from the record into the checkpoint. */
static void add_constants(const h_golden *g, h_hf *h) {
    for (int64_t i = 0; i < g->st->n; i++) {
        const q4x_st_tensor *t = &g->st->t[i];
        if (!strncmp(t->name, "model.", 6))
            h_hf_add(h, t->name, t->dtype, t->ndim, t->shape, (const char *)g->map + t->off);
    }
}

h_oracle *h_oracle_open(const char *name, const char *file, const char *key, const char *json) {
    char path[200];
    h_oracle *o = calloc(1, sizeof *o);
    h_hf *h = calloc(1, sizeof *h);
    assert_non_null(o);
    assert_non_null(h);
    snprintf(path, sizeof path, "tests/golden/oracle-%s/golden-%s.safetensors", name, file);
    o->g = h_golden_open(path);
    if (!o->g) fail_msg("%s is missing", path);
    o->calls = numbers(o->g, "calls"), o->rows = numbers(o->g, "rows");
    o->ids = numbers(o->g, "ids"), o->sampled = numbers(o->g, "sampled");
    read_taps(o);
    snprintf(path, sizeof path, "tests/golden/oracle-%s/config.json", name);
    h->config = json_load_file(path, 0, NULL);
    if (!h->config) fail_msg("%s cannot be read", path);
    if (key) h_hf_set(h->config, key, json);
    snprintf(path, sizeof path, "tests/golden/oracle-%s/weights.txt", name);
    read_weights(o, h, path);
    h_golden *consts = o->g;
    if (strcmp(file, "f32")) {
        snprintf(path, sizeof path, "tests/golden/oracle-%s/golden-f32.safetensors", name);
        consts = h_golden_open(path);
        if (!consts) fail_msg("%s is missing", path);
    }
    add_constants(consts, h);
    if (consts != o->g) h_golden_close(consts);
    o->dir = h_tmp();
    h_hf_write(h, o->dir, 0);
    h_hf_free(h);
    o->net = h_net(o->dir);
    return o;
}

void h_oracle_close(h_oracle *o) {
    q4x_net_close(o->net);
    h_tmp_remove(o->dir);
    h_golden_close(o->g);
    for (int i = 0; i < o->ntaps; i++) free(o->taps[i]);
    free(o->taps);
    free(o->calls.v), free(o->rows.v), free(o->ids.v), free(o->sampled.v);
    free(o->given_rows);
    free(o);
}

/* ---- the walk ---- */

typedef struct {
    const h_oracle *o;
    q4x_run *run;
    h_oracle_run_result *r;
    int call;
    int32_t pos0;                      /* of the call */
    int64_t at, per;                   /* sketches before the call; of one tap in the call */
    const float *sketch;               /* [ , 1 + H_ORACLE_SUMS] */
    const uint16_t *experts, *dropped; /* cursors into the record, moved on as nodes come */
    const int32_t *rows;
    int64_t nexperts, ndropped, nrows;
    uint16_t *sign[H_ORACLE_SUMS];
    int64_t nsign;
} walk;

static const void *stored(const h_oracle *o, const char *name, int64_t *ret_n) {
    const q4x_st_tensor *t = q4x_st_find(o->g->st, name);
    *ret_n = t ? t->elems : 0;
    return t ? (const char *)o->g->map + t->off : NULL;
}

static void signs(walk *k, int64_t n) {
    if (n <= k->nsign) return;
    for (int i = 0; i < H_ORACLE_SUMS; i++) {
        free(k->sign[i]);
        k->sign[i] = counted(0, (uint64_t)i + 1, 0, 0, n);
    }
    k->nsign = n;
}

/* The largest difference of the five numbers, relative to the norm. */
static double sketch_distance(walk *k, const float *x, int64_t n, const float *want) {
    double sum[1 + H_ORACLE_SUMS] = {0}, worst = 0;
    signs(k, n);
    for (int64_t i = 0; i < n; i++) {
        sum[0] += (double)x[i] * (double)x[i];
        for (int s = 0; s < H_ORACLE_SUMS; s++) sum[1 + s] += k->sign[s][i] >> 15 ? -(double)x[i] : (double)x[i];
    }
    sum[0] = sqrt(sum[0]);
    for (int s = 0; s <= H_ORACLE_SUMS; s++) {
        double d = fabs(sum[s] - (double)want[s]) / (double)want[0];
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void worse(h_oracle_worst *w, double rel, int call, const char *node) {
    if (!(w->rel >= 0) || rel <= w->rel) return; /* a NaN stays */
    w->rel = rel;
    snprintf(w->at, sizeof w->at, "f%d/%s", call, node);
}

static void compare(walk *k, const char *node, int tap, int64_t which, const float *x, int64_t n) {
    h_oracle_run_result *r = k->r;
    const double rel = sketch_distance(k, x, n, k->sketch + (1 + H_ORACLE_SUMS) * (k->at + tap * k->per + which));
    r->sketches++;
    worse(n < 16 ? &r->few : k->call ? &r->later : &r->first, rel, k->call, node);
}

static void floats(walk *k, const char *node, int tap, const q4x_node_event *ev) {
    const list *rows = &k->o->rows;
    int64_t which = 0;
    if (!rows->n) {
        if (ev->nrows != ev->total) fail_msg("%s came in parts", node);
        compare(k, node, tap, 0, ev->data, ev->nrows * ev->cols);
    }
    for (int i = 0; i < rows->n; i++) {
        const int32_t t = rows->v[i] - k->pos0;
        if (t < 0 || t >= ev->total) continue;
        if (t >= ev->row0 && t < ev->row0 + ev->nrows)
            compare(k, node, tap, which, (float *)ev->data + (t - ev->row0) * ev->cols, ev->cols);
        which++;
    }
}

static void choice(walk *k, const char *node, int right) {
    k->r->choices++;
    if (right) return;
    if (!k->r->differ++) snprintf(k->r->differ_at, sizeof k->r->differ_at, "f%d/%s", k->call, node);
}

static void experts(walk *k, const char *node, const q4x_node_event *ev) {
    const int32_t *got = ev->data;
    for (int64_t i = 0; i < ev->nrows * ev->cols; i++, k->nexperts--)
        choice(k, node, k->nexperts > 0 && *k->experts++ == got[i]);
}

static void table_rows(walk *k, const char *node, const q4x_node_event *ev) {
    const int32_t *got = ev->data;
    for (int64_t i = 0; i < ev->nrows * ev->cols; i++, k->nrows--)
        choice(k, node, k->nrows > 0 && *k->rows++ == got[i]);
}

static int among(const int32_t *ids, int64_t n, int32_t id) {
    int found = 0;
    for (int64_t i = 0; i < n; i++) found += ids[i] == id;
    return found;
}

/* Each whole block that a position can see is chosen once, or recorded as dropped: layer, position, block. */
static void blocks(walk *k, const char *node, const q4x_node_event *ev) {
    const int32_t *got = ev->data, layer = atoi(node + 1), ratio = ev->call->d->ratio;
    for (int32_t t = 0; t < ev->nrows; t++) {
        const int32_t pos = k->pos0 + ev->row0 + t;
        for (int32_t b = 0; b < (pos + 1) / ratio; b++) {
            const int is_next = k->ndropped > 0 && k->dropped[0] == layer && k->dropped[1] == pos && k->dropped[2] == b;
            if (is_next) k->dropped += 3, k->ndropped -= 3;
            choice(k, node, among(got + t * ev->cols, ev->cols, b) == !is_next);
        }
    }
}

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    walk *k = ctx;
    const h_oracle *o = k->o;
    const char *node = q4x_run_plan(k->run)->node[ev->node].name;
    char tap[64];
    (void)err;
    if (!strcmp(node, o->given)) {
        assert_int_equal(ev->cols, o->given_cols);
        memcpy(ev->data, o->given_rows + (k->pos0 + ev->row0) * ev->cols,
               (size_t)(ev->nrows * ev->cols) * sizeof *o->given_rows);
    }
    const char *dot = strchr(node, '.');
    if (dot && !strcmp(dot, ".moe.ids") && k->experts) experts(k, node, ev);
    if (dot && !strcmp(dot, ".ple.ids")) table_rows(k, node, ev);
    if (dot && !strcmp(dot, ".attn.idx.sel")) blocks(k, node, ev);
    /* the record has the references' name for the stream after a layer */
    if (dot && !strcmp(dot, ".s.mlp"))
        snprintf(tap, sizeof tap, "%.*s.out", (int)(dot - node), node);
    else
        snprintf(tap, sizeof tap, "%s", node);
    for (int i = 0; i < o->ntaps; i++)
        if (!strcmp(o->taps[i], tap)) floats(k, node, i, ev);
    return 0;
}

static void logits_row(walk *k, const float *want) {
    int32_t rows = 0, top[2];
    float val[2];
    const int64_t V = q4x_net_dims(k->o->net)->V;
    const float *z = q4x_run_logits(k->run, &rows) + (rows - 1) * V;
    double d = 0, s = 0;
    for (int64_t i = 0; i < V; i++) {
        d += ((double)z[i] - (double)want[i]) * ((double)z[i] - (double)want[i]);
        s += (double)want[i] * (double)want[i];
    }
    worse(&k->r->logits, sqrt(d / s), k->call, "logits");
    k->r->ids++;
    k->r->ids_equal += q4x_run_choose(k->run, top, val) == k->o->sampled.v[k->call];
}

/* Sketches a tap has in this call. */
static int64_t pieces(const list *rows, int32_t pos0, int32_t n) {
    int64_t k = 0;
    for (int i = 0; i < rows->n; i++) k += rows->v[i] >= pos0 && rows->v[i] < pos0 + n;
    return rows->n ? k : 1;
}

h_oracle_run_result h_oracle_run(const h_oracle *o, const char *arm_text) {
    h_oracle_run_result r = {0};
    walk k = {.o = o, .r = &r};
    q4x_err err = {0};
    q4x_arm arm;
    int32_t total = 0;
    int64_t n;
    for (int i = 0; i < o->calls.n; i++) total += o->calls.v[i];
    int32_t *ids = calloc((size_t)total, sizeof *ids);
    assert_non_null(ids);
    if (o->ids.n) memcpy(ids, o->ids.v, (size_t)total * sizeof *ids);
    k.sketch = stored(o, "sketch", &n);
    r.wanted = n / (1 + H_ORACLE_SUMS);
    k.experts = stored(o, "experts", &k.nexperts);
    k.dropped = stored(o, "dropped", &k.ndropped);
    k.rows = stored(o, "rows", &k.nrows);
    const float *logits = stored(o, "logits", &n);
    assert_rc_ok(q4x_arm_parse(arm_text, &arm, &err), &err);
    assert_rc_ok(q4x_run_new(o->net, &arm, total, 0, &k.run, &err), &err);
    q4x_run_on_node(k.run, on_node, &k);
    for (; k.call < o->calls.n; k.call++) {
        const int32_t T = o->calls.v[k.call];
        k.per = pieces(&o->rows, k.pos0, T);
        assert_rc_ok(q4x_run_forward(k.run, ids + k.pos0, T, logits != NULL, &err), &err);
        if (logits) logits_row(&k, logits + k.call * q4x_net_dims(o->net)->V);
        k.at += o->ntaps * k.per;
        k.pos0 += T;
    }
    if (k.nexperts > 0 || k.ndropped > 0 || k.nrows > 0) choice(&k, "end", 0); /* recorded, and not chosen */
    for (int i = 0; i < H_ORACLE_SUMS; i++) free(k.sign[i]);
    q4x_run_free(k.run);
    free(ids);
    return r;
}
