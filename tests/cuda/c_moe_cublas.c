/* The recorded mixture-of-experts block on a device, with products of ours (exact: the host's bits, h_mix.h) and of
 * cuBLAS: every quantity within a bound that is derived, never measured. A row gives the share of its bound that the
 * worst value uses. Where there is no cuBLAS its rows fail, unless --without-cublas is the first argument.
 *
 * a of a logit: what the order of its sum can move, k_gemm_bound(K) sum |w x| (matmul.h), K = 2560.
 *   product     unrounded, against the exact sum: a
 *   router      stored as bf16, against the recorded: 1 bf16 ulp + a + the recorded run's a (any f32 order: gamma(K))
 *   chain       routing weights by rank. With all logits of a row within d, the k-th largest and the sum over the
 *               largest K are within e^(+-d) too, whichever experts those are: a weight is within e^(2d) - 1.
 *               In f32, against those of exact logits: d = a, and what the softmax rounds. As stored, against the
 *               recorded: d with the logits' own ulp, and an ulp of the weight
 *   shared      1 bf16 ulp + 2 2^-7 sqrt(sum (h w)^2)
 *   combine     on stored operands: bits. On the shared gate's logit of our own: what its 1 ulp + 2 a becomes through
 *               sigmoid's slope (1/4) and three stores
 * The library is asked for more than 8 columns only: tokens of all cases are taken together, one of them alone nine
 * times, and on a GPU many. */
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
#include "kernels/ops.h"
#include "tests/cuda/h_mix.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_table.h"

/* Products: ours; the library's on bf16 tensor cores; its f32 (act=f32 makes it so; logits are stored alike). */
enum { EXACT, CUBLAS, CUBLAS_F32, ARMS };
static const char *const arm_name[ARMS] = {"exact", "cublas", "cublas f32"};
static int library = 1;

/* Is it there, and does it differ from the one before where only bf16 operands come? */
static int takes(int arm, int router) {
    return arm == EXACT || (library && (arm == CUBLAS || router));
}

static k_levers levers(int arm) {
    k_levers lv = hm_HF;
    lv.gemm = arm == EXACT ? K_GEMM_OWN : K_GEMM_CUBLAS;
    if (arm == CUBLAS_F32) lv.act = K_ACT_F32, lv.router = K_ROUTER_BF16;
    return lv;
}

/* ---- tokens ---- */

typedef h_moe_case batch; /* its tables are its own */

static void *rows_of(const void *from, void *to, int64_t bytes) {
    memcpy(to, from, (size_t)bytes);
    return (char *)to + bytes;
}

/* The tokens of cases c0 .. c1 - 1, `times` times, up to T of them. */
static batch batch_of(int c0, int c1, int times, int32_t T) {
    const k_dims *d = &hm_B.m.d;
    batch b = {.hidden = h_need(T * d->D, 4),
               .logits = h_need(T * d->E, 4),
               .weights = h_need(T * d->K, 4),
               .expert_out = h_need(T * d->D, 4),
               .shared_out = h_need(T * d->D, 4),
               .out = h_need(T * d->D, 4),
               .ids = h_need(T * d->K, 4)};
    for (int n = 0; n < times; n++)
        for (int c = c0; c < c1; c++) {
            const h_moe_case *k = &hm_B.m.c[c];
            for (int32_t t = 0; t < k->T && b.T < T; t++, b.T++) {
                const int64_t at = b.T;
                rows_of(k->hidden + (int64_t)t * d->D, b.hidden + at * d->D, 4 * d->D);
                rows_of(k->logits + t * d->E, b.logits + at * d->E, 4 * d->E);
                rows_of(k->weights + t * d->K, b.weights + at * d->K, 4 * d->K);
                rows_of(k->expert_out + (int64_t)t * d->D, b.expert_out + at * d->D, 4 * d->D);
                rows_of(k->shared_out + (int64_t)t * d->D, b.shared_out + at * d->D, 4 * d->D);
                rows_of(k->out + (int64_t)t * d->D, b.out + at * d->D, 4 * d->D);
                rows_of(k->ids + t * d->K, b.ids + at * d->K, 4 * d->K);
            }
        }
    return b;
}

