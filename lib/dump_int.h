/* dump_int.h: what writer and reader of a dump share: layout constants, rules, content hash, plane codec.
 * The format itself is described in dump.h.
 */
#ifndef Q4X_DUMP_INT_H
#define Q4X_DUMP_INT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/dump.h"
#include "lib/io.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers and arrays are copied as they lie in memory");

#define Q4X_DUMP_MAGIC UINT64_C(0x0a1a0a0d44345189) /* 89 'Q' '4' 'D' 0d 0a 1a 0a */
enum { Q4X_DUMP_MINOR = 2, Q4X_DUMP_PREAMBLE = 24, Q4X_DUMP_CHUNK = 32 };

#define Q4X_CHUNK_NAME(a, b, c, d) ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)
#define Q4X_CHUNK_HEAD Q4X_CHUNK_NAME('H', 'E', 'A', 'D')
#define Q4X_CHUNK_NODE Q4X_CHUNK_NAME('N', 'O', 'D', 'E')
#define Q4X_CHUNK_TAPS Q4X_CHUNK_NAME('T', 'A', 'P', 'S')
#define Q4X_CHUNK_FULL Q4X_CHUNK_NAME('F', 'U', 'L', 'L')
#define Q4X_CHUNK_PART Q4X_CHUNK_NAME('P', 'A', 'R', 'T')
#define Q4X_CHUNK_FWRD Q4X_CHUNK_NAME('F', 'W', 'R', 'D')
#define Q4X_CHUNK_TAIL Q4X_CHUNK_NAME('T', 'A', 'I', 'L')
#define Q4X_CHUNK_DONE Q4X_CHUNK_NAME('D', 'O', 'N', 'E')
enum { Q4X_CHUNK_SKIPPABLE = 1 };

enum { Q4X_NODE_PUBLIC = 1, Q4X_NODE_STATE = 2, Q4X_NODE_IDS = 4 };
enum {
    Q4X_TAP_STATS = 1,
    Q4X_TAP_SKETCH = 2,
    Q4X_TAP_BAND = 4,
    Q4X_TAP_FULL = 8,
    Q4X_TAP_SEL = 16,
    Q4X_TAP_WEIGHTS = 32, /* of the selection */
    Q4X_TAP_CUT = 64      /* lo and hi of the selection */
};
enum { Q4X_FULL_STORED, Q4X_FULL_PLANES };

enum {
    Q4X_DUMP_HEADER_MAX = 16 << 20, /* bytes of header text; parsed it takes up to 40 times as much */
    Q4X_DUMP_NAME_MAX = 1000,       /* bytes of a node's name, op or levers */
    Q4X_NODE_MIN = 3 * 2 + 3 * 4 + 6 * 4 + 2 * 4,
    Q4X_TAP_MIN = 3 * 4 + 2 * 8 + 16,
    Q4X_PART_MIN = 2 * 4
};

/* ---- rules (dump_check.c): the writer takes nothing that the reader would refuse ----
 * Each returns 0, or fails with code and a sentence about the record; the caller puts file and place in front. */
int q4x_dump_check_nodes(const q4x_dump_node *nodes, int32_t n, int code, q4x_err *err);
int q4x_dump_check_tap(const q4x_dump_node *nodes, int32_t n, const q4x_tap *t, int code, q4x_err *err);
int q4x_dump_check_least(const double *row_least, int32_t nrows); /* 1: row_least of a sketch may be that */
int q4x_dump_check_forward(const q4x_forward *f, int code, q4x_err *err);
/* Bytes of one element of a payload, 0 for a type that has none. */
size_t q4x_dump_elem(int32_t dtype);
q4x_bits_kind q4x_dump_bits_kind(int32_t dtype);
/* Indices of the nodes in the order of their names, malloc'd; NULL: no memory. */
int32_t *q4x_dump_by_name(const q4x_dump_node *nodes, int32_t n);

