/* selftest.h: the instrument proves itself. Faults that were planted in a run must be found where they were planted and
 * nowhere earlier; runs that must not differ must be silent. Every row says what it expected and what it found.
 */
#ifndef BISECT_SELFTEST_H
#define BISECT_SELFTEST_H

#include <stdint.h>

#include "lib/err.h"
#include "lib/greedy.h"
#include "lib/tap.h"

typedef struct {
    char what[80];    /* "sign@L00.gdn.core#0", "two runs" */
    char found[80];   /* "L00.gdn.core, forward 0, inputs equal", "0 of 412 differ" */
    char verdict[32]; /* of bisect, "" where it was not asked */
    int good;
} bis_trial;
typedef void (*bis_trial_fn)(void *ctx, const bis_trial *t);

/* Plants on a tiny model: two arms, alike but for the plant, dumped into dir and judged; and a null. *ret_bad: rows
 * that are not good. Errors are those of files and memory. */
int bis_selftest_plants(const char *model, const char *dir, bis_trial_fn fn, void *ctx, int *ret_bad, q4x_err *err);

/* Nulls on any model: two runs, 1 against n threads, tapped against untapped, prefill against id by id, the file read
 * twice; and a twin that must differ, so that silence means something. */
int bis_selftest_nulls(const char *model, const char *dir, bis_trial_fn fn, void *ctx, int *ret_bad, q4x_err *err);

/* Run an arm under taps into a dump at path. */
int bis_dump_arm(const q4x_net *net, const char *spec, const q4x_greedy_opts *go, const q4x_tap_opts *o,
                 const char *path, q4x_err *err);

#endif
