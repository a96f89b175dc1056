#include "lib/encode_book.h"

void q4x_subset_sums(const double v[8], double sums[256]) {
    sums[0] = 0;
    for (int m = 1; m < 256; m++) sums[m] = sums[m & (m - 1)] + v[__builtin_ctz((unsigned)m)];
}

/* ---- hulls ---- */

void q4x_bins_clear(q4x_bins *b, double first, double per) {
    b->first = first;
    b->per = per;
    for (int i = 0; i < Q4X_MAX_BINS; i++) b->row[i] = -1;
}

/* 1 when the last point of h lies on or below the line from the one before it to (M, Q). */
static int below(const q4x_hull *h, double M, double Q) {
    int n = h->n;
    if (n < 2) return 0;
    double dm = h->M[n - 1] - h->M[n - 2], dq = h->Q[n - 1] - h->Q[n - 2];
    return (Q - h->Q[n - 2]) * dm >= dq * (M - h->M[n - 2]);
}

/* Ranges come in order of M, so a point that has no more Q than one before it is best for no step. */
void q4x_bins_hull(const q4x_bins *b, q4x_hull *ret) {
    ret->n = 0;
    for (int i = 0; i < Q4X_MAX_BINS; i++) {
        if (b->row[i] < 0 || (ret->n && b->Q[i] <= ret->Q[ret->n - 1])) continue;
        while (below(ret, b->M[i], b->Q[i])) ret->n--;
        if (ret->n == Q4X_MAX_HULL) ret->n--; /* more than the ranges of any code book can leave */
        ret->M[ret->n] = b->M[i];
        ret->Q[ret->n] = b->Q[i];
        ret->row[ret->n++] = (uint16_t)b->row[i];
    }
}

/* ---- the best codes for a scale ---- */

/* The point that takes most off the error with this step: along a hull the gain rises, then falls. */
static int best_point(const q4x_hull *h, double step, double *ret_gain) {
    int at = 0;
    double best = step * (2 * h->Q[0] - step * h->M[0]);
    for (int i = 1; i < h->n; i++) {
        double gain = step * (2 * h->Q[i] - step * h->M[i]);
        if (!(gain > best)) break;
        at = i;
        best = gain;
    }
    *ret_gain = best;
    return at;
}

/* What a group gains with a step in a variant, and the points it takes for that. */
static double group_gain(const q4x_hull *octet, double step, int at[4]) {
    double sum = 0, gain;
    for (int l = 0; l < 4; l++) {
        at[l] = best_point(&octet[l], step, &gain);
        sum += gain;
    }
    return sum;
}

typedef struct {
    double mq, mm; /* sums of mult Q and mult^2 M: the scale that suits the choice best is mq / mm */
} refit;

static void choose_group(const q4x_book *k, int j, q4x_choice *c, refit *r) {
    double best = -INFINITY;
    int take[4] = {0};
    c->code[j] = c->variant[j] = 0;
    for (int v = 0; v < k->variants; v++) {
        for (int n = 0; n < k->codes; n++) {
            int at[4];
            double gain = group_gain(&k->hull[v][4 * j], c->d * k->mult[n], at);
            if (!(gain > best)) continue;
            best = gain;
            c->code[j] = n;
            c->variant[j] = v;
            memcpy(take, at, sizeof take);
        }
    }
    c->gain += best;
    for (int l = 0; l < 4; l++) {
        const q4x_hull *h = &k->hull[c->variant[j]][4 * j + l];
        double m = k->mult[c->code[j]];
        c->row[4 * j + l] = h->row[take[l]];
        r->mq += m * h->Q[take[l]];
        r->mm += m * m * h->M[take[l]];
    }
}

static void choose(const q4x_book *k, double d, q4x_choice *c, refit *r) {
    c->d = d;
    c->gain = 0;
    *r = (refit){0, 0};
    for (int j = 0; j < Q4X_GROUPS; j++) choose_group(k, j, c, r);
}

enum { STEPS = 6, REFITS = 3 };

void q4x_book_search(const q4x_book *k, double guess, q4x_choice *ret) {
    q4x_choice c;
    refit r, at = {0, 0};
    ret->gain = -INFINITY;
    for (int i = 0; i <= STEPS; i++) {
        choose(k, q4x_half(guess * (0.5 + i * (1.0 / STEPS))), &c, &r);
        if (!(c.gain > ret->gain)) continue;
        *ret = c;
        at = r;
    }
    for (int i = 0; i < REFITS && at.mq > 0; i++) {
        choose(k, q4x_half(at.mq / at.mm), &c, &r);
        if (!(c.gain > ret->gain)) break;
        *ret = c;
        at = r;
    }
}