/* ---- content hash (dump_content.c) ---- */
typedef struct q4x_content q4x_content;
q4x_content *q4x_content_new(const json_t *header); /* NULL: no memory */
void q4x_content_free(q4x_content *c);              /* NULL is fine */
void q4x_content_tap(q4x_content *c, const char *name, const q4x_tap *t);
void q4x_content_forward(q4x_content *c, const q4x_forward *f);
q4x_hash q4x_content_end(const q4x_content *c);

/* ---- byte planes (dump_pack.c) ---- */
/* n bytes of elements of `elem` bytes, n a multiple of it. *ret (malloc'd) is NULL when packing would not make it
 * smaller. Up to `threads` share the work, which changes no bit. */
int q4x_planes_pack(const void *data, size_t n, size_t elem, int threads, uint8_t **ret, size_t *ret_n, q4x_err *err);
/* Exactly raw bytes into dst, or an error. */
int q4x_planes_unpack(const uint8_t *src, size_t n, size_t elem, void *dst, size_t raw, q4x_err *err);
/* Huffman coding alone spends a bit a byte at least: what n packed bytes can hold. */
static inline uint64_t q4x_planes_most(uint64_t n) {
    return n > UINT64_MAX / 8 ? UINT64_MAX : 8 * n;
}

/* ---- parsing payloads (dump_parse.c) ---- */

/* Memory that lives as long as the dump. */
typedef struct q4x_dpool q4x_dpool;
struct q4x_dpool {
    void *blocks;
    uint8_t *at;
    size_t left;
};
void *q4x_dpool_take(q4x_dpool *p, size_t n); /* aligned to 16; NULL: no memory */
void q4x_dpool_free(q4x_dpool *p);

/* A place in a payload. The first failure is kept in rc and err; after it every read gives 0. */
typedef struct {
    const uint8_t *p;
    uint64_t left, pos; /* bytes to the payload's end; position in the file */
    q4x_dpool *pool;
    q4x_err *err;
    int rc;
} q4x_payload;

int q4x_parse_nodes(q4x_payload *c, q4x_dump_node **ret, int32_t *ret_n);
/* The head of a TAPS or PART chunk, of records of `least` bytes or more each; then these one by one. */
int q4x_parse_records(q4x_payload *c, uint64_t least, int32_t *ret_forward, int32_t *ret_n);
int q4x_parse_tap(q4x_payload *c, const q4x_dump_node *nodes, int32_t nnodes, int32_t forward, q4x_tap *ret);
/* A record of a PART chunk: *ret_nrows values of row_least, by the rules of a sketch. */
int q4x_parse_part(q4x_payload *c, int32_t *ret_node, int32_t *ret_nrows, double **ret);

typedef struct {
    int32_t ntaps, nsel, nfull;
} q4x_forward_counts;
int q4x_parse_forward(q4x_payload *c, q4x_forward *ret, q4x_forward_counts *ret_counts);

typedef struct {
    int32_t forward, node;
    uint32_t encoding, elem;
    uint64_t raw;        /* bytes of the tensor */
    const uint8_t *data; /* in the file */
    uint64_t n;
} q4x_full_ref;
int q4x_parse_full(q4x_payload *c, q4x_full_ref *ret);
/* For qsort and bsearch: by forward, then node. */
int q4x_full_by_place(const void *a, const void *b);

typedef struct {
    uint32_t nforwards, nnodes;
    uint64_t ntaps, nsel, nfull, nlogits, nchunks;
    q4x_hash content;
} q4x_dump_totals;
int q4x_parse_done(q4x_payload *c, q4x_dump_totals *ret);

/* ---- the reader's own part of a dump ---- */

/* What the reader keeps behind a dump (q4x_dump.priv). */
typedef struct {
    q4x_map map;
    q4x_dpool pool;                    /* nodes, taps and their arrays */
    int32_t *by_name;                  /* nodes in the order of their names */
    int32_t **by_node;                 /* [nforwards]: taps in the order of their nodes, NULL: they lie in that order */
    q4x_full_ref *full;                /* by forward, node */
    size_t nfull, full_cap, full_done; /* full_done: of forwards that ended */
} q4x_dump_priv;

#endif
