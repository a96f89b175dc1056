/* t_matmul.c: matmul and the tables against their statement (plain decoding, lanes32 in plain C), by bits; bands. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/embed.h"
#include "kernels/matmul.h"
#include "kernels/quant.h"
#include "kernels/reduce.h"
#include "tests/h_vec.h"

static void *need(size_t n) {
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}

/* ---- the register block ---- */

static void fill(float *x, int64_t n, int wild, uint64_t *seed) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, -0.0f, 0x1p-149f, -0x1p-120f, 0x1p120f};
    for (int64_t i = 0; i < n; i++) {
        x[i] = vec_gauss(seed);
        if (wild && vec_u64(seed) % 64 == 0) x[i] = odd[vec_u64(seed) % 7];
    }
}

static void blocks(void **state) {
    (void)state;
    enum { LD = 300 };
    uint64_t seed = 3;
    static float w[4 * LD], xs[3 * LD], a[12 * 32], b[12 * 32];
    for (int round = 0; round < 40; round++)
        for (int R = 1; R <= 4; R++)
            for (int C = 1; C <= 3; C++) {
                int64_t n = 32 * (int64_t)(vec_u64(&seed) % 9);
                fill(w, 4 * LD, round & 1, &seed);
                fill(xs, 3 * LD, round & 2, &seed);
                fill(a, 12 * 32, 0, &seed);
                memcpy(b, a, sizeof a);
                const float *x[3] = {xs, xs + LD + 1, xs + 2 * LD - 3};
                k_tile_acc(w, LD, R, x, C, n, round % 3 == 0, a);
                k_tile_acc_plain(w, LD, R, x, C, n, round % 3 == 0, b);
                assert_int_equal(vec_diff(a, b, 12 * 32), 12 * 32);
            }
    /* twin: one more element is another sum */
    const float *x[3] = {xs, xs, xs};
    fill(w, 4 * LD, 0, &seed);
    fill(xs, 3 * LD, 0, &seed);
    memcpy(b, a, sizeof a);
    k_tile_acc(w, LD, 4, x, 3, 64, 1, a);
    k_tile_acc_plain(w, LD, 4, x, 3, 96, 1, b);
    assert_int_not_equal(vec_diff(a, b, 12 * 32), 12 * 32);
}

/* ---- the op ---- */

typedef struct {
    k_weight w;
    uint8_t *bytes;
    float *x, *out, *scratch;
    k_dims d;
    k_levers lv;
    k_call c;
} job;

/* Random weights of a type: random bits in the blocks, with scales that decode to moderate numbers. */
static void weight_bytes(uint8_t *b, int32_t type, int64_t n, uint64_t *seed) {
    const k_quant *q = k_quant_get(type);
    for (int64_t i = 0; i < n / q->elems; i++, b += q->bytes) {
        float y[256];
        int fine;
        do {
            for (int k = 0; k < q->bytes; k++) b[k] = (uint8_t)vec_u64(seed);
            if (q->elems == 1) { /* any number that the type holds */
                float v = vec_gauss(seed);
                int64_t whole = (int64_t)(vec_u64(seed) % 255) - 127;
                double d = (double)v;
                uint16_t half = type == K_T_F16 ? k_f16_from_f32(v) : k_bf16_from_f32(v);
                if (type == K_T_F32)
                    memcpy(b, &v, 4);
                else if (type == K_T_F64)
                    memcpy(b, &d, 8);
                else if (type == K_T_F16 || type == K_T_BF16)
                    memcpy(b, &half, 2);
                else
                    memcpy(b, &whole, (size_t)q->bytes);
            }
            k_decode_plain(type, b, y, q->elems);
            fine = 1;
            for (int e = 0; e < q->elems; e++) fine &= fabsf(y[e]) < 1e6f;
        } while (!fine);
    }
}

