/* map_gains.c: inherited differences: out of proportion at one node, or as at every other node of its kind?
 *
 * gain = relative distance of the output / largest relative distance of the inputs. An input without a distance of its
 * own stands for its own inputs. Row t of an op that carries a state is compared with the rows up to t: the state has
 * seen them. A state that differs by an unknown distance leaves the gain unknown; nothing is guessed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/map.h"

/* What a reader of a node gets: relative distance as a whole and by row. */
typedef struct {
    double d;    /* 0: equal */
    double *row; /* [nrows]; NULL: equal (d = 0), or not known by row */
    int32_t row0, nrows;
    uint8_t own, unknown;
} carry;

typedef struct {
    int32_t kind, f, n, row; /* row -1: whole tensor */
    double g;
} sample;

typedef struct {
    bis_map *m;
    const bis_pair *p;
    const bis_flips *flips;
    carry *c;      /* [nn] of the forward at hand */
    int32_t *kind; /* [nn] */
    const char **kind_name;
    int32_t nkinds;
    sample *s;
    int64_t ns, cap;
    char *mask;
    size_t mask_cap;
} work;

enum { MAX_ROWS = 4096 }; /* tensors with more kept rows are judged as a whole */

static int push(work *w, sample s) {
    if (w->ns == w->cap) {
        int64_t cap = w->cap ? 2 * w->cap : 1024;
        sample *v = realloc(w->s, sizeof *v * (size_t)cap);
        if (!v) return -1;
        w->s = v;
        w->cap = cap;
    }
    w->s[w->ns++] = s;
    return 0;
}

static int usable(const bis_dist *d) {
    return bis_dist_ranked(d) && isfinite(d->rel);
}

/* Fold one input into what node n gets. Rows are known as long as every differing input is known by the same rows. */
static int fold(carry *to, const carry *from, int *rows_ok) {
    to->unknown |= from->unknown;
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
        if (e == BIS_DIFF && usable(x))
            d = x->rel > d ? x->rel : d;
        else
            *unknown = 1;
    }
    return d;
}

