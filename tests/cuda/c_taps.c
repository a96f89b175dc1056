/* Taps of a run on the device: the dump is the CPU's byte for byte, its header apart, for every node, in every mode,
 * with prompts of one tile and of several whose leaves do not begin where tiles do, under levers that are watched, and
 * plants; tapped equals untapped; every buffer is what it was when it is read a second time. (The emulator: shorter
 * prompts, fewer models.) */
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
#include "lib/tap.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

enum { TILE = 64, MOST = 700 };

static int emulated;

/* What is asked of both devices. */
typedef struct {
    const char *model, *levers;
    int prompt, decode, all_logits, tile;
    q4x_tap_opts o;
} job;

/* A hook around the tap set's own: behind one node of forward 0 its buffer on the device is written over. */
typedef struct {
    q4x_run *run;
    q4x_node_fn fn;
    void *fn_ctx;
    int32_t node;
} spoiler;

static int spoil(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    const spoiler *s = ctx;
    static const float other = 1234.5f;
    int rc = s->fn(s->fn_ctx, ev, err);
    if (rc || ev->node != s->node || s->run->nforward) return rc;
    k_dev *d = q4x_run_device(s->run);
    void *at = (void *)(uintptr_t)q4x_run_there(s->run, ev->call->out);
    assert_non_null(at);
    assert_int_equal(k_dev_put(d, at, &other, sizeof other) | k_dev_wait(d), 0);
    return 0;
}

static int step(void *ctx, const q4x_step *s, q4x_err *err) {
    return q4x_tapset_forward(ctx, s->ids, s->n_ids, s->forced, s->chosen, err);
}

/* A dump of the job; of its controls when they were asked for. spoilt: a node, -1: none. */
static void dump(const q4x_net *net, const job *j, const char *device, int32_t spoilt, q4x_tap_count *twice,
                 q4x_tap_count *untapped) {
    int32_t ids[MOST];
    char spec[200];
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_tapset *t = NULL;
    const q4x_greedy_opts go = {.prompt = ids, .n_prompt = j->prompt, .n = j->decode + 1, .all_logits = j->all_logits};
    for (int i = 0; i < j->prompt; i++) ids[i] = (7 * i + 3 + i * i) % q4x_net_plan(net)->d.V;
    snprintf(spec, sizeof spec, "%s%s", device, j->levers);
    int rc = q4x_arm_parse(spec, &arm, &err);
    if (!rc) rc = q4x_run_new(net, &arm, q4x_greedy_positions(&go), j->tile, &r, &err);
    if (!rc) rc = q4x_tapset_open(r, net, &j->o, h_temp(device), json_object(), &t, &err);
    if (rc) fail_msg("%s %s: %s", j->model, spec, err.msg);
    spoiler s = {r, r->fn, r->fn_ctx, spoilt};
    if (spoilt >= 0) q4x_run_on_node(r, spoil, &s);
    rc = q4x_greedy(r, &go, step, t, &err);
    if (!rc && j->o.controls) rc = q4x_tapset_untapped(t, &go, &err);
    if (!rc && twice) q4x_tapset_controls(t, twice, untapped);
    if (!rc) rc = q4x_tapset_close(t, NULL, &err);
    if (rc) fail_msg("%s %s: %s", j->model, spec, err.msg);
    q4x_run_free(r);
}

/* A chunk begins with type, flags, length and two sums. NULL: there is none. */
static const uint8_t *next_chunk(const uint8_t *p, const uint8_t *end) {
    uint64_t length;
    if (end - p < 32) return NULL;
    memcpy(&length, p + 8, sizeof length);
    return p + 32 + length <= end ? p + 32 + length : NULL;
}

/* Two dumps without their headers. *ret_n: bytes. */
static int same_dumps(size_t *ret_n) {
    size_t an, bn;
    uint8_t *a = h_file_read(h_temp("cpu"), &an), *b = h_file_read(h_temp("cuda"), &bn);
    const uint8_t *p = a + 24, *q = b + 24, *pe, *qe;
    int same = 1;
    *ret_n = 0;
    for (; same && p < a + an && q < b + bn; p = pe, q = qe) {
        pe = next_chunk(p, a + an);
        qe = next_chunk(q, b + bn);
        assert_true(pe && qe);
        if (!memcmp(p, "HEAD", 4)) continue;
        same = pe - p == qe - q && !memcmp(p, q, (size_t)(pe - p));
        *ret_n += (size_t)(pe - p);
    }
    same = same && p == a + an && q == b + bn;
    free(a);
    free(b);
    return same;
}

/* Where there are NaNs, whose payloads may differ: content, and what was counted of every record. *ret_n: that is
 * not finite. */
static int same_content(size_t *ret_n) {
    q4x_dump *a = NULL, *b = NULL;
    q4x_err err = {0};
    if (q4x_dump_read(h_temp("cpu"), &a, &err) || q4x_dump_read(h_temp("cuda"), &b, &err)) fail_msg("%s", err.msg);
    int same = q4x_hash_eq(&a->content, &b->content) && a->nforwards == b->nforwards;
    *ret_n = 0;
    for (int f = 0; same && f < a->nforwards; f++)
        for (int k = 0; k < a->forwards[f].ntaps; k++) {
            const q4x_tap *x = &a->forwards[f].taps[k], *y = &b->forwards[f].taps[k];
            const q4x_stats *s = &x->stats, *u = &y->stats;
            same &= x->has_stats == y->has_stats && s->nan == u->nan && s->pinf == u->pinf && s->ninf == u->ninf;
            *ret_n += s->nan + s->pinf + s->ninf;
        }
    assert_true(*ret_n > 0);
    q4x_dump_free(a);
    q4x_dump_free(b);
    return same;
}

