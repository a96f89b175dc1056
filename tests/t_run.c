/* t_run.c: what must not change a bit (threads, tiles, taps, how a sequence is cut into calls), what must (levers,
 * plants), and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "lib/tap.h"
#include "tests/h_dense.h"
#include "tests/h_forward.h"
#include "tests/h_synth.h"

/* Every output of a run, row by row, for nodes of fixed width; and the end state. */
typedef struct {
    const q4x_plan *p;
    int32_t rows; /* positions */
    int32_t base; /* position of the call's first row */
    float **out;  /* [nnodes] -> [rows, cols] */
    int all;      /* 0: public nodes only */
} record;

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    (void)err;
    record *r = ctx;
    const q4x_node *n = &r->p->node[ev->node];
    if (n->cols_kind != Q4X_COLS_FIXED || ev->node == r->p->logits || !(r->all || n->is_public)) return 0;
    if (!r->out[ev->node]) r->out[ev->node] = malloc((size_t)r->rows * (size_t)ev->cols * 4);
    memcpy(r->out[ev->node] + (int64_t)(r->base + ev->row0) * ev->cols, ev->data,
           (size_t)ev->nrows * (size_t)ev->cols * 4);
    return 0;
}

typedef struct {
    record rec;
    q4x_run *run;
    float *logits; /* of the last row */
    float best[2]; /* its two largest after the last rounding */
} result;

/* Run n ids cut into calls of the sizes in cuts (0-terminated; the rest in one call). */
static result go(const q4x_net *net, const char *spec, int threads, int tile, const int32_t *ids, int n,
                 const int *cuts, int hook) {
    result r = {{q4x_net_plan(net), n, 0, NULL, 1}, NULL, NULL, {0, 0}};
    q4x_arm arm;
    q4x_err err = {0};
    if (q4x_arm_parse(spec, &arm, &err)) fail_msg("%s", err.msg);
    arm.threads = threads;
    if (q4x_run_new(net, &arm, n + 4, tile, &r.run, &err)) fail_msg("%s", err.msg);
    r.rec.out = calloc((size_t)r.rec.p->nnodes, sizeof *r.rec.out);
    if (hook) q4x_run_on_node(r.run, on_node, &r.rec);
    for (int at = 0; at < n;) {
        int k = cuts && *cuts ? *cuts++ : n - at;
        if (k > n - at) k = n - at;
        r.rec.base = at;
        if (q4x_run_forward(r.run, ids + at, k, 0, &err)) fail_msg("%s", err.msg);
        at += k;
    }
    q4x_run_on_node(r.run, NULL, NULL);
    int32_t rows;
    const float *last = q4x_run_logits(r.run, &rows);
    r.logits = malloc((size_t)r.rec.p->d.V * 4);
    memcpy(r.logits, last + (int64_t)(rows - 1) * r.rec.p->d.V, (size_t)r.rec.p->d.V * 4);
    int32_t top[2];
    q4x_run_choose(r.run, top, r.best);
    return r;
}

static void drop(result *r) {
    for (int i = 0; i < r->rec.p->nnodes; i++) free(r->rec.out[i]);
    free(r->rec.out);
    free(r->logits);
    q4x_run_free(r->run);
}

/* Name of the first node or state whose bits differ, or NULL. */
static const char *first_difference(const result *a, const result *b, int public_only) {
    const q4x_plan *p = a->rec.p;
    for (int i = 0; i < p->nnodes; i++) {
        if (public_only && !p->node[i].is_public) continue;
        if (!a->rec.out[i] || !b->rec.out[i]) continue;
        if (memcmp(a->rec.out[i], b->rec.out[i], (size_t)a->rec.rows * (size_t)p->node[i].cols * 4))
            return p->node[i].name;
    }
    for (int i = 0; i < p->nstates; i++) {
        const k_state *x = h_run_state(a->run, i), *y = h_run_state(b->run, i);
        if (x->rows != y->rows || memcmp(x->f, y->f, (size_t)(x->rows * x->cols) * 4)) return p->state[i].name;
    }
    if (memcmp(a->logits, b->logits, (size_t)p->d.V * 4) || memcmp(a->best, b->best, sizeof a->best)) return "logits";
    return NULL;
}

static int compared(const result *a, const result *b) {
    int n = 0;
    for (int i = 0; i < a->rec.p->nnodes; i++) n += a->rec.out[i] && b->rec.out[i];
    return n;
}

#define EXPECT_SAME(a, b)                                                                                              \
    do {                                                                                                               \
        const char *d_ = first_difference(&(a), &(b), 0);                                                              \
        if (d_) fail_msg("first difference at %s", d_);                                                                \
        assert_true(compared(&(a), &(b)) >= (a).rec.p->nnodes * 4 / 5);                                                \
    } while (0)

static int32_t IDS[200];
static void make_ids(int V) {
    uint32_t x = 7;
    for (int i = 0; i < 200; i++) {
        x = x * 1664525u + 1013904223u;
        IDS[i] = i % 23 == 11 ? 0 : (int32_t)((x >> 8) % (uint32_t)V); /* 0 is the eos of these models */
    }
}

static const struct {
    const char *model, *arm;
} NULLS[] = {
    {"tests/golden/micro-b", "cpu"},
    {"tests/golden/micro-b", "cpu:act=bf16"},
    {"tests/golden/micro-b", "cpu:gdn=chunk64,moe.combine=experts"},
    {"tests/golden/dense-a", "cpu"},
    {"tests/golden/dense-a", "cpu:act=bf16"},
    {"tests/golden/dense-a", "cpu:gdn=chunk64"},
    {"tests/golden/dense-a", "cpu:gdn=chunk64-bf16"},
};

