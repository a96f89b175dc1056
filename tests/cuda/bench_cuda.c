/* bench_cuda.c [MODEL]: how fast the device's kernels are, beside what its memory gives in the same run: matrix-vector
 * products of the stored types, the large products by hand and by cuBLAS, a decode step and a prompt with and without
 * taps. Medians. The table comes last. It measures and fails on errors alone, never on time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/matmul.h"
#include "kernels/quant.h"
#include "lib/bench.h"
#include "lib/machine.h"
#include "lib/tap.h"
#include "tests/cuda/bench.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_call.h"
#include "tests/h_forward.h"

enum { ROUNDS = 21, BEHIND = 16 };

static int emulated;
static char table[8192];
static size_t table_n;

__attribute__((format(printf, 1, 2))) static void row(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(table + table_n, sizeof table - table_n, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n < sizeof table - table_n) table_n += (size_t)n;
}

static void must(int code, const char *what) {
    if (code) fail_msg("%s: %s", what, k_dev_text(code));
}

static void *room(size_t bytes) {
    void *p = NULL;
    must(k_dev_alloc(hp_device(&emulated), bytes, &p), "memory");
    must(k_dev_zero(hp_device(&emulated), p, bytes), "memory");
    return p;
}

/* Seconds of one enqueued thing, by the device's clock: the median of ROUNDS times BEHIND of them one behind the other,
 * as in a forward, after one that does not count. */
static double timed(void (*enqueue)(void *ctx, int round), void *ctx) {
    k_dev *d = hp_device(&emulated);
    double s[ROUNDS];
    enqueue(ctx, 0);
    for (int i = 0; i < ROUNDS; i++) {
        must(hb_start(d), "event");
        for (int k = 0; k < BEHIND; k++) enqueue(ctx, BEHIND * i + k + 1);
        must(hb_stop(d, &s[i]), "event");
        s[i] /= BEHIND;
    }
    return q4x_median(s, ROUNDS);
}

/* ---- memory ---- */

typedef struct {
    char *a, *b;
    float *sums;
    size_t bytes;
} mem;

static void copy(void *ctx, int round) {
    mem *m = ctx;
    (void)round;
    must(hb_copy(hp_device(&emulated), m->b, m->a, m->bytes), "copy");
}
static void read_only(void *ctx, int round) {
    mem *m = ctx;
    (void)round;
    must(hb_read(hp_device(&emulated), m->a, m->bytes, m->sums), "read");
}

/* GB/s that a copy moves (both ways) and that reading alone gives. */
static void memory(double *ret_copy, double *ret_read) {
    const size_t bytes = emulated ? 1 << 20 : (size_t)1 << 30;
    mem m = {room(bytes), room(bytes), room(1 << 20), bytes};
    *ret_copy = 2e-9 * (double)bytes / timed(copy, &m);
    *ret_read = 1e-9 * (double)bytes / timed(read_only, &m);
    k_dev_free(hp_device(&emulated), m.a);
    k_dev_free(hp_device(&emulated), m.b);
    k_dev_free(hp_device(&emulated), m.sums);
}

/* ---- products ---- */

typedef struct {
    k_call c;
    k_weight w;
    k_dims d;
    k_levers lv;
    char *data;
    size_t bytes; /* of one matrix */
    int copies;   /* so many that the last is out of the cache when the first comes again */
} product;

static void multiply(void *ctx, int round) {
    product *p = ctx;
    p->w.data = p->data + (size_t)(round % p->copies) * p->bytes;
    p->c.w[0] = &p->w;
    p->c.d = &p->d;
    p->c.lv = &p->lv;
    must(k_dev_run(hp_device(&emulated), K_OP_matmul, &p->c), "product");
}

/* Copies of one matrix of any bytes, in whose blocks no scale is zero, infinite or NaN, since those are decoded another
 * way: wherever a binary16 may lie its exponent has both a bit set and a bit clear. */
static void fill(k_dev *dev, char *data, size_t bytes, int copies) {
    h_rng rng = {11};
    uint8_t *b = malloc(bytes);
    assert_non_null(b);
    for (size_t i = 0; i < bytes; i++) b[i] = (uint8_t)((h_next(&rng) & 0xbb) | 0x20);
    for (int k = 0; k < copies; k++) must(k_dev_put(dev, data + (size_t)k * bytes, b, bytes), "weights");
    must(k_dev_wait(dev), "weights");
    free(b);
}

