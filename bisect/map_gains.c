/* map_gains.c: inherited differences: out of proportion at one node, or as at every other node of its kind?
 *
 * gain = relative distance of the output / largest relative distance of the inputs, each as seen by the op
 * (map_measure.c). Where it is unsure what a distance is to be compared with, both choices are those that make the gain
 * smaller: a row of an output is divided by its own norm or by the median norm of all rows of its node, whichever is
 * larger, for where a sum cancels a row is small without any fault; a row of an input by its own norm alone, for an op
 * that normalises its rows gives the small ones the weight of the others. An input without a distance of its own stands
 * for its own inputs, unless it is a source, which adds to them what nobody knows, or differs in rows that were not
 * kept: often those of all nodes, so that its inputs would be those of the whole forward. Row t of an op that carries a
 * state is compared with the rows up to t: the state has seen them. Rows are judged where the inputs' own rows are
 * known: across unrecorded nodes a row may be amplified honestly (a sum that cancels, then a norm), and only tensors
 * are compared. A state that differs by an unknown distance leaves the gain unknown; nothing is guessed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/map_int.h"

/* What a reader of a node gets: relative distance as a whole and by row. */
typedef struct {
    double d;    /* 0: equal */
    double *row; /* [nrows]; NULL: equal (d = 0), or not known by row */
    int32_t row0, nrows;
    uint8_t own, unknown, through; /* through: an unrecorded node stands between */
} carry;

typedef struct {
    bis_map *m;
    const bis_pair *p;
    const bis_flips *flips;
    carry *c;      /* [nn] of the forward at hand */
    int32_t *kind; /* [nn] */
    double *came;  /* [nn] largest known distance that reached this node so far, through all forwards */
    double *usual; /* [nn] median norm of a row of this node in arm A, all comparable forwards; 0: not recorded */
    const char **kind_name;
    int32_t nkinds;
    bis_sample *s;
    int64_t ns, cap;
    char *mask;
    size_t mask_cap;
} work;

enum { MAX_ROWS = 4096 }; /* tensors with more kept rows are judged as a whole */

static int push(work *w, bis_sample s) {
    if (w->ns == w->cap) {
        int64_t cap = w->cap ? 2 * w->cap : 1024;
        bis_sample *v = realloc(w->s, sizeof *v * (size_t)cap);
        if (!v) return -1;
        w->s = v;
        w->cap = cap;
    }
    w->s[w->ns++] = s;
    return 0;
}

/* Distance over a norm that does not vanish: of one row, of the tensor. */
static double rel_row(const work *w, const bis_dist *d, int32_t n, int32_t t) {
    if (!(d->row_d[t] > 0)) return d->row_d[t];
    return d->row_d[t] / fmax(d->row_d[t] / d->row_rel[t], w->usual[n]);
}

static double rel_all(const work *w, const bis_dist *d, int32_t n) {
    if (!(d->d > 0)) return d->d;
    return d->d / fmax(d->norm, w->usual[n] * sqrt((double)(d->nrows ? d->nrows : 1)));
}

/* Of the rows that are not masked. */
static double rel_rest(const work *w, const bis_dist *d, int32_t n, const char *mask) {
    double e = 0, norm = 0, k = 0, u = w->usual[n];
    for (int32_t t = 0; t < d->nrows; t++) {
        if (mask[t]) continue;
        double r = d->row_d[t] > 0 ? d->row_d[t] / d->row_rel[t] : u;
        e += d->row_d[t] * d->row_d[t];
        norm += r * r;
        k++;
    }
    return e > 0 ? sqrt(e) / fmax(sqrt(norm), u * sqrt(k)) : 0;
}

/* Fold one input into what node n gets. Rows are known as long as every differing input is known by the same rows. */
static int fold(carry *to, const carry *from, int *rows_ok) {
    to->unknown |= from->unknown;
    to->through |= from->through;
    if (!(from->d > 0)) return 0;
    if (from->d > to->d) to->d = from->d;
    if (!from->row || (to->row && (to->row0 != from->row0 || to->nrows != from->nrows))) {
        *rows_ok = 0;
        return 0;
    }
    if (!to->row) {
        to->row = calloc((size_t)from->nrows + 1, sizeof *to->row);
        if (!to->row) return -1;
        to->own = 1;
        to->row0 = from->row0;
        to->nrows = from->nrows;
    }
    for (int32_t t = 0; t < to->nrows; t++)
        if (from->row[t] > to->row[t]) to->row[t] = from->row[t];
    return 0;
}

static void drop(carry *c) {
    if (c->own) free(c->row);
    *c = (carry){0};
}

