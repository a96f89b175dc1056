/* Ops against the reference outputs of micro-a, each step from the reference's own inputs, every forward: what has both
 * sides on file is compared directly, what has a product between goes through a plain lanes32 dot. States run on. */
#include "tests/h_kern.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>

#include "kernels/conv.h"
#include "kernels/elem.h"
#include "kernels/hc.h"
#include "kernels/norm.h"
#include "kernels/ple.h"
#include "kernels/reduce.h"

enum { D = 64, N = 4, W = 256, RANK = 16, NV = 4, DV = 16, H = 4, HD = 32, P = 8, PW = 8, NG = 3, FORWARDS = 8 };
#define DIR "tests/golden/micro-a/"

/* ---- a safetensors file, whole in memory (ours, tracked: trusted) ---- */

typedef struct {
    char *bytes;
    json_t *head;
    size_t data;
} file;

static file slurp(const char *path) {
    file f = {0};
    FILE *s = fopen(path, "rb");
    if (!s) fail_msg("no %s: run from the root of the repository", path);
    fseek(s, 0, SEEK_END);
    size_t n = (size_t)ftell(s);
    rewind(s);
    f.bytes = malloc(n);
    assert_non_null(f.bytes);
    assert_int_equal(fread(f.bytes, 1, n, s), n);
    fclose(s);
    uint64_t len;
    memcpy(&len, f.bytes, 8);
    f.head = json_loadb(f.bytes + 8, len, 0, NULL);
    assert_non_null(f.head);
    f.data = 8 + len;
    return f;
}

static void drop(file *f) {
    free(f->bytes);
    json_decref(f->head);
}

/* Values of a tensor as f32 (BF16, F32) or int64 (I64), malloc'd. */
static void *tensor(const file *f, int64_t n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void *tensor(const file *f, int64_t n, const char *fmt, ...) {
    char name[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    json_t *t = json_object_get(f->head, name);
    if (!t) fail_msg("no tensor %s", name);
    const char *type = json_string_value(json_object_get(t, "dtype"));
    size_t at = (size_t)json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0)), i;
    json_t *dim;
    int64_t have = 1;
    json_array_foreach(json_object_get(t, "shape"), i, dim) have *= json_integer_value(dim);
    assert_int_equal(have, n);
    char *src = f->bytes + f->data + at, *out = calloc((size_t)n, 8);
    assert_non_null(out);
    for (int64_t k = 0; k < n; k++)
        if (strcmp(type, "BF16") == 0) {
            uint16_t b;
            memcpy(&b, src + 2 * k, 2);
            ((float *)(void *)out)[k] = k_f32_from_bf16(b);
        } else
            memcpy(out + (type[0] == 'I' ? 8 : 4) * k, src + (type[0] == 'I' ? 8 : 4) * k, type[0] == 'I' ? 8 : 4);
    return out;
}

/* gamma = 1 + w, in f32 */
static float *gamma_of(const file *f, int64_t n, const char *name) {
    float *w = tensor(f, n, "%s", name);
    for (int64_t i = 0; i < n; i++) w[i] = 1.0f + w[i];
    return w;
}

/* ---- tallies: bits equal, and relative L2 ---- */

typedef struct {
    int64_t n, equal;
    double e, s, worst; /* worst: largest difference in ulp of bf16 */
} tally;

static void compare(tally *t, const float *got, const float *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        int e;
        frexp((double)want[i], &e);
        t->n++;
        t->equal += k_f32_bits(got[i]) == k_f32_bits(want[i]);
        t->e += d * d;
        t->s += (double)want[i] * (double)want[i];
        if (!(fabs(d) * ldexp(1, 8 - e) <= t->worst)) t->worst = fabs(d) * ldexp(1, 8 - e);
    }
}

/* bf16: every bit. f32, where the reference summed in another order: relative L2 below 5e-7, or, when the op has no sum
 * (exact), every bit. */
static int good(const char *what, const tally *t, int act, int exact) {
    double rel = sqrt(t->e / t->s);
    print_message("%-22s %s %6" PRId64 " of %6" PRId64 " bitwise equal, rel L2 %.1e, worst %.2f ulp of bf16\n", what,
                  act ? "bf16" : "f32 ", t->equal, t->n, rel, t->worst);
    if (!(t->n > 0)) return 0;
    return act || exact ? t->equal == t->n : rel <= 5e-7;
}

