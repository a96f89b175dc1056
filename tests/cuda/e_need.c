/* e_need.c: the memory that a run on a device is said to need is what it takes of the emulated one, byte for byte and
 * part by part. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/need.h"
#include "tests/emu/emu.h"
#include "tests/h_forward.h"

typedef unsigned long long ull;

static void same(const char *model, int64_t ctx, const char *part, uint64_t said, uint64_t taken) {
    if (said != taken)
        fail_msg("%s, %lld positions: %s: said %llu, taken %llu", model, (long long)ctx, part, (ull)said, (ull)taken);
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
    q4x_run_memory(r, &arena, &states, &scratch);
    same(model, ctx, "arena", n.arena, arena);
    same(model, ctx, "states", n.states, states);
    same(model, ctx, "scratch", n.scratch, scratch);
    q4x_run_free(r);
    same(model, ctx, "weights", n.weights, emu.used); /* they stay with the net */
    same(model, ctx, "logits", n.logits, n.own - n.weights - arena - states - scratch);
    return n.own;
}

static void equals_a_run(void **state) {
    static const char *const models[] = {"tests/models/demo.gguf", "tests/models/micro-a-bf16.gguf",
                                         "tests/golden/micro-a", "tests/golden/micro-b", "tests/golden/dense-a"};
    static const int64_t contexts[] = {1, 5, 64, 1000, 4096};
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
}

/* A device with exactly that much takes the run; one with a byte less refuses it. */
static void just_enough(void **state) {
    q4x_err err = {0};
    q4x_need n;
    q4x_arm arm;
    q4x_net *net = h_net("tests/golden/micro-a");
    const size_t all = emu.memory;
    (void)state;
    if (q4x_need_of(net, 1, 64, 0, &n, &err) || q4x_arm_parse("cuda", &arm, &err)) fail_msg("%s", err.msg);
    /* of one net, and again of the same file opened anew */
    for (int less = 0; less < 2; less++) {
        q4x_run *r = NULL;
        emu.memory = n.own - (size_t)less;
        int rc = q4x_run_new(net, &arm, 64, 0, &r, &err);
        emu.memory = all;
        if (rc != (less ? Q4X_E_DEVICE : 0)) fail_msg("%d of a byte less: %d, %s", less, rc, err.msg);
        q4x_run_free(r);
        q4x_net_close(net);
        net = h_net("tests/golden/micro-a"); /* without weights there */
    }
    q4x_net_close(net);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_a_run), cmocka_unit_test(just_enough)};
    return cmocka_run_group_tests_name("e_need", tests, NULL, NULL);
}
