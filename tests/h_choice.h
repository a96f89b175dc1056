/* h_choice.h: a router's selection of one token against a recorded one, as weight-matched sets: where scores are equal
 * at the cut, which expert is kept is an accident of the engine's library, and everything else is not. */
#ifndef H_CHOICE_H
#define H_CHOICE_H

#include <stdint.h>

typedef struct {
    int32_t K, E;
    const int32_t *id, *want;             /* [K] in rank order: ours, recorded (in 0..E-1) */
    const float *logit;                   /* [E] recorded */
    const float *p, *p_want, *w, *w_want; /* [K] probabilities and weights that go with id and want */
} h_choice;

/* NULL, or what is wrong: ours must be a top K of the logits in rank order, with the recorded sequence of probabilities
 * and each weight that of its expert; the same set unless the cut is tied (*tied), and then with one expert at most
 * (*subs) that stands for a recorded one of equal logit and weight, each used once. */
const char *h_choice_matched(const h_choice *s, int *subs, int *tied);

#endif
