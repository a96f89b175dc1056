/* dev_cuda.cu: the device room with the CUDA runtime (linked statically; the driver is looked for when asked). */
#include "kernels/dev.h"

#include <stdio.h>
#include <string.h>

#include "kernels/gemm.cuh"
#include "kernels/matmul.h"
#include "kernels/measure.cuh"

void k_dev_query(k_dev_info *ret) {
    memset(ret, 0, sizeof *ret);
    ret->built = 1;
    if (cudaRuntimeGetVersion(&ret->runtime) != cudaSuccess) ret->runtime = 0;
    if (cudaDriverGetVersion(&ret->driver) != cudaSuccess) ret->driver = 0;
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    cudaGetLastError(); /* the answers are taken; do not leave them for the next caller */
    if (e == cudaSuccess && n > 0) {
        ret->count = n;
        return;
    }
    if (e == cudaSuccess) e = cudaErrorNoDevice;
    ret->error = (int)e;
    if (e == cudaErrorInsufficientDriver && !ret->driver)
        snprintf(ret->reason, sizeof ret->reason, "no GPU driver is installed");
    else
        snprintf(ret->reason, sizeof ret->reason, "%.159s", cudaGetErrorString(e));
}

int k_dev_describe(int i, k_dev_desc *ret) {
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, i);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return (int)e;
    }
    memset(ret, 0, sizeof *ret);
    snprintf(ret->name, sizeof ret->name, "%.127s", p.name);
    ret->major = p.major;
    ret->minor = p.minor;
    ret->memory = (uint64_t)p.totalGlobalMem;
    ret->sms = p.multiProcessorCount;
    return 0;
}

const char *k_dev_text(int error) {
    if (error >= K_GEMM_ERROR) return k_gemm_text(error);
    return cudaGetErrorString((cudaError_t)error);
}

/* ---- one device ---- */

/* cuStreamWriteValue32, asked for by name: the program is not linked with the driver. */
typedef int (*write_value)(void *stream, unsigned long long addr, unsigned value, unsigned flags);

static void *driver_function(const char *name) {
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found);
    if (e == cudaSuccess && found == cudaDriverEntryPointSuccess) return f;
    cudaGetLastError();
    return NULL;
}

/* Word k of the marks becomes v when the stream has come so far. */
static int write_mark(k_dev *d, void *stream, int k, uint32_t v) {
    if (!d->write) return 0;
    const unsigned long long at = (unsigned long long)(uintptr_t)d->mark_dev + sizeof v * (unsigned)k;
    return ((write_value)d->write)(stream, at, v, 0);
}

int k_dev_open(int index, k_dev *ret) {
    k_dev d;
    cudaStream_t s;
    void *word = NULL;
    memset(&d, 0, sizeof d);
    d.index = index;
    cudaError_t e = cudaSetDevice(index);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return (int)e;
    }
    d.stream = s;
    e = cudaHostAlloc(&word, 64, cudaHostAllocMapped);
    if (e == cudaSuccess) e = cudaHostGetDevicePointer(&d.mark_dev, word, 0);
    if (e != cudaSuccess) {
        cudaFreeHost(word);
        cudaStreamDestroy(s);
        cudaGetLastError();
        return (int)e;
    }
    d.mark = (volatile uint32_t *)word;
    d.mark[0] = d.mark[1] = 0;
    d.write = driver_function("cuStreamWriteValue32");
    if (write_mark(&d, s, 0, 0)) d.write = NULL; /* there, but not for this device */
    *ret = d;
    return 0;
}

/* The answer of a call, and what it leaves behind for the next one is taken. */
static int answer(cudaError_t e) {
    if (e != cudaSuccess) cudaGetLastError();
    return (int)e;
}

/* Of the answers of a teardown, which goes on whatever fails, the first error is kept. */
static void note(int *first, cudaError_t e) {
    const int code = answer(e);
    if (!*first) *first = code;
}

static void drop_event(int *first, void **event) {
    if (*event) note(first, cudaEventDestroy((cudaEvent_t)*event));
    *event = NULL;
}

