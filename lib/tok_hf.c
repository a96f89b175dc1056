/* tok_hf.c: a tokenizer from tokenizer.json: tokens, merges, added tokens; bos and eos from the files beside it. */
#include <stdlib.h>
#include <string.h>

#include "lib/io.h"
#include "lib/json_in.h"
#include "lib/model_int.h"
#include "lib/tok_int.h"

#define FILE_NAME "tokenizer.json"

/* Real ones have a quarter of a million tokens and as many merges, each an array of its own in recent files. */
static const q4x_json_limits limits = {128u << 20, 32, 1u << 20, 1u << 22};
static const q4x_json_limits config_limits = {4u << 20, 32, 1u << 16, 1u << 18};

/* jansson's iterators take non-const, and do not write. */
static json_t *mutable(const json_t *j) {
    return (json_t *)(uintptr_t)j;
}

static int add(q4x_tok *t, const json_t *id, const char *text, size_t len, q4x_tok_type type, int64_t rows,
               q4x_err *err) {
    if (!json_is_integer(id)) return q4x_fail(err, Q4X_E_FORMAT, "id: expected an integer");
    int64_t i = json_integer_value(id);
    if (rows && i >= rows)
        return q4x_fail(err, Q4X_E_FORMAT,
                        "id %lld, expected below %lld, the configuration's vocab_size: an id beyond "
                        "the vocabulary",
                        (long long)i, (long long)rows);
    return q4x_tok_add(t, i, text, len, type, err);
}

static int read_vocab(q4x_tok *t, const json_t *vocab, int64_t rows, q4x_err *err) {
    const char *text;
    json_t *id;
    if (!json_is_object(vocab))
        return q4x_fail(err, Q4X_E_FORMAT, "model.vocab: expected an object from tokens to ids");
    json_object_foreach(mutable(vocab), text, id) {
        int rc = add(t, id, text, strlen(text), Q4X_TOK_NORMAL, rows, err);
        if (rc) {
            q4x_err_prefix(err, "model.vocab: '%.40s'", text);
            return rc;
        }
    }
    return 0;
}

/* ---- added tokens ---- */

/* A flag of an added token. */
static int flag(const json_t *token, const char *key, int absent, int *ret, q4x_err *err) {
    const json_t *v = json_object_get(token, key);
    if (v && !json_is_boolean(v)) return q4x_fail(err, Q4X_E_FORMAT, "%s: expected true or false", key);
    *ret = v ? json_is_true(v) : absent;
    return 0;
}

static int read_added(q4x_tok *t, const json_t *token, int64_t rows, q4x_err *err) {
    int rc, special = 0, lstrip = 0, rstrip = 0, on_norm = 0, single = 0;
    const json_t *content = json_object_get(token, "content"), *id = json_object_get(token, "id");
    const char *text = json_string_value(content);
    size_t len = text ? json_string_length(content) : 0;
    if (!len) return q4x_fail(err, Q4X_E_FORMAT, "content: expected a string that is not empty");
    TRY(flag(token, "special", 0, &special, err));
    TRY(flag(token, "lstrip", 0, &lstrip, err));
    TRY(flag(token, "rstrip", 0, &rstrip, err));
    TRY(flag(token, "single_word", 0, &single, err));
    TRY(flag(token, "normalized", !special, &on_norm, err));
    if (single) TRY(q4x_fail(err, Q4X_E_UNSUPPORTED, "'%.40s': single_word is not supported; give --ids", text));
    q4x_tok_type type = special ? Q4X_TOK_CONTROL : Q4X_TOK_USER;
    int64_t old = q4x_names_find(&t->by_text, text, len);
    if (old >= 0 && json_is_integer(id) && json_integer_value(id) == old && t->tok[old].type == Q4X_TOK_NORMAL)
        t->tok[old].type = (uint8_t)type; /* it stands in the vocabulary too */
    else
        TRY(add(t, id, text, len, type, rows, err));
    q4x_tok_entry *e = &t->tok[json_integer_value(id)];
    e->lstrip = (uint8_t)lstrip;
    e->rstrip = (uint8_t)rstrip;
    e->on_norm = (uint8_t)on_norm;
done:
    return rc;
}

