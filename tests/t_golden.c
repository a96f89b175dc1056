/* t_golden.c: the forward against reference outputs (tests/golden, made with Hugging Face transformers).
 *
 * f32: accumulation-order error alone. bf16: end to end on the smallest model, and step by step (each node on the
 * golden's own inputs), the sharp test. Every check has a twin that must fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/h_forward.h"

typedef struct {
    double big, small, later; /* bounds: >= 16 elements at forward 0, smaller, later forwards */
    int bad;                  /* comparisons over their bound */
    int differ;               /* selections that differ as sets */
    double worst0, worst_later, worst_small;
    char worst0_node[64], worst_later_node[64], first_bad[160], first_sel[160];
} f32_check;

static void on_f32(void *ctx, const h_cmp *c) {
    f32_check *k = ctx;
    if (c->sets) {
        if (c->set_differ && !k->differ)
            snprintf(k->first_sel, sizeof k->first_sel, "f%d/%s: %lld of %lld rows, margin %.3g", c->forward, c->node,
                     (long long)c->set_differ, (long long)c->set_rows, c->margin);
        k->differ += c->set_differ > 0;
        return;
    }
    double bound = c->n < 16 ? k->small : c->forward ? k->later : k->big;
    double *worst = c->n < 16 ? &k->worst_small : c->forward ? &k->worst_later : &k->worst0;
    if (!(c->rel <= *worst)) {
        *worst = c->rel;
        if (c->n >= 16) snprintf(c->forward ? k->worst_later_node : k->worst0_node, 64, "f%d/%s", c->forward, c->node);
    }
    if (!(c->rel <= bound)) {
        if (!k->bad)
            snprintf(k->first_bad, sizeof k->first_bad, "f%d/%s rel %.3g, bound %.0e", c->forward, c->node, c->rel,
                     bound);
        k->bad++;
    }
}

/* A model in a folder, one of its golden files, how we run it, the bound at forward 0, and whether it must hold. */
typedef struct {
    const char *dir, *golden, *arm;
    double big;
    int good;
} f32_row;

static const f32_row F32[] = {
    {"tests/golden/micro-a", "f32", "cpu:moe.combine=experts,gdn=chunk64", 1e-5, 1},
    {"tests/golden/micro-a", "f32seq", "cpu:moe.combine=experts", 1e-5, 1},
    {"tests/golden/micro-a", "f32", "cpu:moe.combine=experts", 1e-5, 1},
    {"tests/golden/micro-a", "f32seq", "cpu:moe.combine=experts,gdn=chunk64", 1e-5, 1},
    {"tests/golden/micro-b", "f32", "cpu:moe.combine=experts,gdn=chunk64", 3e-5, 1},
    {"tests/golden/micro-b", "f32seq", "cpu:moe.combine=experts", 3e-5, 1},
    {"tests/golden/micro-b", "f32", "cpu:moe.combine=experts", 3e-5, 1},
    {"tests/golden/micro-b", "f32seq", "cpu:moe.combine=experts,gdn=chunk64", 3e-5, 1},
    /* ours holds part of forward 0, and the last forward */
    {"tests/golden/dense-a", "f32", "cpu:gdn=chunk64", 2e-5, 1},
    {"tests/golden/dense-a", "f32", "cpu", 2e-5, 1},
    {"../shared/golden/micro-b", "f32", "cpu:moe.combine=experts,gdn=chunk64", 3e-5, 1},
    {"../shared/golden/dense-a", "f32", "cpu:as=hf-f32", 2e-5, 1},
    {"../shared/golden/dense-a", "f32seq", "cpu", 2e-5, 1},
    {"../shared/golden/dense-a", "f32", "cpu", 2e-5, 1},
    {"../shared/golden/dense-a", "f32seq", "cpu:gdn=chunk64", 2e-5, 1},
    /* the twins: arithmetic of another kind must be noticed */
    {"tests/golden/micro-a", "f32", "cpu:act=bf16", 1e-5, 0},
    {"tests/golden/micro-a", "f32", "cpu:rope.freq=bf16", 1e-5, 0},
    {"tests/golden/micro-a", "f32", "cpu:plant=swap@L01.gdn.k#0", 1e-5, 0},
    {"tests/golden/micro-a", "f32", "cpu:plant=nan@L02.moe.act#3", 1e-5, 0},
    {"tests/golden/dense-a", "f32", "cpu:act=bf16", 2e-5, 0},
    {"tests/golden/dense-a", "f32", "cpu:rope.freq=bf16", 2e-5, 0},
    {"tests/golden/dense-a", "f32", "cpu:plant=swap@L01.gdn.k#0", 2e-5, 0},
    {"tests/golden/dense-a", "f32", "cpu:plant=nan@L02.mlp.act#3", 2e-5, 0},
};

