/* quant_all.h: every scalar decode core, k_at_<TYPE> for each line of quants.def. Shared with nvcc. */
#ifndef K_QUANT_ALL_H
#define K_QUANT_ALL_H

#include "kernels/quant_iq.h"
#include "kernels/quant_k.h"
#include "kernels/quant_simple.h"

#endif
