/* h_dense.h: the GGUF form of a qwen3_5 checkpoint, made in the way that the specification's sections 9 and 10 say. */
#ifndef H_DENSE_H
#define H_DENSE_H

#include "tests/h_gguf.h"
#include "tests/h_hf.h"

/* Keys of a flat configuration, and every tensor of the text model: matrices in BF16 as they are, vectors in F32. Value
 * heads are reordered, norms get their 1, A_log becomes -exp(A_log). */
void h_dense_keys(h_gguf *g, const json_t *config);
void h_dense_tensors(h_gguf *g, h_hf *h);
/* A prediction block behind the trunk, as block `layer`, out of the tensors of attention layer `from`; the key that
 * says so is the caller's business. */
void h_dense_next(h_gguf *g, h_hf *h, int layer, int from);
/* Both of the first two, into a file. */
void h_dense_write(h_hf *h, const char *path);

#endif
