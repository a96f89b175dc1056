/* t_tok_bpe.c: merging by a heap against merging by the book: look at all pairs, merge the leftmost of lowest rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/h_tok.h"

enum { MOST = 200, WORD = 60 };

/* A vocabulary of words over a few letters, each made of two older ones. */
typedef struct {
    char text[MOST][64];
    int left[MOST], right[MOST];
    int n, letters;
} words;

static int find(const words *w, const char *text) {
    for (int i = 0; i < w->n; i++)
        if (!strcmp(w->text[i], text)) return i;
    return -1;
}

static void grow(words *w, h_rand *r, int letters, int n) {
    *w = (words){.n = letters, .letters = letters};
    for (int i = 0; i < letters; i++) snprintf(w->text[i], sizeof w->text[i], "%c", 'a' + i);
    for (int tries = 0; w->n < n && tries < 10 * n; tries++) {
        int a = (int)h_below(r, (uint32_t)w->n), b = (int)h_below(r, (uint32_t)w->n);
        char both[128];
        snprintf(both, sizeof both, "%s%s", w->text[a], w->text[b]);
        if (strlen(both) > 16 || find(w, both) >= 0) continue;
        snprintf(w->text[w->n], sizeof w->text[0], "%s", both);
        w->left[w->n] = a;
        w->right[w->n++] = b;
    }
}

static q4x_tok *tokenizer(const words *w) {
    q4x_tok *t = q4x_tok_new();
    q4x_err err = {0};
    assert_non_null(t);
    for (int i = 0; i < w->n; i++)
        assert_rc_ok(q4x_tok_add(t, i, w->text[i], strlen(w->text[i]), Q4X_TOK_NORMAL, &err), &err);
    for (int i = w->letters; i < w->n; i++) {
        const char *a = w->text[w->left[i]], *b = w->text[w->right[i]];
        assert_rc_ok(q4x_tok_merge(t, a, strlen(a), b, strlen(b), &err), &err);
    }
    assert_rc_ok(q4x_tok_finish(t, &err), &err);
    return t;
}

/* Rank of a pair: word i is merge i - letters. */
static int rank(const words *w, int a, int b) {
    for (int i = w->letters; i < w->n; i++)
        if (w->left[i] == a && w->right[i] == b) return i;
    return MOST;
}

static int by_the_book(const words *w, const char *piece, int *id) {
    int n = (int)strlen(piece);
    for (int i = 0; i < n; i++) id[i] = piece[i] - 'a';
    for (;;) {
        int best = MOST, at = -1;
        for (int i = 0; i + 1 < n; i++) {
            int k = rank(w, id[i], id[i + 1]);
            if (k < best) {
                best = k;
                at = i;
            }
        }
        if (at < 0) return n;
        id[at] = best;
        memmove(id + at + 1, id + at + 2, (size_t)(n - at - 2) * sizeof *id);
        n--;
    }
}

static void test_against_the_book(void **state) {
    (void)state;
    static words w;
    h_rand r = {7};
    q4x_bpe b = {0};
    int pieces = 0, twins = 0;
    long merged = 0;
    for (int v = 0; v < 60; v++) {
        grow(&w, &r, 2 + (int)h_below(&r, 4), 10 + (int)h_below(&r, MOST - 10));
        q4x_tok *t = tokenizer(&w);
        for (int k = 0; k < 300; k++, pieces++) {
            char piece[WORD + 1];
            int want[WORD], n = 1 + (int)h_below(&r, WORD);
            q4x_tok_ids got = {0};
            q4x_err err = {0};
            for (int i = 0; i < n; i++) piece[i] = (char)('a' + (int)h_below(&r, (uint32_t)w.letters));
            piece[n] = 0;
            int m = by_the_book(&w, piece, want);
            assert_rc_ok(q4x_bpe_piece(&b, t, (const uint8_t *)piece, (size_t)n, &got, &err), &err);
            assert_int_equal(got.n, m);
            for (int i = 0; i < m; i++) assert_int_equal(got.id[i], want[i]);
            merged += n - m;
            /* the twin: with the ranks turned round the book says something else, mostly */
            int swapped = w.left[w.letters];
            w.left[w.letters] = w.left[w.n - 1];
            w.left[w.n - 1] = swapped;
            m = by_the_book(&w, piece, want);
            int same = m == got.n;
            for (int i = 0; i < m && same; i++) same = got.id[i] == want[i];
            twins += !same;
            w.left[w.n - 1] = w.left[w.letters];
            w.left[w.letters] = swapped;
            free(got.id);
        }
        q4x_tok_close(t);
    }
    q4x_bpe_free(&b);
    print_message("    %d pieces, %ld merges, all as by the book; the twin differs in %d\n", pieces, merged, twins);
    assert_true(merged > 100000 && twins > pieces / 10);
}

static void test_small(void **state) {
    (void)state;
    static words w;
    h_rand r = {1};
    grow(&w, &r, 2, 2);
    q4x_tok *t = tokenizer(&w);
    q4x_bpe b = {0};
    q4x_tok_ids got = {0};
    q4x_err err = {0};
    assert_rc_ok(q4x_bpe_piece(&b, t, (const uint8_t *)"", 0, &got, &err), &err);
    assert_int_equal(got.n, 0);
    assert_rc_ok(q4x_bpe_piece(&b, t, (const uint8_t *)"ba", 2, &got, &err), &err); /* appends, merges nothing */
    assert_true(got.n == 2 && got.id[0] == 1 && got.id[1] == 0);
    assert_int_equal(q4x_bpe_piece(&b, t, (const uint8_t *)"c", 1, &got, &err), Q4X_E_UNSUPPORTED);
    free(got.id);
    q4x_bpe_free(&b);
    q4x_tok_close(t);
}

/* The alphabet of bytes, both ways, against the rule as it was first written. */
static void test_alphabet(void **state) {
    (void)state;
    int seen[0x200] = {0};
    for (int b = 0; b < 256; b++) {
        char text[4];
        uint32_t c = q4x_tok_byte_code((uint8_t)b);
        int n = h_utf8(c, text);
        assert_true(c < 0x200 && !seen[c]++);
        assert_true(!strncmp(text, h_tok_char(b), (size_t)n) && h_tok_char(b)[n] == 0);
        assert_int_equal(q4x_tok_code_byte(c), b);
    }
    for (uint32_t c = 0; c < 0x110000; c++)
        if (c >= 0x200 || !seen[c]) assert_int_equal(q4x_tok_code_byte(c), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_the_book), cmocka_unit_test(test_small),
                                       cmocka_unit_test(test_alphabet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
