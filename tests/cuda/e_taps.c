/* e_taps.c: what taps cost the emulated device: a decode step makes a few launches and copies more than without them,
 * however many nodes there are; the dump is the same where there is no room for outputs that wait. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/arena.h"
#include "lib/tap.h"
#include "tests/emu/emu.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

#define MODEL "tests/golden/micro-a"

/* Device memory of the outputs that wait for taps of a run of 8 positions. */
static size_t held_bytes(const q4x_net *net) {
    const q4x_plan *p = q4x_net_plan(net);
    int64_t *off = calloc((size_t)p->nnodes, sizeof *off);
    assert_non_null(off);
    const size_t n = 4 * (size_t)q4x_arena_held_fit(p, 512, 8, off);
    free(off);
    return n;
}

static const char *arm_of_go = "cuda";
static int64_t waits_of_go; /* of its last step */

/* A run of three ids and one more; room 0: there is none for outputs that wait. *ret_ops: launches, copies and fills of
 * the last step; *ret_held: device memory of the outputs that wait. */
static q4x_hash go(const q4x_net *net, const q4x_tap_opts *o, int room, int64_t *ret_ops, uint64_t *ret_held) {
    static const int32_t ids[] = {5, 6, 7, 8};
    const size_t all = emu.memory;
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_tapset *t = NULL;
    q4x_hash content = {{0}};
    q4x_tap_memory need = {0};
    uint64_t before, after, states, scratch;
    int rc = q4x_arm_parse(arm_of_go, &arm, &err);
    if (!rc) rc = q4x_run_new(net, &arm, 8, 0, &r, &err);
    if (rc) fail_msg("%s", err.msg);
    q4x_run_memory(r, &before, &states, &scratch);
    if (!room && (rc = q4x_tap_memory_of(q4x_net_plan(net), o, 8, 512, &need, &err))) fail_msg("%s", err.msg);
    if (!room) emu.memory = emu.used + need.device - held_bytes(net) + 1000;
    if (o) rc = q4x_tapset_open(r, net, o, h_temp("t.q4d"), json_object(), &t, &err);
    emu.memory = all;
    q4x_run_memory(r, &after, &states, &scratch);
    *ret_held = after - before;
    for (int i = 0, n = 3; i < 4 && !rc; i += n, n = 1) {
        const int64_t ops = emu.ops, waits = emu.waits;
        rc = q4x_run_forward(r, ids + i, n, 0, &err);
        if (!rc && t) rc = q4x_tapset_forward(t, ids + i, n, 1, -1, &err);
        *ret_ops = emu.ops - ops;
        waits_of_go = emu.waits - waits;
    }
    if (!rc && t) rc = q4x_tapset_close(t, &content, &err);
    if (rc) fail_msg("%s", err.msg);
    q4x_run_free(r);
    return content;
}

static void few_calls(void **state) {
    const q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH}, twice = {.mode = Q4X_MODE_SKETCH, .controls = 1};
    int64_t untapped, tapped, each;
    uint64_t held;
    (void)state;
    q4x_net *net = h_net(MODEL);
    const q4x_plan *p = q4x_net_plan(net);
    go(net, NULL, 1, &untapped, &held);
    go(net, &o, 1, &tapped, &held);
    go(net, &twice, 1, &each, &held);
    print_message("    %d nodes in %d layers: %lld calls a step, %lld tapped, %lld read twice\n", p->nnodes, p->d.L,
                  (long long)untapped, (long long)tapped, (long long)each);
    assert_true(untapped > p->nnodes / 2 && held > 0);
    assert_true(tapped - untapped <= 3 * p->d.L + 6); /* jobs of a layer, of its states; results, and zeros for them */
    assert_true(each - untapped > p->nnodes);         /* the twin: what is copied node by node is seen */
    q4x_net_close(net);
}

