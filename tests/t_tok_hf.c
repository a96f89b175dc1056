/* t_tok_hf.c: tokenizer.json: what it may say, what it may not, each with its message and a twin that is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/io.h"
#include "lib/version.h"
#include "tests/check.h"
#include "tests/h_hf.h"
#include "tests/h_tok.h"

/* The toy with `path` set to `value`. message NULL: it must open. */
static void expect(int64_t rows, const char *path, const char *value, int code, const char *message) {
    json_t *j = h_tok_json();
    q4x_tok *t = NULL;
    q4x_err err = {0};
    if (path) h_tok_set(j, path, value);
    int rc = h_tok_open_json(j, rows, &t, &err);
    if (!message) {
        assert_rc_ok(rc, &err);
        assert_non_null(t);
    } else {
        if (rc != code || err.code != code || strncmp(err.msg, "tokenizer.json: ", 16) != 0 ||
            !strstr(err.msg, message))
            fail_msg("%s = %s: expected %d '%s', got %d '%s'", path, value ? value : "(gone)", code, message, rc,
                     err.msg);
        if (strstr(err.msg + 1, "tokenizer.json")) fail_msg("the file is named twice: %s", err.msg);
        assert_null(t);
    }
    q4x_tok_close(t);
}

#define GOOD(path, value) expect(0, path, value, 0, NULL)
#define BAD(path, value, message) expect(0, path, value, Q4X_E_FORMAT, message)
#define REFUSED(path, value, message) expect(0, path, value, Q4X_E_UNSUPPORTED, message)

static void test_vocab(void **state) {
    (void)state;
    GOOD(NULL, NULL);
    GOOD("model.vocab.xyz", "258");
    GOOD("model.vocab.xyz", "300"); /* holes are allowed */
    BAD("model.vocab", NULL, "model.vocab: expected an object from tokens to ids");
    BAD("model.vocab", "[]", "model.vocab: expected an object from tokens to ids");
    BAD("model.vocab.xyz", "'1'", "model.vocab: 'xyz': id: expected an integer");
    BAD("model.vocab.xyz", "1.5", "model.vocab: 'xyz': id: expected an integer");
    BAD("model.vocab.xyz", "-1", "model.vocab: 'xyz': id -1, expected 0 to 16777215");
    BAD("model.vocab.xyz", "16777216", "id 16777216, expected 0 to 16777215");
    BAD("model.vocab.xyz", "99", "model.vocab: 'xyz': duplicate id: 99 is the token 'c' already");
    BAD("model.vocab.xyz", "70000", "id 70000: 69743 ids below it have no token, expected at most 65536");
    expect(258, NULL, NULL, 0, NULL);
    expect(257, NULL, NULL, Q4X_E_FORMAT,
           "added_tokens[0]: id 257, expected below 257, the configuration's vocab_size: an id beyond the vocabulary");
    expect(300, "model.vocab.xyz", "299", 0, NULL);
    expect(300, "model.vocab.xyz", "300", Q4X_E_FORMAT, "model.vocab: 'xyz': id 300, expected below 300");
}

/* Duplicate keys never become an object; the reader of JSON refuses them. */
static void test_text(void **state) {
    (void)state;
    q4x_tok *t = NULL;
    q4x_err err = {0};
    static const char *const bad[][2] = {
        {"", "tokenizer.json: line 1, column 0: "},
        {"{\"model\": ", "tokenizer.json: line 1, column"},
        {"[1]", "tokenizer.json: expected a JSON object"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"a\": 1}}}", "duplicate object key"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"\\ud800\": 0}}}", "tokenizer.json: line 1, column"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"\xff\": 0}}}", "tokenizer.json: line 1, column"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}, \"pre_tokenizer\": {\"type\": "
         "\"ByteLevel\"}}",
         "expected at least one token, found none"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int rc = q4x_tok_open_json(bad[i][0], strlen(bad[i][0]), 0, &t, &err);
        if (rc != Q4X_E_FORMAT || !strstr(err.msg, bad[i][1])) fail_msg("'%s': %d %s", bad[i][0], rc, err.msg);
    }
    static const char deep[] = "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[";
    assert_int_equal(q4x_tok_open_json(deep, sizeof deep - 1, 0, &t, &err), Q4X_E_FORMAT);
    assert_non_null(strstr(err.msg, "nested deeper than 32 levels"));
    static const char twin[] = "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}, "
                               "\"pre_tokenizer\": {\"type\": \"ByteLevel\"}}";
    assert_rc_ok(q4x_tok_open_json(twin, sizeof twin - 1, 0, &t, &err), &err);
    q4x_tok_close(t);
}

