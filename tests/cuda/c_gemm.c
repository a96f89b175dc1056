/* Lever gemm: products of more than 8 columns by cuBLAS, and ours, against exact sums: every element within the bound
 * that matmul.h derives, the whole within the band. The shares that were used are printed. Products made in pieces, as
 * a matrix larger than the scratch is, have the whole one's bits (the library's on a GPU: its bound). Where there is no
 * cuBLAS this fails, unless --without-cublas is the argument; on the emulator there is one. */
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
#include "tests/cuda/h_kit.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_call.h"

static int emulated, have;
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

/* The device's product, stored by epi, with so many floats of scratch; 0: as many as a run brings. *code, if asked for:
 * what the call answered; else it must succeed. */
static float *run_in(const sums *m, int32_t gemm, int32_t epi, int64_t floats, int *code) {
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
    c.scratch_n = floats ? floats : k_dev_scratch(&d, s.T, s.T);
    for (int i = 0; i < 4; i++)
        must(k_dev_alloc(dev, (i < 3 ? bytes[i] : 4 * (size_t)c.scratch_n) + 16, &p[i]), "memory");
    must(k_dev_put(dev, p[0], m->data, bytes[0]), "weights");
    must(k_dev_put(dev, p[1], m->x, bytes[1]), "columns");
    must(k_dev_put(dev, p[2], out, bytes[2]), "outputs");
    w.data = p[0];
    c.w[0] = &w;
    c.in[0] = p[1];
    c.in_cols[0] = s.K;
    c.out = p[2];
    c.scratch = p[3];
    const int e = k_dev_run(dev, K_OP_matmul, &c);
    if (code)
        *code = e;
    else
        must(e, "product");
    must(k_dev_get(dev, out, p[2], bytes[2]), "outputs");
    must(k_dev_wait(dev), "product");
    for (int i = 0; i < 4; i++) k_dev_free(dev, p[i]);
    return out;
}

static float *run(const sums *m, int32_t gemm, int32_t epi) {
    return run_in(m, gemm, epi, 0, NULL);
}

static k_gemm_by by_of(const sums *m, int32_t gemm) {
    const k_levers lv = {.act = m->s.act, .gemm = gemm};
    k_call c = {.T = m->s.T, .Tcall = m->s.T, .lv = &lv};
    c.w[0] = &m->w;
    c.in_cols[0] = m->s.K;
    const k_gemm_by by = k_gemm_of(&c);
    assert_int_equal(by != K_BY_OWN, gemm == K_GEMM_CUBLAS && m->s.T > K_GEMM_COLUMNS);
    return by;
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
    int bad = 0, did = 0;
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        sums m;
        if (hk_too_long(shapes[i].K * shapes[i].O * shapes[i].T)) continue;
        make(shapes[i], &m);
        bad += one(&m, K_GEMM_OWN);
        if (have && by_of(&m, K_GEMM_CUBLAS) != K_BY_OWN) bad += one(&m, K_GEMM_CUBLAS);
        did += have;
        drop(&m);
    }
    if (have) print_message("cuBLAS %d, %d products\n", k_dev_gemm_version(hp_device(&emulated)), did);
    assert_int_equal(bad, 0);
}

/* ---- in pieces ---- */

/* Scratch that takes `rows` decoded rows of m and not one more. */
static int64_t floats_for(const sums *m, k_gemm_by by, int64_t rows) {
    const shape s = m->s;
    if (by == K_BY_BF16) return k_gemm_halves(s.T * s.K) + (rows * s.K + 1) / 2;
    return rows * s.K + s.K - 1;
}

/* Rows at once of m->s.O: the whole product's bits, and every element within its bound. */
static int in_pieces(const sums *m, int32_t gemm, int64_t rows, const float *whole) {
    const k_gemm_by by = by_of(m, gemm);
    const int64_t n = m->s.T * m->s.O;
    float *y = run_in(m, gemm, K_EPI_RAW, floats_for(m, by, rows), NULL);
    const double share = worst_share(m, y, by);
    int64_t differ = 0;
    for (int64_t i = 0; i < n; i++) differ += k_f32_bits(y[i]) != k_f32_bits(whole[i]);
    const int bits = emulated || by == K_BY_OWN, bad = !(share <= 1) || (bits && differ);
    if (bad)
        print_message("%s %s K=%lld O=%lld T=%d, %lld rows at once: %lld differ, share %g\n", word[by],
                      k_quant_get(m->s.type)->name, (long long)m->s.K, (long long)m->s.O, m->s.T, (long long)rows,
                      (long long)differ, share);
    free(y);
    return bad;
}

