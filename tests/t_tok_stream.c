/* t_tok_stream.c: ids to text as they come. Whatever the ids, the pieces are whole characters and add up to what comes
 * of them at once; bytes that are no UTF-8 become U+FFFD as Unicode recommends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/utf8.h"
#include "tests/check.h"
#include "tests/h_tok.h"

/* ---- characters, against arithmetic ---- */

/* Decode by the book: a lead byte says how many follow; then the value must need that many and be a character. */
static int by_value(const uint8_t *p, size_t n) {
    int len = p[0] < 0x80 ? 1 : p[0] < 0xc0 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf8 ? 4 : 0;
    if (!len || (size_t)len > n) return 0;
    uint32_t c = len == 1 ? p[0] : p[0] & (0xffu >> (len + 1));
    for (int i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    return c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : len;
}

static void test_utf8(void **state) {
    (void)state;
    static const uint8_t edge[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1,
                                   0xc2, 0xdf, 0xe0, 0xed, 0xee, 0xf0, 0xf4, 0xf5, 0xff};
    enum { E = sizeof edge };
    long good = 0, all = 0;
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++)
            for (int c = 0; c < E; c++)
                for (int d = 0; d < E; d++, all++) {
                    uint8_t p[4] = {(uint8_t)a, (uint8_t)b, edge[c], edge[d]};
                    int len = q4x_utf8(p, 4), want = by_value(p, 4);
                    if (want ? len != want : len >= 0 || len < -3)
                        fail_msg("%02x %02x %02x %02x: %d", a, b, p[2], p[3], len);
                    if (len < 0) /* what is replaced is one byte, or the beginning of a character that could be */
                        for (int k = 1; k < -len; k++) assert_int_equal(q4x_utf8(p, (size_t)k), 0);
                    if (want)
                        for (int k = 1; k < want; k++) assert_int_equal(q4x_utf8(p, (size_t)k), 0);
                    good += want > 0;
                }
    for (uint32_t c = 0; c < 0x110000; c++) {
        char s[4];
        int n = h_utf8(c, s);
        if (c >= 0xd800 && c < 0xe000) continue;
        assert_int_equal(q4x_utf8((const uint8_t *)s, (size_t)n), n);
        assert_int_equal(q4x_utf8_code((const uint8_t *)s, n), c);
    }
    print_message("    %ld beginnings, %ld of them characters; all code points\n", all, good);
}

/* ---- a tokenizer whose ids are bytes, and pairs of bytes ---- */

static q4x_tok *bytes_tokenizer(void) {
    q4x_tok *t = NULL;
    q4x_err err = {0};
    json_t *j = h_tok_json();
    char text[32], path[64], id[16];
    h_tok_set(j, "added_tokens.0", "{'id': 257, 'content': '<\\u00e9>', 'special': true}");
    static const int pairs[][2] = {{0xc3, 0xa9}, {0xf0, 0x9f}, {0x9f, 0x98}, {0x80, 'x'}, {'x', 0xe2}, {0x80, 0x8d}};
    for (int i = 0; i < 6; i++) {
        snprintf(text, sizeof text, "%s%s", h_tok_char(pairs[i][0]), h_tok_char(pairs[i][1]));
        snprintf(path, sizeof path, "model.vocab.%s", text);
        snprintf(id, sizeof id, "%d", 258 + i);
        h_tok_set(j, path, id);
    }
    assert_rc_ok(h_tok_open_json(j, 0, &t, &err), &err);
    return t;
}

/* The stream's text of n ids; *ret_pieces counts those that were not empty. Every piece must be UTF-8 of its own. */
static size_t stream(const q4x_tok *t, const int32_t *ids, int32_t n, char *out, size_t cap, int *ret_pieces) {
    q4x_tok_stream *s = NULL;
    q4x_err err = {0};
    size_t at = 0, k;
    const char *p;
    *ret_pieces = 0;
    assert_rc_ok(q4x_tok_stream_open(t, &s, &err), &err);
    for (int32_t i = 0; i <= n; i++) {
        int rc = i < n ? q4x_tok_stream_add(s, ids[i], &p, &k, &err) : q4x_tok_stream_end(s, &p, &k, &err);
        assert_rc_ok(rc, &err);
        assert_true(at + k <= cap && p[k] == 0);
        assert_int_equal(q4x_utf8_valid((const uint8_t *)p, k), k);
        memcpy(out + at, p, k);
        at += k;
        *ret_pieces += k > 0;
    }
    q4x_tok_stream_close(s);
    return at;
}

static void check(const q4x_tok *t, const int32_t *ids, int32_t n, const char *want) {
    char out[1024], *at_once = NULL;
    size_t len = 0;
    int pieces;
    q4x_err err = {0};
    size_t k = stream(t, ids, n, out, sizeof out, &pieces);
    assert_rc_ok(q4x_tok_text(t, ids, n, &at_once, &len, &err), &err);
    assert_true(len == k && !memcmp(out, at_once, k) && at_once[len] == 0);
    if (want) assert_string_equal(at_once, want);
    free(at_once);
}

