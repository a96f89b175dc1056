/* emu.h: what tests may ask of the emulated device, and do to it. */
#ifndef EMU_H
#define EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    size_t memory; /* bytes of the device */
    size_t used;   /* of them allocated now */
    size_t pinned; /* bytes of pinned memory allocated now */
    int64_t live;  /* allocations, pinned memory too, streams, events and handles that were not freed */
    int64_t ops;   /* launches, copies and fills so far */
    int64_t waits; /* times that the host waited for it */
    int64_t fail;  /* the device is lost with this one, which says so; 0: never */
    int64_t gemms; /* products that its cuBLAS made */
    int no_cublas; /* 1: there is none to be found, for whoever has not found it yet */
    int swift;     /* 1: what is late is done, when it is asked whether it is; 0: not before something waits for it */
    size_t no_pinned; /* there is no pinned memory for more bytes than this at a time; 0: there is */
    int early;    /* EMU_OPS_EARLY ..: the streams whose work is done when it is enqueued; that of the others as late
                         as it may be, when something waits for it */
    int no_marks; /* 1: the driver has no cuStreamWriteValue32 */
    int hit;      /* what emu_trap or emu_refuse fell on last: EMU_NOTHING .. */
    int late;     /* 1: the work of every stream is done as late as it may be, whatever early says */
    int deaf;     /* bits of EMU_HOST, EMU_STREAMS: they do not wait for events */
    int others;   /* devices besides, to be counted and described: each has half the memory of the one before */
    size_t
        spoilt; /* copies to the device of so many bytes or more arrive with a bit of the last byte turned; 0: none */
    int64_t unpinned; /* copies from or to memory of the host that is not pinned: each may wait for its stream */
} emu_device;
extern emu_device emu;

enum { EMU_REFUSED = 9999 };
/* Those without a priority; those with one, so that the host is always ahead of the ops; all but those of the least;
 * those of the greatest alone. */
enum { EMU_OPS_EARLY, EMU_OPS_LATE, EMU_BEHIND_LATE, EMU_AHEAD_EARLY, EMU_ORDERS };
/* EMU_LAUNCH_BESIDE: on a stream with a priority. */
enum { EMU_NOTHING, EMU_LAUNCH, EMU_LAUNCH_BESIDE, EMU_OTHER };
enum { EMU_HOST = 1, EMU_STREAMS = 2 };

/* The nth call from now on of a function of the runtime, of cuBLAS or cuStreamWriteValue32, of "launch", or of
 * "beside", a launch on a stream with a priority, fails with code and does nothing; the device lives on. One at a time;
 * name NULL: none. The name is borrowed. */
void emu_refuse(const char *name, int64_t nth, int code);
/* The nth "launch" or "beside" from now on ends the device when it runs, and sets fail: whoever asks later is told. */
void emu_trap(const char *name, int64_t nth);
/* Calls of it so far. */
int64_t emu_calls(const char *name);

#ifdef __cplusplus
}
#endif
#endif
