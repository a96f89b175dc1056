/* conv.h: short causal depthwise convolutions with their silu. ORDERED.
 *
 *   conv1d    spec 4.1. in[0] c [T,C]; par[0] taps [C,K], K = d->Kc, dilation 1
 *   ple_conv  spec 7.4. in[0] gn [T,W]; par[0] taps [W,K], K = d->Kp, dilation n = d->n
 *
 * computes out[t,ch] = rd(silu(rd(sum over j of w[ch,j] x[t - dil (K-1-j), ch])))
 * order    j ascending, one fmaf chain from +0; a tap at a position below 0 is skipped, not multiplied by a zero
 * state    st[0] [L, C], L = (K-1) dil: the last L columns of x before this tile, oldest first, zeros where the
 *          sequence had not begun; afterwards the last L columns including this tile's. st->rows stays L
 * rounds   the sum as stored, silu as stored; the chain itself in f32
 * fma      every step of the chain
 * special  NaN and inf spread to the K outputs that read them; silu(-inf) = NaN
 * levers   act
 * bound    none stated: a band needs the columns that the state has already dropped when it is asked for
 * A position reads the same numbers in the same order however the sequence is cut into calls and tiles, so every cut
 * gives the same outputs and the same final state. out never overlaps the input.
 */
#ifndef K_CONV_H
#define K_CONV_H

#include "kernels/arith.h"
#include "kernels/k.h"
#include "kernels/round.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What follows the chain. */
K_HD float k_conv_act1(float sum, int32_t act) {
    return k_rd(k_silu(k_rd(sum, act)), act);
}

void conv1d_cpu(const k_call *c);
void ple_conv_cpu(const k_call *c);

#ifdef __cplusplus
}
#endif
#endif
