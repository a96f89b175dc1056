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
    const int32_t *first; /* of experts: slots first[e] .. first[e+1] are expert e's; NULL: one weight, n columns */
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

/* Products by a rule that is not K_RULE_LANES32 (qdot.h; qdot.cu). w: the one weight, on the host; many: an array of
 * E on the device, for p->first, of which those of this type are multiplied. columns: distinct ones, one behind the
 * other from p->x on; work: k_dot_act_floats(columns, p->K) floats of the device. */
void k_dot_cuda(const k_dev_panel *p, k_dot_rule rule, int32_t type, const k_weight *w, const k_weight *many, int32_t E,
                int64_t columns, float *work, void *stream);

#endif