static void test_pieces(void **state) {
    (void)state;
    q4x_tok *t = bytes_tokenizer();
    const char *p;
    size_t n;
    q4x_tok_stream *s = NULL;
    assert_int_equal(q4x_tok_stream_open(t, &s, NULL), 0);
    static const struct {
        int32_t id;
        const char *text;
    } c[] = {
        {'a', "a"},
        {0xc3, ""},
        {0xa9, "\xc3\xa9"},
        {258, "\xc3\xa9"},
        {0xf0, ""},
        {0x9f, ""},
        {0x98, ""},
        {0x80, "\xf0\x9f\x98\x80"},
        {259, ""},
        {0x98, ""},
        {261, "\xf0\x9f\x98\x80x"},
        {262, "x"},
        {'!', "\xef\xbf\xbd!"}, /* the character did not come */
        {0xff, "\xef\xbf\xbd"},
        {0xe2, ""},
        {0xe2, "\xef\xbf\xbd"},
        {257, "\xef\xbf\xbd<\xc3\xa9>"},
        {0xf0, ""},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        assert_int_equal(q4x_tok_stream_add(s, c[i].id, &p, &n, NULL), 0);
        if (strcmp(p, c[i].text) != 0 || n != strlen(p)) fail_msg("id %zu: '%s', expected '%s'", i, p, c[i].text);
    }
    assert_int_equal(q4x_tok_stream_end(s, &p, &n, NULL), 0);
    assert_string_equal(p, "\xef\xbf\xbd");
    assert_int_equal(q4x_tok_stream_end(s, &p, &n, NULL), 0);
    assert_int_equal(n, 0);
    q4x_err err = {0};
    assert_int_equal(q4x_tok_stream_add(s, 264, &p, &n, &err), Q4X_E_ARG);
    assert_string_equal(err.msg, "id 264, expected 0 to 263 (the vocabulary)");
    assert_int_equal(q4x_tok_stream_add(s, -1, &p, &n, &err), Q4X_E_ARG);
    q4x_tok_stream_close(s);
    q4x_tok_close(t);
}

/* One U+FFFD for each longest beginning of a character (Unicode, chapter 3.9, its own examples). */
static void test_replacement(void **state) {
    (void)state;
    q4x_tok *t = bytes_tokenizer();
#define R "\xef\xbf\xbd"
    static const struct {
        const char *bytes, *want;
    } c[] = {
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", R R R R R R R R "A"},
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", R R R R R R R R "A"},
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", R R R R R "A" R R "B"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", R R R R "A"},
        {"\xe2\x82", R},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int32_t ids[16], n = 0;
        for (const char *p = c[i].bytes; *p; p++) ids[n++] = (unsigned char)*p;
        check(t, ids, n, c[i].want);
    }
    q4x_tok_close(t);
}

static void test_random(void **state) {
    (void)state;
    q4x_tok *t = bytes_tokenizer();
    h_rand r = {3};
    long ids_seen = 0, whole = 0;
    for (int k = 0; k < 20000; k++) {
        int32_t ids[100], n = 0;
        char text[64], out[1024];
        int pieces;
        if (k & 1) { /* real text, byte by byte: a piece for each character */
            size_t len = h_tok_random(&r, 8, text, sizeof text);
            for (size_t i = 0; i < len; i++) ids[n++] = (unsigned char)text[i];
            size_t got = stream(t, ids, n, out, sizeof out, &pieces);
            assert_true(got == len && !memcmp(out, text, len));
            int characters = 0;
            for (size_t i = 0; i < len; i++) characters += (text[i] & 0xc0) != 0x80;
            assert_int_equal(pieces, characters);
            whole += characters;
        } else { /* any ids */
            n = 1 + (int32_t)h_below(&r, 40);
            for (int32_t i = 0; i < n; i++) ids[i] = (int32_t)h_below(&r, 264);
        }
        check(t, ids, n, NULL);
        ids_seen += n;
    }
    print_message("    %ld ids; %ld characters came whole\n", ids_seen, whole);
    q4x_tok_close(t);
}

/* Decoding is exact: the bytes of the ids, whatever they are. */
static void test_decode(void **state) {
    (void)state;
    q4x_tok *t = bytes_tokenizer();
    int32_t ids[256];
    uint8_t *back = NULL;
    size_t n = 1;
    q4x_err err = {0};
    for (int i = 0; i < 256; i++) ids[i] = 255 - i;
    assert_rc_ok(q4x_tok_decode(t, ids, 256, &back, &n, &err), &err);
    assert_int_equal(n, 256);
    for (int i = 0; i < 256; i++) assert_int_equal(back[i], 255 - i);
    free(back);
    assert_rc_ok(q4x_tok_decode(t, NULL, 0, &back, &n, &err), &err);
    assert_int_equal(n, 0);
    free(back);
    ids[7] = 9999;
    assert_int_equal(q4x_tok_decode(t, ids, 256, &back, &n, &err), Q4X_E_ARG);
    assert_string_equal(err.msg, "id 9999, expected 0 to 263 (the vocabulary)");
    q4x_tok_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_utf8), cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_replacement), cmocka_unit_test(test_random),
                                       cmocka_unit_test(test_decode)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
