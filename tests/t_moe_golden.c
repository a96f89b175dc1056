/* t_moe_golden.c: the mixture of experts against recorded runs, every step from the file's own inputs. One block at the
 * released geometry: t_moe_block.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/arith.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/quant.h"
#include "tests/h_vec.h"

static void *need(size_t n) {
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}

typedef struct {
    int64_t same, all;
} share;

static void compare(const char *what, const float *got, const float *want, int64_t n, share *s) {
    double d2 = 0, w2 = 0;
    for (int64_t i = 0; i < n; i++) {
        s->same += k_f32_bits(got[i]) == k_f32_bits(want[i]);
        d2 += pow((double)got[i] - (double)want[i], 2), w2 += pow((double)want[i], 2);
    }
    s->all += n;
    if (!(d2 <= 1e-4 * w2 / 4)) fail_msg("%s: relative L2 %g", what, sqrt(d2 / w2)); /* bf16: half an ulp is 2e-3 */
}

static float *get(const vec_st *f, const char *layer, const char *name, int64_t *rows, int64_t *cols) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", layer, name);
    void *p = vec_st_get(f, key, rows, cols);
    if (!p) fail_msg("no %s", key);
    return p;
}

static k_weight weight(const vec_st *f, const char *key) {
    k_weight w;
    w.data = vec_st_raw(f, key, &w.rows, &w.cols, &w.type);
    if (!w.data) fail_msg("no %s", key);
    w.row_bytes = (size_t)w.cols * (size_t)k_quant_get(w.type)->bytes;
    return w;
}

static k_levers HF = {.act = K_ACT_BF16, .tie = K_TIE_TORCH, .combine = K_COMBINE_EXPERTS};
static const k_dims DIMS = {.N = 4, .renorm = 1};

static void product(const k_weight *w, const float *x, int64_t T, float *out) {
    k_call c = {.T = (int32_t)T, .cols = w->rows, .out = out, .d = &DIMS, .lv = &HF, .nth = 1};
    c.in[0] = x, c.in_cols[0] = w->cols, c.w[0] = w, c.nw[0] = 1;
    matmul_cpu(&c);
}

static void chosen(const k_weight *w, int32_t E, const float *x, int32_t per, const int32_t *ids, int64_t T, int64_t K,
                   float *out) {
    int64_t need_n = k_moe_expert_scratch(T, K, E, w->cols);
    float *scratch = need((size_t)(2 * need_n) * 4);
    k_call c = {.T = (int32_t)T, .cols = K * w->rows, .out = out, .per = per, .d = &DIMS, .lv = &HF, .nth = 2};
    c.in[0] = x, c.in_cols[0] = (per ? K : 1) * w->cols, c.in_i[1] = ids, c.in_cols[1] = K;
    c.w[0] = w, c.nw[0] = E, c.scratch = scratch, c.scratch_n = need_n;
    moe_expert_cpu(&c);
    free(scratch);
}

static void gated(float *g, const float *u, int64_t n) {
    for (int64_t i = 0; i < n; i++) g[i] = k_round_bf16(k_round_bf16(k_silu(g[i])) * u[i]);
}

/* gate, up, down of each expert; ids and weights given; out [T,D] routed. */
static void run_experts(const k_weight *const w[3], int32_t E, const float *x, const int32_t *ids, const float *weights,
                        int64_t T, int64_t K, float *out) {
    int64_t F = w[0]->rows, D = w[2]->rows;
    float *g = need((size_t)(T * K * F) * 4), *u = need((size_t)(T * K * F) * 4), *down = need((size_t)(T * K * D) * 4);
    float *order = need((size_t)K * 4);
    chosen(w[0], E, x, 0, ids, T, K, g);
    chosen(w[1], E, x, 0, ids, T, K, u);
    gated(g, u, T * K * F);
    chosen(w[2], E, g, 1, ids, T, K, down);
    k_call c = {.T = (int32_t)T, .cols = D, .out = out, .d = &DIMS, .lv = &HF, .nth = 1};
    c.in[0] = down, c.in_cols[0] = K * D, c.in[1] = weights, c.in_cols[1] = K, c.in_i[2] = ids, c.in_cols[2] = K;
    c.scratch = order, c.scratch_n = K;
    moe_routed_cpu(&c);
    free(g);
    free(u);
    free(down);
    free(order);
}

static void finish(const float *routed, const float *shared, const float *sgate, int64_t T, int64_t D, float *out) {
    k_call c = {.T = (int32_t)T, .cols = D, .out = out, .d = &DIMS, .lv = &HF, .nth = 1};
    c.in[0] = routed, c.in[1] = shared, c.in[2] = sgate;
    moe_out_cpu(&c);
}

static k_weight layer_weight(const vec_st *m, int layer, const char *rest) {
    char key[128];
    snprintf(key, sizeof key, "model.layers.%d.mlp.%s", layer, rest);
    return weight(m, key);
}