static int close_side(k_dev *d) {
    int first = 0;
    if (d->copies) {
        note(&first, cudaStreamSynchronize((cudaStream_t)d->copies));
        note(&first, cudaStreamDestroy((cudaStream_t)d->copies));
    }
    if (d->side) note(&first, cudaStreamDestroy((cudaStream_t)d->side));
    d->copies = d->side = NULL;
    drop_event(&first, &d->forked);
    for (int i = 0; i < K_DEV_TURNS; i++) {
        drop_event(&first, &d->done[i]);
        drop_event(&first, &d->copied[i]);
        drop_event(&first, &d->here[i]);
    }
    return first;
}

static int close_ahead(k_dev *d) {
    int first = 0;
    if (d->ahead) note(&first, cudaStreamDestroy((cudaStream_t)d->ahead));
    d->ahead = NULL;
    drop_event(&first, &d->came);
    for (int i = 0; i < 2; i++) drop_event(&first, &d->turned[i]);
    return first;
}

int k_dev_close(k_dev *d) {
    int first = 0;
    if (!d->stream) return 0;
    note(&first, cudaSetDevice(d->index));
    note(&first, (cudaError_t)k_dev_wait(d));
    note(&first, (cudaError_t)close_side(d));
    note(&first, (cudaError_t)close_ahead(d));
    const int e = k_gemm_close(d->gemm);
    if (!first) first = e;
    note(&first, cudaFree(d->gemm_room));
    note(&first, cudaStreamDestroy((cudaStream_t)d->stream));
    note(&first, cudaFreeHost((void *)d->mark));
    memset(d, 0, sizeof *d);
    return first;
}

/* Launches and allocations go to the thread's device, whichever run was at work last. */
static cudaError_t use(const k_dev *d) {
    return cudaSetDevice(d->index);
}

int k_dev_memory(const k_dev *d, uint64_t *free, uint64_t *total) {
    size_t f = 0, t = 0;
    cudaError_t e = use(d);
    if (e == cudaSuccess) e = cudaMemGetInfo(&f, &t);
    *free = f;
    *total = t;
    return answer(e);
}

int k_dev_alloc(k_dev *d, size_t bytes, void **ret) {
    cudaError_t e = use(d);
    return answer(e == cudaSuccess ? cudaMalloc(ret, bytes ? bytes : 1) : e);
}

void k_dev_free(k_dev *d, void *p) {
    (void)d;
    if (p) answer(cudaFree(p)); /* of a lost device nothing is left to free */
}

int k_dev_pinned(k_dev *d, size_t bytes, void **ret) {
    cudaError_t e = use(d);
    return answer(e == cudaSuccess ? cudaHostAlloc(ret, bytes ? bytes : 1, cudaHostAllocDefault) : e);
}

void k_dev_unpin(k_dev *d, void *p) {
    (void)d;
    if (p) answer(cudaFreeHost(p));
}

int k_dev_put(k_dev *d, void *dev, const void *host, size_t bytes) {
    return answer(cudaMemcpyAsync(dev, host, bytes, cudaMemcpyHostToDevice, (cudaStream_t)d->stream));
}

int k_dev_get(k_dev *d, void *host, const void *dev, size_t bytes) {
    return answer(cudaMemcpyAsync(host, dev, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)d->stream));
}

int k_dev_zero(k_dev *d, void *dev, size_t bytes) {
    cudaError_t e = use(d);
    return answer(e == cudaSuccess ? cudaMemsetAsync(dev, 0, bytes, (cudaStream_t)d->stream) : e);
}

int k_dev_wait(k_dev *d) {
    int e = k_dev_join(d, d->measured);
    if (!e) e = answer(cudaStreamSynchronize((cudaStream_t)d->stream));
    return e || !d->copies ? e : answer(cudaStreamSynchronize((cudaStream_t)d->copies));
}

/* ---- beside the ops ---- */

static cudaError_t new_event(void **ret) {
    cudaEvent_t event;
    cudaError_t e = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (e == cudaSuccess) *ret = event;
    return e;
}

/* Of least priority: the ops go first. */
static cudaError_t open_side(k_dev *d) {
    int least = 0, greatest;
    cudaStream_t side = NULL, copies = NULL;
    if (d->side) return cudaSuccess;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&side, cudaStreamNonBlocking, least);
    d->side = side;
    if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&copies, cudaStreamNonBlocking, least);
    d->copies = copies;
    if (e == cudaSuccess) e = new_event(&d->forked);
    for (int i = 0; i < K_DEV_TURNS && e == cudaSuccess; i++) {
        e = new_event(&d->done[i]);
        if (e == cudaSuccess) e = new_event(&d->copied[i]);
        if (e == cudaSuccess) e = new_event(&d->here[i]);
    }
    if (e != cudaSuccess) close_side(d);
    return e;
}

