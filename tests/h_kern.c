#include "tests/h_kern.h"

#include <math.h>

void hk_free(hk *h) {
    for (int i = 0; i < h->nowned; i++) free(h->owned[i]);
    memset(h, 0, sizeof *h);
}

void *hk_alloc(hk *h, size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    assert_true(h->nowned < (int)(sizeof h->owned / sizeof *h->owned));
    return h->owned[h->nowned++] = p;
}

double hk_uniform(uint64_t *seed) {
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

float hk_bf16(double x) {
    int e;
    if (!isfinite(x) || x == 0.0) return (float)x;
    frexp(x, &e);
    int q = e - 8 < -133 ? -133 : e - 8;
    return (float)ldexp(rint(ldexp(x, -q)), q);
}

float hk_rd(const hk *h, int i, float x) {
    return h->lv.act == K_ACT_BF16 && i != h->drop ? hk_bf16((double)x) : x;
}

float *hk_fill(hk *h, int64_t n, double lo, double hi) {
    float *x = hk_alloc(h, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(lo + (hi - lo) * hk_uniform(&h->seed));
        if (h->lv.act == K_ACT_BF16) x[i] = hk_bf16((double)x[i]);
    }
    return x;
}

void hk_in(hk *h, int slot, int64_t cols, double lo, double hi) {
    h->c.in[slot] = hk_fill(h, h->c.T * cols, lo, hi);
    h->c.in_cols[slot] = cols;
}

void hk_state_new(hk *h, int64_t rows, int64_t cols, int ids) {
    h->st = (k_state){.cols = cols, .cap = rows, .rows = rows};
    h->st.f = hk_alloc(h, (size_t)(rows * cols) * sizeof(float));
    h->st0 = hk_alloc(h, (size_t)(rows * cols) * sizeof(float));
    if (ids)
        for (int64_t i = 0; i < rows * cols; i++) ((int32_t *)(void *)h->st0)[i] = h->d.eos;
}

float hk_lanes_sum(const float *a, int64_t n) {
    float lane[32];
    for (int l = 0; l < 32; l++) {
        lane[l] = 0.0f;
        for (int64_t i = l; i < n; i += 32) lane[l] = lane[l] + a[i];
    }
    for (int t = 16; t; t /= 2) {
        float next[32];
        for (int l = 0; l < 32; l++) next[l] = lane[l] + lane[l ^ t];
        memcpy(lane, next, sizeof lane);
    }
    return lane[0];
}

float hk_lanes(const float *a, const float *b, int64_t n) {
    float lane[32];
    for (int l = 0; l < 32; l++) {
        lane[l] = 0.0f;
        for (int64_t i = l; i < n; i += 32) lane[l] = fmaf(a[i], b[i], lane[l]);
    }
    return hk_lanes_sum(lane, 32); /* +0 + lane and then the butterfly: the same bits, no lane is -0 */
}

int64_t hk_differ(const char *name, const float *a, const float *b, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if ((a[i] != a[i] && b[i] != b[i]) || k_f32_bits(a[i]) == k_f32_bits(b[i])) continue;
        if (!count++ && name)
            print_message("%s[%lld]: %a, expected %a\n", name, (long long)i, (double)a[i], (double)b[i]);
    }
    return count;
}

void hk_run(hk *h, k_fn op, float *out, int32_t chunk) {
    k_call whole = h->c;
    if (h->st0) memcpy(h->st.f, h->st0, (size_t)(h->st.cap * h->st.cols) * sizeof(float));
    if (!chunk) chunk = whole.T;
    for (int32_t t = 0; t < whole.T; t += chunk) {
        k_call c = whole;
        c.T = whole.T - t < chunk ? whole.T - t : chunk;
        c.t0 = whole.t0 + t;
        c.pos0 = whole.pos0 + t;
        c.Tcall = c.T;
        c.d = &h->d;
        c.lv = &h->lv;
        c.st[0] = &h->st;
        c.out = out + t * c.cols;
        for (int i = 0; i < K_MAXIN; i++)
            if (c.in[i]) c.in[i] += t * c.in_cols[i];
        op(&c);
    }
}

