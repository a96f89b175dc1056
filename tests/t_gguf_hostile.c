/* t_gguf_hostile.c: what size and time can do to the GGUF parser: ceilings, counts that lie, files cut at every offset,
 * every bit flipped, files that shrink while they are read, and no memory at any allocation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/h_gguf.h"
#include "tests/h_walk.h"

#define BAD Q4X_E_FORMAT
#define CUT Q4X_E_TRUNCATED

static const uint64_t NE8[1] = {8};
static char dir[] = "/tmp/q4x-gguf-XXXXXX";
static char file[64]; /* dir/t.gguf */

static int setup(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(file, sizeof file, "%s/t.gguf", dir);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(file);
    return rmdir(dir);
}

/* ---- ceilings that need room: from memory alone, on pages that nobody touches ---- */

static void test_large(void **state) {
    (void)state;
    static const struct {
        uint64_t count, size;
        uint32_t etype;
        int rc;
    } rows[] = {
        {(1u << 24) + 1, 8, 8, BAD},
        {1u << 24, 8, 8, 0},
        {(1u << 28) + 1, 1, 0, BAD},
        {1u << 28, 1, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        h_gguf g;
        h_gguf_init(&g);
        h_gguf_arr(&g, "x", rows[i].etype, rows[i].count, NULL, 0);
        h_buf b = h_gguf_bytes(&g);
        size_t n = (size_t)(rows[i].count * rows[i].size) + 4096;
        uint8_t *p = calloc(n, 1);
        assert_non_null(p);
        memcpy(p, b.p, b.n);
        q4x_model *m = NULL;
        q4x_err err = {0};
        assert_int_equal(q4x_gguf_parse_mem(p, n, "t.gguf", &m, &err), rows[i].rc);
        if (rows[i].rc) assert_non_null(strstr(err.msg, "t.gguf: key 0 'x': element count at byte"));
        q4x_model_close(m);
        free(p);
        h_buf_free(&b);
        h_gguf_free(&g);
    }
}

/* Processor time: the machine may be busy. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds to open n keys or n tensors; both ceilings are reached, and time grows with the header and no faster. */
static double time_open(int tensors, uint64_t n) {
    h_gguf g;
    h_gguf_init(&g);
    char name[32];
    for (uint64_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "blk.%llu.w", (unsigned long long)i);
        if (tensors)
            h_gguf_record(&g, name, strlen(name), 1, NE8, 24, 32 * i);
        else
            h_gguf_kv_u8(&g, name, 1);
    }
    if (tensors) h_zeros(&g.data, (size_t)(32 * n));
    h_buf b = h_gguf_bytes(&g);
    q4x_model *m = NULL;
    q4x_err err = {0};
    double t0 = now();
    int rc = q4x_gguf_parse_mem(b.p, b.n, "t.gguf", &m, &err);
    double dt = now() - t0;
    if (rc) print_error("%s\n", err.msg);
    assert_int_equal(rc, 0);
    snprintf(name, sizeof name, "blk.%llu.w", (unsigned long long)(n - 1));
    uint64_t one = 0;
    if (tensors)
        assert_non_null(q4x_model_find(m, name));
    else
        assert_int_equal(q4x_kv_u64(m, name, &one, &err), 0);
    q4x_model_close(m);
    h_buf_free(&b);
    h_gguf_free(&g);
    return dt;
}

static void test_linear(void **state) {
    (void)state;
    uint64_t most = H_SANITIZER ? Q4X_GGUF_MAX_TENSORS / 4 : Q4X_GGUF_MAX_TENSORS; /* slow there */
    double k1 = time_open(0, 4096), k2 = time_open(0, Q4X_GGUF_MAX_KV);
    double t1 = time_open(1, 65536), t2 = time_open(1, most);
    print_message("    4096 keys %.1f ms, 65536 keys %.1f ms; 65536 tensors %.1f ms, %llu tensors %.1f ms\n", 1e3 * k1,
                  1e3 * k2, 1e3 * t1, (unsigned long long)most, 1e3 * t2);
    /* 16 times the records; a quadratic parser needs 256 times the time. 64 leaves room for caches and neighbours. */
    assert_true(k2 < 64 * k1 + 0.05);
    assert_true(t2 < 64 * t1 + 0.05);
}

/* A header that claims much and holds nothing must not make us ask for much: 32 MiB of address space are enough. */
static void test_memory(void **state) {
    (void)state;
#if H_SANITIZER
    print_message("    a sanitizer owns the address space\n");
    skip();
#else
    size_t n = 140u << 20;
    uint8_t *p = calloc(n, 1);
    assert_non_null(p);
    for (int kind = 0; kind < 3; kind++) {
        h_gguf g;
        h_gguf_init(&g);
        if (kind == 0) g.nkv = Q4X_GGUF_MAX_KV;
        if (kind == 1) g.ntensors = Q4X_GGUF_MAX_TENSORS;
        /* 2^24 strings that are there as a count; the first is longer than the file. */
        if (kind == 2) h_gguf_arr(&g, "x", 8, 1u << 24, "\xff\xff\xff\xff\0\0\0\0", 8);
        h_buf b = h_gguf_bytes(&g);
        memcpy(p, b.p, b.n);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            struct rlimit lim;
            getrlimit(RLIMIT_AS, &lim);
            FILE *f = fopen("/proc/self/statm", "r");
            char line[128] = "";
            if (!f || !fgets(line, sizeof line, f)) _exit(3);
            fclose(f);
            unsigned long pages = strtoul(line, NULL, 10);
            lim.rlim_cur = pages * 4096ul + (32ul << 20);
            if (setrlimit(RLIMIT_AS, &lim)) _exit(4);
            void *volatile twin = malloc(64u << 20); /* the limit is alive */
            if (twin) _exit(5);
            q4x_model *m = NULL;
            int rc = q4x_gguf_parse_mem(p, n, "t.gguf", &m, NULL);
            _exit(rc == BAD ? 0 : 1);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        h_buf_free(&b);
        h_gguf_free(&g);
    }
    free(p);
#endif
}

