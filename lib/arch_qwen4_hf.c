/* The tensors of qwen4_exp in an HF checkpoint: names of sections 3 to 7 and 1.6. Zero-centred norms get their 1 here,
 * in f32; -exp(A_log) is formed here, too. */
#include <stdio.h>
#include <string.h>

#include "kernels/arith.h"
#include "lib/arch_qwen4_int.h"

typedef struct {
    q4x_bind *b;
    const char *root; /* "model." or "model.language_model." */
    int layer;        /* -1: global */
    char name[160];
} scope;

static const char *name_of(scope *s, const char *suffix) {
    if (s->layer < 0)
        snprintf(s->name, sizeof s->name, "%s%s", s->root, suffix);
    else
        snprintf(s->name, sizeof s->name, "%slayers.%d.%s", s->root, s->layer, suffix);
    return s->name;
}

static int mat(scope *s, const char *suffix, int64_t rows, int64_t cols, k_weight *ret, q4x_err *err) {
    return q4x_bind_mat(s->b, name_of(s, suffix), rows, cols, ret, err);
}

static int vec(scope *s, const char *suffix, int64_t n, float add, const float **ret, q4x_err *err) {
    float *v;
    int rc = q4x_bind_vec(s->b, name_of(s, suffix), 1, &n, add, &v, err);
    if (!rc) *ret = v;
    return rc;
}

/* A convolution is stored [channels, 1, taps]. */
static int taps(scope *s, const char *suffix, int64_t channels, int64_t taps_n, const float **ret, q4x_err *err) {
    const int64_t ne[] = {taps_n, 1, channels};
    float *v;
    int rc = q4x_bind_vec(s->b, name_of(s, suffix), 3, ne, 0, &v, err);
    if (!rc) *ret = v;
    return rc;
}

static int bind_hc(scope *s, const char *module, int inject, q4x_hc *h, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    char n[96];
    int rc;
    snprintf(n, sizeof n, "%s.hc_norm.weight", module);
    TRY(vec(s, n, d->W, 1, &h->norm, err));
    snprintf(n, sizeof n, "%s.input_mix_weight_down.weight", module);
    TRY(mat(s, n, d->R, d->W, &h->down, err));
    snprintf(n, sizeof n, "%s.input_mix_weight_up.weight", module);
    TRY(mat(s, n, d->W, d->R, &h->up, err));
    snprintf(n, sizeof n, "%s.block_inject_weight.weight", module);
    if (inject) TRY(mat(s, n, d->N, d->W, &h->inject, err));
done:
    return rc;
}

static int bind_gdn(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int64_t value = (int64_t)d->nv * d->dv, nv = d->nv;
    float *a;
    int rc;
    TRY(mat(s, "linear_attn.in_proj_qkv.weight", d->C, d->D, &l->qkv, err));
    TRY(mat(s, "linear_attn.in_proj_z.weight", value, d->D, &l->z, err));
    TRY(mat(s, "linear_attn.in_proj_b.weight", d->nv, d->D, &l->b, err));
    TRY(mat(s, "linear_attn.in_proj_a.weight", d->nv, d->D, &l->a, err));
    TRY(mat(s, "linear_attn.out_proj.weight", d->D, value, &l->out, err));
    TRY(taps(s, "linear_attn.conv1d.weight", d->C, d->Kc, &l->conv, err));
    TRY(vec(s, "linear_attn.dt_bias", d->nv, 0, &l->dt_bias, err));
    TRY(vec(s, "linear_attn.norm.weight", d->dv, 0, &l->gnorm, err));
    TRY(q4x_bind_vec(s->b, name_of(s, "linear_attn.A_log"), 1, &nv, 0, &a, err));
    for (int64_t i = 0; a && i < nv; i++) a[i] = -k_exp(a[i]);
    l->neg_exp_A = a;
done:
    return rc;
}

/* Indexer queries and its one key share a matrix: the key's rows are last. */
static int bind_indexer(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int64_t q = (int64_t)d->ih * d->id;
    k_weight both = {0};
    int rc;
    TRY(mat(s, "self_attn.indexer.index_qk_proj.weight", q + d->id, d->D, &both, err));
    l->iq = q4x_rows(both, 0, q);
    l->ik = q4x_rows(both, q, d->id);
    TRY(vec(s, "self_attn.indexer.q_layernorm.weight", d->id, 1, &l->iqnorm, err));
    TRY(vec(s, "self_attn.indexer.k_layernorm.weight", d->id, 1, &l->iknorm, err));
done:
    return rc;
}

static int bind_attn(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int64_t q = (int64_t)d->H * d->hd, kv = (int64_t)d->G * d->hd;
    int rc;
    TRY(mat(s, "self_attn.q_proj.weight", 2 * q, d->D, &l->q, err));
    TRY(mat(s, "self_attn.k_proj.weight", kv, d->D, &l->k, err));
    TRY(mat(s, "self_attn.v_proj.weight", kv, d->D, &l->v, err));
    TRY(mat(s, "self_attn.o_proj.weight", d->D, q, &l->o, err));
    TRY(vec(s, "self_attn.q_norm.weight", d->hd, 1, &l->qnorm, err));
    TRY(vec(s, "self_attn.k_norm.weight", d->hd, 1, &l->knorm, err));
    if (d->ih) TRY(bind_indexer(s, l, err));
done:
    return rc;
}

