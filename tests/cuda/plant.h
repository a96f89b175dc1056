/* plant.h: what a checker of device memory must find, for tests/cuda/sanitize.sh. */
#ifndef PLANT_H
#define PLANT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Run one faulty kernel: "memcheck" writes past a buffer, "racecheck" reads shared words that another warp writes,
 * "initcheck" reads what nothing wrote. Without a checker it does no harm. 1: there is no fault of that name (the
 * emulated device has none); 0: it ran. */
int ct_plant(const char *fault);

#ifdef __cplusplus
}
#endif
#endif