/* Two pieces, three with a short last one, many; stored so that rows cannot be read where they lie. */
static void pieces(void **state) {
    static const shape all[] = {{K_T_BF16, 17, K_ACT_BF16, 96, 45, 1},
                                {K_T_BF16, 16, K_ACT_F32, 33, 61, 1},
                                {K_T_F32, 20, K_ACT_F32, 70, 45, 3},
                                {K_T_Q8_0, 16, K_ACT_BF16, 160, 33, 0},
                                {K_T_Q4_K, 16, K_ACT_F32, 256, 49, 0}};
    static const int64_t rows[2][4] = {{4, 12, 20, 32},
                                       {16, 20, 23, 32}}; /* ours: by fours; the library's: from 16 on */
    int bad = 0, did = 0;
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        sums m;
        make(all[i], &m);
        for (int32_t gemm = K_GEMM_OWN; gemm <= (have ? K_GEMM_CUBLAS : K_GEMM_OWN); gemm++) {
            float *whole = run(&m, gemm, K_EPI_RAW);
            bad += !(worst_share(&m, whole, by_of(&m, gemm)) <= 1);
            for (int k = 0; k < 4; k++, did++) bad += in_pieces(&m, gemm, rows[gemm != K_GEMM_OWN][k], whole);
            free(whole);
        }
        drop(&m);
    }
    print_message("%d products in pieces\n", did);
    assert_int_equal(bad, 0);
}

/* Scratch that does not even hold the fewest rows: the library's product is refused; ours goes without. */
static void too_little(void **state) {
    sums m;
    int code;
    (void)state;
    make((shape){K_T_BF16, 17, K_ACT_BF16, 96, 45, 1}, &m);
    float *whole = run(&m, K_GEMM_OWN, K_EPI_RAW), *y = run_in(&m, K_GEMM_OWN, K_EPI_RAW, 4 * 96 - 1, NULL);
    assert_memory_equal(y, whole, (size_t)(17 * 45) * sizeof *y);
    free(y);
    free(whole);
    for (int k = 0; have && k < 2; k++) { /* not the rows; not even the columns */
        const int64_t half = k_gemm_halves(17 * 96);
        free(run_in(&m, K_GEMM_CUBLAS, K_EPI_RAW, k ? half - 1 : half + (15 * 96 + 95) / 2, &code));
        assert_int_not_equal(code, 0);
    }
    drop(&m);
}

/* Rows of no elements: +0, and what the epilogue makes of it. */
static void nothing_to_sum(void **state) {
    static const int32_t types[] = {K_T_F32, K_T_BF16, K_T_Q4_K}, columns[] = {1, 9, 16};
    (void)state;
    for (int i = 0; i < 9; i++)
        for (int32_t gemm = K_GEMM_OWN; gemm <= (have ? K_GEMM_CUBLAS : K_GEMM_OWN); gemm++) {
            sums m;
            make((shape){types[i / 3], columns[i % 3], K_ACT_BF16, 0, 11, 0}, &m);
            float *y = run(&m, gemm, K_EPI_RAW), *z = run(&m, gemm, K_EPI_HCINJ);
            for (int64_t k = 0; k < 11 * m.s.T; k++) assert_true(k_f32_bits(y[k]) == 0 && z[k] == 1.0f);
            free(y);
            free(z);
            drop(&m);
        }
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

/* Asked for and not here is a failure. */
static void library(void **state) {
    char why[400];
    (void)state;
    have = !k_dev_gemm(hp_device(&emulated), why, sizeof why);
    if (!have) fail_msg("%s", why);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(library),     cmocka_unit_test(bounded),
                                       cmocka_unit_test(pieces),      cmocka_unit_test(too_little),
                                       cmocka_unit_test(few_columns), cmocka_unit_test(nothing_to_sum),
                                       cmocka_unit_test(twins)};
    hk_begin(0, NULL);
    emulated = hk_emulated;
    if (argc > 1 && !strcmp(argv[1], "--without-cublas")) {
        print_message("cuBLAS: left out\n");
        cmocka_set_skip_filter("library");
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hp_close();
    return failed;
}
