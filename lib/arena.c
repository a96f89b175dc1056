#include "lib/arena.h"

#include <stdlib.h>

#include "kernels/dev.h"
#include "lib/amount.h"

static int64_t blocks_at(const k_dims *d, int64_t Tc) {
    int64_t nb = d->ratio ? Tc / d->ratio : 0;
    return nb > 0 ? nb : 1;
}

int64_t q4x_node_cols(const q4x_plan *p, int32_t node, int64_t Tc) {
    const q4x_node *n = &p->node[node];
    int64_t nb;
    switch (n->cols_kind) {
    case Q4X_COLS_TC: return n->cols * Tc;
    case Q4X_COLS_BLOCKS: return blocks_at(&p->d, Tc);
    case Q4X_COLS_SEL: nb = blocks_at(&p->d, Tc); return nb < p->d.nsel ? nb : p->d.nsel;
    default: return n->cols;
    }
}

int32_t q4x_arena_owner(const q4x_plan *p, int32_t node) {
    while (p->node[node].op == K_OP_alias) node = p->node[node].in[0];
    return node;
}

/* last[i]: the last node that reads i's buffer (i itself when none does); held: at least the last one of the layer
 * behind its own. */
static void lifetimes(const q4x_plan *p, int held, int32_t *last) {
    for (int32_t i = 0; i < p->nnodes; i++) {
        last[i] = i;
        for (int32_t k = 0; k < p->node[i].nin; k++)
            if (p->node[i].in[k] >= 0) last[q4x_arena_owner(p, p->node[i].in[k])] = i;
    }
    for (int32_t i = p->nnodes - 1, end = i, next = i; held && i >= 0; i--) {
        if (p->node[i].layer != p->node[end].layer) next = end, end = i;
        if (last[q4x_arena_owner(p, i)] < next) last[q4x_arena_owner(p, i)] = next;
    }
}

typedef struct {
    int64_t off, size;
    int32_t node;
} live;

/* Lowest gap of this size between the live ones (sorted by offset); *ret_at is where to insert. */
static int64_t first_fit(const live *l, int32_t n, int64_t size, int32_t *ret_at) {
    int64_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        if (l[i].off - at >= size) {
            *ret_at = i;
            return at;
        }
        at = l[i].off + l[i].size;
    }
    *ret_at = n;
    return at;
}

static int32_t drop_dead(live *l, int32_t n, const int32_t *last, int32_t now) {
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++)
        if (last[l[i].node] >= now) l[k++] = l[i];
    return k;
}

/* Whole cache lines. */
static int64_t lines(int64_t n) {
    return (n + 15) / 16 * 16;
}

static int64_t layout(const q4x_plan *p, int64_t rows, int64_t n_ctx, int held, int64_t *ret_off, q4x_err *err) {
    int32_t *last = malloc((size_t)p->nnodes * sizeof *last);
    live *l = malloc((size_t)p->nnodes * sizeof *l);
    int64_t total = -1;
    int32_t n = 0;
    if (!last || !l) {
        total =
            q4x_fail(err, Q4X_E_NOMEM, "arena: no memory for %s, where the outputs of %d nodes lie; " Q4X_MORE_MEMORY,
                     q4x_amount((uint64_t)p->nnodes * (sizeof *last + sizeof *l)).s, p->nnodes);
        goto done;
    }
    lifetimes(p, held, last);
    total = 0;
    for (int32_t i = 0; i < p->nnodes; i++) {
        int64_t size;
        n = drop_dead(l, n, last, i);
        ret_off[i] = -1;
        if (i == p->logits) continue;
        if (p->node[i].op == K_OP_alias) {
            ret_off[i] = ret_off[q4x_arena_owner(p, i)];
            continue;
        }
        if (__builtin_mul_overflow(q4x_node_cols(p, i, n_ctx), rows, &size) || size > INT64_MAX / 64) {
            total = q4x_fail(err, Q4X_E_NOMEM, "node %s: %lld rows do not fit in memory; use a smaller context",
                             p->node[i].name, (long long)rows);
            goto done;
        }
        size = lines(size);
        int32_t at;
        int64_t off = first_fit(l, n, size, &at);
        for (int32_t k = n++; k > at; k--) l[k] = l[k - 1];
        l[at] = (live){off, size, i};
        ret_off[i] = off;
        if (off + size > total) total = off + size;
    }
done:
    free(last);
    free(l);
    return total;
}

