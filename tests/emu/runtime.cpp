/* runtime.cpp: the functions of the runtime, on memory of the host that is counted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/emu/emu_int.h"

enum { HEAD = 64 };

typedef struct block {
    size_t n;
    struct block *next, *last; /* of pinned memory */
} block;
static block *pinned;
static_assert(sizeof(block) <= HEAD, "the head of a piece of memory");

/* device 0: pinned memory of the host. */
static cudaError_t give(void **p, size_t n, int device) {
    if (emu_lost()) return emu_failed(cudaErrorIllegalAddress);
    if (device && n > emu.memory - emu.used) return emu_failed(cudaErrorMemoryAllocation);
    if (!device && emu.no_pinned && n > emu.no_pinned) return emu_failed(cudaErrorMemoryAllocation);
    unsigned char *m = (unsigned char *)aligned_alloc(64, HEAD + (n + 63) / 64 * 64);
    if (!m) return emu_failed(cudaErrorMemoryAllocation);
    memset(m, 0xa5, HEAD + (n + 63) / 64 * 64); /* device memory comes as it was */
    block *b = (block *)(void *)m;
    b->n = n;
    b->last = NULL;
    b->next = device ? NULL : pinned;
    if (!device) {
        if (pinned) pinned->last = b;
        pinned = b;
    }
    *(device ? &emu.used : &emu.pinned) += n;
    emu.live++;
    *p = m + HEAD;
    return cudaSuccess;
}

/* Waits for all that was enqueued, as the runtime does before it takes memory back. */
static cudaError_t take(void *p, int device) {
    if (!p) return cudaSuccess;
    emu_catch_up_all();
    unsigned char *m = (unsigned char *)p - HEAD;
    block *b = (block *)(void *)m;
    *(device ? &emu.used : &emu.pinned) -= b->n;
    if (!device) {
        *(b->last ? &b->last->next : &pinned) = b->next;
        if (b->next) b->next->last = b->last;
    }
    emu.live--;
    free(m);
    return emu_is_gone() ? emu_failed(cudaErrorIllegalAddress) : cudaSuccess;
}

static int is_pinned(const void *p) {
    const unsigned char *at = (const unsigned char *)p;
    for (const block *b = pinned; b; b = b->next) {
        const unsigned char *m = (const unsigned char *)b + HEAD;
        if (at >= m && at < m + b->n) return 1;
    }
    return 0;
}

