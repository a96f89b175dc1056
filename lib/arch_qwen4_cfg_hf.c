/* Hyper-parameters of qwen4_exp from config.json: keys, defaults, types and ranges (sections 1.1 to 1.3, 1.6). A key
 * that is null counts as absent. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/arch_qwen4_int.h"

static const char *type_name(const json_t *j) {
    if (!j || json_is_null(j)) return "none";
    static const char *const names[] = {"an object",     "an array", "a string", "an integer",
                                        "a real number", "true",     "false",    "null"};
    return names[json_typeof(j)];
}

/* NULL when absent or null. */
static const json_t *get(const json_t *obj, const char *key) {
    const json_t *j = json_object_get(obj, key);
    return json_is_null(j) ? NULL : j;
}

static int wants(const q4x_q4_cfg *c, const char *key, const char *what, const json_t *j, q4x_err *err) {
    return q4x_fail(err, Q4X_E_FORMAT, "%s: %s: expected %s, found %s", c->where, key, what, type_name(j));
}

static int in_range(const q4x_q4_cfg *c, const char *key, const json_t *j, int64_t lo, int64_t hi, int64_t *ret,
                    q4x_err *err) {
    if (!json_is_integer(j)) return wants(c, key, "an integer", j, err);
    int64_t v = json_integer_value(j);
    if (v < lo || v > hi)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected %lld to %lld", c->where, key, (long long)v,
                        (long long)lo, (long long)hi);
    *ret = v;
    return 0;
}

static int read_int(q4x_q4_cfg *c, const json_t *text, q4x_q4_int id, q4x_err *err) {
    const q4x_q4_key *k = &q4x_q4_keys[id];
    const json_t *j = get(text, k->hf);
    if (!j && k->def >= 0) {
        c->v[id] = k->def;
        return 0;
    }
    return in_range(c, k->hf, j, k->lo, k->hi, &c->v[id], err);
}

static int read_bool(const q4x_q4_cfg *c, const json_t *obj, const char *key, int def, int *ret, q4x_err *err) {
    const json_t *j = get(obj, key);
    if (j && !json_is_boolean(j)) return wants(c, key, "true or false", j, err);
    *ret = j ? json_is_true(j) : def;
    return 0;
}

/* A finite number in lo .. hi. */
static int read_real(const q4x_q4_cfg *c, const json_t *j, const char *key, double lo, double hi, double *ret,
                     q4x_err *err) {
    if (!json_is_number(j)) return wants(c, key, "a number", j, err);
    double x = json_number_value(j);
    if (!(x >= lo && x <= hi))
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %g, expected %g to %g", c->where, key, x, lo, hi);
    *ret = x;
    return 0;
}

/* Activations and switches: one of the words that the forward knows. */
static int read_words(q4x_q4_cfg *c, const json_t *root, const json_t *text, q4x_err *err) {
    int rc, bias = 0;
    const json_t *act = get(text, "hidden_act"), *gate = get(text, "output_gate_type");
    if (act && !json_is_string(act)) TRY(wants(c, "hidden_act", "a string", act, err));
    if (gate && !json_is_string(gate)) TRY(wants(c, "output_gate_type", "a string", gate, err));
    if (act && strcmp(json_string_value(act), "silu"))
        TRY(q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: hidden_act is '%.40s', expected 'silu'", c->where,
                     json_string_value(act)));
    c->gate_silu = !gate || !*json_string_value(gate) || !strcmp(json_string_value(gate), "silu");
    if (!c->gate_silu && strcmp(json_string_value(gate), "sigmoid"))
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: output_gate_type is '%.40s', expected 'sigmoid' or 'silu'", c->where,
                     json_string_value(gate)));
    TRY(read_bool(c, text, "attention_bias", 0, &bias, err));
    if (bias) TRY(q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: attention_bias is true, expected false", c->where));
    TRY(read_bool(c, text, "norm_topk_prob", 1, &c->renorm, err));
    TRY(read_bool(c, get(text, "tie_word_embeddings") ? text : root, "tie_word_embeddings", 0, &c->tied, err));
done:
    return rc;
}

