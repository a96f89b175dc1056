/* arch_qwen35.h: arch `qwen35` (Qwen3.5 to 3.8, dense; HF `qwen3_5`): its weights, bound by name and checked against
 * the contract.
 *
 * lib/arch_qwen35_bind.c fills this from either container; lib/arch_qwen35.c emits the plan from it. f32 vectors are
 * small and owned; matrices are views into the file.
 */
#ifndef Q4X_ARCH_QWEN35_H
#define Q4X_ARCH_QWEN35_H

#include "kernels/k.h"
#include "lib/arch.h"
#include "lib/arch_mixer.h"

typedef struct {
    int is_attn;                       /* 1: attention, 0: GDN */
    const float *norm_attn, *norm_mlp; /* [D] 1 + w, before the mixer and before the MLP */
    q4x_gdn gdn;
    q4x_attn attn;
    k_weight gate, up, down; /* [Fd,D] [Fd,D] [D,Fd] */
} q4x_layer35;

/* A block behind the trunk that guesses one token more. Held to the contract like the rest of a GGUF file; not run. */
typedef struct {
    q4x_layer35 block;
    k_weight proj;                      /* [D,2 D], of [embedding | hidden] */
    const float *enorm, *hnorm, *onorm; /* [D] 1 + w: of the embedding, of the hidden row, of the result */
    k_weight embed, head;               /* [V,D]; rows 0: the trunk's */
} q4x_next35;

struct q4x_qwen35 {
    k_dims d;
    k_weight embed, head; /* [V,D] both; head == embed when tied */
    const float *norm;    /* [D] 1 + w */
    q4x_layer35 *layer;   /* [L] */
    q4x_next35 *next;     /* [nnext]; a checkpoint's are not read */
    int64_t nnext;
    float *freq;            /* [rot/2] f32: 1 / theta^(2j/rot) */
    int64_t ctx_max;        /* max_position_embeddings / context_length */
    const q4x_model *model; /* borrowed */
    void *owned;            /* what the pointers above own */
};

#endif