static void f32_case(const f32_row *row) {
    char path[200];
    snprintf(path, sizeof path, "%s/golden-%s.safetensors", row->dir, row->golden);
    h_golden *g = h_golden_open(path);
    if (!g) fail_msg("%s is missing", path);
    q4x_net *net = h_net(row->dir);
    f32_check k = {.big = row->big, .small = 1e-3, .later = 1e-4};
    h_walk w = {.arm = row->arm, .fn = on_f32, .ctx = &k};
    h_walk_golden(net, g, &w);
    printf("  %-24s %-7s %-44s %5lld taps  f0 %.2e (%s)  later %.2e (%s)  small %.1e  ids %d/%d  sets differ %d\n",
           row->dir, row->golden, row->arm, (long long)w.compared, k.worst0, k.worst0_node, k.worst_later,
           k.worst_later_node, k.worst_small, w.ids_equal, w.ids, k.differ);
    if (row->good) {
        if (k.bad) fail_msg("%d taps over their bound, first %s", k.bad, k.first_bad);
        if (k.differ) fail_msg("selections differ: %s", k.first_sel);
        assert_int_equal(w.ids_equal, w.ids);
        assert_true(w.compared > 40);
    } else {
        assert_true(k.bad > 0);
    }
    q4x_net_close(net);
    h_golden_close(g);
}

/* A folder that a clone alone does not have. */
static int is_absent(const char *dir) {
    char path[200];
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (strncmp(dir, "../shared/", 10) || !access(path, R_OK)) return 0;
    printf("  %s is not there: not compared\n", dir);
    return 1;
}

/* All rows of the folder that *state names. */
static void f32(void **state) {
    const char *dir = *state;
    int n = 0;
    if (is_absent(dir)) skip();
    for (size_t i = 0; i < sizeof F32 / sizeof *F32; i++) {
        if (strcmp(F32[i].dir, dir)) continue;
        f32_case(&F32[i]);
        n++;
    }
    assert_true(n > 0);
}

typedef struct {
    double share;      /* bitwise share every tap must reach */
    const char *only;  /* prefix of the nodes that count, "" all */
    const char *until; /* first node of the layer that no longer counts, or NULL */
    int ended;
    int64_t n, equal;
    int low; /* taps under the share */
    double low_share, worst_ulp;
    char low_node[64], ulp_node[64], first_sel[160];
    int64_t set_rows, set_differ, rank_differ;
} bf16_check;

static void on_bf16(void *ctx, const h_cmp *c) {
    bf16_check *k = ctx;
    if (c->sets) {
        if (c->set_differ && !k->set_differ)
            snprintf(k->first_sel, sizeof k->first_sel, "f%d/%s %lld of %lld rows, margin %.3g", c->forward, c->node,
                     (long long)c->set_differ, (long long)c->set_rows, c->margin);
        k->set_rows += c->set_rows;
        k->set_differ += c->set_differ;
        k->rank_differ += c->rank_differ;
        return;
    }
    if (strncmp(c->node, k->only, strlen(k->only)) || k->ended) return;
    if (k->until && !strcmp(c->node, k->until)) {
        k->ended = 1;
        return;
    }
    double share = (double)c->equal / (double)c->n;
    k->n += c->n;
    k->equal += c->equal;
    if (!(share >= k->low_share)) {
        k->low_share = share;
        snprintf(k->low_node, sizeof k->low_node, "f%d/%s", c->forward, c->node);
    }
    if (!(share >= k->share)) k->low++;
    if (!(c->worst_ulp <= k->worst_ulp)) {
        k->worst_ulp = c->worst_ulp;
        snprintf(k->ulp_node, sizeof k->ulp_node, "f%d/%s", c->forward, c->node);
    }
}

#define HF_BF16 ",moe.combine=experts,rope.freq=bf16,gdn=chunk64"

static bf16_check bf16_walk(const char *dir, const char *golden, h_walk *w, bf16_check k) {
    char path[200];
    snprintf(path, sizeof path, "%s/golden-%s.safetensors", dir, golden);
    h_golden *g = h_golden_open(path);
    if (!g) fail_msg("%s is missing", path);
    q4x_net *net = h_net(dir);
    k.low_share = 1;
    w->fn = on_bf16;
    w->ctx = &k;
    h_walk_golden(net, g, w);
    printf("  %-24s %-8s %-62s%s %5lld taps  bitwise %.4f %%  lowest %.3f %% (%s)  worst %.1f ulp (%s)\n", dir, golden,
           w->arm, w->step ? " step" : "", (long long)w->compared, 100 * (double)k.equal / (double)k.n,
           100 * k.low_share, k.low_node, k.worst_ulp, k.ulp_node);
    printf("  %24s selections: %lld rows, %lld sets differ, %lld orders differ%s%s; ids %d/%d\n", "",
           (long long)k.set_rows, (long long)k.set_differ, (long long)k.rank_differ, k.set_differ ? "; first " : "",
           k.first_sel, w->ids_equal, w->ids);
    q4x_net_close(net);
    h_golden_close(g);
    return k;
}