cudaError_t cudaGetDeviceCount(int *n) {
    EMU_CALL(cudaGetDeviceCount);
    *n = 1 + emu.others;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int i) {
    EMU_CALL(cudaGetDeviceProperties);
    if (i > emu.others) return emu_failed(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    memcpy(p->name, "emulator", sizeof "emulator");
    p->multiProcessorCount = 1;
    p->totalGlobalMem = emu.memory >> i;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v) {
    EMU_CALL(cudaRuntimeGetVersion);
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) {
    EMU_CALL(cudaDriverGetVersion);
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int i) {
    EMU_CALL(cudaSetDevice);
    return i ? emu_failed(cudaErrorInvalidDevice) : cudaSuccess;
}
static cudaError_t new_stream(cudaStream_t *s, int beside) {
    *s = (cudaStream_t)calloc(1, sizeof **s);
    if (!*s) return emu_failed(cudaErrorMemoryAllocation);
    (*s)->beside = beside;
    (*s)->end = &(*s)->first;
    (*s)->next = emu_streams;
    emu_streams = *s;
    emu.live++;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    EMU_CALL(cudaStreamCreateWithFlags);
    (void)flags;
    return new_stream(s, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    EMU_CALL(cudaStreamCreateWithPriority);
    (void)flags;
    return new_stream(s, priority < 0 ? EMU_AHEAD : EMU_BEHIND);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    EMU_CALL(cudaDeviceGetStreamPriorityRange);
    *least = 0;
    *greatest = -1;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    EMU_CALL(cudaStreamDestroy);
    emu_catch_up_all(); /* others may wait for it */
    for (cudaStream_t *at = &emu_streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    free(s);
    emu.live--;
    EMU_GONE();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    EMU_CALL(cudaStreamWaitEvent);
    (void)flags;
    EMU_GONE();
    if (!e->of || e->of == s || e->of->done >= e->n || emu.deaf & EMU_STREAMS) return cudaSuccess;
    emu_later *l = emu_put_off(s, EMU_WAIT, 0);
    l->other = e->of;
    l->behind = e->n;
    emu_given(s);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    EMU_CALL(cudaStreamSynchronize);
    emu.waits++;
    emu_catch_up(s, s->given);
    EMU_GONE();
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t n) {
    EMU_CALL(cudaMalloc);
    return give(p, n, 1);
}
cudaError_t cudaFree(void *p) {
    EMU_CALL(cudaFree);
    return take(p, 1);
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) {
    EMU_CALL(cudaHostAlloc);
    (void)flags;
    return give(p, n, 0);
}
cudaError_t cudaHostGetDevicePointer(void **dev, void *host, unsigned flags) {
    EMU_CALL(cudaHostGetDevicePointer);
    (void)flags;
    *dev = host;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    EMU_CALL(cudaFreeHost);
    return take(p, 0);
}
/* Memory of the host that is not pinned is read before the call returns, and written too. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t s) {
    EMU_CALL(cudaMemcpyAsync);
    if (emu_lost()) return emu_failed(cudaErrorIllegalAddress);
    if (!s) s = &emu_origin;
    const int now_read = kind == cudaMemcpyHostToDevice && emu_is_late(s) && !is_pinned(from);
    emu.unpinned +=
        (kind == cudaMemcpyHostToDevice && !is_pinned(from)) || (kind == cudaMemcpyDeviceToHost && !is_pinned(to));
    emu_later *l = emu_put_off(s, EMU_COPY, now_read ? n : 0);
    l->to = to;
    l->from = now_read ? NULL : from;
    l->n = n;
    l->byte = kind == cudaMemcpyHostToDevice && emu.spoilt && n >= emu.spoilt;
    if (now_read && n) memcpy(l->ctx, from, n);
    if (kind == cudaMemcpyDeviceToHost && !is_pinned(to))
        emu_catch_up(s, s->given);
    else
        emu_given(s);
    EMU_GONE();
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s) {
    EMU_CALL(cudaMemsetAsync);
    if (emu_lost()) return emu_failed(cudaErrorIllegalAddress);
    if (!s) s = &emu_origin;
    emu_later *l = emu_put_off(s, EMU_FILL, 0);
    l->to = p;
    l->byte = byte;
    l->n = n;
    emu_given(s);
    return cudaSuccess;
}
static cudaError_t new_event(cudaEvent_t *e) {
    *e = (cudaEvent_t)calloc(1, sizeof **e);
    if (!*e) return emu_failed(cudaErrorMemoryAllocation);
    emu.live++;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) {
    EMU_CALL(cudaEventCreate);
    return new_event(e);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    EMU_CALL(cudaEventCreateWithFlags);
    (void)flags;
    return new_event(e);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    EMU_CALL(cudaEventDestroy);
    free(e);
    emu.live--;
    EMU_GONE();
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    EMU_CALL(cudaEventRecord);
    struct timespec t;
    EMU_GONE();
    e->of = s;
    e->n = s ? s->given : 0;
    clock_gettime(CLOCK_MONOTONIC, &t);
    e->at = 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    EMU_CALL(cudaEventSynchronize);
    emu.waits++;
    if (e->of && !(emu.deaf & EMU_HOST)) emu_catch_up(e->of, e->n);
    EMU_GONE();
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    EMU_CALL(cudaEventQuery);
    if (e->of && emu.swift) emu_catch_up(e->of, e->n);
    EMU_GONE(); /* by what has just been done, too */
    return e->of && e->of->done < e->n ? emu_failed(cudaErrorNotReady) : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    EMU_CALL(cudaEventElapsedTime);
    *ms = (float)(to->at - from->at);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    EMU_CALL(cudaMemGetInfo);
    *free = emu.memory - emu.used;
    *total = emu.memory;
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t e) {
    switch ((int)e) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case EMU_REFUSED: return "refused on demand";
    default: return "invalid argument";
    }
}

static int write_value(void *stream, unsigned long long addr, unsigned value, unsigned flags) {
    const int refused = emu_call("cuStreamWriteValue32");
    cudaStream_t s = (cudaStream_t)stream;
    (void)flags;
    if (refused) return refused;
    if (emu_is_gone()) return cudaErrorIllegalAddress;
    emu_later *l = emu_put_off(s, EMU_WORD, 0);
    l->to = (void *)(uintptr_t)addr;
    l->word = value;
    emu_given(s);
    return 0;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found) {
    EMU_CALL(cudaGetDriverEntryPointByVersion);
    (void)name;
    (void)version;
    (void)flags;
    *f = emu.no_marks ? NULL : (void *)write_value;
    *found = emu.no_marks ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
