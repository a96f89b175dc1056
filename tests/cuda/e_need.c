/* e_need.c: the memory that a run on a device, and its taps, are said to need is what they take of the emulated one,
 * byte for byte and part by part, pinned memory of the host too, with the lever and the option that take more; and
 * every part that cannot be had is named with its number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/amount.h"
#include "lib/need.h"
#include "lib/run_int.h"
#include "tests/emu/emu.h"
#include "tests/h_forward.h"

typedef unsigned long long ull;

static void same(const char *model, int64_t ctx, const char *part, uint64_t said, uint64_t taken) {
    if (said != taken)
        fail_msg("%s, %lld positions: %s: said %llu, taken %llu", model, (long long)ctx, part, (ull)said, (ull)taken);
}

enum { MARK = 64 /* bytes of pinned memory of an open device */ };

/* What lever and option take more: rows 1: a logit row for each id. */
static void more(const char *model, const q4x_net *net, int64_t ctx, const char *spec, int rows, const q4x_need *n) {
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_arm arm;
    int32_t ids[64];
    const int32_t count = ctx < 64 ? (int32_t)ctx : 64;
    for (int32_t i = 0; i < count; i++) ids[i] = i;
    if (q4x_arm_parse(spec, &arm, &err) || q4x_run_new_all(net, &arm, ctx, 0, rows, 0, &r, &err))
        fail_msg("%s", err.msg);
    const uint64_t all = n->own + (rows ? n->logits_all - n->logits : 0) + (strchr(spec, '=') ? n->library : 0);
    same(model, ctx, spec, all, emu.used);
    if (rows && ctx <= 5) { /* and no forward takes more */
        if (q4x_run_forward(r, ids, count, 1, &err)) fail_msg("%s", err.msg);
        same(model, ctx, "all rows", all, emu.used);
        same(model, ctx, "pinned, all rows", n->pinned_all, emu.pinned - 2 * MARK);
    }
    q4x_run_free(r);
}

/* Returns what need says of all. */
static uint64_t one(const char *model, const q4x_net *net, int64_t ctx) {
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_arm arm;
    q4x_need n;
    uint64_t arena, states, scratch;
    if (q4x_need_of(net, 1, ctx, 0, &n, &err) || q4x_arm_parse("cuda", &arm, &err)) fail_msg("%s", err.msg);
    const int64_t before = emu.ops;
    if (q4x_need_of(net, 1, ctx, 0, &n, &err)) fail_msg("%s", err.msg);
    assert_true(emu.ops == before); /* no device is asked */
    if (q4x_run_new(net, &arm, ctx, 0, &r, &err)) fail_msg("%s", err.msg);
    same(model, ctx, "all", n.own, emu.used);
    same(model, ctx, "pinned", n.pinned, emu.pinned - 2 * MARK);
    assert_true(r->scratch_cap == 3 * q4x_net_dims(net)->V); /* of the host: to choose a token, and no more */
    q4x_run_memory(r, &arena, &states, &scratch);
    same(model, ctx, "arena", n.arena, arena);
    same(model, ctx, "states", n.states, states);
    same(model, ctx, "scratch", n.scratch, scratch);
    q4x_run_free(r);
    same(model, ctx, "weights", n.weights, emu.used); /* they stay with the net */
    same(model, ctx, "logits", n.logits, n.own - n.weights - arena - states - scratch);
    more(model, net, ctx, "cuda", 1, &n);
    more(model, net, ctx, "cuda:gemm=cublas", 0, &n);
    return n.own;
}

static const char *const models[] = {"tests/models/demo.gguf", "tests/models/micro-a-bf16.gguf", "tests/golden/micro-a",
                                     "tests/golden/micro-b", "tests/golden/dense-a"};
static const int64_t contexts[] = {1, 5, 64, 1000, 4096};

static void equals_a_run(void **state) {
    int compared = 0;
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        q4x_net *net = h_net(models[i]);
        uint64_t last = 0;
        for (size_t k = 0; k < sizeof contexts / sizeof *contexts; k++) {
            if (contexts[k] > q4x_net_plan(net)->ctx_max) break;
            uint64_t now = one(models[i], net, contexts[k]);
            assert_true(now > last); /* the twin: another context, another number */
            last = now;
            compared++;
        }
        q4x_net_close(net);
        assert_true(emu.used == 0);
    }
    print_message("    %d runs\n", compared);
    assert_true(compared > 0);
}