/* ---- one arm: model, golden, levers ---- */

typedef struct {
    file m, g;
    k_dims d;
    k_levers lv;
    int32_t T, pos0;
    int f; /* forward */
} arm;

static const char *const goldens[] = {DIR "golden-f32.safetensors", DIR "golden-bf16.safetensors"};

static arm open_arm(int act) {
    arm a = {.m = slurp(DIR "model.safetensors"), .g = slurp(goldens[act])};
    a.d = (k_dims){
        .D = D, .N = N, .W = W, .nv = NV, .dv = DV, .hd = HD, .Kp = 4, .n = NG, .P = P, .eos = 0, .eps = 1e-6f};
    a.lv.act = act;
    return a;
}

static void close_arm(arm *a) {
    drop(&a->m);
    drop(&a->g);
}

static void forward(arm *a, int f) {
    a->f = f;
    a->T = f == 0 ? 9 : 1;
    a->pos0 = f == 0 ? 0 : 8 + f;
}

static k_call call(const arm *a, int64_t cols, float *out) {
    return (k_call){
        .T = a->T, .pos0 = a->pos0, .Tcall = a->T, .nth = 1, .cols = cols, .out = out, .d = &a->d, .lv = &a->lv};
}

/* rd(x A^T), one lanes32 dot an output. */
static void product(const arm *a, const float *x, const float *w, int64_t K, int64_t O, float *y) {
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t o = 0; o < O; o++) y[t * O + o] = k_rd(k_lanes32_dot(w + o * K, x + t * K, K), a->lv.act);
}

static void norm(const arm *a, const float *x, const float *gamma, int64_t G, int64_t cols, float *y) {
    k_call c = call(a, cols, y);
    c.in[0] = x, c.in_cols[0] = cols, c.par[0] = gamma;
    c.G = (int32_t)G, c.stride = (int32_t)G, c.per = 1;
    rmsnorm_cpu(&c);
}

/* A whole mix from the stream: norm, down, silu, up, sigmoid, mean; inj when its weights are given. */
static void mix(const arm *a, const char *prefix, const float *stream, float *out, float *inj) {
    char name[128];
    snprintf(name, sizeof name, "%s.hc_norm.weight", prefix);
    float *g = gamma_of(&a->m, W, name), *down = tensor(&a->m, RANK * W, "%s.input_mix_weight_down.weight", prefix);
    float *up = tensor(&a->m, W * RANK, "%s.input_mix_weight_up.weight", prefix);
    float xn[9 * W], lo[9 * RANK], u[9 * W], m[9 * W];
    int32_t act = a->lv.act;
    norm(a, stream, g, D, W, xn);
    product(a, xn, down, W, RANK, lo);
    for (int i = 0; i < a->T * RANK; i++) lo[i] = k_rd(k_silu(k_rd(lo[i] / N, act)), act);
    product(a, lo, up, RANK, W, u);
    k_call c = call(a, W, m);
    c.in[0] = u, c.in_cols[0] = W;
    sigmoid_cpu(&c);
    c = call(a, D, out);
    c.in[0] = m, c.in[1] = xn, c.in_cols[0] = c.in_cols[1] = W;
    hc_mix_cpu(&c);
    if (inj) {
        float *w = tensor(&a->m, N * W, "%s.block_inject_weight.weight", prefix);
        product(a, xn, w, W, N, inj);
        for (int i = 0; i < a->T * N; i++) inj[i] = 2.0f * k_rd(k_sigmoid(k_rd(inj[i] / N, act)), act);
        free(w);
    }
    free(g), free(down), free(up);
}

static void add(const arm *a, const float *h, const float *y, const float *inj, float *out) {
    k_call c = call(a, W, out);
    c.in[0] = h, c.in[1] = y, c.in[2] = inj;
    c.in_cols[0] = W, c.in_cols[1] = D, c.in_cols[2] = N;
    hc_add_cpu(&c);
}

#define GOLD(a, n, tap) tensor(&(a)->g, (a)->T *(n), "f%d/" tap, (a)->f)
#define GOLDL(a, n, l, tap) tensor(&(a)->g, (a)->T *(n), "f%d/L%02d." tap, (a)->f, l)

