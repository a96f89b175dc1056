#include "tests/h_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model_int.h"

static void must(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "h_gguf: %s\n", what);
    abort();
}

/* ---- bytes ---- */

static uint8_t *room(h_buf *b, size_t n) {
    if (n > b->cap - b->n) {
        size_t cap = b->cap ? b->cap * 2 : 256;
        while (cap - b->n < n) cap *= 2;
        b->p = realloc(b->p, cap);
        must(b->p != NULL, "out of memory");
        b->cap = cap;
    }
    b->n += n;
    return b->p + (b->n - n);
}

void h_put(h_buf *b, const void *data, size_t n) {
    if (n) memcpy(room(b, n), data, n);
}
void h_zeros(h_buf *b, size_t n) {
    if (n) memset(room(b, n), 0, n);
}
void h_u8(h_buf *b, uint8_t v) {
    h_put(b, &v, sizeof v);
}
void h_u16(h_buf *b, uint16_t v) {
    h_put(b, &v, sizeof v);
}
void h_u32(h_buf *b, uint32_t v) {
    h_put(b, &v, sizeof v);
}
void h_u64(h_buf *b, uint64_t v) {
    h_put(b, &v, sizeof v);
}
void h_f32(h_buf *b, float v) {
    h_put(b, &v, sizeof v);
}
void h_f64(h_buf *b, double v) {
    h_put(b, &v, sizeof v);
}
void h_strn(h_buf *b, const void *s, size_t n) {
    h_u64(b, n);
    h_put(b, s, n);
}
void h_str(h_buf *b, const char *s) {
    h_strn(b, s, strlen(s));
}
void h_buf_free(h_buf *b) {
    free(b->p);
    *b = (h_buf){0};
}

/* ---- file ---- */

void h_gguf_init(h_gguf *g) {
    *g = (h_gguf){.magic = 0x46554747, .version = 3, .align = 32};
}

void h_gguf_free(h_gguf *g) {
    h_buf_free(&g->kv);
    h_buf_free(&g->ti);
    h_buf_free(&g->data);
}

void h_gguf_kv(h_gguf *g, const char *key, uint32_t type, const void *payload, size_t n) {
    h_str(&g->kv, key);
    h_u32(&g->kv, type);
    h_put(&g->kv, payload, n);
    g->nkv++;
}
void h_gguf_kv_u8(h_gguf *g, const char *key, uint8_t v) {
    h_gguf_kv(g, key, 0, &v, sizeof v);
}
void h_gguf_kv_u16(h_gguf *g, const char *key, uint16_t v) {
    h_gguf_kv(g, key, 2, &v, sizeof v);
}
void h_gguf_kv_u32(h_gguf *g, const char *key, uint32_t v) {
    h_gguf_kv(g, key, 4, &v, sizeof v);
}
void h_gguf_kv_i32(h_gguf *g, const char *key, int32_t v) {
    h_gguf_kv(g, key, 5, &v, sizeof v);
}
void h_gguf_kv_u64(h_gguf *g, const char *key, uint64_t v) {
    h_gguf_kv(g, key, 10, &v, sizeof v);
}
void h_gguf_kv_f32(h_gguf *g, const char *key, float v) {
    h_gguf_kv(g, key, 6, &v, sizeof v);
}
void h_gguf_kv_bool(h_gguf *g, const char *key, uint8_t v) {
    h_gguf_kv(g, key, 7, &v, sizeof v);
}
void h_gguf_kv_str(h_gguf *g, const char *key, const char *v) {
    h_gguf_kv(g, key, 8, NULL, 0);
    h_str(&g->kv, v);
}

void h_gguf_arr(h_gguf *g, const char *key, uint32_t etype, uint64_t count, const void *payload, size_t n) {
    h_gguf_kv(g, key, 9, NULL, 0);
    h_u32(&g->kv, etype);
    h_u64(&g->kv, count);
    h_put(&g->kv, payload, n);
}
void h_gguf_arr_i32(h_gguf *g, const char *key, const int32_t *v, size_t n) {
    h_gguf_arr(g, key, 5, n, v, n * sizeof *v);
}
void h_gguf_arr_str(h_gguf *g, const char *key, const char *const *v, size_t n) {
    h_gguf_arr(g, key, 8, n, NULL, 0);
    for (size_t i = 0; i < n; i++) h_str(&g->kv, v[i]);
}

uint8_t *h_gguf_key(h_gguf *g, const char *key) {
    h_buf b = {0};
    h_str(&b, key);
    uint8_t *p = memmem(g->kv.p, g->kv.n, b.p, b.n);
    size_t n = b.n;
    h_buf_free(&b);
    must(p != NULL, key);
    return p + n;
}

