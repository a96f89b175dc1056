/* Products in other orders: the golden vectors of both quantised arms by bits, the orders of qdot.h in plain loops,
 * which rule runs when, and that the cut into rows and columns changes nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/qdot.h"
#include "kernels/qdot_gpu.h"
#include "kernels/quant.h"
#include "kernels/vec8.h"
#include "tests/h_call.h"
#include "tests/h_vec.h"

enum { N = 1024, ROWS = 4 };

static void *vec(const char *type, const char *what, size_t *ret_size) {
    char path[96];
    snprintf(path, sizeof path, "tests/vec/%s.%s.bin", type, what);
    return vec_read(path, ret_size);
}

static const int32_t TYPES[] = {
#define QUANT(id, name, elems, bytes, stored) id,
#include "kernels/quants.def"
#undef QUANT
};
enum { NTYPES = sizeof TYPES / sizeof *TYPES };

static float *golden_x(void) {
    size_t n;
    float *x = vec("dot_x", "f32", &n);
    assert_non_null(x);
    assert_int_equal(n, N * sizeof *x);
    return x;
}

static void test_activations(void **state) {
    (void)state;
    static const struct {
        const char *name;
        k_dot_rule rule;
        int32_t type;
    } list[] = {{"Q8_0", K_RULE_CPU, K_T_Q4_0},
                {"Q8_1", K_RULE_CPU, K_T_Q5_1},
                {"Q8_K", K_RULE_CPU, K_T_Q6_K},
                {"q8_1_gpu", K_RULE_GPU, K_T_Q6_K}};
    float *x = golden_x();
    for (int i = 0; i < 4; i++) {
        size_t n;
        uint8_t *want = vec("dot_x", list[i].name, &n), got[2048];
        assert_non_null(want);
        k_dot_quantise(list[i].rule, list[i].type, x, N, got);
        assert_memory_equal(got, want, n);
        x[3] = 2 * x[3]; /* the twin */
        k_dot_quantise(list[i].rule, list[i].type, x, N, got);
        assert_memory_not_equal(got, want, n);
        x[3] = x[3] / 2;
        free(want);
    }
    /* Arm's codes differ at ties alone, which this row has */
    uint8_t a[2048], b[2048];
    k_dot_quantise(K_RULE_CPU, K_T_Q8_0, x, N, a);
    k_dot_quantise(K_RULE_NEON_Q8_0, K_T_Q8_0, x, N, b);
    int differ = 0;
    for (int i = 0; i < N / 32 * 34; i++) differ += a[i] != b[i];
    assert_true(differ > 0 && differ < 64);
    free(x);
}

/* The rows of a golden file against one column. */
static int golden_rows(const char *what, k_dot_rule rule, int32_t type, const float *x) {
    const k_quant *q = k_quant_get(type);
    size_t nr, nw;
    uint8_t *rows = vec(q->name, "dot.rows", &nr);
    float *want = vec(q->name, what, &nw), got[ROWS], *scratch = h_nans(k_tile_scratch(N));
    if (!rows || !want) {
        free(rows), free(want), free(scratch);
        return 0;
    }
    assert_int_equal(nw, sizeof got);
    const k_weight w = {.data = rows, .rows = ROWS, .cols = N, .row_bytes = nr / ROWS, .type = type};
    k_panel p = {.x = x, .K = N, .n = 1, .div = 1, .out = got, .O = ROWS};
    k_dot_rows(&p, &w, rule, 0, ROWS, scratch, k_tile_scratch(N));
    assert_bits_equal(q->name, got, want, ROWS);
    rows[12] ^= 0x40; /* the twin: a bit of a weight */
    k_dot_rows(&p, &w, rule, 0, ROWS, scratch, k_tile_scratch(N));
    int same = h_same(got, want, ROWS) == 1;
    if (same) fail_msg("%s: another weight gives the same sums", q->name);
    free(rows), free(want), free(scratch);
    return 1;
}

