/* Hyper-parameters of qwen4exp from GGUF keys (sections 1.1, 1.2.7, 9.1, 9.5). GGUF has no defaults but the interval of
 * full attention; what the format does not store is fixed: sigmoid gate, renormalised router, one indexer key head. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/arch_qwen4_int.h"
#include "lib/io.h"

#define PREFIX "qwen4exp."

static int in_range(const q4x_q4_cfg *c, const char *key, int64_t v, int64_t lo, int64_t hi, q4x_err *err) {
    if (v >= lo && v <= hi) return 0;
    return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected %lld to %lld", c->where, key, (long long)v,
                    (long long)lo, (long long)hi);
}

/* 1: absent. */
static int optional_int(const q4x_model *m, const q4x_q4_cfg *c, const char *key, int64_t lo, int64_t hi, int64_t *ret,
                        q4x_err *err) {
    int64_t v;
    int rc = q4x_kv_i64(m, key, &v, err);
    if (!rc) rc = in_range(c, key, v, lo, hi, err);
    if (!rc) *ret = v;
    return rc;
}

static int absent(const q4x_q4_cfg *c, const char *key, q4x_err *err) {
    return q4x_fail(err, Q4X_E_FORMAT, "%s: key %s is missing", c->where, key);
}

static int need_int(const q4x_model *m, const q4x_q4_cfg *c, const char *key, int64_t lo, int64_t hi, int64_t *ret,
                    q4x_err *err) {
    int rc = optional_int(m, c, key, lo, hi, ret, err);
    return rc == 1 ? absent(c, key, err) : rc;
}

static int need_real(const q4x_model *m, const q4x_q4_cfg *c, const char *key, double lo, double hi, double *ret,
                     q4x_err *err) {
    double v;
    int rc = q4x_kv_f64(m, key, &v, err);
    if (rc) return rc == 1 ? absent(c, key, err) : rc;
    if (!(v >= lo && v <= hi))
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %g, expected %g to %g", c->where, key, v, lo, hi);
    *ret = v;
    return 0;
}

/* An array of at least n integers: 0, 1 when absent, or an error. Freed by the caller. */
static int ints(const q4x_model *m, const q4x_q4_cfg *c, const char *key, int64_t n, int64_t **ret, int64_t *ret_n,
                q4x_err *err) {
    int64_t *v = NULL, have = 0;
    int rc = q4x_kv_ints(m, key, &v, &have, err);
    if (rc) return rc;
    if (have < n) {
        free(v);
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s has %lld elements, expected at least %lld", c->where, key,
                        (long long)have, (long long)n);
    }
    *ret = v;
    *ret_n = have;
    return 0;
}

/* Keys that are one integer each. */
static int read_ints(const q4x_model *m, q4x_q4_cfg *c, q4x_q4_int from, q4x_q4_int to, q4x_err *err) {
    for (q4x_q4_int id = from; id <= to; id++) {
        const q4x_q4_key *k = &q4x_q4_keys[id];
        char key[96];
        if (!k->gguf[0] || k->gguf[0] == '-') continue;
        snprintf(key, sizeof key, PREFIX "%s", k->gguf);
        int rc = need_int(m, c, key, k->lo, k->hi, &c->v[id], err);
        if (rc) return rc;
    }
    return 0;
}

/* The vocabulary is as long as the token list; files without a tokenizer say vocab_size or nothing. */
static int read_vocab(const q4x_model *m, q4x_q4_cfg *c, q4x_err *err) {
    int64_t V, tokens;
    const q4x_tensor *t = q4x_model_find(m, "token_embd.weight");
    int rc = q4x_kv_i64(m, PREFIX "vocab_size", &V, err);
    if (rc < 0) return rc;
    int has_tokens = q4x_kv_strs_count(m, "tokenizer.ggml.tokens", &tokens, err);
    if (has_tokens < 0) return has_tokens;
    if (!has_tokens && !rc && tokens != V)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: " PREFIX "vocab_size is %lld, but tokenizer.ggml.tokens has %lld",
                        c->where, (long long)V, (long long)tokens);
    if (!has_tokens)
        V = tokens;
    else if (rc) {
        if (!t) return absent(c, "tokenizer.ggml.tokens", err);
        V = t->ne[1];
    }
    c->v[Q4X_Q4_V] = V;
    return in_range(c, "vocabulary size", V, 2, Q4X_Q4_MAXV, err);
}

/* Tokenizer keys that index the vocabulary. */
static int check_tokenizer(const q4x_model *m, const q4x_q4_cfg *c, q4x_err *err) {
    static const char *const ids[] = {"bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask"};
    int64_t *types = NULL, n = 0, id, V = c->v[Q4X_Q4_V];
    char key[64];
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ids[i]);
        int rc = optional_int(m, c, key, 0, V - 1, &id, err);
        if (rc < 0) return rc;
    }
    int rc = q4x_kv_ints(m, "tokenizer.ggml.token_type", &types, &n, err);
    if (rc) return rc < 0 ? rc : 0;
    free(types);
    if (n != V)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: tokenizer.ggml.token_type has %lld elements, expected %lld", c->where,
                        (long long)n, (long long)V);
    return 0;
}

