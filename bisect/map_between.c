/* map_between.c: by which inputs was a node judged? */
#include <stdlib.h>

#include "bisect/map_int.h"

enum { MAX_DEPTH = 1000 };

typedef struct {
    const bis_map *m;
    const bis_pair *p;
    int32_t f, *ret;
    int n, max;
    char *seen;
} search;

static void ancestors(search *s, int32_t n, int depth) {
    const bis_pair *p = s->p;
    if (depth > MAX_DEPTH) return;
    for (int32_t i = 0; i < p->nin[n]; i++) {
        int32_t j = p->in[n][i];
        if (j < 0 || j >= n || s->seen[j]) continue;
        s->seen[j] = 1;
        if (p->eq[bis_at(p, s->f, j)] == BIS_SAME) continue;
        if (!bis_dist_usable(bis_map_cell(s->m, p, s->f, j)->dist)) {
            ancestors(s, j, depth + 1);
            continue;
        }
        if (s->n < s->max) s->ret[s->n] = j;
        s->n++;
    }
    for (int32_t i = 0; i < p->nst[n] && s->f > 0; i++) {
        int32_t j = p->st[n][i];
        if (s->seen[j] || p->eq[bis_at(p, s->f - 1, j)] == BIS_SAME) continue;
        s->seen[j] = 1;
        if (s->n < s->max) s->ret[s->n] = j;
        s->n++;
    }
}

int bis_map_between(const bis_map *m, const bis_pair *p, int32_t f, int32_t n, int32_t *ret, int max) {
    search s = {.m = m, .p = p, .f = f, .ret = ret, .max = max, .seen = calloc((size_t)p->nn + 1, 1)};
    if (!s.seen) return 0;
    ancestors(&s, n, 0);
    free(s.seen);
    return s.n < max ? s.n : max;
}
