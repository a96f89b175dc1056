/* The tensors of qwen4_exp in an HF checkpoint: names of sections 3 to 7 and 1.6. The mixers' own are in
 * arch_mixer_bind.c. */
#include <stdio.h>
#include <string.h>

#include "lib/arch_qwen4_int.h"

typedef struct {
    q4x_scope s;
    const q4x_q4_cfg *cfg;
    const k_dims *d;
} walk;

static int bind_hc(walk *k, const char *module, int inject, q4x_hc *h, q4x_err *err) {
    const k_dims *d = k->d;
    char n[96];
    int rc;
    snprintf(n, sizeof n, "%s.hc_norm.weight", module);
    TRY(q4x_scope_norm(&k->s, n, d->W, &h->norm, err));
    snprintf(n, sizeof n, "%s.input_mix_weight_down.weight", module);
    TRY(q4x_scope_mat(&k->s, n, d->R, d->W, &h->down, err));
    snprintf(n, sizeof n, "%s.input_mix_weight_up.weight", module);
    TRY(q4x_scope_mat(&k->s, n, d->W, d->R, &h->up, err));
    snprintf(n, sizeof n, "%s.block_inject_weight.weight", module);
    if (inject) TRY(q4x_scope_mat(&k->s, n, d->N, d->W, &h->inject, err));
done:
    return rc;
}

/* Indexer queries and its one key share a matrix: the key's rows are last. */
static int bind_indexer(walk *k, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = k->d;
    int64_t q = (int64_t)d->ih * d->id;
    k_weight both = {0};
    int rc;
    TRY(q4x_scope_mat(&k->s, "self_attn.indexer.index_qk_proj.weight", q + d->id, d->D, &both, err));
    l->iq = q4x_rows(both, 0, q);
    l->ik = q4x_rows(both, q, d->id);
    TRY(q4x_scope_norm(&k->s, "self_attn.indexer.q_layernorm.weight", d->id, &l->iqnorm, err));
    TRY(q4x_scope_norm(&k->s, "self_attn.indexer.k_layernorm.weight", d->id, &l->iknorm, err));
done:
    return rc;
}

static int expert_array(walk *k, const char *proj, int64_t rows, int64_t cols, k_weight **ret, q4x_err *err) {
    int32_t E = k->d->E;
    char n[64];
    k_weight *w = q4x_bind_alloc(k->s.b, E, sizeof *w, err);
    if (!w) return Q4X_E_NOMEM;
    for (int32_t e = 0; e < E; e++) {
        snprintf(n, sizeof n, "mlp.experts.%d.%s.weight", e, proj);
        int rc = q4x_scope_mat(&k->s, n, rows, cols, &w[e], err);
        if (rc) return rc;
    }
    *ret = w;
    return 0;
}

/* Two fused tensors, or three a expert. With neither, only the fused ones are reported missing. */
static int bind_experts(walk *k, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = k->d;
    k_weight *both = NULL;
    int rc;
    if (q4x_model_find(k->s.b->m, q4x_scope_name(&k->s, "mlp.experts.0.gate_proj.weight"))) {
        TRY(expert_array(k, "gate_proj", d->F, d->D, &l->gate, err));
        TRY(expert_array(k, "up_proj", d->F, d->D, &l->up, err));
        TRY(expert_array(k, "down_proj", d->D, d->F, &l->down, err));
        goto done;
    }
    TRY(q4x_bind_stack(k->s.b, q4x_scope_name(&k->s, "mlp.experts.gate_up_proj"), d->E, 2 * (int64_t)d->F, d->D, &both,
                       err));
    TRY(q4x_bind_split(k->s.b, both, d->E, d->F, &l->gate, &l->up, err));
    TRY(q4x_bind_stack(k->s.b, q4x_scope_name(&k->s, "mlp.experts.down_proj"), d->E, d->D, d->F, &l->down, err));
done:
    return rc;
}

