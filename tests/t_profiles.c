/* t_profiles.c: every profile runs on both architectures, none is another under a second name, and those that no
 * reference proved say so. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/h_forward.h"

enum { IDS = 70, STEPS = 2 };

/* A prompt that crosses a chunk, then a token: finite logits, and a sum that tells runs apart. */
static void run(const q4x_net *net, const char *name, float *ret_sum) {
    char spec[64];
    q4x_arm arm;
    q4x_run *r = NULL;
    q4x_err err = {0};
    int32_t ids[IDS + STEPS], rows;
    snprintf(spec, sizeof spec, "cpu/2:as=%s", name);
    assert_rc_ok(q4x_arm_parse(spec, &arm, &err), &err);
    assert_string_equal(arm.profile, name);
    assert_rc_ok(q4x_run_new(net, &arm, IDS + STEPS, 0, &r, &err), &err);
    for (int i = 0; i < IDS + STEPS; i++) ids[i] = 1 + i * 37 % (q4x_net_dims(net)->V - 1);
    *ret_sum = 0;
    for (int f = 0; f < STEPS; f++) {
        assert_rc_ok(q4x_run_forward(r, f ? ids + IDS : ids, f ? 1 : IDS, 0, &err), &err);
        const float *logits = q4x_run_logits(r, &rows);
        for (int32_t i = 0; i < q4x_net_dims(net)->V; i++) {
            if (!isfinite(logits[i])) fail_msg("%s: logit %d is not finite", name, i);
            *ret_sum += fabsf(logits[i]) * (float)(i % 7 + 1);
        }
    }
    q4x_run_free(r);
}

static void all_run(void **state) {
    (void)state;
    static const char *const models[] = {"tests/golden/micro-b", "tests/golden/dense-a"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        q4x_net *net = h_net(models[m]);
        float sum[32];
        assert_true(q4x_nprofiles < 32);
        for (int i = 0; i < q4x_nprofiles; i++) {
            run(net, q4x_profiles[i].name, &sum[i]);
            if (i) assert_false(sum[i] == sum[0]); /* the first is exact */
        }
        q4x_net_close(net);
    }
}

static void none_twice(void **state) {
    (void)state;
    assert_string_equal(q4x_profiles[0].name, "exact");
    assert_string_equal(q4x_profiles[0].items, "");
    for (int i = 0; i < q4x_nprofiles; i++)
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(q4x_profiles[i].name, q4x_profiles[j].name);
            assert_string_not_equal(q4x_profiles[i].items, q4x_profiles[j].items);
        }
}

static void the_unproven_say_so(void **state) {
    (void)state;
    static const char *const unproven[] = {"vllm-cpp-cpu", "vllm-cpp-cuda", "llamacpp-cuda"};
    int n = 0;
    for (int i = 0; i < q4x_nprofiles; i++) {
        int listed = 0;
        for (size_t u = 0; u < sizeof unproven / sizeof *unproven; u++)
            listed |= !strcmp(q4x_profiles[i].name, unproven[u]);
        if (listed != !*q4x_profiles[i].proof)
            fail_msg("%s: proved by '%s'", q4x_profiles[i].name, q4x_profiles[i].proof);
        n += listed;
    }
    assert_int_equal(n, sizeof unproven / sizeof *unproven);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_run), cmocka_unit_test(none_twice),
                                       cmocka_unit_test(the_unproven_say_so)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("profiles", tests, NULL, NULL);
}