static void make(hk *h, const hk_op *o, int32_t T, int shape, int act, uint64_t seed) {
    memset(h, 0, sizeof *h);
    h->lv.act = act;
    h->seed = seed;
    h->drop = -1;
    h->c.T = T;
    h->c.nth = 1;
    o->build(h, T, shape);
    h->c.d = &h->d; /* as a model or a band sees the call */
    h->c.lv = &h->lv;
}

static float *output(hk *h, k_fn op, int32_t chunk) {
    float *y = hk_alloc(h, (size_t)(h->c.T * h->c.cols) * sizeof *y);
    hk_run(h, op, y, chunk);
    return y;
}

static const int32_t sizes[] = {1, 2, 3, 5, 17};
enum { NSIZES = sizeof sizes / sizeof *sizes };

void hk_model(void **set) {
    const hk_op *ops = ((const hk_set *)*set)->ops;
    const int n = ((const hk_set *)*set)->n;
    int64_t bad = 0;
    for (int k = 0; k < n; k++)
        for (int act = 0; act < 2; act++)
            for (int s = 0; s < ops[k].shapes; s++)
                for (int i = 0; i < NSIZES; i++) {
                    hk h;
                    make(&h, &ops[k], sizes[i], s, act, 1000u + (uint64_t)(s * 10 + i));
                    float *y = output(&h, ops[k].op, 0), *m = hk_alloc(&h, (size_t)(h.c.T * h.c.cols) * sizeof *m);
                    ops[k].model(&h, m);
                    bad += hk_differ(ops[k].name, y, m, h.c.T * h.c.cols);
                    hk_free(&h);
                }
    assert_int_equal(bad, 0);
}

void hk_needed(void **set) {
    const hk_op *ops = ((const hk_set *)*set)->ops;
    const int n = ((const hk_set *)*set)->n;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < 32; i++) {
            if (!(ops[k].needed >> i & 1)) continue;
            hk h;
            make(&h, &ops[k], 17, 0, K_ACT_BF16, 77);
            float *y = output(&h, ops[k].op, 0), *m = hk_alloc(&h, (size_t)(h.c.T * h.c.cols) * sizeof *m);
            h.drop = i;
            ops[k].model(&h, m);
            if (hk_differ(NULL, y, m, h.c.T * h.c.cols) == 0)
                fail_msg("%s: without rounding %d nothing changes", ops[k].name, i);
            hk_free(&h);
        }
}

/* L2 of (scaled output - exact) over hard and over rms. A MOVE has no band and must have no error: 0 of hard, 1 rms. */
static int in_band(const hk_op *o, int shape, int act, float scale, int talk) {
    hk h;
    k_band b = {0, 0};
    make(&h, o, 40, shape, act, 5);
    int64_t m = h.c.T * h.c.cols;
    float *y = output(&h, o->op, 0);
    double *e = hk_alloc(&h, (size_t)m * sizeof *e), err = 0;
    o->exact(&h, e);
    for (int64_t i = 0; i < m; i++) {
        y[i] = y[i] * scale;
        err += ((double)y[i] - e[i]) * ((double)y[i] - e[i]);
    }
    h.c.out = y;
    o->band(&h.c, &b);
    int move = b.hard2 == 0.0 && b.rms2 == 0.0;
    double hard = move ? err : sqrt(err / b.hard2), rms = move ? 1.0 : sqrt(err / b.rms2);
    if (talk && !move)
        print_message("%-9s %s shape %d: %.3f of hard, %.2f rms\n", o->name, act ? "bf16" : "f32 ", shape, hard, rms);
    hk_free(&h);
    return hard <= (move ? 0.0 : 1.0) && rms >= 0.2 && rms <= 1.5;
}

