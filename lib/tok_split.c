/* tok_split.c: the places where a text spells an added token. */
#include <stdlib.h>
#include <string.h>

#include "lib/tok_int.h"
#include "lib/utf8.h"

/* ---- the words ---- */

int q4x_tok_split_add(q4x_tok_split *s, const q4x_tok_word *w, q4x_err *err) {
    if (s->n == s->cap) {
        int32_t cap = s->cap ? 2 * s->cap : 64;
        q4x_tok_word *more = realloc(s->w, (size_t)cap * sizeof *more);
        if (!more) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the added tokens");
        s->w = more;
        s->cap = cap;
    }
    s->w[s->n++] = *w;
    return 0;
}

static int by_bytes(const void *a, const void *b) {
    const q4x_tok_word *x = a, *y = b;
    int c = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    if (c) return c;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : 1; /* NFC can make two of one: the lower id is kept */
}

void q4x_tok_split_finish(q4x_tok_split *s) {
    int32_t n = 0;
    if (s->n) qsort(s->w, (size_t)s->n, sizeof *s->w, by_bytes);
    for (int32_t i = 0; i < s->n; i++)
        if (!n || s->w[i].len != s->w[n - 1].len || memcmp(s->w[i].text, s->w[n - 1].text, s->w[i].len) != 0)
            s->w[n++] = s->w[i];
    s->n = n;
    for (int b = 0, i = 0; b <= 256; b++) {
        while (i < n && (uint8_t)s->w[i].text[0] < b) i++;
        s->first[b] = i;
    }
}

void q4x_tok_split_free(q4x_tok_split *s) {
    free(s->w);
    *s = (q4x_tok_split){0};
}

/* ---- looking ---- */

/* First word of [lo, hi) whose byte at depth is b or above; all are longer than depth. */
static int32_t lower(const q4x_tok_split *s, int32_t lo, int32_t hi, size_t depth, int b) {
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)s->w[mid].text[depth] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* A walk down the sorted words along the text: each step leaves those that go on with the next byte. */
typedef struct {
    const q4x_tok_split *s;
    const uint8_t *text;
    size_t n; /* bytes of text */
    size_t depth;
    int32_t lo, hi;
} walk;

static walk walk_from(const q4x_tok_split *s, const uint8_t *text, size_t n) {
    return (walk){s, text, n, 1, s->first[text[0]], s->first[text[0] + 1]};
}

/* The next longer word that the text begins with, or NULL. */
static const q4x_tok_word *walk_next(walk *w) {
    while (w->lo < w->hi) {
        const q4x_tok_word *word = &w->s->w[w->lo];
        if (word->len == w->depth) {
            w->lo++;
            return word;
        }
        if (w->depth == w->n) return NULL;
        int b = w->text[w->depth];
        w->lo = lower(w->s, w->lo, w->hi, w->depth, b);
        w->hi = lower(w->s, w->lo, w->hi, w->depth, b + 1);
        w->depth++;
    }
    return NULL;
}

static const q4x_tok_word *longest(const q4x_tok_split *s, const uint8_t *text, size_t n) {
    const q4x_tok_word *best = NULL, *word;
    walk w = walk_from(s, text, n);
    while ((word = walk_next(&w))) best = word;
    return best;
}

/* ---- stretches ---- */

static int push(q4x_tok_cuts *c, size_t at, size_t end, int32_t id, q4x_err *err) {
    if (at == end && id < 0) return 0;
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 64;
        q4x_tok_cut *more = realloc(c->c, cap * sizeof *more);
        if (!more) return q4x_fail(err, Q4X_E_NOMEM, "no memory for %zu stretches of text", cap);
        c->c = more;
        c->cap = cap;
    }
    c->c[c->n++] = (q4x_tok_cut){at, end, id};
    return 0;
}

