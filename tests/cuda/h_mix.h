/* h_mix.h: the ops of the recorded mixture-of-experts block (tests/h_block.h) on a device. Every answer must have the
 * host's bits, or the test fails; a product that lever gemm gives to the library is the exception, for the caller to
 * judge. Results are malloc'd; the caller frees. */
#ifndef H_MIX_H
#define H_MIX_H

#include "kernels/dev.h"
#include "tests/h_block.h"

extern h_block hm_B;
extern int hm_emulated; /* 1: the device is the emulator, which is slow */
extern k_dev *hm_dev;
extern int64_t hm_compared; /* values that had the host's bits */
/* As the run was recorded: transformers, eager experts, a bf16 model, torch's order among equal scores. */
extern const k_levers hm_HF;

/* cmocka's: the block and the device; close prints the table (h_table.h) and what was compared. */
int hm_open(void **state);
int hm_close(void **state);

/* What the device makes of the call. */
void *hm_run(k_op op, k_call *c);

float *hm_product(const k_levers *lv, const k_weight *w, const float *x, int32_t T, int32_t epi);
float *hm_swiglu(const k_levers *lv, const float *g, const float *u, int32_t T, int64_t cols);
int32_t *hm_ids(const k_levers *lv, const float *logits, int32_t T);
float *hm_weights(const k_levers *lv, const float *logits, const int32_t *ids, int32_t T);
float *hm_routed(const k_levers *lv, const float *down, const float *w, const int32_t *ids, int32_t T);
float *hm_out(const k_levers *lv, const float *routed, const float *shared, const float *sgate, int32_t T);

/* The shared expert's branch on x [T,D]; floor[T * D], malloc'd: 2 2^-7 sqrt(sum (h w)^2) of each output. */
float *hm_shared(const k_levers *lv, const float *x, int32_t T, double **floor);

#endif
