/* tok.c: a tokenizer opened, asked, closed; ids back to bytes. */
#include <stdlib.h>
#include <string.h>

#include "lib/io.h"
#include "lib/tok_int.h"

int q4x_tok_open(const q4x_model *m, q4x_tok **ret, q4x_err *err) {
    q4x_tok *t = q4x_tok_new();
    if (!t) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for the tokenizer", q4x_tail(q4x_model_path(m)));
    int rc = (q4x_model_container(m) == Q4X_GGUF ? q4x_tok_read_gguf : q4x_tok_read_hf)(t, m, err);
    if (rc)
        q4x_tok_close(t);
    else
        *ret = t;
    return rc;
}

void q4x_tok_close(q4x_tok *t) {
    if (!t) return;
    q4x_pre_close(t->pre);
    q4x_tok_split_free(&t->raw);
    q4x_tok_split_free(&t->norm);
    q4x_names_free(&t->by_text);
    q4x_names_free(&t->by_pair);
    q4x_pool_free(&t->pool);
    free(t->pair);
    free(t->made);
    free(t->tok);
    free(t);
}

const q4x_tok_facts *q4x_tok_about(const q4x_tok *t) {
    return &t->facts;
}

/* ---- one id ---- */

int q4x_tok_bytes(const q4x_tok *t, int32_t id, const uint8_t **ret, size_t *ret_n, q4x_err *err) {
    if (id < 0 || id >= t->facts.ids)
        return q4x_fail(err, Q4X_E_ARG, "id %d, expected 0 to %d (the vocabulary)", id, t->facts.ids - 1);
    const q4x_tok_entry *e = &t->tok[id];
    *ret = e->bytes ? e->bytes : (const uint8_t *)"";
    *ret_n = e->nbytes;
    return 0;
}

q4x_tok_type q4x_tok_type_of(const q4x_tok *t, int32_t id) {
    return id < 0 || id >= t->facts.ids ? Q4X_TOK_NONE : (q4x_tok_type)t->tok[id].type;
}

const char *q4x_tok_type_name(q4x_tok_type type) {
    static const char *const names[] = {"none", "normal", "unknown", "control", "user", "unused", "byte"};
    return names[type];
}

/* ---- many ---- */

int q4x_tok_decode(const q4x_tok *t, const int32_t *ids, int32_t n, uint8_t **ret, size_t *ret_n, q4x_err *err) {
    int rc;
    size_t total = 0, at = 0, k = 0;
    const uint8_t *p;
    for (int32_t i = 0; i < n; i++) {
        if ((rc = q4x_tok_bytes(t, ids[i], &p, &k, err))) return rc;
        if (k > SIZE_MAX - 1 - total) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the text of %d ids", n);
        total += k;
    }
    uint8_t *out = malloc(total + 1);
    if (!out) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the text of %d ids", n);
    for (int32_t i = 0; i < n; i++) {
        const q4x_tok_entry *e = &t->tok[ids[i]];
        if (e->nbytes) memcpy(out + at, e->bytes, e->nbytes);
        at += e->nbytes;
    }
    out[total] = 0;
    *ret = out;
    *ret_n = total;
    return 0;
}