static double product_of(int32_t type, int64_t K, int64_t O, int32_t T, const k_levers *lv, double *ret_bytes) {
    const k_quant *q = k_quant_get(type);
    k_dev *dev = hp_device(&emulated);
    product p = {.lv = *lv, .d = {.N = 4, .D = (int32_t)K}};
    const size_t line = (size_t)(K / q->elems) * (size_t)q->bytes;
    p.bytes = (line * (size_t)O + 255) / 256 * 256;
    p.copies = emulated ? 1 : (int)(((size_t)512 << 20) / p.bytes) + 1;
    p.data = room(p.bytes * (size_t)p.copies);
    fill(dev, p.data, p.bytes, p.copies);
    p.w = (k_weight){p.data, O, K, line, type};
    p.c = (k_call){.T = T, .Tcall = T, .Tc = T, .cols = O, .epi = K_EPI_NONE, .nw = {1}, .nth = 1};
    h_rng rng = {5};
    float *x = h_normal(&rng, K * T, 1, lv->act);
    void *in = room((size_t)(K * T) * sizeof(float));
    must(k_dev_put(dev, in, x, (size_t)(K * T) * sizeof(float)), "columns");
    must(k_dev_wait(dev), "columns");
    p.c.in[0] = in;
    p.c.in_cols[0] = K;
    p.c.out = room((size_t)(O * T) * sizeof(float));
    p.c.scratch_n = k_dev_scratch(&p.d, T, T);
    p.c.scratch = room((size_t)p.c.scratch_n * sizeof(float));
    const double s = timed(multiply, &p);
    void *all[] = {p.data, in, p.c.out, p.c.scratch};
    for (int i = 0; i < 4; i++) k_dev_free(dev, all[i]);
    free(x);
    *ret_bytes = (double)line * (double)O + 4.0 * (double)T * (double)(K + O);
    return s;
}

static void vectors(double copy_gbs) {
    static const int32_t types[] = {K_T_IQ1_S, K_T_IQ2_XXS, K_T_IQ4_NL, K_T_Q4_K, K_T_Q5_K,
                                    K_T_Q6_K,  K_T_Q8_0,    K_T_BF16,   K_T_F32};
    static const int64_t shape[][2] = {{2560, 10240}, {10240, 2560}};
    row("matrix x vector        K      O    us      GB/s  share of copy\n");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int k = 0; k < 2; k++) {
            const int64_t K = shape[k][0], O = emulated ? 32 : shape[k][1];
            double bytes, s = product_of(types[i], K, O, 1, &(k_levers){.act = K_ACT_F32}, &bytes);
            row("%-18s %6lld %6lld %6.1f %8.0f  %5.1f %%\n", k_quant_get(types[i])->name, (long long)K, (long long)O,
                1e6 * s, 1e-9 * bytes / s, 1e-7 * bytes / s / copy_gbs);
        }
}

/* The same product in the orders of lever dot. */
static void orders(void) {
    static const struct {
        int32_t dot;
        const char *name;
    } dots[] = {{K_DOT_LANES32, "lanes32"}, {K_DOT_SERIAL, "serial"}, {K_DOT_BLOCKED, "blocked"},
                {K_DOT_Q8K, "q8k"},         {K_DOT_Q8_1, "q8_1"},     {K_DOT_NEON, "neon"}};
    static const int32_t types[] = {K_T_IQ1_S, K_T_Q4_K, K_T_Q8_0, K_T_BF16};
    const int64_t K = 2560, O = emulated ? 32 : 10240;
    row("%lld x %lld, us       ", (long long)O, (long long)K);
    for (size_t d = 0; d < sizeof dots / sizeof *dots; d++) row(" %8s", dots[d].name);
    row("\n");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        row("%-22s", k_quant_get(types[i])->name);
        for (size_t d = 0; d < sizeof dots / sizeof *dots; d++) {
            double bytes;
            row(" %8.1f", 1e6 * product_of(types[i], K, O, 1, &(k_levers){.dot = dots[d].dot}, &bytes));
        }
        row("\n");
    }
}

