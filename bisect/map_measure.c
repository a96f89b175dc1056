/* map_measure.c: in which measure of its input does an op amplify nothing?
 *
 * For most ops that is the relative distance of a row. Three kinds of op see another one, and a gain over the row's
 * would be large without any fault:
 *
 *   y_h = x_h / rms(x_h), a norm over each head: what counts is the relative distance of a head. Where one head is
 *     small beside the others its difference is lost in the norm of the row, and shows again behind the op. The row of
 *     y is a mean over heads, so its relative distance is not above the largest of x's heads.
 *   p = softmax(z): || dp || <= max_i |p_i| * 2 max_i |dz_i|, whatever || z || is: what counts is the distance itself.
 *     The same for the chosen few, divided by their sum or not.
 *   g = sigmoid(sign(s) sqrt |s|): has no slope at 0, and | dg | <= sqrt(2 |ds|) / 4: what counts is the root. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/align.h"
#include "bisect/map_int.h"

typedef enum { ROWS, ROOT, HEADS, ABSOLUTE } measure;

static measure measure_of(const q4x_dump_node *k) {
    static const struct {
        const char *op;
        measure m;
    } list[] = {{"gdn_norm", HEADS}, {"moe_weights", ABSOLUTE}, {"attn_prob", ABSOLUTE}, {"ple_gate", ROOT}};
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

/* The largest relative distance of a head, by row. -1: no memory; 1: not recorded. */
static int by_head(const bis_pair *p, int32_t f, int32_t n, double *row, int32_t rows) {
    const q4x_heads *h = &p->a->nodes[n].heads;
    bis_values v;
    int have;
    if (h->axis != 1 || h->off < 0 || h->width < 1 || h->nv < 1) return 1;
    if (bis_values_get(p, f, n, &v, &have, NULL)) return -1;
    if (!have) return 1;
    const int fits = v.nrows == rows && h->off + (int64_t)h->nv * h->width <= v.cols;
    for (int64_t t = 0; fits && t < v.nrows; t++)
        for (int32_t i = 0; i < h->nv; i++) {
            int64_t at = t * v.cols + h->off + (int64_t)i * h->width;
            double x = relative(v.a + at, v.b + at, h->width);
            if (!(x <= row[t])) row[t] = x; /* a NaN stays: that row has no gain */
        }
    bis_values_free(&v);
    return !fits;
}

int bis_map_measure(const bis_map *m, const bis_pair *p, int32_t f, int32_t n, double **ret) {
    const measure how = measure_of(&p->a->nodes[n]);
    const int32_t j = p->nin[n] ? p->in[n][0] : Q4X_IN_IDS;
    *ret = NULL;
    if (how == ROOT) return BIS_BY_ROOT;
    if (how == ROWS || j < 0 || j >= n || p->eq[bis_at(p, f, j)] != BIS_DIFF) return BIS_BY_ROW;
    const bis_dist *d = bis_map_cell(m, p, f, j)->dist;
    if (!bis_dist_usable(d) || !d->row_d) return BIS_BY_ROW; /* it stands for its own inputs */
    double *row = calloc((size_t)d->nrows + 1, sizeof *row);
    if (!row) return -1;
    int rc = 0;
    if (how == HEADS)
        rc = by_head(p, f, j, row, d->nrows);
    else
        memcpy(row, d->row_d, (size_t)d->nrows * sizeof *row);
    if (rc) {
        free(row);
        return rc < 0 ? -1 : BIS_BY_NOTHING;
    }
    *ret = row;
    return BIS_BY_OWN;
}
