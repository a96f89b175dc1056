/* map_moves.c: nodes and states that hand on what they were given: does a record hold what was made where it comes
 * from?
 *
 * An alias is its source. A state of an op that keeps rows (kernels/op_states.def) holds rows of an input of that op,
 * and of itself as it was before, each with a gain of 1. Both are asked within one arm: a row that is there twice is
 * there alike, however far apart the arms lie, so no difference between them can raise an alarm or hide one. A store
 * that rounds (a cache under another type) may differ by as much as its band says. What holds in neither arm is nothing
 * that they differ in. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/map_int.h"
#include "kernels/ops.h"
#include "lib/sketch.h"

int bis_op_of(const q4x_dump_node *k) {
    for (int op = 0; k->op && op < K_OP_COUNT; op++)
        if (!strcmp(k_ops[op].name, k->op)) return op;
    return -1;
}

static const q4x_tap *tap_of(const bis_pair *p, int arm, int32_t f, int32_t n) {
    return (arm ? p->tb : p->ta)[bis_at(p, f, n)];
}

static int alias(const bis_pair *p, int32_t f, int32_t n) {
    const int32_t from = p->a->nodes[n].alias;
    int broken[2];
    if (!p->ta[bis_at(p, f, from)]) return 0;
    for (int arm = 0; arm < 2; arm++) {
        const q4x_tap *x = tap_of(p, arm, f, from), *y = tap_of(p, arm, f, n);
        if (x->dtype != y->dtype || x->rows != y->rows || x->cols != y->cols) return 0;
        broken[arm] = !q4x_hash_eq(&x->bits, &y->bits);
    }
    return broken[0] != broken[1];
}

/* ---- states ---- */

/* How state s keeps rows, of which node, and with how much rounding. */
typedef struct {
    int32_t state, from;
    k_keeps keeps;
    int copied; /* 1: nothing is rounded */
    int64_t ratio, rows;
} store;

static int store_of(const bis_pair *p, int32_t f, int32_t s, store *ret) {
    k_bands_fn bands;
    int in;
    if (!p->a->nodes[s].is_state || p->nwriter[s] != 1) return 0;
    const int32_t w = p->writer[s][0], op = bis_op_of(&p->a->nodes[w]);
    if (op < 0) return 0;
    const k_keeps keeps = k_op_keeps((k_op)op, &in);
    if (keeps == K_KEEPS_MIXED || p->nin[w] != p->a->nodes[w].nin || in >= p->nin[w] || p->in[w][in] < 0) return 0;
    const json_t *ratio = json_object_get(json_object_get(p->a->header, "qsa"), "ratio");
    const q4x_tap *t = p->ta[bis_at(p, f, s)];
    *ret = (store){s,
                   p->in[w][in],
                   keeps,
                   k_op_state((k_op)op, &bands) == K_STATE_COPIED,
                   json_integer_value(ratio),
                   t ? t->rows : 0};
    return keeps != K_KEEPS_BLOCKS || (ret->ratio > 0 && ret->ratio < INT32_MAX);
}

int32_t bis_kept_from(const bis_pair *p, int32_t s) {
    store x;
    return store_of(p, 0, s, &x) ? x.from : -1;
}

/* Where row r of the state comes from: a row of the source in this forward (new), else one of the state before. */
static int64_t origin(const bis_pair *p, const store *x, int32_t f, int64_t r, int *is_new) {
    const q4x_forward *w = BIS_FA(p, f);
    int64_t at = r - w->pos0, before = r;
    if (x->keeps == K_KEEPS_LAST) {
        at = r - (x->rows - w->n_ids);
        before = r + w->n_ids;
    } else if (x->keeps == K_KEEPS_BLOCKS) {
        at = (r + 1) * x->ratio - 1 - w->pos0;
    }
    *is_new = at >= 0;
    return at >= 0 ? at : before;
}

/* Rows of two records side by side: stored, and where they come from; sums in 64 buckets, whatever each was kept in. */
typedef struct {
    q4x_sketch is, was;
    char *is_new; /* [nrows] */
} rows;

static void rows_free(rows *x) {
    q4x_sketch *s[] = {&x->is, &x->was};
    for (int i = 0; i < 2; i++) {
        free(s[i]->buckets);
        free(s[i]->values);
        free(s[i]->row_sumabs);
    }
    free(x->is_new);
}

/* Room for n rows like those; 1: there is none. */
static int sketch_new(const q4x_sketch *like, size_t n, q4x_sketch *ret) {
    const size_t w = like->raw ? (size_t)like->width : Q4X_SKETCH_FOLD;
    ret->width = (int32_t)w;
    ret->raw = like->raw;
    ret->row_sumabs = calloc(n, sizeof(double));
    if (like->raw)
        ret->values = calloc(n * w, sizeof(float));
    else
        ret->buckets = calloc(n * w, sizeof(double));
    return !ret->row_sumabs || (!ret->values && !ret->buckets);
}

