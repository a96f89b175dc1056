/* indexer_extra.h: the extra tokens of one query under qsa.extra=stl (indexer.h, idx_extra). One text for gcc and nvcc;
 * the heap's trace is serial, what it works on may be laid out by many threads.
 */
#ifndef K_INDEXER_EXTRA_H
#define K_INDEXER_EXTRA_H

#include "kernels/topk_core.h"

/* Scratch of a query with n tokens, n / ratio of them in complete blocks. */
typedef struct {
    uint32_t *key;  /* [n] their scores */
    int32_t *v;     /* [n] the heap */
    uint32_t *seen; /* a bit a block */
} k_extra_room;

K_HD int64_t k_extra_floats(int64_t n, int32_t ratio) {
    return 2 * n + n / ratio / 32 + 1;
}
K_HD k_extra_room k_extra_room_in(float *scratch, int64_t n) {
    k_extra_room r;
    r.key = (uint32_t *)(void *)scratch;
    r.v = (int32_t *)(void *)(scratch + n);
    r.seen = (uint32_t *)(void *)(scratch + 2 * n);
    return r;
}

/* Tokens that the engine's list holds. */
K_HD int64_t k_extra_list(const k_dims *d) {
    return (int64_t)d->nsel * d->ratio + d->ratio - 1;
}

/* Token j of n into the room; score: of the blocks. */
K_HD void k_extra_enter(const k_extra_room *r, const float *score, int32_t n, int32_t ratio, int32_t j) {
    r->key[j] = k_topk_key(j < n / ratio * ratio ? score[j / ratio] : 1e9f);
    r->v[j] = j;
}

/* Once all n > k_extra_list tokens are in: up to `most` extra tokens, ascending, into ids; their number. sel: the
 * query's selected blocks. */
K_HD int64_t k_extra_pick(const k_extra_room *r, int32_t n, const k_dims *d, const int32_t *sel, int64_t nsel,
                          int32_t *ids, int64_t most) {
    const int32_t nb = n / d->ratio, k = (int32_t)k_extra_list(d);
    k_picks p;
    p.key = r->key;
    p.v = r->v;
    p.down = 0;
    k_topk_partial_sort(&p, 0, k, n);
    for (int32_t w = 0; w <= nb / 32; w++) r->seen[w] = 0;
    for (int64_t i = 0; i < nsel; i++)
        if (sel[i] >= 0 && sel[i] < nb) r->seen[sel[i] / 32] |= UINT32_C(1) << (sel[i] % 32);
    int64_t found = 0;
    for (int32_t i = 0; i < k; i++) {
        const int32_t j = r->v[i], b = j / d->ratio;
        if (b >= nb || (r->seen[b / 32] >> (b % 32) & 1)) continue;
        if (found == most && j > ids[found - 1]) continue;
        int64_t at = found < most ? found++ : most - 1;
        for (; at > 0 && ids[at - 1] > j; at--) ids[at] = ids[at - 1];
        ids[at] = j;
    }
    return found;
}

#endif
