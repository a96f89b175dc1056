#include "bisect/distance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/align.h"
#include "kernels/round.h"

/* Position of x on the line of all floats: neighbours differ by 1, -0 and +0 are one place. */
static int64_t ordinal(float x) {
    uint32_t u = k_f32_bits(x);
    int64_t m = (int64_t)(u & 0x7fffffffu);
    return u & 0x80000000u ? -m : m;
}

static void count_ulp(bis_dist *r, int64_t u) {
    static const int64_t edge[BIS_NULP - 1] = {1, 2, 4, 16, 256};
    int k = 0;
    while (k < BIS_NULP - 1 && u > edge[k]) k++;
    r->ulp[k]++;
    if (u > r->ulp_max) r->ulp_max = u;
}

/* Keep the largest BIS_NTOP squares in top[], ascending. */
static void keep_top(double top[BIS_NTOP], double q) {
    if (!(q > top[0])) return;
    int i = 0;
    for (; i + 1 < BIS_NTOP && top[i + 1] < q; i++) top[i] = top[i + 1];
    top[i] = q;
}

static int on_bf16(const bis_values *v) {
    for (int64_t i = 0; i < v->nrows * v->cols; i++)
        if ((k_f32_bits(v->a[i]) | k_f32_bits(v->b[i])) & 0xffffu) return 0;
    return 1;
}

/* Exact distance, rows ascending, elements ascending, f64. A pair of equal non-finite values (NaNs of any payload,
 * infinities of one sign) is no difference; any other non-finite value makes the distance NaN. */
static void exact(const bis_values *v, bis_dist *r) {
    double top[BIS_NTOP] = {0}, e = 0, na = 0;
    r->how = BIS_D_EXACT;
    r->ndiff = r->ulp_max = 0;
    r->max_abs = 0;
    r->ulp16 = on_bf16(v);
    for (int64_t t = 0; t < v->nrows; t++) {
        double re = 0, rn = 0;
        for (int64_t i = t * v->cols; i < (t + 1) * v->cols; i++) {
            float x = v->a[i], y = v->b[i];
            if (isfinite(x)) rn += (double)x * (double)x;
            if (k_f32_bits(x) == k_f32_bits(y) || (isnan(x) && isnan(y))) continue;
            r->ndiff++;
            if (!isfinite(x) || !isfinite(y)) {
                r->nonfinite = 1;
                continue;
            }
            double d = (double)x - (double)y;
            int64_t u = llabs(ordinal(x) - ordinal(y));
            count_ulp(r, r->ulp16 ? u >> 16 : u);
            re += d * d;
            keep_top(top, d * d);
            if (fabs(d) > r->max_abs) r->max_abs = fabs(d);
        }
        if (r->row_d) {
            r->row_d[t] = sqrt(re);
            r->row_rel[t] = re > 0 ? sqrt(re) / sqrt(rn) : 0;
        }
        e += re;
        na += rn;
    }
    double big = 0;
    for (int i = 0; i < BIS_NTOP; i++) big += top[i];
    r->d = r->lo = r->hi = sqrt(e);
    r->norm = sqrt(na);
    r->share16 = e > 0 ? big / e : NAN;
}

static int alloc_rows(bis_dist *r, int64_t nrows, q4x_err *err) {
    r->nrows = (int32_t)nrows;
    r->row_d = calloc((size_t)(nrows ? nrows : 1), sizeof *r->row_d);
    r->row_rel = calloc((size_t)(nrows ? nrows : 1), sizeof *r->row_rel);
    if (r->row_d && r->row_rel) return 0;
    return q4x_fail(err, Q4X_E_NOMEM, "out of memory for %lld row distances", (long long)nrows);
}

static int sketched(const q4x_tap *a, const q4x_tap *b, bis_dist *r, q4x_err *err) {
    q4x_sketch_dist s;
    int rc = alloc_rows(r, a->sketch.nrows, err);
    if (!rc) rc = q4x_sketch_compare(&a->sketch, &b->sketch, &s, r->row_d, err);
    if (rc) return rc;
    double na = 0;
    for (int32_t t = 0; t < r->nrows; t++) {
        double n = a->sketch.row_sumsq ? a->sketch.row_sumsq[t] : NAN;
        na += n;
        r->row_d[t] = sqrt(r->row_d[t]);
        r->row_rel[t] = r->row_d[t] > 0 ? r->row_d[t] / sqrt(n) : 0;
    }
    r->how = BIS_D_SKETCH;
    r->width = a->sketch.width;
    r->sparse = s.sparse;
    r->below_floor = s.below_floor;
    r->nonfinite = a->sketch.skipped || b->sketch.skipped;
    r->d = sqrt(s.e);
    r->lo = sqrt(s.lo);
    r->hi = sqrt(s.hi);
    r->norm = sqrt(na);
    r->share16 = s.top_share;
    return 0;
}