static int bind_moe(walk *k, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = k->d;
    int rc;
    TRY(q4x_scope_mat(&k->s, "mlp.gate.weight", d->E, d->D, &l->router, err));
    TRY(bind_experts(k, l, err));
    TRY(q4x_scope_mat(&k->s, "mlp.shared_expert_gate.weight", 1, d->D, &l->sgate, err));
    TRY(q4x_scope_mat(&k->s, "mlp.shared_expert.gate_proj.weight", d->Fs, d->D, &l->sh_gate, err));
    TRY(q4x_scope_mat(&k->s, "mlp.shared_expert.up_proj.weight", d->Fs, d->D, &l->sh_up, err));
    TRY(q4x_scope_mat(&k->s, "mlp.shared_expert.down_proj.weight", d->D, d->Fs, &l->sh_down, err));
done:
    return rc;
}

/* ---- per-layer embedding ---- */

#define TABLE "ple.ple_embedding."

static int read_i64(walk *k, const char *suffix, int64_t n, int64_t *out, int *ret_there, q4x_err *err) {
    const q4x_tensor *t;
    int rc = q4x_bind_find(k->s.b, q4x_scope_name(&k->s, suffix), 1, &n, &t, err);
    if (rc) return rc;
    if (t && t->type != K_T_I64)
        return q4x_fail(err, Q4X_E_MISMATCH, "%s: tensor %s: expected I64", k->cfg->c.where, t->name);
    if (t)
        memcpy(out, t->data, (size_t)n * sizeof *out);
    else
        *ret_there = 0;
    return 0;
}

/* The stored constants decide; that they follow from seed, vocabulary and base is held against them. */
static int check_derived(walk *k, int index, const int64_t *hash, q4x_err *err) {
    const k_dims *d = k->d;
    const q4x_q4_cfg *c = k->cfg;
    const int64_t *v = c->c.v;
    int64_t n = d->n + 2 * (int64_t)d->P, want[16 + 2 * 960];
    Q4X_BUG_IF(n > (int64_t)(sizeof want / sizeof *want));
    if (q4x_q4_hash(v[Q4X_KEY_V], d->n, d->P, v[Q4X_Q4_BASE], v[Q4X_Q4_SEED], index, want))
        return q4x_fail(err, Q4X_E_FORMAT, "%s: ngram_vocab_size_base is %lld: the n-gram table would leave int32",
                        c->c.where, (long long)v[Q4X_Q4_BASE]);
    for (int64_t i = 0; i < n; i++) {
        if (hash[i] == want[i]) continue;
        const char *what = i < d->n          ? "layer_multipliers"
                           : i < d->n + d->P ? "ngram_heads_vocab_sizes"
                                             : "ngram_heads_offsets";
        int64_t at = i < d->n ? i : (i - d->n) % d->P;
        return q4x_fail(err, Q4X_E_MISMATCH,
                        "%s: layer %d: %s[%lld] is %lld, but seed %lld, vocab_size %lld and ngram_vocab_size_base %lld "
                        "give %lld",
                        c->c.where, k->s.layer, what, (long long)at, (long long)hash[i], (long long)v[Q4X_Q4_SEED],
                        (long long)v[Q4X_KEY_V], (long long)v[Q4X_Q4_BASE], (long long)want[i]);
    }
    return 0;
}

/* The table's rows in split_ngram_parts equal shards, padded to a multiple. */
static int bind_table(walk *k, int64_t rows, q4x_layer4 *l, q4x_err *err) {
    const q4x_q4_cfg *c = k->cfg;
    int64_t multiple = c->c.v[Q4X_Q4_MULTIPLE], parts = c->c.v[Q4X_Q4_PARTS];
    int rc = 0;
    rows = (rows + multiple - 1) / multiple * multiple;
    if (rows > INT32_MAX || rows % parts)
        return q4x_fail(
            err, Q4X_E_FORMAT,
            "%s: split_ngram_parts is %lld, expected a divisor of the n-gram table's %lld rows (at most %d)",
            c->c.where, (long long)parts, (long long)rows, INT32_MAX);
    k_weight *w = q4x_bind_alloc(k->s.b, parts, sizeof *w, err);
    if (!w) return Q4X_E_NOMEM;
    for (int64_t i = 0; i < parts && !rc; i++) {
        char n[96];
        snprintf(n, sizeof n, TABLE "ngram_embedding.shard_%lld.weight", (long long)i);
        rc = q4x_scope_mat(&k->s, n, rows / parts, k->d->pw, &w[i], err);
        /* the gather op takes one row format for all shards */
        if (!rc && w[0].data && w[i].data && w[i].type != w[0].type)
            rc = q4x_fail(err, Q4X_E_MISMATCH, "%s: tensor %s: another type than shard 0 has", c->c.where, k->s.name);
    }
    l->table = w;
    l->ntable = (int)parts;
    return rc;
}

