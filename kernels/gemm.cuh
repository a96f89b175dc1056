/* gemm.cuh: lever gemm = cublas on a device (matmul.h states what it computes). For dev_cuda.cu alone.
 *
 * cuBLAS is no part of the build: it is looked for when a run asks for it, and what it gives is bound to its version,
 * the GPU and the shapes. An error of the library is K_GEMM_ERROR plus its status.
 */
#ifndef K_GEMM_CUH
#define K_GEMM_CUH

#include "kernels/cuda.cuh"
#include "kernels/matmul.h"

enum { K_GEMM_ERROR = 10000 };

/* A handle that works on this stream, in these K_GEMM_ROOM bytes of the device; borrowed. Fails with a sentence. */
int k_gemm_open(void *stream, void *room, void **ret, char *why, size_t size);
int k_gemm_close(void *gemm); /* NULL is fine */
int k_gemm_version(void *gemm);
const char *k_gemm_text(int error);

/* Enqueue the product of a call for which k_gemm_of (matmul.h) does not say K_BY_OWN. Leaves nothing in
 * cudaGetLastError. */
int k_gemm_run(void *gemm, const k_call *c, void *stream);

#endif
