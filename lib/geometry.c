#include "lib/geometry.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ple.h"
#include "kernels/quant.h"

const q4x_geometry q4x_geometries[Q4X_GEOMETRIES] = {
    {
        .name = "qwen3.8-flash-next",
        .arch = "qwen4exp",
        .title = "Qwen3.8-Flash-Next",
        .type = Q4X_FT_UD_IQ1_S,
        .shard_bytes = UINT64_C(50000000000),
        .L = 48,
        .interval = 4,
        .D = 2560,
        .V = 248320,
        .ctx = 262144,
        .H = 24,
        .G = 2,
        .hd = 256,
        .rot = 64,
        .sections = {11, 11, 10, 0},
        .nk = 16,
        .nv = 48,
        .dk = 128,
        .dv = 128,
        .Kc = 4,
        .theta = 1e7,
        .eps = 1e-6,
        .N = 4,
        .R = 320,
        .E = 512,
        .K = 10,
        .F = 640,
        .Fs = 640,
        .ih = 4,
        .id = 128,
        .budget = 2048,
        .ratio = 4,
        .ple = 1,
        .n = 3,
        .hpn = 8,
        .pw = 160,
        .Kp = 4,
        .ngram_base = 20000000,
        .ngram_multiple = 128,
        .ngram_seed = 1234,
    },
    {
        .name = "qwen3.8-27b",
        .arch = "qwen35",
        .title = "Qwen3.8-27B",
        .type = Q4X_FT_Q4_K_M,
        .L = 64,
        .mtp = 1,
        .interval = 4,
        .D = 5120,
        .V = 248320,
        .ctx = 262144,
        .H = 24,
        .G = 4,
        .hd = 256,
        .rot = 64,
        .sections = {11, 11, 10, 0},
        .nk = 16,
        .nv = 48,
        .dk = 128,
        .dv = 128,
        .Kc = 4,
        .theta = 1e7,
        .eps = 1e-6,
        .ffn = 17408,
    },
    {
        .name = "tiny",
        .arch = "qwen4exp",
        .title = "tiny qwen4exp",
        .type = Q4X_FT_UD_IQ1_S,
        .L = 4,
        .interval = 4,
        .D = 256,
        .V = 1280,
        .ctx = 4096,
        .H = 4,
        .G = 2,
        .hd = 64,
        .rot = 16,
        .sections = {3, 3, 2, 0},
        .nk = 2,
        .nv = 6,
        .dk = 32,
        .dv = 32,
        .Kc = 4,
        .theta = 1e7,
        .eps = 1e-6,
        .N = 4,
        .R = 64,
        .E = 16,
        .K = 4,
        .F = 128,
        .Fs = 128,
        .ih = 4,
        .id = 32,
        .budget = 128,
        .ratio = 4,
        .ple = 1,
        .n = 3,
        .hpn = 4,
        .pw = 32,
        .Kp = 4,
        .ngram_base = 2003,
        .ngram_multiple = 128,
        .ngram_seed = 1234,
    },
};

const q4x_geometry *q4x_geometry_find(const char *name) {
    for (int i = 0; i < Q4X_GEOMETRIES; i++)
        if (!strcmp(q4x_geometries[i].name, name)) return &q4x_geometries[i];
    return NULL;
}

/* ---- checks ---- */

static int range(const char *what, int64_t v, int64_t lo, int64_t hi, q4x_err *err) {
    if (v >= lo && v <= hi) return 0;
    return q4x_fail(err, Q4X_E_ARG, "%s: expected %lld to %lld, found %lld", what, (long long)lo, (long long)hi,
                    (long long)v);
}

/* Total of the heads' sizes, 0 when there is no such hash or a row leaves int32. */
static int64_t hash_rows(const q4x_geometry *g) {
    int64_t mult[16], size[1024], off[1024];
    int P = (g->n - 1) * g->hpn;
    if (g->n > 16 || P > 1024 || k_ple_consts(g->V, g->n, g->hpn, g->ngram_base, g->ngram_seed, 0, mult, size, off))
        return 0;
    int64_t rows = off[P - 1] + size[P - 1];
    return rows > INT32_MAX - g->ngram_multiple ? 0 : rows;
}

