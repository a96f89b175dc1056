/* Lever gemm: products of more than 8 columns by cuBLAS, and ours, against exact sums: every element within the bound that
 * matmul.h derives, the whole within the band. The shares that were used are printed. Where there is no cuBLAS its part
 * is counted as skipped, with the reason; on the emulator there is one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/band.h"
#include "kernels/matmul.h"
#include "kernels/quant.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_call.h"

static int emulated, have;
static char why[400];
static h_rng rng = {77};

typedef struct {
    int32_t type, T, act;
    int64_t K, O, gap; /* gap: bytes between stored rows */
} shape;

/* Operands of a product, what is exact about it. */
typedef struct {
    shape s;
    k_weight w;
    float *x, *scratch;
    uint8_t *data;
    double *y, *mag; /* [T,O]: sum w x, sum |w x| */
} sums;

static void *room(size_t n) {
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}

/* A block that decodes to numbers of moderate size. */
static void block(const k_quant *q, uint8_t *b) {
    float v[256];
    for (int try = 0; try < 200; try++) {
        int good = 1;
        for (int i = 0; i < q->bytes; i++) b[i] = (uint8_t)h_next(&rng);
        k_decode_plain(q->id, b, v, q->elems);
        for (int i = 0; i < q->elems; i++) good &= fabsf(v[i]) < 1e4f;
        if (good) return;
    }
    memset(b, 0, (size_t)q->bytes);
}

static void make(shape s, sums *m) {
    const k_quant *q = k_quant_get(s.type);
    const size_t row = (size_t)(s.K / q->elems) * (size_t)q->bytes + (size_t)s.gap;
    *m = (sums){.s = s, .data = room((size_t)s.O * row), .x = h_normal(&rng, s.T * s.K, 1, s.act)};
    m->y = room((size_t)(s.T * s.O) * sizeof(double));
    m->mag = room((size_t)(s.T * s.O) * sizeof(double));
    m->w = (k_weight){m->data, s.O, s.K, row, s.type};
    float *w = room((size_t)s.K * sizeof *w);
    for (int64_t o = 0; o < s.O; o++) {
        uint8_t *r = m->data + (size_t)o * row;
        for (int64_t i = 0; i < s.K; i += q->elems) {
            uint8_t *b = r + (size_t)(i / q->elems) * (size_t)q->bytes;
            const float g = (float)h_gauss(&rng);
            const uint16_t h = k_bf16_from_f32(g);
            if (s.type == K_T_F32)
                memcpy(b, &g, 4);
            else if (s.type == K_T_BF16)
                memcpy(b, &h, 2);
            else
                block(q, b);
        }
        k_decode_plain(s.type, r, w, s.K);
        for (int64_t t = 0; t < s.T; t++) {
            double y = 0, mag = 0; /* 2^-53 a step: far below what is asked */
            for (int64_t i = 0; i < s.K; i++) {
                const double p = (double)w[i] * (double)m->x[t * s.K + i];
                y += p;
                mag += fabs(p);
            }
            m->y[t * s.O + o] = y;
            m->mag[t * s.O + o] = mag;
        }
    }
    free(w);
}

static void drop(sums *m) {
    free(m->data);
    free(m->x);
    free(m->y);
    free(m->mag);
}

static void must(int code, const char *what) {
    if (code) fail_msg("%s: %s", what, k_dev_text(code));
}

/* The device's product, stored by epi. */
static float *run(const sums *m, int32_t gemm, int32_t epi) {
    const shape s = m->s;
    const size_t bytes[4] = {(size_t)s.O * m->w.row_bytes, (size_t)(s.T * s.K) * sizeof(float),
                             (size_t)(s.T * s.O) * sizeof(float), 0};
    const k_dims d = {.N = 3, .D = (int32_t)s.K};
    const k_levers lv = {.act = s.act, .gemm = gemm};
    k_dev *dev = hp_device(&emulated);
    float *out = h_nans(s.T * s.O);
    k_weight w = m->w;
    k_call c = {.T = s.T, .Tcall = s.T, .Tc = s.T, .cols = s.O, .epi = epi, .d = &d, .lv = &lv, .nw = {1}, .nth = 1};
    void *p[4];
    c.scratch_n = k_dev_scratch(&d, s.T, s.T);
    for (int i = 0; i < 4; i++) must(k_dev_alloc(dev, i < 3 ? bytes[i] : 4 * (size_t)c.scratch_n, &p[i]), "memory");
    must(k_dev_put(dev, p[0], m->data, bytes[0]), "weights");
    must(k_dev_put(dev, p[1], m->x, bytes[1]), "columns");
    must(k_dev_put(dev, p[2], out, bytes[2]), "outputs");
    w.data = p[0];
    c.w[0] = &w;
    c.in[0] = p[1];
    c.in_cols[0] = s.K;
    c.out = p[2];
    c.scratch = p[3];
    must(k_dev_run(dev, K_OP_matmul, &c), "product");
    must(k_dev_get(dev, out, p[2], bytes[2]), "outputs");
    must(k_dev_wait(dev), "product");
    for (int i = 0; i < 4; i++) k_dev_free(dev, p[i]);
    return out;
}

