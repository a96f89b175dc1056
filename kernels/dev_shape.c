#include "kernels/dev_shape.h"

#include <limits.h>
#include <string.h>

#include "kernels/attn.h"
#include "kernels/gdn.h"
#include "kernels/indexer_extra.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/quant.h"

typedef const k_call call;
typedef const k_dims dims;

/* ---- element by element ---- */

static void embed_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = K_ANY;
    s->w_rows = K_ANY, s->w_cols = c->cols;
}

static void widen_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = c->in_cols[0];
    if (c->in_cols[0] < 1 || c->cols % c->in_cols[0]) s->wrong = "columns: no whole number of copies";
}

static void slice_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = c->in_cols[0];
    if (c->off < 0 || c->off + c->cols > c->in_cols[0]) s->wrong = "columns beyond the input's";
}

static void add_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = s->in[1] = c->cols;
}

static void sigmoid_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = c->cols;
}

static void swiglu_shape(call *c, dims *d, k_shape *s) {
    add_shape(c, d, s);
}

static void gdn_g_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = s->par[0] = s->par[1] = c->cols;
}

static void attn_gate_shape(call *c, dims *d, k_shape *s) {
    s->in[0] = c->cols, s->in[1] = 2 * c->cols;
    if (d->hd < 1 || c->cols % d->hd) s->wrong = "columns: no whole number of heads";
}

static void hc_mix_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = s->in[1] = c->in_cols[0];
    if (c->in_cols[0] < 1 || c->in_cols[0] % c->cols) s->wrong = "columns: no whole number of streams";
}

static void hc_add_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    for (int k = 0; k < 3; k++) s->in[k] = k ? c->in_cols[k] : c->cols;
    if (c->in_cols[1] < 1 || c->in_cols[2] < 1 || c->cols % c->in_cols[1] || c->cols / c->in_cols[1] != c->in_cols[2])
        s->wrong = "columns: not one stream for each injection";
}

static void ple_mul_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = c->in_cols[0], s->in[1] = c->in_cols[1];
    if (c->in_cols[0] < 1 || c->in_cols[1] < 1 || c->cols % c->in_cols[1] || c->cols / c->in_cols[1] != c->in_cols[0])
        s->wrong = "columns: not one stream for each gate";
}

/* ---- groups of columns ---- */

static int groups_are_whole(call *c) {
    return c->G > 0 && c->cols % c->G == 0 && c->off >= 0;
}

static void rmsnorm_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = c->in_cols[0];
    s->par[0] = c->per ? c->cols : c->G;
    if (!groups_are_whole(c) || c->stride < 0)
        s->wrong = "columns: no whole number of groups";
    else if (c->off + (c->cols / c->G - 1) * c->stride + c->G > c->in_cols[0])
        s->wrong = "groups beyond the input's columns";
}

static void l2norm_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = c->in_cols[0];
    if (!groups_are_whole(c))
        s->wrong = "columns: no whole number of groups";
    else if (c->off + c->cols > c->in_cols[0])
        s->wrong = "groups beyond the input's columns";
}

static void gdn_norm_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = s->in[1] = c->cols;
    s->par[0] = c->G;
    if (!groups_are_whole(c)) s->wrong = "columns: no whole number of groups";
}

static void rope_shape(call *c, dims *d, k_shape *s) {
    s->in[0] = c->cols;
    s->par[0] = d->rot / 2;
    if (c->G < 1 || d->rot < 0 || d->rot > c->G) s->wrong = "more dimensions rotated than a head has";
}

static void ple_gate_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = s->in[1] = c->in_cols[0];
    if (c->in_cols[0] < 1 || c->in_cols[0] % c->cols) s->wrong = "columns: no whole number of streams";
}

/* ---- products ---- */

static void matmul_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = s->w_cols = c->in_cols[0];
    s->w_rows = c->cols;
    if (c->epi < K_EPI_NONE || c->epi > K_EPI_RAW) s->wrong = "no such epilogue";
    const k_weight *w = c->w[0];
    if (!c->in_cols[0] && (!w || w->cols || w->rows != c->cols || !k_quant_get(w->type))) /* of no elements: +0 */
        s->wrong = "a weight of another shape, or of no type";
    if (c->in_cols[0] > INT_MAX || c->cols > INT_MAX) s->wrong = "more columns than 31 bits count";
    if (w && k_gemm_of(c) != K_BY_OWN) return; /* gemm.cu says what is too little: it depends on where weights lie */
    if (!k_dot_plain(c->lv, c->Tcall)) s->scratch = k_dot_act_floats(c->T, c->in_cols[0]);
}

static void moe_ids_shape(call *c, dims *d, k_shape *s) {
    s->in[0] = d->E;
    s->scratch = 3 * (int64_t)d->E * c->T;
    if (d->E < 1) s->wrong = "no expert";
    if (c->cols > d->E) s->wrong = "more experts are to be chosen than there are";
}