static void nulls(void **s) {
    (void)s;
    for (size_t i = 0; i < sizeof NULLS / sizeof *NULLS; i++) {
        q4x_net *net = h_net(NULLS[i].model);
        const char *arm = NULLS[i].arm;
        const int32_t V = q4x_net_dims(net)->V;
        make_ids(V);
        result a = go(net, arm, 1, 0, IDS, 140, NULL, 1), b = go(net, arm, 1, 0, IDS, 140, NULL, 1);
        EXPECT_SAME(a, b); /* two runs */
        result c = go(net, arm, 2, 0, IDS, 140, NULL, 1), d = go(net, arm, 5, 0, IDS, 140, NULL, 1);
        EXPECT_SAME(a, c); /* threads */
        EXPECT_SAME(a, d);
        result e = go(net, arm, 2, 64, IDS, 140, NULL, 1), f = go(net, arm, 2, 128, IDS, 140, NULL, 1);
        EXPECT_SAME(a, e); /* tiles */
        EXPECT_SAME(a, f);
        result g = go(net, arm, 2, 0, IDS, 140, NULL, 0); /* unwatched */
        assert_memory_equal(a.logits, g.logits, (size_t)V * 4);
        drop(&a);
        drop(&b);
        drop(&c);
        drop(&d);
        drop(&e);
        drop(&f);
        drop(&g);
        q4x_net_close(net);
    }
}

static void prefill_is_decode(void **s) {
    (void)s;
    static const char *const FILES[] = {"tests/golden/micro-a", "tests/golden/micro-b", "tests/models/demo.gguf",
                                        "tests/golden/dense-a"};
    static const int ONE[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0};
    static const int MIX[] = {3, 1, 17, 2, 1, 40, 5, 0};
    for (size_t m = 0; m < sizeof FILES / sizeof *FILES; m++) {
        q4x_net *net = h_net(FILES[m]);
        make_ids(q4x_net_dims(net)->V);
        for (int act = 0; act < 2; act++) {
            const char *spec = act ? "cpu:act=bf16" : "cpu";
            result a = go(net, spec, 2, 0, IDS, 78, NULL, 1), b = go(net, spec, 2, 0, IDS, 78, ONE, 1),
                   c = go(net, spec, 2, 0, IDS, 78, MIX, 1);
            EXPECT_SAME(a, b);
            EXPECT_SAME(a, c);
            drop(&a);
            drop(&b);
            drop(&c);
        }
        /* the twin: with chunks, one call is not many */
        result a = go(net, "cpu:gdn=chunk64", 2, 0, IDS, 78, NULL, 1),
               b = go(net, "cpu:gdn=chunk64", 2, 0, IDS, 78, ONE, 1);
        assert_non_null(first_difference(&a, &b, 0));
        drop(&a);
        drop(&b);
        q4x_net_close(net);
    }
}