static void shared_expert(const k_weight w[3], const float *x, int64_t T, float *out) {
    float *g = need((size_t)(T * w[0].rows) * 4), *u = need((size_t)(T * w[0].rows) * 4);
    product(&w[0], x, T, g);
    product(&w[1], x, T, u);
    gated(g, u, T * w[0].rows);
    product(&w[2], g, T, out);
    free(g);
    free(u);
}

/* One layer of one forward, each tap from the recorded ones that it reads. */
static void layer_steps(const vec_st *f, const vec_st *m, int fw, int layer, int32_t E, share *s) {
    char at[32];
    int64_t T, D, K, n, one;
    snprintf(at, sizeof at, "f%d/L%02d", fw, layer);
    float *x = get(f, at, "mhc.mix", &T, &D), *logits = get(f, at, "moe.logits", &n, &one);
    int32_t *ids = (int32_t *)(void *)get(f, at, "moe.ids", &n, &K);
    float *wt = get(f, at, "moe.weights", &n, &K), *routed = get(f, at, "moe.routed", &n, &D);
    float *shared = get(f, at, "moe.shared", &n, &D), *sgate = get(f, at, "moe.sgate", &n, &one);
    float *moe = get(f, at, "moe", &n, &D);
    float *y = need((size_t)(T * (D > E ? D : E)) * 4), *scratch = need((size_t)E * 12);
    k_weight r = layer_weight(m, layer, "gate.weight"), sg = layer_weight(m, layer, "shared_expert_gate.weight");
    product(&r, x, T, y);
    compare("logits", y, logits, T * E, s);
    k_call c = {.T = (int32_t)T, .cols = K, .out = y, .d = &DIMS, .lv = &HF, .nth = 1, .scratch = scratch};
    c.in[0] = logits, c.in_cols[0] = E, c.in_i[1] = ids, c.in_cols[1] = K, c.scratch_n = 3 * E;
    moe_weights_cpu(&c);
    compare("weights", y, wt, T * K, s);
    product(&sg, x, T, y);
    compare("sgate", y, sgate, T, s);
    k_weight sh[3] = {layer_weight(m, layer, "shared_expert.gate_proj.weight"),
                      layer_weight(m, layer, "shared_expert.up_proj.weight"),
                      layer_weight(m, layer, "shared_expert.down_proj.weight")};
    shared_expert(sh, x, T, y);
    compare("shared", y, shared, T * D, s);
    static k_weight ex[3][64];
    static const char *const proj[3] = {"gate", "up", "down"};
    for (int32_t e = 0; e < E; e++)
        for (int p = 0; p < 3; p++) {
            char rest[64];
            snprintf(rest, sizeof rest, "experts.%d.%s_proj.weight", e, proj[p]);
            ex[p][e] = layer_weight(m, layer, rest);
        }
    const k_weight *const w[3] = {ex[0], ex[1], ex[2]};
    run_experts(w, E, x, ids, wt, T, K, y);
    compare("routed", y, routed, T * D, s);
    finish(routed, shared, sgate, T, D, y);
    compare("moe", y, moe, T * D, s);
    float *const owned[] = {x, logits, (float *)(void *)ids, wt, routed, shared, sgate, moe, y, scratch};
    for (int i = 0; i < 10; i++) free(owned[i]);
}

static share recorded(const char *dir, int layers, int32_t E) {
    char path[128];
    vec_st f, m;
    share s = {0, 0};
    snprintf(path, sizeof path, "%s/golden-bf16.safetensors", dir);
    if (access(path, R_OK) != 0) {
        print_message("skipped: no %s\n", path);
        skip();
    }
    assert_int_equal(vec_st_open(&f, path), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(vec_st_open(&m, path), 0);
    for (int fw = 0; fw < 3; fw++)
        for (int layer = 0; layer < layers; layer++) layer_steps(&f, &m, fw, layer, E, &s);
    print_message("%s: %lld of %lld elements equal by bits\n", dir, (long long)s.same, (long long)s.all);
    vec_st_close(&f);
    vec_st_close(&m);
    return s;
}

static int good(share s) {
    return (double)s.same >= 0.9995 * (double)s.all;
}

static void micro_a(void **state) {
    (void)state;
    assert_true(good(recorded("tests/golden/micro-a", 4, 8)));
    HF.combine = K_COMBINE_SLOTS; /* twin: these runs were not made so */
    share s = recorded("tests/golden/micro-a", 4, 8);
    HF.combine = K_COMBINE_EXPERTS;
    assert_false(good(s));
}

static void micro_b(void **state) {
    (void)state;
    assert_true(good(recorded("../shared/golden/micro-b", 8, 12)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(micro_a),
        cmocka_unit_test(micro_b),
    };
    return cmocka_run_group_tests_name("moe_golden", tests, NULL, NULL);
}
