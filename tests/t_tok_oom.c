/* t_tok_oom.c: tokenizers opened and used when the n-th allocation fails, for every n: Q4X_E_NOMEM, nothing leaked,
 * nothing left in the results.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "lib/version.h"
#include "tests/check.h"
#include "tests/h_oom.h"
#include "tests/h_tok.h"

static h_tok_file file;
static char *json;

static int open_gguf(q4x_tok **ret, q4x_err *err) {
    return q4x_tok_open(file.m, ret, err);
}
static int open_json(q4x_tok **ret, q4x_err *err) {
    return q4x_tok_open_json(json, strlen(json), 0, ret, err);
}

static const char text[] = "abab <|im_end|>e\xcc\x81 <v\xcc\x81> abcdefgh12345678  \n\n";

/* Everything that a tokenizer does; NULL results are left alone by the caller. */
static int use(const q4x_tok *t, q4x_err *err) {
    int rc;
    int32_t *ids = NULL, n = 0;
    uint8_t *bytes = NULL;
    char *s = NULL;
    size_t len;
    const char *p;
    q4x_tok_stream *st = NULL;
    TRY(q4x_tok_encode(t, text, sizeof text - 1, 0, &ids, &n, err));
    TRY(q4x_tok_decode(t, ids, n, &bytes, &len, err));
    TRY(q4x_tok_text(t, ids, n, &s, &len, err));
    TRY(q4x_tok_stream_open(t, &st, err));
    for (int32_t i = 0; i < n; i++) TRY(q4x_tok_stream_add(st, ids[i], &p, &len, err));
    TRY(q4x_tok_stream_end(st, &p, &len, err));
done:
    free(ids);
    free(bytes);
    free(s);
    q4x_tok_stream_close(st);
    return rc;
}

static void sweep(const char *what, int (*open)(q4x_tok **, q4x_err *), int least) {
    int n = 0, late = 0;
    for (;; n++) {
        q4x_tok *t = NULL;
        q4x_err err = {0};
        long before = h_live;
        h_left = n;
        h_failed = 0;
        int rc = open(&t, &err);
        int used = rc ? 0 : use(t, &err);
        int failed = h_failed;
        h_left = -1;
        q4x_tok_close(t);
        assert_int_equal(h_live, before);
        if (!failed) {
            assert_rc_ok(rc ? rc : used, &err);
            break;
        }
        late += !rc;
        /* jansson takes a failing allocation for bad syntax now and then; PCRE2 does without compiled code */
        if (rc < 0 && open == open_json) assert_true(err.code == rc);
        if (rc < 0 && open != open_json) assert_true(rc == Q4X_E_NOMEM && err.code == rc && strlen(err.msg) > 8);
        if (used) assert_true(used == Q4X_E_NOMEM && err.code == used && strlen(err.msg) > 8);
        assert_true(!rc || !t);
    }
    print_message("    %s: %d allocations, each failed once, %d of them after opening\n", what, n, late);
    assert_true(n >= least);
}

static void test_oom(void **state) {
    (void)state;
    if (!H_OWN_MALLOC) {
        print_message("    a sanitizer owns malloc\n");
        skip();
    }
    if (!q4x_build.text) {
        print_message("    this build has no text prompts\n");
        skip();
    }
    static const h_tok_token more[] = {{"ab", 1}, {"abab", 1}, {"<|im_end|>", 3}, {"<x>", 4}, {"<0x41>", 6}};
    static const char *const merges[] = {"a b", "ab ab"};
    h_gguf g;
    h_tok_gguf(&g, "qwen35", more, 5, merges, 2);
    file = h_tok_model(&g);
    json_t *j = h_tok_json();
    h_tok_set(j, "normalizer", "{'type': 'NFC'}");
    h_tok_set(j, "added_tokens.1", "{'id': 258, 'content': '<v\\u0301>'}");
    h_tok_set(j, "pre_tokenizer.pretokenizers.1.add_prefix_space", "true");
    h_tok_set(j, "model.ignore_merges", "true");
    json = json_dumps(j, 0);
    json_decref(j);
    sweep("GGUF", open_gguf, 30);
    sweep("tokenizer.json", open_json, 300);
    free(json);
    h_tok_model_close(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_oom)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
