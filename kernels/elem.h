/* elem.h: ops whose outputs each depend on a few numbers: no sums, so no order. MOVE and EXACT.
 *
 * For all of them: rows are independent; out never overlaps an input; every step is one f32 operation rounded once, in
 * the order written; no fma; NaN spreads through arithmetic and is moved by MOVE ops; T = 0 does nothing. rd = k_rd
 * under lever act, the only lever they read but for swiglu's moe.act and add's resid. Sources: the spec's sections
 * named; the functions are arith.h's.
 *
 *   op         computes                                  in                              rounds             spec
 *   slice      out = columns off .. off+cols             in[0] [T,Ci]                    never (MOVE)       9.4
 *   widen      out = N copies side by side, N =          in[0] [T,D]                     never (MOVE)       2
 *              cols / in_cols[0]
 *   add        rd(a + b); c->per 1, the residual         in[0], in[1] [T,cols]           1 store            2, 7.4
 *              stream: under lever resid
 *   sigmoid    rd(sig(x))                                in[0] [T,cols]                  1 store            3.1, 4.1
 *   swiglu     rd(rd(silu(g)) * u); lever moe.act =      in[0] g, in[1] u [T,cols]       2 stores           6
 *              gelu: rd(rd(gelu(g)) * u)
 *   attn_gate  rd(ctx * rd(sig(gate))), gate of head h   in[0] ctx [T,H hd], in[1] qg    2 stores           5.2
 *              at columns 2 h hd + hd ..                 [T, 2 H hd]; hd = d->hd
 *   gdn_g      na * softplus(a + dt)                     in[0] a [T,nv]; par[0] na =     never (f32         4.1
 *                                                        -exp(A), par[1] dt [nv]         whatever act)
 *
 * special  sigmoid(-inf) = 0, silu(-inf) = NaN (arith.h); x + -x = +0; -0 + -0 = -0; 0 * inf = NaN
 * bound    <op>_band: its roundings to first order, see k_store_band
 */
#ifndef K_ELEM_H
#define K_ELEM_H

#include "kernels/arith.h"
#include "kernels/band.h"
#include "kernels/k.h"
#include "kernels/round.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- scalar cores, one text for every device ---- */

K_HD float k_add1(float a, float b, int32_t act) {
    return k_rd(a + b, act);
}
K_HD float k_sigmoid1(float x, int32_t act) {
    return k_rd(k_sigmoid(x), act);
}
K_HD float k_swiglu1(float g, float u, int32_t act) {
    return k_rd(k_rd(k_silu(g), act) * u, act);
}
K_HD float k_geglu1(float g, float u, int32_t act) {
    return k_rd(k_rd(k_gelu(g), act) * u, act);
}
K_HD float k_gate1(float o, float gate, int32_t act) {
    return k_rd(o * k_rd(k_sigmoid(gate), act), act);
}
K_HD float k_gdn_g1(float a, float na, float dt) {
    return na * k_softplus(a + dt);
}

/* ---- for loops over rows ---- */

/* Call fn(args, act) with act a constant, so that the inlined loop has no choice left in it. */
#define K_BY_ACT(act, fn, ...) ((act) == K_ACT_BF16 ? fn(__VA_ARGS__, K_ACT_BF16) : fn(__VA_ARGS__, K_ACT_F32))
#define K_INLINE static inline __attribute__((always_inline))

/* ---- bands ---- */

/* One f32 step of a value v: hard K_STEP_HARD |v|, rms^2 K_STEP_RMS2 v^2. A store: k_store_hard, k_store_rms2. */
#define K_STEP_HARD K_U
#define K_STEP_RMS2 (K_RMS2 * K_U * K_U)

/* The band of a chain of products: every error is relative to the result, so the result alone tells it. `stores` of the
 * chain round under act, `steps` f32 operations round to 2^-24 (a function of arith.h counts as two steps an ulp). */
void k_store_band(const k_call *c, int32_t stores, int32_t steps, k_band *add);

/* The dtype that the residual stream is stored in. */
K_HD int32_t k_resid(const k_levers *lv) {
    return k_follow(lv->resid, lv->act);
}

void slice_cpu(const k_call *c);
void widen_cpu(const k_call *c);
void add_cpu(const k_call *c);
void sigmoid_cpu(const k_call *c);
void swiglu_cpu(const k_call *c);
void attn_gate_cpu(const k_call *c);
void gdn_g_cpu(const k_call *c);

void move_band(const k_call *c, k_band *add);      /* slice, widen: nothing is rounded */
void add_band(const k_call *c, k_band *add);       /* 1 store, 1 step */
void sigmoid_band(const k_call *c, k_band *add);   /* 1 store, 5 steps */
void swiglu_band(const k_call *c, k_band *add);    /* 2 stores, 6 steps; gelu: its error is one of |g|, not of y */
void attn_gate_band(const k_call *c, k_band *add); /* 2 stores, 6 steps */
void gdn_g_band(const k_call *c, k_band *add);     /* f32: the sum's step through the slope, then 4 steps */

#ifdef __cplusplus
}
#endif
#endif
