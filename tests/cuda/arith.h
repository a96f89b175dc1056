/* arith.h: the transcendentals on a device, over all their inputs. */
#ifndef T_CUDA_ARITH_H
#define T_CUDA_ARITH_H

#include "kernels/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CA_COUNT = 12 };
/* sums[f] = the sum of ca_pair over inputs first, first + step, .. (n of them) through function f: in the order of
 * arith.h's table, exp first. Device memory; enqueued. */
int ca_sums(k_dev *d, uint32_t first, uint32_t step, uint64_t n, uint64_t *sums);
/* The same on the host. */
void ca_sums_host(uint32_t first, uint32_t step, uint64_t n, uint64_t *sums);

#ifdef __cplusplus
}
#endif
#endif
