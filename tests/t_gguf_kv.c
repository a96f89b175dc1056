/* t_gguf_kv.c: the typed getters: every stored type against every getter, ranges, arrays, and the metadata of the
 * tracked models. `t_gguf_kv test_demo` prints them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <unistd.h>

#include "tests/h_gguf.h"
#include "tests/h_walk.h"

#define BAD Q4X_E_FORMAT
#define DEMO "tests/models/demo.gguf"

static q4x_model *open_built(h_gguf *g, h_buf *b) {
    *b = h_gguf_bytes(g);
    q4x_model *m = NULL;
    q4x_err err = {0};
    int rc = q4x_gguf_parse_mem(b->p, b->n, "t.gguf", &m, &err);
    if (rc) print_error("%s\n", err.msg);
    assert_int_equal(rc, 0);
    return m;
}

/* A refused read says file, key, expected and found, and leaves the result alone. */
static void says(const q4x_err *err, const char *key, const char *expected, const char *found) {
    int ok = strstr(err->msg, "t.gguf: key '") && strstr(err->msg, key) && strstr(err->msg, expected) &&
             strstr(err->msg, found);
    if (!ok) print_error("message: %s\n", err->msg);
    assert_true(ok);
}

/* ---- integers ---- */

enum { NO_U = 1, NO_I = 2 };

static void test_integers(void **state) {
    (void)state;
    static const struct {
        uint64_t raw; /* as many bytes of it as the type has */
        int64_t value;
        uint32_t type;
        int refused;
    } rows[] = {
        {0xff, 255, 0, 0},
        {0x7f, 127, 1, 0},
        {0x80, -128, 1, NO_U},
        {0xffff, 65535, 2, 0},
        {0x7fff, 32767, 3, 0},
        {0xffff, -1, 3, NO_U},
        {0xffffffff, 4294967295, 4, 0},
        {0x7fffffff, 2147483647, 5, 0},
        {0x80000000, -2147483648, 5, NO_U},
        {0x7fffffffffffffff, INT64_MAX, 10, 0},
        {0x8000000000000000, INT64_MIN, 10, NO_I}, /* value as u64 */
        {0xffffffffffffffff, -1, 10, NO_I},
        {0x7fffffffffffffff, INT64_MAX, 11, 0},
        {0x8000000000000000, INT64_MIN, 11, NO_U},
        {0xffffffffffffffff, -1, 11, NO_U},
    };
    static const uint8_t size[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        h_gguf g;
        h_gguf_init(&g);
        h_gguf_kv(&g, "x", rows[i].type, &rows[i].raw, size[rows[i].type]);
        h_gguf_arr(&g, "a", rows[i].type, 1, &rows[i].raw, size[rows[i].type]);
        h_buf b;
        q4x_model *m = open_built(&g, &b);
        q4x_err err = {0};
        uint64_t u = 77;
        int64_t v = 77, n = 77, *a = NULL;
        int no_u = (rows[i].refused & NO_U) != 0, no_i = (rows[i].refused & NO_I) != 0;
        assert_int_equal(q4x_kv_u64(m, "x", &u, &err), no_u ? BAD : 0);
        assert_true(u == (no_u ? 77 : (uint64_t)rows[i].value));
        if (no_u) says(&err, "'x'", "not negative", "found -");
        assert_int_equal(q4x_kv_i64(m, "x", &v, &err), no_i ? BAD : 0);
        assert_true(v == (no_i ? 77 : rows[i].value));
        if (no_i) says(&err, "'x'", "below 2^63", "found ");
        assert_int_equal(q4x_kv_ints(m, "a", &a, &n, &err), no_i ? BAD : 0);
        if (no_i)
            assert_true(n == 77 && !a);
        else
            assert_true(n == 1 && a[0] == rows[i].value);
        free(a);
        q4x_model_close(m);
        h_buf_free(&b);
        h_gguf_free(&g);
    }
}

/* ---- every type against every getter ---- */

