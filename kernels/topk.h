/* topk.h: the k best of n scores, and what happens to equal ones (lever topk.tie). EXACT.
 *
 * computes  ids[0..k) of the k largest scores in descending order (rank order)
 * order     lowest | highest: among equal scores the lower | higher index first
 *           torch: libstdc++ on (score, index) pairs compared by score alone: partial_sort to k when 64 k <= n, else
 *                  nth_element to k-1 and a sort of the first k-1 (spec 13.5)
 *           stl: libstdc++'s partial_sort to k whatever n
 * special   NaN sorts below every number, among NaNs as equal; k <= n
 * engines   torch on a CPU: torch; ggml's top-k: stl
 */
#ifndef K_TOPK_H
#define K_TOPK_H

#include "kernels/k.h"

/* work: 2 n floats of scratch (indices are kept in half of it). Writes ids[0..k). */
void k_topk(const float *score, int32_t n, int32_t k, int32_t tie, int32_t *ids, float *work);

#endif