/* rope_parameters, or the same keys at the top as older files have them. */
static int read_rope(q4x_q4_cfg *c, const json_t *text, q4x_err *err) {
    int rc;
    const json_t *rope = get(text, "rope_parameters");
    if (rope && !json_is_object(rope)) TRY(wants(c, "rope_parameters", "an object", rope, err));
    const json_t *old = get(text, "rope_scaling");
    const json_t *type = get(rope, "rope_type");
    if (!type) type = get(json_is_object(old) ? old : NULL, "rope_type");
    if (!type) type = get(json_is_object(old) ? old : NULL, "type");
    const char *word = json_string_value(type);
    if (type && (!word || strcmp(word, "default")))
        TRY(q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: rope_parameters.rope_type is %s%.40s, expected 'default'", c->where,
                     word ? "" : "no string", word ? word : ""));
    const json_t *theta = get(rope, "rope_theta"), *part = get(rope, "partial_rotary_factor");
    if (!theta) theta = get(text, "rope_theta");
    if (!part) part = get(text, "partial_rotary_factor");
    TRY(read_real(c, theta, "rope_parameters.rope_theta", 1, 1e30, &c->theta, err));
    double factor = 1; /* the default is 1, not the released 0.25 */
    if (part) TRY(read_real(c, part, "rope_parameters.partial_rotary_factor", 0, 1, &factor, err));
    c->rot = (int64_t)((double)c->v[Q4X_Q4_HD] * factor);
done:
    return rc;
}

/* Every name under which vintages store the sparse layer. */
static int is_attn_name(const char *s) {
    static const char *const names[] = {"full_attention", "qwen_sparse_attention", "deepseek_sparse_attention",
                                        "hybrid_indexed", "indexed_attention"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(s, names[i])) return 1;
    return 0;
}

static int read_layers(q4x_q4_cfg *c, const json_t *text, q4x_err *err) {
    const json_t *types = get(text, "layer_types");
    int64_t L = c->v[Q4X_Q4_L], every = 4;
    if (!types) {
        const json_t *j = get(text, "full_attention_interval");
        int rc = j ? in_range(c, "full_attention_interval", j, 1, Q4X_Q4_MAXL, &every, err) : 0;
        for (int64_t i = 0; i < L; i++) c->is_attn[i] = (i + 1) % every == 0;
        return rc;
    }
    if (!json_is_array(types)) return wants(c, "layer_types", "an array", types, err);
    if ((int64_t)json_array_size(types) != L)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: layer_types has %zu entries, expected num_hidden_layers = %lld",
                        c->where, json_array_size(types), (long long)L);
    for (int64_t i = 0; i < L; i++) {
        const char *s = json_string_value(json_array_get(types, (size_t)i));
        if (!s) return wants(c, "layer_types", "strings", json_array_get(types, (size_t)i), err);
        c->is_attn[i] = is_attn_name(s);
        if (!c->is_attn[i] && strcmp(s, "linear_attention"))
            return q4x_fail(err, Q4X_E_FORMAT,
                            "%s: layer_types[%lld] is '%.40s', expected linear_attention or full_attention", c->where,
                            (long long)i, s);
    }
    return 0;
}

/* The five keys of the indexer: all or none. */
static int read_indexer(q4x_q4_cfg *c, const json_t *text, q4x_err *err) {
    static const q4x_q4_int ids[] = {Q4X_Q4_IH, Q4X_Q4_IKV, Q4X_Q4_ID, Q4X_Q4_BUDGET, Q4X_Q4_RATIO};
    const char *some = NULL, *lacks = NULL;
    for (size_t i = 0; i < 5; i++) {
        if (get(text, q4x_q4_keys[ids[i]].hf))
            some = q4x_q4_keys[ids[i]].hf;
        else
            lacks = q4x_q4_keys[ids[i]].hf;
    }
    if (some && lacks)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is there but %s is not: expected all five indexer keys or none",
                        c->where, some, lacks);
    for (size_t i = 0; some && i < 5; i++) {
        int rc = read_int(c, text, ids[i], err);
        if (rc) return rc;
    }
    c->has_idx = some != NULL;
    return 0;
}