static cudaError_t waits_for(void *stream, void *event) {
    return cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0);
}

static cudaError_t record(void *event, void *stream) {
    return cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream);
}

static cudaError_t copy_here(k_dev *d, const k_dev_copy *c) {
    return cudaMemcpyAsync(c->here, c->there, c->bytes, cudaMemcpyDeviceToHost, (cudaStream_t)d->copies);
}

/* The copies of the launch whose number is d->measured. */
static cudaError_t launch_copies(k_dev *d, const k_dev_copy *copies, int m) {
    const int turn = (int)(d->measured % K_DEV_TURNS);
    d->copying[turn] = m ? d->measured : d->copying[(turn + K_DEV_TURNS - 1) % K_DEV_TURNS];
    if (!m) return cudaSuccess;
    cudaError_t e = waits_for(d->copies, d->forked);
    for (int i = 0; i < m && e == cudaSuccess; i++)
        if (copies[i].bytes) e = copy_here(d, &copies[i]);
    return e == cudaSuccess ? record(d->copied[turn], d->copies) : e;
}

/* Between the two words the jobs are at work. */
static int launch_jobs(k_dev *d, const k_measure_job *jobs, int n) {
    int e = answer(waits_for(d->side, d->forked));
    if (!e) e = write_mark(d, d->side, 1, d->given + 1);
    if (e) return e;
    k_measure_launch(jobs, n, d->side);
    e = answer(cudaGetLastError());
    return e ? e : write_mark(d, d->side, 1, 0);
}

int k_dev_measure(k_dev *d, const k_measure_job *jobs, int n, const k_dev_copy *copies, int m) {
    if (n < 0 || n > K_MEASURE_JOBS || m < 0) return (int)cudaErrorInvalidValue;
    cudaError_t e = use(d);
    if (e != cudaSuccess || !(n + m)) return answer(e);
    e = open_side(d);
    if (e == cudaSuccess) e = record(d->forked, d->stream);
    if (e != cudaSuccess) return answer(e);
    d->measured++;
    e = launch_copies(d, copies, m);
    if (e == cudaSuccess && n) e = (cudaError_t)launch_jobs(d, jobs, n);
    return answer(e == cudaSuccess ? record(d->done[d->measured % K_DEV_TURNS], d->side) : e);
}

int k_dev_join(k_dev *d, int64_t launch) {
    if (launch <= d->joined) return 0;
    const int64_t copying = d->copying[launch % K_DEV_TURNS];
    /* an event that has been taken for a later one only waits longer */
    cudaError_t e = waits_for(d->stream, d->done[launch % K_DEV_TURNS]);
    if (e == cudaSuccess && copying > d->joined) e = waits_for(d->stream, d->copied[copying % K_DEV_TURNS]);
    if (e == cudaSuccess) d->joined = launch;
    return answer(e);
}

int k_dev_collect(k_dev *d, const k_dev_copy *c) {
    cudaError_t e = use(d);
    if (e == cudaSuccess) e = open_side(d);
    if (e == cudaSuccess && c->bytes) {
        if (d->measured) e = waits_for(d->copies, d->done[d->measured % K_DEV_TURNS]);
        if (e == cudaSuccess) e = copy_here(d, c);
        if (e == cudaSuccess)
            e = cudaMemsetAsync((void *)c->there, 0, c->bytes, (cudaStream_t)d->copies); /* behind the copy */
    }
    if (e != cudaSuccess) return answer(e);
    d->collected++;
    return answer(record(d->here[d->collected % K_DEV_TURNS], d->copies));
}

int k_dev_arrived(k_dev *d, int64_t k, int wait) {
    cudaEvent_t event = (cudaEvent_t)d->here[k % K_DEV_TURNS];
    const int e = answer(wait ? cudaEventSynchronize(event) : cudaEventQuery(event));
    return e == (int)cudaErrorNotReady ? K_DEV_NOT_YET : e;
}