#define MICRO_B "tests/golden/micro-b"
#define DENSE_A "tests/golden/dense-a"
#define DEMO "tests/models/demo.gguf"
#define Q8_0 "a file of Q8_0 weights" /* made by the test */
static const struct {
    const char *model, *base, *spec;
} LEVER_CASES[] = {
    {MICRO_B, "cpu", "cpu:act=bf16"},
    {MICRO_B, "cpu", "cpu:gdn=chunk64"},
    {MICRO_B, "cpu", "cpu:gdn=chunk64-bf16"},
    {MICRO_B, "cpu:gdn=chunk64", "cpu:gdn=chunk64,gdn.h=bf16"},
    {MICRO_B, "cpu:gdn=chunk64", "cpu:gdn=chunk64,gdn.hop=bf16@L04.*"},
    {MICRO_B, "cpu:gdn=chunk64", "cpu:gdn=chunk64,gdn.w=bf16"},
    {MICRO_B, "cpu:gdn=chunk64", "cpu:gdn=chunk64,gdn.u=bf16"},
    {MICRO_B, "cpu:gdn=chunk64", "cpu:gdn=chunk64,gdn.vnew=bf16"},
    {MICRO_B, "cpu:gdn=chunk64", "cpu:gdn=chunk64,gdn.inv=bf16@gdn.core"},
    {DENSE_A, "cpu:gdn=chunk64-bf16", "cpu:gdn=chunk64-bf16,gdn.h=f32"},
    {DENSE_A, "cpu:gdn=chunk64-bf16", "cpu:gdn=chunk64-bf16,gdn.hop=f32"},
    {DENSE_A, "cpu:gdn=chunk64-bf16", "cpu:gdn=chunk64-bf16,gdn.w=f32@L01.*"},
    {DENSE_A, "cpu:gdn=chunk64-bf16", "cpu:gdn=chunk64-bf16,gdn.u=f32"},
    {DENSE_A, "cpu:gdn=chunk64-bf16", "cpu:gdn=chunk64-bf16,gdn.vnew=f32"},
    {DENSE_A, "cpu:gdn=chunk64-bf16", "cpu:gdn=chunk64-bf16,gdn.inv=f32"},
    {MICRO_B, "cpu", "cpu:gdn.gate=silu"}, /* this architecture's is a sigmoid, the other's silu */
    {DENSE_A, "cpu", "cpu:gdn.gate=sigmoid@L02.*"},
    {MICRO_B, "cpu", "cpu:resid=bf16"},
    {MICRO_B, "cpu", "cpu:resid=bf16@s.ple"},
    {MICRO_B, "cpu:act=bf16", "cpu:act=bf16,resid=f32"},
    {DENSE_A, "cpu", "cpu:resid=bf16@L01.s.attn"},
    {MICRO_B, "cpu", "cpu:rope.table=bf16"},
    {DENSE_A, "cpu:act=bf16", "cpu:act=bf16,rope.table=f32"},
    {MICRO_B, "cpu", "cpu:rope.table=bf16@L07.attn.idx.pool"},
    {MICRO_B, "cpu", "cpu:eps=1e-5"},
    {MICRO_B, "cpu", "cpu:eps=0@L03.attn.idx.pool"},
    {DENSE_A, "cpu", "cpu:eps=2e-6@norm.mlp"},
    {MICRO_B, "cpu", "cpu:eps.floor=1e-5"},
    {MICRO_B, "cpu:eps=1e-5", "cpu:eps=1e-5,eps.floor=1e-5@L02.gdn.k"}, /* the delta rule has its own */
    {DENSE_A, "cpu:eps=1e-5", "cpu:eps=1e-5,eps.floor=1.5e-5@*.gdn.norm"},
    {MICRO_B, "cpu", "cpu:moe.combine=experts"},
    {MICRO_B, "cpu", "cpu:rope.freq=bf16"},
    {MICRO_B, "cpu:act=bf16", "cpu:act=bf16,topk.tie=highest"},
    {MICRO_B, "cpu:act=bf16", "cpu:act=bf16,topk.tie=torch"},
    {MICRO_B, "cpu:act=bf16", "cpu:act=bf16,topk.tie=stl"},
    {MICRO_B, "cpu:act=bf16", "cpu:act=bf16,moe.logits=f32"},
    {MICRO_B, "cpu", "cpu:moe.logits=bf16"},
    {MICRO_B, "cpu", "cpu:moe.logits=bf16@L02.*"},
    {MICRO_B, "cpu", "cpu:moe.softmax=bf16"},
    {MICRO_B, "cpu:moe.renorm=off", "cpu:moe.renorm=on"}, /* the file says on */
    {MICRO_B, "cpu", "cpu:moe.renorm=off"},
    {MICRO_B, "cpu", "cpu:moe.act=gelu"},
    {MICRO_B, "cpu", "cpu:moe.act=gelu@moe.shared.act"},
    {MICRO_B, "cpu", "cpu:moe.sgate=off@L04.moe"},
    {MICRO_B, "cpu", "cpu:moe.sgate=off"},
    {MICRO_B, "cpu", "cpu:act=bf16@L02.blk"},
    {MICRO_B, "cpu", "cpu:act=bf16@moe"},
    {MICRO_B, "cpu", "cpu:gdn=chunk64@L05.*"},
    {MICRO_B, "cpu", "cpu:plant=sign@L02.gdn.core"},
    {MICRO_B, "cpu", "cpu:plant=swap@L03.attn.gated"},
    {MICRO_B, "cpu", "cpu:plant=roll@L04.moe.ids"},
    {MICRO_B, "cpu", "cpu:plant=ulp@L06.mhc.mix"},
    {MICRO_B, "cpu", "cpu:plant=nan@L01.ple.gate"},
    {MICRO_B, "cpu", "cpu:plant=inf@L07.attn.prob"},
    {MICRO_B, "cpu", "cpu:logits=bf16"},
    {MICRO_B, "cpu:act=bf16", "cpu:act=bf16,logits=f32"},
    {MICRO_B, "cpu", "cpu:attn.round=bf16"},
    {MICRO_B, "cpu:act=bf16", "cpu:act=bf16,attn.round=f32@L07.*"},
    {MICRO_B, "cpu", "cpu:kv=f16"},
    {MICRO_B, "cpu", "cpu:kv=bf16@attn.ctx"},
    {MICRO_B, "cpu:act=bf16@attn.score", "cpu:act=bf16@attn.score,kv=f32"},
    {MICRO_B, "cpu", "cpu:attn.softmax=online"},
    {MICRO_B, "cpu", "cpu:dot=serial"}, /* a prompt: the logits alone are a product of one column */
    {MICRO_B, "cpu", "cpu:dot=blocked@logits"},
    {MICRO_B, "cpu", "cpu:dot=q8k@moe.*"},
    {MICRO_B, "cpu", "cpu:dot=neon"},
    {DEMO, "cpu", "cpu:dot=q8k"},
    {DEMO, "cpu", "cpu:dot=q8_1"},
    {DEMO, "cpu:dot=q8k", "cpu:dot=q8k,repack=q4_kx8"},
    {Q8_0, "cpu", "cpu:dot=neon@L01.*"},
    {Q8_0, "cpu:dot=q8k", "cpu:dot=q8k,repack=q8_0x4"},
    {MICRO_B, "cpu", "cpu:qsa.extra=stl"},
    {MICRO_B, "cpu", "cpu:qsa.extra=stl@L07.*"},
    {DENSE_A, "cpu", "cpu:attn.softmax=online,kv=f16@L03.*"},
    {DENSE_A, "cpu", "cpu:act=bf16"},
    {DENSE_A, "cpu", "cpu:gdn=chunk64"},
    {DENSE_A, "cpu", "cpu:rope.freq=bf16"},
    {DENSE_A, "cpu", "cpu:moe.act=gelu"}, /* any SwiGLU */
    {DENSE_A, "cpu", "cpu:act=bf16@L02.norm.mlp"},
    {DENSE_A, "cpu", "cpu:act=bf16@mlp.*"},
    {DENSE_A, "cpu", "cpu:act=bf16@L01.out"},
    {DENSE_A, "cpu", "cpu:plant=swap@L01.norm.attn"},
    {DENSE_A, "cpu", "cpu:plant=ulp@L02.s.attn"},
    {DENSE_A, "cpu", "cpu:plant=inf@L03.attn.prob"},
};
enum { NLEVER_CASES = sizeof LEVER_CASES / sizeof *LEVER_CASES };

