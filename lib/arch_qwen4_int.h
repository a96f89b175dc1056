/* arch_qwen4_int.h: the inside of binding qwen4_exp, shared by lib/arch_qwen4_*.c. Nobody else includes it, tests
 * aside.
 *
 * Three steps: a reader turns config.json or the GGUF keys into a q4x_q4_cfg, one checker holds it against the rules
 * that both containers share, then a binder walks the tensors. Names of keys and tensors stay those of the file.
 */
#ifndef Q4X_ARCH_QWEN4_INT_H
#define Q4X_ARCH_QWEN4_INT_H

#include "lib/arch_bind.h"
#include "lib/arch_cfg.h"
#include "lib/arch_qwen4.h"

enum { Q4X_Q4_MAXPLE = 8 };

/* Integer hyper-parameters behind the common ones. */
enum {
    Q4X_Q4_BEFORE = Q4X_KEY_COMMON - 1,
#define INT(id, name, hf, gguf, lo, hi, hf_default) Q4X_Q4_##id,
#include "lib/arch_qwen4_keys.def"
#undef INT
    Q4X_Q4_END
};
extern const q4x_traits q4x_q4_traits;

/* Hyper-parameters as read. */
typedef struct {
    q4x_cfg c;
    int has_idx;                  /* the indexer's keys are there */
    int nple, ple[Q4X_Q4_MAXPLE]; /* 0-based layers, ascending */
    int64_t eos;
    int renorm;
    int64_t *hash; /* GGUF: n multipliers, P sizes, P offsets; owned */
} q4x_q4_cfg;

/* Readers. They fill what the container carries and check types and ranges; *ret is written only on success and then
 * freed with q4x_q4_cfg_free. text: config.json's text part, root: all of it (may be the same); where: the file. */
int q4x_q4_cfg_hf(const json_t *root, const json_t *text, const char *where, q4x_q4_cfg *ret, q4x_err *err);
int q4x_q4_cfg_gguf(const q4x_model *m, q4x_q4_cfg *ret, q4x_err *err);
void q4x_q4_cfg_free(q4x_q4_cfg *q);
/* The rules of the specification's section 1.2 that relate values to each other; fills *ret, and notes what it
 * derives. */
int q4x_q4_check(q4x_q4_cfg *q, k_dims *ret, q4x_err *err);

/* n-gram hash constants (section 7.1) of the ple_index-th PLE layer: n multipliers, P sizes, P offsets into out. 0, or
 * -1 when a size or an offset leaves int32. */
int q4x_q4_hash(int64_t vocab, int64_t n, int64_t P, int64_t base, int64_t seed, int ple_index, int64_t *out);
/* Holds stored constants against what any table allows: positive multipliers and sizes, offset + size within int32.
 * *ret_rows: rows that the table must have at least. */
int q4x_q4_hash_check(const q4x_q4_cfg *q, const k_dims *d, const int64_t *hash, int64_t *ret_rows, q4x_err *err);

/* Every tensor of the text model, by the names of each container. */
int q4x_q4_tensors_hf(q4x_bind *b, const q4x_q4_cfg *q, q4x_qwen4 *w, q4x_err *err);
int q4x_q4_tensors_gguf(q4x_bind *b, const q4x_q4_cfg *q, q4x_qwen4 *w, q4x_err *err);

#endif
