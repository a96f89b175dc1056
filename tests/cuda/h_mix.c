#include "tests/cuda/h_mix.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/matmul.h"
#include "kernels/ops.h"
#include "kernels/round.h"
#include "lib/io.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_table.h"

#define FIXTURE "tests/golden/moe-block"

const k_levers hm_HF = {.act = K_ACT_BF16, .tie = K_TIE_TORCH, .combine = K_COMBINE_EXPERTS};
h_block hm_B;
int hm_emulated;
k_dev *hm_dev;
int64_t hm_compared;

static q4x_map file = {.fd = -1};

int hm_open(void **state) {
    q4x_map config = {.fd = -1};
    q4x_err err = {0};
    (void)state;
    hm_dev = hp_device(&hm_emulated);
    if (q4x_map_open(FIXTURE "/frozen_config.json", &config, &err) ||
        q4x_map_open(FIXTURE "/moe-golden.safetensors", &file, &err) ||
        h_block_open(config.data, config.size, file.data, file.size, &hm_B, &err)) {
        print_error("%s\n", err.msg);
        return -1;
    }
    q4x_map_close(&config);
    return 0;
}

int hm_close(void **state) {
    (void)state;
    h_table();
    print_message("%lld values compared with the host by bits\n", (long long)hm_compared);
    h_block_close(&hm_B);
    q4x_map_close(&file);
    hp_close();
    return 0;
}

static int64_t unequal(const float *a, const float *b, int64_t n) {
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) bad += !(isnan(a[i]) && isnan(b[i])) && k_f32_bits(a[i]) != k_f32_bits(b[i]);
    return bad;
}

void *hm_run(k_op op, k_call *c) {
    static const int64_t no_par[K_MAXW];
    const int64_t n = (int64_t)c->T * c->cols;
    float *got = h_need(n, sizeof *got);
    int64_t rows;
    int code = hp_run(k_ops[op].name, op, c, no_par, got, NULL, &rows);
    if (code) fail_msg("%s: %s", k_ops[op].name, k_dev_text(code));
    if (op == K_OP_matmul && k_gemm_of(c) != K_BY_OWN) return got;
    float *host = h_need(n, sizeof *host);
    c->out = host;
    k_ops[op].cpu(c);
    const int64_t bad = unequal(got, host, n);
    if (bad) fail_msg("%s, T=%d: %lld of %lld differ", k_ops[op].name, c->T, (long long)bad, (long long)n);
    hm_compared += n;
    free(host);
    return got;
}

float *hm_product(const k_levers *lv, const k_weight *w, const float *x, int32_t T, int32_t epi) {
    k_call c = h_block_call(&hm_B, lv, T, w->rows, NULL);
    c.in[0] = x, c.in_cols[0] = w->cols, c.w[0] = w, c.nw[0] = 1, c.epi = epi;
    return hm_run(K_OP_matmul, &c);
}

float *hm_swiglu(const k_levers *lv, const float *g, const float *u, int32_t T, int64_t cols) {
    k_call c = h_block_call(&hm_B, lv, T, cols, NULL);
    c.in[0] = g, c.in[1] = u, c.in_cols[0] = c.in_cols[1] = cols;
    return hm_run(K_OP_swiglu, &c);
}

int32_t *hm_ids(const k_levers *lv, const float *logits, int32_t T) {
    k_call c = h_block_call(&hm_B, lv, T, hm_B.m.d.K, NULL);
    c.in[0] = logits, c.in_cols[0] = hm_B.m.d.E;
    return hm_run(K_OP_moe_ids, &c);
}

float *hm_weights(const k_levers *lv, const float *logits, const int32_t *ids, int32_t T) {
    k_call c = h_block_call(&hm_B, lv, T, hm_B.m.d.K, NULL);
    c.in[0] = logits, c.in_cols[0] = hm_B.m.d.E, c.in_i[1] = ids, c.in_cols[1] = hm_B.m.d.K;
    return hm_run(K_OP_moe_weights, &c);
}

float *hm_routed(const k_levers *lv, const float *down, const float *w, const int32_t *ids, int32_t T) {
    k_call c = h_block_call(&hm_B, lv, T, hm_B.m.d.D, NULL);
    c.in[0] = down, c.in_cols[0] = (int64_t)hm_B.m.d.K * hm_B.m.d.D;
    c.in[1] = w, c.in_i[2] = ids, c.in_cols[1] = c.in_cols[2] = hm_B.m.d.K;
    return hm_run(K_OP_moe_routed, &c);
}

float *hm_out(const k_levers *lv, const float *routed, const float *shared, const float *sgate, int32_t T) {
    k_call c = h_block_call(&hm_B, lv, T, hm_B.m.d.D, NULL);
    c.in[0] = routed, c.in[1] = shared, c.in[2] = sgate;
    c.in_cols[0] = c.in_cols[1] = hm_B.m.d.D, c.in_cols[2] = 1;
    return hm_run(K_OP_moe_out, &c);
}

float *hm_shared(const k_levers *lv, const float *x, int32_t T, double **floor) {
    const k_dims *d = &hm_B.m.d;
    k_weight g = h_block_weight(&hm_B, H_SHARED_GATE), u = h_block_weight(&hm_B, H_SHARED_UP),
             down = h_block_weight(&hm_B, H_SHARED_DOWN);
    float *yg = hm_product(lv, &g, x, T, K_EPI_NONE), *yu = hm_product(lv, &u, x, T, K_EPI_NONE),
          *h = hm_swiglu(lv, yg, yu, T, d->Fs), *y = hm_product(lv, &down, h, T, K_EPI_NONE),
          *q = h_block_squares(&hm_B, hm_B.m.made[H_SHARED_DOWN], d->D, d->Fs, h, T);
    *floor = h_need((int64_t)T * d->D, sizeof **floor);
    for (int64_t i = 0; i < (int64_t)T * d->D; i++) (*floor)[i] = 2 * 0x1p-7 * sqrt((double)q[i]);
    free(yg), free(yu), free(h), free(q);
    return y;
}