/* Every value of every lever but the default is in a case. */
static void levers_are_tested(void **s) {
    (void)s;
    for (int l = 0; l < q4x_nlevers; l++) {
        char word[64], item[128];
        if (!strcmp(q4x_levers[l].kind, "library")) continue; /* tests/cuda/e_gemm.c */
        if (q4x_levers[l].field == (size_t)-1) continue;      /* the plants: t_plant.c */
        double lo, hi;
        if (q4x_lever_range(&q4x_levers[l], &lo, &hi)) {
            int i = 0;
            snprintf(item, sizeof item, "%s=", q4x_levers[l].name);
            while (i < NLEVER_CASES && !strstr(LEVER_CASES[i].spec, item)) i++;
            if (i == NLEVER_CASES) fail_msg("no case gives %s a number", q4x_levers[l].name);
            continue;
        }
        for (int32_t v = 0; *q4x_lever_value(&q4x_levers[l], v, word, sizeof word); v++) {
            int i = 0;
            snprintf(item, sizeof item, "%s=%s", q4x_levers[l].name, word);
            while (i < NLEVER_CASES && !strstr(LEVER_CASES[i].spec, item)) i++;
            if (i == NLEVER_CASES && v > 0) fail_msg("no case moves %s", item);
        }
    }
}

/* The model of a case. */
static q4x_net *case_net(const char *model) {
    if (strcmp(model, Q8_0) != 0) return h_net(model);
    char *dir = h_tmp(), path[512];
    snprintf(path, sizeof path, "%s/q8_0.gguf", dir);
    h_synth(path, q4x_geometry_find("tiny"), Q4X_FT_Q8_0, 1, 0, 2);
    q4x_net *net = h_net(path);
    h_tmp_remove(dir); /* what is mapped stays */
    return net;
}

/* Each lever moves a bit (alive), and nothing before the first node that reads it (local). */
static void levers_alive_and_local(void **s) {
    (void)s;
    for (int i = 0; i < NLEVER_CASES; i++) {
        q4x_net *net = case_net(LEVER_CASES[i].model);
        const q4x_plan *p = q4x_net_plan(net);
        make_ids(p->d.V);
        result a = go(net, LEVER_CASES[i].base, 2, 0, IDS, 140, NULL, 1),
               b = go(net, LEVER_CASES[i].spec, 2, 0, IDS, 140, NULL, 1);
        const char *first = first_difference(&a, &b, 0);
        if (!first) fail_msg("%s moves nothing", LEVER_CASES[i].spec);
        q4x_arm x, y;
        assert_int_equal(q4x_arm_parse(LEVER_CASES[i].base, &x, NULL), 0);
        assert_int_equal(q4x_arm_parse(LEVER_CASES[i].spec, &y, NULL), 0);
        int32_t at = q4x_plan_find(p, first), scope = p->nnodes;
        for (int32_t k = p->nnodes - 1; k >= 0; k--) {
            k_levers lx, ly;
            char wx[128], wy[128];
            q4x_arm_resolve(&x, p->node[k].name, 0, &lx);
            q4x_arm_resolve(&y, p->node[k].name, 0, &ly);
            q4x_lever_words(&lx, q4x_plan_lever_word(p, k), wx, sizeof wx);
            q4x_lever_words(&ly, q4x_plan_lever_word(p, k), wy, sizeof wy);
            if (strcmp(wx, wy) || q4x_arm_plant(&y, p->node[k].name, 0)) scope = k;
        }
        if (at >= 0 && at < scope) fail_msg("%s: %s moved, before %s", LEVER_CASES[i].spec, first, p->node[scope].name);
        drop(&a);
        drop(&b);
        q4x_net_close(net);
    }
}

/* ---- a fault in a node's output reaches what is kept of it ---- */

enum { FIRST = 70 }; /* ids of forward 0; forward 1 has one */

typedef struct {
    q4x_run *run;
    q4x_hash *node[2]; /* bits of every node, by forward */
} trace;

static int on_trace(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    (void)err;
    trace *t = ctx;
    q4x_hash both[2] = {t->node[q4x_run_nforward(t->run)][ev->node],
                        q4x_bits_of(Q4X_BITS_RAW, ev->data, (size_t)ev->nrows * (size_t)ev->cols * 4)};
    t->node[q4x_run_nforward(t->run)][ev->node] = q4x_xxh128(both, sizeof both);
    return 0;
}

