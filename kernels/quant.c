/* quant.c: the table of stored types, driven by quants.def. */
#include "kernels/quant.h"

#include <math.h>
#include <string.h>

#include "kernels/quant_all.h"
#include "kernels/quant_avx2_k.h"

/* One decoder a type through its scalar core. */
#define QUANT(id, name, elems, bytes, stored)                                                                          \
    static void plain_##name(const void *src, float *y, int64_t nblocks) {                                             \
        const uint8_t *b = (const uint8_t *)src;                                                                       \
        for (; nblocks > 0; nblocks--, b += bytes)                                                                     \
            for (int32_t e = 0; e < elems; e++) *y++ = k_at_##name(b, e);                                              \
    }
#include "kernels/quants.def"
#undef QUANT

#ifdef K_QUANT_AVX2
/* One load, one conversion an element: gcc has nothing to gain from us. */
#define avx2_F32 plain_F32
#define avx2_I8 plain_I8
#define avx2_I16 plain_I16
#define avx2_I32 plain_I32
#define avx2_I64 plain_I64
#define avx2_F64 plain_F64
#define FAST(name) avx2_##name
#else
#define FAST(name) plain_##name
#endif

static const k_quant types[] = {
#define QUANT(gguf_id, type, n, size, in_file)                                                                         \
    [gguf_id] = {.name = #type, .id = gguf_id, .elems = n, .bytes = size, .stored = in_file, .decode = FAST(type)},
#include "kernels/quants.def"
#undef QUANT
};

enum { NTYPES = sizeof types / sizeof types[0] };

const k_quant *k_quant_get(int32_t id) {
    return id >= 0 && id < NTYPES && types[id].name ? &types[id] : NULL;
}

const char *k_quant_name(int32_t id) {
    const k_quant *q = k_quant_get(id);
    return q ? q->name : "?";
}

const k_quant *k_quant_by_name(const char *name) {
    for (int32_t i = 0; i < NTYPES; i++)
        if (types[i].name && strcmp(types[i].name, name) == 0) return &types[i];
    return NULL;
}

void k_decode_row(int32_t type, const void *row, float *dst, int64_t n) {
    const k_quant *q = &types[type];
    q->decode(row, dst, n / q->elems);
}

void k_decode_plain(int32_t type, const void *row, float *dst, int64_t n) {
    switch (type) {
#define QUANT(id, name, elems, bytes, stored)                                                                          \
    case id:                                                                                                           \
        plain_##name(row, dst, n / elems);                                                                             \
        break;
#include "kernels/quants.def"
#undef QUANT
    }
}

/* ---- Q8_K activations: 0 d f32, 4 codes int8[256], 260 sums of sixteen int16[16] ---- */

static void encode_block_q8_K(const float *x, uint8_t *b) {
    float amax = 0, extreme = 0;
    for (int i = 0; i < 256; i++)
        if (fabsf(x[i]) > amax) amax = fabsf(x[i]), extreme = x[i];
    memset(b, 0, 292);
    if (!(amax > 0)) return;
    float r = -127.0f / extreme, d = 1.0f / r; /* signed: the extreme gets -127 */
    int8_t q[256];
    int16_t sum[16] = {0};
    for (int i = 0; i < 256; i++) {
        q[i] = (int8_t)k_code_q8_K(x[i], r);
        sum[i / 16] = (int16_t)(sum[i / 16] + q[i]);
    }
    memcpy(b, &d, 4);
    memcpy(b + 4, q, 256);
    memcpy(b + 260, sum, 32);
}

void k_encode_q8_K(const float *src, void *dst, int64_t n) {
    uint8_t *b = (uint8_t *)dst;
    for (int64_t i = 0; i + 256 <= n; i += 256, b += 292) encode_block_q8_K(src + i, b);
}
