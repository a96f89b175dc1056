/* threads.cpp: the threads of a block, as fibers: each runs until it waits for others. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "tests/emu/emu_int.h"

emu_place emu_at;
int64_t emu_runs;

enum { STACK = 256 * 1024, LANES = 32 };
enum { READY, IN_WARP, IN_BLOCK, DONE };

typedef struct {
    jmp_buf here;
    int state;
    uint32_t turn; /* exchanges so far: their parity chooses the slots */
} fiber;

static fiber fibers[EMU_THREADS];
static uint64_t slot[2][EMU_THREADS];
static jmp_buf scheduler;
static ucontext_t birth;
static unsigned now, made;
static void (*body)(void *);
static void *body_ctx;

[[noreturn]] void emu_wrong(const char *what) {
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
    if (stack == MAP_FAILED) emu_wrong("no memory for a stack");
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
        if (other) emu_wrong("a warp's threads part before an exchange");
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

void emu_run_now(dim3 grid, dim3 block, size_t shared, void (*f)(void *), void *ctx) {
    static unsigned char *room;
    static size_t room_size;
    const unsigned n = block.x * block.y * block.z;
    if (shared > room_size) {
        free(room);
        room = (unsigned char *)aligned_alloc(64, (shared + 63) / 64 * 64);
        room_size = shared;
    }
    emu_runs++;
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
