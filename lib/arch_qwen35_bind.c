/* Binding qwen35: hyper-parameters, then every tensor by name, type class and exact shape, then nothing left over.
 * Names: section 10. */
#include <stdio.h>
#include <stdlib.h>

#include "lib/arch_qwen35_int.h"
#include "lib/io.h"

/* Names that both containers have for the same tensors. */
typedef struct {
    const char *embed, *norm;                            /* of the model */
    const char *norm_attn, *norm_mlp, *gate, *up, *down; /* of a layer */
} names;

static const names NAMES[] = {
    [Q4X_GGUF] = {"token_embd.weight", "output_norm.weight", "attn_norm.weight", "post_attention_norm.weight",
                  "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"},
    [Q4X_HF] = {"embed_tokens.weight", "norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight",
                "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"},
};

void q4x_qwen35_free(q4x_qwen35 *w) {
    if (!w) return;
    q4x_bind_free(w->owned);
    free(w);
}

static int bind_layer(q4x_scope *s, const k_dims *d, q4x_layer35 *l, q4x_err *err) {
    const names *n = &NAMES[s->b->cfg->container];
    int rc;
    TRY(q4x_scope_norm(s, n->norm_attn, d->D, &l->norm_attn, err));
    TRY(l->is_attn ? q4x_bind_attn(s, d, &l->attn, err) : q4x_bind_gdn(s, d, &l->gdn, err));
    TRY(q4x_scope_norm(s, n->norm_mlp, d->D, &l->norm_mlp, err));
    TRY(q4x_scope_mat(s, n->gate, d->Fd, d->D, &l->gate, err));
    TRY(q4x_scope_mat(s, n->up, d->Fd, d->D, &l->up, err));
    TRY(q4x_scope_mat(s, n->down, d->D, d->Fd, &l->down, err));
done:
    return rc;
}

/* A matrix [V,D] that a prediction block has of its own, or shares with the trunk. */
static int bind_own(q4x_scope *s, const char *suffix, const k_dims *d, k_weight *ret, q4x_err *err) {
    if (!q4x_model_find(s->b->m, q4x_scope_name(s, suffix))) return 0;
    return q4x_scope_mat(s, suffix, d->V, d->D, ret, err);
}

static int bind_next(q4x_scope *s, const k_dims *d, q4x_next35 *n, q4x_err *err) {
    int rc;
    n->block.is_attn = 1;
    TRY(bind_layer(s, d, &n->block, err));
    TRY(q4x_scope_mat(s, "nextn.eh_proj.weight", d->D, 2 * (int64_t)d->D, &n->proj, err));
    TRY(q4x_scope_norm(s, "nextn.enorm.weight", d->D, &n->enorm, err));
    TRY(q4x_scope_norm(s, "nextn.hnorm.weight", d->D, &n->hnorm, err));
    TRY(q4x_scope_norm(s, "nextn.shared_head_norm.weight", d->D, &n->onorm, err));
    TRY(bind_own(s, "nextn.embed_tokens.weight", d, &n->embed, err));
    TRY(bind_own(s, "nextn.shared_head_head.weight", d, &n->head, err));
done:
    return rc;
}

int q4x_q35_tensors(q4x_bind *b, q4x_qwen35 *w, q4x_err *err) {
    const names *n = &NAMES[b->cfg->container];
    const k_dims *d = &w->d;
    q4x_scope s = q4x_scope_whole(b, n->embed, n->norm);
    int rc;
    TRY(q4x_scope_mat(&s, n->embed, d->V, d->D, &w->embed, err));
    /* this name alone stands outside of the model's own */
    if (b->cfg->tied)
        w->head = w->embed;
    else
        TRY(q4x_bind_mat(b, b->cfg->container == Q4X_HF ? "lm_head.weight" : "output.weight", d->V, d->D, &w->head,
                         err));
    TRY(q4x_scope_norm(&s, n->norm, d->D, &w->norm, err));
    for (s.layer = 0; s.layer < d->L; s.layer++) TRY(bind_layer(&s, d, &w->layer[s.layer], err));
    for (int64_t i = 0; i < w->nnext; i++, s.layer++) TRY(bind_next(&s, d, &w->next[i], err));
done:
    return rc;
}

static int read_cfg(const q4x_model *m, q4x_cfg *c, q4x_err *err) {
    char where[200];
    int rc = q4x_arch_expect(m, Q4X_ARCH_qwen35, err);
    if (rc) return rc;
    if (q4x_model_container(m) == Q4X_GGUF) return q4x_q35_cfg_gguf(m, c, err);
    snprintf(where, sizeof where, "%s: config.json", q4x_tail(q4x_model_path(m)));
    return q4x_q35_cfg_hf(q4x_model_config(m), q4x_model_text_config(m), where, c, err);
}

int q4x_qwen35_settings(const q4x_model *m, q4x_settings *ret, q4x_err *err) {
    q4x_cfg c = {0};
    k_dims d;
    int rc = read_cfg(m, &c, err);
    if (!rc) rc = q4x_q35_check(&c, &d, err);
    if (!rc) *ret = c.said;
    return rc;
}

int q4x_qwen35_bind(const q4x_model *m, q4x_qwen35 **ret, q4x_err *err) {
    int rc;
    q4x_cfg c = {0};
    q4x_bind b = {.m = m, .cfg = &c};
    q4x_qwen35 *w = NULL;
    TRY(read_cfg(m, &c, err));
    w = calloc(1, sizeof *w);
    if (!w) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory", c.where));
    b.owned = &w->owned;
    w->model = m;
    TRY(q4x_q35_check(&c, &w->d, err));
    w->ctx_max = c.v[Q4X_KEY_CTX];
    w->nnext = c.nmtp;
    w->layer = q4x_bind_alloc(&b, w->d.L, sizeof *w->layer, err);
    w->next = w->layer ? q4x_bind_alloc(&b, w->nnext, sizeof *w->next, err) : NULL;
    if (!w->next) TRY(Q4X_E_NOMEM);
    for (int32_t i = 0; i < w->d.L; i++) w->layer[i].is_attn = c.is_attn[i];
    TRY(q4x_bind_freq(&b, &w->freq, err));
    TRY(q4x_q35_tensors(&b, w, err));
    TRY(q4x_bind_complete(&b, 0, 0, err));
    *ret = w;
    w = NULL;
done:
    q4x_qwen35_free(w);
    q4x_names_free(&b.used);
    return rc;
}
