#include "bisect/flips.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *bis_kind(const char *node) {
    const char *s = node;
    if (*s != 'L' || !isdigit((unsigned char)s[1])) return node;
    for (s++; isdigit((unsigned char)*s); s++)
        ;
    return *s == '.' ? s + 1 : node;
}

/* Spacing of the bf16 grid at |x|. */
static double bf16_step(double x) {
    int e;
    if (!(fabs(x) > 0)) return 0;
    frexp(x, &e);
    return ldexp(1, e - 8);
}

static double margin(const q4x_selection *s, int32_t row) {
    return s->lo && s->hi ? (double)s->lo[row] - (double)s->hi[row] : NAN;
}

static double steps(const q4x_selection *s, int32_t row) {
    double m = margin(s, row),
           w = s->lo && s->hi ? bf16_step(fmax(fabs((double)s->lo[row]), fabs((double)s->hi[row]))) : 0;
    if (m == 0) return 0;
    return w > 0 ? m / w : NAN;
}

static int bin_of(double st) {
    static const double edge[BIS_NBIN - 1] = {0, 1, 2, 4, 8};
    int k = 0;
    while (k < BIS_NBIN - 1 && !(st <= edge[k])) k++;
    return k;
}

static int cmp_id(const void *x, const void *y) {
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return (a > b) - (a < b);
}

/* Ids of A's row that are not in B's; *na: ids in A's row, *order: the lists differ as lists. tmp: [2 k]. */
static int32_t swapped_ids(const q4x_selection *a, const q4x_selection *b, int32_t row, int32_t *tmp, int32_t *na,
                           int *order) {
    const int32_t *x = a->ids + (size_t)row * (size_t)a->k, *y = b->ids + (size_t)row * (size_t)b->k;
    int32_t *u = tmp, *v = tmp + a->k, n = 0, m = 0, miss = 0, j = 0;
    for (int32_t i = 0; i < a->k; i++)
        if (x[i] >= 0) u[n++] = x[i];
    for (int32_t i = 0; i < b->k; i++)
        if (y[i] >= 0) v[m++] = y[i];
    *na = n;
    *order = n != m || memcmp(u, v, (size_t)n * sizeof *u) != 0;
    if (!*order) return 0;
    qsort(u, (size_t)n, sizeof *u, cmp_id);
    qsort(v, (size_t)m, sizeof *v, cmp_id);
    for (int32_t i = 0; i < n; i++) {
        while (j < m && v[j] < u[i]) j++;
        if (j < m && v[j] == u[i])
            j++;
        else
            miss++;
    }
    /* a longer list of B is a difference too */
    return miss > m - (n - miss) ? miss : m - (n - miss);
}

int bis_is_selection(const bis_pair *p, int32_t n) {
    const q4x_dump_node *k = &p->a->nodes[n];
    if (!k->is_ids || k->is_state) return 0;
    int scored = p->nin[n] == 0;
    for (int32_t i = 0; i < p->nin[n]; i++) scored |= p->in[n][i] != Q4X_IN_IDS;
    return scored;
}

static bis_flip_row *row_of(bis_flips *s, int32_t f, int comparable, const char *kind) {
    for (int32_t i = s->nrows - 1; i >= 0 && s->row[i].forward == f; i--)
        if (!strcmp(s->row[i].kind, kind)) return &s->row[i];
    bis_flip_row *r = realloc(s->row, sizeof *r * (size_t)(s->nrows + 1));
    if (!r) return NULL;
    s->row = r;
    r += s->nrows;
    *r = (bis_flip_row){.forward = f, .comparable = comparable, .kind = kind, .first_layer = -1};
    r->strip = malloc((size_t)s->layers + 1);
    if (!r->strip) return NULL;
    memset(r->strip, ' ', (size_t)s->layers);
    r->strip[s->layers] = 0;
    s->nrows++;
    return r;
}

static int push(bis_flips *s, bis_flip x) {
    if (s->n == s->cap) {
        int64_t cap = s->cap ? 2 * s->cap : 64;
        bis_flip *v = realloc(s->flip, sizeof *v * (size_t)cap);
        if (!v) return -1;
        s->flip = v;
        s->cap = cap;
    }
    s->flip[s->n++] = x;
    return 0;
}

static int push_moved(bis_flips *s, bis_moved x) {
    if (s->nmoved == s->moved_cap) {
        int64_t cap = s->moved_cap ? 2 * s->moved_cap : 64;
        bis_moved *v = realloc(s->moved, sizeof *v * (size_t)cap);
        if (!v) return -1;
        s->moved = v;
        s->moved_cap = cap;
    }
    s->moved[s->nmoved++] = x;
    return 0;
}

/* One mark a layer: the worst of its rows. */
static void mark(bis_flip_row *r, int32_t layer, int32_t layers, int32_t miss, int order) {
    if (layer < 0 || layer >= layers) return;
    char c = miss > 9 ? '+' : miss > 0 ? (char)('0' + miss) : order ? 'o' : '.', *at = &r->strip[layer];
    static const char rank[] = " .o123456789+";
    if (strchr(rank, c) > strchr(rank, *at)) *at = c;
}

