/* gguf_write_int.h: the inside of the GGUF writer, shared by its three files: records and rules (gguf_write_kv.c),
 * layout and headers (gguf_write_head.c), data (gguf_write.c). */
#ifndef Q4X_GGUF_WRITE_INT_H
#define Q4X_GGUF_WRITE_INT_H

#include "lib/bytes.h"
#include "lib/gguf.h"
#include "lib/gguf_write.h"
#include "lib/io.h"
#include "lib/names.h"

/* A string of the format: u64 length, bytes. */
static inline void q4x_gput_str(q4x_bytes *b, const void *s, size_t n) {
    q4x_put_u64(b, n);
    q4x_put(b, s, n);
}

typedef enum { Q4X_GOUT_DECLARE, Q4X_GOUT_LAID, Q4X_GOUT_DATA } q4x_gout_phase;

struct q4x_gguf_out {
    char *path;
    q4x_gguf_cut cut; /* align resolved */
    q4x_gout_phase phase;
    q4x_bytes kv; /* records of shard 0 */
    uint64_t nkv;
    q4x_names keys, tensor_names;
    q4x_pool pool; /* key and tensor names, shard paths */
    int64_t ntensors, cap;
    q4x_tensor *tensor; /* [ntensors] */
    int nshards;
    q4x_shard *shard; /* [nshards] */
    int64_t *first;   /* [nshards + 1]: first tensor of a shard */
    q4x_out **file;   /* [nshards]; NULL before begin and after close */
    int64_t at;       /* tensor whose turn it is */
    uint64_t left;    /* bytes of it to come */
};

/* Bytes with the padding that follows them. bytes + align must not wrap. */
static inline uint64_t q4x_gpadded(const q4x_gguf_out *o, uint64_t bytes) {
    return (bytes + o->cut.align - 1) & ~((uint64_t)o->cut.align - 1);
}

#endif
