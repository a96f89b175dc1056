/* attn_score, attn_prob, attn_ctx: f64 from the spec, whole numbers, invariances, and the faults that must show. */
#include <math.h>
#include <stdlib.h>

#include "kernels/arith.h"
#include "kernels/attn.h"
#include "kernels/round.h"
#include "kernels/vec8.h"
#include "tests/h_call.h"

typedef struct {
    k_dims d;
    k_levers lv;
    int32_t T, pos0, Tc, width;
    int32_t Tcall;   /* rows of the call that this is a tile of */
    int32_t *sel;    /* [T, width] or NULL */
    int32_t *extra;  /* [T, EXTRA] with it */
    float *q, *v;    /* [T, H hd] [T, G hd] */
    float *k, *oldv; /* caches [Tc, G hd]: all keys, the values before pos0 */
} task;

enum { EXTRA = 3 };
enum { SOUND, NEXT_TOKEN, NO_TAIL, NEXT_HEAD, NO_SCALE, FAULTS };

/* Selections as idx_sel leaves them: distinct complete blocks of the query in any order, -1 behind. */
static task task_new(uint64_t seed, int H, int G, int hd, int T, int pos0, int nsel, int whole) {
    h_rng r = {seed};
    task a = {
        .d = {.H = H, .G = G, .hd = hd, .ratio = 4, .nsel = nsel}, .T = T, .Tcall = T, .pos0 = pos0, .Tc = pos0 + T};
    const int64_t kw = (int64_t)G * hd;
    a.q = whole ? h_whole(&r, (int64_t)T * H * hd, -4, 4) : h_normal(&r, (int64_t)T * H * hd, 1.5, K_ACT_F32);
    a.v = whole ? h_whole(&r, T * kw, -9, 9) : h_normal(&r, T * kw, 1, K_ACT_F32);
    a.k = whole ? h_whole(&r, a.Tc * kw, -4, 4) : h_normal(&r, a.Tc * kw, 1, K_ACT_F32);
    a.oldv = whole ? h_whole(&r, a.Tc * kw, -9, 9) : h_normal(&r, a.Tc * kw, 1, K_ACT_F32);
    if (!nsel) return a;
    const int32_t nb = a.Tc / 4;
    a.width = nb < nsel ? (nb ? nb : 1) : nsel;
    a.sel = malloc((size_t)T * (size_t)a.width * sizeof *a.sel);
    int32_t *p = malloc((size_t)(nb + 1) * sizeof *p);
    a.extra = malloc((size_t)(T * EXTRA) * sizeof *a.extra);
    assert_true(a.sel && a.extra && p);
    for (int i = 0; i < T * EXTRA; i++) a.extra[i] = i % 5 ? h_int(&r, -1, a.Tc) : -1; /* seen before, behind: too */
    for (int t = 0; t < T; t++) {
        int n = (pos0 + t + 1) / 4;
        for (int i = 0; i < n; i++) p[i] = i;
        for (int i = 0; i < a.width; i++) {
            int j = i < n ? h_int(&r, i, n - 1) : 0, b = i < n ? p[j] : -1;
            if (i < n) p[j] = p[i];
            a.sel[t * a.width + i] = b;
        }
    }
    free(p);
    return a;
}

/* The levers that attention reads, in all sorts of arms. */
static const k_levers ARMS[] = {
    {.act = K_ACT_F32},
    {.act = K_ACT_BF16},
    {.act = K_ACT_BF16, .inner = K_FOLLOW_F32},
    {.inner = K_FOLLOW_BF16, .kv = K_KV_BF16},
    {.kv = K_KV_F16},
    {.act = K_ACT_BF16, .kv = K_KV_F32},
    {.sweep = K_SWEEP_ONLINE},
    {.sweep = K_SWEEP_ONLINE, .kv = K_KV_F16},
    {.act = K_ACT_BF16, .sweep = K_SWEEP_ONLINE},
    {.act = K_ACT_BF16, .sweep = K_SWEEP_ONLINE, .kv = K_KV_F16, .inner = K_FOLLOW_F32},
};
enum { NARMS = sizeof ARMS / sizeof *ARMS };

