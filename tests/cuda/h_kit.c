#include "tests/cuda/h_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "kernels/quant.h"
#include "kernels/round.h"
#include "tests/cuda/h_pair.h"

int hk_emulated;
h_rng hk_rng = {2026};
const int32_t hk_T[6] = {1, 5, 63, 64, 65, 512};
const int32_t hk_K[9] = {1, 31, 33, 96, 160, 320, 640, 2560, 10240};

void *hk_own(hk *k, size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    assert_true(k->nowned < 24);
    return k->owned[k->nowned++] = p;
}

hk hk_fresh(int32_t T, int32_t act) {
    hk k = {.lv.act = act, .d.eps = 1e-6f};
    k.c.T = k.c.Tcall = k.c.Tc = T;
    return k;
}

void hk_done(hk *k) {
    while (k->nowned) free(k->owned[--k->nowned]);
}

float *hk_values(hk *k, int64_t n, double amp, int wild) {
    static const uint32_t special[] = {0x7fc00000, 0xffc00001, 0x7f800000, 0xff800000, 0x00000001, 0x80000123,
                                       0x00000000, 0x80000000, 0x7f7fffff, 0x00800000, 0x33800000, 0xc2f00000,
                                       0x3f800000, 0xbf800000, 0x807fffff, 0x42b17218};
    float *x = hk_own(k, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t u = h_next(&hk_rng);
        x[i] = (float)(amp * ((double)(int32_t)(u >> 32) * 0x1p-30));
        if (wild && (u & 127) == 0) x[i] = k_bits_f32(special[u >> 7 & 15]);
        x[i] = k_rd(x[i], k->lv.act);
    }
    return x;
}

void hk_input(hk *k, int slot, int64_t cols, double amp, int wild) {
    k->c.in[slot] = hk_values(k, k->c.T * cols, amp, wild);
    k->c.in_cols[slot] = cols;
}

void hk_par(hk *k, int slot, int64_t n, double amp) {
    k->c.par[slot] = hk_values(k, n, amp, 0);
    k->par_n[slot] = n;
}

void hk_state(hk *k, int64_t cap, int64_t cols, double amp) {
    k->st = (k_state){.f = hk_values(k, cap * cols, amp, 0), .cols = cols, .cap = cap, .rows = cap};
    k->c.st[0] = &k->st;
}

int64_t hk_run(hk *k, k_op op, const char *note) {
    char what[160];
    snprintf(what, sizeof what, "%s T=%d act=%s %s", k_ops[op].name, k->c.T, k->lv.act ? "bf16" : "f32", note);
    k->c.d = &k->d;
    k->c.lv = &k->lv;
    if (k->st.f) k->c.st[0] = &k->st;
    int64_t bad = hp_differ(what, op, &k->c, k->par_n);
    hk_done(k);
    return bad;
}

/* Random bytes that decode to numbers which sums survive, as most do; zeros when none is found. */
static void block(const k_quant *q, uint8_t *b) {
    float v[256];
    for (int try = 0, good = 0; !good && try < 100; try++) {
        for (int i = 0; i < q->bytes; i++) b[i] = (uint8_t)h_next(&hk_rng);
        k_decode_plain(q->id, b, v, q->elems);
        good = 1;
        for (int i = 0; i < q->elems; i++) good &= fabsf(v[i]) < 1e12f;
        if (good) return;
    }
    memset(b, 0, (size_t)q->bytes);
}

void hk_weights(hk *k, int32_t type, int32_t n, int64_t rows, int64_t cols, int wild) {
    const k_quant *q = k_quant_get(type);
    const size_t row = (size_t)(cols / q->elems) * (size_t)q->bytes, all = (size_t)n * (size_t)rows * row;
    uint8_t *data = hk_own(k, all);
    if (type == K_T_F32)
        memcpy(data, hk_values(k, n * rows * cols, 1, 0), all);
    else if (wild)
        for (size_t i = 0; i < all; i++) data[i] = (uint8_t)h_next(&hk_rng);
    else
        for (size_t i = 0; i < all; i += (size_t)q->bytes) block(q, data + i);
    k->w = hk_own(k, (size_t)n * sizeof *k->w);
    for (int32_t e = 0; e < n; e++) k->w[e] = (k_weight){data + (size_t)e * (size_t)rows * row, rows, cols, row, type};
    k->c.w[0] = k->w;
    k->c.nw[0] = n;
}

int32_t *hk_some_ids(hk *k, int64_t n, int32_t E) {
    int32_t *ids = hk_own(k, (size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++)
        ids[i] = h_int(&hk_rng, 0, 30) ? h_int(&hk_rng, 0, E - 1) : h_int(&hk_rng, -1, 0) * 7;
    return ids;
}

int32_t *hk_uneven_ids(hk *k, int64_t n, int32_t E) {
    int32_t *ids = hk_some_ids(k, n, E);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] > 0) ids[i] = h_int(&hk_rng, 0, h_int(&hk_rng, 0, E - 2));
    return ids;
}

int hk_too_long(int64_t work) {
    if (!hk_emulated || work <= 400000) return 0;
    hp_left(1, "shapes");
    return 1;
}

void hk_begin(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    hp_device(&hk_emulated);
}