static void matrices(void) {
    static const struct { int32_t type, act; } m[] = {{K_T_BF16, K_ACT_BF16}, {K_T_Q4_K, K_ACT_F32}};
    char why[400];
    const int have = !k_dev_gemm(hp_device(&emulated), why, sizeof why);
    const int64_t K = emulated ? 256 : 2560, O = emulated ? 16 : 10240;
    const int32_t T = emulated ? 9 : 512;
    row("%lld x %lld x %d          ms   TFLOP/s\n", (long long)O, (long long)K, T);
    if (!have) row("(cuBLAS left out: %s)\n", why);
    for (int i = 0; i < 2; i++)
        for (int32_t g = 0; g <= have; g++) {
            double bytes, s = product_of(m[i].type, K, O, T, &(k_levers){.act = m[i].act, .gemm = g}, &bytes);
            row("%-5s act=%-4s %-6s  %7.3f %9.2f\n", k_quant_get(m[i].type)->name, m[i].act ? "bf16" : "f32",
                g ? "cublas" : "own", 1e3 * s, 2e-12 * (double)(K * O * T) / s);
        }
}

/* ---- a model ---- */

/* Seconds of a prompt of n ids and of a decode step; path: with taps of all public nodes in this mode. */
static void forwards(const q4x_net *net, const char *spec, const char *path, q4x_mode mode, int n, double *ret_prompt,
                     double *ret_step) {
    enum { REPEATS = 5, STEPS = 16 };
    double p[REPEATS], s[REPEATS];
    q4x_arm arm;
    q4x_run *r = NULL;
    q4x_tapset *t = NULL;
    q4x_err err = {0};
    const q4x_tap_opts o = {.mode = mode};
    int32_t ids[256];
    for (int i = 0; i < n; i++) ids[i] = 1 + 37 * i % (q4x_net_dims(net)->V - 1);
    int rc = q4x_arm_parse(spec, &arm, &err);
    if (!rc) rc = q4x_run_new(net, &arm, n + STEPS, 0, &r, &err);
    for (int k = -1; k < REPEATS && !rc; k++) {
        q4x_run_reset(r);
        if (path) rc = q4x_tapset_open(r, net, &o, path, json_object(), &t, &err);
        double t0 = q4x_machine_now();
        if (!rc) rc = q4x_run_forward(r, ids, n, 0, &err);
        if (!rc && t) rc = q4x_tapset_forward(t, ids, n, 1, -1, &err);
        double t1 = q4x_machine_now();
        for (int i = 0; i < STEPS && !rc; i++) {
            int32_t id = 1 + i;
            rc = q4x_run_forward(r, &id, 1, 0, &err);
            if (!rc && t) rc = q4x_tapset_forward(t, &id, 1, 1, -1, &err);
        }
        if (k >= 0) p[k] = t1 - t0, s[k] = (q4x_machine_now() - t1) / STEPS;
        q4x_tapset_abort(t);
        t = NULL;
        q4x_run_on_node(r, NULL, NULL);
    }
    if (rc) fail_msg("%s: %s", spec, err.msg);
    q4x_run_free(r);
    *ret_prompt = q4x_median(p, REPEATS);
    *ret_step = q4x_median(s, REPEATS);
}

static void whole(const char *model) {
    static const char *const spec[] = {"cpu", "cuda", "cuda:act=bf16"}, *const taps[] = {"hash", "sketch", "full",
                                                                                         "untapped"};
    const int n = emulated ? 4 : 256;
    char path[] = "/tmp/q4x-bench-XXXXXX";
    int fd = mkstemp(path);
    q4x_net *net = h_net(model);
    assert_true(fd >= 0);
    close(fd);
    row("%s: ms                 prompt(%d)    step\n", model, n);
    for (size_t i = 0; i < sizeof spec / sizeof *spec; i++)
        for (int k = 3; k >= 0; k--) {
            double p, s;
            if ((emulated && i != 1) || (i != 1 && k < 3 && k != Q4X_MODE_SKETCH)) continue;
            forwards(net, spec[i], k < 3 ? path : NULL, (q4x_mode)(k < 3 ? k : 0), n, &p, &s);
            row("%-26s %-10s %9.2f %7.3f\n", spec[i], taps[k], 1e3 * p, 1e3 * s);
        }
    q4x_net_close(net);
    unlink(path);
}

int main(int argc, char **argv) {
    double copy_gbs, read_gbs;
    k_dev *d = hp_device(&emulated);
    memory(&copy_gbs, &read_gbs);
    row("device memory: copy %.0f GB/s, reading alone %.0f GB/s\n", copy_gbs, read_gbs);
    vectors(copy_gbs);
    orders();
    matrices();
    whole(argc > 1 ? argv[1] : emulated ? "tests/golden/micro-a" : "tests/models/demo.gguf");
    must(k_dev_wait(d), "device");
    hp_close();
    fputs(table, stdout);
    return 0;
}
