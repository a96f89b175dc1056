/* arch_mixer.h: the two token mixers that architectures share, gated delta net and gated attention: their weights, and
 * their part of a plan. lib/arch_mixer_bind.c finds the weights in a file.
 */
#ifndef Q4X_ARCH_MIXER_H
#define Q4X_ARCH_MIXER_H

#include "kernels/k.h"
#include "lib/plan.h"

/* Gated delta net (spec section 4). */
typedef struct {
    k_weight qkv, z, b, a, out; /* [C,D] [nv dv,D] [nv,D] [nv,D] [D,nv dv] */
    const float *conv;          /* [C,Kc] */
    const float *dt_bias;       /* [nv] */
    const float *neg_exp_A;     /* [nv] -exp(A_log) */
    const float *norm;          /* [dv] raw weight, no 1+ */
} q4x_gdn;

/* Attention with a norm a head, partial rotation and a gate (spec sections 5.1 to 5.3). */
typedef struct {
    k_weight q, k, v, o;        /* [2 H hd,D] [G hd,D] [G hd,D] [D,H hd] */
    const float *qnorm, *knorm; /* [hd] 1 + w */
} q4x_attn;

/* Nodes gdn.* and blk, states state.conv and state.delta, of the layer that e is in. x: node of the input [T,D].
 * Returns the node of blk. */
int32_t q4x_emit_gdn(q4x_emit *e, const q4x_gdn *w, int32_t x);

/* What attention has before it knows which tokens a query may see: nodes and states. */
typedef struct {
    int32_t qg, v, rope_q, rope_k, state_k, state_v;
} q4x_qkv;

/* States state.k and state.v, nodes attn.qg to attn.rope.k. freq: [rot/2], see q4x_bind_freq. */
q4x_qkv q4x_emit_qkv(q4x_emit *e, const q4x_attn *w, const float *freq, int32_t x);
/* The nodes that say which blocks a query sees and which tokens besides; both -1: it sees all before it. */
typedef struct {
    int32_t blocks, extra;
} q4x_seen;

/* Nodes attn.score to attn.gated and blk. Returns the node of blk. */
int32_t q4x_emit_attend(q4x_emit *e, const q4x_attn *w, const q4x_qkv *in, q4x_seen see);

#endif
