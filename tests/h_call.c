#include "tests/h_call.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/round.h"

uint64_t h_next(h_rng *r) {
    uint64_t z = r->s += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

double h_unit(h_rng *r) {
    return (double)(h_next(r) >> 11) * 0x1p-53;
}

double h_gauss(h_rng *r) {
    double s = -6.0;
    for (int i = 0; i < 12; i++) s += h_unit(r);
    return s;
}

int h_int(h_rng *r, int lo, int hi) {
    return lo + (int)(h_next(r) % (uint64_t)(hi - lo + 1));
}

static float *floats(int64_t n) {
    float *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    assert_non_null(x);
    return x;
}

float *h_nans(int64_t n) {
    float *x = floats(n);
    for (int64_t i = 0; i < n; i++) x[i] = NAN;
    return x;
}

float *h_normal(h_rng *r, int64_t n, double amp, int32_t act) {
    float *x = floats(n);
    for (int64_t i = 0; i < n; i++) x[i] = k_rd((float)(amp * h_gauss(r)), act);
    return x;
}

float *h_whole(h_rng *r, int64_t n, int lo, int hi) {
    float *x = floats(n);
    for (int64_t i = 0; i < n; i++) x[i] = (float)h_int(r, lo, hi);
    return x;
}

float *h_copy(const float *x, int64_t n) {
    float *y = floats(n);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

k_call h_call(const k_dims *d, const k_levers *lv, int32_t T, int32_t pos0, int nth, int64_t scratch_n) {
    return (k_call){.T = T,
                    .pos0 = pos0,
                    .Tcall = T,
                    .Tc = pos0 + T,
                    .d = d,
                    .lv = lv,
                    .nth = nth,
                    .scratch_n = scratch_n,
                    .scratch = h_nans(scratch_n * nth)};
}

void h_scratch_free(k_call *c) {
    free(c->scratch);
    c->scratch = NULL;
}

k_call h_tile(const k_call *c, int32_t t0, int32_t n) {
    k_call x = *c;
    x.T = n;
    x.t0 = t0;
    x.pos0 = c->pos0 + t0;
    x.out = c->out + t0 * c->cols;
    for (int i = 0; i < K_MAXIN; i++)
        if (c->in[i]) x.in[i] = c->in[i] + t0 * c->in_cols[i];
    return x;
}

k_state h_state(int64_t cap, int64_t cols, float fill) {
    k_state s = {.cols = cols, .cap = cap};
    s.f = floats(cap * cols);
    for (int64_t i = 0; i < cap * cols; i++) s.f[i] = fill;
    return s;
}

void h_state_free(k_state *s) {
    free(s->f);
}

double h_dist(const float *got, const double *want, int64_t n) {
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - want[i];
        s += d * d;
    }
    return sqrt(s);
}

double h_norm(const double *x, int64_t n) {
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s += x[i] * x[i];
    return sqrt(s);
}

double h_same(const float *got, const float *want, int64_t n) {
    int64_t same = 0;
    for (int64_t i = 0; i < n; i++) same += !memcmp(&got[i], &want[i], sizeof *got);
    return (double)same / (double)n;
}
