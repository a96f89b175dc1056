/* tok_gguf.c: a tokenizer from GGUF keys (qwen4_exp 9.6, gguf-quants 1.5). */
#include <stdlib.h>
#include <string.h>

#include "lib/io.h"
#include "lib/tok_int.h"

#define KEY "tokenizer.ggml."
#define TOKENS KEY "tokens"
#define TYPES KEY "token_type"
#define MERGES KEY "merges"

/* The model's kind and its pattern. 1: the file has no tokenizer. */
static int read_kind(q4x_tok *t, const q4x_model *m, q4x_err *err) {
    const char *s;
    size_t n;
    int64_t count;
    int rc = q4x_kv_str(m, KEY "model", &s, &n, err);
    if (rc < 0) return rc;
    if (rc || (n == 4 && !memcmp(s, "none", 4))) {
        rc = q4x_kv_strs_count(m, TOKENS, &count, err);
        return rc ? rc : q4x_fail(err, Q4X_E_FORMAT, KEY "model: expected one beside " TOKENS ", found none");
    }
    if (n != 4 || memcmp(s, "gpt2", 4) != 0)
        return q4x_fail(err, Q4X_E_UNSUPPORTED, KEY "model: expected gpt2 (byte-level BPE), found '%.*s'; give --ids",
                        (int)(n < 40 ? n : 40), s);
    rc = q4x_kv_str(m, KEY "pre", &s, &n, err);
    if (rc < 0) return rc;
    const char *pattern = rc ? NULL : q4x_tok_pre_pattern(s, n);
    if (!pattern)
        return q4x_fail(err, Q4X_E_UNSUPPORTED, KEY "pre: expected qwen35 or qwen2, found %s%.*s%s; give --ids",
                        rc ? "none" : "'", rc ? 0 : (int)(n < 40 ? n : 40), rc ? "" : s, rc ? "" : "'");
    t->facts.model = "gpt2";
    t->facts.pre = q4x_tok_pre_name(pattern);
    return q4x_pre_open(&(q4x_pre_stage){.pattern = pattern}, 1, 0, 0, &t->pre, err);
}

static int check_count(const q4x_model *m, int64_t n, q4x_err *err) {
    const q4x_tensor *rows = q4x_model_find(m, "token_embd.weight");
    if (n < 1 || n > Q4X_TOK_MAX_IDS)
        return q4x_fail(err, Q4X_E_FORMAT, TOKENS ": %lld tokens, expected 1 to %d", (long long)n, Q4X_TOK_MAX_IDS);
    if (rows && n > rows->ne[1])
        return q4x_fail(err, Q4X_E_FORMAT,
                        TOKENS ": %lld tokens, expected at most %lld, the rows of token_embd.weight: ids beyond the "
                               "vocabulary",
                        (long long)n, (long long)rows->ne[1]);
    return 0;
}

static int read_tokens(q4x_tok *t, const q4x_model *m, q4x_err *err) {
    int64_t n, ntypes, *types = NULL;
    const char *s;
    size_t len;
    int rc = q4x_kv_strs_count(m, TOKENS, &n, err);
    if (rc > 0) return q4x_fail(err, Q4X_E_FORMAT, TOKENS ": expected an array of strings, found none");
    if (rc) return rc;
    TRY(check_count(m, n, err));
    rc = q4x_kv_ints(m, TYPES, &types, &ntypes, err);
    if (rc < 0) goto done;
    if (!rc && ntypes != n)
        TRY(q4x_fail(err, Q4X_E_FORMAT, TYPES ": %lld elements, expected %lld, one for each token", (long long)ntypes,
                     (long long)n));
    for (int64_t i = 0; i < n; i++) {
        int64_t type = types ? types[i] : Q4X_TOK_NORMAL;
        if (type < Q4X_TOK_NORMAL || type > Q4X_TOK_BYTE)
            TRY(q4x_fail(err, Q4X_E_FORMAT, TYPES "[%lld]: %lld, expected 1 to 6", (long long)i, (long long)type));
        TRY(q4x_kv_strs_get(m, TOKENS, i, &s, &len, err));
        rc = q4x_tok_add(t, i, s, len, (q4x_tok_type)type, err);
        q4x_err_prefix(rc ? err : NULL, TOKENS "[%lld]", (long long)i);
        if (rc) goto done;
    }
done:
    free(types);
    return rc;
}