int64_t q4x_arena_layout(const q4x_plan *p, int64_t rows, int64_t n_ctx, int64_t *ret_off, q4x_err *err) {
    return layout(p, rows, n_ctx, 0, ret_off, err);
}

int64_t q4x_arena_held(const q4x_plan *p, int64_t rows, int64_t n_ctx, int64_t *ret_off, q4x_err *err) {
    const int64_t n = layout(p, rows, n_ctx, 1, ret_off, err);
    return n < 0 ? n : q4x_arena_ahead(p, rows, n, ret_off);
}

/* 0: the node is none of the host's. Its columns never depend on positions. */
static int64_t host_floats(const q4x_plan *p, int32_t node, int64_t rows) {
    return k_dev_on_host((int32_t)p->node[node].op) ? lines(rows * p->node[node].cols) : 0;
}

int64_t q4x_arena_ahead(const q4x_plan *p, int64_t rows, int64_t total, int64_t *off) {
    for (int32_t i = 0; i < p->nnodes; i++) {
        const int64_t n = host_floats(p, i, rows);
        if (n) off[i] = total;
        if (p->node[i].op == K_OP_alias) off[i] = off[q4x_arena_owner(p, i)];
        total += n;
    }
    return total;
}

enum { TILE_MAX = 512, TARGET = 24 << 20, TARGET_THERE = 256 << 20, HELD_MOST = 1 << 30 /* bytes */ };

int64_t q4x_arena_held_fit(const q4x_plan *p, int32_t tile, int64_t n_ctx, int64_t *ret_off) {
    const int64_t n = q4x_arena_held(p, tile < n_ctx ? tile : n_ctx, n_ctx, ret_off, NULL);
    return n > 0 && n <= HELD_MOST / 4 ? n : 0;
}

int64_t q4x_arena_fit(const q4x_plan *p, int on_device, int32_t tile, int64_t n_ctx, int64_t *ret_off,
                      int32_t *ret_tile, q4x_err *err) {
    const uint64_t target = on_device ? TARGET_THERE : TARGET;
    int64_t n;
    for (int32_t t = tile ? tile : TILE_MAX;; t /= 2) {
        n = q4x_arena_layout(p, t < n_ctx ? t : n_ctx, n_ctx, ret_off, err);
        *ret_tile = t;
        if (n < 0 || tile || t <= Q4X_TILE_MIN || (uint64_t)n * sizeof(float) <= target) return n;
    }
}

int64_t q4x_state_rows(const q4x_plan *p, const q4x_state_desc *s, int64_t n_ctx) {
    switch (s->rows_kind) {
    case Q4X_ROWS_POS: return n_ctx;
    case Q4X_ROWS_BLOCK: return n_ctx / p->d.ratio + 1;
    default: return s->rows;
    }
}

/* ---- on a device ---- */

enum { ALIGN = 64 /* floats */ };

static int64_t rounded(int64_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

int64_t q4x_arena_device_state(const q4x_plan *p, const q4x_state_desc *s, int64_t n_ctx) {
    return s->is_ids ? 0 : rounded(q4x_state_rows(p, s, n_ctx) * s->cols);
}

q4x_arena_device q4x_arena_on_device(const q4x_plan *p, int64_t arena, int32_t tile, int64_t n_ctx, int all_logits) {
    const int64_t rows = tile < n_ctx ? tile : n_ctx, V = p->d.V;
    q4x_arena_device s = {.arena = rounded(arena), .ids = rounded(rows), .logits = all_logits ? rows * V : V};
    s.scratch = rounded(k_dev_scratch(&p->d, rows, n_ctx));
    for (int32_t i = 0; i < p->nstates; i++) s.states += q4x_arena_device_state(p, &p->state[i], n_ctx);
    for (int32_t i = 0; i < p->nnodes; i++) s.host += host_floats(p, i, rows);
    s.pinned = arena + 2 * (s.ids + s.host) + (all_logits ? n_ctx * V : V);
    return s;
}
