/* arch_qwen4.c: the forward of `qwen4_exp`, as a plan. Reads top to bottom like the forward it describes (spec sections
 * 2 to 7). Node names are the public vocabulary; nodes that only this house names are marked "ours". */
#include <stddef.h>

#include "lib/arch_qwen4.h"
#include "lib/plan.h"

#define NODE(name, op_, cols_, ...) q4x_emit_node(e, (q4x_node){.op = K_OP_##op_, .cols = (cols_), __VA_ARGS__}, name)
#define STATE(name, ...) q4x_emit_state(e, (q4x_state_desc){__VA_ARGS__}, name)
#define IN(...) .nin = (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), .in = {__VA_ARGS__}
#define ST(...) .nst = (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), .st = {__VA_ARGS__}
#define W1(weight) .w = {weight}, .nw = {1}
#define PUBLIC .is_public = 1

/* Names that exist once per hyper-connection. */
typedef struct {
    const char *norm, *down, *up, *gate, *mix, *inj;
} hc_names;
static const hc_names AHC = {"ahc.norm", "ahc.down", "ahc.up", "ahc.gate", "ahc.mix", "ahc.inj"};
static const hc_names MHC = {"mhc.norm", "mhc.down", "mhc.up", "mhc.gate", "mhc.mix", "mhc.inj"};
static const hc_names OUT = {"out.norm", "out.down", "out.up", "out.gate", "out", NULL};

/* Width of `n` groups of `width` V-head columns from `off`, in the file's order. */
static q4x_heads heads(const k_dims *d, int32_t off, int32_t width) {
    return (q4x_heads){.axis = 1, .off = off, .width = width, .nk = d->nk, .nv = d->nv, .gguf = d->gguf_heads};
}

/* Section 3.1: x and, but for the terminal mixer, the inject gates. Returns the mix; *inj its gates. */
static int32_t hc_mix(q4x_emit *e, const q4x_hc *hc, int32_t H, const hc_names *n, int32_t *inj) {
    const k_dims *d = &e->p->d;
    int32_t xn = NODE(n->norm, rmsnorm, d->W, IN(H), .par = {hc->norm}, .G = d->D, .stride = d->D, .per = 1);
    int32_t a = NODE(n->down, matmul, d->R, IN(xn), W1(&hc->down), .epi = K_EPI_HCDOWN);
    int32_t u = NODE(n->up, matmul, d->W, IN(a), W1(&hc->up));
    int32_t m = NODE(n->gate, sigmoid, d->W, IN(u));
    int32_t x = NODE(n->mix, hc_mix, d->D, IN(m, xn), PUBLIC);
    if (n->inj) *inj = NODE(n->inj, matmul, d->N, IN(xn), W1(&hc->inject), .epi = K_EPI_HCINJ, PUBLIC);
    return x;
}

/* Section 4. */
static int32_t gdn(q4x_emit *e, const q4x_layer4 *L, int32_t x) {
    const k_dims *d = &e->p->d;
    const int32_t kd = d->nk * d->dk, vd = d->nv * d->dv;
    int32_t sconv = STATE("state.conv", .rows = d->Kc - 1, .cols = d->C, .heads = heads(d, 2 * kd, d->dv));
    q4x_heads by_row = {.axis = 2, .width = d->dk, .nk = d->nk, .nv = d->nv, .gguf = d->gguf_heads};
    int32_t sdelta = STATE("state.delta", .rows = (int64_t)d->nv * d->dk, .cols = d->dv, .heads = by_row);

    int32_t qkv = NODE("gdn.qkv", matmul, d->C, IN(x), W1(&L->qkv), .heads = heads(d, 2 * kd, d->dv));
    int32_t z = NODE("gdn.z", matmul, vd, IN(x), W1(&L->z), .heads = heads(d, 0, d->dv));
    int32_t a = NODE("gdn.a", matmul, d->nv, IN(x), W1(&L->a), .heads = heads(d, 0, 1));
    int32_t b = NODE("gdn.b", matmul, d->nv, IN(x), W1(&L->b), .heads = heads(d, 0, 1));
    int32_t u = NODE("gdn.conv", conv1d, d->C, IN(qkv), ST(sconv), .par = {L->conv}, .heads = heads(d, 2 * kd, d->dv));
    int32_t q = NODE("gdn.q", l2norm, kd, IN(u), .G = d->dk, .off = 0);
    int32_t k = NODE("gdn.k", l2norm, kd, IN(u), .G = d->dk, .off = kd);
    int32_t v = NODE("gdn.v", slice, vd, IN(u), .off = 2 * kd, .heads = heads(d, 0, d->dv));
    int32_t g = NODE("gdn.g", gdn_g, d->nv, IN(a), .par = {L->neg_exp_A, L->dt_bias}, .heads = heads(d, 0, 1));
    int32_t beta = NODE("gdn.beta", sigmoid, d->nv, IN(b), .heads = heads(d, 0, 1));
    int32_t o = NODE("gdn.core", gdn_core, vd, IN(q, k, v, g, beta), ST(sdelta), .heads = heads(d, 0, d->dv));
    int32_t n = NODE("gdn.norm", gdn_norm, vd, IN(o, z), .par = {L->gnorm}, .G = d->dv, .heads = heads(d, 0, d->dv));
    return NODE("blk", matmul, d->D, IN(n), W1(&L->out), PUBLIC);
}

