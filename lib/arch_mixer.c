/* arch_mixer.c: gated delta net and gated attention as parts of a plan (spec sections 4 and 5). Node names are the
 * public vocabulary. */
#include "lib/arch_mixer.h"

#include "lib/arch_emit.h"

/* Width of `n` groups of `width` V-head columns from `off`, in the file's order. */
static q4x_heads heads(const k_dims *d, int32_t off, int32_t width) {
    return (q4x_heads){.axis = 1, .off = off, .width = width, .nk = d->nk, .nv = d->nv, .gguf = d->gguf_heads};
}

int32_t q4x_emit_gdn(q4x_emit *e, const q4x_gdn *w, int32_t x) {
    const k_dims *d = &e->p->d;
    const int32_t kd = d->nk * d->dk, vd = d->nv * d->dv;
    int32_t sconv = STATE("state.conv", .rows = d->Kc - 1, .cols = d->C, .heads = heads(d, 2 * kd, d->dv));
    q4x_heads by_row = {.axis = 2, .width = d->dk, .nk = d->nk, .nv = d->nv, .gguf = d->gguf_heads};
    int32_t sdelta = STATE("state.delta", .rows = (int64_t)d->nv * d->dk, .cols = d->dv, .heads = by_row);

    int32_t qkv = NODE("gdn.qkv", matmul, d->C, IN(x), W1(&w->qkv), .heads = heads(d, 2 * kd, d->dv));
    int32_t z = NODE("gdn.z", matmul, vd, IN(x), W1(&w->z), .heads = heads(d, 0, d->dv));
    int32_t a = NODE("gdn.a", matmul, d->nv, IN(x), W1(&w->a), .heads = heads(d, 0, 1));
    int32_t b = NODE("gdn.b", matmul, d->nv, IN(x), W1(&w->b), .heads = heads(d, 0, 1));
    int32_t u = NODE("gdn.conv", conv1d, d->C, IN(qkv), ST(sconv), .par = {w->conv}, .heads = heads(d, 2 * kd, d->dv));
    int32_t q = NODE("gdn.q", l2norm, kd, IN(u), .G = d->dk, .off = 0);
    int32_t k = NODE("gdn.k", l2norm, kd, IN(u), .G = d->dk, .off = kd);
    int32_t v = NODE("gdn.v", slice, vd, IN(u), .off = 2 * kd, .heads = heads(d, 0, d->dv));
    int32_t g = NODE("gdn.g", gdn_g, d->nv, IN(a), .par = {w->neg_exp_A, w->dt_bias}, .heads = heads(d, 0, 1));
    int32_t beta = NODE("gdn.beta", sigmoid, d->nv, IN(b), .heads = heads(d, 0, 1));
    int32_t o = NODE("gdn.core", gdn_core, vd, IN(q, k, v, g, beta), ST(sdelta), .heads = heads(d, 0, d->dv));
    int32_t n = NODE("gdn.norm", gdn_norm, vd, IN(o, z), .par = {w->norm}, .G = d->dv, .heads = heads(d, 0, d->dv));
    return NODE("blk", matmul, d->D, IN(n), W1(&w->out), PUBLIC);
}

q4x_qkv q4x_emit_qkv(q4x_emit *e, const q4x_attn *w, const float *freq, int32_t x) {
    const k_dims *d = &e->p->d;
    const int32_t qw = d->H * d->hd, kw = d->G * d->hd;
    q4x_qkv r;
    r.state_k = STATE("state.k", .rows_kind = Q4X_ROWS_POS, .cols = kw);
    r.state_v = STATE("state.v", .rows_kind = Q4X_ROWS_POS, .cols = kw);

    r.qg = NODE("attn.qg", matmul, 2 * qw, IN(x), W1(&w->q));
    int32_t k = NODE("attn.k", matmul, kw, IN(x), W1(&w->k));
    r.v = NODE("attn.v", matmul, kw, IN(x), W1(&w->v));
    int32_t qn = NODE("attn.qn", rmsnorm, qw, IN(r.qg), .par = {w->qnorm}, .G = d->hd, .stride = 2 * d->hd);
    int32_t kn = NODE("attn.kn", rmsnorm, kw, IN(k), .par = {w->knorm}, .G = d->hd, .stride = d->hd);
    r.rope_q = NODE("attn.rope.q", rope, qw, IN(qn), .par = {freq}, .G = d->hd);
    r.rope_k = NODE("attn.rope.k", rope, kw, IN(kn), .par = {freq}, .G = d->hd);
    return r;
}

int32_t q4x_emit_attend(q4x_emit *e, const q4x_attn *w, const q4x_qkv *in, q4x_seen see) {
    const k_dims *d = &e->p->d;
    const int32_t qw = d->H * d->hd;
    int32_t s, p, o;
    if (see.blocks >= 0) {
        s = NODE("attn.score", attn_score, d->H, IN(in->rope_q, in->rope_k, see.blocks, see.extra), ST(in->state_k),
                 .cols_kind = Q4X_COLS_TC);
        p = NODE("attn.prob", attn_prob, d->H, IN(s, see.blocks, see.extra), .cols_kind = Q4X_COLS_TC);
        o = NODE("attn.ctx", attn_ctx, qw, IN(p, in->v, s, see.blocks, see.extra), ST(in->state_v));
    } else {
        s = NODE("attn.score", attn_score, d->H, IN(in->rope_q, in->rope_k), ST(in->state_k), .cols_kind = Q4X_COLS_TC);
        p = NODE("attn.prob", attn_prob, d->H, IN(s), .cols_kind = Q4X_COLS_TC);
        o = NODE("attn.ctx", attn_ctx, qw, IN(p, in->v, s), ST(in->state_v));
    }
    int32_t gated = NODE("attn.gated", attn_gate, qw, IN(o, in->qg), .G = d->hd);
    return NODE("blk", matmul, d->D, IN(gated), W1(&w->o), PUBLIC);
}