/* The task under these levers: what reaches the ops has been rounded under act. */
static void arm_of(task *a, const k_levers *lv) {
    const int64_t kw = a->d.G * a->d.hd;
    float *x[] = {a->q, a->v, a->k, a->oldv};
    const int64_t n[] = {(int64_t)a->T * a->d.H * a->d.hd, a->T * kw, a->Tc * kw, a->Tc * kw};
    a->lv = *lv;
    for (int b = 0; b < 4; b++)
        for (int64_t i = 0; i < n[b]; i++) x[b][i] = k_rd(x[b][i], lv->act);
    for (int64_t i = 0; i < a->pos0 * kw; i++) { /* old rows lie in caches of the arm's type */
        a->k[i] = k_kv_round(a->k[i], k_kv_type(lv));
        a->oldv[i] = k_kv_round(a->oldv[i], k_kv_type(lv));
    }
}

static void task_free(task *a) {
    free(a->sel), free(a->extra), free(a->q), free(a->v), free(a->k), free(a->oldv);
}

static int64_t nrow(const task *a) {
    return (int64_t)a->T * a->d.H * a->Tc;
}
static int64_t nctx(const task *a) {
    return (int64_t)a->T * a->d.H * a->d.hd;
}

static int seen(const task *a, int t, int j, int fault) {
    int pos = a->pos0 + t - (fault == NEXT_TOKEN), nb = (pos + 1) / 4;
    if (j > pos) return 0;
    if (!a->sel) return 1;
    if (j >= 4 * nb) return fault != NO_TAIL;
    for (int i = 0; i < a->width; i++)
        if (a->sel[t * a->width + i] == j / 4) return 1;
    for (int i = 0; i < EXTRA; i++)
        if (a->extra[t * EXTRA + i] == j) return 1;
    return 0;
}

/* ---- running ---- */

static k_call call_of(const task *a, int nth) {
    k_call c = h_call(&a->d, &a->lv, a->T, a->pos0, nth, attn_scratch(&a->d, a->Tc));
    c.Tcall = a->Tcall;
    return c;
}

static void slot_sel(k_call *c, const task *a, int slot) {
    c->in_i[slot] = a->sel;
    c->in_cols[slot] = a->width;
    c->in_i[slot + 1] = a->extra;
    c->in_cols[slot + 1] = EXTRA;
}

/* n values as the caches keep them. */
static float *kept(const task *a, const float *x, int64_t n) {
    float *y = h_copy(x, n);
    for (int64_t i = 0; i < n; i++) y[i] = k_kv_round(y[i], k_kv_type(&a->lv));
    return y;
}

/* The keys of the tile arrive in in[1]; the cache has those before it, and nothing behind. */
static void run_score(const task *a, int nth, float *out, k_band *b) {
    const int64_t kw = a->d.G * a->d.hd, before = a->pos0 * kw, with = (a->pos0 + a->T) * kw;
    k_call c = call_of(a, nth);
    k_state st = h_state(a->Tc, kw, NAN);
    float *want = kept(a, a->k, with);
    memcpy(st.f, want, (size_t)before * sizeof *st.f);
    c.in[0] = a->q, c.in_cols[0] = a->d.H * a->d.hd;
    c.in[1] = a->k + before, c.in_cols[1] = kw;
    slot_sel(&c, a, 2);
    c.st[0] = &st, c.cols = (int64_t)a->d.H * a->Tc, c.out = out;
    attn_score_cpu(&c);
    assert_int_equal(st.rows, a->pos0 + a->T);
    assert_bits_equal("keys appended", st.f, want, (size_t)with);
    free(want);
    for (int64_t i = with; i < a->Tc * kw; i++) assert_true(st.f[i] != st.f[i]);
    if (b) attn_score_band(&c, b);
    h_state_free(&st), h_scratch_free(&c);
}

