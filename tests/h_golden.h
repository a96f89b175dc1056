/* h_golden.h: a golden file (safetensors with prompt and greedy ids in its metadata), for tests. Failures are fail_msg.
 */
#ifndef H_GOLDEN_H
#define H_GOLDEN_H

#include <stdint.h>

#include "lib/safetensors.h"

typedef struct {
    void *map;
    size_t size;
    q4x_st *st;
    int nprompt, ngreedy;
    int32_t *prompt, *greedy; /* [nprompt] [ngreedy]; 0 and NULL when the metadata have none */
} h_golden;

/* NULL when there is no such file. */
h_golden *h_golden_open(const char *path);
void h_golden_close(h_golden *g);

/* 1 when the key ("f0/L00.blk") is there. */
int h_golden_has(const h_golden *g, const char *key);

/* The tensor widened to f32 (from F32, F16, BF16) or as i32 (from I32, I64; must fit). Rows are all dimensions but the
 * last, a vector has one row. The caller frees. */
float *h_golden_f32(const h_golden *g, const char *key, int64_t *ret_rows, int64_t *ret_cols);
int32_t *h_golden_i32(const h_golden *g, const char *key, int64_t *ret_rows, int64_t *ret_cols);

#endif
