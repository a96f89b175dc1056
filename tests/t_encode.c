/* t_encode.c: encoders against other encoders' errors (tests/vec/encode_peer.txt, made by tests/peer/encode.py),
 * against themselves on values that a block can hold, and on what no block can hold. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/check.h"

#include "kernels/quant.h"
#include "kernels/round.h"
#include "lib/encode.h"
#include "tests/h_vec.h"

static const int32_t all[] = {
#define SINGLE(name, ns) K_T_##name,
#define BLOCK(name, ns) K_T_##name,
#include "lib/encoders.def"
#undef SINGLE
#undef BLOCK
};
enum { NALL = sizeof all / sizeof *all };

static size_t row_bytes(int32_t type, int64_t cols) {
    const k_quant *q = k_quant_get(type);
    return (size_t)(cols / q->elems * q->bytes);
}

/* Blocks of rows that can be encoded; the caller frees. */
static uint8_t *encode(int32_t type, const float *x, int64_t rows, int64_t cols, const float *importance, int nth) {
    q4x_err err = {0};
    uint8_t *b = malloc(row_bytes(type, cols) * (size_t)rows);
    assert_non_null(b);
    q4x_encode_opts o = {.importance = importance, .nth = nth};
    assert_rc_ok(q4x_encode(type, x, rows, cols, &o, b, &err), &err);
    return b;
}

/* What comes back. */
static float *there_and_back(int32_t type, const float *x, int64_t rows, int64_t cols, const float *importance) {
    uint8_t *b = encode(type, x, rows, cols, importance, 1);
    float *y = malloc((size_t)(rows * cols) * sizeof *y);
    assert_non_null(y);
    k_decode_row(type, b, y, rows * cols);
    free(b);
    return y;
}

static double rmse(const float *x, const float *y, int64_t n, const float *w, int64_t cols) {
    double s = 0, sw = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)y[i], wi = w ? (double)w[i % cols] : 1;
        s += wi * d * d;
        sw += wi;
    }
    return sqrt(s / sw);
}

/* ---- rows ---- */

enum { ROWS = 4, COLS = 512, N = ROWS * COLS };
enum { GAUSS, LAPLACE, SPARSE, OUTLIER, CONSTANT, POSITIVE, ZERO, HUGE_, TINY, DEMO, CASES };
static const char *const case_name[] = {"gauss",    "laplace", "sparse", "outlier", "constant",
                                        "positive", "zero",    "huge",   "tiny",    "demo"};

static float value(int kind, uint64_t *s, float row) {
    if (kind == ZERO) return 0;
    if (kind == CONSTANT) return row;
    float g = vec_gauss(s), a, b, c;
    switch (kind) {
    case GAUSS: return g * 0.02f;
    case LAPLACE: /* what g1 g2 + g3 g4 is distributed as */
        a = vec_gauss(s), b = vec_gauss(s), c = vec_gauss(s);
        return (g * a + b * c) * 0.02f;
    case SPARSE: return vec_u64(s) >> 60 == 0 ? g : 0;
    case OUTLIER: return vec_u64(s) >> 57 == 0 ? g * 30 : g;
    case POSITIVE: return fabsf(g) + 1;
    case HUGE_: return g * 1e4f;
    default: return g * 1e-5f;
    }
}

/* N values; rows of the trained model (256 wide) for DEMO. */
static void fill(int kind, float *x) {
    uint64_t s = 1000 + (uint64_t)kind;
    if (kind == DEMO) {
        size_t n;
        uint16_t *h = vec_read("tests/vec/encode_demo.bf16.bin", &n);
        assert_non_null(h);
        assert_int_equal(n, N * sizeof *h);
        for (int i = 0; i < N; i++) x[i] = k_f32_from_bf16(h[i]);
        free(h);
        return;
    }
    for (int r = 0; r < ROWS; r++) {
        float row = kind == CONSTANT ? vec_gauss(&s) : 0;
        for (int c = 0; c < COLS; c++) x[r * COLS + c] = value(kind, &s, row);
    }
}

/* ---- figures ---- */