/* Norms alone: the reverse triangle inequality. */
static void bounded(const q4x_stats *a, const q4x_stats *b, bis_dist *r) {
    r->how = BIS_D_BOUND;
    r->norm = sqrt(a->sumsq);
    r->d = r->lo = fabs(sqrt(a->sumsq) - sqrt(b->sumsq));
    r->hi = INFINITY;
    if (isnan(r->d)) { /* sums of |x| only: |sum|a| - sum|b|| <= ||a-b||_1 <= sqrt(n) ||a-b||_2 */
        double n = (double)(a->n ? a->n : 1);
        r->norm = a->sumabs / sqrt(n); /* not above ||a||_2: rel stays comparable with the ratio of sums */
        r->d = r->lo = fabs(a->sumabs - b->sumabs) / sqrt(n);
    }
    r->nonfinite = a->nan + a->pinf + a->ninf + b->nan + b->pinf + b->ninf > 0;
}

static bis_dist not_known(void) {
    return (bis_dist){.d = NAN,
                      .lo = NAN,
                      .hi = NAN,
                      .norm = NAN,
                      .rel = NAN,
                      .max_abs = NAN,
                      .share16 = NAN,
                      .ndiff = -1,
                      .ulp_max = -1};
}

/* The difference lies in rows that were not kept: those that were tell nothing of it, and the norms of the whole tensor
 * a little, where its values are finite. */
static void elsewhere(const bis_pair *p, int32_t f, int32_t n, bis_dist *r) {
    const q4x_tap *a = p->ta[bis_at(p, f, n)], *b = p->tb[bis_at(p, f, n)];
    bis_dist_free(r);
    *r = not_known();
    if (a->has_stats && b->has_stats && !p->heads_differ[n]) bounded(&a->stats, &b->stats, r);
    if (r->nonfinite) *r = not_known();
    r->partial = 1;
}

int bis_distance(const bis_pair *p, int32_t f, int32_t n, bis_dist *ret, q4x_err *err) {
    const q4x_tap *a = p->ta[bis_at(p, f, n)], *b = p->tb[bis_at(p, f, n)];
    bis_dist r = not_known();
    bis_values v;
    int have, rc;
    TRY(bis_values_get(p, f, n, &v, &have, err));
    if (have) {
        r.row0 = (int32_t)v.row0;
        r.partial = v.nrows != a->rows;
        rc = alloc_rows(&r, v.nrows, err);
        if (!rc) exact(&v, &r);
        bis_values_free(&v);
        if (rc) goto done;
    } else if (p->heads_differ[n]) {
        ; /* sums of permuted values tell nothing about the distance of aligned ones */
    } else if (a->has_sketch && b->has_sketch && a->sketch.row0 == b->sketch.row0 &&
               a->sketch.nrows == b->sketch.nrows && a->sketch.width == b->sketch.width &&
               a->sketch.raw == b->sketch.raw) {
        r.row0 = a->sketch.row0;
        r.partial = a->sketch.nrows != a->rows;
        TRY(sketched(a, b, &r, err));
    } else if (a->has_stats && b->has_stats) {
        bounded(&a->stats, &b->stats, &r);
    }
    if (r.partial && !r.nonfinite && r.d == 0) elsewhere(p, f, n, &r);
    if (r.nonfinite) r.d = r.lo = r.hi = NAN;
    if (r.how != BIS_D_NONE) r.rel = r.d == 0 ? 0 : r.d / r.norm;
    *ret = r;
    return 0;
done:
    bis_dist_free(&r);
    return rc;
}

void bis_dist_free(bis_dist *d) {
    free(d->row_d);
    free(d->row_rel);
    d->row_d = d->row_rel = NULL;
}
