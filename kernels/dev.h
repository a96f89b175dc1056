/* dev.h: the device room's door. Which CUDA devices are here, and why there are none.
 *
 * Compiled twice: dev_cuda.cu where nvcc is, dev_none.c elsewhere. Both answer every call; neither prints, allocates
 * host memory or fails to start on a machine without a driver. A device that cannot be used is never silently replaced.
 */
#ifndef K_DEV_H
#define K_DEV_H

#include "kernels/k.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int built;        /* 1: this program has the CUDA room */
    int count;        /* usable devices */
    int error;        /* the runtime's code when count is 0 (35: no or old driver, 100: no device), else 0 */
    int runtime;      /* version the program was built with, 13000 = 13.0; 0: none */
    int driver;       /* version the driver supports; 0: there is no driver */
    char reason[160]; /* one sentence when count is 0 */
} k_dev_info;

typedef struct {
    char name[128];
    int major, minor; /* compute capability */
    uint64_t memory;  /* bytes */
    int sms;
} k_dev_desc;

/* Always fills *ret. Starts no context on any device. */
void k_dev_query(k_dev_info *ret);
/* Device i of k_dev_query's count: 0, or the runtime's error code with *ret untouched. */
int k_dev_describe(int i, k_dev_desc *ret);

#ifdef __cplusplus
}
#endif
#endif
