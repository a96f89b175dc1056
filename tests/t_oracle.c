/* t_oracle.c: shapes that no reference output has, against a forward written from the specification alone
 * (tests/oracle/README.md). Every row of `wrong` is the model with one setting changed, and must be found out. */
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/h_oracle.h"

/* Bounds of a sketch's distance: at call 0, later, of fewer than 16 numbers, and of logits' rows. */
typedef struct {
    const char *name, *file, *arm;
    double first, later, few;
    int64_t choices; /* at least so many were compared */
} row;

/* A configuration key that is set wrong, JSON. */
typedef struct {
    const char *name, *key, *json;
} twin;

static int sound(const row *w, const h_oracle *o) {
    h_oracle_run_result r = h_oracle_run(o, w->arm);
    const int good = r.sketches == r.wanted && r.first.rel <= w->first && r.later.rel <= w->later &&
                     r.few.rel <= w->few && r.logits.rel <= w->later && !r.differ && r.ids_equal == r.ids;
    printf("  %-4s %-4s %-36s %4lld sketches  first %.1e (%s)  later %.1e (%s)  few %.1e (%s)  logits %.1e\n", w->name,
           w->file, w->arm, (long long)r.sketches, r.first.rel, r.first.at, r.later.rel, r.later.at, r.few.rel,
           r.few.at, r.logits.rel);
    printf("       %s: %lld choices, %lld differ %s, ids %d/%d\n", good ? "equal" : "not equal", (long long)r.choices,
           (long long)r.differ, r.differ_at, r.ids_equal, r.ids);
    assert_true(r.choices >= w->choices);
    return good;
}

static void all(const row *rows, int n, const twin *twins, int ntwins) {
    for (int i = 0; i < n; i++) {
        h_oracle *o = h_oracle_open(rows[i].name, rows[i].file, NULL, NULL);
        if (!sound(&rows[i], o)) fail_msg("%s %s: not as recorded", rows[i].name, rows[i].arm);
        h_oracle_close(o);
    }
    for (int i = 0; i < ntwins; i++) {
        printf("  twin: %s = %s\n", twins[i].key, twins[i].json);
        row w = rows[0];
        w.choices = 0;
        h_oracle *o = h_oracle_open(w.name, w.file, twins[i].key, twins[i].json);
        if (sound(&w, o)) fail_msg("%s with %s %s passes", w.name, twins[i].key, twins[i].json);
        h_oracle_close(o);
    }
}

#define N(a) (int)(sizeof(a) / sizeof *(a))

static void model_c(void **state) {
    (void)state;
    static const row rows[] = {{"c", "f32", "cpu", 2e-5, 1e-4, 1e-3, 800},
                               {"c", "f32", "cpu:gdn=chunk64,moe.combine=experts", 2e-5, 1e-4, 1e-3, 800}};
    static const twin twins[] = {{"c", "output_gate_type", "\"sigmoid\""},
                                 {"c", "norm_topk_prob", "true"},
                                 {"c", "indexer_budget", "12"},
                                 {"c", "eos_token_id", "8"},
                                 {"c", "rms_norm_eps", "1e-6"},
                                 {"c", "rope_parameters.rope_theta", "5100.0"}};
    all(rows, N(rows), twins, N(twins));
}

static void model_d(void **state) {
    (void)state;
    static const row rows[] = {{"d", "f32", "cpu", 2e-5, 1e-4, 1e-3, 500},
                               {"d", "f32", "cpu:gdn=chunk64,moe.combine=experts", 2e-5, 1e-4, 1e-3, 500}};
    static const twin twins[] = {{"d", "output_gate_type", "null"},
                                 {"d", "norm_topk_prob", "false"},
                                 {"d", "indexer_budget", "6"},
                                 {"d", "eos_token_id", "[2, 4]"}};
    all(rows, N(rows), twins, N(twins));
}

static void ple(void **state) {
    (void)state;
    static const row rows[] = {{"ple", "f32", "cpu", 2e-6, 2e-6, 2e-6, 23 * 16},
                               {"ple", "bf16", "cpu:act=bf16", 1e-3, 1e-3, 1e-3, 23 * 16}};
    static const twin twins[] = {{"ple", "eos_token_id", "6"}, {"ple", "rms_norm_eps", "1e-3"}};
    all(rows, N(rows), twins, N(twins));
}

static void qsa(void **state) {
    (void)state;
    static const row rows[] = {{"qsa", "f32", "cpu", 2e-6, 2e-6, 2e-6, 500000}};
    static const twin twins[] = {{"qsa", "indexer_budget", "2052"}};
    all(rows, N(rows), twins, N(twins));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(model_c), cmocka_unit_test(model_d), cmocka_unit_test(ple),
                                       cmocka_unit_test(qsa)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