/* ---- hyper-connections: the stream's sums directly, the mixes through their products ---- */

static void half(const arm *a, int l, int mlp, tally *t_mix, tally *t_inj, tally *t_add) {
    static const char *const from[] = {"in", "s.attn"}, *const mod[] = {"ahc", "mhc"}, *const blk[] = {"blk", "moe"},
                             *const to[] = {"s.attn", "out"}, *const name[] = {"attn", "mlp"};
    char prefix[80];
    snprintf(prefix, sizeof prefix, "model.layers.%d.%s_hyper_connection", l, name[mlp]);
    float *h = tensor(&a->g, a->T * W, "f%d/L%02d.%s", a->f, l, from[mlp]);
    float *gm = tensor(&a->g, a->T * D, "f%d/L%02d.%s.mix", a->f, l, mod[mlp]);
    float *gi = tensor(&a->g, a->T * N, "f%d/L%02d.%s.inj", a->f, l, mod[mlp]);
    float *y = tensor(&a->g, a->T * D, "f%d/L%02d.%s", a->f, l, blk[mlp]);
    float *next = tensor(&a->g, a->T * W, "f%d/L%02d.%s", a->f, l, to[mlp]);
    float out[9 * W], inj[9 * N], in[9 * W];
    memcpy(in, h, (size_t)(a->T * W) * sizeof *in);
    if (l == 1 && !mlp) { /* .in lies before the per-layer embedding */
        float *ple = GOLDL(a, W, l, "ple");
        k_call c = call(a, W, in);
        c.in[0] = h, c.in[1] = ple, c.in_cols[0] = c.in_cols[1] = W;
        add_cpu(&c);
        free(ple);
    }
    mix(a, prefix, in, out, inj);
    compare(t_mix, out, gm, a->T * D);
    compare(t_inj, inj, gi, a->T * N);
    add(a, in, y, gi, out);
    compare(t_add, out, next, a->T * W);
    free(h), free(gm), free(gi), free(y), free(next);
}

static void hyper(void **state) {
    (void)state;
    int bad = 0;
    for (int act = 0; act < 2; act++) {
        arm a = open_arm(act);
        tally t_mix = {0}, t_inj = {0}, t_add = {0}, t_out = {0}, t_wide = {0};
        for (int f = 0; f < FORWARDS; f++) {
            forward(&a, f);
            for (int l = 0; l < 4; l++)
                for (int mlp = 0; mlp < 2; mlp++) half(&a, l, mlp, &t_mix, &t_inj, &t_add);
            float *h = GOLDL(&a, W, 3, "out"), *o = GOLD(&a, D, "out"), *e = GOLD(&a, D, "emb"),
                  *in = GOLDL(&a, W, 0, "in");
            float y[9 * W];
            mix(&a, "model.hyper_connection_mixer", h, y, NULL);
            compare(&t_out, y, o, a.T * D);
            k_call c = call(&a, W, y);
            c.in[0] = e, c.in_cols[0] = D;
            widen_cpu(&c);
            compare(&t_wide, y, in, a.T * W);
            free(h), free(o), free(e), free(in);
        }
        bad += !good("mix", &t_mix, act, 0) + !good("inj", &t_inj, act, 0) + !good("add of streams", &t_add, act, 1);
        bad += !good("terminal mix", &t_out, act, 0) + !good("widen", &t_wide, act, 1);
        close_arm(&a);
    }
    assert_int_equal(bad, 0);
}

/* Twin: with the wrong stream's injection the sum is not the reference's. */
static void hyper_twin(void **state) {
    (void)state;
    arm a = open_arm(1);
    forward(&a, 0);
    float *h = GOLDL(&a, W, 0, "in"), *y = GOLDL(&a, D, 0, "blk"), *i = GOLDL(&a, N, 0, "ahc.inj"),
          *o = GOLDL(&a, W, 0, "s.attn");
    float out[9 * W];
    float s = i[0];
    i[0] = i[1], i[1] = s;
    tally t = {0};
    add(&a, h, y, i, out);
    compare(&t, out, o, a.T * W);
    assert_false(good("twin", &t, 1, 1));
    free(h), free(y), free(i), free(o);
    close_arm(&a);
}

