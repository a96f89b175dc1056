/* tile.h: products of stored weight rows and f32 columns in order lanes32: the inner machine of matmul and moe_expert.
 *
 * computes  y[j][o] = lanes32 dot (reduce.h) of the decoded row o and column j: every output has its own 32
 *           accumulators, so blocks of rows, of columns and of k, threads and vector width cannot change a bit
 * scratch   k_tile_scratch(K) floats a thread are asked for when there are more than 3 columns: a block of rows is then
 *           decoded once for all of them. With less (even none) the bits are the same and rows are decoded again.
 * special   NaN and infinities propagate; K elements, none else, enter a sum
 */
#ifndef K_TILE_H
#define K_TILE_H

#include "kernels/k.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Register block; elements of a decoded block of rows (256 KiB: half a second-level cache); columns whose accumulators
 * are kept while k advances. Long rows do not fit: fewer of them, and more columns, so that neither is read too often.
 */
enum { K_TILE_R = 4, K_TILE_C = 3, K_TILE_BLOCK = 65536, K_TILE_LONG = 4096, K_TILE_WIDE = 48 };

/* Floats from one decoded row to the next: not a multiple of a page, so that rows do not evict each other. */
K_HD int64_t k_tile_stride(int64_t K) {
    return (K + 31) / 16 * 16;
}

/* Rows of a decoded block, and columns that go with it. */
K_HD int64_t k_tile_rows(int64_t K) {
    int64_t n = K_TILE_BLOCK / k_tile_stride(K) / K_TILE_R * K_TILE_R;
    return n < 16 ? 16 : n > 64 ? 64 : n;
}
K_HD int32_t k_tile_cols(int64_t K) {
    return K > K_TILE_LONG ? K_TILE_WIDE : K_TILE_C;
}

/* Floats of scratch a thread should bring for rows of K elements: decoded rows, accumulators. */
K_HD int64_t k_tile_scratch(int64_t K) {
    return k_tile_rows(K) * (k_tile_stride(K) + 32 * (int64_t)k_tile_cols(K));
}

/* No less than k_tile_scratch of any row length up to K. */
K_HD int64_t k_tile_scratch_upto(int64_t K) {
    int64_t some = K_TILE_BLOCK + 16 * 16 + 64 * 32 * K_TILE_C, most = 16 * (k_tile_stride(K) + 32 * K_TILE_WIDE);
    return some > most ? some : most;
}

/* Columns and where their outputs go. */
typedef struct {
    const float *x; /* column j: K floats at x + (slot(j) / div) * K */
    int64_t K;
    const int32_t *slot; /* NULL: slot(j) = j */
    int32_t n;           /* columns */
    int32_t div;         /* slots that share a column */
    float *out;          /* output of row o: out[slot(j) * O + o] */
    int64_t O;
} k_panel;

/* Rows r0 .. r1-1 of w (w->cols = K) times all columns. */
void k_panel_rows(const k_panel *p, const k_weight *w, int64_t r0, int64_t r1, float *scratch, int64_t scratch_n);

/* acc[(r * C + c) * 32 + l] += w_r[i] * x_c[i] for i = l mod 32 in ascending i < n (n a multiple of 32), R <= 4, C
 * <= 3; fresh: from +0, whatever acc held. The second is its statement in plain C, which the first must match by
 * bits. */
void k_tile_acc(const float *w, int64_t ldw, int R, const float *const *x, int C, int64_t n, int fresh, float *acc);
void k_tile_acc_plain(const float *w, int64_t ldw, int R, const float *const *x, int C, int64_t n, int fresh,
                      float *acc);

/* Sum of (w_r[i] x_j[i])^2 over all rows r and columns j of a panel and k0 <= i < k1 (multiples of 256, or the end),
 * for the bands: through the column energies sum_r w_r[i]^2, so that it costs one decoding. In f64. */
double k_panel_energy(const k_panel *p, const k_weight *w, int64_t k0, int64_t k1);

#ifdef __cplusplus
}
#endif
#endif