static void run_prob(const task *a, const float *score, int nth, float *out, k_band *b) {
    k_call c = call_of(a, nth);
    c.in[0] = score, c.in_cols[0] = c.cols = (int64_t)a->d.H * a->Tc;
    slot_sel(&c, a, 1);
    c.out = out;
    attn_prob_cpu(&c);
    if (b) attn_prob_band(&c, b);
    h_scratch_free(&c);
}

/* cache: the values after the call, [Tc, G hd] */
static void run_ctx(const task *a, const float *prob, const float *score, int nth, float *out, float *cache,
                    k_band *b) {
    const int64_t kw = a->d.G * a->d.hd;
    k_call c = call_of(a, nth);
    k_state st = {.cols = kw, .cap = a->Tc, .rows = a->pos0};
    st.f = cache;
    memcpy(cache, a->oldv, (size_t)(a->Tc * kw) * sizeof *cache);
    c.in[0] = prob, c.in_cols[0] = (int64_t)a->d.H * a->Tc;
    c.in[1] = a->v, c.in_cols[1] = kw;
    c.in[2] = score, c.in_cols[2] = c.in_cols[0];
    slot_sel(&c, a, 3);
    c.st[0] = &st, c.cols = a->d.H * a->d.hd, c.out = out;
    attn_ctx_cpu(&c);
    assert_int_equal(st.rows, a->pos0 + a->T);
    float *want = kept(a, a->v, a->T * kw);
    assert_bits_equal("values appended", cache + a->pos0 * kw, want, (size_t)(a->T * kw));
    free(want);
    assert_bits_equal("values before", cache, a->oldv, (size_t)(a->pos0 * kw));
    if (b) attn_ctx_band(&c, b);
    h_scratch_free(&c);
}

/* ---- f64 ---- */

static int kv(const task *a, int h, int fault) {
    int g = h / (a->d.H / a->d.G);
    return fault == NEXT_HEAD ? (g + 1) % a->d.G : g;
}

static void ref_score(const task *a, int fault, double *out) {
    for (int t = 0; t < a->T; t++)
        for (int h = 0; h < a->d.H; h++)
            for (int j = 0; j < a->Tc; j++) {
                double s = 0;
                for (int i = 0; i < a->d.hd; i++)
                    s += (double)a->q[((int64_t)t * a->d.H + h) * a->d.hd + i] *
                         (double)a->k[((int64_t)j * a->d.G + kv(a, h, fault)) * a->d.hd + i];
                if (fault != NO_SCALE) s /= sqrt(a->d.hd);
                out[((int64_t)t * a->d.H + h) * a->Tc + j] = seen(a, t, j, fault) ? s : 0;
            }
}

static void ref_prob(const task *a, int fault, const float *score, double *out) {
    for (int t = 0; t < a->T; t++)
        for (int h = 0; h < a->d.H; h++) {
            const int64_t row = ((int64_t)t * a->d.H + h) * a->Tc;
            double sum = 0;
            for (int j = 0; j < a->Tc; j++)
                sum += out[row + j] = seen(a, t, j, fault) ? exp((double)score[row + j]) : 0;
            for (int j = 0; j < a->Tc; j++) out[row + j] /= sum > 0 ? sum : 1;
        }
}

