/* Products with what arithmetic on scales may get wrong, on the device against the CPU by bits (any NaN equals any
 * other): every stored type, random blocks of which some in every row have a scale that is zero, minus zero, infinite,
 * no number, subnormal or the largest; columns with zeros of both signs, subnormals, infinities and NaN. Rows are
 * longer than a tile, no multiple of 256 where the type allows it, no multiple of 8 in number, and begin at odd
 * addresses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/quant.h"
#include "kernels/round.h"
#include "tests/cuda/h_kit.h"
#include "tests/cuda/h_pair.h"

/* ---- scales ---- */

/* As a scale is stored: IQ1_M has the four bits of an f16 in the upper halves of four bytes. */
typedef enum { AS_F16, AS_F32, AS_BF16, AS_F64, AS_E8M0, AS_E4M3, AS_IQ1_M } form;

static const struct {
    int32_t type;
    form form;
    int n, at[4]; /* bytes in a block */
} scales[] = {
    {K_T_F32, AS_F32, 1, {0}},
    {K_T_F16, AS_F16, 1, {0}},
    {K_T_BF16, AS_BF16, 1, {0}},
    {K_T_F64, AS_F64, 1, {0}},
    {K_T_Q4_0, AS_F16, 1, {0}},
    {K_T_Q4_1, AS_F16, 2, {0, 2}},
    {K_T_Q5_0, AS_F16, 1, {0}},
    {K_T_Q5_1, AS_F16, 2, {0, 2}},
    {K_T_Q8_0, AS_F16, 1, {0}},
    {K_T_Q8_1, AS_F16, 1, {0}},
    {K_T_Q2_K, AS_F16, 2, {80, 82}},
    {K_T_Q3_K, AS_F16, 1, {108}},
    {K_T_Q4_K, AS_F16, 2, {0, 2}},
    {K_T_Q5_K, AS_F16, 2, {0, 2}},
    {K_T_Q6_K, AS_F16, 1, {208}},
    {K_T_Q8_K, AS_F32, 1, {0}},
    {K_T_IQ2_XXS, AS_F16, 1, {0}},
    {K_T_IQ2_XS, AS_F16, 1, {0}},
    {K_T_IQ3_XXS, AS_F16, 1, {0}},
    {K_T_IQ1_S, AS_F16, 1, {0}},
    {K_T_IQ4_NL, AS_F16, 1, {0}},
    {K_T_IQ3_S, AS_F16, 1, {0}},
    {K_T_IQ2_S, AS_F16, 1, {0}},
    {K_T_IQ4_XS, AS_F16, 1, {0}},
    {K_T_IQ1_M, AS_IQ1_M, 1, {49}},
    {K_T_TQ1_0, AS_F16, 1, {52}},
    {K_T_TQ2_0, AS_F16, 1, {64}},
    {K_T_MXFP4, AS_E8M0, 1, {0}},
    {K_T_NVFP4, AS_E4M3, 4, {0, 1, 2, 3}},
    {K_T_Q1_0, AS_F16, 1, {0}},
    {K_T_Q2_0, AS_F16, 1, {0}},
};
enum { NSCALES = sizeof scales / sizeof *scales, INTEGERS = 4 /* types that have none */ };

enum { ZERO, MINUS_ZERO, INF, MINUS_INF, NOT_A_NUMBER, TINY, MINUS_SUBNORMAL, LARGEST, SMALLEST_NORMAL, KINDS };
static const uint16_t f16[KINDS] = {0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e01, 0x0001, 0x83ff, 0x7bff, 0x0400};
static const uint32_t f32[KINDS] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00001,
                                    0x00000001, 0x807fffff, 0x7f7fffff, 0x00800000};
static const uint16_t bf16[KINDS] = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc1, 0x0001, 0x807f, 0x7f7f, 0x0080};
/* These have neither all of that nor a sign: their own ends. */
static const uint8_t e8m0[KINDS] = {0, 1, 255, 254, 255, 0, 1, 254, 2},
                     e4m3[KINDS] = {0x00, 0x80, 0x7f, 0xff, 0x7f, 0x01, 0x87, 0x7e, 0x08};

