/* arch_qwen4.h: arch `qwen4_exp` (Qwen3.8-Flash-Next): its weights, bound by name and checked against the contract.
 *
 * lib/arch_qwen4_bind.c fills this from either container; lib/arch_qwen4.c emits the plan from it. f32 vectors (norms
 * with 1+w folded, -exp(A_log), convolution taps) are small and owned; matrices are views into the file.
 */
#ifndef Q4X_ARCH_QWEN4_H
#define Q4X_ARCH_QWEN4_H

#include "kernels/k.h"
#include "lib/arch.h"
#include "lib/arch_mixer.h"

typedef struct {
    const float *norm; /* [W]   1 + w */
    k_weight down;     /* [R,W] */
    k_weight up;       /* [W,R] */
    k_weight inject;   /* [N,W]; rows 0 in the terminal mixer */
} q4x_hc;

typedef struct {
    int is_attn; /* 1: QSA, 0: GDN */
    q4x_hc ahc, mhc;
    q4x_gdn gdn;
    q4x_attn attn;
    /* the indexer of QSA */
    k_weight iq, ik;              /* [ih id,D] [id,D] */
    const float *iqnorm, *iknorm; /* [id] 1 + w */
    /* MoE */
    k_weight router;                  /* [E,D] */
    k_weight *gate, *up, *down;       /* arrays of E: [F,D] [F,D] [D,F] */
    k_weight sgate;                   /* [1,D] */
    k_weight sh_gate, sh_up, sh_down; /* [Fs,D] [Fs,D] [D,Fs] */
    /* per-layer embedding, only in its layer */
    int has_ple;
    k_weight ple_key, ple_val;                      /* [W,P pw] [D,P pw] */
    const float *ple_nkey, *ple_nquery, *ple_nconv; /* [W] 1 + w */
    const float *ple_conv;                          /* [W,Kp] */
    k_weight *table;                                /* array of ntable shards, in numeric order */
    int ntable;
    int64_t *hash; /* n multipliers, P sizes, P offsets */
} q4x_layer4;

struct q4x_qwen4 {
    k_dims d;
    k_weight embed, head; /* [V,D] both; head == embed when tied */
    q4x_hc mixer;
    q4x_layer4 *layer;      /* [L] */
    float *freq;            /* [rot/2] f32: 1 / theta^(2j/rot) */
    int64_t ctx_max;        /* max_position_embeddings / context_length */
    const q4x_model *model; /* borrowed */
    void *owned;            /* what the pointers above own */
};

#endif