/* v: all values as they were before the caches rounded them, [Tc, G hd]. Online the scores are what counts. */
static void ref_ctx(const task *a, int fault, const float *prob, const float *score, const float *v, double *out) {
    double *p = malloc((size_t)nrow(a) * sizeof *p);
    assert_non_null(p);
    if (a->lv.sweep == K_SWEEP_ONLINE)
        ref_prob(a, fault, score, p);
    else
        for (int64_t i = 0; i < nrow(a); i++) p[i] = (double)prob[i];
    for (int t = 0; t < a->T; t++)
        for (int h = 0; h < a->d.H; h++)
            for (int i = 0; i < a->d.hd; i++) {
                double s = 0;
                for (int j = 0; j < a->Tc; j++)
                    if (seen(a, t, j, fault))
                        s += p[((int64_t)t * a->d.H + h) * a->Tc + j] *
                             (double)v[((int64_t)j * a->d.G + kv(a, h, fault)) * a->d.hd + i];
                out[((int64_t)t * a->d.H + h) * a->d.hd + i] = s;
            }
    free(p);
}

/* The values before pos0 and those of the call. */
static float *all_values(const task *a) {
    const int64_t kw = a->d.G * a->d.hd;
    float *v = h_copy(a->oldv, a->Tc * kw);
    memcpy(v + a->pos0 * kw, a->v, (size_t)(a->T * kw) * sizeof *v);
    return v;
}

/* ---- tests ---- */

typedef struct {
    double low, high, hard;
} shares;

static int inside(const float *out, const double *ref, int64_t n, const k_band *b) {
    double d = h_dist(out, ref, n);
    return d <= sqrt(b->hard2) && d <= 3 * sqrt(b->rms2);
}

static void note(shares *s, const float *out, const double *ref, int64_t n, const k_band *b) {
    double d = h_dist(out, ref, n), x = d / sqrt(b->rms2);
    s->low = x < s->low ? x : s->low;
    s->high = x > s->high ? x : s->high;
    s->hard = fmax(s->hard, d / sqrt(b->hard2));
}

static void one_task(task *a, shares s[3]) {
    float *sc = h_nans(nrow(a)), *pr = h_nans(nrow(a)), *cx = h_nans(nctx(a)),
          *cache = h_nans(a->Tc * a->d.G * a->d.hd);
    double *rs = malloc((size_t)nrow(a) * 8), *rp = malloc((size_t)nrow(a) * 8), *rc = malloc((size_t)nctx(a) * 8);
    k_band b[3] = {{0, 0}, {0, 0}, {0, 0}};
    float *v = all_values(a);
    assert_true(rs && rp && rc);
    run_score(a, 1, sc, &b[0]);
    run_prob(a, sc, 1, pr, &b[1]);
    run_ctx(a, pr, sc, 1, cx, cache, &b[2]);
    const int exact = !a->lv.act && k_kv_type(&a->lv) == K_KV_F32; /* faults are smaller than wide bands */
    for (int f = 0; f < (exact ? FAULTS : 1); f++) {
        ref_score(a, f, rs), ref_prob(a, f, sc, rp), ref_ctx(a, f, pr, sc, v, rc);
        int ok[3] = {inside(sc, rs, nrow(a), &b[0]), inside(pr, rp, nrow(a), &b[1]), inside(cx, rc, nctx(a), &b[2])};
        if (f == SOUND) {
            if (!(ok[0] && ok[1] && ok[2]))
                fail_msg("T %d pos0 %d sel %d: %d%d%d", a->T, a->pos0, a->d.nsel, ok[0], ok[1], ok[2]);
            if (a->T * a->Tc < 100) continue;
            note(&s[0], sc, rs, nrow(a), &b[0]), note(&s[1], pr, rp, nrow(a), &b[1]),
                note(&s[2], cx, rc, nctx(a), &b[2]);
            continue;
        }
        if (f == NO_TAIL && (!a->sel || (a->T == 1 && a->Tc % 4 == 0))) continue;
        if (f == NEXT_TOKEN && a->sel) continue; /* shifts blocks in and out: tested without a selection */
        if (f == NEXT_HEAD || f == NO_SCALE) ok[1] = 0;
        if (f == NO_SCALE) ok[2] = 0;
        if (ok[0] || ok[1] || ok[2])
            fail_msg("T %d sel %d: fault %d unseen: %d%d%d", a->T, a->d.nsel, f, ok[0], ok[1], ok[2]);
    }
    for (int64_t i = 0; i < nrow(a); i++)
        if (!seen(a, (int)(i / a->Tc / a->d.H), (int)(i % a->Tc), SOUND))
            assert_true(k_f32_bits(sc[i]) == 0 && k_f32_bits(pr[i]) == 0);
    free(sc), free(pr), free(cx), free(cache), free(rs), free(rp), free(rc), free(v);
}

