/* arch_cfg.c: hyper-parameters that all architectures have, whatever the container. Rules: sections 1.2 and 1.4 of the
 * specification. */
#include "lib/arch_cfg.h"

#include <stdio.h>

const char *q4x_key_name(const q4x_cfg *c, int id) {
    const q4x_key *k = &c->t->key[id];
    if (c->container == Q4X_HF) return k->hf;
    return k->gguf[0] == '-' ? k->gguf + 1 : k->gguf;
}

int q4x_cfg_in_range(const q4x_cfg *c, const char *key, int64_t v, int64_t lo, int64_t hi, q4x_err *err) {
    if (v >= lo && v <= hi) return 0;
    return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected %lld to %lld", c->where, key, (long long)v,
                    (long long)lo, (long long)hi);
}

int q4x_cfg_divides(const q4x_cfg *c, int a, int b, q4x_err *err) {
    if (c->v[a] % c->v[b] == 0) return 0;
    return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected a multiple of %s = %lld", c->where, q4x_key_name(c, a),
                    (long long)c->v[a], q4x_key_name(c, b), (long long)c->v[b]);
}

static int check_rot(const q4x_cfg *c, q4x_err *err) {
    const char *what = c->container == Q4X_HF ? "head_dim * partial_rotary_factor" : "rope.dimension_count";
    if (c->rot >= 2 && c->rot % 2 == 0 && c->rot <= c->v[Q4X_KEY_HD]) return 0;
    return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected an even number from 2 to %s = %lld", c->where, what,
                    (long long)c->rot, q4x_key_name(c, Q4X_KEY_HD), (long long)c->v[Q4X_KEY_HD]);
}

/* ---- where values come from ---- */

static void note(q4x_cfg *c, q4x_setting s, q4x_from from, const char *before, const char *key, const char *why) {
    s.from = from;
    s.why = why;
    if (*key) snprintf(s.key, sizeof s.key, "%s%s%s", before, *before ? "." : "", key);
    q4x_settings_note(&c->said, &s);
}

static const char *before_keys(const q4x_cfg *c) {
    if (c->container == Q4X_GGUF) return q4x_archs[c->t->id].gguf;
    return c->nested ? "text_config" : "";
}

void q4x_cfg_file(q4x_cfg *c, q4x_setting s, const char *key) {
    note(c, s, Q4X_FROM_FILE, before_keys(c), key, "");
}

void q4x_cfg_file_at(q4x_cfg *c, q4x_setting s, const char *whole_key) {
    note(c, s, Q4X_FROM_FILE, "", whole_key, "");
}

void q4x_cfg_default(q4x_cfg *c, q4x_setting s, const char *key, const char *why) {
    note(c, s, Q4X_FROM_DEFAULT, before_keys(c), key, why);
}

void q4x_cfg_derived(q4x_cfg *c, q4x_setting s, const char *why) {
    note(c, s, Q4X_FROM_DERIVED, "", "", why);
}

void q4x_cfg_fixed(q4x_cfg *c, q4x_setting s, const char *why) {
    note(c, s, Q4X_FROM_FIXED, "", "", why);
}

/* "3 delta, 1 attention, 12 times", or a letter a layer. */
void q4x_cfg_kinds(q4x_cfg *c, q4x_from from, const char *key, const char *why) {
    const int64_t L = c->v[Q4X_KEY_L];
    char text[72];
    int64_t every = 1;
    int regular = 1;
    while (every <= L && !c->is_attn[every - 1]) every++;
    for (int64_t i = 0; i < L; i++) regular &= c->is_attn[i] == ((i + 1) % every == 0);
    if (every > L)
        snprintf(text, sizeof text, "%lld delta", (long long)L);
    else if (regular && every == 1)
        snprintf(text, sizeof text, "%lld attention", (long long)L);
    else if (regular && L == every)
        snprintf(text, sizeof text, "%lld delta, 1 attention", (long long)(every - 1));
    else if (regular && L % every == 0)
        snprintf(text, sizeof text, "%lld delta, 1 attention, %lld times", (long long)(every - 1),
                 (long long)(L / every));
    else {
        int64_t n = 0, room = (int64_t)sizeof text - 4;
        for (; n < L && n < room; n++) text[n] = c->is_attn[n] ? 'A' : 'd';
        snprintf(text + n, sizeof text - (size_t)n, "%s", n < L ? ".." : "");
    }
    note(c, q4x_say_text("layer_kinds", text), from, before_keys(c), key, why);
}

int q4x_cfg_check(q4x_cfg *c, k_dims *ret, q4x_err *err) {
    const int64_t *v = c->v;
    int rc;
    TRY(q4x_cfg_divides(c, Q4X_KEY_H, Q4X_KEY_G, err));
    TRY(q4x_cfg_divides(c, Q4X_KEY_NV, Q4X_KEY_NK, err));
    TRY(check_rot(c, err));
    /* Ranges of the key list keep every product below inside int32. */
    k_dims d = {0};
    d.D = (int32_t)v[Q4X_KEY_D], d.V = (int32_t)v[Q4X_KEY_V], d.L = (int32_t)v[Q4X_KEY_L];
    d.nk = (int32_t)v[Q4X_KEY_NK], d.nv = (int32_t)v[Q4X_KEY_NV];
    d.dk = (int32_t)v[Q4X_KEY_DK], d.dv = (int32_t)v[Q4X_KEY_DV];
    d.C = 2 * d.nk * d.dk + d.nv * d.dv, d.Kc = (int32_t)v[Q4X_KEY_KC];
    d.gguf_heads = c->container == Q4X_GGUF && d.nk != d.nv;
    d.gate_silu = c->gate_silu;
    d.H = (int32_t)v[Q4X_KEY_H], d.G = (int32_t)v[Q4X_KEY_G], d.hd = (int32_t)v[Q4X_KEY_HD], d.rot = (int32_t)c->rot;
    d.eps = (float)c->eps;
    q4x_cfg_derived(c, q4x_say_int("gdn_channels", d.C),
                    "2 gdn_key_heads x gdn_key_width + gdn_value_heads x gdn_value_width");
    q4x_cfg_derived(c, q4x_say_bool("gguf_head_order", d.gguf_heads),
                    d.gguf_heads ? "GGUF files interleave value heads, a key head apart"
                                 : "value heads of one key head lie together");
    *ret = d;
done:
    return rc;
}
