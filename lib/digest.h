/* digest.h: what a model's bytes are, on request: XXH3-128 of each tensor's data, SHA-256 of each file.
 *
 * A tensor's hash covers its data alone, so that it is the same in one file and in many. All of the data is read, in
 * portions whose pages are let go, so that memory does not grow with the model.
 */
#ifndef Q4X_DIGEST_H
#define Q4X_DIGEST_H

#include "lib/hash.h"
#include "lib/model.h"

/* done of total bytes. */
typedef void (*q4x_digest_tell)(void *ctx, uint64_t done, uint64_t total);

/* In file order; *ret is malloc'd. Up to `threads` tensors at a time (0: as many as there are processors), which
 * changes no bit. tell: NULL, or called now and then by the calling thread. Q4X_E_TRUNCATED when a file was cut since
 * it was opened. */
int q4x_digest_tensors(const q4x_model *m, int threads, q4x_digest_tell tell, void *ctx, q4x_hash **ret, q4x_err *err);

/* 64 lower-case digits. size: what the file must have, or UINT64_MAX; Q4X_E_TRUNCATED, Q4X_E_IO. */
int q4x_digest_file(const char *path, uint64_t size, q4x_digest_tell tell, void *ctx, char hex[65], q4x_err *err);

#endif
