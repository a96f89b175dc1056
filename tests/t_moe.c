/* t_moe.c: the mixture of experts against its statement, by bits; bands. Recorded runs: t_moe_golden.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/arith.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/quant.h"
#include "kernels/reduce.h"
#include "kernels/topk.h"
#include "tests/h_vec.h"

static void *need(size_t n) {
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}

/* K different experts for each of T tokens; skewed: most tokens want the same ones. */
static void choose(int32_t *ids, int32_t T, int32_t K, int32_t E, int skewed, uint64_t *seed) {
    for (int32_t t = 0; t < T; t++)
        for (int32_t k = 0; k < K; k++) {
            int fresh;
            do {
                ids[t * K + k] = (int32_t)(vec_u64(seed) % (uint64_t)(skewed && t % 8 ? K : E));
                fresh = 1;
                for (int32_t i = 0; i < k; i++) fresh &= ids[t * K + i] != ids[t * K + k];
            } while (!fresh);
        }
}

/* ---- moe_expert ---- */

typedef struct {
    int32_t T, K, E, type, per;
    int64_t Kin, O;
    k_weight *w;
    uint8_t *bytes;
    float *x, *out, *scratch;
    int32_t *ids;
    k_dims d;
    k_levers lv;
} experts;

static experts experts_new(int32_t T, int32_t K, int32_t E, int32_t type, int32_t per, int64_t Kin, int64_t O,
                           int skewed, uint64_t *seed) {
    experts e = {.T = T, .K = K, .E = E, .type = type, .per = per, .Kin = Kin, .O = O};
    const k_quant *q = k_quant_get(type);
    size_t row = (size_t)(Kin / q->elems) * (size_t)q->bytes, all = row * (size_t)O * (size_t)E;
    e.bytes = need(all);
    for (size_t i = 0; i < all; i++) e.bytes[i] = (uint8_t)vec_u64(seed);
    for (size_t i = 0; type == K_T_Q8_0 && i < all; i += 34) e.bytes[i + 1] = 0x2c; /* scales near 1/16 */
    if (type == K_T_F32)
        for (size_t i = 0; i < all / 4; i++) ((float *)(void *)e.bytes)[i] = vec_gauss(seed);
    e.w = need((size_t)E * sizeof *e.w);
    for (int32_t i = 0; i < E; i++) e.w[i] = (k_weight){e.bytes + (size_t)i * row * (size_t)O, O, Kin, row, type};
    e.x = need((size_t)(T * (per ? K : 1) * Kin) * 4);
    for (int64_t i = 0; i < T * (per ? K : 1) * Kin; i++) e.x[i] = vec_gauss(seed);
    e.out = need((size_t)(T * K * O) * 4);
    e.ids = need((size_t)(T * K) * 4);
    choose(e.ids, T, K, E, skewed, seed);
    return e;
}

static k_call experts_call(experts *e, int nth, int64_t scratch_n) {
    free(e->scratch);
    e->scratch = need((size_t)(nth * scratch_n) * 4);
    k_call c = {.T = e->T, .cols = e->K * e->O, .out = e->out, .per = e->per, .d = &e->d, .lv = &e->lv, .nth = nth};
    c.in[0] = e->x, c.in_cols[0] = (e->per ? e->K : 1) * e->Kin;
    c.in_i[1] = e->ids, c.in_cols[1] = e->K;
    c.w[0] = e->w, c.nw[0] = e->E, c.scratch = e->scratch, c.scratch_n = scratch_n;
    return c;
}

static void experts_free(experts *e) {
    free(e->w);
    free(e->bytes);
    free(e->x);
    free(e->out);
    free(e->scratch);
    free(e->ids);
}

