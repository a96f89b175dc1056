/* table.h: constant tables that host and device code can reach. */
#ifndef K_TABLE_H
#define K_TABLE_H

#include "kernels/k.h"

/* nvcc needs a second copy in device memory; K_TAB(name) is the one that the code being compiled can reach. */
#ifdef __CUDACC__
#define K_TABLE(type, name, n, ...)                                                                                    \
    __attribute__((unused)) static const type name[n] = {__VA_ARGS__};                                                 \
    __attribute__((unused)) static __device__ const type name##_dev[n] = {__VA_ARGS__};
#else
#define K_TABLE(type, name, n, ...) __attribute__((unused)) static const type name[n] = {__VA_ARGS__};
#endif
#ifdef __CUDA_ARCH__
#define K_TAB(name) name##_dev
#else
#define K_TAB(name) name
#endif

#endif