static void test_merges(void **state) {
    (void)state;
    GOOD("model.merges", "[]");
    GOOD("model.merges", "['a b']");
    BAD("model.merges", NULL, "model.merges: expected an array");
    BAD("model.merges", "{}", "model.merges: expected an array");
    BAD("model.merges.0", "'ab'", "model.merges[0]: bad merge: expected \"a b\" or [\"a\", \"b\"], found 'ab'");
    BAD("model.merges.0", "'a b c'", "found 'a b c'");
    BAD("model.merges.0", "['a']", "model.merges[0]: bad merge: expected \"a b\" or [\"a\", \"b\"], found something");
    BAD("model.merges.0", "['a', 'b', 'c']", "found something else");
    BAD("model.merges.0", "['a', 1]", "found something else");
    BAD("model.merges.0", "1", "found something else");
    BAD("model.merges.0", "' b'", "bad merge: its left part '' is no token");
    BAD("model.merges.0", "['a', '']", "bad merge: its right part '' is no token");
    BAD("model.merges.0", "['xx', 'b']", "model.merges[0]: bad merge: its left part 'xx' is no token");
    BAD("model.merges.1", "['b', 'xx']", "model.merges[1]: bad merge: its right part 'xx' is no token");
    BAD("model.merges.1", "['b', 'c']", "model.merges[1]: bad merge: its result 'bc' is no token");
    BAD("model.merges.1", "'a b'", "merge 1: bad merge: 'a' and 'b' are merge 0 already");
}

static void test_added(void **state) {
    (void)state;
    GOOD("added_tokens", NULL);
    GOOD("added_tokens", "null");
    GOOD("added_tokens.1", "{'id': 258, 'content': 'x y'}");
    GOOD("added_tokens.1", "{'id': 256, 'content': 'ab', 'special': true}"); /* stands in the vocabulary too */
    BAD("added_tokens", "{}", "added_tokens: expected an array");
    BAD("added_tokens.1", "1", "added_tokens[1]: content: expected a string");
    BAD("added_tokens.1", "{'id': 258, 'content': ''}", "content: expected a string that is not empty");
    BAD("added_tokens.1", "{'content': 'x'}", "added_tokens[1]: id: expected an integer");
    BAD("added_tokens.1", "{'id': 258, 'content': 'ab'}",
        "added_tokens[1]: duplicate token: 'ab' is token 256 already");
    BAD("added_tokens.1", "{'id': 256, 'content': 'x y'}", "duplicate id: 256 is the token 'ab' already");
    BAD("added_tokens.1", "{'id': 257, 'content': '<|im_end|>'}", "duplicate token: '<|im_end|>' is token 257 already");
    BAD("added_tokens.0.special", "1", "added_tokens[0]: special: expected true or false");
    BAD("added_tokens.0.lstrip", "'no'", "lstrip: expected true or false");
    BAD("added_tokens.0.rstrip", "null", "rstrip: expected true or false");
    REFUSED("added_tokens.0.single_word", "true", "added_tokens[0]: '<|im_end|>': single_word is not supported");
}

