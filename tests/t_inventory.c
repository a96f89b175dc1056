/* t_inventory.c: the table of tensors adds up, and groups what is alike. */
#include "tests/check.h"

#include <stdlib.h>

#include "lib/inventory.h"

static void check_file(const char *path, const char *group, int64_t tensors) {
    q4x_err err = {0};
    q4x_model *m;
    q4x_group *g;
    int n;
    assert_rc_ok(q4x_model_open(path, &m, &err), &err);
    assert_rc_ok(q4x_inventory(m, &g, &n, &err), &err);
    int64_t count = 0, found = 0;
    uint64_t bytes = 0, want = 0;
    for (int64_t i = 0; i < q4x_model_ntensors(m); i++) want += q4x_model_tensor(m, i)->bytes;
    for (int i = 0; i < n; i++) {
        count += g[i].n;
        bytes += g[i].bytes;
        if (!strcmp(g[i].name, group)) found += g[i].n;
        for (int j = 0; j < i; j++) assert_false(g[i].type == g[j].type && !strcmp(g[i].name, g[j].name));
    }
    assert_int_equal(count, q4x_model_ntensors(m));
    assert_true(bytes == want);
    assert_int_equal(found, tensors);
    assert_true(n < count / 2);
    int kinds = q4x_inventory_by_type(g, n);
    uint64_t again = 0;
    for (int i = 0; i < kinds; i++) {
        again += g[i].bytes;
        if (i) assert_true(g[i].bytes <= g[i - 1].bytes && g[i].type != g[i - 1].type);
    }
    assert_true(again == want);
    free(g);
    q4x_model_close(m);
}

static void test_gguf(void **state) {
    (void)state;
    check_file("tests/models/micro-a-bf16.gguf", "blk.*.ffn_gate_inp.weight", 4);
}

static void test_checkpoint(void **state) {
    (void)state;
    check_file("tests/golden/micro-a", "model.layers.*.mlp.experts.*.up_proj.weight", 32);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gguf), cmocka_unit_test(test_checkpoint)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
