/* h_bind.h: bind checkpoints in tests, and compare what was bound. */
#ifndef H_BIND_H
#define H_BIND_H

#include "lib/arch_qwen35.h"
#include "lib/arch_qwen4.h"

typedef struct {
    q4x_model *m;
    q4x_qwen4 *w;
} h_bound;

typedef struct {
    q4x_model *m;
    q4x_qwen35 *w;
} h_bound35;

h_bound h_bind(const char *path); /* fails with the message when it does not bind */
void h_unbind(h_bound *b);
h_bound35 h_bind35(const char *path);
void h_unbind35(h_bound35 *b);
/* Opening or binding, whatever the architecture, must fail with this code and a message that holds the words. */
void h_bind_refused(int line, const char *path, int code, const char *words);

/* Matrix as f32; freed by the caller. */
float *h_matrix(const k_weight *w);
/* 1 when b, decoded, equals a with rows and columns moved: b[prow[r]][pcol[c]] == a[r][c] bit for bit. NULL: in place.
 */
int h_same_matrix(const k_weight *a, const k_weight *b, const int32_t *prow, const int32_t *pcol);
/* The same for a vector of n groups of width; NULL, NULL: both absent. */
int h_same_vec(const float *a, const float *b, int64_t n, int64_t width, const int32_t *perm);
/* The first difference between two mixers, "" when there is none. */
const char *h_gdn_diff(const q4x_gdn *a, const q4x_gdn *b, const k_dims *d);
const char *h_attn_diff(const q4x_attn *a, const q4x_attn *b, const k_dims *d);
/* Asserts that g holds h's value heads in GGUF order, bit for bit (the decay within 2 ulp), and that this shows. */
void h_gdn_heads(const q4x_gdn *h, const q4x_gdn *g, const k_dims *d);
/* The first difference between two bound models (heads in HF order in both), "" when there is none. */
const char *h_bind_diff(const q4x_qwen4 *a, const q4x_qwen4 *b);
const char *h_bind35_diff(const q4x_qwen35 *a, const q4x_qwen35 *b);

#endif
