/* norm.h: root-mean-square norms. ORDERED.
 *
 * order    the sum of squares of a group is lanes32 with fmaf (reduce.h); everything after it is elementwise
 * rounds   as written; sum, mean, root and quotient are f32, one rounding each: r = 1 / sqrtf(sum / G + eps)
 * fma      in the sum only
 * special  NaN or inf in a group makes the group NaN (inf: x r = inf 0); a group of zeros gives signed zeros
 * bound    <op>_band: sum of squares k u (k = ceil(G/32) + 5), halved by the root, five steps, the stores
 * levers   act, eps.floor; rmsnorm, gdn_norm: eps; gdn_norm: gdn.gate
 * out never overlaps an input; groups are independent, so tiles and threads cannot change a bit.
 *
 *   rmsnorm   spec 0.2 (rms1p). in[0]; group g of G columns reads input columns off + g stride .., writes out columns
 *             g G ..; par[0] gamma with 1+w folded: as wide as out (per 1) or one group shared by all (per 0);
 *             eps = k_eps: lever eps or d->eps, at least lever eps.floor. out = rd((x r) gamma)
 *   l2norm    spec 4.2. in[0] columns off .. off+cols in groups of G. out = x / sqrt(sum + e), e = 1e-6 or lever
 *             eps.floor when that is more; f32 whatever act
 *   gdn_norm  spec 4.5. in[0] core (stored already), in[1] z [T,cols]; groups of G = dv; par[0] gnorm [G] (no 1+);
 *             n = rd(o r); n = rd(gnorm n); out = rd(n f(z)), f = silu or sig as lever gdn.gate says, by
 *             default d->gate_silu ? silu : sig; f is not rounded itself
 */
#ifndef K_NORM_H
#define K_NORM_H

#include "kernels/arith.h"
#include "kernels/k.h"
#include "kernels/round.h"

#ifdef __cplusplus
extern "C" {
#endif

K_HD float k_rms_r(float sumsq, int64_t n, float eps) {
    return k_rsqrt(sumsq / (float)n + eps);
}
K_HD float k_l2_r(float sumsq, float eps) {
    return k_rsqrt(sumsq + eps);
}
/* The epsilon that enters: never below lever eps.floor. */
K_HD float k_eps_floored(float eps, const k_levers *lv) {
    float floor = k_number(lv->eps_floor, 0.0f);
    return eps < floor ? floor : eps;
}
K_HD float k_eps(const k_dims *d, const k_levers *lv) {
    return k_eps_floored(k_number(lv->eps, d->eps), lv);
}
K_HD float k_l2_eps(const k_levers *lv) {
    return k_eps_floored(1e-6f, lv);
}
K_HD float k_rmsnorm1(float x, float r, float gamma, int32_t act) {
    return k_rd((x * r) * gamma, act);
}
K_HD int32_t k_gdn_gate_silu(const k_dims *d, const k_levers *lv) {
    return lv->gdn_gate == K_GATE_FILE ? d->gate_silu : lv->gdn_gate == K_GATE_SILU;
}
K_HD float k_gdn_norm1(float o, float r, float gamma, float z, int32_t silu, int32_t act) {
    float n = k_rd(gamma * k_rd(o * r, act), act);
    return k_rd(n * (silu ? k_silu(z) : k_sigmoid(z)), act);
}

void rmsnorm_cpu(const k_call *c);
void l2norm_cpu(const k_call *c);
void gdn_norm_cpu(const k_call *c);

void rmsnorm_band(const k_call *c, k_band *add);  /* 1 store */
void l2norm_band(const k_call *c, k_band *add);   /* no store */
void gdn_norm_band(const k_call *c, k_band *add); /* 3 stores */

#ifdef __cplusplus
}
#endif
#endif