static float *experts_statement(const experts *e) {
    float *row = need((size_t)e->Kin * 4), *y = need((size_t)(e->T * e->K * e->O) * 4);
    for (int64_t s = 0; s < e->T * e->K; s++)
        for (int64_t o = 0; o < e->O; o++) {
            const float *x = e->x + (e->per ? s : s / e->K) * e->Kin;
            int in = e->ids[s] >= 0 && e->ids[s] < e->E;
            const k_weight *w = &e->w[in ? e->ids[s] : 0];
            k_decode_plain(e->type, (const uint8_t *)w->data + (size_t)o * w->row_bytes, row, e->Kin);
            y[s * e->O + o] = in ? k_rd(k_lanes32_dot(row, x, e->Kin), e->lv.act) : NAN;
        }
    free(row);
    return y;
}

static void equals_statement(experts *e) {
    float *want = experts_statement(e);
    int64_t n = e->T * e->K * e->O, lists = e->E + 1 + 2 * (int64_t)e->T * e->K;
    const int64_t sizes[] = {k_moe_expert_scratch(e->T, e->K, e->E, e->Kin), lists, lists + 6 * (e->Kin + 200)};
    for (int i = 0; i < 3; i++)
        for (int nth = 1; nth <= 3; nth++) {
            k_call c = experts_call(e, nth, sizes[i]);
            memset(e->out, 0x55, (size_t)n * 4);
            moe_expert_cpu(&c);
            int64_t d = vec_diff(e->out, want, n);
            if (d != n) fail_msg("T %d per %d nth %d scratch %d: element %d", e->T, e->per, nth, (int)sizes[i], (int)d);
        }
    free(want);
}

static void expert_products(void **state) {
    (void)state;
    uint64_t seed = 21;
    static const int32_t Ts[] = {1, 2, 5, 19, 40};
    for (int i = 0; i < 5; i++)
        for (int32_t per = 0; per < 2; per++)
            for (int skewed = 0; skewed < 2; skewed++) {
                experts e = experts_new(Ts[i], 3, 11, i & 1 ? K_T_F32 : K_T_Q8_0, per, 96 + 32 * i, 21, skewed, &seed);
                e.lv.act = skewed;
                equals_statement(&e);
                if (i == 2) { /* wild ids and one expert twice: a row of NaN, two equal slots */
                    e.ids[0] = -1, e.ids[4] = 11, e.ids[5] = INT32_MIN, e.ids[7] = INT32_MAX, e.ids[9] = e.ids[10];
                    equals_statement(&e);
                }
                experts_free(&e);
            }
    experts e = experts_new(64, 4, 9, K_T_Q8_0, 0, 256, 70, 1, &seed); /* enough for threads */
    equals_statement(&e);
    /* twin: one id changed is another row */
    float *want = experts_statement(&e);
    e.ids[17] = (e.ids[17] + 1) % 9;
    k_call c = experts_call(&e, 2, k_moe_expert_scratch(64, 4, 9, 256));
    moe_expert_cpu(&c);
    assert_int_equal(vec_diff(e.out, want, 64 * 4 * 70) / 70, 17);
    free(want);
    experts_free(&e);
}

/* A token's rows know nothing of the others in the tile. */
static void grouping(void **state) {
    (void)state;
    uint64_t seed = 22;
    experts e = experts_new(24, 3, 6, K_T_Q8_0, 1, 128, 40, 1, &seed);
    k_call c = experts_call(&e, 1, k_moe_expert_scratch(24, 3, 6, 128));
    moe_expert_cpu(&c);
    float one[120];
    for (int32_t t = 0; t < 24; t++) {
        k_call o = c;
        o.T = 1, o.out = one, o.in[0] = e.x + t * 3 * 128, o.in_i[1] = e.ids + t * 3;
        moe_expert_cpu(&o);
        assert_int_equal(vec_diff(one, e.out + t * 120, 120), 120);
    }
    experts_free(&e);
}

/* ---- router ---- */