static void test_golden(void **state) {
    (void)state;
    float *x = golden_x();
    int cpu = 0, gpu = 0;
    for (int i = 0; i < NTYPES; i++) {
        int32_t units;
        cpu += golden_rows("dot.cpu.f32", K_RULE_CPU, TYPES[i], x);
        if (k_gpu_threads(TYPES[i], &units)) gpu += golden_rows("dot.gpu.f32", K_RULE_GPU, TYPES[i], x);
    }
    print_message("%d types in ggml's scalar CPU order, %d in its GPU order: all bits equal\n", cpu, gpu);
    assert_int_equal(cpu, 25);
    assert_int_equal(gpu, 23);
    free(x);
}

/* ---- the other orders ---- */

/* Random rows of a stored type: random bytes, scales that are ordinary numbers. */
static uint8_t *random_rows(h_rng *r, int32_t type, int64_t rows, int64_t n) {
    const k_quant *q = k_quant_get(type);
    const int64_t blocks = rows * n / q->elems;
    uint8_t *w = malloc((size_t)(blocks * q->bytes));
    assert_non_null(w);
    for (int64_t i = 0; i < blocks * q->bytes; i++) w[i] = (uint8_t)h_next(r);
    for (int64_t b = 0; b < blocks; b++) {
        uint8_t *at = w + b * q->bytes;
        const float d = 0.001f + 0.01f * (float)h_unit(r);
        if (type == K_T_F32 || type == K_T_F16 || type == K_T_BF16) {
            const float v = (float)h_gauss(r);
            const uint16_t h = type == K_T_F16 ? k_f16_from_f32(v) : k_bf16_from_f32(v);
            if (type == K_T_F32)
                memcpy(at, &v, 4);
            else
                memcpy(at, &h, 2);
        }
        if (type == K_T_Q8_0 || type == K_T_Q4_K || type == K_T_Q4_0) k_put_half(at, d);
        if (type == K_T_Q4_K) k_put_half(at + 2, d);
        if (type == K_T_Q6_K) k_put_half(at + 208, d);
    }
    return w;
}

static int32_t code_of(const uint8_t *act, int64_t at, int64_t i) {
    return (int8_t)act[at + i];
}

