#include "lib/plant_kept.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "kernels/rope.h"
#include "lib/hash.h"

static const char *const KINDS[] = {"post-conv",      "kept-stale", "kept-early",
                                    "kept-unrotated", "kept-twice", "kept-ulp"};

static int is(const char *kind, const char *name) {
    return !strcmp(kind, name);
}

int q4x_kept_is(const char *kind) {
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (is(kind, KINDS[i])) return 1;
    return 0;
}

static int looks_back(const char *kind) {
    return is(kind, "kept-stale") || is(kind, "kept-early");
}

static void copy(q4x_kept *b, const k_state *s) {
    const int64_t n = s->cap * s->cols;
    b->cells = 0;
    if (n > b->cap) {
        float *f = realloc(b->f, (size_t)n * sizeof *f);
        if (!f) return;
        b->f = f;
        b->cap = n;
    }
    b->cells = n;
    memcpy(b->f, s->f, (size_t)n * sizeof *b->f);
}

static uint64_t sum_of(const k_state *s) {
    return q4x_xxh64(s->f, (size_t)(s->rows * s->cols) * sizeof *s->f);
}

int q4x_kept_before(const char *kind, const k_state *s, int32_t forward, q4x_kept *b) {
    if (looks_back(kind)) copy(b, s);
    if (!is(kind, "conv-off-by-one") || !forward) return 0;
    const uint64_t was = sum_of(s);
    memmove(s->f + s->cols, s->f, (size_t)((s->rows - 1) * s->cols) * sizeof *s->f);
    return sum_of(s) != was;
}

/* The last rows of the output take the place of the columns they were made from. */
static void keep_output(const q4x_node_event *ev, const k_state *s) {
    const int64_t n = ev->nrows < s->rows ? ev->nrows : s->rows;
    memcpy(s->f + (s->rows - n) * s->cols, (const float *)ev->data + (ev->nrows - n) * ev->cols,
           (size_t)(n * s->cols) * sizeof *s->f);
}

/* Rows of this call move up by one; the last place is as it was. */
static void keep_early(const q4x_node_event *ev, const k_state *s, const q4x_kept *b) {
    const int64_t first = s->rows > ev->total ? s->rows - ev->total : 1, size = s->cols;
    if (s->rows < 2) return;
    memmove(s->f + (first - 1) * size, s->f + first * size, (size_t)((s->rows - first) * size) * sizeof *s->f);
    memcpy(s->f + (s->rows - 1) * size, b->f + (s->rows - 1) * size, (size_t)size * sizeof *s->f);
}

/* New rows of a cache of keys turned back by their angle. */
static int turn_back(const q4x_plan *plan, const q4x_node_event *ev, const k_state *s, q4x_err *err) {
    const k_call *c = ev->call;
    const q4x_node *rope = &plan->node[plan->node[ev->node].in[1]];
    const int32_t half = c->d->rot / 2;
    float *cs = malloc(2 * (size_t)half * sizeof *cs + 1);
    if (!cs) return q4x_fail(err, Q4X_E_NOMEM, "plants: no memory for %d angles", half);
    for (int64_t r = s->rows - ev->total; r < s->rows; r++) {
        k_rope_angles(rope->par[0], half, -(int32_t)r, c->lv, cs);
        for (int64_t at = 0; at < s->cols; at += c->d->hd) k_rope_head(s->f + r * s->cols + at, half, cs, c->lv->act);
    }
    free(cs);
    return 0;
}

/* The op runs again on the state that it left. */
static int run_twice(const q4x_plan *plan, const q4x_node_event *ev, q4x_err *err) {
    k_call c = *ev->call;
    float *out = malloc((size_t)ev->nrows * (size_t)ev->cols * sizeof *out);
    if (!out) return q4x_fail(err, Q4X_E_NOMEM, "plants: no memory for an output");
    c.out = out;
    k_ops[plan->node[ev->node].op].cpu(&c);
    free(out);
    return 0;
}

static void one_ulp(const k_state *s) {
    float *best = s->f + (s->rows - 1) * s->cols, *x = best;
    for (int64_t i = 1; s->rows && i < s->cols; i++)
        if (fabsf(x[i]) > fabsf(*best)) best = x + i;
    if (s->rows) *best = nextafterf(*best, INFINITY);
}

int q4x_kept_after(const char *kind, const q4x_plan *plan, const q4x_node_event *ev, const q4x_kept *b, int *ret,
                   q4x_err *err) {
    const k_state *s = ev->call->st[0];
    int rc = 0;
    *ret = 0;
    if (ev->row0 + ev->nrows != ev->total) return 0;
    if (looks_back(kind) && !b->cells)
        return q4x_fail(err, Q4X_E_NOMEM, "plants: no memory for %lld values of a state",
                        (long long)(s->cap * s->cols));
    const uint64_t was = sum_of(s);
    if (is(kind, "post-conv"))
        keep_output(ev, s);
    else if (is(kind, "kept-stale"))
        memcpy(s->f, b->f, (size_t)(s->rows * s->cols) * sizeof *s->f);
    else if (is(kind, "kept-early"))
        keep_early(ev, s, b);
    else if (is(kind, "kept-unrotated"))
        rc = turn_back(plan, ev, s, err);
    else if (is(kind, "kept-twice"))
        rc = run_twice(plan, ev, err);
    else
        one_ulp(s);
    *ret = sum_of(s) != was;
    return rc;
}
