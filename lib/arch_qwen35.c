/* arch_qwen35.c: the forward of `qwen35`, as a plan. Reads top to bottom like the forward it describes (spec section
 * 10). Node names are the public vocabulary. */
#include "lib/arch_qwen35.h"

#include <stddef.h>

#include "lib/arch_emit.h"

static int32_t norm(q4x_emit *e, const char *name, const float *gamma, int32_t h) {
    const int32_t D = e->p->d.D;
    return NODE(name, rmsnorm, D, IN(h), .par = {gamma}, .G = D, .stride = D, .per = 1, PUBLIC);
}

static int32_t mlp(q4x_emit *e, const q4x_layer35 *L, int32_t x) {
    const k_dims *d = &e->p->d;
    int32_t g = NODE("mlp.gate", matmul, d->Fd, IN(x), W1(&L->gate));
    int32_t u = NODE("mlp.up", matmul, d->Fd, IN(x), W1(&L->up));
    int32_t a = NODE("mlp.act", swiglu, d->Fd, IN(g, u));
    return NODE("mlp", matmul, d->D, IN(a), W1(&L->down), PUBLIC);
}

static int32_t attention(q4x_emit *e, const q4x_attn *w, const float *freq, int32_t x) {
    q4x_qkv qkv = q4x_emit_qkv(e, w, freq, x);
    return q4x_emit_attend(e, w, &qkv, (q4x_seen){-1, -1}); /* plain causal: no indexer */
}

static int32_t layer(q4x_emit *e, const q4x_qwen35 *w, int32_t l, int32_t h) {
    const int32_t D = e->p->d.D;
    const q4x_layer35 *L = &w->layer[l];
    e->layer = l;
    int32_t x = norm(e, "norm.attn", L->norm_attn, h);
    int32_t y = L->is_attn ? attention(e, &L->attn, w->freq, x) : q4x_emit_gdn(e, &L->gdn, x);
    h = NODE("s.attn", add, D, IN(h, y), RESID);
    x = norm(e, "norm.mlp", L->norm_mlp, h);
    y = mlp(e, L, x);
    return NODE("out", add, D, IN(h, y), RESID, PUBLIC);
}

int q4x_qwen35_plan(const q4x_qwen35 *w, q4x_plan **ret, q4x_err *err) {
    q4x_emit emit, *e = &emit;
    int rc = q4x_emit_begin(e, "qwen35", &w->d, w->ctx_max, err);
    if (rc) return rc;
    const k_dims *d = &e->p->d;
    int32_t h = NODE("emb", embed, d->D, IN(Q4X_IN_IDS), W1(&w->embed), PUBLIC);
    for (int32_t l = 0; l < d->L; l++) h = layer(e, w, l, h);
    e->layer = -1;
    int32_t x = norm(e, "out", w->norm, h);
    e->p->logits = NODE("logits", matmul, d->V, IN(x), W1(&w->head), .epi = K_EPI_RAW, PUBLIC);
    return q4x_emit_end(e, ret);
}
