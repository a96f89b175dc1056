/* t_hash.c: bits of a tensor against their definition, in any portions, with every kind of NaN. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h> /* the library's own code, not the inlined one that lib/hash.c compiles */

#include "lib/hash.h"
#include "tests/h_rand.h"

/* The definition, byte by byte: canonical NaNs, leaves of 4096, digests in canonical form, LE64 of the length. */
static q4x_hash slow_bits(q4x_bits_kind kind, const uint8_t *data, size_t n) {
    size_t leaves = (n + 4095) / 4096, elem = kind == Q4X_BITS_F32 ? 4 : 2;
    uint8_t *copy = malloc(n + 1), *top = malloc(leaves * 16 + 8);
    memcpy(copy, data, n);
    for (size_t i = 0; kind != Q4X_BITS_RAW && i + elem <= n; i += elem) {
        uint32_t v = 0;
        memcpy(&v, copy + i, elem);
        if (kind == Q4X_BITS_F32 && (v >> 23 & 255) == 255 && (v & 0x7fffff)) v = 0x7fc00000;
        if (kind == Q4X_BITS_BF16 && (v >> 7 & 255) == 255 && (v & 0x7f)) v = 0x7fc0;
        if (kind == Q4X_BITS_F16 && (v >> 10 & 31) == 31 && (v & 0x3ff)) v = 0x7e00;
        memcpy(copy + i, &v, elem);
    }
    for (size_t l = 0; l < leaves; l++) {
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits(copy + l * 4096, n - l * 4096 < 4096 ? n - l * 4096 : 4096));
        memcpy(top + l * 16, c.digest, 16);
    }
    for (int i = 0; i < 8; i++) top[leaves * 16 + (size_t)i] = (uint8_t)((uint64_t)n >> (8 * i));
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits(top, leaves * 16 + 8));
    q4x_hash h;
    memcpy(h.b, c.digest, 16);
    free(copy);
    free(top);
    return h;
}

static void expect_hex(const q4x_hash *h, const char *hex) {
    char s[33];
    q4x_hash_hex(h, s);
    assert_string_equal(s, hex);
}

static void test_known(void **state) {
    (void)state;
    /* XXH3's own published values for no input */
    q4x_hash h = q4x_xxh128("", 0);
    expect_hex(&h, "99aa06d3014798d86001c324468d497f");
    assert_true(q4x_xxh64("", 0) == 0x2d06800538d394c2u);
    h = q4x_xxh128("a", 1);
    expect_hex(&h, "a96faf705af16834e6c632b61e964e1f");
    /* ours, kept so that dumps stay comparable over time */
    static uint8_t ramp[10000];
    for (size_t i = 0; i < sizeof ramp; i++) ramp[i] = (uint8_t)(i * 7 + i / 256);
    h = q4x_bits_of(Q4X_BITS_RAW, ramp, sizeof ramp);
    expect_hex(&h, "b34c82c10bbb1616e70211fc27cf247b");
    h = q4x_bits_of(Q4X_BITS_F32, NULL, 0);
    expect_hex(&h, "2c0a8a99dc147d5445c3b49d035665b2");
}

static void test_definition(void **state) {
    (void)state;
    h_rand r = {1};
    enum { N = 20000 };
    uint8_t *x = malloc(N);
    const size_t sizes[] = {0,    1,    2,    3,    4,    5,    100,  4092,  4095, 4096,
                            4097, 4098, 4099, 4100, 8191, 8192, 8200, 12289, N};
    for (int kind = 0; kind < 4; kind++)
        for (int dirty = 0; dirty < 3; dirty++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                for (size_t i = 0; i < N; i++) x[i] = (uint8_t)(h_rand64(&r) & (dirty ? 255 : 63));
                /* dirty 1: random bits hold many NaNs of 16 bits; 2: many of 32 bits too */
                for (size_t i = 2; dirty == 2 && i + 2 <= N; i += 4 * (1 + h_below(&r, 50)))
                    x[i + 1] |= 0x7f, x[i] |= 0x80;
                q4x_hash a = q4x_bits_of((q4x_bits_kind)kind, x, sizes[s]);
                q4x_hash b = slow_bits((q4x_bits_kind)kind, x, sizes[s]);
                assert_memory_equal(&a, &b, 16);
            }
    free(x);
}

