/* convert.h: a checkpoint (config.json and safetensors) to a GGUF file that llama.cpp and q4x read alike.
 *
 * Every tensor goes through f32, is brought to what GGUF files hold (spec 9.2: 1 + w, -exp(A_log), heads reordered,
 * experts and table shards stacked, halves apart), and gets the type that the file type's rules say
 * (lib/type_rules.h) from lib/encode.h. It is streamed: a slab of rows is read, encoded and written, and its pages of
 * the checkpoint let go, so that memory does not grow with the model. The file appears by rename when it is whole.
 *
 * The same checkpoint, file type and name give the same bytes, whatever the threads. Prediction heads (mtp.*) and
 * vision towers are left out.
 */
#ifndef Q4X_CONVERT_H
#define Q4X_CONVERT_H

#include "lib/log.h"
#include "lib/model.h"
#include "lib/type_rules.h"

typedef struct {
    q4x_file_type type;
    const char *name; /* general.name; UTF-8, Q4X_E_ARG */
    int no_tokenizer; /* 1: leave tokenizer.json out */
    int nth;
    q4x_log *log; /* progress and what was left out; NULL: none */
} q4x_convert_opts;

typedef struct {
    int64_t tensors, left_out; /* written; of the checkpoint, not converted */
    uint64_t bytes;            /* of the file */
} q4x_convert_done;

/* Convert an open checkpoint. Errors: Q4X_E_UNSUPPORTED for a GGUF file, an architecture, a configuration or a
 * tokenizer that cannot be said in GGUF, or a type without encoder; Q4X_E_MISMATCH, Q4X_E_FORMAT for tensors that are
 * missing, surplus, of a wrong shape, or hold a value that is not finite (named); Q4X_E_IO, Q4X_E_FULL for the file.
 * After an error nothing is there under `path` that was not there before. */
int q4x_convert(const q4x_model *m, const char *path, const q4x_convert_opts *o, q4x_convert_done *ret, q4x_err *err);

/* The file types that a checkpoint becomes, "F32, F16, ..." in the order of lib/file_types.def: those whose blocks have
 * an encoder. Returns buf. */
const char *q4x_convert_types(char *buf, size_t size);

#endif
