/* h_vec.h: what the kernel tests share: files, random numbers, comparison by bits, a safetensors reader. */
#ifndef H_VEC_H
#define H_VEC_H

#include <stddef.h>
#include <stdint.h>

/* The whole file, or NULL. The caller frees. */
void *vec_read(const char *path, size_t *ret_size);

/* A small generator (splitmix64): same numbers everywhere. */
uint64_t vec_u64(uint64_t *state);
float vec_uniform(uint64_t *state); /* [-1, 1), 24 bits */
float vec_gauss(uint64_t *state);   /* sum of 12 uniforms, variance 1 */

/* Index of the first element whose bits differ (two NaNs count as equal), or n. */
int64_t vec_diff(const float *a, const float *b, int64_t n);

/* A tensor of a safetensors file, floats of any width as f32, integers as int32 in the same 4 bytes; NULL: not there.
 * Rows are all dimensions but the last. The caller frees. */
typedef struct {
    void *bytes;
    size_t size;
    void *json;
} vec_st;
int vec_st_open(vec_st *f, const char *path); /* 0: fine */
void vec_st_close(vec_st *f);
void *vec_st_get(const vec_st *f, const char *key, int64_t *ret_rows, int64_t *ret_cols);
/* The bytes as they lie there (a weight). */
const void *vec_st_raw(const vec_st *f, const char *key, int64_t *ret_rows, int64_t *ret_cols, int32_t *ret_type);

#endif
