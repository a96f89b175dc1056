/* A device is lost in the middle of a forward, by a kernel that nobody waits for: the run, which is ahead of it, ends
 * with the node and the forward by name, the dump holds the forwards before it, and what is asked of the device after
 * that is refused. With the argument "taps" it is the jobs of the taps that fail, beside the ops, and they are named. A
 * process has one device to lose: one test a program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "tests/cuda/emu_door.h"
#include "tests/cuda/h_lost.h"
#include "tests/cuda/h_pair.h"
#include "tests/cuda/lose.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

#define MODEL "tests/golden/micro-a"
enum { AT = 2 }; /* forward */

/* A node in the middle of the plan behind which the device has work at once; *after: that work's node; *at: its own. */
static int middle(char at[128], char after[128]) {
    q4x_net *net = h_net(MODEL);
    const q4x_plan *p = q4x_net_plan(net);
    int i = p->nnodes / 2;
    while (p->node[i].op == K_OP_alias || p->node[i + 1].op == K_OP_alias || k_dev_on_host((int32_t)p->node[i].op) ||
           k_dev_on_host((int32_t)p->node[i + 1].op))
        i++;
    snprintf(at, 128, "%s", p->node[i].name);
    snprintf(after, 128, "%s", p->node[i + 1].name);
    q4x_net_close(net);
    return i;
}

/* An op that fails is the node at work, whatever the taps did beside it; jobs of the taps are those behind the node
 * before which they were enqueued, whatever op was at work meanwhile. */
static void is_named(const char *msg, int measuring, const char *at, const char *after) {
    char where[300], end[40], or [300];
    snprintf(end, sizeof end, ", forward %d: ", AT);
    snprintf(where, sizeof where, "lost.q4d: cut behind %d whole forwards: device cuda/0: %s%s", AT,
             measuring ? "" : "node ", measuring ? "" : after);
    const char *p = strstr(msg, where);
    if (!p) fail_msg("expected: %s", where);
    p += strlen(where);
    snprintf(where, sizeof where, "taps behind node %s%s", at, end);
    snprintf(or, sizeof or, " or taps behind node ");
    if (measuring)
        assert_non_null(strstr(p, where));
    else
        assert_true(!strncmp(p, end, strlen(end)) || !strncmp(p, or, strlen(or)));
}

static int measuring;

static void lost(void **state) {
    q4x_err err = {0}, later = {0};
    q4x_dump *want = NULL;
    char dump[200], at[128], after[128];
    int emulated;
    (void)state;
    hp_device(&emulated);
    ct_early(!measuring); /* the host is ahead of what fails */
    snprintf(dump, sizeof dump, "%s", h_temp("want.q4d"));
    if (hl_tap(MODEL, "cpu", dump, &hl_none, &err) || q4x_dump_read(dump, &want, &err)) fail_msg("%s", err.msg);
    snprintf(dump, sizeof dump, "%s", h_temp("lost.q4d"));
    const hl_plan p = {.forward = AT, .node = middle(at, after), .lose = measuring ? ct_lose_measuring : ct_lose};
    assert_int_equal(hl_tap(MODEL, "cuda", dump, &p, &err), Q4X_E_DEVICE);
    print_message("%s\n", err.msg);
    is_named(err.msg, measuring, at, after);
    assert_null(strchr(err.msg, '\n'));
    hl_is_cut(dump, want, AT);
    assert_int_equal(h_temp_count(), 2); /* nothing under another name */
    /* what comes after it is an error too, and the host still works */
    assert_int_equal(hl_tap(MODEL, "cuda", dump, &hl_none, &later), Q4X_E_DEVICE);
    print_message("%s\n", later.msg);
    hl_is_cut(dump, want, AT); /* and what was written stays */
    if (hl_tap(MODEL, "cpu", dump, &hl_none, &err)) fail_msg("%s", err.msg);
    q4x_dump_free(want);
    h_temp_remove();
}

int main(int argc, char **argv) {
    measuring = argc > 1 && !strcmp(argv[1], "taps");
    const struct CMUnitTest tests[] = {cmocka_unit_test(lost)};
    return cmocka_run_group_tests_name("lost", tests, NULL, NULL);
}
