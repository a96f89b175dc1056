/* flips.h: selections (experts, attended blocks) that differ between the arms (requirements R46 to R49).
 *
 * A slot is one query row of one selection node in one forward. A flip is a slot whose *set* differs; a slot with the
 * same set in another rank order is counted apart. The margin is smallest selected minus largest rejected score; 0 is a
 * tie.
 */
#ifndef BISECT_FLIPS_H
#define BISECT_FLIPS_H

#include "bisect/pair.h"

typedef struct {
    int32_t forward, node, row;
    int32_t swapped, k;        /* ids of A's set that B's lacks; ids in A's set */
    double margin_a, margin_b; /* NaN: not recorded or nothing rejected */
    double steps_a;            /* margin of A in steps of the bf16 grid at its scores */
} bis_flip;

enum { BIS_NBIN = 6 }; /* margin of arm A in bf16 steps: tie, <= 1, <= 2, <= 4, <= 8, above */

/* One forward and one kind of selection ("moe.ids"). */
typedef struct {
    int32_t forward;
    int comparable;
    const char *kind;                          /* borrowed from a node's name */
    int64_t slots, flips, order, swapped, ids; /* ids: of A's sets in flipped slots */
    int64_t unrecorded;                        /* selections that differ by hash, without ids in a dump */
    int64_t wide, wide_flips;                  /* slots, flips whose cut is more than 8 bf16 steps wide in arm A */
    int64_t ties, tie_flips;                   /* slots, flips with an exact tie at the cut in either arm */
    int32_t first_layer;                       /* of a flip; -1: none */
    char *strip; /* [layers]: '.' same, 'o' order, '1'..'9','+' most ids swapped in a row, ' ' no slot */
} bis_flip_row;

/* A row whose list of ids differs, by its set or by its order alone. */
typedef struct {
    int32_t forward, node, row;
} bis_moved;

typedef struct {
    int64_t n, cap;
    bis_flip *flip; /* ascending forward, node, row; comparable and excluded forwards */
    int64_t nmoved, moved_cap;
    bis_moved *moved; /* likewise; every flip is one */
    int32_t nrows;
    bis_flip_row *row;
    int64_t bin_slots[BIS_NBIN], bin_flips[BIS_NBIN]; /* comparable forwards */
    int32_t layers;
} bis_flips;

/* 1 when node n chooses by scores; ids made of the consumed ids alone (n-gram hashes) are no selection. */
int bis_is_selection(const bis_pair *p, int32_t n);

int bis_flips_find(const bis_pair *p, bis_flips *ret, q4x_err *err);
void bis_flips_free(bis_flips *s);

/* mask[t] = 1 when row row0 + t of node n's tensor in forward f lies behind a selection of the same layer, earlier in
 * the forward, that differs in that row, be it by order alone: tensors with a place for each slot differ then as a
 * whole. When the rows of such a selection are not recorded, all are. Returns how many are masked. */
int32_t bis_flips_mask(const bis_pair *p, const bis_flips *s, int32_t f, int32_t n, int32_t row0, int32_t nrows,
                       char *mask);

/* "moe.ids" of "L03.moe.ids". */
const char *bis_kind(const char *node);

#endif