/* Unicode's White_Space. */
static int is_blank(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Where the blanks that end at `at` begin, not before floor. */
static size_t blanks_before(const uint8_t *text, size_t floor, size_t at) {
    while (at > floor) {
        size_t p = at - 1;
        while (p > floor && (text[p] & 0xc0) == 0x80) p--;
        int len = q4x_utf8(text + p, at - p);
        if (len <= 0 || !is_blank(q4x_utf8_code(text + p, len))) break;
        at = p;
    }
    return at;
}

static size_t blanks_behind(const uint8_t *text, size_t at, size_t n) {
    while (at < n) {
        int len = q4x_utf8(text + at, n - at);
        if (len <= 0 || !is_blank(q4x_utf8_code(text + at, len))) break;
        at += (size_t)len;
    }
    return at;
}

/* From left to right, the longest word at each place. A control token that is to be text is passed over whole. */
static int leftmost(const q4x_tok_split *s, const uint8_t *text, size_t n, int plain, q4x_tok_cuts *ret, q4x_err *err) {
    int rc = 0;
    size_t done = 0; /* stretches end here */
    for (size_t at = 0; at < n;) {
        const q4x_tok_word *w = longest(s, text + at, n - at);
        if (!w) {
            at++;
            continue;
        }
        size_t begin = at, end = at + w->len;
        at = end;
        if (plain && w->control) continue;
        if (w->lstrip) begin = blanks_before(text, done, begin);
        if (begin < done) begin = done; /* the word before took blanks that this one begins with */
        if (w->rstrip) end = blanks_behind(text, end, n);
        if (end < done) end = done;
        TRY(push(ret, done, begin, -1, err));
        TRY(push(ret, begin, end, w->id, err));
        done = end;
    }
    TRY(push(ret, done, n, -1, err));
done:
    return rc;
}

/* ---- the longest words first ---- */

typedef struct {
    size_t at;
    uint32_t len;
    int32_t id;
} hit;

static int by_length(const void *a, const void *b) {
    const hit *x = a, *y = b;
    if (x->len != y->len) return x->len > y->len ? -1 : 1;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static int by_place(const void *a, const void *b) {
    const hit *x = a, *y = b;
    return x->at < y->at ? -1 : 1;
}

/* Every word at every place. Words that begin alike could be more than the text has bytes; real ones are few. */
static int all_hits(const q4x_tok_split *s, const uint8_t *text, size_t n, int plain, hit **ret, size_t *ret_n,
                    q4x_err *err) {
    const size_t most = 4 * n + 65536;
    hit *h = NULL;
    size_t k = 0, cap = 0;
    for (size_t at = 0; at < n; at++) {
        const q4x_tok_word *word;
        walk w = walk_from(s, text + at, n - at);
        while ((word = walk_next(&w))) {
            if (plain && word->control) continue;
            if (k == cap) {
                cap = cap ? 2 * cap : 64;
                hit *more = k > most ? NULL : realloc(h, cap * sizeof *more);
                if (!more) {
                    free(h);
                    return q4x_fail(err, Q4X_E_NOMEM, "the text spells added tokens %zu times: too many", k);
                }
                h = more;
            }
            h[k++] = (hit){at, word->len, word->id};
        }
    }
    *ret = h;
    *ret_n = k;
    return 0;
}

/* Hits stay unless a longer one took one of their ends: it cannot lie between them. */
static int longest_first(const q4x_tok_split *s, const uint8_t *text, size_t n, int plain, q4x_tok_cuts *ret,
                         q4x_err *err) {
    int rc;
    hit *h = NULL;
    uint8_t *taken = NULL;
    size_t k = 0, kept = 0, done = 0;
    TRY(all_hits(s, text, n, plain, &h, &k, err));
    if (k) {
        taken = calloc(n, 1);
        if (!taken) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory to split %zu bytes of text", n));
        qsort(h, k, sizeof *h, by_length);
    }
    for (size_t i = 0; i < k; i++) {
        if (taken[h[i].at] || taken[h[i].at + h[i].len - 1]) continue;
        memset(taken + h[i].at, 1, h[i].len);
        h[kept++] = h[i];
    }
    if (kept) qsort(h, kept, sizeof *h, by_place);
    for (size_t i = 0; i < kept; i++) {
        TRY(push(ret, done, h[i].at, -1, err));
        TRY(push(ret, h[i].at, h[i].at + h[i].len, h[i].id, err));
        done = h[i].at + h[i].len;
    }
    TRY(push(ret, done, n, -1, err));
done:
    free(taken);
    free(h);
    return rc;
}

int q4x_tok_split_text(const q4x_tok_split *s, const uint8_t *text, size_t n, int plain, q4x_tok_cuts *ret,
                       q4x_err *err) {
    ret->n = 0;
    if (!s->n) return push(ret, 0, n, -1, err);
    return (s->longest_first ? longest_first : leftmost)(s, text, n, plain, ret, err);
}