/* A line of the table: RMSE of llama.cpp's encoder and of the format's simple one. 1: read. */
static int next_line(FILE *f, char type[16], char kind[16], double *theirs, double *simple) {
    char line[160];
    while (fgets(line, sizeof line, f))
        if (line[0] != '#') return sscanf(line, "%15s %15s %lf %lf", type, kind, theirs, simple) == 4;
    return 0;
}

static int case_of(const char *name) {
    int i = 0;
    while (i < CASES && strcmp(case_name[i], name) != 0) i++;
    assert_true(i < CASES);
    return i;
}

/* The bound of the format's users: no worse than half as much again as llama.cpp, for each kind of rows. */
static int within(double ours, double theirs) {
    return ours <= 1.5 * theirs;
}

static void against_others(void **state) {
    (void)state;
    char type[16], kind[16];
    double theirs, simple, worst = 0, worst_simple = 0;
    int lines = 0;
    FILE *f = fopen("tests/vec/encode_peer.txt", "r");
    assert_non_null(f);
    printf("RMSE / llama.cpp's (/ the simple encoder's):");
    while (next_line(f, type, kind, &theirs, &simple)) {
        float x[N];
        int32_t id = k_quant_by_name(type)->id;
        if (case_of(kind) == GAUSS) printf("\n  %-8s", type);
        fill(case_of(kind), x);
        float *y = there_and_back(id, x, ROWS, COLS, NULL);
        double e = rmse(x, y, N, NULL, 1);
        free(y);
        if (theirs > 0) {
            printf(" %s %.3f (%.3f)", kind, e / theirs, e / simple);
            worst = fmax(worst, e / theirs);
            worst_simple = fmax(worst_simple, e / simple);
        }
        if (!within(e, theirs)) fail_msg("%s, %s: RMSE %g, llama.cpp's %g", type, kind, e, theirs);
        lines++;
    }
    printf("\n  worst %.3f (%.3f) of a bound of 1.5\n", worst, worst_simple);
    assert_int_equal(lines, (NALL - 1) * CASES); /* F32 has no error */
    assert_true(worst > 0.9);                    /* the table is of these rows */
    assert_false(within(1.51, 1));
    assert_false(within(NAN, 1));
    fclose(f);
}

/* ---- what a block holds comes back ---- */

static void exact_values(void **state) {
    (void)state;
    float x[N];
    fill(GAUSS, x);
    for (int t = 0; t < NALL; t++) {
        float *once = there_and_back(all[t], x, ROWS, COLS, NULL),
              *twice = there_and_back(all[t], once, ROWS, COLS, NULL);
        double step = rmse(x, once, N, NULL, 1), again = rmse(once, twice, N, NULL, 1);
        int promised = all[t] != K_T_IQ1_S && all[t] != K_T_IQ2_XXS; /* whose scale is searched */
        printf("  %-8s encoding what was decoded moves it by %.2g of the first error\n", k_quant_get(all[t])->name,
               step > 0 ? again / step : 0);
        if (promised && !(again == 0)) fail_msg("%s: a decoded row did not come back", k_quant_get(all[t])->name);
        assert_true(step == 0 || again <= 0.1 * step);
        free(once);
        free(twice);
    }
}

/* Every finite code of the two-byte types. */
static void every_code(void **state) {
    (void)state;
    static const int32_t types[] = {K_T_F16, K_T_BF16};
    for (int t = 0; t < 2; t++) {
        int tried = 0;
        for (uint32_t u = 0; u < 65536; u++) {
            uint8_t b[2] = {(uint8_t)u, (uint8_t)(u >> 8)}, *c;
            float x;
            k_decode_row(types[t], b, &x, 1);
            if (!isfinite(x)) continue;
            c = encode(types[t], &x, 1, 1, NULL, 1);
            if (memcmp(b, c, 2))
                fail_msg("%s code %04x came back as %02x%02x", k_quant_get(types[t])->name, u, c[1], c[0]);
            free(c);
            tried++;
        }
        assert_int_equal(tried, types[t] == K_T_F16 ? 63488 : 65280);
    }
}

static void put_half(uint8_t *b, float x) {
    uint16_t h = k_f16_from_f32(x);
    memcpy(b, &h, 2);
}

