/* e_ahead.c: what the host makes for a device, ids and rows of the n-gram table, on the emulated one. A forward waits
 * for the device once, at its end; the bits are the host's whether ops or copies come early or late; where a wait is
 * left out they are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/ahead.h"
#include "lib/hash.h"
#include "lib/tap.h"
#include "tests/emu/emu.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"
#include "tests/h_synth.h"

enum { TILE = 64, PROMPT = 2 * TILE + 1, TILES = 3, DECODE = 2, SEEN = 100 };

/* Which work is late (emu.h). */
static const struct {
    int late, early;
} orders[] = {{0, EMU_OPS_EARLY}, {0, EMU_OPS_LATE}, {1, 0}, {0, EMU_BEHIND_LATE}, {0, EMU_AHEAD_EARLY}};
enum { NORDERS = sizeof orders / sizeof *orders };

static void in_order(int i, int deaf) {
    emu.late = i < 0 ? 0 : orders[i].late;
    emu.early = i < 0 ? 0 : orders[i].early;
    emu.deaf = deaf;
}

/* Logits and states after every forward, and what was waited for in each. */
typedef struct {
    q4x_hash h[SEEN];
    int n;
    int64_t waits[1 + DECODE], turns[1 + DECODE], unpinned;
} trace;

static void see(trace *t, const void *data, size_t bytes) {
    assert_true(t->n < SEEN);
    t->h[t->n++] = q4x_bits_of(Q4X_BITS_F32, data, bytes);
}

static void see_all(trace *t, q4x_run *r) {
    const q4x_plan *p = q4x_run_plan(r);
    int32_t rows;
    const float *logits = q4x_run_logits(r, &rows);
    see(t, logits, (size_t)rows * (size_t)p->d.V * sizeof(float));
    for (int32_t i = 0; i < p->nstates; i++) {
        const k_state *st = h_run_state(r, i);
        if (!p->state[i].is_ids) see(t, st->f, (size_t)(st->rows * st->cols) * sizeof(float));
    }
}

static int look(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    (void)ev;
    (void)err;
    ++*(int64_t *)ctx;
    return 0;
}

static q4x_run *new_run(const q4x_net *net, const char *spec) {
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r = NULL;
    if (q4x_arm_parse(spec, &arm, &err) || q4x_run_new(net, &arm, PROMPT + DECODE, TILE, &r, &err))
        fail_msg("%s: %s", spec, err.msg);
    return r;
}

/* A prompt of several tiles, and single ids. */
static void go(const q4x_net *net, const char *spec, int forwards, int deaf, trace *t) {
    q4x_err err = {0};
    q4x_run *r = new_run(net, spec);
    const int32_t V = q4x_net_dims(net)->V;
    int32_t ids[PROMPT];
    *t = (trace){.n = 0};
    for (int i = 0; i < PROMPT; i++) ids[i] = (i * i + 5 * i + 3) % V;
    emu.deaf = deaf;
    for (int f = 0; f < forwards; f++) {
        const int32_t one = (11 * f + 2) % V;
        const int64_t waits = emu_calls("cudaStreamSynchronize"), turns = emu_calls("cudaEventSynchronize"),
                      unpinned = emu.unpinned;
        if (q4x_run_forward(r, f ? &one : ids, f ? 1 : PROMPT, 0, &err)) fail_msg("%s: %s", spec, err.msg);
        t->waits[f] = emu_calls("cudaStreamSynchronize") - waits;
        t->turns[f] = emu_calls("cudaEventSynchronize") - turns;
        t->unpinned += emu.unpinned - unpinned;
        see_all(t, r);
    }
    emu.deaf = 0;
    q4x_run_free(r);
}

static int differ(const trace *a, const trace *b) {
    int n = a->n != b->n;
    for (int i = 0; i < a->n && i < b->n; i++) n += !q4x_hash_eq(&a->h[i], &b->h[i]);
    return n;
}

static q4x_net *net;
static trace host;

/* As small as it may be: the emulator takes its time for 129 ids. */
static q4x_net *small(void) {
    q4x_geometry g = *q4x_geometry_find("tiny");
    g.L = 2, g.V = 512;
    g.D = 32, g.R = 8, g.F = g.Fs = 16, g.E = 4, g.K = 2;
    g.nk = 1, g.nv = 2, g.dk = g.dv = 16;
    g.hpn = 2, g.pw = 8, g.ngram_base = 61;
    const char *path = h_temp("small.gguf");
    h_synth(path, &g, Q4X_FT_F32, 1, 1, 1);
    return h_net(path);
}

static int prepare(void **state) {
    (void)state;
    net = small();
    go(net, "cpu", 1 + DECODE, 0, &host);
    return host.n > 0 ? 0 : -1;
}

static int clean(void **state) {
    (void)state;
    q4x_net_close(net);
    h_temp_remove();
    return emu.live != 0;
}

