/* cublas.cpp: a cuBLAS of the emulated device: the functions that kernels/gemm.cu asks for, as strict as the real ones
 * about shapes and types, with sums in an order of its own: two chains, from the last element to the first. */
#include <stdlib.h>

#include "tests/emu/cuda_runtime.h"
#include "tests/emu/emu.h"

enum {
    OK = 0,
    NOT_INITIALIZED = 1,
    INVALID = 7,
    FAILED = 13,
    UNSUPPORTED = 15,
    R_32F = 0,
    R_16BF = 14,
    F32 = 68,
    PEDANTIC = 69
};

#define CALL(name)                                                                                                     \
    do {                                                                                                               \
        const int refused = emu_call(#name);                                                                           \
        if (refused) return refused;                                                                                   \
    } while (0)

typedef struct {
    void *stream, *room;
    int mode, atomics;
} handle;

static int create(handle **h) {
    CALL(cublasCreate);
    static const handle fresh = {NULL, NULL, -1, -1};
    *h = (handle *)malloc(sizeof fresh);
    if (!*h) return NOT_INITIALIZED;
    **h = fresh;
    emu.live++;
    return OK;
}
static int destroy(handle *h) {
    CALL(cublasDestroy);
    if (!h) return NOT_INITIALIZED;
    free(h);
    emu.live--;
    return OK;
}
static int version(handle *h, int *v) {
    CALL(cublasGetVersion);
    *v = 130000;
    return h ? OK : NOT_INITIALIZED;
}
/* As the real one: a new stream, the default workspace. */
static int stream(handle *h, void *s) {
    CALL(cublasSetStream);
    h->stream = s;
    h->room = NULL;
    return OK;
}
static int workspace(handle *h, void *p, size_t bytes) {
    CALL(cublasSetWorkspace);
    if ((uintptr_t)p % 64 || bytes < 1 << 20) return INVALID;
    h->room = p;
    return OK;
}
static int math(handle *h, int mode) {
    CALL(cublasSetMathMode);
    h->mode = mode;
    return OK;
}
static int atomics(handle *h, int mode) {
    CALL(cublasSetAtomicsMode);
    h->atomics = mode;
    return OK;
}

static float at(const void *p, int type, int64_t i) {
    if (type == R_32F) return ((const float *)p)[i];
    uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
    float v;
    memcpy(&v, &u, 4);
    return v;
}

/* A product that waits for its turn in the stream. */
typedef struct {
    const void *a, *b;
    float *c;
    int64_t m, n, k, lda, ldb, ldc;
    int ta, tb, type;
} product;

static void multiply(void *ctx) {
    const product *p = (const product *)ctx;
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t i = 0; i < p->m; i++) {
            float sum[2] = {0, 0};
            for (int64_t e = p->k - 1; e >= 0; e--)
                sum[e & 1] = fmaf(at(p->a, p->type, p->ta ? e + i * p->lda : i + e * p->lda),
                                  at(p->b, p->type, p->tb ? j + e * p->ldb : e + j * p->ldb), sum[e & 1]);
            p->c[i + j * p->ldc] = sum[0] + sum[1];
        }
}

static int gemm(handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int a_type, int lda,
                const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc, int compute,
                int algo) {
    CALL(cublasGemmEx);
    if (!h || !h->stream || !h->room || h->mode != 16 || h->atomics != 0) return NOT_INITIALIZED;
    if (*(const float *)alpha != 1.0f || *(const float *)beta != 0.0f || algo != -1) return UNSUPPORTED;
    if (a_type != b_type || c_type != R_32F || compute != (a_type == R_16BF ? F32 : PEDANTIC)) return UNSUPPORTED;
    if ((ta & ~1) || (tb & ~1) || m < 0 || n < 0 || k < 0) return INVALID;
    if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m || lda < 1 || ldb < 1 || ldc < 1) return INVALID;
    const uintptr_t size = a_type == R_16BF ? 2 : 4;
    if ((uintptr_t)a % size || (uintptr_t)b % size || (uintptr_t)c % 4) return INVALID;
    if (emu_is_gone()) return FAILED;
    emu.gemms++;
    const product p = {a, b, (float *)c, m, n, k, lda, ldb, ldc, ta, tb, a_type};
    emu_work(h->stream, multiply, &p, sizeof p);
    return OK;
}

extern "C" void *emu_dlopen(const char *name, int flags) {
    (void)flags;
    return emu.no_cublas || strcmp(name, "libcublas.so.13") ? NULL : (void *)gemm;
}

extern "C" void *emu_dlsym(void *so, const char *name) {
    static const struct {
        const char *name;
        void *f;
    } all[] = {
        {"cublasCreate_v2", (void *)create},          {"cublasDestroy_v2", (void *)destroy},
        {"cublasGetVersion_v2", (void *)version},     {"cublasSetStream_v2", (void *)stream},
        {"cublasSetWorkspace_v2", (void *)workspace}, {"cublasSetMathMode", (void *)math},
        {"cublasSetAtomicsMode", (void *)atomics},    {"cublasGemmEx", (void *)gemm},
    };
    (void)so;
    for (const auto &f : all)
        if (!strcmp(f.name, name)) return f.f;
    return NULL;
}