int k_dev_mark(k_dev *d, uint32_t v) {
    int e = answer(use(d));
    if (!e) e = write_mark(d, d->stream, 0, v);
    if (!e) d->given = v;
    return e;
}

k_dev_progress k_dev_reached(k_dev *d) {
    k_dev_progress p;
    p.lives = !k_dev_wait(d);
    p.known = d->write != NULL;
    p.done = d->mark[0];
    p.measuring = d->mark[1] != 0;
    p.behind = d->mark[1] - 1;
    return p;
}

/* ---- ahead of the ops ---- */

static cudaError_t open_ahead(k_dev *d) {
    int least, greatest = 0;
    cudaStream_t s = NULL;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, greatest);
    d->ahead = s;
    if (e == cudaSuccess) e = new_event(&d->came);
    for (int i = 0; i < 2 && e == cudaSuccess; i++) e = new_event(&d->turned[i]);
    if (e != cudaSuccess) close_ahead(d);
    return e;
}

int k_dev_turn(k_dev *d) {
    cudaError_t e = use(d);
    if (e == cudaSuccess && !d->ahead) e = open_ahead(d);
    if (e == cudaSuccess) e = cudaEventRecord((cudaEvent_t)d->turned[d->turn % 2], (cudaStream_t)d->stream);
    if (e != cudaSuccess) return answer(e);
    d->turn++;
    return answer(cudaEventSynchronize((cudaEvent_t)d->turned[d->turn % 2]));
}

int k_dev_put_ahead(k_dev *d, void *dev, const void *host, size_t bytes) {
    cudaStream_t ahead = (cudaStream_t)d->ahead;
    if (!d->turn) return (int)cudaErrorInvalidValue;
    cudaError_t e = cudaStreamWaitEvent(ahead, (cudaEvent_t)d->turned[(d->turn - 1) % 2], 0);
    if (e == cudaSuccess) e = cudaMemcpyAsync(dev, host, bytes, cudaMemcpyHostToDevice, ahead);
    if (e == cudaSuccess) e = cudaEventRecord((cudaEvent_t)d->came, ahead);
    if (e == cudaSuccess) e = cudaStreamWaitEvent((cudaStream_t)d->stream, (cudaEvent_t)d->came, 0);
    return answer(e);
}

/* ---- cuBLAS ---- */

int k_dev_gemm(k_dev *d, char *why, size_t size) {
    if (d->gemm) return 0;
    void *room = NULL;
    int code = answer(use(d)); /* another device's memory would be taken */
    if (code) {
        snprintf(why, size, "device cuda/%d cannot be turned to: %s", d->index, k_dev_text(code));
        return code;
    }
    code = answer(cudaMalloc(&room, K_GEMM_ROOM));
    if (!code)
        code = k_gemm_open(d->stream, room, &d->gemm, why, size);
    else
        snprintf(why, size, "no memory for the %d MiB that cuBLAS works in: %s", K_GEMM_ROOM >> 20, k_dev_text(code));
    if (code)
        answer(cudaFree(room));
    else
        d->gemm_room = room;
    return code;
}

int k_dev_gemm_version(const k_dev *d) {
    return d->gemm ? k_gemm_version(d->gemm) : 0;
}

/* ---- ops ---- */

typedef void (*launcher)(const k_call *c, void *stream);

/* An alias has no work; the host has ids and table. */
#define alias_cuda NULL
#define ple_ids_cuda NULL
#define ple_gather_cuda NULL
static const launcher launchers[K_OP_COUNT] = {
#define OP(name, cls, band) name##_cuda,
#include "kernels/ops.def"
#undef OP
};

int k_dev_run(k_dev *d, k_op op, const k_call *c) {
    return k_dev_unfit(op, c) ? (int)cudaErrorInvalidValue : k_dev_run_fit(d, op, c);
}

int k_dev_run_fit(k_dev *d, k_op op, const k_call *c) {
    if (!launchers[op]) return (int)cudaErrorInvalidValue;
    if (c->T == 0 || c->cols == 0) return 0;
    int e = answer(use(d));
    if (e) return e;
    if (op == K_OP_matmul && k_gemm_of(c) != K_BY_OWN) return k_gemm_run(d->gemm, c, d->stream);
    launchers[op](c, d->stream);
    return answer(cudaGetLastError());
}
