/* e_ring.c: how tensors and results come from the emulated device: through memory that they wrap around in many times,
 * or that is smaller than one of them, early or as late as may be, the dump is the host's; an op that does not wait for
 * what reads its buffer is seen; too little memory is an error with the number, before anything is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/amount.h"
#include "lib/arena.h"
#include "lib/run_int.h"
#include "lib/tap_dev_int.h"
#include "tests/cuda/h_taps.h"
#include "tests/emu/emu.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

#define MODEL "tests/golden/micro-a"

/* A hook around the tap set's own that looks at what is under way behind each node. */
typedef struct {
    q4x_tapset *taps;
    q4x_node_fn fn;
    void *fn_ctx;
    q4x_before_fn before;
    const q4x_run *run;
    int is_blind;
    int64_t joined; /* launches that ops were made to wait for */
    int64_t collected;
    int most, parts; /* batches on their way at a time; pieces that had memory of their own */
} watcher;

static int watch(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    watcher *w = ctx;
    const q4x_tapdev *d = w->taps->dev;
    w->parts += d->next.own != NULL;
    int rc = w->fn(w->fn_ctx, ev, err);
    w->collected = d->dev->collected;
    if (d->nbatches > w->most) w->most = d->nbatches;
    assert_true(d->results.used <= d->results.cap && d->copies.used <= d->copies.cap);
    return rc;
}

static void attach(void *ctx, q4x_run *r, q4x_tapset *t) {
    watcher *w = ctx;
    *w = (watcher){.taps = t, .fn = r->fn, .fn_ctx = r->fn_ctx};
    q4x_run_on_node(r, watch, w);
}

static void any_size(void **state) {
    static const int64_t sizes[] = {1, 1 << 14, 0};
    ht_job j = {MODEL, ":act=bf16", 2, 1, 0, 0, {.mode = Q4X_MODE_FULL, .nodes = "*", .bands = 1}};
    int64_t collected[3];
    size_t n;
    (void)state;
    q4x_net *net = h_net(MODEL);
    ht_dump(net, &j, "cpu", NULL, NULL, NULL, NULL);
    for (int i = 0; i < 3; i++)
        for (emu.swift = 0; emu.swift < (i == 1 ? 2 : 1); emu.swift++) {
            watcher w;
            j.o.most = sizes[i];
            ht_dump(net, &j, "cuda", attach, &w, NULL, NULL);
            print_message("    %lld bytes, %s: %lld collections, up to %d under way; %d pieces in parts\n",
                          (long long)sizes[i], emu.swift ? "early" : "late", (long long)w.collected, w.most, w.parts);
            assert_true(ht_same(&n));
            assert_true(emu.swift ? w.most == 0 : w.most > 0);
            assert_true(i ? w.parts == 0 : w.parts > 0 && ht_largest() > 4096);
            collected[i] = w.collected;
        }
    emu.swift = 0;
    assert_true(collected[0] > 8 * K_DEV_TURNS && collected[1] > 4 * collected[2]);
    q4x_net_close(net);
}

/* To the blind, the question is asked as if the node wrote to a place that is not the run's: behind any place of the
 * run's, what chance put there may be read, and a node with more bytes than the place has would wait for that. */
static int ask(void *ctx, const q4x_node_event *ev, int *ret_here, q4x_err *err) {
    static float elsewhere;
    watcher *w = ctx;
    k_call c = *ev->call;
    q4x_node_event other = *ev;
    if (w->is_blind) {
        c.out = &elsewhere;
        assert_null(q4x_run_there(w->run, c.out));
    }
    other.call = &c;
    int rc = w->before(w->taps, &other, ret_here, err);
    w->joined = w->taps->dev->dev->joined;
    return rc;
}

static void attach_ask(void *ctx, q4x_run *r, q4x_tapset *t) {
    watcher *w = ctx;
    w->taps = t;
    w->before = r->before_fn;
    w->run = r;
    q4x_run_before_node(r, ask, w);
}

static void order(void **state) {
    ht_job j = {MODEL, "", 2, 0, 0, 0, {.mode = Q4X_MODE_SKETCH, .nodes = "*"}};
    size_t n;
    (void)state;
    q4x_net *net = h_net(MODEL);
    for (int full = 0; full < 2; full++) {
        j.o.mode = full ? Q4X_MODE_FULL : Q4X_MODE_SKETCH;
        ht_dump(net, &j, "cpu", NULL, NULL, NULL, NULL);
        for (int blind = 0; blind < 2; blind++) { /* the twin */
            watcher w = {.is_blind = blind};
            ht_dump(net, &j, "cuda", attach_ask, &w, NULL, NULL);
            assert_int_equal(ht_same(&n), !blind);
            /* with full tensors the table of what is read is full once, and then all is waited for, asked or not */
            assert_true(full || (w.joined > 0) == !blind);
        }
    }
    q4x_net_close(net);
}

