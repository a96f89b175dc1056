#include "tests/h_gdn.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/arith.h"
#include "kernels/gdn.h"
#include "tests/h_call.h"
#include "tests/h_kern.h"

enum { C = 64 };

/* Keys and queries of length about 1, decays from nearly none to strong, beta in (0, 1). */
h_gdn h_gdn_new(uint64_t seed, int nk, int nv, int dk, int dv, int T, int pos0) {
    h_rng r = {seed};
    h_gdn a = {.d = {.nk = nk, .nv = nv, .dk = dk, .dv = dv}, .T = T, .pos0 = pos0};
    a.q = h_normal(&r, (int64_t)T * nk * dk, 1 / sqrt(dk), K_ACT_F32);
    a.k = h_normal(&r, (int64_t)T * nk * dk, 1 / sqrt(dk), K_ACT_F32);
    a.v = h_normal(&r, (int64_t)T * nv * dv, 1, K_ACT_F32);
    a.g = h_nans((int64_t)T * nv);
    a.beta = h_nans((int64_t)T * nv);
    for (int64_t i = 0; i < (int64_t)T * nv; i++) {
        a.g[i] = (float)-exp(-5 + 1.5 * (double)(i % nv) + h_gauss(&r));
        a.beta[i] = (float)(1 / (1 + exp(-2 * h_gauss(&r))));
    }
    a.S0 = pos0 ? h_normal(&r, (int64_t)nv * dk * dv, 0.5, K_ACT_F32) : calloc((size_t)nv * (size_t)(dk * dv), 4);
    assert_non_null(a.S0);
    return a;
}

void h_gdn_free(h_gdn *a) {
    float *all[] = {a->q, a->k, a->v, a->g, a->beta, a->S0};
    for (int i = 0; i < 6; i++) free(all[i]);
}

int64_t h_gdn_nout(const h_gdn *a) {
    return (int64_t)a->T * a->d.nv * a->d.dv;
}
int64_t h_gdn_nstate(const h_gdn *a) {
    return (int64_t)a->d.nv * a->d.dk * a->d.dv;
}

k_call h_gdn_call(const h_gdn *a, int nth) {
    k_call c = h_call(&a->d, &a->lv, a->T, a->pos0, nth, gdn_scratch(&a->d));
    c.cols = (int64_t)a->d.nv * a->d.dv;
    const float *in[] = {a->q, a->k, a->v, a->g, a->beta};
    const int64_t cols[] = {(int64_t)a->d.nk * a->d.dk, (int64_t)a->d.nk * a->d.dk, c.cols, a->d.nv, a->d.nv};
    for (int i = 0; i < 5; i++) c.in[i] = in[i], c.in_cols[i] = cols[i];
    return c;
}

void h_gdn_run(const h_gdn *a, int rule, int calls, const int *at, int nth, float *out, float *S, k_band *band) {
    h_gdn b = *a;
    b.lv.gdn = rule;
    k_call c = h_gdn_call(&b, nth);
    k_state st = {.cols = a->d.dv, .cap = a->d.nv * a->d.dk}, before = st;
    st.f = S;
    before.f = h_copy(a->S0, h_gdn_nstate(a));
    memcpy(S, a->S0, (size_t)h_gdn_nstate(a) * 4);
    c.st[0] = &st;
    c.out = out;
    for (int i = 0; at[i] < a->T; i++) {
        k_call t = h_tile(&c, at[i], at[i + 1] - at[i]);
        if (calls) t.t0 = 0, t.Tcall = t.T, t.Tc = t.pos0 + t.T;
        memcpy(before.f, S, (size_t)h_gdn_nstate(a) * 4);
        gdn_core_cpu(&t);
        t.st[1] = &before;
        if (!band) continue;
        k_band alone = band[0];
        gdn_core_band(&t, &alone);
        gdn_core_bands(&t, band, &band[1]);
        assert_true(alone.hard2 == band->hard2 && alone.rms2 == band->rms2);
    }
    assert_int_equal(st.rows, a->d.nv * a->d.dk);
    h_state_free(&before);
    h_scratch_free(&c);
}

void h_gdn_run1(const h_gdn *a, int rule, float *out, float *S, k_band *band) {
    h_gdn_run(a, rule, 0, (int[]){0, a->T}, 1, out, S, band);
}

/* ---- the rule in f64, with faults that a check must see ---- */