static void test_portions(void **state) {
    (void)state;
    h_rand r = {2};
    enum { N = 40000 };
    uint8_t *x = malloc(N);
    q4x_bits *b = q4x_bits_new();
    assert_non_null(b);
    for (int round = 0; round < 200; round++) {
        q4x_bits_kind kind = (q4x_bits_kind)(round % 4);
        size_t n = round < 4 ? 0 : h_below(&r, N);
        for (size_t i = 0; i < N; i++) x[i] = (uint8_t)h_rand64(&r);
        q4x_bits_begin(b, kind);
        for (size_t at = 0; at < n;) {
            size_t step = 1 + h_below(&r, round % 3 ? 9000 : 7);
            if (step > n - at) step = n - at;
            assert_int_equal(q4x_bits_add(b, x + at, step), 0);
            at += step;
        }
        q4x_hash a = q4x_bits_end(b), one = q4x_bits_of(kind, x, n), slow = slow_bits(kind, x, n);
        assert_memory_equal(&a, &one, 16);
        assert_memory_equal(&a, &slow, 16);
    }
    q4x_bits_free(b);
    free(x);
}

/* Every NaN pattern hashes as the quiet one; every other pattern is told apart from its neighbours and from NaN. */
static void test_nan(void **state) {
    (void)state;
    const struct {
        q4x_bits_kind kind;
        uint16_t inf, quiet;
    } half[] = {{Q4X_BITS_BF16, 0x7f80, 0x7fc0}, {Q4X_BITS_F16, 0x7c00, 0x7e00}};
    for (int k = 0; k < 2; k++) {
        q4x_hash q = q4x_bits_of(half[k].kind, &half[k].quiet, 2);
        for (uint32_t v = 0; v < 65536; v++) {
            uint16_t u = (uint16_t)v;
            q4x_hash h = q4x_bits_of(half[k].kind, &u, 2), raw = q4x_bits_of(Q4X_BITS_RAW, &u, 2);
            int nan = (u & 0x7fff) > half[k].inf;
            assert_int_equal(q4x_hash_eq(&h, &q), nan);
            /* twin: without canonical form only the quiet NaN itself would pass */
            assert_int_equal(q4x_hash_eq(&raw, &q), u == half[k].quiet);
        }
    }
    h_rand r = {3};
    const uint32_t quiet = 0x7fc00000;
    q4x_hash q = q4x_bits_of(Q4X_BITS_F32, &quiet, 4);
    for (int i = 0; i < 20000; i++) {
        uint32_t u = (uint32_t)h_rand64(&r);
        if (i % 2) u |= 0x7f800000;
        if (i < 8)
            u = (const uint32_t[]){0x7f800000, 0xff800000, 0x7f800001, 0xffffffff,
                                   0x80000000, 0,          0x7fffffff, 0xff800001}[i];
        q4x_hash h = q4x_bits_of(Q4X_BITS_F32, &u, 4);
        assert_int_equal(q4x_hash_eq(&h, &q), (u & 0x7fffffff) > 0x7f800000);
    }
    const float zeros[2] = {0.0f, -0.0f};
    q4x_hash a = q4x_bits_of(Q4X_BITS_F32, &zeros[0], 4), b = q4x_bits_of(Q4X_BITS_F32, &zeros[1], 4);
    assert_false(q4x_hash_eq(&a, &b));
}

