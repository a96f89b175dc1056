/* emu_int.h: what the files of the emulated device share. */
#ifndef EMU_INT_H
#define EMU_INT_H

#include "tests/emu/cuda_runtime.h"
#include "tests/emu/emu.h"

/* ---- emu.cpp: calls, streams ---- */

enum emu_thing { EMU_RUN, EMU_WORK, EMU_COPY, EMU_FILL, EMU_WORD, EMU_WAIT };

/* What was enqueued and has not been done. */
typedef struct emu_later {
    struct emu_later *next;
    emu_thing what;
    int traps;        /* of a RUN */
    int hit;          /* of emu.hit */
    dim3 grid, block; /* RUN */
    size_t shared;
    void (*body)(void *); /* RUN, WORK: on ctx */
    void *to;             /* COPY, FILL, WORD */
    const void *from;     /* COPY; NULL: what lies in ctx */
    size_t n;
    int byte; /* FILL; COPY: bits that are turned in its last byte */
    uint32_t word;
    struct emu_stream *other; /* WAIT: for what was given to that one up to here */
    int64_t behind;
    alignas(16) unsigned char ctx[];
} emu_later;

enum { EMU_AHEAD = 1, EMU_BEHIND };
struct emu_stream {
    struct emu_stream *next;
    int beside; /* it has a priority: EMU_AHEAD, the greatest, or EMU_BEHIND; 0: none */
    emu_later *first, **end;
    int64_t given, done;
};
extern struct emu_stream *emu_streams, emu_origin;

/* One more thing for a stream, to be filled in and then told by emu_given. size: of its ctx. */
emu_later *emu_put_off(cudaStream_t s, emu_thing what, size_t size);
void emu_given(cudaStream_t s);
int emu_is_late(const struct emu_stream *s);
/* The first n things of a stream are done; of a device that is gone they are dropped. */
void emu_catch_up(cudaStream_t s, int64_t n);
void emu_catch_up_all(void);

/* The runtime keeps the error of any call for cudaGetLastError. */
cudaError_t emu_failed(cudaError_t e);
/* Counts a call that reaches the device: 1 when the device is gone. */
int emu_lost(void);

/* At the head of a function of the runtime. */
#define EMU_CALL(name)                                                                                                 \
    do {                                                                                                               \
        const int refused = emu_call(#name);                                                                           \
        if (refused) return emu_failed((cudaError_t)refused);                                                          \
    } while (0)
#define EMU_GONE(then)                                                                                                 \
    if (emu_is_gone()) {                                                                                               \
        then;                                                                                                          \
        return emu_failed(cudaErrorIllegalAddress);                                                                    \
    }

/* ---- threads.cpp ---- */

enum { EMU_THREADS = 1024 /* of a block, at most */ };
/* The blocks of a launch, one after the other. */
void emu_run_now(dim3 grid, dim3 block, size_t shared, void (*f)(void *), void *ctx);
extern int64_t emu_runs; /* launches that ran so far */
[[noreturn]] void emu_wrong(const char *what);

#endif