/* "a b": two tokens with one blank between them. */
static int read_merge(q4x_tok *t, const char *s, size_t len, q4x_err *err) {
    const char *blank = len > 1 ? memchr(s + 1, ' ', len - 1) : NULL;
    size_t a = blank ? (size_t)(blank - s) : 0;
    if (!blank || a + 1 == len || s[0] == ' ' || memchr(blank + 1, ' ', len - a - 1))
        return q4x_fail(err, Q4X_E_FORMAT, "bad merge: expected two tokens with a blank between them, found '%.*s'",
                        (int)(len < 64 ? len : 64), s);
    return q4x_tok_merge(t, s, a, blank + 1, len - a - 1, err);
}

static int read_merges(q4x_tok *t, const q4x_model *m, q4x_err *err) {
    int64_t n;
    const char *s;
    size_t len;
    int rc = q4x_kv_strs_count(m, MERGES, &n, err);
    if (rc > 0) return q4x_fail(err, Q4X_E_FORMAT, MERGES ": expected an array of strings, found none");
    for (int64_t i = 0; !rc && i < n; i++) {
        rc = q4x_kv_strs_get(m, MERGES, i, &s, &len, err);
        if (rc) return rc;
        rc = read_merge(t, s, len, err);
        q4x_err_prefix(rc ? err : NULL, MERGES "[%lld]", (long long)i);
    }
    return rc;
}

/* tokenizer.ggml.X_token_id, whatever X: all must be ids of this vocabulary. */
static int read_specials(q4x_tok *t, const q4x_model *m, q4x_err *err) {
    for (int64_t i = 0; i < q4x_kv_count(m); i++) {
        const char *key = q4x_kv_key(m, i);
        size_t n = strlen(key);
        uint64_t id;
        if (n < 24 || strncmp(key, KEY, 15) != 0 || strcmp(key + n - 9, "_token_id") != 0) continue;
        int rc = q4x_kv_u64(m, key, &id, err);
        if (rc) return rc;
        if (id >= (uint64_t)t->facts.ids)
            return q4x_fail(err, Q4X_E_FORMAT, "%.64s: %llu, expected 0 to %d: an id beyond the vocabulary", key,
                            (unsigned long long)id, t->facts.ids - 1);
        if (!strcmp(key, KEY "bos_token_id")) t->facts.bos = (int32_t)id;
        if (!strcmp(key, KEY "eos_token_id")) t->facts.eos = (int32_t)id;
        if (!strcmp(key, KEY "unknown_token_id")) t->unknown = (int32_t)id;
    }
    return 0;
}

static int read_around(const q4x_model *m, const char *key, int32_t id, int *ret, q4x_err *err) {
    int rc = q4x_kv_bool(m, key, ret, err);
    if (rc < 0) return rc;
    if (*ret && id < 0)
        return q4x_fail(err, Q4X_E_FORMAT, "%s is true, expected the id in a key ending in _token_id, found none", key);
    return 0;
}

static int read_all(q4x_tok *t, const q4x_model *m, q4x_err *err) {
    int rc;
    TRY(read_kind(t, m, err));
    TRY(read_tokens(t, m, err));
    TRY(read_merges(t, m, err));
    TRY(read_specials(t, m, err));
    TRY(read_around(m, KEY "add_bos_token", t->facts.bos, &t->facts.add_bos, err));
    TRY(read_around(m, KEY "add_eos_token", t->facts.eos, &t->facts.add_eos, err));
    t->raw.longest_first = 1;
    TRY(q4x_tok_finish(t, err));
done:
    return rc;
}

int q4x_tok_read_gguf(q4x_tok *t, const q4x_model *m, q4x_err *err) {
    int rc = read_all(t, m, err);
    const char *file = q4x_tail(q4x_model_shard(m, 0)->path);
    if (rc < 0 && err && strncmp(err->msg, file, strlen(file)) != 0) q4x_err_prefix(err, "%s", file);
    return rc;
}
