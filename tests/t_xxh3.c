/* t_xxh3.c: our XXH3 (kernels/xxh3.h) against the library's, every length, and the parts of it in the order in which a
 * warp adds them up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "kernels/xxh3.h"
#include "tests/h_rand.h"

enum { MOST = 9000 }; /* more than two leaves of `bits` */

static uint8_t *noise(size_t n) {
    uint8_t *p = malloc(n);
    h_rand rng = {71};
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(h_rand64(&rng) >> 40);
    return p;
}

static int same(k_u128 a, XXH128_hash_t b) {
    return a.low == b.low64 && a.high == b.high64;
}

/* Lengths up to n of the bytes at p for which the two differ. */
static int differing(const uint8_t *p, size_t n, uint8_t flip) {
    int bad = 0;
    uint8_t *q = malloc(n + 1);
    assert_non_null(q);
    for (size_t i = 0; i <= n; i++) {
        memcpy(q, p, i); /* of its own length: what reads behind it is seen by the sanitizers */
        const k_u128 h = k_xxh3_128(q, i);
        if (i) q[i / 2] ^= flip;
        bad += !same(h, XXH3_128bits(q, i));
    }
    free(q);
    return bad;
}

static void every_length(void **state) {
    (void)state;
    uint8_t *p = noise(MOST + 3), *zeros = calloc(1, MOST);
    assert_non_null(zeros);
    for (int at = 0; at < 4; at++) assert_int_equal(differing(p + at, at ? 300 : MOST, 0), 0);
    assert_int_equal(differing(zeros, MOST, 0), 0);
    assert_int_equal(differing(p, MOST, 1), MOST); /* the twin: a flipped bit moves every hash but that of nothing */
    free(p);
    free(zeros);
}

static void canonical(void **state) {
    (void)state;
    uint8_t digest[16];
    XXH128_canonical_t want;
    XXH128_canonicalFromHash(&want, XXH3_128bits("q4x", 3));
    k_xxh3_canonical(k_xxh3_128((const uint8_t *)"q4x", 3), digest);
    assert_memory_equal(digest, want.digest, 16);
    k_xxh3_canonical(k_xxh3_128((const uint8_t *)"q4y", 3), digest);
    assert_true(memcmp(digest, want.digest, 16) != 0);
}

static void of_eight_bytes(void **state) {
    (void)state;
    uint64_t v[2], seed = 0x71347820;
    h_rand rng = {5};
    for (int i = 0; i < 100000; i++) {
        v[0] = i < 1000 ? ((uint64_t)i << 32 | (uint64_t)(i % 7)) : h_rand64(&rng);
        assert_true(k_xxh3_64_of8(v[0], seed) == XXH3_64bits_withSeed(v, 8, seed));
        assert_true(k_xxh3_64_of8(v[0], seed + 1) != XXH3_64bits_withSeed(v, 8, seed));
    }
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_length), cmocka_unit_test(canonical),
                                       cmocka_unit_test(of_eight_bytes)};
    return cmocka_run_group_tests_name("t_xxh3", tests, NULL, NULL);
}
