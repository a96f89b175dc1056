/* map_measure.c: in which measure of its input does an op amplify nothing?
 *
 * For most ops that is the relative distance of a row. Three kinds of op see another one, and a gain over the row's
 * would be large without any fault:
 *
 *   y_h = x_h / rms(x_h), a norm over each part of a row: a head, a stream. What counts is the relative distance of a
 *     part. Where one is small beside the others its difference is lost in the norm of the row, and shows again behind
 *     the op. The row of y is a mean over parts, whatever they are weighted with, so its relative distance is not above
 *     the largest of x's parts. Of rows that are kept whole that is known. Buckets hold sums over all parts, and tell
 *     the distance d of the row alone; but no part's is above it, and its smallest part's norm m was recorded (1.2 of
 *     lib/dump.h), so no relative one is above d / m: that bound stands for it. It is too large by as much as the parts
 *     differ in size, and a fault below it is passed. Where not even m is known, nothing is, and no gain is taken.
 *   p = softmax(z): || dp || <= max_i |p_i| * 2 max_i |dz_i|, whatever || z || is: what counts is the distance itself.
 *     The same for the chosen few, divided by their sum or not.
 *   g = sigmoid(sign(s) sqrt |s|): has no slope at 0, and | dg | <= sqrt(2 |ds|) / 4: what counts is the root.
 *
 * Where the parts lie is told by the op and its own groups (q4x_heads). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/align.h"
#include "bisect/map_int.h"

typedef enum { ROWS, ROOT, PARTS, ABSOLUTE } measure;

static measure measure_of(const q4x_dump_node *k) {
    static const struct {
        const char *op;
        measure m;
    } list[] = {{"gdn_norm", PARTS},       {"rmsnorm", PARTS},      {"l2norm", PARTS},
                {"moe_weights", ABSOLUTE}, {"attn_prob", ABSOLUTE}, {"ple_gate", ROOT}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (k->op && !strcmp(k->op, list[i].op)) return list[i].m;
    return ROWS;
}

static double relative(const float *a, const float *b, int32_t n) {
    double e = 0, norm = 0;
    for (int32_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        e += d * d;
        norm += (double)a[i] * (double)a[i];
    }
    return e > 0 ? sqrt(e / norm) : 0;
}

/* ---- parts ---- */

/* Columns of node n in forward f; 0: no record. */
static int64_t cols_of(const bis_pair *p, int32_t f, int32_t n) {
    const q4x_tap *t = n < 0 ? NULL : p->ta[bis_at(p, f, n)];
    return t ? t->cols : 0;
}

/* Groups of a node's output, as either arm has them. */
static const q4x_heads *groups_of(const bis_pair *p, int32_t n) {
    const q4x_heads *a = &p->a->nodes[n].heads;
    return a->axis || p->to_b[n] < 0 ? a : &p->b->nodes[p->to_b[n]].heads;
}

/* Streams of a dump that does not say which of its norms are taken part by part (before 1.2): as many as the embedding
 * was copied to, in rows that are as wide as those. 1: none. */
static int32_t streams(const bis_pair *p, int32_t f, int64_t cols) {
    for (int32_t w = 0; w < p->nn; w++) {
        const q4x_dump_node *k = &p->a->nodes[w];
        if (!k->op || strcmp(k->op, "widen") || p->nin[w] != 1) continue;
        const int64_t one = cols_of(p, f, p->in[w][0]);
        if (one < 1 || cols < one || cols % one || cols_of(p, f, w) != cols) return 1;
        return (int32_t)(cols / one);
    }
    return 1;
}

/* Columns of a row that earlier nodes of n's op take, which read the same: at most all of them. */
static int32_t before(const bis_pair *p, int32_t f, int32_t n, int64_t cols) {
    int64_t k = 0;
    for (int32_t i = p->in[n][0] + 1; i < n && k < cols; i++)
        if (p->nin[i] && p->in[i][0] == p->in[n][0] && !strcmp(p->a->nodes[i].op, p->a->nodes[n].op))
            k += cols_of(p, f, i);
    return (int32_t)(k < cols ? k : cols);
}

