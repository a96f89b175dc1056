/* The mixers step by step on the reference's own inputs: gdn.{qkv,b,a} to gdn.core, attn.{qn,kn,v,qg} and the stream to
 * attn.{sel,gated}, states carried from forward to forward. f32: distance; bf16: share of equal bits. */
#include <math.h>
#include <stdlib.h>

#include "kernels/attn.h"
#include "kernels/conv.h"
#include "kernels/elem.h"
#include "kernels/gdn.h"
#include "kernels/indexer.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "tests/h_call.h"
#include "tests/h_golden.h"

enum { MAXPOS = 128 };

typedef struct {
    const char *name;
    k_dims d;
    double theta;
    int nlayers;
} geometry;

static const geometry micro[] = {
    {"micro-a",
     {.D = 64,
      .nk = 2,
      .nv = 4,
      .dk = 16,
      .dv = 16,
      .C = 128,
      .Kc = 4,
      .H = 4,
      .G = 2,
      .hd = 32,
      .rot = 8,
      .ih = 2,
      .id = 16,
      .ratio = 4,
      .nsel = 16,
      .eps = 1e-6f},
     1e4,
     4},
    {"micro-b",
     {.D = 96,
      .nk = 2,
      .nv = 6,
      .dk = 16,
      .dv = 16,
      .C = 160,
      .Kc = 4,
      .H = 6,
      .G = 2,
      .hd = 32,
      .rot = 16,
      .ih = 4,
      .id = 32,
      .ratio = 4,
      .nsel = 4,
      .eps = 1e-6f},
     1e7,
     8},
};

/* The full files where they are, else the tracked excerpts. */
static h_golden *file(const geometry *g, const char *what) {
    char path[160];
    h_golden *f;
    snprintf(path, sizeof path, "../shared/golden/%s/%s.safetensors", g->name, what);
    if ((f = h_golden_open(path))) return f;
    snprintf(path, sizeof path, "tests/golden/%s/%s.safetensors", g->name, what);
    if (!(f = h_golden_open(path))) fail_msg("%s is missing", path);
    return f;
}

static float *tap(const h_golden *f, int fwd, int layer, const char *name, int64_t *rows) {
    char key[96];
    int64_t r, c;
    snprintf(key, sizeof key, "f%d/L%02d.%s", fwd, layer, name);
    float *x = h_golden_f32(f, key, &r, &c);
    if (rows) *rows = r;
    return x;
}

static int there(const h_golden *f, int fwd, int layer, const char *name) {
    char key[96];
    snprintf(key, sizeof key, "f%d/L%02d.%s", fwd, layer, name);
    return h_golden_has(f, key);
}

static float *weight(const h_golden *m, int layer, const char *name, float plus) {
    char key[160];
    int64_t r, c;
    snprintf(key, sizeof key, "model.layers.%d.%s", layer, name);
    float *x = h_golden_f32(m, key, &r, &c);
    for (int64_t i = 0; i < r * c; i++) x[i] += plus;
    return x;
}

/* What a comparison saw. */
typedef struct {
    double d2, n2;
    int64_t same, n;
} tally;

static void count(tally *s, const float *got, const float *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        s->d2 += d * d, s->n2 += (double)want[i] * (double)want[i];
        s->same += !memcmp(&got[i], &want[i], 4), s->n++;
    }
}

static int good(const tally *s, int act) {
    return act ? (double)s->same >= 0.999 * (double)s->n : sqrt(s->d2) <= 1e-5 * sqrt(s->n2);
}

static void report(const char *what, const geometry *g, const char *kind, const tally *s) {
    print_message("%s %s %s: %.1e relative, %.3f %% of %lld equal\n", g->name, kind, what, sqrt(s->d2 / s->n2),
                  100.0 * (double)s->same / (double)s->n, (long long)s->n);
}

/* ---- GDN ---- */

typedef struct {
    const geometry *g;
    k_dims d;
    k_levers lv;
    float *taps, *bias, *negA;
    k_state conv, delta;
} gdn;

static gdn gdn_new(const geometry *g, const h_golden *m, int layer, int act, int rule) {
    gdn x = {.g = g, .d = g->d, .lv = {.act = act, .gdn = rule}};
    x.taps = weight(m, layer, "linear_attn.conv1d.weight", 0);
    x.bias = weight(m, layer, "linear_attn.dt_bias", 0);
    x.negA = weight(m, layer, "linear_attn.A_log", 0);
    for (int i = 0; i < g->d.nv; i++) x.negA[i] = -(float)exp((double)x.negA[i]);
    x.conv = h_state(3, g->d.C, 0);
    x.conv.rows = 3;
    x.delta = h_state(g->d.nv * g->d.dk, g->d.dv, 0);
    return x;
}

