#include "tests/h_choice.h"

#include <math.h>

#include "kernels/round.h"

enum { MOST = 4096 };

typedef struct {
    char mine[MOST], theirs[MOST]; /* by expert; theirs: 2 when one of ours stands for it */
} marks;

static int same(float a, float b) {
    return k_f32_bits(a) == k_f32_bits(b);
}

/* A top K of the logits, in rank order. */
static const char *top_k(const h_choice *s, marks *m, int *tied) {
    float least = INFINITY, rejected = -INFINITY;
    for (int k = 0; k < s->K; k++) {
        int32_t e = s->id[k];
        if (e < 0 || e >= s->E) return "an id that is no expert";
        if (m->mine[e]) return "an expert twice";
        m->mine[e] = 1;
        if (k && !(s->logit[e] <= s->logit[s->id[k - 1]])) return "not in rank order";
        least = s->logit[e];
    }
    for (int e = 0; e < s->E; e++)
        if (!m->mine[e]) rejected = fmaxf(rejected, s->logit[e]);
    *tied = rejected == least;
    return rejected <= least ? NULL : "a better expert was left out";
}

/* The recorded expert that ours of rank k stands for. */
static const char *substitute(const h_choice *s, marks *m, int k) {
    for (int j = 0; j < s->K; j++) {
        int32_t e = s->want[j];
        if (m->mine[e] || m->theirs[e] != 1 || s->logit[e] != s->logit[s->id[k]]) continue;
        m->theirs[e] = 2;
        return same(s->w[k], s->w_want[j]) ? NULL : "a substitute with another weight";
    }
    return "an expert that stands for none of equal weight";
}

const char *h_choice_matched(const h_choice *s, int *subs, int *tied) {
    marks m = {{0}, {0}};
    *subs = *tied = 0;
    if (s->E > MOST) return "more experts than this was made for";
    for (int k = 0; k < s->K; k++) m.theirs[s->want[k]] = 1;
    const char *why = top_k(s, &m, tied);
    for (int k = 0; !why && k < s->K; k++) {
        if (!same(s->p[k], s->p_want[k])) return "another sequence of probabilities";
        for (int j = 0; j < s->K; j++)
            if (s->id[k] == s->want[j] && !same(s->w[k], s->w_want[j])) return "a weight that is another expert's";
        if (m.theirs[s->id[k]]) continue;
        ++*subs;
        why = substitute(s, &m, k);
    }
    if (why) return why;
    if (*subs && !*tied) return "not the canonical set, and no tie at the cut";
    return *subs > 1 ? "more than one substitute" : NULL;
}
