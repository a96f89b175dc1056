/* attn_see.cuh: what a query may see (attn.h), on a device: as bits, or as a list in ascending order. */
#ifndef K_ATTN_SEE_CUH
#define K_ATTN_SEE_CUH

#include "kernels/attn.h"
#include "kernels/cuda.cuh"

static __host__ __device__ __forceinline__ int64_t k_words_of(int64_t tokens) {
    return (tokens + 31) / 32;
}

/* What is made of each row's bits, which stay only where they are asked for themselves. */
typedef enum {
    K_SEE_BITS,  /* a bit a token */
    K_SEE_WORDS, /* words of 32 tokens that hold any: their number, then which ones, then their bits */
    K_SEE_TOKENS /* the tokens: their number, then which ones */
} k_see;

/* Made in the call's scratch from blocks in slot `slot` and extra tokens in the next. Returns whether it was: without
 * blocks a query sees everything up to itself. */
int k_see_cuda(const k_call *c, int slot, k_see what, void *stream);

/* What was made for row t. */
static __device__ __forceinline__ const uint32_t *k_seen_of(const k_args *a, int64_t t, int64_t width) {
    return (const uint32_t *)(const void *)a->c.scratch + t * k_see_floats(a->c.Tc, a->d.ratio, width);
}

/* Bits of the w-th word of tokens when all up to position `last` are seen. */
static __device__ __forceinline__ uint32_t k_all_to(int64_t last, int64_t w) {
    const int64_t left = last - 32 * w;
    return left < 0 ? 0 : left >= 31 ? 0xffffffffu : (2u << left) - 1;
}

/* The words of 32 tokens, or the tokens, that row t's query sees. some: k_see_cuda returned 1. */
typedef struct {
    int32_t n;
    const int32_t *at;   /* NULL: 0 .. n-1 */
    const uint32_t *bit; /* of words */
    int64_t last;
} k_seen;

static __device__ __forceinline__ k_seen k_seen_words(const k_args *a, int some, int64_t t, int64_t width) {
    k_seen s = {(int32_t)k_words_of(a->c.pos0 + t + 1), NULL, NULL, a->c.pos0 + t};
    if (!some) return s;
    const uint32_t *list = k_seen_of(a, t, width);
    s.n = (int32_t)list[0];
    s.at = (const int32_t *)(list + 1);
    s.bit = list + 1 + k_words_of(a->c.Tc);
    return s;
}
static __device__ __forceinline__ uint32_t k_seen_word(const k_seen *s, int32_t k, int64_t *ret_first) {
    *ret_first = 32 * (int64_t)(s->at ? s->at[k] : k);
    return s->at ? s->bit[k] : k_all_to(s->last, k);
}

static __device__ __forceinline__ k_seen k_seen_tokens(const k_args *a, int some, int64_t t, int64_t width) {
    k_seen s = {(int32_t)(a->c.pos0 + t + 1), NULL, NULL, 0};
    if (!some) return s;
    const uint32_t *list = k_seen_of(a, t, width);
    s.n = (int32_t)list[0];
    s.at = (const int32_t *)(list + 1);
    return s;
}
static __device__ __forceinline__ int32_t k_seen_token(const k_seen *s, int32_t k) {
    return s->at ? s->at[k] : k;
}

#endif
