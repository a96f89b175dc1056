/* dev_none.c: the device room of a program built without CUDA. */
#include <string.h>

#include "kernels/dev.h"

void k_dev_query(k_dev_info *ret) {
    memset(ret, 0, sizeof *ret);
    memcpy(ret->reason, "built without CUDA", sizeof "built without CUDA");
}

int k_dev_describe(int i, k_dev_desc *ret) {
    (void)i;
    (void)ret;
    return 100; /* cudaErrorNoDevice */
}