static void bf16_end_to_end(void **s) {
    (void)s;
    h_walk w = {.arm = "cpu:act=bf16" HF_BF16, .max_forwards = 1};
    bf16_check k = bf16_walk("tests/golden/micro-a", "bf16", &w, (bf16_check){.share = 0.999, .only = ""});
    assert_int_equal(k.low, 0);
    w.arm = "cpu:act=f32" HF_BF16;
    k = bf16_walk("tests/golden/micro-a", "bf16", &w, (bf16_check){.share = 0.999, .only = ""});
    assert_true(k.low > 0);
}

static void bf16_layer0(void **s) {
    (void)s;
    bf16_check want = {.share = 0.985, .only = "L00.", .until = "L00.moe.logits"};
    h_walk w = {.arm = "cpu:act=bf16" HF_BF16, .max_forwards = 1};
    bf16_check k = bf16_walk("tests/golden/micro-b", "bf16", &w, want);
    assert_int_equal(k.low, 0);
    w.arm = "cpu:act=f32" HF_BF16;
    k = bf16_walk("tests/golden/micro-b", "bf16", &w, want);
    assert_true(k.low > 0);
}

/* Step by step: at least 99.9 % of the elements bitwise, the rest within 2 ulp of the row's size; sets equal with the
 * reference's tie rule, ids with that of its greedy choice, which is an argmax. Twin: f32 activations. */
typedef struct {
    const char *dir, *golden, *levers;
    int forwards; /* 0: all */
} step_row;

static const step_row STEP[] = {
    {"tests/golden/micro-a", "bf16", "moe.combine=experts,rope.freq=bf16,gdn=chunk64", 0},
    {"tests/golden/micro-a", "bf16seq", "moe.combine=experts,rope.freq=bf16,gdn=seq", 0},
    {"tests/golden/micro-b", "bf16", "moe.combine=experts,rope.freq=bf16,gdn=chunk64", 1},
    {"tests/golden/dense-a", "bf16", "rope.freq=bf16,gdn=chunk64", 0},
    {"../shared/golden/micro-b", "bf16", "moe.combine=experts,rope.freq=bf16,gdn=chunk64", 0},
    {"../shared/golden/dense-a", "bf16", "as=hf-bf16", 0},
    {"../shared/golden/dense-a", "bf16seq", "as=hf-bf16-seq", 0},
};

static void step_case(const step_row *row) {
    char arm[160];
    h_walk w = {.arm = arm, .step = 1, .max_forwards = row->forwards};
    snprintf(arm, sizeof arm, "cpu:act=bf16,topk.tie=torch,%s,topk.tie=lowest@logits", row->levers);
    bf16_check k = bf16_walk(row->dir, row->golden, &w, (bf16_check){.share = 0, .only = ""});
    assert_true((double)k.equal >= 0.999 * (double)k.n);
    assert_true(k.worst_ulp <= 2);
    assert_int_equal(k.set_differ, 0);
    assert_int_equal(w.ids_equal, w.ids);
    snprintf(arm, sizeof arm, "cpu:%s,act=f32", row->levers);
    k = bf16_walk(row->dir, row->golden, &w, (bf16_check){.share = 0, .only = ""});
    assert_false((double)k.equal >= 0.999 * (double)k.n);
}

/* All rows of the folder that *state names. */
static void bf16_step(void **state) {
    const char *dir = *state;
    int n = 0;
    if (is_absent(dir)) skip();
    for (size_t i = 0; i < sizeof STEP / sizeof *STEP; i++) {
        if (strcmp(STEP[i].dir, dir)) continue;
        step_case(&STEP[i]);
        n++;
    }
    assert_true(n > 0);
}

/* ---- names of nodes ---- */

static void expect_nodes(const q4x_plan *p, int layer, const char *const *names) {
    for (; *names; names++) {
        char name[64];
        snprintf(name, sizeof name, layer < 0 ? "%.0d%s" : "L%02d.%s", layer < 0 ? 0 : layer, *names);
        if (q4x_plan_find(p, name) < 0) fail_msg("no node %s", name);
    }
}

static int count_public(const q4x_plan *p) {
    int n = 0;
    for (int i = 0; i < p->nnodes; i++) n += p->node[i].is_public;
    return n;
}