static const int lengths[] = {1, 3, 4, 5, 63, 64, 65, 70, 128, 130};

static void test_f64(void **state) {
    (void)state;
    static const char *name[] = {"score", "prob", "ctx"};
    for (int arm = 0; arm < NARMS; arm++) {
        shares s[3] = {{1e9, 0, 0}, {1e9, 0, 0}, {1e9, 0, 0}};
        for (int i = 0; i < 40; i++) {
            const int nsel = i % 4 == 0 ? 0 : i % 4 == 1 ? 64 : 5;
            task a =
                task_new((uint64_t)i, i % 3 ? 6 : 4, 2, i % 2 ? 24 : 40, lengths[i / 4], i % 4 < 3 ? 0 : 37, nsel, 0);
            arm_of(&a, &ARMS[arm]);
            one_task(&a, s);
            task_free(&a);
        }
        for (int o = 0; o < 3; o++) {
            print_message("arm %d, %s: distance %.2f to %.2f of rms, up to %.3f of hard\n", arm, name[o], s[o].low,
                          s[o].high, s[o].hard);
            assert_true(s[o].low >= 0.5 && s[o].high <= 2);
        }
    }
}

/* Every sum is of whole numbers: scores and contexts are exact; equal scores give the rounded 1/n. */
static void test_whole(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        task a = task_new(100 + (uint64_t)i, 6, 2, 16, lengths[i / 2], i % 2 * 22, i % 2 * 3, 1);
        const int64_t n = nrow(&a);
        h_rng r = {(uint64_t)i};
        float *sc = h_nans(n), *pr = h_nans(n), *w = h_whole(&r, n, 0, 5), *cx = h_nans(nctx(&a));
        float *cache = h_nans(a.Tc * 32), *flat = h_whole(&r, n, 3, 3);
        double *ref = malloc((size_t)n * 8), *rc = malloc((size_t)nctx(&a) * 8);
        assert_true(ref && rc);
        run_score(&a, 1, sc, NULL);
        ref_score(&a, SOUND, ref);
        for (int64_t e = 0; e < n; e++)
            if (!((double)sc[e] == ref[e])) fail_msg("score [%d]", (int)e);
        run_ctx(&a, w, NULL, 1, cx, cache, NULL);
        ref_ctx(&a, SOUND, w, NULL, cache, rc);
        for (int64_t e = 0; e < nctx(&a); e++)
            if (!((double)cx[e] == rc[e])) fail_msg("ctx [%d]", (int)e);
        run_prob(&a, flat, 1, pr, NULL);
        for (int64_t row = 0; row < n / a.Tc; row++) {
            int count = 0;
            for (int j = 0; j < a.Tc; j++) count += seen(&a, (int)(row / 6), j, SOUND);
            for (int j = 0; j < a.Tc; j++)
                if (seen(&a, (int)(row / 6), j, SOUND) && !(pr[row * a.Tc + j] == 1.0f / (float)count))
                    fail_msg("prob");
        }
        free(sc), free(pr), free(w), free(cx), free(cache), free(flat), free(ref), free(rc), task_free(&a);
    }
}

static float in(const task *a, float x) {
    return k_rd(x, k_follow(a->lv.inner, a->lv.act));
}

static float kvt(const task *a, float x) {
    return k_kv_round(x, k_kv_type(&a->lv));
}

