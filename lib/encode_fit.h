/* encode_fit.h: scales for one group of values by least squares, before they are rounded to what a block can store.
 *
 * Each tries scales near the one that the group's extremes ask for. A scale gives codes; for these codes the best scale
 * is known in closed form; the candidate whose refitted error is least wins, the first of equals.
 */
#ifndef Q4X_ENCODE_FIT_H
#define Q4X_ENCODE_FIT_H

#include "lib/encode_int.h"

/* s of x ~ s q, q = lo .. hi (lo < 0 < hi): 0 when all x are 0. With half, s is a binary16. */
double q4x_fit_scale(const double *x, const double *w, int n, int lo, int hi, int half);
/* The same with the levels of IQ4_NL for q; s is a binary16. */
double q4x_fit_levels(const double *x, const double *w, int n);
/* Code of the level nearest to v; the lower of two. */
int q4x_level_code(double v);
/* s >= 0 and m of x ~ s q + m, q = 0 .. hi; with below, m <= 0. */
void q4x_fit_affine(const double *x, const double *w, int n, int hi, int below, double *ret_s, double *ret_m);

#endif
