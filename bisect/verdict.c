/* verdict.c: the table of design.md section 6, on a pair that lines up; the first row that applies. */
#include <math.h>
#include <stdio.h>

#include "bisect/case.h"

static void give(bis_case *c, bis_verdict v, bis_reason r) {
    c->verdict = v;
    c->reason = r;
}

static void at_node(bis_case *c, int32_t f, int32_t n) {
    snprintf(c->where, sizeof c->where, "%.120s in forward %d", c->pair->a->nodes[n].name, f);
}

static int identical(const bis_case *c) {
    const bis_pair *p = c->pair;
    return p->compared > 0 && p->identical == p->compared && c->logit_rows_equal == c->logit_rows &&
           !c->choices.ndiffer;
}

/* A difference that no source accounts for: the first differing node has inputs that are not known to be equal, or a
 * logit row differs before any node does. */
static int unexplained(const bis_case *c) {
    const bis_pair *p = c->pair;
    const bis_map *m = &c->map;
    if (m->first_f >= 0 && bis_map_cell(m, p, m->first_f, m->first_n)->in != BIS_SAME) return 1;
    for (int32_t f = 0; f < p->ncomparable && (m->first_f < 0 || f < m->first_f); f++) {
        const q4x_forward *x = BIS_FA(p, f), *y = BIS_FB(p, f);
        if (x->logits && y->logits && !bis_logits_equal(x, y)) return 1;
    }
    return 0;
}

static int out_of_band(bis_case *c) {
    const bis_map *m = &c->map;
    if (m->fault_f >= 0) {
        give(c, BIS_V_FAULT, bis_map_cell(m, c->pair, m->fault_f, m->fault_n)->why);
        at_node(c, m->fault_f, m->fault_n);
        return 1;
    }
    if (m->out_f >= 0) {
        const bis_cell *x = bis_map_cell(m, c->pair, m->out_f, m->out_n);
        give(c, BIS_V_DIVERGED, x->why);
        c->contaminated = x->cls == BIS_C_OUTLIER;
        at_node(c, m->out_f, m->out_n);
        return 1;
    }
    if (unexplained(c)) {
        give(c, BIS_V_DIVERGED, BIS_R_inputs_not_equal);
        c->contaminated = 1;
        if (m->first_f >= 0)
            at_node(c, m->first_f, m->first_n);
        else
            snprintf(c->where, sizeof c->where, "logit rows");
        return 1;
    }
    return 0;
}

/* Ids differ and every source is within its band. */
static void tokens(bis_case *c) {
    const bis_choices *k = &c->choices;
    const bis_choice *x = &k->choice[k->first];
    const double limit = BIS_TIE_LIMIT * k->s;
    snprintf(c->where, sizeof c->where, "id %d", x->forward);
    if (x->tie_a || x->tie_b)
        give(c, BIS_V_TIE, BIS_R_exact_tie);
    else if (!x->logits)
        give(c, BIS_V_TOKENS_DIFFER, BIS_R_logits_absent);
    else if (k->s_n < BIS_TIE_MIN_N)
        give(c, BIS_V_TOKENS_DIFFER, BIS_R_few_agreeing_forwards);
    else if (fabs(x->contrast_a) <= limit && fabs(x->contrast_b) <= limit)
        give(c, BIS_V_TIE, BIS_R_contrast_within_noise);
    else
        give(c, BIS_V_TOKENS_DIFFER, BIS_R_contrast_above_noise);
}

void bis_verdict_find(bis_case *c) {
    const bis_map *m = &c->map;
    if (c->choices.broken >= 0) {
        give(c, BIS_V_UNSTRUCTURED, BIS_R_instrument_inconsistent);
        snprintf(c->where, sizeof c->where, "forward %d", c->choices.broken);
    } else if (m->nonfinite_f >= 0) {
        give(c, BIS_V_NON_FINITE, BIS_R_non_finite_added);
        snprintf(c->where, sizeof c->where, "%.120s in forward %d of arm %s", c->pair->a->nodes[m->nonfinite_n].name,
                 m->nonfinite_f, m->nonfinite_arm ? "B" : "A");
    } else if (identical(c)) {
        give(c, BIS_V_IDENTICAL,
             c->pair->unaligned || c->pair->nexcluded ? BIS_R_bits_equal_where_comparable : BIS_R_bits_equal);
    } else if (!out_of_band(c)) {
        if (c->choices.ndiffer)
            tokens(c);
        else if (m->far_f >= 0) {
            give(c, BIS_V_DIVERGED, BIS_R_inputs_not_recorded);
            c->contaminated = 1;
            at_node(c, m->far_f, m->far_n);
        } else
            give(c, BIS_V_WITHIN_BAND, BIS_R_within_band);
    }
}
