/* The tensors of qwen4exp in a GGUF file: names of section 9.2. Norms are stored with 1 folded in, ssm_a as
 * -exp(A_log), value heads in the order of section 9.4: all of it is taken as stored. */
#include <stdio.h>

#include "lib/arch_qwen4_int.h"

typedef struct {
    q4x_bind *b;
    int layer; /* -1: global */
    char name[96];
} scope;

static const char *name_of(scope *s, const char *suffix) {
    if (s->layer < 0)
        snprintf(s->name, sizeof s->name, "%s", suffix);
    else
        snprintf(s->name, sizeof s->name, "blk.%d.%s", s->layer, suffix);
    return s->name;
}

static int mat(scope *s, const char *suffix, int64_t rows, int64_t cols, k_weight *ret, q4x_err *err) {
    return q4x_bind_mat(s->b, name_of(s, suffix), rows, cols, ret, err);
}

/* The bound vector is ours until here, const from now on. */
static int vec(scope *s, const char *suffix, int64_t n, const float **ret, q4x_err *err) {
    float *v;
    int rc = q4x_bind_vec(s->b, name_of(s, suffix), 1, &n, 0, &v, err);
    if (!rc) *ret = v;
    return rc;
}

static int taps(scope *s, const char *suffix, int64_t channels, int64_t taps_n, const float **ret, q4x_err *err) {
    const int64_t ne[] = {taps_n, channels};
    float *v;
    int rc = q4x_bind_vec(s->b, name_of(s, suffix), 2, ne, 0, &v, err);
    if (!rc) *ret = v;
    return rc;
}

/* part: "output_hc", "hc_attn" or "hc_ffn". */
static int bind_hc(scope *s, const char *part, int inject, q4x_hc *h, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    char n[64];
    int rc;
    snprintf(n, sizeof n, "%s_norm.weight", part);
    TRY(vec(s, n, d->W, &h->norm, err));
    snprintf(n, sizeof n, "%s_down.weight", part);
    TRY(mat(s, n, d->R, d->W, &h->down, err));
    snprintf(n, sizeof n, "%s_up.weight", part);
    TRY(mat(s, n, d->W, d->R, &h->up, err));
    snprintf(n, sizeof n, "%s_inject.weight", part);
    if (inject) TRY(mat(s, n, d->N, d->W, &h->inject, err));
done:
    return rc;
}

static int bind_gdn(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int64_t value = (int64_t)d->nv * d->dv;
    int rc;
    TRY(mat(s, "attn_qkv.weight", d->C, d->D, &l->qkv, err));
    TRY(mat(s, "attn_gate.weight", value, d->D, &l->z, err));
    TRY(mat(s, "ssm_beta.weight", d->nv, d->D, &l->b, err));
    TRY(mat(s, "ssm_alpha.weight", d->nv, d->D, &l->a, err));
    TRY(mat(s, "ssm_out.weight", d->D, value, &l->out, err));
    TRY(taps(s, "ssm_conv1d.weight", d->C, d->Kc, &l->conv, err));
    TRY(vec(s, "ssm_dt.bias", d->nv, &l->dt_bias, err));
    TRY(vec(s, "ssm_a", d->nv, &l->neg_exp_A, err));
    TRY(vec(s, "ssm_norm.weight", d->dv, &l->gnorm, err));
done:
    return rc;
}

static int bind_attn(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int64_t q = (int64_t)d->H * d->hd, kv = (int64_t)d->G * d->hd;
    int rc;
    TRY(mat(s, "attn_q.weight", 2 * q, d->D, &l->q, err));
    TRY(mat(s, "attn_k.weight", kv, d->D, &l->k, err));
    TRY(mat(s, "attn_v.weight", kv, d->D, &l->v, err));
    TRY(mat(s, "attn_output.weight", d->D, q, &l->o, err));
    TRY(vec(s, "attn_q_norm.weight", d->hd, &l->qnorm, err));
    TRY(vec(s, "attn_k_norm.weight", d->hd, &l->knorm, err));
    if (!d->ih) goto done;
    TRY(mat(s, "indexer.q_proj.weight", (int64_t)d->ih * d->id, d->D, &l->iq, err));
    TRY(mat(s, "indexer.k_proj.weight", d->id, d->D, &l->ik, err));
    TRY(vec(s, "indexer.q_norm.weight", d->id, &l->iqnorm, err));
    TRY(vec(s, "indexer.k_norm.weight", d->id, &l->iknorm, err));
done:
    return rc;
}

