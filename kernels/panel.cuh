/* panel.cuh: what products on a device multiply (matmul.cu, qdot.cu): columns, where outputs go, a weight's bytes. */
#ifndef K_PANEL_CUH
#define K_PANEL_CUH

#include "kernels/cuda.cuh"
#include "kernels/matmul.h"

/* What is multiplied, and what becomes of it: columns as in k_panel (tile.h), or those of one expert a block. */
typedef struct {
    const float *x;
    int64_t K;
    const int32_t *slot;  /* columns' slots; NULL: column j is slot j */
    const int32_t *who;   /* experts, a turn (blockIdx.z) each; NULL: one weight, n columns */
    const int32_t *first; /* columns first[e] .. first[e+1] are expert e's; NULL: turn i has slot i alone */
    int32_t E;            /* who[i] beyond 0 .. E-1: slots of no expert, with `first` those of E, and -1 no slot */
    int32_t n, div;
    float *out;
    int64_t O; /* outputs a slot */
    int32_t epi, N, act;
} k_dev_panel;

static __device__ __forceinline__ void k_panel_store(const k_dev_panel *p, int64_t slot, int64_t row, float y) {
    p->out[slot * p->O + row] = k_epilogue_of(y, p->epi, p->N, p->act);
}

static __device__ __forceinline__ int64_t k_panel_slot(const k_dev_panel *p, int64_t j) {
    return p->slot ? p->slot[j] : j;
}

/* What the blocks of one blockIdx.z multiply: columns from .. end with a weight, none where that is NULL. */
typedef struct {
    int64_t from, end;
    const k_weight *w;
} k_dev_turn;

/* w: the one weight; many: the experts'. Slots of no expert become NaN here, by all blocks of this blockIdx.z. */
static __device__ __forceinline__ k_dev_turn k_turn_of(const k_dev_panel *p, const k_weight *w, const k_weight *many) {
    k_dev_turn t = {0, p->n, w};
    if (!p->who) return t;
    const int32_t e = p->who[blockIdx.z];
    const int some = e >= 0 && e < p->E;
    t.w = some ? many + e : NULL;
    t.from = p->first ? (e < 0 ? 0 : p->first[e]) : blockIdx.z;
    t.end = p->first ? (e < 0 ? 0 : p->first[e + 1]) : blockIdx.z + (int64_t)1;
    for (int64_t j = t.from; !some && j < t.end; j++)
        for (int64_t i = k_tid(); i < p->O; i += (int64_t)gridDim.x * blockDim.x)
            p->out[k_panel_slot(p, j) * p->O + i] = NAN;
    return t;
}

/* The slots of p->n / K rows by their experts, into p; ids: theirs, in device memory. lists: k_dev_lists words of it.
 * Returns the values of blockIdx.z that there are to be: turns. */
int32_t k_group_cuda(k_dev_panel *p, const int32_t *ids, int32_t E, int rows, float *lists, void *stream);

/* Sixteen bytes at a, a multiple of 16, of a weight that lies in from .. end: as a whole where it holds them all, else
 * what it has of them. */
static __device__ __forceinline__ k_word16 k_load16(const uint8_t *from, const uint8_t *end, const uint8_t *a) {
    k_word16 v = {{0, 0, 0, 0}};
    if (a >= from && a + 16 <= end) return *(const k_word16 *)(const void *)a;
    for (int k = 0; k < 16; k++)
        if (a + k >= from && a + k < end) v.v[k / 4] |= (uint32_t)a[k] << 8 * (k % 4);
    return v;
}

/* n bytes at p by a warp into shared memory. to: n / 16 + 2 words. Where they begin. */
static __device__ __forceinline__ const uint8_t *k_fetch(const uint8_t *from, const uint8_t *end, const uint8_t *p,
                                                         int32_t n, k_word16 *to) {
    const int32_t skew = (int32_t)((uintptr_t)p % 16), words = (skew + n + 15) / 16;
    for (int32_t i = k_lane(); i < words; i += K_WARP) to[i] = k_load16(from, end, p - skew + 16 * i);
    return (const uint8_t *)to + skew;
}

/* Products by a rule that is not K_RULE_LANES32 (qdot.h; qdot.cu). w: the one weight, on the host; many: the experts',
 * on the device, of which those of this type are multiplied, in so many turns. columns: distinct ones, one behind the
 * other from p->x on; work: k_dot_act_floats(columns, p->K) floats of the device. */
void k_dot_cuda(const k_dev_panel *p, k_dot_rule rule, int32_t type, const k_weight *w, const k_weight *many,
                int32_t turns, int64_t columns, float *work, void *stream);

#endif