static void router(void **state) {
    (void)state;
    uint64_t seed = 23;
    enum { T = 30, E = 77, K = 6 };
    float logits[T * E], w[T * K], scratch[3 * 3 * E], e[E];
    int32_t ids[T * K];
    for (int i = 0; i < T * E; i++) logits[i] = 4 * vec_gauss(&seed);
    for (int act = 0; act < 2; act++)
        for (int renorm = 0; renorm < 2; renorm++)
            for (int nth = 1; nth <= 3; nth += 2) {
                k_levers lv = {.act = act};
                k_dims d = {.renorm = renorm};
                k_call c = {.T = T, .cols = K, .d = &d, .lv = &lv, .scratch = scratch, .scratch_n = 3 * E, .nth = nth};
                c.in[0] = logits, c.in_cols[0] = E, c.out_i = ids;
                moe_ids_cpu(&c);
                c.out = w, c.in_i[1] = ids, c.in_cols[1] = K;
                moe_weights_cpu(&c);
                for (int t = 0; t < T; t++) {
                    float most = -INFINITY, p[K], kept = 0;
                    for (int i = 0; i < E; i++) most = fmaxf(most, logits[t * E + i]);
                    for (int i = 0; i < E; i++) e[i] = k_exp(logits[t * E + i] - most);
                    float sum = k_lanes32_sum(e, E);
                    double exact = 0, all = 0;
                    for (int k = 0; k < K; k++) p[k] = e[ids[t * K + k]] / sum, kept += p[k];
                    for (int i = 0; i < E; i++) all += exp((double)logits[t * E + i]);
                    for (int k = 0; k < K; k++) exact += exp((double)logits[t * E + ids[t * K + k]]);
                    for (int k = 0; k < K; k++) {
                        float got = w[t * K + k];
                        assert_true(got == k_rd(renorm ? p[k] / kept : p[k], act));
                        assert_true(k == 0 || logits[t * E + ids[t * K + k]] <= logits[t * E + ids[t * K + k - 1]]);
                        double real = exp((double)logits[t * E + ids[t * K + k]]) / (renorm ? exact : all);
                        assert_true(fabs((double)got - real) <= real * (act ? 0x1p-8 : 1e-6));
                    }
                }
            }
}

/* A row with a NaN or an infinity has no expert and no weight, and no other row knows of it. */
static void fails_closed(void **state) {
    (void)state;
    uint64_t seed = 25;
    enum { T = 9, E = 77, K = 6 };
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e38f};
    float logits[T * E], w[T * K], was_w[T * K], scratch[3 * E];
    int32_t ids[T * K], was[T * K];
    for (int i = 0; i < T * E; i++) logits[i] = 4 * vec_gauss(&seed);
    k_levers lv = {.act = 0};
    k_dims d = {.renorm = 1};
    k_call c = {.T = T, .cols = K, .d = &d, .lv = &lv, .scratch = scratch, .scratch_n = 3 * E, .nth = 1};
    k_call v = c;
    c.in[0] = v.in[0] = logits, c.in_cols[0] = v.in_cols[0] = E, c.out_i = ids;
    v.out = w, v.in_i[1] = ids, v.in_cols[1] = K;
    for (int b = 0; b < 4; b++)
        for (lv.tie = K_TIE_LOWEST; lv.tie <= K_TIE_STL; lv.tie++)
            for (int at = 3 * E; at < 4 * E; at += 19) {
                float kept = logits[at];
                moe_ids_cpu(&c), moe_weights_cpu(&v);
                memcpy(was, ids, sizeof was), memcpy(was_w, w, sizeof was_w);
                logits[at] = bad[b];
                moe_ids_cpu(&c), moe_weights_cpu(&v);
                for (int i = 0; i < T * K; i++) {
                    int closed = i / K == 3 && b < 3; /* twin: the largest of numbers is one */
                    assert_int_equal(ids[i] == -1, closed);
                    assert_int_equal(isnan(w[i]), closed);
                    if (i / K != 3) assert_true(ids[i] == was[i] && w[i] == was_w[i]);
                }
                assert_true(b < 3 || ids[3 * K] == at % E);
                memcpy(ids, was, sizeof was); /* nor do ids from elsewhere open it */
                moe_weights_cpu(&v);
                for (int i = 0; b < 3 && i < T * K; i++) assert_int_equal(isnan(w[i]), i / K == 3);
                logits[at] = kept;
            }
    moe_ids_cpu(&c);
    ids[3 * K] = E; /* an id that is none: with renorm the sum it enters is none either */
    moe_weights_cpu(&v);
    for (int i = 0; i < T * K; i++) assert_int_equal(isnan(w[i]), i / K == 3);
    lv.renorm = K_RENORM_OFF;
    moe_weights_cpu(&v);
    for (int i = 0; i < T * K; i++) assert_int_equal(isnan(w[i]), i == 3 * K);
}

