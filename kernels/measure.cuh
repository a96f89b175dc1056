/* measure.cuh: the launch of measure.h. For dev_cuda.cu alone. */
#ifndef K_MEASURE_CUH
#define K_MEASURE_CUH

#include "kernels/measure.h"

/* Enqueues and returns; errors of the launch are left for cudaGetLastError. */
void k_measure_launch(const k_measure_job *jobs, int n, void *stream);

#endif
