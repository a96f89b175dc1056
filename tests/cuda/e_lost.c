/* e_lost.c: the emulated device is lost at every kind of call, from opening on, or by work that it does while the host
 * is ahead; or a launch is refused by a device that lives on. An error of one line with the device, the forward and the
 * node that failed by name, or jobs of the taps, whole forwards in the dump or no dump, and nothing left behind. Then
 * the same of `q4x tap`, with its exit code. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cuda/h_door.h"
#include "tests/cuda/h_lost.h"
#include "tests/emu/emu.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

#define MODEL "tests/golden/micro-a"
enum { PLACES = 18, FEW = 4 };
/* A prompt of more columns than go by matrix x vector; a dump that is finished in parts. */
static const hl_plan many = {.prompt = HL_PROMPT, .forward = -1}, in_parts = {.forward = -1, .most = 1 << 14};

static char path[200], ref[200];
static q4x_dump *want;
static int64_t calls; /* of a whole run */

/* ---- which node ---- */

/* A run that goes well: what was asked of the device up to the end of every node's hook. */
enum { CALLS, LAUNCHES, BESIDE, GEMMS, KINDS };
static const char *const kinds[KINDS] = {NULL, "launch", "beside", "cublasGemmEx"};
typedef struct {
    int64_t n[KINDS];
} place;
static struct {
    q4x_net *net;
    const q4x_plan *plan;
    place start, *end; /* [HL_FORWARDS * nodes] */
} trace;

static place here(void) {
    place p = {{emu.ops}};
    for (int k = LAUNCHES; k < KINDS; k++) p.n[k] = emu_calls(kinds[k]);
    return p;
}

static void seen(int forward, int node) {
    place p = here();
    for (int k = 0; k < KINDS; k++) p.n[k] -= trace.start.n[k];
    trace.end[forward * trace.plan->nnodes + node] = p;
}

/* The event in which call `at` of a run falls; the number of events when it falls behind the last one. */
static int event_of(int64_t at, int kind) {
    const int n = HL_FORWARDS * trace.plan->nnodes;
    int i = 0;
    while (i < n && trace.end[i].n[kind] < at) i++;
    return i;
}

/* Place i of n, of those behind the first node. */
static int64_t at_place(int kind, int i, int n) {
    const int64_t from = trace.end[0].n[kind], all = trace.end[HL_FORWARDS * trace.plan->nnodes - 1].n[kind] - from;
    assert_true(all > 3);
    return from + 1 + (all - 3) * i / n + i % 3;
}

static const char *name_of(int event) {
    return trace.plan->node[event % trace.plan->nnodes].name;
}

/* The event before it of a node that is no alias. */
static int before(int event) {
    do event--;
    while (event > 0 && trace.plan->node[event % trace.plan->nnodes].op == K_OP_alias);
    return event;
}

/* what: from "device" on, or "taps behind node ", which may come behind the op that was at work meanwhile. */
static int says(const char *msg, int event, const char *what) {
    char text[200];
    snprintf(text, sizeof text, "%s%s%s, forward %d: ", *what == 't' ? "" : "device cuda/0: ", what, name_of(event),
             event / trace.plan->nnodes);
    return strstr(msg, text) != NULL;
}

/* msg names what emu.hit fell on while the host enqueued the event. */
static int names(const char *msg, int event) {
    if (emu.hit == EMU_LAUNCH) return says(msg, event, "node ");
    return says(msg, event, "taps behind node ") || says(msg, before(event), "taps behind node ");
}

static void prepare_trace(void) {
    trace.net = h_net(MODEL);
    trace.plan = q4x_net_plan(trace.net);
    trace.end = calloc((size_t)HL_FORWARDS * (size_t)trace.plan->nnodes, sizeof *trace.end);
    assert_non_null(trace.end);
}

static void make_trace(const char *spec, const hl_plan *plan) {
    hl_plan p = *plan;
    q4x_err err = {0};
    p.seen = seen;
    trace.start = here();
    if (hl_tap(MODEL, spec, path, &p, &err)) fail_msg("%s", err.msg);
    unlink(path);
}

/* ---- a device that is lost ---- */

static int prepare(void **state) {
    q4x_err err = {0};
    (void)state;
    snprintf(ref, sizeof ref, "%s", h_temp("want.q4d"));
    snprintf(path, sizeof path, "%s", h_temp("lost.q4d"));
    prepare_trace();
    const int64_t ops = emu.ops;
    if (hl_tap(MODEL, "cuda", path, &hl_none, &err) || hl_tap(MODEL, "cpu", ref, &hl_none, &err) ||
        q4x_dump_read(ref, &want, &err)) {
        print_error("%s\n", err.msg);
        return -1;
    }
    calls = emu.ops - ops;
    return unlink(path);
}

static int clean(void **state) {
    (void)state;
    q4x_dump_free(want);
    q4x_net_close(trace.net);
    free(trace.end);
    h_temp_remove();
    return 0;
}

