/* comparable.c: which forwards may be compared at all (design.md 6 step 4, requirements R24, R25, section E).
 *
 * The prefix hash is the recorder's; the ids themselves are compared too, over the whole history. Forward f is
 * comparable only when every forward before it is, so the comparable ones are 0 .. ncomparable-1. */
#include <stdlib.h>

#include "bisect/pair.h"

/* First difference between what two forwards consumed; BIS_R_none when there is none. */
static bis_reason consumed(const q4x_forward *a, const q4x_forward *b, int32_t *id_a, int32_t *id_b) {
    int32_t n = a->n_ids < b->n_ids ? a->n_ids : b->n_ids;
    for (int32_t i = 0; i < n; i++)
        if (a->ids[i] != b->ids[i]) {
            *id_a = a->ids[i];
            *id_b = b->ids[i];
            return BIS_R_ids_differ;
        }
    if (a->n_ids != b->n_ids) {
        *id_a = a->n_ids > n ? a->ids[n] : -1;
        *id_b = b->n_ids > n ? b->ids[n] : -1;
        return BIS_R_lengths_differ;
    }
    return a->pos0 == b->pos0 ? BIS_R_none : BIS_R_positions_differ;
}

int bis_comparable(bis_pair *p, q4x_err *err) {
    int broken = 0;
    int32_t root_a = -1, root_b = -1; /* the first differing id of all */
    p->ncomparable = p->nexcluded = 0;
    p->excluded = calloc((size_t)(p->nf > 0 ? p->nf : 1), sizeof *p->excluded);
    if (!p->excluded) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for %d forwards", p->nf);
    for (int32_t f = 0; f < p->nf; f++) {
        const q4x_forward *a = BIS_FA(p, f), *b = BIS_FB(p, f);
        bis_excluded x = {.forward = f, .id_a = -1, .id_b = -1};
        x.why = consumed(a, b, &x.id_a, &x.id_b);
        if (x.why == BIS_R_none && (broken || !q4x_hash_eq(&a->prefix, &b->prefix))) {
            x.why = BIS_R_prefix_differs;
            x.id_a = root_a;
            x.id_b = root_b;
        }
        if (x.why == BIS_R_none) {
            p->ncomparable = f + 1;
            continue;
        }
        if (!broken) {
            root_a = x.id_a;
            root_b = x.id_b;
        }
        broken = 1;
        p->excluded[p->nexcluded++] = x;
    }
    return 0;
}