static void moe_weights_shape(call *c, dims *d, k_shape *s) {
    s->in[0] = d->E, s->in[1] = c->cols;
    if (d->E < 1) s->wrong = "no expert";
    if (c->cols > d->E) s->wrong = "more experts were chosen than there are";
}

static void moe_expert_shape(call *c, dims *d, k_shape *s) {
    const int64_t K = c->in_cols[1], E = c->nw[0], slots = c->T * K,
                  columns = k_dot_plain(c->lv, c->Tcall) ? 0
                            : c->per                     ? slots
                                                         : c->T;
    (void)d;
    s->w_list = 1;
    if (E < 1 || K < 1)
        s->wrong = "no expert, or none a token";
    else if (c->per < 0 || c->per > 1)
        s->wrong = "per: 0 or 1";
    else if (c->cols % K || (c->per && c->in_cols[0] % K))
        s->wrong = "columns: not the same for each slot";
    else if (slots > INT_MAX)
        s->wrong = "more slots than 31 bits count";
    else if (k_dev_turns(c->T, slots, E) > K_DEV_GRID_YZ)
        s->wrong = "more experts at once than the 65535 of one launch";
    if (s->wrong) return;
    s->in[0] = c->in_cols[0], s->in[1] = K;
    s->w_rows = c->cols / K, s->w_cols = c->per ? c->in_cols[0] / K : c->in_cols[0];
    if (s->w_cols < 1) s->wrong = "input: no columns";
    s->scratch = k_dev_lists(slots, E) + k_dot_act_floats(columns, s->w_cols);
}

static void moe_routed_shape(call *c, dims *d, k_shape *s) {
    const int64_t K = c->in_cols[1];
    enum { MOST = 4096 }; /* slots whose order is kept in shared memory */
    (void)d;
    if (K > MOST) {
        s->wrong = "more experts a token than the 4096 that a block orders";
        return;
    }
    for (int k = 0; k < 3 && K; k++) s->in[k] = k ? K : K * c->cols;
    if (!K && (c->in_cols[0] || c->in_cols[2])) s->wrong = "slots: their numbers differ";
}

static void moe_out_shape(call *c, dims *d, k_shape *s) {
    (void)d;
    s->in[0] = s->in[1] = c->cols, s->in[2] = 1;
}

/* ---- with a state ---- */

static void conv_shape(call *c, k_shape *s, int64_t taps, int64_t dilation) {
    s->in[0] = s->st_cols = c->cols;
    s->par[0] = c->cols * taps;
    s->st_rows = (taps - 1) * dilation;
    if (taps < 1 || dilation < 1) s->wrong = "a convolution without taps";
}

static void conv1d_shape(call *c, dims *d, k_shape *s) {
    conv_shape(c, s, d->Kc, 1);
}

static void ple_conv_shape(call *c, dims *d, k_shape *s) {
    conv_shape(c, s, d->Kp, d->n);
}

static void gdn_core_shape(call *c, dims *d, k_shape *s) {
    const int64_t keys = (int64_t)d->nk * d->dk, values = (int64_t)d->nv * d->dv;
    s->in[0] = s->in[1] = keys, s->in[2] = values, s->in[3] = s->in[4] = d->nv;
    s->st_rows = (int64_t)d->nv * d->dk, s->st_cols = d->dv;
    if (d->nk < 1 || d->nv < 1 || d->dk < 1 || d->dv < 1 || d->nv % d->nk || c->cols != values)
        s->wrong = "heads: their numbers do not go together";
    else if (d->nv > K_DEV_GRID_YZ)
        s->wrong = "more value heads than the 65535 of one launch";
    else if (!k_gdn_chunked(c) && 2 * (int64_t)d->dk * (int64_t)sizeof(float) > K_DEV_SHARED)
        s->wrong = "a key head of more than the 6144 columns that a block keeps";
    else if (k_gdn_chunked(c) && d->dv > (int64_t)32 * K_DEV_GRID_YZ - d->dk)
        s->wrong = "more columns of a head than the 65535 words of one launch";
    else if (k_gdn_chunked(c))
        s->scratch = d->nv * k_gdn_chunk_floats(d);
}

static void idx_pool_shape(call *c, dims *d, k_shape *s) {
    s->in[0] = s->par[0] = s->st_cols = d->id;
    s->par[1] = d->rot / 2;
    s->st_rows = (int64_t)c->pos0 + c->T;
    if (d->id < 1 || d->ratio < 1 || d->rot < 0 || d->rot > d->id || c->cols != d->id)
        s->wrong = "indexer: its dimensions do not go together";
}