static int expert_array(scope *s, const char *proj, int64_t rows, int64_t cols, k_weight **ret, q4x_err *err) {
    int32_t E = s->b->w->d.E;
    char n[64];
    k_weight *w = q4x_bind_alloc(s->b, E, sizeof *w, err);
    if (!w) return Q4X_E_NOMEM;
    for (int32_t e = 0; e < E; e++) {
        snprintf(n, sizeof n, "mlp.experts.%d.%s.weight", e, proj);
        int rc = mat(s, n, rows, cols, &w[e], err);
        if (rc) return rc;
    }
    *ret = w;
    return 0;
}

/* Two fused tensors, or three a expert. With neither, only the fused ones are reported missing. */
static int bind_experts(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    k_weight *both = NULL;
    int rc;
    if (q4x_model_find(s->b->m, name_of(s, "mlp.experts.0.gate_proj.weight"))) {
        TRY(expert_array(s, "gate_proj", d->F, d->D, &l->gate, err));
        TRY(expert_array(s, "up_proj", d->F, d->D, &l->up, err));
        TRY(expert_array(s, "down_proj", d->D, d->F, &l->down, err));
        goto done;
    }
    TRY(q4x_bind_stack(s->b, name_of(s, "mlp.experts.gate_up_proj"), d->E, 2 * (int64_t)d->F, d->D, &both, err));
    TRY(q4x_bind_split(s->b, both, d->E, d->F, &l->gate, &l->up, err));
    TRY(q4x_bind_stack(s->b, name_of(s, "mlp.experts.down_proj"), d->E, d->D, d->F, &l->down, err));
done:
    return rc;
}

static int bind_moe(scope *s, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int rc;
    TRY(mat(s, "mlp.gate.weight", d->E, d->D, &l->router, err));
    TRY(bind_experts(s, l, err));
    TRY(mat(s, "mlp.shared_expert_gate.weight", 1, d->D, &l->sgate, err));
    TRY(mat(s, "mlp.shared_expert.gate_proj.weight", d->Fs, d->D, &l->sh_gate, err));
    TRY(mat(s, "mlp.shared_expert.up_proj.weight", d->Fs, d->D, &l->sh_up, err));
    TRY(mat(s, "mlp.shared_expert.down_proj.weight", d->D, d->Fs, &l->sh_down, err));
done:
    return rc;
}

/* ---- per-layer embedding ---- */

#define TABLE "ple.ple_embedding."

static int read_i64(scope *s, const char *suffix, int64_t n, int64_t *out, int *ret_there, q4x_err *err) {
    const q4x_tensor *t;
    int rc = q4x_bind_find(s->b, name_of(s, suffix), 1, &n, &t, err);
    if (rc) return rc;
    if (t && t->type != K_T_I64)
        return q4x_fail(err, Q4X_E_MISMATCH, "%s: tensor %s: expected I64", s->b->cfg->where, t->name);
    if (t)
        memcpy(out, t->data, (size_t)n * sizeof *out);
    else
        *ret_there = 0;
    return 0;
}

/* The stored constants decide; that they follow from seed, vocabulary and base is held against them. */
static int check_derived(scope *s, int index, const int64_t *hash, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    const q4x_q4_cfg *c = s->b->cfg;
    const int64_t *v = c->v;
    int64_t n = d->n + 2 * (int64_t)d->P, want[16 + 2 * 960];
    Q4X_BUG_IF(n > (int64_t)(sizeof want / sizeof *want));
    if (q4x_q4_hash(v[Q4X_Q4_V], d->n, d->P, v[Q4X_Q4_BASE], v[Q4X_Q4_SEED], index, want))
        return q4x_fail(err, Q4X_E_FORMAT, "%s: ngram_vocab_size_base is %lld: the n-gram table would leave int32",
                        c->where, (long long)v[Q4X_Q4_BASE]);
    for (int64_t i = 0; i < n; i++) {
        if (hash[i] == want[i]) continue;
        const char *what = i < d->n          ? "layer_multipliers"
                           : i < d->n + d->P ? "ngram_heads_vocab_sizes"
                                             : "ngram_heads_offsets";
        int64_t at = i < d->n ? i : (i - d->n) % d->P;
        return q4x_fail(err, Q4X_E_MISMATCH,
                        "%s: layer %d: %s[%lld] is %lld, but seed %lld, vocab_size %lld and ngram_vocab_size_base %lld "
                        "give %lld",
                        c->where, s->layer, what, (long long)at, (long long)hash[i], (long long)v[Q4X_Q4_SEED],
                        (long long)v[Q4X_Q4_V], (long long)v[Q4X_Q4_BASE], (long long)want[i]);
    }
    return 0;
}

