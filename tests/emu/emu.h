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
    int64_t live;  /* allocations and streams that were not freed, pinned memory included */
    int64_t ops;   /* launches, copies and fills so far */
    int64_t waits; /* times that the host waited for it */
    int64_t fail;  /* the device is lost with this one; 0: never */
    int64_t gemms; /* products that its cuBLAS made */
    int no_cublas; /* 1: there is none to be found, for whoever has not found it yet */
    int swift;     /* 1: what is late is done, when it is asked whether it is; 0: not before something waits for it */
    size_t no_pinned; /* there is no pinned memory for more bytes than this at a time; 0: there is */
} emu_device;
extern emu_device emu;

#ifdef __cplusplus
}
#endif
#endif
