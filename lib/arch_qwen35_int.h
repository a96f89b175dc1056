/* arch_qwen35_int.h: the inside of binding qwen35, shared by lib/arch_qwen35_*.c. Nobody else includes it, tests aside.
 */
#ifndef Q4X_ARCH_QWEN35_INT_H
#define Q4X_ARCH_QWEN35_INT_H

#include "lib/arch_bind.h"
#include "lib/arch_cfg.h"
#include "lib/arch_qwen35.h"

/* Integer hyper-parameters behind the common ones. */
enum { Q4X_Q35_FFN = Q4X_KEY_COMMON, Q4X_Q35_END };
extern const q4x_traits q4x_q35_traits;

/* Readers: the whole configuration, types and ranges checked; *ret is written only on success. text: config.json's text
 * part, root: all of it (may be the same); where: the file. */
int q4x_q35_cfg_hf(const json_t *root, const json_t *text, const char *where, q4x_cfg *ret, q4x_err *err);
int q4x_q35_cfg_gguf(const q4x_model *m, q4x_cfg *ret, q4x_err *err);
/* The rules that relate values to each other; fills *ret and notes what it derives. */
int q4x_q35_check(q4x_cfg *c, k_dims *ret, q4x_err *err);
/* Every tensor of the text model, by the names of the container that b->cfg says. */
int q4x_q35_tensors(q4x_bind *b, q4x_qwen35 *w, q4x_err *err);

#endif
