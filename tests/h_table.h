/* h_table.h: measured against bound, for tests that replay a recorded run: distances in bf16 steps, and a table of what
 * was found. A value that is no number is infinitely far. */
#ifndef H_TABLE_H
#define H_TABLE_H

#include <stdint.h>

typedef struct {
    int64_t n, same; /* values; those with the same bits */
    double worst;    /* the largest distance so far */
} h_tally;

double h_bf16_ulp(float x); /* one bf16 ulp at x */

/* |got - want| over what is allowed: one bf16 ulp of want and the value's floor (NULL: none). */
void h_ulps(h_tally *t, const float *got, const float *want, const double *floor, int64_t n);
/* Steps between got and want on the line of bf16 values, fractions for what lies between two: 0 is "by bits" (-0 and
 * +0 are half a step apart). */
void h_steps(h_tally *t, const float *got, const float *want, int64_t n);

/* A row of the table; 1 when measured <= bound. same -1: no share of equal bits. */
int h_say(const char *what, int64_t n, int64_t same, double measured, double bound, int must_fail);
int h_row(const char *what, const h_tally *t, double bound);
/* A row that must be refused: the test fails unless it is beyond `times` the bound. */
void h_control(const char *what, const h_tally *t, double bound, double times);
void h_table(void); /* print the rows so far */

#endif
