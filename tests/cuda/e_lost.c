/* e_lost.c: the emulated device is lost at every kind of call, from opening on: an error of one line with the device,
 * forward and node by name where there is one, whole forwards in the dump or no dump, and nothing left behind. Then the
 * same of `q4x tap`, with its exit code. */
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

#include "bin/cmd.h"
#include "tests/cuda/h_lost.h"
#include "tests/emu/emu.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

#define MODEL "tests/golden/micro-a"
enum { PLACES = 18 };

static char path[200], ref[200];
static q4x_dump *want;
static int64_t calls; /* of a whole run */

static int prepare(void **state) {
    q4x_err err = {0};
    (void)state;
    snprintf(ref, sizeof ref, "%s", h_temp("want.q4d"));
    snprintf(path, sizeof path, "%s", h_temp("lost.q4d"));
    const int64_t before = emu.ops;
    if (hl_tap(MODEL, "cuda", path, -1, 0, &err) || hl_tap(MODEL, "cpu", ref, -1, 0, &err) ||
        q4x_dump_read(ref, &want, &err)) {
        print_error("%s\n", err.msg);
        return -1;
    }
    calls = emu.ops - before;
    return unlink(path);
}

static int clean(void **state) {
    (void)state;
    q4x_dump_free(want);
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

static void anywhere(void **state) {
    int seen[HL_FORWARDS + 1] = {0}, named = 0;
    (void)state;
    for (int i = 0; i < PLACES; i++) {
        q4x_err err = {0};
        const int64_t live = emu.live;
        emu.fail = emu.ops + 1 + (i < 8 ? 3 * i : (calls - 2) * (i - 7) / (PLACES - 8));
        int rc = hl_tap(MODEL, "cuda", path, -1, 0, &err);
        emu.fail = 0;
        if (rc != Q4X_E_DEVICE) fail_msg("place %d of %d: %d: %s", i, PLACES, rc, err.msg);
        assert_non_null(strstr(err.msg, "device cuda/0: "));
        assert_null(strchr(err.msg, '\n'));
        assert_true(emu.live == live && emu.used == 0);
        const int whole = whole_in(err.msg), there = !access(path, F_OK);
        if (there != (whole > 0)) fail_msg("place %d: a dump %d: %s", i, there, err.msg);
        char forward[40];
        snprintf(forward, sizeof forward, ", forward %d: ", whole > 0 ? whole : 0);
        if (strstr(err.msg, ": node ")) {
            assert_non_null(strstr(err.msg, forward));
            named++;
        } else {
            assert_int_equal(whole, -1); /* before the first forward */
        }
        if (there) hl_is_cut(path, want, whole);
        seen[whole > 0 ? whole : 0]++;
        if (there) unlink(path);
        assert_int_equal(h_temp_count(), 1);
    }
    print_message(
        "    of %lld calls: %d places before the first forward ended, %d %d %d behind 1 2 3; %d with a node\n",
        (long long)calls, seen[0], seen[1], seen[2], seen[3], named);
    for (int f = 0; f < HL_FORWARDS; f++) assert_true(seen[f] > 0);
    assert_true(named >= PLACES / 2);
    /* the twin: a device that stays leaves a whole dump */
    q4x_err err = {0};
    q4x_dump *d = NULL;
    if (hl_tap(MODEL, "cuda", path, -1, 0, &err) || q4x_dump_read(path, &d, &err)) fail_msg("%s", err.msg);
    assert_int_equal(d->nforwards, HL_FORWARDS);
    assert_null(json_object_get(d->tail, "ended"));
    q4x_dump_free(d);
    unlink(path);
}

/* With a part of a forward finished and written, and a part of it under way: what is whole stays. */
static void half_way(void **state) {
    enum { TIMES = 6 };
    int cut = 0;
    (void)state;
    hl_most = 1 << 14;
    q4x_err err = {0};
    const int64_t before = emu.ops;
    if (hl_tap(MODEL, "cuda", path, -1, 0, &err)) fail_msg("%s", err.msg);
    const int64_t all = emu.ops - before;
    for (int i = 0; i < TIMES; i++) {
        const int64_t live = emu.live;
        unlink(path);
        emu.fail = emu.ops + all / 2 + i * all / (2 * TIMES) + 7 * i;
        emu.swift = i % 2;
        int rc = hl_tap(MODEL, "cuda", path, -1, 0, &err);
        emu.fail = 0;
        if (rc != Q4X_E_DEVICE) fail_msg("%d: %d: %s", i, rc, err.msg);
        assert_true(emu.live == live && emu.used == 0);
        const int whole = whole_in(err.msg);
        if (whole < 0) continue;
        hl_is_cut(path, want, whole);
        cut++;
    }
    emu.swift = 0;
    hl_most = 0;
    assert_true(cut >= TIMES / 2);
    unlink(path);
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
    int rc = hl_tap(MODEL, "cuda", fifo, -1, 0, &err);
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

void cmd_written(const char *name) {
    (void)name;
}

/* The command's exit code; what it said on stderr in said. */
static int command(int n, const char **args, char *said, size_t size) {
    cmd_ctx c = {.name = "q4x tap", .exe = "q4x", .argc = n, .argv = (char **)(uintptr_t)args};
    int saved = dup(2), ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(stderr);
    dup2(ends[1], 2);
    close(ends[1]);
    int code = cmd_tap(n, c.argv, &c);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    ssize_t k = read(ends[0], said, size - 1);
    said[k > 0 ? k : 0] = 0;
    close(ends[0]);
    return code;
}

static void tap_command(void **state) {
    const char *args[] = {"tap",  MODEL,      "--ids", "5,6,7", "-n", "4", "--mode",
                          "full", "--device", "cuda",  "-o",    path, NULL};
    char said[4000];
    (void)state;
    emu.fail = emu.ops + calls - 40;
    int code = command(12, args, said, sizeof said);
    emu.fail = 0;
    print_message("    %s", said);
    assert_int_equal(code, 128);
    assert_non_null(strstr(said, "q4x tap: "));
    assert_non_null(strstr(said, "lost.q4d: cut behind 3 whole forwards: device cuda/0: node "));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    hl_is_cut(path, want, 3);
    assert_int_equal(command(12, args, said, sizeof said), 0); /* the twin */
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(anywhere), cmocka_unit_test(half_way),
                                       cmocka_unit_test(through_a_pipe), cmocka_unit_test(tap_command)};
    return cmocka_run_group_tests_name("e_lost", tests, prepare, clean);
}
