/* Hyper-parameters of qwen4_exp beyond the common ones: what both containers share. Rules: sections 1.2 and 1.4 of the
 * specification. */
#include <stdlib.h>

#include "kernels/ple.h"
#include "lib/arch_qwen4_int.h"

/* Of config.json; here and in arch_qwen4_keys.def. */
enum {
    DEFAULT_D = 2048,
    DEFAULT_L = 40,
    DEFAULT_V = 248320,
    DEFAULT_CTX = 32768,
    DEFAULT_H = 16,
    DEFAULT_G = 2,
    DEFAULT_HD = 256,
    DEFAULT_NK = 16,
    DEFAULT_NV = 32,
    DEFAULT_DK = 128,
    DEFAULT_DV = 128,
    DEFAULT_KC = 4,
};

static const q4x_key keys[Q4X_Q4_END] = {
#define KEY(id, name, hf, gguf, lo, hi) {name, hf, gguf, lo, hi, DEFAULT_##id},
#include "lib/arch_keys.def"
#undef KEY
#define INT(id, name, hf, gguf, lo, hi, def) {name, hf, gguf, lo, hi, def},
#include "lib/arch_qwen4_keys.def"
#undef INT
};
_Static_assert((int)Q4X_Q4_END <= (int)Q4X_MAXKEYS, "room for all keys");

/* Layers that attend go by many names: every vintage has its own. */
const q4x_traits q4x_q4_traits = {
    .id = Q4X_ARCH_qwen4,
    .key = keys,
    .attn_types = "full_attention qwen_sparse_attention deepseek_sparse_attention hybrid_indexed indexed_attention",
    .rotary = 1, /* not the released 0.25 */
    .gate_silu = 0,
};

void q4x_q4_cfg_free(q4x_q4_cfg *q) {
    free(q->hash);
    q->hash = NULL;
}

static int check_idx(const q4x_q4_cfg *q, q4x_err *err) {
    const q4x_cfg *c = &q->c;
    if (!q->has_idx) return 0;
    int rc = q4x_cfg_divides(c, Q4X_Q4_BUDGET, Q4X_Q4_RATIO, err);
    if (!rc && c->rot > c->v[Q4X_Q4_ID])
        rc = q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected at most %s = %lld", c->where,
                      c->container == Q4X_HF ? "head_dim * partial_rotary_factor" : "rope.dimension_count",
                      (long long)c->rot, q4x_key_name(c, Q4X_Q4_ID), (long long)c->v[Q4X_Q4_ID]);
    return rc;
}

static int check_ple(const q4x_q4_cfg *q, q4x_err *err) {
    const q4x_cfg *c = &q->c;
    int64_t P = (c->v[Q4X_Q4_NGRAM] - 1) * c->v[Q4X_Q4_HPN];
    if (!q->nple) return 0;
    if (c->v[Q4X_Q4_PLEW] % P)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected a multiple of (%s - 1) * %s = %lld", c->where,
                        q4x_key_name(c, Q4X_Q4_PLEW), (long long)c->v[Q4X_Q4_PLEW], q4x_key_name(c, Q4X_Q4_NGRAM),
                        q4x_key_name(c, Q4X_Q4_HPN), (long long)P);
    if (q->eos < 0 || q->eos >= c->v[Q4X_KEY_V])
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected an id below the vocabulary's %lld", c->where,
                        c->container == Q4X_HF ? "eos_token_id" : "ple.eos_token_id", (long long)q->eos,
                        (long long)c->v[Q4X_KEY_V]);
    return 0;
}

static void note_derived(q4x_q4_cfg *q, const k_dims *d) {
    q4x_cfg *c = &q->c;
    q4x_cfg_derived(c, q4x_say_int("wide", d->W), "streams x hidden");
    if (q->has_idx) q4x_cfg_derived(c, q4x_say_int("blocks_selected", d->nsel), "indexer_budget / block_ratio");
    if (!q->nple) return;
    q4x_cfg_derived(c, q4x_say_int("ngram_heads", d->P), "(ngram - 1) x ngram_heads_each");
    if (c->container == Q4X_HF) q4x_cfg_derived(c, q4x_say_int("ngram_width", d->pw), "ple_width / ngram_heads");
}

