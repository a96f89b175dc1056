#include "tests/h_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <math.h>

#include <cmocka.h>

#include "kernels/round.h"

static char TABLE[64][176];
static int NROWS;

int h_say(const char *what, int64_t n, int64_t same, double measured, double bound, int must_fail) {
    int in = measured <= bound;
    char share[24] = "";
    if (same >= 0) snprintf(share, sizeof share, "%.3f %%", 100.0 * (double)same / (double)n);
    assert_true(NROWS < 64);
    snprintf(TABLE[NROWS++], sizeof TABLE[0], "%-62s %8lld %10s %11.4g %6.4g  %s", what, (long long)n, share, measured,
             bound,
             must_fail ? in ? "NOT REFUSED" : "refused"
             : in      ? "within"
                       : "OUTSIDE");
    return in;
}

void h_table(void) {
    print_message("%-62s %8s %10s %11s %6s  %s\n", "row", "values", "equal bits", "worst", "bound", "verdict");
    for (int i = 0; i < NROWS; i++) print_message("%s\n", TABLE[i]);
}

double h_bf16_ulp(float x) {
    int e;
    frexp((double)x, &e);
    return ldexp(1.0, (e < -125 || x == 0.0f ? -125 : e) - 8);
}

static void worse(h_tally *t, double d) {
    if (!(d <= t->worst)) t->worst = d == d ? d : HUGE_VAL;
}

void h_ulps(h_tally *t, const float *got, const float *want, const double *floor, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        t->same += k_f32_bits(got[i]) == k_f32_bits(want[i]);
        worse(t, fabs((double)got[i] - (double)want[i]) / (h_bf16_ulp(want[i]) + (floor ? floor[i] : 0)));
    }
    t->n += n;
}

/* Place on the line of bf16 values. */
static double place(float x) {
    uint32_t u = k_f32_bits(x);
    double p = (double)(u & 0x7fffffffu) * 0x1p-16;
    return x != x ? (double)NAN : u >> 31 ? -p : p;
}

void h_steps(h_tally *t, const float *got, const float *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int same = k_f32_bits(got[i]) == k_f32_bits(want[i]);
        double d = fabs(place(got[i]) - place(want[i]));
        t->same += same;
        worse(t, same ? 0 : d == 0 ? 0.5 : d);
    }
    t->n += n;
}

int h_row(const char *what, const h_tally *t, double bound) {
    return h_say(what, t->n, t->same, t->worst, bound, 0);
}

void h_control(const char *what, const h_tally *t, double bound, double times) {
    h_say(what, t->n, t->same, t->worst, bound, 1);
    if (t->worst <= times * bound) fail_msg("%s: %g is not beyond %g times %g", what, t->worst, times, bound);
}