static void gdn_free(gdn *x) {
    free(x->taps), free(x->bias), free(x->negA), h_state_free(&x->conv), h_state_free(&x->delta);
}

static void l2(k_call c, const float *conv, int off, int cols, float *out) {
    c.in[0] = conv, c.in_cols[0] = c.d->C, c.off = off, c.G = c.d->dk, c.stride = c.d->dk, c.cols = cols, c.out = out;
    l2norm_cpu(&c);
}

static void gdn_forward(gdn *x, const h_golden *f, const h_golden *ref, int fwd, int layer, int *pos, tally *s) {
    int64_t rows;
    float *qkv = tap(f, fwd, layer, "gdn.qkv", &rows), *a = tap(f, fwd, layer, "gdn.a", NULL);
    float *b = tap(f, fwd, layer, "gdn.b", NULL), *want = tap(ref, fwd, layer, "gdn.core", NULL);
    const k_dims *d = &x->d;
    const int T = (int)rows, kw = d->nk * d->dk, vw = d->nv * d->dv;
    k_call base = h_call(d, &x->lv, T, *pos, 1, gdn_scratch(d)), c = base;
    float *u = h_nans((int64_t)T * d->C), *q = h_nans(T * kw), *k = h_nans(T * kw), *v = h_nans(T * vw),
          *o = h_nans(T * vw);
    float *g = h_nans(T * d->nv);
    c.in[0] = qkv, c.in_cols[0] = c.cols = d->C, c.par[0] = x->taps, c.st[0] = &x->conv, c.out = u;
    conv1d_cpu(&c);
    l2(base, u, 0, kw, q), l2(base, u, kw, kw, k);
    for (int t = 0; t < T; t++) memcpy(v + t * vw, u + (int64_t)t * d->C + 2 * kw, (size_t)vw * 4);
    c = base, c.in[0] = a, c.in_cols[0] = c.cols = d->nv, c.par[0] = x->negA, c.par[1] = x->bias, c.out = g;
    gdn_g_cpu(&c);
    for (int i = 0; i < T * d->nv; i++) b[i] = k_rd(k_sigmoid(b[i]), x->lv.act);
    c = base, c.cols = vw, c.out = o, c.st[0] = &x->delta;
    const float *in[] = {q, k, v, g, b};
    const int64_t cols[] = {kw, kw, vw, d->nv, d->nv};
    for (int i = 0; i < 5; i++) c.in[i] = in[i], c.in_cols[i] = cols[i];
    gdn_core_cpu(&c);
    count(s, o, want, T * vw);
    *pos += T;
    float *all[] = {qkv, a, b, want, u, q, k, v, o, g};
    for (int i = 0; i < 10; i++) free(all[i]);
    h_scratch_free(&base);
}

/* inputs: where the taps before the core are; what: where the core is. */
static tally gdn_run(const geometry *g, const char *inputs, const char *what, int act, int rule, int other_heads) {
    h_golden *m = file(g, "model"), *f = file(g, inputs), *ref = file(g, what);
    tally s = {0, 0, 0, 0};
    for (int layer = 0; layer < (strcmp(inputs, what) ? 1 : g->nlayers); layer++) {
        if (!there(f, 0, layer, "gdn.qkv")) continue;
        gdn x = gdn_new(g, m, layer, act, rule);
        x.d.gguf_heads = other_heads;
        int pos = 0;
        for (int fwd = 0; there(f, fwd, layer, "gdn.qkv"); fwd++) gdn_forward(&x, f, ref, fwd, layer, &pos, &s);
        gdn_free(&x);
    }
    h_golden_close(m), h_golden_close(f), h_golden_close(ref);
    return s;
}

static void test_gdn(void **state) {
    (void)state;
    static const char *kind[2][2] = {{"golden-f32seq", "golden-f32"}, {"golden-bf16seq", "golden-bf16"}};
    for (int i = 0; i < 2; i++)
        for (int act = 0; act < 2; act++)
            for (int rule = 0; rule < 2; rule++) {
                /* micro-b's files of the sequential rule hold no inputs; those of layer 0 are the same */
                const char *inputs = i ? kind[act][1] : kind[act][rule];
                tally s = gdn_run(&micro[i], inputs, kind[act][rule], act, rule, 0);
                report("gdn.core", &micro[i], kind[act][rule] + 7, &s);
                if (!good(&s, act)) fail_msg("%s %s", micro[i].name, kind[act][rule]);
                s = gdn_run(&micro[i], inputs, kind[act][rule], act, rule, 1); /* the twin */
                if (good(&s, act)) fail_msg("%s %s: wrong head order unseen", micro[i].name, kind[act][rule]);
            }
}

/* ---- attention ---- */

