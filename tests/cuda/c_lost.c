/* A device is lost in the middle of a forward: the run ends with the node and the forward by name, the dump holds the
 * forwards before it, and what is asked of the device after that is refused. A process has one device to lose: this is
 * the only test of its program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "tests/cuda/h_lost.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

#define MODEL "tests/golden/micro-a"
enum { AT = 2 }; /* forward */

/* A node in the middle of the plan behind which the device has work at once; *after: that work's node. */
static int middle(char after[128]) {
    q4x_net *net = h_net(MODEL);
    const q4x_plan *p = q4x_net_plan(net);
    int i = p->nnodes / 2;
    while (p->node[i].op == K_OP_alias || p->node[i + 1].op == K_OP_alias || k_dev_on_host((int32_t)p->node[i].op) ||
           k_dev_on_host((int32_t)p->node[i + 1].op))
        i++;
    snprintf(after, 128, "%s", p->node[i + 1].name);
    q4x_net_close(net);
    return i;
}

static void lost(void **state) {
    q4x_err err = {0}, later = {0};
    q4x_dump *want = NULL;
    char dump[200], where[200], after[128];
    int emulated;
    (void)state;
    hp_device(&emulated);
    snprintf(dump, sizeof dump, "%s", h_temp("want.q4d"));
    if (hl_tap(MODEL, "cpu", dump, -1, 0, &err) || q4x_dump_read(dump, &want, &err)) fail_msg("%s", err.msg);
    snprintf(dump, sizeof dump, "%s", h_temp("lost.q4d"));
    const int node = middle(after);
    assert_int_equal(hl_tap(MODEL, "cuda", dump, AT, node, &err), Q4X_E_DEVICE);
    print_message("%s\n", err.msg);
    snprintf(where, sizeof where, "lost.q4d: cut behind %d whole forwards: device cuda/0: node %s, forward %d: ", AT,
             after, AT);
    assert_non_null(strstr(err.msg, where));
    assert_null(strchr(err.msg, '\n'));
    hl_is_cut(dump, want, AT);
    assert_int_equal(h_temp_count(), 2); /* nothing under another name */
    /* what comes after it is an error too, and the host still works */
    assert_int_equal(hl_tap(MODEL, "cuda", dump, -1, 0, &later), Q4X_E_DEVICE);
    print_message("%s\n", later.msg);
    hl_is_cut(dump, want, AT); /* and what was written stays */
    if (hl_tap(MODEL, "cpu", dump, -1, 0, &err)) fail_msg("%s", err.msg);
    q4x_dump_free(want);
    h_temp_remove();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lost)};
    return cmocka_run_group_tests_name("lost", tests, NULL, NULL);
}