/* How many forwards the message says are whole; -1: it speaks of none. */
static int whole_in(const char *msg) {
    int n = -1;
    const char *s = strstr(msg, "cut behind ");
    if (s) sscanf(s, "cut behind %d whole forward", &n);
    return n;
}

/* A run that must fail, at a device: err says where, the dump holds what was whole. Returns forwards that are. */
static int fails(const char *spec, const hl_plan *p, q4x_err *err) {
    const int64_t live = emu.live;
    emu.hit = EMU_NOTHING;
    int rc = hl_tap(MODEL, spec, path, p, err);
    emu.fail = 0;
    emu_trap(NULL, 0);
    emu_refuse(NULL, 0, 0);
    if (rc != Q4X_E_DEVICE) fail_msg("%d: %s", rc, err->msg);
    assert_non_null(strstr(err->msg, "device cuda/0: "));
    assert_null(strchr(err->msg, '\n'));
    if (emu.live != live || emu.used) fail_msg("left behind: %lld: %s", (long long)(emu.live - live), err->msg);
    const int whole = whole_in(err->msg), there = !access(path, F_OK);
    if (there != (whole > 0)) fail_msg("a dump %d: %s", there, err->msg);
    char forward[40];
    snprintf(forward, sizeof forward, ", forward %d: ", whole > 0 ? whole : 0);
    if (whole >= 0 && !strstr(err->msg, forward)) fail_msg("%s", err->msg);
    if (there) hl_is_cut(path, p->prompt ? NULL : want, whole);
    if (there) unlink(path);
    assert_int_equal(h_temp_count(), 1);
    return whole;
}

/* The twin of all of these: a device that stays leaves a whole dump. */
static void goes_well(void) {
    q4x_err err = {0};
    q4x_dump *d = NULL;
    if (hl_tap(MODEL, "cuda", path, &hl_none, &err) || q4x_dump_read(path, &d, &err)) fail_msg("%s", err.msg);
    assert_int_equal(d->nforwards, HL_FORWARDS);
    assert_null(json_object_get(d->tail, "ended"));
    q4x_dump_free(d);
    unlink(path);
}

/* Found out by the call itself. */
static void anywhere(void **state) {
    int whole[HL_FORWARDS + 1] = {0}, named = 0;
    (void)state;
    make_trace("cuda", &hl_none);
    for (int i = 0; i < PLACES; i++) {
        q4x_err err = {0};
        const int64_t at = 1 + (i < 8 ? 3 * i : (calls - 2) * (i - 7) / (PLACES - 8));
        emu.fail = emu.ops + at;
        const int f = fails("cuda", &hl_none, &err), event = event_of(at, CALLS);
        whole[f > 0 ? f : 0]++;
        if (at <= trace.end[0].n[CALLS]) continue;
        /* a launch of the node, or what came behind it or the one before */
        if (event < HL_FORWARDS * trace.plan->nnodes && !says(err.msg, event, "node ") &&
            !says(err.msg, event, "behind node ") && !says(err.msg, before(event), "behind node "))
            fail_msg("in node %s: %s", name_of(event), err.msg);
        named += says(err.msg, event < HL_FORWARDS * trace.plan->nnodes ? event : 0, "node ");
    }
    print_message(
        "    of %lld calls: %d places before the first forward ended, %d %d %d behind 1 2 3; %d with a node\n",
        (long long)calls, whole[0], whole[1], whole[2], whole[3], named);
    for (int f = 0; f < HL_FORWARDS; f++) assert_true(whole[f] > 0);
    assert_true(named >= PLACES / 3);
    goes_well();
}

/* Found out later: a kernel ends the device when it runs, the host behind it or ahead; jobs of the taps too. */
static void by_a_kernel(void **state) {
    (void)state;
    make_trace("cuda", &hl_none);
    for (int kind = LAUNCHES; kind <= BESIDE; kind++)
        for (int i = 0; i < FEW; i++) {
            q4x_err err = {0};
            const int64_t at = at_place(kind, i, FEW);
            emu.early = i % 2;
            emu_trap(kinds[kind], at);
            fails("cuda", &hl_none, &err);
            emu.early = 0;
            if (i < 2) print_message("    %s\n", strstr(err.msg, "device "));
            assert_true(emu.hit == EMU_LAUNCH_BESIDE || (kind == LAUNCHES && emu.hit == EMU_LAUNCH));
            if (!names(err.msg, event_of(at, kind))) fail_msg("in %s: %s", name_of(event_of(at, kind)), err.msg);
        }
    goes_well();
}

/* A launch, or a product of cuBLAS, that a device refuses which lives on: found at once, whoever is ahead. */
static void refused(void **state) {
    (void)state;
    make_trace("cuda:gemm=cublas", &many);
    for (int kind = LAUNCHES; kind <= GEMMS; kind++)
        for (int i = 0; i < FEW - 1; i++) {
            q4x_err err = {0};
            const int64_t at = at_place(kind, i, FEW);
            emu.early = i % 2;
            emu_refuse(kinds[kind], at, kind == GEMMS ? 13 : EMU_REFUSED);
            fails("cuda:gemm=cublas", &many, &err);
            emu.early = 0;
            if (i < 1) print_message("    %s\n", strstr(err.msg, "device "));
            if (kind == GEMMS) emu.hit = EMU_LAUNCH; /* of a node */
            if (!names(err.msg, event_of(at, kind))) fail_msg("in %s: %s", name_of(event_of(at, kind)), err.msg);
            assert_non_null(strstr(err.msg, kind == GEMMS ? ": cuBLAS: a product failed" : ": refused on demand"));
        }
    goes_well();
}

