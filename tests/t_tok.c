/* t_tok.c: text to ids and back, whole: the ids of the reference in both containers, round trips, added tokens, what is
 * no text, how long it takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/machine.h"
#include "lib/version.h"
#include "tests/check.h"
#include "tests/h_tok.h"

#define GGUF "tests/models/demo.gguf"
#define JSON "tests/golden/demo-tokenizer.json"

static q4x_tok *from_gguf, *from_json;

static void need_text(void) {
    if (q4x_build.text) return;
    print_message("    this build has no text prompts\n");
    skip();
}

static int open_both(void **state) {
    (void)state;
    q4x_model *m = NULL;
    q4x_err err = {0};
    size_t n;
    assert_rc_ok(q4x_model_open(GGUF, &m, &err), &err);
    assert_rc_ok(q4x_tok_open(m, &from_gguf, &err), &err);
    q4x_model_close(m);
    char *text = h_tok_file_read(JSON, &n);
    assert_rc_ok(q4x_tok_open_json(text, n, 1024, &from_json, &err), &err);
    free(text);
    return 0;
}

static int close_both(void **state) {
    (void)state;
    q4x_tok_close(from_gguf);
    q4x_tok_close(from_json);
    return 0;
}

/* Ids of a text as "1,2,3"; valid until the next call. */
static const char *ids_of(const q4x_tok *t, const char *text, size_t n, int flags) {
    static char out[4096];
    int32_t *ids = NULL, k = 0;
    q4x_err err = {0};
    assert_rc_ok(q4x_tok_encode(t, text, n, flags, &ids, &k, &err), &err);
    size_t at = 0;
    out[0] = 0;
    for (int32_t i = 0; i < k && at < sizeof out - 16; i++)
        at += (size_t)snprintf(out + at, sizeof out - at, "%s%d", i ? "," : "", ids[i]);
    free(ids);
    return out;
}
#define IDS(t, text) ids_of(t, text, sizeof(text) - 1, 0)

/* ---- the reference's ids ---- */

static void same_ids(const json_t *want, const int32_t *got, int32_t n, int *differ) {
    int bad = json_array_size(want) != (size_t)n;
    for (int32_t i = 0; i < n && !bad; i++) bad = json_integer_value(json_array_get(want, (size_t)i)) != got[i];
    *differ += bad;
}

static void test_golden(void **state) {
    (void)state;
    need_text();
    json_t *g = json_load_file("tests/golden/demo-golden.json", 0, NULL), *v;
    const q4x_tok *const toks[2] = {from_gguf, from_json};
    size_t i;
    int prompts = 0, differ = 0, texts = 0, wrong = 0;
    assert_true(json_array_size(g) >= 5);
    json_array_foreach(g, i, v) {
        const char *prompt = json_string_value(json_object_get(v, "prompt"));
        const char *text = json_string_value(json_object_get(v, "text"));
        const json_t *greedy = json_object_get(v, "greedy");
        int32_t made[64], nmade = 0;
        for (size_t k = 0; k < json_array_size(greedy) && nmade < 64; k++) {
            int32_t id = (int32_t)json_integer_value(json_array_get(greedy, k));
            /* the reference's text leaves control tokens out */
            if (q4x_tok_type_of(from_gguf, id) != Q4X_TOK_CONTROL) made[nmade++] = id;
        }
        for (int k = 0; k < 2; k++, prompts++, texts++) {
            int32_t *ids = NULL, n = 0;
            char *got = NULL;
            size_t len;
            q4x_err err = {0};
            assert_rc_ok(q4x_tok_encode(toks[k], prompt, strlen(prompt), 0, &ids, &n, &err), &err);
            same_ids(json_object_get(v, "prompt_ids"), ids, n, &differ);
            assert_rc_ok(q4x_tok_text(toks[k], made, nmade, &got, &len, &err), &err);
            wrong += strcmp(got, text) != 0;
            /* the twin: another text has other ids */
            int twin = 0;
            free(ids);
            assert_rc_ok(q4x_tok_encode(toks[k], prompt, strlen(prompt) - 1, 0, &ids, &n, &err), &err);
            same_ids(json_object_get(v, "prompt_ids"), ids, n, &twin);
            assert_int_equal(twin, 1);
            free(ids);
            free(got);
        }
    }
    json_decref(g);
    print_message("    %d prompts in two containers, %d differ; %d texts of made ids, %d differ\n", prompts, differ,
                  texts, wrong);
    assert_int_equal(differ, 0);
    assert_int_equal(wrong, 0);
    assert_string_equal(IDS(from_gguf, "The day after Monday is"), "366,380,486,573,261");
}

