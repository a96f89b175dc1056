/* type_rules.h: which type each tensor of a GGUF file gets, by the name of the file type (gguf-quants 3; qwen4_exp
 * 9.3). One table for everything that writes model files: lib/file_types.def, lib/type_rules.def.
 *
 * Whatever the file type, these are F32: tensors of one dimension, names that end in "_norm.weight" or not in
 * ".weight", the routers ffn_gate_inp and ffn_gate_inp_shexp, ssm_conv1d. The rest gets what the file type says, and
 * where a row is no whole number of blocks, the type's fallback, in the end F16.
 */
#ifndef Q4X_TYPE_RULES_H
#define Q4X_TYPE_RULES_H

#include <stdint.h>

typedef enum {
#define FILE_TYPE(id, name, number, dflt) Q4X_FT_##id,
#include "lib/file_types.def"
#undef FILE_TYPE
    Q4X_FT_COUNT
} q4x_file_type;

typedef struct {
    const char *name;
    int32_t number; /* general.file_type, -1: the format has no number for it */
    int32_t dflt;   /* k_type of tensors that no rule names */
} q4x_file_type_info;

extern const q4x_file_type_info q4x_file_types[Q4X_FT_COUNT];

/* The file type of this name, capitals or not; -1: none. */
int q4x_file_type_find(const char *name);

/* The k_type of one tensor. tensor: its GGUF name; ne: fastest first, ne[0] its row; nblocks: block_count, with
 * prediction blocks. */
int32_t q4x_type_rule(q4x_file_type ft, const char *tensor, int ndim, const int64_t *ne, int nblocks);

#endif
