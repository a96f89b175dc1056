/* t_tok_gguf.c: tokenizers that GGUF keys get wrong: each with its message, and a twin that is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/version.h"
#include "tests/check.h"
#include "tests/h_tok.h"

#define KEY "tokenizer.ggml."

/* One broken thing at a time; what is not set is right. */
typedef struct {
    const char *model, *pre; /* NULL: gpt2, qwen2; "": the key is left out */
    h_tok_token more[4];
    const char *merges[4];
    int no_merges, no_tokens, no_types;
    uint32_t types_as;             /* element type that types are written as, 0: i32 */
    uint32_t tokens_as, merges_as; /* the same, 0: strings */
    int lose_type;                 /* one type too few */
    const char *id_key;            /* KEY "x_token_id" */
    uint64_t id;
    const char *true_key;
    uint64_t rows; /* of token_embd.weight; 0: no such tensor */
    int broken_utf8;
} toy;

/* n elements of a numeric array, all of them v. */
static void numbers(h_gguf *g, const char *key, uint32_t type, size_t n, uint32_t v) {
    static const uint8_t size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    h_buf b = {0};
    for (size_t i = 0; i < n; i++) {
        uint64_t wide = v;
        h_put(&b, &wide, size[type]);
    }
    h_gguf_arr(g, key, type, n, b.p, b.n);
    h_buf_free(&b);
}

static void put_tokens(h_gguf *g, const toy *t, int more) {
    h_buf strs = {0};
    for (int b = 0; b < 256; b++) h_str(&strs, t->broken_utf8 && b == 200 ? "\xc3" : h_tok_char(b));
    for (int i = 0; i < more; i++) h_str(&strs, t->more[i].text);
    if (t->tokens_as)
        numbers(g, KEY "tokens", t->tokens_as, 256, 65);
    else
        h_gguf_arr(g, KEY "tokens", 8, (uint64_t)(256 + more), strs.p, strs.n);
    h_buf_free(&strs);
}

static void put_types(h_gguf *g, const toy *t, int more) {
    int n = 256 + more - t->lose_type;
    int32_t types[260];
    for (int i = 0; i < n; i++) types[i] = i < 256 ? 1 : t->more[i - 256].type;
    if (t->types_as)
        numbers(g, KEY "token_type", t->types_as, (size_t)n, 1);
    else
        h_gguf_arr_i32(g, KEY "token_type", types, (size_t)n);
}

static h_tok_file make(const toy *t) {
    h_gguf g;
    int more = 0, merges = 0;
    while (more < 4 && t->more[more].text) more++;
    while (merges < 4 && t->merges[merges]) merges++;
    h_gguf_init(&g);
    h_gguf_kv_str(&g, "general.architecture", "toy");
    if (!t->model || *t->model) h_gguf_kv_str(&g, KEY "model", t->model ? t->model : "gpt2");
    if (!t->pre || *t->pre) h_gguf_kv_str(&g, KEY "pre", t->pre ? t->pre : "qwen2");
    if (!t->no_tokens) put_tokens(&g, t, more);
    if (!t->no_types) put_types(&g, t, more);
    if (t->merges_as)
        numbers(&g, KEY "merges", t->merges_as, 3, 1);
    else if (!t->no_merges)
        h_gguf_arr_str(&g, KEY "merges", t->merges, (size_t)merges);
    if (t->id_key) h_gguf_kv_u64(&g, t->id_key, t->id);
    if (t->true_key) h_gguf_kv_bool(&g, t->true_key, 1);
    if (t->rows) h_gguf_tensor(&g, "token_embd.weight", 0, 2, (uint64_t[]){4, t->rows}, NULL);
    return h_tok_model(&g);
}

/* NULL: it must open. */
static void expect(const toy *t, int code, const char *message) {
    h_tok_file f = make(t);
    q4x_tok *tok = NULL;
    q4x_err err = {0};
    int rc = q4x_tok_open(f.m, &tok, &err);
    if (!message) {
        assert_rc_ok(rc, &err);
        assert_non_null(tok);
    } else {
        if (rc != code || err.code != code || strncmp(err.msg, "toy.gguf: ", 10) != 0 || !strstr(err.msg, message))
            fail_msg("expected %d '%s', got %d '%s'", code, message, rc, err.msg);
        if (strstr(err.msg + 1, "toy.gguf")) fail_msg("the file is named twice: %s", err.msg);
        assert_null(tok);
    }
    q4x_tok_close(tok);
    h_tok_model_close(&f);
}

#define GOOD(...) expect(&(toy){__VA_ARGS__}, 0, NULL)
#define BAD(message, ...) expect(&(toy){__VA_ARGS__}, Q4X_E_FORMAT, message)
#define REFUSED(message, ...) expect(&(toy){__VA_ARGS__}, Q4X_E_UNSUPPORTED, message)
#define MORE .more = {{"ab", 1}, {"<s>", 3}}