void h_gdn_f64(const h_gdn *a, int fault, double *out, double *S) {
    const int dk = a->d.dk, dv = a->d.dv;
    for (int64_t i = 0; i < h_gdn_nstate(a); i++) S[i] = (double)a->S0[i];
    for (int t = 0; t < a->T; t++)
        for (int h = 0; h < a->d.nv; h++) {
            int kh = a->d.gguf_heads ? h % a->d.nk : h / (a->d.nv / a->d.nk);
            if (fault == H_GDN_NEXT_KEY) kh = (kh + 1) % a->d.nk;
            const float *q = a->q + ((int64_t)t * a->d.nk + kh) * dk, *k = a->k + ((int64_t)t * a->d.nk + kh) * dk;
            const double w = exp((double)a->g[(fault == H_GDN_LATE_DECAY && t ? t - 1 : t) * a->d.nv + h]);
            for (int j = 0; j < dv; j++) {
                double m = 0, o = 0, old = 0, *s = S + (int64_t)h * dk * dv + j;
                for (int i = 0; i < dk; i++) m += (s[i * dv] *= w) * (double)k[i];
                double dl = (double)a->v[((int64_t)t * a->d.nv + h) * dv + j] - m;
                if (fault != H_GDN_NO_BETA) dl *= (double)a->beta[t * a->d.nv + h];
                for (int i = 0; i < dk; i++) {
                    old += s[i * dv] * (double)q[i];
                    o += (s[i * dv] += (double)k[i] * dl) * (double)q[i];
                }
                if (fault == H_GDN_OLD_STATE) o = old;
                out[((int64_t)t * a->d.nv + h) * dv + j] = fault == H_GDN_UNSCALED ? o : o / sqrt(dk);
            }
        }
}

/* ---- the two orders of the contract in plain f32 loops ---- */

void h_gdn_order_seq(const h_gdn *a, int h, float *out, float *S) {
    const int dk = a->d.dk, dv = a->d.dv, kh = h / (a->d.nv / a->d.nk);
    for (int t = 0; t < a->T; t++)
        for (int j = 0; j < dv; j++) {
            const float *q = a->q + ((int64_t)t * a->d.nk + kh) * dk, *k = a->k + ((int64_t)t * a->d.nk + kh) * dk;
            float m = 0, o = 0, *s = S + (int64_t)h * dk * dv + j, w = k_exp(a->g[t * a->d.nv + h]);
            for (int i = 0; i < dk; i++) s[i * dv] *= w, m = fmaf(s[i * dv], k[i], m);
            float dl = (a->v[((int64_t)t * a->d.nv + h) * dv + j] - m) * a->beta[t * a->d.nv + h];
            for (int i = 0; i < dk; i++) {
                s[i * dv] = fmaf(k[i], dl, s[i * dv]);
                o = fmaf(s[i * dv], q[i] / sqrtf((float)dk), o);
            }
            out[((int64_t)t * a->d.nv + h) * dv + j] = o;
        }
}

/* A chunk padded with zero rows to 64, as the spec has it. */
typedef struct {
    float q[C][64], k[C][64], v[C][64], g[C], b[C], G[C], A[C][C], P[C][C], U[C][64], K[C][64], M[C][C];
} padded;

/* bf16 by way of f64, nothing shared with round.h. */
static float place(int on, float x) {
    return on ? hk_bf16((double)x) : x;
}

static void padded_load(const h_gdn *a, int h, int t0, padded *x) {
    const int dk = a->d.dk, dv = a->d.dv, kh = h / (a->d.nv / a->d.nk);
    memset(x, 0, sizeof *x);
    for (int i = 0; i < C && t0 + i < a->T; i++) {
        const int64_t t = t0 + i;
        for (int e = 0; e < dk; e++) {
            x->q[i][e] = a->q[(t * a->d.nk + kh) * dk + e] * (float)(1 / sqrt(dk));
            x->k[i][e] = a->k[(t * a->d.nk + kh) * dk + e];
        }
        for (int j = 0; j < dv; j++) x->v[i][j] = a->v[(t * a->d.nv + h) * dv + j];
        x->g[i] = a->g[t * a->d.nv + h];
        x->b[i] = a->beta[t * a->d.nv + h];
    }
    float G = 0;
    for (int i = 0; i < C; i++) x->G[i] = G = G + x->g[i];
}