static const char *refuse; /* a call of the runtime that fails when a tap set is opened; NULL: none */

/* What opening a tap set says with so much device memory beside the run's, and pinned blocks of that size. */
static int open_with(const q4x_net *net, const q4x_tap_opts *o, size_t device, size_t pinned, q4x_err *err) {
    q4x_arm arm;
    q4x_run *r = NULL;
    q4x_tapset *t = NULL;
    const size_t all = emu.memory;
    if (q4x_arm_parse("cuda", &arm, err) || q4x_run_new(net, &arm, 16, 0, &r, err)) fail_msg("%s", err->msg);
    const int64_t live = emu.live;
    emu.memory = emu.used + device;
    emu.no_pinned = pinned;
    emu_refuse(refuse, 1, EMU_REFUSED);
    int rc = q4x_tapset_open(r, net, o, h_temp("t.q4d"), json_object(), &t, err);
    emu_refuse(NULL, 0, 0);
    emu.memory = all;
    emu.no_pinned = 0;
    assert_true(rc == 0 || emu.live == live);
    q4x_tapset_abort(t);
    q4x_run_free(r);
    return rc;
}

static void too_little(void **state) {
    const q4x_tap_opts o = {.mode = Q4X_MODE_FULL, .nodes = "*", .row0 = -1, .nrows = 1};
    q4x_err err = {0};
    q4x_tap_memory m;
    (void)state;
    q4x_net *net = h_net(MODEL);
    const q4x_plan *p = q4x_net_plan(net);
    int64_t *off = calloc((size_t)p->nnodes, sizeof *off);
    if (!off || q4x_tap_memory_of(p, &o, 16, 512, &m, &err)) fail_msg("%s", err.msg);
    const size_t held = 4 * (size_t)q4x_arena_held_fit(p, 512, 16, off), results = m.device - held,
                 ring = m.pinned - m.device;
    free(off);
    assert_true(held > 0 && results > 0 && ring > results);
    for (int less = 0; less < 2; less++) {
        int rc = open_with(net, &o, results - (size_t)less, 0, &err);
        if (rc != (less ? Q4X_E_DEVICE : 0)) fail_msg("%d bytes less: %d: %s", less, rc, err.msg);
    }
    print_message("    %s\n", err.msg);
    char want[80];
    snprintf(want, sizeof want, "device cuda/0: taps need %s of its memory on top of the run", q4x_amount(results).s);
    assert_non_null(strstr(err.msg, want));
    assert_non_null(strstr(err.msg, ": 1 B more than the "));
    assert_non_null(strstr(err.msg, " that are free; use fewer nodes (--node), --mode hash, or --device cpu"));
    for (int k = 0; k < 2; k++) { /* for the results; for the tensors */
        int rc = open_with(net, &o, results + held, k ? ring - 1 : results - 1, &err);
        if (rc != Q4X_E_DEVICE) fail_msg("pinned: %d: %s", rc, err.msg);
        assert_non_null(
            strstr(err.msg, "of pinned memory: out of memory; use fewer nodes (--node), --mode sketch, or "));
    }
    /* what goes wrong besides is said to be that */
    static const struct {
        const char *call, *says;
    } others[] = {{"cudaMemGetInfo", "device cuda/0: does not say how much memory it has: "},
                  {"cudaMemsetAsync", "device cuda/0: memory of the taps cannot be cleared: "}};
    for (int k = 0; k < 2; k++) {
        refuse = others[k].call;
        assert_int_equal(open_with(net, &o, results + held, 0, &err), Q4X_E_DEVICE);
        refuse = NULL;
        print_message("    %s\n", err.msg);
        if (strncmp(err.msg, others[k].says, strlen(others[k].says))) fail_msg("%s", err.msg);
    }
    /* hashes have no nodes to leave out; bands can be left out */
    static const q4x_tap_opts few[] = {{.mode = Q4X_MODE_HASH}, {.mode = Q4X_MODE_HASH, .bands = 1}};
    static const char *const none[] = {" are free; use --device cpu", " are free; use no --bands, or --device cpu"};
    for (int k = 0; k < 2; k++) {
        assert_int_equal(open_with(net, &few[k], 1, 0, &err), Q4X_E_DEVICE);
        if (!strstr(err.msg, none[k])) fail_msg("expected %s in %s", none[k], err.msg);
    }
    assert_int_equal(h_temp_count(), 0);
    q4x_net_close(net);
    assert_true(emu.used == 0 && emu.pinned == 0);
}

static int clean(void **state) {
    (void)state;
    h_temp_remove();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_size), cmocka_unit_test_teardown(order, clean),
                                       cmocka_unit_test(too_little)};
    return cmocka_run_group_tests_name("e_ring", tests, NULL, clean);
}