/* ---- round trips ---- */

static void round_trip(const q4x_tok *t, const char *text, size_t n, const char *want, size_t want_n) {
    int32_t *ids = NULL, k = 0;
    uint8_t *back = NULL;
    size_t len = 0;
    q4x_err err = {0};
    assert_rc_ok(q4x_tok_encode(t, text, n, 0, &ids, &k, &err), &err);
    assert_rc_ok(q4x_tok_decode(t, ids, k, &back, &len, &err), &err);
    if (len != want_n || memcmp(back, want, len) != 0) fail_msg("round trip of '%.*s' gives '%s'", (int)n, text, back);
    free(ids);
    free(back);
}

static void test_round_trip(void **state) {
    (void)state;
    need_text();
    enum { STRINGS = 100000 };
    static char text[2048];
    h_rand r = {20250601};
    size_t bytes = 0;
    for (int i = 0; i < STRINGS; i++) {
        size_t n = h_tok_random(&r, 1 + (int)h_below(&r, 24), text, sizeof text);
        round_trip(i & 1 ? from_gguf : from_json, text, n, text, n);
        bytes += n;
    }
    print_message("    %d random strings, %zu bytes, all came back\n", STRINGS, bytes);
}

#define FAMILY "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7\xe2\x80\x8d\xf0\x9f\x91\xa6"

static void test_named_texts(void **state) {
    (void)state;
    need_text();
    static const struct {
        const char *what, *text;
        size_t n;
    } c[] = {
#define T(what, text) {what, text, sizeof(text) - 1}
        T("nothing", ""),
        T("emoji joined", FAMILY " " FAMILY),
        T("flags and skin", "\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd"),
        T("combining marks", "a\xcc\x88\xcc\xa7o\xcc\x82\xcc\xa3 \xcc\x81"),
        T("CRLF", "one\r\ntwo\r\n\r\n three\r\r\n"),
        T("NUL", "a\0b\0\0"),
        T("blanks of all kinds", " \t\x0b\x0c\xc2\x85\xc2\xa0\xe1\x9a\x80\xe2\x80\x83\xe2\x80\xa8\xe3\x80\x80 "),
        T("ends of the planes", "\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\xee\x80\x80\xed\x9f\xbf"),
        T("byte order mark", "\xef\xbb\xbf x"),
        T("right to left", "\xd7\xa9\xd6\xb8\xd7\x9c\xd7\x95\xd6\xb9\xd7\x9d \xd9\x85\xd8\xb1\xd8\xad\xd8\xa8\xd8\xa7"),
#undef T
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        round_trip(from_gguf, c[i].text, c[i].n, c[i].text, c[i].n);
        round_trip(from_json, c[i].text, c[i].n, c[i].text, c[i].n);
    }
}

/* ---- what is no text ---- */

static void test_not_utf8(void **state) {
    (void)state;
    need_text();
    static const struct {
        const char *text;
        size_t at;
    } c[] = {
        {"\xff", 0},
        {"abc\x80", 3},
        {"ab\xc3", 2},                   /* cut short */
        {"a\xed\xa0\x80z", 1},           /* a lone surrogate */
        {"\xed\xa0\xbd\xed\xb8\x80", 0}, /* a pair of them */
        {"x\xc0\xaf", 1},                /* overlong */
        {"\xe0\x9f\xbf", 0},             /* overlong */
        {"\xf0\x8f\xbf\xbf", 0},         /* overlong */
        {"\xc3\xa9\xf4\x90\x80\x80", 2}, /* above U+10FFFF */
        {"\xf5\x80\x80\x80", 0},         /* above U+10FFFF */
        {"caf\xe9 in Latin-1", 3},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int32_t *ids = NULL, n = 0;
        q4x_err err = {0};
        char want[64];
        snprintf(want, sizeof want, "text: byte %zu is 0x%02x, expected UTF-8", c[i].at,
                 (unsigned)(unsigned char)c[i].text[c[i].at]);
        assert_int_equal(q4x_tok_encode(from_gguf, c[i].text, strlen(c[i].text), 0, &ids, &n, &err), Q4X_E_ARG);
        if (!strstr(err.msg, want)) fail_msg("expected '%s', got '%s'", want, err.msg);
        assert_null(ids);
        /* the twin: what stands before it is text */
        round_trip(from_gguf, c[i].text, c[i].at, c[i].text, c[i].at);
    }
}

/* ---- added tokens ---- */

