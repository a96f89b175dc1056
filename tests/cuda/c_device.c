/* A device's memory: a clear error with the number when there is too little, nothing left behind after a hundred runs,
 * every other one with full taps and cuBLAS, neither there nor, but for a bound, here; a device that is not there is
 * named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/tap.h"
#include "tests/cuda/emu_door.h"
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
    assert_non_null(strstr(err.msg, " are needed (weights "));
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
    int32_t ids[] = {5, 6, 7, 11, 3, 90, 41, 2, 17}, top_id[2];
    enum { N = sizeof ids / sizeof *ids }; /* more columns than go by matrix x vector */
    float top[2];
    if (open_run(net, spec, &r, &err)) fail_msg("%s", err.msg);
    if (o && q4x_tapset_open(r, net, o, "/dev/null", json_object(), &t, &err)) fail_msg("%s", err.msg);
    if (q4x_run_forward(r, ids, N, 1, &err)) fail_msg("%s", err.msg);
    int32_t next = q4x_run_choose(r, top_id, top);
    if (o && q4x_tapset_forward(t, ids, N, 1, next, &err)) fail_msg("%s", err.msg);
    if (q4x_run_forward(r, &next, 1, 0, &err)) fail_msg("%s", err.msg);
    q4x_tapset_abort(t);
    q4x_run_free(r);
    q4x_net_close(net);
}

/* Bytes of this process that are in memory. */
static int64_t resident(void) {
    long long all = 0, here = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lld %lld", &all, &here), 2);
    fclose(f);
    return here * sysconf(_SC_PAGESIZE);
}

static void runs(int n) {
    const q4x_tap_opts o = {.mode = Q4X_MODE_FULL, .bands = 1};
    for (int i = 0; i < n; i++) once(i % 2 ? "cuda:gemm=cublas" : "cuda:act=bf16", i % 2 ? &o : NULL);
}

/* Of the host's memory what the last half of the runs may add: less than 40 kB each. A state, an arena or a pinned
 * block that stays is more; what a driver gathers for itself and what malloc scatters is less. */
enum { GROWS = 2 << 20 };

static void no_leak(void **s) {
    (void)s;
    runs(4); /* what the driver takes for itself once */
    const uint64_t before = free_bytes();
    const int64_t live = ct_live();
    runs(emulated ? 2 : 50);
    const int64_t half = resident();
    runs(emulated ? 2 : 50);
    const uint64_t after = free_bytes();
    const int64_t grown = resident() - half;
    print_message("free before %llu, after %llu; the host's grew by %lld\n", (unsigned long long)before,
                  (unsigned long long)after, (long long)grown);
    assert_true(after == before);
    assert_true(ct_live() == live);
    assert_true(grown < GROWS);
    /* the twins: a piece that is kept there is seen, and one here */
    void *p, *q;
    assert_int_equal(k_dev_alloc(hp_device(&emulated), 8 << 20, &p), 0);
    assert_true(free_bytes() < before);
    assert_int_equal(k_dev_pinned(hp_device(&emulated), 8 << 20, &q), 0);
    memset(q, 1, 8 << 20);
    assert_true(resident() - half >= GROWS);
    assert_true(live < 0 || ct_live() == live + 2);
    k_dev_free(hp_device(&emulated), p);
    k_dev_unpin(hp_device(&emulated), q);
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
