/* arch_cfg_gguf.c: hyper-parameters from GGUF keys that architectures share (sections 1.1, 1.2.7, 9.1, 9.5, 10). GGUF
 * has no defaults but the interval of full attention; what the format does not store is fixed by the architecture. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/arch_cfg.h"

typedef struct {
    char s[96];
} full_key;

static full_key full(const q4x_cfg *c, const char *key) {
    full_key k;
    snprintf(k.s, sizeof k.s, "%s.%s", q4x_archs[c->t->id].gguf, key);
    return k;
}

static int absent(const q4x_cfg *c, const char *key, q4x_err *err) {
    return q4x_fail(err, Q4X_E_FORMAT, "%s: key %s is missing", c->where, key);
}

int q4x_cfg_absent(const q4x_cfg *c, const char *key, q4x_err *err) {
    return absent(c, full(c, key).s, err);
}

/* The key as the file has it. 1: absent. */
static int integer(const q4x_cfg *c, const q4x_model *m, const char *key, int64_t lo, int64_t hi, int64_t *ret,
                   q4x_err *err) {
    int64_t v;
    int rc = q4x_kv_i64(m, key, &v, err);
    if (!rc) rc = q4x_cfg_in_range(c, key, v, lo, hi, err);
    if (!rc) *ret = v;
    return rc;
}

int q4x_cfg_optional(q4x_cfg *c, const q4x_model *m, const char *name, const char *key, int64_t lo, int64_t hi,
                     int64_t *ret, q4x_err *err) {
    int rc = integer(c, m, full(c, key).s, lo, hi, ret, err);
    if (!rc && name) q4x_cfg_file(c, q4x_say_int(name, *ret), key);
    return rc;
}

int q4x_cfg_need(q4x_cfg *c, const q4x_model *m, const char *name, const char *key, int64_t lo, int64_t hi,
                 int64_t *ret, q4x_err *err) {
    int rc = q4x_cfg_optional(c, m, name, key, lo, hi, ret, err);
    return rc == 1 ? q4x_cfg_absent(c, key, err) : rc;
}

static int need_real(q4x_cfg *c, const q4x_model *m, const char *name, const char *key, double lo, double hi,
                     double *ret, q4x_err *err) {
    full_key k = full(c, key);
    double v;
    int rc = q4x_kv_f64(m, k.s, &v, err);
    if (rc) return rc == 1 ? absent(c, k.s, err) : rc;
    if (!(v >= lo && v <= hi))
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %g, expected %g to %g", c->where, k.s, v, lo, hi);
    *ret = v;
    q4x_cfg_file(c, q4x_say_real(name, v), key);
    return 0;
}

int q4x_cfg_list(q4x_cfg *c, const q4x_model *m, const char *name, const char *key, int64_t n, int64_t **ret,
                 int64_t *ret_n, q4x_err *err) {
    full_key k = full(c, key);
    int64_t *v = NULL, have = 0;
    int rc = q4x_kv_ints(m, k.s, &v, &have, err);
    if (rc) return rc;
    if (have < n) {
        free(v);
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s has %lld elements, expected at least %lld", c->where, k.s,
                        (long long)have, (long long)n);
    }
    *ret = v;
    *ret_n = have;
    q4x_cfg_file(c, q4x_say_ints(name, v, have), key);
    return 0;
}

int q4x_cfg_keys(q4x_cfg *c, const q4x_model *m, int from, int to, q4x_err *err) {
    for (int id = from; id <= to; id++) {
        const q4x_key *k = &c->t->key[id];
        if (!k->gguf[0] || k->gguf[0] == '-') continue;
        int rc = q4x_cfg_need(c, m, k->name, k->gguf, k->lo, k->hi, &c->v[id], err);
        if (rc) return rc;
    }
    return 0;
}