/* A row of scores and their largest, as attn.h writes them. */
static float plain_scores(const task *a, int64_t row, const float *keys, float *y) {
    const int64_t hd = a->d.hd, t = row / a->d.H, g = row % a->d.H / (a->d.H / a->d.G);
    float *q = h_copy(a->q + row * hd, hd), max = -INFINITY;
    for (int64_t i = 0; i < hd && a->lv.sweep && a->Tcall < 64; i++) q[i] = kvt(a, q[i]);
    for (int j = 0; j < a->Tc; j++) {
        y[j] = 0;
        if (!seen(a, (int)t, j, SOUND)) continue;
        float s = k_lanes32_dot(q, keys + (j * a->d.G + g) * hd, hd);
        y[j] = in(a, in(a, s) * (float)(1 / sqrt((double)hd)));
        max = fmaxf(max, y[j]);
    }
    free(q);
    return max;
}

/* The running softmax over a row of scores: its sum; into o (NULL: not wanted) the context before the division. */
static float plain_sweep(const task *a, int64_t row, const float *s, const float *v, float *o) {
    const int64_t hd = a->d.hd, g = row % a->d.H / (a->d.H / a->d.G);
    const int half = k_kv_type(&a->lv) == K_KV_F16 && a->Tcall < 64;
    float M = -INFINITY, S = 0;
    for (int64_t i = 0; o && i < hd; i++) o[i] = 0;
    for (int j = 0; j < a->Tc; j++) {
        if (!seen(a, (int)(row / a->d.H), j, SOUND)) continue;
        float r = 1, e = 1;
        if (s[j] > M)
            r = k_exp(M - s[j]), M = s[j];
        else
            e = k_exp(s[j] - M);
        for (int64_t i = 0; o && i < hd; i++) {
            float x = half ? k_round_f16(o[i] * r) : o[i] * r;
            x = fmaf(v[(j * a->d.G + g) * hd + i], e, x);
            o[i] = half ? k_round_f16(x) : x;
        }
        S = S * r + e;
    }
    return S;
}

static void plain_probs(const task *a, int64_t row, const float *s, float max, float *y) {
    float acc[32] = {0};
    for (int j = 0; j < a->Tc; j++)
        if (seen(a, (int)(row / a->d.H), j, SOUND)) acc[j % 32] = acc[j % 32] + k_exp(s[j] - max);
    const float sum = a->lv.sweep ? plain_sweep(a, row, s, NULL, NULL) : k_lanes32_fold(acc);
    for (int j = 0; j < a->Tc; j++) y[j] = seen(a, (int)(row / a->d.H), j, SOUND) ? in(a, k_exp(s[j] - max) / sum) : 0;
}

static void plain_ctx(const task *a, int64_t row, const float *p, const float *s, const float *v, float *y) {
    const int64_t hd = a->d.hd, g = row % a->d.H / (a->d.H / a->d.G);
    const float one = a->lv.sweep ? 1.0f / plain_sweep(a, row, s, v, y) : 1.0f;
    for (int64_t i = 0; i < hd; i++) {
        float o = 0;
        for (int j = 0; j < a->Tc; j++)
            if (seen(a, (int)(row / a->d.H), j, SOUND)) o = fmaf(p[j], v[(j * a->d.G + g) * hd + i], o);
        y[i] = k_rd(a->lv.sweep ? y[i] * one : o, a->lv.act);
    }
}