void hk_bands(void **set) {
    const hk_op *ops = ((const hk_set *)*set)->ops;
    const int n = ((const hk_set *)*set)->n;
    int bad = 0;
    for (int k = 0; k < n; k++) {
        if (!ops[k].band) continue;
        for (int act = 0; act < 2; act++)
            for (int s = 0; s < ops[k].shapes; s++) bad += !in_band(&ops[k], s, act, 1.0f, 1);
        /* twin: a relative error of four stores (f32: of a few hundred steps) is outside */
        assert_false(in_band(&ops[k], 0, K_ACT_BF16, 1.0f + 0x1p-6f, 0));
        assert_false(in_band(&ops[k], 0, K_ACT_F32, 1.0f + 0x1p-16f, 0));
    }
    assert_int_equal(bad, 0);
}

void hk_splits(void **set) {
    const hk_op *ops = ((const hk_set *)*set)->ops;
    const int n = ((const hk_set *)*set)->n;
    int64_t bad = 0;
    for (int k = 0; k < n; k++)
        for (int act = 0; act < 2; act++)
            for (int s = 0; s < ops[k].shapes; s++) {
                hk h;
                make(&h, &ops[k], 41, s, act, 9);
                int64_t ns = h.st.cap * h.st.cols;
                float *y = output(&h, ops[k].op, 0), *st = hk_alloc(&h, (size_t)(ns + 1) * sizeof *st);
                if (ns) memcpy(st, h.st.f, (size_t)ns * sizeof *st);
                for (int32_t chunk = 1; chunk < 41; chunk += chunk < 5 ? 1 : 6) {
                    float *z = output(&h, ops[k].op, chunk);
                    bad += hk_differ(ops[k].name, z, y, h.c.T * h.c.cols);
                    bad += ns ? hk_differ("its state", h.st.f, st, ns) : 0;
                }
                hk_free(&h);
            }
    assert_int_equal(bad, 0);
}

void hk_threads(void **set) {
    const hk_op *ops = ((const hk_set *)*set)->ops;
    const int n = ((const hk_set *)*set)->n;
    int64_t bad = 0;
    for (int k = 0; k < n; k++)
        for (int act = 0; act < 2; act++) {
            hk h;
            make(&h, &ops[k], 1, 0, act, 3);
            int32_t T = (int32_t)(80000 / h.c.cols) + 3; /* enough to be worth threads */
            hk_free(&h);
            make(&h, &ops[k], T, 0, act, 3);
            float *y = output(&h, ops[k].op, 0);
            for (int nth = 2; nth < 4; nth++) {
                h.c.nth = nth;
                float *z = output(&h, ops[k].op, 0);
                bad += hk_differ(ops[k].name, z, y, h.c.T * h.c.cols);
            }
            hk_free(&h);
        }
    assert_int_equal(bad, 0);
}

void hk_twins(void **set) {
    const hk_op *ops = ((const hk_set *)*set)->ops;
    const int n = ((const hk_set *)*set)->n;
    for (int k = 0; k < n; k++) {
        hk h;
        make(&h, &ops[k], 5, 0, K_ACT_F32, 4);
        int64_t m = h.c.T * h.c.cols, at = m / 3;
        float *y = output(&h, ops[k].op, 0), *z = output(&h, ops[k].op, 0);
        assert_int_equal(hk_differ(NULL, z, y, m), 0);
        z[at] = k_bits_f32(k_f32_bits(z[at]) + 1u);
        assert_int_equal(hk_differ(NULL, z, y, m), 1);
        z[at] = k_bits_f32(k_f32_bits(y[at]) ^ 0x80000000u);
        assert_int_equal(hk_differ(NULL, z, y, m), 1);
        z[at] = y[at];
        for (at = 1; at < m && k_f32_bits(y[at]) == k_f32_bits(y[0]); at++) {}
        assert_true(at < m);
        z[0] = y[at];
        z[at] = y[0];
        assert_int_equal(hk_differ(NULL, z, y, m), 2);
        hk_free(&h);
    }
}