static void test_special(void **state) {
    (void)state;
    need_text();
    assert_string_equal(IDS(from_gguf, "<|im_start|>The day<|im_end|>"), "1,366,380,2");
    assert_string_equal(IDS(from_json, "<|im_start|>The day<|im_end|>"), "1,366,380,2");
    assert_string_equal(ids_of(from_gguf, "<|im_end|>", 10, Q4X_TOK_PLAIN), "30,94,75,79,65,271,70,94,32");
    assert_string_equal(ids_of(from_json, "<|im_end|>", 10, Q4X_TOK_PLAIN), "30,94,75,79,65,271,70,94,32");
    /* split out first: the pieces around know nothing of each other, not even that a word goes on */
    assert_string_equal(IDS(from_gguf, "T<|im_end|>he"), "54,2,260");
    assert_string_equal(IDS(from_gguf, "The"), "366");
    assert_string_equal(IDS(from_gguf, "  <|im_end|>"), "223,223,2"); /* no \S follows the blanks: one piece */
    assert_string_equal(IDS(from_gguf, "<|im_end"), "30,94,75,79,65,271,70");
}

/* Tokens that hold each other. tokenizer.json: those that are looked for in raw text before all others, each time the
 * longest at the leftmost place. GGUF: the longest of all first. */
static void test_overlap(void **state) {
    (void)state;
    need_text();
    static const h_tok_token more[] = {
        {"abc", Q4X_TOK_USER}, {"cdef", Q4X_TOK_CONTROL}, {"<u>", Q4X_TOK_UNKNOWN}, {"[PAD]", Q4X_TOK_UNUSED}};
    h_gguf g;
    q4x_tok *t = NULL;
    q4x_err err = {0};
    h_tok_gguf(&g, "qwen2", more, 4, NULL, 0);
    h_tok_file f = h_tok_model(&g);
    assert_rc_ok(q4x_tok_open(f.m, &t, &err), &err);
    assert_string_equal(IDS(t, "abcdef"), "97,98,257");
    assert_string_equal(ids_of(t, "abcdef", 6, Q4X_TOK_PLAIN), "256,100,101,102"); /* user tokens are never text */
    assert_string_equal(IDS(t, "<u>"), "258");
    assert_string_equal(IDS(t, "[PAD]"), "91,80,65,68,93"); /* unused ones always */
    assert_int_equal(q4x_tok_about(t)->added, 3);
    const uint8_t *p = NULL;
    size_t n = 1;
    assert_int_equal(q4x_tok_bytes(t, 259, &p, &n, NULL), 0); /* nor do they say anything */
    assert_true(p && n == 0);
    assert_int_equal(q4x_tok_bytes(t, 257, &p, &n, NULL), 0);
    assert_true(n == 4 && !memcmp(p, "cdef", 4));
    q4x_tok_close(t);
    h_tok_model_close(&f);

    json_t *j = h_tok_json();
    h_tok_set(j, "added_tokens.0", "{'id': 257, 'content': 'abc', 'normalized': false}");
    h_tok_set(j, "added_tokens.1", "{'id': 258, 'content': 'cdef', 'special': true}");
    assert_rc_ok(h_tok_open_json(j, 0, &t, &err), &err);
    assert_string_equal(IDS(t, "abcdef"), "257,100,101,102");
    assert_string_equal(IDS(t, "bcdef"), "98,258");
    q4x_tok_close(t);
    j = h_tok_json();
    h_tok_set(j, "added_tokens.0", "{'id': 257, 'content': 'abc', 'normalized': true}");
    h_tok_set(j, "added_tokens.1", "{'id': 258, 'content': 'cdef', 'special': true}");
    assert_rc_ok(h_tok_open_json(j, 0, &t, &err), &err);
    assert_string_equal(IDS(t, "abcdef"), "256,258");
    assert_string_equal(ids_of(t, "abcdef", 6, Q4X_TOK_PLAIN), "257,100,101,102");
    q4x_tok_close(t);
}

static void test_strip(void **state) {
    (void)state;
    need_text();
    q4x_tok *t = NULL;
    q4x_err err = {0};
    json_t *j = h_tok_json();
    h_tok_set(j, "added_tokens.0", "{'id': 257, 'content': '<l>', 'lstrip': true}");
    h_tok_set(j, "added_tokens.1", "{'id': 258, 'content': '<r>', 'rstrip': true}");
    h_tok_set(j, "added_tokens.2", "{'id': 259, 'content': '<n>'}");
    assert_rc_ok(h_tok_open_json(j, 0, &t, &err), &err);
    assert_string_equal(IDS(t, "a \t<l> b"), "97,257,32,98");
    assert_string_equal(IDS(t, "a <r>\xe3\x80\x80\n b"), "97,32,258,98");
    assert_string_equal(IDS(t, "a <n> b"), "97,32,259,32,98");
    assert_string_equal(IDS(t, "<r>  <l>"), "258,257");
    assert_string_equal(IDS(t, " <l>"), "257");
    q4x_tok_close(t);
}

