/* Selections on the device against the CPU's by bits, through idx_sel: numbers of scores and of chosen ones around
 * every edge inside topk.cuh (digits of a rank, threads of a block, what is sorted in shared memory), scores that are
 * equal, differ in their last bits alone, are no numbers, or zeros of both signs; under every tie rule. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/round.h"
#include "tests/cuda/h_kit.h"
#include "tests/cuda/h_pair.h"

enum { EQUAL, LEAST, NANS, ZEROS, ULPS, FEW, WILD, FALLING, ONE_ABOVE, ONE_BELOW, RANDOM, CONTENTS };
static const char *const contents[CONTENTS] = {"equal",         "-inf",         "NaN",   "zeros",
                                               "last bits",     "few values",   "wild",  "falling",
                                               "one is larger", "one is least", "unlike"};

static float score_of(int what, int32_t i, int32_t n) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 0x1p-149f, -0x1p-149f, -1.0f, 3.0f};
    switch (what) {
    case EQUAL: return 1.5f;
    case LEAST: return -INFINITY;
    case NANS: return k_bits_f32(0x7fc00000u | (uint32_t)i % 7 << 31 | (uint32_t)i);
    case ZEROS: return h_int(&hk_rng, 0, 1) ? 0.0f : -0.0f;
    case ULPS: return k_bits_f32(0x3f800000u + (uint32_t)h_int(&hk_rng, 0, 900));
    case FEW: return (float)h_int(&hk_rng, -3, 3);
    case WILD: return odd[h_int(&hk_rng, 0, 8)];
    case FALLING: return (float)(n - i);
    case ONE_ABOVE: return i == n / 2 ? 2.0f : 1.0f;
    case ONE_BELOW: return i == n / 3 ? NAN : 0.0f;
    default: return (float)((double)(int32_t)(h_next(&hk_rng) >> 32) * 0x1p-30);
    }
}

/* T queries over blocks of one token, the last of which ranks n. */
static int64_t choose(int32_t n, int32_t nsel, int32_t T, int what, int32_t tie) {
    char note[80];
    hk k = hk_fresh(T, K_ACT_F32);
    k.d.ratio = 1;
    k.d.nsel = nsel;
    k.lv.tie = tie;
    k.c.pos0 = n - T;
    k.c.Tc = n;
    hk_input(&k, 0, n, 1, 0);
    float *x = (float *)(uintptr_t)k.c.in[0];
    for (int32_t i = 0; i < T * n; i++) x[i] = score_of(what, i % n, n);
    k.c.cols = nsel < n ? nsel : n;
    snprintf(note, sizeof note, "%d of %d, %s, tie %d", nsel, n, contents[what], tie);
    return hk_run(&k, K_OP_idx_sel, note);
}

static void every_content(void **s) {
    static const int32_t ns[] = {1, 2, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049};
    int64_t bad = 0;
    (void)s;
    HK_EACH(n, ns)
    for (int what = 0; what < CONTENTS; what++)
        for (int32_t tie = 0; tie < 4; tie++) {
            const int32_t n = ns[n_i], ks[] = {1, 8, n / 2, n - 1, n, n + 5};
            HK_EACH(k, ks) {
                if (hk_emulated && n > 257 && (k_i + what + tie) % 4) continue;
                if (ks[k_i] > 0) bad += choose(n, ks[k_i], 1, what, tie);
            }
        }
    assert_int_equal(bad, 0);
}

/* More are chosen than shared memory keeps; blocks of more threads; indices of more than one digit. */
static void many(void **s) {
    static const int32_t shapes[][2] = {{4095, 512},  {4096, 512},   {4097, 2048},  {5000, 2047}, {5000, 2049},
                                        {5000, 5000}, {8192, 512},   {8193, 4096},  {65536, 512}, {65537, 513},
                                        {65536, 1},   {65536, 2048}, {65535, 65535}};
    static const int32_t whats[] = {EQUAL, ZEROS, ULPS, WILD, RANDOM};
    int64_t bad = 0;
    (void)s;
    HK_EACH(shape, shapes)
    HK_EACH(what, whats)
    for (int32_t tie = 0; tie < 2; tie++) {
        if (hk_emulated && (shape_i + what_i) % 3 && shape_i > 5) continue;
        bad += choose(shapes[shape_i][0], shapes[shape_i][1], 1, whats[what_i], tie);
    }
    assert_int_equal(bad, 0);
}

/* Rows of a tile rank one block more each, the first of them fewer than are to be chosen, or none. */
static void rows(void **s) {
    int64_t bad = 0;
    (void)s;
    for (int what = 0; what < CONTENTS; what++)
        for (int32_t tie = 0; tie < 4; tie++) {
            bad += choose(9, 4, 9, what, tie);
            bad += choose(40, 37, 7, what, tie);
        }
    hk k = hk_fresh(9, K_ACT_F32); /* no block is complete before the fifth */
    k.d.ratio = 5, k.d.nsel = 3;
    hk_input(&k, 0, 1, 1, 0);
    k.c.cols = 1;
    bad += hk_run(&k, K_OP_idx_sel, "none at first");
    assert_int_equal(bad, 0);
}

/* A bit of a score that only the host sees shows where it moves the choice, its order or who is chosen among equals. */
static void twin(void **s) {
    (void)s;
    for (int32_t tie = 0; tie < 4; tie++) {
        hp_flip(40, 1u << 31); /* it was the best but 40 */
        assert_true(choose(3000, 64, 1, FALLING, tie) > 0);
        hp_flip(1500, 1); /* one of many equals becomes the best */
        assert_true(choose(3000, 8, 1, EQUAL, tie) > 0);
    }
    hp_flip(0, 1u << 22);
    assert_true(choose(5000, 2049, 1, EQUAL, K_TIE_LOWEST) > 0);
    hp_flip(0, 0);
    assert_int_equal(choose(5000, 2049, 1, EQUAL, K_TIE_LOWEST), 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_content), cmocka_unit_test(many), cmocka_unit_test(rows),
                                       cmocka_unit_test(twin)};
    hk_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("topk", tests, NULL, NULL);
    hp_close();
    return failed;
}
