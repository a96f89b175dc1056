/* map_inputs.c: are the inputs of each node equal by bits?
 *
 * Inputs are the recorded ones; a state counts with its value before the forward, which is its record after the forward
 * before (at forward 0 states are equal by definition: a run begins with them cleared). An input without a record of
 * its own stands for its own inputs: the node is then judged between its nearest recorded ancestors. */
#include <stdlib.h>

#include "bisect/map_int.h"

static bis_eq worse(bis_eq a, bis_eq b) {
    if (a == BIS_DIFF || b == BIS_DIFF) return BIS_DIFF;
    return a == BIS_UNKNOWN || b == BIS_UNKNOWN ? BIS_UNKNOWN : BIS_SAME;
}

/* What reaches a reader of node n in forward f. */
static bis_eq seen(const bis_map *m, const bis_pair *p, int32_t f, int32_t n) {
    bis_eq own = p->eq[bis_at(p, f, n)];
    return own == BIS_ABSENT ? (bis_eq)bis_map_cell(m, p, f, n)->in : own;
}

static bis_eq state_before(const bis_pair *p, int32_t f, int32_t s) {
    if (f == 0) return BIS_SAME;
    bis_eq e = p->eq[bis_at(p, f - 1, s)];
    return e == BIS_ABSENT ? BIS_UNKNOWN : e;
}

static bis_eq inputs_of(const bis_map *m, const bis_pair *p, int32_t f, int32_t n) {
    bis_eq e = BIS_SAME;
    for (int32_t i = 0; i < p->nin[n]; i++) {
        int32_t j = p->in[n][i];
        if (j == Q4X_IN_IDS) continue; /* equal in a comparable forward */
        e = worse(e, j < n ? seen(m, p, f, j) : BIS_UNKNOWN);
    }
    for (int32_t i = 0; i < p->nst[n]; i++) e = worse(e, state_before(p, f, p->st[n][i]));
    return e;
}

/* A state is written by the nodes that carry it: its inputs are theirs; of one that keeps rows, the node whose rows
 * they are. */
static bis_eq inputs_of_state(const bis_map *m, const bis_pair *p, int32_t f, int32_t s) {
    const int32_t from = bis_kept_from(p, s);
    bis_eq e = state_before(p, f, s);
    if (from >= 0) return worse(e, seen(m, p, f, from));
    for (int32_t i = 0; i < p->nwriter[s]; i++) e = worse(e, (bis_eq)bis_map_cell(m, p, f, p->writer[s][i])->in);
    return e;
}

void bis_map_inputs(bis_map *m, const bis_pair *p) {
    bis_eq before = BIS_SAME; /* everything recorded so far */
    for (int32_t f = 0; f < p->ncomparable; f++)
        for (int pass = 0; pass < 2; pass++) /* states after all nodes */
            for (int32_t n = 0; n < p->nn; n++) {
                const q4x_dump_node *k = &p->a->nodes[n];
                bis_cell *c = bis_map_cell(m, p, f, n);
                bis_eq own = p->eq[bis_at(p, f, n)];
                if ((k->is_state != 0) != pass) continue;
                if (pass && p->nwriter[n]) {
                    c->in = (uint8_t)inputs_of_state(m, p, f, n);
                } else if (p->nin[n] + p->nst[n] > 0) {
                    c->in = (uint8_t)inputs_of(m, p, f, n);
                } else {
                    c->in = (uint8_t)(before == BIS_SAME ? BIS_SAME : BIS_UNKNOWN);
                    c->guessed = 1;
                }
                if (own != BIS_ABSENT) before = worse(before, own);
            }
}
