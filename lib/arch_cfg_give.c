/* arch_cfg_give.c: hyper-parameters of a checkpoint as the keys of a GGUF file (sections 1.1, 9.1, 10). */
#include <stdio.h>

#include "lib/arch_cfg.h"

typedef struct {
    char s[96];
} full_key;

static full_key full(const q4x_cfg *c, const char *key) {
    full_key k;
    snprintf(k.s, sizeof k.s, "%s.%s", q4x_archs[c->t->id].gguf, key);
    return k;
}

/* Every hyper-parameter is held below 2^31 where it is read. */
int q4x_give_int(const q4x_cfg *c, q4x_gguf_out *o, const char *key, int64_t v, q4x_err *err) {
    return q4x_gguf_out_u32(o, full(c, key).s, (uint32_t)v, err);
}

int q4x_give_ints(const q4x_cfg *c, q4x_gguf_out *o, const char *key, const int32_t *v, size_t n, q4x_err *err) {
    return q4x_gguf_out_i32s(o, full(c, key).s, v, n, err);
}

int q4x_give_u64s(const q4x_cfg *c, q4x_gguf_out *o, const char *key, const int64_t *v, size_t n, q4x_err *err) {
    return q4x_gguf_out_u64s(o, full(c, key).s, (const uint64_t *)v, n, err);
}

int q4x_give_keys(const q4x_cfg *c, q4x_gguf_out *o, int from, int to, q4x_err *err) {
    int rc = 0;
    for (int id = from; !rc && id <= to; id++) {
        const q4x_key *k = &c->t->key[id];
        if (k->gguf[0] && k->gguf[0] != '-') rc = q4x_give_int(c, o, k->gguf, c->v[id], err);
    }
    return rc;
}

/* Rotated pairs that each axis of a position takes: on text they decide nothing, but llama.cpp demands the key. */
static int give_sections(const q4x_cfg *c, const json_t *text, q4x_gguf_out *o, q4x_err *err) {
    const json_t *given = q4x_cfg_get(q4x_cfg_get(text, "rope_parameters"), "mrope_section");
    const int32_t pairs = (int32_t)(c->rot / 2), third = pairs / 3;
    int32_t v[4] = {pairs - 2 * third, third, third, 0};
    if (pairs == 32) v[0] = v[1] = 11, v[2] = 10; /* the configuration's default */
    if (given && (!json_is_array(given) || json_array_size(given) > 4))
        return q4x_cfg_wants(c, "rope_parameters.mrope_section", "an array of up to four integers", given, err);
    for (size_t i = 0; given && i < 4; i++) {
        int64_t n = 0;
        const json_t *j = json_array_get(given, i);
        int rc = j ? q4x_cfg_integer(c, "rope_parameters.mrope_section", j, 0, 4096, &n, err) : 0;
        if (rc) return rc;
        v[i] = (int32_t)n;
    }
    return q4x_give_ints(c, o, "rope.dimension_sections", v, 4, err);
}

/* Layers that attend: one in so many, or else each by itself. */
static int give_layers(const q4x_cfg *c, q4x_gguf_out *o, q4x_err *err) {
    uint8_t recurrent[Q4X_MAXL];
    const int64_t L = c->v[Q4X_KEY_L];
    int64_t every = 1;
    int regular = 1;
    while (every <= L && !c->is_attn[every - 1]) every++;
    for (int64_t i = 0; i < L; i++) {
        recurrent[i] = !c->is_attn[i];
        regular &= c->is_attn[i] == ((i + 1) % every == 0);
    }
    if (regular && every <= L) return q4x_give_int(c, o, "full_attention_interval", every, err);
    return q4x_gguf_out_bools(o, full(c, "attention.recurrent_layers").s, recurrent, (size_t)L, err);
}

int q4x_give_common(const q4x_cfg *c, const json_t *text, q4x_gguf_out *o, q4x_err *err) {
    const int64_t *v = c->v;
    int rc;
    if (c->gate_silu != c->t->gate_silu)
        TRY(q4x_fail(err, Q4X_E_UNSUPPORTED,
                     "%s: output_gate_type is '%s', which a GGUF file of %s cannot say: its readers take '%s'",
                     c->where, c->gate_silu ? "silu" : "sigmoid", q4x_archs[c->t->id].gguf,
                     c->gate_silu ? "sigmoid" : "silu"));
    TRY(q4x_give_keys(c, o, 0, Q4X_KEY_COMMON - 1, err));
    TRY(q4x_give_int(c, o, "vocab_size", v[Q4X_KEY_V], err));
    TRY(q4x_give_int(c, o, "attention.value_length", v[Q4X_KEY_HD], err));
    TRY(q4x_give_int(c, o, "ssm.inner_size", v[Q4X_KEY_NV] * v[Q4X_KEY_DV], err));
    TRY(q4x_gguf_out_f32(o, full(c, "attention.layer_norm_rms_epsilon").s, (float)c->eps, err));
    TRY(q4x_gguf_out_f32(o, full(c, "rope.freq_base").s, (float)c->theta, err));
    TRY(q4x_give_int(c, o, "rope.dimension_count", c->rot, err));
    TRY(give_sections(c, text, o, err));
    TRY(give_layers(c, o, err));
done:
    return rc;
}
