/* map_finite.c: where does a non-finite value first appear, in one arm, out of finite inputs? */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/map.h"

typedef enum { FINITE, NONFINITE, NOT_KNOWN } fin;

static fin logits_finite(const q4x_forward *w) {
    if (!w->logits || w->n_logits < 1) return NOT_KNOWN;
    for (size_t i = 0; i < (size_t)w->vocab * (size_t)w->n_logits; i++)
        if (!isfinite(w->logits[i])) return NONFINITE;
    return FINITE;
}

/* 1 when the dump says that it keeps statistics of every node that holds a value that is not finite. */
static int counts_all(const q4x_dump *d) {
    return json_is_true(json_object_get(d->header, "nonfinite_counted"));
}

/* By statistics, else by the count a sketch keeps of the kept rows (which proves presence, not absence, when rows are
 * missing), else by the logit rows themselves. */
static fin own(const bis_pair *p, int32_t f, int32_t n, int arm) {
    const q4x_tap *t = (arm ? p->tb : p->ta)[bis_at(p, f, n)];
    const q4x_dump_node *k = &p->a->nodes[n];
    if (k->is_ids) return FINITE;
    if (!t) return NOT_KNOWN;
    if (t->has_stats) return t->stats.nan + t->stats.pinf + t->stats.ninf ? NONFINITE : FINITE;
    if (t->has_sketch && t->sketch.skipped) return NONFINITE;
    if (!strcmp(k->name, "logits")) return logits_finite(arm ? BIS_FB(p, f) : BIS_FA(p, f));
    return !k->is_state && counts_all(arm ? p->b : p->a) ? FINITE : NOT_KNOWN;
}

static fin worse(fin a, fin b) {
    if (a == NONFINITE || b == NONFINITE) return NONFINITE;
    return a == NOT_KNOWN || b == NOT_KNOWN ? NOT_KNOWN : FINITE;
}

/* Of the inputs of node n; one without statistics stands for its own inputs. memo[n] holds what was found before. */
static fin inputs(const bis_pair *p, int32_t f, int32_t n, const uint8_t *memo, const uint8_t *state) {
    fin r = FINITE;
    for (int32_t i = 0; i < p->nin[n]; i++) {
        int32_t j = p->in[n][i];
        if (j == Q4X_IN_IDS) continue;
        r = worse(r, j < n ? (fin)memo[j] : NOT_KNOWN);
    }
    for (int32_t i = 0; i < p->nst[n] && f > 0; i++) {
        /* a state without statistics is taken as finite while nothing non-finite was seen before it */
        fin s = (fin)state[p->st[n][i]];
        r = worse(r, s == NOT_KNOWN ? FINITE : s);
    }
    return r;
}

static int found_before(const bis_map *m) {
    return m->nonfinite_f >= 0;
}

static void forward(bis_map *m, const bis_pair *p, int32_t f, int arm, uint8_t *memo, uint8_t *state) {
    for (int32_t n = 0; n < p->nn; n++) {
        if (p->a->nodes[n].is_state) continue;
        fin in = inputs(p, f, n, memo, state), mine = own(p, f, n, arm), other = own(p, f, n, !arm);
        memo[n] = (uint8_t)(mine == NOT_KNOWN ? in : mine);
        if (mine == NONFINITE && other == NONFINITE && !arm) {
            m->both_nonfinite++;
            if (m->both_f < 0) {
                m->both_f = f;
                m->both_n = n;
            }
        }
        if (mine != NONFINITE || other != FINITE || in != FINITE) continue;
        if (found_before(m) && (m->nonfinite_f < f || (m->nonfinite_f == f && m->nonfinite_n <= n))) continue;
        m->nonfinite_f = f;
        m->nonfinite_n = n;
        m->nonfinite_arm = arm;
    }
    for (int32_t n = 0; n < p->nn; n++)
        if (p->a->nodes[n].is_state) {
            fin mine = own(p, f, n, arm);
            for (int32_t i = 0; mine == NOT_KNOWN && i < p->nwriter[n]; i++)
                if (memo[p->writer[n][i]] == NONFINITE) mine = NONFINITE;
            if (mine != NOT_KNOWN || state[n] != NONFINITE) state[n] = (uint8_t)mine;
        }
}

static int is_flat(const q4x_tap *t) {
    return t->has_stats && t->stats.n > 1 && t->stats.min == t->stats.max && t->stats.n != t->stats.nan;
}

/* Tensors without content in one arm alone: to be known before any distance is read (requirement R14). */
static void find_flat(bis_map *m, const bis_pair *p) {
    for (int32_t f = 0; f < p->ncomparable; f++)
        for (int32_t n = 0; n < p->nn; n++) {
            const q4x_tap *a = p->ta[bis_at(p, f, n)], *b = p->tb[bis_at(p, f, n)];
            if (!a || !a->has_stats || !b->has_stats || is_flat(a) == is_flat(b)) continue;
            const int arm = is_flat(b);
            if (m->flat[arm]++) continue;
            m->flat_f[arm] = f;
            m->flat_n[arm] = n;
        }
}

int bis_map_nonfinite(bis_map *m, const bis_pair *p, q4x_err *err) {
    int rc = 0;
    find_flat(m, p);
    for (int arm = 0; arm < 2 && !rc; arm++) {
        uint8_t *memo = calloc((size_t)p->nn + 1, 1), *state = calloc((size_t)p->nn + 1, 1);
        if (!memo || !state) rc = q4x_fail(err, Q4X_E_NOMEM, "out of memory for %d nodes", p->nn);
        for (int32_t f = 0; !rc && f < p->ncomparable; f++) forward(m, p, f, arm, memo, state);
        free(memo);
        free(state);
    }
    return rc;
}
