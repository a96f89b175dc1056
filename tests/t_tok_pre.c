/* t_tok_pre.c: the patterns qwen2 and qwen35 against a scanner written by hand, whose classes come from the other
 * Unicode library; patterns of other kinds; patterns that would take for ever; NFC.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/machine.h"
#include "lib/utf8.h"
#include "lib/version.h"
#include "tests/check.h"
#include "tests/h_tok.h"

#ifndef Q4X_TEXT /* the Makefile gives it in build.h */
#define Q4X_TEXT 0
#endif
#if Q4X_TEXT
#include <utf8proc.h>
#endif

static void need_text(void) {
    if (q4x_build.text && Q4X_TEXT) return;
    print_message("    this build has no text prompts\n");
    skip();
}

/* ---- pieces ---- */

typedef struct {
    size_t end[4096]; /* of each piece, in the text */
    size_t n, at;
    char text[8192]; /* the pieces with '|' between them, while they fit */
    size_t len;
} pieces;

static int collect(void *ctx, const uint8_t *piece, size_t n, q4x_err *err) {
    pieces *p = ctx;
    (void)err;
    p->at += n;
    if (p->n < sizeof p->end / sizeof *p->end) p->end[p->n] = p->at;
    p->n++;
    if (p->len + n + 2 > sizeof p->text) return 0;
    if (p->len) p->text[p->len++] = '|';
    memcpy(p->text + p->len, piece, n);
    p->len += n;
    p->text[p->len] = 0;
    return 0;
}

static q4x_pre *compiled(const char *pattern) {
    q4x_pre *p = NULL;
    q4x_err err = {0};
    assert_rc_ok(q4x_pre_open(&(q4x_pre_stage){.pattern = pattern}, 1, 0, 0, &p, &err), &err);
    return p;
}

static void cut(const q4x_pre *p, const char *text, size_t n, pieces *ret) {
    q4x_err err = {0};
    ret->n = ret->at = ret->len = 0;
    ret->text[0] = 0;
    assert_rc_ok(q4x_pre_cut(p, (const uint8_t *)text, n, collect, ret, &err), &err);
    assert_int_equal(ret->at, n);
}

static void expect(const char *pattern, const char *text, const char *want) {
    static pieces got;
    q4x_pre *p = compiled(pattern);
    cut(p, text, strlen(text), &got);
    if (strcmp(got.text, want) != 0) fail_msg("'%s' cut by '%s': '%s', expected '%s'", text, pattern, got.text, want);
    q4x_pre_close(p);
}

/* ---- classes of all code points, in both libraries ---- */

enum { CODES = 0x110000, LETTER = 1, NUMBER = 2, MARK = 4, BLANK = 8, APART = 16 };
static uint8_t class_of[CODES];

static int utf8proc_class(uint32_t c) {
#if Q4X_TEXT
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) return LETTER;
    if (k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME) return MARK;
    if (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO) return NUMBER;
    if (k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP) return BLANK;
#endif
    return (c >= 9 && c <= 13) || c == 0x85 ? BLANK : 0;
}

static void test_classes(void **state) {
    (void)state;
    need_text();
    long apart = 0;
    static const char *const patterns[] = {"\\p{L}", "\\p{N}", "\\p{M}", "\\s"};
    static const int bits[] = {LETTER, NUMBER, MARK, BLANK};
    for (int i = 0; i < 4; i++) {
        q4x_pre *p = compiled(patterns[i]);
        long differ = 0, assigned = 0;
        for (uint32_t k = 0; k < CODES; k++) {
            if (k >= 0xd800 && k < 0xe000) continue;
            /* between two characters of another class: three pieces when it matches, one when it does not */
            static pieces got;
            char text[8] = "b";
            int n = 1 + h_utf8(k, text + 1);
            text[n++] = 'b';
            if (bits[i] == LETTER) text[0] = text[n - 1] = '.';
            cut(p, text, (size_t)n, &got);
            int is = got.n == 3;
            if (is != !!(utf8proc_class(k) & bits[i])) {
                class_of[k] |= APART;
                differ++;
                assigned += k < 0x10000 && k != 0x0cf3 && k != 0x0ece;
            }
        }
        q4x_pre_close(p);
        apart += differ;
        print_message("    %-6s %ld code points of another class in the other library\n", patterns[i], differ);
        if (bits[i] == BLANK) assert_int_equal(differ, 0);
        assert_true(assigned < 200); /* younger versions of Unicode add characters, mostly above U+FFFF */
    }
    assert_true(apart < 20000);
}

/* ---- the two patterns, by hand ---- */

