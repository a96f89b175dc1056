/* emu.cpp: the emulated device: fibers, memory that is counted, a loss on demand. */
#include "tests/emu/emu.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include "tests/emu/cuda_runtime.h"

emu_device emu = {(size_t)1 << 30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
emu_place emu_at;

/* ---- threads ---- */

enum { MOST = 1024, STACK = 256 * 1024, LANES = 32 };
enum { READY, IN_WARP, IN_BLOCK, DONE };

typedef struct {
    jmp_buf here;
    int state;
    uint32_t turn; /* exchanges so far: their parity chooses the slots */
} fiber;

static fiber fibers[MOST];
static uint64_t slot[2][MOST];
static jmp_buf scheduler;
static ucontext_t birth;
static unsigned now, made;
static void (*body)(void *);
static void *body_ctx;

[[noreturn]] static void wrong(const char *what) {
    fprintf(stderr, "emulator: %s (block %u of %u, thread %u)\n", what, emu_at.block.x, emu_at.grid.x, now);
    abort();
}

static void give_way(int state) {
    fibers[now].state = state;
    if (!_setjmp(fibers[now].here)) _longjmp(scheduler, 1);
}

/* A fiber lives on: it runs one thread after the other. */
static void live(void) {
    for (;;) {
        body(body_ctx);
        give_way(DONE);
    }
}

static void make_fiber(unsigned i) {
    static ucontext_t c;
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) wrong("no memory for a stack");
    getcontext(&c);
    c.uc_stack.ss_sp = stack;
    c.uc_stack.ss_size = STACK;
    c.uc_link = &birth;
    makecontext(&c, live, 0);
    fibers[i].state = READY;
    now = i;
    if (!_setjmp(scheduler)) setcontext(&c);
}

static void resume(unsigned i) {
    const dim3 s = emu_at.size;
    now = i;
    emu_at.thread = dim3(i % s.x, i / s.x % s.y, i / s.x / s.y);
    if (i >= made) {
        made = i + 1;
        make_fiber(i);
        return;
    }
    if (!_setjmp(scheduler)) _longjmp(fibers[i].here, 1);
}

/* Lets a warp through whose threads all wait in an exchange. */
static void release_warps(unsigned n) {
    for (unsigned w = 0; w < n; w += LANES) {
        unsigned end = w + LANES < n ? w + LANES : n, in = 0, other = 0;
        for (unsigned i = w; i < end; i++) {
            in += fibers[i].state == IN_WARP;
            other += fibers[i].state == DONE || fibers[i].state == IN_BLOCK;
        }
        if (!in) continue;
        if (other) wrong("a warp's threads part before an exchange");
        for (unsigned i = w; in == end - w && i < end; i++) fibers[i].state = READY;
    }
}

static int release_block(unsigned n) {
    unsigned waiting = 0;
    for (unsigned i = 0; i < n; i++) waiting += fibers[i].state == IN_BLOCK;
    for (unsigned i = 0; i < n; i++)
        if (fibers[i].state == IN_BLOCK) fibers[i].state = READY;
    return waiting > 0;
}

static void run_block(unsigned n) {
    for (unsigned i = 0; i < n; i++) fibers[i].state = READY;
    for (;;) {
        unsigned ran = 0;
        for (unsigned i = 0; i < n; i++)
            if (fibers[i].state == READY) {
                resume(i);
                ran++;
            }
        release_warps(n);
        if (!ran && !release_block(n)) return;
    }
}

void emu_sync_block(void) {
    give_way(IN_BLOCK);
}

const uint64_t *emu_exchange(uint64_t v) {
    const unsigned i = now, p = fibers[i].turn++ & 1;
    slot[p][i] = v;
    give_way(IN_WARP);
    return slot[p] + i / LANES * LANES;
}

static cudaError_t last_error;
/* The runtime keeps the error of any call for cudaGetLastError. */
static cudaError_t failed(cudaError_t e) {
    return last_error = e;
}

/* ---- calls that are counted, and refused on demand ---- */

enum { NAMES = 64 };
static struct {
    const char *name;
    int64_t calls;
} called[NAMES];
static struct {
    const char *name;
    int64_t at;
    int code;
} refusal, trap;

static int64_t *count_of(const char *name) {
    int i = 0;
    while (i < NAMES - 1 && called[i].name && strcmp(called[i].name, name)) i++;
    called[i].name = name;
    return &called[i].calls;
}