/* Order of a rule as qdot.h has it; w the decoded row, b its blocks, act the quantised column. */
static float plain(k_dot_rule rule, int32_t type, const float *w, const uint8_t *b, const float *x, const uint8_t *act,
                   int64_t n) {
    float f = 0, m = 0, L[16] = {0};
    double s = 0;
    switch (rule) {
    case K_RULE_SERIAL:
        for (int64_t i = 0; i < n; i++) f = fmaf(w[i], x[i], f);
        return f;
    case K_RULE_BLOCKED:
        for (int64_t i = 0; i < n; i += 64) f = f + k_lanes32_dot(w + i, x + i, n - i < 64 ? n - i : 64);
        return f;
    case K_RULE_F64:
        for (int64_t i = 0; i < n; i++) {
            float v = type == K_T_F16 ? k_round_f16(x[i]) : type == K_T_BF16 ? k_round_bf16(x[i]) : x[i];
            float p = w[i] * v;
            s += (double)p;
        }
        return (float)s;
    case K_RULE_NEON_F32: {
        float *v = h_copy(x, n);
        int64_t i = 0;
        for (int64_t k = 0; k < n; k++)
            v[k] = type == K_T_F16 ? k_round_f16(x[k]) : type == K_T_BF16 ? k_round_bf16(x[k]) : x[k];
        for (; i < n / 16 * 16; i++) L[i % 16] = fmaf(w[i], v[i], L[i % 16]);
        for (int l = 0; l < 8; l++) L[l] += L[l + 8];
        for (int l = 0; l < 4; l++) L[l] += L[l + 4];
        f = (L[0] + L[1]) + (L[2] + L[3]);
        for (; i < n; i++) f = fmaf(w[i], v[i], f);
        free(v);
        return f;
    }
    case K_RULE_NEON_Q8_0: {
        const int64_t nb = n / 32;
        for (int64_t k = 0; k < nb; k++) {
            const float d = k_f16_at(b + 34 * k, 0) * k_f16_at(act + 34 * k, 0);
            int32_t S[4] = {0}, all = 0;
            for (int i = 0; i < 32; i++) {
                int32_t t = code_of(b, 34 * k + 2, i) * code_of(act, 34 * k + 2, i);
                S[i % 16 / 4] += t, all += t;
            }
            if (k == nb - 1 && nb % 2)
                m = (float)all * d;
            else
                for (int l = 0; l < 4; l++) L[4 * (k % 2) + l] = fmaf((float)S[l], d, L[4 * (k % 2) + l]);
        }
        f = ((L[0] + L[1]) + (L[2] + L[3])) + ((L[4] + L[5]) + (L[6] + L[7]));
        return nb % 2 ? f + m : f;
    }
    case K_RULE_Q8_0X4:
        for (int64_t k = 0; k < n / 32; k++) {
            int32_t S = 0;
            for (int i = 0; i < 32; i++) S += code_of(b, 34 * k + 2, i) * code_of(act, 34 * k + 2, i);
            f = fmaf((float)S, k_f16_at(b + 34 * k, 0) * k_f16_at(act + 34 * k, 0), f);
        }
        return f;
    default: /* Q4_KX8 */
        for (int64_t k = 0; k < n / 256; k++) {
            const uint8_t *c = b + 144 * k, *a = act + 292 * k;
            const float A = k_bits_f32(k_u32_at(a, 0));
            int32_t I = 0, J = 0;
            for (int e = 0; e < 256; e++) {
                I += k_scale6(c + 4, e / 32) * k_nibble_k(c + 16, e) * code_of(a, 4, e);
                J += k_min6(c + 4, e / 32) * code_of(a, 4, e);
            }
            f = fmaf((float)I, k_f16_at(c, 0) * A, f);
            m = fmaf((float)J, k_f16_at(c, 2) * A, m);
        }
        return f - m;
    }
}

static const struct {
    k_dot_rule rule;
    int32_t type;
    int64_t n;
} ORDERS[] = {{K_RULE_SERIAL, K_T_F32, 517},   {K_RULE_SERIAL, K_T_Q4_K, 768},    {K_RULE_BLOCKED, K_T_F32, 800},
              {K_RULE_BLOCKED, K_T_Q6_K, 512}, {K_RULE_F64, K_T_F32, 100},        {K_RULE_F64, K_T_F16, 333},
              {K_RULE_F64, K_T_BF16, 64},      {K_RULE_NEON_F32, K_T_F32, 531},   {K_RULE_NEON_F32, K_T_F16, 40},
              {K_RULE_NEON_F32, K_T_BF16, 96}, {K_RULE_NEON_Q8_0, K_T_Q8_0, 320}, {K_RULE_NEON_Q8_0, K_T_Q8_0, 352},
              {K_RULE_Q8_0X4, K_T_Q8_0, 352},  {K_RULE_Q4_KX8, K_T_Q4_K, 768}};

