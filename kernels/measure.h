/* measure.h: what a buffer in device memory holds, measured there: digests of its leaves, sums, extremes, sketches.
 *
 * A table of jobs is one launch: blocks find their job in it, so many small buffers cost what one costs. Everything
 * lies in device memory and is enqueued; the results are read when the stream has come so far. No sum depends on how
 * many blocks there are: f64 sums have the order that lib/tapstat.h states, all else is integers.
 *
 * K_MEASURE_BITS  leaves of 4096 bytes from x on: XXH3-128 of each, canonical. canonical 1: words are f32, and a NaN is
 *                 hashed as 0x7fc00000. seen, when given: values that are not finite are counted in it
 * K_MEASURE_ROWS  of [rows, cols] f32: what k_measured holds; sum |x| and sum x^2 of every row over finite values; of
 *                 rows keep0 .. keep1-1 the sketch: 256 buckets, a fold of 64, or the values themselves
 * K_MEASURE_COPY  words, so that a small buffer travels with the results
 * K_MEASURE_CUT   of [rows, cols] scores and ids [rows, k] of those selected: the smallest selected and the largest
 *                 rejected of the first n scores, n = cols or, with ratio, (pos0 + row + 1) / ratio; the first in
 *                 ascending index of equals, NaN (the last one's bits) where there is no number
 */
#ifndef K_MEASURE_H
#define K_MEASURE_H

#include "kernels/round.h"
#include "kernels/xxh3.h"

typedef enum { K_MEASURE_BITS, K_MEASURE_ROWS, K_MEASURE_COPY, K_MEASURE_CUT } k_measure_kind;

enum {
    K_LEAF = 4096,
    K_SKETCH_BLOCK = 256, /* elements of a block, and buckets */
    K_SKETCH_FOLD = 64,
    K_MEASURE_TOP = 8,
    K_MEASURE_JOBS = 36,         /* of one launch: the table is a kernel's parameter, at most 4 KiB */
    K_MEASURE_MOST = 0x7fffffff, /* elements of a job of rows: places are 32 bits */
};

/* What is seen of some rows. All zero before the first job that writes to it; jobs may share it. */
typedef struct {
    uint64_t nan, pinf, ninf;
    uint64_t zeros, on_bf16, on_f16; /* of finite values: lie on that lattice (zeros do) */
    uint64_t skipped;                /* not finite, in kept rows */
    uint32_t low, high; /* finite extremes: ~k_f32_order of the smallest, k_f32_order of the largest; 0: none */
    uint64_t top[K_MEASURE_TOP]; /* largest |x|, descending: k_measure_key; 0: none */
} k_measured;

typedef struct {
    int32_t kind;
    uint32_t block0; /* the launch's own */
    const void *x;
    int64_t rows, cols; /* BITS: bytes (a multiple of 4) and 0; COPY: words and 0 */
    k_measured *seen;
    void *out;  /* BITS: digests, 16 bytes each; ROWS: f64 [rows, 2]; COPY: words; CUT: f32 [rows, 2] */
    void *kept; /* ROWS: f64 [keep1 - keep0, width], or f32 with width 0: [keep1 - keep0, cols] */
    int32_t keep0, keep1, width;
    int32_t canonical;
    const int32_t *ids; /* CUT, and the rest */
    int32_t k, pos0, ratio;
} k_measure_job;

/* A finite value among the largest |x| of its job: a greater magnitude, then a lower index is a larger key. Never 0. */
K_HD uint64_t k_measure_key(uint32_t bits, uint32_t index) {
    return (uint64_t)(bits & 0x7fffffffu) << 33 | (uint64_t)~index << 1 | bits >> 31;
}
K_HD uint32_t k_measure_bits(uint64_t key) {
    return (uint32_t)(key >> 33) | (uint32_t)key << 31;
}
K_HD uint32_t k_measure_index(uint64_t key) {
    return ~(uint32_t)(key >> 1);
}

/* Integers in the order of the floats, -0 below +0; never 0 of a finite value, nor is its complement. */
K_HD uint32_t k_f32_order(uint32_t bits) {
    return bits ^ ((0u - (bits >> 31)) | 0x80000000u);
}

/* 1 when the finite value with magnitude bits a is an f16: at most 65504, and the mantissa bits below the f16 grid
 * clear: 13 of them, one more for each power of two under 2^-14, all but zero itself under 2^-24. */
K_HD uint32_t k_on_f16(uint32_t a) {
    int32_t e = (int32_t)(a >> 23), drop = 126 - e;
    drop = drop < 13 ? 13 : drop;
    drop = e < 103 ? 31 : drop;
    return (uint32_t)((a & ((1u << drop) - 1)) == 0) & (uint32_t)(a <= 0x477fe000u);
}

/* The sketch's H(b, i): of it come the permutation of block b (i = 0) and the signs of its elements (i = 1 .. 4). */
K_HD uint64_t k_sketch_h(uint32_t b, uint32_t i) {
    return k_xxh3_64_of8((uint64_t)i << 32 | b, 0x71347820);
}

#endif