/* Blocks of Q4_K and Q5_K that use their whole range: every sub-block its lowest and highest code, one the highest
 * scale, one the highest minimum. */
static void scaled_grid(int32_t type, uint64_t *s, uint8_t *b) {
    const k_quant *q = k_quant_get(type);
    for (int i = 4; i < q->bytes; i++) b[i] = (uint8_t)vec_u64(s);
    put_half(b, 0.01f);
    put_half(b + 2, 0.02f);
    b[4] |= 63; /* S_0 */
    b[8] |= 63; /* M_0 */
    for (int j = 1; j < 4; j++) b[4 + j] |= 1;
    for (int j = 0; j < 4; j++) b[12 + j] |= 1; /* no scale is 0 */
    uint8_t *low = b + (type == K_T_Q4_K ? 16 : 48);
    for (int p = 0; p < 4; p++) low[32 * p] = 0x00, low[32 * p + 1] = 0xff;
    if (type == K_T_Q5_K) b[16] = 0x00, b[17] = 0xff;
}

static void grids(void **state) {
    (void)state;
    uint64_t s = 7;
    static const int32_t types[] = {K_T_Q4_K, K_T_Q5_K};
    for (int t = 0; t < 2; t++)
        for (int n = 0; n < 200; n++) {
            uint8_t b[256];
            float x[256];
            scaled_grid(types[t], &s, b);
            k_decode_row(types[t], b, x, 256);
            float *y = there_and_back(types[t], x, 1, 256, NULL);
            assert_bits_equal(k_quant_get(types[t])->name, y, x, 256);
            free(y);
        }
}

/* ---- order, threads, importance ---- */

static void threads(void **state) {
    (void)state;
    enum { R = 37, C = 1024 };
    float *x = malloc(sizeof *x * R * C);
    uint64_t s = 3;
    assert_non_null(x);
    for (int i = 0; i < R * C; i++) x[i] = vec_gauss(&s);
    for (int t = 0; t < NALL; t++) {
        uint8_t *one = encode(all[t], x, R, C, NULL, 1);
        static const int nth[] = {2, 3, 7};
        for (int k = 0; k < 3; k++) {
            uint8_t *many = encode(all[t], x, R, C, NULL, nth[k]);
            assert_memory_equal(one, many, R * row_bytes(all[t], C));
            free(many);
        }
        /* rows know nothing of each other */
        uint8_t *last = encode(all[t], x + (R - 1) * C, 1, C, NULL, 1);
        assert_memory_equal(last, one + (R - 1) * row_bytes(all[t], C), row_bytes(all[t], C));
        free(last);
        free(one);
    }
    free(x);
}

static void importance(void **state) {
    (void)state;
    float x[N], w[COLS], ones[COLS], none[COLS] = {0};
    uint64_t s = 11;
    fill(GAUSS, x);
    for (int i = 0; i < COLS; i++) {
        float g = vec_gauss(&s);
        w[i] = g * g;
        ones[i] = 3;
    }
    for (int t = 0; t < NALL; t++) {
        if (k_quant_get(all[t])->elems == 1) continue;
        float *flat = there_and_back(all[t], x, ROWS, COLS, NULL), *same = there_and_back(all[t], x, ROWS, COLS, ones);
        float *zero = there_and_back(all[t], x, ROWS, COLS, none), *mine = there_and_back(all[t], x, ROWS, COLS, w);
        double a = rmse(x, flat, N, w, COLS), b = rmse(x, mine, N, w, COLS);
        printf("  %-8s weighted error %.3f of what equal weights leave\n", k_quant_get(all[t])->name, b / a);
        assert_bits_equal("no importance counts as equal", zero, flat, N);
        assert_true(rmse(x, same, N, NULL, 1) <=
                    1.001 * rmse(x, flat, N, NULL, 1)); /* equal weights, whatever they are */
        if (all[t] != K_T_Q8_0) assert_true(b < 0.99 * a);
        free(flat);
        free(same);
        free(zero);
        free(mine);
    }
}

/* ---- the ends of the range ---- */