/* The table's rows in split_ngram_parts equal shards, padded to a multiple. */
static int bind_table(scope *s, int64_t rows, q4x_layer4 *l, q4x_err *err) {
    const q4x_q4_cfg *c = s->b->cfg;
    int64_t multiple = c->v[Q4X_Q4_MULTIPLE], parts = c->v[Q4X_Q4_PARTS];
    int rc = 0;
    rows = (rows + multiple - 1) / multiple * multiple;
    if (rows > INT32_MAX || rows % parts)
        return q4x_fail(
            err, Q4X_E_FORMAT,
            "%s: split_ngram_parts is %lld, expected a divisor of the n-gram table's %lld rows (at most %d)", c->where,
            (long long)parts, (long long)rows, INT32_MAX);
    k_weight *w = q4x_bind_alloc(s->b, parts, sizeof *w, err);
    if (!w) return Q4X_E_NOMEM;
    for (int64_t i = 0; i < parts && !rc; i++) {
        char n[96];
        snprintf(n, sizeof n, TABLE "ngram_embedding.shard_%lld.weight", (long long)i);
        rc = mat(s, n, rows / parts, s->b->w->d.pw, &w[i], err);
        /* the gather op takes one row format for all shards */
        if (!rc && w[0].data && w[i].data && w[i].type != w[0].type)
            rc = q4x_fail(err, Q4X_E_MISMATCH, "%s: tensor %s: another type than shard 0 has", c->where, s->name);
    }
    l->table = w;
    l->ntable = (int)parts;
    return rc;
}

static int bind_hash(scope *s, int index, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int64_t rows;
    int rc, there = 1;
    l->hash = q4x_bind_alloc(s->b, d->n + 2 * (int64_t)d->P, sizeof *l->hash, err);
    if (!l->hash) TRY(Q4X_E_NOMEM);
    TRY(read_i64(s, TABLE "layer_multipliers", d->n, l->hash, &there, err));
    TRY(read_i64(s, TABLE "ngram_heads_vocab_sizes", d->P, l->hash + d->n, &there, err));
    TRY(read_i64(s, TABLE "ngram_heads_offsets", d->P, l->hash + d->n + d->P, &there, err));
    if (!there) goto done; /* reported as missing */
    TRY(q4x_q4_hash_check(s->b->cfg, d, l->hash, &rows, err));
    TRY(check_derived(s, index, l->hash, err));
    TRY(bind_table(s, rows, l, err));
done:
    return rc;
}

static int bind_ple(scope *s, int index, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = &s->b->w->d;
    int64_t width = (int64_t)d->P * d->pw;
    int rc;
    TRY(mat(s, "ple.key_proj.weight", d->W, width, &l->ple_key, err));
    TRY(mat(s, "ple.value_proj.weight", d->D, width, &l->ple_val, err));
    TRY(vec(s, "ple.norm_key.weight", d->W, 1, &l->ple_nkey, err));
    TRY(vec(s, "ple.norm_query.weight", d->W, 1, &l->ple_nquery, err));
    TRY(vec(s, "ple.norm_conv.weight", d->W, 1, &l->ple_nconv, err));
    TRY(taps(s, "ple.conv1d.weight", d->W, d->Kp, &l->ple_conv, err));
    TRY(bind_hash(s, index, l, err));
done:
    return rc;
}

int q4x_q4_tensors_hf(q4x_bind *b, q4x_err *err) {
    static const char multimodal[] = "model.language_model.";
    q4x_qwen4 *w = b->w;
    const k_dims *d = &w->d;
    scope s = {.b = b, .root = "model.", .layer = -1};
    int rc, index = 0;
    if (q4x_model_find(b->m, "model.language_model.embed_tokens.weight") ||
        q4x_model_find(b->m, "model.language_model.hyper_connection_mixer.hc_norm.weight"))
        s.root = multimodal;
    TRY(mat(&s, "embed_tokens.weight", d->V, d->D, &w->embed, err));
    w->head = w->embed;
    if (!b->cfg->tied) TRY(q4x_bind_mat(b, "lm_head.weight", d->V, d->D, &w->head, err));
    TRY(bind_hc(&s, "hyper_connection_mixer", 0, &w->mixer, err));
    for (s.layer = 0; s.layer < d->L; s.layer++) {
        q4x_layer4 *l = &w->layer[s.layer];
        TRY(bind_hc(&s, "attn_hyper_connection", 1, &l->ahc, err));
        TRY(l->is_attn ? bind_attn(&s, l, err) : bind_gdn(&s, l, err));
        TRY(bind_hc(&s, "mlp_hyper_connection", 1, &l->mhc, err));
        TRY(bind_moe(&s, l, err));
        if (l->has_ple) TRY(bind_ple(&s, index++, l, err));
    }
done:
    return rc;
}
