/* decide.h: what decided the ids: margins, contrasts, ties (design.md 6 step 10, requirements R41 to R43, F15). */
#ifndef BISECT_DECIDE_H
#define BISECT_DECIDE_H

#include "bisect/pair.h"

/* One comparable forward. Logit numbers are NaN when a row is missing. */
typedef struct {
    int32_t forward;
    int32_t a, b;                               /* ids chosen */
    int differ, logits, equal;                  /* ids differ; both rows exist; rows equal by bits */
    int32_t best_a, second_a, best_b, second_b; /* of the raw f32 rows, lowest id on a tie */
    double margin_a, margin_b;                  /* best minus second of the raw row */
    double choice_a, choice_b;     /* the same of the values that the choice was made on (after the last rounding) */
    double max_dz;                 /* max |z_A - z_B| */
    double contrast_a, contrast_b; /* z[a] - z[b] for the chosen ids; when they agree, for A's two best */
    int tie_a, tie_b;              /* the arm chose between equal values of a and b */
    int at_risk;              /* min(margin_a, margin_b) <= max_dz, on the raw rows: rounding makes ties, no risk */
    int aligned_a, aligned_b; /* the chosen id is the best of the values the choice was made on */
} bis_choice;

typedef struct {
    int32_t n;
    bis_choice *choice; /* [ncomparable] */
    int32_t prefix;     /* leading ids that agree */
    int32_t first;      /* first comparable forward whose ids differ, -1: none */
    int32_t ndiffer;
    int32_t with_logits, aligned, at_risk, flipped_at_risk, exact_ties;
    double s; /* rms of the contrast's difference over agreeing forwards; NaN: none */
    int32_t s_n;
    int32_t broken;              /* forward at which min(margin) <= max|dz| fails: the instrument is broken; -1: none */
    double lattice_a, lattice_b; /* share of the finite logits on the bf16 grid; NaN: there are none */
} bis_choices;

int bis_decide(const bis_pair *p, bis_choices *ret, q4x_err *err);
void bis_choices_free(bis_choices *c);

enum { BIS_TIE_MIN_N = 3, BIS_TIE_LIMIT = 3 };

#endif
