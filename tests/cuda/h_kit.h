/* h_kit.h: for tests on a device: a call being built from random operands, and its answer compared with the CPU's. */
#ifndef H_KIT_H
#define H_KIT_H

#include "kernels/dev.h"
#include "tests/h_call.h"

typedef struct {
    k_call c;
    k_dims d;
    k_levers lv;
    k_state st;
    int64_t par_n[K_MAXW];
    k_weight *w;
    void *owned[24];
    int nowned;
} hk;

extern int hk_emulated; /* 1: the device is the emulator (hk_begin asks) */
extern h_rng hk_rng;

/* Rows and columns that sums and blocks meet the edges of. */
extern const int32_t hk_T[6], hk_K[9];
#define HK_EACH(x, list) for (int x##_i = 0; x##_i < (int)(sizeof list / sizeof *list); x##_i++)

hk hk_fresh(int32_t T, int32_t act);
void hk_done(hk *k);
/* Cleared memory that lives until hk_done. */
void *hk_own(hk *k, size_t bytes);
/* n values between -2 amp and 2 amp, on the grid of act; wild: one in 128 is something special. */
float *hk_values(hk *k, int64_t n, double amp, int wild);
/* Operands of such values: an input of all rows, a parameter, state 0. */
void hk_input(hk *k, int slot, int64_t cols, double amp, int wild);
void hk_par(hk *k, int slot, int64_t n, double amp);
void hk_state(hk *k, int64_t cap, int64_t cols, double amp);
/* n weights of rows x cols in slot 0, whose products survive; wild: any bytes. */
void hk_weights(hk *k, int32_t type, int32_t n, int64_t rows, int64_t cols, int wild);
/* n ids of E experts, some of none. */
int32_t *hk_some_ids(hk *k, int64_t n, int32_t E);
/* The same, the more of an expert the lower it is, and nothing for the last. */
int32_t *hk_uneven_ids(hk *k, int64_t n, int32_t E);

/* Elements that differ between the device and the CPU; the kit is done with. */
int64_t hk_run(hk *k, k_op op, const char *note);

/* 1: more multiply-adds than the emulator makes in a moment; this shape is counted as left to a GPU. */
int hk_too_long(int64_t work);
/* The device, and the one test that argv may name; hp_close ends it. */
void hk_begin(int argc, char **argv);

#endif
