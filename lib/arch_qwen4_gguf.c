/* The tensors of qwen4exp in a GGUF file: names of section 9.2. Norms are stored with 1 folded in, ssm_a as
 * -exp(A_log), value heads in the order of section 9.4: all of it is taken as stored. */
#include <stdio.h>

#include "lib/arch_qwen4_int.h"

typedef struct {
    q4x_scope s;
    const q4x_q4_cfg *cfg;
    const k_dims *d;
} walk;

/* part: "output_hc", "hc_attn" or "hc_ffn". */
static int bind_hc(walk *k, const char *part, int inject, q4x_hc *h, q4x_err *err) {
    const k_dims *d = k->d;
    char n[64];
    int rc;
    snprintf(n, sizeof n, "%s_norm.weight", part);
    TRY(q4x_scope_norm(&k->s, n, d->W, &h->norm, err));
    snprintf(n, sizeof n, "%s_down.weight", part);
    TRY(q4x_scope_mat(&k->s, n, d->R, d->W, &h->down, err));
    snprintf(n, sizeof n, "%s_up.weight", part);
    TRY(q4x_scope_mat(&k->s, n, d->W, d->R, &h->up, err));
    snprintf(n, sizeof n, "%s_inject.weight", part);
    if (inject) TRY(q4x_scope_mat(&k->s, n, d->N, d->W, &h->inject, err));
done:
    return rc;
}

static int bind_indexer(walk *k, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = k->d;
    int rc;
    TRY(q4x_scope_mat(&k->s, "indexer.q_proj.weight", (int64_t)d->ih * d->id, d->D, &l->iq, err));
    TRY(q4x_scope_mat(&k->s, "indexer.k_proj.weight", d->id, d->D, &l->ik, err));
    TRY(q4x_scope_norm(&k->s, "indexer.q_norm.weight", d->id, &l->iqnorm, err));
    TRY(q4x_scope_norm(&k->s, "indexer.k_norm.weight", d->id, &l->iknorm, err));
done:
    return rc;
}

/* Gate and up apart, or in one tensor with the gate's rows first. */
static int bind_experts(walk *k, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = k->d;
    int rc;
    k_weight *both = NULL;
    if (!q4x_model_find(k->s.b->m, q4x_scope_name(&k->s, "ffn_gate_up_exps.weight"))) {
        TRY(q4x_bind_stack(k->s.b, q4x_scope_name(&k->s, "ffn_gate_exps.weight"), d->E, d->F, d->D, &l->gate, err));
        TRY(q4x_bind_stack(k->s.b, q4x_scope_name(&k->s, "ffn_up_exps.weight"), d->E, d->F, d->D, &l->up, err));
    } else {
        TRY(q4x_bind_stack(k->s.b, q4x_scope_name(&k->s, "ffn_gate_up_exps.weight"), d->E, 2 * (int64_t)d->F, d->D,
                           &both, err));
        TRY(q4x_bind_split(k->s.b, both, d->E, d->F, &l->gate, &l->up, err));
    }
    TRY(q4x_bind_stack(k->s.b, q4x_scope_name(&k->s, "ffn_down_exps.weight"), d->E, d->D, d->F, &l->down, err));
done:
    return rc;
}

static int bind_moe(walk *k, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = k->d;
    int rc;
    TRY(q4x_scope_mat(&k->s, "ffn_gate_inp.weight", d->E, d->D, &l->router, err));
    TRY(bind_experts(k, l, err));
    TRY(q4x_bind_row(k->s.b, q4x_scope_name(&k->s, "ffn_gate_inp_shexp.weight"), d->D, &l->sgate, err));
    TRY(q4x_scope_mat(&k->s, "ffn_gate_shexp.weight", d->Fs, d->D, &l->sh_gate, err));
    TRY(q4x_scope_mat(&k->s, "ffn_up_shexp.weight", d->Fs, d->D, &l->sh_up, err));
    TRY(q4x_scope_mat(&k->s, "ffn_down_shexp.weight", d->D, d->Fs, &l->sh_down, err));
done:
    return rc;
}