/* Bands and full tensors make the host wait at no node; a lever that has moved no bit yet does. */
static void few_waits(void **state) {
    const q4x_tap_opts sketch = {.mode = Q4X_MODE_SKETCH}, all = {.mode = Q4X_MODE_FULL, .nodes = "*", .bands = 1};
    int64_t ops, untapped, plain, watched;
    uint64_t held;
    (void)state;
    q4x_net *net = h_net(MODEL);
    go(net, NULL, 1, &ops, &held);
    untapped = waits_of_go;
    go(net, &sketch, 1, &ops, &held);
    plain = waits_of_go;
    go(net, &all, 1, &ops, &held);
    watched = waits_of_go;
    print_message("    a step: %lld waits, %lld tapped, %lld with all tensors and bands\n", (long long)untapped,
                  (long long)plain, (long long)watched);
    assert_true(plain <= untapped + 4 && watched <= untapped + K_DEV_TURNS + 4);
    arm_of_go = "cuda:resid=f32,kv=f32,attn.round=f32"; /* the twin: what is anyway moves nothing */
    go(net, &sketch, 1, &ops, &held);
    arm_of_go = "cuda";
    assert_true(waits_of_go > untapped + K_DEV_TURNS + 4);
    q4x_net_close(net);
}

static void without_room(void **state) {
    const q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH};
    int64_t ops[2];
    uint64_t held[2];
    (void)state;
    q4x_net *net = h_net(MODEL);
    const q4x_hash a = go(net, &o, 1, &ops[0], &held[0]), b = go(net, &o, 0, &ops[1], &held[1]);
    assert_true(held[0] > 0 && held[1] == 0 && ops[1] > ops[0]);
    assert_true(q4x_hash_eq(&a, &b));
    q4x_net_close(net);
    assert_true(emu.used == 0);
    h_temp_remove();
}

/* Pairs of nodes whose outputs overlap though the second is in the first one's layer or the next. */
static int overlaps(const q4x_plan *p, const int64_t *off, int64_t rows) {
    int n = 0;
    for (int32_t i = 0; i < p->nnodes; i++)
        for (int32_t j = i + 1, layers = 0; j < p->nnodes; j++) {
            layers += p->node[j].layer != p->node[j - 1].layer;
            if (layers > 1) break;
            if (off[i] < 0 || off[j] < 0 || p->node[j].op == K_OP_alias) continue;
            n += off[i] < off[j] + rows * q4x_node_cols(p, j, rows) &&
                 off[j] < off[i] + rows * q4x_node_cols(p, i, rows);
        }
    return n;
}

static void held_outputs(void **state) {
    static const char *const models[] = {MODEL, "tests/golden/dense-a", "tests/models/demo.gguf"};
    (void)state;
    for (int m = 0; m < 3; m++) {
        q4x_net *net = h_net(models[m]);
        const q4x_plan *p = q4x_net_plan(net);
        q4x_err err = {0};
        int64_t *off = calloc((size_t)p->nnodes, sizeof *off);
        assert_non_null(off);
        assert_true(q4x_arena_held(p, 64, 64, off, &err) > 0);
        assert_int_equal(overlaps(p, off, 64), 0);
        assert_true(q4x_arena_layout(p, 64, 64, off, &err) > 0 && overlaps(p, off, 64) > 0); /* the twin */
        free(off);
        q4x_net_close(net);
    }
}

/* A dump says which GPU made it, and whose library; twins: without the library, and on the host. */
static void names_its_gpu(void **state) {
    static const struct {
        const char *arm;
        int gpu, cublas;
    } jobs[] = {{"cuda", 1, 0}, {"cuda:gemm=cublas", 1, 1}, {"cpu", 0, 0}};
    const q4x_tap_opts o = {.mode = Q4X_MODE_HASH};
    int64_t ops;
    uint64_t held;
    (void)state;
    q4x_net *net = h_net(MODEL);
    const char *before = arm_of_go;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        q4x_err err = {0};
        q4x_dump *d = NULL;
        arm_of_go = jobs[i].arm;
        go(net, &o, 1, &ops, &held);
        if (q4x_dump_read(h_temp("t.q4d"), &d, &err)) fail_msg("%s", err.msg);
        const json_t *gpu = json_object_get(d->header, "gpu");
        assert_int_equal(gpu != NULL, jobs[i].gpu);
        if (gpu) assert_string_equal(json_string_value(json_object_get(gpu, "name")), "emulator");
        assert_int_equal(json_integer_value(json_object_get(gpu, "cublas")) > 0, jobs[i].cublas);
        q4x_dump_free(d);
    }
    arm_of_go = before;
    q4x_net_close(net);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_calls), cmocka_unit_test(few_waits),
                                       cmocka_unit_test(without_room), cmocka_unit_test(held_outputs),
                                       cmocka_unit_test(names_its_gpu)};
    return cmocka_run_group_tests_name("e_taps", tests, NULL, NULL);
}