/* shift: bytes by which the data are off alignment. */
static job job_new(int32_t type, int32_t T, int64_t K, int64_t O, int shift, uint64_t *seed) {
    const k_quant *q = k_quant_get(type);
    job j = {.d = {.N = 4}};
    size_t row = (size_t)(K / q->elems) * (size_t)q->bytes;
    j.bytes = need(row * (size_t)O + 8);
    weight_bytes(j.bytes + shift, type, K * O, seed);
    j.w = (k_weight){.data = j.bytes + shift, .rows = O, .cols = K, .row_bytes = row, .type = type};
    j.x = need((size_t)(T * K) * 4);
    fill(j.x, T * K, 0, seed);
    j.out = need((size_t)(T * O) * 4);
    j.c = (k_call){.T = T, .Tcall = T, .Tc = T, .cols = O, .nth = 1};
    return j;
}

/* The pointers into the job itself, which may have been moved since. */
static k_call *ready(job *j, int nth, int64_t scratch_n) {
    free(j->scratch);
    j->scratch = need((size_t)(nth * scratch_n) * 4);
    j->c.out = j->out, j->c.in[0] = j->x, j->c.in_cols[0] = j->w.cols, j->c.w[0] = &j->w, j->c.nw[0] = 1;
    j->c.d = &j->d, j->c.lv = &j->lv, j->c.nth = nth, j->c.scratch = j->scratch, j->c.scratch_n = scratch_n;
    return &j->c;
}

static void job_free(job *j) {
    free(j->bytes);
    free(j->x);
    free(j->out);
    free(j->scratch);
}

/* The statement: decode by the scalar cores, dot by reduce.h, store. */
static float *statement(const job *j) {
    int64_t K = j->w.cols, O = j->w.rows;
    float *row = need((size_t)K * 4), *y = need((size_t)(j->c.T * O) * 4);
    for (int64_t o = 0; o < O; o++) {
        k_decode_plain(j->w.type, (const uint8_t *)j->w.data + (size_t)o * j->w.row_bytes, row, K);
        for (int32_t t = 0; t < j->c.T; t++)
            y[t * O + o] = k_epilogue_of(k_lanes32_dot(row, j->x + t * K, K), j->c.epi, j->d.N, j->lv.act);
    }
    free(row);
    return y;
}

static void equals_statement(job *j, const char *what) {
    float *want = statement(j);
    int64_t n = j->c.T * j->w.rows, full = k_matmul_scratch(j->w.cols);
    const int64_t sizes[] = {full, 0, full / 2, 5 * (j->w.cols + 31 + 32 * K_TILE_WIDE)};
    for (int i = 0; i < 4; i++)
        for (int nth = 1; nth <= 4; nth += 3) {
            k_call *c = ready(j, nth, sizes[i]);
            memset(j->out, 0x55, (size_t)n * 4);
            matmul_cpu(c);
            int64_t d = vec_diff(j->out, want, n);
            if (d != n)
                fail_msg("%s T %d K %d O %d, %d threads, scratch %d: element %d is %a, not %a", what, c->T,
                         (int)j->w.cols, (int)j->w.rows, nth, (int)sizes[i], (int)d, (double)j->out[d],
                         (double)want[d]);
        }
    free(want);
}

static void every_type(void **state) {
    (void)state;
    uint64_t seed = 11;
    static const int32_t Ts[] = {1, 3, 4, 8};
    for (int32_t type = 0; type < 64; type++) {
        const k_quant *q = k_quant_get(type);
        if (!q) continue;
        for (int i = 0; i < 4; i++) {
            int64_t K = q->elems * (int64_t)(1 + vec_u64(&seed) % (q->elems == 256 ? 6 : 1500 / (uint64_t)q->elems));
            job j = job_new(type, Ts[i], K, 1 + (int64_t)(vec_u64(&seed) % 23), i, &seed);
            j.lv.act = i & 1;
            equals_statement(&j, q->name);
            job_free(&j);
        }
    }
}

