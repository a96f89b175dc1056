/* t_hf_oom.c: opening and binding a checkpoint when allocations fail: the n-th alone, and the n-th with all that
 * follow. An error each time, nothing leaked, nothing left in the result.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/h_bind.h"
#include "tests/h_dense.h"
#include "tests/h_oom.h"

static char *dir;

static int open_pair(q4x_err *err) {
    q4x_model *m = NULL;
    int rc = q4x_model_open(dir, &m, err);
    q4x_model_close(m);
    return rc;
}

static q4x_model *bound_model;

#define BIND(id)                                                                                                       \
    static int bind_##id(q4x_err *err) {                                                                               \
        q4x_##id *w = NULL;                                                                                            \
        int rc = q4x_##id##_bind(bound_model, &w, err);                                                                \
        if (rc && w) return 1; /* must be untouched */                                                                 \
        q4x_##id##_free(w);                                                                                            \
        return rc;                                                                                                     \
    }
BIND(qwen4)
BIND(qwen35)

/* Until it succeeds. jansson calls some failed allocations bad syntax, and a buffer that could not grow just once loses
 * a character: so with JSON in it only the lasting failure is tried, and any error will do. */
static void sweep(int (*fn)(q4x_err *err), int json, int least) {
    int n = 0;
    for (h_once = 0; h_once < (json ? 1 : 2); h_once++)
        for (n = 0;; n++) {
            q4x_err err = {0};
            long before = h_live;
            h_left = n;
            h_failed = 0;
            int rc = fn(&err);
            h_left = -1;
            assert_int_equal(h_live, before);
            if (!rc && !h_failed) break;
            if (rc >= 0 || (rc != Q4X_E_NOMEM && !json)) fail_msg("allocation %d: %d %s", n, rc, err.msg);
            assert_int_equal(err.code, rc);
        }
    print_message("    %d allocations\n", n);
    assert_true(n >= least);
}

static void container(void **state) {
    (void)state;
    if (!H_OWN_MALLOC) {
        print_message("    a sanitizer owns malloc\n");
        skip();
    }
    dir = h_tmp();
    h_hf *h = calloc(1, sizeof *h);
    assert_non_null(h);
    h->config = json_pack("{s:s, s:{s:s}}", "model_type", "toy", "text_config", "model_type", "inner");
    for (int i = 0; i < 70; i++) { /* beyond the first size of every table */
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        h_hf_add(h, name, "BF16", 1, (int64_t[]){2}, NULL)->shard = i % 2;
    }
    h_hf_write(h, dir, 2);
    sweep(open_pair, 1, 500);
    h_hf_free(h);
    h_tmp_remove(dir);
}

static void binding(void **state) {
    (void)state;
    if (!H_OWN_MALLOC) skip();
    char gguf[512];
    dir = h_tmp();
    snprintf(gguf, sizeof gguf, "%s/dense.gguf", dir);
    h_hf *h = h_hf_load("tests/golden/dense-a");
    h_dense_write(h, gguf);
    h_hf_free(h);
    const struct {
        const char *path;
        int (*bind)(q4x_err *err);
        int least;
    } cases[] = {{"tests/golden/micro-a", bind_qwen4, 40},
                 {"tests/models/micro-a-bf16.gguf", bind_qwen4, 40},
                 {"tests/golden/dense-a", bind_qwen35, 25},
                 {gguf, bind_qwen35, 25}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        q4x_err err = {0};
        if (q4x_model_open(cases[i].path, &bound_model, &err)) fail_msg("%s", err.msg);
        sweep(cases[i].bind, 0, cases[i].least);
        q4x_model_close(bound_model);
    }
    h_tmp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(container), cmocka_unit_test(binding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
