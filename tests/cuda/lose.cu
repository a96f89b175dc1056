#include "tests/cuda/lose.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

static __global__ void trap_k(void) {
    asm volatile("trap;");
}

int ct_lose(void) {
    trap_k<<<1, 1>>>();
    int e = (int)cudaDeviceSynchronize();
    cudaGetLastError(); /* what is asked next must find it out for itself */
    return e;
}
#else
#include "tests/emu/emu.h"

int ct_lose(void) {
    emu.fail = emu.ops + 1;
    return 700;
}
#endif