static trace *trace_new(const q4x_net *net, const char *spec, int tile) {
    trace *t = calloc(1, sizeof *t);
    q4x_arm arm;
    q4x_err err = {0};
    if (q4x_arm_parse(spec, &arm, &err)) fail_msg("%s", err.msg);
    arm.threads = 2;
    if (q4x_run_new(net, &arm, FIRST + 1, tile, &t->run, &err)) fail_msg("%s", err.msg);
    for (int f = 0; f < 2; f++) t->node[f] = calloc((size_t)q4x_net_plan(net)->nnodes, sizeof *t->node[f]);
    q4x_run_on_node(t->run, on_trace, t);
    if (q4x_run_forward(t->run, IDS, FIRST, 0, &err)) fail_msg("%s", err.msg);
    if (q4x_run_forward(t->run, IDS + FIRST, 1, 0, &err)) fail_msg("%s", err.msg);
    return t;
}

static void trace_free(trace *t) {
    for (int f = 0; f < 2; f++) free(t->node[f]);
    q4x_run_free(t->run);
    free(t);
}

static int moved(const trace *a, const trace *b, int f, const char *node) {
    int32_t i = q4x_plan_find(q4x_run_plan(a->run), node);
    assert_true(i >= 0);
    return !q4x_hash_eq(&a->node[f][i], &b->node[f][i]);
}

static const char *first_moved(const trace *a, const trace *b, int f) {
    const q4x_plan *p = q4x_run_plan(a->run);
    for (int i = 0; i < p->nnodes; i++)
        if (!q4x_hash_eq(&a->node[f][i], &b->node[f][i])) return p->node[i].name;
    return "nothing";
}

/* Values whose sign alone differs in rows row0 .. row1 of a state; -1 when anything else does. */
static int64_t flips(const trace *a, const trace *b, int state, int64_t row0, int64_t row1) {
    const k_state *x = h_run_state(a->run, state), *y = h_run_state(b->run, state);
    int64_t n = 0;
    for (int64_t i = row0 * x->cols; i < row1 * x->cols; i++) {
        uint32_t d = (uint32_t)x->i[i] ^ (uint32_t)y->i[i];
        if (d && d != 0x80000000u) return -1;
        n += d != 0;
    }
    return n;
}

/* The states of layer 3 after both forwards: of `state` the rows of the planted forward are flipped, nothing else. */
static void check_states(const trace *a, const trace *b, const char *state, int planted) {
    const q4x_plan *p = q4x_run_plan(a->run);
    int seen = 0;
    for (int s = 0; s < p->nstates; s++) {
        if (p->state[s].layer != 3) continue;
        const k_state *x = h_run_state(a->run, s);
        const int64_t end = p->state[s].rows_kind == Q4X_ROWS_BLOCK ? FIRST / p->d.ratio : FIRST;
        const int64_t want[2] = {end * x->cols, (x->rows - end) * x->cols};
        int mine = !strcmp(p->state[s].name, state);
        seen += mine;
        for (int f = 0; f < 2; f++) {
            int64_t n = flips(a, b, s, f ? end : 0, f ? x->rows : end);
            if (n != (mine && f == planted ? want[f] : 0))
                fail_msg("plant in %s in forward %d: %s, rows of forward %d: %lld flipped", state, planted,
                         p->state[s].name, f, (long long)n);
        }
    }
    assert_int_equal(seen, 1);
}

static void plants_reach_what_is_kept(void **s) {
    (void)s;
    static const struct {
        const char *model, *node, *state, *reader;
        int kept_each, scores; /* forward 1 keeps something of it; the attention scores read it */
    } CASES[] = {{"tests/golden/micro-b", "L03.attn.rope.k", "L03.state.k", "L03.attn.score", 1, 1},
                 {"tests/golden/micro-b", "L03.attn.idx.pool", "L03.state.pool", "L03.attn.idx.score", 0, 1},
                 {"tests/golden/micro-b", "L03.attn.v", "L03.state.v", "L03.attn.ctx", 1, 0},
                 {"tests/golden/dense-a", "L03.attn.rope.k", "L03.state.k", "L03.attn.score", 1, 1},
                 {"tests/golden/dense-a", "L03.attn.v", "L03.state.v", "L03.attn.ctx", 1, 0}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        q4x_net *net = h_net(CASES[i].model);
        make_ids(q4x_net_dims(net)->V);
        for (int tile = 0; tile <= 64; tile += 64) {
            trace *a = trace_new(net, "cpu", tile);
            char spec[2][96];
            for (int f = 0; f < 2; f++) snprintf(spec[f], sizeof spec[f], "cpu:plant=sign@%s#%d", CASES[i].node, f);
            trace *b = trace_new(net, spec[0], tile), *c = trace_new(net, spec[1], tile);
            assert_string_equal(first_moved(a, b, 0), CASES[i].node);
            assert_true(moved(a, b, 0, CASES[i].reader));
            assert_int_equal(moved(a, b, 0, "L03.attn.score"), CASES[i].scores);
            assert_string_equal(first_moved(a, b, 1), CASES[i].reader); /* through the state and nothing else */
            check_states(a, b, CASES[i].state, 0);
            assert_string_equal(first_moved(a, c, 0), "nothing"); /* the twin: the plant is in forward 1 */
            assert_string_equal(first_moved(a, c, 1), CASES[i].node);
            assert_int_equal(moved(a, c, 1, CASES[i].reader), CASES[i].kept_each);
            check_states(a, c, CASES[i].state, 1);
            trace_free(b);
            trace_free(c);
            trace_free(a);
        }
        q4x_net_close(net);
    }
}

static void expect_refused(const q4x_net *net, const char *spec, const char *word) {
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r = NULL;
    int rc = q4x_arm_parse(spec, &arm, &err);
    if (!rc) rc = q4x_run_new(net, &arm, 16, 0, &r, &err);
    if (!rc) fail_msg("%s was accepted", spec);
    if (!strstr(err.msg, word)) fail_msg("%s: '%s' does not say '%s'", spec, err.msg, word);
}