typedef struct {
    uint32_t c[512];
    int cls[512], n;
    int marks; /* 1: marks go with letters (qwen35) */
} line;

static int in_word(const line *l, int i) {
    return i < l->n && (l->cls[i] & (l->marks ? LETTER | MARK : LETTER));
}
static int is_end(const line *l, int i) {
    return i < l->n && (l->c[i] == '\r' || l->c[i] == '\n');
}
static int in_other(const line *l, int i) {
    return i < l->n && !(l->cls[i] & (LETTER | NUMBER | BLANK)) && !(l->marks && l->cls[i] & MARK);
}

static int contraction(const line *l, int i) {
    if (l->c[i] != '\'' || i + 1 >= l->n) return 0;
    uint32_t a = l->c[i + 1] | 0x20, b = i + 2 < l->n ? l->c[i + 2] | 0x20 : 0;
    if (l->c[i + 1] >= 0x80) return 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (i + 2 >= l->n || l->c[i + 2] >= 0x80) return 0;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* Length of the piece that begins at i. */
static int piece_at(const line *l, int i) {
    int k = contraction(l, i), j;
    if (k) return k;
    int lead = !is_end(l, i) && !(l->cls[i] & (LETTER | NUMBER)); /* may stand before a word */
    j = lead && in_word(l, i + 1) ? i + 1 : i;
    if (in_word(l, j)) {
        while (in_word(l, j)) j++;
        return j - i;
    }
    if (l->cls[i] & NUMBER) return 1;
    j = l->c[i] == ' ' ? i + 1 : i;
    if (in_other(l, j)) {
        while (in_other(l, j)) j++;
        while (is_end(l, j)) j++;
        return j - i;
    }
    int run = i, last_end = -1;
    for (; run < l->n && l->cls[run] & BLANK; run++)
        if (is_end(l, run)) last_end = run;
    if (last_end >= 0) return last_end + 1 - i;
    if (run == l->n || run - i == 1) return run - i;
    return run - i - 1;
}

static void scan(line *l, const char *text, size_t n) {
    l->n = 0;
    for (size_t at = 0; at < n && l->n < 512; l->n++) {
        int len = q4x_utf8((const uint8_t *)text + at, n - at);
        l->c[l->n] = q4x_utf8_code((const uint8_t *)text + at, len);
        l->cls[l->n] = utf8proc_class(l->c[l->n]);
        at += (size_t)len;
    }
}

static int code_bytes(uint32_t c) {
    return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

/* Do the pieces end where the scanner says? */
static int same(const line *l, const pieces *p) {
    size_t k = 0, at = 0;
    for (int i = 0; i < l->n;) {
        int len = piece_at(l, i);
        assert_true(len > 0);
        for (int j = 0; j < len; j++) at += (size_t)code_bytes(l->c[i++]);
        if (k >= p->n || p->end[k++] != at) return 0;
    }
    return k == p->n;
}

static void test_by_hand(void **state) {
    (void)state;
    need_text();
    static pieces got;
    static line l;
    q4x_pre *p[2] = {compiled(q4x_tok_pre_pattern("qwen2", 5)), compiled(q4x_tok_pre_pattern("qwen35", 6))};
    h_rand r = {17};
    int texts = 0, left_out = 0, twins = 0;
    long count = 0;
    for (int i = 0; i < 60000; i++) {
        char text[1024];
        size_t n;
        if (i % 3) {
            n = h_tok_random(&r, 1 + (int)h_below(&r, 20), text, sizeof text);
        } else { /* blanks, line ends, quotes */
            n = h_below(&r, 20);
            for (size_t k = 0; k < n; k++) text[k] = " \t\n\r  ab1.'sS"[h_below(&r, 13)];
        }
        scan(&l, text, n);
        int apart = 0;
        for (int k = 0; k < l.n; k++) apart |= class_of[l.c[k]] & APART;
        if (apart) {
            left_out++;
            continue;
        }
        for (l.marks = 0; l.marks < 2; l.marks++, texts++) {
            cut(p[l.marks], text, n, &got);
            if (!same(&l, &got)) fail_msg("%s cuts '%s'", l.marks ? "qwen35" : "qwen2", got.text);
            count += (long)got.n;
            l.marks = !l.marks; /* the twin: the other pattern's scanner */
            twins += !same(&l, &got);
            l.marks = !l.marks;
        }
    }
    print_message("    %d texts, %ld pieces, all as by hand; %d left out; the other scanner differs in %d\n", texts,
                  count, left_out, twins);
    assert_true(twins > 1000 && left_out < texts / 10);
    q4x_pre_close(p[0]);
    q4x_pre_close(p[1]);
}

static void test_examples(void **state) {
    (void)state;
    need_text();
    const char *qwen2 = q4x_tok_pre_pattern("qwen2", 5), *qwen35 = q4x_tok_pre_pattern("qwen35", 6);
    expect(qwen2, "I'll go", "I|'ll| go");
    expect(qwen2, "we'VE 123 ok", "we|'VE| |1|2|3| ok");
    expect(qwen2, "a  b", "a| | b");
    expect(qwen2, "end.\r\n\r\n  x", "end|.\r\n\r\n| | x");
    expect(qwen2, "cafe\xcc\x81s", "cafe|\xcc\x81s"); /* the mark begins a word */
    expect(qwen35, "cafe\xcc\x81s", "cafe\xcc\x81s");
    expect(qwen2, "x \xcc\x81", "x| \xcc\x81");
    /* U+180E is no White_Space; U+0085 and U+3000 are */
    expect("\\s+",
           "a\xe1\xa0\x8e"
           "b\xc2\x85\xe3\x80\x80"
           "c",
           "a\xe1\xa0\x8e"
           "b|\xc2\x85\xe3\x80\x80|c");
    expect("[^\\S\\n]+", "a \n\tb", "a| |\n|\t|b");
    expect("\\\\s", "a\\sb s", "a|\\s|b s"); /* an escaped backslash is none */
    /* a file's caseless 's' takes the long s, the name's does not */
    expect("(?i:'s|'t)", "a'\xc5\xbf", "a|'\xc5\xbf");
    expect(qwen2, "a'\xc5\xbf", "a|'\xc5\xbf");
}

/* ---- other patterns ---- */

static void test_empty_matches(void **state) {
    (void)state;
    need_text();
    expect("x*", "axxb", "a|xx|b");
    expect("x*", "ab", "a|b");
    expect("(?=b)", "abab", "a|ba|b");
    expect("y", "ab", "ab");
    expect("ab", "ab", "ab");
    expect("$", "ab", "ab");
    expect("a\\Kb", "cab", "ca|b"); /* a match may begin later than it was found */
}

static void test_stages(void **state) {
    (void)state;
    need_text();
    static pieces got;
    q4x_pre *p = NULL;
    q4x_err err = {0};
    const q4x_pre_stage s[] = {{"\\d{1,3}", 0}, {".", 1}, {"[a-c]+", 0}};
    assert_rc_ok(q4x_pre_open(s, 3, 0, 0, &p, &err), &err);
    cut(p, "xab12345.dc", 11, &got);
    assert_string_equal(got.text, "x|ab|123|45|.|d|c");
    q4x_pre_close(p);
    /* a blank in front of every piece of the first two, before the third cuts */
    assert_rc_ok(q4x_pre_open(s, 3, 1, 1, &p, &err), &err);
    got.n = got.at = got.len = 0;
    assert_rc_ok(q4x_pre_cut(p, (const uint8_t *)"xab1 a.", 7, collect, &got, &err), &err);
    assert_string_equal(got.text, " x|ab| 1| |a| .");
    q4x_pre_close(p);
    /* look-around ends with the stretch that the stage before left */
    const q4x_pre_stage ends[] = {{"-", 1}, {"a(?!b)|a(?=b)", 0}};
    assert_rc_ok(q4x_pre_open(ends, 2, 0, 0, &p, &err), &err);
    cut(p, "xa-bxab", 7, &got);
    assert_string_equal(got.text, "x|a|-|bx|a|b");
    q4x_pre_close(p);
    assert_int_equal(q4x_pre_open(s, Q4X_PRE_MAX_STAGES + 1, 0, 0, &p, &err), Q4X_E_FORMAT);
}

static void test_does_not_compile(void **state) {
    (void)state;
    need_text();
    static char deep[1024], large[Q4X_PRE_MAX_PATTERN + 2];
    memset(deep, '(', 200);
    memset(deep + 200, ')', 200);
    memset(large, 'x', sizeof large - 1);
    static const struct {
        const char *pattern, *message;
    } c[] = {{"", "pattern: 0 bytes, expected 1 to 16384"},
             {"[a", "pattern '[a': does not compile: missing terminating ]"},
             {"a{2,1}", "does not compile: numbers out of order"},
             {"\\p{Nope}", "does not compile: unknown property"},
             {"\\C", "does not compile: using \\C is disabled"},
             {deep, "does not compile: parentheses are too deeply nested"},
             {large, "pattern: 16385 bytes, expected 1 to 16384"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        q4x_pre *p = NULL;
        q4x_err err = {0};
        int rc = q4x_pre_open(&(q4x_pre_stage){.pattern = c[i].pattern}, 1, 0, 0, &p, &err);
        if (rc != Q4X_E_FORMAT || !strstr(err.msg, c[i].message)) fail_msg("'%.40s': %d %s", c[i].pattern, rc, err.msg);
        assert_null(p);
    }
}

/* Patterns made to take for ever give up in a moment, and say so; what is honest gets through. */
static void test_for_ever(void **state) {
    (void)state;
    need_text();
    enum { N = 20000 };
    static char a[N];
    static pieces got;
    static const struct {
        const char *pattern;
        int gives_up;
    } c[] = {{"(a+)+[bc]", 1},         {"(a|aa)+[bc]", 1},   {"(a*)*[bc]", 1},
             {"(a?){40}a{40}[bc]", 1}, {"(a(?R)?)+[bc]", 1}, {"a+", 0},
             {"(?:a|b)+", 0},          {"a+?", 0},           {"a+[bc]", 0}};
    memset(a, 'a', N);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        q4x_pre *p = compiled(c[i].pattern);
        q4x_err err = {0};
        got.n = got.at = got.len = 0;
        double t0 = q4x_machine_now();
        int rc = q4x_pre_cut(p, (const uint8_t *)a, N, collect, &got, &err);
        double s = q4x_machine_now() - t0;
        print_message("    %-18s %.0f ms%s%s\n", c[i].pattern, 1000 * s, rc ? ": " : "", rc ? err.msg : "");
        if (c[i].gives_up) {
            assert_int_equal(rc, Q4X_E_UNSUPPORTED);
            assert_non_null(strstr(err.msg, "pattern: gives up at byte 0 of 20000 of the text: "));
        } else {
            assert_rc_ok(rc, &err);
        }
        assert_true(s < (H_SANITIZER ? 60 : 5));
        q4x_pre_close(p);
    }
}

static int stop(void *ctx, const uint8_t *piece, size_t n, q4x_err *err) {
    (void)piece, (void)n;
    return --*(int *)ctx ? 0 : q4x_fail(err, Q4X_E_IO, "enough");
}

static void test_caller_stops(void **state) {
    (void)state;
    need_text();
    q4x_pre *p = compiled("a");
    q4x_err err = {0};
    int left = 3;
    assert_int_equal(q4x_pre_cut(p, (const uint8_t *)"aaaaaa", 6, stop, &left, &err), Q4X_E_IO);
    assert_int_equal(left, 0);
    assert_string_equal(err.msg, "enough");
    q4x_pre_close(p);
}

/* ---- NFC ---- */

static void test_nfc(void **state) {
    (void)state;
    need_text();
    static const struct {
        const char *text, *want;
    } c[] = {
        {"plain", "plain"},
        {"", ""},
        {"e\xcc\x81", "\xc3\xa9"},
        {"\xc3\xa9", "\xc3\xa9"},
        {"\xe2\x84\xab", "\xc3\x85"},                             /* a singleton: the angstrom sign */
        {"o\xcc\xa3\xcc\x82", "\xe1\xbb\x99"},                    /* two marks */
        {"o\xcc\x82\xcc\xa3", "\xe1\xbb\x99"},                    /* in another order */
        {"\xe0\xa4\x95\xe0\xa4\xbc", "\xe0\xa4\x95\xe0\xa4\xbc"}, /* excluded from composition */
        {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},             /* and taken apart */
        {"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"}, /* Hangul */
        {"a\xcc\xb4\xcc\x81", "\xc3\xa1\xcc\xb4"},                /* a mark between that does not block */
        {"a\xcc\x85\xcc\x81", "a\xcc\x85\xcc\x81"},               /* one that does */
        {"\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x94\xac", "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x94\xac"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        uint8_t *out = NULL;
        size_t n = 0;
        q4x_err err = {0};
        assert_rc_ok(q4x_nfc((const uint8_t *)c[i].text, strlen(c[i].text), &out, &n, &err), &err);
        if (n != strlen(c[i].want) || memcmp(out, c[i].want, n) != 0)
            fail_msg("NFC %zu: '%.*s'", i, (int)n, (char *)out);
        free(out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),  cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_examples), cmocka_unit_test(test_empty_matches),
        cmocka_unit_test(test_stages),   cmocka_unit_test(test_does_not_compile),
        cmocka_unit_test(test_for_ever), cmocka_unit_test(test_caller_stops),
        cmocka_unit_test(test_nfc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
