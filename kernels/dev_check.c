/* dev_check.c: is a call one that the device may be given? Looked at on the host, before anything is launched: what a
 * kernel reads beyond an operand's end is not seen by anyone, or ends the device for the whole process. */
#include "kernels/dev.h"

#include <string.h>

#include "kernels/attn.h"
#include "kernels/indexer_extra.h"
#include "kernels/moe.h"
#include "kernels/qdot.h"

/* Is v the number of a word in "a|b|c"? A lever that may be any number holds any bits. */
static int is_value(const char *values, int32_t v) {
    int32_t words = 1;
    if (!v || strstr(values, "..")) return 1;
    for (; *values; values++) words += *values == '|';
    return v > 0 && v < words;
}

static int levers_are_known(const k_levers *lv) {
    int known = 1;
#define LEVER(field, name, values, kind, ops, doc) known &= is_value(values, lv->field);
#include "kernels/levers.def"
#undef LEVER
    return known;
}

static const char *ids(const k_call *c) {
    const int64_t E = c->d->E;
    if (E <= 0 || c->in_cols[0] != E) return "logits: not one for each expert";
    if (c->cols > E) return "more experts are to be chosen than there are";
    if (!c->in[0] || !c->out_i || !c->scratch) return "an operand is missing";
    return c->scratch_n < 3 * E * c->T ? "scratch: too small" : NULL;
}

static const char *weights(const k_call *c) {
    const int64_t E = c->d->E;
    if (E <= 0 || c->in_cols[0] != E) return "logits: not one for each expert";
    if (c->in_cols[1] != c->cols || c->cols > E) return "ids: not one for each weight";
    return !c->in[0] || !c->in_i[1] || !c->out ? "an operand is missing" : NULL;
}

static const char *expert(const k_call *c) {
    const int64_t K = c->in_cols[1], E = c->nw[0];
    if (E <= 0 || K <= 0) return "no expert, or none a token";
    if (c->per < 0 || c->per > 1) return "per: 0 or 1";
    if (c->cols % K || (c->per && c->in_cols[0] % K)) return "columns: not the same for each slot";
    if (!c->in[0] || !c->in_i[1] || !c->out || !c->w[0] || !c->w_dev[0] || !c->scratch) return "an operand is missing";
    for (int64_t e = 0; e < E; e++) {
        const k_weight *w = &c->w[0][e];
        if (!w->data) return "an expert is missing";
        if (w->rows != c->cols / K || w->cols != (c->per ? c->in_cols[0] / K : c->in_cols[0]))
            return "an expert of another shape";
        if (w->type < 0 || w->type >= 64) return "an expert of no type";
    }
    const int64_t slots = (int64_t)c->T * K, columns = k_dot_plain(c->lv, c->Tcall) ? 0 : c->per ? slots : c->T;
    return c->scratch_n < k_dev_lists(slots, E) + k_dot_act_floats(columns, c->w[0]->cols) ? "scratch: too small"
                                                                                           : NULL;
}

static const char *routed(const k_call *c) {
    const int64_t K = c->in_cols[1];
    enum { MOST = 4096 }; /* slots whose order is kept in shared memory */
    if (K < 0 || K > MOST || c->in_cols[2] != K || c->in_cols[0] != K * c->cols) return "slots: their numbers differ";
    if (!c->out || (K && (!c->in[0] || !c->in[1] || !c->in_i[2]))) return "an operand is missing";
    return NULL;
}

static const char *combined(const k_call *c) {
    if (c->in_cols[0] != c->cols || c->in_cols[1] != c->cols || c->in_cols[2] != 1) return "columns differ";
    return !c->in[0] || !c->in[1] || !c->in[2] || !c->out ? "an operand is missing" : NULL;
}

static const char *product(const k_call *c) {
    if (k_dot_plain(c->lv, c->Tcall)) return NULL;
    if (!c->in[0] || !c->out || !c->w[0] || !c->scratch) return "an operand is missing";
    return c->scratch_n < k_dot_act_floats(c->T, c->in_cols[0]) ? "scratch: too small" : NULL;
}

/* slot: of the selected blocks. */
static const char *attention(const k_call *c, int slot) {
    if (!c->in_i[slot]) return NULL;
    if (c->d->ratio <= 0) return "blocks of no tokens";
    if (c->Tc < c->pos0 + c->T) return "fewer positions than the last row's";
    return c->scratch_n < c->T * k_see_floats(c->Tc, c->d->ratio, c->in_cols[slot]) ? "scratch: too small" : NULL;
}

static const char *extra(const k_call *c) {
    if (c->lv->extra == K_EXTRA_OFF) return c->out_i ? NULL : "an operand is missing";
    if (c->d->ratio <= 0 || c->d->nsel < 0) return "blocks of no tokens, or fewer than none of them";
    if (c->Tc < c->pos0 + c->T || c->in_cols[0] < c->Tc / c->d->ratio) return "scores: not one for each block";
    if (!c->in[0] || !c->in_i[1] || !c->out_i || !c->scratch) return "an operand is missing";
    return c->scratch_n < k_extra_floats(c->Tc, c->d->ratio) ? "scratch: too small" : NULL;
}

const char *k_dev_unfit(k_op op, const k_call *c) {
    if (!c || !c->d || !c->lv) return "dims or levers are missing";
    if (c->T < 0 || c->cols < 0) return "an extent below 0";
    for (int k = 0; k < K_MAXIN; k++)
        if (c->in_cols[k] < 0) return "an extent below 0";
    if (!levers_are_known(c->lv)) return "a lever has no such value";
    if (c->T == 0 || c->cols == 0) return NULL; /* nothing is read or written */
    switch (op) {
    case K_OP_matmul: return product(c);
    case K_OP_attn_score: return attention(c, 2);
    case K_OP_attn_prob: return attention(c, 1);
    case K_OP_attn_ctx: return attention(c, 3);
    case K_OP_idx_extra: return extra(c);
    case K_OP_moe_ids: return ids(c);
    case K_OP_moe_weights: return weights(c);
    case K_OP_moe_expert: return expert(c);
    case K_OP_moe_routed: return routed(c);
    case K_OP_moe_out: return combined(c);
    default: return NULL;
    }
}
