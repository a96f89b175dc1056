/* gdn.h: the gated delta rule (spec 4.2 - 4.5), the two ways that engines run it. ORDERED. All f32, one rd at the end.
 *
 * gdn_core
 *   computes  per value head, state S [dk, dv], for each token:
 *             S = e^g S;  m = S^T k;  dl = (v - m) beta;  S = S + k dl^T;  o = S^T q      (q scaled by dk^-0.5)
 *             lever gdn=seq: so, token by token; gdn=chunk64: the same map in closed form, 64 tokens at a time;
 *             gdn=chunk64-bf16: that with roundings to bf16 between its products. A call of one row at a position > 0
 *             always goes by tokens, as a decode step does in HF (section 8)
 *   inputs    in[0] q [T, nk dk], in[1] k [T, nk dk], l2-normed; in[2] v [T, nv dv]; in[3] g [T, nv];
 *             in[4] beta [T, nv]; value head h reads key head h mod nk (d->gguf_heads) or h / (nv / nk)
 *   outputs   out [T, nv dv] = rd(o); st[0] delta [nv dk, dv]: S before, S after (st[1] is the band's, see there)
 *   fma       every step of every chain below
 *   special   a non-finite input reaches its own token and later ones, in the value heads that read it, and stays in
 *             their state. g = -inf is a clean reset by tokens but NaN by chunks (inf - inf in the exponents)
 *   levers    act (the store), gdn; gdn.h, gdn.hop, gdn.w, gdn.u, gdn.vnew, gdn.inv (by chunks only)
 *   engines   seq: llama.cpp in structure, HF at decode. chunk64: HF at prefill (torch fallback). chunk64-bf16: the
 *             places where the chunk kernels of FLA and vLLM keep bf16 (section 11), in our order of sums. They also
 *             round q, k and the weighted operands of their products, which no lever here does
 *   scratch   gdn_scratch floats a thread
 *   bound     gdn_core_band, and gdn_core_bands for the state too (derivation: gdn_band.c). hard is rigorous for the
 *             tile's own operands, the state before it included, and loose (1e-4 to 2e-2 of it is used in f32);
 *             measured distances are 0.4 to 1.7 of rms, of the state 0.3 to 2.1, with any of the roundings too
 *
 *   seq: order and rounds
 *     qs_i = q_i / sqrtf(dk); w = exp(g)
 *     S_ij = S_ij * w
 *     m_j: fmaf(S_ij, k_i, .) ascending i from +0
 *     dl_j = (v_j - m_j) * beta                                                  two roundings
 *     S_ij = fmaf(k_i, dl_j, S_ij)
 *     o_j: fmaf(S_ij, qs_i, .) ascending i from +0; rd
 *     Any split of the tokens into calls and tiles gives the same bits.
 *
 *   chunk64: order and rounds
 *     Chunks of 64 rows counted from the call's first row (tiles begin at multiples of 64), the last one n <= 64 rows.
 *     i, j: rows in the chunk; d, e: key dims.
 *     qs_id = q_id * (float)(1 / sqrt(dk))
 *     G_i = G_(i-1) + g_i, from +0;  E_i = exp(G_i);  L_i = exp(G_(n-1) - G_i);  X_ij = exp(G_i - G_j)
 *     kk_ij, qk_ij: fmaf(k_id, k_jd, .) and fmaf(qs_id, k_jd, .) ascending d from +0
 *     A_ij = (beta_i * kk_ij) * X_ij, j < i;  P_ij = qk_ij * X_ij, j <= i
 *     U_i = beta_i * v_i - sum_(j<i) A_ij U_j;  K_i = (beta_i * E_i) * k_i - sum_(j<i) A_ij K_j
 *           row by row (forward substitution of I + A); the sums are chains ascending j from +0, then one subtraction
 *     N_i = U_i - sum_e K_ie S_e                               chain ascending e from +0, then one subtraction
 *     o_i = fmaf(E_i, sum_e qs_ie S_e, sum_(j<=i) P_ij N_j)    both chains ascending from +0; rd
 *     S_e = fmaf(E_(n-1), S_e, sum_i (k_ie * L_i) N_i)         chain ascending i from +0
 *     The spec pads the last chunk with zero rows up to 64. They change nothing and are left out: G_63 = G_(n-1) as
 *     their g is 0; their rows of A are 0, so their U, K, N are 0, and so are the terms k * N that they add to S.
 *
 *   roundings to bf16 of chunk64-bf16, each also alone by its lever (b() rounds, values stay in f32 storage):
 *     gdn.inv   M = (I + A)^-1: M_i = e_i - sum_(j<i) A_ij M_j, chain ascending j from +0, one subtraction; b(M_ij)
 *               once all rows are known; U_i = sum_(j<=i) M_ij (beta_j v_j), K_i = sum_(j<=i) M_ij ((beta_j E_j) k_j),
 *               chains ascending j from +0. Without it U and K are substituted as above
 *     gdn.u     b(U), once all rows are known      gdn.w   b(K), likewise
 *     gdn.hop   N_i = U_i - sum_e K_ie b(S_e)      gdn.h   o_i reads b(S_e)
 *     gdn.vnew  b(N_i), read by o and by the new S
 *     The state itself is carried in f32.
 */
