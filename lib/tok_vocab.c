/* tok_vocab.c: tokens and merges as a file gives them, checked, and what follows from them. */
#include <stdlib.h>
#include <string.h>

#include "lib/io.h"
#include "lib/tok_int.h"
#include "lib/utf8.h"

/* ---- the alphabet of bytes: printable Latin-1 stands for itself, the rest for U+0100 and up, in order ---- */

static int stands_for_itself(uint32_t b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

uint32_t q4x_tok_byte_code(uint8_t b) {
    if (stands_for_itself(b)) return b;
    if (b <= 0x20) return 0x100u + b;
    return b == 0xad ? 0x143 : 0x100u + 0x21 + (b - 0x7fu); /* 0x7f .. 0xa0 are U+0121 .. U+0142 */
}

int q4x_tok_code_byte(uint32_t code) {
    if (code < 0x100) return stands_for_itself(code) ? (int)code : -1;
    if (code <= 0x120) return (int)(code - 0x100);
    if (code <= 0x142) return (int)(code - 0x121 + 0x7f);
    return code == 0x143 ? 0xad : -1;
}

/* ---- ids ---- */

int q4x_tok_push(q4x_tok_ids *l, int32_t id, q4x_err *err) {
    if (l->n == l->cap) {
        int32_t cap = l->cap ? 2 * l->cap : 64;
        int32_t *more = l->cap > INT32_MAX / 2 ? NULL : realloc(l->id, (size_t)cap * sizeof *more);
        if (!more) return q4x_fail(err, Q4X_E_NOMEM, "no memory for %d token ids", cap);
        l->id = more;
        l->cap = cap;
    }
    l->id[l->n++] = id;
    return 0;
}

/* ---- tokens ---- */

q4x_tok *q4x_tok_new(void) {
    q4x_tok *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->facts.bos = t->facts.eos = t->unknown = -1;
    return t;
}

static int grow_tokens(q4x_tok *t, int64_t id, q4x_err *err) {
    int64_t cap = t->cap ? t->cap : 256;
    if (id - t->ntok > Q4X_TOK_MAX_HOLES)
        return q4x_fail(err, Q4X_E_FORMAT, "id %lld: %lld ids below it have no token, expected at most %d",
                        (long long)id, (long long)(id - t->ntok), Q4X_TOK_MAX_HOLES);
    while (cap <= id) cap *= 2;
    if (cap > t->cap) {
        q4x_tok_entry *more = realloc(t->tok, (size_t)cap * sizeof *more);
        if (!more) return q4x_fail(err, Q4X_E_NOMEM, "no memory for %lld tokens", (long long)cap);
        memset(more + t->cap, 0, (size_t)(cap - t->cap) * sizeof *more);
        t->tok = more;
        t->cap = (int32_t)cap;
    }
    if (id >= t->facts.ids) t->facts.ids = (int32_t)id + 1;
    return 0;
}

int q4x_tok_add(q4x_tok *t, int64_t id, const char *text, size_t len, q4x_tok_type type, q4x_err *err) {
    if (id < 0 || id >= Q4X_TOK_MAX_IDS)
        return q4x_fail(err, Q4X_E_FORMAT, "id %lld, expected 0 to %d", (long long)id, Q4X_TOK_MAX_IDS - 1);
    size_t good = q4x_utf8_valid((const uint8_t *)text, len);
    if (good < len)
        return q4x_fail(err, Q4X_E_FORMAT, "expected UTF-8, found byte 0x%02x at %zu", (unsigned)(uint8_t)text[good],
                        good);
    int64_t old = len ? q4x_names_find(&t->by_text, text, len) : -1;
    if (old >= 0)
        return q4x_fail(err, Q4X_E_FORMAT, "duplicate token: '%.64s' is token %lld already", t->tok[old].text,
                        (long long)old);
    int rc = grow_tokens(t, id, err);
    if (rc) return rc;
    q4x_tok_entry *e = &t->tok[id];
    if (e->text)
        return q4x_fail(err, Q4X_E_FORMAT, "duplicate id: %lld is the token '%.64s' already", (long long)id, e->text);
    char *copy = q4x_pool_str(&t->pool, text, len);
    if (!copy || (len && q4x_names_add(&t->by_text, copy, len, id)))
        return q4x_fail(err, Q4X_E_NOMEM, "no memory for the tokens");
    *e = (q4x_tok_entry){.text = copy, .len = (uint32_t)len, .type = (uint8_t)type};
    t->ntok++;
    return 0;
}

/* ---- merges ---- */

static int part(const q4x_tok *t, const char *what, const char *text, size_t len, uint32_t *ret, q4x_err *err) {
    int64_t id = len ? q4x_names_find(&t->by_text, text, len) : -1;
    if (id < 0)
        return q4x_fail(err, Q4X_E_FORMAT, "bad merge: its %s '%.*s' is no token", what, (int)(len < 64 ? len : 64),
                        text);
    *ret = (uint32_t)id;
    return 0;
}

static int grow_merges(q4x_tok *t, q4x_err *err) {
    if (t->facts.merges < t->cap_merges) return 0;
    int32_t cap = t->cap_merges ? 2 * t->cap_merges : 256;
    if (cap > Q4X_TOK_MAX_IDS) return q4x_fail(err, Q4X_E_FORMAT, "more than %d merges", Q4X_TOK_MAX_IDS);
    uint32_t(*pair)[2] = realloc(t->pair, (size_t)cap * sizeof *pair);
    if (pair) t->pair = pair;
    int32_t *made = pair ? realloc(t->made, (size_t)cap * sizeof *made) : NULL;
    if (!made) return q4x_fail(err, Q4X_E_NOMEM, "no memory for %d merges", cap);
    t->made = made;
    t->cap_merges = cap;
    return 0;
}

int q4x_tok_merge(q4x_tok *t, const char *a, size_t a_len, const char *b, size_t b_len, q4x_err *err) {
    char small[256], *both = small;
    uint32_t id[3] = {0};
    int rc = grow_merges(t, err);
    if (!rc) rc = part(t, "left part", a, a_len, &id[0], err);
    if (!rc) rc = part(t, "right part", b, b_len, &id[1], err);
    if (rc) return rc;
    if (a_len + b_len > sizeof small && !(both = malloc(a_len + b_len)))
        return q4x_fail(err, Q4X_E_NOMEM, "no memory for a merge");
    memcpy(both, a, a_len);
    memcpy(both + a_len, b, b_len);
    rc = part(t, "result", both, a_len + b_len, &id[2], err);
    if (both != small) free(both);
    if (rc) return rc;
    t->pair[t->facts.merges][0] = id[0];
    t->pair[t->facts.merges][1] = id[1];
    t->made[t->facts.merges++] = (int32_t)id[2];
    return 0;
}

/* Ranks by pair, once the pairs no longer move. */
static int index_merges(q4x_tok *t, q4x_err *err) {
    for (int32_t i = 0; i < t->facts.merges; i++) {
        int rc = q4x_names_add(&t->by_pair, (const char *)t->pair[i], sizeof t->pair[i], i);
        if (rc < 0) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the merges");
        if (rc)
            return q4x_fail(err, Q4X_E_FORMAT, "merge %d: bad merge: '%.64s' and '%.64s' are merge %lld already", i,
                            t->tok[t->pair[i][0]].text, t->tok[t->pair[i][1]].text,
                            (long long)q4x_names_find(&t->by_pair, (const char *)t->pair[i], sizeof t->pair[i]));
    }
    return 0;
}

/* ---- what tokens stand for ---- */

/* "<0x0A>": exactly two hex digits. */
static int byte_token(q4x_tok *t, int32_t id, q4x_err *err) {
    q4x_tok_entry *e = &t->tok[id];
    uint8_t b;
    if (e->len != 6 || memcmp(e->text, "<0x", 3) != 0 || e->text[5] != '>' || q4x_unhex(e->text + 3, 2, &b, 1))
        return q4x_fail(err, Q4X_E_FORMAT, "token %d is of type byte: expected a text like <0x0A>, found '%.64s'", id,
                        e->text);
    const char *copy = q4x_pool_str(&t->pool, &b, 1);
    if (!copy) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the tokens");
    e->bytes = (const uint8_t *)copy;
    e->nbytes = 1;
    return 0;
}

/* The bytes that the characters of a text stand for; -1 when one of them stands for none. */
static int unspell(const q4x_tok_entry *e, uint8_t *out) {
    const uint8_t *p = (const uint8_t *)e->text;
    int n = 0;
    for (size_t at = 0; at < e->len;) {
        int len = q4x_utf8(p + at, e->len - at); /* at least 1: the text was checked */
        int b = len > 0 ? q4x_tok_code_byte(q4x_utf8_code(p + at, len)) : -1;
        if (b < 0) return -1;
        out[n++] = (uint8_t)b;
        at += (size_t)len;
    }
    return n;
}

/* Tokens of the vocabulary are spelled in the alphabet of bytes. One that is not, as every added token, stands for
 * its own spelling; fillers stand for nothing, as engines have it. */
static int set_bytes(q4x_tok *t, int32_t id, q4x_err *err) {
    q4x_tok_entry *e = &t->tok[id];
    if (!e->text || e->type == Q4X_TOK_UNUSED) return 0;
    e->bytes = (const uint8_t *)e->text;
    e->nbytes = e->len;
    if (e->type == Q4X_TOK_BYTE) return byte_token(t, id, err);
    if (e->type != Q4X_TOK_NORMAL || !e->len) return 0;
    uint8_t *out = (uint8_t *)q4x_pool_str(&t->pool, e->text, e->len);
    if (!out) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the tokens");
    int n = unspell(e, out);
    if (n < 0) return 0;
    out[n] = 0;
    e->bytes = out;
    e->nbytes = (uint32_t)n;
    return 0;
}

/* A byte begins as the token of its character; where there is none, as its token of type byte. */
static void find_bytes(q4x_tok *t) {
    for (int b = 0; b < 256; b++) t->byte[b] = -1;
    for (int32_t i = 0; i < t->facts.ids; i++)
        if (t->tok[i].type == Q4X_TOK_BYTE && t->byte[*t->tok[i].bytes] < 0) t->byte[*t->tok[i].bytes] = i;
    for (int b = 0; b < 256; b++) {
        uint32_t c = q4x_tok_byte_code((uint8_t)b);
        char s[2] = {(char)(c < 0x80 ? c : 0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
        int64_t id = q4x_names_find(&t->by_text, s, c < 0x80 ? 1 : 2);
        if (id >= 0) t->byte[b] = (int32_t)id;
    }
}

/* ---- added tokens ---- */

/* With NFC, what is looked for in normalised text is normalised itself. */
static int normal_word(q4x_tok *t, q4x_tok_word *w, q4x_err *err) {
    uint8_t *text = NULL;
    size_t n;
    int rc = q4x_nfc((const uint8_t *)w->text, w->len, &text, &n, err);
    if (rc) return rc;
    w->text = q4x_pool_str(&t->pool, text, n);
    w->len = (uint32_t)n;
    free(text);
    return w->text ? 0 : q4x_fail(err, Q4X_E_NOMEM, "no memory for the added tokens");
}

static int add_word(q4x_tok *t, int32_t id, q4x_err *err) {
    const q4x_tok_entry *e = &t->tok[id];
    q4x_tok_word w = {e->text, e->len, id, e->type != Q4X_TOK_USER, e->lstrip, e->rstrip};
    if (e->type != Q4X_TOK_CONTROL && e->type != Q4X_TOK_USER && e->type != Q4X_TOK_UNKNOWN) return 0;
    if (!e->len) return 0; /* nothing can spell it */
    if (e->len > Q4X_TOK_MAX_ADDED)
        return q4x_fail(err, Q4X_E_FORMAT, "token %d: an added token of %u bytes, expected at most %d", id, e->len,
                        Q4X_TOK_MAX_ADDED);
    t->facts.added++;
    int rc = e->on_norm && t->facts.nfc && t->pre ? normal_word(t, &w, err) : 0;
    return rc ? rc : q4x_tok_split_add(e->on_norm ? &t->norm : &t->raw, &w, err);
}

int q4x_tok_finish(q4x_tok *t, q4x_err *err) {
    int rc;
    if (!t->ntok) return q4x_fail(err, Q4X_E_FORMAT, "expected at least one token, found none");
    TRY(index_merges(t, err));
    for (int32_t i = 0; i < t->facts.ids; i++) TRY(set_bytes(t, i, err));
    find_bytes(t);
    for (int32_t i = 0; i < t->facts.ids; i++)
        if (t->tok[i].text) TRY(add_word(t, i, err));
    q4x_tok_split_finish(&t->raw);
    q4x_tok_split_finish(&t->norm);
done:
    return rc;
}

/* ---- patterns with names ---- */

static const struct {
    const char *name, *pattern, *hf;
} pres[] = {
#define PRE(name, pattern, hf) {name, pattern, hf},
#include "lib/pres.def"
#undef PRE
};

const char *q4x_tok_pre_pattern(const char *name, size_t len) {
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (strlen(pres[i].name) == len && !memcmp(pres[i].name, name, len)) return pres[i].pattern;
    return NULL;
}

const char *q4x_tok_pre_name(const char *hf_pattern) {
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (!strcmp(pres[i].hf, hf_pattern) || !strcmp(pres[i].pattern, hf_pattern)) return pres[i].name;
    return "custom";
}
