/* arch.h: the architectures of archs.def. Each has its weights, a q4x_ID that lib/arch_ID.h lays open, and its
 * functions, which are declared here for all of them.
 */
#ifndef Q4X_ARCH_H
#define Q4X_ARCH_H

#include "lib/arch_give.h"
#include "lib/err.h"
#include "lib/model.h"
#include "lib/plan.h"
#include "lib/settings.h"

/* q4x_ID_bind: hyper-parameters (validity rules of the spec, upper bounds), then every tensor's name, type class and
 *   exact shape; missing and surplus tensors are errors, but for what is stored behind the text trunk (vision, the
 *   prediction head). *ret borrows the model; on failure it is untouched and err names file, field, expected, found.
 * q4x_ID_settings: the hyper-parameters alone, checked as above, each with its source; tensors are not looked for.
 * q4x_ID_give: of weights that were bound from a checkpoint, the hyper-parameters to `keys` and every tensor to `to`,
 *   as a GGUF file has them. Q4X_E_UNSUPPORTED where such a file cannot say what the checkpoint does.
 * q4x_ID_plan: the forward as a plan; borrows the weights of w.
 * q4x_ID_free: NULL is fine. */
#define ARCH(id, gguf, hf, doc)                                                                                        \
    typedef struct q4x_##id q4x_##id;                                                                                  \
    int q4x_##id##_bind(const q4x_model *m, q4x_##id **ret, q4x_err *err);                                             \
    int q4x_##id##_settings(const q4x_model *m, q4x_settings *ret, q4x_err *err);                                      \
    int q4x_##id##_give(const q4x_taker *to, q4x_gguf_out *keys, q4x_##id *w, q4x_err *err);                           \
    int q4x_##id##_plan(const q4x_##id *w, q4x_plan **ret, q4x_err *err);                                              \
    void q4x_##id##_free(q4x_##id *w);
#include "lib/archs.def"
#undef ARCH

typedef enum {
#define ARCH(id, gguf, hf, doc) Q4X_ARCH_##id,
#include "lib/archs.def"
#undef ARCH
    Q4X_ARCH_COUNT
} q4x_arch_id;

/* Names as the files have them: general.architecture; config.json's model_type, blank-separated. */
typedef struct {
    const char *gguf, *hf;
} q4x_arch_names;
extern const q4x_arch_names q4x_archs[Q4X_ARCH_COUNT];

/* 0 when the file says that it is of this architecture; else Q4X_E_UNSUPPORTED, with what it says instead. */
int q4x_arch_expect(const q4x_model *m, q4x_arch_id id, q4x_err *err);

#endif
