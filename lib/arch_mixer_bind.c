/* arch_mixer_bind.c: where the weights of the two mixers stand in a file (sections 4, 5 and 9.2). */
#include "kernels/arith.h"
#include "lib/arch_bind.h"

typedef struct {
    const char *qkv, *z, *b, *a, *out, *conv, *dt_bias, *norm, *A;
} gdn_names;

typedef struct {
    const char *q, *k, *v, *o, *qnorm, *knorm;
} attn_names;

static const gdn_names GDN[] = {
    [Q4X_GGUF] = {"attn_qkv.weight", "attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight", "ssm_out.weight",
                  "ssm_conv1d.weight", "ssm_dt.bias", "ssm_norm.weight", "ssm_a"},
    [Q4X_HF] = {"linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight", "linear_attn.in_proj_b.weight",
                "linear_attn.in_proj_a.weight", "linear_attn.out_proj.weight", "linear_attn.conv1d.weight",
                "linear_attn.dt_bias", "linear_attn.norm.weight", "linear_attn.A_log"},
};

static const attn_names ATTN[] = {
    [Q4X_GGUF] = {"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "attn_q_norm.weight",
                  "attn_k_norm.weight"},
    [Q4X_HF] = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                "self_attn.o_proj.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight"},
};

/* -exp(A_log): checkpoints store the logarithm, GGUF files the result. */
static int bind_decay(q4x_scope *s, const char *name, int64_t n, const float **ret, q4x_err *err) {
    float *a;
    if (s->b->cfg->container == Q4X_GGUF) return q4x_scope_vec(s, name, n, ret, err);
    int rc = q4x_bind_vec(s->b, q4x_scope_name(s, name), 1, &n, 0, &a, err);
    if (rc) return rc;
    for (int64_t i = 0; a && i < n; i++) a[i] = -k_exp(a[i]);
    *ret = a;
    return 0;
}

int q4x_bind_gdn(q4x_scope *s, const k_dims *d, q4x_gdn *ret, q4x_err *err) {
    const gdn_names *n = &GDN[s->b->cfg->container];
    const int64_t value = (int64_t)d->nv * d->dv;
    int rc;
    TRY(q4x_scope_mat(s, n->qkv, d->C, d->D, &ret->qkv, err));
    TRY(q4x_scope_mat(s, n->z, value, d->D, &ret->z, err));
    TRY(q4x_scope_mat(s, n->b, d->nv, d->D, &ret->b, err));
    TRY(q4x_scope_mat(s, n->a, d->nv, d->D, &ret->a, err));
    TRY(q4x_scope_mat(s, n->out, d->D, value, &ret->out, err));
    TRY(q4x_scope_taps(s, n->conv, d->C, d->Kc, &ret->conv, err));
    TRY(q4x_scope_vec(s, n->dt_bias, d->nv, &ret->dt_bias, err));
    TRY(q4x_scope_vec(s, n->norm, d->dv, &ret->norm, err)); /* the one norm that is not zero-centred */
    TRY(bind_decay(s, n->A, d->nv, &ret->neg_exp_A, err));
done:
    return rc;
}

int q4x_bind_attn(q4x_scope *s, const k_dims *d, q4x_attn *ret, q4x_err *err) {
    const attn_names *n = &ATTN[s->b->cfg->container];
    const int64_t q = (int64_t)d->H * d->hd, kv = (int64_t)d->G * d->hd;
    int rc;
    TRY(q4x_scope_mat(s, n->q, 2 * q, d->D, &ret->q, err));
    TRY(q4x_scope_mat(s, n->k, kv, d->D, &ret->k, err));
    TRY(q4x_scope_mat(s, n->v, kv, d->D, &ret->v, err));
    TRY(q4x_scope_mat(s, n->o, d->D, q, &ret->o, err));
    TRY(q4x_scope_norm(s, n->qnorm, d->hd, &ret->qnorm, err));
    TRY(q4x_scope_norm(s, n->knorm, d->hd, &ret->knorm, err));
done:
    return rc;
}
