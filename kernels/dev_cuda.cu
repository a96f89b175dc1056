/* dev_cuda.cu: the device room with the CUDA runtime (linked statically; the driver is looked for when asked). */
#include <cuda_runtime_api.h>
#include <string.h>

#include "kernels/dev.h"

static void copy(char *to, size_t size, const char *from) {
    size_t n = strlen(from);
    if (n >= size) n = size - 1;
    memcpy(to, from, n);
    to[n] = 0;
}

void k_dev_query(k_dev_info *ret) {
    memset(ret, 0, sizeof *ret);
    ret->built = 1;
    cudaRuntimeGetVersion(&ret->runtime);
    if (cudaDriverGetVersion(&ret->driver) != cudaSuccess) ret->driver = 0;
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && n > 0) {
        ret->count = n;
        return;
    }
    if (e == cudaSuccess) e = cudaErrorNoDevice;
    cudaGetLastError(); /* the answer is taken; do not leave it for the next caller */
    ret->error = (int)e;
    if (e == cudaErrorInsufficientDriver && !ret->driver)
        copy(ret->reason, sizeof ret->reason, "no GPU driver is installed");
    else
        copy(ret->reason, sizeof ret->reason, cudaGetErrorString(e));
}

int k_dev_describe(int i, k_dev_desc *ret) {
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, i);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return (int)e;
    }
    memset(ret, 0, sizeof *ret);
    copy(ret->name, sizeof ret->name, p.name);
    ret->major = p.major;
    ret->minor = p.minor;
    ret->memory = (uint64_t)p.totalGlobalMem;
    ret->sms = p.multiProcessorCount;
    return 0;
}
