/* arch_qwen4.c: the forward of `qwen4_exp`, as a plan. Reads top to bottom like the forward it describes (spec sections
 * 2 to 7). Node names are the public vocabulary; nodes that only this house names are marked "ours". */
#include "lib/arch_qwen4.h"

#include <stddef.h>

#include "lib/arch_emit.h"

/* Names that exist once per hyper-connection. */
typedef struct {
    const char *norm, *down, *up, *gate, *mix, *inj;
} hc_names;
static const hc_names AHC = {"ahc.norm", "ahc.down", "ahc.up", "ahc.gate", "ahc.mix", "ahc.inj"};
static const hc_names MHC = {"mhc.norm", "mhc.down", "mhc.up", "mhc.gate", "mhc.mix", "mhc.inj"};
static const hc_names OUT = {"out.norm", "out.down", "out.up", "out.gate", "out", NULL};

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

/* Section 5.4: which tokens each query may see: its blocks in rank order, and what an engine adds to them (ours). None
 * when the model has no indexer. */
static q4x_seen indexer(q4x_emit *e, const q4x_layer4 *L, const float *freq, int32_t x) {
    const k_dims *d = &e->p->d;
    if (!d->ih) return (q4x_seen){-1, -1};
    int32_t sraw = STATE("state.idx", .rows_kind = Q4X_ROWS_POS, .cols = d->id);
    int32_t spool = STATE("state.pool", .rows_kind = Q4X_ROWS_BLOCK, .cols = d->id); /* ours */
    int32_t p = NODE("attn.idx.proj", matmul, d->ih * d->id, IN(x), W1(&L->iq));     /* ours */
    int32_t n = NODE("attn.idx.norm", rmsnorm, d->ih * d->id, IN(p), .par = {L->iqnorm}, .G = d->id,
                     .stride = d->id); /* ours */
    int32_t q = NODE("attn.idx.q", rope, d->ih * d->id, IN(n), .par = {freq}, .G = d->id);
    int32_t k = NODE("attn.idx.k", matmul, d->id, IN(x), W1(&L->ik));
    int32_t pk = NODE("attn.idx.pool", idx_pool, d->id, IN(k), ST(sraw), .par = {L->iknorm, freq}); /* ours */
    int32_t sc = NODE("attn.idx.score", idx_score, 1, IN(q, pk), ST(spool), .cols_kind = Q4X_COLS_BLOCKS);
    int32_t sel = NODE("attn.idx.sel", idx_sel, 1, IN(sc), .cols_kind = Q4X_COLS_SEL, .is_ids = 1, .scores = sc);
    int32_t most = d->ratio > 2 ? d->ratio - 1 : 1;
    return (q4x_seen){sel, NODE("attn.idx.extra", idx_extra, most, IN(sc, sel), .is_ids = 1)}; /* ours */
}

/* Section 5. */
static int32_t qsa(q4x_emit *e, const q4x_layer4 *L, const float *freq, int32_t x) {
    q4x_qkv qkv = q4x_emit_qkv(e, &L->attn, freq, x);
    q4x_seen see = indexer(e, L, freq, x);
    return q4x_emit_attend(e, &L->attn, &qkv, see);
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
    return NODE("s.ple", add, d->W, IN(H, out), RESID, PUBLIC);
}

static int32_t layer(q4x_emit *e, const q4x_qwen4 *w, int32_t l, int32_t H) {
    const k_dims *d = &e->p->d;
    const q4x_layer4 *L = &w->layer[l];
    int32_t inj = 0;
    e->layer = l;
    H = NODE("in", alias, d->W, IN(H), PUBLIC);
    if (L->has_ple) H = ple(e, L, H);
    int32_t x = hc_mix(e, &L->ahc, H, &AHC, &inj);
    int32_t y = L->is_attn ? qsa(e, L, w->freq, x) : q4x_emit_gdn(e, &L->gdn, x);
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
