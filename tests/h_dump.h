/* h_dump.h: dumps made up for tests, and dump files taken apart and put together. */
#ifndef H_DUMP_H
#define H_DUMP_H

#include <stddef.h>
#include <stdint.h>

#include "lib/dump.h"

/* What a made-up dump holds. Node indices are fixed. */
enum {
    H_EMB,     /* f32, public */
    H_WIDE,    /* f32, public, wide rows: a sketch of buckets */
    H_IN,      /* alias of H_WIDE, no record */
    H_V,       /* value heads in columns, GGUF order */
    H_IDS,     /* a selection with weights */
    H_WEIGHTS, /* its weights */
    H_IDX,     /* "L03.attn.idx.sel" */
    H_HALF,    /* bf16, as an importer has it */
    H_LOGITS,
    H_DELTA, /* state, value heads in rows */
    H_HIST,  /* state, ids */
    H_NODES
};
typedef struct {
    uint64_t seed;
    int forwards;
    int rows;               /* of forward 0; later ones have 1 */
    int wide;               /* columns of H_WIDE */
    int full;               /* 1: full tensors of all */
    int parts;              /* H_WIDE's rows are normed in so many parts, of which the smallest is recorded; 0: whole */
    int tail;               /* 1: a tail */
    int nonfinite;          /* 1: NaNs with payloads and infinities among the values */
    const char *provenance; /* header: free.time */
} h_dump_opts;
extern const h_dump_opts h_dump_small;

/* As an importer would fill it: every pointer its own, priv NULL. q4x_dump_free frees it. */
q4x_dump *h_dump_make(const h_dump_opts *o);
/* Write d through the writer; content may be NULL. */
int h_dump_write(const q4x_dump *d, const char *path, q4x_hash *content, q4x_err *err);
/* 1 when everything that a file keeps of both is equal bit for bit (full tensors: loaded from b). */
int h_dump_equal(const q4x_dump *a, q4x_dump *b);

uint8_t *h_file_read(const char *path, size_t *n); /* malloc'd */
void h_file_write(const char *path, const void *data, size_t n);
/* A folder of this test's own below /tmp, and a path in it (static buffer, one at a time). */
const char *h_temp(const char *name);
int h_temp_count(void); /* files in it */
void h_temp_remove(void);

/* A dump file as a list of chunks. */
typedef struct {
    uint32_t type, flags;
    size_t n;
    uint8_t *data; /* malloc'd */
} h_chunk;
typedef struct {
    uint32_t version, minor;
    int n;
    h_chunk c[64];
} h_chunks;
h_chunks h_chunks_split(const uint8_t *file, size_t n);
uint8_t *h_chunks_join(const h_chunks *c, size_t *n); /* with right checksums */
void h_chunks_free(h_chunks *c);
int h_chunks_find(const h_chunks *c, const char *type, int nth);
void h_chunks_insert(h_chunks *c, int at, const char *type, uint32_t flags, const void *data, size_t n);
void h_chunks_remove(h_chunks *c, int at);
/* Right checksums over whatever chunk structure the bytes have, in place; what follows it is left alone. */
void h_resum(uint8_t *file, size_t n);

#endif
