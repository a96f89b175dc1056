/* t_convert_oom.c: converting when an allocation fails, whichever: Q4X_E_NOMEM, nothing leaked, no file left. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/convert.h"
#include "tests/check.h"
#include "tests/h_oom.h"

static char dir[] = "/tmp/q4x-cvo-XXXXXX";

static void test_oom(void **state) {
    (void)state;
    if (!H_OWN_MALLOC) {
        print_message("    a sanitizer owns malloc\n");
        skip();
    }
    char path[64];
    q4x_model *m;
    q4x_err err = {0};
    assert_rc_ok(q4x_model_open("tests/golden/micro-a", &m, &err), &err);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    int tried = 0, n = 0;
    for (;; n += 1 + n / 64, tried++) { /* every one of the first, some of the many that tensors make */
        q4x_convert_done done;
        long before = h_live;
        h_left = n;
        int rc = q4x_convert(m, path, &(q4x_convert_opts){.type = Q4X_FT_BF16, .name = "m", .nth = 1}, &done, &err);
        h_left = -1;
        assert_int_equal(h_live, before);
        if (!rc) break;
        assert_int_equal(rc, Q4X_E_NOMEM);
        assert_true(err.code == Q4X_E_NOMEM && strstr(err.msg, "no memory"));
        assert_int_equal(rmdir(dir), 0); /* it is empty */
        assert_int_equal(mkdir(dir, 0700), 0);
    }
    print_message("    %d of %d allocations failed\n", tried, n);
    assert_true(tried >= 100);
    q4x_model_close(m);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_oom)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
