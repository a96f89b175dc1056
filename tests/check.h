/* check.h: assertions that say what differs. cmocka's own float check lets NaN pass, its memory check names a byte;
 * these print the name, the index, both values exactly (%a) and their distance in ulp. False is the failure: a NaN
 * never passes but against the same bits.
 */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "lib/err.h"

/* Place of a float on the line of all floats: neighbours differ by 1, -0 and +0 are one place. */
static inline int64_t check_place(float x) {
    int32_t u;
    memcpy(&u, &x, 4);
    return u < 0 ? -(int64_t)(u & 0x7fffffff) : (int64_t)u;
}

/* Distance in ulp; INT64_MAX when either is NaN. */
static inline int64_t check_ulp(float a, float b) {
    if (!(a == a) || !(b == b)) return INT64_MAX;
    int64_t d = check_place(a) - check_place(b);
    return d < 0 ? -d : d;
}

static inline void check_floats_(const char *name, const float *got, const float *want, size_t n, int64_t ulp,
                                 const char *file, int line) {
    size_t bad = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        int ok = ulp < 0 ? !memcmp(&got[i], &want[i], 4) : check_ulp(got[i], want[i]) <= ulp;
        if (!ok && !bad++) at = i;
    }
    if (!bad) return;
    print_error("%s: %zu of %zu differ, first [%zu]: got %a (%.9g), want %a (%.9g), %lld ulp apart%s\n", name, bad, n,
                at, (double)got[at], (double)got[at], (double)want[at], (double)want[at],
                (long long)check_ulp(got[at], want[at]), ulp < 0 ? "" : " and more than allowed");
    _fail(file, line);
}

/* Every float has the same bits (so -0 is not +0, and a NaN equals the same NaN). */
#define assert_bits_equal(name, got, want, n) check_floats_(name, got, want, n, -1, __FILE__, __LINE__)
/* Every float is within ulp units in the last place. */
#define assert_ulp_le(name, got, want, n, ulp) check_floats_(name, got, want, n, ulp, __FILE__, __LINE__)

static inline void check_rc_(int rc, const q4x_err *err, const char *what, const char *file, int line) {
    if (!rc) return;
    print_error("%s: rc %d: %s\n", what, rc, err && err->code == rc ? err->msg : "(no message)");
    _fail(file, line);
}

/* The call worked; else its message is shown. assert_rc_ok(q4x_f(..., &err), &err) */
#define assert_rc_ok(rc, err) check_rc_(rc, err, #rc, __FILE__, __LINE__)

#endif
