/* Whole models on the device against the CPU by bits: every node's output, every state and every logit row, prefill in
 * several tiles and decode, under each lever; then the same without a hook (the emulator: shorter prompts, fewer levers
 * of the slower models). Models are given as arguments (default: those
 * of tests/golden and tests/models); one that is named and not there is a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "lib/hash.h"
#include "lib/run.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_forward.h"

enum { PROMPT = 600, DECODE = 3, TILE = 64 };

static int emulated;
static char **named;
static int nnamed, whole;

/* What a run showed, in the order in which it did. */
typedef struct {
    q4x_hash *h;
    int64_t n, cap, at; /* at: compared so far, in the second run */
    int64_t differ;
    const q4x_plan *plan;
    int second;
} trace;

static int see(trace *t, const char *name, int forward, const void *data, size_t bytes, int is_ids) {
    q4x_hash h = q4x_bits_of(is_ids ? Q4X_BITS_RAW : Q4X_BITS_F32, data, bytes);
    if (!t->second) {
        if (t->n == t->cap) {
            t->cap = t->cap ? 2 * t->cap : 1024;
            t->h = realloc(t->h, (size_t)t->cap * sizeof *t->h);
            assert_non_null(t->h);
        }
        t->h[t->n++] = h;
        return 0;
    }
    if (t->at >= t->n || !q4x_hash_eq(&h, &t->h[t->at])) {
        if (!t->differ++) print_message("first difference: %s, forward %d\n", name, forward);
    }
    t->at++;
    return 0;
}

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    trace *t = ctx;
    (void)err;
    const q4x_node *n = &t->plan->node[ev->node];
    return see(t, n->name, ev->call->pos0, ev->data, (size_t)ev->nrows * (size_t)ev->cols * 4, n->is_ids);
}

static void after(trace *t, q4x_run *r) {
    int32_t rows;
    const float *logits = q4x_run_logits(r, &rows);
    see(t, "logits", q4x_run_nforward(r) - 1, logits, (size_t)rows * (size_t)t->plan->d.V * sizeof(float), 0);
    for (int32_t i = 0; i < t->plan->nstates; i++) {
        const k_state *st = h_run_state(r, i);
        see(t, t->plan->state[i].name, q4x_run_nforward(r) - 1, st->f, (size_t)(st->rows * st->cols) * 4,
            t->plan->state[i].is_ids);
    }
}

static void go(const q4x_net *net, const char *spec, int32_t prompt, int hooked, trace *t) {
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r = NULL;
    int32_t ids[PROMPT], top_id[2];
    float top[2];
    t->plan = q4x_net_plan(net);
    for (int i = 0; i < prompt; i++) ids[i] = (7 * i + 3 + i * i) % t->plan->d.V;
    int rc = q4x_arm_parse(spec, &arm, &err);
    if (!rc) rc = q4x_run_new(net, &arm, prompt + DECODE, prompt > 512 ? 512 : TILE, &r, &err);
    if (rc) fail_msg("%s: %s", spec, err.msg);
    if (hooked) q4x_run_on_node(r, on_node, t);
    for (int f = 0; f <= DECODE; f++) {
        int32_t one = f ? q4x_run_choose(r, top_id, top) : 0;
        rc = f ? q4x_run_forward(r, &one, 1, 0, &err) : q4x_run_forward(r, ids, prompt, 1, &err);
        if (rc) fail_msg("%s: %s", spec, err.msg);
        after(t, r);
    }
    q4x_run_free(r);
}

/* Both devices under one set of levers: with a hook on every node, and without. */
static int64_t pair(const q4x_net *net, const char *model, const char *levers, int32_t prompt) {
    char spec[2][200];
    int64_t differ = 0, seen = 0;
    for (int hooked = 1; hooked >= 0; hooked--) {
        trace t = {.second = 0};
        for (int d = 0; d < 2; d++) {
            snprintf(spec[d], sizeof spec[d], "%s%s", d ? "cuda" : "cpu", levers);
            t.second = d;
            go(net, spec[d], prompt, hooked, &t);
        }
        differ += t.differ + (t.at != t.n);
        seen += t.n;
        free(t.h);
    }
    if (differ || !*levers)
        print_message("%s %s, %d ids: %lld of %lld differ\n", model, *levers ? levers : "(defaults)", prompt,
                      (long long)differ, (long long)seen);
    assert_true(seen > 100);
    return differ;
}

/* 1: some node of the plan reads these levers. */
static int read_here(const q4x_net *net, const char *levers) {
    q4x_arm arm;
    q4x_run *r = NULL;
    q4x_err err = {0};
    char spec[200];
    snprintf(spec, sizeof spec, "cpu%s", levers);
    if (q4x_arm_parse(spec, &arm, &err)) fail_msg("%s: %s", spec, err.msg);
    int rc = q4x_run_new(net, &arm, 4, 0, &r, &err);
    if (rc && !strstr(err.msg, "in scope at no node")) fail_msg("%s: %s", spec, err.msg);
    q4x_run_free(r);
    return !rc;
}

