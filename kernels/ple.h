/* ple.h: the hashed n-gram embedding: its constants, row ids, gate and gated value (spec 7; convolution: conv.h).
 *
 *   ple_ids   spec 7.2. in_i[0] ids [T,1]; ipar: n multipliers, P sizes, P offsets; st[0] the last n-1 ids, oldest
 *             first (the run fills it with EOS at the start). out_i [T,P]; updates the state. EXACT, integers only:
 *             c_0 = the token; walking back, from the first predecessor that is EOS on, everything reads as EOS; group
 *             r = 1..n-1 of P/(n-1) heads hashes c_0 .. c_r: id = (xor of c_s mult_s) mod size + off, unsigned 64 bits
 *   ple_gate  spec 7.4. in[0] key [T,W], in[1] query [T,W] -> [T,N], N = cols, D = in_cols[0] / N. ORDERED
 *   ple_mul   spec 7.4. in[0] gate [T,N], in[1] val [T,D] -> [T,N D], rd(g_s val). EXACT
 *
 * order    ple_gate: the rounded products are summed lanes32
 * rounds   ple_gate: every product; the sum; / sqrt(D); the clamp (max(|d|, 1e-6)); its root; root * sign (exact); the
 *          sigmoid. ple_mul: the product
 * fma      none
 * special  ple_gate: sign(+-0) = 0, so a zero sum gives 1/2; NaN gives NaN. T = 0 does nothing
 * levers   act
 * bound    ple_mul_band (one store); the gate states none
 * out never overlaps an input.
 */
#ifndef K_PLE_H
#define K_PLE_H

#include "kernels/arith.h"
#include "kernels/k.h"
#include "kernels/round.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Row ids of token t of a tile whose predecessors lie in hist (n-1 ids, oldest first). ids gets P = (n-1) heads. */
K_HD void k_ple_row(const int32_t *tok, int64_t t, const int32_t *hist, int32_t n, int32_t heads, int32_t eos,
                    const int64_t *mult, const int64_t *size, const int64_t *off, int32_t *ids) {
    uint64_t x = (uint64_t)(int64_t)tok[t] * (uint64_t)mult[0];
    int cut = 0;
    for (int32_t s = 1; s < n; s++) {
        int32_t id = t >= s ? tok[t - s] : hist[t - s + n - 1];
        cut = cut || id == eos;
        x ^= (uint64_t)(int64_t)(cut ? eos : id) * (uint64_t)mult[s];
        for (int32_t h = (s - 1) * heads; h < s * heads; h++)
            ids[h] = (int32_t)(x % (uint64_t)size[h] + (uint64_t)off[h]);
    }
}

/* From the (unrounded) sum of the rounded products to the gate. */
K_HD float k_ple_gate1(float sum, int64_t D, int32_t act) {
    float d = k_rd(k_rd(sum, act) / sqrtf((float)D), act), a = fabsf(d);
    float m = k_rd(sqrtf(k_rd(a < 1e-6f ? 1e-6f : a, act)), act);
    float sign = d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : 0.0f;
    return k_rd(k_sigmoid(k_rd(m * sign, act)), act);
}

/* Constants of hash `index` (position among the layers that have one), spec 7.1: n multipliers below 2^63 / V, odd; P =
 * (n-1) heads sizes: the primes number index P + 1 .. index P + P that are not below base; offsets: their prefix sums.
 * Returns 0, or -1 (outputs undefined) when an argument is out of range: V < 1, n < 2, heads < 1, base < 2, index < 0,
 * more than 2^14 primes to find, or a sum of sizes beyond int64. Files that carry the arrays are asserted against it.
 */
int k_ple_consts(int64_t V, int32_t n, int32_t heads, int64_t base, int64_t seed, int32_t index, int64_t *mult,
                 int64_t *size, int64_t *off);

void ple_ids_cpu(const k_call *c);
void ple_gate_cpu(const k_call *c);
void ple_mul_cpu(const k_call *c);
void ple_mul_band(const k_call *c, k_band *add);

#ifdef __cplusplus
}
#endif
#endif
