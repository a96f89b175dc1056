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
#include "tests/h_gguf.h"
#include "tests/h_hf.h"

/* left: allocations until one fails, -1: none does; once: those after it succeed again. */
static long left = -1, live;
static int once, failed;

#if H_SANITIZER || !defined(__GLIBC__)
#define OWN_MALLOC 0
#else
#define OWN_MALLOC 1

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);

static int fails(void) {
    if (left < 0) return 0;
    if (left > 0) return left--, 0;
    failed = 1;
    if (once) left = -1;
    return 1;
}
void *malloc(size_t n) {
    void *p = fails() ? NULL : __libc_malloc(n);
    live += p != NULL;
    return p;
}
void *calloc(size_t n, size_t size) {
    void *p = fails() ? NULL : __libc_calloc(n, size);
    live += p != NULL;
    return p;
}
void *realloc(void *old, size_t n) {
    if (fails()) return NULL;
    void *p = __libc_realloc(old, n);
    live += !old && p;
    return p;
}
void *aligned_alloc(size_t align, size_t n) {
    void *p = fails() ? NULL : __libc_memalign(align, n);
    live += p != NULL;
    return p;
}
void free(void *p) {
    live -= p != NULL;
    __libc_free(p);
}
#endif

static char *dir;

static int open_pair(q4x_err *err) {
    q4x_model *m = NULL;
    int rc = q4x_model_open(dir, &m, err);
    q4x_model_close(m);
    return rc;
}

static q4x_model *bound_model;

static int bind(q4x_err *err) {
    q4x_qwen4 *w = NULL;
    int rc = q4x_qwen4_bind(bound_model, &w, err);
    if (rc && w) return 1; /* must be untouched */
    q4x_qwen4_free(w);
    return rc;
}

/* Until it succeeds. jansson calls some failed allocations bad syntax, and a buffer that could not grow just once loses
 * a character: so with JSON in it only the lasting failure is tried, and any error will do. */
static void sweep(int (*fn)(q4x_err *err), int json, int least) {
    int n = 0;
    for (once = 0; once < (json ? 1 : 2); once++)
        for (n = 0;; n++) {
            q4x_err err = {0};
            long before = live;
            left = n;
            failed = 0;
            int rc = fn(&err);
            left = -1;
            assert_int_equal(live, before);
            if (!rc && !failed) break;
            if (rc >= 0 || (rc != Q4X_E_NOMEM && !json)) fail_msg("allocation %d: %d %s", n, rc, err.msg);
            assert_int_equal(err.code, rc);
        }
    print_message("    %d allocations\n", n);
    assert_true(n >= least);
}

static void container(void **state) {
    (void)state;
    if (!OWN_MALLOC) {
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
    if (!OWN_MALLOC) skip();
    static const char *const paths[] = {"tests/golden/micro-a", "tests/models/micro-a-bf16.gguf"};
    for (int i = 0; i < 2; i++) {
        q4x_err err = {0};
        if (q4x_model_open(paths[i], &bound_model, &err)) fail_msg("%s", err.msg);
        sweep(bind, 0, 40);
        q4x_model_close(bound_model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(container), cmocka_unit_test(binding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
