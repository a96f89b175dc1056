/* dev_check.c: is a call one that the device may be given? Looked at on the host, before anything is launched: what a
 * kernel reads beyond an operand's end is not seen by anyone, or ends the device for the whole process. */
#include "kernels/dev.h"

#include <string.h>

#include "kernels/dev_shape.h"
#include "kernels/quant.h"

/* Is v the number of a word in "a|b|c"? A lever that may be any number holds any bits. */
static int is_value(const char *values, int32_t v) {
    int32_t words = 1;
    if (!v || strstr(values, "..")) return 1;
    for (; *values; values++) words += *values == '|';
    return v > 0 && v < words;
}

static int levers_are_known(const k_levers *lv) {
    int known = 1;
#define LEVER(field, name, values, kind, ops, doc) known &= is_value(values, lv->field);
#include "kernels/levers.def"
#undef LEVER
    return known;
}

/* A row as it is stored: whole blocks of a type that is known, and none longer than the step to the next row. */
static const char *weight(const k_weight *w) {
    const k_quant *q = k_quant_get(w->type);
    if (!w->data) return "a weight is missing";
    if (!q) return "a weight of no type";
    if (w->rows < 1 || w->cols < 1 || w->cols % q->elems) return "a weight without rows or whole blocks";
    if (w->cols / q->elems > UINT32_MAX / (uint32_t)q->bytes) return "a weight whose rows are longer than 4 GiB";
    if (w->row_bytes / (size_t)q->bytes < (size_t)(w->cols / q->elems)) return "a weight whose rows overlap";
    return NULL;
}

const char *k_dev_unfit_weights(const k_weight *w, int64_t n) {
    if (!w || n < 1) return "a weight is missing";
    for (int64_t e = 0; e < n; e++) {
        const char *why = weight(&w[e]);
        if (why) return why;
        if (w[e].rows != w[0].rows || w[e].cols != w[0].cols) return "an expert of another shape";
    }
    return NULL;
}

static const char *extents(const k_call *c) {
    static const int64_t most = (int64_t)1 << 40;
    if (c->T < 0 || c->cols < 0 || c->pos0 < 0) return "an extent below 0";
    if (c->pos0 > INT32_MAX - c->T) return "more positions than 31 bits count";
    if (c->cols > most) return "an extent beyond any memory";
    for (int k = 0; k < K_MAXIN; k++)
        if (c->in_cols[k] < 0 || c->in_cols[k] > most)
            return c->in_cols[k] < 0 ? "an extent below 0" : "an extent beyond any memory";
    return NULL;
}

/* A block has 4 warps, and a launch 2^31 - 1 blocks. T > 0. */
static int fits_a_launch(const k_call *c) {
    return c->cols <= 4 * (int64_t)0x7fffffff / c->T;
}

static const char *operands(const k_call *c, const k_shape *s) {
    static const char *const columns[K_MAXIN] = {
        "input 0: not the columns that it must have", "input 1: not the columns that it must have",
        "input 2: not the columns that it must have", "input 3: not the columns that it must have",
        "input 4: not the columns that it must have", "input 5: not the columns that it must have"};
    for (int k = 0; k < K_MAXIN; k++) {
        if (s->in[k] && s->in[k] != K_ANY && c->in_cols[k] != s->in[k]) return columns[k];
        if (s->in[k] && !c->in[k]) return "an operand is missing";
    }
    for (int k = 0; k < K_MAXW; k++)
        if (s->par[k] && !c->par[k]) return "a parameter is missing";
    if (!c->out || (s->scratch && !c->scratch)) return "an operand is missing";
    return c->scratch_n < s->scratch ? "scratch: too small" : NULL;
}

static const char *state(const k_call *c, const k_shape *s) {
    const k_state *st = c->st[0];
    if (!s->st_cols) return NULL;
    if (!st || (s->st_rows && !st->f)) return "a state is missing";
    if (st->cols != s->st_cols) return "a state of other columns";
    return st->cap < s->st_rows ? "a state without room for its rows" : NULL;
}

static const char *product(const k_call *c, const k_shape *s) {
    if (!s->w_cols) return NULL;
    const k_weight *w = c->w[0];
    if (!w || c->nw[0] < 1 || (s->w_list && !c->w_dev[0])) return "a weight is missing";
    if (w->cols != s->w_cols || (s->w_rows != K_ANY && w->rows != s->w_rows)) return "a weight of another shape";
    return NULL;
}

const char *k_dev_unfit_call(k_op op, const k_call *c) {
    if (!c || !c->d || !c->lv) return "dims or levers are missing";
    const char *why = extents(c);
    if (why) return why;
    if (!levers_are_known(c->lv)) return "a lever has no such value";
    if (c->T == 0 || c->cols == 0) return NULL; /* nothing is read or written */
    if (!fits_a_launch(c)) return "more elements than one launch takes";
    const k_shape s = k_shape_of(op, c);
    if (s.wrong) return s.wrong;
    if ((why = operands(c, &s)) || (why = state(c, &s))) return why;
    return product(c, &s);
}

const char *k_dev_unfit(k_op op, const k_call *c) {
    const char *why = k_dev_unfit_call(op, c);
    if (why || c->T == 0 || c->cols == 0 || !k_shape_of(op, c).w_cols) return why;
    return k_dev_unfit_weights(c->w[0], c->nw[0]);
}