/* The n-gram context is cut at eos, the first of a list. */
static int read_eos(q4x_q4_cfg *c, const json_t *text, q4x_err *err) {
    const json_t *j = get(text, "eos_token_id");
    if (json_is_array(j)) {
        if (!json_array_size(j))
            return q4x_fail(err, Q4X_E_FORMAT, "%s: eos_token_id is an empty list, expected an id", c->where);
        for (size_t i = 1; i < json_array_size(j); i++) {
            int64_t id;
            int rc = in_range(c, "eos_token_id", json_array_get(j, i), 0, c->v[Q4X_Q4_V] - 1, &id, err);
            if (rc) return rc;
        }
        j = json_array_get(j, 0);
    }
    return in_range(c, "eos_token_id", j, 0, c->v[Q4X_Q4_V] - 1, &c->eos, err);
}

/* ple_layer_ids are 1-based; doubles count once, order does not matter. */
static int read_ple_layers(q4x_q4_cfg *c, const json_t *text, q4x_err *err) {
    const json_t *ids = get(text, "ple_layer_ids");
    char has[Q4X_Q4_MAXL] = {0};
    if (ids && !json_is_array(ids)) return wants(c, "ple_layer_ids", "an array", ids, err);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int64_t id = 1;
        int rc = in_range(c, "ple_layer_ids", json_array_get(ids, i), 1, c->v[Q4X_Q4_L], &id, err);
        if (rc) return rc;
        has[id - 1] = 1;
    }
    for (int i = 0; i < (int)c->v[Q4X_Q4_L]; i++) {
        if (!has[i]) continue;
        if (c->nple == Q4X_Q4_MAXPLE)
            return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: ple_layer_ids names more than %d layers", c->where,
                            Q4X_Q4_MAXPLE);
        c->ple[c->nple++] = i;
    }
    return 0;
}

static int read_ple(q4x_q4_cfg *c, const json_t *text, q4x_err *err) {
    int rc = read_ple_layers(c, text, err);
    if (rc || !c->nple) return rc;
    for (q4x_q4_int id = Q4X_Q4_NGRAM; id < Q4X_Q4_NINT; id++) {
        if (id == Q4X_Q4_PLEW && !get(text, "ple_embed_dim"))
            c->v[id] = c->v[Q4X_Q4_D];
        else if (id == Q4X_Q4_SEED && !get(text, "seed"))
            c->v[id] = q4x_q4_keys[id].def;
        else
            rc = read_int(c, text, id, err);
        if (rc) return rc;
    }
    return read_eos(c, text, err);
}

/* Ids that the forward does not use, yet another reader of this file would. */
static int check_ids(const q4x_q4_cfg *c, const json_t *text, q4x_err *err) {
    static const char *const keys[] = {"bos_token_id", "pad_token_id"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *j = get(text, keys[i]);
        int64_t id;
        int rc = j ? in_range(c, keys[i], j, -1, c->v[Q4X_Q4_V] - 1, &id, err) : 0;
        if (rc) return rc;
    }
    return 0;
}

int q4x_q4_cfg_hf(const json_t *root, const json_t *text, const char *where, q4x_q4_cfg *ret, q4x_err *err) {
    int rc;
    q4x_q4_cfg c = {.container = Q4X_HF};
    snprintf(c.where, sizeof c.where, "%s", where);
    if (!json_is_object(text)) TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: expected a JSON object", c.where));
    for (q4x_q4_int id = Q4X_Q4_D; id <= Q4X_Q4_R; id++) TRY(read_int(&c, text, id, err));
    TRY(read_words(&c, root, text, err));
    c.eps = 1e-6;
    const json_t *eps = get(text, "rms_norm_eps");
    if (eps) TRY(read_real(&c, eps, "rms_norm_eps", 0, 1, &c.eps, err));
    TRY(read_rope(&c, text, err));
    TRY(read_layers(&c, text, err));
    TRY(read_indexer(&c, text, err));
    TRY(read_ple(&c, text, err));
    TRY(check_ids(&c, text, err));
    *ret = c;
done:
    return rc;
}