/* The orders as the contract has them, in plain loops. */
static void test_orders(void **state) {
    (void)state;
    for (int i = 0; i < 4 * NARMS; i++) {
        const int T = i % 4 < 2 ? 66 : 63; /* online tells long calls from short ones */
        task a = task_new(200 + (uint64_t)i, 4, 2, i % 2 ? 100 : 64, T, 31, i % 3 * 6, 0);
        arm_of(&a, &ARMS[i / 4]);
        const int64_t hd = a.d.hd;
        float *sc = h_nans(nrow(&a)), *pr = h_nans(nrow(&a)), *cx = h_nans(nctx(&a)), *cache = h_nans(a.Tc * 2 * hd);
        float *keys = kept(&a, a.k, a.Tc * 2 * hd), s[128], p[128], o[100];
        run_score(&a, 1, sc, NULL);
        run_prob(&a, sc, 1, pr, NULL);
        run_ctx(&a, pr, sc, 1, cx, cache, NULL);
        for (int64_t row = 0; row < T * 4; row++) {
            const float max = plain_scores(&a, row, keys, s);
            plain_probs(&a, row, s, max, p);
            plain_ctx(&a, row, p, s, cache, o);
            assert_bits_equal("score", sc + row * a.Tc, s, (size_t)a.Tc);
            assert_bits_equal("prob", pr + row * a.Tc, p, (size_t)a.Tc);
            assert_bits_equal("ctx", cx + row * hd, o, (size_t)hd);
        }
        free(sc), free(pr), free(cx), free(cache), free(keys), task_free(&a);
    }
}

/* The chain on rows t0 .. t0 + n of a, as a call of its own (Tc ends with it) or as a tile of a's call. */
static void chain_part(const task *a, int t0, int n, int tile, int nth, float *cx, float *cache) {
    task b = *a;
    b.T = n, b.Tcall = tile ? a->T : n, b.pos0 = a->pos0 + t0, b.Tc = tile ? a->Tc : b.pos0 + n;
    b.q += t0 * a->d.H * a->d.hd, b.v += t0 * a->d.G * a->d.hd;
    if (b.sel) b.sel += t0 * a->width, b.extra += t0 * EXTRA;
    b.oldv = cache;
    const int64_t kw = a->d.G * a->d.hd;
    float *sc = h_nans(nrow(&b)), *pr = h_nans(nrow(&b)), *after = h_nans(b.Tc * kw);
    run_score(&b, nth, sc, NULL);
    run_prob(&b, sc, nth, pr, NULL);
    run_ctx(&b, pr, sc, nth, cx + t0 * a->d.H * a->d.hd, after, NULL);
    memcpy(cache, after, (size_t)((b.pos0 + n) * kw) * sizeof *cache);
    free(sc), free(pr), free(after);
}

static void test_splits(void **state) {
    (void)state;
    for (int i = 0; i < 3 * NARMS; i++) {
        const int n = ARMS[i / 3].sweep ? 60 : 70; /* online, a long call is another thing than many short ones */
        task a = task_new(300 + (uint64_t)i, 6, 2, 40, n, i % 2 * 21, i % 3 * 5, 0);
        arm_of(&a, &ARMS[i / 3]);
        const int64_t nc = a.Tc * 2 * 40;
        float *c1 = h_nans(nctx(&a)), *k1 = h_copy(a.oldv, nc), *c2 = h_nans(nctx(&a)), *k2 = h_copy(a.oldv, nc);
        chain_part(&a, 0, n, 0, 1, c1, k1);
        for (int t = 0; t < n; t++) chain_part(&a, t, 1, 0, 1, c2, k2);
        assert_bits_equal("token by token", c2, c1, (size_t)nctx(&a));
        assert_bits_equal("token by token, cache", k2, k1, (size_t)nc);
        memcpy(k2, a.oldv, (size_t)nc * 4);
        chain_part(&a, 0, n - 6, 1, 1, c2, k2), chain_part(&a, n - 6, 6, 1, 3, c2, k2);
        assert_bits_equal("tiles", c2, c1, (size_t)nctx(&a));
        memcpy(k2, a.oldv, (size_t)nc * 4);
        chain_part(&a, 0, n, 0, 5, c2, k2);
        assert_bits_equal("threads", c2, c1, (size_t)nctx(&a));
        memcpy(k2, a.oldv, (size_t)nc * 4); /* more threads than heads: groups are cut */
        chain_part(&a, 0, n - 1, 0, 1, c2, k2), chain_part(&a, n - 1, 1, 0, 9, c2, k2);
        assert_bits_equal("threads for one token", c2, c1, (size_t)nctx(&a));
        memcpy(k2, a.oldv, (size_t)nc * 4);
        if (a.pos0) { /* the twin: the cache matters */
            k2[0] += 1;
            chain_part(&a, 0, n, 0, 1, c2, k2);
            assert_true(h_same(c2, c1, nctx(&a)) < 1);
        }
        free(c1), free(c2), free(k1), free(k2), task_free(&a);
    }
}

