/* model.h: a model file as a constant view, whatever the container (GGUF, safetensors).
 *
 * Owns the mappings; tensors and strings are borrowed from it and valid until q4x_model_close. Every extent was
 * checked against the file before a q4x_tensor exists. Names are the file's own; lib/arch_*.c maps them.
 */
#ifndef Q4X_MODEL_H
#define Q4X_MODEL_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"

typedef struct q4x_model q4x_model;

typedef enum { Q4X_GGUF, Q4X_HF } q4x_container;

typedef struct {
    const char *name;
    int32_t type;  /* k_type: GGUF id; HF dtypes map to F32 F16 BF16 F64 I8 I16 I32 I64 */
    int32_t ndim;  /* 0 (HF scalar) .. 4 */
    int64_t ne[4]; /* fastest first, missing are 1 */
    const void *data;
    size_t bytes;
    int32_t shard; /* index into q4x_model_shard */
} q4x_tensor;

static inline uint64_t q4x_tensor_elements(const q4x_tensor *t) {
    return (uint64_t)t->ne[0] * (uint64_t)t->ne[1] * (uint64_t)t->ne[2] * (uint64_t)t->ne[3];
}

/* One file of a model. */
typedef struct {
    const char *path; /* as given or derived from what was given, never made absolute */
    uint64_t size;
    uint64_t data_off; /* where tensor data begin */
    uint64_t data_end; /* where they end, padding included: what lies behind it no header accounts for */
} q4x_shard;

/* Open a .gguf file (any shard of a split set, or its first), a folder with config.json and safetensors, or a
 * .safetensors / .index.json file beside a config.json. Maps read-only; reads headers only. Errors: a sentence
 * with file, field, expected and found. On failure *ret is untouched. */
int q4x_model_open(const char *path, q4x_model **ret, q4x_err *err);
void q4x_model_close(q4x_model *m); /* NULL is fine */

q4x_container q4x_model_container(const q4x_model *m);
const char *q4x_model_arch(const q4x_model *m); /* general.architecture or config.json's model_type; "": none */
const char *q4x_model_path(const q4x_model *m); /* as given */
int q4x_model_nshards(const q4x_model *m);
const q4x_shard *q4x_model_shard(const q4x_model *m, int i);

int64_t q4x_model_ntensors(const q4x_model *m);
const q4x_tensor *q4x_model_tensor(const q4x_model *m, int64_t i);      /* in file order */
const q4x_tensor *q4x_model_find(const q4x_model *m, const char *name); /* NULL: none */

/* Advice: n bytes at data, which lie in one file of the model, will be read row by row, here and there. */
void q4x_model_scattered(const q4x_model *m, const void *data, uint64_t n);
/* They will be read soon: see q4x_map_wanted. */
void q4x_model_wanted(const q4x_model *m, const void *data, uint64_t n);
/* They are done with: their pages leave this process's memory, and come back when they are read again. */
void q4x_model_release(const q4x_model *m, const void *data, uint64_t n);
/* Q4X_E_TRUNCATED when a file is shorter now than it was when it was opened: before touching many pages of it. */
int q4x_model_check(const q4x_model *m, q4x_err *err);

/* XXH3-128 (canonical hex, 32 chars + NUL) over what the files declare: metadata keys and values, tensor names, types,
 * shapes, and the first and last 4096 bytes of each tensor's data. Cheap identity of a model's content. */
int q4x_model_fingerprint(const q4x_model *m, char hex[33], q4x_err *err);

/* ---- GGUF metadata (container Q4X_GGUF; on HF every getter answers "absent") ----
 * Type is checked exactly, integers of any width are accepted where they fit. Each returns 0 and writes *ret,
 * 1 when the key is absent (*ret untouched), or a negative error naming key, expected and found type. */
int q4x_kv_u64(const q4x_model *m, const char *key, uint64_t *ret, q4x_err *err);
int q4x_kv_i64(const q4x_model *m, const char *key, int64_t *ret, q4x_err *err);
int q4x_kv_f64(const q4x_model *m, const char *key, double *ret, q4x_err *err);
int q4x_kv_bool(const q4x_model *m, const char *key, int *ret, q4x_err *err);
int q4x_kv_str(const q4x_model *m, const char *key, const char **ret, size_t *ret_len,
               q4x_err *err); /* not NUL-terminated */
/* Array of integers (or bools) into a malloc'd int64 array; u64 values above INT64_MAX are an error. */
int q4x_kv_ints(const q4x_model *m, const char *key, int64_t **ret, int64_t *ret_n, q4x_err *err);
/* Number of elements of an array of strings. */
int q4x_kv_strs_count(const q4x_model *m, const char *key, int64_t *ret_n, q4x_err *err);
/* Element i of an array of strings; O(1) (index built at open). Bytes may hold anything, not NUL-terminated. */
int q4x_kv_strs_get(const q4x_model *m, const char *key, int64_t i, const char **ret, size_t *ret_len, q4x_err *err);
int64_t q4x_kv_count(const q4x_model *m);
const char *q4x_kv_key(const q4x_model *m, int64_t i);

/* 1: a tensor of this name belongs to a part of a checkpoint that is not run: a vision tower, a prediction head. */
int q4x_model_foreign(const char *name);

/* ---- HF configuration (container Q4X_HF; NULL on GGUF) ---- */
const json_t *q4x_model_config(const q4x_model *m);      /* root of config.json */
const json_t *q4x_model_text_config(const q4x_model *m); /* text_config, or the root when there is none */

#endif
