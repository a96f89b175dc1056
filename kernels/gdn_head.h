/* gdn_head.h: one value head of a gdn_core call, as gdn.c hands it to the two rules. */
#ifndef K_GDN_HEAD_H
#define K_GDN_HEAD_H

#include <math.h>

#include "kernels/band.h"
#include "kernels/gdn.h"

typedef struct {
    int32_t T, dk, dv, act;
    int32_t places;        /* k_gdn_places, read by chunks */
    const float *q, *k;    /* row t at + t * kstep, dk wide */
    const float *v;        /* row t at + t * vstep, dv wide */
    const float *g, *beta; /* token t at + t * hstep */
    float *out;            /* as v */
    float *S;              /* [dk, dv] */
    int64_t kstep, vstep, hstep;
} k_gdn_head;

k_gdn_head k_gdn_head_of(const k_call *c, int32_t h);

/* Columns of S that seq carries through all tokens before the next ones: dk * 32 floats stay in a first-level cache. */
enum { K_GDN_BLOCK = 32 };

/* Columns [j0, j0 + n), n <= 32, all tokens; work: dk * 33 floats. */
void k_gdn_seq(const k_gdn_head *a, int64_t j0, int64_t n, float *work);

/* One chunk of n <= 64 rows beginning at row t. Matrices by their names in gdn.h; kt is k transposed. Rows of K, qs, U
 * and S lie kw or vw floats apart, more than their width: a stride of a power of two would put a whole column into a
 * few sets of the cache. */
typedef struct {
    const k_gdn_head *a;
    int32_t t, n;
    int64_t kw, vw;
    float *G, *E, *L, *beta; /* [64] */
    float *A, *P;            /* [64, 64], lower triangles; the rest is undefined */
    float *qs, *K, *kt;      /* [64, dk] [64, dk] [dk, 64] */
    float *U;                /* [64, dv]; N after k_gdn_chunk_new */
    float *S;                /* [dk, dv] */
    float *M;                /* [64, 64], lower triangle: the rounded inverse (gdn.inv) */
    float *R;                /* [dk, dv]: S rounded (gdn.h, gdn.hop) */
} k_gdn_rows;

int64_t k_gdn_chunk_work(const k_dims *d);

/* S is copied in from a->S; k_gdn_rows_end copies it back. */
k_gdn_rows k_gdn_rows_of(const k_gdn_head *a, float *work);
void k_gdn_rows_end(const k_gdn_rows *x);

/* The steps of a chunk, in this order: all but U, K; U and K; N; outputs (the chunk's rows at out) and state. */
void k_gdn_chunk_weights(k_gdn_rows *x);
void k_gdn_chunk_solve(const k_gdn_rows *x);
void k_gdn_chunk_new(const k_gdn_rows *x);
void k_gdn_chunk_finish(const k_gdn_rows *x, float *out, int64_t ostep);

/* What a tile does to a state: the error that it adds, and what it leaves of the mean square of one that was there. */
typedef struct {
    k_band made;
    double keep;
} k_gdn_turn;

/* Bands of a head by chunks, from the state in a->S (left as the op leaves it); work: k_gdn_band_chunk_work floats. */
void k_gdn_band_chunk(const k_gdn_head *a, float *work, k_band *add, k_gdn_turn *turn);
int64_t k_gdn_band_chunk_work(const k_dims *d);

/* An output (or a row of them) of size o, off by h at most and by r2 in the mean square before its rd: into add. */
static inline void k_gdn_band_out(int32_t act, double o, double h, double r2, k_band *add) {
    double hard = 1.01 * h + k_store_hard(act) * fabs(o);
    add->hard2 += hard * hard;
    add->rms2 += r2 + k_store_rms2(act, o * o);
}

/* A state (or a column of it) off by h at most and by r2 in the mean square: it stays in f32. */
static inline void k_gdn_band_state(double h, double r2, k_band *state) {
    state->hard2 += 1.01 * h * 1.01 * h;
    state->rms2 += r2;
}

#endif