static void test_around(void **state) {
    (void)state;
    need_text();
    static const h_tok_token more[] = {{"<s>", Q4X_TOK_CONTROL}, {"</s>", Q4X_TOK_CONTROL}};
    h_gguf g;
    q4x_tok *t = NULL;
    q4x_err err = {0};
    h_tok_gguf(&g, "qwen2", more, 2, NULL, 0);
    h_gguf_kv_u32(&g, "tokenizer.ggml.bos_token_id", 256);
    h_gguf_kv_u32(&g, "tokenizer.ggml.eos_token_id", 257);
    h_gguf_kv_bool(&g, "tokenizer.ggml.add_bos_token", 1);
    h_gguf_kv_bool(&g, "tokenizer.ggml.add_eos_token", 1);
    h_tok_file f = h_tok_model(&g);
    assert_rc_ok(q4x_tok_open(f.m, &t, &err), &err);
    assert_string_equal(IDS(t, "ab"), "256,97,98,257");
    assert_string_equal(IDS(t, ""), "256,257");
    q4x_tok_close(t);
    h_tok_model_close(&f);
}

/* ---- NFC ---- */

static void test_nfc(void **state) {
    (void)state;
    need_text();
    q4x_tok *plain = NULL, *nfc = NULL;
    q4x_err err = {0};
    json_t *j = h_tok_json();
    h_tok_set(j, "added_tokens.1", "{'id': 258, 'content': '<e\\u0301>', 'normalized': true}");
    h_tok_set(j, "added_tokens.2", "{'id': 259, 'content': '<o\\u0308>', 'normalized': false}");
    assert_rc_ok(h_tok_open_json(json_deep_copy(j), 0, &plain, &err), &err);
    h_tok_set(j, "normalizer", "{'type': 'NFC'}");
    assert_rc_ok(h_tok_open_json(j, 0, &nfc, &err), &err);
    assert_true(q4x_tok_about(nfc)->nfc && !q4x_tok_about(plain)->nfc);
    assert_string_equal(IDS(nfc, "e\xcc\x81"), "195,169");
    assert_string_equal(IDS(plain, "e\xcc\x81"), "101,204,129");
    round_trip(nfc, "o\xcc\xa3\xcc\x82 \xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", 15, "\xe1\xbb\x99 \xed\x95\x9c", 7);
    round_trip(nfc, "a\0e\xcc\x81", 5, "a\0\xc3\xa9", 4);
    /* what is looked for in raw text is found before NFC, the rest after it, itself normalised */
    assert_string_equal(IDS(nfc, "<e\xcc\x81>"), "258");
    assert_string_equal(IDS(nfc, "<\xc3\xa9>"), "258");
    assert_string_equal(IDS(nfc, "<o\xcc\x88>"), "259");
    assert_string_equal(IDS(nfc, "<\xc3\xb6>"), "60,195,182,62");
    assert_string_equal(IDS(plain, "<\xc3\xa9>"), "60,195,169,62");
    q4x_tok_close(plain);
    q4x_tok_close(nfc);
}

/* ---- how long ---- */

static void time_one(const q4x_tok *t, const char *what, const char *unit, double most) {
    enum { BYTES = 100000 };
    size_t k = strlen(unit), n = BYTES / k * k;
    char *text = malloc(n);
    int32_t *ids = NULL, m = 0;
    q4x_err err = {0};
    assert_non_null(text);
    for (size_t i = 0; i < n; i += k) memcpy(text + i, unit, k);
    double t0 = q4x_machine_now();
    assert_rc_ok(q4x_tok_encode(t, text, n, 0, &ids, &m, &err), &err);
    double s = q4x_machine_now() - t0;
    print_message("    %-28s %zu bytes, %d ids, %.1f ms\n", what, n, m, 1000 * s);
    if (!(s <= most)) fail_msg("%s: %.3f s, at most %.1f", what, s, most);
    free(ids);
    free(text);
}

