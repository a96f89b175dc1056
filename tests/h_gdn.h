/* h_gdn.h: for gdn_core: seeded operands, calls, the rule in f64, the orders of its contract in plain loops. */
#ifndef H_GDN_H
#define H_GDN_H

#include "kernels/k.h"

typedef struct {
    k_dims d;
    k_levers lv;
    int32_t T, pos0;
    float *q, *k, *v, *g, *beta, *S0;
} h_gdn;

/* Keys and queries of length about 1, decays from nearly none to strong, beta in (0, 1); a state when pos0 > 0. */
h_gdn h_gdn_new(uint64_t seed, int nk, int nv, int dk, int dv, int T, int pos0);
void h_gdn_free(h_gdn *a);
int64_t h_gdn_nout(const h_gdn *a);
int64_t h_gdn_nstate(const h_gdn *a);
k_call h_gdn_call(const h_gdn *a, int nth);

/* Runs the task by lever gdn = rule, cut into tiles (parts of one call) or into calls; at lists the first rows, ends
 * with T. band: NULL, or that of the outputs and behind it that of the state. */
void h_gdn_run(const h_gdn *a, int rule, int calls, const int *at, int nth, float *out, float *S, k_band *band);
void h_gdn_run1(const h_gdn *a, int rule, float *out, float *S, k_band *band);

/* The rule by tokens in f64, with faults that a check must see. */
enum { H_GDN_SOUND, H_GDN_NO_BETA, H_GDN_LATE_DECAY, H_GDN_OLD_STATE, H_GDN_UNSCALED, H_GDN_NEXT_KEY, H_GDN_FAULTS };
void h_gdn_f64(const h_gdn *a, int fault, double *out, double *S);

/* The orders of the contract, head h, in plain f32 loops on S; places: k_gdn_places. Key heads in HF order. */
void h_gdn_order_seq(const h_gdn *a, int h, float *out, float *S);
void h_gdn_order_chunk(const h_gdn *a, int h, int places, float *out, float *S);

#endif
