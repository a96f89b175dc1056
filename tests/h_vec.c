#include "tests/h_vec.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/quant.h"
#include "kernels/round.h"

void *vec_read(const char *path, size_t *ret_size) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    char *p = NULL;
    long n = -1;
    if (fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0) p = malloc((size_t)n + 1);
    if (p && fread(p, 1, (size_t)n, f) != (size_t)n) {
        free(p);
        p = NULL;
    }
    fclose(f);
    if (p) p[n] = 0, *ret_size = (size_t)n;
    return p;
}

uint64_t vec_u64(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

float vec_uniform(uint64_t *state) {
    return (float)((int64_t)(vec_u64(state) >> 40) - (1 << 23)) * 0x1p-23f;
}

float vec_gauss(uint64_t *state) {
    double s = 0;
    for (int i = 0; i < 12; i++) s += (double)vec_uniform(state);
    return (float)(s * 0.5);
}

int64_t vec_diff(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (k_f32_bits(a[i]) != k_f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i]))) return i;
    return n;
}

int vec_st_open(vec_st *f, const char *path) {
    *f = (vec_st){0};
    f->bytes = vec_read(path, &f->size);
    if (!f->bytes || f->size < 8) return -1;
    uint64_t n;
    memcpy(&n, f->bytes, 8);
    if (n > f->size - 8) return -1;
    f->json = json_loadb((char *)f->bytes + 8, n, 0, NULL);
    return f->json ? 0 : -1;
}

void vec_st_close(vec_st *f) {
    json_decref(f->json);
    free(f->bytes);
}

static int32_t type_of(const char *dtype) {
    static const char *const name[] = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"};
    static const int32_t id[] = {K_T_F32, K_T_F16, K_T_BF16, K_T_F64, K_T_I8, K_T_I16, K_T_I32, K_T_I64};
    for (size_t i = 0; i < sizeof id / sizeof id[0]; i++)
        if (dtype && strcmp(dtype, name[i]) == 0) return id[i];
    return -1;
}

const void *vec_st_raw(const vec_st *f, const char *key, int64_t *ret_rows, int64_t *ret_cols, int32_t *ret_type) {
    json_t *t = json_object_get(f->json, key), *dim;
    if (!t) return NULL;
    int64_t elems = 1, cols = 1;
    size_t i;
    json_array_foreach(json_object_get(t, "shape"), i, dim) elems *= cols = json_integer_value(dim);
    int64_t lo = json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
    int64_t hi = json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 1));
    int32_t type = type_of(json_string_value(json_object_get(t, "dtype")));
    uint64_t header;
    memcpy(&header, f->bytes, 8);
    if (type < 0 || cols < 1 || hi - lo != elems * k_quant_get(type)->bytes) return NULL;
    if (lo < 0 || (uint64_t)hi > f->size - 8 - header) return NULL;
    *ret_rows = elems / cols, *ret_cols = cols, *ret_type = type;
    return (const char *)f->bytes + 8 + header + lo;
}

void *vec_st_get(const vec_st *f, const char *key, int64_t *ret_rows, int64_t *ret_cols) {
    int32_t type;
    const void *p = vec_st_raw(f, key, ret_rows, ret_cols, &type);
    if (!p) return NULL;
    int64_t n = *ret_rows * *ret_cols;
    void *v = malloc((size_t)n * 4 + 1);
    if (!v) return NULL;
    if (type == K_T_I32)
        memcpy(v, p, (size_t)n * 4);
    else if (type == K_T_I64)
        for (int64_t i = 0; i < n; i++) {
            int64_t x;
            memcpy(&x, (const char *)p + 8 * i, 8);
            ((int32_t *)v)[i] = (int32_t)x;
        }
    else
        k_decode_row(type, p, v, n);
    return v;
}