static int compare_rows(const bis_pair *p, bis_flips *s, bis_flip_row *r, int32_t f, int32_t n, int32_t *tmp) {
    const q4x_selection *a = &p->ta[bis_at(p, f, n)]->sel, *b = &p->tb[bis_at(p, f, n)]->sel;
    const int32_t layer = p->a->nodes[n].layer;
    for (int32_t t = 0; t < a->rows; t++) {
        bis_flip x = {.forward = f, .node = n, .row = t, .margin_a = margin(a, t), .margin_b = margin(b, t)};
        int order, tie = x.margin_a == 0 || x.margin_b == 0;
        x.steps_a = steps(a, t);
        x.swapped = swapped_ids(a, b, t, tmp, &x.k, &order);
        r->slots++;
        r->ties += tie;
        r->wide += x.steps_a > 8;
        mark(r, layer, s->layers, x.swapped, order);
        int bin = isnan(x.steps_a) ? -1 : bin_of(x.steps_a);
        if (r->comparable && bin >= 0) s->bin_slots[bin]++;
        if (order && push_moved(s, (bis_moved){f, n, t})) return -1;
        if (!x.swapped) {
            r->order += order;
            continue;
        }
        r->flips++;
        r->swapped += x.swapped;
        r->ids += x.k;
        r->tie_flips += tie;
        r->wide_flips += x.steps_a > 8;
        if (r->first_layer < 0) r->first_layer = layer;
        if (r->comparable && bin >= 0) s->bin_flips[bin]++;
        if (push(s, x)) return -1;
    }
    return 0;
}

/* Nothing was selected in any row: no decision that could flip (what lever qsa.extra leaves where it is off). */
static int is_empty(const q4x_selection *s) {
    for (int64_t i = 0; i < (int64_t)s->rows * s->k; i++)
        if (s->ids[i] >= 0) return 0;
    return 1;
}

int bis_flips_find(const bis_pair *p, bis_flips *ret, q4x_err *err) {
    bis_flips s = {.layers = p->layers};
    int32_t *tmp = NULL;
    for (int32_t f = 0; f < p->nf; f++)
        for (int32_t n = 0; n < p->nn; n++) {
            const q4x_tap *a = p->ta[bis_at(p, f, n)], *b = p->tb[bis_at(p, f, n)];
            if (!a || !bis_is_selection(p, n)) continue;
            int have = a->has_sel && b->has_sel && a->sel.rows == b->sel.rows && a->sel.ids && b->sel.ids;
            if (!have && q4x_hash_eq(&a->bits, &b->bits)) continue;
            if (have && is_empty(&a->sel) && is_empty(&b->sel)) continue;
            bis_flip_row *r = row_of(&s, f, f < p->ncomparable, bis_kind(p->a->nodes[n].name));
            if (!r) goto nomem;
            if (!have) {
                r->unrecorded++;
                continue;
            }
            int32_t *t = realloc(tmp, ((size_t)a->sel.k + (size_t)b->sel.k + 1) * sizeof *t);
            if (!t) goto nomem;
            tmp = t;
            if (compare_rows(p, &s, r, f, n, tmp)) goto nomem;
        }
    free(tmp);
    *ret = s;
    return 0;
nomem:
    free(tmp);
    bis_flips_free(&s);
    return q4x_fail(err, Q4X_E_NOMEM, "out of memory for the table of selections");
}

void bis_flips_free(bis_flips *s) {
    for (int32_t i = 0; i < s->nrows; i++) free(s->row[i].strip);
    free(s->row);
    free(s->flip);
    free(s->moved);
    *s = (bis_flips){0};
}

/* A selection of the layer before node n that differs by bits and whose ids a dump lacks. */
static int unknown_flip(const bis_pair *p, int32_t f, int32_t n, int32_t layer) {
    for (int32_t m = n - 1; m >= 0 && p->a->nodes[m].layer == layer; m--) {
        const q4x_tap *a = p->ta[bis_at(p, f, m)], *b = p->tb[bis_at(p, f, m)];
        if (!a || !bis_is_selection(p, m)) continue;
        if (p->eq[bis_at(p, f, m)] == BIS_DIFF && !(a->has_sel && b->has_sel)) return 1;
    }
    return 0;
}

int32_t bis_flips_mask(const bis_pair *p, const bis_flips *s, int32_t f, int32_t n, int32_t row0, int32_t nrows,
                       char *mask) {
    const int32_t layer = p->a->nodes[n].layer;
    int32_t count = 0;
    memset(mask, 0, (size_t)nrows);
    if (layer < 0 || p->a->nodes[n].is_state) return 0; /* rows of a state are no queries */
    if (unknown_flip(p, f, n, layer)) {
        memset(mask, 1, (size_t)nrows);
        return nrows;
    }
    int64_t lo = 0, hi = s->nmoved; /* first of forward f */
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (s->moved[mid].forward < f)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (int64_t i = lo; i < s->nmoved && s->moved[i].forward == f && s->moved[i].node < n; i++) {
        int32_t t = s->moved[i].row - row0;
        if (p->a->nodes[s->moved[i].node].layer != layer || t < 0 || t >= nrows) continue;
        count += !mask[t];
        mask[t] = 1;
    }
    return count;
}
