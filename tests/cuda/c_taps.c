/* Taps of a run on the device: the dump is the CPU's byte for byte, its header apart, for every node, in every mode,
 * with prompts of one tile and of several whose leaves do not begin where tiles do, under levers that are watched, and
 * plants, with bands, through memory that has room for a forward and through less than a tensor takes; tapped equals
 * untapped; every buffer is what it was when it is read a second time. (The emulator: shorter prompts.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "lib/io.h"
#include "lib/run_int.h"
#include "lib/tap_dev_int.h"
#include "tests/cuda/h_pair.h"
#include "tests/cuda/h_taps.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"
#include "tests/h_synth.h"

enum { TILE = 64, MOST = HT_PROMPT };

static int emulated;

/* A hook around the tap set's own: before one node of forward 0 is measured its buffer there is written over; or,
 * `late`, once it was measured and copied, what came here of it is. */
typedef struct {
    q4x_run *run;
    q4x_tapset *taps;
    q4x_node_fn fn;
    void *fn_ctx;
    int32_t node, late;
} spoiler;

static void spoil_copy(const q4x_tapset *t) {
    q4x_tapdev *d = t->dev;
    float *here = (float *)(void *)d->piece[d->first + d->n - 1].c0;
    assert_int_equal(q4x_tapdev_launch(d) | k_dev_wait(d->dev), 0);
    here[0] = 1234.5f;
}

static int spoil(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    const spoiler *s = ctx;
    static const float other = 1234.5f;
    const int now = ev->node == s->node && !s->run->nforward;
    if (now && !s->late) {
        k_dev *d = q4x_run_device(s->run);
        void *at = (void *)(uintptr_t)q4x_run_there(s->run, ev->call->out);
        assert_non_null(at);
        assert_int_equal(k_dev_put(d, at, &other, sizeof other) | k_dev_wait(d), 0);
    }
    int rc = s->fn(s->fn_ctx, ev, err);
    if (!rc && now && s->late) spoil_copy(s->taps);
    return rc;
}

static void attach(void *ctx, q4x_run *r, q4x_tapset *t) {
    spoiler *s = ctx;
    s->run = r;
    s->taps = t;
    s->fn = r->fn;
    s->fn_ctx = r->fn_ctx;
    q4x_run_on_node(r, spoil, s);
}

static const char *const MODES[] = {"hash", "sketch", "full"};

/* 1 when the two dumps differ. */
static int differs(const q4x_net *net, const ht_job *j) {
    q4x_tap_count twice[2] = {{0, 0}, {0, 0}}, untapped[2] = {{0, 0}, {0, 0}};
    size_t n;
    ht_dump(net, j, "cpu", NULL, NULL, &twice[0], &untapped[0]);
    ht_dump(net, j, "cuda", NULL, NULL, &twice[1], &untapped[1]);
    const int same = strstr(j->levers, "nan@") ? ht_same_content(&n) : ht_same(&n);
    print_message("    %s%s, %d ids, %s%s: %zu bytes %s\n", q4x_tail(j->model), j->levers, j->prompt, MODES[j->o.mode],
                  j->o.bands ? " bands" : "", n, same ? "equal" : "DIFFER");
    if (!j->o.controls) return !same;
    assert_true(twice[1].compared > 50 && untapped[1].compared == 2 * (j->decode + 1));
    assert_int_equal(twice[1].compared, twice[0].compared);
    assert_int_equal(twice[1].differing + untapped[1].differing, 0);
    return !same;
}

/* A small model whose streams are too wide together for their rows to be kept whole. */
static const char *wide_model(void) {
    static char path[200];
    q4x_geometry g = *q4x_geometry_find("tiny");
    g.name = "wide";
    g.L = 2;
    g.D = 64;
    g.N = 9;
    g.R = 8;
    g.V = 512;
    g.E = 4;
    g.K = 1;
    g.F = g.Fs = 32;
    g.hd = g.rot = 16;
    g.nv = 2;
    g.ngram_base = 509;
    snprintf(path, sizeof path, "%s", h_temp("wide.gguf"));
    h_synth(path, &g, Q4X_FT_BF16, 7, 1, 1);
    return path;
}