/* Section 5.4: which blocks each query may see, in rank order; -1 when the model has no indexer. */
static int32_t indexer(q4x_emit *e, const q4x_layer4 *L, const float *freq, int32_t x) {
    const k_dims *d = &e->p->d;
    if (!d->ih) return -1;
    int32_t sraw = STATE("state.idx", .rows_kind = Q4X_ROWS_POS, .cols = d->id);
    int32_t spool = STATE("state.pool", .rows_kind = Q4X_ROWS_BLOCK, .cols = d->id); /* ours */
    int32_t p = NODE("attn.idx.proj", matmul, d->ih * d->id, IN(x), W1(&L->iq));     /* ours */
    int32_t n = NODE("attn.idx.norm", rmsnorm, d->ih * d->id, IN(p), .par = {L->iqnorm}, .G = d->id,
                     .stride = d->id); /* ours */
    int32_t q = NODE("attn.idx.q", rope, d->ih * d->id, IN(n), .par = {freq}, .G = d->id);
    int32_t k = NODE("attn.idx.k", matmul, d->id, IN(x), W1(&L->ik));
    int32_t pk = NODE("attn.idx.pool", idx_pool, d->id, IN(k), ST(sraw), .par = {L->iknorm, freq}); /* ours */
    int32_t sc = NODE("attn.idx.score", idx_score, 1, IN(q, pk), ST(spool), .cols_kind = Q4X_COLS_BLOCKS);
    return NODE("attn.idx.sel", idx_sel, 1, IN(sc), .cols_kind = Q4X_COLS_SEL, .is_ids = 1, .scores = sc);
}

/* Section 5. */
static int32_t qsa(q4x_emit *e, const q4x_layer4 *L, const float *freq, int32_t x) {
    const k_dims *d = &e->p->d;
    const int32_t qw = d->H * d->hd, kw = d->G * d->hd;
    int32_t sk = STATE("state.k", .rows_kind = Q4X_ROWS_POS, .cols = kw);
    int32_t sv = STATE("state.v", .rows_kind = Q4X_ROWS_POS, .cols = kw);

    int32_t qg = NODE("attn.qg", matmul, 2 * qw, IN(x), W1(&L->q));
    int32_t k = NODE("attn.k", matmul, kw, IN(x), W1(&L->k));
    int32_t v = NODE("attn.v", matmul, kw, IN(x), W1(&L->v));
    int32_t qn = NODE("attn.qn", rmsnorm, qw, IN(qg), .par = {L->qnorm}, .G = d->hd, .stride = 2 * d->hd);
    int32_t kn = NODE("attn.kn", rmsnorm, kw, IN(k), .par = {L->knorm}, .G = d->hd, .stride = d->hd);
    int32_t rq = NODE("attn.rope.q", rope, qw, IN(qn), .par = {freq}, .G = d->hd);
    int32_t rk = NODE("attn.rope.k", rope, kw, IN(kn), .par = {freq}, .G = d->hd);
    int32_t sel = indexer(e, L, freq, x);
    int32_t s, p, o;
    if (sel >= 0) {
        s = NODE("attn.score", attn_score, d->H, IN(rq, rk, sel), ST(sk), .cols_kind = Q4X_COLS_TC);
        p = NODE("attn.prob", attn_prob, d->H, IN(s, sel), .cols_kind = Q4X_COLS_TC);
        o = NODE("attn.ctx", attn_ctx, qw, IN(p, v, sel), ST(sv));
    } else {
        s = NODE("attn.score", attn_score, d->H, IN(rq, rk), ST(sk), .cols_kind = Q4X_COLS_TC);
        p = NODE("attn.prob", attn_prob, d->H, IN(s), .cols_kind = Q4X_COLS_TC);
        o = NODE("attn.ctx", attn_ctx, qw, IN(p, v), ST(sv));
    }
    int32_t gated = NODE("attn.gated", attn_gate, qw, IN(o, qg), .G = d->hd);
    return NODE("blk", matmul, d->D, IN(gated), W1(&L->o), PUBLIC);
}

