/* gemm.cu: cuBLAS, found at run time, and a product through it. */
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gemm.cuh"
#include "kernels/matmul.h"
#include "kernels/quant.cuh"

/* ---- the library ---- */

/* As cublas_api.h has them; the same in 12 and 13. */
enum { OP_N = 0, OP_T = 1, R_32F = 0, R_16BF = 14, COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, ALGO_DEFAULT = -1 };
enum { NO_REDUCED_PRECISION = 16, NO_ATOMICS = 0, OUT_OF_MEMORY = 3, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

static struct {
    int (*create)(void **h);
    int (*destroy)(void *h);
    int (*version)(void *h, int *v);
    int (*stream)(void *h, void *stream);
    int (*workspace)(void *h, void *p, size_t bytes);
    int (*math)(void *h, int mode);
    int (*atomics)(void *h, int mode);
    int (*gemm)(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int a_type, int lda,
                const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc, int compute,
                int algo);
} lib; /* filled once, by whoever opens it first */

static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
static const char *const places[] = {
    "/usr/local/cuda*/lib64",
    "/usr/local/cuda*/lib",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
    "/usr/lib/python3*/*-packages/nvidia/*/lib",
    "/opt/*/lib/python3*/site-packages/nvidia/*/lib",
    "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib",
};

/* The library that it needs lies beside it, where the loader might not look. */
static void *load(const char *path) {
    char beside[PATH_MAX];
    const char *dot = strstr(path, ".so.");
    snprintf(beside, sizeof beside, "%.*sLt%s", (int)(dot - path), path, dot);
    if (path[0] == '/') dlopen(beside, RTLD_NOW | RTLD_GLOBAL);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *search(const char *name) {
    void *so = load(name);
    for (size_t i = 0; i < sizeof places / sizeof *places && !so; i++) {
        char pattern[PATH_MAX];
        glob_t g;
        snprintf(pattern, sizeof pattern, "%s/%s", places[i], name);
        if (!glob(pattern, 0, NULL, &g))
            for (size_t k = 0; k < g.gl_pathc && !so; k++) so = load(g.gl_pathv[k]);
        globfree(&g);
    }
    return so;
}

/* It stays loaded: others may hold it too, and it does not unload cleanly. */
static int find(char *why, size_t size) {
    void *so = NULL;
    if (lib.gemm) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !so; i++) so = search(names[i]);
    if (!so) {
        snprintf(why, size,
                 "cuBLAS is not here: neither %s nor %s on the loader's path, in /usr/local/cuda*/lib or in Python's "
                 "nvidia packages; LD_LIBRARY_PATH may name its folder, or use gemm=own",
                 names[0], names[1]);
        return K_GEMM_ERROR;
    }
    auto l = lib;
    const struct {
        void **f;
        const char *name;
    } want[] = {
        {(void **)&l.create, "cublasCreate_v2"},          {(void **)&l.destroy, "cublasDestroy_v2"},
        {(void **)&l.version, "cublasGetVersion_v2"},     {(void **)&l.stream, "cublasSetStream_v2"},
        {(void **)&l.workspace, "cublasSetWorkspace_v2"}, {(void **)&l.math, "cublasSetMathMode"},
        {(void **)&l.atomics, "cublasSetAtomicsMode"},    {(void **)&l.gemm, "cublasGemmEx"},
    };
    for (const auto &w : want)
        if (!(*w.f = dlsym(so, w.name))) {
            snprintf(why, size, "the cuBLAS that is here has no %s; versions 12 and 13 are known", w.name);
            return K_GEMM_ERROR;
        }
    lib = l;
    return 0;
}

const char *k_gemm_text(int error) {
    switch (error - K_GEMM_ERROR) {
    case 0: return "cuBLAS was not opened";
    case OUT_OF_MEMORY: return "cuBLAS: no memory";
    case EXECUTION_FAILED: return "cuBLAS: a product failed on the device";
    case NOT_SUPPORTED: return "cuBLAS: this product is not supported on this device";
    default: return "cuBLAS: an internal error, or no context on the device";
    }
}

/* The stream before the workspace: setting a stream takes the workspace away. */
static int set_up(void *h, void *stream, void *room) {
    int e = lib.stream(h, stream);
    if (!e) e = lib.workspace(h, room, K_GEMM_ROOM);
    if (!e) e = lib.math(h, NO_REDUCED_PRECISION);
    return e ? e : lib.atomics(h, NO_ATOMICS);
}

int k_gemm_open(void *stream, void *room, void **ret, char *why, size_t size) {
    void *h = NULL;
    int e = find(why, size);
    if (e) return e;
    e = lib.create(&h);
    if (!e && (e = set_up(h, stream, room)) && lib.destroy(h)) {
        snprintf(why, size, "cuBLAS cannot be started, its status is %d, nor be closed again", e);
        return K_GEMM_ERROR + e;
    }
    if (e) {
        snprintf(why, size, "cuBLAS cannot be started, its status is %d", e);
        return K_GEMM_ERROR + e;
    }
    *ret = h;
    return 0;
}

int k_gemm_close(void *gemm) {
    const int e = gemm ? lib.destroy(gemm) : 0;
    return e ? K_GEMM_ERROR + e : 0;
}

int k_gemm_version(void *gemm) {
    int v = 0;
    return lib.version(gemm, &v) ? 0 : v;
}

/* ---- a product ---- */

static __global__ void to_bf16_k(const float *x, int64_t n, uint16_t *y) {
    int64_t i = k_tid();
    if (i < n) y[i] = k_bf16_from_f32(x[i]);
}

/* BF16 rows as they lie, made to follow each other at even addresses. */
static __global__ void bf16_rows_k(const __grid_constant__ k_weight w, int64_t r0, int64_t n, uint16_t *y) {
    int64_t i = k_tid();
    if (i < n)
        y[i] = (uint16_t)k_u16_at((const uint8_t *)w.data + (size_t)(r0 + i / w.cols) * w.row_bytes,
                                  (int32_t)(2 * (i % w.cols)));
}

static __global__ void finish_k(float *y, int64_t n, int32_t epi, int32_t N, int32_t act) {
    int64_t i = k_tid();
    if (i < n) y[i] = k_epilogue_of(y[i], epi, N, act);
}

struct decode_job {
    k_weight w;
    int64_t r0, n;
    float *y;
    void *stream;
    template <int32_t TYPE> void run() const {
        K_LAUNCH(k_decode_k<TYPE>, dim3(k_blocks(n, K_THREADS)), dim3(K_THREADS), 0, stream, w, r0, n, y);
    }
};

typedef struct {
    void *gemm, *stream;
    const k_call *c;
    int bf16;
    const void *x;
    float *room; /* behind x */
    int64_t room_n;
} product;

/* Outputs r0 .. r0 + rows of all columns: rows at w, ld apart. In the library's words, whose matrices have columns one
 * behind the other, out [O,T] = w [K,O] transposed times x [K,T]. */
static int times(const product *p, const void *w, int64_t ld, int64_t r0, int64_t rows) {
    const float one = 1.0f, zero = 0.0f;
    const int K = (int)p->c->in_cols[0], type = p->bf16 ? R_16BF : R_32F;
    int e =
        lib.gemm(p->gemm, OP_T, OP_N, (int)rows, p->c->T, K, &one, w, type, (int)ld, p->x, type, K, &zero,
                 p->c->out + r0, R_32F, (int)p->c->cols, p->bf16 ? COMPUTE_32F : COMPUTE_32F_PEDANTIC, ALGO_DEFAULT);
    return e ? K_GEMM_ERROR + e : 0;
}

/* Rows that can be read as they are stored; 0: no. */
static int64_t as_stored(const product *p, const k_weight *w) {
    const size_t size = p->bf16 ? 2 : 4;
    if (!p->bf16 && w->type != K_T_F32) return 0;
    if ((uintptr_t)w->data % size || w->row_bytes % size) return 0;
    return (int64_t)(w->row_bytes / size);
}

static int by_parts(const product *p, const k_weight *w) {
    const int64_t K = w->cols, at_once = p->room_n * (p->bf16 ? 2 : 1) / K;
    if (at_once < K_GEMM_ROWS && at_once < w->rows) return (int)cudaErrorMemoryAllocation;
    for (int64_t r = 0; r < w->rows; r += at_once) {
        const int64_t rows = w->rows - r < at_once ? w->rows - r : at_once;
        if (p->bf16)
            K_LAUNCH(bf16_rows_k, dim3(k_blocks(rows * K, K_THREADS)), dim3(K_THREADS), 0, p->stream, *w, r, rows * K,
                     (uint16_t *)(void *)p->room);
        else
            k_by_type(w->type, decode_job{*w, r, rows * K, p->room, p->stream});
        int e = times(p, p->room, K, r, rows);
        if (e) return e;
    }
    return 0;
}

static int run(void *gemm, const k_call *c, void *stream) {
    const k_weight *w = c->w[0];
    const int64_t n = c->T * c->in_cols[0], outs = c->T * c->cols;
    const int32_t act = k_epilogue_act(c->epi, c->lv);
    product p = {gemm, stream, c, k_gemm_of(c) == K_BY_BF16, c->in[0], c->scratch, c->scratch_n};
    if (!gemm) return K_GEMM_ERROR;
    if (c->cols > INT_MAX || w->row_bytes > INT_MAX || n < 1) return (int)cudaErrorInvalidValue;
    if (p.bf16) {
        const int64_t half = k_gemm_halves(n);
        if (half > c->scratch_n) return (int)cudaErrorMemoryAllocation;
        K_LAUNCH(to_bf16_k, dim3(k_blocks(n, K_THREADS)), dim3(K_THREADS), 0, stream, c->in[0], n,
                 (uint16_t *)(void *)c->scratch);
        p.x = c->scratch;
        p.room = c->scratch + half;
        p.room_n = c->scratch_n - half;
    }
    const int64_t ld = as_stored(&p, w);
    int e = ld ? times(&p, w->data, ld, 0, w->rows) : by_parts(&p, w);
    if (e) return e;
    if (c->epi != K_EPI_RAW && !((c->epi == K_EPI_NONE || c->epi == K_EPI_ROUTER) && act == K_ACT_F32))
        K_LAUNCH(finish_k, dim3(k_blocks(outs, K_THREADS)), dim3(K_THREADS), 0, stream, c->out, outs, c->epi, c->d->N,
                 act);
    return 0;
}

/* A launch that failed is the cause of what the library then said. */
int k_gemm_run(void *gemm, const k_call *c, void *stream) {
    const int e = run(gemm, c, stream), launch = (int)cudaGetLastError();
    return launch ? launch : e;
}