static void equal_dumps(void **state) {
    const int some = emulated ? 5 : 150, many = emulated ? 66 : 600;
    const q4x_tap_opts all = {.mode = Q4X_MODE_SKETCH, .nodes = "*"}, public = {.mode = Q4X_MODE_SKETCH},
                       full = {.mode = Q4X_MODE_FULL, .nodes = "*", .controls = 1},
                       bands = {.mode = Q4X_MODE_SKETCH, .bands = 1}, hash = {.mode = Q4X_MODE_HASH},
                       rows = {.mode = Q4X_MODE_SKETCH, .row0 = 3, .nrows = 4},
                       across = {.mode = Q4X_MODE_SKETCH, .row0 = TILE - 2, .nrows = 3}, /* of two tiles */
        few = {.mode = Q4X_MODE_SKETCH, .nodes = "L03.attn.*,L00.moe.weights,L01.ple.*", .bands = 1},
                       parts = {.mode = Q4X_MODE_FULL, .nodes = "*", .bands = 1, .controls = 1, .most = 1},
                       ring = {.mode = Q4X_MODE_FULL, .nodes = "*", .bands = 1, .most = 1 << 16};
    const char *a = "tests/golden/micro-a", *b = "tests/golden/micro-b", *d = "tests/golden/dense-a",
               *demo = "tests/models/demo.gguf", *wide = wide_model();
    const ht_job jobs[] = {
        {a, "", some, 1, 0, TILE, all},
        {a, "", some, emulated ? 0 : 1, 0, TILE, full},
        {a, "", many, 0, 1, TILE, emulated ? few : all},
        {a, ":act=bf16,gdn=chunk64,eps=1e-5", 3, 1, 0, TILE, public},
        {a, ":act=bf16,topk.tie=highest", 3, 0, 0, TILE, bands},
        {a, ":act=bf16,gdn=chunk64,eps=1e-5", emulated ? TILE + 2 : some, 1, 0, TILE, parts},
        {d, ":kv=f16", some, 1, 1, TILE, ring},
        {b, "", emulated ? 0 : many, 1, 0, TILE, ring},
        {a, "", emulated ? 0 : many, 1, 1, TILE, parts},
        {a, ":plant=sign@L01.blk#0,plant=ulp@L02.moe#1,plant=swap@logits", 3, 1, 0, TILE, public},
        {a, ":plant=nan@L01.moe.gate", 3, 0, 0, TILE, hash}, /* every node counts what is not finite */
        {d, "", some, 0, 0, TILE, full},
        {b, "", emulated ? 3 : some, 0, 0, TILE, full},
        {d, "", emulated ? 0 : many, 1, 0, TILE, rows},
        {b, "", emulated ? 0 : many, 1, 0, TILE, all},
        {wide, "", many, 0, 0, TILE, emulated ? across : all},
        {demo, "", emulated ? 0 : MOST, 4, 0, 0, hash},
        {demo, "", emulated ? 0 : MOST, 4, 1, 0, all},
        {demo, "", emulated ? 0 : 256, 4, 0, 0, full},
    };
    int bad = 0;
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        if (!jobs[i].prompt) continue;
        q4x_net *net = h_net(jobs[i].model);
        bad += differs(net, &jobs[i]);
        q4x_net_close(net);
    }
    assert_int_equal(bad, 0);
}

/* A plant on one side alone is seen; so is a buffer that was written over before it was measured, and a copy that is
 * not what was measured. */
static void twins(void **state) {
    const q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH, .controls = 1};
    const ht_job j = {"tests/golden/micro-a", "", 2, 0, 0, TILE, o};
    ht_job planted = j;
    size_t n;
    q4x_tap_count twice, untapped;
    (void)state;
    q4x_net *net = h_net(j.model);
    spoiler s = {.node = q4x_plan_find(q4x_net_plan(net), "out")};
    planted.levers = ":plant=ulp@L01.blk";
    ht_dump(net, &j, "cpu", NULL, NULL, NULL, NULL);
    ht_dump(net, &planted, "cuda", NULL, NULL, NULL, NULL);
    assert_false(ht_same(&n));
    assert_true(s.node >= 0);
    ht_dump(net, &j, "cuda", attach, &s, &twice, &untapped);
    assert_int_equal(twice.differing, 0);
    assert_false(ht_same(&n));
    s.late = 1;
    ht_dump(net, &j, "cuda", attach, &s, &twice, &untapped);
    assert_int_equal(twice.differing, 1);
    assert_true(ht_same(&n) == 0); /* the tail says so, and nothing else */
    ht_dump(net, &j, "cuda", NULL, NULL, &twice, &untapped);
    assert_int_equal(twice.differing + untapped.differing, 0);
    assert_true(ht_same(&n));
    q4x_net_close(net);
}

static int clean(void **state) {
    (void)state;
    h_temp_remove();
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_dumps), cmocka_unit_test(twins)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    hp_device(&emulated);
    int failed = cmocka_run_group_tests_name("c_taps", tests, NULL, clean);
    hp_close();
    return failed;
}