static const char *const GDN[] = {"gdn.qkv", "gdn.z", "gdn.a",    "gdn.b",    "gdn.conv", "gdn.q", "gdn.k",
                                  "gdn.v",   "gdn.g", "gdn.beta", "gdn.core", "gdn.norm", NULL};
static const char *const ATTN[] = {"attn.qg",     "attn.k",     "attn.v",    "attn.qn",  "attn.kn",    "attn.rope.q",
                                   "attn.rope.k", "attn.score", "attn.prob", "attn.ctx", "attn.gated", NULL};

/* Every node name of the design exists in the plan of micro-b (which has every kind of layer). */
static void vocabulary(void **s) {
    (void)s;
    static const char *const GLOBAL[] = {"emb", "wide", "out", "logits", NULL};
    static const char *const EACH[] = {"in",        "ahc.mix",  "ahc.inj",  "blk",        "s.attn",     "mhc.mix",
                                       "mhc.inj",   "moe",      "s.mlp",    "moe.logits", "moe.ids",    "moe.weights",
                                       "moe.gate",  "moe.up",   "moe.act",  "moe.down",   "moe.routed", "moe.shared",
                                       "moe.sgate", "ahc.norm", "ahc.down", "ahc.up",     "ahc.gate",   "mhc.norm",
                                       "mhc.down",  "mhc.up",   "mhc.gate", NULL};
    static const char *const IDX[] = {"attn.idx.q", "attn.idx.k", "attn.idx.score", "attn.idx.sel", NULL};
    static const char *const PLE[] = {"ple",     "s.ple",    "ple.ids",  "ple.emb", "ple.key",
                                      "ple.val", "ple.gate", "ple.conv", NULL};
    q4x_net *net = h_net("tests/golden/micro-b");
    const q4x_plan *p = q4x_net_plan(net);
    expect_nodes(p, -1, GLOBAL);
    for (int l = 0; l < p->d.L; l++) {
        expect_nodes(p, l, EACH);
        expect_nodes(p, l, l % 4 == 3 ? ATTN : GDN);
        if (l % 4 == 3) expect_nodes(p, l, IDX);
    }
    expect_nodes(p, 1, PLE);
    assert_int_equal(count_public(p), 2 + 9 * p->d.L + 2 + 1 + 1); /* the field's vocabulary, and the logits */
    assert_int_equal(q4x_plan_find(p, "L00.attn.k"), -1);
    q4x_net_close(net);
}

/* The dense model: five public nodes a layer, and nothing that it does not have. */
static void dense_vocabulary(void **s) {
    (void)s;
    static const char *const GLOBAL[] = {"emb", "out", "logits", NULL};
    static const char *const EACH[] = {"norm.attn", "blk",      "norm.mlp", "mlp",     "out",
                                       "s.attn",    "mlp.gate", "mlp.up",   "mlp.act", NULL};
    q4x_net *net = h_net("tests/golden/dense-a");
    const q4x_plan *p = q4x_net_plan(net);
    int nodes = 3, states = 0;
    expect_nodes(p, -1, GLOBAL);
    for (int l = 0; l < p->d.L; l++) {
        expect_nodes(p, l, EACH);
        expect_nodes(p, l, l % 4 == 3 ? ATTN : GDN);
        nodes += 9 + (l % 4 == 3 ? 11 : 12);
        states += 2;
    }
    assert_int_equal(p->nnodes, nodes);
    assert_int_equal(p->nstates, states);
    assert_int_equal(count_public(p), 1 + 5 * p->d.L + 2);
    assert_int_equal(q4x_plan_find(p, "wide"), -1);
    assert_int_equal(q4x_plan_find(p, "L03.attn.idx.sel"), -1);
    q4x_net_close(net);
}

#define ROWS(f, dir)                                                                                                   \
    { #f " " dir, f, NULL, NULL, (void *)(uintptr_t)dir }
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vocabulary),
        cmocka_unit_test(dense_vocabulary),
        ROWS(f32, "tests/golden/micro-a"),
        ROWS(f32, "tests/golden/micro-b"),
        ROWS(f32, "tests/golden/dense-a"),
        ROWS(f32, "../shared/golden/micro-b"),
        ROWS(f32, "../shared/golden/dense-a"),
        cmocka_unit_test(bf16_end_to_end),
        cmocka_unit_test(bf16_layer0),
        ROWS(bf16_step, "tests/golden/micro-a"),
        ROWS(bf16_step, "tests/golden/micro-b"),
        ROWS(bf16_step, "tests/golden/dense-a"),
        ROWS(bf16_step, "../shared/golden/micro-b"),
        ROWS(bf16_step, "../shared/golden/dense-a"),
    };
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