static void put_scale(form as, uint8_t *b, int at, int kind) {
    const double d = kind == TINY ? 0x1p-1074 : kind == LARGEST ? 0x1p1000 : (double)k_bits_f32(f32[kind]);
    switch (as) {
    case AS_F16: memcpy(b + at, &f16[kind], 2); break;
    case AS_F32: memcpy(b + at, &f32[kind], 4); break;
    case AS_BF16: memcpy(b + at, &bf16[kind], 2); break;
    case AS_F64: memcpy(b + at, &d, 8); break;
    case AS_E8M0: b[at] = e8m0[kind]; break;
    case AS_E4M3: b[at] = e4m3[kind]; break;
    case AS_IQ1_M:
        for (int i = 0; i < 4; i++) b[at + 2 * i] = (uint8_t)((b[at + 2 * i] & 15) | (f16[kind] >> 4 * i & 15) << 4);
        break;
    }
}

/* The table above is right: a scale of NaN makes all of a block NaN, one of zero all of it zero. */
static void places(void **s) {
    int types = 0;
    (void)s;
    for (int i = 0; i < NSCALES; i++) {
        const k_quant *q = k_quant_get(scales[i].type);
        const int has_nan = scales[i].form != AS_E8M0 && scales[i].form != AS_E4M3;
        for (int kind = ZERO; kind <= NOT_A_NUMBER; kind += NOT_A_NUMBER) {
            uint8_t b[512];
            float v[256];
            for (int k = 0; k < q->bytes; k++) b[k] = (uint8_t)h_next(&hk_rng);
            for (int k = 0; k < scales[i].n; k++) put_scale(scales[i].form, b, scales[i].at[k], kind);
            k_decode_plain(q->id, b, v, q->elems);
            for (int e = 0; e < q->elems; e++) {
                if (scales[i].form == AS_E8M0 && kind == ZERO) assert_true(fabsf(v[e]) < 0x1p-120f);
                if (scales[i].form != AS_E8M0 && kind == ZERO && v[e] != 0)
                    fail_msg("%s: element %d is %g", q->name, e, (double)v[e]);
                if (has_nan && kind == NOT_A_NUMBER && v[e] == v[e]) fail_msg("%s: element %d is a number", q->name, e);
            }
        }
        types++;
    }
    for (int32_t id = 0; id < 64; id++) types -= k_quant_get(id) != NULL;
    assert_int_equal(types, -INTEGERS);
}

/* Row r gets scales of kind r, the tenth one of all finite kinds; every third block or so, and one at least. */
static void plant(const hk *k, int which, int32_t experts) {
    static const int finite[] = {ZERO, MINUS_ZERO, TINY, MINUS_SUBNORMAL, SMALLEST_NORMAL};
    const k_quant *q = k_quant_get(scales[which].type);
    for (int32_t e = 0; e < experts; e++)
        for (int64_t r = 0; r < k->w[e].rows; r++) {
            const int64_t blocks = k->w[e].cols / q->elems, one = h_int(&hk_rng, 0, (int)blocks - 1);
            for (int64_t b = 0; b < blocks; b++) {
                uint8_t *at = (uint8_t *)(uintptr_t)k->w[e].data + (size_t)r * k->w[e].row_bytes + b * q->bytes;
                if (b != one && h_int(&hk_rng, 0, q->elems == 1 ? 30 : 2)) continue;
                for (int i = 0; i < scales[which].n; i++) {
                    const int kind = r % (KINDS + 1) < KINDS ? (int)(r % (KINDS + 1)) : finite[h_int(&hk_rng, 0, 4)];
                    if (i == 0 || h_int(&hk_rng, 0, 1)) put_scale(scales[which].form, at, scales[which].at[i], kind);
                }
            }
        }
}

/* ---- columns ---- */

/* Columns of five sorts: as they were; zeros and subnormals among them; nothing else; an infinity or NaN; the ends. */
static void spoil(const hk *k, int64_t rows, int64_t cols) {
    float *x = (float *)(uintptr_t)k->c.in[0];
    for (int64_t c = 0; c < rows; c++)
        for (int64_t i = 0; i < cols; i++) {
            float *v = &x[c * cols + i];
            const uint32_t u = (uint32_t)h_next(&hk_rng), few = f32[(u & 1) + (u >> 1 & 1) * TINY],
                           ends = f32[LARGEST + (u >> 1 & 1)] ^ u << 31;
            if (c % 5 == 1 && !(u >> 8 & 3)) *v = k_bits_f32(few);
            if (c % 5 == 2) *v = k_bits_f32(few);
            if (c % 5 == 3 && i == cols / 3) *v = k_bits_f32(f32[c % 2 ? INF : NOT_A_NUMBER]);
            if (c % 5 == 4 && !(u >> 8 & 7)) *v = k_bits_f32(ends);
            *v = k_rd(*v, k->lv.act);
        }
}

