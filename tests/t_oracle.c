/* t_oracle.c: shapes that no reference output has, against a forward written from the specification alone
 * (tests/oracle/README.md). Every row of `wrong` is the model with one setting changed, and must be found out. */
#include <stdio.h>
#include <string.h>

#include "tests/check.h"
#include "tests/h_oracle.h"

/* Bounds of a sketch's distance, at least three times what the errors of float32 sums do to the record (`fixtures.py
 * --figures`): at call 0; later, and of logits' rows; of fewer than 16 numbers. */
typedef struct {
    const char *name, *file, *arm;
    double first, later, few;
    int64_t choices; /* so many are compared */
} row;

/* A configuration key that is set wrong, in JSON; or another arm. */
typedef struct {
    const char *key, *json, *arm;
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
    if (w->choices) assert_int_equal(r.choices, w->choices);
    return good;
}

static void all(const row *rows, int n, const twin *twins, int ntwins) {
    for (int i = 0; i < n; i++) {
        h_oracle *o = h_oracle_open(rows[i].name, rows[i].file, NULL, NULL);
        if (!sound(&rows[i], o)) fail_msg("%s %s: not as recorded", rows[i].name, rows[i].arm);
        h_oracle_close(o);
    }
    for (int i = 0; i < ntwins; i++) {
        row w = rows[0];
        w.choices = 0;
        if (twins[i].arm) w.arm = twins[i].arm;
        if (twins[i].key) printf("  twin: %s = %s\n", twins[i].key, twins[i].json);
        h_oracle *o = h_oracle_open(w.name, w.file, twins[i].key, twins[i].json);
        if (sound(&w, o)) fail_msg("%s passes, with twin %d", w.name, i);
        h_oracle_close(o);
    }
}

#define SET(k, j)                                                                                                      \
    { .key = (k), .json = (j) }
#define ARM(a)                                                                                                         \
    { .arm = (a) }
#define N(a) (int)(sizeof(a) / sizeof *(a))

static void model_c(void **state) {
    (void)state;
    static const row rows[] = {{"c", "f32", "cpu", 2e-5, 2e-5, 3e-4, 890},
                               {"c", "f32", "cpu:gdn=chunk64,moe.combine=experts", 2e-5, 2e-5, 3e-4, 890}};
    static const twin twins[] = {SET("output_gate_type", "\"sigmoid\""),
                                 SET("norm_topk_prob", "true"),
                                 SET("indexer_budget", "12"),
                                 SET("eos_token_id", "8"),
                                 SET("rms_norm_eps", "1e-6"),
                                 SET("rope_parameters.rope_theta", "5100.0"),
                                 ARM("cpu:plant=nan@L02.moe.act#3"),
                                 ARM("cpu:rope.freq=bf16")};
    all(rows, N(rows), twins, N(twins));
}

static void model_d(void **state) {
    (void)state;
    static const row rows[] = {{"d", "f32", "cpu", 2e-5, 2e-5, 3e-4, 962},
                               {"d", "f32", "cpu:gdn=chunk64,moe.combine=experts", 2e-5, 2e-5, 3e-4, 962}};
    static const twin twins[] = {SET("output_gate_type", "null"), SET("norm_topk_prob", "false"),
                                 SET("indexer_budget", "6"), SET("eos_token_id", "[2, 4]")};
    all(rows, N(rows), twins, N(twins));
}

static void model_e(void **state) {
    (void)state;
    static const row rows[] = {{"e", "f32", "cpu", 2e-5, 2e-5, 2e-5, 0},
                               {"e", "f32", "cpu:gdn=chunk64", 2e-5, 2e-5, 2e-5, 0}};
    static const twin twins[] = {SET("rope_parameters.partial_rotary_factor", "0.35"), SET("rms_norm_eps", "1e-6"),
                                 ARM("cpu:gdn.gate=sigmoid"), ARM("cpu:plant=swap@L03.gdn.k#2")};
    all(rows, N(rows), twins, N(twins));
}

static void ple(void **state) {
    (void)state;
    static const row rows[] = {{"ple", "f32", "cpu", 3e-6, 3e-6, 3e-6, 428},
                               {"ple", "bf16", "cpu:act=bf16", 5e-4, 5e-4, 5e-4, 428}};
    static const twin twins[] = {SET("eos_token_id", "6"), SET("rms_norm_eps", "1e-5"), ARM("cpu:act=bf16")};
    all(rows, N(rows), twins, N(twins));
}

/* One block of 4 more or fewer than 512. */
static const twin budget[] = {SET("indexer_budget", "2052"), SET("indexer_budget", "2044")};

static void sparse_2(void **state) {
    (void)state;
    static const row rows[] = {{"qsa2", "f32", "cpu", 3e-6, 3e-6, 3e-6, 529935}};
    all(rows, N(rows), budget, N(budget));
}

/* Ten times the work. */
static void sparse_24(void **state) {
    (void)state;
    static const row rows[] = {{"qsa", "f32", "cpu", 3e-6, 3e-6, 3e-6, 529935}};
    all(rows, N(rows), budget, N(budget));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(model_c),  cmocka_unit_test(model_d),
                                       cmocka_unit_test(model_e),  cmocka_unit_test(ple),
                                       cmocka_unit_test(sparse_2), cmocka_unit_test(sparse_24)};
    const int is_long = argc > 1 && !strcmp(argv[1], "long");
    if (argc == 1) cmocka_set_skip_filter("sparse_24");
    if (argc > 1 && !is_long) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
