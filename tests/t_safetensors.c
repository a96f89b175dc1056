/* The safetensors header reader: good files read whole, every defect named, by its sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/k.h"
#include "lib/json_in.h"
#include "lib/safetensors.h"
#include "tests/h_golden.h"

/* A file of this header and `data` bytes behind it. Exact allocation: a byte read past it is seen under asan. */
static char *file_of(const char *head, size_t data, size_t *ret_size) {
    size_t n = strlen(head);
    char *p = calloc(1, 8 + n + data + 1);
    assert_non_null(p);
    for (int i = 0; i < 8; i++) p[i] = (char)(n >> (8 * i));
    memcpy(p + 8, head, n);
    *ret_size = 8 + n + data;
    char *q = malloc(*ret_size);
    assert_non_null(q);
    memcpy(q, p, *ret_size);
    free(p);
    return q;
}

static void bad_at(int line, const char *head, size_t data, int code, const char *words) {
    size_t size;
    char *p = file_of(head, data, &size);
    q4x_err err = {0};
    q4x_st *st = NULL;
    int rc = q4x_st_parse(p, size, "x.safetensors", &st, &err);
    if (rc != code || st) fail_msg("line %d: %d (%s), expected %d", line, rc, err.msg, code);
    if (!strstr(err.msg, words)) fail_msg("line %d: '%s' lacks '%s'", line, err.msg, words);
    if (strncmp(err.msg, "x.safetensors: ", 15)) fail_msg("line %d: '%s' does not name the file", line, err.msg);
    assert_int_equal(err.code, code);
    free(p);
}
#define BAD(head, data, code, words) bad_at(__LINE__, head, data, Q4X_E_##code, words)

#define T(name, dtype, shape, a, b)                                                                                    \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #a "," #b "]}"

static void good(void **state) {
    (void)state;
    size_t size;
    char *p = file_of("{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\"}," T("b", "F32", "[2,3]", 2, 26) " ,\n\t" T(
                          "a\\u0041", "BF16", "[]", 0, 2) "," T("z", "F8_E4M3", "[1,1,1,1,1,2]", 26,
                                                                28) "," T("e", "I64", "[4,0]", 28,
                                                                          28) "," T("f4", "F4", "[6]", 28, 31) "}   ",
                      31, &size);
    q4x_st *st = NULL;
    q4x_err err = {0};
    if (q4x_st_parse(p, size, "x", &st, &err)) fail_msg("%s", err.msg);
    assert_int_equal(err.code, 0);
    assert_int_equal(st->n, 5);
    assert_string_equal(st->t[0].name, "aA"); /* in the order of the data */
    assert_int_equal(st->t[0].ndim, 0);
    assert_int_equal(st->t[0].elems, 1);
    const q4x_st_tensor *t = q4x_st_find(st, "b");
    assert_non_null(t);
    assert_int_equal(t->type, K_T_F32);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->bytes, 24);
    assert_int_equal(t->off, st->data_off + 2);
    assert_int_equal(q4x_st_find(st, "z")->type, -1);
    assert_string_equal(q4x_st_find(st, "z")->dtype, "F8_E4M3");
    assert_int_equal(q4x_st_find(st, "e")->bytes, 0);
    assert_int_equal(q4x_st_find(st, "f4")->bytes, 3);
    assert_null(q4x_st_find(st, "bb"));
    assert_null(q4x_st_find(st, ""));
    assert_string_equal(q4x_st_meta(st, "format"), "pt");
    assert_null(q4x_st_meta(st, "none"));
    q4x_st_free(st);
    free(p);
    p = file_of("{}", 0, &size);
    assert_int_equal(q4x_st_parse(p, size, "x", &st, NULL), 0);
    assert_int_equal(st->n, 0);
    assert_null(q4x_st_find(st, "b"));
    assert_null(q4x_st_meta(st, "b"));
    q4x_st_free(st);
    free(p);
}

