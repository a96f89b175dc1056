/* pair.h: two dumps laid side by side: nodes by name, taps by (forward, node), what is equal by bits.
 *
 * Everything below is indexed by the nodes of arm A ("node n") and by forward number. Borrows both dumps.
 */
#ifndef BISECT_PAIR_H
#define BISECT_PAIR_H

#include "bisect/words.h"
#include "lib/dump.h"

/* What is known of the equality of two records. */
typedef enum { BIS_ABSENT, BIS_SAME, BIS_DIFF, BIS_UNKNOWN /* recorded, but not comparable: head order */ } bis_eq;

/* A forward that is left out. */
typedef struct {
    int32_t forward;
    bis_reason why;
    int32_t id_a, id_b; /* first differing consumed id; -1: none on that side */
} bis_excluded;

typedef struct {
    q4x_dump *a, *b;
    int32_t nn, nf;                             /* nodes of A; forwards of both */
    int32_t *to_b;                              /* [nn] node of B, -1: none */
    int32_t nonly_a, *only_a, nonly_b, *only_b; /* nodes that one dump lacks, by its own index */
    q4x_tap **ta, **tb;                         /* [nf * nn], NULL: no tap (of either: both are NULL then) */
    uint8_t *eq;                                /* [nf * nn] bis_eq; ABSENT in forwards that are not comparable */
    /* inputs of node n, in A's index space */
    int32_t *nin, **in, *nst, **st;
    int32_t *nwriter, **writer; /* of a state: nodes that carry it in st */
    int *heads_differ;          /* [nn] head order differs and must be aligned */
    int32_t ncomparable;        /* forwards 0 .. ncomparable-1 are comparable */
    int32_t nexcluded;
    bis_excluded *excluded;
    int32_t layers, nstates, npublic;
    int64_t compared, identical, unaligned; /* taps and states in comparable forwards */
} bis_pair;

static inline size_t bis_at(const bis_pair *p, int32_t f, int32_t n) {
    return (size_t)f * (size_t)p->nn + (size_t)n;
}

/* Build a pair. *ret_why is BIS_R_none, or the reason why the dumps do not line up; where says where, in words. The
 * pair is returned in both cases (as far as it got; eq only when they line up). partial_ok: nodes that one dump lacks
 * are listed, not refused (imports). */
int bis_pair_new(q4x_dump *a, q4x_dump *b, int partial_ok, bis_pair **ret, bis_reason *ret_why, char where[240],
                 q4x_err *err);
void bis_pair_free(bis_pair *p); /* NULL is fine */

/* Structure of the two dumps (pair_check.c). Return the first reason, or BIS_R_none. */
bis_reason bis_check_dump(const q4x_dump *d, const char *arm, char where[240]);
bis_reason bis_check_shapes(const bis_pair *p, char where[240]);

/* Which forwards are comparable (comparable.c): the same ids at the same positions after the same prefix. */
int bis_comparable(bis_pair *p, q4x_err *err);

/* 1 when the rows of logits of forward f are equal by bits (NaNs of any payload are equal); both must have them. */
int bis_logits_equal(const q4x_forward *a, const q4x_forward *b);

/* Forward f of both. */
#define BIS_FA(p, f) (&(p)->a->forwards[f])
#define BIS_FB(p, f) (&(p)->b->forwards[f])

#endif