static void drop(batch *b) {
    free(b->hidden), free(b->logits), free(b->weights), free(b->expert_out), free(b->shared_out), free(b->out);
    free(b->ids);
}

enum { ALL, ONE, MANY, BATCHES };
/* The emulator has not got the time for our own kernels on all of them. */
static batch batch_at(int arm, int which) {
    if (which == ONE) return batch_of(2, 3, 9, 9);
    if (which == MANY) return batch_of(0, H_MOE_CASES, 14, 512);
    return batch_of(0, H_MOE_CASES, 1, arm == EXACT && hm_emulated ? 12 : 37);
}
static int batches(void) {
    return hm_emulated ? MANY : BATCHES;
}

/* ---- exact sums ---- */

typedef struct {
    double *y, *mag; /* [T,rows]: sum w x, sum |w x| */
} sums;

static sums sums_of(int which, const float *x, int32_t T) {
    const k_weight w = h_block_weight(&hm_B, which);
    const uint16_t *h = w.data;
    sums s = {h_need(T * w.rows, sizeof(double)), h_need(T * w.rows, sizeof(double))};
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < w.rows; o++)
        for (int64_t t = 0; t < T; t++) {
            double y = 0, mag = 0; /* 2^-53 a step: far below what is asked */
            for (int64_t i = 0; i < w.cols; i++) {
                const double p = (double)k_f32_from_bf16(h[o * w.cols + i]) * (double)x[t * w.cols + i];
                y += p;
                mag += fabs(p);
            }
            s.y[t * w.rows + o] = y;
            s.mag[t * w.rows + o] = mag;
        }
    return s;
}
static void drop_sums(sums *s) {
    free(s->y), free(s->mag);
}

/* How this arm makes a product of T columns, and its a over sum |w x|. */
static double a_of(const k_levers *lv, const k_weight *w, int32_t T) {
    k_call c = {.T = T, .Tcall = T, .lv = lv};
    c.w[0] = w, c.in_cols[0] = w->cols;
    if (lv->gemm == K_GEMM_CUBLAS) assert_true(k_gemm_of(&c) == (lv->act == K_ACT_BF16 ? K_BY_BF16 : K_BY_F32));
    return k_gemm_bound(k_gemm_of(&c), w->cols);
}
/* Whoever made the recorded run summed f32 products in some order. */
static double recorded_a(int64_t K) {
    return k_gamma((double)K);
}

/* One more value, `off` of which `allowed` may be used. */
static void judge(h_tally *t, double off, double allowed, int same) {
    const double share = off == 0 ? 0 : off / allowed;
    if (!(share <= t->worst)) t->worst = share == share ? share : HUGE_VAL;
    t->same += same;
    t->n++;
}