/* Section 6. */
static int32_t moe(q4x_emit *e, const q4x_layer4 *L, int32_t x) {
    const k_dims *d = &e->p->d;
    int32_t lg = NODE("moe.logits", matmul, d->E, IN(x), W1(&L->router), .epi = K_EPI_ROUTER);
    int32_t ids = NODE("moe.ids", moe_ids, d->K, IN(lg), .is_ids = 1, .scores = lg);
    int32_t w = NODE("moe.weights", moe_weights, d->K, IN(lg, ids), .weights_of = ids);
    int32_t g = NODE("moe.gate", moe_expert, (int64_t)d->K * d->F, IN(x, ids), .w = {L->gate}, .nw = {d->E});
    int32_t u = NODE("moe.up", moe_expert, (int64_t)d->K * d->F, IN(x, ids), .w = {L->up}, .nw = {d->E});
    int32_t a = NODE("moe.act", swiglu, (int64_t)d->K * d->F, IN(g, u));
    int32_t c = NODE("moe.down", moe_expert, (int64_t)d->K * d->D, IN(a, ids), .w = {L->down}, .nw = {d->E}, .per = 1);
    int32_t routed = NODE("moe.routed", moe_routed, d->D, IN(c, w, ids));
    int32_t sg = NODE("moe.shared.gate", matmul, d->Fs, IN(x), W1(&L->sh_gate)); /* ours, as the next two */
    int32_t su = NODE("moe.shared.up", matmul, d->Fs, IN(x), W1(&L->sh_up));
    int32_t sa = NODE("moe.shared.act", swiglu, d->Fs, IN(sg, su));
    int32_t shared = NODE("moe.shared", matmul, d->D, IN(sa), W1(&L->sh_down));
    int32_t sgate = NODE("moe.sgate", matmul, 1, IN(x), W1(&L->sgate));
    return NODE("moe", moe_out, d->D, IN(routed, shared, sgate), PUBLIC);
}

/* Section 7: what is added to all streams before the layer's first mix. */
static int32_t ple(q4x_emit *e, const q4x_layer4 *L, int32_t H) {
    const k_dims *d = &e->p->d;
    int32_t shist = STATE("state.hist", .rows = d->n - 1, .cols = 1, .is_ids = 1, .fill = d->eos);
    int32_t sconv = STATE("state.ple.conv", .rows = (int64_t)(d->Kp - 1) * d->n, .cols = d->W); /* GDN has state.conv */

    int32_t ids = NODE("ple.ids", ple_ids, d->P, IN(Q4X_IN_IDS), ST(shist), .ipar = L->hash, .is_ids = 1);
    int32_t emb = NODE("ple.emb", ple_gather, (int64_t)d->P * d->pw, IN(ids), .w = {L->table}, .nw = {L->ntable});
    int32_t kp = NODE("ple.kproj", matmul, d->W, IN(emb), W1(&L->ple_key)); /* ours */
    int32_t key = NODE("ple.key", rmsnorm, d->W, IN(kp), .par = {L->ple_nkey}, .G = d->D, .stride = d->D, .per = 1);
    int32_t val = NODE("ple.val", matmul, d->D, IN(emb), W1(&L->ple_val));
    int32_t qry =
        NODE("ple.query", rmsnorm, d->W, IN(H), .par = {L->ple_nquery}, .G = d->D, .stride = d->D, .per = 1); /* ours */
    int32_t g = NODE("ple.gate", ple_gate, d->N, IN(key, qry));
    int32_t gv = NODE("ple.gv", ple_mul, d->W, IN(g, val)); /* ours */
    int32_t gn =
        NODE("ple.norm", rmsnorm, d->W, IN(gv), .par = {L->ple_nconv}, .G = d->D, .stride = d->D, .per = 1); /* ours */
    int32_t cv = NODE("ple.conv", ple_conv, d->W, IN(gn), ST(sconv), .par = {L->ple_conv});
    int32_t out = NODE("ple", add, d->W, IN(gv, cv), PUBLIC);
    return NODE("s.ple", add, d->W, IN(H, out), PUBLIC);
}

static int32_t layer(q4x_emit *e, const q4x_qwen4 *w, int32_t l, int32_t H) {
    const k_dims *d = &e->p->d;
    const q4x_layer4 *L = &w->layer[l];
    int32_t inj = 0;
    e->layer = l;
    H = NODE("in", alias, d->W, IN(H), PUBLIC);
    if (L->has_ple) H = ple(e, L, H);
    int32_t x = hc_mix(e, &L->ahc, H, &AHC, &inj);
    int32_t y = L->is_attn ? qsa(e, L, w->freq, x) : gdn(e, L, x);
    H = NODE("s.attn", hc_add, d->W, IN(H, y, inj), PUBLIC);
    x = hc_mix(e, &L->mhc, H, &MHC, &inj);
    y = moe(e, L, x);
    return NODE("s.mlp", hc_add, d->W, IN(H, y, inj), PUBLIC);
}

int q4x_qwen4_plan(const q4x_qwen4 *w, q4x_plan **ret, q4x_err *err) {
    q4x_emit emit, *e = &emit;
    int rc = q4x_emit_begin(e, "qwen4_exp", &w->d, w->ctx_max, err);
    if (rc) return rc;
    const k_dims *d = &e->p->d;
    int32_t emb = NODE("emb", embed, d->D, IN(Q4X_IN_IDS), W1(&w->embed), PUBLIC);
    int32_t H = NODE("wide", widen, d->W, IN(emb), PUBLIC);
    for (int32_t l = 0; l < d->L; l++) H = layer(e, w, l, H);
    e->layer = -1;
    int32_t x = hc_mix(e, &w->mixer, H, &OUT, NULL);
    e->p->logits = NODE("logits", matmul, d->V, IN(x), W1(&w->head), .epi = K_EPI_RAW, PUBLIC);
    return q4x_emit_end(e, ret);
}