static void test_kind(void **state) {
    (void)state;
    GOOD(.merges = {0});
    GOOD(.pre = "qwen35");
    REFUSED(KEY "model: expected gpt2 (byte-level BPE), found 'llama'", .model = "llama");
    REFUSED(KEY "model: expected gpt2 (byte-level BPE), found 'gpt'", .model = "gpt");
    BAD(KEY "model: expected one beside " KEY "tokens, found none", .model = "");
    REFUSED(KEY "pre: expected qwen35 or qwen2, found none", .pre = "");
    REFUSED(KEY "pre: expected qwen35 or qwen2, found 'qwen'", .pre = "qwen");
    REFUSED(KEY "pre: expected qwen35 or qwen2, found 'llama-bpe'", .pre = "llama-bpe");
}

static void test_none(void **state) {
    (void)state;
    h_gguf g;
    q4x_tok *tok = NULL;
    q4x_err err = {0};
    h_gguf_init(&g);
    h_tok_file f = h_tok_model(&g);
    assert_int_equal(q4x_tok_open(f.m, &tok, &err), 1);
    assert_null(tok);
    assert_int_equal(err.code, 0);
    h_tok_model_close(&f);
}

static void test_tokens(void **state) {
    (void)state;
    GOOD(MORE);
    GOOD(MORE, .no_types = 1);
    BAD(KEY "tokens: expected an array of strings, found none", .no_tokens = 1);
    BAD("duplicate token: 'ab' is token 256 already", .more = {{"ab", 1}, {"ab", 1}});
    BAD(KEY "tokens[257]: duplicate token: 'a' is token 97 already", .more = {{"ab", 1}, {"a", 3}});
    GOOD(.more = {{"", 5}, {"", 5}, {"<pad>", 5}}); /* empty ones cannot be spelled, so they may repeat */
    BAD(KEY "tokens[200]: expected UTF-8, found byte 0xc3 at 0", .broken_utf8 = 1);
    BAD(KEY "token_type: 257 elements, expected 258", MORE, .lose_type = 1);
    BAD(KEY "token_type[257]: 7, expected 1 to 6", .more = {{"ab", 1}, {"x7", 7}});
    BAD(KEY "token_type[256]: 0, expected 1 to 6", .more = {{"ab", 0}});
    BAD(KEY "token_type[256]: -1, expected 1 to 6", .more = {{"ab", -1}});
    GOOD(MORE, .rows = 258);
    GOOD(MORE, .rows = 300);
    BAD(KEY "tokens: 258 tokens, expected at most 257, the rows of token_embd.weight: ids beyond the vocabulary", MORE,
        .rows = 257);
}

static void test_element_types(void **state) {
    (void)state;
    BAD("'" KEY "tokens' at byte", .tokens_as = 5);
    BAD("expected an array of strings, found type array of i32", .tokens_as = 5);
    BAD("expected an array of strings, found type array of i16", .tokens_as = 3);
    BAD("'" KEY "token_type' at byte", .types_as = 6);
    BAD("expected an array of integers or bools, found type array of f32", .types_as = 6);
    BAD("expected an array of integers or bools, found type array of f64", .types_as = 12);
    GOOD(.types_as = 4); /* u32 */
    GOOD(.types_as = 1); /* i8 */
    BAD("expected an array of strings, found type array of u64", .merges_as = 10);
    BAD("'" KEY "merges' at byte", .merges_as = 10);
}

static void test_byte_tokens(void **state) {
    (void)state;
    GOOD(.more = {{"<0x0A>", 6}, {"<0xff>", 6}});
    GOOD(.more = {{"<0x-1>", 1}}); /* a token like any other */
    BAD("token 256 is of type byte: expected a text like <0x0A>, found '<0x-1>'", .more = {{"<0x-1>", 6}});
    BAD("token 256 is of type byte: expected a text like <0x0A>, found '<0x+A>'", .more = {{"<0x+A>", 6}});
    BAD("expected a text like <0x0A>, found '<0x 1>'", .more = {{"<0x 1>", 6}});
    BAD("expected a text like <0x0A>, found '<0x1>'", .more = {{"<0x1>", 6}});
    BAD("expected a text like <0x0A>, found '<0x001>'", .more = {{"<0x001>", 6}});
    BAD("expected a text like <0x0A>, found 'newline'", .more = {{"newline", 6}});
    BAD("expected a text like <0x0A>, found ''", .more = {{"", 6}});
}

