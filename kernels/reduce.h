/* reduce.h: the named sum orders. An order is a tree over logical indices; threads, tiles and devices execute it alike.
 *
 * lanes32: acc[i mod 32] takes element i in ascending i, all accumulators starting at +0; then v_l += v_(l xor t) for
 *          t = 16, 8, 4, 2, 1; the result is lane 0. Elements that do not exist are skipped, not added as zeros.
 *          Chains of m = ceil(n/32), d = 5 levels.
 * serial:  acc = +0, element i in ascending i. m = n, d = 0.
 *
 * The float forms below state the order; vector forms elsewhere (matmul.c, a warp) must give the same bits.
 */
#ifndef K_REDUCE_H
#define K_REDUCE_H

#include <math.h>

#include "kernels/k.h"

/* The butterfly, lane 0's view: only the lanes that reach lane 0 matter. */
K_HD float k_lanes32_fold(float *v) {
    for (int t = 16; t >= 1; t >>= 1)
        for (int l = 0; l < t; l++) v[l] = v[l] + v[l + t];
    return v[0];
}

/* sum w_i x_i, fmaf in every step. */
K_HD float k_lanes32_dot(const float *w, const float *x, int64_t n) {
    float acc[32] = {0};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int l = 0; l < 32; l++) acc[l] = fmaf(w[i + l], x[i + l], acc[l]);
    for (int l = 0; i + l < n; l++) acc[l] = fmaf(w[i + l], x[i + l], acc[l]);
    return k_lanes32_fold(acc);
}

/* sum x_i. */
K_HD float k_lanes32_sum(const float *x, int64_t n) {
    float acc[32] = {0};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int l = 0; l < 32; l++) acc[l] = acc[l] + x[i + l];
    for (int l = 0; i + l < n; l++) acc[l] = acc[l] + x[i + l];
    return k_lanes32_fold(acc);
}

#endif