static int read_sizes(const q4x_model *m, q4x_q4_cfg *c, q4x_err *err) {
    int64_t *v = c->v, value_length, inner;
    int rc;
    TRY(read_ints(m, c, Q4X_Q4_D, Q4X_Q4_R, err));
    rc = optional_int(m, c, PREFIX "nextn_predict_layers", 0, v[Q4X_Q4_L] - 1, &c->nmtp, err);
    if (rc < 0) return rc;
    v[Q4X_Q4_L] -= c->nmtp;
    TRY(need_int(m, c, PREFIX "attention.value_length", 1, 4096, &value_length, err));
    if (value_length != v[Q4X_Q4_HD])
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: attention.value_length is %lld, expected attention.key_length = %lld",
                     c->where, (long long)value_length, (long long)v[Q4X_Q4_HD]));
    TRY(need_int(m, c, PREFIX "ssm.inner_size", 1, 1 << 20, &inner, err));
    if (inner % v[Q4X_Q4_NV] || inner / v[Q4X_Q4_NV] > q4x_q4_keys[Q4X_Q4_DV].hi)
        TRY(q4x_fail(err, Q4X_E_FORMAT,
                     "%s: ssm.inner_size is %lld, expected ssm.time_step_rank = %lld times a head width up to %lld",
                     c->where, (long long)inner, (long long)v[Q4X_Q4_NV], (long long)q4x_q4_keys[Q4X_Q4_DV].hi));
    v[Q4X_Q4_DV] = inner / v[Q4X_Q4_NV];
    TRY(read_vocab(m, c, err));
    TRY(check_tokenizer(m, c, err));
    TRY(need_real(m, c, PREFIX "attention.layer_norm_rms_epsilon", 0, 1, &c->eps, err));
    TRY(need_real(m, c, PREFIX "rope.freq_base", 1, 1e30, &c->theta, err));
    TRY(need_int(m, c, PREFIX "rope.dimension_count", 1, 4096, &c->rot, err));
    const char *scaling;
    size_t len;
    rc = q4x_kv_str(m, PREFIX "rope.scaling.type", &scaling, &len, err);
    if (rc < 0) return rc;
    if (!rc && (len != 4 || memcmp(scaling, "none", 4)))
        TRY(q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: rope.scaling.type is '%.*s', expected 'none'", c->where,
                     (int)(len < 40 ? len : 40), scaling));
    rc = 0;
done:
    return rc;
}

/* Which layers attend. With an indexer: those with a compress ratio, which is one number; recurrent_layers must agree.
 * Without: recurrent_layers, or the interval. */
static int layers_by_ratio(q4x_q4_cfg *c, const int64_t *ratio, q4x_err *err) {
    int64_t one = 0;
    for (int64_t i = 0; i < c->v[Q4X_Q4_L]; i++) {
        c->is_attn[i] = ratio[i] != 0;
        if (!ratio[i]) continue;
        if (ratio[i] < 1 || ratio[i] > q4x_q4_keys[Q4X_Q4_RATIO].hi || (one && ratio[i] != one))
            return q4x_fail(err, Q4X_E_FORMAT,
                            "%s: attention.compress_ratios[%lld] is %lld, expected 0 or one ratio in all layers",
                            c->where, (long long)i, (long long)ratio[i]);
        one = ratio[i];
    }
    c->v[Q4X_Q4_RATIO] = one;
    return 0;
}

static int layers_by_interval(const q4x_model *m, q4x_q4_cfg *c, q4x_err *err) {
    int64_t every = 4;
    int rc = optional_int(m, c, PREFIX "full_attention_interval", 1, Q4X_Q4_MAXL, &every, err);
    if (rc < 0) return rc;
    for (int64_t i = 0; i < c->v[Q4X_Q4_L]; i++) c->is_attn[i] = (i + 1) % every == 0;
    return 0;
}

static int apply_recurrent(const q4x_model *m, q4x_q4_cfg *c, int known, q4x_err *err) {
    int64_t *rec = NULL, n = 0;
    int rc = ints(m, c, PREFIX "attention.recurrent_layers", c->v[Q4X_Q4_L], &rec, &n, err);
    if (rc) return rc < 0 ? rc : 0;
    for (int64_t i = 0; i < c->v[Q4X_Q4_L] && !rc; i++) {
        if (known && c->is_attn[i] != !rec[i])
            rc = q4x_fail(err, Q4X_E_FORMAT,
                          "%s: attention.recurrent_layers[%lld] is %lld, which attention.compress_ratios denies",
                          c->where, (long long)i, (long long)rec[i]);
        c->is_attn[i] = !rec[i];
    }
    free(rec);
    return rc;
}

