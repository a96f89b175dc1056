/* e_calls.c: every call of the runtime and of cuBLAS that a tapped run makes is refused once, first, in the middle and
 * last, on a device that lives on: the run ends with an error of one line, or, where it may do without, with the same
 * dump; nothing is left behind, also not for the next caller's cudaGetLastError. What gives something back says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/dev.h"
#include "tests/cuda/h_lost.h"
#include "tests/emu/emu.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

#define MODEL "tests/golden/micro-a"
#define SPEC "cuda:gemm=cublas"

/* needed: without it a run ends; else it may go on without. */
static const struct {
    const char *name;
    int needed;
} calls[] = {
    {"cudaRuntimeGetVersion", 0},
    {"cudaDriverGetVersion", 0},
    {"cudaGetDeviceCount", 1},
    {"cudaSetDevice", 0}, /* outputs that stay may be done without */
    {"cudaStreamCreateWithFlags", 1},
    {"cudaHostAlloc", 0}, /* likewise */
    {"cudaHostGetDevicePointer", 1},
    {"cudaGetDriverEntryPointByVersion", 0}, /* no marks */
    {"cudaMemGetInfo", 0},
    {"cudaMalloc", 0},
    {"cudaMemcpyAsync", 1},
    {"cudaMemsetAsync", 0},
    {"cudaStreamSynchronize", 0}, /* the last ones are a teardown's */
    {"cudaDeviceGetStreamPriorityRange", 1},
    {"cudaStreamCreateWithPriority", 1},
    {"cudaEventCreateWithFlags", 1},
    {"cudaEventRecord", 1},
    {"cudaStreamWaitEvent", 1},
    {"launch", 1},
    {"beside", 1},
    {"cuStreamWriteValue32", 1},
    {"cublasCreate", 1},
    {"cublasSetStream", 1},
    {"cublasSetWorkspace", 1},
    {"cublasSetMathMode", 1},
    {"cublasSetAtomicsMode", 1},
    {"cublasGemmEx", 1},
};
enum { CALLS = sizeof calls / sizeof *calls };

static char path[200];
static q4x_hash want;

static int go(q4x_hash *ret, q4x_err *err) {
    const hl_plan p = {.prompt = HL_PROMPT, .forward = -1};
    q4x_dump *d = NULL;
    int rc = hl_tap(MODEL, SPEC, path, &p, err);
    if (rc) return rc;
    rc = q4x_dump_read(path, &d, err);
    if (rc) fail_msg("%s", err->msg);
    *ret = d->content;
    q4x_dump_free(d);
    return 0;
}

static void must_go(const char *after) {
    q4x_err err = {0};
    q4x_hash got;
    if (go(&got, &err)) fail_msg("behind %s: %s", after, err.msg);
    assert_true(q4x_hash_eq(&got, &want));
}

/* The nth call of it. Returns 1 when the run ended. */
static int refuse(int i, int64_t nth) {
    q4x_err err = {0};
    q4x_hash got;
    const int64_t live = emu.live;
    emu.hit = EMU_NOTHING;
    emu_refuse(calls[i].name, nth, strncmp(calls[i].name, "cublas", 6) ? EMU_REFUSED : 13);
    int rc = go(&got, &err);
    emu_refuse(NULL, 0, 0);
    unlink(path);
    if (emu.hit == EMU_NOTHING) fail_msg("%s has no call %lld", calls[i].name, (long long)nth);
    if (emu.live != live || emu.used) fail_msg("%s: left behind: %lld", calls[i].name, (long long)(emu.live - live));
    if (!rc && calls[i].needed) fail_msg("%s, call %lld: nobody saw it", calls[i].name, (long long)nth);
    if (!rc) assert_true(q4x_hash_eq(&got, &want));
    if (rc && (rc != Q4X_E_DEVICE || !(strstr(err.msg, "device cuda") || strstr(err.msg, "lever gemm=cublas")) ||
               strchr(err.msg, '\n')))
        fail_msg("%s: %d: %s", calls[i].name, rc, err.msg);
    return rc != 0;
}

static void each_is_seen(void **state) {
    int64_t first[CALLS], n[CALLS];
    (void)state;
    for (int i = 0; i < CALLS; i++) first[i] = emu_calls(calls[i].name);
    q4x_err err = {0};
    snprintf(path, sizeof path, "%s", h_temp("t.q4d"));
    if (go(&want, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < CALLS; i++) n[i] = emu_calls(calls[i].name) - first[i];
    for (int i = 0; i < CALLS; i++) {
        int ended = 0;
        if (n[i] < 1) fail_msg("%s is not called", calls[i].name);
        ended += refuse(i, 1);
        if (n[i] > 2) ended += refuse(i, n[i] / 2);
        if (n[i] > 1) ended += refuse(i, n[i]);
        print_message("    %s: %lld calls, %d ended\n", calls[i].name, (long long)n[i], ended);
    }
    must_go("all of them");
    h_temp_remove();
}

/* What is there is given back whatever fails, and the first error is told. */
static void a_teardown_says_so(void **state) {
    static const char *const back[] = {NULL,       "cudaSetDevice",     "cudaStreamSynchronize", "cudaEventDestroy",
                                       "cudaFree", "cudaStreamDestroy", "cublasDestroy",         "cudaFreeHost"};
    (void)state;
    for (size_t i = 0; i < sizeof back / sizeof *back; i++) {
        k_dev d;
        char why[200];
        void *room;
        const int64_t live = emu.live;
        assert_int_equal(k_dev_open(0, &d), 0);
        assert_int_equal(k_dev_gemm(&d, why, sizeof why), 0);
        assert_int_equal(k_dev_alloc(&d, 64, &room), 0);
        k_measure_job j = {.kind = K_MEASURE_COPY, .x = room, .rows = 4, .out = (char *)room + 32};
        assert_int_equal(k_dev_measure(&d, &j, 1), 0);
        k_dev_free(&d, room);
        emu_refuse(back[i], 1, EMU_REFUSED);
        const int code = k_dev_close(&d);
        emu_refuse(NULL, 0, 0);
        if ((code != 0) != (back[i] != NULL)) fail_msg("%s: %d", back[i] ? back[i] : "nothing", code);
        /* what was not to be had back is one thing, and the rest is gone */
        const int gives = back[i] && strcmp(back[i], "cudaSetDevice") && strcmp(back[i], "cudaStreamSynchronize");
        assert_int_equal(emu.live - live, gives);
        assert_null(d.stream);
    }
}

/* cuBLAS would be given another device's memory, were it not turned to before. */
static void the_device_is_turned_to(void **state) {
    k_dev d;
    char why[200];
    (void)state;
    assert_int_equal(k_dev_open(0, &d), 0);
    const int64_t live = emu.live;
    emu_refuse("cudaSetDevice", 1, EMU_REFUSED);
    assert_int_equal(k_dev_gemm(&d, why, sizeof why), EMU_REFUSED);
    emu_refuse(NULL, 0, 0);
    assert_true(strstr(why, "device cuda/0") && emu.live == live);
    assert_int_equal(k_dev_gemm(&d, why, sizeof why), 0); /* the twin */
    assert_int_equal(k_dev_close(&d), 0);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_is_seen), cmocka_unit_test(a_teardown_says_so),
                                       cmocka_unit_test(the_device_is_turned_to)};
    return cmocka_run_group_tests_name("e_calls", tests, NULL, NULL);
}