static void bad_frame(void **state) {
    (void)state;
    q4x_err err = {0};
    q4x_st *st = NULL;
    unsigned char b[16] = {0};
    for (size_t n = 0; n < 8; n++) assert_int_equal(q4x_st_parse(b, n, "x", &st, &err), Q4X_E_TRUNCATED);
    assert_int_equal(q4x_st_parse(b, 16, "x", &st, &err), Q4X_E_FORMAT); /* length 0 */
    b[0] = 9;
    assert_int_equal(q4x_st_parse(b, 16, "x", &st, &err), Q4X_E_TRUNCATED);
    assert_non_null(strstr(err.msg, "only 8 bytes follow"));
    memset(b, 0xff, 8);
    assert_int_equal(q4x_st_parse(b, 16, "x", &st, &err), Q4X_E_FORMAT);
    assert_non_null(strstr(err.msg, "18446744073709551615"));
    uint64_t big = 100000001;
    memcpy(b, &big, 8);
    assert_int_equal(q4x_st_parse(b, 16, "x", &st, &err), Q4X_E_FORMAT);
    big = 100000000;
    memcpy(b, &big, 8);
    assert_int_equal(q4x_st_parse(b, 16, "x", &st, &err), Q4X_E_TRUNCATED);
    assert_null(st);
}

