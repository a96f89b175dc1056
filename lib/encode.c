#include "lib/encode.h"

#include "kernels/par.h"
#include "kernels/quant.h"
#include "lib/encode_int.h"

/* One of the two. */
typedef struct {
    void (*single)(const float *x, int64_t n, uint8_t *out);
    void (*block)(const q4x_block *b);
    int cost;
} encoder;

static const encoder encoders[] = {
#define SINGLE(name, ns) [K_T_##name] = {.single = q4x_encode_##name, .cost = ns},
#define BLOCK(name, ns) [K_T_##name] = {.block = q4x_encode_##name, .cost = ns},
#include "lib/encoders.def"
#undef SINGLE
#undef BLOCK
};
enum { NENCODERS = sizeof encoders / sizeof encoders[0] };

static encoder encoder_of(int32_t type) {
    return type >= 0 && type < NENCODERS ? encoders[type] : (encoder){0};
}

int q4x_can_encode(int32_t type) {
    encoder e = encoder_of(type);
    return e.single || e.block;
}

double q4x_encode_cost(int32_t type) {
    return encoder_of(type).cost;
}

/* ---- what cannot be encoded ---- */

/* The largest magnitude that a value may have: F16 and BF16 round what is above to infinity. */
static float largest(int32_t type) {
    if (type == K_T_F16) return 0x1.ffdffep15f;   /* just below 65520 */
    if (type == K_T_BF16) return 0x1.fefffep127f; /* just below 2^128 - 2^119 */
    return 0x1.fffffep127f;
}

/* Every value is within +-most; a NaN is not. */
static int check_values(int32_t type, const float *x, int64_t rows, int64_t cols, const q4x_encode_opts *o,
                        q4x_err *err) {
    const float most = largest(type);
    for (int64_t r = 0; r < rows; r++, x += cols) {
        int64_t good = 0, at = 0;
        for (int64_t i = 0; i < cols; i++) good += fabsf(x[i]) <= most;
        if (good == cols) continue;
        while (fabsf(x[at]) <= most) at++;
        if (o->bad_row) *o->bad_row = r;
        return q4x_fail(err, Q4X_E_FORMAT, "element [%lld, %lld] is %g, expected a finite number%s%s",
                        (long long)(o->first_row + r), (long long)at, (double)x[at],
                        isfinite(x[at]) ? " within the range of " : "", isfinite(x[at]) ? k_quant_get(type)->name : "");
    }
    return 0;
}

static int check_importance(const float *w, int64_t cols, q4x_err *err) {
    for (int64_t i = 0; w && i < cols; i++)
        if (!(w[i] >= 0 && w[i] <= 0x1.fffffep127f))
            return q4x_fail(err, Q4X_E_ARG, "importance of column %lld is %g, expected a finite number of at least 0",
                            (long long)i, (double)w[i]);
    return 0;
}

/* ---- rows ---- */

enum { MAX_BLOCK = 256 };

/* Weights of a block; all equal where none was asked for, or where none of them counts. */
static void weights(const float *importance, int n, double *w) {
    double sum = 0;
    for (int i = 0; importance && i < n; i++) sum += w[i] = (double)importance[i];
    for (int i = 0; !(sum > 0) && i < n; i++) w[i] = 1;
}

typedef struct {
    encoder encode;
    const k_quant *q;
    const float *x, *importance;
    int64_t cols;
    uint8_t *out;
} job;

static void encode_rows(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    const job *j = ctx;
    const int64_t blocks = j->cols / j->q->elems;
    double v[MAX_BLOCK], w[MAX_BLOCK];
    (void)c;
    if (j->encode.single) {
        j->encode.single(j->x + lo * blocks, (hi - lo) * blocks, j->out + lo * blocks * j->q->bytes);
        return;
    }
    for (int64_t i = lo * blocks; i < hi * blocks; i++) {
        int64_t first = i % blocks * j->q->elems;
        for (int e = 0; e < j->q->elems; e++) v[e] = (double)j->x[i * j->q->elems + e];
        weights(j->importance ? j->importance + first : NULL, j->q->elems, w);
        j->encode.block(&(q4x_block){.x = v, .w = w, .out = j->out + i * j->q->bytes});
    }
}

int q4x_encode(int32_t type, const float *x, int64_t rows, int64_t cols, const q4x_encode_opts *o, void *dst,
               q4x_err *err) {
    job j = {encoder_of(type), k_quant_get(type), x, o->importance, cols, dst};
    if (!q4x_can_encode(type))
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "no encoder for %s", j.q ? j.q->name : "this type");
    if (rows < 0 || cols < 1 || cols % j.q->elems)
        return q4x_fail(err, Q4X_E_ARG, "rows of %lld elements are no whole blocks of %s (%d)", (long long)cols,
                        j.q->name, j.q->elems);
    int rc = check_values(type, x, rows, cols, o, err);
    if (!rc) rc = check_importance(o->importance, cols, err);
    if (rc) return rc;
    k_call c = {.nth = o->nth};
    k_spread(&c, rows, j.encode.single ? 0 : 1, rows * cols * j.q->elems, encode_rows, &j);
    return 0;
}
