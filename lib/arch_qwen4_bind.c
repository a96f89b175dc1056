/* Binding qwen4_exp: hyper-parameters, then every tensor by name, type class and exact shape, then nothing left over.
 */
#include <stdio.h>
#include <stdlib.h>

#include "lib/arch_qwen4_int.h"
#include "lib/io.h"

void q4x_qwen4_free(q4x_qwen4 *w) {
    if (!w) return;
    q4x_bind_free(w->owned);
    free(w);
}

static int read_cfg(const q4x_model *m, q4x_q4_cfg *cfg, q4x_err *err) {
    char where[200];
    int rc = q4x_arch_expect(m, Q4X_ARCH_qwen4, err);
    if (rc) return rc;
    if (q4x_model_container(m) == Q4X_GGUF) return q4x_q4_cfg_gguf(m, cfg, err);
    snprintf(where, sizeof where, "%s: config.json", q4x_tail(q4x_model_path(m)));
    return q4x_q4_cfg_hf(q4x_model_config(m), q4x_model_text_config(m), where, cfg, err);
}

int q4x_qwen4_settings(const q4x_model *m, q4x_settings *ret, q4x_err *err) {
    q4x_q4_cfg cfg = {0};
    k_dims d;
    int rc = read_cfg(m, &cfg, err);
    if (!rc) rc = q4x_q4_check(&cfg, &d, err);
    if (!rc) *ret = cfg.c.said;
    q4x_q4_cfg_free(&cfg);
    return rc;
}

int q4x_qwen4_bind(const q4x_model *m, q4x_qwen4 **ret, q4x_err *err) {
    int rc;
    q4x_q4_cfg cfg = {0};
    q4x_bind b = {.m = m, .cfg = &cfg.c};
    q4x_qwen4 *w = NULL;
    TRY(read_cfg(m, &cfg, err));
    w = calloc(1, sizeof *w);
    if (!w) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory", cfg.c.where));
    b.owned = &w->owned;
    w->model = m;
    TRY(q4x_q4_check(&cfg, &w->d, err));
    w->ctx_max = cfg.c.v[Q4X_KEY_CTX];
    w->layer = q4x_bind_alloc(&b, w->d.L, sizeof *w->layer, err);
    if (!w->layer) TRY(Q4X_E_NOMEM);
    for (int32_t i = 0; i < w->d.L; i++) w->layer[i].is_attn = cfg.c.is_attn[i];
    for (int i = 0; i < cfg.nple; i++) w->layer[cfg.ple[i]].has_ple = 1;
    TRY(q4x_bind_freq(&b, &w->freq, err));
    TRY(cfg.c.container == Q4X_HF ? q4x_q4_tensors_hf(&b, &cfg, w, err) : q4x_q4_tensors_gguf(&b, &cfg, w, err));
    TRY(q4x_bind_complete(&b, w->d.L, w->d.L + cfg.c.nmtp, err));
    *ret = w;
    w = NULL;
done:
    q4x_qwen4_free(w);
    q4x_names_free(&b.used);
    q4x_q4_cfg_free(&cfg);
    return rc;
}