/* ---- every offset, every bit ---- */

static void test_truncation(void **state) {
    (void)state;
    h_gguf g;
    h_gguf_everything(&g);
    h_buf b = h_gguf_bytes(&g);
    size_t end = b.n - (size_t)(g.next - g.data.n), rejected = 0; /* of the last tensor's data */
    for (size_t n = 0; n <= b.n; n++) {
        uint8_t *p = malloc(n ? n : 1); /* of its own, so that one byte too far is seen */
        assert_non_null(p);
        memcpy(p, b.p, n);
        q4x_model *m = NULL;
        q4x_err err = {0};
        int rc = q4x_gguf_parse_mem(p, n, "t.gguf", &m, &err);
        assert_int_equal(rc == 0, n >= end);
        if (rc) {
            walk_error(rc, &err, "t.gguf");
            assert_true(rc == CUT || rc == BAD);
        } else {
            walk_model(m);
        }
        rejected += rc != 0;
        q4x_model_close(m);
        free(p);
    }
    assert_int_equal(rejected, end);
    assert_true(end < b.n);
    h_buf_free(&b);
    h_gguf_free(&g);
}

static void test_bit_flips(void **state) {
    (void)state;
    h_gguf g;
    h_gguf_everything(&g);
    h_buf b = h_gguf_bytes(&g);
    int accepted = 0, rejected = 0;
    for (size_t i = 0; i < b.n; i++)
        for (int bit = 0; bit < 8; bit++) {
            b.p[i] ^= (uint8_t)(1 << bit);
            q4x_model *m = NULL;
            q4x_err err = {0};
            int rc = q4x_gguf_parse_mem(b.p, b.n, "t.gguf", &m, &err);
            if (rc)
                walk_error(rc, &err, "t.gguf");
            else
                walk_model(m);
            accepted += rc == 0;
            rejected += rc != 0;
            q4x_model_close(m);
            b.p[i] ^= (uint8_t)(1 << bit);
        }
    print_message("    %d accepted, %d rejected\n", accepted, rejected);
    assert_true(accepted > 0 && rejected > 0);
    h_buf_free(&b);
    h_gguf_free(&g);
}

/* ---- a file that shrinks while we look ---- */

typedef struct {
    off_t size;
} shrink;

static int map_then_cut(void *ctx, const char *path, q4x_map *ret, q4x_err *err) {
    int rc = q4x_map_open(path, ret, err);
    if (!rc && truncate(path, ((const shrink *)ctx)->size)) rc = Q4X_E_IO;
    return rc;
}

static void test_shrinks(void **state) {
    (void)state;
    h_gguf g;
    h_gguf_everything(&g);
    h_buf pad = {0};
    h_zeros(&pad, 200000); /* so that the header is several windows and pages */
    h_gguf_arr(&g, "pad", 0, pad.n, pad.p, pad.n);
    static const char *const last[1] = {"end"};
    h_gguf_arr_str(&g, "last", last, 1);
    h_buf b = h_gguf_bytes(&g);
    static const off_t cuts[] = {0, 10, 24, 100, 4096, 70000, 200000};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        h_write_file(file, b.p, b.n);
        shrink s = {cuts[i]};
        q4x_model *m = NULL;
        q4x_err err = {0};
        assert_int_equal(q4x_gguf_open_with(map_then_cut, &s, file, &m, &err), CUT);
        walk_error(CUT, &err, file);
        assert_non_null(strstr(err.msg, "ends at byte"));
    }
    /* After opening: getters and fingerprint see it before they touch a page. */
    h_write_file(file, b.p, b.n);
    q4x_model *m = NULL;
    q4x_err err = {0};
    assert_int_equal(q4x_model_open(file, &m, &err), 0);
    char hex[33];
    const char *text;
    size_t len;
    int64_t n, *v;
    assert_int_equal(q4x_model_fingerprint(m, hex, &err), 0);
    assert_int_equal(truncate(file, 64), 0);
    assert_int_equal(q4x_model_fingerprint(m, hex, &err), CUT);
    assert_int_equal(q4x_kv_str(m, "s", &text, &len, &err), CUT);
    assert_int_equal(q4x_kv_ints(m, "ai", &v, &n, &err), CUT);
    assert_int_equal(q4x_kv_strs_count(m, "as", &n, &err), CUT);
    walk_error(CUT, &err, file);
    q4x_model_close(m);
    h_buf_free(&pad);
    h_buf_free(&b);
    h_gguf_free(&g);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large),      cmocka_unit_test(test_linear),    cmocka_unit_test(test_memory),
        cmocka_unit_test(test_truncation), cmocka_unit_test(test_bit_flips), cmocka_unit_test(test_shrinks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
