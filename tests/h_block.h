/* h_block.h: the ops of one recorded mixture-of-experts block (h_moe.h), called through the table of ops that the
 * forward uses. Results are malloc'd; the caller frees. */
#ifndef H_BLOCK_H
#define H_BLOCK_H

#include "tests/h_moe.h"

typedef struct {
    h_moe m;
    float *scratch; /* nth slices of nscratch floats */
    int64_t nscratch;
    int nth; /* threads over experts; an op runs on the one that calls it */
} h_block;

/* The block of the files' bytes (h_moe_read). */
int h_block_open(const void *config, size_t nconfig, const void *st, size_t nst, h_block *ret, q4x_err *err);
void h_block_close(h_block *b);

void *h_need(int64_t n, size_t size); /* malloc that does not fail */

/* A call with T rows, the block's geometry and the thread's scratch. */
k_call h_block_call(const h_block *b, const k_levers *lv, int32_t T, int64_t cols, float *out);

/* Weights that the formula gives, by their place in h_moe's f. */
enum { H_GATE, H_SHARED_GATE, H_SHARED_UP, H_SHARED_DOWN, H_SHARED_EXPERT_GATE };
k_weight h_block_weight(const h_block *b, int which);

float *h_block_product(const h_block *b, const k_levers *lv, const k_weight *w, const float *x, int32_t T, int32_t epi);
float *h_block_swiglu(const h_block *b, const k_levers *lv, const float *g, const float *u, int64_t n);
int32_t *h_block_ids(const h_block *b, const k_levers *lv, const float *logits, int32_t T);
float *h_block_weights(const h_block *b, const k_levers *lv, const float *logits, const int32_t *ids, int32_t T);
/* The sum over a case's slots, down [T, K*D], with the weights and ids of the case. */
float *h_block_routed(const h_block *b, const k_levers *lv, const h_moe_case *k, const float *down);
/* sum_i (w_oi x_i)^2 of every output of a bf16 weight. */
float *h_block_squares(const h_block *b, const uint16_t *w, int64_t rows, int64_t cols, const float *x, int32_t n);

/* What each slot (token, rank) of all cases gets from its expert: as the block is; with the best and the last expert of
 * the case's first token in each other's place; with up and gate rows swapped; with gelu for silu. */
enum { H_PLAIN, H_SWAPPED, H_UP_FOR_GATE, H_GELU, H_NWAYS };
typedef struct {
    int32_t n;                  /* slots, case by case */
    int32_t nexperts;           /* different ones among them */
    const float **x;            /* [n] the token's row */
    int32_t *id, *other;        /* [n] its expert; the one in its place when two are swapped */
    float *down[H_NWAYS], *q;   /* [n, D]; of the plain way, sum_i (d_oi a_i)^2 */
    int64_t first[H_MOE_CASES]; /* a case's first slot */
} h_slots;
h_slots h_slots_new(const h_block *b,
                    const k_levers *lv); /* makes every expert that is wanted, one a thread at a time */
void h_slots_free(h_slots *s);

#endif