/* Taps of a run take what is said they do when their set opens, and nothing more in a forward. Returns what is said. */
static q4x_tap_memory tapped(const char *model, const q4x_net *net, q4x_run *r, const q4x_need *n,
                             const q4x_tap_opts *o, int forward) {
    q4x_err err = {0};
    q4x_tapset *t = NULL;
    q4x_tap_memory m;
    const int32_t id = 7;
    const size_t used = emu.used, pinned = emu.pinned;
    const int64_t ops = emu.ops;
    if (q4x_tap_memory_of(q4x_net_plan(net), o, n->n_ctx, n->tile, &m, &err)) fail_msg("%s", err.msg);
    assert_true(emu.ops == ops);
    if (!o->nodes) assert_memory_equal(&m, &n->tap[o->mode], sizeof m);
    if (q4x_tapset_open(r, net, o, "/dev/null", json_object(), &t, &err)) fail_msg("%s", err.msg);
    for (int k = 0; k <= forward; k++) {
        same(model, n->n_ctx, "taps", m.device, emu.used - used);
        same(model, n->n_ctx, "taps, pinned", m.pinned, emu.pinned - pinned);
        if (k < forward && (q4x_run_forward(r, &id, 1, 0, &err) || q4x_tapset_forward(t, &id, 1, 1, -1, &err)))
            fail_msg("%s", err.msg);
    }
    q4x_tapset_abort(t);
    return m;
}

/* The outputs that wait stay with a run, so each has its own. */
static void taps_of(const char *model, const q4x_net *net, int64_t ctx) {
    static const q4x_tap_opts opts[] = {{.mode = Q4X_MODE_HASH},
                                        {.mode = Q4X_MODE_SKETCH},
                                        {.mode = Q4X_MODE_FULL},
                                        {.mode = Q4X_MODE_SKETCH, .nodes = "*", .nrows = -1, .bands = 1},
                                        {.mode = Q4X_MODE_FULL, .nodes = "*", .bands = 1, .controls = 1}};
    enum { N = sizeof opts / sizeof *opts };
    q4x_tap_memory m[N];
    q4x_err err = {0};
    q4x_need n;
    q4x_arm arm;
    if (q4x_arm_parse("cuda", &arm, &err) || q4x_need_of(net, 1, ctx, 0, &n, &err)) fail_msg("%s", err.msg);
    for (int o = 0; o < N; o++) {
        q4x_run *r = NULL;
        if (q4x_run_new(net, &arm, ctx, 0, &r, &err)) fail_msg("%s", err.msg);
        m[o] = tapped(model, net, r, &n, &opts[o], ctx == 5 && o == N - 1);
        q4x_run_free(r);
    }
    if (ctx >= 64) return; /* where there may be as much as there can be */
    /* the twin: more is kept, more is said */
    assert_true(m[0].device < m[1].device && m[1].device == m[2].device && m[1].device < m[3].device);
    assert_true(m[0].pinned < m[1].pinned && m[1].pinned < m[2].pinned && m[2].pinned < m[4].pinned);
}

static void taps(void **state) {
    int compared = 0;
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        q4x_net *net = h_net(models[i]);
        for (size_t k = 0; k < sizeof contexts / sizeof *contexts; k++, compared++) {
            if (contexts[k] > q4x_net_plan(net)->ctx_max) break;
            taps_of(models[i], net, contexts[k]);
        }
        q4x_net_close(net);
    }
    assert_true(emu.used == 0 && emu.pinned == 0);
    print_message("    %d contexts\n", compared);
    assert_true(compared > 0);
}

/* A run of 64 positions on a device of so much memory, without weights there. */
static int run_in(size_t memory, const char *spec, int rows, uint64_t taps, q4x_err *err) {
    const size_t all = emu.memory;
    q4x_arm arm;
    q4x_run *r = NULL;
    q4x_net *net = h_net("tests/golden/micro-a");
    if (q4x_arm_parse(spec, &arm, err)) fail_msg("%s", err->msg);
    emu.memory = memory;
    int rc = q4x_run_new_all(net, &arm, 64, 0, rows, taps, &r, err);
    emu.memory = all;
    q4x_run_free(r);
    q4x_net_close(net);
    assert_true(emu.used == 0 && emu.live == 0);
    return rc;
}

static q4x_need need_of_64(void) {
    q4x_err err = {0};
    q4x_need n;
    q4x_net *net = h_net("tests/golden/micro-a");
    if (q4x_need_of(net, 1, 64, 0, &n, &err)) fail_msg("%s", err.msg);
    q4x_net_close(net);
    return n;
}

/* A device with exactly that much takes the run; one with a byte less refuses it, with all of it in the number, in the
 * plan's words, and names what makes it fit. */
