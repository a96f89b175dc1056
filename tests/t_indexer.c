/* idx_pool, idx_score, idx_sel: f64 from the spec, orders bit by bit, selections by brute force, dense equivalence. */
#include <math.h>
#include <stdlib.h>

#include "kernels/arith.h"
#include "kernels/attn.h"
#include "kernels/indexer.h"
#include "kernels/reduce.h"
#include "tests/h_call.h"

typedef struct {
    k_dims d;
    k_levers lv;
    int32_t T;
    float *raw, *q, *gamma, *freq; /* [T, id] [T, ih id] [id] [rot/2] */
} task;

/* Everything the three ops leave of one sequence that starts at position 0. */
typedef struct {
    float *pool;  /* [T, id] */
    float *score; /* [T, width] */
    int32_t *sel; /* [T, selw], -2 where nothing was written */
    int width, selw;
    k_state rawc, poolc;
} result;

static task task_new(uint64_t seed, int ih, int id, int ratio, int nsel, int T, int act) {
    h_rng r = {seed};
    task a = {.d = {.ih = ih, .id = id, .rot = id / 2, .ratio = ratio, .nsel = nsel, .eps = 1e-6f},
              .lv = {.act = act},
              .T = T};
    a.raw = h_normal(&r, (int64_t)T * id, 1, act);
    a.q = h_normal(&r, (int64_t)T * ih * id, 1, act);
    a.gamma = h_normal(&r, id, 0.3, act);
    for (int i = 0; i < id; i++) a.gamma[i] += 1;
    a.freq = h_nans(id / 4);
    for (int i = 0; i < id / 4; i++) a.freq[i] = (float)pow(1e4, -4.0 * i / id);
    return a;
}

static void task_free(task *a) {
    free(a->raw), free(a->q), free(a->gamma), free(a->freq);
}

static result result_new(const task *a) {
    const int nb = a->T / a->d.ratio;
    result r = {.width = nb > 1 ? nb : 1};
    r.selw = a->d.nsel < r.width ? a->d.nsel : r.width;
    r.pool = h_nans((int64_t)a->T * a->d.id);
    r.score = h_nans((int64_t)a->T * r.width);
    r.sel = malloc((size_t)a->T * (size_t)r.selw * sizeof *r.sel);
    assert_non_null(r.sel);
    for (int i = 0; i < a->T * r.selw; i++) r.sel[i] = -2;
    r.rawc = h_state(a->T, a->d.id, 7);
    r.poolc = h_state(nb + 1, a->d.id, 7);
    return r;
}

static void result_free(result *r) {
    free(r->pool), free(r->score), free(r->sel), h_state_free(&r->rawc), h_state_free(&r->poolc);
}

/* Rows t0 .. t0 + n as a call of its own (rows of scores and ids are then as wide as it needs) or as a tile of one
 * call of T rows. Bands of pool and score are added where given. */
static void run(const task *a, result *r, int t0, int n, int tile, int nth, k_band *b) {
    const int Tc = tile ? a->T : t0 + n, id = a->d.id, qw = a->d.ih * id;
    const int nb = Tc / a->d.ratio, width = nb > 1 ? nb : 1, selw = a->d.nsel < width ? a->d.nsel : width;
    k_call c = h_call(&a->d, &a->lv, n, t0, nth, indexer_scratch(&a->d, Tc));
    c.Tc = Tc, c.Tcall = tile ? a->T : n, c.t0 = tile ? t0 : 0;
    k_call p = c, s = c, k = c;
    float *score = h_nans((int64_t)n * width);
    int32_t *ids = malloc((size_t)n * (size_t)selw * sizeof *ids);
    assert_non_null(ids);
    p.in[0] = a->raw + t0 * id, p.in_cols[0] = p.cols = id, p.out = r->pool + t0 * id;
    p.par[0] = a->gamma, p.par[1] = a->freq, p.st[0] = &r->rawc;
    const int64_t had = r->poolc.rows;
    idx_pool_cpu(&p);
    assert_true(r->rawc.rows == t0 + n && r->poolc.rows == had);
    s.in[0] = a->q + t0 * qw, s.in_cols[0] = qw, s.cols = width, s.out = score, s.st[0] = &r->poolc;
    s.in[1] = p.out, s.in_cols[1] = id;
    idx_score_cpu(&s);
    assert_true(r->poolc.rows == (t0 + n) / a->d.ratio);
    k.in[0] = score, k.in_cols[0] = width, k.cols = selw, k.out_i = ids;
    idx_sel_cpu(&k);
    if (b) idx_pool_band(&p, &b[0]), idx_score_band(&s, &b[1]);
    for (int t = 0; t < n; t++) {
        for (int i = 0; i < r->width; i++) r->score[(t0 + t) * r->width + i] = i < width ? score[t * width + i] : -1;
        for (int i = 0; i < r->selw; i++) r->sel[(t0 + t) * r->selw + i] = i < selw ? ids[t * selw + i] : -1;
    }
    free(score), free(ids), h_scratch_free(&c);
}

