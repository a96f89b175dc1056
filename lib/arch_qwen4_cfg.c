/* Hyper-parameters of qwen4_exp: what both containers share. Rules: sections 1.2 and 1.4 of the specification. */
#include <stdlib.h>
#include <string.h>

#include "kernels/ple.h"

#include "lib/arch_qwen4_int.h"

const q4x_q4_key q4x_q4_keys[Q4X_Q4_NINT] = {
#define INT(id, hf, gguf, lo, hi, def) {hf, gguf, lo, hi, def},
#include "lib/arch_qwen4_keys.def"
#undef INT
};

const char *q4x_q4_name(const q4x_q4_cfg *c, q4x_q4_int id) {
    const q4x_q4_key *k = &q4x_q4_keys[id];
    if (c->container == Q4X_HF) return k->hf;
    return k->gguf[0] == '-' ? k->gguf + 1 : k->gguf;
}

void q4x_q4_cfg_free(q4x_q4_cfg *c) {
    free(c->hash);
    c->hash = NULL;
}

/* a must be a multiple of b. */
static int divides(const q4x_q4_cfg *c, q4x_q4_int a, q4x_q4_int b, q4x_err *err) {
    if (c->v[a] % c->v[b] == 0) return 0;
    return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected a multiple of %s = %lld", c->where, q4x_q4_name(c, a),
                    (long long)c->v[a], q4x_q4_name(c, b), (long long)c->v[b]);
}

static int check_rot(const q4x_q4_cfg *c, q4x_err *err) {
    const char *what = c->container == Q4X_HF ? "head_dim * partial_rotary_factor" : "rope.dimension_count";
    if (c->rot < 2 || c->rot % 2 || c->rot > c->v[Q4X_Q4_HD])
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected an even number from 2 to %s = %lld", c->where,
                        what, (long long)c->rot, q4x_q4_name(c, Q4X_Q4_HD), (long long)c->v[Q4X_Q4_HD]);
    if (c->has_idx && c->rot > c->v[Q4X_Q4_ID])
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected at most %s = %lld", c->where, what,
                        (long long)c->rot, q4x_q4_name(c, Q4X_Q4_ID), (long long)c->v[Q4X_Q4_ID]);
    return 0;
}

static int check_ple(const q4x_q4_cfg *c, q4x_err *err) {
    int64_t P = (c->v[Q4X_Q4_NGRAM] - 1) * c->v[Q4X_Q4_HPN];
    if (!c->nple) return 0;
    if (c->v[Q4X_Q4_PLEW] % P)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected a multiple of (%s - 1) * %s = %lld", c->where,
                        q4x_q4_name(c, Q4X_Q4_PLEW), (long long)c->v[Q4X_Q4_PLEW], q4x_q4_name(c, Q4X_Q4_NGRAM),
                        q4x_q4_name(c, Q4X_Q4_HPN), (long long)P);
    if (c->eos < 0 || c->eos >= c->v[Q4X_Q4_V])
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected an id below the vocabulary's %lld", c->where,
                        c->container == Q4X_HF ? "eos_token_id" : "ple.eos_token_id", (long long)c->eos,
                        (long long)c->v[Q4X_Q4_V]);
    return 0;
}

int q4x_q4_check(const q4x_q4_cfg *c, k_dims *ret, q4x_err *err) {
    const int64_t *v = c->v;
    int rc;
    if (v[Q4X_Q4_K] > v[Q4X_Q4_E])
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected at most %s = %lld", c->where,
                     q4x_q4_name(c, Q4X_Q4_K), (long long)v[Q4X_Q4_K], q4x_q4_name(c, Q4X_Q4_E),
                     (long long)v[Q4X_Q4_E]));
    TRY(divides(c, Q4X_Q4_H, Q4X_Q4_G, err));
    TRY(divides(c, Q4X_Q4_NV, Q4X_Q4_NK, err));
    if (c->has_idx) TRY(divides(c, Q4X_Q4_BUDGET, Q4X_Q4_RATIO, err));
    TRY(check_rot(c, err));
    TRY(check_ple(c, err));
    /* Ranges of the key list keep every product below inside int32. */
    k_dims d = {0};
    d.D = (int32_t)v[Q4X_Q4_D], d.N = (int32_t)v[Q4X_Q4_N], d.W = d.N * d.D, d.R = (int32_t)v[Q4X_Q4_R];
    d.V = (int32_t)v[Q4X_Q4_V], d.L = (int32_t)v[Q4X_Q4_L];
    d.nk = (int32_t)v[Q4X_Q4_NK], d.nv = (int32_t)v[Q4X_Q4_NV];
    d.dk = (int32_t)v[Q4X_Q4_DK], d.dv = (int32_t)v[Q4X_Q4_DV];
    d.C = 2 * d.nk * d.dk + d.nv * d.dv, d.Kc = (int32_t)v[Q4X_Q4_KC];
    d.gguf_heads = c->container == Q4X_GGUF && d.nk != d.nv;
    d.gate_silu = c->gate_silu;
    d.H = (int32_t)v[Q4X_Q4_H], d.G = (int32_t)v[Q4X_Q4_G], d.hd = (int32_t)v[Q4X_Q4_HD], d.rot = (int32_t)c->rot;
    if (c->has_idx) {
        d.ih = (int32_t)v[Q4X_Q4_IH], d.id = (int32_t)v[Q4X_Q4_ID];
        d.ratio = (int32_t)v[Q4X_Q4_RATIO], d.nsel = (int32_t)(v[Q4X_Q4_BUDGET] / v[Q4X_Q4_RATIO]);
    }
    d.E = (int32_t)v[Q4X_Q4_E], d.K = (int32_t)v[Q4X_Q4_K];
    d.F = (int32_t)v[Q4X_Q4_F], d.Fs = (int32_t)v[Q4X_Q4_FS];
    d.renorm = c->renorm;
    if (c->nple) {
        d.n = (int32_t)v[Q4X_Q4_NGRAM], d.P = (d.n - 1) * (int32_t)v[Q4X_Q4_HPN];
        d.pw = (int32_t)v[Q4X_Q4_PLEW] / d.P, d.Kp = (int32_t)v[Q4X_Q4_KP], d.eos = (int32_t)c->eos;
    }
    d.eps = (float)c->eps;
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

int q4x_q4_hash_check(const q4x_q4_cfg *c, const k_dims *d, const int64_t *hash, int64_t *ret_rows, q4x_err *err) {
    const int64_t *size = hash + d->n, *off = size + d->P;
    int64_t rows = 0;
    for (int32_t i = 0; i < d->n; i++)
        if (hash[i] < 1)
            return q4x_fail(err, Q4X_E_FORMAT, "%s: n-gram hash: layer_multipliers[%d] is %lld, expected above 0",
                            c->where, i, (long long)hash[i]);
    for (int32_t h = 0; h < d->P; h++) {
        if (size[h] < 1 || size[h] > INT32_MAX || off[h] < 0 || off[h] > INT32_MAX - size[h])
            return q4x_fail(err, Q4X_E_FORMAT,
                            "%s: n-gram hash: head %d has offset %lld and size %lld, expected a range within int32",
                            c->where, h, (long long)off[h], (long long)size[h]);
        if (off[h] + size[h] > rows) rows = off[h] + size[h];
    }
    *ret_rows = rows;
    return 0;
}