static void test_types(void **state) {
    (void)state;
    static const char *const names[13] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                          "bool", "string", "array", "u64", "i64", "f64"};
    static const uint8_t size[13] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
    h_gguf g;
    h_gguf_init(&g);
    char key[16];
    for (uint32_t t = 0; t < 13; t++) {
        snprintf(key, sizeof key, "s%u", t);
        if (t != 9) h_gguf_kv(&g, key, t, "\0\0\0\0\0\0\0\0", size[t]); /* all zero: an empty string too */
        snprintf(key, sizeof key, "a%u", t);
        if (t != 9) h_gguf_arr(&g, key, t, 1, "\0\0\0\0\0\0\0\0", size[t]);
    }
    h_buf b;
    q4x_model *m = open_built(&g, &b);
    for (int arr = 0; arr < 2; arr++)
        for (uint32_t t = 0; t < 13; t++) {
            if (t == 9) continue;
            snprintf(key, sizeof key, "%c%u", arr ? 'a' : 's', t);
            char found[32];
            snprintf(found, sizeof found, "found type %s%s", arr ? "array of " : "", names[t]);
            int integer = t < 6 || t == 10 || t == 11;
            q4x_err err = {0};
            uint64_t u = 77;
            int64_t v = 77, n = 77, *a = NULL;
            double d = 77;
            int bo = 77;
            const char *s = NULL;
            size_t len = 77;
            int want = !arr && integer ? 0 : BAD;
            assert_int_equal(q4x_kv_u64(m, key, &u, &err), want);
            if (want) says(&err, key, "expected an integer", found);
            assert_int_equal(q4x_kv_i64(m, key, &v, &err), want);
            assert_true(u == (want ? 77 : 0) && v == (want ? 77 : 0));
            want = !arr && (t == 6 || t == 12) ? 0 : BAD;
            assert_int_equal(q4x_kv_f64(m, key, &d, &err), want);
            if (want) says(&err, key, "expected f32 or f64", found);
            assert_true(d == (want ? 77 : 0));
            want = !arr && t == 7 ? 0 : BAD;
            assert_int_equal(q4x_kv_bool(m, key, &bo, &err), want);
            if (want) says(&err, key, "expected a bool", found);
            want = !arr && t == 8 ? 0 : BAD;
            assert_int_equal(q4x_kv_str(m, key, &s, &len, &err), want);
            if (want) says(&err, key, "expected a string", found);
            assert_true(len == (want ? 77 : 0));
            want = arr && (integer || t == 7) ? 0 : BAD;
            assert_int_equal(q4x_kv_ints(m, key, &a, &n, &err), want);
            if (want)
                says(&err, key, "expected an array of integers or bools", found);
            else
                assert_true(n == 1 && a[0] == 0);
            free(a);
            n = 77;
            want = arr && t == 8 ? 0 : BAD;
            assert_int_equal(q4x_kv_strs_count(m, key, &n, &err), want);
            if (want) says(&err, key, "expected an array of strings", found);
            assert_int_equal(q4x_kv_strs_get(m, key, 0, &s, &len, &err), want);
        }
    q4x_model_close(m);
    h_buf_free(&b);
    h_gguf_free(&g);
}

static void test_absent(void **state) {
    (void)state;
    h_gguf g;
    h_gguf_init(&g);
    h_gguf_kv_u32(&g, "general.alignment", 32);
    h_buf b;
    q4x_model *m = open_built(&g, &b);
    uint64_t u = 77;
    int64_t v = 77, n = 77, *a = NULL;
    double d = 77;
    int bo = 77;
    const char *s = NULL;
    size_t len = 77;
    static const char *const keys[] = {"", "x", "general.alignmen", "general.alignment2"};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(q4x_kv_u64(m, keys[i], &u, NULL), 1);
        assert_int_equal(q4x_kv_i64(m, keys[i], &v, NULL), 1);
        assert_int_equal(q4x_kv_f64(m, keys[i], &d, NULL), 1);
        assert_int_equal(q4x_kv_bool(m, keys[i], &bo, NULL), 1);
        assert_int_equal(q4x_kv_str(m, keys[i], &s, &len, NULL), 1);
        assert_int_equal(q4x_kv_ints(m, keys[i], &a, &n, NULL), 1);
        assert_int_equal(q4x_kv_strs_count(m, keys[i], &n, NULL), 1);
        assert_int_equal(q4x_kv_strs_get(m, keys[i], 0, &s, &len, NULL), 1);
    }
    assert_true(u == 77 && v == 77 && n == 77 && d == 77 && bo == 77 && len == 77 && !a && !s);
    assert_null(q4x_model_find(m, ""));
    assert_null(q4x_model_config(m));
    assert_string_equal(q4x_model_arch(m), "");
    q4x_model_close(m);
    h_buf_free(&b);
    h_gguf_free(&g);
}

/* ---- values ---- */

