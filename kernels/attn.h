/* attn.h: eager attention over the tokens a query may see (spec 5.2), with grouped heads (head h reads kv head
 * h / (H / G)).
 *
 * Visible to the query at position p: with idx.sel the tokens of its selected blocks (ids -1 or out of range are
 * skipped, order and repetition do not matter), the extra tokens of idx.extra (likewise; NULL: none) and the tail
 * ratio * nb .. p, nb = (p + 1) div ratio; without idx.sel (the slot is NULL) every token 0 .. p. Lists of visible
 * tokens are walked in ascending order. Rows of scores and probabilities are [H][Tc] per token, hidden entries exactly
 * +0. A query that sees nothing gets zeros.
 *
 * kvt below is the type of the caches: lever kv, or that of the activations; in() the lever attn.round, or act. Keys
 * and values are rounded to kvt as they enter their cache, and so are the ones of this call before anything reads them.
 * run is the type that the online softmax runs in: kvt in calls of fewer than K_SWEEP_LONG rows, f32 in longer ones.
 *
 * attn_score  ORDERED
 *   computes  s_j = (q . k_j) * hd^-0.5 for visible j; online: q rounded to run
 *   inputs    in[0] q [T, H * hd], roped; in[1] k [T, G * hd], roped; in_i[2] idx.sel [T, in_cols[2]] or NULL;
 *             in_i[3] idx.extra [T, in_cols[3]] or NULL
 *   outputs   st[0] k cache [cap, G * hd]: kvt(in[1]) becomes rows pos0 .. pos0+T; out [T, H * Tc]
 *   order     lanes32 over hd
 *   rounds    the dot's fmaf chain; in(); product with (float)(1 / sqrt(hd)); in()
 *   fma       in the dot
 *   bound     (hd/32 + 5) u sum|q k| scale + u |s|; with in() = bf16 2 * 2^-8 |s|; what is rounded off q and new keys
 *
 * attn_prob  ORDERED
 *   computes  p_j = exp(s_j - max) / sum over visible j
 *   inputs    in[0] scores [T, H * Tc]; in_i[1] idx.sel or NULL; in_i[2] idx.extra or NULL
 *   outputs   out [T, H * Tc]
 *   order     maximum: any (ties are equal); sum: lanes32 by token index (accumulator j mod 32 in ascending j, hidden
 *             tokens skipped). Online: the running sum of attn_ctx
 *   rounds    difference; exp of arith.h; each addition; the division; in()
 *   special   a NaN or +inf among the visible scores makes the whole row of that head NaN
 *   bound     per element 2 max|s - max| u + (2 + chain) u + u, chain = ceil(Tc/32) + 5; with in() = bf16 2^-8 more
 *
 * attn_ctx  ORDERED
 *   computes  o_i = sum over visible j of p_j v_ji
 *   inputs    in[0] probabilities [T, H * Tc]; in[1] v [T, G * hd]; in[2] scores [T, H * Tc] (online alone reads them);
 *             in_i[3] idx.sel or NULL; in_i[4] idx.extra or NULL
 *   outputs   st[0] v cache [cap, G * hd]: kvt(in[1]) becomes rows pos0 .. pos0+T; out [T, H * hd]
 *   order     serial in ascending visible j. Online, from M = -inf, S = 0, A = 0, and not from in[0] at all: when
 *             s_j > M: r = exp(M - s_j), M = s_j, e = 1, A = run(A r); else r = 1, e = exp(s_j - M); then
 *             A_i = run(fmaf(v_ji, e, A_i)), S = S r + e; o = A (1 / S). run rounds A when it is f16 alone
 *   rounds    the fmaf chain from +0; rd under act. Online: as written, each operator once
 *   fma       every step
 *   special   0 * inf is NaN, as written: v of a visible token counts even where p_j = 0. Online, a NaN score makes
 *             the row NaN
 *   bound     n u sum|p v|, n visible tokens; with act=bf16 2^-8 |o| more; online n 2^-11 for n u when run is f16
 *
 * levers act, kv, attn.round (score, prob), attn.softmax. engines: HF eager: two-pass. ggml's CPU flash attention:
 * online, kv=f16, which is what llama.cpp runs by default; short of the order within the dots, those are its bits in
 * short calls. In long ones it takes 64 queries and 64 keys at a time, in f32.
 * scratch: attn_scratch floats a thread. Bands: all three from their operands, called after the op (attn_band.c says
 * how); a cache is a copy of its rows, but for the rounding to kvt.
 */
#ifndef K_ATTN_H
#define K_ATTN_H

#include "kernels/arith.h"
#include "kernels/round.h"

#ifdef __cplusplus
extern "C" {
#endif

/* hd^-0.5, and a score from its dot. */
K_HD float k_attn_scale(int32_t hd) {
    return (float)(1.0 / sqrt((double)hd));
}
K_HD float k_attn_scaled(float dot, float scale, int32_t act) {
    return k_rd(k_rd(dot, act) * scale, act);
}

enum { K_SWEEP_LONG = 64 };

/* What attn.softmax=online rounds a query and its running context to (K_KV_*, not K_KV_ACT). */
K_HD int32_t k_sweep_type(const k_call *c) {
    return c->lv->sweep == K_SWEEP_ONLINE && c->Tcall < K_SWEEP_LONG ? k_kv_type(c->lv) : K_KV_F32;
}

/* How the running softmax takes in the next score s, *max the largest before it: returns the token's own weight e, and
 * what sum and context so far shrink by. */
K_HD float k_sweep_on(float *max, float s, float *ret_shrink) {
    *ret_shrink = 1.0f;
    if (!(s > *max)) return k_exp(s - *max);
    *ret_shrink = k_exp(*max - s);
    *max = s;
    return 1.0f;
}
/* The running sum, and one column of the running context (half: kept as f16), with that token. */
K_HD float k_sweep_sum(float sum, float shrink, float e) {
    return sum * shrink + e;
}
K_HD float k_sweep_ctx(float y, float v, float shrink, float e, int half) {
    if (shrink != 1.0f) y = half ? k_round_f16(y * shrink) : y * shrink;
    y = fmaf(v, e, y);
    return half ? k_round_f16(y) : y;
}

/* Floats of scratch that a row's list of visible tokens takes on a device, `width` selected blocks a row: a number and
 * tokens, or places and bits of words of 32; then the bits of all words. */
K_HD int64_t k_see_floats(int64_t Tc, int64_t ratio, int64_t width) {
    const int64_t words = (Tc + 31) / 32, most = (width + 2) * ratio < Tc ? (width + 2) * ratio : Tc;
    return 1 + (2 * words > most ? 2 * words : most) + words;
}

/* Heads of a group that a block of attn_ctx takes on a device, at most. */
enum { K_CTX_HEADS = 8 };

/* Floats of scratch a thread of the three ops and bands needs when the call ends with Tc known positions. */
int64_t attn_scratch(const k_dims *d, int64_t Tc);

void attn_score_cpu(const k_call *c);
void attn_prob_cpu(const k_call *c);
void attn_ctx_cpu(const k_call *c);

void attn_score_band(const k_call *c, k_band *add);
void attn_prob_band(const k_call *c, k_band *add);
void attn_ctx_band(const k_call *c, k_band *add);

/* With the cache's own rounding, which *state takes on (k.h, k_bands_fn). */
void attn_score_bands(const k_call *c, k_band *add, k_band *state);
void attn_ctx_bands(const k_call *c, k_band *add, k_band *state);

#ifdef __cplusplus
}
#endif
#endif