static int bind_hash(walk *k, int index, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = k->d;
    int64_t rows;
    int rc, there = 1;
    l->hash = q4x_bind_alloc(k->s.b, d->n + 2 * (int64_t)d->P, sizeof *l->hash, err);
    if (!l->hash) TRY(Q4X_E_NOMEM);
    TRY(read_i64(k, TABLE "layer_multipliers", d->n, l->hash, &there, err));
    TRY(read_i64(k, TABLE "ngram_heads_vocab_sizes", d->P, l->hash + d->n, &there, err));
    TRY(read_i64(k, TABLE "ngram_heads_offsets", d->P, l->hash + d->n + d->P, &there, err));
    if (!there) goto done; /* reported as missing */
    TRY(q4x_q4_hash_check(k->cfg, d, l->hash, &rows, err));
    TRY(check_derived(k, index, l->hash, err));
    TRY(bind_table(k, rows, l, err));
done:
    return rc;
}

static int bind_ple(walk *k, int index, q4x_layer4 *l, q4x_err *err) {
    const k_dims *d = k->d;
    int64_t width = (int64_t)d->P * d->pw;
    int rc;
    TRY(q4x_scope_mat(&k->s, "ple.key_proj.weight", d->W, width, &l->ple_key, err));
    TRY(q4x_scope_mat(&k->s, "ple.value_proj.weight", d->D, width, &l->ple_val, err));
    TRY(q4x_scope_norm(&k->s, "ple.norm_key.weight", d->W, &l->ple_nkey, err));
    TRY(q4x_scope_norm(&k->s, "ple.norm_query.weight", d->W, &l->ple_nquery, err));
    TRY(q4x_scope_norm(&k->s, "ple.norm_conv.weight", d->W, &l->ple_nconv, err));
    TRY(q4x_scope_taps(&k->s, "ple.conv1d.weight", d->W, d->Kp, &l->ple_conv, err));
    TRY(bind_hash(k, index, l, err));
done:
    return rc;
}

int q4x_q4_tensors_hf(q4x_bind *b, const q4x_q4_cfg *q, q4x_qwen4 *w, q4x_err *err) {
    const k_dims *d = &w->d;
    walk k = {
        .s = q4x_scope_whole(b, "embed_tokens.weight", "hyper_connection_mixer.hc_norm.weight"), .cfg = q, .d = d};
    int rc, index = 0;
    TRY(q4x_scope_mat(&k.s, "embed_tokens.weight", d->V, d->D, &w->embed, err));
    w->head = w->embed;
    if (!q->c.tied) TRY(q4x_bind_mat(b, "lm_head.weight", d->V, d->D, &w->head, err));
    TRY(bind_hc(&k, "hyper_connection_mixer", 0, &w->mixer, err));
    for (k.s.layer = 0; k.s.layer < d->L; k.s.layer++) {
        q4x_layer4 *l = &w->layer[k.s.layer];
        TRY(bind_hc(&k, "attn_hyper_connection", 1, &l->ahc, err));
        TRY(l->is_attn ? q4x_bind_attn(&k.s, d, &l->attn, err) : q4x_bind_gdn(&k.s, d, &l->gdn, err));
        if (l->is_attn && d->ih) TRY(bind_indexer(&k, l, err));
        TRY(bind_hc(&k, "mlp_hyper_connection", 1, &l->mhc, err));
        TRY(bind_moe(&k, l, err));
        if (l->has_ple) TRY(bind_ple(&k, index++, l, err));
    }
done:
    return rc;
}
