/* bench.h: what bench_cuda.c asks of the device besides ops: its clock, and the plainest kernels there are. */
#ifndef TEST_BENCH_H
#define TEST_BENCH_H

#include "kernels/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each returns 0 or the runtime's code. The time between the two, on the device's own clock; stop waits. */
int hb_start(const k_dev *d);
int hb_stop(const k_dev *d, double *ret_seconds);
int hb_copy(const k_dev *d, void *to, const void *from, size_t bytes);
/* Read bytes (a multiple of 16), sum them into sums[], of a MiB. */
int hb_read(const k_dev *d, const void *from, size_t bytes, float *sums);

#ifdef __cplusplus
}
#endif
#endif