/* One flipped bit, a swap of leaves, a zero more at the end: all seen. */
static void test_sensitive(void **state) {
    (void)state;
    h_rand r = {4};
    enum { N = 3 * 4096 + 12 };
    uint8_t x[N], y[N];
    for (size_t i = 0; i < N; i++) x[i] = (uint8_t)(h_rand64(&r) & 63);
    q4x_hash a = q4x_bits_of(Q4X_BITS_F32, x, N), same = q4x_bits_of(Q4X_BITS_F32, x, N);
    assert_true(q4x_hash_eq(&a, &same));
    for (size_t i = 0; i < N; i += 1 + h_below(&r, 97)) {
        memcpy(y, x, N);
        y[i] ^= (uint8_t)(1 << h_below(&r, 6));
        q4x_hash b = q4x_bits_of(Q4X_BITS_F32, y, N);
        assert_false(q4x_hash_eq(&a, &b));
    }
    memcpy(y, x + 4096, 4096);
    memcpy(y + 4096, x, 4096);
    memcpy(y + 8192, x + 8192, N - 8192);
    q4x_hash b = q4x_bits_of(Q4X_BITS_F32, y, N);
    assert_false(q4x_hash_eq(&a, &b));
    memset(y, 0, N);
    a = q4x_bits_of(Q4X_BITS_F32, y, 8192);
    b = q4x_bits_of(Q4X_BITS_F32, y, 8196);
    assert_false(q4x_hash_eq(&a, &b));
}

/* Leaves shared by threads give the same hash, and one value that is not finite is said wherever it is. */
static void test_shared(void **state) {
    (void)state;
    h_rand r = {9};
    const size_t sizes[] = {0, 4, 4096, 100000, 131072, 256 * 4096, 256 * 4096 + 4, 700 * 4096 + 20};
    float *x = malloc(701 * 4096);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s] / 4;
        for (size_t i = 0; i < n; i++) x[i] = (float)h_gaussian(&r);
        for (int dirty = 0; dirty < 3; dirty++) {
            if (dirty && n) x[h_below(&r, (uint32_t)n)] = dirty == 1 ? -INFINITY : NAN;
            q4x_hash want = slow_bits(Q4X_BITS_F32, (const uint8_t *)x, sizes[s]);
            for (int threads = 1; threads < 5; threads++) {
                int bad = -1;
                q4x_hash h = q4x_bits_shared(Q4X_BITS_F32, x, sizes[s], threads, &bad);
                assert_true(q4x_hash_eq(&h, &want));
                assert_int_equal(bad, dirty && n);
            }
        }
    }
    free(x);
}

/* Leaves that were digested elsewhere, between bytes that come as they are. */
static void test_digests(void **state) {
    (void)state;
    enum { N = 5 * Q4X_LEAF + 100 };
    h_rand r = {10};
    uint8_t p[N], digest[5][16];
    for (size_t i = 0; i < N; i++) p[i] = (uint8_t)h_below(&r, 256);
    q4x_bits *b = q4x_bits_new();
    const q4x_hash want = slow_bits(Q4X_BITS_RAW, p, N);
    for (size_t bad = 0; bad < 2; bad++) {
        for (size_t i = 0; i < 5; i++) { /* leaves 1 to 5, the last of 100 bytes */
            const q4x_hash h = q4x_xxh128(p + (i + 1) * Q4X_LEAF, i < 4 ? Q4X_LEAF : 100);
            memcpy(digest[i], h.b, 16);
        }
        digest[3][7] ^= (uint8_t)bad;
        q4x_bits_begin(b, Q4X_BITS_RAW);
        assert_int_equal(q4x_bits_add(b, p, 1000) + q4x_bits_add(b, p + 1000, Q4X_LEAF - 1000), 0);
        q4x_bits_digests(b, digest, 3 * Q4X_LEAF);
        q4x_bits_digests(b, digest[3], Q4X_LEAF + 100);
        const q4x_hash h = q4x_bits_end(b);
        assert_int_equal(q4x_hash_eq(&h, &want), !bad);
    }
    q4x_bits_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),   cmocka_unit_test(test_definition), cmocka_unit_test(test_portions),
        cmocka_unit_test(test_nan),     cmocka_unit_test(test_sensitive),  cmocka_unit_test(test_shared),
        cmocka_unit_test(test_digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
