/* dev_none.c: the device room of a program built without CUDA. */
#include <stdio.h>
#include <string.h>

#include "kernels/dev.h"

enum { NO_DEVICE = 100 }; /* cudaErrorNoDevice */

void k_dev_query(k_dev_info *ret) {
    memset(ret, 0, sizeof *ret);
    memcpy(ret->reason, "built without CUDA", sizeof "built without CUDA");
}

int k_dev_describe(int i, k_dev_desc *ret) {
    (void)i;
    (void)ret;
    return NO_DEVICE;
}

const char *k_dev_text(int error) {
    return error ? "built without CUDA" : "no error";
}

int k_dev_open(int index, k_dev *ret) {
    (void)index;
    (void)ret;
    return NO_DEVICE;
}

int k_dev_gemm(k_dev *d, char *why, size_t size) {
    (void)d;
    snprintf(why, size, "built without CUDA");
    return NO_DEVICE;
}

int k_dev_gemm_version(const k_dev *d) {
    (void)d;
    return 0;
}

/* None was opened, so that nothing below is reached; each says no all the same. */
int k_dev_close(k_dev *d) {
    (void)d;
    return 0;
}
int k_dev_memory(const k_dev *d, uint64_t *free, uint64_t *total) {
    (void)d;
    *free = *total = 0;
    return NO_DEVICE;
}
int k_dev_alloc(k_dev *d, size_t bytes, void **ret) {
    (void)d;
    (void)bytes;
    (void)ret;
    return NO_DEVICE;
}
void k_dev_free(k_dev *d, void *p) {
    (void)d;
    (void)p;
}
int k_dev_pinned(k_dev *d, size_t bytes, void **ret) {
    return k_dev_alloc(d, bytes, ret);
}
void k_dev_unpin(k_dev *d, void *p) {
    (void)d;
    (void)p;
}
int k_dev_put(k_dev *d, void *dev, const void *host, size_t bytes) {
    (void)d;
    (void)dev;
    (void)host;
    (void)bytes;
    return NO_DEVICE;
}
int k_dev_get(k_dev *d, void *host, const void *dev, size_t bytes) {
    return k_dev_put(d, host, dev, bytes);
}
int k_dev_zero(k_dev *d, void *dev, size_t bytes) {
    return k_dev_put(d, dev, NULL, bytes);
}
int k_dev_wait(k_dev *d) {
    (void)d;
    return NO_DEVICE;
}
int k_dev_turn(k_dev *d) {
    (void)d;
    return NO_DEVICE;
}
int k_dev_put_ahead(k_dev *d, void *dev, const void *host, size_t bytes) {
    return k_dev_put(d, dev, host, bytes);
}
int k_dev_run(k_dev *d, k_op op, const k_call *c) {
    (void)d;
    (void)op;
    (void)c;
    return NO_DEVICE;
}
int k_dev_run_fit(k_dev *d, k_op op, const k_call *c) {
    return k_dev_run(d, op, c);
}
int k_dev_measure(k_dev *d, const k_measure_job *jobs, int n, const k_dev_copy *copies, int m) {
    (void)d;
    (void)jobs;
    (void)n;
    (void)copies;
    (void)m;
    return NO_DEVICE;
}
int k_dev_collect(k_dev *d, const k_dev_copy *c) {
    (void)d;
    (void)c;
    return NO_DEVICE;
}
int k_dev_arrived(k_dev *d, int64_t k, int wait) {
    (void)d;
    (void)k;
    (void)wait;
    return NO_DEVICE;
}
int k_dev_join(k_dev *d, int64_t launch) {
    (void)d;
    (void)launch;
    return NO_DEVICE;
}
int k_dev_mark(k_dev *d, uint32_t v) {
    (void)d;
    (void)v;
    return NO_DEVICE;
}
k_dev_progress k_dev_reached(k_dev *d) {
    const k_dev_progress none = {0, 0, 0, 0, 0};
    (void)d;
    return none;
}
