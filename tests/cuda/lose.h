/* lose.h: ends a device for this process. */
#ifndef LOSE_H
#define LOSE_H

#include "kernels/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueue, and wait for nothing: a kernel that traps among the ops; jobs of k_dev_measure that read where no memory is.
 * Returns the error of enqueuing: 0. */
int ct_lose(k_dev *d);
int ct_lose_measuring(k_dev *d);

#ifdef __cplusplus
}
#endif
#endif