/* A number is held as the nearest f32 and printed so that it reads back as the same one. */
static void numbers_read_back(void **s) {
    (void)s;
    static const struct {
        const char *typed, *text;
        float value;
    } CASES[] = {{"1e-5", "eps=1e-05", 1e-5f},
                 {"0.00001", "eps=1e-05", 1e-5f},
                 {"0", "eps=0", -0.0f},
                 {"0.0e5", "eps=0", -0.0f},
                 {"1", "eps=1", 1.0f},
                 {".1", "eps=0.1", 0.1f},
                 {"1.25e-5", "eps=1.25e-05", 1.25e-5f},
                 {"0.123456789", "eps=0.12345679", 0.123456789f},
                 {"1e-45", "eps=1e-45", 0x1p-149f},
                 {"9.9999994e-1", "eps=0.99999994", 0x1.fffffep-1f}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char spec[80], text[128], again[160];
        q4x_arm a, b;
        k_levers lv;
        snprintf(spec, sizeof spec, "cpu:eps=%s", CASES[i].typed);
        assert_int_equal(q4x_arm_parse(spec, &a, NULL), 0);
        q4x_item_text(&a.item[0], text, sizeof text);
        assert_string_equal(text, CASES[i].text);
        q4x_arm_resolve(&a, "L00.norm.attn", 0, &lv);
        assert_memory_equal(&lv.eps, &CASES[i].value, 4);
        snprintf(again, sizeof again, "cpu:%s", text);
        assert_int_equal(q4x_arm_parse(again, &b, NULL), 0);
        assert_int_equal(a.item[0].value, b.item[0].value);
    }
    static const char *const lost[] = {"cpu:eps=1e-46", "cpu:eps=1e-400", "cpu:eps=.0001e-9999"}; /* would be 0 */
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        q4x_arm a;
        assert_int_not_equal(q4x_arm_parse(lost[i], &a, NULL), 0);
    }
    uint32_t x = 99;
    for (int i = 0; i < 20000; i++) { /* any f32 of the range */
        char text[128], spec[160];
        q4x_arm a, b;
        x = x * 1664525u + 1013904223u;
        const uint32_t bits = (x >> 1) % 0x3f800001u;
        if (!bits) continue;
        q4x_arm_default(&a);
        assert_int_equal(q4x_arm_add(&a, "eps.floor=1", NULL), 0);
        a.item[0].value = (int32_t)bits;
        q4x_item_text(&a.item[0], text, sizeof text);
        snprintf(spec, sizeof spec, "cpu:%s", text);
        if (q4x_arm_parse(spec, &b, NULL) || b.item[0].value != a.item[0].value)
            fail_msg("%s is not 0x%08x", text, bits);
    }
}

static void refusals(void **s) {
    (void)s;
    q4x_net *net = h_net("tests/golden/micro-a");
    expect_refused(net, "gpu", "cpu or cuda");
    expect_refused(net, "cpu/0", "threads");
    expect_refused(net, "cpu:", "a lever is empty");
    expect_refused(net, "cpu:act=bf16,", "a lever is empty");
    expect_refused(net, "cpu:,act=bf16", "a lever is empty");
    expect_refused(net, "cpu:act=bf16,,gdn=chunk64", "a lever is empty");
    expect_refused(net, "cpu:act", "NAME=VALUE");
    expect_refused(net, "cpu:act=f16", "f32|bf16");
    expect_refused(net, "cpu:eps=2", "file|0..1");
    expect_refused(net, "cpu:eps=-1e-6", "file|0..1");
    expect_refused(net, "cpu:eps=1.0000001", "file|0..1");
    expect_refused(net, "cpu:eps=1e-60", "f32 holds"); /* would be 0 */
    expect_refused(net, "cpu:eps=0x1p-3", "decimal");
    expect_refused(net, "cpu:eps=nan", "decimal");
    expect_refused(net, "cpu:eps=1e", "decimal");
    expect_refused(net, "cpu:eps=", "decimal");
    expect_refused(net, "cpu:eps=0..1", "decimal"); /* the range itself is no word */
    expect_refused(net, "cpu:eps=off", "file|0..1");
    expect_refused(net, "cpu:eps.floor=file", "off|0..1");
    expect_refused(net, "cpu:eps=0.0000000000000000000000000000000000000001", "decimal");
    expect_refused(net, "cpu:eps=1e-5@moe.*", "no node");
    expect_refused(net, "cpu:nope=1", "no such lever");
    expect_refused(net, "cpu:as=nope", "no such profile");
    expect_refused(net, "cpu:act=bf16@L09.*", "no node");
    expect_refused(net, "cpu:gdn=chunk64@moe.*", "no node");
    expect_refused(net, "cpu:resid=bf16@ple", "no node"); /* a sum, but not the residual stream */
    expect_refused(net, "cpu:act=bf16@blk#x", "forward");
    expect_refused(net, "cpu:plant=sign", "NODE");
    expect_refused(net, "cpu:plant=nan@moe.ids", "ids");
    expect_refused(net, "cuda/999", "cuda");
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_arm_default(&arm);
    assert_true(q4x_run_new(net, &arm, 0, 0, &r, &err) < 0 && strstr(err.msg, "context"));
    assert_true(q4x_run_new(net, &arm, 4097, 0, &r, &err) < 0 && strstr(err.msg, "4096"));
    assert_int_equal(q4x_run_new(net, &arm, 4, 0, &r, &err), 0);
    const int32_t good[] = {1, 2, 3, 4, 5}, high[] = {1, 256}, low[] = {1, 2, -1};
    assert_true(q4x_run_forward(r, good, 0, 0, &err) < 0 && strstr(err.msg, "none given"));
    assert_true(q4x_run_forward(r, good, 5, 0, &err) < 0 && strstr(err.msg, "context"));
    assert_true(q4x_run_forward(r, high, 2, 0, &err) < 0 && strstr(err.msg, "ids[1]: 256"));
    assert_true(q4x_run_forward(r, low, 3, 0, &err) < 0 && strstr(err.msg, "ids[2]: -1"));
    assert_int_equal(q4x_run_pos(r), 0);
    assert_int_equal(q4x_run_forward(r, good, 4, 0, &err), 0);
    assert_true(q4x_run_forward(r, good, 1, 0, &err) < 0);
    q4x_run_free(r);
    q4x_net_close(net);
    net = h_net("tests/golden/dense-a");
    expect_refused(net, "cpu:moe.combine=experts", "no node"); /* asked for by name; of a profile it is let go */
    expect_refused(net, "cpu:act=bf16@wide", "no node");
    q4x_net_close(net);
}