static void padded_weights(const h_gdn *a, padded *x) {
    for (int i = 0; i < C; i++) {
        for (int j = 0; j <= i; j++) {
            float kk = 0, qk = 0;
            for (int e = 0; e < a->d.dk; e++)
                kk = fmaf(x->k[i][e], x->k[j][e], kk), qk = fmaf(x->q[i][e], x->k[j][e], qk);
            x->A[i][j] = (x->b[i] * kk) * k_exp(x->G[i] - x->G[j]);
            x->P[i][j] = qk * k_exp(x->G[i] - x->G[j]);
        }
    }
}

static void padded_substitute(const h_gdn *a, padded *x) {
    for (int i = 0; i < C; i++) {
        for (int c = 0; c < a->d.dv; c++) {
            float s = 0;
            for (int j = 0; j < i; j++) s = fmaf(x->A[i][j], x->U[j][c], s);
            x->U[i][c] = x->b[i] * x->v[i][c] - s;
        }
        for (int c = 0; c < a->d.dk; c++) {
            float s = 0;
            for (int j = 0; j < i; j++) s = fmaf(x->A[i][j], x->K[j][c], s);
            x->K[i][c] = (x->b[i] * k_exp(x->G[i])) * x->k[i][c] - s;
        }
    }
}

static void padded_inverse(const h_gdn *a, padded *x) {
    for (int i = 0; i < C; i++)
        for (int c = 0; c <= i; c++) {
            float s = 0;
            for (int j = 0; j < i; j++) s = fmaf(x->A[i][j], j >= c ? x->M[j][c] : 0, s);
            x->M[i][c] = (float)(i == c) - s;
        }
    for (int i = 0; i < C; i++) {
        for (int c = 0; c < a->d.dv; c++) {
            x->U[i][c] = 0;
            for (int j = 0; j <= i; j++) x->U[i][c] = fmaf(place(1, x->M[i][j]), x->b[j] * x->v[j][c], x->U[i][c]);
        }
        for (int c = 0; c < a->d.dk; c++) {
            x->K[i][c] = 0;
            for (int j = 0; j <= i; j++)
                x->K[i][c] = fmaf(place(1, x->M[i][j]), (x->b[j] * k_exp(x->G[j])) * x->k[j][c], x->K[i][c]);
        }
    }
}

static void padded_solve(const h_gdn *a, int places, padded *x) {
    padded_weights(a, x);
    places &K_PLACE_INV ? padded_inverse(a, x) : padded_substitute(a, x);
    for (int i = 0; i < C; i++)
        for (int c = 0; c < 64; c++) {
            x->U[i][c] = place(places & K_PLACE_U, x->U[i][c]);
            x->K[i][c] = place(places & K_PLACE_W, x->K[i][c]);
        }
}

void h_gdn_order_chunk(const h_gdn *a, int h, int places, float *out, float *Sall) {
    const int dk = a->d.dk, dv = a->d.dv;
    float *S = Sall + (int64_t)h * dk * dv;
    padded *x = malloc(sizeof *x);
    assert_non_null(x);
    for (int t0 = 0; t0 < a->T; t0 += C) {
        padded_load(a, h, t0, x);
        padded_solve(a, places, x);
        for (int j = 0; j < dv; j++) {
            for (int i = 0; i < C; i++) {
                float s = 0, p = 0, qs = 0;
                for (int e = 0; e < dk; e++)
                    s = fmaf(x->K[i][e], place(places & K_PLACE_HOP, S[e * dv + j]), s),
                    qs = fmaf(x->q[i][e], place(places & K_PLACE_H, S[e * dv + j]), qs);
                x->U[i][j] = place(places & K_PLACE_VNEW, x->U[i][j] - s);
                for (int r = 0; r <= i; r++) p = fmaf(x->P[i][r], x->U[r][j], p);
                if (t0 + i < a->T) out[((int64_t)(t0 + i) * a->d.nv + h) * dv + j] = fmaf(k_exp(x->G[i]), qs, p);
            }
            for (int e = 0; e < dk; e++) {
                float s = 0;
                for (int i = 0; i < C; i++) s = fmaf(x->k[i][e] * k_exp(x->G[C - 1] - x->G[i]), x->U[i][j], s);
                S[e * dv + j] = fmaf(k_exp(x->G[C - 1]), S[e * dv + j], s);
            }
        }
    }
    free(x);
}