/* Largest distance of the states that node n reads; *unknown when one differs by an unknown distance. */
static double states(const work *w, int32_t f, int32_t n, uint8_t *unknown) {
    double d = 0;
    for (int32_t i = 0; i < w->p->nst[n] && f > 0; i++) {
        int32_t s = w->p->st[n][i];
        bis_eq e = w->p->eq[bis_at(w->p, f - 1, s)];
        const bis_dist *x = bis_map_cell(w->m, w->p, f - 1, s)->dist;
        if (e == BIS_SAME) continue;
        if (e == BIS_DIFF && bis_dist_usable(x))
            d = fmax(d, x->rel);
        else
            *unknown = 1;
    }
    return d;
}

/* The distance that is known says nothing of the one that counts. */
static void not_known(carry *r) {
    const uint8_t through = r->through;
    drop(r);
    *r = (carry){.unknown = 1, .through = through};
}

/* What an op gets that sees its first input in another measure than the relative distance of its rows. */
static int measured(const work *w, int32_t f, int32_t n, carry *r) {
    double *row, e = 0;
    int by = bis_map_measure(w->m, w->p, f, n, &row);
    if (by < 0) return -1;
    if (by == BIS_BY_NOTHING) not_known(r);
    if (by == BIS_BY_ROOT) {
        r->d = sqrt(r->d);
        for (int32_t t = 0; r->row && t < r->nrows; t++) r->row[t] = sqrt(r->row[t]);
    }
    if (by != BIS_BY_OWN) return 0;
    const bis_dist *d = bis_map_cell(w->m, w->p, f, w->p->in[n][0])->dist;
    const int rows = r->row && r->row0 == d->row0 && r->nrows == d->nrows;
    for (int32_t t = 0; t < d->nrows; t++) {
        e += row[t] * row[t];
        if (rows && !(row[t] <= r->row[t])) r->row[t] = row[t];
    }
    e = sqrt(e / (d->nrows ? d->nrows : 1));
    free(row);
    if (!isfinite(e))
        not_known(r); /* a part of zeros */
    else if (!(e <= r->d))
        r->d = e;
    return 0;
}

static int gather(const work *w, int32_t f, int32_t n, carry *ret) {
    const bis_pair *p = w->p;
    int rows_ok = 1;
    carry r = {0};
    if (p->nin[n] + p->nst[n] == 0) r.unknown = 1;
    for (int32_t i = 0; i < p->nin[n]; i++) {
        int32_t j = p->in[n][i];
        if (j == Q4X_IN_IDS) continue;
        if (j >= n) {
            r.unknown = 1;
        } else if (fold(&r, &w->c[j], &rows_ok)) {
            drop(&r);
            return -1;
        }
    }
    if (measured(w, f, n, &r)) {
        drop(&r);
        return -1;
    }
    double d = states(w, f, n, &r.unknown);
    if (d > r.d) r.d = d;
    if (!rows_ok || (d > 0 && !r.row)) { /* a state alone reaches every row alike */
        if (r.own) free(r.row);
        r.row = NULL;
        r.own = 0;
    }
    for (int32_t t = 0; r.row && t < r.nrows; t++) {
        if (d > r.row[t]) r.row[t] = d;
        if (p->nst[n] && t && r.row[t - 1] > r.row[t]) r.row[t] = r.row[t - 1];
    }
    *ret = r;
    return 0;
}

/* NULL: no memory, never because there are no rows. */
static char *mask_for(work *w, int32_t rows) {
    const size_t n = (size_t)rows + 1;
    if (n > w->mask_cap) {
        char *v = realloc(w->mask, n);
        if (!v) return NULL;
        w->mask = v;
        w->mask_cap = n;
    }
    return w->mask;
}

/* Some input is unknown: is the difference far from those that are known? A state that is unknown holds what came in
 * forwards before, so the largest that ever came stands for it. Nothing known, or a selection that differs: no. */
static int far_off(work *w, int32_t f, int32_t n, const carry *in) {
    bis_cell *c = bis_map_cell(w->m, w->p, f, n);
    const bis_dist *d = c->dist;
    const int32_t rows = d->row_d ? d->nrows : (int32_t)fmin((double)w->p->ta[bis_at(w->p, f, n)]->rows, INT32_MAX);
    if (!(in->d > 0) || !bis_dist_usable(d)) return 0;
    w->came[n] = fmax(w->came[n], in->d);
    if (!bis_map_far(w->p, c, f, n, rel_all(w, d, n) / w->came[n])) return 0;
    char *mask = mask_for(w, rows);
    if (!mask) return -1;
    if (bis_flips_mask(w->p, w->flips, f, n, d->row_d ? d->row0 : 0, rows, mask)) return 0;
    c->why = BIS_R_inputs_not_recorded;
    if (w->m->far_f < 0) {
        w->m->far_f = f;
        w->m->far_n = n;
    }
    return 0;
}