static int read_layers(const q4x_model *m, q4x_q4_cfg *c, q4x_err *err) {
    static const q4x_q4_int ids[] = {Q4X_Q4_IH, Q4X_Q4_ID, Q4X_Q4_BUDGET};
    int64_t *ratio = NULL, n = 0, v;
    int has = 0, rc = ints(m, c, PREFIX "attention.compress_ratios", c->v[Q4X_Q4_L], &ratio, &n, err);
    if (rc < 0) return rc;
    if (!rc) TRY(layers_by_ratio(c, ratio, err));
    for (size_t i = 0; i < 3; i++) {
        char key[96];
        snprintf(key, sizeof key, PREFIX "%s", q4x_q4_keys[ids[i]].gguf);
        rc = q4x_kv_i64(m, key, &v, err);
        if (rc < 0) goto done;
        has += !rc;
    }
    rc = 0;
    c->has_idx = c->v[Q4X_Q4_RATIO] > 0;
    /* an indexer that no layer uses (too few layers) is a whole one, too */
    if (has != (c->has_idx || (ratio && has) ? 3 : 0))
        TRY(q4x_fail(
            err, Q4X_E_FORMAT,
            "%s: %d of attention.indexer.{head_count,key_length,top_k} are there and attention.compress_ratios "
            "%s: expected all of the indexer or none",
            c->where, has,
            c->has_idx ? "has a ratio"
            : ratio    ? "has none"
                       : "is missing"));
    if (c->has_idx)
        TRY(read_ints(m, c, Q4X_Q4_IH, Q4X_Q4_RATIO, err));
    else if (!has)
        TRY(layers_by_interval(m, c, err));
    TRY(apply_recurrent(m, c, has, err));
done:
    free(ratio);
    return rc;
}

/* The resolved hash arrays, into one. */
static int read_hash(const q4x_model *m, q4x_q4_cfg *c, int64_t P, q4x_err *err) {
    int64_t n = c->v[Q4X_Q4_NGRAM];
    const struct {
        const char *key;
        int64_t n;
    } parts[] = {
        {PREFIX "ple.layer_multipliers", n}, {PREFIX "ple.head_vocab_sizes", P}, {PREFIX "ple.head_offsets", P}};
    int64_t *to = c->hash = malloc((size_t)(n + 2 * P) * sizeof *to);
    if (!to) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for the hash constants", c->where);
    for (size_t i = 0; i < 3; i++) {
        int64_t *v = NULL, have;
        int rc = ints(m, c, parts[i].key, parts[i].n, &v, &have, err);
        if (rc) return rc == 1 ? absent(c, parts[i].key, err) : rc;
        memcpy(to, v, (size_t)parts[i].n * sizeof *to);
        to += parts[i].n;
        free(v);
    }
    return 0;
}

static int read_ple(const q4x_model *m, q4x_q4_cfg *c, q4x_err *err) {
    int64_t *layers = NULL, n = 0, pw = 0;
    int rc = ints(m, c, PREFIX "ple.layers", 0, &layers, &n, err);
    if (rc < 0) return rc;
    if (rc == 1 || !n) { /* exports of the prediction head alone omit all of these */
        free(layers);
        return 0;
    }
    int64_t layer = layers[0];
    free(layers);
    if (n != 1)
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: ple.layers has %lld entries, expected one: the file has one table",
                        c->where, (long long)n);
    TRY(in_range(c, "ple.layers[0]", layer, 0, c->v[Q4X_Q4_L] - 1, err));
    if (c->is_attn[layer])
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: ple.layers[0] is %lld, which is an attention layer", c->where,
                     (long long)layer));
    c->nple = 1;
    c->ple[0] = (int)layer;
    TRY(read_ints(m, c, Q4X_Q4_NGRAM, Q4X_Q4_KP, err));
    int64_t P = (c->v[Q4X_Q4_NGRAM] - 1) * c->v[Q4X_Q4_HPN];
    /* this key is the width of one row, not of all heads together */
    TRY(need_int(m, c, PREFIX "embedding_length_per_layer_input", 1, q4x_q4_keys[Q4X_Q4_PLEW].hi / P, &pw, err));
    c->v[Q4X_Q4_PLEW] = pw * P;
    TRY(need_int(m, c, PREFIX "ple.eos_token_id", 0, c->v[Q4X_Q4_V] - 1, &c->eos, err));
    TRY(read_hash(m, c, P, err));
done:
    return rc;
}

int q4x_q4_cfg_gguf(const q4x_model *m, q4x_q4_cfg *ret, q4x_err *err) {
    int rc;
    q4x_q4_cfg c = {.container = Q4X_GGUF, .renorm = 1};
    snprintf(c.where, sizeof c.where, "%s", q4x_tail(q4x_model_path(m)));
    TRY(read_sizes(m, &c, err));
    TRY(read_layers(m, &c, err));
    TRY(read_ple(m, &c, err));
    c.tied = !q4x_model_find(m, "output.weight");
    *ret = c;
    return 0;
done:
    q4x_q4_cfg_free(&c);
    return rc;
}