static int rows_new(const q4x_sketch *like, rows *ret) {
    const size_t n = (size_t)like->nrows + 1;
    *ret = (rows){.is_new = calloc(n, 1)};
    if (ret->is_new && !sketch_new(like, n, &ret->is) && !sketch_new(like, n, &ret->was)) return 0;
    rows_free(ret);
    return -1;
}

/* Row r of a record behind the last of to. 0: it was not kept, or not in a form that can be compared. */
static int take(const q4x_tap *t, int64_t r, q4x_sketch *to) {
    if (!t || !t->has_sketch || !t->sketch.raw != !to->raw) return 0;
    const q4x_sketch *from = &t->sketch;
    const int64_t at = r - from->row0;
    const size_t w = (size_t)to->width, fw = (size_t)from->width;
    if (at < 0 || at >= from->nrows || !from->row_sumabs) return 0;
    if (to->raw) {
        if (fw != w || !from->values) return 0;
        memcpy(to->values + (size_t)to->nrows * w, from->values + (size_t)at * w, w * sizeof *to->values);
    } else {
        if (!from->buckets || (fw != w && fw != Q4X_SKETCH_BLOCK)) return 0;
        const double *b = from->buckets + (size_t)at * fw;
        double *here = to->buckets + (size_t)to->nrows * w;
        if (fw == w)
            memcpy(here, b, w * sizeof *here);
        else
            q4x_sketch_fold(b, here);
    }
    to->row_sumabs[to->nrows++] = from->row_sumabs[at];
    return 1;
}

/* All rows of the state of which both sides are known. Before forward 0 it was cleared: a row of zeros, as they lie in
 * x already. */
static void lay_out(const bis_pair *p, const store *x, int arm, int32_t f, rows *ret) {
    const q4x_tap *t = tap_of(p, arm, f, x->state), *from = tap_of(p, arm, f, x->from);
    const q4x_tap *before = f ? tap_of(p, arm, f - 1, x->state) : NULL;
    if (from && (from->cols != t->cols || from->rows != BIS_FA(p, f)->n_ids)) from = NULL; /* no row for each id */
    for (int32_t k = 0; k < t->sketch.nrows; k++) {
        int is_new;
        const int64_t r = (int64_t)t->sketch.row0 + k, at = origin(p, x, f, r, &is_new);
        const int cleared = !is_new && f == 0;
        if (!take(t, r, &ret->is)) return;
        if (cleared)
            ret->was.nrows++;
        else if (!take(is_new ? from : before, at, &ret->was))
            ret->is.nrows--;
        else
            ret->is_new[ret->is.nrows - 1] = (char)is_new;
    }
}

/* One arm: 1 when a row is not what it was, 0 when all that are known are, -1: no memory. *known 1: all of those that
 * are kept of the state. */
static int broken_store(const bis_pair *p, const store *x, int arm, int32_t f, int *known) {
    const q4x_tap *t = tap_of(p, arm, f, x->state);
    const double may = x->copied ? 0 : t->has_band ? BIS_BAND_LIMIT * t->band_hard : INFINITY;
    double moved = 0, rounded = 0;
    q4x_sketch_dist d;
    rows v;
    *known = 0;
    if (!t->has_sketch || t->sketch.width < 1) return 0;
    if (rows_new(&t->sketch, &v)) return -1;
    lay_out(p, x, arm, f, &v);
    double *e = calloc((size_t)v.is.nrows + 1, sizeof *e);
    const int rc = e ? q4x_sketch_compare(&v.is, &v.was, &d, e, NULL) : -1;
    *known = !rc && v.is.nrows == t->sketch.nrows && v.is.nrows;
    for (int32_t k = 0; !rc && k < v.is.nrows; k++) {
        if (v.is_new[k])
            rounded += e[k];
        else
            moved += e[k];
        *known &= !v.is_new[k] || may < INFINITY;
    }
    free(e);
    rows_free(&v);
    if (!e) return -1;
    return !rc && (moved > 0 || sqrt(rounded) > may);
}

static int kept(const bis_pair *p, const store *x, bis_cell *c, int32_t f) {
    int broken[2], known[2];
    for (int arm = 0; arm < 2; arm++)
        if ((broken[arm] = broken_store(p, x, arm, f, &known[arm])) < 0) return -1;
    if (broken[0] != broken[1]) return 1;
    if (!broken[0] && known[0] && known[1]) {
        c->cls = BIS_C_PASSED;
        c->gain = 1;
    }
    return 0;
}

int bis_map_broken_move(bis_map *m, const bis_pair *p, int32_t f, int32_t n) {
    store x;
    if (p->eq[bis_at(p, f, n)] != BIS_DIFF) return 0;
    if (p->a->nodes[n].alias >= 0) return alias(p, f, n);
    return store_of(p, f, n, &x) ? kept(p, &x, bis_map_cell(m, p, f, n), f) : 0;
}