static void test_merges(void **state) {
    (void)state;
    GOOD(MORE, .merges = {"a b"});
    GOOD(.more = {{"ab", 1}, {"abc", 1}}, .merges = {"a b", "ab c"});
    BAD(KEY "merges: expected an array of strings, found none", .no_merges = 1);
    BAD(KEY "merges[0]: bad merge: expected two tokens with a blank between them, found 'ab'", MORE, .merges = {"ab"});
    BAD("merges[1]: bad merge: expected two tokens with a blank between them, found 'a b c'", MORE,
        .merges = {"a b", "a b c"});
    BAD("expected two tokens with a blank between them, found ''", MORE, .merges = {""});
    BAD("expected two tokens with a blank between them, found ' '", MORE, .merges = {" "});
    BAD("expected two tokens with a blank between them, found 'a '", MORE, .merges = {"a "});
    BAD("expected two tokens with a blank between them, found ' b'", MORE, .merges = {" b"});
    BAD("expected two tokens with a blank between them, found 'a  b'", MORE, .merges = {"a  b"});
    BAD("merges[0]: bad merge: its left part 'xx' is no token", MORE, .merges = {"xx b"});
    BAD("merges[0]: bad merge: its right part 'xx' is no token", MORE, .merges = {"b xx"});
    BAD("merges[0]: bad merge: its result 'bc' is no token", MORE, .merges = {"b c"});
    BAD("merge 1: bad merge: 'a' and 'b' are merge 0 already", MORE, .merges = {"a b", "a b"});
}

static void test_special_ids(void **state) {
    (void)state;
    static const char *const keys[] = {KEY "bos_token_id", KEY "eos_token_id", KEY "padding_token_id",
                                       KEY "unknown_token_id", KEY "fim_pre_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char message[160];
        snprintf(message, sizeof message, "%s: 258, expected 0 to 257: an id beyond the vocabulary", keys[i]);
        GOOD(MORE, .id_key = keys[i], .id = 257);
        BAD(message, MORE, .id_key = keys[i], .id = 258);
        snprintf(message, sizeof message, "%s: 4294967296, expected 0 to 257", keys[i]);
        BAD(message, MORE, .id_key = keys[i], .id = (uint64_t)1 << 32);
    }
    GOOD(MORE, .true_key = KEY "add_bos_token", .id_key = KEY "bos_token_id", .id = 257);
    BAD(KEY "add_bos_token is true, expected the id in a key ending in _token_id, found none", MORE,
        .true_key = KEY "add_bos_token", .id_key = KEY "eos_token_id", .id = 257);
    BAD(KEY "add_eos_token is true", MORE, .true_key = KEY "add_eos_token");
}

static void test_long_special(void **state) {
    (void)state;
    static char text[Q4X_TOK_MAX_ADDED + 2];
    memset(text, 'x', Q4X_TOK_MAX_ADDED + 1);
    BAD("token 256: an added token of 4097 bytes, expected at most 4096", .more = {{text, 3}});
    GOOD(.more = {{text, 1}});
    text[Q4X_TOK_MAX_ADDED] = 0;
    GOOD(.more = {{text, 3}});
}

/* Bytes that the vocabulary cannot spell. */
static void test_missing_bytes(void **state) {
    (void)state;
    if (!q4x_build.text) skip();
    static const char *const tokens[] = {"a", "<0x62>", "<unk>"};
    static const int32_t types[] = {1, 6, 2};
    for (int with_unknown = 0; with_unknown < 2; with_unknown++) {
        h_gguf g;
        q4x_tok *t = NULL;
        q4x_err err = {0};
        int32_t *ids = NULL, n = 0;
        h_gguf_init(&g);
        h_gguf_kv_str(&g, KEY "model", "gpt2");
        h_gguf_kv_str(&g, KEY "pre", "qwen2");
        h_gguf_arr_str(&g, KEY "tokens", tokens, 3);
        h_gguf_arr_i32(&g, KEY "token_type", types, 3);
        h_gguf_arr_str(&g, KEY "merges", NULL, 0);
        if (with_unknown) h_gguf_kv_u32(&g, KEY "unknown_token_id", 2);
        h_tok_file f = h_tok_model(&g);
        assert_rc_ok(q4x_tok_open(f.m, &t, &err), &err);
        assert_rc_ok(q4x_tok_encode(t, "ab", 2, 0, &ids, &n, &err), &err); /* 'b' has a token of type byte */
        assert_true(n == 2 && ids[0] == 0 && ids[1] == 1);
        free(ids);
        ids = NULL;
        int rc = q4x_tok_encode(t, "ac", 2, 0, &ids, &n, &err);
        if (with_unknown) {
            assert_rc_ok(rc, &err);
            assert_true(n == 2 && ids[0] == 0 && ids[1] == 2);
        } else {
            assert_int_equal(rc, Q4X_E_UNSUPPORTED);
            assert_string_equal(err.msg, "the vocabulary has no token for byte 0x63 of the text");
        }
        free(ids);
        q4x_tok_close(t);
        h_tok_model_close(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kind),          cmocka_unit_test(test_none),         cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_element_types), cmocka_unit_test(test_byte_tokens),  cmocka_unit_test(test_merges),
        cmocka_unit_test(test_special_ids),   cmocka_unit_test(test_long_special), cmocka_unit_test(test_missing_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