static const char *const MODES[] = {"hash", "sketch", "full"};

/* 1 when the two dumps differ. */
static int differs(const q4x_net *net, const job *j, int32_t spoilt) {
    q4x_tap_count twice[2] = {{0, 0}, {0, 0}}, untapped[2] = {{0, 0}, {0, 0}};
    size_t n;
    dump(net, j, "cpu", -1, &twice[0], &untapped[0]);
    dump(net, j, "cuda", spoilt, &twice[1], &untapped[1]);
    const int same = strstr(j->levers, "nan@") ? same_content(&n) : same_dumps(&n);
    print_message("    %s%s, %d ids, %s%s: %zu bytes %s\n", q4x_tail(j->model), j->levers, j->prompt, MODES[j->o.mode],
                  j->o.bands ? " bands" : "", n, same ? "equal" : "DIFFER");
    if (!j->o.controls || spoilt >= 0) return !same;
    assert_true(twice[1].compared > 50 && untapped[1].compared == 2 * (j->decode + 1));
    assert_int_equal(twice[1].compared, twice[0].compared);
    assert_int_equal(twice[1].differing + untapped[1].differing, 0);
    return !same;
}

static void equal_dumps(void **state) {
    const int some = emulated ? 5 : 150, many = emulated ? 66 : 600;
    const q4x_tap_opts all = {.mode = Q4X_MODE_SKETCH, .nodes = "*"}, public = {.mode = Q4X_MODE_SKETCH},
                       full = {.mode = Q4X_MODE_FULL, .nodes = "*", .controls = 1},
                       bands = {.mode = Q4X_MODE_SKETCH, .bands = 1}, hash = {.mode = Q4X_MODE_HASH},
                       rows = {.mode = Q4X_MODE_SKETCH, .row0 = 3, .nrows = 4},
                       few = {.mode = Q4X_MODE_SKETCH, .nodes = "L03.attn.*,L00.moe.weights,L01.ple.*"};
    const char *a = "tests/golden/micro-a", *b = "tests/golden/micro-b", *d = "tests/golden/dense-a",
               *demo = "tests/models/demo.gguf";
    const job jobs[] = {
        {a, "", some, 1, 0, TILE, all},
        {a, "", some, emulated ? 0 : 1, 0, TILE, full},
        {a, "", many, 0, 1, TILE, emulated ? few : all},
        {a, ":act=bf16,gdn=chunk64,eps=1e-5", 3, 1, 0, TILE, public},
        {a, ":act=bf16,topk.tie=highest", 3, 0, 0, TILE, bands},
        {a, ":plant=sign@L01.blk#0,plant=ulp@L02.moe#1,plant=swap@logits", 3, 1, 0, TILE, public},
        {a, ":plant=nan@L01.moe.gate", 3, 0, 0, TILE, hash}, /* every node counts what is not finite */
        {d, "", some, 0, 0, TILE, full},
        {b, "", emulated ? 3 : some, 0, 0, TILE, full},
        {d, "", emulated ? 0 : many, 1, 0, TILE, rows},
        {b, "", emulated ? 0 : many, 1, 0, TILE, all},
        {demo, "", emulated ? 0 : MOST, 4, 0, 0, hash},
        {demo, "", emulated ? 0 : MOST, 4, 1, 0, all},
        {demo, "", emulated ? 0 : 256, 4, 0, 0, full},
    };
    int bad = 0;
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        if (!jobs[i].prompt) continue;
        q4x_net *net = h_net(jobs[i].model);
        bad += differs(net, &jobs[i], -1);
        q4x_net_close(net);
    }
    assert_int_equal(bad, 0);
}

/* A plant on one side alone is seen; so is a buffer that was written over before it was measured: the copy that came
 * here in time is another. */
static void twins(void **state) {
    const q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH, .controls = 1};
    const job j = {"tests/golden/micro-a", "", 2, 0, 0, TILE, o};
    job planted = j;
    size_t n;
    q4x_tap_count twice, untapped;
    (void)state;
    q4x_net *net = h_net(j.model);
    const int32_t node = q4x_plan_find(q4x_net_plan(net), "out");
    planted.levers = ":plant=ulp@L01.blk";
    dump(net, &j, "cpu", -1, NULL, NULL);
    dump(net, &planted, "cuda", -1, NULL, NULL);
    assert_false(same_dumps(&n));
    assert_true(node >= 0);
    dump(net, &j, "cuda", node, &twice, &untapped);
    assert_int_equal(twice.differing, 1);
    assert_false(same_dumps(&n));
    dump(net, &j, "cuda", -1, &twice, &untapped);
    assert_int_equal(twice.differing + untapped.differing, 0);
    assert_true(same_dumps(&n));
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