/* ---- products ---- */

/* Over 1024, or over 10240; blocks odd in number. */
static int64_t length(const k_quant *q, int longer) {
    const int64_t least = longer ? 10240 : 1061;
    return ((least / q->elems) | 1) * q->elems;
}

/* which: of the table; from NSCALES on an integer type. */
static int32_t type_of(int which) {
    static const int32_t integers[INTEGERS] = {K_T_I8, K_T_I16, K_T_I32, K_T_I64};
    return which < NSCALES ? scales[which].type : integers[which - NSCALES];
}

static int64_t product(int which, int64_t K, int32_t T, size_t shift) {
    const int64_t O = 21;
    const int32_t type = type_of(which);
    char note[80];
    hk k = hk_fresh(T, T % 2 ? K_ACT_F32 : K_ACT_BF16);
    k.d.N = 1;
    k.c.cols = O;
    k.c.epi = which % 2 ? K_EPI_RAW : K_EPI_NONE;
    hk_weights(&k, type, 1, O, K, 0);
    if (which < NSCALES) plant(&k, which, 1);
    hk_input(&k, 0, K, 1, 0);
    spoil(&k, T, K);
    snprintf(note, sizeof note, "%s K=%lld at %d", k_quant_get(type)->name, (long long)K, (int)shift);
    hp_shift(shift);
    const int64_t bad = hk_run(&k, K_OP_matmul, note);
    hp_shift(0);
    return bad;
}

static void products(void **s) {
    static const int32_t T[] = {1, 5, 18, 4, 64, 65}; /* a column, four at a time, decoded rows */
    static const size_t at[] = {1, 2, 7, 0, 9, 12};
    int64_t bad = 0;
    (void)s;
    for (int which = 0; which < NSCALES + INTEGERS; which++)
        for (int longer = 0; longer < 2; longer++) {
            HK_EACH(T, T) {
                const int64_t K = length(k_quant_get(type_of(which)), longer);
                assert_true(K > 1024 && (K % 256 || k_quant_get(type_of(which))->elems == 256));
                if (!hk_too_long(K * T[T_i] * 18)) bad += product(which, K, T[T_i], at[(T_i + which) % 6]);
            }
        }
    assert_int_equal(bad, 0);
}

static void experts(void **s) {
    int64_t bad = 0;
    (void)s;
    for (int which = 0; which < NSCALES; which++) {
        const int32_t E = 4, K = 2, O = 21, T = hk_emulated ? 2 : 33;
        const int64_t in = length(k_quant_get(scales[which].type), 0);
        hk k = hk_fresh(T, which % 2);
        hk_weights(&k, scales[which].type, E, O, in, 0);
        plant(&k, which, E);
        k.c.per = which / 2 % 2;
        hk_input(&k, 0, k.c.per ? K * in : in, 1, 0);
        spoil(&k, k.c.per ? T * K : T, in);
        k.c.in_i[1] = hk_uneven_ids(&k, (int64_t)T * K, E);
        k.c.in_cols[1] = K;
        k.c.cols = K * O;
        k.d.E = E;
        k.d.K = K;
        hp_shift((size_t)(which % 5));
        bad += hk_run(&k, K_OP_moe_expert, k_quant_get(scales[which].type)->name);
        hp_shift(0);
    }
    assert_int_equal(bad, 0);
}

/* ---- the harness sees ---- */

/* A subnormal scale taken for zero, and a zero of the other sign where nothing else is added, would show. */
static void twin(void **s) {
    (void)s;
    hk k = hk_fresh(1, K_ACT_F32);
    k.d.N = 1;
    k.c.cols = 1;
    k.c.epi = K_EPI_RAW;
    hk_weights(&k, K_T_Q8_0, 1, 1, 32, 0);
    uint8_t *b = (uint8_t *)(uintptr_t)k.w->data;
    memset(b + 2, 100, 32);
    put_scale(AS_F16, b, 0, TINY);
    hk_input(&k, 0, 32, 1, 0);
    float *x = (float *)(uintptr_t)k.c.in[0];
    for (int i = 0; i < 32; i++) x[i] = 1;
    hp_flip(3, 0x3f800000u); /* 1 becomes 0: one term of 32 is gone, for the host alone */
    assert_int_equal(hk_run(&k, K_OP_matmul, "twin"), 1);
    hp_flip(0, 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(places), cmocka_unit_test(products), cmocka_unit_test(experts),
                                       cmocka_unit_test(twin)};
    hk_begin(argc, argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hp_close();
    return failed;
}
