/* moe.h: the mixture of experts (qwen4_exp.md 6): moe_ids moe_weights moe_expert moe_routed moe_out.
 *
 * computes  moe_ids      the K best of p = softmax(logits[t]) in rank order (topk.h, lever topk.tie)
 *           moe_weights  renorm: rd(p_k / sum_k p_k), the sum in rank order; else rd(p_k). Lever moe.renorm: file
 *                        (d->renorm says), on, off. Lever moe.softmax = bf16: p, the sum and the quotient are bf16
 *           moe_expert   out[t][k] = rd(w[ids[t][k]] x), x the token's row (per = 0) or the slot's own (per = 1)
 *           moe_routed   c_k = rd(down_k * weight_k); slots: rd(+0 + c_0 + c_1 ..); experts: acc = +0, in ascending
 *                        expert id acc = rd(acc + c)
 *           moe_out      rd(routed + rd(rd(sigmoid(sgate)) * shared)); lever moe.sgate = off: as if that sigmoid
 *                        were 1
 * inputs    moe_ids      in[0] logits [T,E]; K = cols; scratch 3 E a thread
 *           moe_weights  in[0] logits [T,E], in_i[1] ids [T,K]; d->renorm; scratch E a thread
 *           moe_expert   in[0] x [T,Kin] or [T,K*Kin], in_i[1] ids [T,K], w[0] array of nw[0] = E experts [O,Kin];
 *                        scratch k_moe_expert_scratch
 *           moe_routed   in[0] down [T,K*D], in[1] weights [T,K], in_i[2] ids [T,K]; scratch K a thread
 *           moe_out      in[0] routed [T,D], in[1] shared [T,D], in[2] sgate logit [T,1]
 * outputs   ids [T,K] i32; weights [T,K]; [T,K*O]; [T,D]; [T,D]
 * class     ORDERED; moe_out EXACT
 * order     softmax: largest logit, k_exp(l - max), sum lanes32 by expert index, e / sum. Dots: lanes32, or as
 *           lever dot says (qdot.h). Sums over slots serial, as above. A slot's bits know nothing of the other tokens:
 *           experts are a schedule only
 * rounds    f32 each step; rd where written
 * fma       in the dots only
 * special   a row of logits that holds a NaN or an infinity fails closed: ids -1 (no expert), weights NaN, so its
 *           outputs are NaN; no other row knows. An id outside 0..E-1 gives NaN in its slot (a graft cannot read past
 *           the file); K = 0 gives +0
 * bound     bands below; of ids none: a selection is judged by its margin
 * levers    act, dot and repack (moe_expert), topk.tie (moe_ids), moe.softmax (moe_ids, moe_weights),
 *           moe.renorm (moe_weights), moe.combine (moe_routed), moe.sgate (moe_out)
 * engines   HF eager: experts, tie torch; HF grouped_mm, vLLM: slots. bf16 softmax, no renorm, no shared gate: no
 *           engine's choice, but what ports get wrong first
 */
#ifndef K_MOE_H
#define K_MOE_H

#include "kernels/arith.h"
#include "kernels/round.h"
#include "kernels/tile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Floats of scratch a thread should bring to moe_expert: lists of slots by expert, then k_tile_scratch. At least the
 * lists are needed: E + 1 + 2 T K. */
K_HD int64_t k_moe_expert_scratch(int64_t T, int64_t K, int64_t E, int64_t Kin) {
    return E + 1 + 2 * T * K + k_tile_scratch(Kin);
}

/* Floats that moe_expert's lists of slots by expert take on a device; behind them the quantised columns (qdot.h). */
K_HD int64_t k_dev_lists(int64_t slots, int64_t E) {
    return (2 * (E + 2) + (slots < E ? slots : E) + slots + 3) / 4 * 4;
}

/* 1 when a device takes the slots of T rows one by one, as hardly two are of one expert; else expert by expert. */
K_HD int k_dev_slot_by_slot(int64_t T, int64_t slots, int64_t E) {
    return T == 1 || slots * slots <= 2 * E;
}
/* Turns of a launch that it takes for them: a slot each, or an expert each and the slots of none. */
K_HD int64_t k_dev_turns(int64_t T, int64_t slots, int64_t E) {
    return k_dev_slot_by_slot(T, slots, E) ? slots : (slots < E ? slots : E) + 1;
}

/* 1 when moe_weights divides by the sum of the chosen. */
K_HD int k_moe_renorm(const k_call *c) {
    return c->lv->renorm == K_RENORM_FILE ? c->d->renorm != 0 : c->lv->renorm == K_RENORM_ON;
}

/* ---- scalar cores, one text for every device ---- */

K_HD int k_moe_finite1(float logit) {
    return (k_f32_bits(logit) & 0x7f800000u) != 0x7f800000u;
}

/* How p, the sum of the chosen ones and their quotient are stored (k_rd). */
K_HD int32_t k_moe_softmax_rd(const k_levers *lv) {
    return lv->softmax == K_SOFTMAX_BF16 ? K_ACT_BF16 : K_ACT_F32;
}

/* How the sum over slots is stored after each of them. */
K_HD int32_t k_moe_combine_rd(const k_levers *lv) {
    return lv->combine == K_COMBINE_EXPERTS ? lv->act : K_ACT_F32;
}

/* One more slot: sum so far, its down, its weight; each: k_moe_combine_rd. */
K_HD float k_moe_routed1(float sum, float down, float weight, int32_t act, int32_t each) {
    return k_rd(sum + k_rd(down * weight, act), each);
}

K_HD float k_moe_sgate1(float logit, const k_levers *lv) {
    return lv->sgate == K_SGATE_OFF ? 1.0f : k_rd(k_sigmoid(logit), lv->act);
}
K_HD float k_moe_out1(float routed, float shared, float gate, int32_t act) {
    return k_rd(routed + k_rd(gate * shared, act), act);
}

void moe_ids_cpu(const k_call *c);
void moe_weights_cpu(const k_call *c);
void moe_expert_cpu(const k_call *c);
void moe_routed_cpu(const k_call *c);
void moe_out_cpu(const k_call *c);

/* Bands from operands; moe_expert as matmul_band (of c->out as the op left it, with its scratch). moe_weights: each
 * exponential's error is that of its argument's rounding, u (max - l), and 0.90 ulp; sums, divisions, the store. */
void moe_weights_band(const k_call *c, k_band *add);
void moe_expert_band(const k_call *c, k_band *add);
void moe_routed_band(const k_call *c, k_band *add);
void moe_out_band(const k_call *c, k_band *add);

#ifdef __cplusplus
}
#endif
#endif