/* Every size around the register block, the lanes and the chunks. */
static void every_shape(void **state) {
    (void)state;
    uint64_t seed = 12;
    static const int64_t Ks[] = {1, 7, 31, 32, 33, 63, 65, 511, 512, 513, 1024, 1055, 4097};
    for (size_t i = 0; i < sizeof Ks / sizeof Ks[0]; i++)
        for (int32_t T = 1; T <= 9; T++) {
            job j = job_new(i & 1 ? K_T_BF16 : K_T_F32, T, Ks[i], 1 + (int64_t)(vec_u64(&seed) % 9), 0, &seed);
            equals_statement(&j, "shape");
            job_free(&j);
        }
    job j = job_new(K_T_F32, 50, 4099, 66, 0, &seed);
    equals_statement(&j, "long rows, two column groups");
    job_free(&j);
    j = job_new(K_T_Q8_0, 70, 96, 131, 0, &seed);
    equals_statement(&j, "many");
    job_free(&j);
    j = job_new(K_T_F32, 2, 1, 3, 0, &seed);
    j.w.cols = 0;
    equals_statement(&j, "no columns");
    for (int i = 0; i < 6; i++) assert_int_equal(k_f32_bits(j.out[i]), 0);
    job_free(&j);
}

static void epilogues(void **state) {
    (void)state;
    uint64_t seed = 13;
    for (int32_t epi = K_EPI_NONE; epi <= K_EPI_RAW; epi++)
        for (int32_t act = K_ACT_F32; act <= K_ACT_BF16; act++)
            for (int32_t N = 3; N <= 4; N++) {
                job j = job_new(K_T_BF16, 5, 100, 37, 0, &seed);
                j.c.epi = epi, j.lv.act = act, j.d.N = N;
                equals_statement(&j, "epilogue");
                if (act == K_ACT_BF16 && epi != K_EPI_RAW) /* stored means on the grid (2 x is exact) */
                    for (int i = 0; i < 5 * 37; i++)
                        assert_int_equal(k_f32_bits(j.out[i]), k_f32_bits(k_round_bf16(j.out[i])));
                job_free(&j);
            }
    /* the chain by hand, once: y = 3, N = 4, bf16 */
    float v = k_epilogue_of(3.0f, K_EPI_HCINJ, 4, K_ACT_BF16);
    assert_true(v == 2 * k_round_bf16(k_sigmoid(0.75f)));
    v = k_epilogue_of(1.001f, K_EPI_HCDOWN, 4, K_ACT_BF16);
    assert_true(v == k_round_bf16(k_silu(0.25f)));
    assert_true(k_epilogue_of(1.001f, K_EPI_RAW, 4, K_ACT_BF16) == 1.001f);
    assert_true(k_epilogue_of(1.001f, K_EPI_NONE, 4, K_ACT_BF16) == 1.0f);
}

/* The router's store follows act, or moe.logits where that says otherwise: values and band are those of a plain product
 * under the act that counts. No other epilogue asks moe.logits. */
static void router_store(void **state) {
    (void)state;
    uint64_t seed = 14;
    job j = job_new(K_T_BF16, 5, 2560, 37, 0, &seed);
    float *want = need(5 * 37 * 4);
    int differ = 0;
    for (int32_t act = 0; act < 2; act++)
        for (int32_t r = K_ROUTER_ACT; r <= K_ROUTER_BF16; r++) {
            k_band b[3] = {{0, 0}, {0, 0}, {0, 0}};
            j.c.epi = K_EPI_NONE, j.lv = (k_levers){.act = r == K_ROUTER_ACT ? act : r == K_ROUTER_BF16};
            matmul_cpu(ready(&j, 1, 0));
            matmul_band(&j.c, &b[0]);
            memcpy(want, j.out, 5 * 37 * 4);
            j.lv = (k_levers){.act = act, .router = r};
            matmul_cpu(ready(&j, 1, 0));
            matmul_band(&j.c, &b[1]);
            for (int i = 0; i < 5 * 37; i++) differ += k_f32_bits(j.out[i]) != k_f32_bits(want[i]);
            j.c.epi = K_EPI_ROUTER;
            matmul_cpu(ready(&j, 1, 0));
            matmul_band(&j.c, &b[2]);
            assert_int_equal(vec_diff(j.out, want, 5 * 37), 5 * 37);
            assert_memory_equal(&b[0], &b[2], sizeof b[0]);
            assert_int_equal(b[0].hard2 == b[1].hard2, r == K_ROUTER_ACT || act == (r == K_ROUTER_BF16));
        }
    assert_true(differ > 300); /* twin: a plain product under moe.logits = the other */
    free(want);
    job_free(&j);
}

