/* geometry.h: the released models as numbers: hyper-parameters, and from them every tensor's name, shape, place and
 * type (gguf-quants 3; qwen4_exp 1.1, 9.2, 10), and the keys of a GGUF file. What is said here of a file holds for the
 * published ones byte by byte but for the values of their tokenizer and texts.
 *
 * A geometry may be cut (fewer layers, experts, rows, ids) before it is used; the tensors of a cut that do not depend
 * on what was cut are those of the whole.
 */
#ifndef Q4X_GEOMETRY_H
#define Q4X_GEOMETRY_H

#include <stdint.h>

#include "lib/err.h"
#include "lib/gguf_write.h"
#include "lib/type_rules.h"

typedef struct {
    const char *name, *arch, *title; /* "qwen3.8-27b", general.architecture, what it is called in full */
    q4x_file_type type;              /* the published file's */
    uint64_t shard_bytes;            /* most data in one of its files, 0: one file */
    int32_t L, mtp;                  /* blocks of the trunk, prediction blocks behind it */
    int32_t interval;                /* every so-many-th block attends */
    int32_t D, V, ctx;
    int32_t H, G, hd, rot, sections[4]; /* attention; rotated dimensions and their split over position axes */
    int32_t nk, nv, dk, dv, Kc;         /* delta rule */
    double theta, eps;
    /* qwen35 alone */
    int32_t ffn;
    /* qwen4exp alone */
    int32_t N, R;                                   /* streams, rank of their gate */
    int32_t E, K, F, Fs;                            /* experts, of them used, widths routed and shared */
    int32_t ih, id, budget, ratio;                  /* indexer */
    int32_t ple, n, hpn, pw, Kp;                    /* n-gram embedding: block, n, heads each n, row width, taps */
    int64_t ngram_base, ngram_multiple, ngram_seed; /* smallest head size; rows are padded to a multiple */
} q4x_geometry;

enum { Q4X_GEOMETRIES = 3 };
extern const q4x_geometry q4x_geometries[Q4X_GEOMETRIES];

/* The geometry of this name, or NULL. */
const q4x_geometry *q4x_geometry_find(const char *name);
static inline int q4x_geometry_is_flash(const q4x_geometry *g) {
    return g->N > 0;
}

/* After cutting: sizes within what a reader takes, at least the block with the n-gram embedding, as many experts as are
 * used, 512 ids. The message names what is wrong. */
int q4x_geometry_check(const q4x_geometry *g, q4x_err *err);

/* Derived sizes. */
static inline int64_t q4x_geometry_wide(const q4x_geometry *g) {
    return (int64_t)g->N * g->D;
}
static inline int64_t q4x_geometry_value(const q4x_geometry *g) {
    return (int64_t)g->nv * g->dv;
}
static inline int64_t q4x_geometry_conv(const q4x_geometry *g) {
    return 2 * (int64_t)g->nk * g->dk + q4x_geometry_value(g);
}
static inline int64_t q4x_geometry_query(const q4x_geometry *g) {
    return (int64_t)g->H * g->hd;
}
static inline int64_t q4x_geometry_ple(const q4x_geometry *g) {
    return (int64_t)(g->n - 1) * g->hpn * g->pw;
}
/* Rows of the n-gram table; 0 when its hash cannot be made (q4x_geometry_check says so). */
int64_t q4x_geometry_rows(const q4x_geometry *g);
/* Block i attends (else it is a delta-rule block). */
static inline int q4x_geometry_attends(const q4x_geometry *g, int i) {
    return i >= g->L || i % g->interval == g->interval - 1;
}
/* Ids with a meaning: the first of the special tokens that end the vocabulary, as far from its end as in the released
 * one where there is room. <|endoftext|> is the first, <|im_end|> two further. */
int32_t q4x_geometry_special(const q4x_geometry *g);

typedef struct {
    char name[64];
    int32_t block; /* -1: of none */
    int32_t type;  /* k_type, by lib/type_rules.h */
    int ndim;
    int64_t ne[4];
} q4x_geometry_tensor;

/* Every tensor, in the order of the file; *ret is malloc'd. */
int q4x_geometry_tensors(const q4x_geometry *g, q4x_file_type ft, q4x_geometry_tensor **ret, int64_t *ret_n,
                         q4x_err *err);

/* Declare on a new file: the keys of the architecture with these values, and a tokenizer that is valid and means
 * nothing: 256 byte tokens, pairs of letters with their merges, filler, the special tokens at the end. */
int q4x_geometry_keys(const q4x_geometry *g, q4x_gguf_out *o, q4x_err *err);
int q4x_geometry_tokenizer(const q4x_geometry *g, q4x_gguf_out *o, q4x_err *err);

#endif
