/* t_run_oom.c: a run is made when the n-th allocation fails, for every n: one line that says how many bytes of what are
 * missing and what to do, nothing leaked. And the words for bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/amount.h"
#include "lib/run.h"
#include "tests/check.h"
#include "tests/h_forward.h"
#include "tests/h_oom.h"

#define MODEL "tests/golden/dense-a"

static void amounts(void **state) {
    static const struct {
        uint64_t bytes;
        const char *text;
    } want[] = {{0, "0 B"},
                {1, "1 B"},
                {999, "999 B"},
                {1000, "1.00 kB"},
                {9994, "9.99 kB"},
                {9995, "10.0 kB"},
                {99949, "99.9 kB"},
                {99950, "100 kB"},
                {999499, "999 kB"},
                {999500, "1.00 MB"},
                {67031808, "67.0 MB"},
                {33554432, "33.6 MB"},
                {72542108640, "72.5 GB"},
                {UINT64_MAX, "18.4 EB"}};
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_string_equal(q4x_amount(want[i].bytes).s, want[i].text);
}

static void every_allocation(void **state) {
    int arena = 0, scratch = 0, n = 0;
    (void)state;
    if (!H_OWN_MALLOC) skip();
    q4x_net *net = h_net(MODEL);
    for (int rc = Q4X_E_NOMEM; rc; n++) {
        q4x_arm arm;
        q4x_err err = {0};
        q4x_run *r = NULL;
        char text[120];
        assert_int_equal(q4x_arm_parse("cpu/1", &arm, &err), 0);
        const long before = h_live;
        h_left = n;
        h_failed = 0;
        rc = q4x_run_new(net, &arm, 1, 0, &r, &err);
        h_left = -1;
        assert_true(rc == (h_failed ? Q4X_E_NOMEM : 0));
        if (!rc) q4x_run_free(r);
        assert_true(h_live == before);
        if (!rc) break;
        assert_null(strstr(err.msg, " 0 "));
        snprintf(text, sizeof text, ", where the outputs of %d nodes lie; end other programs, or raise the limit",
                 q4x_net_plan(net)->nnodes);
        arena += !strncmp(err.msg, "arena: no memory for ", 21) && strstr(err.msg, " kB, ") && strstr(err.msg, text);
        scratch +=
            !strncmp(err.msg, "run: no memory for ", 19) && strstr(err.msg, " kB of scratch; use a smaller context");
    }
    print_message("    %d allocations\n", n);
    assert_true(arena >= 2 && scratch == 1 && n > 6);
    q4x_net_close(net);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(amounts), cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