/* Scratch for the longest row is enough for each. */
static void scratch_sizes(void **state) {
    (void)state;
    for (int64_t K = 1; K < 40000; K += K < 9000 ? 1 : 97) {
        assert_true(k_tile_scratch(K) <= k_tile_scratch_upto(K));
        assert_true(k_tile_scratch_upto(K - 1) <= k_tile_scratch_upto(K));
        assert_true(k_tile_scratch(K) / (k_tile_stride(K) + 32 * k_tile_cols(K)) == k_tile_rows(K));
    }
}

/* Small integers: every order is exact, so the sum is the sum. */
static void integers(void **state) {
    (void)state;
    uint64_t seed = 14;
    job j = job_new(K_T_I8, 7, 777, 29, 0, &seed);
    for (int64_t i = 0; i < 7 * 777; i++) j.x[i] = (float)((int64_t)(vec_u64(&seed) % 15) - 7);
    matmul_cpu(ready(&j, 2, k_matmul_scratch(777)));
    for (int32_t t = 0; t < 7; t++)
        for (int64_t o = 0; o < 29; o++) {
            int64_t sum = 0;
            for (int64_t i = 0; i < 777; i++) sum += (int8_t)j.bytes[o * 777 + i] * (int64_t)j.x[t * 777 + i];
            assert_true(j.out[t * 29 + o] == (float)sum);
        }
    job_free(&j);
}

/* What is not finite goes where its row or column goes, and nowhere else. */
static void not_finite(void **state) {
    (void)state;
    uint64_t seed = 15;
    for (int32_t T = 1; T <= 7; T += 3) {
        job j = job_new(K_T_F32, T, 320, 11, 0, &seed);
        float *w = (float *)(void *)j.bytes;
        w[3 * 320 + 45] = NAN;
        w[5 * 320 + 319] = INFINITY;
        j.x[(T - 1) * 320 + 100] = -INFINITY;
        equals_statement(&j, "not finite");
        for (int32_t t = 0; t < T; t++)
            for (int o = 0; o < 11; o++)
                if (o == 3)
                    assert_true(isnan(j.out[t * 11 + o]));
                else
                    assert_int_equal(!isfinite(j.out[t * 11 + o]), o == 5 || t == T - 1);
        job_free(&j);
    }
}

/* The comparison sees one flipped weight bit, and another order of the sum. */
static void twins(void **state) {
    (void)state;
    uint64_t seed = 16;
    job j = job_new(K_T_Q4_K, 4, 512, 8, 0, &seed);
    float *want = statement(&j);
    j.bytes[17] ^= 1;
    matmul_cpu(ready(&j, 1, k_matmul_scratch(512)));
    assert_int_not_equal(vec_diff(j.out, want, 32), 32);
    j.bytes[17] ^= 1;
    matmul_cpu(ready(&j, 1, k_matmul_scratch(512)));
    assert_int_equal(vec_diff(j.out, want, 32), 32);
    float row[512], serial = 0;
    k_decode_row(K_T_Q4_K, j.bytes, row, 512);
    int same = 0;
    for (int32_t t = 0; t < 4; t++, serial = 0) {
        for (int i = 0; i < 512; i++) serial = fmaf(row[i], j.x[t * 512 + i], serial);
        same += serial == want[t * 8];
    }
    assert_true(same < 4);
    free(want);
    job_free(&j);
}

/* ---- bands ---- */