static void extremes(void **state) {
    (void)state;
    static const float scale[] = {1e30f, 1e-30f, 0x1.fffffep127f, 1e-45f, 6e4f};
    for (int t = 0; t < NALL; t++)
        for (int k = 0; k < 5; k++) {
            if ((all[t] == K_T_F16 || all[t] == K_T_BF16) && scale[k] > 65000) continue;
            float x[COLS];
            uint64_t s = 5;
            for (int i = 0; i < COLS; i++) x[i] = vec_uniform(&s) * scale[k];
            x[17] = -scale[k];
            for (int pass = 0; pass < 2; pass++) { /* one-hot, then all of them */
                float one[COLS] = {0};
                one[17] = x[17];
                float *y = there_and_back(all[t], pass ? x : one, 1, COLS, NULL);
                for (int i = 0; i < COLS; i++)
                    if (!isfinite(y[i]))
                        fail_msg("%s: %g became %g", k_quant_get(all[t])->name, (double)x[i], (double)y[i]);
                free(y);
            }
        }
    for (int t = 0; t < NALL; t++) {
        float x[COLS] = {0}, *y = there_and_back(all[t], x, 1, COLS, NULL);
        for (int i = 0; i < COLS; i++) assert_true(y[i] == 0);
        free(y);
    }
}

static void refuse(int32_t type, float bad, int code, const char *words) {
    float x[2 * COLS] = {0}, w[COLS] = {0};
    uint8_t out[2 * COLS * 4];
    q4x_err err = {0};
    q4x_encode_opts o = {.first_row = 40, .nth = 2};
    x[COLS + 7] = bad;
    int rc = q4x_encode(type, x, 2, COLS, &o, out, &err);
    if (rc != code || !strstr(err.msg, words)) fail_msg("rc %d, '%s'; expected %d, '%s'", rc, err.msg, code, words);
    x[COLS + 7] = 1;
    if (!q4x_can_encode(type)) return;
    assert_rc_ok(q4x_encode(type, x, 2, COLS, &o, out, &err), &err); /* the twin */
    w[9] = bad;
    o.importance = w;
    if (isfinite(bad) && bad > 0) return;
    assert_int_equal(q4x_encode(type, x, 2, COLS, &o, out, &err), Q4X_E_ARG);
    assert_non_null(strstr(err.msg, "importance of column 9"));
}

static void refused(void **state) {
    (void)state;
    for (int t = 0; t < NALL; t++) {
        refuse(all[t], NAN, Q4X_E_FORMAT, "element [41, 7] is nan, expected a finite number");
        refuse(all[t], -INFINITY, Q4X_E_FORMAT, "element [41, 7] is -inf, expected a finite number");
        assert_true(q4x_can_encode(all[t]));
    }
    refuse(K_T_F16, 65520, Q4X_E_FORMAT, "element [41, 7] is 65520, expected a finite number within the range of F16");
    refuse(K_T_BF16, 0x1.ffp127f, Q4X_E_FORMAT, "within the range of BF16");
    refuse(K_T_Q2_K, 1, Q4X_E_UNSUPPORTED, "no encoder for Q2_K");
    refuse(4, 1, Q4X_E_UNSUPPORTED, "no encoder for this type");
    assert_false(q4x_can_encode(K_T_Q8_K) || q4x_can_encode(-1) || q4x_can_encode(1000));

    float x[COLS] = {0};
    uint8_t out[4 * COLS];
    q4x_err err = {0};
    q4x_encode_opts o = {.nth = 1};
    x[0] = 65519;
    assert_rc_ok(q4x_encode(K_T_F16, x, 1, 1, &o, out, &err), &err); /* rounds to 65504 */
    x[0] = 0x1.fefffep127f;
    assert_rc_ok(q4x_encode(K_T_BF16, x, 1, 1, &o, out, &err), &err);
    assert_int_equal(q4x_encode(K_T_Q4_K, x, 1, 128, &o, out, &err), Q4X_E_ARG);
    assert_non_null(strstr(err.msg, "rows of 128 elements are no whole blocks of Q4_K (256)"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_others), cmocka_unit_test(exact_values), cmocka_unit_test(every_code),
        cmocka_unit_test(grids),          cmocka_unit_test(threads),      cmocka_unit_test(importance),
        cmocka_unit_test(extremes),       cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