static int same_bits(float a, float b) {
    return k_f32_bits(a) == k_f32_bits(b);
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* A row "ARM: WHAT": the share of its bound, which is at most `bound` in the values' own unit. */
static int row(int arm, const char *what, double bound, const h_tally *t) {
    char text[120];
    snprintf(text, sizeof text, "%s: %s (to %.2g)", arm_name[arm], what, bound);
    return h_row(text, t, 1);
}
static void control(int arm, const char *what, const h_tally *t, double bound) {
    char text[120];
    snprintf(text, sizeof text, "%s control: %s", arm_name[arm], what);
    h_control(text, t, bound, 1);
}

/* ---- router ---- */

/* Logits against the exact sums, or against the recorded ones; most: the largest bound. */
static void products(const float *raw, const sums *s, double a, int64_t n, h_tally *t, double *most) {
    for (int64_t i = 0; i < n; i++) {
        judge(t, fabs((double)raw[i] - s->y[i]), a * s->mag[i], (double)raw[i] == s->y[i]);
        *most = larger(*most, a * s->mag[i]);
    }
}
static void stored(const float *got, const float *want, const sums *s, double a, int64_t n, h_tally *t, double *most) {
    for (int64_t i = 0; i < n; i++) {
        const double allowed = h_bf16_ulp(want[i]) + a * s->mag[i];
        judge(t, fabs((double)got[i] - (double)want[i]), allowed, same_bits(got[i], want[i]));
        *most = larger(*most, allowed);
    }
}

static void router(void **state) {
    const k_weight gate = h_block_weight(&hm_B, H_GATE);
    (void)state;
    for (int arm = 0; arm < ARMS; arm++) {
        if (!takes(arm, 1)) continue;
        const k_levers lv = levers(arm);
        h_tally raw = {0}, logits = {0};
        hp_left(BATCHES - batches(), "batches of tokens");
        double raw_most = 0, most = 0;
        for (int n = 0; n < batches(); n++) {
            batch b = batch_at(arm, n);
            const double a = a_of(&lv, &gate, b.T);
            sums s = sums_of(H_GATE, b.hidden, b.T);
            float *y = hm_product(&lv, &gate, b.hidden, b.T, K_EPI_RAW),
                  *z = hm_product(&lv, &gate, b.hidden, b.T, K_EPI_ROUTER);
            products(y, &s, a, b.T * gate.rows, &raw, &raw_most);
            stored(z, b.logits, &s, a + recorded_a(gate.cols), b.T * gate.rows, &logits, &most);
            free(y), free(z), drop_sums(&s), drop(&b);
        }
        assert_true(row(arm, "router product, a", raw_most, &raw));
        assert_true(row(arm, "router logits, 1 ulp + a", most, &logits));
    }
}

/* ---- chain ---- */

/* The largest K of logits in descending order, as softmax weights that sum to 1. */
static void best_weights(const double *logit, double *w) {
    const int K = hm_B.m.d.K, E = hm_B.m.d.E;
    double sum = 0, last = HUGE_VAL;
    for (int k = 0, taken = 0; k < K; k++) { /* equal ones in turn */
        double best = -HUGE_VAL;
        int equal = 0;
        for (int e = 0; e < E; e++)
            if (logit[e] < last && logit[e] > best) best = logit[e];
        for (int e = 0; e < E; e++) equal += logit[e] == best;
        for (taken = 0; taken < equal && k < K; taken++, k++) w[k] = best;
        k--;
        last = best;
    }
    for (int k = K - 1; k >= 0; k--) sum += w[k] = exp(w[k] - w[0]);
    for (int k = 0; k < K; k++) w[k] /= sum;
}

/* What the f32 softmax can move of a weight, relatively: moe_band.c's terms, once for it and once for the sum. */
static double softmax_rounds(const double *logit) {
    double most = -HUGE_VAL, least = HUGE_VAL;
    for (int e = 0; e < hm_B.m.d.E; e++) most = larger(most, logit[e]), least = -larger(-least, -logit[e]);
    return 2 * K_U * (most - least + 2) + k_gamma(hm_B.m.d.K + 2) + k_lanes32_gamma(hm_B.m.d.E);
}

typedef struct {
    h_tally t;
    double most; /* the largest bound, relative */
} link;

static float *logits_of(const k_levers *how, const batch *b, int32_t router) {
    const k_weight gate = h_block_weight(&hm_B, H_GATE);
    k_levers lv = *how;
    lv.router = router;
    return hm_product(&lv, &gate, b->hidden, b->T, K_EPI_ROUTER);
}
static float *weights_on(const k_levers *how, const float *logits, int32_t T, int32_t act) {
    k_levers lv = *how;
    lv.act = act;
    int32_t *ids = hm_ids(&lv, logits, T);
    float *w = hm_weights(&lv, logits, ids, T);
    free(ids);
    return w;
}

/* Weights in f32 that follow from logits y in f32, against those of the exact logits. */
static void f32_chain(const k_levers *lv, const float *y, const batch *b, const sums *s, double a, link *l) {
    const int64_t E = hm_B.m.d.E, K = hm_B.m.d.K;
    double want[64];
    float *w = weights_on(lv, y, b->T, K_ACT_F32);
    for (int64_t t = 0; t < b->T; t++) {
        double d = 0;
        for (int64_t e = 0; e < E; e++) d = larger(d, a * s->mag[t * E + e]);
        const double rel = expm1(2 * d) + (1 + expm1(2 * d)) * softmax_rounds(s->y + t * E);
        best_weights(s->y + t * E, want);
        for (int64_t k = 0; k < K; k++)
            judge(&l->t, fabs((double)w[t * K + k] - want[k]), rel * want[k], (double)w[t * K + k] == want[k]);
        l->most = larger(l->most, rel);
    }
    free(w);
}

/* Weights as they are stored, against the recorded ones. */
static void stored_chain(const k_levers *lv, const float *y, const batch *b, const sums *s, double a, link *l) {
    const int64_t E = hm_B.m.d.E, K = hm_B.m.d.K;
    float *w = weights_on(lv, y, b->T, K_ACT_BF16);
    for (int64_t t = 0; t < b->T; t++) {
        double d = 0;
        for (int64_t e = t * E; e < (t + 1) * E; e++) d = larger(d, h_bf16_ulp(b->logits[e]) + a * s->mag[e]);
        const double rel = expm1(2 * d) + (1 + expm1(2 * d)) * 2 * softmax_rounds(s->y + t * E); /* both runs' */
        for (int64_t k = t * K; k < (t + 1) * K; k++)
            judge(&l->t, fabs((double)w[k] - (double)b->weights[k]),
                  rel * (double)b->weights[k] + h_bf16_ulp(b->weights[k]), same_bits(w[k], b->weights[k]));
        l->most = larger(l->most, rel);
    }
    free(w);
}

static void chain(void **state) {
    const k_weight gate = h_block_weight(&hm_B, H_GATE);
    (void)state;
    for (int arm = 0; arm < ARMS; arm++) {
        if (!takes(arm, 1)) continue;
        const k_levers lv = levers(arm);
        link plain = {.most = 0}, kept = {.most = 0}, renorm[2] = {{.most = 0}}, coarse = {.most = 0};
        for (int n = 0; n < batches(); n++) {
            batch b = batch_at(arm, n);
            sums s = sums_of(H_GATE, b.hidden, b.T);
            const double a = a_of(&lv, &gate, b.T), both = a + recorded_a(gate.cols);
            k_levers off = lv, bf16 = lv;
            off.renorm = K_RENORM_OFF, bf16.softmax = K_SOFTMAX_BF16;
            float *y = logits_of(&lv, &b, K_ROUTER_F32), *z = logits_of(&lv, &b, K_ROUTER_BF16);
            f32_chain(&lv, y, &b, &s, a, &plain);
            stored_chain(&lv, z, &b, &s, both, &kept);
            f32_chain(&off, y, &b, &s, a, &renorm[0]);
            stored_chain(&off, z, &b, &s, both, &renorm[1]);
            f32_chain(&bf16, y, &b, &s, a, &coarse);
            free(y), free(z), drop_sums(&s), drop(&b);
        }
        assert_true(row(arm, "chain in f32, e^(2a) - 1", plain.most, &plain.t));
        assert_true(row(arm, "chain, e^(2(ulp + a)) - 1 + ulp", kept.most, &kept.t));
        control(arm, "chain in f32, moe.renorm=off", &renorm[0].t, 1);
        control(arm, "chain, moe.renorm=off", &renorm[1].t, 1);
        /* The library's a is too large for this one: `controls` refuses it on stored logits. */
        if (arm == EXACT) control(arm, "chain in f32, moe.softmax=bf16", &coarse.t, 1);
    }
}

/* ---- shared branch, combine ---- */

static void shared(void **state) {
    (void)state;
    for (int arm = 0; arm < ARMS; arm++) {
        if (!takes(arm, 0)) continue;
        const k_levers lv = levers(arm);
        h_tally t = {0};
        double most = 0, *floor;
        for (int n = 0; n < batches(); n++) {
            batch b = batch_at(arm, n);
            float *y = hm_shared(&lv, b.hidden, b.T, &floor);
            h_ulps(&t, y, b.shared_out, floor, (int64_t)b.T * hm_B.m.d.D);
            for (int64_t i = 0; i < (int64_t)b.T * hm_B.m.d.D; i++)
                most = larger(most, h_bf16_ulp(b.shared_out[i]) + floor[i]);
            free(y), free(floor), drop(&b);
        }
        assert_true(row(arm, "shared, 1 ulp + 2 2^-7 sqrt(sum (h w)^2)", most, &t));
    }
}

/* Outputs on a gate logit that is within 1 ulp + a of `gate`, whose outputs are b->out. */
static void own_gate(const batch *b, const float *y, const float *gate, const sums *s, double a, h_tally *t,
                     double *most) {
    const int64_t D = hm_B.m.d.D;
    for (int64_t i = 0; i < b->T * D; i++) {
        const double z = (double)gate[i / D], d = h_bf16_ulp(gate[i / D]) + a * s->mag[i / D], g = 1 / (1 + exp(-z)),
                     x = fabs((double)b->shared_out[i]), part = x * (d / 4 + h_bf16_ulp((float)g)),
                     allowed = part + h_bf16_ulp((float)(g * x)) + h_bf16_ulp(b->out[i]);
        judge(t, fabs((double)y[i] - (double)b->out[i]), allowed, same_bits(y[i], b->out[i]));
        *most = larger(*most, allowed);
    }
}

static void combine(void **state) {
    const k_weight gate = h_block_weight(&hm_B, H_SHARED_EXPERT_GATE);
    (void)state;
    for (int arm = 0; arm < ARMS; arm++) {
        if (!takes(arm, 0)) continue;
        k_levers lv = levers(arm), open = lv;
        h_tally kept = {0}, own = {0}, off = {0}, off_own = {0};
        double most = 0;
        open.sgate = K_SGATE_OFF;
        for (int n = 0; n < batches(); n++) {
            batch b = batch_at(arm, n);
            const int64_t outs = (int64_t)b.T * hm_B.m.d.D;
            const double a = a_of(&lv, &gate, b.T) + k_gemm_bound(K_BY_OWN, gate.cols);
            sums s = sums_of(H_SHARED_EXPERT_GATE, b.hidden, b.T);
            float *z = h_block_product(&hm_B, &hm_HF, &gate, b.hidden, b.T, K_EPI_NONE),
                  *mine = hm_product(&lv, &gate, b.hidden, b.T, K_EPI_NONE),
                  *y = hm_out(&lv, b.expert_out, b.shared_out, z, b.T),
                  *on_mine = hm_out(&lv, b.expert_out, b.shared_out, mine, b.T),
                  *no = hm_out(&open, b.expert_out, b.shared_out, mine, b.T);
            h_steps(&kept, y, b.out, outs);
            own_gate(&b, on_mine, z, &s, a, &own, &most);
            h_steps(&off, no, b.out, outs);
            own_gate(&b, no, z, &s, a, &off_own, &most);
            free(z), free(mine), free(y), free(on_mine), free(no), drop_sums(&s), drop(&b);
        }
        char text[80];
        snprintf(text, sizeof text, "%s: combine on stored operands, bf16 ulp", arm_name[arm]);
        assert_true(h_row(text, &kept, 0));
        assert_true(row(arm, "combine on its own gate, 3 stores + 2a", most, &own));
        control(arm, "combine, stored operands, moe.sgate=off", &off, 0);
        control(arm, "combine on its own gate, moe.sgate=off", &off_own, 1);
    }
}

/* ---- what ports get wrong first, on stored logits ---- */

static void controls(void **state) {
    (void)state;
    for (int arm = 0; arm < ARMS; arm++) {
        if (!takes(arm, 0)) continue;
        const k_levers lv = levers(arm);
        k_levers off = lv, bf16 = lv;
        h_tally t[3] = {{0}};
        batch b = batch_at(arm, ALL);
        off.renorm = K_RENORM_OFF, bf16.softmax = K_SOFTMAX_BF16;
        const k_levers *const how[] = {&lv, &off, &bf16};
        for (int i = 0; i < 3; i++) {
            float *w = hm_weights(how[i], b.logits, b.ids, b.T);
            h_steps(&t[i], w, b.weights, (int64_t)b.T * hm_B.m.d.K);
            free(w);
        }
        char text[80];
        snprintf(text, sizeof text, "%s: weights on stored logits, bf16 ulp", arm_name[arm]);
        assert_true(h_row(text, &t[0], 0));
        control(arm, "weights, stored logits, moe.renorm=off", &t[1], 0);
        control(arm, "weights, stored logits, moe.softmax=bf16", &t[2], 0);
        drop(&b);
    }
}

/* ---- the rows see ---- */

/* A product that is off by twice its bound in one place is refused by all rows that it goes into: one weight is moved
 * for the device alone. */
static void twin(void **state) {
    const int64_t D = hm_B.m.d.D, E = hm_B.m.d.E;
    const int32_t row_at = 77;
    const k_weight gate = h_block_weight(&hm_B, H_GATE);
    uint16_t *moved = h_need(E * D, sizeof *moved);
    (void)state;
    for (int arm = 0; arm < ARMS; arm++) {
        if (!takes(arm, 1)) continue;
        const k_levers lv = levers(arm);
        batch b = batch_at(arm, ONE);
        sums s = sums_of(H_GATE, b.hidden, b.T);
        const double a = a_of(&lv, &gate, b.T), both = a + recorded_a(D);
        k_weight w = gate;
        int64_t i = 0;
        for (int64_t k = 0; k < D; k++)
            if (fabsf(b.hidden[k]) > fabsf(b.hidden[i])) i = k;
        const double need[2] = {a * s.mag[row_at], both * s.mag[row_at] + h_bf16_ulp(b.logits[row_at])};
        memcpy(moved, gate.data, (size_t)(E * D) * sizeof *moved);
        w.data = moved;
        for (int k = 0; k < 2; k++) {
            h_tally t = {0};
            double most = 0;
            const float was = k_f32_from_bf16(((const uint16_t *)gate.data)[row_at * D + i]);
            moved[row_at * D + i] = k_bf16_from_f32((float)((double)was + 3 * need[k] / (double)b.hidden[i]));
            float *y = hm_product(&lv, &w, b.hidden, b.T, k ? K_EPI_ROUTER : K_EPI_RAW);
            if (k)
                stored(y, b.logits, &s, both, b.T * E, &t, &most);
            else
                products(y, &s, a, b.T * E, &t, &most);
            control(arm, k ? "router logits, one off by 3 bounds" : "router product, one off by 3 bounds", &t, 1);
            assert_true(t.worst < 10);
            y[5] = NAN;
            t.worst = 0;
            stored(y, b.logits, &s, both, b.T * E, &t, &most);
            assert_false(t.worst < HUGE_VAL);
            free(y);
        }
        drop_sums(&s), drop(&b);
    }
    free(moved);
}

static int open_all(void **state) {
    char why[400];
    const int rc = hm_open(state);
    if (rc || !library) {
        print_message("cuBLAS: left out\n");
        return rc;
    }
    if (k_dev_gemm(hm_dev, why, sizeof why)) {
        print_error("%s\n", why);
        return -1;
    }
    print_message("cuBLAS %d\n", k_dev_gemm_version(hm_dev));
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(router),  cmocka_unit_test(chain),    cmocka_unit_test(shared),
                                       cmocka_unit_test(combine), cmocka_unit_test(controls), cmocka_unit_test(twin)};
    if (argc > 1 && !strcmp(argv[1], "--without-cublas")) library = 0;
    return cmocka_run_group_tests_name("moe_cublas", tests, open_all, hm_close);
}
