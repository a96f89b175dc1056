/* arch_cfg_hf.c: hyper-parameters from config.json: keys, defaults, types and ranges that architectures share (sections
 * 1.1 to 1.3, 1.6 and 10). */
#include <string.h>

#include "lib/arch_cfg.h"
#include "lib/names.h"

/* Why a default is what it is. */
static const char OF_CLASS[] = "of the configuration's class";

static const char *type_name(const json_t *j) {
    if (!j || json_is_null(j)) return "none";
    static const char *const names[] = {"an object",     "an array", "a string", "an integer",
                                        "a real number", "true",     "false",    "null"};
    return names[json_typeof(j)];
}

const json_t *q4x_cfg_get(const json_t *obj, const char *key) {
    const json_t *j = json_object_get(obj, key);
    return json_is_null(j) ? NULL : j;
}

int q4x_cfg_wants(const q4x_cfg *c, const char *key, const char *what, const json_t *j, q4x_err *err) {
    return q4x_fail(err, Q4X_E_FORMAT, "%s: %s: expected %s, found %s", c->where, key, what, type_name(j));
}

int q4x_cfg_integer(const q4x_cfg *c, const char *key, const json_t *j, int64_t lo, int64_t hi, int64_t *ret,
                    q4x_err *err) {
    if (!json_is_integer(j)) return q4x_cfg_wants(c, key, "an integer", j, err);
    int rc = q4x_cfg_in_range(c, key, json_integer_value(j), lo, hi, err);
    if (!rc) *ret = json_integer_value(j);
    return rc;
}

int q4x_cfg_key(q4x_cfg *c, const json_t *text, int id, q4x_err *err) {
    const q4x_key *k = &c->t->key[id];
    const json_t *j = q4x_cfg_get(text, k->hf);
    if (!j && k->def >= 0) {
        c->v[id] = k->def;
        q4x_cfg_default(c, q4x_say_int(k->name, k->def), k->hf, OF_CLASS);
        return 0;
    }
    int rc = q4x_cfg_integer(c, k->hf, j, k->lo, k->hi, &c->v[id], err);
    if (!rc) q4x_cfg_file(c, q4x_say_int(k->name, c->v[id]), k->hf);
    return rc;
}

int q4x_cfg_bool(q4x_cfg *c, const json_t *text, const char *name, const char *key, int def, const char *why, int *ret,
                 q4x_err *err) {
    const json_t *j = q4x_cfg_get(text, key);
    if (j && !json_is_boolean(j)) return q4x_cfg_wants(c, key, "true or false", j, err);
    *ret = j ? json_is_true(j) : def;
    if (j)
        q4x_cfg_file(c, q4x_say_bool(name, *ret), key);
    else
        q4x_cfg_default(c, q4x_say_bool(name, *ret), key, why);
    return 0;
}

/* A finite number in lo .. hi. */
static int read_real(q4x_cfg *c, const json_t *j, const char *name, const char *key, double lo, double hi, double *ret,
                     q4x_err *err) {
    if (!json_is_number(j)) return q4x_cfg_wants(c, key, "a number", j, err);
    double x = json_number_value(j);
    if (!(x >= lo && x <= hi))
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %g, expected %g to %g", c->where, key, x, lo, hi);
    *ret = x;
    q4x_cfg_file(c, q4x_say_real(name, x), key);
    return 0;
}

/* Whether the head is the embedding: in the text part or, in files that have one, beside it. */
static int read_tied(q4x_cfg *c, const json_t *root, const json_t *text, q4x_err *err) {
    static const char key[] = "tie_word_embeddings", name[] = "tied_head";
    int own = q4x_cfg_get(text, key) != NULL;
    int rc = q4x_cfg_bool(c, own ? text : root, name, key, 0, OF_CLASS, &c->tied, err);
    if (!rc && !own && q4x_cfg_get(root, key)) q4x_cfg_file_at(c, q4x_say_bool(name, c->tied), key);
    return rc;
}

static void note_words(q4x_cfg *c, const json_t *act, const json_t *gate) {
    q4x_setting s = q4x_say_bool("gdn_gate_silu", c->gate_silu), silu = q4x_say_text("activation", "silu");
    if (act)
        q4x_cfg_file(c, silu, "hidden_act");
    else
        q4x_cfg_default(c, silu, "hidden_act", OF_CLASS);
    if (gate)
        q4x_cfg_file(c, s, "output_gate_type");
    else
        q4x_cfg_default(c, s, "output_gate_type", "as activation");
}

