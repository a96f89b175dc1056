#include "bisect/fate.h"

#include <math.h>
#include <string.h>

#include "bisect/map_int.h"

bis_answer bis_answer_of(const bis_case *c) {
    switch (c->verdict) {
    case BIS_V_IDENTICAL: return BIS_A_SAME;
    case BIS_V_WITHIN_BAND: return BIS_A_WITHIN;
    case BIS_V_TIE: return BIS_A_TIE;
    case BIS_V_TOKENS_DIFFER: return BIS_A_TOKENS;
    default: return c->exit == 125 ? BIS_A_UNKNOWN : BIS_A_ALARM;
    }
}

int bis_lever_moved(const q4x_dump *d) {
    const json_t *l = json_object_get(d->tail, "levers");
    const char *o = json_string_value(json_object_get(json_array_get(l, json_array_size(l) - 1), "outcome"));
    return o && !strcmp(o, "moved");
}

int bis_named(const bis_case *c, int32_t *forward, int32_t *node) {
    const bis_map *m = &c->map;
    if (!c->compared || bis_answer_of(c) != BIS_A_ALARM) return 0;
    *forward = c->verdict == BIS_V_NON_FINITE ? m->nonfinite_f : m->fault_f >= 0 ? m->fault_f : m->out_f;
    *node = c->verdict == BIS_V_NON_FINITE ? m->nonfinite_n : m->fault_f >= 0 ? m->fault_n : m->out_n;
    return *forward >= 0;
}

/* Where a fault is read: its node; of a state that is not judged itself, the first op that keeps it, one forward
 * later. */
typedef struct {
    int32_t f, n;
} spot;

static spot read_at(const bis_pair *p, int32_t f, int32_t n) {
    if (!p->a->nodes[n].is_state || !p->nwriter[n]) return (spot){f, n};
    return (spot){f + 1, p->writer[n][0]};
}

/* The first node from there on, in its layer or the next, with a distance that a gain could use; -1: none. */
static int32_t first_recorded(const bis_case *c, spot x) {
    const bis_pair *p = c->pair;
    for (int32_t n = x.n; n < p->nn && x.f < p->ncomparable; n++) {
        const bis_cell *q = bis_map_cell(&c->map, p, x.f, n);
        if (p->a->nodes[n].is_state || p->a->nodes[n].alias >= 0 || !q->dist) continue;
        if (p->a->nodes[n].layer > p->a->nodes[x.n].layer + 1) return -1;
        if (bis_dist_ranked(q->dist)) return n;
    }
    return -1;
}

/* 1 when node n is the fault's node or holds what that made: its alias, a state that keeps rows for it. */
static int one_place(const bis_pair *p, int32_t node, int32_t n) {
    if (n == node || n == p->a->nodes[node].alias) return 1;
    return p->a->nodes[n].is_state && p->nwriter[n] && p->writer[n][0] == node && bis_kept_from(p, n) >= 0;
}

/* Where a fault that was not named should have been: a state with a gain; else the first recorded from where it is
 * read. n -1: nowhere. */
static spot judged_at(const bis_case *c, int32_t forward, int32_t node) {
    const spot x = read_at(c->pair, forward, node);
    if (forward < c->pair->ncomparable && c->pair->a->nodes[node].is_state &&
        !isnan(bis_map_cell(&c->map, c->pair, forward, node)->gain))
        return (spot){forward, node};
    return (spot){x.f, first_recorded(c, x)};
}

bis_fate bis_fate_of(const bis_case *c, int32_t forward, int32_t node) {
    int32_t f, n;
    if (!c->compared) return BIS_F_UNJUDGED;
    const spot x = read_at(c->pair, forward, node);
    if (bis_named(c, &f, &n)) {
        const q4x_dump_node *at = &c->pair->a->nodes[x.n], *named = &c->pair->a->nodes[n];
        if (f == forward && one_place(c->pair, node, n)) return BIS_F_EXACT;
        if (x.n != node && f == x.f && n == x.n) return BIS_F_NEXT;
        const int hidden = first_recorded(c, x) != x.n;
        return hidden && f == x.f && n > x.n && named->layer <= at->layer + 1 ? BIS_F_NEXT : BIS_F_ASTRAY;
    }
    const spot at = judged_at(c, forward, node);
    if (bis_answer_of(c) == BIS_A_UNKNOWN || at.n < 0) return BIS_F_UNJUDGED;
    const bis_cell *q = bis_map_cell(&c->map, c->pair, at.f, at.n);
    return isnan(q->gain) || q->cls == BIS_C_FLIPPED ? BIS_F_UNJUDGED : BIS_F_MISSED;
}

static int judge(q4x_dump *a, q4x_dump *b, bis_case **ret, q4x_err *err) {
    bis_request rq = {.a = a, .b = b};
    return bis_judge(&rq, ret, err);
}

int bis_fate_ratio(const bis_case *c, int32_t forward, int32_t node, q4x_dump *clean, double *ret, q4x_err *err) {
    int rc;
    bis_case *honest = NULL, *alone = NULL;
    const spot x = judged_at(c, forward, node);
    *ret = NAN;
    TRY(judge(c->rq.a, clean, &honest, err));
    TRY(judge(clean, c->rq.b, &alone, err));
    if (x.n < 0 || !honest->compared || !alone->compared) goto done;
    if (x.f >= alone->pair->ncomparable || x.f >= honest->pair->ncomparable) goto done;
    const bis_cell *h = bis_map_cell(&honest->map, honest->pair, x.f, x.n),
                   *a = bis_map_cell(&alone->map, alone->pair, x.f, x.n);
    *ret = a->dist && a->dist->d != 0 ? a->dist->d / (h->dist ? h->dist->d : 0) : 0; /* -0 for 0 is no distance */
done:
    bis_case_free(honest);
    bis_case_free(alone);
    return rc;
}
