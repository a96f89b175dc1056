/* arena.h: where the outputs of a plan lie, and how long its states are. One buffer a run, sized before the first op; a
 * node's space is reused once its last reader ran. */
#ifndef Q4X_ARENA_H
#define Q4X_ARENA_H

#include "lib/plan.h"

enum { Q4X_TILE_MIN = 64 }; /* rows a pass are a multiple of this */

/* Columns of a node's output when Tc positions are known. */
int64_t q4x_node_cols(const q4x_plan *p, int32_t node, int64_t Tc);

/* The node whose buffer this one's output is: itself, unless it is an alias. */
int32_t q4x_arena_owner(const q4x_plan *p, int32_t node);

/* Lay out the outputs for tiles of `rows` rows and up to n_ctx positions. ret_off[node] in floats (aliases share their
 * source's; the logits node has none: -1). Returns the floats needed, or a negative error (overflow, no memory). */
int64_t q4x_arena_layout(const q4x_plan *p, int64_t rows, int64_t n_ctx, int64_t *ret_off, q4x_err *err);

/* The same with outputs that stay until the end of the layer behind their own, whoever reads them: what measures them
 * waits until there is more to be measured, and goes on beside that layer. For a device: q4x_arena_ahead is in it. */
int64_t q4x_arena_held(const q4x_plan *p, int64_t rows, int64_t n_ctx, int64_t *ret_off, q4x_err *err);

/* Of a layout with `total` floats for a run on a device: outputs that the host makes (k_dev_on_host) move behind all
 * others, where no op writes, so that they can come there at any time. Returns the floats needed then. */
int64_t q4x_arena_ahead(const q4x_plan *p, int64_t rows, int64_t total, int64_t *off);

/* The floats of q4x_arena_held for a run on a device, and its offsets: 0 where it would be far too much, or there is no
 * memory for the layout, and all stays as it is. */
int64_t q4x_arena_held_fit(const q4x_plan *p, int32_t tile, int64_t n_ctx, int64_t *ret_off);

/* The same as the first for the rows of a pass that a run of up to n_ctx positions takes: `tile` when it is not 0, else
 * the largest for which the outputs stay near what a processor's cache holds, 24 MiB; on a device, where each pass is
 * a walk of launches whatever its rows, near 256 MiB. *ret_tile: the one that was taken. Asks no device. */
int64_t q4x_arena_fit(const q4x_plan *p, int on_device, int32_t tile, int64_t n_ctx, int64_t *ret_off,
                      int32_t *ret_tile, q4x_err *err);

/* Rows of a state when up to n_ctx positions are reached. */
int64_t q4x_state_rows(const q4x_plan *p, const q4x_state_desc *s, int64_t n_ctx);

/* ---- on a device ---- */

/* What a run takes of a device's memory besides weights, in floats; arena to ids are multiples of 64. */
typedef struct {
    int64_t arena, states;
    int64_t scratch; /* that every op can run with */
    int64_t ids;     /* of a pass */
    int64_t logits;  /* of the rows asked for */
    int64_t host;    /* outputs of a pass that the host makes; part of the arena */
    int64_t pinned;  /* besides, of the host: the arena, two places for ids and what is made there, the logit rows */
} q4x_arena_device;
/* Of one state there; 0: only the host has it, as it holds ids. The caller has seen that its bytes are a number. */
int64_t q4x_arena_device_state(const q4x_plan *p, const q4x_state_desc *s, int64_t n_ctx);
/* arena, tile: as q4x_arena_fit gave them, and q4x_arena_ahead behind it. all_logits 1: a row for each id, of a pass
 * there and of n_ctx positions here; 0: one row. Asks no device. */
q4x_arena_device q4x_arena_on_device(const q4x_plan *p, int64_t arena, int32_t tile, int64_t n_ctx, int all_logits);

#endif