#define TABLE "per_layer_token_embd.weight"

/* The table is one tensor; the file does not say how far it is padded, so it may be longer than the hash can reach. */
static int bind_table(walk *k, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = k->d;
    const q4x_q4_cfg *c = k->cfg;
    int64_t rows, n = d->n + 2 * (int64_t)d->P;
    int rc;
    if (k->s.b->taker) return q4x_bind_give(k->s.b, TABLE, l->table, l->ntable, err);
    TRY(q4x_q4_hash_check(c, d, c->hash, &rows, err));
    l->hash = q4x_bind_alloc(k->s.b, n, sizeof *l->hash, err);
    if (!l->hash) TRY(Q4X_E_NOMEM);
    for (int64_t i = 0; i < n; i++) l->hash[i] = c->hash[i];
    const q4x_tensor *t = q4x_model_find(k->s.b->m, TABLE);
    if (t && t->ne[1] > rows) rows = t->ne[1];
    if (rows > INT32_MAX)
        TRY(q4x_fail(err, Q4X_E_MISMATCH, "%s: tensor " TABLE ": %lld rows, expected at most %d", c->c.where,
                     (long long)rows, INT32_MAX));
    k_weight *table = q4x_bind_alloc(k->s.b, 1, sizeof *table, err);
    if (!table) TRY(Q4X_E_NOMEM);
    TRY(q4x_bind_mat(k->s.b, TABLE, rows, d->pw, table, err));
    l->table = table;
    l->ntable = 1;
done:
    return rc;
}

static int bind_ple(walk *k, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = k->d;
    int64_t width = (int64_t)d->P * d->pw;
    int rc;
    TRY(q4x_scope_mat(&k->s, "ple_key.weight", d->W, width, &l->ple_key, err));
    TRY(q4x_scope_mat(&k->s, "ple_value.weight", d->D, width, &l->ple_val, err));
    TRY(q4x_scope_norm(&k->s, "ple_norm_key.weight", d->W, &l->ple_nkey, err));
    TRY(q4x_scope_norm(&k->s, "ple_norm_query.weight", d->W, &l->ple_nquery, err));
    TRY(q4x_scope_norm(&k->s, "ple_norm_conv.weight", d->W, &l->ple_nconv, err));
    TRY(q4x_scope_taps(&k->s, "ple_conv1d.weight", d->W, d->Kp, &l->ple_conv, err));
    TRY(bind_table(k, l, err));
done:
    return rc;
}

int q4x_q4_tensors_gguf(q4x_bind *b, const q4x_q4_cfg *q, q4x_qwen4 *w, q4x_err *err) {
    const k_dims *d = &w->d;
    walk k = {.s = q4x_scope_whole(b, "", ""), .cfg = q, .d = d};
    int rc;
    TRY(q4x_scope_mat(&k.s, "token_embd.weight", d->V, d->D, &w->embed, err));
    if (q->c.tied)
        w->head = w->embed;
    else
        TRY(q4x_scope_mat(&k.s, "output.weight", d->V, d->D, &w->head, err));
    TRY(bind_hc(&k, "output_hc", 0, &w->mixer, err));
    for (k.s.layer = 0; k.s.layer < d->L; k.s.layer++) {
        q4x_layer4 *l = &w->layer[k.s.layer];
        TRY(bind_hc(&k, "hc_attn", 1, &l->ahc, err));
        TRY(l->is_attn ? q4x_bind_attn(&k.s, d, &l->attn, err) : q4x_bind_gdn(&k.s, d, &l->gdn, err));
        if (l->is_attn && d->ih) TRY(bind_indexer(&k, l, err));
        TRY(bind_hc(&k, "hc_ffn", 1, &l->mhc, err));
        TRY(bind_moe(&k, l, err));
        if (l->has_ple) TRY(bind_ple(&k, l, err));
    }
done:
    return rc;
}
