/* t_quant.c: stored types against the format's vectors, by bits; vector decoders against the scalar cores. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/quant.h"
#include "kernels/quant_all.h"
#include "tests/h_vec.h"

static const struct {
    const char *name;
    int32_t id, elems, bytes, stored;
} list[] = {
#define QUANT(id, name, elems, bytes, stored) {#name, id, elems, bytes, stored},
#include "kernels/quants.def"
#undef QUANT
};
enum { NLIST = sizeof list / sizeof list[0] };

static void table(void **state) {
    (void)state;
    int found = 0;
    for (int32_t id = -5; id < 200; id++) {
        const k_quant *q = k_quant_get(id);
        if (!q) continue;
        found++;
        assert_int_equal(q->id, id);
        assert_ptr_equal(k_quant_by_name(q->name), q);
        assert_non_null(q->decode);
    }
    assert_int_equal(found, NLIST);
    for (int i = 0; i < NLIST; i++) {
        const k_quant *q = k_quant_get(list[i].id);
        assert_non_null(q);
        assert_string_equal(q->name, list[i].name);
        assert_int_equal(q->elems, list[i].elems);
        assert_int_equal(q->bytes, list[i].bytes);
        assert_int_equal(q->stored, list[i].stored);
    }
    static const int32_t gone[] = {-1, 4, 5, 31, 32, 33, 36, 37, 38, 43, 64, 65, 66, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++) assert_null(k_quant_get(gone[i]));
    assert_null(k_quant_by_name("Q4_2"));
    assert_null(k_quant_by_name(""));
}

/* 1 when the blocks decode to exactly these values, by the fast and by the plain decoder. */
static int decodes_to(int32_t id, const void *blocks, int64_t nblocks, const float *expect) {
    const k_quant *q = k_quant_get(id);
    int64_t n = nblocks * q->elems;
    float *y = malloc((size_t)n * sizeof *y);
    assert_non_null(y);
    q->decode(blocks, y, nblocks);
    int ok = memcmp(y, expect, (size_t)n * sizeof *y) == 0;
    memset(y, 0x55, (size_t)n * sizeof *y);
    k_decode_plain(id, blocks, y, n);
    ok &= memcmp(y, expect, (size_t)n * sizeof *y) == 0;
    free(y);
    return ok;
}

/* Bits of a block that can be flipped in every one of these blocks without the compare failing. */
static int dead_bits(int32_t id, uint8_t *blocks, int64_t nblocks, const float *expect) {
    int bytes = k_quant_get(id)->bytes, elems = k_quant_get(id)->elems, dead = 0;
    for (int k = 0; k < bytes * 8; k++) {
        int seen = 0;
        for (int64_t i = 0; i < nblocks && !seen; i++) {
            uint8_t *b = blocks + i * bytes;
            b[k / 8] ^= (uint8_t)(1 << k % 8);
            seen = !decodes_to(id, b, 1, expect + i * elems);
            b[k / 8] ^= (uint8_t)(1 << k % 8);
        }
        dead += !seen;
    }
    return dead;
}

/* Every block type has its vectors; decoded by bits (signed zeros too); a flipped bit must not pass. */
static void vectors(void **state) {
    (void)state;
    int checked = 0;
    for (int i = 0; i < NLIST; i++) {
        int32_t id = list[i].id;
        int wanted = (list[i].stored && list[i].elems > 1) || id == K_T_F16 || id == K_T_BF16 || id == K_T_Q8_K;
        if (!wanted) continue;
        char path[128];
        size_t nb, nf;
        snprintf(path, sizeof path, "tests/vec/%s.blocks.bin", list[i].name);
        uint8_t *b = vec_read(path, &nb);
        if (!b) fail_msg("%s is stored, so it needs %s", list[i].name, path);
        snprintf(path, sizeof path, "tests/vec/%s.f32.bin", list[i].name);
        float *f = vec_read(path, &nf);
        if (!f) fail_msg("no %s", path);
        int64_t blocks = (int64_t)nb / list[i].bytes;
        assert_true(blocks >= 8 && nb % (size_t)list[i].bytes == 0);
        assert_int_equal(nf, 4 * (size_t)(blocks * list[i].elems));
        if (!decodes_to(id, b, blocks, f)) fail_msg("%s does not decode to its vectors", list[i].name);
        int dead = dead_bits(id, b, blocks, f);
        /* what the format ignores: the sums of Q8_K, bit 7 of the four scales of NVFP4; and the last four bytes of
         * trits of TQ1_0 hold 81 values in 256, so that a lowest bit may decide nothing in these blocks */
        int expect = id == K_T_Q8_K ? 256 : id == K_T_NVFP4 ? 4 : 0, loose = id == K_T_TQ1_0 ? 4 : 0;
        if (dead < expect || dead > expect + loose)
            fail_msg("%s: %d bits can be flipped unseen, %d expected", list[i].name, dead, expect);
        checked++;
        free(b);
        free(f);
    }
    assert_int_equal(checked, 25 + 3);
}