typedef struct {
    const geometry *g;
    k_levers lv;
    float *freq, *wqk, *nq, *nk; /* index_qk_proj [ih id + id, D], norms with 1 + w */
    k_state k, v, raw, pool;
    int blind; /* the twin: pretend that there is no indexer */
} qsa;

static qsa qsa_new(const geometry *g, const h_golden *m, int layer, int act) {
    const k_dims *d = &g->d;
    qsa x = {.g = g, .lv = {.act = act, .freq = act, .tie = K_TIE_TORCH}};
    x.freq = h_nans(d->rot / 2);
    for (int i = 0; i < d->rot / 2; i++) x.freq[i] = 1.0f / (float)pow(g->theta, 2.0 * i / d->rot);
    x.wqk = weight(m, layer, "self_attn.indexer.index_qk_proj.weight", 0);
    x.nq = weight(m, layer, "self_attn.indexer.q_layernorm.weight", 1);
    x.nk = weight(m, layer, "self_attn.indexer.k_layernorm.weight", 1);
    x.k = h_state(MAXPOS, d->G * d->hd, NAN), x.v = h_state(MAXPOS, d->G * d->hd, NAN);
    x.raw = h_state(MAXPOS, d->id, NAN), x.pool = h_state(MAXPOS / d->ratio, d->id, NAN);
    return x;
}

static void qsa_free(qsa *x) {
    free(x->freq), free(x->wqk), free(x->nq), free(x->nk);
    h_state_free(&x->k), h_state_free(&x->v), h_state_free(&x->raw), h_state_free(&x->pool);
}

static void rope(k_call c, const qsa *x, const float *in, int cols, int G, float *out) {
    c.in[0] = in, c.in_cols[0] = c.cols = cols, c.G = G, c.par[0] = x->freq, c.out = out;
    rope_cpu(&c);
}

/* Rows of x times columns from .. of the projection, summed in f64. */
static float *project(const qsa *x, const float *in, int T, int from, int n) {
    const int D = x->g->d.D;
    float *y = h_nans((int64_t)T * n);
    for (int t = 0; t < T; t++)
        for (int o = 0; o < n; o++) {
            double s = 0;
            for (int i = 0; i < D; i++) s += (double)in[t * D + i] * (double)x->wqk[(from + o) * D + i];
            y[t * n + o] = k_rd((float)s, x->lv.act);
        }
    return y;
}

/* Selected blocks of T rows, [T, *ret_width]. */
static int32_t *select_blocks(qsa *x, k_call base, const float *mix, int *ret_width) {
    const k_dims *d = &x->g->d;
    const int T = base.T, qw = d->ih * d->id, nb = base.Tc / d->ratio > 1 ? base.Tc / d->ratio : 1;
    const int w = d->nsel < nb ? d->nsel : nb;
    float *q = project(x, mix, T, 0, qw), *raw = project(x, mix, T, qw, d->id), *n = h_nans((int64_t)T * qw);
    float *rq = h_nans((int64_t)T * qw), *pk = h_nans((int64_t)T * d->id), *sc = h_nans((int64_t)T * nb);
    int32_t *sel = malloc((size_t)(T * w) * sizeof *sel);
    assert_non_null(sel);
    k_call c = base;
    c.in[0] = q, c.in_cols[0] = c.cols = qw, c.G = c.stride = d->id, c.par[0] = x->nq, c.out = n;
    rmsnorm_cpu(&c);
    rope(base, x, n, qw, d->id, rq);
    c = base, c.in[0] = raw, c.in_cols[0] = c.cols = d->id, c.par[0] = x->nk, c.par[1] = x->freq, c.out = pk;
    c.st[0] = &x->raw;
    idx_pool_cpu(&c);
    c = base, c.in[0] = rq, c.in_cols[0] = qw, c.in[1] = pk, c.in_cols[1] = d->id, c.cols = nb, c.st[0] = &x->pool,
    c.out = sc;
    idx_score_cpu(&c);
    c = base, c.in[0] = sc, c.in_cols[0] = nb, c.cols = w, c.out_i = sel;
    idx_sel_cpu(&c);
    free(q), free(raw), free(n), free(rq), free(pk), free(sc);
    *ret_width = w;
    return sel;
}

/* Rows whose visible tokens are not those of the reference (0 = visible). */
static int wrong_rows(const qsa *x, const float *mask, const int32_t *sel, int w, int T, int pos, int Tc) {
    int wrong = 0;
    for (int t = 0; t < T; t++) {
        int bad = 0;
        for (int j = 0; j < Tc; j++) {
            const int p = pos + t, ratio = x->g->d.ratio, nb = (p + 1) / ratio;
            int see = j <= p && j >= nb * ratio;
            for (int i = 0; i < w; i++) see |= j <= p && sel[t * w + i] == j / ratio;
            bad |= see != (mask[t * Tc + j] == 0);
        }
        wrong += bad;
    }
    return wrong;
}

