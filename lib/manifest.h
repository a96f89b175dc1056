/* manifest.h: the identity of a model's structure that others publish (gguf-quants 3.1): SHA-256 over a line
 * "name|outer dims first, comma separated|TYPE" for every tensor, in the order of the names, joined by newlines. It
 * says nothing of values, and does not depend on the order or the cut of files.
 */
#ifndef Q4X_MANIFEST_H
#define Q4X_MANIFEST_H

#include "lib/model.h"

/* 64 hex digits and a NUL. name, type, ndim and ne of the n tensors are read. */
int q4x_manifest(const q4x_tensor *t, int64_t n, char hex[65], q4x_err *err);

#endif
