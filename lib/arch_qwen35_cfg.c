/* Hyper-parameters of qwen35 (section 10): the common ones, the width of the MLP, and the sections of a position. */
#include <stdio.h>
#include <stdlib.h>

#include "lib/arch_qwen35_int.h"
#include "lib/io.h"

/* Of config.json. */
enum {
    DEFAULT_D = 4096,
    DEFAULT_L = 32,
    DEFAULT_V = 248320,
    DEFAULT_CTX = 32768,
    DEFAULT_H = 16,
    DEFAULT_G = 4,
    DEFAULT_HD = 256,
    DEFAULT_NK = 16,
    DEFAULT_NV = 32,
    DEFAULT_DK = 128,
    DEFAULT_DV = 128,
    DEFAULT_KC = 4,
};

static const q4x_key keys[Q4X_Q35_END] = {
#define KEY(id, name, hf, gguf, lo, hi) {name, hf, gguf, lo, hi, DEFAULT_##id},
#include "lib/arch_keys.def"
#undef KEY
    [Q4X_Q35_FFN] = {"mlp_width", "intermediate_size", "feed_forward_length", 1, 1 << 20, 12288},
};

const q4x_traits q4x_q35_traits = {
    .id = Q4X_ARCH_qwen35,
    .key = keys,
    .attn_types = "full_attention",
    .rotary = 0.25,
    .gate_silu = 1,
};

int q4x_q35_cfg_hf(const json_t *root, const json_t *text, const char *where, q4x_cfg *ret, q4x_err *err) {
    int rc;
    q4x_cfg c = {.t = &q4x_q35_traits, .container = Q4X_HF};
    snprintf(c.where, sizeof c.where, "%s", where);
    TRY(q4x_cfg_hf(&c, root, text, err));
    TRY(q4x_cfg_key(&c, text, Q4X_Q35_FFN, err));
    *ret = c;
done:
    return rc;
}

/* Rotated pairs a position axis takes. The format demands the key; on text all axes carry the same position, so its
 * values decide nothing. */
static int check_sections(q4x_cfg *c, const q4x_model *m, q4x_err *err) {
    static const char key[] = "rope.dimension_sections";
    int64_t *v = NULL, n = 0;
    int rc = q4x_cfg_list(c, m, "rope_sections", key, 3, &v, &n, err);
    if (rc) return rc == 1 ? q4x_cfg_absent(c, key, err) : rc;
    for (int64_t i = 0; i < n && !rc; i++) rc = q4x_cfg_in_range(c, key, v[i], 0, 4096, err);
    free(v);
    return rc;
}

int q4x_q35_cfg_gguf(const q4x_model *m, q4x_cfg *ret, q4x_err *err) {
    int rc;
    q4x_cfg c = {.t = &q4x_q35_traits, .container = Q4X_GGUF};
    snprintf(c.where, sizeof c.where, "%s", q4x_tail(q4x_model_path(m)));
    TRY(q4x_cfg_gguf(&c, m, err));
    TRY(q4x_cfg_keys(&c, m, Q4X_Q35_FFN, Q4X_Q35_FFN, err));
    TRY(check_sections(&c, m, err));
    TRY(q4x_cfg_interval(&c, m, err));
    TRY(q4x_cfg_recurrent(&c, m, NULL, err));
    *ret = c;
done:
    return rc;
}

int q4x_q35_check(q4x_cfg *c, k_dims *ret, q4x_err *err) {
    int rc = q4x_cfg_check(c, ret, err);
    if (!rc) ret->Fd = (int32_t)c->v[Q4X_Q35_FFN];
    return rc;
}