/* Where op n finds the parts of its first input, a row of so many columns. n 0: it takes the row as a whole. */
static q4x_parts parts_of(const bis_pair *p, int32_t f, int32_t n, int64_t cols) {
    const char *op = p->a->nodes[n].op;
    const q4x_heads *h = groups_of(p, n);
    q4x_parts r = {0, h->width, h->width, h->nv};
    if (h->axis != 1 || h->off || h->width < 1 || h->nv < 1) {
        const int32_t k = strcmp(op, "rmsnorm") ? 1 : streams(p, f, cols);
        r = (q4x_parts){0, (int32_t)(cols / k), (int32_t)(cols / k), k};
    } else if (!strcmp(op, "rmsnorm")) { /* a gate may lie between them */
        r.step = (int32_t)(cols / r.n);
    } else if (!strcmp(op, "l2norm")) { /* those that read one row take it one behind the other */
        r.off = before(p, f, n, cols);
    }
    if (r.n == 1 && r.width == cols) return (q4x_parts){0};
    return r;
}

/* The largest relative distance of a part, by row. -1: no memory; 1: values are not recorded. */
static int by_part(const bis_pair *p, int32_t f, int32_t n, const q4x_parts *part, double *row, int32_t rows) {
    bis_values v;
    int have;
    if (bis_values_get(p, f, n, &v, &have, NULL)) return -1;
    if (!have) return 1;
    const int fits = v.nrows == rows && part->off + (part->n - 1) * (int64_t)part->step + part->width <= v.cols;
    for (int64_t t = 0; fits && t < v.nrows; t++)
        for (int32_t i = 0; i < part->n; i++) {
            int64_t at = t * v.cols + part->off + (int64_t)i * part->step;
            double x = relative(v.a + at, v.b + at, part->width);
            if (!(x <= row[t])) row[t] = x; /* a NaN stays: that row has no gain */
        }
    bis_values_free(&v);
    return !fits;
}

/* The bound of it. 1: how large the parts are is not recorded. */
static int by_least_part(const bis_pair *p, int32_t f, int32_t n, const bis_dist *d, double *row) {
    const q4x_sketch *a = &p->ta[bis_at(p, f, n)]->sketch, *b = &p->tb[bis_at(p, f, n)]->sketch;
    const double *least = a->row_least ? a->row_least : b->row_least;
    if (!least || a->nrows != d->nrows || b->nrows != d->nrows) return 1;
    for (int32_t t = 0; t < d->nrows; t++) row[t] = d->row_d[t] > 0 ? d->row_d[t] / sqrt(least[t]) : 0;
    return 0;
}

/* ---- the measure ---- */

int bis_map_measure(const bis_map *m, const bis_pair *p, int32_t f, int32_t n, double **ret) {
    const measure how = measure_of(&p->a->nodes[n]);
    const int32_t j = p->nin[n] ? p->in[n][0] : Q4X_IN_IDS;
    *ret = NULL;
    if (how == ROOT) return BIS_BY_ROOT;
    if (how == ROWS || j < 0 || j >= n || p->eq[bis_at(p, f, j)] != BIS_DIFF) return BIS_BY_ROW;
    const bis_dist *d = bis_map_cell(m, p, f, j)->dist;
    if (!bis_dist_usable(d) || !d->row_d) return BIS_BY_ROW; /* it stands for its own inputs */
    const q4x_parts part = how == PARTS ? parts_of(p, f, n, cols_of(p, f, j)) : (q4x_parts){0};
    if (how == PARTS && !part.n) return BIS_BY_ROW;
    double *row = calloc((size_t)d->nrows + 1, sizeof *row);
    if (!row) return -1;
    int rc = 0;
    if (how == ABSOLUTE)
        memcpy(row, d->row_d, (size_t)d->nrows * sizeof *row);
    else if ((rc = by_part(p, f, j, &part, row, d->nrows)) > 0)
        rc = by_least_part(p, f, j, d, row);
    if (rc) {
        free(row);
        return rc < 0 ? -1 : BIS_BY_NOTHING;
    }
    *ret = row;
    return BIS_BY_OWN;
}