static const int lengths[] = {1, 3, 4, 5, 63, 64, 65, 70, 128, 130};

/* ---- f64 ---- */

enum { SOUND, LAST_POSITION, NEXT_BLOCK, NO_NORM, NO_GAMMA, NO_RELU, NO_ROOT, FAULTS };

static void ref_pool(const task *a, int fault, int b, double *y) {
    const int id = a->d.id, half = a->d.rot / 2, ratio = a->d.ratio;
    double ss = 0;
    for (int i = 0; i < id; i++) {
        y[i] = 0;
        for (int r = 0; r < ratio; r++) /* NEXT_BLOCK: from one token on, around at the end */
            y[i] += (double)a->raw[(b * ratio + r + (fault == NEXT_BLOCK)) % a->T * id + i];
        y[i] /= ratio;
        ss += y[i] * y[i];
    }
    for (int i = 0; i < id; i++) {
        if (fault != NO_NORM) y[i] /= sqrt(ss / id + 1e-6);
        if (fault != NO_GAMMA) y[i] *= (double)a->gamma[i];
    }
    for (int i = 0; i < half; i++) {
        const float angle = a->freq[i] * (float)(b * ratio + (fault == LAST_POSITION ? ratio - 1 : 0));
        const double c = cos((double)angle), s = sin((double)angle), lo = y[i], hi = y[i + half];
        y[i] = lo * c - hi * s;
        y[i + half] = hi * c + lo * s;
    }
}

static double ref_score(const task *a, int fault, int t, const float *pk) {
    double sum = 0;
    for (int h = 0; h < a->d.ih; h++) {
        double dot = 0;
        for (int i = 0; i < a->d.id; i++) dot += (double)a->q[(t * a->d.ih + h) * a->d.id + i] * (double)pk[i];
        sum += dot > 0 || fault == NO_RELU ? dot : 0;
    }
    return fault == NO_ROOT ? sum : sum / sqrt(a->d.id);
}

static int inside(double d, const k_band *b) {
    return d <= sqrt(b->hard2) && d <= 3 * sqrt(b->rms2);
}

static void test_f64(void **state) {
    (void)state;
    for (int act = 0; act < 2; act++) {
        double low[2] = {1e9, 1e9}, high[2] = {0, 0}, hard[2] = {0, 0};
        for (int i = 4; i < 20; i++) {
            task a = task_new((uint64_t)i, 1 + i % 4, i % 2 ? 40 : 32, i % 3 ? 4 : 3, 5, lengths[i / 2], act);
            result r = result_new(&a);
            k_band b[2] = {{0, 0}, {0, 0}};
            run(&a, &r, 0, a.T, 0, 1, b);
            for (int f = 0; f < FAULTS; f++) { /* a block or two may score 0 whatever is wrong */
                double d2[2] = {0, 0}, y[64];
                for (int t = 0; t < a.T; t++)
                    for (int blk = 0; blk < (t + 1) / a.d.ratio; blk++) {
                        double e = (double)r.score[t * r.width + blk] - ref_score(&a, f, t, r.poolc.f + blk * a.d.id);
                        d2[1] += e * e;
                        if (t % a.d.ratio != a.d.ratio - 1 || blk != t / a.d.ratio) continue;
                        ref_pool(&a, f, blk, y);
                        e = h_dist(r.pool + t * a.d.id, y, a.d.id);
                        d2[0] += e * e;
                    }
                for (int o = 0; o < 2; o++) {
                    int ok = inside(sqrt(d2[o]), &b[o]), mine = f == SOUND || (f < NO_RELU) == (o == 0);
                    if (f == SOUND && !ok) fail_msg("%s, T %d: outside", o ? "score" : "pool", a.T);
                    if (f != SOUND && mine && ok && a.T > 5)
                        fail_msg("%s, T %d: fault %d went unseen", o ? "score" : "pool", a.T, f);
                    if (f != SOUND || a.T < 60) continue;
                    double x = sqrt(d2[o] / b[o].rms2);
                    low[o] = fmin(low[o], x), high[o] = fmax(high[o], x),
                    hard[o] = fmax(hard[o], sqrt(d2[o] / b[o].hard2));
                }
            }
            result_free(&r), task_free(&a);
        }
        for (int o = 0; o < 2; o++) {
            print_message("%s %s: distance %.2f to %.2f of rms, up to %.3f of hard\n", act ? "bf16" : "f32",
                          o ? "score" : "pool", low[o], high[o], hard[o]);
            assert_true(low[o] >= 0.5 && high[o] <= 2);
        }
    }
}

