/* t_tok_split.c: added tokens found by a walk down sorted words, against looking for every word at every place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/h_tok.h"

enum { WORDS = 12, LEN = 6, TEXT = 48 };

typedef struct {
    char text[WORDS][LEN + 1];
    int control[WORDS];
    int n;
} list;

/* Distinct words over few letters, so that they hold and overlap each other. */
static void draw(list *l, h_rand *r) {
    *l = (list){0};
    int want = 1 + (int)h_below(r, WORDS);
    for (int tries = 0; l->n < want && tries < 200; tries++) {
        char *s = l->text[l->n];
        int k = 1 + (int)h_below(r, LEN), old = 0;
        for (int i = 0; i < k; i++) s[i] = "ab \xff"[h_below(r, 4)];
        s[k] = 0;
        for (int i = 0; i < l->n; i++) old |= !strcmp(l->text[i], s);
        if (old) continue;
        l->control[l->n++] = h_below(r, 2) == 0;
    }
}

static void build(const list *l, int longest_first, q4x_tok_split *s) {
    *s = (q4x_tok_split){.longest_first = longest_first};
    for (int i = 0; i < l->n; i++) {
        q4x_tok_word w = {l->text[i], (uint32_t)strlen(l->text[i]), i, l->control[i], 0, 0};
        assert_int_equal(q4x_tok_split_add(s, &w, NULL), 0);
    }
    q4x_tok_split_finish(s);
    assert_int_equal(s->n, l->n);
}

/* owner[i]: the word that byte i belongs to, -1: none. */
static void naive_leftmost(const list *l, const char *text, int n, int plain, int *owner) {
    for (int at = 0; at < n;) {
        int best = -1, len = 0;
        for (int i = 0; i < l->n; i++) {
            int k = (int)strlen(l->text[i]);
            if (k > len && at + k <= n && !memcmp(text + at, l->text[i], (size_t)k)) {
                best = i;
                len = k;
            }
        }
        int id = best >= 0 && !(plain && l->control[best]) ? best : -1;
        for (int i = at; i < at + (len ? len : 1); i++) owner[i] = id;
        at += len ? len : 1;
    }
}

/* Word after word, the longest first, the lower id first among equals: every place that is still free. */
static void naive_longest(const list *l, const char *text, int n, int plain, int *owner) {
    for (int i = 0; i < n; i++) owner[i] = -1;
    for (int len = LEN; len > 0; len--)
        for (int w = 0; w < l->n; w++) {
            if ((int)strlen(l->text[w]) != len || (plain && l->control[w])) continue;
            for (int at = 0; at + len <= n; at++) {
                int free_ = !memcmp(text + at, l->text[w], (size_t)len);
                for (int i = at; i < at + len; i++) free_ &= owner[i] < 0;
                for (int i = at; free_ && i < at + len; i++) owner[i] = w;
                if (free_) at += len - 1;
            }
        }
}

static int agree(const list *l, const q4x_tok_cuts *c, const int *owner, int n) {
    size_t at = 0;
    for (size_t i = 0; i < c->n; i++) {
        q4x_tok_cut x = c->c[i];
        if (x.at != at || x.end <= x.at || x.end > (size_t)n) return 0;
        if (x.id >= 0 && x.end - x.at != strlen(l->text[x.id])) return 0;
        if (i && x.id < 0 && c->c[i - 1].id < 0) return 0; /* stretches of text are as long as can be */
        for (size_t k = x.at; k < x.end; k++)
            if (owner[k] != x.id) return 0;
        at = x.end;
    }
    return at == (size_t)n;
}

static void test_against_naive(void **state) {
    (void)state;
    h_rand r = {11};
    q4x_tok_cuts cuts = {0};
    int texts = 0, words = 0, apart = 0;
    for (int v = 0; v < 3000; v++) {
        list l;
        draw(&l, &r);
        for (int longest = 0; longest < 2; longest++) {
            q4x_tok_split s;
            build(&l, longest, &s);
            for (int k = 0; k < 10; k++, texts++) {
                char text[TEXT];
                int owner[TEXT], other[TEXT], n = (int)h_below(&r, TEXT), plain = (int)h_below(&r, 2);
                for (int i = 0; i < n; i++) text[i] = "ab \xff"[h_below(&r, 4)];
                assert_int_equal(q4x_tok_split_text(&s, (const uint8_t *)text, (size_t)n, plain, &cuts, NULL), 0);
                naive_leftmost(&l, text, n, plain, longest ? other : owner);
                naive_longest(&l, text, n, plain, longest ? owner : other);
                assert_true(agree(&l, &cuts, owner, n));
                for (size_t i = 0; i < cuts.n; i++) words += cuts.c[i].id >= 0;
                apart += !agree(&l, &cuts, other, n); /* the twin: the other rule */
            }
            q4x_tok_split_free(&s);
        }
    }
    free(cuts.c);
    print_message("    %d texts, %d words found, all as naively; the other rule differs in %d\n", texts, words, apart);
    assert_true(words > texts && apart > texts / 100);
}

static void test_none(void **state) {
    (void)state;
    q4x_tok_split s = {0};
    q4x_tok_cuts c = {0};
    q4x_tok_split_finish(&s);
    assert_int_equal(q4x_tok_split_text(&s, (const uint8_t *)"abc", 3, 0, &c, NULL), 0);
    assert_true(c.n == 1 && c.c[0].at == 0 && c.c[0].end == 3 && c.c[0].id == -1);
    assert_int_equal(q4x_tok_split_text(&s, (const uint8_t *)"", 0, 0, &c, NULL), 0);
    assert_int_equal(c.n, 0);
    free(c.c);
    q4x_tok_split_free(&s);
}

/* Words of which each begins with the one before: more places than a text of honest words has are refused. */
static void test_too_many(void **state) {
    (void)state;
    enum { N = 400, LONG = 20000 };
    static char a[LONG];
    memset(a, 'a', sizeof a);
    q4x_tok_split s = {.longest_first = 1};
    q4x_tok_cuts c = {0};
    q4x_err err = {0};
    for (int i = 1; i <= N; i++) {
        q4x_tok_word w = {a, (uint32_t)i, i, 0, 0, 0};
        assert_int_equal(q4x_tok_split_add(&s, &w, NULL), 0);
    }
    q4x_tok_split_finish(&s);
    assert_rc_ok(q4x_tok_split_text(&s, (const uint8_t *)a, 100, 0, &c, &err), &err);
    assert_true(c.n == 1 && c.c[0].id == 100);
    assert_int_equal(q4x_tok_split_text(&s, (const uint8_t *)a, LONG, 0, &c, &err), Q4X_E_NOMEM);
    assert_non_null(strstr(err.msg, "spells added tokens"));
    free(c.c);
    q4x_tok_split_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_naive), cmocka_unit_test(test_none),
                                       cmocka_unit_test(test_too_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
