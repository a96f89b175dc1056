/* qdot.h: products of stored weight rows in other orders than lanes32, and of weight codes with activation codes: what
 * levers dot and repack choose for matmul and moe_expert.
 *
 * computes  y[j][o] = the dot of row o and column j as lever dot says:
 *             serial   decoded row, one fmaf chain in ascending i
 *             blocked  decoded row, blocks of K_DOT_BLOCK elements in order lanes32, their sums added in ascending
 *                      order
 *             q8k      ggml's CPU: the column as q8_0, q8_1 or q8_K by the weight's type, whole-number sums a block,
 *                      the scalar order of gguf-quants.md 4.3. F16 and BF16 weights take the column rounded to their
 *                      own type, F32 as it is; products in f32, their sum in f64, rounded once
 *             q8_1     ggml's CUDA matrix-vector product: the column as q8_1, the order of gguf-quants.md 4.5, 4 warps
 *             neon     ggml's CPU on Arm: as q8k, but Q8_0 rows are summed by lanes (below) and meet codes rounded to
 *                      even, and F32, F16 and BF16 rows are summed by lanes in f32
 *           In calls of up to K_DOT_COLUMNS columns; q8k and neon in all, since that engine's CPU quantises prompts as
 *           it does single tokens. A type that a value has no rule for is summed as lanes32: integers and F64, for q8_1
 *           also F32, F16, BF16, TQ1_0 and TQ2_0.
 *           Lever repack, under q8k and neon: q8_0x4 for Q8_0 weights whose rows are a multiple of 4, q4_kx8 for Q4_K
 *           ones whose rows are a multiple of 8.
 * order     blocks of a row in ascending order, by one thread. S, I, J: whole numbers; D, A: scales of weight, column
 *             neon Q8_0  lanes 0-3 for even blocks, 4-7 for odd ones: L_l = fmaf((f32)S_l, D A, L_l), S_l of elements
 *                        4l .. 4l+3 and 16+4l .. 16+4l+3; F = ((L0+L1)+(L2+L3)) + ((L4+L5)+(L6+L7)); the last block of
 *                        an odd number: F = F + (f32)S (D A)
 *             neon f32   16 lanes, L_l = fmaf(w_i, x_i, L_l) for i mod 16 = l up to the last whole 16; L_l += L_(l+8),
 *                        L_l += L_(l+4), F = (L0+L1)+(L2+L3); then one fmaf an element that is left
 *             q8_0x4     F = fmaf((f32)S, D A, F)
 *             q4_kx8     F = fmaf((f32)I, d A, F), M = fmaf((f32)J, dmin A, M); at the end F - M
 * rounds    every operator once, as written there; the codes as qdot_act.h says
 * special   infinities and NaN reach the result through the scales of their block
 * bound     qdot_band.c
 * engines   llama.cpp, of which 4.3 is the scalar build: SIMD builds have the same codes and other orders
 * source    gguf-quants.md 4; the golden vectors of both arms hold bit by bit (tests/t_qdot.c)
 */
#ifndef K_QDOT_H
#define K_QDOT_H

#include "kernels/tile.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { K_DOT_BLOCK = 64, K_DOT_COLUMNS = 8 };

/* Which arithmetic a product runs in. */
typedef enum {
    K_RULE_LANES32,
    K_RULE_SERIAL,
    K_RULE_BLOCKED,
    K_RULE_F64, /* products in f32, sum in f64 */
    K_RULE_NEON_F32,
    K_RULE_CPU, /* 4.3 */
    K_RULE_GPU, /* 4.5 */
    K_RULE_NEON_Q8_0,
    K_RULE_Q8_0X4,
    K_RULE_Q4_KX8
} k_dot_rule;

/* The rule for weights of this type and number of rows, in a call of so many columns. */
k_dot_rule k_dot_rule_of(const k_levers *lv, int64_t columns, int32_t type, int64_t rows);

/* 1 when every product of the call is in order lanes32, whatever its weights. */
K_HD int k_dot_plain(const k_levers *lv, int64_t columns) {
    return lv->dot == K_DOT_LANES32 || (columns > K_DOT_COLUMNS && lv->dot != K_DOT_Q8K && lv->dot != K_DOT_NEON);
}

/* Rows r0 .. r1-1 of w (w->cols = K) times all columns, by the rule; rule LANES32 is k_panel_rows. scratch: at least
 * k_tile_scratch(K) floats. */
void k_dot_rows(const k_panel *p, const k_weight *w, k_dot_rule rule, int64_t r0, int64_t r1, float *scratch,
                int64_t scratch_n);

/* How a quantised product of this rule and weight type takes a column: K_ACTQ_* of qdot_act.h. */
int32_t k_dot_format(k_dot_rule rule, int32_t type);

/* Bytes of a quantised column that one block of weights meets. */
int64_t k_dot_block_bytes(k_dot_rule rule, int32_t type);
/* Room for so many columns of K values, quantised in whichever way: 36 bytes for 32 values, or 292 for 256. */
K_HD int64_t k_dot_act_floats(int64_t columns, int64_t K) {
    return columns * (K / 32 * 9 + K / 256);
}

/* A row of n values as a quantised product of this rule and weight type takes it (tests). */
void k_dot_quantise(k_dot_rule rule, int32_t type, const float *x, int64_t n, uint8_t *to);

/* The error that the rule's rounding of a column x of n values makes, for the bands: e[i]^2 is the mean square error of
 * element i; the largest is at most sqrt 3 of it. n a multiple of 256 or the whole row. */
void k_dot_errors(k_dot_rule rule, int32_t type, const float *x, int64_t n, float *e);

/* Mean square and largest relative error of what multiplies a column's codes, a scale in f16 (0: it is f32), and what
 * the rule makes of the sum of the errors besides (1: nothing). */
double k_dot_scale_error(k_dot_rule rule, int32_t type);
double k_dot_excess(k_dot_rule rule, int32_t type);

#ifdef __cplusplus
}
#endif
#endif