/* Gains of one inherited difference. */
static int measure(work *w, int32_t f, int32_t n, const carry *in) {
    bis_cell *c = bis_map_cell(w->m, w->p, f, n);
    const bis_dist *d = c->dist;
    c->cls = BIS_C_PASSED;
    c->d_in = in->unknown ? NAN : in->d;
    if (d->nonfinite && !in->unknown) {
        c->cls = BIS_C_OUTLIER;
        c->why = BIS_R_distance_not_finite;
    }
    if (in->unknown || !(in->d > 0) || !bis_dist_usable(d)) {
        w->m->unjudged++;
        return in->unknown ? far_off(w, f, n, in) : 0;
    }
    c->gain = rel_all(w, d, n) / in->d;
    const q4x_tap *t0 = w->p->ta[bis_at(w->p, f, n)];
    const int has_rows = d->row_d != NULL;
    const int32_t all = t0->rows > INT32_MAX ? INT32_MAX : (int32_t)t0->rows;
    const int32_t row0 = has_rows ? d->row0 : 0, rows = has_rows ? d->nrows : all;
    char *mask = mask_for(w, rows);
    if (!mask) return -1;
    const int32_t flipped = bis_flips_mask(w->p, w->flips, f, n, row0, rows, mask);
    if (flipped) c->cls = BIS_C_FLIPPED;
    if (flipped && (!has_rows || flipped == rows)) return 0;
    double whole = flipped ? rel_rest(w, d, n, mask) / in->d : c->gain;
    if (whole > 0 && push(w, (bis_sample){w->kind[n], f, n, -1, 0, (rows - flipped) * t0->cols, whole})) return -1;
    const int by_row = in->row && has_rows && in->row0 == row0 && in->nrows == rows;
    /* a row in which nothing arrived has no gain: ops that fill some rows alone would have a median of 0 */
    for (int32_t t = 0; by_row && t < rows; t++)
        if (!mask[t] && in->row[t] > 0 && d->row_d[t] > 0 && isfinite(d->row_d[t]))
            if (push(w, (bis_sample){w->kind[n], f, n, t, in->through, t0->cols, rel_row(w, d, n, t) / in->row[t]}))
                return -1;
    return 0;
}

/* It differs, by a distance that is not known, and that of its inputs does not stand for it. */
static int stands_alone(const bis_cell *c) {
    return c->dist && (c->dist->nonfinite || c->dist->partial || c->in == BIS_SAME);
}

/* What readers of node n get, given what it got itself. Takes over in. */
static int publish(work *w, int32_t f, int32_t n, carry *in) {
    const bis_cell *c = bis_map_cell(w->m, w->p, f, n);
    const bis_dist *d = c->dist;
    bis_eq e = w->p->eq[bis_at(w->p, f, n)];
    if (e == BIS_SAME) {
        drop(in);
    } else if (e == BIS_DIFF && bis_dist_usable(d)) {
        drop(in);
        *in = (carry){.d = d->rel, .row0 = d->row0, .nrows = d->nrows};
        if (d->row_d && d->nrows <= MAX_ROWS) {
            in->row = malloc(((size_t)d->nrows + 1) * sizeof *in->row);
            if (!in->row) return -1;
            in->own = 1;
            for (int32_t t = 0; t < d->nrows; t++) in->row[t] = d->row_rel[t];
        }
    } else if (e == BIS_DIFF && stands_alone(c)) {
        drop(in);
        in->unknown = 1;
    } else {
        in->through = 1;
    }
    w->c[n] = *in;
    return 0;
}

/* What reaches a state, in whichever row, for it has seen all of them: what its op reads; of one that keeps rows, these
 * and the state before. */
static int gather_state(const work *w, int32_t f, int32_t s, carry *ret) {
    const int32_t op = w->p->writer[s][0], from = bis_kept_from(w->p, s);
    carry in = {0}, r = {0};
    int rows_ok = 1;
    if (from < 0 ? gather(w, f, op, &in) : fold(&in, &w->c[from], &rows_ok)) {
        drop(&in);
        return -1;
    }
    r.unknown = in.unknown;
    r.d = fmax(in.d, states(w, f, op, &r.unknown));
    for (int32_t t = 0; in.row && t < in.nrows; t++) r.d = fmax(r.d, in.row[t]);
    drop(&in);
    *ret = r;
    return 0;
}