/* A failing hook ends the forward and leaves the run dead until it is reset. */
static int failing(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    (void)ctx;
    return ev->node == 20 ? q4x_fail(err, Q4X_E_IO, "planted") : 0;
}

static void dead_run(void **s) {
    (void)s;
    q4x_net *net = h_net("tests/golden/micro-a");
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r;
    int32_t top[2], ids[] = {5, 6, 7};
    float val[2];
    q4x_arm_default(&arm);
    assert_int_equal(q4x_run_new(net, &arm, 8, 0, &r, &err), 0);
    assert_int_equal(q4x_run_forward(r, ids, 3, 0, &err), 0);
    int32_t want = q4x_run_choose(r, top, val);
    q4x_run_reset(r);
    q4x_run_on_node(r, failing, NULL);
    assert_int_equal(q4x_run_forward(r, ids, 3, 0, &err), Q4X_E_IO);
    q4x_run_on_node(r, NULL, NULL);
    assert_true(q4x_run_forward(r, ids, 3, 0, &err) < 0 && strstr(err.msg, "reset"));
    q4x_run_reset(r);
    assert_int_equal(q4x_run_forward(r, ids, 3, 0, &err), 0);
    assert_int_equal(q4x_run_choose(r, top, val), want);
    q4x_run_free(r);
    q4x_net_close(net);
}

/* Greedy ids of a file against a list "sampled a b c ...". */
static void greedy_case(const char *path, const char *list) {
    FILE *f = fopen(list, "r");
    assert_non_null(f);
    int32_t prompt[64], want[64];
    int np = 0, nw = 0, c;
    assert_int_equal(fscanf(f, "prompt"), 0);
    while (fscanf(f, "%d", &c) == 1) prompt[np++] = c;
    assert_int_equal(fscanf(f, " sampled"), 0);
    while (fscanf(f, "%d", &c) == 1) want[nw++] = c;
    fclose(f);
    q4x_net *net = h_net(path);
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r;
    q4x_arm_default(&arm);
    if (q4x_run_new(net, &arm, np + nw, 0, &r, &err)) fail_msg("%s", err.msg);
    int32_t top[2], id = 0;
    float val[2], least = INFINITY;
    for (int i = 0; i < nw; i++) {
        if (q4x_run_forward(r, i ? &id : prompt, i ? 1 : np, 0, &err)) fail_msg("%s", err.msg);
        id = q4x_run_choose(r, top, val);
        if (id != want[i])
            fail_msg("%s: id %d is %d, llama.cpp's is %d (margin %g)", path, i, id, want[i], (double)(val[0] - val[1]));
        if (val[0] - val[1] < least) least = val[0] - val[1];
    }
    printf("  %s: %d of %d ids equal llama.cpp's, least margin %.4f\n", path, nw, nw, (double)least);
    q4x_run_free(r);
    q4x_net_close(net);
}

static void llamacpp_ids(void **s) {
    (void)s;
    greedy_case("tests/models/demo.gguf", "tests/golden/demo-IQ1_S.ids");
    if (access("../shared/golden/gguf/demo-Q4_K_M.gguf", R_OK))
        printf("  ../shared is not there: demo-Q4_K_M was not run\n");
    else
        greedy_case("../shared/golden/gguf/demo-Q4_K_M.gguf", "../shared/golden/gguf/demo-Q4_K_M.llamacpp/ids.txt");
}