/* Every order in plain loops, whatever the number of columns and however the rows are cut. */
static void test_orders(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ORDERS / sizeof *ORDERS; i++) {
        h_rng r = {i};
        const k_quant *q = k_quant_get(ORDERS[i].type);
        const int64_t n = ORDERS[i].n;
        enum { O = 24, C = 19 };
        uint8_t *b = random_rows(&r, q->id, O, n), *act = malloc((size_t)n * 2 + 64);
        float *x = h_normal(&r, C * n, 1, K_ACT_F32), *row = h_nans(n), got[2][C * O], *scratch;
        const k_weight w = {
            .data = b, .rows = O, .cols = n, .row_bytes = (size_t)(n / q->elems * q->bytes), .type = q->id};
        k_panel p = {.x = x, .K = n, .n = C, .div = 1, .out = got[0], .O = O};
        scratch = h_nans(k_tile_scratch(n));
        k_dot_rows(&p, &w, ORDERS[i].rule, 0, O, scratch, k_tile_scratch(n));
        p.out = got[1];
        for (int o = 0; o < O; o += 7)
            k_dot_rows(&p, &w, ORDERS[i].rule, o, o + 7 < O ? o + 7 : O, scratch, k_tile_scratch(n));
        assert_bits_equal("rows in parts", got[1], got[0], C * O);
        int lanes = 0;
        for (int c = 0; c < C; c++) {
            if (ORDERS[i].rule >= K_RULE_CPU) k_dot_quantise(ORDERS[i].rule, q->id, x + c * n, n, act);
            for (int o = 0; o < O; o++) {
                const uint8_t *at = b + (size_t)o * w.row_bytes;
                k_decode_row(q->id, at, row, n);
                float want = plain(ORDERS[i].rule, q->id, row, at, x + c * n, act, n);
                assert_bits_equal(q->name, &got[0][c * O + o], &want, 1);
                lanes += want == k_lanes32_dot(row, x + c * n, n);
            }
        }
        assert_true(lanes < C * O); /* the twin: it is another order */
        free(b), free(act), free(x), free(row), free(scratch);
    }
}

static void test_rules(void **state) {
    (void)state;
    static const struct {
        int32_t dot, repack, columns, type, rows;
        k_dot_rule want;
    } list[] = {
        {K_DOT_LANES32, K_REPACK_Q4_KX8, 1, K_T_Q4_K, 8, K_RULE_LANES32},
        {K_DOT_SERIAL, 0, 8, K_T_Q4_K, 8, K_RULE_SERIAL},
        {K_DOT_SERIAL, 0, 9, K_T_Q4_K, 8, K_RULE_LANES32},
        {K_DOT_BLOCKED, 0, 1, K_T_F64, 8, K_RULE_BLOCKED},
        {K_DOT_Q8_1, 0, 8, K_T_IQ1_S, 8, K_RULE_GPU},
        {K_DOT_Q8_1, 0, 9, K_T_IQ1_S, 8, K_RULE_LANES32},
        {K_DOT_Q8_1, 0, 1, K_T_TQ1_0, 8, K_RULE_LANES32},
        {K_DOT_Q8_1, 0, 1, K_T_BF16, 8, K_RULE_LANES32},
        {K_DOT_Q8K, 0, 1, K_T_TQ1_0, 8, K_RULE_CPU},
        {K_DOT_Q8K, 0, 500, K_T_Q4_K, 8, K_RULE_CPU},
        {K_DOT_Q8K, K_REPACK_Q4_KX8, 1, K_T_Q4_K, 16, K_RULE_Q4_KX8},
        {K_DOT_Q8K, K_REPACK_Q4_KX8, 1, K_T_Q4_K, 12, K_RULE_CPU},
        {K_DOT_Q8K, K_REPACK_Q4_KX8, 1, K_T_Q5_K, 16, K_RULE_CPU},
        {K_DOT_Q8K, K_REPACK_Q8_0X4, 1, K_T_Q8_0, 12, K_RULE_Q8_0X4},
        {K_DOT_Q8K, 0, 1, K_T_F16, 8, K_RULE_F64},
        {K_DOT_Q8K, 0, 1, K_T_I32, 8, K_RULE_LANES32},
        {K_DOT_NEON, 0, 70, K_T_Q8_0, 8, K_RULE_NEON_Q8_0},
        {K_DOT_NEON, K_REPACK_Q8_0X4, 70, K_T_Q8_0, 6, K_RULE_NEON_Q8_0},
        {K_DOT_NEON, 0, 70, K_T_Q6_K, 8, K_RULE_CPU},
        {K_DOT_NEON, 0, 1, K_T_F32, 8, K_RULE_NEON_F32},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const k_levers lv = {.dot = list[i].dot, .repack = list[i].repack};
        if (k_dot_rule_of(&lv, list[i].columns, list[i].type, list[i].rows) != list[i].want)
            fail_msg("row %d: another rule", (int)i);
    }
}

