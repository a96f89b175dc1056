/* e_calls.c: every call of the runtime and of cuBLAS that a tapped run makes, its dump finished at the end of a forward
 * or in parts, with tensors larger than what they come through, is refused once, the first one and one in the middle,
 * on a device that lives on: the run ends with an error of one line, or, where it may do without, with the same dump;
 * nothing is left behind, also not for the next caller's cudaGetLastError. What gives something back says so. */
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

/* needed 1: without it a run ends; 0: it may go on without; 2: it may without the first, which is a trial; 3: without
 * any but the first, since the others are for what a dump says of its GPU. */
static const struct {
    const char *name;
    int needed;
} calls[] = {
    {"cudaRuntimeGetVersion", 0},
    {"cudaDriverGetVersion", 0},
    {"cudaGetDeviceCount", 3},
    {"cudaSetDevice", 0}, /* outputs that stay may be done without */
    {"cudaStreamCreateWithFlags", 1},
    {"cudaHostAlloc", 0}, /* likewise */
    {"cudaHostGetDevicePointer", 1},
    {"cudaGetDriverEntryPointByVersion", 0}, /* no marks */
    {"cudaMemGetInfo", 0},
    {"cudaMalloc", 0},
    {"cudaMemcpyAsync", 1},
    {"cudaMemsetAsync", 0},
    {"cudaStreamSynchronize", 1},
    {"cudaDeviceGetStreamPriorityRange", 1},
    {"cudaStreamCreateWithPriority", 1},
    {"cudaEventCreateWithFlags", 1},
    {"cudaEventRecord", 1},
    {"cudaStreamWaitEvent", 1},
    {"cudaEventQuery", 1},
    {"cudaEventSynchronize", 1},
    {"launch", 1},
    {"beside", 1},
    {"cuStreamWriteValue32", 2},
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

static hl_plan plan = {.prompt = HL_PROMPT, .forward = -1};

static int go(q4x_hash *ret, q4x_err *err) {
    q4x_dump *d = NULL;
    int rc = hl_tap(MODEL, SPEC, path, &plan, err);
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
    if (!rc && (calls[i].needed == 1 || (calls[i].needed == 2 && nth > 1) || (calls[i].needed == 3 && nth == 1)))
        fail_msg("%s, call %lld: nobody saw it", calls[i].name, (long long)nth);
    if (!rc) assert_true(q4x_hash_eq(&got, &want));
    if (rc && (rc != Q4X_E_DEVICE || !(strstr(err.msg, "device cuda") || strstr(err.msg, "lever gemm=cublas")) ||
               strchr(err.msg, '\n')))
        fail_msg("%s: %d: %s", calls[i].name, rc, err.msg);
    return rc != 0;
}

static void each_of_a_run(void) {
    int64_t first[CALLS], n[CALLS];
    for (int i = 0; i < CALLS; i++) first[i] = emu_calls(calls[i].name);
    q4x_err err = {0};
    snprintf(path, sizeof path, "%s", h_temp("t.q4d"));
    if (go(&want, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < CALLS; i++) n[i] = emu_calls(calls[i].name) - first[i];
    for (int i = 0; i < CALLS; i++) {
        int ended = 0;
        if (n[i] < 1) fail_msg("%s is not called", calls[i].name);
        ended += refuse(i, 1);
        if (n[i] > 1) ended += refuse(i, n[i] / 2 + 1);
        print_message("    %s: %lld calls, %d ended\n", calls[i].name, (long long)n[i], ended);
    }
    must_go("all of them");
}

static void each_is_seen(void **state) {
    static const int64_t most[] = {0, 1};
    (void)state;
    for (int i = 0; i < 2; i++) {
        print_message("    most %lld\n", (long long)most[i]);
        plan.most = most[i];
        each_of_a_run();
    }
    h_temp_remove();
}

/* A device with all that it may open, at work beside the ops. */
static void open_all(k_dev *d) {
    char why[200];
    void *room, *here;
    assert_int_equal(k_dev_open(0, d), 0);
    assert_int_equal(k_dev_gemm(d, why, sizeof why), 0);
    assert_int_equal(k_dev_alloc(d, 64, &room), 0);
    assert_int_equal(k_dev_pinned(d, 64, &here), 0);
    const k_measure_job j = {.kind = K_MEASURE_COPY, .x = room, .rows = 4, .out = (char *)room + 32};
    const k_dev_copy c = {here, room, 16}, all = {(char *)here + 32, (char *)room + 32, 16};
    assert_int_equal(k_dev_measure(d, &j, 1, &c, 1), 0);
    assert_int_equal(k_dev_collect(d, &all), 0);
    k_dev_unpin(d, here);
    k_dev_free(d, room);
}

/* What is there is given back whatever fails, and the first error is told. */
static void a_teardown_says_so(void **state) {
    static const struct {
        const char *name;
        int gives; /* 1: it gives one thing back, which stays when it is refused; the rest is gone */
    } back[] = {{"cudaSetDevice", 0}, {"cudaStreamWaitEvent", 0}, {"cudaStreamSynchronize", 0}, {"cudaEventDestroy", 1},
                {"cudaFree", 1},      {"cudaStreamDestroy", 1},   {"cublasDestroy", 1},         {"cudaFreeHost", 1}};
    enum { N = sizeof back / sizeof *back };
    int64_t n[N];
    k_dev d;
    (void)state;
    open_all(&d);
    for (int i = 0; i < N; i++) n[i] = emu_calls(back[i].name);
    assert_int_equal(k_dev_close(&d), 0); /* the twin */
    for (int i = 0; i < N; i++) n[i] = emu_calls(back[i].name) - n[i];
    for (int i = 0; i < N; i++) {
        print_message("    %s: %lld calls\n", back[i].name, (long long)n[i]);
        assert_true(n[i] > 0);
        for (int64_t nth = 1; nth <= n[i]; nth++) {
            const int64_t live = emu.live;
            open_all(&d);
            emu_refuse(back[i].name, nth, EMU_REFUSED);
            const int code = k_dev_close(&d);
            emu_refuse(NULL, 0, 0);
            if (!code) fail_msg("%s, call %lld: not told", back[i].name, (long long)nth);
            assert_int_equal(emu.live - live, back[i].gives);
            assert_null(d.stream);
        }
    }
}

/* What a collection, and a question after it, is refused is told by it; the next one is taken. */
static void a_collection_says_so(void **state) {
    static const char *const asked[] = {"cudaSetDevice", "cudaStreamWaitEvent", "cudaMemcpyAsync", "cudaMemsetAsync",
                                        "cudaEventRecord"};
    k_dev d;
    void *room, *here;
    (void)state;
    open_all(&d);
    assert_int_equal(k_dev_alloc(&d, 64, &room), 0);
    assert_int_equal(k_dev_pinned(&d, 64, &here), 0);
    const k_dev_copy c = {here, room, 64};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        emu_refuse(asked[i], 1, EMU_REFUSED);
        assert_int_equal(k_dev_collect(&d, &c), EMU_REFUSED);
        emu_refuse(NULL, 0, 0);
    }
    assert_int_equal(k_dev_collect(&d, &c), 0); /* the twin */
    for (int wait = 0; wait < 2; wait++) {
        emu_refuse(wait ? "cudaEventSynchronize" : "cudaEventQuery", 1, EMU_REFUSED);
        assert_int_equal(k_dev_arrived(&d, d.collected, wait), EMU_REFUSED);
        emu_refuse(NULL, 0, 0);
        assert_int_equal(k_dev_arrived(&d, d.collected, wait), wait ? 0 : K_DEV_NOT_YET);
    }
    k_dev_unpin(&d, here);
    k_dev_free(&d, room);
    assert_int_equal(k_dev_close(&d), 0);
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

/* A state that the device does not give is no state: neither then nor later. */
static void a_state_says_so(void **state) {
    const int32_t ids[] = {3, 5, 9};
    q4x_err err = {0};
    q4x_arm arm;
    q4x_run *r = NULL;
    const k_state *st;
    q4x_net *net = h_net(MODEL);
    (void)state;
    if (q4x_arm_parse("cuda", &arm, &err) || q4x_run_new(net, &arm, 8, 0, &r, &err)) fail_msg("%s", err.msg);
    for (int refused = 0; refused < 2; refused++) { /* the twin first */
        if (q4x_run_forward(r, ids, 3, 0, &err)) fail_msg("%s", err.msg);
        emu_refuse(refused ? "cudaMemcpyAsync" : NULL, 1, EMU_REFUSED);
        assert_int_equal(q4x_run_state(r, 0, &st, &err), refused ? Q4X_E_DEVICE : 0);
        emu_refuse(NULL, 0, 0);
        assert_int_equal(q4x_run_state(r, 0, &st, &err), refused ? Q4X_E_DEVICE : 0);
    }
    assert_string_equal(err.msg,
                        "device cuda/0: state L00.state.conv: refused on demand; run again, or use --device cpu");
    assert_int_equal(q4x_run_forward(r, ids, 1, 0, &err), Q4X_E_DEVICE);
    assert_non_null(strstr(err.msg, "begin a new run"));
    q4x_run_free(r);
    q4x_net_close(net);
}

/* A launch within a product of cuBLAS is seen though the library is content; of a launch and the library that both fail
 * the launch is told, and neither is left for the next caller. */
static void a_launch_of_a_product(void **state) {
    enum { T = 9, K = 32, O = 3 };
    static const k_levers lv = {.gemm = K_GEMM_CUBLAS};
    static const k_dims dims = {.N = 1};
    k_dev d;
    char why[200];
    void *room;
    (void)state;
    assert_int_equal(k_dev_open(0, &d), 0);
    assert_int_equal(k_dev_gemm(&d, why, sizeof why), 0);
    assert_int_equal(k_dev_alloc(&d, 1 << 16, &room), 0);
    assert_int_equal(k_dev_zero(&d, room, 1 << 16), 0);
    float *f = room;
    const k_weight w = {f, O, K, 34, K_T_Q8_0}; /* decoded by a launch of ours */
    k_call c = {.T = T, .Tcall = T, .cols = O, .out = f + 1000, .d = &dims, .lv = &lv};
    c.in[0] = f + 2000, c.in_cols[0] = K;
    c.w[0] = &w, c.nw[0] = 1;
    c.scratch = f + 4000, c.scratch_n = 8192;
    const int64_t gemms = emu.gemms;
    assert_int_equal(k_dev_run(&d, K_OP_matmul, &c), 0);
    assert_int_equal(emu.gemms, gemms + 1);
    emu_refuse("launch", 1, EMU_REFUSED);
    assert_int_equal(k_dev_run(&d, K_OP_matmul, &c), EMU_REFUSED);
    emu_refuse(NULL, 0, 0);
    emu.fail = emu.ops + 1;
    assert_int_equal(k_dev_run(&d, K_OP_matmul, &c), 700);
    emu.fail = 0;
    assert_int_equal(k_dev_run(&d, K_OP_matmul, &c), 0);
    k_dev_free(&d, room);
    assert_int_equal(k_dev_close(&d), 0);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_seen),          cmocka_unit_test(a_teardown_says_so),
        cmocka_unit_test(a_collection_says_so),  cmocka_unit_test(the_device_is_turned_to),
        cmocka_unit_test(a_launch_of_a_product), cmocka_unit_test(a_state_says_so)};
    return cmocka_run_group_tests_name("e_calls", tests, NULL, NULL);
}
