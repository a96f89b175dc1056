/* gguf_write.h: a GGUF file (version 3) or split set, written as a stream (gguf-quants 1.1 to 1.3).
 *
 * Keys and tensors are declared first; begin lays out offsets and shards and writes every header to a temporary file;
 * then the tensors' bytes come strictly in declared order. Memory is in proportion to the headers, never to the data.
 * finish renames the files when every byte has come and every shard is on the disk: nothing is ever half there under
 * its final name. What the strict reader (lib/gguf.h) would refuse is refused here, with the same ceilings; strings
 * are taken as bytes. Functions return 0 or a negative code; after a failure the only call left is abort.
 *
 * Order of calls: new, keys and tensors in any order, then layout (optional: sizes and headers are known from here on,
 * nothing is written), begin, write ..., finish. abort at any point instead. Another order is a bug of the caller.
 */
#ifndef Q4X_GGUF_WRITE_H
#define Q4X_GGUF_WRITE_H

#include "lib/model.h"

typedef struct q4x_gguf_out q4x_gguf_out;

/* How data are cut into files. A set of more than one file begins with one that has the metadata alone, and is named
 * PREFIX-00001-of-00003.gguf, where PREFIX is the path without ".gguf" or without an ending of that form. */
typedef struct {
    uint32_t align;       /* of data; a power of two, 8 to 65536; 0: 32. Anything but 32 adds general.alignment */
    int shards;           /* exactly so many files, cut where the largest becomes smallest; 0: by shard_bytes */
    uint64_t shard_bytes; /* most tensor data in a file, a tensor larger than that alone; 0: one file. Needs shards 0 */
} q4x_gguf_cut;

int q4x_gguf_out_new(const char *path, const q4x_gguf_cut *cut, q4x_gguf_out **ret, q4x_err *err);

/* ---- metadata: order is kept; a key is 1 to 65535 printable ASCII bytes, once. general.alignment and split.* are the
 * writer's own and refused. Everything is copied. ---- */
int q4x_gguf_out_u32(q4x_gguf_out *o, const char *key, uint32_t v, q4x_err *err);
int q4x_gguf_out_i32(q4x_gguf_out *o, const char *key, int32_t v, q4x_err *err);
int q4x_gguf_out_u64(q4x_gguf_out *o, const char *key, uint64_t v, q4x_err *err);
int q4x_gguf_out_f32(q4x_gguf_out *o, const char *key, float v, q4x_err *err);
int q4x_gguf_out_bool(q4x_gguf_out *o, const char *key, int v, q4x_err *err);
int q4x_gguf_out_str(q4x_gguf_out *o, const char *key, const char *v, q4x_err *err);
int q4x_gguf_out_u32s(q4x_gguf_out *o, const char *key, const uint32_t *v, size_t n, q4x_err *err);
int q4x_gguf_out_i32s(q4x_gguf_out *o, const char *key, const int32_t *v, size_t n, q4x_err *err);
int q4x_gguf_out_u64s(q4x_gguf_out *o, const char *key, const uint64_t *v, size_t n, q4x_err *err);
int q4x_gguf_out_f32s(q4x_gguf_out *o, const char *key, const float *v, size_t n, q4x_err *err);
int q4x_gguf_out_bools(q4x_gguf_out *o, const char *key, const uint8_t *v, size_t n, q4x_err *err); /* 0 or 1 each */
/* len NULL: the strings end at their NUL. */
int q4x_gguf_out_strs(q4x_gguf_out *o, const char *key, const char *const *v, const size_t *len, size_t n,
                      q4x_err *err);

/* ---- tensors: type is a k_type that files hold, ne fastest first, name 1 to 63 printable ASCII bytes, once ---- */
int q4x_gguf_out_tensor(q4x_gguf_out *o, const char *name, int32_t type, int ndim, const int64_t *ne, q4x_err *err);

/* ---- layout ---- */
int q4x_gguf_out_layout(q4x_gguf_out *o, q4x_err *err);

/* After layout. Tensors as declared: data is NULL, shard the file that each lies in. */
int64_t q4x_gguf_out_ntensors(const q4x_gguf_out *o);
const q4x_tensor *q4x_gguf_out_tensors(const q4x_gguf_out *o);
int q4x_gguf_out_nshards(const q4x_gguf_out *o);
/* path: what the file will be called; size: its bytes, data_off: those of its header with padding. */
const q4x_shard *q4x_gguf_out_shard(const q4x_gguf_out *o, int i);
/* The header of shard i up to its data, data_off bytes, malloc'd. */
int q4x_gguf_out_header(const q4x_gguf_out *o, int i, uint8_t **ret, size_t *ret_n, q4x_err *err);

/* ---- data ---- */

/* Create the files under temporary names and write their headers. Calls layout when that has not been done. */
int q4x_gguf_out_begin(q4x_gguf_out *o, q4x_err *err);
/* The next n bytes of the tensor whose turn it is; padding is added when it is complete. More bytes than the tensor
 * has left are an error naming it: a write never runs into the next tensor. */
int q4x_gguf_out_write(q4x_gguf_out *o, const void *data, size_t n, q4x_err *err);
/* The tensor whose turn it is and how many of its bytes are still to come; NULL when all have come. */
const q4x_tensor *q4x_gguf_out_next(const q4x_gguf_out *o, uint64_t *ret_left);
/* Every byte must have come. Syncs and renames all files, the one with the metadata last, so that a set cannot be
 * opened before it is whole. Frees o, also on failure (no temporary is left then). */
int q4x_gguf_out_finish(q4x_gguf_out *o, q4x_err *err);
void q4x_gguf_out_abort(q4x_gguf_out *o); /* removes the temporaries; NULL is fine */

#endif
