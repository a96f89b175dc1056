/* t_gguf_write_oom.c: writing a set when the n-th allocation fails, for every n: Q4X_E_NOMEM, nothing leaked, no file
 * left. Writing for real frees every byte as well.
 */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/gguf_write.h"
#include "tests/check.h"
#include "tests/h_oom.h"

static char dir[] = "/tmp/q4x-gwo-XXXXXX";

static int write_set(const char *path, q4x_err *err) {
    static const uint8_t zeros[64];
    q4x_gguf_out *o = NULL;
    char name[16];
    int rc = 0;
    TRY(q4x_gguf_out_new(path, &(q4x_gguf_cut){.shards = 3}, &o, err));
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "key.%d", i);
        TRY(q4x_gguf_out_str(o, name,
                             "some text, so that the header grows over its first size more than once: lorem "
                             "ipsum dolor sit amet, consectetur adipisici elit, sed eiusmod tempor",
                             err));
    }
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "t.%d", i);
        TRY(q4x_gguf_out_tensor(o, name, 24, 1, (int64_t[]){64}, err));
    }
    TRY(q4x_gguf_out_begin(o, err));
    for (int i = 0; i < 300; i++) TRY(q4x_gguf_out_write(o, zeros, sizeof zeros, err));
    q4x_gguf_out *last = o;
    o = NULL;
    TRY(q4x_gguf_out_finish(last, err));
done:
    q4x_gguf_out_abort(o);
    return rc;
}

static void test_oom(void **state) {
    (void)state;
    if (!H_OWN_MALLOC) {
        print_message("    a sanitizer owns malloc\n");
        skip();
    }
    char path[64], shard[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    int n = 0;
    for (;; n++) {
        q4x_err err = {0};
        long before = h_live;
        h_left = n;
        int rc = write_set(path, &err);
        h_left = -1;
        assert_int_equal(h_live, before);
        if (!rc) break;
        assert_int_equal(rc, Q4X_E_NOMEM);
        assert_true(err.code == Q4X_E_NOMEM && strstr(err.msg, "no memory"));
        assert_int_equal(rmdir(dir), 0); /* it is empty */
        assert_int_equal(mkdir(dir, 0700), 0);
    }
    print_message("    %d allocations, each failed once\n", n);
    assert_true(n >= 25);
    for (int i = 1; i <= 3; i++) {
        snprintf(shard, sizeof shard, "%s/m-%05d-of-00003.gguf", dir, i);
        assert_int_equal(unlink(shard), 0);
    }
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_oom)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
