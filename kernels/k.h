/* k.h: the floor of the house. Types every op sees; includes nothing of ours but the .def lists.
 *
 * Kernels are pure functions on views: no allocation, I/O, globals, environment or libm transcendentals.
 * Activations live in f32. An arm with act=bf16 holds bf16 values in those f32 (every store rounds), so
 * one text serves both and "equal" means equal values. Compiles as C17 and as C++17 (nvcc).
 */
#ifndef K_H
#define K_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define K_HD static __host__ __device__ __forceinline__
#else
#define K_HD static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Contract classes (see README, "What the arithmetic promises"). */
typedef enum { K_MOVE, K_EXACT, K_ORDERED, K_BOUNDED } k_class;

typedef enum {
#define OP(name, cls, band) K_OP_##name,
#include "kernels/ops.def"
#undef OP
    K_OP_COUNT
} k_op;

/* Stored tensor types, by their id in the GGUF format. */
typedef enum {
#define QUANT(id, name, elems, bytes, stored) K_T_##name = id,
#include "kernels/quants.def"
#undef QUANT
} k_type;

/* A weight matrix as it lies in the (mapped) file. Borrowed, never written. */
typedef struct {
    const void *data; /* row r begins at data + r * row_bytes */
    int64_t rows;     /* outputs */
    int64_t cols;     /* inputs, fastest */
    size_t row_bytes;
    int32_t type; /* k_type */
} k_weight;

/* The geometry of the model: every dimension letter of the house, declared once.
 * A field that an architecture lacks is 0. */
typedef struct {
    int32_t D;          /* hidden size */
    int32_t N;          /* residual streams (hyper-connections) */
    int32_t W;          /* N * D */
    int32_t R;          /* rank of the hyper-connection gate */
    int32_t V;          /* vocabulary */
    int32_t L;          /* layers */
    int32_t nk, nv;     /* GDN key heads, value heads */
    int32_t dk, dv;     /* GDN key, value head width */
    int32_t C;          /* GDN convolution channels: 2 nk dk + nv dv */
    int32_t Kc;         /* GDN convolution taps */
    int32_t gguf_heads; /* 1: value head j reads key head j mod nk; 0: j / (nv / nk) */
    int32_t gate_silu;  /* GDN output gate: 0 sigmoid, 1 silu */
    int32_t H, G;       /* attention query heads, key/value heads */
    int32_t hd;         /* attention head width */
    int32_t rot;        /* rotated dimensions of a head */
    int32_t ih, id;     /* indexer heads, indexer head width */
    int32_t ratio;      /* tokens per indexer block */
    int32_t nsel;       /* blocks a query may select: budget / ratio */
    int32_t E, K;       /* experts, experts per token */
    int32_t F, Fs;      /* routed, shared expert width */
    int32_t Fd;         /* width of the dense MLP */
    int32_t renorm;     /* 1: divide the K router weights by their sum */
    int32_t n;          /* n-gram size of the per-layer embedding */
    int32_t P;          /* hash heads: (n-1) * heads_per_ngram */
    int32_t pw;         /* width of one n-gram row */
    int32_t Kp;         /* taps of the per-layer-embedding convolution (dilation n) */
    int32_t eos;        /* id that cuts the n-gram context */
    float eps;          /* rms norm epsilon */
} k_dims;

/* One value per lever, resolved for one node and forward. Enumerators: K_<FIELD>_<VALUE>. */
typedef struct {
#define LEVER(field, name, values, kind, ops, doc) int32_t field;
#include "kernels/levers.def"
#undef LEVER
} k_levers;

