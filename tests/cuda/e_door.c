/* e_door.c: what commands say of a device: its nulls, whether a run fits on it, and what was asked for that it does not
 * have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/amount.h"
#include "lib/need.h"
#include "tests/cuda/h_door.h"
#include "tests/emu/emu.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

#define MODEL "tests/golden/micro-a"
#define SELFTEST(device)                                                                                               \
    (const char *[]) {                                                                                                 \
        "selftest", MODEL, "--device", device, NULL                                                                    \
    }

static char out[HD_SAID], said[HD_SAID];
static size_t memory;

static void nothing_left(void) {
    assert_true(emu.live == 0 && emu.used == 0);
    assert_int_equal(h_temp_count(), 0);
}

static void one_line(const char *says) {
    if (!strstr(said, says)) fail_msg("expected %s in: %s", says, said);
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
}

/* ---- selftest ---- */

/* All nulls of a device, where there is room for one copy of the weights and no more. */
static void silent(void **state) {
    q4x_err err = {0};
    q4x_need n;
    q4x_net *net = h_net(MODEL);
    (void)state;
    if (q4x_need_of(net, 1, 11, 0, &n, &err)) fail_msg("%s", err.msg);
    q4x_net_close(net);
    emu.memory = n.own + n.tap[Q4X_MODE_SKETCH].least + n.weights / 2;
    const int code = hd_command(cmd_selftest, SELFTEST("cuda"), out, said);
    emu.memory = memory;
    print_message("%s%s", out, said);
    assert_int_equal(code, 0);
    assert_non_null(strstr(out, "cuda/0 against cpu"));
    assert_non_null(strstr(out, "read twice: a run"));
    assert_non_null(strstr(out, "selftest: 8 trials, 0 bad\n"));
    assert_null(strstr(out, "thread"));
    nothing_left();
}

/* The twin: a device whose weights are a bit off has the same bits again and again, and not the processor's. */
static void broken(void **state) {
    (void)state;
    emu.spoilt = 1 << 14;
    const int code = hd_command(cmd_selftest, SELFTEST("cuda"), out, said);
    emu.spoilt = 0;
    print_message("%s%s", out, said);
    assert_int_equal(code, 1);
    const char *row = strstr(out, "cuda/0 against cpu");
    assert_non_null(row);
    const char *bad = strstr(row, " BAD\n");
    assert_true(bad && bad < strchr(row, '\n'));
    assert_non_null(strstr(out, "selftest: 8 trials, 1 bad\n"));
    nothing_left();
}

/* In the middle of any trial: 128 and one line, not a bad trial. */
static void lost(void **state) {
    enum { PLACES = 9 };
    (void)state;
    const int64_t before = emu.ops;
    assert_int_equal(hd_command(cmd_selftest, SELFTEST("cuda"), out, said), 0);
    const int64_t all = emu.ops - before;
    for (int i = 0; i < PLACES; i++) {
        emu.fail = emu.ops + 1 + (all - 2) * i / (PLACES - 1);
        const int code = hd_command(cmd_selftest, SELFTEST("cuda/0"), out, said);
        emu.fail = 0;
        if (i % 4 == 0) print_message("    %s", said);
        assert_int_equal(code, 128);
        one_line("q4x selftest: device cuda/0: ");
        assert_null(strstr(out, "BAD"));
        assert_null(strstr(out, "selftest: "));
        nothing_left();
    }
}

static void refused(void **state) {
    static const struct {
        const char *args[5], *says;
        int code;
    } want[] = {{{"selftest", "--device", "cuda"}, "--device goes with a MODEL: without one", 129},
                {{"selftest", MODEL, "--device", "cuda:act=bf16"}, "expected cpu or cuda[/N] alone", 129},
                {{"selftest", MODEL, "--device", "cpu/2"}, "expected cpu or cuda[/N] alone", 129},
                {{"selftest", MODEL, "--device", "gpu"}, "expected", 129},
                {{"selftest", MODEL, "--device", "cuda/1"}, "device cuda/1: there is 1 here", 128}};
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(hd_command(cmd_selftest, want[i].args, out, said), want[i].code);
        one_line(want[i].says);
        assert_string_equal(out, "");
    }
    nothing_left();
}

/* ---- info --plan ---- */

/* The last words of the plan of a device that has so much memory, on one line. */
static const char *plan(const char *device, size_t has) {
    static char text[HD_SAID];
    emu.memory = has;
    const int code = hd_command(
        cmd_info, (const char *[]){"info", "--plan", MODEL, "--ctx", "64", "--device", device, NULL}, out, said);
    emu.memory = memory;
    assert_int_equal(code, 0);
    size_t n = 0;
    for (const char *s = out; *s; s++) {
        const int blank = *s == ' ' || *s == '\n';
        if (!blank || (n && text[n - 1] != ' ')) text[n++] = blank ? ' ' : *s;
    }
    text[n] = 0;
    return text;
}

static void has(const char *text, const char *says) {
    if (!strstr(text, says)) fail_msg("expected %s in: %s", says, text);
}