/* A state that was not held against its source by rows (map_moves.c): for there is none, or it is not recorded. */
static int measure_state(work *w, int32_t f, int32_t s) {
    const bis_cell *c = bis_map_cell(w->m, w->p, f, s);
    carry in;
    if (!c->dist || c->in == BIS_SAME || c->cls != BIS_C_NONE) return 0;
    if (w->p->nwriter[s] != 1) {
        w->m->unjudged++;
        return 0;
    }
    return gather_state(w, f, s, &in) ? -1 : measure(w, f, s, &in);
}

static int forward(work *w, int32_t f) {
    const bis_pair *p = w->p;
    int rc = 0;
    for (int32_t n = 0; n < p->nn && !rc; n++) {
        const q4x_dump_node *k = &p->a->nodes[n];
        const bis_cell *c = bis_map_cell(w->m, p, f, n);
        carry in;
        if (k->is_state) continue;
        rc = gather(w, f, n, &in);
        if (rc) break;
        if (c->dist && c->in != BIS_SAME && k->alias < 0) rc = measure(w, f, n, &in);
        if (publish(w, f, n, &in)) rc = -1;
    }
    for (int32_t n = 0; n < p->nn && !rc; n++)
        if (p->a->nodes[n].is_state) rc = measure_state(w, f, n);
    for (int32_t n = 0; n < p->nn; n++) drop(&w->c[n]);
    return rc;
}

typedef struct {
    const char *kind;
    int32_t n;
} named;

static int by_name(const void *x, const void *y) {
    return strcmp(((const named *)x)->kind, ((const named *)y)->kind);
}

static int name_kinds(work *w) {
    const int32_t nn = w->p->nn;
    named *v = calloc((size_t)nn + 1, sizeof *v);
    w->kind_name = calloc((size_t)nn + 1, sizeof *w->kind_name);
    if (!v || !w->kind_name) {
        free(v);
        return -1;
    }
    for (int32_t n = 0; n < nn; n++) v[n] = (named){bis_kind(w->p->a->nodes[n].name), n};
    qsort(v, (size_t)nn, sizeof *v, by_name);
    for (int32_t i = 0; i < nn; i++) {
        if (i == 0 || strcmp(v[i - 1].kind, v[i].kind)) w->kind_name[w->nkinds++] = v[i].kind;
        w->kind[v[i].n] = w->nkinds - 1;
    }
    free(v);
    return 0;
}

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Median norm of the rows of every node. Rows of zero (nothing written there) and non-finite ones do not count. */
static int usual_norms(work *w) {
    const bis_pair *p = w->p;
    double *v = NULL;
    for (int32_t n = 0; n < p->nn; n++) {
        size_t k = 0;
        for (int32_t f = 0; f < p->ncomparable; f++) {
            const q4x_tap *t = p->ta[bis_at(p, f, n)];
            if (!t || !t->has_sketch || !t->sketch.row_sumsq) continue;
            double *more = realloc(v, (k + (size_t)t->sketch.nrows + 1) * sizeof *v);
            if (!more) {
                free(v);
                return -1;
            }
            v = more;
            for (int32_t r = 0; r < t->sketch.nrows; r++)
                if (t->sketch.row_sumsq[r] > 0 && isfinite(t->sketch.row_sumsq[r]))
                    v[k++] = sqrt(t->sketch.row_sumsq[r]);
        }
        if (!k) continue;
        qsort(v, k, sizeof *v, by_value);
        w->usual[n] = v[k / 2];
    }
    free(v);
    return 0;
}

int bis_map_gains(bis_map *m, const bis_pair *p, const bis_flips *s, q4x_err *err) {
    work w = {.m = m, .p = p, .flips = s};
    int rc = -1;
    w.c = calloc((size_t)p->nn + 1, sizeof *w.c);
    w.kind = calloc((size_t)p->nn + 1, sizeof *w.kind);
    w.came = calloc((size_t)p->nn + 1, sizeof *w.came);
    w.usual = calloc((size_t)p->nn + 1, sizeof *w.usual);
    if (!w.c || !w.kind || !w.came || !w.usual || name_kinds(&w) || usual_norms(&w)) goto done;
    for (int32_t f = 0; f < p->ncomparable; f++)
        if (forward(&w, f)) goto done;
    if (bis_map_outliers(m, p, w.s, w.ns, w.kind_name, w.nkinds)) goto done;
    rc = 0;
done:
    free(w.c);
    free(w.kind);
    free(w.came);
    free(w.usual);
    free(w.kind_name);
    free(w.s);
    free(w.mask);
    return rc ? q4x_fail(err, Q4X_E_NOMEM, "out of memory for the gains of %d nodes", p->nn) : 0;
}
