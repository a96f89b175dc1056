/* matmul.h: op `matmul`: every projection of the forward, router and logits included.
 *
 * computes  y[t][o] = sum_i w[o][i] x[t][i] with the decoded weight; then the epilogue
 *             NONE   rd(y)                        RAW    y
 *             ROUTER rd(y), where lever moe.logits says which rd: act's, none (f32), or always (bf16)
 *             HCDOWN rd(silu(rd(rd(y) / N)))      HCINJ  2 rd(sigmoid(rd(rd(y) / N)))
 * inputs    in[0] x [T,K] f32; w[0] [O,K] any stored type; d->N; scratch: k_matmul_scratch(K) a thread (tile.h; less is
 *           slower, not different, in order lanes32; other orders need it)
 * outputs   out [T,O] f32
 * class     ORDERED
 * order     lever dot's, in calls of Tcall columns (qdot.h). By default lanes32 (reduce.h) over i, of the decoded row;
 *           one output's order knows nothing of T, tiles or threads
 * rounds    weights as their type decodes (quant.h); each fmaf; each add of the fold; then the rd's above in that
 *           order, the division by N, silu and sigmoid as arith.h states them; 2 x is exact
 * fma       one per element
 * special   NaN and infinities propagate; -0 in y only from a chain that ends in it (accumulators start at +0); K = 0
 *           gives +0
 * bound     band below. Lipschitz constants of the epilogues: silu 1.0999, sigmoid 1/4
 * levers    act, dot, repack; ROUTER alone: moe.logits (the plan calls that node moe_logits); on a device gemm
 *
 * gemm = cublas, calls of more than 8 columns (class BOUNDED: any order, the library's; gemm.cu):
 *   bf16      weights stored as BF16 under act = bf16: bf16 tensor cores, f32 accumulation. x is rounded to bf16 first,
 *             which changes nothing where act = bf16 made it
 *   f32       everything else, decoded to f32: no TF32, nothing below f32. Weights of other types are not bf16 numbers
 *   bound     f32: every term goes through at most K roundings, whatever the tree: gamma(K) sum |w x|.
 *             bf16: products are exact; a block of b >= 4 of them and the accumulator are aligned to the largest, cut
 *             at its 24th bit, and so is their sum: (b + 2) 2 u a block, gamma(3 (K + 16)) sum |w x|
 *   rms       a serial chain's, and for the cuts of K / 16 blocks, all towards zero, (0.03 K u)^2 y2
 *   same bits for the same shapes on the same GPU and library: own workspace, no atomics
 * engines   the f32 dot of dequantised weights, as no engine sums it: each has its own order. HF in f32 differs by
 *           order alone; ggml quantises x first (gguf-quants.md 4)
 */
#ifndef K_MATMUL_H
#define K_MATMUL_H

#include "kernels/arith.h"
#include "kernels/qdot.h"
#include "kernels/round.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the rd's of an epilogue round under. */
K_HD int32_t k_epilogue_act(int32_t epi, const k_levers *lv) {
    if (epi != K_EPI_ROUTER || lv->router == K_ROUTER_ACT) return lv->act;
    return lv->router == K_ROUTER_BF16 ? K_ACT_BF16 : K_ACT_F32;
}

/* The store of one product; act: k_epilogue_act. */
K_HD float k_epilogue_of(float y, int32_t epi, int32_t N, int32_t act) {
    if (epi == K_EPI_RAW) return y;
    float v = k_rd(y, act);
    if (epi == K_EPI_NONE || epi == K_EPI_ROUTER) return v;
    v = k_rd(v / (float)N, act);
    if (epi == K_EPI_HCDOWN) return k_rd(k_silu(v), act);
    return 2.0f * k_rd(k_sigmoid(v), act);
}

/* Floats of scratch a thread should bring (k_tile_scratch_upto covers all shorter rows too). */
K_HD int64_t k_matmul_scratch(int64_t K) {
    return k_tile_scratch(K);
}

/* How lever gemm has this product made. The host makes it its own way whatever this says. */
enum { K_GEMM_COLUMNS = 8 /* up to which the lever changes nothing, as of rows of no elements */ };
typedef enum { K_BY_OWN, K_BY_F32, K_BY_BF16 } k_gemm_by;
K_HD k_gemm_by k_gemm_of(const k_call *c) {
    if (c->lv->gemm != K_GEMM_CUBLAS || c->Tcall <= K_GEMM_COLUMNS || c->in_cols[0] < 1) return K_BY_OWN;
    return c->lv->act == K_ACT_BF16 && c->w[0]->type == K_T_BF16 ? K_BY_BF16 : K_BY_F32;
}
/* |product - exact| <= this times sum |w x|, for each output; x on the grid that the product reads. */
double k_gemm_bound(k_gemm_by by, int64_t K);

enum { K_GEMM_ROOM = 32 << 20 }; /* bytes of a device's memory that cuBLAS works in, besides */
/* Scratch of such a product: x as bf16, behind it rows that are decoded, so many at once at least, or all. */
enum { K_GEMM_ROWS = 16 };
K_HD int64_t k_gemm_halves(int64_t n) {
    return (n / 2 + 64) / 64 * 64;
}
/* Floats for T columns that are K long. */
K_HD int64_t k_gemm_scratch(int64_t T, int64_t K) {
    return k_gemm_halves(T * K) + K_GEMM_ROWS * K;
}

void matmul_cpu(const k_call *c);

/* Band of the call (design.md 2, "band"; band.h), from its operands and, for y, its output: c->out as the op left it
 * (NONE, ROUTER, RAW), or the products made again (HC). With q = the sum over all outputs of (w x)^2, from the weight's
 * column energies, y2 of y^2, v2 of the stored v^2, m = ceil(K/32), d = 5:
 *   dot    hard gamma(m + d) sqrt(K q), since sum |w x| <= sqrt(K sum (w x)^2); rms^2 = 0.18 u^2 ((m/2 + d) q +
 *          (m/96 + 2) y2)
 *          in other orders their own chains; an activation that is rounded or quantised first adds its error e_i,
 *          which is independent of the weights, with the sum of (w e)^2 (matmul_band.c)
 *   store  hard 2^-8 sqrt(v2), rms 0.737 2^-8 / sqrt(3) sqrt(v2) for each rd under act = bf16
 *   HC     what came so far passes with the epilogue's slope (hard: its largest, rms: its mean square over the
 *          outputs); the division by an N that is no power of two, its rd, and 2.5 ulp of silu and sigmoid are added
 * Costs about a product with one column (HC: the products again). The same bits whatever the threads. */
void matmul_band(const k_call *c, k_band *add);

/* What a band needs of dots: q above, the same of the error that their rule (qdot.h) makes of the columns, its excess
 * and the relative error of its scales. scratch: 8 K floats. */
typedef struct {
    k_dot_rule rule;
    double q, error, excess, scale;
} k_dot_terms;
k_dot_terms k_dot_terms_of(const k_call *c, const k_panel *p, const k_weight *w, float *scratch);

/* The share of dots that were stored as they are (round = 0) or through rd under act. */
void k_dots_band(const k_dot_terms *t, double y2, int64_t K, int32_t act, int round, k_band *add);

/* Bands are summed in this many fixed parts, so that threads cannot change a bit. Part b of n: from b's to b + 1's. */
enum { K_BAND_PARTS = 64 };
K_HD int64_t k_band_part(int64_t n, int64_t b, int64_t unit) {
    int64_t at = (n + unit - 1) / unit * b / K_BAND_PARTS * unit;
    return at < n ? at : n;
}

#ifdef __cplusplus
}
#endif
#endif