static void test_model(void **state) {
    (void)state;
    GOOD("model.dropout", "0.0");
    GOOD("model.continuing_subword_prefix", "''");
    GOOD("model.unk_token", "'a'");
    REFUSED("model", NULL, "model.type: expected BPE, found none");
    REFUSED("model.type", "'Unigram'", "model.type: expected BPE, found Unigram");
    REFUSED("model.dropout", "0.1", "model.dropout: expected none");
    REFUSED("model.continuing_subword_prefix", "'##'", "model.continuing_subword_prefix: expected none");
    REFUSED("model.end_of_word_suffix", "'</w>'", "model.end_of_word_suffix: expected none");
    REFUSED("model.byte_fallback", "true", "model.byte_fallback: true is not supported");
    BAD("model.ignore_merges", "1", "model: ignore_merges: expected true or false");
    BAD("model.unk_token", "'xx'", "model.unk_token: expected a token of the vocabulary");
    BAD("model.unk_token", "1", "model.unk_token: expected a token of the vocabulary");
}

static void test_pipeline(void **state) {
    (void)state;
    GOOD("normalizer", "{'type': 'NFC'}");
    GOOD("normalizer", "{'type': 'Sequence', 'normalizers': [{'type': 'NFC'}]}");
    GOOD("normalizer", "{'type': 'Sequence', 'normalizers': []}");
    GOOD("post_processor", "{'type': 'ByteLevel', 'trim_offsets': false}");
    GOOD("decoder", NULL);
    GOOD("padding", "{'strategy': 'BatchLongest'}");
    REFUSED("normalizer", "{'type': 'NFKC'}", "normalizer: expected NFC, found NFKC, which is not supported");
    REFUSED("normalizer", "{'type': 'Sequence', 'normalizers': [{'type': 'NFC'}, {'type': 'Lowercase'}]}",
            "normalizer: expected NFC, found Lowercase");
    REFUSED("normalizer", "{}", "normalizer: expected NFC, found a step without a type");
    REFUSED("post_processor", "{'type': 'TemplateProcessing'}",
            "post_processor: expected ByteLevel, found TemplateProcessing");
    REFUSED("decoder", "{'type': 'WordPiece'}", "decoder: expected ByteLevel, found WordPiece");
    REFUSED("decoder", "'ByteLevel'", "decoder: expected ByteLevel, found a step without a type");
    REFUSED("truncation", "{'max_length': 512}", "truncation: expected none");
    REFUSED("padding", "{'strategy': {'Fixed': 512}}", "padding: expected none or BatchLongest");
}

#define SPLIT "pre_tokenizer.pretokenizers.0"

static void test_pre(void **state) {
    (void)state;
    GOOD("pre_tokenizer", "{'type': 'ByteLevel'}");
    GOOD(SPLIT ".pattern", "{'String': 'x'}");
    REFUSED("pre_tokenizer", NULL, "pre_tokenizer: expected Split and ByteLevel, found a step without a type");
    REFUSED("pre_tokenizer", "null", "pre_tokenizer: expected Split and ByteLevel, found none");
    REFUSED("pre_tokenizer", "{'type': 'Whitespace'}", "pre_tokenizer: expected Split and ByteLevel, found Whitespace");
    REFUSED("pre_tokenizer.pretokenizers.1", NULL, "pre_tokenizer: expected ByteLevel at its end, found none");
    REFUSED("pre_tokenizer.pretokenizers.2", "{'type': 'Digits'}",
            "pre_tokenizer: expected nothing behind ByteLevel, found Digits");
    REFUSED(SPLIT, "{'type': 'Digits', 'individual_digits': true}", "expected Split and ByteLevel, found Digits");
    REFUSED(SPLIT ".behavior", "'Removed'", "pre_tokenizer: Split: behavior: expected Isolated, found Removed");
    REFUSED(SPLIT ".behavior", NULL, "pre_tokenizer: Split: behavior: expected Isolated, found none");
    REFUSED(SPLIT ".invert", "true", "pre_tokenizer: Split: invert: true is not supported");
    BAD(SPLIT ".invert", "0", "pre_tokenizer: Split: invert: expected true or false");
    BAD(SPLIT ".pattern", "'x'", "pre_tokenizer: Split: pattern: expected an object with Regex or String");
    BAD(SPLIT ".pattern", "{'Regex': 'x', 'String': 'x'}", "expected an object with Regex or String");
    BAD("pre_tokenizer.pretokenizers.1.use_regex", "'yes'",
        "pre_tokenizer: ByteLevel: use_regex: expected true or false");
    if (!q4x_build.text) return;
    BAD(SPLIT ".pattern", "{'Regex': '(a'}", "pre_tokenizer: pattern '(a': does not compile: missing closing");
    BAD(SPLIT ".pattern", "{'Regex': ''}", "pre_tokenizer: pattern: 0 bytes, expected 1 to 16384");
    BAD(SPLIT ".pattern", "{'Regex': '\\\\C'}", "does not compile: using \\C is disabled by the application");
}