static void qsa_forward(qsa *x, const h_golden *f, int fwd, int layer, int *pos, tally *s, int *wrong) {
    const k_dims *d = &x->g->d;
    int64_t rows;
    float *mix = tap(f, fwd, layer, "ahc.mix", &rows), *qn = tap(f, fwd, layer, "attn.qn", NULL);
    float *kn = tap(f, fwd, layer, "attn.kn", NULL), *v = tap(f, fwd, layer, "attn.v", NULL);
    float *qg = tap(f, fwd, layer, "attn.qg", NULL), *want = tap(f, fwd, layer, "attn.gated", NULL);
    float *mask = tap(f, fwd, layer, "attn.sel", NULL);
    const int T = (int)rows, qw = d->H * d->hd, kw = d->G * d->hd, Tc = *pos + T;
    int64_t scratch = attn_scratch(d, Tc) + indexer_scratch(d, Tc);
    k_call base = h_call(d, &x->lv, T, *pos, 1, scratch), c;
    float *q = h_nans(T * qw), *k = h_nans(T * kw), *sc = h_nans((int64_t)T * d->H * Tc), *o = h_nans(T * qw);
    float *pr = h_nans((int64_t)T * d->H * Tc), *y = h_nans(T * qw);
    int w = 0;
    int32_t *sel = select_blocks(x, base, mix, &w);
    *wrong += wrong_rows(x, mask, sel, w, T, *pos, Tc);
    rope(base, x, qn, qw, d->hd, q), rope(base, x, kn, kw, d->hd, k);
    const int32_t *see = x->blind ? NULL : sel;
    c = base, c.in[0] = q, c.in[1] = k, c.in_i[2] = see, c.in_cols[2] = w, c.st[0] = &x->k, c.cols = d->H * Tc,
    c.out = sc;
    attn_score_cpu(&c);
    c = base, c.in[0] = sc, c.in_i[1] = see, c.in_cols[1] = w, c.cols = d->H * Tc, c.out = pr;
    attn_prob_cpu(&c);
    c = base, c.in[0] = pr, c.in[1] = v, c.in_i[3] = see, c.in_cols[3] = w, c.st[0] = &x->v, c.cols = qw, c.out = o;
    attn_ctx_cpu(&c);
    c = base, c.in[0] = o, c.in[1] = qg, c.in_cols[0] = qw, c.in_cols[1] = 2 * qw, c.G = d->hd, c.cols = qw, c.out = y;
    attn_gate_cpu(&c);
    count(s, y, want, T * qw);
    *pos += T;
    float *all[] = {mix, qn, kn, v, qg, want, mask, q, k, sc, o, pr, y};
    for (int i = 0; i < 13; i++) free(all[i]);
    free(sel), h_scratch_free(&base);
}

static tally qsa_run(const geometry *g, const char *what, int act, int freq, int blind, int *wrong) {
    h_golden *m = file(g, "model"), *f = file(g, what);
    tally s = {0, 0, 0, 0};
    *wrong = 0;
    for (int layer = 3; layer < g->nlayers; layer += 4) {
        qsa x = qsa_new(g, m, layer, act);
        x.lv.freq = freq, x.blind = blind;
        int pos = 0;
        for (int fwd = 0; there(f, fwd, layer, "attn.qn"); fwd++) qsa_forward(&x, f, fwd, layer, &pos, &s, wrong);
        qsa_free(&x);
    }
    h_golden_close(m), h_golden_close(f);
    return s;
}

static void test_attn(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int act = 0; act < 2; act++) {
            int wrong;
            const char *what = act ? "golden-bf16" : "golden-f32";
            tally s = qsa_run(&micro[i], what, act, act, 0, &wrong);
            report("attn.gated", &micro[i], what + 7, &s);
            print_message("    rows whose selection differs: %d\n", wrong);
            if (!good(&s, act)) fail_msg("%s %s", micro[i].name, what);
            assert_int_equal(wrong, 0);
            s = qsa_run(&micro[i], what, act, !act, 0, &wrong); /* twins: the other frequencies; no selection */
            if (good(&s, act)) fail_msg("%s %s: rope.freq unseen", micro[i].name, what);
            s = qsa_run(&micro[i], what, act, act, 1, &wrong);
            if (good(&s, act) != (i == 0)) fail_msg("%s %s: whether it prunes", micro[i].name, what);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gdn), cmocka_unit_test(test_attn)};
    return cmocka_run_group_tests_name("mixers against the reference", tests, NULL, NULL);
}
