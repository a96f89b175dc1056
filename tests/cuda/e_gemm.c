/* Lever gemm in whole runs, on the emulated device and its cuBLAS: it moves bits where products have more than 8
 * columns and nowhere before, decode steps stay ours, nothing is left behind; and it is refused where it cannot be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "lib/hash.h"
#include "lib/run.h"
#include "tests/emu/emu.h"
#include "tests/h_forward.h"

#define MODEL "tests/models/micro-a-bf16.gguf"
enum { PROMPT = 12, MOST = 4096 };

static int open_run(const q4x_net *net, const char *spec, q4x_run **ret, q4x_err *err) {
    q4x_arm arm;
    int rc = q4x_arm_parse(spec, &arm, err);
    return rc ? rc : q4x_run_new(net, &arm, 32, 0, ret, err);
}

static void refused(void **s) {
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_net *net = h_net(MODEL);
    (void)s;
    assert_int_equal(open_run(net, "cpu:gemm=cublas", &r, &err), Q4X_E_ARG);
    assert_non_null(strstr(err.msg, "lever gemm"));
    assert_non_null(strstr(err.msg, "expected cuda"));
    const int64_t live = emu.live;
    emu.no_cublas = 1;
    assert_int_equal(open_run(net, "cuda:gemm=cublas", &r, &err), Q4X_E_DEVICE);
    assert_non_null(strstr(err.msg, "libcublas.so.13"));
    assert_null(strchr(err.msg, '\n'));
    assert_int_equal(emu.live, live);
    /* the twins: ours needs no library, and the library is enough */
    assert_int_equal(open_run(net, "cuda:gemm=own", &r, &err), 0);
    q4x_run_free(r);
    emu.no_cublas = 0;
    assert_int_equal(open_run(net, "cuda:gemm=cublas", &r, &err), 0);
    q4x_run_free(r);
    q4x_net_close(net);
    assert_int_equal(emu.live, 0);
}

typedef struct {
    q4x_hash h[MOST];
    int32_t node[MOST];
    int n;
    int64_t prompt, decode; /* products of cuBLAS */
} trace;

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    trace *t = ctx;
    (void)err;
    assert_true(t->n < MOST);
    t->node[t->n] = ev->node;
    t->h[t->n++] = q4x_bits_of(Q4X_BITS_F32, ev->data, (size_t)ev->nrows * (size_t)ev->cols * 4);
    return 0;
}

static void go(const q4x_net *net, const char *spec, trace *t) {
    q4x_err err = {0};
    q4x_run *r = NULL;
    int32_t ids[PROMPT], one = 7;
    for (int i = 0; i < PROMPT; i++) ids[i] = 3 + 5 * i;
    t->n = 0;
    if (open_run(net, spec, &r, &err)) fail_msg("%s: %s", spec, err.msg);
    q4x_run_on_node(r, on_node, t);
    t->prompt = emu.gemms;
    if (q4x_run_forward(r, ids, PROMPT, 1, &err)) fail_msg("%s: %s", spec, err.msg);
    t->prompt = emu.gemms - t->prompt;
    t->decode = emu.gemms;
    if (q4x_run_forward(r, &one, 1, 0, &err)) fail_msg("%s: %s", spec, err.msg);
    t->decode = emu.gemms - t->decode;
    q4x_run_free(r);
}

/* Where the second first differs; NULL: nowhere. */
static const q4x_node *first(const q4x_net *net, const trace *a, const trace *b) {
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        if (!q4x_hash_eq(&a->h[i], &b->h[i])) return &q4x_net_plan(net)->node[a->node[i]];
    return NULL;
}

static void alive_and_local(void **s) {
    static trace own, lib, again;
    static const char *const acts[] = {"", ",act=bf16"};
    q4x_net *net = h_net(MODEL);
    (void)s;
    for (int k = 0; k < 2; k++) {
        char spec[80];
        snprintf(spec, sizeof spec, "cuda:gemm=own%s", acts[k]);
        go(net, spec, &own);
        snprintf(spec, sizeof spec, "cuda:gemm=cublas%s", acts[k]);
        go(net, spec, &lib);
        go(net, spec, &again);
        const q4x_node *n = first(net, &own, &lib);
        assert_non_null(n);
        assert_int_equal(n->op, K_OP_matmul);
        assert_null(first(net, &lib, &again));
        assert_int_equal(own.prompt, 0);
        assert_true(lib.prompt > 20);
        assert_int_equal(lib.decode, 0);
        snprintf(spec, sizeof spec, "cuda:gemm=cublas@L02.*%s", acts[k]);
        go(net, spec, &again);
        assert_true(again.prompt > 0 && again.prompt < lib.prompt);
        n = first(net, &own, &again);
        if (n) assert_memory_equal(n->name, "L02.", 4); /* roundings to bf16 may hide it all */
    }
    q4x_net_close(net);
    assert_int_equal(emu.live, 0);
}

/* As many nodes say that they go through the library as products go there (one a node: the weights are stored as it
 * takes them), the router and the logits too, which a dump knows under words of their own. Twin: a node told to read a
 * lever that it does not claim gets the default. */
static void claimed(void **s) {
    static trace t;
    q4x_net *net = h_net(MODEL);
    const q4x_plan *p = q4x_net_plan(net);
    q4x_arm arm;
    int64_t claims = 0, silent = 0;
    (void)s;
    assert_int_equal(q4x_arm_parse("cuda:gemm=cublas,act=bf16", &arm, NULL), 0);
    for (int32_t i = 0; i < p->nnodes; i++) {
        k_levers lv;
        char words[160];
        q4x_arm_resolve(&arm, p->node[i].name, 0, &lv);
        q4x_lever_words(&lv, q4x_plan_lever_word(p, i), words, sizeof words);
        const int says = strstr(words, "gemm=cublas") != NULL;
        if (p->node[i].op != K_OP_matmul) {
            q4x_plan_keep_levers(p, i, &lv);
            assert_int_equal(lv.gemm != 0, says);
            silent += !says;
            continue;
        }
        assert_true(says);
        claims++;
    }
    go(net, "cuda:gemm=cublas,act=bf16", &t);
    assert_int_equal(t.prompt, claims);
    assert_true(silent > 0);
    q4x_net_close(net);
}

/* Products of the library that a call of n ids makes, `tile` rows a pass. */
static int64_t products(const q4x_net *net, int32_t n, int32_t tile) {
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_arm arm;
    int32_t ids[80];
    for (int32_t i = 0; i < n; i++) ids[i] = 3 + i;
    const int64_t before = emu.gemms;
    if (q4x_arm_parse("cuda:gemm=cublas", &arm, &err) || q4x_run_new(net, &arm, 80, tile, &r, &err) ||
        q4x_run_forward(r, ids, n, 1, &err))
        fail_msg("%s", err.msg);
    q4x_run_free(r);
    return emu.gemms - before;
}

/* The columns that count are those of the call: a last tile of less than nine goes through the library as the others
 * do. Twin: a call of eight does not. */
static void by_call(void **s) {
    q4x_net *net = h_net(MODEL);
    (void)s;
    const int64_t one = products(net, 70, 128);
    assert_true(one > 20);
    assert_int_equal(products(net, 70, 64), 2 * one);
    assert_int_equal(products(net, 8, 64), 0);
    q4x_net_close(net);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused), cmocka_unit_test(alive_and_local),
                                       cmocka_unit_test(claimed), cmocka_unit_test(by_call)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
