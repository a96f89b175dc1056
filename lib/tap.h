/* tap.h: a tap set watches a run and writes a dump. Every node is hashed; statistics and sketches are kept for the
 * chosen ones. It reads, never writes: tapped equals untapped bit for bit.
 */
#ifndef Q4X_TAP_H
#define Q4X_TAP_H

#include "lib/dump.h"
#include "lib/run.h"

typedef struct {
    q4x_mode mode;
    const char *layers;      /* "0-3,47" or NULL: all */
    const char *nodes;       /* globs separated by commas, or NULL: the public ones */
    int64_t rows0, nrows;    /* rows to sketch; nrows 0: the last 64; -1: all */
    int bands;
} q4x_tap_opts;

typedef struct q4x_tapset q4x_tapset;

/* Attach to a run (installs its node hook) and open the dump. header: keys of dump.h that the caller knows
 * (prompt, args, label); the rest is filled in here. */
int q4x_tapset_open(q4x_run *r, const q4x_net *n, const q4x_arm *arm, const q4x_tap_opts *o, const char *path,
                    json_t *header, q4x_tapset **ret, q4x_err *err);
/* After each q4x_run_forward: records what it consumed, states and logits. */
int q4x_tapset_forward(q4x_tapset *t, const int32_t *ids, int32_t n, int forced, int32_t sampled, q4x_err *err);
int q4x_tapset_close(q4x_tapset *t, q4x_hash *ret_content, q4x_err *err); /* frees t */
void q4x_tapset_abort(q4x_tapset *t);

#endif
