/* t_dump_pack.c: full tensors packed by any number of threads: the same bytes, which unpack to what was packed; hardly
 * larger than one zlib stream without pieces, which unpacks as well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "kernels/round.h"
#include "lib/dump_int.h"
#include "tests/h_rand.h"

/* What the values are. */
enum { NORMAL, ON_BF16, SAME, BYTES, SMALL_IDS, KINDS };
static const char *const names[] = {"normal", "on the bf16 grid", "all the same", "any bytes", "small ids"};

static void *fill(int kind, size_t n) {
    h_rand rng = {11};
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    h_gaussians(&rng, x, n, 1);
    for (size_t i = 0; i < n; i++) {
        const uint32_t any = (uint32_t)h_rand64(&rng), id = any % 100;
        if (kind == ON_BF16) x[i] = k_rd(x[i], K_ACT_BF16);
        if (kind == SAME) x[i] = 0.75f;
        if (kind == BYTES) memcpy(&x[i], &any, 4);
        if (kind == SMALL_IDS) memcpy(&x[i], &id, 4);
    }
    return x;
}

/* All planes as one stream, as earlier versions wrote them. */
static uint8_t *one_stream(const uint8_t *src, size_t n, size_t elem, size_t *ret_n) {
    uint8_t *planes = malloc(n), *out = malloc(2 * n + 1000);
    z_stream z = {0};
    assert_true(planes && out);
    for (size_t i = 0; i < n; i++) planes[i % elem * (n / elem) + i / elem] = src[i];
    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 15, 9, Z_HUFFMAN_ONLY), Z_OK);
    z.next_in = planes;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)(2 * n + 1000);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    *ret_n = 2 * n + 1000 - z.avail_out;
    deflateEnd(&z);
    free(planes);
    return out;
}

static void is_data(const uint8_t *packed, size_t packed_n, size_t elem, const void *data, size_t n) {
    q4x_err err = {0};
    uint8_t *back = malloc(n);
    assert_non_null(back);
    if (q4x_planes_unpack(packed, packed_n, elem, back, n, &err)) fail_msg("%s", err.msg);
    assert_memory_equal(back, data, n);
    free(back);
}

/* Returns packed bytes, n: stored as they are. */
static size_t one(int kind, size_t n, size_t elem) {
    void *data = fill(kind, (n + 3) / 4);
    uint8_t *first = NULL;
    size_t first_n = 0, plain_n;
    for (int threads = 1; threads < 8; threads += threads) {
        q4x_err err = {0};
        uint8_t *p = NULL;
        size_t used = 0;
        if (q4x_planes_pack(data, n, elem, threads, &p, &used, &err)) fail_msg("%s", err.msg);
        if (threads == 1) {
            first = p;
            first_n = used;
            continue;
        }
        if (!p != !first || (p && (used != first_n || memcmp(p, first, used))))
            fail_msg("%s, %zu bytes: %d threads and one differ", names[kind], n, threads);
        free(p);
    }
    uint8_t *plain = one_stream(data, n, elem, &plain_n);
    is_data(plain, plain_n, elem, data, n);
    if (first) {
        is_data(first, first_n, elem, data, n);
        assert_true(first_n < n);
    }
    const size_t now = first ? first_n : n, then = plain_n < n ? plain_n : n;
    if (now > then + then / 80 + 512) fail_msg("%s, %zu bytes: %zu, was %zu", names[kind], n, now, then);
    free(plain);
    free(first);
    free(data);
    return now;
}

static void packs(void **state) {
    static const size_t counts[] = {1, 3, 64, 1000, 15359, 61439, 61440, 61441, 3 * 61440 + 7, 262144};
    double share[KINDS] = {0};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            share[kind] = (double)one(kind, 4 * counts[i], 4) / (4.0 * (double)counts[i]);
            one(kind, 2 * counts[i], 2);
        }
    for (int kind = 0; kind < KINDS; kind++) print_message("    %s: %.3f\n", names[kind], share[kind]);
    assert_true(share[NORMAL] < 0.87 && share[ON_BF16] < 0.55 && share[SAME] < 0.14 && share[SMALL_IDS] < 0.5);
    assert_true(share[BYTES] == 1);
}

/* The twin: a stream with another bit, a piece less or its sum changed is refused, or it is other data. */
static void damage(void **state) {
    enum { N = 4 * 70000 };
    q4x_err err = {0};
    uint8_t *p = NULL, *data = fill(NORMAL, N / 4), *back = malloc(N);
    size_t used;
    h_rand rng = {5};
    (void)state;
    assert_non_null(back);
    if (q4x_planes_pack(data, N, 4, 2, &p, &used, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < 40; i++) {
        const size_t at = i == 0 ? used - 1 : h_rand64(&rng) % used;
        p[at] ^= (uint8_t)(1 << i % 8);
        int rc = q4x_planes_unpack(p, used, 4, back, N, &err);
        if (!rc) fail_msg("byte %zu: not seen", at); /* its sum covers all of it */
        p[at] ^= (uint8_t)(1 << i % 8);
    }
    assert_int_not_equal(q4x_planes_unpack(p, used - 9, 4, back, N, &err), 0);
    is_data(p, used, 4, data, N);
    free(p);
    free(data);
    free(back);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(packs), cmocka_unit_test(damage)};
    return cmocka_run_group_tests_name("dump_pack", tests, NULL, NULL);
}
