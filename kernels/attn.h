/* attn.h: eager attention over the tokens a query may see (spec 5.2), with grouped heads (head h reads kv head
 * h / (H / G)).
 *
 * Visible to the query at position p: with idx.sel the tokens of its selected blocks (ids -1 or out of range are
 * skipped, order and repetition do not matter) and the tail ratio * nb .. p, nb = (p + 1) div ratio; without (the slot
 * is NULL) every token 0 .. p. Lists of visible tokens are walked in ascending order. Rows of scores and probabilities
 * are [H][Tc] per token, hidden entries exactly +0. A query that sees nothing gets zeros.
 *
 * attn_score  ORDERED
 *   computes  s_j = (q . k_j) * hd^-0.5 for visible j
 *   inputs    in[0] q [T, H * hd], roped; in[1] k [T, G * hd], roped; in_i[2] idx.sel [T, in_cols[2]] or NULL
 *   outputs   st[0] k cache [cap, G * hd]: in[1] becomes rows pos0 .. pos0+T, before anything reads it;
 *             out [T, H * Tc]
 *   order     lanes32 over hd
 *   rounds    the dot's fmaf chain; rd; product with (float)(1 / sqrt(hd)); rd
 *   fma       in the dot
 *   bound     (hd/32 + 5) u sum|q k| scale + u |s|; with act=bf16 2 * 2^-8 |s|
 *
 * attn_prob  ORDERED
 *   computes  p_j = exp(s_j - max) / sum over visible j
 *   inputs    in[0] scores [T, H * Tc]; in_i[1] idx.sel or NULL
 *   outputs   out [T, H * Tc]
 *   order     maximum: any (ties are equal); sum: lanes32 by token index (accumulator j mod 32 in ascending j, hidden
 *             tokens skipped)
 *   rounds    difference; exp of arith.h; each addition; the division; rd
 *   special   a NaN or +inf among the visible scores makes the whole row of that head NaN
 *   bound     per element 2 max|s - max| u + (2 + chain) u + u, chain = ceil(Tc/32) + 5; with act=bf16 2^-8 more
 *
 * attn_ctx  ORDERED
 *   computes  o_i = sum over visible j of p_j v_ji
 *   inputs    in[0] probabilities [T, H * Tc]; in[1] v [T, G * hd]; in_i[2] idx.sel or NULL
 *   outputs   st[0] v cache [cap, G * hd]: in[1] becomes rows pos0 .. pos0+T, before anything reads it;
 *             out [T, H * hd]
 *   order     serial in ascending visible j
 *   rounds    the fmaf chain from +0; rd
 *   fma       every step
 *   special   0 * inf is NaN, as written: v of a visible token counts even where p_j = 0
 *   bound     n u sum|p v|, n visible tokens; with act=bf16 2^-8 |o| more
 *
 * levers act. engines: HF eager. scratch: attn_scratch floats a thread.
 * Bands: all three from their operands, called after the op (attn_band.c says how).
 */
#ifndef K_ATTN_H
#define K_ATTN_H

#include "kernels/k.h"
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

/* Floats of scratch a thread of the three ops and bands needs when the call ends with Tc known positions. */
int64_t attn_scratch(const k_dims *d, int64_t Tc);

void attn_score_cpu(const k_call *c);
void attn_prob_cpu(const k_call *c);
void attn_ctx_cpu(const k_call *c);

void attn_score_band(const k_call *c, k_band *add);
void attn_prob_band(const k_call *c, k_band *add);
void attn_ctx_band(const k_call *c, k_band *add);

#ifdef __cplusplus
}
#endif
#endif