static k_gemm_by by_of(const sums *m, int32_t gemm) {
    const k_levers lv = {.act = m->s.act, .gemm = gemm};
    k_call c = {.T = m->s.T, .lv = &lv};
    c.w[0] = &m->w;
    return k_gemm_of(&c);
}

/* Largest share of its bound that an element uses; NaN and infinity exceed it. */
static double worst_share(const sums *m, const float *got, k_gemm_by by) {
    const double bound = k_gemm_bound(by, m->s.K);
    double most = 0;
    for (int64_t i = 0; i < m->s.T * m->s.O; i++) {
        const double e = fabs((double)got[i] - m->y[i]), room_i = bound * m->mag[i];
        const double share = e == 0 ? 0 : e / room_i;
        if (!(share <= most)) most = share;
        if (!(share < INFINITY)) return INFINITY;
    }
    return most;
}

/* The band of the call, as a dump records it, and what the product uses of it in L2. */
static void band_shares(const sums *m, float *got, int32_t gemm, double *hard, double *rms) {
    const k_levers lv = {.act = m->s.act, .gemm = gemm};
    const k_dims d = {.N = 3};
    k_call c = h_call(&d, &lv, m->s.T, 0, 1, k_matmul_scratch(m->s.K));
    k_band b = {0, 0};
    c.in[0] = m->x;
    c.in_cols[0] = m->s.K;
    c.w[0] = &m->w;
    c.nw[0] = 1;
    c.cols = m->s.O;
    c.out = got;
    c.epi = K_EPI_RAW;
    matmul_band(&c, &b);
    const double e = h_dist(got, m->y, m->s.T * m->s.O);
    *hard = e / sqrt(b.hard2);
    *rms = e / sqrt(b.rms2);
    h_scratch_free(&c);
}

static const char *const word[] = {"own", "cublas f32", "cublas bf16"};

static int one(const sums *m, int32_t gemm) {
    const k_gemm_by by = by_of(m, gemm);
    const shape s = m->s;
    double hard, rms;
    float *raw = run(m, gemm, K_EPI_RAW), *again = run(m, gemm, K_EPI_RAW), *stored = run(m, gemm, K_EPI_NONE);
    const double share = worst_share(m, raw, by);
    int bad = !(share <= 1);
    band_shares(m, raw, gemm, &hard, &rms);
    bad += !(hard <= 1) + !(rms <= 4);
    bad += memcmp(raw, again, (size_t)(s.T * s.O) * sizeof *raw) != 0;
    for (int64_t i = 0; i < s.T * s.O; i++) bad += k_f32_bits(stored[i]) != k_f32_bits(k_rd(raw[i], s.act));
    print_message("%-11s %-5s K=%-5lld O=%-5lld T=%-3d act=%-4s bound %.2e sum|w x|: worst element uses %.4f of it; "
                  "L2: %.4f of hard, %.2f rms%s\n",
                  word[by], k_quant_get(s.type)->name, (long long)s.K, (long long)s.O, s.T, s.act ? "bf16" : "f32",
                  k_gemm_bound(by, s.K), share, hard, rms, bad ? "  FAILED" : "");
    free(raw);
    free(again);
    free(stored);
    return bad;
}

