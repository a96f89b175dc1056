#include "tests/cuda/emu_door.h"

#ifdef __CUDACC__
int ct_early(int on) {
    (void)on;
    return 0;
}
int64_t ct_live(void) {
    return -1;
}
#else
#include "tests/emu/emu.h"

int ct_early(int on) {
    emu.early = on;
    return 1;
}
int64_t ct_live(void) {
    return emu.live;
}
#endif