static void bad_json(void **state) {
    (void)state;
    BAD("[]", 0, FORMAT, "expected '{'");
    BAD(" {}", 0, FORMAT, "expected '{'");
    BAD("{}}", 0, FORMAT, "follows");
    BAD("{} x", 0, FORMAT, "follows");
    BAD("{,}", 0, FORMAT, "expected '\"'");
    BAD("{ ", 0, FORMAT, "expected '\"'");
    BAD("{\"a", 0, FORMAT, "does not end");
    BAD("{\"a\\", 0, FORMAT, "does not end");
    BAD("{\"a\"", 0, FORMAT, "expected ':'");
    BAD("{\"a\":1}", 0, FORMAT, "expected '{'");
    BAD("{\"a\":null}", 0, FORMAT, "expected '{'");
    BAD("{\"a\":{\"dtype\":\"F32\"", 0, FORMAT, "does not end");
    BAD("{\"a\":[[[[[[[[[]]]]]]]]]}", 0, FORMAT, "expected '{'");
    BAD("{\"a\":{\"shape\":[[[[[[[[]]]]]]]]}}", 0, FORMAT, "deeper than 2");
    BAD("{" T("a", "U8", "[1]", 0, 1) ",}", 1, FORMAT, "expected '\"'");
    BAD("{" T("a", "U8", "[1]", 0, 1), 1, FORMAT, "expected '}'");
    BAD("{" T("a", "U8", "[1]", 0, 1) T("b", "U8", "[1]", 1, 2) "}", 2, FORMAT, "expected '}'");
    BAD("{" T("a\xff", "U8", "[1]", 0, 1) "}", 1, FORMAT, "unable to decode");
    BAD("{" T("a\\u0000", "U8", "[1]", 0, 1) "}", 1, FORMAT, "NUL");
    BAD("{" T("a\\n", "U8", "[1]", 0, 1) "}", 1, FORMAT, "control character 0x0a");
    BAD("{" T("", "U8", "[1]", 0, 1) "}", 1, FORMAT, "name of 0 bytes");
    BAD("{" T("a", "U8", "[1]", 0, 1) "," T("a", "U8", "[1]", 1, 2) "}", 2, FORMAT, "tensor a stands twice");
    BAD("{" T("a", "U8", "[1]", 0, 1) "," T("\\u0061", "U8", "[1]", 1, 2) "}", 2, FORMAT, "tensor a stands twice");
    BAD("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, FORMAT, "duplicate");
    BAD("{\"__metadata__\":{\"a\":1}}", 0, FORMAT, "a is no string");
    BAD("{\"__metadata__\":[]}", 0, FORMAT, "expected '{'");
    BAD("{\"__metadata__\":{\"a\":{}}}", 0, FORMAT, "deeper");
    BAD("{\"__metadata__\":{},\"__metadata__\":{}}", 0, FORMAT, "__metadata__ stands twice");
    char name[1100];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    char head[1400];
    snprintf(head, sizeof head, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name);
    BAD(head, 1, FORMAT, "name of 1099 bytes");
}

static void bad_tensor(void **state) {
    (void)state;
    BAD("{\"a\":{}}", 0, FORMAT, "dtype is missing");
    BAD("{\"a\":{\"dtype\":1}}", 0, FORMAT, "dtype is missing or no string");
    BAD("{\"a\":{\"dtype\":\"bf16\"}}", 0, FORMAT, "dtype bf16");
    BAD("{\"a\":{\"dtype\":\"U8\"}}", 0, FORMAT, "shape is missing");
    BAD("{\"a\":{\"dtype\":\"U8\",\"shape\":{}}}", 0, FORMAT, "shape is missing or no array");
    BAD("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 0, FORMAT, "data_offsets");
    BAD("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, FORMAT, "two integers");
    BAD("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, FORMAT, "two integers");
    BAD("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1.0]}}", 1, FORMAT, "two integers");
    BAD("{" T("a", "U8", "[1.0]", 0, 1) "}", 1, FORMAT, "shape[0]");
    BAD("{" T("a", "U8", "[1,\"2\"]", 0, 1) "}", 1, FORMAT, "shape[1]");
    BAD("{" T("a", "U8", "[-1]", 0, 1) "}", 1, FORMAT, "shape[0]");
    BAD("{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, FORMAT, "9 dimensions");
    BAD("{" T("a", "U8", "[99999999999999999999]", 0, 1) "}", 1, FORMAT, "too big");
    BAD("{" T("a", "U8", "[4294967296,4294967296]", 0, 0) "}", 0, FORMAT, "overflow");
    BAD("{" T("a", "F64", "[4611686018427387904]", 0, 0) "}", 0, FORMAT, "whole number");
    BAD("{" T("a", "F4", "[3]", 0, 1) "}", 1, FORMAT, "whole number");
    BAD("{" T("a", "F32", "[3]", 0, 13) "}", 13, FORMAT, "hold 13 bytes, its 3 elements of F32 need 12");
    BAD("{" T("a", "BF16", "[3]", 0, 12) "}", 12, FORMAT, "hold 12 bytes, its 3 elements of BF16 need 6");
    BAD("{" T("a", "U8", "[1]", -1, 0) "}", 1, FORMAT, "no range");
    BAD("{" T("a", "U8", "[1]", 1, 0) "}", 1, FORMAT, "no range");
    BAD("{" T("a", "U8", "[2]", 0, 2) "}", 1, TRUNCATED, "it is cut");
    BAD("{" T("a", "U8", "[2]", 9223372036854775805, 9223372036854775807) "}", 1, TRUNCATED, "it is cut");
}

static void bad_layout(void **state) {
    (void)state;
    BAD("{" T("a", "U8", "[2]", 1, 3) "}", 3, FORMAT, "a hole");
    BAD("{" T("a", "U8", "[2]", 0, 2) "}", 3, FORMAT, "ends at byte");
    BAD("{" T("a", "U8", "[2]", 0, 2) "," T("b", "U8", "[2]", 1, 3) "}", 3, FORMAT, "they overlap");
    BAD("{" T("a", "U8", "[2]", 0, 2) "," T("b", "U8", "[2]", 0, 2) "}", 2, FORMAT, "they overlap");
    BAD("{" T("a", "U8", "[2]", 0, 2) "," T("b", "U8", "[2]", 3, 5) "}", 5, FORMAT, "a hole");
    BAD("{}", 1, FORMAT, "ends at byte");
    BAD("{" T("a", "U8", "[0]", 1, 1) "," T("b", "U8", "[2]", 0, 2) "}", 2, FORMAT, "they overlap");
}

/* Every cut and every changed byte of a small file is answered, never followed out of its bytes. */
static void mutate(void **state) {
    (void)state;
    size_t size;
    char *p = file_of(
        "{\"__metadata__\":{\"f\":\"p\"}," T("a", "F32", "[2,1]", 0, 8) "," T("b", "U8", "[2]", 8, 10) "}", 10, &size);
    for (size_t n = 0; n < size; n++) {
        char *q = malloc(n ? n : 1);
        q4x_st *st = NULL;
        assert_non_null(q);
        memcpy(q, p, n);
        assert_true(q4x_st_parse(q, n, "x", &st, NULL) < 0);
        assert_null(st);
        free(q);
    }
    static const char to[] = {0, ' ', '"', '{', '}', '[', ']', ',', ':', '9', '-', '\\', (char)0xff, 'a'};
    int ok = 0;
    for (size_t i = 0; i < size; i++)
        for (size_t k = 0; k < sizeof to; k++) {
            char was = p[i];
            q4x_st *st = NULL;
            p[i] = to[k];
            if (!q4x_st_parse(p, size, "x", &st, NULL)) ok++;
            q4x_st_free(st);
            p[i] = was;
        }
    assert_in_range(ok, 20, 700); /* names and data bytes are free, the rest is not */
    free(p);
}

static void json(void **state) {
    (void)state;
    static const q4x_json_limits lim = {40, 3, 4, 5};
    q4x_err err = {0};
    json_t *j = NULL;
    assert_int_equal(q4x_json_read("{\"a\":[1,[2]]}", 13, &lim, "w", &j, &err), 0);
    json_decref(j);
    j = NULL;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"[[[[]]]]", "deeper than 3"},
        {"[[],[],[],[]]", "5 objects"},
        {"[1,2,3,4,5,6,7]", "6 commas"},
        {"\"                                             \"", "at most 40"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"[1] 2", "end of file"},
        {"", "line 1"},
        {"]", "line 1"},
        {"[1e999]", "line 1"},
        {"\"\\u0000\"", "line 1"},
        {"nul", "line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(q4x_json_read(bad[i].text, strlen(bad[i].text), &lim, "w", &j, &err), Q4X_E_FORMAT);
        if (strncmp(err.msg, "w: ", 3) || !strstr(err.msg, bad[i].words)) fail_msg("%s: %s", bad[i].text, err.msg);
    }
    assert_null(j);
    assert_int_equal(q4x_json_span("\"a\\\"b\"c", 7), 6);
    assert_int_equal(q4x_json_span("[\"]\",{}]]", 9), 8);
    assert_int_equal(q4x_json_span("[\"]\"", 4), 0);
    assert_int_equal(q4x_json_span("\"\\\"", 3), 0);
    assert_int_equal(q4x_json_span("1", 1), 0);
    assert_int_equal(q4x_json_span("", 0), 0);
}

static void golden(void **state) {
    (void)state;
    h_golden *g = h_golden_open("tests/golden/micro-a/golden-f32.safetensors");
    assert_non_null(g);
    assert_int_equal(g->nprompt, 9);
    assert_int_equal(g->prompt[8], 23);
    assert_int_equal(g->ngreedy, 8);
    assert_int_equal(g->greedy[7], 243);
    int64_t rows, cols;
    float *v = h_golden_f32(g, "f0/L00.blk", &rows, &cols);
    assert_int_equal(rows, 9);
    assert_int_equal(cols, 64);
    double sum = 0;
    for (int64_t i = 0; i < rows * cols; i++) sum += v[i] * v[i];
    assert_true(sum > 0);
    free(v);
    assert_true(h_golden_has(g, "f7/logits"));
    assert_false(h_golden_has(g, "f8/logits"));
    h_golden_close(g);
    g = h_golden_open("tests/golden/micro-a/golden-bf16.safetensors");
    assert_non_null(g);
    v = h_golden_f32(g, "f0/L00.moe.weights", &rows, &cols);
    assert_int_equal(cols, 3);
    for (int64_t r = 0; r < rows; r++) assert_true(v[3 * r] >= v[3 * r + 1] && v[3 * r + 2] > 0);
    free(v);
    int32_t *ids = h_golden_i32(g, "f0/L00.moe.ids", &rows, &cols);
    assert_int_equal(cols, 3);
    for (int64_t i = 0; i < rows * cols; i++) assert_in_range(ids[i], 0, 7);
    free(ids);
    h_golden_close(g);
    assert_null(h_golden_open("tests/golden/none.safetensors"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good),       cmocka_unit_test(bad_frame),  cmocka_unit_test(bad_json),
        cmocka_unit_test(bad_tensor), cmocka_unit_test(bad_layout), cmocka_unit_test(mutate),
        cmocka_unit_test(json),       cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
