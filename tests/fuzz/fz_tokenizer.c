/* fz_tokenizer.c: any bytes as tokenizer.json and a text behind its first NUL; input that begins with "GGUF" as the
 * header of a model file, read as a text too; any other as a text for a tokenizer that is right, which the first byte
 * chooses. Either a named error, or a tokenizer that keeps its promises; opening twice gives the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/utf8.h"
#include "lib/version.h"
#include "tests/h_holds.h"
#include "tests/h_tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TEXT = 400 }; /* bytes of text at most: a file's pattern may take every step that it is given */

static void check_err(int rc, const q4x_err *e) {
    HOLDS(rc < 0 && e->code == rc && strlen(e->msg) > 8);
}

/* ---- ids ---- */

static void check_stream(const q4x_tok *t, const int32_t *ids, int32_t n) {
    q4x_tok_stream *s = NULL;
    char *all = NULL;
    const char *p;
    size_t len = 0, k = 0, at = 0;
    HOLDS(!q4x_tok_text(t, ids, n, &all, &len, NULL) && q4x_utf8_valid((const uint8_t *)all, len) == len);
    HOLDS(!q4x_tok_stream_open(t, &s, NULL));
    for (int32_t i = 0; i <= n; i++) {
        HOLDS(!(i < n ? q4x_tok_stream_add(s, ids[i], &p, &k, NULL) : q4x_tok_stream_end(s, &p, &k, NULL)));
        HOLDS(q4x_utf8_valid((const uint8_t *)p, k) == k && p[k] == 0);
        HOLDS(k <= len - at && !memcmp(all + at, p, k));
        at += k;
    }
    HOLDS(at == len);
    q4x_tok_stream_close(s);
    free(all);
}

/* Ids of the vocabulary alone spell the text again. */
static int must_come_back(const q4x_tok *t, const int32_t *ids, int32_t n) {
    const q4x_tok_facts *f = q4x_tok_about(t);
    if (f->nfc || f->prefix_space || f->add_bos || f->add_eos || t->unknown >= 0) return 0;
    for (int32_t i = 0; i < n; i++) {
        q4x_tok_type k = q4x_tok_type_of(t, ids[i]);
        if (k != Q4X_TOK_NORMAL && k != Q4X_TOK_BYTE) return 0;
    }
    return 1;
}

static void encode(const q4x_tok *t, const uint8_t *text, size_t n, int flags) {
    int32_t *a = NULL, *b = NULL, na = -1, nb = -1;
    q4x_err ea = {0}, eb = {0};
    int ra = q4x_tok_encode(t, text, n, flags, &a, &na, &ea), rb = q4x_tok_encode(t, text, n, flags, &b, &nb, &eb);
    HOLDS(ra == rb && !strcmp(ea.msg, eb.msg) && !a == !b);
    HOLDS((ra == Q4X_E_ARG) == (n && q4x_utf8_valid(text, n) < n));
    if (ra) {
        check_err(ra, &ea);
        HOLDS(!a);
        return;
    }
    HOLDS(a && na >= 0 && na == nb && !memcmp(a, b, (size_t)na * sizeof *a));
    uint8_t *back = NULL;
    size_t len = 0;
    HOLDS(!q4x_tok_decode(t, a, na, &back, &len, NULL)); /* every id is one of the vocabulary */
    if (must_come_back(t, a, na)) HOLDS(len == n && (!n || !memcmp(back, text, n)));
    check_stream(t, a, na);
    free(back);
    free(a);
    free(b);
}

/* The input's bytes as ids: what decodes need be no text. */
static void decode_any(const q4x_tok *t, const uint8_t *p, size_t n) {
    int32_t ids[TEXT], vocab = q4x_tok_about(t)->ids;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(p[i] * 251u) % vocab;
    check_stream(t, ids, (int32_t)n);
}

static void use(const q4x_tok *t, const uint8_t *text, size_t n) {
    const q4x_tok_facts *f = q4x_tok_about(t);
    if (n > TEXT) n = TEXT;
    HOLDS(f->model && f->pre && f->ids > 0 && f->added >= 0 && f->merges >= 0);
    HOLDS(f->bos >= -1 && f->bos < f->ids && f->eos >= -1 && f->eos < f->ids);
    HOLDS((!f->add_bos || f->bos >= 0) && (!f->add_eos || f->eos >= 0));
    encode(t, text, n, 0);
    encode(t, text, n, Q4X_TOK_PLAIN);
    encode(t, text, q4x_utf8_valid(text, n), 0); /* what of it is text */
    decode_any(t, text, n);
}

/* ---- files ---- */

static void as_json(const uint8_t *data, size_t size) {
    const uint8_t *nul = memchr(data, 0, size);
    size_t head = nul ? (size_t)(nul - data) : size;
    q4x_tok *a = NULL, *b = NULL;
    q4x_err ea = {0}, eb = {0};
    int ra = q4x_tok_open_json((const char *)data, head, 0, &a, &ea);
    int rb = q4x_tok_open_json((const char *)data, head, 0, &b, &eb);
    HOLDS(ra == rb && !a == !b && !strcmp(ea.msg, eb.msg));
    if (ra) {
        check_err(ra, &ea);
        HOLDS(!a && !strncmp(ea.msg, "tokenizer.json: ", 16));
        return;
    }
    HOLDS(q4x_tok_about(a)->ids == q4x_tok_about(b)->ids && q4x_tok_about(a)->merges == q4x_tok_about(b)->merges);
    use(a, nul ? nul + 1 : data, nul ? size - head - 1 : head);
    q4x_tok_close(a);
    q4x_tok_close(b);
}

static void as_gguf(const uint8_t *data, size_t size) {
    q4x_model *m = NULL;
    q4x_tok *t = NULL;
    q4x_err e = {0};
    if (q4x_gguf_parse_mem(data, size, "in.gguf", &m, &e)) return; /* fz_gguf looks at these */
    int rc = q4x_tok_open(m, &t, &e);
    if (!rc)
        use(t, data + (size > TEXT ? size - TEXT : 0), size);
    else if (rc != 1) {
        check_err(rc, &e);
        HOLDS(!t && !strncmp(e.msg, "in.gguf: ", 9));
    }
    q4x_tok_close(t);
    q4x_model_close(m);
}

/* Tokenizers that are right: plain, with NFC, with blanks in front, with words that overlap. */
static q4x_tok *right(int which) {
    static q4x_tok *made[4];
    if (made[which]) return made[which];
    json_t *j = h_tok_json();
    if (which == 1) h_tok_set(j, "normalizer", "{'type': 'NFC'}");
    if (which == 2) h_tok_set(j, "pre_tokenizer.pretokenizers.1.add_prefix_space", "true");
    if (which == 2) h_tok_set(j, "model.ignore_merges", "true");
    if (which == 3) {
        h_tok_set(j, "added_tokens.1", "{'id': 258, 'content': '  ', 'lstrip': true}");
        h_tok_set(j, "added_tokens.2", "{'id': 259, 'content': ' a', 'rstrip': true, 'special': true}");
        h_tok_set(j, "added_tokens.3", "{'id': 260, 'content': 'a a'}");
    }
    HOLDS(!h_tok_open_json(j, 0, &made[which], NULL));
    return made[which];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    if (data[0] == '{')
        as_json(data, size);
    else if (size >= 4 && !memcmp(data, "GGUF", 4))
        as_gguf(data, size);
    else
        use(right(data[0] & 3), data + 1, size - 1);
    return 0;
}
