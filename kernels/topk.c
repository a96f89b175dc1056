#include "kernels/topk.h"

#include "kernels/topk_core.h"

/* Both halves of the scratch are words. */
typedef uint32_t __attribute__((may_alias)) word;
typedef int32_t __attribute__((may_alias)) index_t;

void k_topk(const float *score, int32_t n, int32_t k, int32_t tie, int32_t *ids, float *work) {
    k_topk_of(score, n, k, tie, ids, (word *)work, (index_t *)(work + n));
}
