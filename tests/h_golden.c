#include "tests/h_golden.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/round.h"

/* "1,2,3" to ids. */
static int32_t *ids_of(const char *text, int *ret_n) {
    int n = 0;
    int32_t *v = malloc((strlen(text) + 1) * sizeof *v);
    assert_non_null(v);
    for (char *end; *text; text = *end == ',' ? end + 1 : end) {
        long id = strtol(text, &end, 10);
        if (end == text || (*end && *end != ',') || id < 0 || id > INT32_MAX) fail_msg("bad id list: %s", text);
        v[n++] = (int32_t)id;
    }
    *ret_n = n;
    return v;
}

h_golden *h_golden_open(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    struct stat sb;
    q4x_err err = {0};
    h_golden *g = calloc(1, sizeof *g);
    assert_non_null(g);
    assert_int_equal(fstat(fd, &sb), 0);
    g->size = (size_t)sb.st_size;
    g->map = mmap(NULL, g->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (g->map == MAP_FAILED) fail_msg("%s: cannot be mapped", path);
    close(fd);
    if (q4x_st_parse(g->map, g->size, path, &g->st, &err)) fail_msg("%s", err.msg);
    const char *prompt = q4x_st_meta(g->st, "prompt"), *greedy = q4x_st_meta(g->st, "greedy");
    if (prompt) g->prompt = ids_of(prompt, &g->nprompt);
    if (greedy) g->greedy = ids_of(greedy, &g->ngreedy);
    return g;
}

void h_golden_close(h_golden *g) {
    if (!g) return;
    q4x_st_free(g->st);
    munmap(g->map, g->size);
    free(g->prompt);
    free(g->greedy);
    free(g);
}

/* The tensor of that key, NULL when there is none. The stream into a layer is the stream out of the one before, and a
 * file may store it under that name alone. */
static const q4x_st_tensor *find(const h_golden *g, const char *key) {
    const q4x_st_tensor *t = q4x_st_find(g->st, key);
    int f, l, end = 0;
    if (t || sscanf(key, "f%d/L%d.in%n", &f, &l, &end) != 2 || !end || key[end] || l < 1) return t;
    char before[64];
    snprintf(before, sizeof before, "f%d/L%02d.out", f, l - 1);
    return q4x_st_find(g->st, before);
}

int h_golden_has(const h_golden *g, const char *key) {
    return find(g, key) != NULL;
}

static const q4x_st_tensor *get(const h_golden *g, const char *key, int64_t *rows, int64_t *cols, const void **data) {
    const q4x_st_tensor *t = find(g, key);
    if (!t) fail_msg("no tensor %s in the golden file", key);
    *cols = t->ndim ? t->shape[t->ndim - 1] : 1;
    *rows = *cols ? t->elems / *cols : 0;
    *data = (const char *)g->map + t->off;
    return t;
}

float *h_golden_f32(const h_golden *g, const char *key, int64_t *ret_rows, int64_t *ret_cols) {
    const void *p;
    const q4x_st_tensor *t = get(g, key, ret_rows, ret_cols, &p);
    float *v = malloc((size_t)t->elems * sizeof *v + 1);
    assert_non_null(v);
    if (t->type == K_T_F32) {
        memcpy(v, p, (size_t)t->elems * 4);
        return v;
    }
    if (t->type != K_T_BF16 && t->type != K_T_F16) fail_msg("%s is %s, no float", key, t->dtype);
    for (int64_t i = 0; i < t->elems; i++) {
        uint16_t h;
        memcpy(&h, (const char *)p + 2 * i, 2);
        v[i] = t->type == K_T_BF16 ? k_f32_from_bf16(h) : k_f32_from_f16(h);
    }
    return v;
}

int32_t *h_golden_i32(const h_golden *g, const char *key, int64_t *ret_rows, int64_t *ret_cols) {
    const void *p;
    const q4x_st_tensor *t = get(g, key, ret_rows, ret_cols, &p);
    int32_t *v = malloc((size_t)t->elems * sizeof *v + 1);
    assert_non_null(v);
    if (t->type != K_T_I32 && t->type != K_T_I64) fail_msg("%s is %s, no integer", key, t->dtype);
    for (int64_t i = 0; i < t->elems; i++) {
        int64_t x;
        if (t->type == K_T_I32)
            memcpy(&v[i], (const char *)p + 4 * i, 4);
        else {
            memcpy(&x, (const char *)p + 8 * i, 8);
            if (x < INT32_MIN || x > INT32_MAX) fail_msg("%s holds %lld", key, (long long)x);
            v[i] = (int32_t)x;
        }
    }
    return v;
}