void h_gguf_forget(h_gguf *g, const char *key) {
    h_gguf_key(g, key)[-1] = '~';
}
void h_gguf_set_u32(h_gguf *g, const char *key, uint32_t v) {
    memcpy(h_gguf_key(g, key) + 4, &v, sizeof v);
}
void h_gguf_set_f32(h_gguf *g, const char *key, float v) {
    memcpy(h_gguf_key(g, key) + 4, &v, sizeof v);
}

/* They end where the record of the first tensor begins. */
void h_gguf_take_keys(h_gguf *g, const q4x_model *m) {
    const uint8_t *p = m->map[0].data;
    h_buf first = {0};
    h_str(&first, m->tensor[0].name);
    memcpy(&g->nkv, p + 16, 8);
    const uint8_t *end = memmem(p + 24, m->map[0].size - 24, first.p, first.n);
    must(end != NULL, "the first tensor's record");
    h_put(&g->kv, p + 24, (size_t)(end - p - 24));
    h_buf_free(&first);
}

/* Block elements and bytes, by GGUF id. */
static const uint32_t blocks[][2] = {
#define QUANT(id, name, elems, bytes, stored) [id] = {elems, bytes},
#include "kernels/quants.def"
#undef QUANT
};

void h_gguf_record(h_gguf *g, const void *name, size_t len, uint32_t ndim, const uint64_t *ne, int32_t type,
                   uint64_t offset) {
    h_strn(&g->ti, name, len);
    h_u32(&g->ti, ndim);
    for (uint32_t i = 0; i < ndim; i++) h_u64(&g->ti, ne[i]);
    h_u32(&g->ti, (uint32_t)type);
    h_u64(&g->ti, offset);
    g->ntensors++;
}

void h_gguf_tensor(h_gguf *g, const char *name, int32_t type, uint32_t ndim, const uint64_t *ne, const void *data) {
    uint64_t elems = 1;
    for (uint32_t i = 0; i < ndim; i++) elems *= ne[i];
    uint64_t bytes = elems / blocks[type][0] * blocks[type][1];
    h_gguf_record(g, name, strlen(name), ndim, ne, type, g->next);
    h_zeros(&g->data, (size_t)(g->next - g->data.n)); /* padding of the tensor before */
    if (data)
        h_put(&g->data, data, (size_t)bytes);
    else
        for (uint64_t i = 0; i < bytes; i++) h_u8(&g->data, (uint8_t)i);
    g->next = (g->next + bytes + g->align - 1) / g->align * g->align;
}

void h_gguf_tensor1(h_gguf *g, const char *name, int32_t type, uint64_t ne0) {
    h_gguf_tensor(g, name, type, 1, &ne0, NULL);
}

void h_gguf_everything(h_gguf *g) {
    static const int32_t ints[3] = {-1, 0, 7};
    static const char *const strs[3] = {"", "a", "bcd"};
    h_gguf_init(g);
    h_gguf_kv_str(g, "general.architecture", "toy");
    h_gguf_kv_u32(g, "general.alignment", 32);
    for (uint32_t t = 0; t < 13; t++) {
        char key[8];
        snprintf(key, sizeof key, "k%u", t);
        static const uint8_t size[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
        if (size[t]) h_gguf_kv(g, key, t, "\1\0\0\0\0\0\0\0", size[t]);
    }
    h_gguf_kv_str(g, "s", "text");
    h_gguf_arr_i32(g, "ai", ints, 3);
    h_gguf_arr(g, "ab", 7, 2, "\1\0", 2);
    h_gguf_arr_str(g, "as", strs, 3);
    uint64_t ne[4] = {32, 2, 1, 3};
    h_gguf_tensor(g, "blk.0.w", 2, 4, ne, NULL);
    h_gguf_tensor1(g, "b", 30, 5);
}

h_buf h_gguf_bytes(const h_gguf *g) {
    h_buf b = {0};
    h_u32(&b, g->magic);
    h_u32(&b, g->version);
    h_u64(&b, g->ntensors);
    h_u64(&b, g->nkv);
    h_put(&b, g->kv.p, g->kv.n);
    h_put(&b, g->ti.p, g->ti.n);
    h_zeros(&b, (size_t)((g->align - b.n % g->align) % g->align));
    h_put(&b, g->data.p, g->data.n);
    if (!g->no_tail) h_zeros(&b, (size_t)(g->next > g->data.n ? g->next - g->data.n : 0));
    return b;
}

void h_write_file(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    must(f != NULL, path);
    must(fwrite(data, 1, n, f) == n, path);
    must(fclose(f) == 0, path);
}