static void test_long(void **state) {
    (void)state;
    need_text();
    /* a vocabulary in which every stretch of a's merges: aa, aaaa, .. */
    char text[17][70000 / 17], merge[12][9000];
    const char *merges[12];
    h_tok_token more[12];
    h_gguf g;
    q4x_tok *t = NULL;
    q4x_err err = {0};
    for (int i = 0; i < 11; i++) {
        int k = 1 << i;
        memset(text[i], 'a', (size_t)(2 * k));
        text[i][2 * k] = 0;
        snprintf(merge[i], sizeof merge[i], "%.*s %.*s", k, text[i], k, text[i]);
        more[i] = (h_tok_token){text[i], Q4X_TOK_NORMAL};
        merges[i] = merge[i];
    }
    h_tok_gguf(&g, "qwen35", more, 11, merges, 11);
    h_tok_file f = h_tok_model(&g);
    assert_rc_ok(q4x_tok_open(f.m, &t, &err), &err);
    const double most = H_SANITIZER ? 20 : 1;
    time_one(t, "one letter, all merged", "a", most);
    time_one(from_gguf, "one letter", "a", most);
    time_one(from_gguf, "one letter of two bytes", "\xc3\xa9", most);
    time_one(from_gguf, "blanks", " ", most);
    time_one(from_gguf, "line ends", "\n", most);
    time_one(from_gguf, "blank, line end", " \n", most);
    time_one(from_gguf, "marks", "\xcc\x81", most);
    time_one(from_gguf, "punctuation", "!", most);
    time_one(from_gguf, "beginnings of added tokens", "<|im_", most);
    time_one(from_gguf, "added tokens", "<|im_end|>", most);
    time_one(from_gguf, "words", " the", most);
    q4x_tok_close(t);
    h_tok_model_close(&f);
}

static void test_too_long(void **state) {
    (void)state;
    int32_t *ids = NULL, n;
    q4x_err err = {0};
    assert_int_equal(q4x_tok_encode(from_gguf, "", Q4X_TOK_MAX_TEXT + 1, 0, &ids, &n, &err), Q4X_E_ARG);
    assert_non_null(strstr(err.msg, "expected at most 67108864"));
}

/* ---- facts, and builds without the two libraries ---- */

static void test_facts(void **state) {
    (void)state;
    const q4x_tok_facts *a = q4x_tok_about(from_gguf), *b = q4x_tok_about(from_json);
    assert_string_equal(a->model, "gpt2");
    assert_string_equal(a->pre, "qwen35");
    assert_string_equal(b->model, "BPE");
    assert_string_equal(b->pre, "qwen2");
    assert_true(a->ids == 1024 && a->merges == 765 && a->added == 3 && a->eos == 0 && a->bos == -1 && !a->nfc);
    assert_true(b->ids == 1024 && b->merges == 765 && b->added == 3 && b->eos == -1 && !b->add_bos && !b->add_eos);
    for (int32_t i = 0; i < a->ids; i++) {
        const uint8_t *p, *q;
        size_t n, k;
        assert_int_equal(q4x_tok_bytes(from_gguf, i, &p, &n, NULL), 0);
        assert_int_equal(q4x_tok_bytes(from_json, i, &q, &k, NULL), 0);
        assert_true(n == k && !memcmp(p, q, n) && q4x_tok_type_of(from_gguf, i) == q4x_tok_type_of(from_json, i));
    }
    assert_int_equal(q4x_tok_type_of(from_gguf, 1024), Q4X_TOK_NONE);
    assert_int_equal(q4x_tok_type_of(from_gguf, -1), Q4X_TOK_NONE);
    assert_string_equal(q4x_tok_type_name(q4x_tok_type_of(from_gguf, 2)), "control");
}

static void test_no_text(void **state) {
    (void)state;
    if (q4x_build.text) return;
    int32_t *ids = NULL, n, made[] = {366, 380};
    char *text = NULL;
    size_t len;
    q4x_err err = {0};
    assert_int_equal(q4x_tok_encode(from_gguf, "a", 1, 0, &ids, &n, &err), Q4X_E_UNSUPPORTED);
    assert_string_equal(err.msg, "this build has no text prompts: install libpcre2-dev and libutf8proc-dev and build "
                                 "again, or give --ids");
    assert_rc_ok(q4x_tok_text(from_gguf, made, 2, &text, &len, &err), &err); /* ids still become text */
    assert_string_equal(text, "The day");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),   cmocka_unit_test(test_round_trip), cmocka_unit_test(test_named_texts),
        cmocka_unit_test(test_not_utf8), cmocka_unit_test(test_special),    cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_strip),    cmocka_unit_test(test_around),     cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_long),     cmocka_unit_test(test_too_long),   cmocka_unit_test(test_facts),
        cmocka_unit_test(test_no_text),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