int64_t emu_calls(const char *name) {
    return *count_of(name);
}

void emu_refuse(const char *name, int64_t nth, int code) {
    refusal.name = name;
    refusal.at = name ? *count_of(name) + nth : 0;
    refusal.code = code;
}

void emu_trap(const char *name, int64_t nth) {
    trap.name = name;
    trap.at = name ? *count_of(name) + nth : 0;
}

/* Is the call that was counted last, of this name, the one? */
static int is_it(const char *name, const char *wanted, int64_t at) {
    return wanted && *count_of(name) == at && !strcmp(name, wanted);
}

int emu_call(const char *name) {
    ++*count_of(name);
    if (!is_it(name, refusal.name, refusal.at)) return 0;
    emu.hit = EMU_OTHER;
    return refusal.code;
}

/* At the head of a function of the runtime. */
#define CALL(name)                                                                                                     \
    do {                                                                                                               \
        const int refused = emu_call(#name);                                                                           \
        if (refused) return failed((cudaError_t)refused);                                                              \
    } while (0)
#define GONE(then)                                                                                                     \
    if (emu_is_gone()) {                                                                                               \
        then;                                                                                                          \
        return failed(cudaErrorIllegalAddress);                                                                        \
    }

int emu_is_gone(void) {
    return emu.fail && emu.ops >= emu.fail;
}
/* Counts a call that reaches the device: 1 when the device is gone. */
static int lost(void) {
    emu.ops++;
    return emu_is_gone();
}

/* ---- streams ---- */

enum thing { LAUNCH, WORK, COPY, FILL, WORD, WAIT };

/* What was enqueued and has not been done. */
typedef struct later {
    struct later *next;
    thing what;
    int traps;        /* of a LAUNCH */
    int hit;          /* of emu.hit */
    dim3 grid, block; /* LAUNCH */
    size_t shared;
    void (*body)(void *); /* LAUNCH, WORK: on ctx */
    void *to;             /* COPY, FILL, WORD */
    const void *from;     /* COPY; NULL: what lies in ctx */
    size_t n;
    int byte;
    uint32_t word;
    struct emu_stream *other; /* WAIT: for what was given to that one up to here */
    int64_t behind;
    alignas(16) unsigned char ctx[];
} later;

struct emu_stream {
    struct emu_stream *next;
    int beside; /* it has a priority */
    later *first, **end;
    int64_t given, done;
};

static struct emu_stream *streams, origin = {NULL, 0, NULL, &origin.first, 0, 0};

static void run_now(dim3 grid, dim3 block, size_t shared, void (*f)(void *), void *ctx) {
    static unsigned char *room;
    static size_t room_size;
    const unsigned n = block.x * block.y * block.z;
    if (shared > room_size) {
        free(room);
        room = (unsigned char *)aligned_alloc(64, (shared + 63) / 64 * 64);
        room_size = shared;
    }
    emu_at.size = block;
    emu_at.grid = grid;
    emu_at.dynamic = room;
    body = f;
    body_ctx = ctx;
    for (unsigned i = 0; i < n && i < made; i++) fibers[i].turn = 0;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                emu_at.block = dim3(x, y, z);
                if (shared) memset(room, 0xa5, shared); /* undefined, and so it looks */
                run_block(n);
            }
}

static later *put_off(cudaStream_t s, thing what, size_t size) {
    later *l = (later *)aligned_alloc(16, (sizeof *l + size + 15) / 16 * 16);
    if (!l) wrong("no memory for what is late");
    memset((void *)l, 0, sizeof *l);
    l->what = what;
    *s->end = l;
    s->end = &l->next;
    s->given++;
    return l;
}

static void catch_up(cudaStream_t s, int64_t n);

static void do_it(later *l) {
    if (l->traps) {
        emu.fail = emu.ops;
        emu.hit = l->hit;
    }
    if (emu_is_gone()) return;
    switch (l->what) {
    case LAUNCH: run_now(l->grid, l->block, l->shared, l->body, l->ctx); break;
    case WORK: l->body(l->ctx); break;
    case COPY: memcpy(l->to, l->from ? l->from : l->ctx, l->n); break;
    case FILL: memset(l->to, l->byte, l->n); break;
    case WORD: *(volatile uint32_t *)l->to = l->word; break;
    default: catch_up(l->other, l->behind);
    }
}