/* The vocabulary is as long as the token list; files without a tokenizer say vocab_size or nothing. */
static int read_vocab(q4x_cfg *c, const q4x_model *m, q4x_err *err) {
    int64_t V, tokens;
    const q4x_tensor *t = q4x_model_find(m, "token_embd.weight");
    full_key k = full(c, "vocab_size");
    int rc = q4x_kv_i64(m, k.s, &V, err);
    if (rc < 0) return rc;
    int has_tokens = q4x_kv_strs_count(m, "tokenizer.ggml.tokens", &tokens, err);
    if (has_tokens < 0) return has_tokens;
    if (!has_tokens && !rc && tokens != V)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, but tokenizer.ggml.tokens has %lld", c->where, k.s,
                        (long long)V, (long long)tokens);
    if (!rc) q4x_cfg_file(c, q4x_say_int(has_tokens ? "vocabulary" : "vocabulary_stated", V), "vocab_size");
    if (!has_tokens) {
        V = tokens;
        q4x_cfg_file_at(c, q4x_say_int("vocabulary", V), "tokenizer.ggml.tokens");
    } else if (rc) {
        if (!t) return absent(c, "tokenizer.ggml.tokens", err);
        V = t->ne[1];
        q4x_cfg_derived(c, q4x_say_int("vocabulary", V), "rows of token_embd.weight");
    }
    c->v[Q4X_KEY_V] = V;
    return q4x_cfg_in_range(c, "vocabulary size", V, 2, Q4X_MAXV, err);
}

/* Tokenizer keys that index the vocabulary. */
static int check_tokenizer(const q4x_cfg *c, const q4x_model *m, q4x_err *err) {
    static const char *const ids[] = {"bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask"};
    int64_t *types = NULL, n = 0, id, V = c->v[Q4X_KEY_V];
    char key[64];
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ids[i]);
        int rc = integer(c, m, key, 0, V - 1, &id, err);
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

/* Widths that the format states twice or as a product. */
static int read_widths(q4x_cfg *c, const q4x_model *m, q4x_err *err) {
    int64_t *v = c->v, value_length, inner, widest = c->t->key[Q4X_KEY_DV].hi;
    int rc;
    TRY(q4x_cfg_need(c, m, "value_width", "attention.value_length", 1, 4096, &value_length, err));
    if (value_length != v[Q4X_KEY_HD])
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: attention.value_length is %lld, expected attention.key_length = %lld",
                     c->where, (long long)value_length, (long long)v[Q4X_KEY_HD]));
    TRY(q4x_cfg_need(c, m, "gdn_inner", "ssm.inner_size", 1, 1 << 20, &inner, err));
    if (inner % v[Q4X_KEY_NV] || inner / v[Q4X_KEY_NV] > widest)
        TRY(q4x_fail(err, Q4X_E_FORMAT,
                     "%s: ssm.inner_size is %lld, expected ssm.time_step_rank = %lld times a head width up to %lld",
                     c->where, (long long)inner, (long long)v[Q4X_KEY_NV], (long long)widest));
    v[Q4X_KEY_DV] = inner / v[Q4X_KEY_NV];
    q4x_cfg_derived(c, q4x_say_int("gdn_value_width", v[Q4X_KEY_DV]), "gdn_inner / gdn_value_heads");
done:
    return rc;
}

static int read_rope(q4x_cfg *c, const q4x_model *m, q4x_err *err) {
    const char *scaling;
    size_t len;
    int rc;
    TRY(need_real(c, m, "rope_theta", "rope.freq_base", 1, 1e30, &c->theta, err));
    TRY(q4x_cfg_need(c, m, "rotated", "rope.dimension_count", 1, 4096, &c->rot, err));
    rc = q4x_kv_str(m, full(c, "rope.scaling.type").s, &scaling, &len, err);
    if (rc < 0) return rc;
    if (!rc && (len != 4 || memcmp(scaling, "none", 4)))
        TRY(q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: rope.scaling.type is '%.*s', expected 'none'", c->where,
                     (int)(len < 40 ? len : 40), scaling));
    if (rc)
        q4x_cfg_default(c, q4x_say_text("rope_scaling", "none"), "rope.scaling.type", "no other is run");
    else
        q4x_cfg_file(c, q4x_say_text("rope_scaling", "none"), "rope.scaling.type");
    rc = 0;
