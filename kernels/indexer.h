/* indexer.h: which past tokens a query may see (spec 5.4): keys pooled over blocks of `ratio` tokens, a score for each
 * complete block, the best nsel of them; and what one engine adds. A query at position p has nb(p) = (p + 1) div ratio
 * complete blocks.
 *
 * idx_pool  ORDERED
 *   computes  for every token t whose block b is complete with it, (pos0+t+1) mod ratio = 0:
 *             pk = rope( rms( mean of the block's raw keys ) ) at the position of the block's first token
 *   inputs    in[0] raw keys [T, id]; par[0] gamma [id] (1 + w folded), par[1] freq [rot/2]
 *   outputs   st[0] raw key cache: in[0], rounded to the caches' type (attn.h), becomes rows pos0 .. pos0+T;
 *             out [T, id]: row t = pk of the block that t completes, else +0 (idx_score keeps them)
 *   order     mean: ascending token from the first term; sum of squares lanes32
 *   rounds    sum / ratio; rd; ss / id + eps (each once); rsqrt of arith.h; x * r; * gamma; rd; then as rope
 *   fma       in the sum of squares only
 *   special   NaN spreads over its own block's pk
 *   bound     relative to the sizes entering: mean ratio u, norm (id/32 + 5)/2 u + 4 u, rope 3 u + 2 u of the table;
 *             with act=bf16 the stores (2^-8 each: mean, norm, three in rope) outweigh these
 *   levers    act, freq, kv
 *   scratch   indexer_scratch floats a thread
 *
 * idx_score  ORDERED
 *   computes  score_b = ( sum_h max(0, q_h . pk_b) ) / sqrt(id) for b < nb(pos0+t); -1 for the others (a score is >= 0)
 *   inputs    in[0] queries [T, ih * id]; in[1] idx_pool's out [T, id]
 *   outputs   st[0] pooled cache [cap, id]: row t of in[1] becomes row b where t completes block b (rows = nb of the
 *             last token), before anything reads it; out [T, cols], cols = max(1, Tc / ratio)
 *   order     dot lanes32; heads ascending from +0
 *   rounds    the dot's fmaf chain, one addition a head, division by sqrtf(id); no rd
 *   fma       in the dot
 *   special   NaN dots stay NaN, -0 counts as 0
 *   bound     per head (id/32 + 5) u sum|q pk|, then (ih + 1) u score
 *   engines   HF; llama.cpp and vLLM leave the division out (the ranking is the same)
 *
 * idx_sel  EXACT
 *   computes  the min(nsel, nb) best blocks of each query on its own nb scores, in rank order; -1 behind them
 *   inputs    in[0] scores [T, in_cols[0]]
 *   outputs   out_i [T, cols], cols = min(nsel, in_cols[0])
 *   order, special   k_topk (topk.h): the lever decides among equal scores, NaN ranks last
 *   levers    tie
 *   scratch   indexer_scratch floats a thread
 *
 * idx_extra  EXACT
 *   computes  off: nothing, -1 everywhere. stl: the tokens outside the selected blocks and the tail that are among the
 *             best nsel * ratio + ratio - 1 of the query's pos + 1 tokens, a token scoring as its block and those of
 *             the tail 1e9; ascending, -1 behind them. Where the tail has j tokens that is ratio - 1 - j of them
 *   inputs    in[0] scores [T, in_cols[0]] of idx_score, in_i[1] idx_sel's out [T, in_cols[1]]
 *   outputs   out_i [T, cols], cols = max(1, ratio - 1); more tokens than that (blocks of equal score at the cut, of
 *             which the heap took parts) are left out
 *   order, special   k_topk with tie rule stl over tokens in ascending order: which of a block's equal tokens are taken
 *             is what its heap happens to leave
 *   levers    extra
 *   engines   llama.cpp (spec 11, "selection width"): its list of tokens has that length whatever the tail
 *   scratch   indexer_scratch floats a thread
 *
 * Bands: idx_pool and idx_score from their operands (indexer_band.c says how); idx_sel and idx_extra have none (ids do
 * not round).
 */
#ifndef K_INDEXER_H
#define K_INDEXER_H

#include "kernels/k.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a dot becomes before the heads are added. */
K_HD float k_relu(float x) {
    return x < 0.0f ? 0.0f : x;
}

/* 1 when the token at position pos is the last of its block. */
K_HD int k_completes(int32_t pos, int32_t ratio) {
    return (pos + 1) % ratio == 0;
}

/* Complete blocks that the query at position pos may rank. */
K_HD int32_t k_nblocks(int32_t pos, int32_t ratio) {
    return (pos + 1) / ratio;
}

/* Floats of scratch a thread of these ops needs when the call ends with Tc known positions. */
int64_t indexer_scratch(const k_dims *d, int64_t Tc);

void idx_pool_cpu(const k_call *c);
void idx_score_cpu(const k_call *c);
void idx_sel_cpu(const k_call *c);
void idx_extra_cpu(const k_call *c);

void idx_pool_band(const k_call *c, k_band *add);
void idx_score_band(const k_call *c, k_band *add);

/* With the raw cache's own rounding, which *state takes on (k.h, k_bands_fn). */
void idx_pool_bands(const k_call *c, k_band *add, k_band *state);

#ifdef __cplusplus
}
#endif
#endif