/* The trained model: five prompts in f32, the same five in bf16 (exact ties fall as the reference's top-2 falls). */
static void demo_ids(void **s) {
    (void)s;
    if (access("../shared/golden/demo/config.json", R_OK)) {
        printf("  ../shared is not there: the five prompts of demo were not run\n");
        skip();
    }
    q4x_net *net = h_net("../shared/golden/demo");
    json_t *list = json_load_file("tests/golden/demo-golden.json", 0, NULL);
    assert_int_equal(json_array_size(list), 10);
    int equal[2] = {0, 0};
    double worst = 0;
    for (size_t i = 0; i < 10; i++) {
        json_t *c = json_array_get(list, i), *ids = json_object_get(c, "prompt_ids"),
               *want = json_object_get(c, "greedy");
        int bf16 = strstr(json_string_value(json_object_get(c, "dtype")), "bfloat16") != NULL;
        q4x_arm arm;
        q4x_err err = {0};
        q4x_run *r;
        assert_int_equal(q4x_arm_parse(bf16 ? "cpu:as=hf-bf16" : "cpu:as=hf-f32,rope.freq=bf16", &arm, &err), 0);
        if (q4x_run_new(net, &arm, 64, 0, &r, &err)) fail_msg("%s", err.msg);
        int32_t prompt[32], n = (int32_t)json_array_size(ids), id = 0, top[2];
        float val[2];
        for (int32_t k = 0; k < n; k++) prompt[k] = (int32_t)json_integer_value(json_array_get(ids, (size_t)k));
        for (size_t k = 0; k < 24; k++) {
            if (q4x_run_forward(r, k ? &id : prompt, k ? 1 : n, 0, &err)) fail_msg("%s", err.msg);
            equal[bf16] += q4x_run_choose(r, top, val) == json_integer_value(json_array_get(want, k));
            id = (int32_t)json_integer_value(json_array_get(want, k)); /* forced: every step counts */
            double margin = json_number_value(json_array_get(json_object_get(c, "margin"), k));
            if (!bf16 && !(fabs((double)(val[0] - val[1]) - margin) <= worst))
                worst = fabs((double)(val[0] - val[1]) - margin);
        }
        q4x_run_free(r);
    }
    printf("  demo: f32 %d of 120 ids equal, margins within %.1e of the printed ones; bf16 %d of 120\n", equal[0],
           worst, equal[1]);
    assert_int_equal(equal[0], 120);
    assert_true(worst <= 2e-4);
    json_decref(list);
    q4x_net_close(net);
}

/* The GGUF and the HF form of a model: V heads lie in another order, all else is equal but f32 noise of exp(A_log). */
static void same_forward(const char *what, const char *hf_path, const char *gguf_path, const int32_t *ids, int n) {
    q4x_net *hf = h_net(hf_path), *gg = h_net(gguf_path);
    result a = go(hf, "cpu", 2, 0, ids, n, NULL, 1), b = go(gg, "cpu", 2, 0, ids, n, NULL, 1);
    const q4x_plan *p = q4x_net_plan(gg);
    double worst = 0;
    const char *where = "";
    int reached_g = 0, equal = 0;
    for (int i = 0; i < p->nnodes; i++) {
        if (!a.rec.out[i]) continue;
        const int64_t all = n * p->node[i].cols;
        float *y = b.rec.out[i], *x = a.rec.out[i];
        assert_int_equal(q4x_heads_to_hf(&p->node[i].heads, y, 4, n, p->node[i].cols, NULL), 0);
        if (!strcmp(p->node[i].name, "L00.gdn.g")) reached_g = 1;
        if (!reached_g && memcmp(x, y, (size_t)all * 4)) fail_msg("%s differs in bits", p->node[i].name);
        equal += !reached_g;
        if (p->node[i].is_ids) {
            if (memcmp(x, y, (size_t)all * 4)) fail_msg("%s: another selection", p->node[i].name);
            continue;
        }
        double d2 = 0, b2 = 0;
        for (int64_t k = 0; k < all; k++) {
            d2 += ((double)x[k] - (double)y[k]) * ((double)x[k] - (double)y[k]);
            b2 += (double)x[k] * (double)x[k];
        }
        double rel = b2 > 0 ? sqrt(d2 / b2) : d2;
        if (all >= 16 && !(rel <= worst)) {
            worst = rel;
            where = p->node[i].name;
        }
    }
    printf("  %s as GGUF and as HF: first %d nodes equal by bits, worst tap %.2e (%s)\n", what, equal, worst, where);
    assert_true(equal >= 9);
    assert_true(worst <= 5e-6);
    drop(&a);
    drop(&b);
    q4x_net_close(hf);
    q4x_net_close(gg);
}

static void gguf_equals_hf(void **s) {
    (void)s;
    static const int32_t ids[] = {22, 220, 166, 78, 219, 43, 162, 61, 23};
    same_forward("micro-a", "tests/golden/micro-a", "tests/models/micro-a-bf16.gguf", ids, 9);
}

static void dense_gguf_equals_hf(void **s) {
    (void)s;
    char *dir = h_tmp(), path[512];
    h_hf *h = h_hf_load("tests/golden/dense-a");
    snprintf(path, sizeof path, "%s/dense.gguf", dir);
    h_dense_write(h, path);
    make_ids(256);
    same_forward("dense-a", "tests/golden/dense-a", path, IDS, 70);
    h_hf_drop(h, "lm_head.weight");
    h_hf_set(h->config, "tie_word_embeddings", "true");
    h_hf_write(h, dir, 0);
    h_dense_write(h, path);
    same_forward("dense-a, tied,", dir, path, IDS, 70);
    h_hf_free(h);
    h_tmp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nulls),
        cmocka_unit_test(prefill_is_decode),
        cmocka_unit_test(levers_are_tested),
        cmocka_unit_test(levers_alive_and_local),
        cmocka_unit_test(plants_reach_what_is_kept),
        cmocka_unit_test(numbers_read_back),
        cmocka_unit_test(refusals),
        cmocka_unit_test(dead_run),
        cmocka_unit_test(llamacpp_ids),
        cmocka_unit_test(demo_ids),
        cmocka_unit_test(gguf_equals_hf),
        cmocka_unit_test(dense_gguf_equals_hf),
    };
    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
