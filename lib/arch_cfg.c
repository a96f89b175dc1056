/* arch_cfg.c: hyper-parameters that all architectures have, whatever the container. Rules: sections 1.2 and 1.4 of the
 * specification. */
#include "lib/arch_cfg.h"

const char *q4x_key_name(const q4x_cfg *c, int id) {
    const q4x_key *k = &c->t->key[id];
    if (c->container == Q4X_HF) return k->hf;
    return k->gguf[0] == '-' ? k->gguf + 1 : k->gguf;
}

int q4x_cfg_in_range(const q4x_cfg *c, const char *key, int64_t v, int64_t lo, int64_t hi, q4x_err *err) {
    if (v >= lo && v <= hi) return 0;
    return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected %lld to %lld", c->where, key, (long long)v,
                    (long long)lo, (long long)hi);
}

int q4x_cfg_divides(const q4x_cfg *c, int a, int b, q4x_err *err) {
    if (c->v[a] % c->v[b] == 0) return 0;
    return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected a multiple of %s = %lld", c->where, q4x_key_name(c, a),
                    (long long)c->v[a], q4x_key_name(c, b), (long long)c->v[b]);
}

static int check_rot(const q4x_cfg *c, q4x_err *err) {
    const char *what = c->container == Q4X_HF ? "head_dim * partial_rotary_factor" : "rope.dimension_count";
    if (c->rot >= 2 && c->rot % 2 == 0 && c->rot <= c->v[Q4X_KEY_HD]) return 0;
    return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is %lld, expected an even number from 2 to %s = %lld", c->where, what,
                    (long long)c->rot, q4x_key_name(c, Q4X_KEY_HD), (long long)c->v[Q4X_KEY_HD]);
}

int q4x_cfg_check(const q4x_cfg *c, k_dims *ret, q4x_err *err) {
    const int64_t *v = c->v;
    int rc;
    TRY(q4x_cfg_divides(c, Q4X_KEY_H, Q4X_KEY_G, err));
    TRY(q4x_cfg_divides(c, Q4X_KEY_NV, Q4X_KEY_NK, err));
    TRY(check_rot(c, err));
    /* Ranges of the key list keep every product below inside int32. */
    k_dims d = {0};
    d.D = (int32_t)v[Q4X_KEY_D], d.V = (int32_t)v[Q4X_KEY_V], d.L = (int32_t)v[Q4X_KEY_L];
    d.nk = (int32_t)v[Q4X_KEY_NK], d.nv = (int32_t)v[Q4X_KEY_NV];
    d.dk = (int32_t)v[Q4X_KEY_DK], d.dv = (int32_t)v[Q4X_KEY_DV];
    d.C = 2 * d.nk * d.dk + d.nv * d.dv, d.Kc = (int32_t)v[Q4X_KEY_KC];
    d.gguf_heads = c->container == Q4X_GGUF && d.nk != d.nv;
    d.gate_silu = c->gate_silu;
    d.H = (int32_t)v[Q4X_KEY_H], d.G = (int32_t)v[Q4X_KEY_G], d.hd = (int32_t)v[Q4X_KEY_HD], d.rot = (int32_t)c->rot;
    d.eps = (float)c->eps;
    *ret = d;
done:
    return rc;
}