int q4x_q4_check(q4x_q4_cfg *q, k_dims *ret, q4x_err *err) {
    q4x_cfg *c = &q->c;
    const int64_t *v = c->v;
    int rc;
    if (v[Q4X_Q4_K] > v[Q4X_Q4_E])
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected at most %s = %lld", c->where,
                     q4x_key_name(c, Q4X_Q4_K), (long long)v[Q4X_Q4_K], q4x_key_name(c, Q4X_Q4_E),
                     (long long)v[Q4X_Q4_E]));
    k_dims d;
    TRY(q4x_cfg_check(c, &d, err));
    TRY(check_idx(q, err));
    TRY(check_ple(q, err));
    /* Ranges of the key list keep every product below inside int32. */
    d.N = (int32_t)v[Q4X_Q4_N], d.W = d.N * d.D, d.R = (int32_t)v[Q4X_Q4_R];
    if (q->has_idx) {
        d.ih = (int32_t)v[Q4X_Q4_IH], d.id = (int32_t)v[Q4X_Q4_ID];
        d.ratio = (int32_t)v[Q4X_Q4_RATIO], d.nsel = (int32_t)(v[Q4X_Q4_BUDGET] / v[Q4X_Q4_RATIO]);
    }
    d.E = (int32_t)v[Q4X_Q4_E], d.K = (int32_t)v[Q4X_Q4_K];
    d.F = (int32_t)v[Q4X_Q4_F], d.Fs = (int32_t)v[Q4X_Q4_FS];
    d.renorm = q->renorm;
    if (q->nple) {
        d.n = (int32_t)v[Q4X_Q4_NGRAM], d.P = (d.n - 1) * (int32_t)v[Q4X_Q4_HPN];
        d.pw = (int32_t)v[Q4X_Q4_PLEW] / d.P, d.Kp = (int32_t)v[Q4X_Q4_KP], d.eos = (int32_t)q->eos;
    }
    note_derived(q, &d);
    *ret = d;
done:
    return rc;
}

/* ---- n-gram hash constants ---- */

int q4x_q4_hash(int64_t vocab, int64_t n, int64_t P, int64_t base, int64_t seed, int ple_index, int64_t *out) {
    int64_t *size = out + n, *off = size + P;
    if (base > INT32_MAX / P) return -1; /* no size is below base */
    if (base < 2) base = 2;              /* the first prime */
    if (k_ple_consts(vocab, (int32_t)n, (int32_t)(P / (n - 1)), base, seed, ple_index, out, size, off)) return -1;
    return off[P - 1] > INT32_MAX - size[P - 1] ? -1 : 0; /* rows are int32 */
}

int q4x_q4_hash_check(const q4x_q4_cfg *q, const k_dims *d, const int64_t *hash, int64_t *ret_rows, q4x_err *err) {
    const int64_t *size = hash + d->n, *off = size + d->P;
    int64_t rows = 0;
    for (int32_t i = 0; i < d->n; i++)
        if (hash[i] < 1)
            return q4x_fail(err, Q4X_E_FORMAT, "%s: n-gram hash: layer_multipliers[%d] is %lld, expected above 0",
                            q->c.where, i, (long long)hash[i]);
    for (int32_t h = 0; h < d->P; h++) {
        if (size[h] < 1 || size[h] > INT32_MAX || off[h] < 0 || off[h] > INT32_MAX - size[h])
            return q4x_fail(err, Q4X_E_FORMAT,
                            "%s: n-gram hash: head %d has offset %lld and size %lld, expected a range within int32",
                            q->c.where, h, (long long)off[h], (long long)size[h]);
        if (off[h] + size[h] > rows) rows = off[h] + size[h];
    }
    *ret_rows = rows;
    return 0;
}
