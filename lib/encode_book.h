/* encode_book.h: the search behind types whose codes are rows of a code book: eight groups of four octets, a step a
 * group, a row an octet.
 *
 * With step L an octet x is stored as L g, so a row g leaves sum w x^2 + L^2 M - 2 L Q, where M = sum w g^2 and
 * Q = sum w x g do not depend on L. Which row is best for which L is therefore the upper hull of the points (M, Q): a
 * handful of some hundred or thousand rows. With the hulls known, the best codes of a block for a given scale cost
 * little, and many scales can be tried.
 */
#ifndef Q4X_ENCODE_BOOK_H
#define Q4X_ENCODE_BOOK_H

#include "lib/encode_int.h"

enum { Q4X_OCTETS = 32, Q4X_GROUPS = 8, Q4X_MAX_VARIANTS = 2, Q4X_MAX_HULL = 64, Q4X_MAX_BINS = 176 };

/* Points that are best for some step, from the smallest M on: M and Q rise. */
typedef struct {
    int n;
    double M[Q4X_MAX_HULL], Q[Q4X_MAX_HULL];
    uint16_t row[Q4X_MAX_HULL];
} q4x_hull;

/* Points on their way to a hull: of each narrow range of M the one with most Q. With equal weights M takes few values
 * and a range holds one of them, so nothing is lost. */
typedef struct {
    double first, per; /* least M, ranges a unit of M */
    double M[Q4X_MAX_BINS], Q[Q4X_MAX_BINS];
    int row[Q4X_MAX_BINS]; /* -1: none */
} q4x_bins;

/* M lies in first .. first + Q4X_MAX_BINS / per. */
void q4x_bins_clear(q4x_bins *b, double first, double per);
void q4x_bins_hull(const q4x_bins *b, q4x_hull *ret);
static inline void q4x_bins_add(q4x_bins *b, double M, double Q, int row) {
    int i = (int)((M - b->first) * b->per);
    if (i < 0) i = 0;
    if (i >= Q4X_MAX_BINS) i = Q4X_MAX_BINS - 1;
    if (b->row[i] >= 0 && !(Q > b->Q[i])) return;
    b->M[i] = M;
    b->Q[i] = Q;
    b->row[i] = row;
}

/* A block: hulls of every octet in every variant, and the steps that a group can have, as multiples of the scale. */
typedef struct {
    q4x_hull hull[Q4X_MAX_VARIANTS][Q4X_OCTETS];
    int variants, codes;
    const double *mult; /* [codes] */
} q4x_book;

typedef struct {
    double d, gain; /* gain: what is taken off sum w x^2 */
    int code[Q4X_GROUPS], variant[Q4X_GROUPS];
    uint16_t row[Q4X_OCTETS];
} q4x_choice;

/* The best choice over scales around `guess` (> 0), in binary16. */
void q4x_book_search(const q4x_book *k, double guess, q4x_choice *ret);

/* Sum of v[i] over the set bits of every byte. */
void q4x_subset_sums(const double v[8], double sums[256]);

#endif