#ifndef K_GDN_H
#define K_GDN_H

#include "kernels/k.h"
#include "kernels/round.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { K_GDN_CHUNK = 64 };

/* Which key head value head h reads. */
K_HD int32_t k_gdn_key_head(const k_dims *d, int32_t h) {
    return d->gguf_heads ? h % d->nk : h / (d->nv / d->nk);
}

/* 1 when this call is run by chunks. */
K_HD int k_gdn_chunked(const k_call *c) {
    return c->lv->gdn != K_GDN_SEQ && !(c->Tcall == 1 && c->pos0 > 0);
}

/* What the chunked rule rounds to bf16, as a set of bits. */
enum { K_PLACE_H = 1, K_PLACE_HOP = 2, K_PLACE_W = 4, K_PLACE_U = 8, K_PLACE_VNEW = 16, K_PLACE_INV = 32 };
K_HD int32_t k_gdn_places(const k_levers *lv) {
    const int32_t rule = lv->gdn == K_GDN_CHUNK64_BF16 ? K_ACT_BF16 : K_ACT_F32;
    return (k_follow(lv->gdn_h, rule) ? K_PLACE_H : 0) | (k_follow(lv->gdn_hop, rule) ? K_PLACE_HOP : 0) |
           (k_follow(lv->gdn_w, rule) ? K_PLACE_W : 0) | (k_follow(lv->gdn_u, rule) ? K_PLACE_U : 0) |
           (k_follow(lv->gdn_vnew, rule) ? K_PLACE_VNEW : 0) | (k_follow(lv->gdn_inv, rule) ? K_PLACE_INV : 0);
}

/* Floats of scratch that a head takes on a device: E, L, beta [64], A, P [64,64], K [64,dk], U [64,dv]. */
K_HD int64_t k_gdn_chunk_floats(const k_dims *d) {
    const int64_t n = K_GDN_CHUNK;
    return 3 * n + 2 * n * n + n * (int64_t)d->dk + n * (int64_t)d->dv;
}

/* Floats of scratch a thread of gdn_core or its band needs. */
int64_t gdn_scratch(const k_dims *d);

void gdn_core_cpu(const k_call *c);

/* Called after the op. st[1], when given, is the state as it stood before this tile; without it, and past position 0,
 * hard becomes infinite (the state before is not known) and rms is estimated with the state after in its place. */
void gdn_core_band(const k_call *c, k_band *add);
/* Also the band of the state, from that before the tile (zeros: given) to that behind it. add takes the state as given
 * in any case. */
void gdn_core_bands(const k_call *c, k_band *add, k_band *state);

#ifdef __cplusplus
}
#endif
#endif