/* Activations and switches: one of the words that the forward knows. */
static int read_words(q4x_cfg *c, const json_t *root, const json_t *text, q4x_err *err) {
    int rc, bias = 0;
    const json_t *act = q4x_cfg_get(text, "hidden_act"), *gate = q4x_cfg_get(text, "output_gate_type");
    if (act && !json_is_string(act)) TRY(q4x_cfg_wants(c, "hidden_act", "a string", act, err));
    if (gate && !json_is_string(gate)) TRY(q4x_cfg_wants(c, "output_gate_type", "a string", gate, err));
    if (act && strcmp(json_string_value(act), "silu"))
        TRY(q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: hidden_act is '%.40s', expected 'silu'", c->where,
                     json_string_value(act)));
    c->gate_silu = !gate || !*json_string_value(gate) || !strcmp(json_string_value(gate), "silu");
    if (!c->gate_silu && strcmp(json_string_value(gate), "sigmoid"))
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: output_gate_type is '%.40s', expected 'sigmoid' or 'silu'", c->where,
                     json_string_value(gate)));
    note_words(c, act, gate);
    TRY(q4x_cfg_bool(c, text, "attention_bias", "attention_bias", 0, OF_CLASS, &bias, err));
    if (bias) TRY(q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: attention_bias is true, expected false", c->where));
    TRY(read_tied(c, root, text, err));
done:
    return rc;
}

/* Rotated pairs a position axis takes. Text has the same position on all axes, so they decide nothing; what is no list
 * of counts is refused all the same. */
static int check_sections(q4x_cfg *c, const json_t *rope, q4x_err *err) {
    static const char key[] = "rope_parameters.mrope_section";
    const json_t *list = q4x_cfg_get(rope, "mrope_section");
    int64_t n[16] = {0};
    int rc = 0;
    if (list && (!json_is_array(list) || json_array_size(list) < 3))
        return q4x_cfg_wants(c, key, "an array of at least three", list, err);
    const size_t many = json_array_size(list);
    for (size_t i = 0; i < many && !rc; i++)
        rc = q4x_cfg_integer(c, key, json_array_get(list, i), 0, 4096, &n[i < 16 ? i : 15], err);
    if (list && !rc) q4x_cfg_file(c, q4x_say_ints("rope_sections", n, many < 16 ? (int64_t)many : 16), key);
    return rc;
}

/* A key of rope_parameters, or of the top where older files have it. *path is the place that it was looked for last. */
static const json_t *rope_key(const json_t *rope, const json_t *text, const char *key, const char **path) {
    const json_t *j = q4x_cfg_get(rope, key);
    if (j || !q4x_cfg_get(text, key)) return j;
    *path = key;
    return q4x_cfg_get(text, key);
}

/* The only type that is run, whatever name older files give the object. */
static int read_rope_type(q4x_cfg *c, const json_t *rope, const json_t *text, q4x_err *err) {
    static const struct {
        const char *object, *key, *path;
    } at[] = {{"rope_parameters", "rope_type", "rope_parameters.rope_type"},
              {"rope_scaling", "rope_type", "rope_scaling.rope_type"},
              {"rope_scaling", "type", "rope_scaling.type"}};
    const json_t *type = NULL;
    size_t i;
    for (i = 0; i < 3; i++) {
        const json_t *o = i ? q4x_cfg_get(text, at[i].object) : rope;
        type = q4x_cfg_get(json_is_object(o) ? o : NULL, at[i].key);
        if (type) break;
    }
    const char *word = json_string_value(type);
    if (type && (!word || strcmp(word, "default")))
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: rope_parameters.rope_type is %s%.40s, expected 'default'",
                        c->where, word ? "" : "no string", word ? word : "");
    if (type)
        q4x_cfg_file(c, q4x_say_text("rope_scaling", "none"), at[i].path);
    else
        q4x_cfg_default(c, q4x_say_text("rope_scaling", "none"), at[0].path, "no other is run");
    return 0;
}

