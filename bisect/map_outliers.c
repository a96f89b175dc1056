/* map_outliers.c: what gain is usual for a kind of node, and which are far above it.
 *
 * False alarms: a gain is measured so that an op without fault cannot have a large one (map_gains.c, map_measure.c);
 * what is left is chance, and how ill-conditioned single rows are. Both are allowed for by the kind's own scatter, by
 * how few tensors and elements there are, and by what the node itself may add. tests/t_rates.c counts what remains. */
#include <stdlib.h>
#include <string.h>

#include "bisect/map_int.h"

static int by_kind(const void *x, const void *y) {
    const bis_sample *a = x, *b = y;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->soft != b->soft) return a->soft - b->soft;
    if ((a->row < 0) != (b->row < 0)) return a->row < 0 ? -1 : 1;
    if (a->f != b->f) return a->f < b->f ? -1 : 1;
    return (a->n > b->n) - (a->n < b->n);
}

static int by_place(const void *x, const void *y) {
    const bis_sample *a = x, *b = y;
    if (a->f != b->f) return a->f < b->f ? -1 : 1;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median_of(double *v, int64_t n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

/* The usual gain of one kind: the median over tensors of each tensor's median. A tensor with many rows has one vote, so
 * that a fault in all rows of a long prefill cannot become the rule. s: samples of the kind, those of a tensor
 * together. */
static double usual(const bis_sample *s, int64_t n, double *row, double *of, int64_t *ret_n) {
    int64_t k = 0;
    for (int64_t i = 0, j; i < n; i = j) {
        for (j = i; j < n && s[j].f == s[i].f && s[j].n == s[i].n; j++) row[j - i] = s[j].g;
        of[k++] = median_of(row, j - i);
    }
    *ret_n = k;
    return median_of(of, k);
}

/* Standard deviation of the logarithm: the median over tensors of the deviation that 9 of 10 rows of a tensor do not
 * exceed, over that quantile of a normal. */
static double scatter(const bis_sample *s, int64_t n, double usual_gain, double *row, double *of) {
    int64_t k = 0;
    for (int64_t i = 0, j; i < n; i = j) {
        for (j = i; j < n && s[j].f == s[i].f && s[j].n == s[i].n; j++) row[j - i] = fabs(log(s[j].g / usual_gain));
        qsort(row, (size_t)(j - i), sizeof *row, by_value);
        of[k++] = row[9 * (j - i - 1) / 10];
    }
    return median_of(of, k) / 1.645;
}

/* Few elements know little about the size of the difference that passes through them: how far the norm of n independent
 * errors of one size lies above its median, once in 10^9 (6 deviations of a chi-square variable, by Wilson and
 * Hilferty). BIS_GAIN_LIMIT is for WIDE elements and more; one element may be 7.8 times as far off, 4 three times. */
static double spread(int64_t n) {
    double v = 2.0 / (9.0 * (double)(n > 0 ? n : 1));
    return pow(1 + 6 * sqrt(v) / (1 - v), 1.5);
}
static double few(int64_t n) {
    enum { WIDE = 256 };
    return n < WIDE ? spread(n) / spread(WIDE) : 1;
}

static int medians(bis_map *m, bis_sample *s, int64_t ns, const char *const *kind_name, int32_t nkinds) {
    double *row = malloc(((size_t)ns + 1) * sizeof *row), *of = malloc(((size_t)ns + 1) * sizeof *of);
    m->gain = calloc((size_t)nkinds + 1, sizeof *m->gain);
    int rc = !m->gain || !row || !of ? -1 : 0;
    m->ngains = rc ? 0 : nkinds;
    for (int32_t k = 0; k < m->ngains; k++)
        m->gain[k] = (bis_gain){.kind = kind_name[k], .median = NAN, .row_median = NAN};
    if (ns && !rc) qsort(s, (size_t)ns, sizeof *s, by_kind);
    for (int64_t i = 0, j; i < ns && !rc; i = j) {
        for (j = i; j < ns && s[j].kind == s[i].kind && s[j].soft == s[i].soft && (s[j].row < 0) == (s[i].row < 0);)
            j++;
        if (s[i].soft) continue;
        bis_gain *g = &m->gain[s[i].kind];
        int64_t n, least = s[i].elems;
        for (int64_t k = i; k < j; k++) least = s[k].elems < least ? s[k].elems : least;
        double med = usual(s + i, j - i, row, of, &n);
        double times = BIS_GAIN_LIMIT * (1 + 12.0 / (double)n), wide = exp(3 * scatter(s + i, j - i, med, row, of));
        double base = n < BIS_GAIN_MIN_N ? 1 : med; /* two tensors cannot outvote one of them */
        double limit = fmax(base * few(least) * fmax(times, n < BIS_GAIN_MIN_N ? 0 : wide), BIS_GAIN_FLOOR);
        if (s[i].row < 0) {
            g->median = med;
            g->limit = limit;
            g->n = n;
        } else {
            g->row_median = med;
            g->row_limit = limit;
            g->row_n = n;
        }
    }
    free(row);
    free(of);
    return rc;
}

/* An arm whose values all lie on the bf16 grid rounds when it stores them: rms 0.737 2^-8 / sqrt(3) of the norm. */
static double grid_rounding(const q4x_tap *t) {
    const q4x_stats *s = &t->stats;
    if (!t->has_stats || s->n == 0 || s->on_bf16 != s->n - s->nan - s->pinf - s->ninf) return 0;
    return 0.737 * 0x1p-8 / sqrt(3);
}

/* What the node itself adds, expected, over the norm of its output: its recorded band, else the grid of its values; 0
 * when neither is known. */
static double own_rounding(const bis_pair *p, int32_t f, int32_t n, const bis_cell *c) {
    const q4x_tap *a = p->ta[bis_at(p, f, n)], *b = p->tb[bis_at(p, f, n)];
    double all = a->has_stats ? sqrt(a->stats.sumsq) : c->dist->norm; /* the band is that of the whole tensor */
    if (c->rms >= 0) return all > 0 ? c->rms / all : 0;
    double x = grid_rounding(a), y = grid_rounding(b);
    return sqrt(x * x + y * y);
}

/* The difference fits into what the node itself may add. */
static int fits_band(const bis_pair *p, const bis_cell *c, int32_t f, int32_t n, int32_t row) {
    const bis_dist *d = c->dist;
    const double may = BIS_BAND_LIMIT * own_rounding(p, f, n, c);
    if (row < 0) return d->hi <= may * d->norm;
    return d->row_d[row] <= may * (d->row_d[row] / d->row_rel[row]); /* the row's part: by its part of the norm */
}

/* 8 (1 + 12 / n) of n = 1 is the largest limit there is of a usual gain of 1. */
int bis_map_far(const bis_pair *p, const bis_cell *c, int32_t f, int32_t n, double gain) {
    const q4x_tap *t = p->ta[bis_at(p, f, n)];
    return gain > BIS_GAIN_LIMIT * (1 + 12.0) * few(t->rows * t->cols) && !fits_band(p, c, f, n, -1);
}

static int add_outlier(bis_map *m, bis_outlier o) {
    bis_outlier *v = realloc(m->outlier, sizeof *v * (size_t)(m->noutliers + 1));
    if (!v) return -1;
    m->outlier = v;
    v[m->noutliers++] = o;
    return 0;
}

/* Samples of one tensor, the whole first (row -1), then by row: rows above their limit, else the whole above its; then
 * the row of the largest gain is named, if it is above the tensor's limit too. */
static int judge(bis_map *m, const bis_pair *p, const bis_sample *s, int64_t n) {
    bis_cell *c = bis_map_cell(m, p, s->f, s->n);
    const bis_gain *g = &m->gain[s->kind];
    bis_outlier o = {.forward = s->f, .node = s->n, .row = -1};
    const int has_whole = s[0].row < 0;
    for (int64_t i = has_whole; i < n; i++) {
        if (s[i].soft || s[i].g <= g->row_limit || fits_band(p, c, s->f, s->n, s[i].row)) continue;
        if (!o.nrows++ || s[i].g > o.gain)
            o = (bis_outlier){s->f,   s->n, s[i].g, g->row_median, g->row_limit, g->row_n, c->dist->row0 + s[i].row,
                              o.nrows};
    }
    if (!o.nrows && has_whole && !(s[0].g <= g->limit) && !fits_band(p, c, s->f, s->n, -1)) {
        o = (bis_outlier){s->f, s->n, s[0].g, g->median, g->limit, g->n, -1, 0};
        for (int64_t i = 1, best = 0; i < n; i++) {
            if (!(s[i].g > g->limit)) continue;
            o.nrows++;
            if (best && s[i].g <= s[best].g) continue;
            best = i;
            o.row = c->dist->row0 + s[i].row;
        }
    } else if (!o.nrows) {
        return 0;
    }
    c->cls = BIS_C_OUTLIER;
    c->why = BIS_R_gain_outlier;
    c->nout = o.nrows;
    return add_outlier(m, o);
}

int bis_map_outliers(bis_map *m, const bis_pair *p, bis_sample *s, int64_t n, const char *const *kind_name,
                     int32_t nkinds) {
    if (medians(m, s, n, kind_name, nkinds)) return -1;
    if (n) qsort(s, (size_t)n, sizeof *s, by_place);
    for (int64_t i = 0, j; i < n; i = j) {
        for (j = i; j < n && s[j].f == s[i].f && s[j].n == s[i].n;) j++;
        if (judge(m, p, s + i, j - i)) return -1;
    }
    return 0;
}