/* Random bytes, every alignment: the vector decoders equal the scalar cores. NaNs agree in position. */
static void fast_equals_plain(void **state) {
    (void)state;
    enum { BLOCKS = 64 };
    uint64_t seed = 1;
    for (int i = 0; i < NLIST; i++) {
        const k_quant *q = k_quant_get(list[i].id);
        size_t bytes = (size_t)(BLOCKS * q->bytes);
        int64_t n = BLOCKS * (int64_t)q->elems;
        uint8_t *b = malloc(bytes + 3);
        float *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
        assert_true(b && x && y);
        for (int round = 0; round < 24; round++) {
            uint8_t *at = b + round % 4;
            for (size_t k = 0; k < bytes; k++) at[k] = (uint8_t)vec_u64(&seed);
            k_decode_row(q->id, at, x, n);
            k_decode_plain(q->id, at, y, n);
            int64_t d = vec_diff(x, y, n);
            if (d != n) fail_msg("%s element %d: %a, plain %a", q->name, (int)d, (double)x[d], (double)y[d]);
            for (int64_t part = 1; part < BLOCKS; part += 9) { /* fewer blocks: nothing beyond them is written */
                memset(x, 0x7e, (size_t)n * sizeof *x);
                q->decode(at, x, part);
                assert_true(vec_diff(x, y, part * q->elems) == part * q->elems);
                assert_int_equal(k_f32_bits(x[part * q->elems]), 0x7e7e7e7e);
            }
        }
        free(b);
        free(x);
        free(y);
    }
}

/* ---- code books ---- */

static int32_t iq1(int32_t r, int32_t j) {
    return k_plane_iq1(k_iq1_grid[r], j);
}
static int32_t iq2xxs(int32_t r, int32_t j) {
    return k_plane_iq2(k_iq2xxs_grid[r], j);
}
static int32_t iq2xs(int32_t r, int32_t j) {
    return k_plane_iq2(k_iq2xs_grid[r], j);
}
static int32_t iq2s(int32_t r, int32_t j) {
    return k_plane_iq2(k_iq2s_grid[r], j);
}
static int32_t iq3xxs(int32_t r, int32_t j) {
    return k_nib_iq3xxs(k_iq3xxs_grid[r], j);
}
static int32_t iq3s(int32_t r, int32_t j) {
    return k_nib_iq3s(k_iq3s_grid[r], j);
}
static int32_t iq4nl(int32_t r, int32_t j) {
    return (void)j, k_iq4_levels[r];
}
static int32_t mxfp4(int32_t r, int32_t j) {
    return (void)j, k_fp4_levels[r];
}
static int32_t signs(int32_t r, int32_t j) {
    return (void)j, (int8_t)k_even_signs((uint32_t)r);
}
static int32_t twin(int32_t r, int32_t j) {
    return iq1(r, j) ^ (r == 2047 && j == 7);
}

static int same_table(const char *name, int32_t rows, int32_t width, int32_t (*value)(int32_t, int32_t)) {
    char path[128];
    size_t size;
    snprintf(path, sizeof path, "tests/vec/iq_grids/%s.bin", name);
    int8_t *t = vec_read(path, &size);
    if (!t) fail_msg("no %s", path);
    assert_int_equal(size, rows * width);
    int same = 1;
    for (int32_t r = 0; r < rows; r++)
        for (int32_t j = 0; j < width; j++) same &= value(r, j) == t[r * width + j];
    free(t);
    return same;
}

static void code_books(void **state) {
    (void)state;
    assert_true(same_table("iq1s_grid", 2048, 8, iq1));
    assert_true(same_table("iq2xxs_grid", 256, 8, iq2xxs));
    assert_true(same_table("iq2xs_grid", 512, 8, iq2xs));
    assert_true(same_table("iq2s_grid", 1024, 8, iq2s));
    assert_true(same_table("iq3xxs_grid", 256, 4, iq3xxs));
    assert_true(same_table("iq3s_grid", 512, 4, iq3s));
    assert_true(same_table("kvalues_iq4nl", 16, 1, iq4nl));
    assert_true(same_table("kvalues_mxfp4", 16, 1, mxfp4));
    assert_true(same_table("ksigns_iq2xs", 128, 1, signs));
    assert_false(same_table("iq1s_grid", 2048, 8, twin));
}

/* ---- types of one element ---- */

#define DECODES(type, value, expect)                                                                                   \
    do {                                                                                                               \
        float got_, want_ = (expect);                                                                                  \
        k_decode_row(type, &(value), &got_, 1);                                                                        \
        assert_int_equal(k_f32_bits(got_), k_f32_bits(want_));                                                         \
    } while (0)

