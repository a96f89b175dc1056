/* t_machine.c: the check at start-up sees a processor in the wrong state; build facts and provenance are complete. */
#include "tests/check.h"

#include <fenv.h>
#include <stdlib.h>

#include "kernels/dev.h"
#include "lib/machine.h"
#include "lib/version.h"

static void test_fit(void **state) {
    (void)state;
    q4x_err err = {0};
    assert_rc_ok(q4x_machine_check(&err), &err);
    volatile float big = 3.0f, r = big / 7.0f; /* sets the inexact flag: sticky flags are no fault */
    (void)r;
    assert_rc_ok(q4x_machine_check(&err), &err);
}

#ifdef __x86_64__
/* The twins: subnormals flushed, denormals as zero, a trap unmasked, rounding upwards. */
static void test_unfit(void **state) {
    (void)state;
    static const unsigned wrong[] = {0x1f80 | 0x8000, 0x1f80 | 0x0040, 0x1f80 & ~0x1000u, 0x1f80 | 0x4000};
    const unsigned good = __builtin_ia32_stmxcsr();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        q4x_err err = {0};
        __builtin_ia32_ldmxcsr(wrong[i]);
        int rc = q4x_machine_check(&err);
        __builtin_ia32_ldmxcsr(good);
        assert_int_equal(rc, Q4X_E_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "MXCSR"));
    }
    fesetround(FE_DOWNWARD);
    int rc = q4x_machine_check(NULL);
    fesetround(FE_TONEAREST);
    assert_int_equal(rc, Q4X_E_UNSUPPORTED);
}
#endif

static void test_build(void **state) {
    (void)state;
    json_t *t = q4x_build_tool();
    static const char *const keys[] = {"version", "commit", "kernels_hash", "compiler", "flags"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *v = json_string_value(json_object_get(t, keys[i]));
        assert_non_null(v);
        assert_true(*v);
    }
    assert_int_equal(json_object_size(t), 5);
    assert_int_equal(strlen(q4x_build.kernels_hash), 32);
    assert_non_null(strstr(q4x_build.flags, "-ffp-contract=off"));
    assert_null(strstr(q4x_build.flags, "fast-math"));
    json_decref(t);
    json_t *libs = q4x_build_libraries();
    assert_int_equal(json_object_size(libs), 7);
    static const char *const text[] = {"pcre2", "utf8proc"}; /* the two come together or not at all */
    for (size_t i = 0; i < 2; i++) {
        const char *v = json_string_value(json_object_get(libs, text[i]));
        assert_non_null(v);
        assert_int_equal(strcmp(v, "none") != 0, q4x_build.text);
    }
    json_decref(libs);
}

static void test_provenance(void **state) {
    (void)state;
    char *argv[] = {(char *)"tap", (char *)"caf\xff", NULL}; /* an argument that is no UTF-8 still leaves a header */
    json_t *f = q4x_build_free(2, 2, argv);
    assert_non_null(f);
    assert_int_equal(json_integer_value(json_object_get(f, "threads")), 2);
    assert_int_equal(json_array_size(json_object_get(f, "args")), 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(f, "args"), 0)), "tap");
    const char *when = json_string_value(json_object_get(f, "time"));
    assert_int_equal(strlen(when), 20);
    char host[256] = "", *text = json_dumps(f, 0);
    FILE *h = fopen("/proc/sys/kernel/hostname", "r");
    if (h && fscanf(h, "%255s", host) == 1 && strlen(host) > 3) assert_null(strstr(text, host));
    if (h) fclose(h);
    free(text);
    json_decref(f);
}

static void test_device(void **state) {
    (void)state;
    k_dev_info d;
    memset(&d, 0xa5, sizeof d);
    k_dev_query(&d);
    assert_int_equal(d.built, q4x_build.cuda);
    if (d.count)
        assert_int_equal(d.error, 0);
    else
        assert_true(d.reason[0]);
    k_dev_desc x;
    assert_int_not_equal(k_dev_describe(d.count, &x), 0);
    for (int i = 0; i < d.count; i++) assert_int_equal(k_dev_describe(i, &x), 0);
    assert_true(q4x_machine_cpus() >= 1);
    assert_true(q4x_machine_resident() > 0 && q4x_machine_resident_peak() >= q4x_machine_resident() / 2);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit),
#ifdef __x86_64__
        cmocka_unit_test(test_unfit),
#endif
        cmocka_unit_test(test_build), cmocka_unit_test(test_provenance), cmocka_unit_test(test_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