/* ---- what options do ---- */

static void ids(json_t *j, const char *text, const char *want) {
    q4x_tok *t = NULL;
    q4x_err err = {0};
    int32_t *id = NULL, n = 0;
    char got[256] = "";
    assert_rc_ok(h_tok_open_json(j, 0, &t, &err), &err);
    assert_rc_ok(q4x_tok_encode(t, text, strlen(text), 0, &id, &n, &err), &err);
    for (int32_t i = 0; i < n; i++) snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i ? "," : "", id[i]);
    assert_string_equal(got, want);
    free(id);
    q4x_tok_close(t);
}

static void test_options(void **state) {
    (void)state;
    if (!q4x_build.text) skip();
    json_t *j = h_tok_json();
    ids(json_incref(j), "ab cab", "256,32,99,256");
    h_tok_set(j, "model.merges", "['a b']");
    ids(json_incref(j), "ab cab", "256,32,99,256"); /* both spellings of a merge */
    h_tok_set(j, "model.vocab.cab", "258");
    ids(json_incref(j), "cab", "99,256");
    h_tok_set(j, "model.ignore_merges", "true");
    ids(json_incref(j), "cab", "258"); /* a piece that is a token */
    ids(json_incref(j), "cabs", "99,256,115");
    h_tok_set(j, "pre_tokenizer.pretokenizers.1.add_prefix_space", "true");
    ids(json_incref(j), "b\nc", "32,98,32,10,32,99"); /* every piece gets its blank */
    ids(json_incref(j), " b", "32,98");
    h_tok_set(j, "pre_tokenizer", "{'type': 'ByteLevel', 'add_prefix_space': true, 'use_regex': true}");
    ids(json_incref(j), "b\nc", "32,98,10,99"); /* only the text does: it is cut later */
    h_tok_set(j, "pre_tokenizer", "{'type': 'ByteLevel', 'add_prefix_space': false, 'use_regex': false}");
    h_tok_set(j, "model.vocab.ba", "259");
    h_tok_set(j, "model.merges.1", "'b a'");
    ids(json_incref(j), "a b a", "97,32,98,32,97");
    ids(json_incref(j), "bba", "98,259");
    json_decref(j);
}

/* ---- bos and eos, from the files beside it ---- */

static void ends(const char *tokenizer_config, const char *config, const char *want) {
    q4x_tok *t = NULL;
    q4x_err err = {0};
    char got[600];
    assert_rc_ok(h_tok_open_json(h_tok_json(), 0, &t, &err), &err);
    json_t *a = tokenizer_config ? json_loads(tokenizer_config, 0, NULL) : NULL, *b = json_loads(config, 0, NULL);
    assert_true((!tokenizer_config || a) && b);
    const q4x_tok_facts *f = q4x_tok_about(t);
    if (q4x_tok_read_ends(t, a, b, &err))
        snprintf(got, sizeof got, "%s", err.msg);
    else
        snprintf(got, sizeof got, "bos %d%s eos %d%s", f->bos, f->add_bos ? "+" : "", f->eos, f->add_eos ? "+" : "");
    assert_string_equal(got, want);
    json_decref(a);
    json_decref(b);
    q4x_tok_close(t);
}