/* Levers moe.renorm and moe.softmax, and what they leave alone. */
static void router_levers(void **state) {
    (void)state;
    uint64_t seed = 26;
    enum { T = 20, E = 77, K = 6 };
    float logits[T * E], w[T * K], scratch[3 * E], e[E];
    int32_t ids[T * K];
    int coarse = 0;
    for (int i = 0; i < T * E; i++) logits[i] = k_round_bf16(2 * vec_gauss(&seed));
    for (int bits = 0; bits < 24; bits++) {
        k_levers lv = {.act = bits & 1, .softmax = bits >> 1 & 1, .renorm = bits / 8};
        k_dims d = {.renorm = bits >> 2 & 1};
        k_call c = {.T = T, .cols = K, .d = &d, .lv = &lv, .scratch = scratch, .scratch_n = 3 * E, .nth = 1};
        c.in[0] = logits, c.in_cols[0] = E, c.out_i = ids;
        moe_ids_cpu(&c);
        c.out = w, c.in_i[1] = ids, c.in_cols[1] = K;
        moe_weights_cpu(&c);
        int divide = lv.renorm == K_RENORM_FILE ? d.renorm : lv.renorm == K_RENORM_ON;
        for (int t = 0; t < T; t++) {
            float most = -INFINITY, p[E], kept = 0, want[K];
            for (int i = 0; i < E; i++) most = fmaxf(most, logits[t * E + i]);
            for (int i = 0; i < E; i++) e[i] = k_exp(logits[t * E + i] - most);
            float sum = k_lanes32_sum(e, E);
            for (int i = 0; i < E; i++) p[i] = lv.softmax ? k_round_bf16(e[i] / sum) : e[i] / sum;
            k_topk(p, E, K, K_TIE_LOWEST, (int32_t *)(void *)want, scratch);
            assert_memory_equal(want, ids + t * K, sizeof want);
            for (int k = 0; k < K; k++) kept += p[ids[t * K + k]];
            kept = lv.softmax ? k_round_bf16(kept) : kept;
            for (int k = 0; k < K; k++) {
                float x = p[ids[t * K + k]];
                x = divide ? x / kept : x;
                x = lv.softmax || lv.act ? k_round_bf16(x) : x;
                assert_int_equal(k_f32_bits(w[t * K + k]), k_f32_bits(x));
                coarse += lv.softmax && lv.act && divide && x != k_round_bf16(e[ids[t * K + k]] / sum / kept);
            }
        }
    }
    assert_true(coarse > 10); /* the twin: a softmax in f32 is another */
}

/* ---- sums over experts ---- */