static void just_enough(void **state) {
    static const struct {
        const char *spec, *part, *remedy;
        int rows, taps;
    } want[] = {
        {"cuda", ", logits 1.02 kB)", "use a shorter prompt or fewer ids, a smaller model or --device cpu", 0, 0},
        {"cuda", ", logits 65.5 kB)", "ids, the last logit row, a smaller model or --device cpu", 1, 0},
        {"cuda:gemm=cublas", ", cuBLAS 33.6 MB)", "ids, gemm=own, a smaller model or --device cpu", 0, 0},
        {"cuda", ", taps 5.00 kB)", "ids, fewer taps (--node, --mode hash), a smaller model", 0, 5000}};
    const q4x_need n = need_of_64();
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char text[200];
        q4x_err err = {0};
        const uint64_t need = n.own + (want[i].rows ? n.logits_all - n.logits : 0) +
                              (strchr(want[i].spec, '=') ? n.library : 0) + (uint64_t)want[i].taps;
        if (run_in(need, want[i].spec, want[i].rows, (uint64_t)want[i].taps, &err)) fail_msg("%s", err.msg);
        assert_int_equal(run_in(need - 1, want[i].spec, want[i].rows, (uint64_t)want[i].taps, &err), Q4X_E_DEVICE);
        print_message("    %s\n", err.msg);
        snprintf(text, sizeof text,
                 ": %s are needed (weights %s, states of 64 positions %s, activations %s, scratch %s, ",
                 q4x_amount(need).s, q4x_amount(n.weights).s, q4x_amount(n.states).s, q4x_amount(n.arena).s,
                 q4x_amount(n.scratch).s);
        if (!strstr(err.msg, text) || !strstr(err.msg, want[i].part) || !strstr(err.msg, want[i].remedy) ||
            !strstr(err.msg, "), 1 B more than the "))
            fail_msg("expected %s and %s and %s in %s", text, want[i].part, want[i].remedy, err.msg);
    }
}

/* A remedy is one: a shorter prompt is none where one position is too much, and the weights are named by themselves. */
static void remedies(void **state) {
    static const char only[] = " are free; use a smaller model or --device cpu",
                      shorter[] = " are free; use a shorter prompt or fewer ids, a smaller model or --device cpu",
                      alone[] = " are free, the weights alone do not fit; use a smaller model or --device cpu";
    const q4x_need n = need_of_64();
    const struct {
        size_t memory;
        const char *says;
    } want[] = {{n.least, shorter}, {n.least - 1, only}, {n.weights, only}, {n.weights - 1, alone}};
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        q4x_err err = {0};
        assert_int_equal(run_in(want[i].memory, "cuda", 0, 0, &err), Q4X_E_DEVICE);
        if (!strstr(err.msg, want[i].says)) fail_msg("expected %s in %s", want[i].says, err.msg);
    }
}

/* What was there when it was counted is not there when it is asked for: each part by itself, of the device and pinned;
 * then rows of logits that nobody spoke of. */
static void refused(void **state) {
    static const struct {
        const char *call, *says;
        int nth;
    } want[] = {{"cudaMalloc", "no room for the weights: ", 1},
                {"cudaMalloc", "no room for activations and states: ", 2},
                {"cudaMalloc", "no room for 1 rows of 256 logits: 1.02 kB are needed, ", 3},
                {"cudaHostAlloc", "B of pinned memory of the host for activations: out of memory", 2},
                {"cudaHostAlloc", "B of pinned memory of the host for ids and rows of tables: out of memory", 4}};
    enum { NWANT = sizeof want / sizeof *want };
    q4x_err err = {0};
    q4x_arm arm;
    q4x_run *r = NULL;
    const int32_t ids[] = {1, 2, 3};
    (void)state;
    assert_int_equal(q4x_arm_parse("cuda", &arm, NULL), 0);
    for (int i = 0; i < NWANT; i++) {
        q4x_net *net = h_net("tests/golden/micro-a");
        emu_refuse(want[i].call, want[i].nth, 2);
        int rc = q4x_run_new(net, &arm, 64, 0, &r, &err);
        emu_refuse(NULL, 0, 0);
        print_message("    %s\n", rc ? err.msg : "(accepted)");
        assert_int_equal(rc, Q4X_E_DEVICE);
        assert_non_null(strstr(err.msg, want[i].says));
        assert_true(i > 2 || (strstr(err.msg, " are free: out of memory; end what else uses the device, or use ")));
        q4x_net_close(net);
        assert_true(emu.used == 0 && emu.live == 0);
    }
    q4x_net *net = h_net("tests/golden/micro-a");
    if (q4x_run_new(net, &arm, 64, 0, &r, &err)) fail_msg("%s", err.msg);
    for (int pinned = 0; pinned < 2; pinned++) {
        emu_refuse(pinned ? "cudaHostAlloc" : "cudaMalloc", 1, 2);
        assert_int_equal(q4x_run_forward(r, ids, 3, 1, &err), Q4X_E_DEVICE);
        emu_refuse(NULL, 0, 0);
        print_message("    %s\n", err.msg);
        assert_non_null(strstr(err.msg, "3 rows of 256 logits"));
    }
    if (q4x_run_forward(r, ids, 3, 1, &err)) fail_msg("%s", err.msg); /* the run is as it was */
    q4x_run_free(r);
    q4x_net_close(net);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_a_run), cmocka_unit_test(taps),
                                       cmocka_unit_test(just_enough), cmocka_unit_test(remedies),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("e_need", tests, NULL, NULL);
}
