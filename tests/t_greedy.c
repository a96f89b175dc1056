/* t_greedy.c: the loop of forwards: how many, what each consumes, where it stops, the best two of a row. */
#include "tests/check.h"

#include <math.h>

#include "lib/greedy.h"

static void test_top2(void **state) {
    (void)state;
    int32_t id[2];
    float v[2];
    const float tie[] = {1, 3, 2, 3, 3}, nan[] = {NAN, -INFINITY, NAN, -1}, one[] = {-0.0f}, falling[] = {5, 4, 3};
    q4x_top2(tie, 5, id, v);
    assert_true(id[0] == 1 && id[1] == 3 && v[0] == 3 && v[1] == 3); /* the lower index first */
    q4x_top2(nan, 4, id, v);
    assert_true(id[0] == 3 && id[1] == 1);
    q4x_top2(nan, 1, id, v);
    assert_true(id[0] == 0 && isnan(v[0]) && id[1] == -1);
    q4x_top2(one, 1, id, v);
    assert_true(id[0] == 0 && id[1] == -1 && isnan(v[1]));
    q4x_top2(falling, 3, id, v);
    assert_true(id[0] == 0 && id[1] == 1);
    q4x_top2(falling, 0, id, v);
    assert_true(id[0] == -1 && id[1] == -1);
}

static void test_nonfinite(void **state) {
    (void)state;
    const float x[] = {1, NAN, -INFINITY, -0.0f, INFINITY, 3e38f, 1e-45f, -NAN};
    assert_int_equal(q4x_nonfinite(x, 8), 4);
    assert_int_equal(q4x_nonfinite(x, 1), 0);
    assert_int_equal(q4x_nonfinite(x, 0), 0);
}

enum { MOST = 16 };
typedef struct {
    int n;
    int32_t first[MOST], count[MOST], chosen[MOST], forced[MOST];
    double margin[MOST];
    int32_t nonfinite[MOST];
    int stop_at; /* return an error in this forward */
} seen;

static int on_step(void *ctx, const q4x_step *s, q4x_err *err) {
    seen *k = ctx;
    assert_int_equal(s->forward, k->n);
    assert_in_range(s->forward, 0, MOST - 1);
    k->first[k->n] = s->ids[0];
    k->count[k->n] = s->n_ids;
    k->chosen[k->n] = s->chosen;
    k->forced[k->n] = s->forced;
    k->margin[k->n] = s->margin;
    k->nonfinite[k->n] = s->nonfinite;
    assert_int_equal(s->vocab, 1024);
    k->n++;
    return k->n == k->stop_at ? q4x_fail(err, Q4X_E_IO, "no more") : 0;
}

static const int32_t PROMPT[] = {366, 380, 486, 573, 261};
static q4x_net *net;

static int open_net(void **state) {
    (void)state;
    q4x_err err = {0};
    int rc = q4x_net_open("tests/models/demo.gguf", &net, &err);
    if (rc) print_error("%s\n", err.msg);
    return rc;
}

static int close_net(void **state) {
    (void)state;
    q4x_net_close(net);
    return 0;
}

static int go(q4x_greedy_opts o, seen *k, q4x_err *err) {
    q4x_arm arm;
    q4x_run *r;
    q4x_arm_default(&arm);
    o.prompt = PROMPT;
    assert_rc_ok(q4x_run_new(net, &arm, 32, 0, &r, err), err);
    int rc = q4x_greedy(r, &o, on_step, k, err);
    q4x_run_free(r);
    return rc;
}

static void test_chosen(void **state) {
    (void)state;
    q4x_err err = {0};
    seen k = {0};
    assert_rc_ok(go((q4x_greedy_opts){.n_prompt = 5, .n = 4}, &k, &err), &err);
    assert_int_equal(k.n, 4); /* n ids take n forwards */
    assert_int_equal(k.count[0], 5);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(k.count[i], 1);
        assert_int_equal(k.first[i], k.chosen[i - 1]);
        assert_int_equal(k.forced[i], 0);
        assert_true(k.margin[i] >= 0);
    }
}

static void test_forced(void **state) {
    (void)state;
    q4x_err err = {0};
    static const int32_t force[] = {7, 9};
    seen free_run = {0}, k = {0};
    assert_rc_ok(go((q4x_greedy_opts){.n_prompt = 5, .n = 4}, &free_run, &err), &err);
    assert_rc_ok(go((q4x_greedy_opts){.n_prompt = 5, .n = 4, .force = force, .n_force = 2}, &k, &err), &err);
    assert_int_equal(k.n, 4);
    assert_true(k.first[1] == 7 && k.first[2] == 9 && k.forced[1] && k.forced[2] && !k.forced[3]);
    assert_int_equal(k.chosen[0], free_run.chosen[0]); /* what is fed later changes nothing before */
    assert_int_equal(k.first[3], k.chosen[2]);         /* when the given ids are used up, the chosen ones go on */
}

static void test_stop(void **state) {
    (void)state;
    q4x_err err = {0};
    seen all = {0}, k = {0};
    assert_rc_ok(go((q4x_greedy_opts){.n_prompt = 5, .n = 6}, &all, &err), &err);
    int32_t stop = all.chosen[2];
    int first = 0;
    while (all.chosen[first] != stop) first++;
    assert_rc_ok(go((q4x_greedy_opts){.n_prompt = 5, .n = 6, .stop = &stop, .n_stop = 1}, &k, &err), &err);
    assert_int_equal(k.n, first + 1); /* the id that stops is made, and is the last */
    assert_int_equal(k.chosen[k.n - 1], stop);
}