static void test_nan(void **state) {
    (void)state;
    task a = task_new(400, 6, 2, 40, 20, 0, 3, 0);
    const int64_t nc = a.Tc * 2 * 40;
    float *c1 = h_nans(nctx(&a)), *c2 = h_nans(nctx(&a)), *k = h_copy(a.oldv, nc);
    chain_part(&a, 0, 20, 0, 1, c1, k);
    a.q[(7 * 6 + 2) * 40 + 5] = NAN; /* one head of one query */
    chain_part(&a, 0, 20, 0, 1, c2, k);
    for (int64_t i = 0; i < nctx(&a); i++)
        if (i / 40 == 7 * 6 + 2 ? c2[i] == c2[i] : memcmp(&c1[i], &c2[i], 4) != 0) fail_msg("[%d]", (int)i);
    free(c1), free(c2), free(k), task_free(&a);
}

/* Selections that no ranking makes (a graft may): ids out of range, twice, nothing at all. */
static void test_hostile_selection(void **state) {
    (void)state;
    task a = task_new(500, 2, 2, 16, 1, 15, 4, 0), b = task_new(500, 2, 2, 16, 1, 15, 4, 0);
    const int32_t odd[] = {2, INT32_MAX, 2, -7}, even[] = {2, -1, -1, -1}, none[] = {-1, 99, INT32_MIN, 4};
    float *c1 = h_nans(nctx(&a)), *c2 = h_nans(nctx(&a)), *k = h_copy(a.oldv, a.Tc * 32);
    memcpy(a.sel, odd, sizeof odd), memcpy(b.sel, even, sizeof even);
    for (int i = 0; i < EXTRA; i++) a.extra[i] = b.extra[i] = 9; /* in block 2 */
    chain_part(&a, 0, 1, 0, 1, c1, k);
    chain_part(&b, 0, 1, 0, 1, c2, k);
    assert_bits_equal("odd ids", c1, c2, 32);
    memcpy(a.sel, none, sizeof none); /* position 15: no tail either */
    for (int i = 0; i < EXTRA; i++) a.extra[i] = b.extra[i] = i ? 16 + i : -9;
    chain_part(&a, 0, 1, 0, 1, c1, k);
    for (int i = 0; i < 32; i++) assert_true(k_f32_bits(c1[i]) == 0);
    free(c1), free(c2), free(k), task_free(&a), task_free(&b);
}

/* The vector dot has the bits of reduce.h at every length. */
static void test_dot(void **state) {
    (void)state;
    h_rng r = {600};
    float *x = h_normal(&r, 300, 1, K_ACT_F32), *y = h_normal(&r, 300, 1, K_ACT_F32);
    int serial_differs = 0;
    for (int n = 0; n <= 300; n++) {
        float got = k_v8_dot(x, y, n), want = k_lanes32_dot(x, y, n), s = 0;
        assert_bits_equal("dot", &got, &want, 1);
        for (int i = 0; i < n; i++) s = fmaf(x[i], y[i], s);
        serial_differs |= s != want;
    }
    assert_true(serial_differs);
    free(x), free(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f64),    cmocka_unit_test(test_whole), cmocka_unit_test(test_orders),
        cmocka_unit_test(test_splits), cmocka_unit_test(test_nan),   cmocka_unit_test(test_hostile_selection),
        cmocka_unit_test(test_dot),
    };
    return cmocka_run_group_tests_name("attn", tests, NULL, NULL);
}
