/* hc.h: hyper-connections, the N residual streams of a token side by side: W = N D, stream s at columns s D ...
 *
 *   hc_mix  spec 3.1. in[0] gate m [T,W], in[1] normalised streams xn [T,W] -> out [T,D], D = cols, N = in_cols[0] / D
 *           p_s = rd(m xn); out = rd((((p_0 + p_1) + p_2) + ..) / N). ORDERED
 *   hc_add  spec 3.2. in[0] H [T,W], in[1] y [T,D], in[2] inj [T,N] -> out [T,W]
 *           out = rr(H + rd(y inj_s)), rr = k_rd under lever resid, by default rd. EXACT
 *
 * order    hc_mix: streams ascending, from p_0 (not from +0)
 * rounds   as written, the sums of hc_mix and its quotient in f32, one rounding each
 * fma      none
 * special  NaN and inf spread; a sum of -0 stays -0
 * bound    <op>_band, from their own operands
 * levers   act; hc_add: resid
 * out never overlaps an input; rows and columns are independent.
 */
#ifndef K_HC_H
#define K_HC_H

#include "kernels/k.h"
#include "kernels/round.h"

#ifdef __cplusplus
extern "C" {
#endif

K_HD float k_hc_add1(float h, float y, float inj, int32_t act, int32_t resid) {
    return k_rd(h + k_rd(y * inj, act), resid);
}

/* One column of the mix: m and xn point at stream 0's element, streams lie D apart. */
K_HD float k_hc_mix1(const float *m, const float *xn, int64_t D, int32_t N, int32_t act) {
    float sum = k_rd(m[0] * xn[0], act);
    for (int32_t s = 1; s < N; s++) sum = sum + k_rd(m[s * D] * xn[s * D], act);
    return k_rd(sum / (float)N, act);
}

void hc_mix_cpu(const k_call *c);
void hc_add_cpu(const k_call *c);
void hc_mix_band(const k_call *c, k_band *add);
void hc_add_band(const k_call *c, k_band *add);

#ifdef __cplusplus
}
#endif
#endif
