/* h_gguf.h: a small GGUF writer for tests. Records are built in memory, field by field where a test wants them broken.
 * Running out of memory aborts.
 */
#ifndef H_GGUF_H
#define H_GGUF_H

#include <stddef.h>
#include <stdint.h>

/* 1 under AddressSanitizer or ThreadSanitizer, which own the allocator and the address space. */
#include "tests/h_sanitizer.h"

/* Growing bytes; zero-initialise. */
typedef struct {
    uint8_t *p;
    size_t n, cap;
} h_buf;

void h_put(h_buf *b, const void *data, size_t n);
void h_zeros(h_buf *b, size_t n);
void h_u8(h_buf *b, uint8_t v);
void h_u16(h_buf *b, uint16_t v);
void h_u32(h_buf *b, uint32_t v);
void h_u64(h_buf *b, uint64_t v);
void h_f32(h_buf *b, float v);
void h_f64(h_buf *b, double v);
void h_str(h_buf *b, const char *s); /* u64 length, bytes */
void h_strn(h_buf *b, const void *s, size_t n);
void h_buf_free(h_buf *b);

/* The file under construction: head fields, then records and data as bytes. */
typedef struct {
    uint32_t magic, version;
    uint64_t nkv, ntensors; /* counted by the adders; change them to lie */
    uint64_t align;         /* what offsets and padding use; the key is the caller's business */
    uint64_t next;          /* where the next tensor's data begin */
    int no_tail;            /* 1: no padding after the last tensor's data */
    h_buf kv, ti, data;
} h_gguf;

void h_gguf_init(h_gguf *g); /* version 3, alignment 32, nothing in it */
void h_gguf_free(h_gguf *g);

/* Keys. kv: any type, payload as it goes into the file. */
void h_gguf_kv(h_gguf *g, const char *key, uint32_t type, const void *payload, size_t n);
void h_gguf_kv_u8(h_gguf *g, const char *key, uint8_t v);
void h_gguf_kv_u16(h_gguf *g, const char *key, uint16_t v);
void h_gguf_kv_u32(h_gguf *g, const char *key, uint32_t v);
void h_gguf_kv_i32(h_gguf *g, const char *key, int32_t v);
void h_gguf_kv_u64(h_gguf *g, const char *key, uint64_t v);
void h_gguf_kv_f32(h_gguf *g, const char *key, float v);
void h_gguf_kv_bool(h_gguf *g, const char *key, uint8_t v);
void h_gguf_kv_str(h_gguf *g, const char *key, const char *v);
/* An array: payload is the elements as they lie in the file. */
void h_gguf_arr(h_gguf *g, const char *key, uint32_t etype, uint64_t count, const void *payload, size_t n);
void h_gguf_arr_i32(h_gguf *g, const char *key, const int32_t *v, size_t n);
void h_gguf_arr_str(h_gguf *g, const char *key, const char *const *v, size_t n);

/* Change keys that are there (h_gguf_key: where the type begins; aborts when there is no such key). forget: the key
 * gets another name. */
uint8_t *h_gguf_key(h_gguf *g, const char *key);
void h_gguf_forget(h_gguf *g, const char *key);
void h_gguf_set_u32(h_gguf *g, const char *key, uint32_t v);
void h_gguf_set_f32(h_gguf *g, const char *key, float v);
/* The keys of a GGUF file of one shard, as they are, into an empty g. */
struct q4x_model;
void h_gguf_take_keys(h_gguf *g, const struct q4x_model *m);

/* Tensors. tensor: right in every field; data NULL: bytes counting up. */
void h_gguf_tensor(h_gguf *g, const char *name, int32_t type, uint32_t ndim, const uint64_t *ne, const void *data);
void h_gguf_tensor1(h_gguf *g, const char *name, int32_t type, uint64_t ne0);
/* A record of exactly these fields; no data are added and the next offset stays. */
void h_gguf_record(h_gguf *g, const void *name, size_t len, uint32_t ndim, const uint64_t *ne, int32_t type,
                   uint64_t offset);

/* One of each: a key of every type and of the commonest arrays, a quantised tensor of four dimensions, a plain one. */
void h_gguf_everything(h_gguf *g);

/* The whole file; owned by the caller. */
h_buf h_gguf_bytes(const h_gguf *g);
/* Write bytes to a path; aborts when that fails. */
void h_write_file(const char *path, const void *data, size_t n);

#endif
