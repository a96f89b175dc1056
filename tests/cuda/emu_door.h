/* emu_door.h: what a program for either device asks of the emulated one; of a GPU none of it is known, or needed. */
#ifndef EMU_DOOR_H
#define EMU_DOOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on the ops wait until something waits for them, and what is beside them goes first (emu.h, early); 0: back.
 * Between pieces of work alone. Returns 0 where the order is not ours. */
int ct_early(int on);

/* Allocations of either memory, streams, events and handles that were not given back; -1: not known. */
int64_t ct_live(void);

#ifdef __cplusplus
}
#endif
#endif
