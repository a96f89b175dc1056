/* A device's memory: a clear error with the number when there is too little, nothing left behind after a hundred runs,
 * every other one with taps; a device that is not there is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/tap.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_forward.h"

static const char *path = "tests/golden/micro-a";
static int emulated;

static int open_run(const q4x_net *net, const char *spec, q4x_run **ret, q4x_err *err) {
    q4x_arm arm;
    int rc = q4x_arm_parse(spec, &arm, err);
    return rc ? rc : q4x_run_new(net, &arm, 64, 0, ret, err);
}

static uint64_t free_bytes(void) {
    uint64_t there, total;
    assert_int_equal(k_dev_memory(hp_device(&emulated), &there, &total), 0);
    return there;
}

/* All but `leave` bytes of the device are taken in pieces; then a run is asked for. */
static void too_little(void **s) {
    void *piece[64];
    int n = 0;
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_net *net = h_net(path);
    k_dev *d = hp_device(&emulated);
    const uint64_t leave = 8 << 20;
    (void)s;
    for (uint64_t size = free_bytes(); size > leave && n < 64; size /= 2)
        while (n < 64 && free_bytes() > leave + size && !k_dev_alloc(d, size, &piece[n])) n++;
    int rc = open_run(net, "cuda", &r, &err);
    while (n) k_dev_free(d, piece[--n]);
    print_message("%s\n", rc ? err.msg : "(accepted)");
    assert_int_equal(rc, Q4X_E_DEVICE);
    assert_non_null(strstr(err.msg, "MiB are needed"));
    assert_null(r);
    /* the twin: with the memory back it is accepted */
    assert_int_equal(open_run(net, "cuda", &r, &err), 0);
    q4x_run_free(r);
    q4x_net_close(net);
}

static void not_there(void **s) {
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_net *net = h_net(path);
    (void)s;
    assert_int_equal(open_run(net, "cuda/777", &r, &err), Q4X_E_DEVICE);
    assert_non_null(strstr(err.msg, "cuda/777"));
    q4x_net_close(net);
}

/* o: with these taps; NULL: none. */
static void once(const char *spec, const q4x_tap_opts *o) {
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_tapset *t = NULL;
    q4x_net *net = h_net(path);
    int32_t ids[] = {5, 6, 7}, top_id[2];
    float top[2];
    if (open_run(net, spec, &r, &err)) fail_msg("%s", err.msg);
    if (o && q4x_tapset_open(r, net, o, "/dev/null", json_object(), &t, &err)) fail_msg("%s", err.msg);
    if (q4x_run_forward(r, ids, 3, 1, &err)) fail_msg("%s", err.msg);
    int32_t next = q4x_run_choose(r, top_id, top);
    if (o && q4x_tapset_forward(t, ids, 3, 1, next, &err)) fail_msg("%s", err.msg);
    if (q4x_run_forward(r, &next, 1, 0, &err)) fail_msg("%s", err.msg);
    q4x_tapset_abort(t);
    q4x_run_free(r);
    q4x_net_close(net);
}

static void no_leak(void **s) {
    const q4x_tap_opts o = {.mode = Q4X_MODE_FULL, .bands = 1};
    (void)s;
    for (int i = 0; i < 3; i++) once("cuda", &o); /* what the driver takes for itself once */
    const uint64_t before = free_bytes();
    for (int i = 0; i < (emulated ? 6 : 100); i++) once(i % 2 ? "cuda" : "cuda:act=bf16", i % 2 ? &o : NULL);
    const uint64_t after = free_bytes();
    print_message("free before %llu, after %llu\n", (unsigned long long)before, (unsigned long long)after);
    assert_true(after == before);
    /* the twin: a piece that is kept is seen */
    void *p;
    assert_int_equal(k_dev_alloc(hp_device(&emulated), 8 << 20, &p), 0);
    assert_true(free_bytes() < before);
    k_dev_free(hp_device(&emulated), p);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(too_little), cmocka_unit_test(not_there),
                                       cmocka_unit_test(no_leak)};
    if (argc > 1) path = argv[1];
    hp_device(&emulated);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hp_close();
    return failed;
}