static void test_one_by_one(void **state) {
    (void)state;
    q4x_err err = {0};
    seen all = {0}, k = {0};
    assert_rc_ok(go((q4x_greedy_opts){.n_prompt = 5, .n = 3}, &all, &err), &err);
    assert_rc_ok(go((q4x_greedy_opts){.n_prompt = 5, .n = 3, .one_by_one = 1}, &k, &err), &err);
    assert_int_equal(k.n, 7);
    assert_int_equal(k.chosen[0], -1);
    for (int i = 0; i < 3; i++) assert_int_equal(k.chosen[4 + i], all.chosen[i]);
}

static void test_refused(void **state) {
    (void)state;
    q4x_err err = {0};
    seen k = {0};
    assert_int_equal(go((q4x_greedy_opts){.n_prompt = 0, .n = 3}, &k, &err), Q4X_E_ARG);
    assert_non_null(strstr(err.msg, "prompt: empty"));
    assert_int_equal(go((q4x_greedy_opts){.n_prompt = 5, .n = 0}, &k, &err), Q4X_E_ARG);
    assert_int_equal(k.n, 0);
    static const int32_t far[] = {1 << 20};
    assert_int_not_equal(go((q4x_greedy_opts){.n_prompt = 5, .n = 3, .force = far, .n_force = 1}, &k, &err), 0);
    assert_non_null(strstr(err.msg, "1048576"));
    k = (seen){.stop_at = 2};
    assert_int_equal(go((q4x_greedy_opts){.n_prompt = 5, .n = 4}, &k, &err), Q4X_E_IO);
    assert_int_equal(k.n, 2); /* an error of the callback ends the loop */
}

/* Ids are held against the vocabulary before anything runs, and the message names the list; the last id is one. */
static void test_ids_of_the_model(void **state) {
    (void)state;
    static const int32_t id[] = {1023, 1024};
    for (int k = 0; k < 6; k++) {
        q4x_err err = {0};
        seen s = {0};
        q4x_greedy_opts o = {.n_prompt = 5, .n = 3};
        const int wrong = k % 2, list = k / 2;
        static const char *const what[] = {"--force-ids: element 1 is 1024, expected an id from 0 to 1023",
                                           "--stop: element 1 is 1024, expected an id from 0 to 1023",
                                           "--force-ids: 3 ids, of which -n 3 feeds 2"};
        const int32_t ids[] = {1, id[wrong]}, three[] = {1, 2, 3};
        if (list == 1) {
            o.stop = ids;
            o.n_stop = 2;
        } else {
            o.force = list ? three : ids;
            o.n_force = list ? 2 + wrong : 2;
        }
        assert_int_equal(go(o, &s, &err), wrong ? Q4X_E_ARG : 0);
        assert_int_equal(s.n, wrong ? 0 : 3);
        if (wrong) assert_non_null(strstr(err.msg, what[list]));
    }
}

/* A row that is not a number is counted where it is made. */
static void test_row_of_nans(void **state) {
    (void)state;
    q4x_err err = {0};
    q4x_arm arm;
    q4x_run *r = NULL;
    seen k = {0};
    const q4x_greedy_opts o = {.prompt = PROMPT, .n_prompt = 5, .n = 3};
    assert_rc_ok(q4x_arm_parse("cpu:plant=nan@out#1", &arm, &err), &err);
    assert_rc_ok(q4x_run_new(net, &arm, 16, 0, &r, &err), &err);
    assert_rc_ok(q4x_greedy(r, &o, on_step, &k, &err), &err);
    q4x_run_free(r);
    assert_true(k.nonfinite[0] == 0 && k.nonfinite[1] == 1024 && k.nonfinite[2] == 0);
    assert_true(isnan(k.margin[1]) && k.margin[0] > 0);
}

/* A lever at a forward that never comes is refused before anything runs; at the last one it is not. */
static void test_forwards_that_never_come(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int n, one_by_one, ok;
    } list[] = {{"cpu:act=bf16@*#2", 3, 0, 1},      {"cpu:act=bf16@*#3", 3, 0, 0},
                {"cpu:plant=sign@emb#50", 8, 0, 0}, {"cpu:act=bf16,gdn=chunk64", 1, 0, 1},
                {"cpu:act=bf16@*#6", 3, 1, 1},      {"cpu:act=bf16@*#7", 3, 1, 0}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        q4x_err err = {0};
        q4x_arm arm;
        q4x_run *r = NULL;
        const int32_t ids[] = {1, 2, 3, 4, 5};
        q4x_greedy_opts o = {.prompt = ids, .n_prompt = 5, .n = list[i].n, .one_by_one = list[i].one_by_one};
        assert_rc_ok(q4x_arm_parse(list[i].spec, &arm, &err), &err);
        assert_rc_ok(q4x_run_new(net, &arm, 16, 0, &r, &err), &err);
        int rc = q4x_greedy(r, &o, NULL, NULL, &err);
        assert_int_equal(rc, list[i].ok ? 0 : Q4X_E_ARG);
        if (!list[i].ok) assert_non_null(strstr(err.msg, "never comes"));
        assert_int_equal(q4x_run_nforward(r), list[i].ok ? q4x_greedy_forwards(&o) : 0);
        q4x_run_free(r);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top2),        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_row_of_nans), cmocka_unit_test(test_ids_of_the_model),
        cmocka_unit_test(test_chosen),      cmocka_unit_test(test_forced),
        cmocka_unit_test(test_stop),        cmocka_unit_test(test_one_by_one),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_forwards_that_never_come),
    };
    return cmocka_run_group_tests(tests, open_net, close_net);
}