static int read_all_added(q4x_tok *t, const json_t *added, int64_t rows, q4x_err *err) {
    size_t i;
    json_t *token;
    if (!added || json_is_null(added)) return 0;
    if (!json_is_array(added)) return q4x_fail(err, Q4X_E_FORMAT, "added_tokens: expected an array");
    json_array_foreach(mutable(added), i, token) {
        int rc = read_added(t, token, rows, err);
        if (rc) {
            q4x_err_prefix(err, "added_tokens[%zu]", i);
            return rc;
        }
    }
    return 0;
}

/* ---- merges: "a b", or ["a", "b"] ---- */

static int read_merge(q4x_tok *t, const json_t *m, q4x_err *err) {
    const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
    if (json_array_size(m) == 2 && json_is_string(a) && json_is_string(b))
        return q4x_tok_merge(t, json_string_value(a), json_string_length(a), json_string_value(b),
                             json_string_length(b), err);
    const char *s = json_string_value(m), *blank = s ? strchr(s, ' ') : NULL;
    if (!blank || strchr(blank + 1, ' '))
        return q4x_fail(err, Q4X_E_FORMAT, "bad merge: expected \"a b\" or [\"a\", \"b\"], found %s%.64s%s",
                        s ? "'" : "something else", s ? s : "", s ? "'" : "");
    return q4x_tok_merge(t, s, (size_t)(blank - s), blank + 1, strlen(blank + 1), err);
}

static int read_merges(q4x_tok *t, const json_t *merges, q4x_err *err) {
    size_t i;
    json_t *m;
    if (!json_is_array(merges)) return q4x_fail(err, Q4X_E_FORMAT, "model.merges: expected an array");
    json_array_foreach(mutable(merges), i, m) {
        int rc = read_merge(t, m, err);
        if (rc) {
            q4x_err_prefix(err, "model.merges[%zu]", i);
            return rc;
        }
    }
    return 0;
}

/* ---- the model ---- */

/* Options that byte-level BPE leaves at their defaults. */
static int check_options(const json_t *model, q4x_err *err) {
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, empty[i]);
        if (v && !json_is_null(v) && !(json_is_string(v) && !json_string_length(v)))
            return q4x_fail(err, Q4X_E_UNSUPPORTED, "model.%s: expected none, others are not supported", empty[i]);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "model.dropout: expected none, merging at random is not supported");
    return 0;
}

static int read_unknown(q4x_tok *t, const json_t *model, q4x_err *err) {
    int fuse = 0;
    const json_t *v = json_object_get(model, "unk_token");
    if (!v || json_is_null(v)) return 0;
    int64_t id = json_is_string(v) ? q4x_names_find(&t->by_text, json_string_value(v), json_string_length(v)) : -1;
    if (id < 0) return q4x_fail(err, Q4X_E_FORMAT, "model.unk_token: expected a token of the vocabulary");
    int rc = flag(model, "fuse_unk", 0, &fuse, err);
    if (!rc && fuse) rc = q4x_fail(err, Q4X_E_UNSUPPORTED, "model.fuse_unk: true is not supported");
    t->unknown = (int32_t)id;
    return rc;
}

static int read_model(q4x_tok *t, const json_t *root, int64_t rows, q4x_err *err) {
    int rc, fallback = 0;
    const json_t *model = json_object_get(root, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!type || strcmp(type, "BPE") != 0)
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "model.type: expected BPE, found %.40s; give --ids",
                        type ? type : "none");
    t->facts.model = "BPE";
    TRY(check_options(model, err));
    TRY(read_vocab(t, json_object_get(model, "vocab"), rows, err));
    TRY(read_merges(t, json_object_get(model, "merges"), err));
    rc = flag(model, "ignore_merges", 0, &t->ignore_merges, err);
    if (!rc) rc = flag(model, "byte_fallback", 0, &fallback, err);
    q4x_err_prefix(rc ? err : NULL, "model");
    if (!rc && fallback) rc = q4x_fail(err, Q4X_E_UNSUPPORTED, "model.byte_fallback: true is not supported");
    if (!rc) rc = read_unknown(t, model, err);
done:
    return rc;
}

int q4x_tok_read_json(q4x_tok *t, const json_t *root, int64_t rows, q4x_err *err) {
    int rc;
    if (!json_is_object(root)) return q4x_fail(err, Q4X_E_FORMAT, "expected a JSON object");
    TRY(read_model(t, root, rows, err));
    TRY(read_all_added(t, json_object_get(root, "added_tokens"), rows, err));
    TRY(q4x_tok_read_pipeline(t, root, err));
    TRY(q4x_tok_finish(t, err));
done:
    return rc;
}

