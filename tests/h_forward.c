#include "tests/h_forward.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/round.h"

q4x_net *h_net(const char *path) {
    q4x_net *n = NULL;
    q4x_err err = {0};
    if (q4x_net_open(path, &n, &err)) fail_msg("%s", err.msg);
    return n;
}

typedef struct {
    q4x_run *run;
    const h_golden *g;
    h_walk *w;
    int forward;
} walk;

/* Golden names differ from ours in one place: the stream after a layer. */
static void golden_key(const walk *k, const char *node, char *buf, size_t size) {
    const char *dot = strchr(node, '.');
    if (dot && !strcmp(dot, ".s.mlp"))
        snprintf(buf, size, "f%d/%.*s.out", k->forward, (int)(dot - node), node);
    else if (dot && !strcmp(dot, ".attn.idx.sel"))
        snprintf(buf, size, "f%d/%.*s.attn.sel", k->forward, (int)(dot - node), node);
    else
        snprintf(buf, size, "f%d/%s", k->forward, node);
}

static void compare_floats(const float *a, const float *b, int64_t rows, int64_t cols, h_cmp *c) {
    double d2 = 0, b2 = 0;
    for (int64_t r = 0; r < rows; r++) {
        double big = 0, worst = 0;
        for (int64_t i = 0; i < cols; i++) {
            float x = a[r * cols + i], y = b[r * cols + i];
            double d = (double)x - (double)y;
            d2 += d * d;
            b2 += (double)y * (double)y;
            c->equal += !memcmp(&x, &y, 4) || (x == y);
            if (!(fabs(d) <= worst)) worst = fabs(d);
            if (fabs((double)y) > big) big = fabs((double)y);
        }
        double ulp = big > 0 ? ldexp(1, ilogb(big) - 7) : 1;
        if (!(worst / ulp <= c->worst_ulp)) c->worst_ulp = worst / ulp;
    }
    c->n = rows * cols;
    c->rel = b2 > 0 ? sqrt(d2 / b2) : (d2 > 0 ? INFINITY : d2);
}

static int in_row(const int32_t *ids, int64_t k, int32_t id) {
    for (int64_t i = 0; i < k; i++)
        if (ids[i] == id) return 1;
    return 0;
}

/* Smallest selected minus largest rejected of our scores. */
static double cut_margin(const float *score, int32_t n, const int32_t *ids, int64_t k) {
    double lo = INFINITY, hi = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (in_row(ids, k, i))
            lo = fmin(lo, (double)score[i]);
        else
            hi = fmax(hi, (double)score[i]);
    }
    return lo - hi;
}

/* mask: want holds a set in no rank order. */
static void compare_sets(const q4x_node_event *ev, const int32_t *want, int mask, h_cmp *c) {
    const int32_t *ids = ev->data;
    const int64_t k = ev->cols, n = ev->call->in_cols[0];
    c->sets = 1;
    c->margin = NAN;
    for (int32_t r = 0; r < ev->nrows; r++) {
        int differ = 0, rank = 0;
        for (int64_t i = 0; i < k; i++) {
            int32_t id = want[r * k + i];
            if (id >= 0 && !in_row(ids + r * k, k, id)) differ = 1;
            if (ids[r * k + i] >= 0 && !in_row(want + r * k, k, ids[r * k + i])) differ = 1;
            if (id != ids[r * k + i] && !mask) rank = 1;
        }
        if (differ && !c->set_differ) {
            int32_t vis = (int32_t)n;
            if (ev->call->d->ratio && strstr(c->node, "idx.sel")) vis = (ev->call->pos0 + r + 1) / ev->call->d->ratio;
            c->margin = cut_margin(ev->call->in[0] + r * n, vis, ids + r * k, k);
        }
        c->set_rows++;
        c->set_differ += differ;
        c->rank_differ += rank;
    }
    c->n = ev->nrows * k;
}

