/* t_bands.c: the state before a tile is there for bands that need it, is the right one, and moves nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/gdn.h"
#include "kernels/ops.h"
#include "lib/tap.h"
#include "tests/check.h"
#include "tests/h_forward.h"

enum { FIRST = 70 };

static const int32_t *ids(void) {
    static int32_t x[FIRST + 1];
    for (int i = 0; i <= FIRST; i++) x[i] = 1 + i * 37 % 300;
    return x;
}

static q4x_run *run_new(const q4x_net *net, int32_t tile) {
    q4x_run *r = NULL;
    q4x_arm arm;
    q4x_err err = {0};
    q4x_arm_default(&arm);
    arm.threads = 2;
    if (q4x_run_new(net, &arm, FIRST + 1, tile, &r, &err)) fail_msg("%s", err.msg);
    return r;
}

static void forwards(q4x_run *r, q4x_tapset *t) {
    q4x_err err = {0};
    for (int f = 0; f < 2; f++) {
        const int32_t *x = ids() + f * FIRST, n = f ? 1 : FIRST;
        if (q4x_run_forward(r, x, n, 0, &err)) fail_msg("%s", err.msg);
        if (t && q4x_tapset_forward(t, x, n, 1, -1, &err)) fail_msg("%s", err.msg);
    }
}

/* ---- what a hook is given ---- */

typedef struct {
    const q4x_plan *p;
    float **last;     /* [nnodes] delta state as the last event of the node left it */
    int given, right; /* events of gdn.core with a copy; whose copy is that state */
    int finite, infinite;
} watch;

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    (void)err;
    watch *w = ctx;
    const k_call *c = ev->call;
    if (w->p->node[ev->node].op != K_OP_gdn_core) {
        for (int i = w->p->node[ev->node].nst; i < K_MAXST; i++) assert_null(c->st[i]);
        return 0;
    }
    const size_t n = (size_t)(c->st[0]->cap * c->st[0]->cols);
    if (!w->last[ev->node]) w->last[ev->node] = calloc(n, sizeof(float)); /* a run begins with zeros */
    assert_non_null(w->last[ev->node]);
    if (c->st[1]) {
        w->given++;
        w->right += c->st[1] != c->st[0] && !memcmp(c->st[1]->f, w->last[ev->node], n * sizeof(float));
        assert_memory_not_equal(c->st[1]->f, c->st[0]->f, n * sizeof(float)); /* the tile moved the state */
    }
    memcpy(w->last[ev->node], c->st[0]->f, n * sizeof(float));
    k_band b = {0, 0};
    gdn_core_band(c, &b);
    assert_true(b.rms2 > 0 && isfinite(b.rms2));
    *(isfinite(b.hard2) ? &w->finite : &w->infinite) += 1;
    return 0;
}

enum { OFF, ON, AS_IT_IS };

static watch watched(q4x_run *r, int on) {
    watch w = {.p = q4x_run_plan(r)};
    w.last = calloc((size_t)w.p->nnodes, sizeof *w.last);
    assert_non_null(w.last);
    q4x_run_on_node(r, on_node, &w);
    if (on != AS_IT_IS) q4x_run_keep_states(r, on);
    forwards(r, NULL);
    for (int i = 0; i < w.p->nnodes; i++) free(w.last[i]);
    free(w.last);
    return w;
}

static void hook(void **state) {
    (void)state;
    q4x_net *net = h_net("tests/golden/micro-b");
    q4x_run *r = run_new(net, 64);
    int cores = 0, rows;
    for (int i = 0; i < q4x_net_plan(net)->nnodes; i++) cores += q4x_net_plan(net)->node[i].op == K_OP_gdn_core;
    assert_true(cores > 0);
    watch w = watched(r, OFF); /* the twin: nothing is copied, nothing is known past position 0 */
    assert_true(w.given == 0 && w.finite == cores && w.infinite == 2 * cores);
    const size_t V = (size_t)q4x_net_dims(net)->V;
    float *plain = malloc(V * sizeof *plain);
    assert_non_null(plain);
    memcpy(plain, q4x_run_logits(r, &rows), V * sizeof *plain);
    q4x_run_reset(r);
    w = watched(r, ON); /* two tiles and a step */
    assert_true(w.given == 3 * cores && w.right == 3 * cores && w.finite == 3 * cores && w.infinite == 0);
    assert_memory_equal(plain, q4x_run_logits(r, &rows), V * sizeof *plain);
    q4x_run_reset(r);
    w = watched(r, OFF); /* and off again */
    assert_true(w.given == 0 && w.infinite == 2 * cores);
    free(plain);
    q4x_run_free(r);
    q4x_net_close(net);
}