static const shape shapes[] = {
    {K_T_F32, 9, K_ACT_F32, 33, 13, 0},         {K_T_F32, 16, K_ACT_BF16, 96, 40, 4},
    {K_T_F32, 9, K_ACT_F32, 64, 5, 3},          {K_T_BF16, 9, K_ACT_BF16, 33, 13, 0},
    {K_T_BF16, 17, K_ACT_BF16, 160, 21, 1},     {K_T_BF16, 9, K_ACT_BF16, 96, 8, 2},
    {K_T_BF16, 9, K_ACT_F32, 96, 21, 0},        {K_T_F16, 12, K_ACT_BF16, 70, 9, 0},
    {K_T_Q8_0, 9, K_ACT_BF16, 320, 7, 0},       {K_T_Q4_K, 20, K_ACT_F32, 512, 6, 0},
    {K_T_F32, 8, K_ACT_F32, 33, 13, 0},         {K_T_F32, 64, K_ACT_F32, 2560, 640, 0},
    {K_T_F32, 65, K_ACT_F32, 10240, 320, 0},    {K_T_BF16, 64, K_ACT_BF16, 2560, 640, 0},
    {K_T_BF16, 200, K_ACT_BF16, 10240, 320, 0}, {K_T_Q4_K, 64, K_ACT_BF16, 10240, 320, 0},
    {K_T_BF16, 33, K_ACT_BF16, 2561, 641, 0},
};

static void bounded(void **state) {
    int bad = 0, did = 0, skipped = 0;
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        sums m;
        if (emulated && shapes[i].K * shapes[i].O * shapes[i].T > 400000) continue;
        make(shapes[i], &m);
        bad += one(&m, K_GEMM_OWN);
        if (have && by_of(&m, K_GEMM_CUBLAS) != K_BY_OWN) bad += one(&m, K_GEMM_CUBLAS);
        did += have;
        skipped += !have;
        drop(&m);
    }
    if (have)
        print_message("cuBLAS %d, %d products\n", k_dev_gemm_version(hp_device(&emulated)), did);
    else
        print_message("cuBLAS: skipped %d products: %s\n", skipped, why);
    assert_int_equal(bad, 0);
}

/* Up to 8 columns the lever changes no bit. */
static void few_columns(void **state) {
    (void)state;
    for (int32_t T = 1; T <= 8; T++) {
        sums m;
        make((shape){K_T_BF16, T, K_ACT_BF16, 96, 11, 0}, &m);
        float *own = run(&m, K_GEMM_OWN, K_EPI_NONE), *lever = run(&m, K_GEMM_CUBLAS, K_EPI_NONE);
        assert_memory_equal(own, lever, (size_t)(T * 11) * sizeof *own);
        free(own);
        free(lever);
        drop(&m);
    }
}

/* The bound sees one element that is off by twice what is allowed, a NaN, and a product with the wrong side. */
static void twins(void **state) {
    (void)state;
    sums m;
    make((shape){K_T_BF16, 12, K_ACT_BF16, 48, 48, 0}, &m);
    for (int32_t gemm = K_GEMM_OWN; gemm <= (have ? K_GEMM_CUBLAS : K_GEMM_OWN); gemm++) {
        const k_gemm_by by = by_of(&m, gemm);
        float *y = run(&m, gemm, K_EPI_RAW), keep = y[77];
        assert_true(worst_share(&m, y, by) <= 1);
        y[77] = (float)(m.y[77] + 2 * k_gemm_bound(by, 48) * m.mag[77]);
        assert_false(worst_share(&m, y, by) <= 1);
        y[77] = NAN;
        assert_false(worst_share(&m, y, by) <= 1);
        y[77] = keep;
        assert_true(worst_share(&m, y, by) <= 1);
        uint16_t *w = (uint16_t *)(void *)m.data; /* w transposed, for the device alone */
        for (int i = 0; i < 48; i++)
            for (int j = 0; j < i; j++) {
                uint16_t v = w[48 * i + j];
                w[48 * i + j] = w[48 * j + i];
                w[48 * j + i] = v;
            }
        float *turned = run(&m, gemm, K_EPI_RAW);
        assert_false(worst_share(&m, turned, by) <= 1);
        free(turned);
        free(y);
        drop(&m);
        make((shape){K_T_BF16, 12, K_ACT_BF16, 48, 48, 0}, &m);
    }
    drop(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bounded), cmocka_unit_test(few_columns),
                                       cmocka_unit_test(twins)};
    have = !k_dev_gemm(hp_device(&emulated), why, sizeof why);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hp_close();
    return failed;
}