static double epilogue64(double y, int32_t epi, double N) {
    if (epi == K_EPI_HCDOWN) return y / N / (1 + exp(-y / N));
    if (epi == K_EPI_HCINJ) return 2 / (1 + exp(-y / N));
    return y;
}

typedef struct {
    double err2, hard2, rms2;
} measured;

/* L2 of what matmul is off from f64, beside what its band says. */
static measured measure(job *j) {
    measured m = {0, 0, 0};
    int64_t K = j->w.cols, O = j->w.rows;
    float *row = need((size_t)K * 4);
    matmul_cpu(ready(j, 2, k_matmul_scratch(K)));
    for (int64_t o = 0; o < O; o++) {
        k_decode_plain(j->w.type, j->bytes + (size_t)o * j->w.row_bytes, row, K);
        for (int32_t t = 0; t < j->c.T; t++) {
            double y = 0; /* its own error is 2^-29 of what is measured */
            for (int64_t i = 0; i < K; i++) y += (double)row[i] * (double)j->x[t * K + i];
            double e = (double)j->out[t * O + o] - epilogue64(y, j->c.epi, j->d.N);
            m.err2 += e * e;
        }
    }
    free(row);
    k_band b = {0, 0}, again = {0, 0};
    matmul_band(ready(j, 1, 0), &b);
    matmul_band(ready(j, 3, k_matmul_scratch(K)), &again);
    assert_memory_equal(&b, &again, sizeof b);
    m.hard2 = b.hard2, m.rms2 = b.rms2;
    return m;
}

static void bands(void **state) {
    (void)state;
    uint64_t seed = 17;
    static const int64_t Ks[] = {256, 640, 2560, 10240};
    for (int i = 0; i < 4; i++)
        for (int32_t epi = K_EPI_NONE; epi <= K_EPI_RAW; epi++)
            for (int32_t act = K_ACT_F32; act <= K_ACT_BF16; act++) {
                if (epi == K_EPI_RAW && act) continue;
                job j = job_new(K_T_F32, 3, Ks[i], i < 3 ? 200 : 80, 0, &seed);
                float *w = (float *)(void *)j.bytes, scale = 4.0f / sqrtf((float)Ks[i]);
                for (int64_t k = 0; k < j.w.rows * Ks[i]; k++) w[k] *= scale;
                j.c.epi = epi, j.lv.act = act, j.d.N = epi == K_EPI_HCINJ ? 3 : 4;
                if (act)
                    for (int64_t k = 0; k < 3 * Ks[i]; k++) j.x[k] = k_round_bf16(j.x[k]);
                measured m = measure(&j);
                double share = sqrt(m.err2 / m.rms2), of_hard = sqrt(m.err2 / m.hard2);
                print_message("K %5d epi %d act %d: error %.3f of rms, %.4f of hard\n", (int)Ks[i], epi, act, share,
                              of_hard);
                if (!(of_hard <= 1)) fail_msg("the error exceeds its hard bound");
                double lo = 1 / 1.3, hi = 1.3;
                if (!(share >= lo && share <= hi)) fail_msg("rms is off: %.3f", share);
                job_free(&j);
            }
}

/* Same-sign rows lean on the bound: it must hold, and must not be loose beyond use. */
static void adversarial(void **state) {
    (void)state;
    uint64_t seed = 18;
    double most = 0;
    for (int round = 0; round < 10; round++) {
        job j = job_new(K_T_F32, 1, 2560, 16, 0, &seed);
        float *w = (float *)(void *)j.bytes, a = 1 + fabsf(vec_uniform(&seed));
        for (int64_t k = 0; k < 16 * 2560; k++) w[k] = a + (float)(k / 2560) * 0x1p-12f;
        for (int64_t k = 0; k < 2560; k++) j.x[k] = round & 1 ? 1.0f : 1.0f + 0x1p-20f * (float)(k % 3);
        measured m = measure(&j);
        double share = sqrt(m.err2 / m.hard2);
        if (!(share <= 1)) fail_msg("the error exceeds its hard bound: %g", share);
        most = share > most ? share : most;
        job_free(&j);
    }
    print_message("same-sign rows: up to %.3f of hard\n", most);
    assert_true(most >= 0.05);
    /* twin: a sum in f16 steps is beyond any of it */
    job j = job_new(K_T_F32, 1, 2560, 1, 0, &seed);
    float *w = (float *)(void *)j.bytes, bad = 0;
    double y = 0;
    for (int64_t k = 0; k < 2560; k++) {
        bad = k_f32_from_f16(k_f16_from_f32(fmaf(w[k], j.x[k], bad)));
        y += (double)w[k] * (double)j.x[k];
    }
    measured m = measure(&j);
    assert_false(fabs((double)bad - y) <= sqrt(m.hard2));
    job_free(&j);
}