/* ---- what a dump records ---- */

/* The records of gdn.core in forward f: how many have a band, a finite one. */
static void count(const q4x_dump *d, int f, int *band, int *finite) {
    *band = *finite = 0;
    for (int i = 0; i < d->forwards[f].ntaps; i++) {
        const q4x_tap *t = &d->forwards[f].taps[i];
        if (strcmp(d->nodes[t->node].op, "gdn_core") != 0) continue;
        *band += t->has_band;
        *finite += t->has_band && t->band_hard > 0 && isfinite(t->band_hard) && t->band_rms > 0;
    }
}

/* The states of forward f: those that are copies have a band of nothing, those that are made one of their own; all of a
 * made state is kept, a row a head. */
static void check_states(const q4x_dump *d, int f, int bands, int nv) {
    int made = 0, copied = 0, ids = 0;
    for (int i = 0; i < d->forwards[f].ntaps; i++) {
        const q4x_tap *t = &d->forwards[f].taps[i];
        const q4x_dump_node *n = &d->nodes[t->node];
        if (!n->is_state) continue;
        if (n->is_ids) {
            assert_false(t->has_band); /* ids do not round */
            ids++;
            continue;
        }
        assert_int_equal(t->has_band, bands);
        if (strstr(n->name, ".state.delta")) {
            assert_int_equal(t->rows, nv);
            assert_int_equal(n->heads.width, 1);
            assert_int_equal(t->has_sketch, bands);
            if (bands) assert_true(t->sketch.nrows == nv && t->band_rms > 0 && isfinite(t->band_hard));
            if (bands) assert_true(t->band_rms < t->band_hard && t->band_rms < 1e-5 * sqrt(t->stats.sumsq));
            made++;
        } else {
            if (bands) assert_true(t->band_hard == 0 && t->band_rms == 0);
            copied++;
        }
    }
    assert_true(made > 0 && copied > made && ids > 0);
}

/* Every row of a state that keeps rows is the one that op_states.def says: of the input, or of the state before. Where
 * no lever rounds them the caches are copies too. */
typedef struct {
    const q4x_plan *p;
    float **last; /* [nstates] as the last tile left it */
    int checked, seen[K_KEEPS_BLOCKS + 1];
} copies;

static int on_copy(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    copies *w = ctx;
    const q4x_node *n = &w->p->node[ev->node];
    const k_call *c = ev->call;
    int in;
    (void)err;
    const k_keeps keeps = k_op_keeps(n->op, &in);
    if (keeps == K_KEEPS_MIXED) return 0;
    const k_state *s = c->st[0];
    const size_t cells = (size_t)(s->cap * s->cols), row = (size_t)s->cols * sizeof(float);
    float **last = &w->last[n->st[0]];
    if (!*last) *last = calloc(cells, sizeof(float)); /* a run begins with zeros */
    assert_non_null(*last);
    assert_int_equal(c->in_cols[in], s->cols);
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t at = r - c->pos0, before = r;
        if (keeps == K_KEEPS_LAST) at = r - (s->rows - c->T), before = r + c->T;
        if (keeps == K_KEEPS_BLOCKS) at = (r + 1) * c->d->ratio - 1 - c->pos0;
        const float *from = at >= 0 ? c->in[in] + at * s->cols : *last + before * s->cols;
        if (memcmp(s->f + r * s->cols, from, row)) fail_msg("%s: row %d is not the one it keeps", n->name, (int)r);
        w->checked++;
    }
    memcpy(*last, s->f, cells * sizeof(float));
    w->seen[keeps]++;
    return 0;
}

static void copied_states(void **state) {
    (void)state;
    q4x_net *net = h_net("tests/golden/micro-b");
    q4x_run *r = run_new(net, 64);
    copies w = {.p = q4x_net_plan(net)};
    w.last = calloc((size_t)w.p->nstates, sizeof *w.last);
    assert_non_null(w.last);
    q4x_run_on_node(r, on_copy, &w);
    forwards(r, NULL);
    assert_true(w.checked > 500 && w.seen[K_KEEPS_LAST] && w.seen[K_KEEPS_EVERY] && w.seen[K_KEEPS_BLOCKS]);
    for (int i = 0; i < w.p->nstates; i++) free(w.last[i]);
    free(w.last);
    q4x_run_free(r);
    q4x_net_close(net);
}