static void fits(void **state) {
    char want[200];
    q4x_err err = {0};
    q4x_need n;
    q4x_net *net = h_net(MODEL);
    (void)state;
    if (q4x_need_of(net, 1, 64, 0, &n, &err)) fail_msg("%s", err.msg);
    q4x_net_close(net);
    assert_true(n.weights < n.least && n.least < n.own);
    has(plan("cuda", n.own), "cuda/0: 64 positions, ");
    has(plan("cuda", n.own), " Fits: ");
    snprintf(want, sizeof want, "a shorter context needs less, one position %s.", q4x_amount(n.least).s);
    has(plan("cuda", n.own - 1), want);
    has(plan("cuda", n.least), want);
    has(plan("cuda", n.least - 1), "Does not fit, whatever the context: one position needs ");
    has(plan("cuda", n.weights), "Does not fit, whatever the context: one position needs ");
    has(plan("cuda", n.weights - 1), "Does not fit, whatever the context: the weights alone are ");
}

/* The memory of the device that was named. */
static void another(void **state) {
    (void)state;
    assert_non_null(
        strstr(plan("cuda/1", memory), "There is no such device here to compare with: there is 1, from 0 on."));
    assert_null(strstr(plan("cuda/1", memory), "its: "));
    emu.others = 2;
    has(plan("cuda/0", (size_t)80e9), "Fits: 80.0 GB are here.");
    has(plan("cuda/2", (size_t)80e9), "Fits: 20.0 GB are here.");
    has(plan("cuda/2", (size_t)80e9), "cuda/2: 64 positions, ");
    has(plan("cuda/3", (size_t)80e9), "There is no such device here to compare with: there are 3, from 0 on.");
    emu.others = 0;
}

/* ---- run and tap ---- */

static void threads(void **state) {
    static const char *const run[] = {"run",      MODEL,  "--ids",     "1", "-n", "1",
                                      "--device", "cuda", "--threads", "2", NULL};
    static const char *const tap[] = {"tap",      MODEL,  "--ids",     "1", "-n", "1",       "-o", "/dev/null",
                                      "--device", "cuda", "--threads", "2", NULL, "--bands", NULL};
    const char *bands[16];
    (void)state;
    assert_int_equal(hd_command(cmd_run, run, out, said), 129);
    one_line("--threads: device cuda has none");
    assert_int_equal(hd_command(cmd_tap, tap, out, said), 129);
    one_line("--threads: device cuda has none; the processor's work on --bands and levers alone");
    memcpy(bands, tap, sizeof tap);
    bands[12] = "--bands"; /* the twin */
    bands[13] = NULL;
    assert_int_equal(hd_command(cmd_tap, bands, out, said), 0);
    nothing_left();
}

/* Taps are counted with the run, before weights are moved; without them the same run is made. */
static void taps(void **state) {
    static const char *const run[] = {"run", MODEL, "--ids", "1,2,3", "-n", "2", "--device", "cuda", NULL};
    static const char *const tap[] = {"tap", MODEL,       "--ids",    "1,2,3", "-n", "2",
                                      "-o",  "/dev/null", "--device", "cuda",  NULL};
    char want[80];
    q4x_err err = {0};
    q4x_need n;
    q4x_net *net = h_net(MODEL);
    (void)state;
    if (q4x_need_of(net, 1, 4, 0, &n, &err)) fail_msg("%s", err.msg);
    q4x_net_close(net);
    emu.memory = n.own + n.tap[Q4X_MODE_SKETCH].least;
    assert_int_equal(hd_command(cmd_tap, tap, out, said), 0);
    emu.memory--;
    assert_int_equal(hd_command(cmd_run, run, out, said), 0);
    const int64_t asked = emu_calls("cudaMalloc");
    const int code = hd_command(cmd_tap, tap, out, said);
    emu.memory = memory;
    print_message("    %s", said);
    assert_int_equal(code, 128);
    assert_true(emu_calls("cudaMalloc") == asked && asked > 0);
    snprintf(want, sizeof want, ", taps %s), 1 B more than the ", q4x_amount(n.tap[Q4X_MODE_SKETCH].least).s);
    one_line(want);
    one_line("use a shorter prompt or fewer ids, fewer taps (--node, --mode hash), a smaller model or --device cpu");
    nothing_left();
}

static int clean(void **state) {
    (void)state;
    h_temp_remove();
    return 0;
}

static int prepare(void **state) {
    (void)state;
    memory = emu.memory;
    snprintf(out, sizeof out, "%s", h_temp(""));
    return setenv("TMPDIR", out, 1);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(silent),  cmocka_unit_test(broken), cmocka_unit_test(lost),
                                       cmocka_unit_test(refused), cmocka_unit_test(fits),   cmocka_unit_test(another),
                                       cmocka_unit_test(threads), cmocka_unit_test(taps)};
    return cmocka_run_group_tests_name("e_door", tests, prepare, clean);
}