/* ---- tables ---- */

static void tables(void **state) {
    (void)state;
    uint64_t seed = 19;
    enum { V = 40, D = 64, T = 9, P = 3 };
    for (int32_t type = K_T_F32; type <= K_T_Q8_0; type += K_T_Q8_0)
        for (int32_t act = 0; act < 2; act++) {
            job j = job_new(type, T, D, V, 0, &seed);
            int32_t ids[T * P];
            float want[D], out[T * P * D];
            for (int i = 0; i < T * P; i++) ids[i] = (int32_t)(vec_u64(&seed) % V);
            ids[4] = V, ids[5] = -1, ids[6] = INT32_MIN, ids[7] = INT32_MAX, ids[8] = V - 1;
            k_weight shard[3] = {j.w, j.w, j.w}; /* 16 + 16 + 8 rows */
            for (int s = 0; s < 3; s++) {
                shard[s].data = j.bytes + (size_t)(16 * s) * j.w.row_bytes;
                shard[s].rows = s < 2 ? 16 : 8;
            }
            for (int heads = 1; heads <= P; heads += P - 1) {
                k_call c = {.T = T, .cols = D * heads, .out = out, .d = &j.d, .nth = 2};
                j.lv.act = act;
                c.lv = &j.lv, c.in_i[0] = ids, c.in_cols[0] = heads, c.w[0] = heads == 1 ? &j.w : shard;
                c.nw[0] = heads == 1 ? 1 : 3;
                (heads == 1 ? embed_cpu : ple_gather_cpu)(&c);
                for (int i = 0; i < T * heads; i++) {
                    int in = ids[i] >= 0 && ids[i] < V;
                    if (in) k_decode_plain(type, j.bytes + (size_t)ids[i] * j.w.row_bytes, want, D);
                    for (int k = 0; k < D; k++) want[k] = in ? k_rd(want[k], act) : NAN;
                    assert_int_equal(vec_diff(out + i * D, want, D), D);
                }
                for (int i = 0; i < T * heads * D; i++) out[i] = isnan(out[i]) ? 0 : out[i];
                k_band b = {0, 0};
                (heads == 1 ? embed_band : ple_gather_band)(&c, &b);
                double err2 = 0;
                for (int i = 0; i < T * heads; i++) {
                    if (ids[i] < 0 || ids[i] >= V) continue;
                    k_decode_plain(type, j.bytes + (size_t)ids[i] * j.w.row_bytes, want, D);
                    for (int k = 0; k < D; k++) err2 += pow((double)out[i * D + k] - (double)want[k], 2);
                }
                if (act)
                    assert_true(err2 <= b.hard2 && err2 > b.rms2 / 1.7 && err2 < b.rms2 * 1.7);
                else
                    assert_true(err2 == 0 && b.hard2 == 0 && b.rms2 == 0);
            }
            job_free(&j);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks),      cmocka_unit_test(every_type),   cmocka_unit_test(every_shape),
        cmocka_unit_test(epilogues),   cmocka_unit_test(router_store), cmocka_unit_test(integers),
        cmocka_unit_test(not_finite),  cmocka_unit_test(twins),        cmocka_unit_test(bands),
        cmocka_unit_test(adversarial), cmocka_unit_test(tables),       cmocka_unit_test(scratch_sizes),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