static void scalars(void **state) {
    (void)state;
    float f[] = {-0.0f, 0x1p-149f, INFINITY};
    for (int i = 0; i < 3; i++) DECODES(K_T_F32, f[i], f[i]);
    int8_t i8[] = {-128, 127};
    DECODES(K_T_I8, i8[0], -128.0f);
    DECODES(K_T_I8, i8[1], 127.0f);
    int16_t i16 = -32768;
    DECODES(K_T_I16, i16, -32768.0f);
    int32_t i32[] = {INT32_MIN, INT32_MAX, 16777217, 16777219};
    DECODES(K_T_I32, i32[0], -0x1p31f);
    DECODES(K_T_I32, i32[1], 0x1p31f);
    DECODES(K_T_I32, i32[2], 0x1p24f); /* ties to even */
    DECODES(K_T_I32, i32[3], 16777220.0f);
    int64_t i64[] = {INT64_MIN, INT64_MAX, -1};
    DECODES(K_T_I64, i64[0], -0x1p63f);
    DECODES(K_T_I64, i64[1], 0x1p63f);
    DECODES(K_T_I64, i64[2], -1.0f);
    double f64[] = {0.1, 1e300, -1e-300, 0x1.000001p0, 0x1.000003p0};
    DECODES(K_T_F64, f64[0], 0.1f);
    DECODES(K_T_F64, f64[1], INFINITY);
    DECODES(K_T_F64, f64[2], -0.0f);
    DECODES(K_T_F64, f64[3], 1.0f);
    DECODES(K_T_F64, f64[4], 0x1.000004p0f);
    float y, nan = NAN;
    k_decode_row(K_T_F32, &nan, &y, 1);
    assert_true(isnan(y));
    uint16_t h = 0x7c01, b = 0x7f81;
    k_decode_row(K_T_F16, &h, &y, 1);
    assert_true(isnan(y));
    k_decode_row(K_T_BF16, &b, &y, 1);
    assert_true(isnan(y));
}

/* All 65536 halves, through the vector and the scalar widening. */
static void halves(void **state) {
    (void)state;
    static uint16_t h[65536];
    static float x[65536], y[65536];
    for (int i = 0; i < 65536; i++) h[i] = (uint16_t)i;
    for (int32_t t = K_T_F16; t <= K_T_BF16; t += K_T_BF16 - K_T_F16) {
        k_decode_row(t, h, x, 65536);
        k_decode_plain(t, h, y, 65536);
        assert_int_equal(vec_diff(x, y, 65536), 65536);
        for (int i = 0; i < 65536; i++) {
            if (isnan(x[i])) continue;
            assert_int_equal(t == K_T_F16 ? k_f16_from_f32(x[i]) : k_bf16_from_f32(x[i]), i);
        }
    }
}

/* ---- Q8_K activations ---- */

static int encodes_to(const char *in, const char *out, float bend) {
    size_t nx, nb;
    float *x = vec_read(in, &nx);
    uint8_t *b = vec_read(out, &nb), *got = malloc(nb);
    assert_true(x && b && got);
    assert_int_equal(nx / 1024 * 292, nb);
    x[0] += bend;
    memset(got, 0xaa, nb);
    k_encode_q8_K(x, got, (int64_t)(nx / 4));
    int same = memcmp(got, b, nb) == 0;
    free(x);
    free(b);
    free(got);
    return same;
}

static void encode(void **state) {
    (void)state;
    assert_true(encodes_to("tests/vec/enc_x.f32.bin", "tests/vec/Q8_K.enc.blocks.bin", 0));
    assert_true(encodes_to("tests/vec/dot_x.f32.bin", "tests/vec/dot_x.Q8_K.bin", 0));
    assert_false(encodes_to("tests/vec/enc_x.f32.bin", "tests/vec/Q8_K.enc.blocks.bin", 1.0f));
    float x[256] = {0}, y[256];
    uint8_t b[292], zero[292] = {0};
    k_encode_q8_K(x, b, 256);
    assert_memory_equal(b, zero, 292);
    static const float wild[] = {NAN, INFINITY, -INFINITY, 0x1p-149f, -0x1p-149f, 0x1.fffffep127f};
    for (size_t i = 0; i < sizeof wild / sizeof wild[0]; i++) { /* must stay defined (ubsan) */
        x[3] = wild[i], x[100] = 1.0f - (float)i / 4;
        k_encode_q8_K(x, b, 256);
        k_decode_row(K_T_Q8_K, b, y, 256);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),      cmocka_unit_test(vectors), cmocka_unit_test(fast_equals_plain),
        cmocka_unit_test(code_books), cmocka_unit_test(scalars), cmocka_unit_test(halves),
        cmocka_unit_test(encode),
    };
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