/* The golden's mask [1,T,Tc] as block ids in ascending order, -1 behind them. */
static int32_t *blocks_of_mask(const float *mask, const q4x_node_event *ev, int64_t Tc) {
    const int32_t ratio = ev->call->d->ratio;
    int32_t *out = malloc((size_t)(ev->nrows * ev->cols) * sizeof *out);
    for (int32_t r = 0; r < ev->nrows; r++) {
        int32_t n = 0, nb = (ev->call->pos0 + r + 1) / ratio;
        for (int32_t b = 0; b < nb; b++)
            if (mask[r * Tc + b * ratio] == 0 && n < ev->cols) out[r * ev->cols + n++] = b;
        while (n < ev->cols) out[r * ev->cols + n++] = -1;
    }
    return out;
}

static int on_ids(walk *k, const q4x_node_event *ev, const char *key, h_cmp *c) {
    int64_t rows, cols;
    int32_t *want;
    int mask = strstr(key, "attn.sel") != NULL;
    if (mask) {
        float *m = h_golden_f32(k->g, key, &rows, &cols);
        want = blocks_of_mask(m, ev, cols);
        free(m);
    } else {
        want = h_golden_i32(k->g, key, &rows, &cols);
        assert_int_equal(rows * cols, ev->nrows * ev->cols);
    }
    compare_sets(ev, want, mask, c);
    if (k->w->step && (!mask || c->set_differ)) memcpy(ev->data, want, (size_t)c->n * sizeof *want);
    free(want);
    return 0;
}

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    (void)err;
    walk *k = ctx;
    const q4x_node *n = &q4x_run_plan(k->run)->node[ev->node];
    char key[96];
    golden_key(k, n->name, key, sizeof key);
    if (!h_golden_has(k->g, key)) return 0;
    assert_int_equal(ev->nrows, ev->total); /* these files fit one tile */
    h_cmp c = {.forward = k->forward, .layer = n->layer, .node = n->name};
    if (n->is_ids) {
        on_ids(k, ev, key, &c);
    } else {
        int64_t rows, cols;
        float *want = h_golden_f32(k->g, key, &rows, &cols);
        if (rows * cols != ev->nrows * ev->cols)
            fail_msg("%s: %lld x %lld values, golden has %lld x %lld", key, (long long)ev->nrows, (long long)ev->cols,
                     (long long)rows, (long long)cols);
        float *got = ev->data, *rounded = NULL;
        if (ev->node == q4x_run_plan(k->run)->logits) { /* kept before the last rounding; the golden is after it */
            got = rounded = malloc((size_t)(rows * cols) * sizeof *got);
            for (int64_t i = 0; i < rows * cols; i++) rounded[i] = k_rd(((float *)ev->data)[i], ev->call->lv->act);
        }
        compare_floats(got, want, ev->nrows, ev->cols, &c);
        free(rounded);
        if (k->w->step) memcpy(ev->data, want, (size_t)c.n * sizeof *want);
        free(want);
    }
    k->w->compared++;
    if (k->w->fn) k->w->fn(k->w->ctx, &c);
    return 0;
}

void h_walk_golden(const q4x_net *net, const h_golden *g, h_walk *w) {
    q4x_err err = {0};
    q4x_arm arm;
    walk k = {.g = g, .w = w};
    if (q4x_arm_parse(w->arm, &arm, &err)) fail_msg("%s", err.msg);
    if (q4x_run_new(net, &arm, g->nprompt + g->ngreedy, 0, &k.run, &err)) fail_msg("%s", err.msg);
    q4x_run_on_node(k.run, on_node, &k);
    int n = w->max_forwards && w->max_forwards < g->ngreedy ? w->max_forwards : g->ngreedy;
    w->ids = w->ids_equal = w->forwards = 0;
    w->compared = 0;
    for (int f = 0; f < n; f++) {
        k.forward = f;
        const int32_t *ids = f ? &g->greedy[f - 1] : g->prompt;
        if (q4x_run_forward(k.run, ids, f ? 1 : g->nprompt, f == 0, &err)) fail_msg("%s", err.msg);
        int32_t top[2];
        float val[2];
        w->ids_equal += q4x_run_choose(k.run, top, val) == g->greedy[f];
        w->ids++;
        w->forwards++;
    }
    q4x_run_free(k.run);
}

const k_state *h_run_state(const q4x_run *r, int32_t i) {
    q4x_err err = {0};
    const k_state *st = NULL;
    if (q4x_run_state(r, i, &st, &err)) fail_msg("%s", err.msg);
    return st;
}
