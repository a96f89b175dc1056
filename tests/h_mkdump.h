/* h_mkdump.h: dumps made in memory, of a small network that is really computed, so that differences travel through it
 * as they do through a model: embedding, layers with a recurrent state, a router with experts, logits.
 *
 * Per layer l: Lxx.in (alias), ahc.mix, gdn.core (hash only, carries state.delta), blk, s.attn, moe.logits (hash only),
 * moe.ids, moe.weights (hash only), moe, s.mlp; then out and logits; states last.
 */
#ifndef H_MKDUMP_H
#define H_MKDUMP_H

#include "lib/dump.h"

/* Called after each node: may change its output, which what follows reads. ids nodes give x = NULL and ids. */
typedef void (*mk_hook)(void *ctx, int f, const char *node, int rows, int cols, float *x, int32_t *ids);

typedef struct {
    const char *label, *device, *profile, *levers, *scoped, *spec, *kernels, *model, *compiler, *text; /* JSON in levers
                                                                        ("{\"act\":\"f32\"}") and scoped ("[..]") */
    const char *node_levers; /* words of every node */
    int imported;            /* 1: leave out the tool; 2: the model, the device and the levers too */
    int layers, T, D, forwards, vocab;
    int sketch_all; /* distances of all nodes and states, not of the public ones alone */
    int hash_only;  /* bits and selections only */
    int full;       /* full tensors */
    int no_logits, no_ids, no_graph;
    int rows_kept;          /* sketch the last so many rows (default 64) */
    int parts;              /* of rows in buckets: the smallest of so many parts is recorded; 0: none */
    double rms, hard;       /* the band of every node: so many times the norm of its output; 0: not recorded */
    int round_top;          /* choose on logits rounded to bf16 */
    int gguf_heads;         /* mark blk as having V heads in file order: values are permuted when recorded */
    const int32_t *force;   /* ids consumed by forwards 1, 2, ..; NULL: those that were sampled */
    const int32_t *sampled; /* say that these were chosen, whatever the logits say; NULL: the best */
    double logit_scale;     /* 0: 1 */
    const char *free_time, *path;
    mk_hook hook;
    void *ctx;
} mk_opts;

/* Defaults: 4 layers, 5 ids, width 48, 6 forwards, vocabulary 40. Never fails (out of memory aborts). Free with
 * q4x_dump_free. */
mk_opts mk_default(const char *label);
q4x_dump *mk_dump(const mk_opts *o);

/* Write a dump made here to a file. */
int mk_write(const q4x_dump *d, const char *path, q4x_err *err);

q4x_tap *mk_tap(q4x_dump *d, int f, const char *node);
int mk_node(const q4x_dump *d, const char *node);

#endif