/* The first n things of a stream are done; of a device that is gone they are dropped. */
static void catch_up(cudaStream_t s, int64_t n) {
    while (s->done < n) {
        later *l = s->first;
        s->first = l->next;
        if (!s->first) s->end = &s->first;
        s->done++;
        do_it(l);
        free(l);
    }
}

static int launch_hit(const struct emu_stream *s) {
    return s->beside ? EMU_LAUNCH_BESIDE : EMU_LAUNCH;
}

static int is_late(const struct emu_stream *s) {
    return emu.late || s->beside != (emu.early != 0);
}

/* Something was given to the stream. */
static void given(cudaStream_t s) {
    if (!is_late(s)) catch_up(s, s->given);
}

static void catch_up_all(void) {
    for (cudaStream_t s = streams; s; s = s->next) catch_up(s, s->given);
}

void emu_run(cudaStream_t s, dim3 grid, dim3 block, size_t shared, void (*f)(void *), void *ctx, size_t size) {
    const unsigned n = block.x * block.y * block.z;
    int refused = emu_call("launch");
    if (!s) s = &origin;
    if (s->beside && !refused) refused = emu_call("beside");
    if (refused) {
        emu.hit = launch_hit(s);
        last_error = (cudaError_t)refused;
        return;
    }
    if (lost()) {
        last_error = cudaErrorIllegalAddress;
        return;
    }
    if (!n || n > MOST || !grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 || shared > 48 * 1024) {
        last_error = cudaErrorInvalidValue;
        return;
    }
    later *l = put_off(s, LAUNCH, size);
    l->traps = is_it("launch", trap.name, trap.at) || (s->beside && is_it("beside", trap.name, trap.at));
    l->hit = launch_hit(s);
    l->grid = grid;
    l->block = block;
    l->shared = shared;
    l->body = f;
    memcpy(l->ctx, ctx, size);
    given(s);
}

void emu_work(void *stream, void (*f)(void *), const void *ctx, size_t size) {
    cudaStream_t s = stream ? (cudaStream_t)stream : &origin;
    later *l = put_off(s, WORK, size);
    l->body = f;
    memcpy(l->ctx, ctx, size);
    given(s);
}

/* ---- memory and the rest of the runtime ---- */

enum { HEAD = 64 };

typedef struct block {
    size_t n;
    struct block *next, *last; /* of pinned memory */
} block;
static block *pinned;
static_assert(sizeof(block) <= HEAD, "the head of a piece of memory");

