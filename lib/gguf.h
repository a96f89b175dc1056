/* gguf.h: the header of one GGUF file, parsed strictly (gguf-quants 1.4, 1.5). Internal to the container: readers of
 * a model use lib/model.h.
 *
 * Parsing copies names and scalars only; strings and arrays stay where they are and are known by offset. Memory is in
 * proportion to the records that are really there, time to the bytes of the header.
 */
#ifndef Q4X_GGUF_H
#define Q4X_GGUF_H

#include "lib/model_int.h"

enum {
    Q4X_GGUF_U8,
    Q4X_GGUF_I8,
    Q4X_GGUF_U16,
    Q4X_GGUF_I16,
    Q4X_GGUF_U32,
    Q4X_GGUF_I32,
    Q4X_GGUF_F32,
    Q4X_GGUF_BOOL,
    Q4X_GGUF_STR,
    Q4X_GGUF_ARR,
    Q4X_GGUF_U64,
    Q4X_GGUF_I64,
    Q4X_GGUF_F64,
    Q4X_GGUF_NTYPES
};

/* Ceilings. The first block is gguf-quants 1.5's; arrays of numbers have none there but the file's length and 1.4's
 * demand for one below 2^30. */
#define Q4X_GGUF_MAX_KV 65536u
#define Q4X_GGUF_MAX_TENSORS 1048576u
#define Q4X_GGUF_MAX_KEY 65535u
#define Q4X_GGUF_MAX_STR (64u << 20)
#define Q4X_GGUF_MAX_STRS (1u << 24)
#define Q4X_GGUF_MIN_ALIGN 8u
#define Q4X_GGUF_MAX_ALIGN 65536u
#define Q4X_GGUF_MAX_NAME 63u
#define Q4X_GGUF_MAX_DIM ((uint64_t)1 << 40)
#define Q4X_GGUF_MAX_ELEMS ((uint64_t)1 << 48)
#define Q4X_GGUF_MAX_SHARDS 1000u
#define Q4X_GGUF_MAX_NUMS (1u << 28)

typedef struct {
    const char *key;   /* in the pool */
    uint32_t type;     /* Q4X_GGUF_* */
    uint32_t etype;    /* of an array's elements */
    uint64_t count;    /* elements of an array, bytes of a string, 1 */
    uint64_t off, len; /* payload in the file: a scalar, a string's bytes, an array's elements */
    uint64_t raw;      /* a scalar's bytes, little-endian, the rest 0 */
    uint64_t *index;   /* array of strings: where each one's length field is, and one more: their end */
} q4x_gguf_kv;

typedef struct {
    uint32_t version, align;
    uint64_t data_off; /* of the tensor data; the end of the file when there are no tensors and no padding */
    uint64_t data_end; /* of them, with what padding there is */
    uint64_t nkv;
    q4x_gguf_kv *kv; /* [nkv], file order */
    q4x_names keys;
    q4x_pool pool;
    const char *arch; /* general.architecture, in the pool; NULL: absent */
} q4x_gguf;

/* Parse the header of shard m->nshards - 1 and append its tensors to m. check is asked when the keys are read, before
 * any tensor is added: a shard of the wrong place or set is better named by its keys than by what its tensors collide
 * with. On failure *ret is freed and zeroed. Messages begin at the field; the caller puts the file in front. */
typedef int (*q4x_gguf_check)(void *ctx, const q4x_gguf *g, q4x_err *err);
int q4x_gguf_parse(q4x_model *m, q4x_gguf_check check, void *ctx, q4x_gguf *ret, q4x_err *err);
void q4x_gguf_free(q4x_gguf *g); /* a zeroed one is fine */
/* The record of a key, or NULL. */
const q4x_gguf_kv *q4x_gguf_find(const q4x_gguf *g, const char *key);
/* "u32", "array of string": for messages. */
const char *q4x_gguf_type_name(const q4x_gguf_kv *kv, char buf[32]);

/* Files that lie in memory, for tests and fuzzing: the whole open, split sets included, without a file system. */
typedef struct {
    const char *path;
    const void *data;
    size_t size;
} q4x_mem_file;
int q4x_gguf_open_mem(const q4x_mem_file *files, int n, const char *path, q4x_model **ret, q4x_err *err);
/* The same with one file. */
int q4x_gguf_parse_mem(const void *data, size_t size, const char *path, q4x_model **ret, q4x_err *err);

/* How a path becomes a map. */
typedef int (*q4x_map_fn)(void *ctx, const char *path, q4x_map *ret, q4x_err *err);
int q4x_gguf_open_with(q4x_map_fn map, void *ctx, const char *path, q4x_model **ret, q4x_err *err);

#endif