static const char *const sets[] = {
    "",
    ":act=bf16",
    ":as=llamacpp-cpu",
    ":gdn=chunk64",
    ":act=bf16,gdn=chunk64",
    ":moe.logits=bf16",
    ":act=bf16,moe.logits=f32",
    ":moe.softmax=bf16",
    ":moe.renorm=off",
    ":moe.act=gelu",
    ":act=bf16,moe.act=gelu",
    ":moe.sgate=off",
    ":moe.combine=experts",
    ":act=bf16,moe.combine=experts",
    ":rope.freq=bf16",
    ":topk.tie=highest",
    ":topk.tie=torch",
    ":topk.tie=stl",
    ":as=hf-bf16",
    ":gdn=chunk64-bf16",
    ":act=bf16,gdn=chunk64,gdn.inv=bf16,gdn.h=bf16",
    ":gdn.gate=silu",
    ":act=bf16,resid=f32,rope.table=f32",
    ":resid=bf16,rope.table=bf16",
    ":eps=1e-4,eps.floor=1e-3",
    ":attn.softmax=online",
    ":attn.softmax=online,kv=f16",
    ":act=bf16,attn.softmax=online,attn.round=f32",
    ":qsa.extra=stl",
    ":kv=f16,attn.softmax=online,qsa.extra=stl",
    ":dot=serial",
    ":act=bf16,dot=blocked",
    ":dot=q8k",
    ":act=bf16,dot=q8k",
    ":dot=q8_1",
    ":act=bf16,dot=q8_1",
    ":dot=neon",
    ":dot=q8k,repack=q4_kx8",
    ":act=bf16,dot=neon,repack=q8_0x4",
    ":as=llamacpp-cuda",
    ":plant=sign@L01.blk#0",
    ":plant=nan@L00.in#1",
    ":plant=stale@emb#1",
    ":plant=row@emb#0,plant=row@L01.moe.gate#1",
    ":plant=conv-off-by-one@L00.gdn.conv",
    ":plant=post-conv@L00.gdn.conv#0,plant=kept-early@L03.attn.score#0,plant=kept-twice@L01.gdn.core#1",
    ":plant=window-1@L03.attn.prob#1,plant=no-rope-scale@L03.attn.rope.q#0",
};
enum { NSETS = sizeof sets / sizeof *sets };
static int ran[NSETS]; /* on so many models */

static int64_t model(const char *path, int nsets) {
    q4x_net *net = h_net(path);
    int64_t differ = 0;
    int n = 0;
    for (int i = 0; i < nsets; i++) {
        if (!read_here(net, sets[i])) continue;
        ran[i]++;
        differ += pair(net, path, sets[i], !emulated ? 150 : i || nsets < NSETS ? 9 : 66);
        if (!emulated && i < 5) differ += pair(net, path, sets[i], PROMPT); /* the longest tile, and one more */
        n++;
    }
    print_message("%s: %d sets of levers, %lld differ\n", path, n, (long long)differ);
    assert_true(n >= 1);
    q4x_net_close(net);
    return differ;
}

/* The emulator takes minutes for all: all levers of two models in the long form, three sets of them else. */
static int how_many(int model) {
    if (!emulated) return NSETS;
    if (!whole) return model < 2 ? 3 : 0;
    return model < 2 ? NSETS : model < 4 ? 3 : 1;
}

static void models(void **s) {
    static const char *const ours[] = {"tests/golden/micro-a", "tests/golden/dense-a", "tests/golden/micro-b",
                                       "tests/models/micro-a-bf16.gguf", "tests/models/demo.gguf"};
    int64_t differ = 0;
    (void)s;
    for (int i = 0; i < (nnamed ? nnamed : (int)(sizeof ours / sizeof *ours)); i++) {
        hp_left(NSETS - how_many(i), "models under a set of levers");
        if (how_many(i)) differ += model(nnamed ? named[i] : ours[i], how_many(i));
    }
    for (int k = 0; k < how_many(0) && !nnamed; k++)
        if (!ran[k]) fail_msg("cuda%s: no model reads it", sets[k]);
    assert_int_equal(differ, 0);
}

/* A plant on one side alone is seen, and its node is the first that differs. */
static void twin(void **s) {
    (void)s;
    q4x_net *net = h_net(nnamed ? named[0] : "tests/golden/micro-a");
    trace t = {.second = 0};
    go(net, "cpu", 9, 1, &t);
    t.second = 1;
    go(net, "cuda:plant=ulp@L01.blk#1", 9, 1, &t);
    assert_true(t.differ > 0);
    assert_int_equal(t.at, t.n);
    free(t.h);
    q4x_net_close(net);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(models), cmocka_unit_test(twin)};
    whole = argc == 2 && !strcmp(argv[1], "long");
    named = argv + 1;
    nnamed = whole ? 0 : argc - 1;
    hp_device(&emulated);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hp_close();
    return failed;
}