int64_t q4x_geometry_rows(const q4x_geometry *g) {
    int64_t m = g->ngram_multiple;
    if (!m) return 0;
    return (hash_rows(g) + m - 1) / m * m;
}

int q4x_geometry_check(const q4x_geometry *g, q4x_err *err) {
    int rc = 0;
    TRY(range("layers", g->L, q4x_geometry_is_flash(g) ? g->ple + 1 : 1, 511, err));
    TRY(range("vocabulary", g->V, 512, 1 << 24, err));
    if (!q4x_geometry_is_flash(g)) goto done;
    TRY(range("experts", g->E, g->K, 4096, err));
    TRY(range("n-gram base", g->ngram_base, 2, INT32_MAX / ((g->n - 1) * g->hpn), err));
    if (!hash_rows(g))
        TRY(q4x_fail(err, Q4X_E_ARG, "n-gram base: %lld leads to more rows than a table may have",
                     (long long)g->ngram_base));
done:
    return rc;
}

int32_t q4x_geometry_special(const q4x_geometry *g) {
    return g->V - (g->V < 1024 ? 16 : 276);
}

/* ---- tensors ---- */

typedef enum { BOTH, FLASH, DENSE } which;
typedef enum { ROOT, BLOCK, GDN, ATTN, PLE, MTP } where;

typedef struct {
    which arch;
    where at;
    const char *name;
    int ndim;
    int64_t ne[3];
} row;

static int applies(const q4x_geometry *g, const row *r, int block) {
    if (r->arch != BOTH && (r->arch == FLASH) != q4x_geometry_is_flash(g)) return 0;
    switch (r->at) {
    case ROOT: return block < 0;
    case BLOCK: return block >= 0;
    case GDN: return block >= 0 && !q4x_geometry_attends(g, block);
    case ATTN: return block >= 0 && q4x_geometry_attends(g, block);
    case PLE: return block == g->ple;
    default: return block >= g->L;
    }
}

static int by_place(const void *a, const void *b) {
    const q4x_geometry_tensor *x = a, *y = b;
    if (x->block != y->block) return x->block < y->block ? -1 : 1;
    return strcmp(x->name, y->name);
}

int q4x_geometry_tensors(const q4x_geometry *g, q4x_file_type ft, q4x_geometry_tensor **ret, int64_t *ret_n,
                         q4x_err *err) {
    const row rows[] = {
#define TENSOR(arch, at, name, ndim, ne0, ne1, ne2) {arch, at, name, ndim, {ne0, ne1, ne2}},
#include "lib/geometry_tensors.def"
#undef TENSOR
    };
    enum { NROWS = sizeof rows / sizeof *rows };
    int blocks = g->L + g->mtp;
    int64_t n = 0;
    q4x_geometry_tensor *t = calloc((size_t)(blocks + 1) * NROWS, sizeof *t);
    if (!t) return q4x_fail(err, Q4X_E_NOMEM, "no memory for a list of tensors");
    for (int i = -1; i < blocks; i++)
        for (int r = 0; r < NROWS; r++) {
            if (!applies(g, &rows[r], i)) continue;
            q4x_geometry_tensor *x = &t[n++];
            *x = (q4x_geometry_tensor){.block = i, .ndim = rows[r].ndim, .ne = {1, 1, 1, 1}};
            memcpy(x->ne, rows[r].ne, sizeof rows[r].ne);
            if (i < 0)
                snprintf(x->name, sizeof x->name, "%s", rows[r].name);
            else
                snprintf(x->name, sizeof x->name, "blk.%d.%s", i, rows[r].name);
            x->type = q4x_type_rule(ft, x->name, x->ndim, x->ne, blocks);
        }
    qsort(t, (size_t)n, sizeof *t, by_place);
    *ret = t;
    *ret_n = n;
    return 0;
}