/* device 0: pinned memory of the host. */
static cudaError_t give(void **p, size_t n, int device) {
    if (lost()) return failed(cudaErrorIllegalAddress);
    if (device && n > emu.memory - emu.used) return failed(cudaErrorMemoryAllocation);
    if (!device && emu.no_pinned && n > emu.no_pinned) return failed(cudaErrorMemoryAllocation);
    unsigned char *m = (unsigned char *)aligned_alloc(64, HEAD + (n + 63) / 64 * 64);
    if (!m) return failed(cudaErrorMemoryAllocation);
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
    catch_up_all();
    unsigned char *m = (unsigned char *)p - HEAD;
    block *b = (block *)(void *)m;
    *(device ? &emu.used : &emu.pinned) -= b->n;
    if (!device) {
        *(b->last ? &b->last->next : &pinned) = b->next;
        if (b->next) b->next->last = b->last;
    }
    emu.live--;
    free(m);
    return emu_is_gone() ? failed(cudaErrorIllegalAddress) : cudaSuccess;
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
    CALL(cudaGetDeviceCount);
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int i) {
    CALL(cudaGetDeviceProperties);
    if (i) return failed(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    memcpy(p->name, "emulator", sizeof "emulator");
    p->multiProcessorCount = 1;
    p->totalGlobalMem = emu.memory;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v) {
    CALL(cudaRuntimeGetVersion);
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) {
    CALL(cudaDriverGetVersion);
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int i) {
    CALL(cudaSetDevice);
    return i ? failed(cudaErrorInvalidDevice) : cudaSuccess;
}
static cudaError_t new_stream(cudaStream_t *s, int beside) {
    *s = (cudaStream_t)calloc(1, sizeof **s);
    if (!*s) return failed(cudaErrorMemoryAllocation);
    (*s)->beside = beside;
    (*s)->end = &(*s)->first;
    (*s)->next = streams;
    streams = *s;
    emu.live++;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    CALL(cudaStreamCreateWithFlags);
    (void)flags;
    return new_stream(s, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    CALL(cudaStreamCreateWithPriority);
    (void)flags;
    (void)priority;
    return new_stream(s, 1);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    CALL(cudaDeviceGetStreamPriorityRange);
    *least = *greatest = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    CALL(cudaStreamDestroy);
    catch_up_all(); /* others may wait for it */
    for (cudaStream_t *at = &streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    free(s);
    emu.live--;
    GONE();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    CALL(cudaStreamWaitEvent);
    (void)flags;
    GONE();
    if (!e->of || e->of == s || e->of->done >= e->n || emu.deaf & EMU_STREAMS) return cudaSuccess;
    later *l = put_off(s, WAIT, 0);
    l->other = e->of;
    l->behind = e->n;
    given(s);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    CALL(cudaStreamSynchronize);
    emu.waits++;
    catch_up(s, s->given);
    GONE();
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t n) {
    CALL(cudaMalloc);
    return give(p, n, 1);
}
cudaError_t cudaFree(void *p) {
    CALL(cudaFree);
    return take(p, 1);
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) {
    CALL(cudaHostAlloc);
    (void)flags;
    return give(p, n, 0);
}
cudaError_t cudaHostGetDevicePointer(void **dev, void *host, unsigned flags) {
    CALL(cudaHostGetDevicePointer);
    (void)flags;
    *dev = host;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    CALL(cudaFreeHost);
    return take(p, 0);
}
/* Memory of the host that is not pinned is read before the call returns, and written too. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t s) {
    CALL(cudaMemcpyAsync);
    if (lost()) return failed(cudaErrorIllegalAddress);
    if (!s) s = &origin;
    const int now_read = kind == cudaMemcpyHostToDevice && is_late(s) && !is_pinned(from);
    emu.unpinned +=
        (kind == cudaMemcpyHostToDevice && !is_pinned(from)) || (kind == cudaMemcpyDeviceToHost && !is_pinned(to));
    later *l = put_off(s, COPY, now_read ? n : 0);
    l->to = to;
    l->from = now_read ? NULL : from;
    l->n = n;
    if (now_read && n) memcpy(l->ctx, from, n);
    if (kind == cudaMemcpyDeviceToHost && !is_pinned(to))
        catch_up(s, s->given);
    else
        given(s);
    GONE();
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s) {
    CALL(cudaMemsetAsync);
    if (lost()) return failed(cudaErrorIllegalAddress);
    if (!s) s = &origin;
    later *l = put_off(s, FILL, 0);
    l->to = p;
    l->byte = byte;
    l->n = n;
    given(s);
    return cudaSuccess;
}
static cudaError_t new_event(cudaEvent_t *e) {
    *e = (cudaEvent_t)calloc(1, sizeof **e);
    if (!*e) return failed(cudaErrorMemoryAllocation);
    emu.live++;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) {
    CALL(cudaEventCreate);
    return new_event(e);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    CALL(cudaEventCreateWithFlags);
    (void)flags;
    return new_event(e);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    CALL(cudaEventDestroy);
    free(e);
    emu.live--;
    GONE();
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    CALL(cudaEventRecord);
    struct timespec t;
    GONE();
    e->of = s;
    e->n = s ? s->given : 0;
    clock_gettime(CLOCK_MONOTONIC, &t);
    e->at = 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    CALL(cudaEventSynchronize);
    emu.waits++;
    if (e->of && !(emu.deaf & EMU_HOST)) catch_up(e->of, e->n);
    GONE();
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    CALL(cudaEventQuery);
    if (e->of && emu.swift) catch_up(e->of, e->n);
    GONE(); /* by what has just been done, too */
    return e->of && e->of->done < e->n ? failed(cudaErrorNotReady) : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    CALL(cudaEventElapsedTime);
    *ms = (float)(to->at - from->at);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    CALL(cudaMemGetInfo);
    *free = emu.memory - emu.used;
    *total = emu.memory;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
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
    later *l = put_off(s, WORD, 0);
    l->to = (void *)(uintptr_t)addr;
    l->word = value;
    given(s);
    return 0;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found) {
    CALL(cudaGetDriverEntryPointByVersion);
    (void)name;
    (void)version;
    (void)flags;
    *f = emu.no_marks ? NULL : (void *)write_value;
    *found = emu.no_marks ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