static void combine(void **state) {
    (void)state;
    uint64_t seed = 24;
    enum { T = 7, K = 5, D = 33 };
    float down[T * K * D], w[T * K], y[T * D], scratch[2 * K];
    int32_t ids[T * K];
    for (int i = 0; i < T * K * D; i++) down[i] = k_round_bf16(vec_gauss(&seed));
    for (int i = 0; i < T * K; i++) w[i] = k_round_bf16(fabsf(vec_uniform(&seed)));
    choose(ids, T, K, 40, 0, &seed);
    int differ = 0;
    for (int act = 0; act < 2; act++)
        for (int rule = 0; rule < 2; rule++) {
            k_levers lv = {.act = act, .combine = rule};
            k_call c = {.T = T, .cols = D, .out = y, .lv = &lv, .scratch = scratch, .scratch_n = K, .nth = 2};
            c.in[0] = down, c.in_cols[0] = K * D, c.in[1] = w, c.in_cols[1] = K, c.in_i[2] = ids, c.in_cols[2] = K;
            moe_routed_cpu(&c);
            for (int t = 0; t < T; t++)
                for (int i = 0; i < D; i++) {
                    float acc = 0, other = 0;
                    for (int e = 0; e < 40; e++) /* ascending id */
                        for (int k = 0; k < K; k++)
                            if (ids[t * K + k] == e)
                                acc = k_rd(acc + k_rd(down[(t * K + k) * D + i] * w[t * K + k], act), act);
                    for (int k = 0; k < K; k++) other += k_rd(down[(t * K + k) * D + i] * w[t * K + k], act);
                    other = k_rd(other, act);
                    assert_int_equal(k_f32_bits(y[t * D + i]), k_f32_bits(rule ? acc : other));
                    differ += acc != other;
                }
        }
    assert_true(differ > 100); /* twin: the rules are not the same */
    /* -0 everywhere still adds up to +0: accumulators start there */
    for (int i = 0; i < T * K * D; i++) down[i] = -0.0f;
    k_levers lv = {.act = 1, .combine = K_COMBINE_EXPERTS};
    k_call c = {.T = T, .cols = D, .out = y, .lv = &lv, .scratch = scratch, .scratch_n = K, .nth = 1};
    c.in[0] = down, c.in_cols[0] = K * D, c.in[1] = w, c.in_cols[1] = K, c.in_i[2] = ids, c.in_cols[2] = K;
    moe_routed_cpu(&c);
    for (int i = 0; i < T * D; i++) assert_int_equal(k_f32_bits(y[i]), 0);
}

/* ---- bands ---- */

static void within(const char *what, double err2, k_band b, double lo, double hi) {
    print_message("%s: error %.3f of rms, %.4f of hard\n", what, sqrt(err2 / b.rms2), sqrt(err2 / b.hard2));
    if (!(err2 <= b.hard2)) fail_msg("%s: the error exceeds its hard bound", what);
    double r = sqrt(err2 / b.rms2);
    if (!(r >= lo && r <= hi)) fail_msg("%s: rms is off: %.3f", what, r);
}

static void expert_band(void **state) {
    (void)state;
    uint64_t seed = 31;
    for (int32_t act = 0; act < 2; act++) {
        experts e = experts_new(6, 3, 5, K_T_F32, 1, 640, 64, 0, &seed);
        e.lv.act = act;
        k_call c = experts_call(&e, 2, k_moe_expert_scratch(6, 3, 5, 640));
        moe_expert_cpu(&c);
        double err2 = 0;
        for (int64_t s = 0; s < 18; s++)
            for (int64_t o = 0; o < 64; o++) {
                const float *w = (const float *)e.w[e.ids[s]].data + o * 640, *x = e.x + s * 640;
                long double y = 0;
                for (int i = 0; i < 640; i++) y += (long double)w[i] * (long double)x[i];
                err2 += pow((double)e.out[s * 64 + o] - (double)y, 2);
            }
        k_band b = {0, 0}, again = {0, 0};
        moe_expert_band(&c, &b);
        c.nth = 1;
        moe_expert_band(&c, &again);
        assert_memory_equal(&b, &again, sizeof b);
        within("moe_expert", err2, b, 1 / 1.3, 1.3);
        experts_free(&e);
    }
}

static void router_band(void **state) {
    (void)state;
    uint64_t seed = 32;
    enum { TOK = 64, EX = 512, TOP = 10 };
    float *logits = need(TOK * EX * 4), w[TOK * TOP], scratch[3 * EX];
    int32_t ids[TOK * TOP];
    for (int i = 0; i < TOK * EX; i++) logits[i] = 2 * vec_gauss(&seed);
    for (int act = 0; act < 2; act++)
        for (int bits = 0; bits < 4; bits++) {
            int renorm = bits & 1;
            k_levers lv = {.act = act, .softmax = bits >> 1, .renorm = act ? K_RENORM_FILE : 1 + !renorm};
            k_dims d = {.renorm = act ? renorm : !renorm}; /* the lever, where there is one, has the last word */
            k_call c = {.T = TOK, .cols = TOP, .d = &d, .lv = &lv, .scratch = scratch, .scratch_n = 3 * EX, .nth = 1};
            c.in[0] = logits, c.in_cols[0] = EX, c.out_i = ids;
            moe_ids_cpu(&c);
            c.out = w, c.in_i[1] = ids, c.in_cols[1] = TOP;
            moe_weights_cpu(&c);
            double err2 = 0;
            for (int t = 0; t < TOK; t++) {
                double sum = 0;
                for (int i = 0; i < (renorm ? TOP : EX); i++)
                    sum += exp((double)logits[t * EX + (renorm ? ids[t * TOP + i] : i)]);
                for (int k = 0; k < TOP; k++)
                    err2 += pow((double)w[t * TOP + k] - exp((double)logits[t * EX + ids[t * TOP + k]]) / sum, 2);
            }
            k_band b = {0, 0};
            moe_weights_band(&c, &b);
            within("moe_weights", err2, b, 0.5, 1.5);
        }
    free(logits);
}

