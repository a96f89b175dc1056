/* tok_bpe.c: the bytes of a piece merged pair by pair. The pair of lowest rank goes first, the leftmost of equal ones;
 * a heap keeps them, so that a long piece takes n log n steps and not n squared. */
#include <stdlib.h>
#include <string.h>

#include "lib/tok_int.h"

/* A stretch of the piece that is one token now, in a list from left to right. */
typedef struct q4x_bpe_symbol {
    int32_t id;         /* -1: merged into the one before */
    int32_t prev, next; /* -1: none */
    uint32_t len;
} symbol;

/* A pair of neighbours that could merge. It is out of date when the two are no longer len bytes together: stretches
 * only grow, so equal length means the same two. */
typedef struct q4x_bpe_pair {
    int32_t rank, at;
    uint32_t len;
} pair;

/* ---- the heap: least rank first, then leftmost ---- */

static int before(const pair *a, const pair *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

/* At most one pair a symbol at the start and two a merge: heap[3 cap] is never outgrown. */
static void heap_push(q4x_bpe *b, pair p) {
    size_t i = b->nheap++;
    for (; i && before(&p, &b->heap[(i - 1) / 2]); i = (i - 1) / 2) b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = p;
}

static pair heap_pop(q4x_bpe *b) {
    pair top = b->heap[0], last = b->heap[--b->nheap];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < b->nheap) {
        if (child + 1 < b->nheap && before(&b->heap[child + 1], &b->heap[child])) child++;
        if (!before(&b->heap[child], &last)) break;
        b->heap[i] = b->heap[child];
        i = child;
    }
    b->heap[i] = last;
    return top;
}

/* ---- merging ---- */

void q4x_bpe_free(q4x_bpe *b) {
    free(b->symbol);
    free(b->heap);
    *b = (q4x_bpe){0};
}

static int room(q4x_bpe *b, size_t n, q4x_err *err) {
    if (n <= b->cap) return 0;
    size_t cap = b->cap ? b->cap : 256;
    while (cap < n) cap *= 2; /* n <= Q4X_TOK_MAX_TEXT */
    symbol *s = realloc(b->symbol, cap * sizeof *s);
    if (s) b->symbol = s;
    pair *h = s ? realloc(b->heap, 3 * cap * sizeof *h) : NULL;
    if (!h) return q4x_fail(err, Q4X_E_NOMEM, "no memory to merge a piece of %zu bytes", n);
    b->heap = h;
    b->cap = cap;
    return 0;
}

/* If symbol i and its neighbour merge, remember it. */
static void consider(q4x_bpe *b, const q4x_tok *t, int32_t i) {
    const symbol *s = b->symbol;
    if (i < 0 || s[i].next < 0) return;
    uint32_t key[2] = {(uint32_t)s[i].id, (uint32_t)s[s[i].next].id};
    int64_t rank = q4x_names_find(&t->by_pair, (const char *)key, sizeof key);
    if (rank >= 0) heap_push(b, (pair){(int32_t)rank, i, s[i].len + s[s[i].next].len});
}

static int begin(q4x_bpe *b, const q4x_tok *t, const uint8_t *piece, size_t n, q4x_err *err) {
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte[piece[i]];
        if (id < 0) id = t->unknown;
        if (id < 0)
            return q4x_fail(err, Q4X_E_UNSUPPORTED, "the vocabulary has no token for byte 0x%02x of the text",
                            (unsigned)piece[i]);
        b->symbol[i] = (symbol){id, (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1, 1};
    }
    b->nheap = 0;
    for (size_t i = 0; i + 1 < n; i++) consider(b, t, (int32_t)i);
    return 0;
}

static void merge(q4x_bpe *b, const q4x_tok *t) {
    symbol *s = b->symbol;
    while (b->nheap) {
        pair p = heap_pop(b);
        symbol *left = &s[p.at];
        if (left->id < 0 || left->next < 0 || left->len + s[left->next].len != p.len) continue;
        symbol *right = &s[left->next];
        left->id = t->made[p.rank];
        left->len = p.len;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) s[left->next].prev = p.at;
        consider(b, t, left->prev);
        consider(b, t, p.at);
    }
}

/* The token whose spelling is the piece's; -1: there is none. */
static int whole(const q4x_tok *t, const uint8_t *piece, size_t n, int64_t *ret, q4x_err *err) {
    char small[512], *text = small;
    size_t len = 0;
    if (2 * n > sizeof small && !(text = malloc(2 * n)))
        return q4x_fail(err, Q4X_E_NOMEM, "no memory for a piece of %zu bytes", n);
    text[0] = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t c = q4x_tok_byte_code(piece[i]);
        if (c >= 0x80) text[len++] = (char)(0xc0 | c >> 6);
        text[len++] = (char)(c < 0x80 ? c : 0x80 | (c & 0x3f));
    }
    *ret = q4x_names_find(&t->by_text, text, len);
    if (text != small) free(text);
    return 0;
}

int q4x_bpe_piece(q4x_bpe *b, const q4x_tok *t, const uint8_t *piece, size_t n, q4x_tok_ids *out, q4x_err *err) {
    int rc;
    int64_t id = -1;
    if (t->ignore_merges) TRY(whole(t, piece, n, &id, err));
    if (id >= 0) return q4x_tok_push(out, (int32_t)id, err);
    TRY(room(b, n, err));
    TRY(begin(b, t, piece, n, err));
    merge(b, t);
    for (int32_t i = 0; i >= 0 && n; i = b->symbol[i].next) TRY(q4x_tok_push(out, b->symbol[i].id, err));
done:
    return rc;
}
