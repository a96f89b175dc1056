/* tok_give.c: a tokenizer of a checkpoint as GGUF keys (section 9.6). */
#include "lib/tok_give.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/json_in.h"
#include "lib/model_int.h"
#include "lib/tok_int.h"

#define KEY "tokenizer.ggml."

enum { MAX_SIDE = 65536 }; /* bytes of one side */

static const q4x_json_limits config_limits = {4u << 20, 32, 1u << 16, 1u << 18};

int q4x_tok_give_none(q4x_gguf_out *o, q4x_err *err) {
    return q4x_gguf_out_str(o, KEY "model", "none", err);
}

/* What the keys have no words for. */
static int can_say(const q4x_tok *t, q4x_log *log, q4x_err *err) {
    int strips = 0;
    if (!strcmp(t->facts.pre, "custom"))
        return q4x_fail(
            err, Q4X_E_UNSUPPORTED,
            "tokenizer.json: its pattern has no name in GGUF files (qwen35, qwen2 do); leave the tokenizer out");
    if (t->ignore_merges)
        return q4x_fail(
            err, Q4X_E_UNSUPPORTED,
            "tokenizer.json: model.ignore_merges is true, which a GGUF file cannot say; leave the tokenizer out");
    for (int32_t i = 0; i < t->facts.ids; i++) strips += t->tok[i].lstrip || t->tok[i].rstrip;
    if (log && strips)
        q4x_log_say(log, 0, "tokenizer.json: %d tokens take blanks beside them; a GGUF file cannot say so", strips);
    if (log && t->facts.nfc)
        q4x_log_say(log, 1, "tokenizer.json: text is brought to NFC first; a GGUF file cannot say so");
    return 0;
}

/* Ids that have no token get a name that no text spells. */
static int give_tokens(const q4x_tok *t, int64_t rows, q4x_gguf_out *o, q4x_err *err) {
    int rc = 0;
    q4x_pool names = {0};
    const char **text = calloc((size_t)rows, sizeof *text);
    size_t *len = calloc((size_t)rows, sizeof *len);
    int32_t *type = calloc((size_t)rows, sizeof *type);
    if (!text || !len || !type) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for %lld tokens", (long long)rows));
    for (int64_t i = 0; i < rows; i++) {
        char pad[40];
        const q4x_tok_entry *e = i < t->facts.ids && t->tok[i].text ? &t->tok[i] : NULL;
        len[i] = e ? e->len : (size_t)snprintf(pad, sizeof pad, "[PAD%lld]", (long long)i);
        text[i] = e ? e->text : q4x_pool_str(&names, pad, len[i]);
        type[i] = e ? e->type : Q4X_TOK_UNUSED;
        if (!text[i]) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for %lld tokens", (long long)rows));
    }
    TRY(q4x_gguf_out_strs(o, KEY "tokens", text, len, (size_t)rows, err));
    TRY(q4x_gguf_out_i32s(o, KEY "token_type", type, (size_t)rows, err));
done:
    q4x_pool_free(&names);
    free(text);
    free(len);
    free(type);
    return rc;
}

/* "a b"; the alphabet of byte-level tokens has no blank. */
static int give_merges(const q4x_tok *t, q4x_gguf_out *o, q4x_err *err) {
    int rc = 0;
    const size_t n = (size_t)t->facts.merges;
    q4x_pool pool = {0};
    char *both = malloc(2 * MAX_SIDE + 2);
    const char **text = calloc(n ? n : 1, sizeof *text);
    if (!text || !both) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for %zu merges", n));
    for (size_t i = 0; i < n; i++) {
        const q4x_tok_entry *a = &t->tok[t->pair[i][0]], *b = &t->tok[t->pair[i][1]];
        if (a->len > MAX_SIDE || b->len > MAX_SIDE || memchr(a->text, ' ', a->len) || memchr(b->text, ' ', b->len))
            TRY(q4x_fail(err, Q4X_E_UNSUPPORTED,
                         "tokenizer.json: model.merges[%zu]: '%.64s' with '%.64s' cannot be said "
                         "in a GGUF file",
                         i, a->text, b->text));
        memcpy(both, a->text, a->len);
        both[a->len] = ' ';
        memcpy(both + a->len + 1, b->text, b->len);
        text[i] = q4x_pool_str(&pool, both, a->len + 1 + b->len);
        if (!text[i]) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for %zu merges", n));
    }
    TRY(q4x_gguf_out_strs(o, KEY "merges", text, NULL, n, err));
done:
    q4x_pool_free(&pool);
    free(text);
    free(both);
    return rc;
}

static int give_id(q4x_gguf_out *o, const char *key, int64_t id, q4x_err *err) {
    return id < 0 ? 0 : q4x_gguf_out_u32(o, key, (uint32_t)id, err);
}

/* The token that fills rows: as tokenizer_config.json spells it, or as config.json numbers it; -1: none. */
static int64_t padding(const q4x_tok *t, const json_t *tokenizer_config, const json_t *config) {
    const json_t *v = json_object_get(tokenizer_config, "pad_token"), *id = json_object_get(config, "pad_token_id");
    if (json_is_object(v)) v = json_object_get(v, "content");
    if (json_is_string(v)) return q4x_names_find(&t->by_text, json_string_value(v), json_string_length(v));
    return json_is_integer(id) && json_integer_value(id) < t->facts.ids ? json_integer_value(id) : -1;
}

static int give_ends(const q4x_tok *t, const json_t *tokenizer_config, const json_t *config, q4x_gguf_out *o,
                     q4x_err *err) {
    const json_t *chat = json_object_get(tokenizer_config, "chat_template");
    int rc;
    TRY(give_id(o, KEY "bos_token_id", t->facts.bos, err));
    TRY(give_id(o, KEY "eos_token_id", t->facts.eos, err));
    TRY(give_id(o, KEY "unknown_token_id", t->unknown, err));
    TRY(give_id(o, KEY "padding_token_id", padding(t, tokenizer_config, config), err));
    TRY(q4x_gguf_out_bool(o, KEY "add_bos_token", t->facts.add_bos, err));
    if (t->facts.add_eos) TRY(q4x_gguf_out_bool(o, KEY "add_eos_token", 1, err));
    if (json_is_string(chat)) TRY(q4x_gguf_out_str(o, "tokenizer.chat_template", json_string_value(chat), err));
done:
    return rc;
}

int q4x_tok_give(const q4x_model *m, int64_t rows, q4x_gguf_out *o, q4x_log *log, q4x_err *err) {
    q4x_tok *t = NULL;
    json_t *config = NULL;
    int rc = q4x_tok_open(m, &t, err);
    if (rc) return rc > 0 ? q4x_tok_give_none(o, err) : rc;
    rc = can_say(t, log, err);
    q4x_err_prefix(rc ? err : NULL, "%s", q4x_tail(q4x_model_path(m)));
    if (rc) goto done;
    rc = q4x_hf_json(m, "tokenizer_config.json", &config_limits, &config, err);
    if (rc < 0) goto done;
    TRY(q4x_gguf_out_str(o, KEY "model", "gpt2", err));
    TRY(q4x_gguf_out_str(o, KEY "pre", t->facts.pre, err));
    TRY(give_tokens(t, rows, o, err));
    TRY(give_merges(t, o, err));
    TRY(give_ends(t, config, q4x_model_text_config(m), o, err));
done:
    json_decref(config);
    q4x_tok_close(t);
    return rc;
}
