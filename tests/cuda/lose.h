/* lose.h: ends a device for this process. */
#ifndef LOSE_H
#define LOSE_H

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel that traps runs on the device at hand, and the end of it is waited for; of the emulated device every call from
 * now on fails. Returns the error that this left, 0 when there is none. */
int ct_lose(void);

#ifdef __cplusplus
}
#endif
#endif