/* Where the driver writes no marks, no node is accused of what a kernel did; a call that is refused is still known. */
static void without_marks(void **state) {
    q4x_err err = {0};
    (void)state;
    make_trace("cuda", &hl_none);
    const int64_t at = at_place(LAUNCHES, 1, 2);
    emu.no_marks = 1;
    emu_trap("launch", at);
    fails("cuda", &hl_none, &err);
    print_message("    %s\n", strstr(err.msg, "device "));
    assert_non_null(strstr(err.msg, "device cuda/0: node unknown: this driver has no stream marks, forward "));
    emu_refuse("launch", at, EMU_REFUSED);
    fails("cuda", &hl_none, &err);
    emu.no_marks = 0;
    assert_true(names(err.msg, event_of(at, LAUNCHES)));
}

/* With a part of a forward finished and written, and a part of it under way: what is whole stays. Found out by the
 * call, or later, when a batch is asked after or waited for. */
static void half_way(void **state) {
    enum { TIMES = 3 };
    int cut = 0;
    (void)state;
    for (emu.swift = 0; emu.swift < 2; emu.swift++) { /* whose launches come at different places */
        make_trace("cuda", &in_parts);
        const int64_t all = trace.end[HL_FORWARDS * trace.plan->nnodes - 1].n[CALLS];
        for (int i = 0; i < TIMES; i++) {
            q4x_err err = {0};
            emu.fail = emu.ops + all / 2 + (2 * i + emu.swift) * all / (4 * TIMES) + 7 * i;
            cut += fails("cuda", &in_parts, &err) > 0;
        }
        for (int i = 0; i < 2 * TIMES; i++) {
            q4x_err err = {0};
            const int kind = i < TIMES ? LAUNCHES : BESIDE;
            const int64_t at = at_place(kind, i, 2 * TIMES);
            emu_trap(kinds[kind], at);
            fails("cuda", &in_parts, &err);
            if (!names(err.msg, event_of(at, kind))) fail_msg("in %s: %s", name_of(event_of(at, kind)), err.msg);
        }
    }
    emu.swift = 0;
    assert_true(cut >= TIMES);
    goes_well();
}

/* A pipe cannot take records back: what went through it still ends in a cut dump. */
static void through_a_pipe(void **state) {
    char fifo[200];
    q4x_err err = {0};
    q4x_dump *d = NULL;
    size_t n = 0, cap = 64 << 20;
    char *bytes = malloc(cap);
    int ends[2];
    (void)state;
    assert_non_null(bytes);
    assert_int_equal(pipe(ends), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) > 0); /* room for all of it */
    snprintf(fifo, sizeof fifo, "/dev/fd/%d", ends[1]);
    emu.fail = emu.ops + calls - 40;
    int rc = hl_tap(MODEL, "cuda", fifo, &hl_none, &err);
    emu.fail = 0;
    assert_int_equal(rc, Q4X_E_DEVICE);
    close(ends[1]);
    for (ssize_t k; n < cap && (k = read(ends[0], bytes + n, cap - n)) > 0;) n += (size_t)k;
    close(ends[0]);
    assert_int_equal(q4x_dump_read_mem(bytes, n, "pipe", &d, &err), Q4X_E_TRUNCATED);
    assert_non_null(d);
    assert_int_equal(d->nforwards, HL_FORWARDS - 1);
    q4x_dump_free(d);
    free(bytes);
}

static void tap_command(void **state) {
    const char *args[] = {"tap",  MODEL,      "--ids", "5,6,7", "-n", "4", "--mode",
                          "full", "--device", "cuda",  "-o",    path, NULL};
    char out[4000], said[4000];
    (void)state;
    emu.fail = emu.ops + calls - 40;
    int code = hd_command(cmd_tap, args, out, said);
    emu.fail = 0;
    print_message("    %s", said);
    assert_int_equal(code, 128);
    assert_non_null(strstr(said, "q4x tap: "));
    assert_non_null(strstr(said, "lost.q4d: cut behind 3 whole forwards: device cuda/0: node "));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    hl_is_cut(path, want, 3);
    assert_int_equal(hd_command(cmd_tap, args, out, said), 0); /* the twin */
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(anywhere),      cmocka_unit_test(half_way),
                                       cmocka_unit_test(by_a_kernel),   cmocka_unit_test(refused),
                                       cmocka_unit_test(without_marks), cmocka_unit_test(through_a_pipe),
                                       cmocka_unit_test(tap_command)};
    return cmocka_run_group_tests_name("e_lost", tests, prepare, clean);
}