static void test_values(void **state) {
    (void)state;
    h_gguf g;
    h_gguf_everything(&g);
    h_gguf_kv_f32(&g, "eps", 1e-6f);
    static const double tenth = 0.1;
    h_gguf_kv(&g, "f64", 12, &tenth, sizeof tenth);
    h_gguf_kv(&g, "nan", 6, "\1\0\x80\x7f", 4); /* a signalling NaN: the reader decides, not the getter */
    h_buf b;
    q4x_model *m = open_built(&g, &b);
    double d;
    int64_t *a, n;
    const char *s;
    size_t len;
    assert_int_equal(q4x_kv_f64(m, "eps", &d, NULL), 0);
    assert_true(d == (double)1e-6f);
    assert_int_equal(q4x_kv_f64(m, "f64", &d, NULL), 0);
    assert_true(d == 0.1);
    assert_int_equal(q4x_kv_f64(m, "nan", &d, NULL), 0);
    assert_true(isnan(d));
    assert_int_equal(q4x_kv_str(m, "s", &s, &len, NULL), 0);
    assert_true(len == 4 && !memcmp(s, "text", 4));
    assert_int_equal(q4x_kv_ints(m, "ai", &a, &n, NULL), 0);
    assert_true(n == 3 && a[0] == -1 && a[1] == 0 && a[2] == 7);
    free(a);
    assert_int_equal(q4x_kv_ints(m, "ab", &a, &n, NULL), 0);
    assert_true(n == 2 && a[0] == 1 && a[1] == 0);
    free(a);
    assert_int_equal(q4x_kv_strs_count(m, "as", &n, NULL), 0);
    assert_int_equal(n, 3);
    static const char *const want[3] = {"", "a", "bcd"};
    for (int64_t i = 0; i < 3; i++) {
        assert_int_equal(q4x_kv_strs_get(m, "as", i, &s, &len, NULL), 0);
        assert_true(len == strlen(want[i]) && !memcmp(s, want[i], len));
    }
    q4x_err err = {0};
    assert_int_equal(q4x_kv_strs_get(m, "as", 3, &s, &len, &err), Q4X_E_ARG);
    says(&err, "'as'", "an index below 3", "found 3");
    assert_int_equal(q4x_kv_strs_get(m, "as", -1, &s, &len, &err), Q4X_E_ARG);
    assert_int_equal(q4x_kv_count(m), (int64_t)g.nkv);
    assert_string_equal(q4x_kv_key(m, 0), "general.architecture");
    assert_string_equal(q4x_kv_key(m, (int64_t)g.nkv - 1), "nan");
    const q4x_tensor *t = q4x_model_find(m, "blk.0.w");
    assert_true(t && t->ndim == 4 && t->ne[0] == 32 && t->ne[1] == 2 && t->ne[2] == 1 && t->ne[3] == 3 &&
                t->type == 2 && t->bytes == 6 * 18 && !memcmp(t->data, g.data.p, t->bytes));
    q4x_model_close(m);
    h_buf_free(&b);
    h_gguf_free(&g);
}

/* ---- tracked models ---- */

static int verbose;

static void print_key(const q4x_model *m, const char *key) {
    int64_t v, n, *a;
    double d;
    int b;
    const char *s;
    size_t len;
    uint64_t u;
    if (!q4x_kv_i64(m, key, &v, NULL))
        print_message("    %s = %lld\n", key, (long long)v);
    else if (!q4x_kv_u64(m, key, &u, NULL))
        print_message("    %s = %llu\n", key, (unsigned long long)u);
    else if (!q4x_kv_f64(m, key, &d, NULL))
        print_message("    %s = %.9g\n", key, d);
    else if (!q4x_kv_bool(m, key, &b, NULL))
        print_message("    %s = %s\n", key, b ? "true" : "false");
    else if (!q4x_kv_str(m, key, &s, &len, NULL))
        print_message("    %s = '%.*s'\n", key, (int)len, s);
    else if (!q4x_kv_strs_count(m, key, &n, NULL))
        print_message("    %s = %lld strings\n", key, (long long)n);
    else if (!q4x_kv_ints(m, key, &a, &n, NULL)) {
        print_message("    %s =", key);
        for (int64_t i = 0; i < n && i < 9; i++) print_message(" %lld", (long long)a[i]);
        print_message("%s\n", n > 9 ? " .." : "");
        free(a);
    } else
        print_message("    %s ?\n", key);
}

static void is_u64(const q4x_model *m, const char *key, uint64_t want) {
    uint64_t u = 0;
    assert_int_equal(q4x_kv_u64(m, key, &u, NULL), 0);
    assert_true(u == want);
}

static void is_ints(const q4x_model *m, const char *key, const int64_t *want, int64_t want_n) {
    int64_t *a = NULL, n = 0;
    assert_int_equal(q4x_kv_ints(m, key, &a, &n, NULL), 0);
    assert_int_equal(n, want_n);
    for (int64_t i = 0; i < n && i < want_n; i++) assert_true(a[i] == want[i]);
    free(a);
}