done:
    return rc;
}

/* block_count counts the blocks behind the trunk, too. */
static int read_behind(q4x_cfg *c, const q4x_model *m, q4x_err *err) {
    static const char key[] = "nextn_predict_layers";
    int rc = q4x_cfg_optional(c, m, "prediction_layers", key, 0, c->v[Q4X_KEY_L] - 1, &c->nmtp, err);
    if (rc < 0) return rc;
    if (rc) q4x_cfg_default(c, q4x_say_int("prediction_layers", 0), key, "no head was exported");
    c->v[Q4X_KEY_L] -= c->nmtp;
    q4x_setting s = q4x_say_int("layers", c->v[Q4X_KEY_L]);
    q4x_cfg_file(c, s, "block_count");
    if (c->nmtp) {
        q4x_cfg_file(c, q4x_say_int("blocks", c->v[Q4X_KEY_L] + c->nmtp), "block_count");
        q4x_cfg_derived(c, s, "blocks - prediction_layers");
    }
    return 0;
}

int q4x_cfg_gguf(q4x_cfg *c, const q4x_model *m, q4x_err *err) {
    int rc;
    TRY(q4x_cfg_keys(c, m, 0, Q4X_KEY_COMMON - 1, err));
    TRY(read_behind(c, m, err));
    TRY(read_widths(c, m, err));
    TRY(read_vocab(c, m, err));
    TRY(check_tokenizer(c, m, err));
    TRY(need_real(c, m, "epsilon", "attention.layer_norm_rms_epsilon", 0, 1, &c->eps, err));
    TRY(read_rope(c, m, err));
    c->gate_silu = c->t->gate_silu;
    q4x_cfg_fixed(c, q4x_say_bool("gdn_gate_silu", c->gate_silu), "GGUF has no key for it");
    q4x_cfg_fixed(c, q4x_say_text("activation", "silu"), "GGUF has no key for it");
    c->tied = !q4x_model_find(m, "output.weight");
    q4x_cfg_derived(c, q4x_say_bool("tied_head", c->tied),
                    c->tied ? "there is no output.weight" : "output.weight is there");
done:
    return rc;
}

int q4x_cfg_interval(q4x_cfg *c, const q4x_model *m, q4x_err *err) {
    static const char key[] = "full_attention_interval";
    int64_t every = 4;
    int rc = q4x_cfg_optional(c, m, "attention_interval", key, 1, Q4X_MAXL, &every, err);
    if (rc < 0) return rc;
    if (rc) q4x_cfg_default(c, q4x_say_int("attention_interval", every), key, "the format's own");
    for (int64_t i = 0; i < c->v[Q4X_KEY_L]; i++) c->is_attn[i] = (i + 1) % every == 0;
    q4x_cfg_kinds(c, Q4X_FROM_DERIVED, "", "one layer of attention_interval attends");
    return 0;
}

int q4x_cfg_recurrent(q4x_cfg *c, const q4x_model *m, const char *known, q4x_err *err) {
    int64_t *rec = NULL, n = 0;
    int rc = q4x_cfg_list(c, m, "recurrent_layers", "attention.recurrent_layers", c->v[Q4X_KEY_L], &rec, &n, err);
    if (rc) return rc < 0 ? rc : 0;
    for (int64_t i = 0; i < c->v[Q4X_KEY_L] && !rc; i++) {
        if (known && c->is_attn[i] != !rec[i])
            rc = q4x_fail(err, Q4X_E_FORMAT, "%s: attention.recurrent_layers[%lld] is %lld, which %s denies", c->where,
                          (long long)i, (long long)rec[i], known);
        c->is_attn[i] = !rec[i];
    }
    free(rec);
    if (!rc) q4x_cfg_kinds(c, Q4X_FROM_DERIVED, "", "recurrent_layers");
    return rc;
}
