/* t_dump_oom.c: writing, reading, decoding and exporting a dump when the n-th allocation fails, for every n:
 * Q4X_E_NOMEM, nothing leaked, no file left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/h_dump.h"
#include "tests/h_oom.h"

static const q4x_dump *made;
static uint8_t *bytes;
static size_t nbytes;

static int do_write(q4x_err *err) {
    return h_dump_write(made, h_temp("w.q4d"), NULL, err);
}

static int do_read(q4x_err *err) {
    q4x_dump *d = NULL;
    int rc = q4x_dump_read_mem(bytes, nbytes, "x.q4d", &d, err);
    for (int32_t f = 0; !rc && f < d->nforwards; f++)
        for (int32_t k = 0; !rc && k < d->forwards[f].ntaps; k++) rc = q4x_dump_full(d, &d->forwards[f].taps[k], err);
    q4x_dump_free(d);
    return rc;
}

static int do_export(q4x_err *err) {
    return q4x_dump_export(made, h_temp("x.safetensors"), NULL, err);
}

static int do_sketch(q4x_err *err) {
    q4x_tapstat *s = q4x_tapstat_new();
    if (!s) return q4x_fail(err, Q4X_E_NOMEM, "no memory");
    int rc = q4x_tapstat_begin(s, 3, 600, 0, 3, 1);
    if (!rc) rc = q4x_tapstat_begin(s, 20, 300, 0, 20, 1);
    if (!rc) rc = q4x_tapstat_begin(s, 20, 5000, 0, 20, 1);
    q4x_tapstat_free(s);
    return rc ? q4x_fail(err, rc, "no memory") : 0;
}

static void sweep(int (*what)(q4x_err *err), int least) {
    int n = 0, jansson = 0;
    for (;; n++) {
        q4x_err err = {0};
        long before = h_live;
        h_left = n;
        int rc = what(&err);
        h_left = -1;
        assert_int_equal(h_live, before);
        if (!rc) break;
        /* some failures within jansson's parser come back as a syntax error */
        if (rc == Q4X_E_FORMAT && strstr(err.msg, "header: expected JSON") && jansson++ < 40) continue;
        if (rc != Q4X_E_NOMEM) fail_msg("allocation %d: %d %s", n, rc, err.msg);
        assert_true(err.code == Q4X_E_NOMEM && strstr(err.msg, "no memory"));
        assert_int_equal(h_temp_count(), 0);
    }
    h_temp_remove();
    print_message("    %d allocations, each failed once\n", n);
    assert_true(n >= least);
}

static void test_oom(void **state) {
    (void)state;
    if (!H_OWN_MALLOC) {
        print_message("    a sanitizer owns malloc\n");
        skip();
    }
    h_dump_opts o = h_dump_small;
    o.full = 1;
    o.forwards = 17; /* beyond the first size of every table */
    o.rows = 1;
    q4x_dump *d = h_dump_make(&o);
    q4x_err err = {0};
    made = d;
    assert_int_equal(h_dump_write(d, h_temp("a.q4d"), NULL, &err), 0);
    bytes = h_file_read(h_temp("a.q4d"), &nbytes);
    h_temp_remove();
    h_temp("x"); /* make the folder */
    sweep(do_read, 100);
    d->nforwards = 2; /* more of them ask for nothing new */
    sweep(do_write, 100);
    sweep(do_export, 100);
    d->nforwards = 17;
    sweep(do_sketch, 6);
    free(bytes);
    q4x_dump_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_oom)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
