/* The transcendentals on the device: all 2^32 inputs, against the hashes that gcc's code gives (tests/t_arith.c pins
 * them); on the emulator every 4001st input, against the host. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda/arith.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_pins.h"

static k_dev *dev;
static int emulated;

static void on_device(uint32_t first, uint32_t step, uint64_t n, uint64_t *sums) {
    void *p;
    assert_int_equal(k_dev_alloc(dev, CA_COUNT * sizeof *sums, &p), 0);
    assert_int_equal(k_dev_zero(dev, p, CA_COUNT * sizeof *sums), 0);
    int code = ca_sums(dev, first, step, n, p);
    if (!code) code = k_dev_get(dev, sums, p, CA_COUNT * sizeof *sums);
    if (!code) code = k_dev_wait(dev);
    if (code) fail_msg("%s", k_dev_text(code));
    k_dev_free(dev, p);
}

static int compare(const uint64_t *got, const uint64_t *want, int talk) {
    static const char *const names[] = {
#define PIN(name, bits) #name,
        H_PINS_ALL
#undef PIN
    };
    int bad = 0;
    for (int f = 0; f < CA_COUNT; f++) {
        if (got[f] == want[f]) continue;
        bad++;
        if (talk) print_message("%-9s device 0x%016" PRIx64 ", host 0x%016" PRIx64 "\n", names[f], got[f], want[f]);
    }
    return bad;
}

static void sample(void **s) {
    uint64_t got[CA_COUNT], want[CA_COUNT];
    (void)s;
    on_device(12345, 4001, emulated ? 250000u : 1000000u, got);
    ca_sums_host(12345, 4001, emulated ? 250000u : 1000000u, want);
    assert_int_equal(compare(got, want, 1), 0);
}

static void all(void **s) {
    static const uint64_t pins[] = {
#define PIN(name, bits) bits,
        H_PINS_ALL
#undef PIN
    };
    uint64_t got[CA_COUNT];
    (void)s;
    if (emulated) {
        skip();
        return;
    }
    on_device(0, 1, (uint64_t)1 << 32, got);
    assert_int_equal(compare(got, pins, 1), 0);
    print_message("%d functions agree on all 2^32 inputs\n", CA_COUNT);
}

/* One input less, and every function shows it. */
static void twin(void **s) {
    uint64_t got[CA_COUNT], want[CA_COUNT];
    (void)s;
    on_device(0x3f000000, 4001, 999, got);
    ca_sums_host(0x3f000000, 4001, 1000, want);
    assert_int_equal(compare(got, want, 0), CA_COUNT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sample), cmocka_unit_test(all), cmocka_unit_test(twin)};
    dev = hp_device(&emulated);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hp_close();
    return failed;
}