/* Gate and up apart, or in one tensor with the gate's rows first. */
static int bind_experts(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int rc;
    k_weight *both = NULL;
    if (!q4x_model_find(s->b->m, name_of(s, "ffn_gate_up_exps.weight"))) {
        TRY(q4x_bind_stack(s->b, name_of(s, "ffn_gate_exps.weight"), d->E, d->F, d->D, &l->gate, err));
        TRY(q4x_bind_stack(s->b, name_of(s, "ffn_up_exps.weight"), d->E, d->F, d->D, &l->up, err));
    } else {
        TRY(q4x_bind_stack(s->b, name_of(s, "ffn_gate_up_exps.weight"), d->E, 2 * (int64_t)d->F, d->D, &both, err));
        TRY(q4x_bind_split(s->b, both, d->E, d->F, &l->gate, &l->up, err));
    }
    TRY(q4x_bind_stack(s->b, name_of(s, "ffn_down_exps.weight"), d->E, d->D, d->F, &l->down, err));
done:
    return rc;
}

static int bind_moe(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int rc;
    TRY(mat(s, "ffn_gate_inp.weight", d->E, d->D, &l->router, err));
    TRY(bind_experts(s, l, err));
    /* one row: files store it with one dimension or two */
    const char *name = name_of(s, "ffn_gate_inp_shexp.weight");
    const q4x_tensor *t = q4x_model_find(s->b->m, name);
    const int64_t ne[] = {d->D, 1};
    TRY(q4x_bind_find(s->b, name, t && t->ndim == 2 ? 2 : 1, ne, &t, err));
    if (t) TRY(q4x_bind_view(s->b, t, 1, d->D, &l->sgate, err));
    TRY(mat(s, "ffn_gate_shexp.weight", d->Fs, d->D, &l->sh_gate, err));
    TRY(mat(s, "ffn_up_shexp.weight", d->Fs, d->D, &l->sh_up, err));
    TRY(mat(s, "ffn_down_shexp.weight", d->D, d->Fs, &l->sh_down, err));
done:
    return rc;
}

/* The table is one tensor; the file does not say how far it is padded, so it may be longer than the hash can reach. */
static int bind_table(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    const q4x_q4_cfg *c = s->b->cfg;
    int64_t rows, n = d->n + 2 * (int64_t)d->P;
    int rc;
    TRY(q4x_q4_hash_check(c, d, c->hash, &rows, err));
    l->hash = q4x_bind_alloc(s->b, n, sizeof *l->hash, err);
    if (!l->hash) TRY(Q4X_E_NOMEM);
    for (int64_t i = 0; i < n; i++) l->hash[i] = c->hash[i];
    const q4x_tensor *t = q4x_model_find(s->b->m, "per_layer_token_embd.weight");
    if (t && t->ne[1] > rows) rows = t->ne[1];
    if (rows > INT32_MAX)
        TRY(q4x_fail(err, Q4X_E_MISMATCH, "%s: tensor per_layer_token_embd.weight: %lld rows, expected at most %d",
                     c->where, (long long)rows, INT32_MAX));
    k_weight *table = q4x_bind_alloc(s->b, 1, sizeof *table, err);
    if (!table) TRY(Q4X_E_NOMEM);
    TRY(q4x_bind_mat(s->b, "per_layer_token_embd.weight", rows, d->pw, table, err));
    l->table = table;
    l->ntable = 1;
done:
    return rc;
}

static int bind_ple(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int64_t width = (int64_t)d->P * d->pw;
    int rc;
    TRY(mat(s, "ple_key.weight", d->W, width, &l->ple_key, err));
    TRY(mat(s, "ple_value.weight", d->D, width, &l->ple_val, err));
    TRY(vec(s, "ple_norm_key.weight", d->W, &l->ple_nkey, err));
    TRY(vec(s, "ple_norm_query.weight", d->W, &l->ple_nquery, err));
    TRY(vec(s, "ple_norm_conv.weight", d->W, &l->ple_nconv, err));
    TRY(taps(s, "ple_conv1d.weight", d->W, d->Kp, &l->ple_conv, err));
    TRY(bind_table(s, l, err));
done:
    return rc;
}

int q4x_q4_tensors_gguf(q4x_bind *b, q4x_err *err) {
    q4x_qwen4 *w = b->w;
    const k_dims *d = &w->d;
    scope s = {.b = b, .layer = -1};
    int rc;
    TRY(mat(&s, "token_embd.weight", d->V, d->D, &w->embed, err));
    w->head = w->embed;
    if (!b->cfg->tied) TRY(mat(&s, "output.weight", d->V, d->D, &w->head, err));
    TRY(bind_hc(&s, "output_hc", 0, &w->mixer, err));
    for (s.layer = 0; s.layer < d->L; s.layer++) {
        q4x_layer4 *l = &w->layer[s.layer];
        TRY(bind_hc(&s, "hc_attn", 1, &l->ahc, err));
        TRY(l->is_attn ? bind_attn(&s, l, err) : bind_gdn(&s, l, err));
        TRY(bind_hc(&s, "hc_ffn", 1, &l->mhc, err));
        TRY(bind_moe(&s, l, err));
        if (l->has_ple) TRY(bind_ple(&s, l, err));
    }
done:
    return rc;
}
