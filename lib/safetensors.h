/* safetensors.h: the header of a safetensors file, checked. In memory; lib/model_hf.c maps the files.
 *
 * Layout: u64 length of the header, the header (a JSON object, blanks after it), tensor data. The header maps names to
 * {dtype, shape, data_offsets}; "__metadata__" maps strings to strings. Offsets count from the end of the header, and
 * the data follow each other without hole or overlap to the end of the file.
 */
#ifndef Q4X_SAFETENSORS_H
#define Q4X_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"

enum {
    Q4X_ST_MAXDIM = 8,
    Q4X_ST_MAXHEADER = 100000000, /* the format's own limit */
    Q4X_ST_MAXTENSORS = 1 << 20,
    Q4X_ST_MAXNAME = 1024,
};

typedef struct {
    char *name;                   /* no control characters; otherwise as in the file */
    const char *dtype;            /* "BF16", the format's word */
    int32_t type;                 /* k_type, or -1: the house has none of that (BOOL, U8, F8_E4M3, ...) */
    int32_t ndim;                 /* 0: a scalar */
    int64_t shape[Q4X_ST_MAXDIM]; /* as written, slowest first; a dimension may be 0 */
    int64_t elems;
    uint64_t off, bytes; /* from the beginning of the file */
} q4x_st_tensor;

typedef struct {
    uint64_t data_off;
    int64_t n;
    q4x_st_tensor *t; /* in the order of the data */
    const q4x_st_tensor **by_name;
    json_t *metadata; /* object of strings, or NULL */
} q4x_st;

/* How many bytes a file of `size` bytes needs in memory to be parsed: up to the end of its header. begin: its first 8
 * bytes, or all when it has fewer. `where` begins every error sentence: the file's name. */
int q4x_st_head(const void *begin, uint64_t size, const char *where, size_t *ret, q4x_err *err);

/* Parse and check a file of `size` bytes, of which at least the bytes q4x_st_head asks for are at data. A cut file is
 * Q4X_E_TRUNCATED, any other defect Q4X_E_FORMAT. *ret is untouched on failure. */
int q4x_st_parse(const void *data, uint64_t size, const char *where, q4x_st **ret, q4x_err *err);
void q4x_st_free(q4x_st *st);                                         /* NULL is fine */
const q4x_st_tensor *q4x_st_find(const q4x_st *st, const char *name); /* NULL: none */
const char *q4x_st_meta(const q4x_st *st, const char *key);           /* NULL: none */

#endif