static void sum_bands(void **state) {
    (void)state;
    uint64_t seed = 33;
    enum { TOK = 20, TOP = 10, W = 200 };
    float *down = need(TOK * TOP * W * 4), w[TOK * TOP], *y = need(TOK * W * 4), *z = need(TOK * W * 4), scratch[TOP];
    float gate[TOK];
    int32_t ids[TOK * TOP];
    choose(ids, TOK, TOP, 512, 0, &seed);
    for (int act = 0; act < 2; act++)
        for (int rule = 0; rule < 2; rule++) {
            for (int i = 0; i < TOK * TOP * W; i++) down[i] = k_rd(vec_gauss(&seed), act);
            for (int i = 0; i < TOK * TOP; i++) w[i] = k_rd(fabsf(vec_uniform(&seed)), act);
            k_levers lv = {.act = act, .combine = rule};
            k_call c = {.T = TOK, .cols = W, .out = y, .lv = &lv, .scratch = scratch, .scratch_n = TOP, .nth = 1};
            c.in[0] = down, c.in_cols[0] = TOP * W, c.in[1] = w, c.in_cols[1] = TOP, c.in_i[2] = ids;
            moe_routed_cpu(&c);
            double err2 = 0;
            for (int i = 0; i < TOK * W; i++) {
                double sum = 0;
                for (int k = 0; k < TOP; k++)
                    sum += (double)down[(i / W * TOP + k) * W + i % W] * (double)w[i / W * TOP + k];
                err2 += pow((double)y[i] - sum, 2);
            }
            k_band b = {0, 0};
            moe_routed_band(&c, &b);
            within("moe_routed", err2, b, 1 / 1.3, 1.3);
            for (int t = 0; t < TOK; t++) gate[t] = k_rd(vec_gauss(&seed), act);
            k_call o = {.T = TOK, .cols = W, .out = z, .lv = &lv, .nth = 1};
            o.in[0] = y, o.in[1] = down, o.in[2] = gate;
            for (lv.sgate = K_SGATE_ON; lv.sgate <= K_SGATE_OFF; lv.sgate++) {
                moe_out_cpu(&o);
                err2 = 0;
                for (int i = 0; i < TOK * W; i++) {
                    double g = lv.sgate == K_SGATE_OFF ? 1 : 1 / (1 + exp(-(double)gate[i / W]));
                    err2 += pow((double)z[i] - (double)y[i] - g * (double)down[i], 2);
                    if (lv.sgate == K_SGATE_OFF) assert_true(z[i] == k_rd(y[i] + down[i], act));
                }
                b = (k_band){0, 0};
                moe_out_band(&o, &b);
                within("moe_out", err2, b, 1 / 1.3, 1.3);
            }
        }
    free(down);
    free(y);
    free(z);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fails_closed), cmocka_unit_test(router_levers), cmocka_unit_test(expert_products),
        cmocka_unit_test(grouping),     cmocka_unit_test(router),        cmocka_unit_test(combine),
        cmocka_unit_test(expert_band),  cmocka_unit_test(router_band),   cmocka_unit_test(sum_bands),
    };
    return cmocka_run_group_tests_name("moe", tests, NULL, NULL);
}