static void test_ends(void **state) {
    (void)state;
    ends(NULL, "{}", "bos -1 eos -1");
    ends(NULL, "{\"bos_token_id\": 5, \"eos_token_id\": [257, 3]}", "bos 5 eos 257");
    ends(NULL, "{\"bos_token_id\": null, \"eos_token_id\": 0}", "bos -1 eos 0");
    ends(NULL, "{\"eos_token_id\": 258}",
         "config.json: eos_token_id: 258, expected 0 to 257: an id beyond the vocabulary");
    ends(NULL, "{\"bos_token_id\": \"x\"}",
         "config.json: bos_token_id: -1, expected 0 to 257: an id beyond the vocabulary");
    ends("{\"eos_token\": \"<|im_end|>\"}", "{\"bos_token_id\": 5}", "bos -1 eos 257");
    ends("{\"eos_token\": {\"content\": \"ab\"}, \"bos_token\": \"a\", \"add_bos_token\": true}", "{}",
         "bos 97+ eos 256");
    ends("{\"eos_token\": \"a\", \"add_eos_token\": true, \"add_bos_token\": false}", "{}", "bos -1 eos 97+");
    ends("{\"eos_token\": \"xx\"}", "{}", "tokenizer_config.json: eos_token: expected a token of the vocabulary");
    ends("{\"bos_token\": 1}", "{}", "tokenizer_config.json: bos_token: expected a token of the vocabulary");
    ends("{\"add_bos_token\": 1}", "{}", "tokenizer_config.json: add_bos_token: expected true or false");
    ends("{\"add_bos_token\": true}", "{}",
         "tokenizer_config.json: add_bos_token is true, expected the token beside it, found none");
    ends("{\"add_eos_token\": true}", "{}",
         "tokenizer_config.json: add_eos_token is true, expected the token beside it, found none");
}

/* ---- in a folder ---- */

static void test_folder(void **state) {
    (void)state;
    char *dir = h_tmp(), path[512];
    q4x_err err = {0};
    q4x_model *m = NULL;
    q4x_tok *t = NULL;
    json_t *config = json_pack("{s:s, s:i}", "model_type", "toy", "vocab_size", 258);
    h_hf_write_config(config, dir, "tests/golden/micro-a");
    json_decref(config);
    assert_rc_ok(q4x_model_open(dir, &m, &err), &err);
    assert_int_equal(q4x_tok_open(m, &t, &err), 1); /* no tokenizer.json */
    json_t *j = h_tok_json();
    char *text = json_dumps(j, 0);
    h_text_write(dir, "tokenizer.json", text);
    assert_rc_ok(q4x_tok_open(m, &t, &err), &err);
    q4x_tok_close(t);
    t = NULL;
    h_text_write(dir, "tokenizer_config.json", "{\"eos_token\": \"xx\"}");
    assert_int_equal(q4x_tok_open(m, &t, &err), Q4X_E_FORMAT);
    snprintf(path, sizeof path, "%s: tokenizer_config.json: eos_token: expected a token", q4x_tail(dir));
    assert_non_null(strstr(err.msg, path));
    h_text_write(dir, "tokenizer_config.json", "{\"eos_token\": ");
    assert_int_equal(q4x_tok_open(m, &t, &err), Q4X_E_FORMAT);
    assert_non_null(strstr(err.msg, "tokenizer_config.json: line 1"));
    h_text_write(dir, "tokenizer_config.json", "{}");
    h_tok_set(j, "model.vocab.xyz", "258");
    free(text);
    text = json_dumps(j, 0);
    h_text_write(dir, "tokenizer.json", text);
    assert_int_equal(q4x_tok_open(m, &t, &err), Q4X_E_FORMAT);
    assert_non_null(strstr(err.msg, "id 258, expected below 258, the configuration's vocab_size"));
    assert_null(t);
    free(text);
    json_decref(j);
    q4x_model_close(m);
    h_tmp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocab),  cmocka_unit_test(test_text),    cmocka_unit_test(test_merges),
        cmocka_unit_test(test_added),  cmocka_unit_test(test_model),   cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_pre),    cmocka_unit_test(test_options), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