enum { K_ACT_F32, K_ACT_BF16 };
enum { K_GDN_SEQ, K_GDN_CHUNK64, K_GDN_CHUNK64_BF16 };
/* Of the levers that follow another unless they are given: act|f32|bf16, rule|f32|bf16 (k_follow in round.h). */
enum { K_FOLLOW, K_FOLLOW_F32, K_FOLLOW_BF16 };
enum { K_GATE_FILE, K_GATE_SIGMOID, K_GATE_SILU };
enum { K_ROUTER_ACT, K_ROUTER_F32, K_ROUTER_BF16 };
enum { K_SOFTMAX_F32, K_SOFTMAX_BF16 };
enum { K_RENORM_FILE, K_RENORM_ON, K_RENORM_OFF };
enum { K_GATED_SILU, K_GATED_GELU };
enum { K_SGATE_ON, K_SGATE_OFF };
enum { K_COMBINE_SLOTS, K_COMBINE_EXPERTS };
enum { K_FREQ_F32, K_FREQ_BF16 };
enum { K_GEMM_OWN, K_GEMM_CUBLAS };
enum { K_TIE_LOWEST, K_TIE_HIGHEST, K_TIE_TORCH, K_TIE_STL };
enum { K_KV_ACT, K_KV_F32, K_KV_BF16, K_KV_F16 };
enum { K_SWEEP_TWO_PASS, K_SWEEP_ONLINE };
enum { K_EXTRA_OFF, K_EXTRA_STL };
enum { K_DOT_LANES32, K_DOT_SERIAL, K_DOT_BLOCKED, K_DOT_Q8K, K_DOT_Q8_1, K_DOT_NEON };
enum { K_REPACK_OFF, K_REPACK_Q8_0X4, K_REPACK_Q4_KX8 };

/* A persistent buffer of the run, row-major [cap, cols]. */
typedef struct {
    union {
        float *f;
        int32_t *i;
    }; /* cap * cols */
    int64_t cols;
    int64_t cap;
    int64_t rows; /* rows that hold data now */
} k_state;

enum { K_MAXIN = 6, K_MAXW = 4, K_MAXST = 3 };

/* What happens to a product before it is stored (matmul.h). */
typedef enum {
    K_EPI_NONE,   /* rd(y) */
    K_EPI_HCDOWN, /* rd(silu(rd(rd(y) / N))) */
    K_EPI_HCINJ,  /* 2 rd(sigmoid(rd(rd(y) / N))) */
    K_EPI_ROUTER, /* y, rounded where lever moe.logits says */
    K_EPI_RAW     /* y, unrounded whatever the levers say (logits) */
} k_epilogue;

/* One op on one tile of rows. Which slot holds what stands in the op's header.
 * Rows are tokens; row t of the tile is row t0 + t of the call, at position pos0 + t. */
typedef struct {
    int32_t T;     /* rows of this tile */
    int32_t t0;    /* index of the tile's first row within the call */
    int32_t pos0;  /* position of the tile's first row in the sequence */
    int32_t Tcall; /* rows of the whole call */
    int32_t Tc;    /* positions known when the call ends: the width of score rows */
    int64_t cols;  /* columns of out */
    union {
        float *out;
        int32_t *out_i;
    };
    union {
        const float *in[K_MAXIN];
        const int32_t *in_i[K_MAXIN];
    };
    int64_t in_cols[K_MAXIN];
    const k_weight *w[K_MAXW];     /* a slot may point at an array (experts, table shards) */
    int32_t nw[K_MAXW];            /* its length */
    const k_weight *w_dev[K_MAXW]; /* on a device: the array where kernels can read it */
    const float *par[K_MAXW];      /* f32 parameters: gammas (1+w folded), convolution taps, frequencies */
    const int64_t *ipar;           /* integer parameters (n-gram hash) */
    k_state *st[K_MAXST];
    int32_t epi;    /* k_epilogue */
    int32_t G;      /* group width: norm group, head */
    int32_t off;    /* first input column */
    int32_t stride; /* input columns from one group to the next */
    int32_t per;    /* moe_expert: 1 when the input has a row per slot; rmsnorm: 1 when gamma is as wide as out, else G;
                  * add: 1 when the sum is the residual stream */
    const k_dims *d;
    const k_levers *lv;
    float *scratch; /* nth slices (a device: one) of scratch_n floats, contents undefined */
    int64_t scratch_n;
    int32_t nth; /* threads to use; results never depend on it */
} k_call;

typedef void (*k_fn)(const k_call *c);

/* Two numbers an op states about its own rounding, for the whole output of a call:
 * |computed - exact| in L2 cannot exceed hard; rms is its expected size. Accumulated over tiles as squares. */
typedef struct {
    double hard2, rms2;
} k_band;
typedef void (*k_band_fn)(const k_call *c, k_band *add);
/* The same of an op that makes a state. state: how far the state before this tile is off (zeros: it is given), on
 * return that of the state behind it. */
typedef void (*k_bands_fn)(const k_call *c, k_band *add, k_band *state);

typedef struct {
    const char *name;
    k_class cls;
    k_fn cpu;
    k_band_fn band; /* NULL: this op states none yet */
} k_op_info;

extern const k_op_info k_ops[K_OP_COUNT];

#ifdef __cplusplus
}
#endif
#endif