/* The contract's orders in plain loops; what stands where there is no block. */
static void test_orders(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        task a = task_new(100 + (uint64_t)i, 3, i % 2 ? 72 : 32, i % 2 ? 4 : 5, 6, 70, i / 2);
        const int id = a.d.id, ratio = a.d.ratio, half = a.d.rot / 2, act = a.lv.act;
        result r = result_new(&a);
        run(&a, &r, 0, 70, 0, 1, NULL);
        for (int t = 0; t < 70; t++) {
            float y[72] = {0};
            const int b = t / ratio;
            if ((t + 1) % ratio == 0) {
                for (int e = 0; e < id; e++) {
                    y[e] = a.raw[b * ratio * id + e];
                    for (int k = 1; k < ratio; k++) y[e] = y[e] + a.raw[(b * ratio + k) * id + e];
                    y[e] = k_rd(y[e] / (float)ratio, act);
                }
                const float rs = k_rsqrt(k_lanes32_dot(y, y, id) / (float)id + a.d.eps);
                for (int e = 0; e < id; e++) y[e] = k_rd((y[e] * rs) * a.gamma[e], act);
                for (int e = 0; e < half; e++) {
                    float s, c, lo = y[e], hi = y[e + half];
                    k_sincos(a.freq[e] * (float)(b * ratio), &s, &c);
                    s = k_rd(s, act), c = k_rd(c, act);
                    y[e] = k_rd(k_rd(lo * c, act) - k_rd(hi * s, act), act);
                    y[e + half] = k_rd(k_rd(hi * c, act) + k_rd(lo * s, act), act);
                }
                assert_bits_equal("pooled cache", r.poolc.f + b * id, y, (size_t)id);
            }
            assert_bits_equal("pool", r.pool + t * id, y, (size_t)id);
            for (int blk = 0; blk < r.width; blk++) {
                float want = -1, s = 0;
                for (int h = 0; h < 3; h++)
                    s = s + fmaxf(0, k_lanes32_dot(a.q + (t * 3 + h) * id, r.poolc.f + blk * id, id));
                if (blk < (t + 1) / ratio) want = s / sqrtf((float)id);
                assert_bits_equal("score", r.score + t * r.width + blk, &want, 1);
            }
        }
        result_free(&r), task_free(&a);
    }
}

/* Best first, lower block first among equals: written from the rule, quadratic. */
static void brute(const float *score, int nb, int k, int32_t *ids) {
    for (int i = 0; i < nb; i++) {
        int rank = 0;
        for (int j = 0; j < nb; j++) rank += score[j] > score[i] || (score[j] == score[i] && j < i);
        if (rank < k) ids[rank] = i;
    }
}

static void test_selection(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++) { /* budgets 1 .. 4 blocks, lengths around the first pruned row */
        const int nsel = 1 + i / 3, ratio = 4, T = nsel * ratio + ratio - 1 + i % 3 + (i == 11 ? 60 : 0);
        task a = task_new(200 + (uint64_t)i, 1 + i % 2, 16, ratio, nsel, T, i % 2);
        for (int e = 0; i % 3 == 2 && e < T * 16; e++)
            a.q[e] = a.raw[e] < 0 ? a.raw[e] : -a.raw[e]; /* many zero scores */
        result r = result_new(&a);
        run(&a, &r, 0, T, 0, 1, NULL);
        for (int t = 0; t < T; t++) {
            int32_t want[64];
            const int nb = (t + 1) / ratio;
            for (int e = 0; e < 64; e++) want[e] = -1;
            brute(r.score + t * r.width, nb, nb < nsel ? nb : nsel, want);
            assert_memory_equal(r.sel + t * r.selw, want, (size_t)r.selw * sizeof *want);
        }
        result_free(&r), task_free(&a);
    }
}

static void compare(const result *r, const result *s, const task *a, const char *what) {
    assert_bits_equal(what, s->pool, r->pool, (size_t)(a->T * a->d.id));
    assert_bits_equal(what, s->score, r->score, (size_t)(a->T * r->width));
    assert_bits_equal(what, s->rawc.f, r->rawc.f, (size_t)(a->T * a->d.id));
    assert_bits_equal(what, s->poolc.f, r->poolc.f, (size_t)(s->poolc.cap * a->d.id));
    assert_memory_equal(s->sel, r->sel, (size_t)(a->T * r->selw) * 4);
}

