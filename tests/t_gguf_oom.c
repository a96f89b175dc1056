/* t_gguf_oom.c: opening a model when the n-th allocation fails, for every n: Q4X_E_NOMEM, nothing leaked, nothing left
 * in the result. Opening for real frees every byte as well.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <unistd.h>

#include "tests/h_gguf.h"
#include "tests/h_oom.h"
#include "tests/h_walk.h"

typedef int (*open_fn)(q4x_model **ret, q4x_err *err);

static h_buf shard_bytes[3];
static char path[3][64];

static int open_mem(q4x_model **ret, q4x_err *err) {
    q4x_mem_file f[3];
    for (int i = 0; i < 3; i++) f[i] = (q4x_mem_file){path[i], shard_bytes[i].p, shard_bytes[i].n};
    return q4x_gguf_open_mem(f, 3, path[1], ret, err);
}
static int open_disk(q4x_model **ret, q4x_err *err) {
    return q4x_model_open(path[2], ret, err);
}

static void sweep(open_fn open, int least) {
    int n = 0;
    for (;; n++) {
        q4x_model *m = NULL;
        q4x_err err = {0};
        char hex[33] = "";
        long before = h_live;
        h_left = n;
        int rc = open(&m, &err);
        int fp = rc ? Q4X_E_NOMEM : q4x_model_fingerprint(m, hex, &err);
        h_left = -1;
        q4x_model_close(m);
        assert_int_equal(h_live, before);
        if (!fp) break;
        assert_true(rc == 0 || rc == Q4X_E_NOMEM);
        assert_int_equal(fp, Q4X_E_NOMEM);
        assert_true(err.code == Q4X_E_NOMEM && strstr(err.msg, "no memory"));
        assert_true(rc == 0 || !m);
    }
    print_message("    %d allocations, each failed once\n", n);
    assert_true(n >= least);
}

static void test_oom(void **state) {
    (void)state;
    if (!H_OWN_MALLOC) {
        print_message("    a sanitizer owns malloc\n");
        skip();
    }
    char dir[] = "/tmp/q4x-oom-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 3; i++) {
        h_gguf g;
        if (i == 0)
            h_gguf_everything(&g);
        else
            h_gguf_init(&g);
        char name[32];
        h_gguf_kv_u16(&g, "split.no", (uint16_t)i);
        h_gguf_kv_u16(&g, "split.count", 3);
        for (int k = 0; k < (i == 1 ? 200 : 2); k++) { /* beyond the first size of every table */
            snprintf(name, sizeof name, "t%d.%d", i, k);
            h_gguf_tensor1(&g, name, 0, 4);
        }
        shard_bytes[i] = h_gguf_bytes(&g);
        snprintf(path[i], sizeof path[i], "%s/m-%05d-of-00003.gguf", dir, i + 1);
        h_write_file(path[i], shard_bytes[i].p, shard_bytes[i].n);
        h_gguf_free(&g);
    }
    sweep(open_mem, 30);
    sweep(open_disk, 33);
    for (int i = 0; i < 3; i++) {
        h_buf_free(&shard_bytes[i]);
        unlink(path[i]);
    }
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_oom)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
