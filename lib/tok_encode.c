/* tok_encode.c: the way of a text: added tokens out, NFC, added tokens that are looked for after it, pieces, merges. */
#include <stdlib.h>

#include "lib/tok_int.h"
#include "lib/utf8.h"

typedef struct {
    const q4x_tok *t;
    int plain;
    q4x_bpe bpe;
    q4x_tok_ids ids;
    q4x_tok_cuts raw, norm;
} encoder;

static int piece(void *ctx, const uint8_t *text, size_t n, q4x_err *err) {
    encoder *e = ctx;
    return q4x_bpe_piece(&e->bpe, e->t, text, n, &e->ids, err);
}

/* A stretch without added tokens that are looked for in raw text. */
static int normal(encoder *e, const uint8_t *text, size_t n, q4x_err *err) {
    int rc;
    uint8_t *nfc = NULL;
    if (e->t->facts.nfc) {
        TRY(q4x_nfc(text, n, &nfc, &n, err));
        text = nfc;
    }
    TRY(q4x_tok_split_text(&e->t->norm, text, n, e->plain, &e->norm, err));
    for (size_t i = 0; i < e->norm.n; i++) {
        q4x_tok_cut c = e->norm.c[i];
        TRY(c.id >= 0 ? q4x_tok_push(&e->ids, c.id, err)
                      : q4x_pre_cut(e->t->pre, text + c.at, c.end - c.at, piece, e, err));
    }
done:
    free(nfc);
    return rc;
}

static int encode(encoder *e, const uint8_t *text, size_t n, q4x_err *err) {
    int rc = 0;
    const q4x_tok_facts *f = &e->t->facts;
    if (f->add_bos) TRY(q4x_tok_push(&e->ids, f->bos, err));
    TRY(q4x_tok_split_text(&e->t->raw, text, n, e->plain, &e->raw, err));
    for (size_t i = 0; i < e->raw.n; i++) {
        q4x_tok_cut c = e->raw.c[i];
        TRY(c.id >= 0 ? q4x_tok_push(&e->ids, c.id, err) : normal(e, text + c.at, c.end - c.at, err));
    }
    if (f->add_eos) TRY(q4x_tok_push(&e->ids, f->eos, err));
done:
    return rc;
}

int q4x_tok_encode(const q4x_tok *t, const void *text, size_t n, int flags, int32_t **ret, int32_t *ret_n,
                   q4x_err *err) {
    int rc;
    const uint8_t *p = text;
    encoder e = {.t = t, .plain = flags & Q4X_TOK_PLAIN};
    if (n > Q4X_TOK_MAX_TEXT)
        return q4x_fail(err, Q4X_E_ARG, "text: %zu bytes, expected at most %zu", n, Q4X_TOK_MAX_TEXT);
    size_t good = n ? q4x_utf8_valid(p, n) : 0;
    if (good < n)
        return q4x_fail(err, Q4X_E_ARG,
                        "text: byte %zu is 0x%02x, expected UTF-8; text in another encoding must be "
                        "converted first",
                        good, (unsigned)p[good]);
    TRY(encode(&e, p, n, err));
    if (!e.ids.id) { /* no ids: still something that can be freed */
        e.ids.id = malloc(sizeof *e.ids.id);
        if (!e.ids.id) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for token ids"));
    }
    *ret = e.ids.id;
    *ret_n = e.ids.n;
    e.ids.id = NULL;
done:
    q4x_bpe_free(&e.bpe);
    free(e.ids.id);
    free(e.raw.c);
    free(e.norm.c);
    return rc;
}