/* Of the caches under kv=f16: what rounding made of the new rows is in the band of the state, and fills it. */
static int on_kept(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    const copies *w = ctx;
    const q4x_node *n = &w->p->node[ev->node];
    k_bands_fn bands;
    (void)err;
    if (n->op != K_OP_attn_score && n->op != K_OP_attn_ctx && n->op != K_OP_idx_pool) return 0;
    assert_int_equal(k_op_state(n->op, &bands), K_STATE_MADE);
    const int in = n->op == K_OP_idx_pool ? 0 : 1;
    const int64_t cols = ev->call->in_cols[in];
    const float *row = ev->call->st[0]->f + ev->call->pos0 * cols, *x = ev->call->in[in];
    k_band out = {0, 0}, made = {0, 0};
    double d2 = 0;
    for (int64_t i = 0; i < ev->call->T * cols; i++)
        d2 += ((double)x[i] - (double)row[i]) * ((double)x[i] - (double)row[i]);
    bands(ev->call, &out, &made);
    assert_true(d2 > 0 && d2 <= made.hard2 && d2 >= 0.9 * made.hard2 && isfinite(out.rms2));
    /* what a fault puts into the cache is no rounding: the band is that of the rows that came */
    float *cell = ev->call->st[0]->f + ev->call->pos0 * cols, was = *cell;
    k_band off = {0, 0}, faulty = {0, 0};
    *cell = was + 1;
    bands(ev->call, &off, &faulty);
    *cell = was;
    assert_true(faulty.hard2 == made.hard2 && faulty.rms2 == made.rms2);
    ((copies *)ctx)->checked++;
    return 0;
}

static void kept_states(void **state) {
    (void)state;
    q4x_net *net = h_net("tests/golden/micro-b");
    q4x_arm arm;
    q4x_run *r = NULL;
    assert_int_equal(q4x_arm_parse("cpu:kv=f16", &arm, NULL), 0);
    assert_int_equal(q4x_run_new(net, &arm, 80, 64, &r, NULL), 0);
    copies w = {.p = q4x_net_plan(net)};
    q4x_run_on_node(r, on_kept, &w);
    forwards(r, NULL);
    assert_true(w.checked >= 12);
    q4x_run_free(r);
    q4x_net_close(net);
}

static void taps(void **state) {
    (void)state;
    q4x_net *net = h_net("tests/golden/micro-b");
    q4x_hash content[2];
    for (int bands = 0; bands < 2; bands++) {
        char path[] = "/tmp/q4x-bands-XXXXXX";
        int fd = mkstemp(path), band, finite;
        assert_true(fd >= 0);
        close(fd);
        q4x_run *r = run_new(net, 0);
        q4x_tapset *t = NULL;
        q4x_dump *d = NULL;
        q4x_err err = {0};
        q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH, .bands = bands};
        if (q4x_tapset_open(r, net, &o, path, json_object(), &t, &err)) fail_msg("%s", err.msg);
        forwards(r, t);
        if (q4x_tapset_close(t, &content[bands], &err)) fail_msg("%s", err.msg);
        q4x_run_reset(r);
        watch w = watched(r, AS_IT_IS); /* a tap set leaves nothing behind */
        assert_true(w.given == 0 && w.infinite > 0);
        if (q4x_dump_read(path, &d, &err)) fail_msg("%s", err.msg);
        for (int f = 0; f < 2; f++) {
            count(d, f, &band, &finite);
            assert_true(bands ? band > 0 && finite == band : band == 0);
            check_states(d, f, bands, q4x_net_dims(net)->nv);
        }
        q4x_dump_free(d);
        q4x_run_free(r);
        unlink(path);
    }
    assert_true(q4x_hash_eq(&content[0], &content[1])); /* bands move no bit */
    q4x_net_close(net);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(hook), cmocka_unit_test(taps), cmocka_unit_test(copied_states),
                                       cmocka_unit_test(kept_states)};
    return cmocka_run_group_tests_name("bands", tests, NULL, NULL);
}
