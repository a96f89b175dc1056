/* moe_group.cu: the slots of a tile by their experts (panel.cuh), by one block. Counts and places are integers; the
 * order of the slots of an expert changes no bit. */
#include "kernels/block.cuh"
#include "kernels/moe.h"
#include "kernels/panel.cuh"

enum { KEPT = 8192 /* experts whose counts fit into shared memory */ };

/* first[e] .. first[e + 1] of slot[] become expert e's, those of e = E the slots without one; who: see k_dev_panel.
 * count: E + 1 words. */
static __device__ __forceinline__ void places(int32_t *count, int32_t E, int32_t turns, int32_t *first, int32_t *who) {
    __shared__ int32_t sums[2][K_WARP];
    const int32_t per = (E + (int32_t)blockDim.x) / (int32_t)blockDim.x, from = (int32_t)threadIdx.x * per,
                  end = from + per < E + 1 ? from + per : E + 1;
    int32_t own = 0, busy = 0, all, listed;
    for (int32_t e = from; e < end; e++) {
        own += count[e];
        busy += count[e] > 0;
    }
    int32_t at = k_block_before(own, sums[0], &all), turn = k_block_before(busy, sums[1], &listed);
    for (int32_t e = from; e < end; e++) {
        const int32_t n = count[e];
        if (n > 0) who[turn++] = e;
        first[e] = count[e] = at;
        at += n;
    }
    if (threadIdx.x == 0) first[E + 1] = all;
    for (int32_t i = listed + (int32_t)threadIdx.x; i < turns; i += (int32_t)blockDim.x) who[i] = -1;
}

static __global__ void group_k(const int32_t *ids, int32_t slots, int32_t E, int32_t turns, int32_t *first,
                               int32_t *who, int32_t *slot, int32_t *more) {
    K_DYNAMIC(int32_t, shared);
    int32_t *count = more ? more : shared;
    for (int32_t e = (int32_t)threadIdx.x; e <= E; e += (int32_t)blockDim.x) count[e] = 0;
    __syncthreads();
    for (int32_t s = (int32_t)threadIdx.x; s < slots; s += (int32_t)blockDim.x)
        atomicAdd(&count[ids[s] >= 0 && ids[s] < E ? ids[s] : E], 1);
    __syncthreads();
    places(count, E, turns, first, who);
    __syncthreads();
    for (int32_t s = (int32_t)threadIdx.x; s < slots; s += (int32_t)blockDim.x)
        slot[atomicAdd(&count[ids[s] >= 0 && ids[s] < E ? ids[s] : E], 1)] = s;
}

int32_t k_group_cuda(k_dev_panel *p, const int32_t *ids, int32_t E, int rows, float *lists, void *stream) {
    const int32_t slots = p->n, turns = (int32_t)k_dev_turns(rows, slots, E);
    p->E = E;
    if (k_dev_slot_by_slot(rows, slots, E)) {
        p->who = ids;
        return turns;
    }
    int32_t *first = (int32_t *)(void *)lists, *count = first + E + 2, *who = count + E + 1, *slot = who + turns;
    p->who = who;
    p->first = first;
    p->slot = slot;
    const int kept = E < KEPT;
    K_LAUNCH(group_k, dim3(1), dim3(K_THREADS), kept ? (size_t)(E + 1) * sizeof(int32_t) : 0, stream, ids, slots, E,
             turns, first, who, slot, kept ? (int32_t *)NULL : count);
    return turns;
}
