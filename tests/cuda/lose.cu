#include "tests/cuda/lose.h"

#include "kernels/cuda.cuh"

#ifdef __CUDACC__
static __global__ void trap_k(int n) {
    if (n) asm volatile("trap;");
}
static void next_traps(void) {}
#else
#include "tests/emu/emu.h"

static void trap_k(int n) {
    (void)n;
}
static void next_traps(void) {
    emu_trap("launch", 1);
}
#endif

int ct_lose(k_dev *d) {
    next_traps();
    K_LAUNCH(trap_k, dim3(1), dim3(1), 0, d->stream, 1);
    return (int)cudaGetLastError();
}

int ct_lose_measuring(k_dev *d) {
    k_measure_job j;
    memset(&j, 0, sizeof j);
    j.kind = K_MEASURE_COPY;
    j.x = (const void *)(uintptr_t)64; /* nobody's */
    j.out = (void *)(uintptr_t)64;
    j.rows = 16;
    next_traps();
    return k_dev_measure(d, &j, 1, NULL, 0);
}
