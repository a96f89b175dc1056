/* rope.h: rotary positions on the first d->rot dims of every head (NeoX halves). EXACT.
 *
 * rope
 *   computes  for the pair (i, i + rot/2), i < rot/2, of a head, at position p = pos0 + t:
 *             x'[i] = x[i] c_i - x[i+rot/2] s_i,  x'[i+rot/2] = x[i+rot/2] c_i + x[i] s_i; other dims are copied
 *   inputs    in[0] [T, heads * G], G = c->G; par[0] freq [rot/2]
 *   outputs   out as in[0]; no state: who reads rotated keys appends them to its cache (attn_score)
 *   order     none: every pair stands alone
 *   rounds    f (bf16, lever freq only); angle = f * float(p); c = rt(cos), s = rt(sin), f32 functions of arith.h,
 *             rt = k_rd under lever rope.table, by default rd; each product rd, the difference or sum rd (spec 5.3)
 *   fma       none
 *   special   NaN and infinities touch their own pair only. float(p) is exact below 2^24
 *   bound     none stated yet
 *   levers    act (rd), rope.table (rt), rope.freq (f)
 *   engines   HF eager; with rope.freq=bf16 a model cast as a whole. rope.table=bf16 under act=f32 is a cached table in
 *             bf16 that is read in f32
 *   scratch   rope_scratch floats a thread
 */
#ifndef K_ROPE_H
#define K_ROPE_H

#include "kernels/arith.h"
#include "kernels/band.h"
#include "kernels/round.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cosine and sine of angle number i at position pos, as they enter the products. */
K_HD void k_rope_angle(float freq, int32_t pos, const k_levers *lv, float *c, float *s) {
    float f = lv->freq == K_FREQ_BF16 ? k_round_bf16(freq) : freq;
    float cc, ss;
    k_sincos(f * (float)pos, &ss, &cc);
    *c = k_rd(cc, k_follow(lv->table, lv->act));
    *s = k_rd(ss, k_follow(lv->table, lv->act));
}

/* Rotate the pair (a, b) = (x[i], x[i + rot/2]). */
K_HD void k_rope_pair(float *a, float *b, float c, float s, int32_t act) {
    float x = *a, y = *b;
    *a = k_rd(k_rd(x * c, act) - k_rd(y * s, act), act);
    *b = k_rd(k_rd(y * c, act) + k_rd(x * s, act), act);
}

/* All angles of a position: cs[0..half) cosines, cs[half..2 half) sines. */
K_HD void k_rope_angles(const float *freq, int32_t half, int32_t pos, const k_levers *lv, float *cs) {
    for (int32_t i = 0; i < half; i++) k_rope_angle(freq[i], pos, lv, &cs[i], &cs[half + i]);
}

/* Rotate one head in place. */
K_HD void k_rope_head(float *x, int32_t half, const float *cs, int32_t act) {
    for (int32_t i = 0; i < half; i++) k_rope_pair(&x[i], &x[half + i], cs[i], cs[half + i], act);
}

/* What the rotation's roundings do to the pairs, relative to their length: one in the table, one in each product, one
 * in the sum; the first two reach a pair's length by sqrt 2. Mean squares per length^2, f32 steps included. */
static inline double k_rope_turn_hard(const k_levers *lv) {
    return 2.5 * (k_store_hard(lv->act) + 2.0 * K_U) + 1.5 * (k_store_hard(k_follow(lv->table, lv->act)) + 2.0 * K_U);
}
static inline double k_rope_turn_rms2(const k_levers *lv) {
    return 3.0 * K_RMS2 * K_U * K_U + 2.0 * k_store_rms2(lv->act, 1.0) +
           k_store_rms2(k_follow(lv->table, lv->act), 1.0);
}

/* What frequencies rounded to bf16 turn the pairs of a head away from the f32 ones, as sums of squares over the rotated
 * dimensions of y: an angle t = f pos moves by at most 2^-8 t (rms 0.18 2^-16 t^2), a pair by that times its length,
 * never by more than its diameter. 0 for f32 frequencies. */
static inline void k_rope_freq_moves(const float *y, const float *freq, int32_t half, int32_t pos, const k_levers *lv,
                                     double *hard2, double *rms2) {
    *hard2 = *rms2 = 0.0;
    if (lv->freq != K_FREQ_BF16) return;
    for (int32_t i = 0; i < half; i++) {
        double len2 = (double)y[i] * (double)y[i] + (double)y[half + i] * (double)y[half + i];
        double t = (double)freq[i] * (double)pos, h = 0x1p-8 * t, r2 = 0.18 * 0x1p-16 * t * t;
        *hard2 += len2 * (h < 2.0 ? h * h : 4.0);
        *rms2 += len2 * (r2 < 2.0 ? r2 : 2.0);
    }
}

static inline int64_t rope_scratch(const k_dims *d) {
    return d->rot;
}
void rope_cpu(const k_call *c);
void rope_band(const k_call *c, k_band *add);

#ifdef __cplusplus
}
#endif
#endif
