/* h_pair.h: for tests on a device: which one, and a call of an op that the host and the device answer alike. */
#ifndef H_PAIR_H
#define H_PAIR_H

#include "kernels/dev.h"

/* Device 0, opened; fail_msg where there is none. *ret_emulated 1: the emulator, which is slow. */
k_dev *hp_device(int *ret_emulated);
void hp_close(void);

/* n more of these ("shapes") for which the emulator has not got the time. The sum is printed last by hp_close, in words
 * that `make check` counts: NAME: N shapes left to a GPU. */
void hp_left(int64_t n, const char *what);

/* Run op on the device on copies of its operands: got[T * cols] and, when c has a state 0, got_state[cap * cols] and
 * its rows. Returns what k_dev_run did; everything else that fails is fail_msg, words too that are written behind these
 * or behind the scratch that the call's shape asks for. */
int hp_run(const char *what, k_op op, const k_call *c, const int64_t par_n[K_MAXW], float *got, float *got_state,
           int64_t *ret_rows);
/* Run op by CPU and on the device on the same operands, state 0 as it is in c->st[0]->f (which the CPU's run changes),
 * and count elements of output and state that differ by bits (any NaN equals any NaN); says the first, under `what`.
 * c: a whole call on host memory, its rows at c->in[k] + t * in_cols[k]; par_n: floats at c->par[k]. */
int64_t hp_differ(const char *what, k_op op, k_call *c, const int64_t par_n[K_MAXW]);
/* Twins: from now on these bits of element `at` of in[0] are flipped for the host alone; 0: none. */
void hp_flip(int64_t at, uint32_t bits);
/* Twins: from now on scratch ends so many floats before its end, as far as is looked at, and what is written there is
 * counted by hp_differ; 0: none. */
void hp_cut(int64_t floats);
/* From now on the bytes of weights begin so far behind an address that is as round as can be. */
void hp_shift(size_t bytes);

#endif
