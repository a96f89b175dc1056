/* e_order.c: what is enqueued beside the ops may be done as early or as late as its events let it, and no bit tells
 * which: dumps of both orders are equal, for prompts of one tile and of several, in every mode, with what must be here
 * and what is read twice. In the early order the host is ahead of all ops, so that what it reads too soon is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/tap.h"
#include "tests/emu/emu.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

typedef struct {
    const char *model, *spec;
    int prompt, tile;
    q4x_tap_opts o;
} job;

static int step(void *ctx, const q4x_step *s, q4x_err *err) {
    return q4x_tapset_forward(ctx, s->ids, s->n_ids, s->forced, s->chosen, err);
}

static q4x_hash dump(const job *j, int early) {
    int32_t ids[160];
    const q4x_greedy_opts go = {.prompt = ids, .n_prompt = j->prompt, .n = 2};
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_tapset *t = NULL;
    q4x_hash content = {{0}};
    q4x_tap_count twice, untapped;
    q4x_net *net = h_net(j->model);
    for (int i = 0; i < j->prompt; i++) ids[i] = (7 * i + 3 + i * i) % q4x_net_plan(net)->d.V;
    emu.early = early;
    int rc = q4x_arm_parse(j->spec, &arm, &err);
    if (!rc) rc = q4x_run_new(net, &arm, q4x_greedy_positions(&go), j->tile, &r, &err);
    if (!rc) rc = q4x_tapset_open(r, net, &j->o, h_temp("o.q4d"), json_object(), &t, &err);
    if (!rc) rc = q4x_greedy(r, &go, step, t, &err);
    if (!rc && j->o.controls) rc = q4x_tapset_untapped(t, &go, &err);
    if (!rc && j->o.controls) q4x_tapset_controls(t, &twice, &untapped);
    if (!rc) rc = q4x_tapset_close(t, &content, &err);
    if (rc) fail_msg("%s %s: %s", j->model, j->spec, err.msg);
    if (j->o.controls) assert_true(twice.differing + untapped.differing == 0 && twice.compared > 0);
    q4x_run_free(r);
    q4x_net_close(net);
    emu.early = 0;
    return content;
}

#define MICRO_A "tests/golden/micro-a"

static void no_bit_tells(void **state) {
    static const job jobs[] = {
        {MICRO_A, "cuda", 3, 0, {.mode = Q4X_MODE_SKETCH}},
        {MICRO_A, "cuda", 66, 64, {.mode = Q4X_MODE_SKETCH, .nrows = -1}},
        {MICRO_A, "cuda:act=bf16,gdn=chunk64", 4, 0, {.mode = Q4X_MODE_FULL, .bands = 1}},
        {MICRO_A, "cuda:gemm=cublas", 9, 0, {.mode = Q4X_MODE_HASH}},
        {MICRO_A, "cuda:plant=sign@L01.blk#0", 3, 0, {.mode = Q4X_MODE_SKETCH, .controls = 1}},
        {"tests/golden/dense-a", "cuda", 5, 0, {.mode = Q4X_MODE_FULL}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        const q4x_hash late = dump(&jobs[i], 0), early = dump(&jobs[i], 1);
        if (!q4x_hash_eq(&late, &early)) fail_msg("%s %s: the orders differ", jobs[i].model, jobs[i].spec);
    }
    assert_true(emu.used == 0 && emu.live == 0);
    h_temp_remove();
}

/* The twins: what waits for nothing is early, or late; an event makes it wait. */
static void orders_differ(void **state) {
    k_dev d;
    void *there;
    uint32_t word[2] = {1, 2}, *pinned;
    (void)state;
    for (int early = 0; early < 2; early++)
        for (int joined = 0; joined < 2; joined++) {
            emu.early = early;
            assert_int_equal(k_dev_open(0, &d), 0);
            assert_int_equal(k_dev_alloc(&d, 64, &there), 0);
            assert_int_equal(k_dev_pinned(&d, 8, (void **)&pinned), 0);
            pinned[0] = 7;
            assert_int_equal(k_dev_put(&d, there, word, sizeof word), 0);
            /* word 1 becomes word 0, beside; then word 0 changes */
            k_measure_job j = {.kind = K_MEASURE_COPY, .x = there, .rows = 1, .out = (char *)there + 4};
            assert_int_equal(k_dev_measure(&d, &j, 1, NULL, 0), 0);
            if (joined) assert_int_equal(k_dev_join(&d, d.measured), 0);
            assert_int_equal(k_dev_put(&d, there, pinned, 4), 0);
            pinned[0] = 9; /* too soon: who is ahead sees it */
            assert_int_equal(k_dev_wait(&d), 0);
            assert_int_equal(k_dev_get(&d, word, there, sizeof word), 0);
            assert_int_equal(word[0], early ? 9 : 7);
            assert_int_equal(word[1], early || joined ? 1 : 7);
            word[0] = 1, word[1] = 2;
            k_dev_unpin(&d, pinned);
            k_dev_free(&d, there);
            assert_int_equal(k_dev_close(&d), 0);
        }
    emu.early = 0;
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(orders_differ), cmocka_unit_test(no_bit_tells)};
    return cmocka_run_group_tests_name("e_order", tests, NULL, NULL);
}