/* ---- norms with both sides on file ---- */

static void norms(void **state) {
    (void)state;
    int bad = 0;
    for (int act = 0; act < 2; act++) {
        arm a = open_arm(act);
        tally gdn = {0}, qn = {0}, kn = {0};
        for (int f = 0; f < FORWARDS; f++) {
            forward(&a, f);
            float y[9 * H * HD];
            for (int l = 0; l < 3; l++) {
                float *core = GOLDL(&a, D, l, "gdn.core"), *z = GOLDL(&a, D, l, "gdn.z"),
                      *n = GOLDL(&a, D, l, "gdn.norm");
                float *w = tensor(&a.m, DV, "model.layers.%d.linear_attn.norm.weight", l);
                k_call c = call(&a, NV * DV, y);
                c.in[0] = core, c.in[1] = z, c.in_cols[0] = c.in_cols[1] = NV * DV, c.par[0] = w, c.G = DV;
                gdn_norm_cpu(&c);
                compare(&gdn, y, n, a.T * D);
                free(core), free(z), free(n), free(w);
            }
            float *qg = GOLDL(&a, 2 * H * HD, 3, "attn.qg"), *q = GOLDL(&a, H * HD, 3, "attn.qn");
            float *k = GOLDL(&a, 2 * HD, 3, "attn.k"), *k2 = GOLDL(&a, 2 * HD, 3, "attn.kn");
            float *gq = gamma_of(&a.m, HD, "model.layers.3.self_attn.q_norm.weight");
            float *gk = gamma_of(&a.m, HD, "model.layers.3.self_attn.k_norm.weight");
            k_call c = call(&a, H * HD, y); /* q of head h at columns 2 h hd .. of [q|gate] */
            c.in[0] = qg, c.in_cols[0] = 2 * H * HD, c.par[0] = gq, c.G = HD, c.stride = 2 * HD;
            rmsnorm_cpu(&c);
            compare(&qn, y, q, a.T * H * HD);
            c = call(&a, 2 * HD, y);
            c.in[0] = k, c.in_cols[0] = 2 * HD, c.par[0] = gk, c.G = HD, c.stride = HD;
            rmsnorm_cpu(&c);
            compare(&kn, y, k2, a.T * 2 * HD);
            free(qg), free(q), free(k), free(k2), free(gq), free(gk);
        }
        bad += !good("gated norm", &gdn, act, 0) + !good("norm of q", &qn, act, 0);
        bad += !good("norm of k", &kn, act, 0);
        close_arm(&a);
    }
    assert_int_equal(bad, 0);
}

/* ---- the per-layer embedding: ids, rows, gate, gated value, convolution; its states through all forwards ---- */

typedef struct {
    int64_t par[NG + 2 * P];
    float *table, *key, *val, *nkey, *nquery, *nconv, *conv;
} ple;

static ple open_ple(const arm *a) {
    ple p;
    const char *const base = "model.layers.1.ple.";
    char name[96];
    int64_t *m = tensor(&a->m, NG, "%sple_embedding.layer_multipliers", base);
    int64_t *s = tensor(&a->m, P, "%sple_embedding.ngram_heads_vocab_sizes", base);
    int64_t *o = tensor(&a->m, P, "%sple_embedding.ngram_heads_offsets", base);
    assert_int_equal(k_ple_consts(256, NG, P / (NG - 1), 200, 1234, 0, p.par, p.par + NG, p.par + NG + P), 0);
    for (int i = 0; i < NG; i++) assert_int_equal(p.par[i], m[i]);
    for (int i = 0; i < P; i++) assert_true(p.par[NG + i] == s[i] && p.par[NG + P + i] == o[i]);
    free(m), free(s), free(o);
    p.table = malloc(4 * 464 * PW * sizeof *p.table);
    assert_non_null(p.table);
    for (int i = 0; i < 4; i++) {
        float *sh = tensor(&a->m, 464 * PW, "%sple_embedding.ngram_embedding.shard_%d.weight", base, i);
        memcpy(p.table + i * 464 * PW, sh, 464 * PW * sizeof *sh);
        free(sh);
    }
    p.key = tensor(&a->m, W * D, "%skey_proj.weight", base);
    p.val = tensor(&a->m, D * D, "%svalue_proj.weight", base);
    p.conv = tensor(&a->m, W * 4, "%sconv1d.weight", base);
    float **norms[] = {&p.nkey, &p.nquery, &p.nconv};
    static const char *const names[] = {"key", "query", "conv"};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%snorm_%s.weight", base, names[i]);
        *norms[i] = gamma_of(&a->m, W, name);
    }
    return p;
}

