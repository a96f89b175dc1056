/* arch_qwen4_int.h: the inside of binding qwen4_exp, shared by lib/arch_qwen4_*.c. Nobody else includes it, tests
 * aside.
 *
 * Three steps: a reader turns config.json or the GGUF keys into a q4x_q4_cfg, one checker holds it against the rules
 * that both containers share, then a binder walks the tensors. Names of keys and tensors stay those of the file.
 */
#ifndef Q4X_ARCH_QWEN4_INT_H
#define Q4X_ARCH_QWEN4_INT_H

#include "lib/arch_qwen4.h"
#include "lib/names.h"

/* Upper bounds: far above any known model, low enough that no product of two dimensions leaves int32. */
enum {
    Q4X_Q4_MAXL = 512,
    Q4X_Q4_MAXPLE = 8,
    Q4X_Q4_MAXPOS = 1 << 24, /* positions stay exact in f32 */
    Q4X_Q4_MAXV = 1 << 24,
};

/* Integer hyper-parameters that are one key in each container. */
typedef enum {
#define INT(id, hf, gguf, lo, hi, hf_default) Q4X_Q4_##id,
#include "lib/arch_qwen4_keys.def"
#undef INT
    Q4X_Q4_NINT
} q4x_q4_int;

typedef struct {
    const char *hf, *gguf; /* "hidden_size", "embedding_length"; see arch_qwen4_keys.def */
    int64_t lo, hi, def;
} q4x_q4_key;
extern const q4x_q4_key q4x_q4_keys[Q4X_Q4_NINT];

/* Hyper-parameters as read. */
typedef struct {
    q4x_container container;
    char where[200]; /* file, for messages */
    int64_t v[Q4X_Q4_NINT];
    double theta, eps;
    int64_t rot; /* rotated dimensions */
    int is_attn[Q4X_Q4_MAXL];
    int has_idx;                  /* the indexer's keys are there */
    int nple, ple[Q4X_Q4_MAXPLE]; /* 0-based layers, ascending */
    int64_t eos;
    int gate_silu, renorm, tied;
    int64_t nmtp;  /* GGUF: blocks behind the trunk */
    int64_t *hash; /* GGUF: n multipliers, P sizes, P offsets; owned */
} q4x_q4_cfg;

/* The name that this container gives a hyper-parameter, for messages. */
const char *q4x_q4_name(const q4x_q4_cfg *c, q4x_q4_int id);

/* Readers. They fill what the container carries and check types and ranges; *ret is written only on success and then
 * freed with q4x_q4_cfg_free. text: config.json's text part, root: all of it (may be the same); where: the file. */
int q4x_q4_cfg_hf(const json_t *root, const json_t *text, const char *where, q4x_q4_cfg *ret, q4x_err *err);
int q4x_q4_cfg_gguf(const q4x_model *m, q4x_q4_cfg *ret, q4x_err *err);
void q4x_q4_cfg_free(q4x_q4_cfg *c);
/* The rules of the specification's section 1.2 that relate values to each other; fills *ret. */
int q4x_q4_check(const q4x_q4_cfg *c, k_dims *ret, q4x_err *err);

/* n-gram hash constants (section 7.1) of the ple_index-th PLE layer: n multipliers, P sizes, P offsets into out. 0, or
 * -1 when a size or an offset leaves int32. */
int q4x_q4_hash(int64_t vocab, int64_t n, int64_t P, int64_t base, int64_t seed, int ple_index, int64_t *out);
/* Holds stored constants against what any table allows: positive multipliers and sizes, offset + size within int32.
 * *ret_rows: rows that the table must have at least. */
int q4x_q4_hash_check(const q4x_q4_cfg *c, const k_dims *d, const int64_t *hash, int64_t *ret_rows, q4x_err *err);

/* ---- binding tensors ---- */

typedef struct q4x_owned q4x_owned;

typedef struct {
    const q4x_model *m;
    const q4x_q4_cfg *cfg;
    q4x_qwen4 *w;
    q4x_names used; /* names of the tensors bound so far, kept by the model */
    int64_t nmissing;
    char missing[256]; /* the first few */
} q4x_bind;

/* Zeroed memory for n elements that lives as long as the weights; NULL: no memory, said in err. */
void *q4x_bind_alloc(q4x_bind *b, int64_t n, size_t size, q4x_err *err);
/* The tensor of this name and exact shape (fastest first, ndim of them). Missing: *ret NULL, noted, no error yet. */
int q4x_bind_find(q4x_bind *b, const char *name, int ndim, const int64_t *ne, const q4x_tensor **ret, q4x_err *err);
/* A matrix of any float or quantised type. Left zero when missing. */
int q4x_bind_mat(q4x_bind *b, const char *name, int64_t rows, int64_t cols, k_weight *ret, q4x_err *err);
/* n matrices in one tensor, as an array; NULL when missing. */
int q4x_bind_stack(q4x_bind *b, const char *name, int64_t n, int64_t rows, int64_t cols, k_weight **ret, q4x_err *err);
/* F32, F16 or BF16 values as f32, `add` added in f32 (1 folds a zero-centred norm; 0 keeps every bit). The tensor's
 * dimensions as for q4x_bind_find; NULL when missing. */
int q4x_bind_vec(q4x_bind *b, const char *name, int ndim, const int64_t *ne, float add, float **ret, q4x_err *err);
/* A view of a tensor as a matrix; type and row width are checked. */
int q4x_bind_view(q4x_bind *b, const q4x_tensor *t, int64_t rows, int64_t cols, k_weight *ret, q4x_err *err);
/* Arrays of the first F and of the next F rows of each of n matrices (gate and up of fused experts); both NULL:
 * nothing. */
int q4x_bind_split(q4x_bind *b, const k_weight *both, int64_t n, int64_t F, k_weight **ret_gate, k_weight **ret_up,
                   q4x_err *err);
/* Rows first .. first+n of a matrix. */
k_weight q4x_rows(k_weight w, int64_t first, int64_t n);
void q4x_bind_missing(q4x_bind *b, const char *name);

int q4x_q4_tensors_hf(q4x_bind *b, q4x_err *err);
int q4x_q4_tensors_gguf(q4x_bind *b, q4x_err *err);

#endif
