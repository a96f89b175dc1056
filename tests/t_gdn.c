/* gdn_core: the f64 rule written from the spec, both orders bit by bit in plain loops, whole numbers, invariances. */
#include <math.h>
#include <stdlib.h>

#include "kernels/arith.h"
#include "kernels/gdn.h"
#include "tests/h_call.h"

enum { C = 64 };

typedef struct {
    k_dims d;
    k_levers lv;
    int32_t T, pos0;
    float *q, *k, *v, *g, *beta, *S0;
} task;

/* Keys and queries of length about 1, decays from nearly none to strong, beta in (0, 1). */
static task task_new(uint64_t seed, int nk, int nv, int dk, int dv, int T, int pos0) {
    h_rng r = {seed};
    task a = {.d = {.nk = nk, .nv = nv, .dk = dk, .dv = dv}, .T = T, .pos0 = pos0};
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

static void task_free(task *a) {
    float *all[] = {a->q, a->k, a->v, a->g, a->beta, a->S0};
    for (int i = 0; i < 6; i++) free(all[i]);
}

static int64_t nout(const task *a) {
    return (int64_t)a->T * a->d.nv * a->d.dv;
}
static int64_t nstate(const task *a) {
    return (int64_t)a->d.nv * a->d.dk * a->d.dv;
}

static k_call call_of(const task *a, int nth) {
    k_call c = h_call(&a->d, &a->lv, a->T, a->pos0, nth, gdn_scratch(&a->d));
    c.cols = (int64_t)a->d.nv * a->d.dv;
    const float *in[] = {a->q, a->k, a->v, a->g, a->beta};
    const int64_t cols[] = {(int64_t)a->d.nk * a->d.dk, (int64_t)a->d.nk * a->d.dk, c.cols, a->d.nv, a->d.nv};
    for (int i = 0; i < 5; i++) c.in[i] = in[i], c.in_cols[i] = cols[i];
    return c;
}

/* Runs the task cut into tiles (parts of one call) or into calls; at lists the first rows, ends with T. */
/* band: NULL, or that of the outputs and behind it that of the state. */
static void run(const task *a, int rule, int calls, const int *at, int nth, float *out, float *S, k_band *band) {
    task b = *a;
    b.lv.gdn = rule;
    k_call c = call_of(&b, nth);
    k_state st = {.cols = a->d.dv, .cap = a->d.nv * a->d.dk}, before = st;
    st.f = S;
    before.f = h_copy(a->S0, nstate(a));
    memcpy(S, a->S0, (size_t)nstate(a) * 4);
    c.st[0] = &st;
    c.out = out;
    for (int i = 0; at[i] < a->T; i++) {
        k_call t = h_tile(&c, at[i], at[i + 1] - at[i]);
        if (calls) t.t0 = 0, t.Tcall = t.T, t.Tc = t.pos0 + t.T;
        memcpy(before.f, S, (size_t)nstate(a) * 4);
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

static void run1(const task *a, int rule, float *out, float *S, k_band *band) {
    run(a, rule, 0, (int[]){0, a->T}, 1, out, S, band);
}

/* ---- the rule in f64, with faults that a check must see ---- */

enum { SOUND, NO_BETA, LATE_DECAY, OLD_STATE, UNSCALED, NEXT_KEY, FAULTS };

static void rule_f64(const task *a, int fault, double *out, double *S) {
    const int dk = a->d.dk, dv = a->d.dv;
    for (int64_t i = 0; i < nstate(a); i++) S[i] = (double)a->S0[i];
    for (int t = 0; t < a->T; t++)
        for (int h = 0; h < a->d.nv; h++) {
            int kh = a->d.gguf_heads ? h % a->d.nk : h / (a->d.nv / a->d.nk);
            if (fault == NEXT_KEY) kh = (kh + 1) % a->d.nk;
            const float *q = a->q + ((int64_t)t * a->d.nk + kh) * dk, *k = a->k + ((int64_t)t * a->d.nk + kh) * dk;
            const double w = exp((double)a->g[(fault == LATE_DECAY && t ? t - 1 : t) * a->d.nv + h]);
            for (int j = 0; j < dv; j++) {
                double m = 0, o = 0, old = 0, *s = S + (int64_t)h * dk * dv + j;
                for (int i = 0; i < dk; i++) m += (s[i * dv] *= w) * (double)k[i];
                double dl = (double)a->v[((int64_t)t * a->d.nv + h) * dv + j] - m;
                if (fault != NO_BETA) dl *= (double)a->beta[t * a->d.nv + h];
                for (int i = 0; i < dk; i++) {
                    old += s[i * dv] * (double)q[i];
                    o += (s[i * dv] += (double)k[i] * dl) * (double)q[i];
                }
                if (fault == OLD_STATE) o = old;
                out[((int64_t)t * a->d.nv + h) * dv + j] = fault == UNSCALED ? o : o / sqrt(dk);
            }
        }
}

/* ---- the two orders of the contract in plain f32 loops ---- */

static void order_seq(const task *a, int h, float *out, float *S) {
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
    float q[C][64], k[C][64], v[C][64], g[C], b[C], G[C], A[C][C], P[C][C], U[C][64], K[C][64];
} padded;

static void padded_load(const task *a, int h, int t0, padded *x) {
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

static void padded_solve(const task *a, padded *x) {
    for (int i = 0; i < C; i++) {
        for (int j = 0; j <= i; j++) {
            float kk = 0, qk = 0;
            for (int e = 0; e < a->d.dk; e++)
                kk = fmaf(x->k[i][e], x->k[j][e], kk), qk = fmaf(x->q[i][e], x->k[j][e], qk);
            x->A[i][j] = (x->b[i] * kk) * k_exp(x->G[i] - x->G[j]);
            x->P[i][j] = qk * k_exp(x->G[i] - x->G[j]);
        }
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

static void order_chunk(const task *a, int h, float *out, float *Sall, padded *x) {
    const int dk = a->d.dk, dv = a->d.dv;
    float *S = Sall + (int64_t)h * dk * dv;
    for (int t0 = 0; t0 < a->T; t0 += C) {
        padded_load(a, h, t0, x);
        padded_solve(a, x);
        for (int j = 0; j < dv; j++) {
            for (int i = 0; i < C; i++) {
                float s = 0, p = 0, qs = 0;
                for (int e = 0; e < dk; e++)
                    s = fmaf(x->K[i][e], S[e * dv + j], s), qs = fmaf(x->q[i][e], S[e * dv + j], qs);
                x->U[i][j] = x->U[i][j] - s;
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
}

static const int lengths[] = {1, 3, 4, 5, 63, 64, 65, 70, 128, 130};
enum { NLEN = 10 };

/* ---- tests ---- */

static int inside(const float *out, const double *ref, int64_t n, const k_band *b) {
    double d = h_dist(out, ref, n);
    return d <= sqrt(b->hard2) && d <= 3 * sqrt(b->rms2);
}

static void test_f64(void **state) {
    (void)state;
    for (int rule = 0; rule < 2; rule++) {
        double low = 1e9, high = 0, share = 0, slow = 1e9, shigh = 0;
        for (int i = 0; i < 2 * NLEN; i++) {
            task a =
                task_new((uint64_t)i, 2, i % 3 ? 6 : 4, i % 2 ? 24 : 16, i % 2 ? 20 : 16, lengths[i / 2], i % 2 * 7);
            int64_t n = nout(&a);
            float *out = h_nans(n), *S = h_nans(nstate(&a));
            double *ref = malloc((size_t)n * 8), *Sref = malloc((size_t)nstate(&a) * 8);
            k_band both[2] = {{0, 0}}, both3[2] = {{0, 0}}, b;
            assert_true(ref && Sref);
            a.lv.act = i % 4 == 3;
            run(&a, rule, 0, (int[]){0, a.T}, 3, out, S, both3);
            run1(&a, rule, out, S, both);
            b = both[0];
            assert_memory_equal(both, both3, sizeof both); /* threads */
            rule_f64(&a, SOUND, ref, Sref);
            if (!inside(out, ref, n, &b)) fail_msg("rule %d, T %d: outside its band", rule, a.T);
            if (!inside(S, Sref, nstate(&a), &both[1])) fail_msg("rule %d, T %d: state outside its band", rule, a.T);
            double y = h_dist(S, Sref, nstate(&a)) / sqrt(both[1].rms2);
            slow = y < slow ? y : slow, shigh = y > shigh ? y : shigh;
            if (!(h_dist(S, Sref, nstate(&a)) <= 1e-5 * h_norm(Sref, nstate(&a))))
                fail_msg("rule %d, T %d: state", rule, a.T);
            double x = h_dist(out, ref, n) / sqrt(b.rms2);
            low = x < low ? x : low, high = x > high ? x : high;
            share = fmax(share, h_dist(out, ref, n) / sqrt(b.hard2));
            for (int f = 1; f < FAULTS; f++) {
                rule_f64(&a, f, ref, Sref);
                if (f == LATE_DECAY && a.T == 1) continue;
                if (f == OLD_STATE && a.T == 1 && !a.pos0) continue;
                if (inside(out, ref, n, &b)) fail_msg("rule %d, T %d: fault %d went unseen", rule, a.T, f);
                if (f == OLD_STATE || f == UNSCALED) continue; /* faults of the outputs alone */
                if (inside(S, Sref, nstate(&a), &both[1]))
                    fail_msg("rule %d, T %d: fault %d of the state", rule, a.T, f);
            }
            free(out), free(S), free(ref), free(Sref), task_free(&a);
        }
        print_message("%s: distance %.2f to %.2f of rms, up to %.3f of hard\n", rule ? "chunk64" : "seq", low, high,
                      share);
        print_message("    the state: %.2f to %.2f of rms\n", slow, shigh);
        assert_true(low >= 0.5 && high <= 2);
        assert_true(slow >= 0.25 && shigh <= 3);
    }
}

static void test_orders(void **state) {
    (void)state;
    padded *x = malloc(sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < 2 * NLEN; i++) { /* dv 44: one block of 32, one of 8, four single columns */
        task a = task_new(100 + (uint64_t)i, 2, 4, i % 2 ? 20 : 16, i % 2 ? 44 : 16, lengths[i / 2], i % 2 * 9);
        for (int rule = 0; rule < 2; rule++) {
            if (rule && a.T == 1 && a.pos0) continue; /* goes by tokens */
            float *out = h_nans(nout(&a)), *S = h_nans(nstate(&a)), *want = h_nans(nout(&a)),
                  *Sw = h_copy(a.S0, nstate(&a));
            run1(&a, rule, out, S, NULL);
            for (int h = 0; h < 4; h++) rule ? order_chunk(&a, h, want, Sw, x) : order_seq(&a, h, want, Sw);
            assert_bits_equal(rule ? "chunk64 out" : "seq out", out, want, (size_t)nout(&a));
            assert_bits_equal(rule ? "chunk64 state" : "seq state", S, Sw, (size_t)nstate(&a));
            free(out), free(S), free(want), free(Sw);
        }
        task_free(&a);
    }
    free(x);
}

/* Keys with one entry of +-1, beta 0 or 1, no decay: all is whole numbers, so both rules and f64 must agree exactly. */
static void test_whole(void **state) {
    (void)state;
    for (int i = 0; i < NLEN; i++) {
        task a = task_new(200 + (uint64_t)i, 2, 4, 16, 24, lengths[i], 0);
        h_rng r = {300 + (uint64_t)i};
        for (int t = 0; t < a.T * 2; t++)
            for (int e = 0, at = h_int(&r, 0, 15), sign = h_int(&r, 0, 1) * 2 - 1; e < 16; e++) {
                a.k[t * 16 + e] = e == at ? (float)sign : 0;
                a.q[t * 16 + e] = (float)h_int(&r, -3, 3);
            }
        for (int64_t e = 0; e < nout(&a); e++) a.v[e] = (float)h_int(&r, -50, 50);
        for (int e = 0; e < a.T * 4; e++) a.g[e] = 0, a.beta[e] = (float)h_int(&r, 0, 1);
        double *ref = malloc((size_t)nout(&a) * 8), *Sref = malloc((size_t)nstate(&a) * 8);
        float *out = h_nans(nout(&a)), *S = h_nans(nstate(&a));
        assert_true(ref && Sref);
        rule_f64(&a, SOUND, ref, Sref);
        for (int rule = 0; rule < 2; rule++) {
            run1(&a, rule, out, S, NULL);
            for (int64_t e = 0; e < nout(&a); e++)
                if (!((double)out[e] == ref[e])) fail_msg("rule %d, T %d, [%d]: not exact", rule, a.T, (int)e);
            for (int64_t e = 0; e < nstate(&a); e++)
                if (!((double)S[e] == Sref[e])) fail_msg("rule %d, T %d: state not exact", rule, a.T);
        }
        a.beta[a.T * 4 - 1] = 1 - a.beta[a.T * 4 - 1]; /* the twin */
        run1(&a, 0, out, S, NULL);
        int moved = 0;
        for (int64_t e = 0; e < nstate(&a); e++) moved |= !((double)S[e] == Sref[e]);
        assert_true(moved);
        free(out), free(S), free(ref), free(Sref), task_free(&a);
    }
}

static void same(const task *a, const char *what, int rule, int calls, const int *at, int nth, int equal) {
    float *o1 = h_nans(nout(a)), *s1 = h_nans(nstate(a)), *o2 = h_nans(nout(a)), *s2 = h_nans(nstate(a));
    run1(a, rule, o1, s1, NULL);
    run(a, rule, calls, at, nth, o2, s2, NULL);
    if (equal) {
        assert_bits_equal(what, o2, o1, (size_t)nout(a));
        assert_bits_equal(what, s2, s1, (size_t)nstate(a));
    } else if (h_same(o2, o1, nout(a)) == 1) {
        fail_msg("%s: the same bits, where a difference was due", what);
    }
    free(o1), free(s1), free(o2), free(s2);
}

static void test_splits(void **state) {
    (void)state;
    int each[131];
    for (int i = 0; i <= 130; i++) each[i] = i;
    for (int pos0 = 0; pos0 < 10; pos0 += 9) {
        task a = task_new(400, 2, 6, 16, 40, 130, pos0);
        same(&a, "seq, one by one", K_GDN_SEQ, 1, each, 1, 1);
        same(&a, "seq, calls", K_GDN_SEQ, 1, (int[]){0, 1, 65, 70, 130}, 1, 1);
        same(&a, "seq, tiles", K_GDN_SEQ, 0, (int[]){0, 64, 128, 130}, 3, 1);
        same(&a, "chunk64, tiles", K_GDN_CHUNK64, 0, (int[]){0, 64, 128, 130}, 1, 1);
        same(&a, "chunk64, threads", K_GDN_CHUNK64, 0, (int[]){0, 128, 130}, 5, 1);
        same(&a, "chunk64, calls cut elsewhere", K_GDN_CHUNK64, 1, (int[]){0, 63, 130}, 1, 0); /* spec 4.4 */
        task_free(&a);
    }
    task a = task_new(500, 2, 6, 16, 40, 1, 5), b = task_new(500, 2, 6, 16, 40, 2, 5);
    float *o1 = h_nans(nout(&b)), *o2 = h_nans(nout(&b)), *s1 = h_nans(nstate(&a)), *s2 = h_nans(nstate(&a));
    run1(&a, K_GDN_SEQ, o1, s1, NULL);
    run1(&a, K_GDN_CHUNK64, o2, s2, NULL);
    assert_bits_equal("a single row goes by tokens", s2, s1, (size_t)nstate(&a));
    run1(&b, K_GDN_SEQ, o1, s1, NULL);
    run1(&b, K_GDN_CHUNK64, o2, s2, NULL);
    assert_true(h_same(s1, s2, nstate(&b)) < 1); /* the twin: two rows do not */
    free(o1), free(o2), free(s1), free(s2), task_free(&a), task_free(&b);
}

/* Value head r * nk + k of a GGUF is head k * nv / nk + r of HF (spec 9.4). */
static void test_head_order(void **state) {
    (void)state;
    for (int rule = 0; rule < 2; rule++) {
        task a = task_new(600, 2, 6, 16, 16, 70, 0), b = task_new(600, 2, 6, 16, 16, 70, 0);
        b.d.gguf_heads = 1;
        for (int t = 0; t < 70; t++)
            for (int k = 0; k < 2; k++)
                for (int r = 0; r < 3; r++) {
                    int hf = t * 6 + k * 3 + r, gg = t * 6 + r * 2 + k;
                    memcpy(b.v + gg * 16, a.v + hf * 16, 64);
                    b.g[gg] = a.g[hf], b.beta[gg] = a.beta[hf];
                }
        float *o1 = h_nans(nout(&a)), *o2 = h_nans(nout(&a)), *s1 = h_nans(nstate(&a)), *s2 = h_nans(nstate(&a));
        run1(&a, rule, o1, s1, NULL);
        run1(&b, rule, o2, s2, NULL);
        for (int t = 0; t < 70; t++)
            for (int h = 0; h < 6; h++)
                assert_bits_equal("head order", o2 + (t * 6 + h % 3 * 2 + h / 3) * 16, o1 + (t * 6 + h) * 16, 16);
        b.d.gguf_heads = 0; /* the twin: the same values, read in the other order */
        run1(&b, rule, o2, s2, NULL);
        int moved = 0;
        for (int h = 0; h < 6; h++) moved |= h_same(o2 + (h % 3 * 2 + h / 3) * 16, o1 + h * 16, 16) < 1;
        assert_true(moved);
        free(o1), free(o2), free(s1), free(s2), task_free(&a), task_free(&b);
    }
}

/* A NaN in one token's value: earlier tokens and other heads keep their bits, this head is NaN from there on. */
static void test_nan(void **state) {
    (void)state;
    for (int rule = 0; rule < 2; rule++) {
        task a = task_new(700, 2, 4, 16, 16, 70, 0);
        float *o1 = h_nans(nout(&a)), *o2 = h_nans(nout(&a)), *s1 = h_nans(nstate(&a)), *s2 = h_nans(nstate(&a));
        run1(&a, rule, o1, s1, NULL);
        a.v[(20 * 4 + 1) * 16 + 3] = NAN;
        run1(&a, rule, o2, s2, NULL);
        for (int t = 0; t < 70; t++)
            for (int h = 0; h < 4; h++)
                for (int j = 0; j < 16; j++) {
                    int64_t i = (t * 4 + h) * 16 + j;
                    int hit = t >= 20 && h == 1 && j == 3;
                    if (hit ? o2[i] == o2[i] : memcmp(&o1[i], &o2[i], 4) != 0) fail_msg("t %d h %d j %d", t, h, j);
                }
        a.q[(30 * 2 + 1) * 16] = NAN; /* in a query: that token's outputs of the heads that read it, no state */
        memcpy(s1, s2, (size_t)nstate(&a) * 4);
        run1(&a, rule, o2, s2, NULL);
        assert_memory_equal(s1, s2, (size_t)nstate(&a) * 4);
        assert_true(o2[30 * 64 + 2 * 16] != o2[30 * 64 + 2 * 16] && o2[31 * 64 + 2 * 16] == o2[31 * 64 + 2 * 16]);
        free(o1), free(o2), free(s1), free(s2), task_free(&a);
    }
}

static void test_rules_agree(void **state) {
    (void)state;
    task a = task_new(800, 2, 6, 32, 32, 130, 0);
    float *o1 = h_nans(nout(&a)), *o2 = h_nans(nout(&a)), *s1 = h_nans(nstate(&a)), *s2 = h_nans(nstate(&a));
    k_band both[2] = {{0, 0}}, other[2] = {{0, 0}}, b;
    run1(&a, K_GDN_SEQ, o1, s1, both);
    run1(&a, K_GDN_CHUNK64, o2, s2, other);
    b = (k_band){both[0].hard2 + other[0].hard2, both[0].rms2 + other[0].rms2};
    double ds = 0, pair = sqrt(both[1].rms2 + other[1].rms2); /* the states, too */
    for (int64_t i = 0; i < nstate(&a); i++) ds += ((double)s1[i] - (double)s2[i]) * ((double)s1[i] - (double)s2[i]);
    print_message("their states: %.2f of the pair's rms\n", sqrt(ds) / pair);
    assert_true(ds > 0 && sqrt(ds) <= 2 * pair);
    double *x = malloc((size_t)nout(&a) * 8);
    assert_non_null(x);
    for (int64_t i = 0; i < nout(&a); i++) x[i] = (double)o1[i];
    double d = h_dist(o2, x, nout(&a)), n = h_norm(x, nout(&a));
    print_message("seq against chunk64: %.2e relative L2, %.2f of the pair's rms\n", d / n, d / sqrt(b.rms2));
    assert_true(d <= 2 * sqrt(b.rms2));
    assert_true(d > 0);
    a.lv.act = K_ACT_BF16; /* the store */
    run1(&a, K_GDN_SEQ, o2, s2, NULL);
    for (int64_t i = 0; i < nout(&a); i++) o1[i] = k_round_bf16(o1[i]);
    assert_bits_equal("rd of the outputs", o2, o1, (size_t)nout(&a));
    free(o1), free(o2), free(s1), free(s2), free(x), task_free(&a);
}

/* Strong decays and repeated keys, where sums of exponents and the solve are at their worst; unknown state. */
static void test_band_corners(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int rule = 0; rule < 2; rule++) {
            task a = task_new(900, 2, 4, 32, 32, 200, 3);
            for (int i = 0; i < 200 * 4; i++) a.g[i] = kind == 0 ? -3.0f : kind == 1 ? -1e-3f : -0.1f;
            if (kind == 2)
                for (int t = 2; t < 400; t++)
                    for (int e = 0; e < 32; e++) a.k[t * 32 + e] = a.k[t % 2 * 32 + e] + 0.1f * a.k[t * 32 + e];
            float *out = h_nans(nout(&a)), *S = h_nans(nstate(&a));
            double *ref = malloc((size_t)nout(&a) * 8), *Sref = malloc((size_t)nstate(&a) * 8);
            k_band both[2] = {{0, 0}}, tiled[2] = {{0, 0}}, b;
            assert_true(ref && Sref);
            run(&a, rule, 0, (int[]){0, 64, 128, 200}, 1, out, S, tiled);
            run1(&a, rule, out, S, both);
            b = both[0];
            rule_f64(&a, SOUND, ref, Sref);
            for (int k = 0; k < 2; k++) { /* in one tile, and from one to the next of three */
                const k_band *s = k ? &tiled[1] : &both[1];
                double ds = h_dist(S, Sref, nstate(&a));
                print_message("    state%s: %.2f of rms, %.1e of hard\n", k ? ", three tiles" : "", ds / sqrt(s->rms2),
                              ds / sqrt(s->hard2));
                assert_true(ds <= sqrt(s->hard2) && ds <= 4 * sqrt(s->rms2) && ds >= sqrt(s->rms2) / 4);
            }
            double d = h_dist(out, ref, nout(&a));
            print_message("%s, %s: %.2f of rms, %.1e of hard\n", rule ? "chunk64" : "seq",
                          kind == 0   ? "strong decay"
                          : kind == 1 ? "hardly any decay"
                                      : "repeated keys",
                          d / sqrt(b.rms2), d / sqrt(b.hard2));
            assert_true(d <= sqrt(b.hard2));
            assert_true(d <= 4 * sqrt(b.rms2) && d >= sqrt(b.rms2) / 4);
            free(out), free(S), free(ref), free(Sref), task_free(&a);
        }
    task a = task_new(901, 2, 4, 16, 16, 8, 3);
    k_call c = call_of(&a, 1);
    k_state st = {.cols = 16, .cap = 64};
    k_band b = {0, 0};
    st.f = a.S0, c.st[0] = &st, c.out = h_nans(nout(&a));
    gdn_core_cpu(&c);
    gdn_core_band(&c, &b);
    assert_true(isinf(b.hard2) && b.rms2 > 0 && isfinite(b.rms2));
    free(c.out), h_scratch_free(&c), task_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f64),         cmocka_unit_test(test_orders),       cmocka_unit_test(test_whole),
        cmocka_unit_test(test_splits),      cmocka_unit_test(test_head_order),   cmocka_unit_test(test_nan),
        cmocka_unit_test(test_rules_agree), cmocka_unit_test(test_band_corners),
    };
    return cmocka_run_group_tests_name("gdn", tests, NULL, NULL);
}
