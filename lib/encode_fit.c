#include "lib/encode_fit.h"

#include "kernels/quant_grids.h"

/* The value of largest magnitude, with its sign; the first of equals. */
static double extreme(const double *x, int n) {
    double best = 0;
    for (int i = 0; i < n; i++)
        if (fabs(x[i]) > fabs(best)) best = x[i];
    return best;
}

/* What a candidate's codes leave of sum w x^2 is that less `gain`. A scale that will be stored as it is, is rounded
 * before it is judged. */
typedef struct {
    int half;
    double scale, gain;
} fit;

static void take(fit *best, double xq, double qq) {
    if (!(qq > 0)) return;
    double s = best->half ? q4x_half(xq / qq) : xq / qq, gain = s * (2 * xq - s * qq);
    if (gain > best->gain) *best = (fit){.half = best->half, .scale = s, .gain = gain};
}

double q4x_fit_scale(const double *x, const double *w, int n, int lo, int hi, int half) {
    enum { SPREAD = 9 }; /* tenths of a code, on either side of the scale that the extreme asks for */
    double m = extreme(x, n);
    fit best = {.half = half};
    for (int k = -SPREAD; m != 0 && k <= SPREAD; k++) {
        double inv = (lo + 0.1 * k) / m, xq = 0, qq = 0; /* the extreme goes to the far end of the codes */
        for (int i = 0; i < n; i++) {
            double q = q4x_nearest(inv * x[i], lo, hi);
            xq += w[i] * x[i] * q;
            qq += w[i] * q * q;
        }
        take(&best, xq, qq);
    }
    return best.scale;
}

/* Where the nearest level changes: halfway between two. */
static const double midway[15] = {-115.5, -93.5, -74, -57, -42, -28.5, -16, -4.5, 7, 19, 31.5, 45.5, 61, 79, 101};

int q4x_level_code(double v) {
    int c = v > midway[7] ? 8 : 0;
    c += v > midway[c + 3] ? 4 : 0;
    c += v > midway[c + 1] ? 2 : 0;
    return c + (v > midway[c]);
}

double q4x_fit_levels(const double *x, const double *w, int n) {
    static const double ends[] = {-134, -132, -130, -128, -126, -124, -122, 106, 108, 110, 112, 114, 116, 118, 120};
    double m = extreme(x, n);
    fit best = {.half = 1};
    for (size_t k = 0; m != 0 && k < sizeof ends / sizeof *ends; k++) {
        double inv = ends[k] / m, xq = 0, qq = 0;
        for (int i = 0; i < n; i++) {
            double q = K_TAB(k_iq4_levels)[q4x_level_code(inv * x[i])];
            xq += w[i] * x[i] * q;
            qq += w[i] * q * q;
        }
        take(&best, xq, qq);
    }
    return best.scale;
}

typedef struct {
    double w, x, xx, q, qq, xq;
} sums;

static sums add_up(const double *x, const double *w, int n, double lo, double inv, int hi) {
    sums s = {0};
    for (int i = 0; i < n; i++) {
        double q = q4x_nearest(inv * (x[i] - lo), 0, hi);
        s.w += w[i];
        s.x += w[i] * x[i];
        s.xx += w[i] * x[i] * x[i];
        s.q += w[i] * q;
        s.qq += w[i] * q * q;
        s.xq += w[i] * x[i] * q;
    }
    return s;
}

void q4x_fit_affine(const double *x, const double *w, int n, int hi, int below, double *ret_s, double *ret_m) {
    double lo = x[0], top = x[0], least = INFINITY;
    for (int i = 1; i < n; i++) {
        if (x[i] < lo) lo = x[i];
        if (x[i] > top) top = x[i];
    }
    if (below && lo > 0) lo = 0;
    *ret_s = 0;
    *ret_m = lo;
    if (!(top > lo)) return;
    for (int k = -10; k <= 10; k++) {
        sums t = add_up(x, w, n, lo, (hi + 0.1 * k) / (top - lo), hi);
        double det = t.w * t.qq - t.q * t.q, s, m;
        if (det > 0) {
            s = (t.w * t.xq - t.x * t.q) / det;
            m = (t.qq * t.x - t.q * t.xq) / det;
        } else { /* one code for all */
            m = lo;
            s = t.qq > 0 ? (t.xq - lo * t.q) / t.qq : 0;
        }
        if (below && m > 0) {
            s = t.qq > 0 ? t.xq / t.qq : 0;
            m = 0;
        }
        double e = t.xx - 2 * s * t.xq - 2 * m * t.x + s * s * t.qq + 2 * s * m * t.q + m * m * t.w;
        if (!(e < least)) continue;
        least = e;
        *ret_s = s;
        *ret_m = m;
    }
}