static int read_rope(q4x_cfg *c, const json_t *text, q4x_err *err) {
    const char *at_theta = "rope_parameters.rope_theta", *at_part = "rope_parameters.partial_rotary_factor";
    int rc;
    const json_t *rope = q4x_cfg_get(text, "rope_parameters");
    if (rope && !json_is_object(rope)) TRY(q4x_cfg_wants(c, "rope_parameters", "an object", rope, err));
    TRY(read_rope_type(c, rope, text, err));
    const json_t *theta = rope_key(rope, text, "rope_theta", &at_theta);
    const json_t *part = rope_key(rope, text, "partial_rotary_factor", &at_part);
    TRY(read_real(c, theta, "rope_theta", at_theta, 1, 1e30, &c->theta, err));
    double factor = c->t->rotary;
    if (part)
        TRY(read_real(c, part, "rotary_factor", at_part, 0, 1, &factor, err));
    else
        q4x_cfg_default(c, q4x_say_real("rotary_factor", factor), at_part, OF_CLASS);
    c->rot = (int64_t)((double)c->v[Q4X_KEY_HD] * factor);
    q4x_cfg_derived(c, q4x_say_int("rotated", c->rot), "head_width x rotary_factor");
    TRY(check_sections(c, rope, err));
done:
    return rc;
}

static int read_layers(q4x_cfg *c, const json_t *text, q4x_err *err) {
    const json_t *types = q4x_cfg_get(text, "layer_types");
    int64_t L = c->v[Q4X_KEY_L], every = 4;
    if (!types) {
        static const char key[] = "full_attention_interval";
        const json_t *j = q4x_cfg_get(text, key);
        int rc = j ? q4x_cfg_integer(c, key, j, 1, Q4X_MAXL, &every, err) : 0;
        for (int64_t i = 0; i < L; i++) c->is_attn[i] = (i + 1) % every == 0;
        if (j)
            q4x_cfg_file(c, q4x_say_int("attention_interval", every), key);
        else
            q4x_cfg_default(c, q4x_say_int("attention_interval", every), key, OF_CLASS);
        q4x_cfg_kinds(c, Q4X_FROM_DERIVED, "", "one layer of attention_interval attends");
        return rc;
    }
    if (!json_is_array(types)) return q4x_cfg_wants(c, "layer_types", "an array", types, err);
    if ((int64_t)json_array_size(types) != L)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: layer_types has %zu entries, expected num_hidden_layers = %lld",
                        c->where, json_array_size(types), (long long)L);
    for (int64_t i = 0; i < L; i++) {
        const char *s = json_string_value(json_array_get(types, (size_t)i));
        if (!s) return q4x_cfg_wants(c, "layer_types", "strings", json_array_get(types, (size_t)i), err);
        c->is_attn[i] = q4x_word_in(c->t->attn_types, s);
        if (!c->is_attn[i] && strcmp(s, "linear_attention"))
            return q4x_fail(err, Q4X_E_FORMAT,
                            "%s: layer_types[%lld] is '%.40s', expected linear_attention or full_attention", c->where,
                            (long long)i, s);
    }
    q4x_cfg_kinds(c, Q4X_FROM_FILE, "layer_types", "");
    return 0;
}

/* Ids that the forward does not use, yet another reader of this file would. */
static int check_ids(q4x_cfg *c, const json_t *text, q4x_err *err) {
    static const char *const keys[] = {"bos_token_id", "pad_token_id"}, *const names[] = {"bos", "pad"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *j = q4x_cfg_get(text, keys[i]);
        int64_t id;
        int rc = j ? q4x_cfg_integer(c, keys[i], j, -1, c->v[Q4X_KEY_V] - 1, &id, err) : 0;
        if (rc) return rc;
        if (j) q4x_cfg_file(c, q4x_say_int(names[i], id), keys[i]);
    }
    return 0;
}

int q4x_cfg_hf(q4x_cfg *c, const json_t *root, const json_t *text, q4x_err *err) {
    int rc;
    if (!json_is_object(text)) TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: expected a JSON object", c->where));
    c->nested = text != root;
    for (int id = 0; id < Q4X_KEY_COMMON; id++) TRY(q4x_cfg_key(c, text, id, err));
    TRY(read_words(c, root, text, err));
    c->eps = 1e-6;
    const json_t *eps = q4x_cfg_get(text, "rms_norm_eps");
    if (eps)
        TRY(read_real(c, eps, "epsilon", "rms_norm_eps", 0, 1, &c->eps, err));
    else
        q4x_cfg_default(c, q4x_say_real("epsilon", c->eps), "rms_norm_eps", OF_CLASS);
    TRY(read_rope(c, text, err));
    TRY(read_layers(c, text, err));
    TRY(check_ids(c, text, err));
done:
    return rc;
}