static void bits(void **state) {
    static trace there;
    (void)state;
    for (int o = 0; o < NORDERS; o++) {
        in_order(o, 0);
        go(net, "cuda", 1 + DECODE, 0, &there);
        in_order(-1, 0);
        if (differ(&host, &there)) fail_msg("order %d: %d of %d differ", o, differ(&host, &there), host.n);
        for (int f = 0; f <= DECODE; f++) {
            assert_int_equal(there.waits[f], 1); /* for the logits */
            assert_int_equal(there.turns[f], f ? 1 : TILES);
        }
        assert_int_equal(there.unpinned, 0);
    }
}

static int64_t waits_of(q4x_run *r, int32_t n, int all_logits) {
    static const int32_t ids[] = {3, 4, 5};
    q4x_err err = {0};
    const int64_t before = emu_calls("cudaStreamSynchronize");
    if (q4x_run_forward(r, ids, n, all_logits, &err)) fail_msg("%s", err.msg);
    return emu_calls("cudaStreamSynchronize") - before;
}

/* All logit rows come without a wait either. The twins of the counts: a hook that wants everything here, and a state,
 * which is fetched into memory that is not pinned. */
static void waits(void **state) {
    int64_t nodes = 0, before = emu.unpinned;
    (void)state;
    q4x_run *r = new_run(net, "cuda");
    assert_int_equal(waits_of(r, 3, 1), 1);
    assert_int_equal(emu.unpinned, before);
    for (int32_t i = 0; i < q4x_net_plan(net)->nstates; i++) h_run_state(r, i);
    assert_true(emu.unpinned > before);
    q4x_run_on_node(r, look, &nodes);
    assert_true(waits_of(r, 1, 0) > nodes / 2 && nodes > 50);
    q4x_run_free(r);
}

/* Places that are filled again too early; ops that do not wait for a copy; a copy that does not wait for the ops of the
 * tile before. */
static void twins(void **state) {
    static const struct { int order, deaf; } wrong[] = {{2, EMU_HOST}, {2, EMU_STREAMS}, {1, EMU_STREAMS}};
    static trace there;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        in_order(wrong[i].order, 0);
        go(net, "cuda", 1, wrong[i].deaf, &there);
        in_order(-1, 0);
        assert_true(there.n > 0 && there.n <= host.n); /* one forward of several */
        int n = 0;
        for (int k = 0; k < there.n; k++) n += !q4x_hash_eq(&there.h[k], &host.h[k]);
        print_message("    order %d, deaf %d: %d of %d differ\n", wrong[i].order, wrong[i].deaf, n, there.n);
        assert_true(n > 0);
    }
}

/* The content of a dump of three forwards, the first of so many ids. */
static q4x_hash tapped(const char *spec, const q4x_tap_opts *o, int prompt) {
    int32_t ids[TILE + 4];
    q4x_err err = {0};
    q4x_tapset *t = NULL;
    q4x_hash content = {{0}};
    q4x_run *r = new_run(net, spec);
    for (int i = 0; i < TILE + 4; i++) ids[i] = (3 * i * i + 7 * i + 5) % q4x_net_dims(net)->V;
    int rc = q4x_tapset_open(r, net, o, h_temp("t.q4d"), json_object(), &t, &err);
    for (int f = 0, at = 0, n = prompt; f < 3 && !rc; f++, at += n, n = 1) {
        rc = q4x_run_forward(r, ids + at, n, 0, &err);
        if (!rc) rc = q4x_tapset_forward(t, ids + at, n, 1, -1, &err);
    }
    if (!rc) rc = q4x_tapset_close(t, &content, &err);
    if (rc) fail_msg("%s: %s", spec, err.msg);
    q4x_run_free(r);
    return content;
}

/* Two tiles in the order in which copies come ahead of what is measured: what goes ahead of the second tile must not
 * meet what is still measured of the first. */
static void with_taps(void **state) {
    static const struct {
        int prompt;
        q4x_mode mode;
        int first, last;
    } jobs[] = {
        {5, Q4X_MODE_SKETCH, 0, NORDERS - 1}, {5, Q4X_MODE_FULL, 0, NORDERS - 1}, {TILE + 2, Q4X_MODE_SKETCH, 3, 3}};
    (void)state;
    for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
        const q4x_tap_opts o = {.mode = jobs[j].mode, .nodes = "*", .bands = jobs[j].mode == Q4X_MODE_FULL};
        const q4x_hash here = tapped("cpu", &o, jobs[j].prompt);
        for (int i = jobs[j].first; i <= jobs[j].last; i++) {
            in_order(i, 0);
            const q4x_hash there = tapped("cuda", &o, jobs[j].prompt);
            in_order(-1, 0);
            if (!q4x_hash_eq(&here, &there)) fail_msg("job %d, order %d: another content", (int)j, i);
        }
    }
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits), cmocka_unit_test(waits), cmocka_unit_test(twins),
                                       cmocka_unit_test(with_taps)};
    return cmocka_run_group_tests_name("e_ahead", tests, prepare, clean);
}