static void test_demo(void **state) {
    (void)state;
    q4x_model *m = NULL;
    q4x_err err = {0};
    int rc = q4x_model_open(DEMO, &m, &err);
    if (rc) print_error("%s\n", err.msg);
    assert_int_equal(rc, 0);
    walk_model(m);
    for (int64_t i = 0; verbose && i < q4x_kv_count(m); i++) print_key(m, q4x_kv_key(m, i));
    assert_string_equal(q4x_model_arch(m), "qwen4exp");
    assert_int_equal(q4x_model_ntensors(m), 214);
    assert_int_equal(q4x_kv_count(m), 50);
    is_u64(m, "qwen4exp.block_count", 8);
    is_u64(m, "qwen4exp.embedding_length", 256);
    is_u64(m, "qwen4exp.expert_count", 16);
    is_u64(m, "general.quantization_version", 2);
    double eps = 0, base = 0;
    assert_int_equal(q4x_kv_f64(m, "qwen4exp.attention.layer_norm_rms_epsilon", &eps, NULL), 0);
    assert_int_equal(q4x_kv_f64(m, "qwen4exp.rope.freq_base", &base, NULL), 0);
    assert_true(eps == (double)1e-6f && base == 1e7);
    static const int64_t ratios[8] = {0, 0, 0, 4, 0, 0, 0, 4};
    static const int64_t mult[3] = {4295158889766209, 8433018892997163, 1270917961435699};
    is_ints(m, "qwen4exp.attention.compress_ratios", ratios, 8);
    is_ints(m, "qwen4exp.ple.layer_multipliers", mult, 3);
    int64_t n = 0;
    int bos = 77;
    const char *s;
    size_t len;
    assert_int_equal(q4x_kv_strs_count(m, "tokenizer.ggml.tokens", &n, NULL), 0);
    assert_int_equal(n, 1024);
    assert_int_equal(q4x_kv_strs_get(m, "tokenizer.ggml.tokens", 2, &s, &len, NULL), 0);
    assert_true(len == 10 && !memcmp(s, "<|im_end|>", 10));
    assert_int_equal(q4x_kv_strs_count(m, "tokenizer.ggml.merges", &n, NULL), 0);
    assert_int_equal(n, 765);
    assert_int_equal(q4x_kv_bool(m, "tokenizer.ggml.add_bos_token", &bos, NULL), 0);
    assert_int_equal(bos, 0);
    const q4x_tensor *t = q4x_model_find(m, "token_embd.weight");
    assert_true(t && t->ne[0] == 256 && t->ne[1] == 1024);
    char hex[2][33];
    assert_int_equal(q4x_model_fingerprint(m, hex[0], NULL), 0);
    q4x_model_close(m);
    assert_int_equal(q4x_model_open(DEMO, &m, &err), 0);
    assert_int_equal(q4x_model_fingerprint(m, hex[1], NULL), 0);
    assert_string_equal(hex[0], hex[1]);
    q4x_model_close(m);
    if (verbose) print_message("    fingerprint %s\n", hex[0]);
}

static void test_micro(void **state) {
    (void)state;
    q4x_model *m = NULL;
    assert_int_equal(q4x_model_open("tests/models/micro-a-bf16.gguf", &m, NULL), 0);
    walk_model(m);
    assert_string_equal(q4x_model_arch(m), "qwen4exp");
    q4x_model_close(m);
}

/* What is no model at all. */
static void test_not_a_model(void **state) {
    (void)state;
    q4x_model *m = NULL;
    q4x_err err = {0};
    assert_int_equal(q4x_model_open("tests/models/absent.gguf", &m, &err), Q4X_E_IO);
    assert_non_null(strstr(err.msg, "tests/models/absent.gguf: cannot open"));
    assert_int_equal(q4x_model_open("Makefile", &m, &err), Q4X_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "Makefile: expected a .gguf file"));
    assert_non_null(strstr(err.msg, "found a file that begins with bytes 23207134")); /* "# q4" */
    assert_int_equal(q4x_model_open("/dev/null", &m, &err), Q4X_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "found nothing readable"));
    assert_null(m);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    verbose = argc > 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers),    cmocka_unit_test(test_types), cmocka_unit_test(test_absent),
        cmocka_unit_test(test_values),      cmocka_unit_test(test_demo),  cmocka_unit_test(test_micro),
        cmocka_unit_test(test_not_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
