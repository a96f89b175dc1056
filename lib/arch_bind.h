/* arch_bind.h: finding the tensors of an architecture in a file, for lib/arch_*.c. Nobody else includes it, tests
 * aside.
 *
 * Each tensor is asked for by name, exact shape and class of types; one that is missing is noted, and at the end
 * nothing may be missing or left over. Matrices become views into the file, vectors f32 copies that live as long as
 * the weights. Errors: Q4X_E_MISMATCH, in one line with file, tensor, expected and found; Q4X_E_NOMEM.
 */
#ifndef Q4X_ARCH_BIND_H
#define Q4X_ARCH_BIND_H

#include "kernels/k.h"
#include "lib/arch_cfg.h"
#include "lib/arch_give.h"
#include "lib/arch_mixer.h"
#include "lib/names.h"

typedef struct {
    const q4x_model *m;
    const q4x_cfg *cfg;
    void **owned;   /* of the weights: what q4x_bind_alloc gives */
    q4x_names used; /* names of the tensors bound so far, kept by the model; freed by the caller */
    int64_t nmissing;
    char missing[256];      /* the first few */
    const q4x_taker *taker; /* not NULL: nothing is looked for; what is bound is handed out under the name asked for */
} q4x_bind;

/* Zeroed memory for n elements that lives as long as the weights; NULL: no memory, said in err. */
void *q4x_bind_alloc(q4x_bind *b, int64_t n, size_t size, q4x_err *err);
void q4x_bind_free(void *owned); /* all of it; NULL is fine */

/* The tensor of this name and exact shape (fastest first, ndim of them). Missing: *ret NULL, noted, no error yet. */
int q4x_bind_find(q4x_bind *b, const char *name, int ndim, const int64_t *ne, const q4x_tensor **ret, q4x_err *err);
/* A matrix of any float or quantised type. Left zero when missing. */
int q4x_bind_mat(q4x_bind *b, const char *name, int64_t rows, int64_t cols, k_weight *ret, q4x_err *err);
/* One row, which files store with one dimension or with two. */
int q4x_bind_row(q4x_bind *b, const char *name, int64_t cols, k_weight *ret, q4x_err *err);
/* n matrices in one tensor, as an array; NULL when missing. */
int q4x_bind_stack(q4x_bind *b, const char *name, int64_t n, int64_t rows, int64_t cols, k_weight **ret, q4x_err *err);
/* F32, F16 or BF16 values as f32, `add` added in f32 (1 folds a zero-centred norm; 0 keeps every bit). The tensor's
 * dimensions as for q4x_bind_find; NULL when missing. */
int q4x_bind_vec(q4x_bind *b, const char *name, int ndim, const int64_t *ne, float add, float **ret, q4x_err *err);
/* A view of a tensor as a matrix; type and row width are checked. */
int q4x_bind_view(q4x_bind *b, const q4x_tensor *t, int64_t rows, int64_t cols, k_weight *ret, q4x_err *err);
/* To the taker: n matrices as the rows of one. */
int q4x_bind_give(q4x_bind *b, const char *name, const k_weight *w, int64_t n, q4x_err *err);
/* Arrays of the first F and of the next F rows of each of n matrices (gate and up of fused experts); both NULL:
 * nothing. */
int q4x_bind_split(q4x_bind *b, const k_weight *both, int64_t n, int64_t F, k_weight **ret_gate, k_weight **ret_up,
                   q4x_err *err);
/* Rows first .. first+n of a matrix. */
k_weight q4x_rows(k_weight w, int64_t first, int64_t n);
/* f_j = 1 / theta^(2j/rot), [rot/2]. */
int q4x_bind_freq(q4x_bind *b, float **ret, q4x_err *err);
/* Nothing is missing, and nothing is left over but what is not run: the vision tower and prediction head of a
 * checkpoint, a head beside a tied embedding, blocks skip_from .. skip_to of a GGUF file. */
int q4x_bind_complete(const q4x_bind *b, int64_t skip_from, int64_t skip_to, q4x_err *err);

/* ---- names in their places ---- */

/* A layer, or the whole: what stands before a name there. */
typedef struct {
    q4x_bind *b;
    const char *root; /* HF: "model." or "model.language_model."; GGUF: not used */
    int layer;        /* -1: none */
    char name[160];   /* the last one made */
} q4x_scope;

/* The whole model. known, or known2: a name that tells where the names of a checkpoint begin. */
q4x_scope q4x_scope_whole(q4x_bind *b, const char *known, const char *known2);
const char *q4x_scope_name(q4x_scope *s, const char *suffix);
int q4x_scope_mat(q4x_scope *s, const char *suffix, int64_t rows, int64_t cols, k_weight *ret, q4x_err *err);
/* As stored. */
int q4x_scope_vec(q4x_scope *s, const char *suffix, int64_t n, const float **ret, q4x_err *err);
/* Of a zero-centred norm, 1 + w: checkpoints store w, GGUF files the sum. */
int q4x_scope_norm(q4x_scope *s, const char *suffix, int64_t n, const float **ret, q4x_err *err);
/* Taps of a convolution, [channels, n]; checkpoints have a dimension of 1 between. */
int q4x_scope_taps(q4x_scope *s, const char *suffix, int64_t channels, int64_t n, const float **ret, q4x_err *err);

/* The mixers of a layer, from either container (lib/arch_mixer_bind.c). Value heads stay in the file's order. */
int q4x_bind_gdn(q4x_scope *s, const k_dims *d, q4x_gdn *ret, q4x_err *err);
int q4x_bind_attn(q4x_scope *s, const k_dims *d, q4x_attn *ret, q4x_err *err);

#endif
