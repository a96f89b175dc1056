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
    int64_t ties, tie_flips;                   /* slots, flips with an exact tie at the cut in either arm */
    int32_t first_layer;                       /* of a flip; -1: none */
    char *strip; /* [layers]: '.' same, 'o' order, '1'..'9','+' most ids swapped in a row, ' ' no slot */
} bis_flip_row;

typedef struct {
    int64_t n, cap;
    bis_flip *flip; /* ascending forward, node, row; comparable and excluded forwards */
    int32_t nrows;
    bis_flip_row *row;
    int64_t bin_slots[BIS_NBIN], bin_flips[BIS_NBIN]; /* comparable forwards */
    int64_t wide; /* comparable flips with a margin of more than 8 steps: an alarm (R28) */
    int32_t layers;
} bis_flips;

int bis_flips_find(const bis_pair *p, bis_flips *ret, q4x_err *err);
void bis_flips_free(bis_flips *s);

/* mask[t] = 1 when row row0 + t of node n's tensor in forward f lies behind a flip: a selection of the same layer,
 * earlier in the forward, differs in that row (or differs, and its rows are not recorded). Returns how many do. */
int32_t bis_flips_mask(const bis_pair *p, const bis_flips *s, int32_t f, int32_t n, int32_t row0, int32_t nrows,
                       char *mask);

/* "moe.ids" of "L03.moe.ids". */
const char *bis_kind(const char *node);

#endif
