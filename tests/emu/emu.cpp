/* emu.cpp: the emulated device: calls that are counted and refused on demand, and what is enqueued on its streams. */
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu_int.h"

emu_device emu = {(size_t)1 << 30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
struct emu_stream *emu_streams, emu_origin = {NULL, 0, NULL, &emu_origin.first, 0, 0};

static cudaError_t last_error;

cudaError_t emu_failed(cudaError_t e) {
    return last_error = e;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
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
    while (i < NAMES && called[i].name && strcmp(called[i].name, name)) i++;
    if (i == NAMES) emu_wrong("more names of calls than places for them");
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

int emu_is_gone(void) {
    return emu.fail && emu.ops >= emu.fail;
}

int emu_lost(void) {
    emu.ops++;
    return emu_is_gone();
}

/* ---- streams ---- */

emu_later *emu_put_off(cudaStream_t s, emu_thing what, size_t size) {
    emu_later *l = (emu_later *)aligned_alloc(16, (sizeof *l + size + 15) / 16 * 16);
    if (!l) emu_wrong("no memory for what is late");
    memset((void *)l, 0, sizeof *l);
    l->what = what;
    *s->end = l;
    s->end = &l->next;
    s->given++;
    return l;
}

static void do_it(emu_later *l) {
    if (l->traps) {
        emu.fail = emu.ops;
        emu.hit = l->hit;
    }
    if (emu_is_gone()) return;
    switch (l->what) {
    case EMU_RUN: emu_run_now(l->grid, l->block, l->shared, l->body, l->ctx); break;
    case EMU_WORK: l->body(l->ctx); break;
    case EMU_COPY:
        memcpy(l->to, l->from ? l->from : l->ctx, l->n);
        if (l->byte) ((unsigned char *)l->to)[l->n - 1] ^= (unsigned char)l->byte;
        break;
    case EMU_FILL: memset(l->to, l->byte, l->n); break;
    case EMU_WORD: *(volatile uint32_t *)l->to = l->word; break;
    default: emu_catch_up(l->other, l->behind);
    }
}

void emu_catch_up(cudaStream_t s, int64_t n) {
    while (s->done < n) {
        emu_later *l = s->first;
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

int emu_is_late(const struct emu_stream *s) {
    switch (emu.late ? EMU_ORDERS : emu.early) {
    case EMU_OPS_EARLY: return s->beside;
    case EMU_OPS_LATE: return !s->beside;
    case EMU_BEHIND_LATE: return s->beside == EMU_BEHIND;
    case EMU_AHEAD_EARLY: return s->beside != EMU_AHEAD;
    default: return 1;
    }
}

void emu_given(cudaStream_t s) {
    if (!emu_is_late(s)) emu_catch_up(s, s->given);
}

void emu_catch_up_all(void) {
    for (cudaStream_t s = emu_streams; s; s = s->next) emu_catch_up(s, s->given);
}

void emu_run(cudaStream_t s, dim3 grid, dim3 block, size_t shared, void (*f)(void *), void *ctx, size_t size) {
    const unsigned n = block.x * block.y * block.z;
    int refused = emu_call("launch");
    if (!s) s = &emu_origin;
    if (s->beside && !refused) refused = emu_call("beside");
    if (refused) {
        emu.hit = launch_hit(s);
        last_error = (cudaError_t)refused;
        return;
    }
    if (emu_lost()) {
        last_error = cudaErrorIllegalAddress;
        return;
    }
    if (!n || n > EMU_THREADS || !grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 ||
        shared > 48 * 1024) {
        last_error = cudaErrorInvalidValue;
        return;
    }
    emu_later *l = emu_put_off(s, EMU_RUN, size);
    l->traps = is_it("launch", trap.name, trap.at) || (s->beside && is_it("beside", trap.name, trap.at));
    l->hit = launch_hit(s);
    l->grid = grid;
    l->block = block;
    l->shared = shared;
    l->body = f;
    memcpy(l->ctx, ctx, size);
    emu_given(s);
}

void emu_work(void *stream, void (*f)(void *), const void *ctx, size_t size) {
    cudaStream_t s = stream ? (cudaStream_t)stream : &emu_origin;
    emu_later *l = emu_put_off(s, EMU_WORK, size);
    l->body = f;
    memcpy(l->ctx, ctx, size);
    emu_given(s);
}
