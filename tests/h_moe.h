/* h_moe.h: one mixture-of-experts block at the released geometry, as another engine ran it (shared golden moe-block).
 *
 * Weights are a counter's: weight i of a tensor is a hash of i, so the 4.7 GiB of experts are computed, one expert at a
 * time, and a tensor that a formula gives need not be stored. tests/golden/moe-block holds the rest of the recorded
 * file, with the sha256 of each tensor that was left out. Who made it is asserted when it is opened.
 */
#ifndef H_MOE_H
#define H_MOE_H

#include "kernels/k.h"
#include "lib/err.h"
#include "lib/safetensors.h"

enum { H_MOE_CASES = 4, H_MOE_FREE = 8 };

/* A tensor that the formula gives. */
typedef struct {
    char name[24]; /* in the file; of the experts' two: "experts_gate_up" */
    uint64_t id;   /* which tensor */
    float amp;     /* a power of two */
    int64_t rows, cols;
} h_moe_formula;

typedef struct {
    int32_t T;
    float *hidden;                                           /* [T,D] */
    float *logits, *weights, *expert_out, *shared_out, *out; /* [T,E] [T,K] [T,D] [T,D] [T,D] */
    int32_t *ids;                                            /* [T,K] in rank order */
} h_moe_case;

typedef struct {
    k_dims d;
    uint64_t seed;
    h_moe_formula f[H_MOE_FREE];           /* gate, shared gate up down, shared expert's gate, hidden of cases 0 to 2 */
    h_moe_formula experts_in, experts_out; /* [E * 2F, D], an expert's gate rows before its up rows; [E * D, F] */
    uint16_t *made[H_MOE_FREE];            /* bf16, by the formula */
    h_moe_case c[H_MOE_CASES];
    q4x_st *st;
    const uint8_t *bytes; /* of the safetensors file: borrowed */
} h_moe;

/* n weights from `first` on. */
void h_moe_make(const h_moe *m, const h_moe_formula *f, int64_t first, int64_t n, uint16_t *w);

/* The block from the two files' bytes. Refuses (Q4X_E_MISMATCH, Q4X_E_FORMAT) what is not exactly the run that it says
 * it is: format, sha256 of the config, seed, geometry, activation, every tensor's type and shape; and a stored sha256
 * that the formula does not meet. The bytes must outlive it. */
int h_moe_read(const void *config, size_t nconfig, const void *st, size_t nst, h_moe *ret, q4x_err *err);
void h_moe_free(h_moe *m);

/* The recorded file without what the formula gives, as dir_to/moe-golden.safetensors. */
int h_moe_reduce(const char *dir_from, const char *dir_to, q4x_err *err);

void h_sha256(const void *data, size_t n, char hex[65]);

#endif