/* What an op says of its own distance from the exact product, under every value of the lever. */
static void test_bands(void **state) {
    (void)state;
    static const int32_t types[] = {K_T_F32, K_T_F16, K_T_BF16, K_T_Q8_0, K_T_Q4_0, K_T_Q4_K, K_T_Q6_K};
    double low = 1e9, high = 0, most = 0;
    for (int dot = 0; dot <= K_DOT_NEON; dot++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            enum { K = 1280, O = 64, T = 5 };
            h_rng r = {100 * (uint64_t)dot + i};
            const k_quant *q = k_quant_get(types[i]);
            const k_dims d = {.N = 4};
            const k_levers lv = {.dot = dot};
            uint8_t *b = random_rows(&r, q->id, O, K);
            float *x = h_normal(&r, (int64_t)T * K, 1, K_ACT_F32), *w = h_nans(K), y[T * O];
            const k_weight weight = {
                .data = b, .rows = O, .cols = K, .row_bytes = (size_t)(K / q->elems * q->bytes), .type = q->id};
            k_call c = h_call(&d, &lv, T, 0, 1, k_matmul_scratch(K));
            c.in[0] = x, c.in_cols[0] = K, c.w[0] = &weight, c.nw[0] = 1, c.cols = O, c.out = y;
            matmul_cpu(&c);
            k_band band = {0, 0};
            matmul_band(&c, &band);
            double e2 = 0;
            for (int o = 0; o < O; o++) {
                k_decode_row(q->id, b + (size_t)o * weight.row_bytes, w, K);
                for (int t = 0; t < T; t++) {
                    double s = 0;
                    for (int k = 0; k < K; k++) s += (double)w[k] * (double)x[t * K + k];
                    e2 += ((double)y[t * O + o] - s) * ((double)y[t * O + o] - s);
                }
            }
            const double rms = sqrt(e2 / band.rms2), hard = sqrt(e2 / band.hard2);
            if (!(rms >= 0.4 && rms <= 1.7 && hard <= 0.5))
                fail_msg("dot %d, %s: %.2f of rms, %.4f of hard", dot, q->name, rms, hard);
            low = fmin(low, rms), high = fmax(high, rms), most = fmax(most, hard);
            free(b), free(x), free(w), h_scratch_free(&c);
        }
    print_message("bands: %.2f to %.2f of rms, up to %.3f of hard\n", low, high, most);
}

/* Values that no activation should hold: codes stay codes, and the sum says that something was wrong. */
static void test_special(void **state) {
    (void)state;
    float x[256] = {0};
    uint8_t q[36 * 8];
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-42f};
    for (int f = K_ACTQ_Q8_0; f <= K_ACTQ_Q8_1_GPU; f++) {
        if (f == K_ACTQ_Q8_K) continue;
        for (int k = 0; k < 6; k++) {
            for (int i = 0; i < 32; i++) x[i] = 0.25f * (float)i;
            x[7] = odd[k];
            k_actq_block32(f, x, q);
            const float d = k_f16_at(q, 0);
            for (int i = 0; i < 32; i++) assert_true((int8_t)q[k_actq_bytes(f) - 32 + i] >= -127);
            assert_true(k < 3 ? !(fabsf(d) < INFINITY) : d >= 0);
        }
    }
    memset(x, 0, sizeof x);
    k_actq_block32(K_ACTQ_Q8_1_GPU, x, q);
    for (int i = 0; i < 36; i++) assert_int_equal(q[i], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_activations), cmocka_unit_test(test_golden),
                                       cmocka_unit_test(test_orders),      cmocka_unit_test(test_rules),
                                       cmocka_unit_test(test_bands),       cmocka_unit_test(test_special)};
    return cmocka_run_group_tests_name("qdot", tests, NULL, NULL);
}