/* ---- what is put around texts ---- */

/* A token as tokenizer_config.json names it: its text, alone or as `content` of an object. */
static int named(const q4x_tok *t, const json_t *config, const char *key, int32_t *ret, q4x_err *err) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    if (!v || json_is_null(v)) return 0;
    int64_t id = json_is_string(v) ? q4x_names_find(&t->by_text, json_string_value(v), json_string_length(v)) : -1;
    if (id < 0) return q4x_fail(err, Q4X_E_FORMAT, "%s: expected a token of the vocabulary", key);
    *ret = (int32_t)id;
    return 0;
}

/* An id as config.json gives it, or the first of a list. */
static int numbered(const q4x_tok *t, const json_t *config, const char *key, int32_t *ret, q4x_err *err) {
    const json_t *v = json_object_get(config, key);
    if (json_is_array(v)) v = json_array_get(v, 0);
    if (!v || json_is_null(v)) return 0;
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    if (id < 0 || id >= t->facts.ids)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %lld, expected 0 to %d: an id beyond the vocabulary", key,
                        (long long)id, t->facts.ids - 1);
    *ret = (int32_t)id;
    return 0;
}

int q4x_tok_read_ends(q4x_tok *t, const json_t *tokenizer_config, const json_t *config, q4x_err *err) {
    int rc;
    q4x_tok_facts *f = &t->facts;
    const char *file = tokenizer_config ? "tokenizer_config.json" : "config.json";
    if (tokenizer_config) {
        TRY(named(t, tokenizer_config, "bos_token", &f->bos, err));
        TRY(named(t, tokenizer_config, "eos_token", &f->eos, err));
        TRY(flag(tokenizer_config, "add_bos_token", 0, &f->add_bos, err));
        TRY(flag(tokenizer_config, "add_eos_token", 0, &f->add_eos, err));
        if ((f->add_bos && f->bos < 0) || (f->add_eos && f->eos < 0))
            TRY(q4x_fail(err, Q4X_E_FORMAT, "add_%s_token is true, expected the token beside it, found none",
                         f->add_bos && f->bos < 0 ? "bos" : "eos"));
    } else {
        TRY(numbered(t, config, "bos_token_id", &f->bos, err));
        TRY(numbered(t, config, "eos_token_id", &f->eos, err));
    }
done:
    q4x_err_prefix(rc ? err : NULL, "%s", file);
    return rc;
}

/* ---- files ---- */

int q4x_tok_read_hf(q4x_tok *t, const q4x_model *m, q4x_err *err) {
    json_t *root = NULL, *config = NULL;
    int64_t rows = json_integer_value(json_object_get(q4x_model_text_config(m), "vocab_size"));
    int rc = q4x_hf_json(m, FILE_NAME, &limits, &root, err);
    if (rc) return rc;
    rc = q4x_tok_read_json(t, root, rows > 0 ? rows : 0, err);
    q4x_err_prefix(rc ? err : NULL, FILE_NAME);
    if (rc) goto done;
    rc = q4x_hf_json(m, "tokenizer_config.json", &config_limits, &config, err);
    if (rc < 0) goto named; /* the message has the path */
    rc = q4x_tok_read_ends(t, config, q4x_model_text_config(m), err);
done:
    q4x_err_prefix(rc ? err : NULL, "%s", q4x_tail(q4x_model_path(m)));
named:
    json_decref(root);
    json_decref(config);
    return rc;
}

int q4x_tok_open_json(const char *text, size_t n, int64_t rows, q4x_tok **ret, q4x_err *err) {
    int rc = 0;
    json_t *root = NULL;
    q4x_tok *t = q4x_tok_new();
    if (!t) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the tokenizer");
    TRY(q4x_json_read(text, n, &limits, FILE_NAME, &root, err));
    rc = q4x_tok_read_json(t, root, rows, err);
    q4x_err_prefix(rc ? err : NULL, FILE_NAME);
    if (rc) goto done;
    *ret = t;
    t = NULL;
done:
    json_decref(root);
    q4x_tok_close(t);
    return rc;
}
