#include "kernels/ops.h"

#include "kernels/attn.h"
#include "kernels/conv.h"
#include "kernels/elem.h"
#include "kernels/embed.h"
#include "kernels/gdn.h"
#include "kernels/hc.h"
#include "kernels/indexer.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/ple.h"
#include "kernels/rope.h"

/* An alias has no work of its own: its output is its input's buffer. */
void alias_cpu(const k_call *c) {
    (void)c;
}

const k_op_info k_ops[K_OP_COUNT] = {
#define OP(name, cls, band) {#name, cls, name##_cpu, band},
#include "kernels/ops.def"
#undef OP
};

k_state_kind k_op_state(k_op op, k_bands_fn *bands) {
    switch (op) {
#define OP_STATE(name, fn, keeps, in)                                                                                  \
    case K_OP_##name:                                                                                                  \
        *bands = (fn);                                                                                                 \
        return *bands ? K_STATE_MADE : K_STATE_COPIED;
#include "kernels/op_states.def"
#undef OP_STATE
    default: return K_STATE_NONE;
    }
}

k_keeps k_op_keeps(k_op op, int *in) {
    switch (op) {
#define OP_STATE(name, fn, keeps, of)                                                                                  \
    case K_OP_##name:                                                                                                  \
        *in = (of);                                                                                                    \
        return K_KEEPS_##keeps;
#include "kernels/op_states.def"
#undef OP_STATE
    default: return K_KEEPS_MIXED;
    }
}

int64_t k_scratch_floats(const k_dims *d, int64_t tile, int64_t n_ctx) {
    const int64_t wide = (int64_t)d->W, in = (int64_t)d->P * d->pw, core = (int64_t)d->nv * d->dv,
                  heads = (int64_t)d->H * d->hd;
    int64_t k = wide; /* the longest row a product reads */
    if (d->D > k) k = d->D;
    if (in > k) k = in;
    if (core > k) k = core;
    if (heads > k) k = heads;
    if (d->F > k) k = d->F;
    if (d->Fs > k) k = d->Fs;
    if (d->Fd > k) k = d->Fd;
    const int64_t needs[] = {k_tile_scratch_upto(k),
                             d->E + 1 + 2 * tile * d->K + k_tile_scratch_upto(k),
                             3 * (int64_t)d->E,
                             rope_scratch(d),
                             attn_scratch(d, n_ctx),
                             indexer_scratch(d, n_ctx),
                             gdn_scratch(d),
                             3 * (int64_t)d->V,
                             k};
    int64_t most = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i] > most) most = needs[i];
    return (most + 15) / 16 * 16;
}