static void idx_score_shape(call *c, dims *d, k_shape *s) {
    s->in[0] = (int64_t)d->ih * d->id, s->in[1] = s->st_cols = d->id;
    if (d->ih < 1 || d->id < 1 || d->ratio < 1)
        s->wrong = "indexer: its dimensions do not go together";
    else
        s->st_rows = (c->pos0 + c->T) / d->ratio;
}

static void idx_sel_shape(call *c, dims *d, k_shape *s) {
    s->in[0] = c->in_cols[0];
    s->scratch = 2 * c->in_cols[0] * c->T;
    if (d->ratio < 1 || d->nsel < 0) {
        s->wrong = "blocks of no tokens, or fewer than none of them";
        return;
    }
    const int64_t blocks = (c->pos0 + c->T) / d->ratio, chosen = blocks < d->nsel ? blocks : d->nsel;
    if (c->in_cols[0] < 1 || c->in_cols[0] < blocks) s->wrong = "scores: not one for each block";
    if (c->cols < chosen) s->wrong = "ids: no room for the blocks that are selected";
}

static void idx_extra_shape(call *c, dims *d, k_shape *s) {
    if (c->lv->extra == K_EXTRA_OFF) return;
    s->in[0] = c->in_cols[0], s->in[1] = K_ANY;
    if (d->ratio < 1 || d->nsel < 0)
        s->wrong = "blocks of no tokens, or fewer than none of them";
    else if (c->Tc < c->pos0 + c->T || c->in_cols[0] < 1 || c->in_cols[0] < c->Tc / d->ratio)
        s->wrong = "scores: not one for each block";
    else
        s->scratch = k_extra_floats(c->Tc, d->ratio);
}

/* slot: of selected blocks. */
static void attention(call *c, dims *d, k_shape *s, int slot) {
    const int sees_some = c->in_i[slot] != NULL;
    if (d->H < 1 || d->G < 1 || d->hd < 1 || d->H % d->G)
        s->wrong = "heads: their numbers do not go together";
    else if (c->Tc < c->pos0 + c->T)
        s->wrong = "scores: not one for each position";
    else if (sees_some && d->ratio < 1)
        s->wrong = "blocks of no tokens";
    else if (sees_some) /* more blocks than tokens need no more */
        s->scratch = c->T * k_see_floats(c->Tc, d->ratio, c->in_cols[slot] < c->Tc ? c->in_cols[slot] : c->Tc);
}

static void attn_score_shape(call *c, dims *d, k_shape *s) {
    s->in[0] = (int64_t)d->H * d->hd, s->in[1] = s->st_cols = (int64_t)d->G * d->hd;
    s->st_rows = (int64_t)c->pos0 + c->T;
    attention(c, d, s, 2);
    if (c->cols != (int64_t)d->H * c->Tc) s->wrong = "scores: not one for each head and position";
}

static void attn_prob_shape(call *c, dims *d, k_shape *s) {
    s->in[0] = (int64_t)d->H * c->Tc;
    attention(c, d, s, 1);
    if (c->cols != (int64_t)d->H * c->Tc) s->wrong = "probabilities: not one for each head and position";
    if ((int64_t)c->T * d->H > INT_MAX) s->wrong = "more rows of heads than 31 bits count";
}

static void attn_ctx_shape(call *c, dims *d, k_shape *s) {
    s->in[0] = (int64_t)d->H * c->Tc, s->in[1] = s->st_cols = (int64_t)d->G * d->hd;
    if (c->lv->sweep == K_SWEEP_ONLINE) s->in[2] = s->in[0];
    s->st_rows = (int64_t)c->pos0 + c->T;
    attention(c, d, s, 3);
    if (c->cols != (int64_t)d->H * d->hd)
        s->wrong = "columns: not all heads";
    else if (!s->wrong && (d->H / d->G + K_CTX_HEADS - 1) / K_CTX_HEADS > K_DEV_GRID_YZ / d->G)
        s->wrong = "more groups of heads than the 65535 of one launch";
}

/* ---- all of them ---- */

static void no_shape(call *c, dims *d, k_shape *s) {
    (void)c;
    (void)d;
    s->wrong = "no op of a device";
}
#define alias_shape no_shape
#define ple_ids_shape no_shape
#define ple_gather_shape no_shape

/* One for each op, or this does not compile. */
static void (*const shapes[K_OP_COUNT])(call *, dims *, k_shape *) = {
#define OP(name, cls, band) name##_shape,
#include "kernels/ops.def"
#undef OP
};

k_shape k_shape_of(k_op op, const k_call *c) {
    k_shape s;
    memset(&s, 0, sizeof s);
    if ((int)op < 0 || op >= K_OP_COUNT)
        s.wrong = "no such op";
    else if (c->T > K_DEV_GRID_YZ)
        s.wrong = "more rows than the 65535 of one launch";
    else
        shapes[op](c, c->d, &s);
    return s;
}