static int gather(const work *w, int32_t f, int32_t n, carry *ret) {
    const bis_pair *p = w->p;
    int rows_ok = 1;
    carry r = {0};
    if (p->nin[n] + p->nst[n] == 0) r.unknown = 1;
    for (int32_t i = 0; i < p->nin[n]; i++) {
        int32_t j = p->in[n][i];
        if (j == Q4X_IN_IDS) continue;
        if (j >= n)
            r.unknown = 1;
        else if (fold(&r, &w->c[j], &rows_ok)) {
            drop(&r);
            return -1;
        }
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

static char *mask_for(work *w, int32_t rows) {
    if ((size_t)rows > w->mask_cap) {
        char *v = realloc(w->mask, (size_t)rows);
        if (!v) return NULL;
        w->mask = v;
        w->mask_cap = (size_t)rows;
    }
    return w->mask;
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
    if (in->unknown || !(in->d > 0) || !usable(d)) {
        w->m->unjudged++;
        return 0;
    }
    c->gain = d->rel / in->d;
    const int64_t all = w->p->ta[bis_at(w->p, f, n)]->rows;
    const int by_row = in->row && d->row_rel && in->row0 == d->row0 && in->nrows == d->nrows;
    const int32_t row0 = by_row ? d->row0 : 0, rows = by_row ? d->nrows : all > INT32_MAX ? INT32_MAX : (int32_t)all;
    char *mask = mask_for(w, rows);
    if (!mask) return -1;
    const int32_t flipped = bis_flips_mask(w->p, w->flips, f, n, row0, rows, mask);
    if (flipped) {
        c->cls = BIS_C_FLIPPED;
        if (!by_row || flipped == rows) return 0;
    } else if (push(w, (sample){w->kind[n], f, n, -1, c->gain})) {
        return -1;
    }
    for (int32_t t = 0; by_row && t < rows; t++)
        if (!mask[t] && in->row[t] > 0 && isfinite(d->row_rel[t]))
            if (push(w, (sample){w->kind[n], f, n, t, d->row_rel[t] / in->row[t]})) return -1;
    return 0;
}

/* What readers of node n get, given what it got itself. Takes over in. */
static void publish(work *w, int32_t f, int32_t n, carry *in) {
    const bis_dist *d = bis_map_cell(w->m, w->p, f, n)->dist;
    bis_eq e = w->p->eq[bis_at(w->p, f, n)];
    if (e == BIS_SAME) {
        drop(in);
    } else if (e == BIS_DIFF && usable(d)) {
        drop(in);
        *in = (carry){.d = d->rel, .row = d->nrows <= MAX_ROWS ? d->row_rel : NULL, .row0 = d->row0, .nrows = d->nrows};
    } else if (e == BIS_DIFF && !w->p->a->nodes[n].is_ids && d && d->nonfinite) {
        drop(in);
        in->unknown = 1;
    }
    w->c[n] = *in;
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
        publish(w, f, n, &in);
    }
    for (int32_t n = 0; n < p->nn; n++) drop(&w->c[n]);
    return rc;
}

static int by_kind(const void *x, const void *y) {
    const sample *a = x, *b = y;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if ((a->row < 0) != (b->row < 0)) return a->row < 0 ? -1 : 1;
    return (a->g > b->g) - (a->g < b->g);
}

static int by_place(const void *x, const void *y) {
    const sample *a = x, *b = y;
    if (a->f != b->f) return a->f < b->f ? -1 : 1;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

static double middle(const sample *s, int64_t n) {
    return n % 2 ? s[n / 2].g : 0.5 * (s[n / 2 - 1].g + s[n / 2].g);
}

static int medians(work *w) {
    bis_map *m = w->m;
    m->gain = calloc((size_t)w->nkinds + 1, sizeof *m->gain);
    if (!m->gain) return -1;
    m->ngains = w->nkinds;
    for (int32_t k = 0; k < w->nkinds; k++)
        m->gain[k] = (bis_gain){.kind = w->kind_name[k], .median = NAN, .row_median = NAN};
    if (w->ns) qsort(w->s, (size_t)w->ns, sizeof *w->s, by_kind);
    for (int64_t i = 0, j; i < w->ns; i = j) {
        for (j = i; j < w->ns && w->s[j].kind == w->s[i].kind && (w->s[j].row < 0) == (w->s[i].row < 0);) j++;
        bis_gain *g = &m->gain[w->s[i].kind];
        if (w->s[i].row < 0) {
            g->median = middle(w->s + i, j - i);
            g->n = j - i;
        } else {
            g->row_median = middle(w->s + i, j - i);
            g->row_n = j - i;
        }
    }
    return 0;
}

/* The difference fits into what the node itself may add. */
static int fits_band(const bis_cell *c, int32_t row) {
    const bis_dist *d = c->dist;
    if (!(c->rms >= 0)) return 0;
    if (row < 0) return d->hi <= BIS_BAND_LIMIT * c->rms && !d->partial;
    double norm = d->row_d[row] / d->row_rel[row]; /* the row's part of the band: by its part of the norm */
    return d->row_d[row] <= BIS_BAND_LIMIT * c->rms * (norm / d->norm);
}

static int add_outlier(bis_map *m, bis_outlier o) {
    bis_outlier *v = realloc(m->outlier, sizeof *v * (size_t)(m->noutliers + 1));
    if (!v) return -1;
    m->outlier = v;
    v[m->noutliers++] = o;
    return 0;
}

/* All samples of one tensor: by row where rows are known, else as a whole. */
static int judge(work *w, const sample *s, int64_t n) {
    bis_map *m = w->m;
    bis_cell *c = bis_map_cell(m, w->p, s->f, s->n);
    const bis_gain *g = &m->gain[s->kind];
    bis_outlier o = {.forward = s->f, .node = s->n, .row = -1};
    const int by_row = s[n - 1].row >= 0;
    const double med = by_row ? g->row_median : g->median;
    o.n = by_row ? g->row_n : g->n;
    o.median = med;
    if (o.n < BIS_GAIN_MIN_N) return 0;
    for (int64_t i = 0; i < n; i++) {
        if ((s[i].row >= 0) != by_row || s[i].g <= BIS_GAIN_LIMIT * med || fits_band(c, s[i].row)) continue;
        if (!o.nrows || s[i].g > o.gain) {
            o.gain = s[i].g;
            o.row = by_row ? c->dist->row0 + s[i].row : -1;
        }
        o.nrows++;
    }
    if (!o.nrows) return 0;
    c->cls = BIS_C_OUTLIER;
    c->why = BIS_R_gain_outlier;
    c->nout = o.nrows;
    return add_outlier(m, o);
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

int bis_map_gains(bis_map *m, const bis_pair *p, const bis_flips *s, q4x_err *err) {
    work w = {.m = m, .p = p, .flips = s};
    int rc = -1;
    w.c = calloc((size_t)p->nn + 1, sizeof *w.c);
    w.kind = calloc((size_t)p->nn + 1, sizeof *w.kind);
    if (!w.c || !w.kind || name_kinds(&w)) goto done;
    for (int32_t f = 0; f < p->ncomparable; f++)
        if (forward(&w, f)) goto done;
    if (medians(&w)) goto done;
    if (w.ns) qsort(w.s, (size_t)w.ns, sizeof *w.s, by_place);
    for (int64_t i = 0, j; i < w.ns; i = j) {
        for (j = i; j < w.ns && w.s[j].f == w.s[i].f && w.s[j].n == w.s[i].n;) j++;
        if (judge(&w, w.s + i, j - i)) goto done;
    }
    rc = 0;
done:
    free(w.c);
    free(w.kind);
    free(w.kind_name);
    free(w.s);
    free(w.mask);
    return rc ? q4x_fail(err, Q4X_E_NOMEM, "out of memory for the gains of %d nodes", p->nn) : 0;
}

/* ---- naming the inputs ---- */

enum { MAX_DEPTH = 1000 };

typedef struct {
    const bis_map *m;
    const bis_pair *p;
    int32_t f, *ret;
    int n, max;
    char *seen;
} search;

static void ancestors(search *s, int32_t n, int depth) {
    const bis_pair *p = s->p;
    if (depth > MAX_DEPTH) return;
    for (int32_t i = 0; i < p->nin[n]; i++) {
        int32_t j = p->in[n][i];
        if (j < 0 || j >= n || s->seen[j]) continue;
        s->seen[j] = 1;
        if (p->eq[bis_at(p, s->f, j)] == BIS_SAME) continue;
        if (!usable(bis_map_cell(s->m, p, s->f, j)->dist)) {
            ancestors(s, j, depth + 1);
            continue;
        }
        if (s->n < s->max) s->ret[s->n] = j;
        s->n++;
    }
    for (int32_t i = 0; i < p->nst[n] && s->f > 0; i++) {
        int32_t j = p->st[n][i];
        if (s->seen[j] || p->eq[bis_at(p, s->f - 1, j)] == BIS_SAME) continue;
        s->seen[j] = 1;
        if (s->n < s->max) s->ret[s->n] = j;
        s->n++;
    }
}

int bis_map_between(const bis_map *m, const bis_pair *p, int32_t f, int32_t n, int32_t *ret, int max) {
    search s = {.m = m, .p = p, .f = f, .ret = ret, .max = max, .seen = calloc((size_t)p->nn + 1, 1)};
    if (!s.seen) return 0;
    ancestors(&s, n, 0);
    free(s.seen);
    return s.n < max ? s.n : max;
}
