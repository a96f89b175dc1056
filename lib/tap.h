/* tap.h: a tap set watches a run and writes a dump. Every node is hashed; statistics, sketches and full tensors are
 * kept for the chosen ones. It reads, never writes: tapped equals untapped bit for bit.
 */
#ifndef Q4X_TAP_H
#define Q4X_TAP_H

#include "lib/dump.h"
#include "lib/greedy.h"
#include "lib/run.h"

typedef struct {
    q4x_mode mode;
    const char *layers; /* "0-3,47" or NULL: all. emb, wide, out and logits always stay */
    const char *nodes;  /* globs separated by commas, or NULL: the public nodes */
    /* Rows to sketch: nrows 0: the last 64; -1: all; else row0 .. row0+nrows; row0 -1: the last nrows. */
    int64_t row0, nrows;
    int bands;    /* 1: the bands of every op that states one and of states; the nodes that read a lever other than act
                     and gemm, which are most, the states that an op makes and the nodes whose rows these keep stay,
                     so that a pair of arms can be judged where it parts; 0: bands of the nodes that read nothing but
                     ids */
    int controls; /* 1: read every buffer twice; q4x_tapset_untapped is then called too */
    int64_t most; /* on a device: bytes of either block that results and tensors come through, unless a piece of them
                     needs more; 0: 64 MiB, and no more than the longest forward can use */
} q4x_tap_opts;

/* Bytes that taps take on top of a run on a device: of its memory, and pinned ones of the host. Where there is too
 * little room for outputs that wait (q4x_run_hold), they take less of both: least of the device's, without them. For a
 * run of up to n_ctx positions in passes of up to `tile` rows, computed without the device; the run itself takes what
 * is said here when it opens its tap set. Errors: those of --layer and --node, no memory. */
typedef struct {
    uint64_t device, pinned, least;
} q4x_tap_memory;
int q4x_tap_memory_of(const q4x_plan *p, const q4x_tap_opts *o, int64_t n_ctx, int32_t tile, q4x_tap_memory *ret,
                      q4x_err *err);

/* A control: how many of what was compared differ. compared 0: not measured. */
typedef struct {
    int64_t differing, compared;
} q4x_tap_count;

/* 1 when what goes by this word (q4x_plan_lever_word) reads a lever other than those that nearly every node reads
 * (act, dot, repack, gemm), so that --bands keeps its nodes. */
int q4x_tap_reads_choice(const char *word);

typedef struct q4x_tapset q4x_tapset;

/* Attach to a run (installs its node hook) and open the dump. header is taken over (freed here, also on failure): the
 * keys of dump.h that the caller knows (tool, prompt, free); model, arm and the rest are filled in here. path is
 * borrowed until the tap set is freed. Errors: a --layer list that is no list or names no layer, a glob that matches no
 * node, too little memory on the run's device (Q4X_E_DEVICE, with the number), I/O. */
int q4x_tapset_open(q4x_run *r, const q4x_net *n, const q4x_tap_opts *o, const char *path, json_t *header,
                    q4x_tapset **ret, q4x_err *err);
/* After each q4x_run_forward: the states, what it consumed, its logits. sampled: id chosen after it, -1 none. */
int q4x_tapset_forward(q4x_tapset *t, const int32_t *ids, int32_t n, int forced, int32_t sampled, q4x_err *err);
/* Perturbation: reset the run, make the sequence again without taps, compare chosen ids and logit rows. After it the
 * tap set is off the run: only close or abort follow. */
int q4x_tapset_untapped(q4x_tapset *t, const q4x_greedy_opts *go, q4x_err *err);
void q4x_tapset_controls(const q4x_tapset *t, q4x_tap_count *read_twice, q4x_tap_count *perturbation);
/* 1 when item k of the arm was in scope, and moved no bit of the run as far as that could be told: INERT. */
int q4x_tapset_inert(const q4x_tapset *t, int k);
/* Close the dump under its name; frees t also on failure. */
int q4x_tapset_close(q4x_tapset *t, q4x_hash *ret_content, q4x_err *err);
/* The run cannot go on, for the reason in err: the dump is cut behind its last whole forward and appears under its name
 * (q4x_dumpw_cut). Frees t. Says in front of the message in err how many forwards it holds, or that nothing was
 * written. */
void q4x_tapset_cut(q4x_tapset *t, q4x_err *err);
void q4x_tapset_abort(q4x_tapset *t); /* NULL is fine */

#endif