static void test_splits(void **state) {
    (void)state;
    for (int act = 0; act < 2; act++) {
        task a = task_new(300, 4, 32, 4, 7, 130, act);
        result r = result_new(&a), s = result_new(&a), u = result_new(&a), v = result_new(&a);
        run(&a, &r, 0, 130, 0, 1, NULL);
        for (int t = 0; t < 130; t++) run(&a, &s, t, 1, 0, 1, NULL);
        compare(&r, &s, &a, "token by token");
        for (int t = 0; t < 130; t += 64) run(&a, &u, t, t + 64 > 130 ? 2 : 64, 1, 1, NULL);
        compare(&r, &u, &a, "tiles");
        run(&a, &v, 0, 130, 0, 5, NULL);
        compare(&r, &v, &a, "threads");
        result n = result_new(&a);
        a.q[77 * 4 * 32 + 3] = NAN; /* one query */
        run(&a, &n, 0, 130, 0, 1, NULL);
        for (int t = 0; t < 130; t++) {
            if (t == 77) continue;
            assert_bits_equal("NaN, scores of other rows", n.score + t * r.width, r.score + t * r.width,
                              (size_t)r.width);
            assert_memory_equal(n.sel + t * r.selw, r.sel + t * r.selw, (size_t)r.selw * 4);
        }
        assert_true(n.score[77 * r.width] != n.score[77 * r.width]); /* the twin: it is there */
        result_free(&r), result_free(&s), result_free(&u), result_free(&v), result_free(&n), task_free(&a);
    }
}

/* Attention over the selection equals attention over everything for t <= 2050 and nowhere later (spec 5.4). */
static void test_dense(void **state) {
    (void)state;
    static const int T[] = {3, 4, 5, 2047, 2051, 2052, 2056};
    for (int i = 0; i < 7; i++) {
        task a = task_new(400 + (uint64_t)i, 1, 8, 4, 512, T[i], 0);
        const int n = T[i] < 16 ? T[i] : 16, t0 = T[i] - n; /* the last rows */
        k_dims d = a.d;
        d.H = d.G = 1, d.hd = 8;
        h_rng g = {i == 0};
        float *q = h_normal(&g, n * 8, 1, 0), *k = h_normal(&g, T[i] * 8, 1, 0), *v = h_normal(&g, T[i] * 8, 1, 0),
              *o[2];
        result r = result_new(&a);
        run(&a, &r, 0, T[i], 0, 1, NULL);
        for (int dense = 0; dense < 2; dense++) {
            k_call c = h_call(&d, &a.lv, n, t0, 1, attn_scratch(&d, T[i])), s = c, p = c, x = c;
            const int32_t *sel = dense ? NULL : r.sel + t0 * r.selw;
            k_state kc = h_state(T[i], 8, 0), vc = h_state(T[i], 8, 0);
            float *sc = h_nans((int64_t)n * T[i]), *pr = h_nans((int64_t)n * T[i]);
            memcpy(kc.f, k, (size_t)t0 * 32), memcpy(vc.f, v, (size_t)t0 * 32);
            o[dense] = h_nans(n * 8);
            s.in[0] = q, s.in[1] = k + t0 * 8, s.in_i[2] = sel, s.in_cols[2] = r.selw, s.st[0] = &kc, s.cols = T[i],
            s.out = sc;
            attn_score_cpu(&s);
            p.in[0] = sc, p.in_i[1] = sel, p.in_cols[1] = r.selw, p.cols = T[i], p.out = pr;
            attn_prob_cpu(&p);
            x.in[0] = pr, x.in[1] = v + t0 * 8, x.in_i[3] = sel, x.in_cols[3] = r.selw, x.st[0] = &vc, x.cols = 8,
            x.out = o[dense];
            attn_ctx_cpu(&x);
            free(sc), free(pr), h_state_free(&kc), h_state_free(&vc), h_scratch_free(&c);
        }
        for (int t = 0; t < n; t++) {
            const int same = h_same(o[0] + t * 8, o[1] + t * 8, 8) == 1;
            if (same != (t0 + t <= 2050)) fail_msg("T %d, t %d: %s", T[i], t0 + t, same ? "nothing pruned" : "pruned");
        }
        free(q), free(k), free(v), free(o[0]), free(o[1]), result_free(&r), task_free(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_f64), cmocka_unit_test(test_orders),
                                       cmocka_unit_test(test_selection), cmocka_unit_test(test_splits),
                                       cmocka_unit_test(test_dense)};
    return cmocka_run_group_tests_name("indexer", tests, NULL, NULL);
}