static void close_ple(ple *p) {
    free(p->table), free(p->key), free(p->val), free(p->nkey), free(p->nquery), free(p->nconv), free(p->conv);
}

/* out [T,W] of one forward from the golden's rows e and stream h. */
static void ple_block(const arm *a, const ple *p, const float *e, const float *h, k_state *st, float *out) {
    float key[9 * W], kn[9 * W], qn[9 * W], val[9 * D], g[9 * N], gv[9 * W], gn[9 * W], cv[9 * W];
    product(a, e, p->key, D, W, key);
    product(a, e, p->val, D, D, val);
    norm(a, key, p->nkey, D, W, kn);
    norm(a, h, p->nquery, D, W, qn);
    k_call c = call(a, N, g);
    c.in[0] = kn, c.in[1] = qn, c.in_cols[0] = c.in_cols[1] = W;
    ple_gate_cpu(&c);
    c = call(a, W, gv);
    c.in[0] = g, c.in[1] = val, c.in_cols[0] = N, c.in_cols[1] = D;
    ple_mul_cpu(&c);
    norm(a, gv, p->nconv, D, W, gn);
    c = call(a, W, cv);
    c.in[0] = gn, c.in_cols[0] = W, c.par[0] = p->conv, c.st[0] = st;
    ple_conv_cpu(&c);
    c = call(a, W, out);
    c.in[0] = gv, c.in[1] = cv, c.in_cols[0] = c.in_cols[1] = W;
    add_cpu(&c);
}

static void embedding(void **state) {
    (void)state;
    static const int32_t prompt[] = {22, 220, 166, 78, 219, 43, 162, 61, 23},
                         greedy[] = {124, 183, 128, 171, 15, 108, 118, 243};
    int bad = 0;
    for (int act = 0; act < 2; act++) {
        arm a = open_arm(act);
        ple p = open_ple(&a);
        float conv_rows[9 * W] = {0};
        int32_t hist[2] = {0, 0};
        k_state conv = {.f = conv_rows, .cols = W, .cap = 9, .rows = 9},
                ids = {.i = hist, .cols = 1, .cap = 2, .rows = 2};
        tally rows = {0}, out = {0}, stale = {0};
        for (int f = 0; f < FORWARDS; f++) {
            forward(&a, f);
            int32_t id[9 * P];
            float y[9 * W], e[9 * D];
            k_call c = call(&a, P, NULL);
            c.out_i = id, c.in_i[0] = f ? greedy + f - 1 : prompt, c.in_cols[0] = 1, c.ipar = p.par, c.st[0] = &ids;
            ple_ids_cpu(&c);
            for (int i = 0; i < a.T * P; i++) memcpy(e + i * PW, p.table + id[i] * PW, PW * sizeof *e);
            float *ge = GOLDL(&a, D, 1, "ple.emb"), *h = GOLDL(&a, W, 1, "in"), *go = GOLDL(&a, W, 1, "ple");
            compare(&rows, e, ge, a.T * D);
            float empty[9 * W] = {0}; /* twin: the convolution's state lost between forwards */
            k_state lost = {.f = empty, .cols = W, .cap = 9, .rows = 9};
            ple_block(&a, &p, ge, h, &lost, y);
            compare(&stale, y, go, a.T * W);
            ple_block(&a, &p, ge, h, &conv, y);
            compare(&out, y, go, a.T * W);
            free(ge), free(h), free(go);
        }
        bad += !good("n-gram rows", &rows, act, 1) + !good("per-layer embedding", &out, act, 0);
        bad += good("twin: state lost", &stale, act, 0);
        close_ple(&p);
        close_arm(&a);
    }
    assert_int_equal(bad, 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(hyper), cmocka_unit_test(hyper_twin), cmocka_unit_test(norms),
                                       cmocka_unit_test(embedding)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
