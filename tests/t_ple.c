/* Hashed n-gram embedding: constants, row ids, gate: kernels/ple.c. Vectors: spec 7.1, 7.3, and the script of its
 * appendix A. */
#include "tests/h_kern.h"

#include <inttypes.h>
#include <math.h>

#include "kernels/ple.h"

enum { MAXN = 6, MAXP = 32, RELEASED_EOS = 248044 };

/* ---- constants ---- */

typedef struct {
    int64_t V, base, seed;
    int32_t n, heads, index, eos;
} hashing;

static const hashing released = {248320, 20000000, 1234, 3, 8, 0, RELEASED_EOS};

/* n multipliers, P sizes, P offsets in one array, as the op takes them. */
static void derive(const hashing *g, int64_t *par) {
    int32_t P = (g->n - 1) * g->heads;
    assert_int_equal(k_ple_consts(g->V, g->n, g->heads, g->base, g->seed, g->index, par, par + g->n, par + g->n + P),
                     0);
}

static void constants(void **state) {
    (void)state;
    static const int64_t want[] = {
        23703573157769, 20109073645365, 8052911324071,                                                       /* mult */
        20000003,       20000023,       20000033,      20000047,  20000059,  20000063,  20000069,  20000077, /* size */
        20000081,       20000093,       20000107,      20000147,  20000153,  20000159,  20000161,  20000171, 0,
        20000003,       40000026,       60000059,      80000106,  100000165, 120000228, 140000297, /* off */
        160000374,      180000455,      200000548,     220000655, 240000802, 260000955, 280001114, 300001275};
    int64_t par[35];
    derive(&released, par);
    for (int i = 0; i < 35; i++) assert_int_equal(par[i], want[i]);
    assert_int_equal(par[34] + par[18], 320001446);
    /* a base that is prime itself counts; twins: another seed, index or vocabulary is another hash */
    hashing h = released;
    h.base = 20000003;
    derive(&h, par);
    for (int i = 0; i < 35; i++) assert_int_equal(par[i], want[i]);
    h.base = 20000004;
    derive(&h, par);
    assert_int_equal(par[3], want[4]);
    h = released, h.seed = 1235, derive(&h, par), assert_true(par[0] != want[0] && par[3] == want[3]);
    h = released, h.V = 248321, derive(&h, par), assert_true(par[0] != want[0] && par[3] == want[3]);
    h = released, h.index = 1, derive(&h, par), assert_true(par[0] != want[0] && par[3] > want[18]);
}

static void constants_refuse(void **state) {
    (void)state;
    int64_t a[8], b[64], c[64];
    assert_int_equal(k_ple_consts(0, 3, 8, 100, 1, 0, a, b, c), -1);
    assert_int_equal(k_ple_consts(10, 1, 8, 100, 1, 0, a, b, c), -1);
    assert_int_equal(k_ple_consts(10, 3, 0, 100, 1, 0, a, b, c), -1);
    assert_int_equal(k_ple_consts(10, 3, 8, 1, 1, 0, a, b, c), -1);
    assert_int_equal(k_ple_consts(10, 3, 8, 100, 1, -1, a, b, c), -1);
    assert_int_equal(k_ple_consts(10, INT32_MAX, INT32_MAX, 100, 1, 0, a, b, c), -1);
    assert_int_equal(k_ple_consts(10, 3, 8, 100, 1, INT32_MAX, a, b, c), -1);
    assert_int_equal(k_ple_consts(10, 3, 8, INT64_MAX - 30, 1, 0, a, b, c), -1);
    assert_int_equal(k_ple_consts(INT64_MAX, 3, 8, 2, INT64_MIN, 0, a, b, c), 0); /* half is at least 1; wraps */
    assert_int_equal(a[0], 1);
    assert_int_equal(b[0], 2);
    assert_int_equal(b[15], 53);
    assert_int_equal(k_ple_consts(10, 2, 1, ((int64_t)1 << 61) - 1, 1, 0, a, b, c), 0); /* a large prime */
    assert_int_equal(b[0], ((int64_t)1 << 61) - 1);
}

/* ---- row ids ---- */

/* The op on tokens after a history, in calls of `chunk` ids (0: at once); out [n, P]. */
static void ids_op(const hashing *g, const int32_t *hist, const int32_t *tok, int32_t T, int32_t chunk, int32_t *out,
                   int32_t *ret_hist) {
    int64_t par[MAXN + 2 * MAXP];
    int32_t P = (g->n - 1) * g->heads, h[MAXN];
    derive(g, par);
    memcpy(h, hist, (size_t)(g->n - 1) * sizeof *h);
    k_state st = {.i = h, .cols = 1, .cap = g->n - 1, .rows = g->n - 1};
    k_dims d = {.n = g->n, .P = P, .eos = g->eos};
    k_levers lv = {0};
    for (int32_t t = 0; t < T; t += chunk ? chunk : T) {
        int32_t m = !chunk ? T : T - t < chunk ? T - t : chunk;
        k_call c = {.T = m,
                    .t0 = t,
                    .pos0 = t,
                    .nth = 1,
                    .cols = P,
                    .out_i = out + t * P,
                    .in_i = {tok + t},
                    .in_cols = {1},
                    .ipar = par,
                    .st = {&st},
                    .d = &d,
                    .lv = &lv};
        ple_ids_cpu(&c);
    }
    if (ret_hist) memcpy(ret_hist, h, (size_t)(g->n - 1) * sizeof *h);
}

typedef struct {
    int32_t hist[2], tok[5], n;
    int32_t id[5][16];
} worked;
#define EOS RELEASED_EOS

static const worked spec73[] = {
    {{EOS, EOS},
     {9707, 11, 1879, EOS, 314},
     5,
     {{16410909, 39682429, 55103279, 60931720, 87006904, 116506179, 131512017, 152932897, 169641436, 182022480,
       209277433, 237891023, 256841529, 277007269, 290665954, 300984276},
      {18158303, 36390029, 45652312, 70783524, 98191154, 114024957, 127804916, 159566246, 175132467, 192583600,
       217919476, 237199054, 259336807, 261799367, 289359313, 307699687},
      {6380558, 26411572, 56460672, 78566983, 94693008, 106742196, 124822692, 148942556, 164226950, 190352573,
       210933682, 238908951, 242182004, 265475238, 299910982, 312121804},
      {18827606, 27700912, 56521518, 65780303, 81132822, 100518937, 120474864, 142052741, 163793416, 184135950,
       219854666, 227756662, 248975183, 271245822, 285569892, 318943450},
      {8260854, 33106041, 59264976, 60072089, 98935463, 112687005, 134061582, 143955837, 178749106, 199051338,
       215607266, 231149282, 254184348, 278446456, 293473221, 310651623}}},
    {{123, 456},
     {789},
     1,
     {{2491316, 28761835, 51917996, 68359989, 88189145, 101470006, 131395511, 157970613, 166816437, 197523925,
       206707499, 235951520, 251357128, 266767674, 285239060, 317603747}}},
    {{248045, 846},
     {198},
     1,
     {{4582007, 37691206, 44255274, 65455601, 89351473, 103985474, 135938409, 145212418, 163775156, 199680439,
       200044921, 228961047, 240669798, 272736434, 296838250, 317942745}}},
    {{EOS, EOS},
     {EOS},
     1,
     {{9663979, 26558231, 56120240, 74755659, 80459717, 109265651, 132697467, 151022725, 170054832, 192967038,
       200687722, 225763581, 259275737, 272983544, 297596484, 300986548}}},
    {{248053, 248056},
     {248056},
     1, /* a run of placeholders after <vision_start> */
     {{16982399, 34740182, 54733895, 75973670, 98195745, 119174304, 120865008, 143535541, 173993462, 185809083,
       203917179, 238671211, 256634956, 274794499, 280891190, 311700975}}},
};

static int worked_ok(const worked *w) {
    int bad = 0;
    for (int32_t chunk = 0; chunk < 4; chunk++) {
        int32_t out[5 * 16];
        ids_op(&released, w->hist, w->tok, w->n, chunk, out, NULL);
        for (int i = 0; i < w->n * 16; i++) bad += out[i] != w->id[i / 16][i % 16];
    }
    return bad == 0;
}

static void spec_vectors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof spec73 / sizeof *spec73; i++) assert_true(worked_ok(&spec73[i]));
    worked twin = spec73[1]; /* an order of history, an id, a head: each is seen */
    twin.hist[0] = 456, twin.hist[1] = 123;
    assert_false(worked_ok(&twin));
    twin = spec73[0], twin.id[4][15]++;
    assert_false(worked_ok(&twin));
    twin = spec73[3], twin.hist[0] = 5; /* behind an EOS the older id is not read: equal all the same */
    assert_true(worked_ok(&twin));
}

/* Other geometries, by the script: n = 2 with an EOS as history and inside; n = 4 with the history cut. */
static void script_vectors(void **state) {
    (void)state;
    static const hashing g2 = {1000, 5000, 1234, 2, 3, 0, 7}, g4 = {1000, 5000, 99, 4, 2, 1, 7};
    static const int32_t h2[] = {7}, t2[] = {12, 7, 7, 999, 0, 5}, h4[] = {3, 7, 20},
                         t4[] = {12, 11, 7, 13, 14, 15, 16};
    static const int32_t want2[] = {2768, 6456, 11810, 2774, 7553, 13199, 3425, 5882, 12487,
                                    1569, 6460, 13214, 967,  8149, 10197, 4952, 9311, 11524};
    static const int32_t want4[] = {43,    8150,  11841, 19694, 24643, 25412, 1836,  5775,  12521, 18186, 21801,
                                    26901, 4808,  7496,  10370, 17511, 21648, 28470, 3824,  10055, 10211, 18549,
                                    20796, 29628, 2938,  5085,  12343, 16092, 22379, 30099, 4575,  8779,  13476,
                                    16112, 24005, 28750, 1514,  8301,  10603, 17193, 25009, 29135};
    int32_t out[42], hist[MAXN];
    for (int32_t chunk = 0; chunk < 5; chunk++) {
        ids_op(&g2, h2, t2, 6, chunk, out, hist);
        for (int i = 0; i < 18; i++) assert_int_equal(out[i], want2[i]);
        assert_int_equal(hist[0], 5);
        ids_op(&g4, h4, t4, 7, chunk, out, hist);
        for (int i = 0; i < 42; i++) assert_int_equal(out[i], want4[i]);
        assert_true(hist[0] == 14 && hist[1] == 15 && hist[2] == 16);
    }
}

static uint64_t fnv(const int32_t *x, int64_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++) h = (h ^ (uint64_t)x[i]) * 0x100000001b3u;
    return h;
}

/* 2000 ids, one in eleven EOS; the hashes are the script's. Then the definition of 7.2 word by word (the last EOS
 * before p in the whole sequence), and every way to cut the sequence into calls. */
static void long_sequences(void **state) {
    (void)state;
    static const struct {
        hashing g;
        uint64_t hash;
    } cases[] = {{{248320, 20000000, 1234, 3, 8, 0, EOS}, 0xdad07435629c7793u},
                 {{248320, 20000000, 1234, 2, 8, 0, EOS}, 0x787daed6a20a4a11u},
                 {{1024, 1000, 1234, 4, 2, 0, 3}, 0xe363fc5f5e47f87au},
                 {{1024, 1000, 5, 3, 4, 2, 3}, 0xaccab068d44728a1u}};
    enum { T = 2000 };
    int32_t *tok = malloc(T * sizeof *tok), *out = malloc(T * MAXP * sizeof *out),
            *ref = malloc(T * MAXP * sizeof *ref);
    assert_true(tok && out && ref);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const hashing *g = &cases[k].g;
        int32_t P = (g->n - 1) * g->heads, hist[MAXN];
        int64_t par[MAXN + 2 * MAXP];
        derive(g, par);
        for (int i = 0; i < MAXN; i++) hist[i] = g->eos;
        uint64_t s = 1;
        for (int i = 0; i < T; i++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            tok[i] = (s >> 33) % 11 == 0 ? g->eos : (int32_t)((int64_t)(s >> 33) % g->V);
        }
        ids_op(g, hist, tok, T, 0, ref, NULL);
        assert_true(fnv(ref, T * P) == cases[k].hash);
        int64_t e = -1; /* the last EOS before p; a sequence begins as if after one */
        for (int64_t p = 0; p < T; p++) {
            uint64_t x = (uint64_t)tok[p] * (uint64_t)par[0];
            for (int32_t r = 1; r < g->n; r++) {
                int32_t c = p - r >= 0 && p - (e + 1) >= r ? tok[p - r] : g->eos;
                x ^= (uint64_t)c * (uint64_t)par[r];
                for (int32_t h = (r - 1) * g->heads; h < r * g->heads; h++)
                    assert_int_equal(ref[p * P + h], (int64_t)(x % (uint64_t)par[g->n + h]) + par[g->n + P + h]);
            }
            if (tok[p] == g->eos) e = p;
        }
        for (int32_t chunk = 1; chunk < 40; chunk += chunk < 6 ? 1 : 11) {
            ids_op(g, hist, tok, T, chunk, out, NULL);
            assert_memory_equal(out, ref, (size_t)T * (size_t)P * sizeof *out);
        }
        int32_t keep = tok[T - 3]; /* twin: another id three before the end is another hash */
        tok[T - 3] = keep == 4 ? 5 : 4;
        ids_op(g, hist, tok, T, 0, out, NULL);
        assert_true(fnv(out, T * P) != cases[k].hash);
    }
    free(tok), free(out), free(ref);
}

/* ---- gate ---- */

static void b_gate(hk *h, int32_t T, int s) {
    static const int64_t D[] = {37, 64, 2560, 31}, N[] = {4, 3, 4, 2};
    (void)T;
    h->c.cols = N[s];
    hk_in(h, 0, D[s] * N[s], -2, 2);
    hk_in(h, 1, D[s] * N[s], -2, 2);
}

static void m_gate(const hk *h, float *y) {
    int64_t D = h->c.in_cols[0] / h->c.cols;
    float *pr = malloc((size_t)D * sizeof *pr);
    assert_non_null(pr);
    for (int64_t k = 0; k < h->c.T * h->c.cols; k++) {
        for (int64_t i = 0; i < D; i++) pr[i] = hk_rd(h, 0, h->c.in[0][k * D + i] * h->c.in[1][k * D + i]);
        float dt = hk_rd(h, 1, hk_lanes_sum(pr, D));
        float d = hk_rd(h, 2, dt / sqrtf((float)D));
        float m = hk_rd(h, 4, sqrtf(hk_rd(h, 3, fabsf(d) > 1e-6f ? fabsf(d) : 1e-6f)));
        y[k] = hk_rd(h, 6, k_sigmoid(hk_rd(h, 5, d > 0 ? m : d < 0 ? -m : 0.0f)));
    }
    free(pr);
}

static double gate_of(double d) {
    double m = sqrt(fmax(fabs(d), 1e-6));
    return 1 / (1 + exp(d > 0 ? -m : d < 0 ? m : 0));
}

/* rounding 5 is exact; 2, 3 and 4 are swallowed by the sigmoid's store too often to demand that each shows */
static const hk_op ops[] = {{"ple_gate", ple_gate_cpu, NULL, b_gate, m_gate, NULL, 4, 1 | 2 | 64}};

/* Against f64. g grows with d, so an error of d is an interval of g; the rest is relative to the root and to g. */
static void gate_bound(void **state) {
    (void)state;
    for (int act = 0; act < 2; act++) {
        hk h = {.seed = 6, .drop = -1, .lv.act = act, .c.T = 200, .c.nth = 1};
        b_gate(&h, 200, 1);
        int64_t D = 64, n = h.c.T * h.c.cols;
        float *y = hk_alloc(&h, (size_t)n * sizeof *y);
        double store = act ? 0x1p-8 : 0, u = 0x1p-24, worst = 0, twin = 0;
        hk_run(&h, ple_gate_cpu, y, 0);
        for (int64_t k = 0; k < n; k++) {
            double sum = 0, mag = 0;
            for (int64_t i = 0; i < D; i++) {
                double p = (double)h.c.in[0][k * D + i] * (double)h.c.in[1][k * D + i];
                sum += p;
                mag += fabs(p);
            }
            double d = sum / sqrt((double)D),
                   err = ((store + 8 * u) * mag + 1.01 * (store + u) * fabs(sum)) / sqrt((double)D);
            err += 1.01 * (store + 2 * u) * fabs(d);
            double g = gate_of(d), m = sqrt(fmax(fabs(d) + err, 1e-6));
            double rest = 0.25 * m * (1.5 * store + 2 * u) + (store + 4 * u) * g * 1.01;
            double room = fmax(gate_of(d + err) - g, g - gate_of(d - err)) + rest;
            worst = fmax(worst, fabs((double)y[k] - g) / room);
            twin = fmax(twin, fabs((double)y[k] - 1 / (1 + exp(-d))) / room); /* the root forgotten */
            assert_true(y[k] == y[k]);
        }
        print_message("ple_gate  %s: %.3f of hard\n", act ? "bf16" : "f32 ", worst);
        assert_true(worst <= 1.0 && worst >= 0.05);
        assert_true(twin > 1.0);
        hk_free(&h);
    }
}

/* One stream of four. */
static float gate4(float a, float b, float c, float d, float q, int act) {
    float key[] = {a, b, c, d}, query[] = {q, q, q, q}, y = -7;
    k_levers lv = {.act = act};
    k_call k = {.T = 1, .nth = 1, .cols = 1, .out = &y, .in = {key, query}, .in_cols = {4, 4}, .lv = &lv};
    ple_gate_cpu(&k);
    return y;
}

static void gate_values(void **state) {
    (void)state;
    for (int act = 0; act < 2; act++) {
        assert_true(gate4(1, -1, 2, -2, 3, act) == 0.5f); /* sum 0: sign 0 */
        assert_true(gate4(0, 0, -0.0f, 0, -1, act) == 0.5f);
        assert_true(gate4(1024, 0, 0, 1024, 1, act) == 1.0f);   /* d 1024, root 32 */
        assert_true(gate4(-0x1p+40f, 0, 0, 0, 1, act) == 0.0f); /* root 2^19.5: saturates */
        assert_true(isnan(gate4(NAN, 0, 0, 0, 1, act)) && isnan(gate4(INFINITY, -INFINITY, 0, 0, 1, act)));
        assert_true(gate4(INFINITY, 0, 0, 0, 1, act) == 1.0f && gate4(-INFINITY, 0, 0, 0, 1, act) == 0.0f);
        /* tiny d: clamped before the root, sign kept; one step off 1/2 under f32 */
        assert_true(
            gate4(1e-20f, 0, 0, 0, 1, act) ==
            hk_rd(&(hk){.lv.act = act, .drop = -1}, 0, k_sigmoid(act ? hk_bf16(sqrt(hk_bf16(1e-6))) : sqrtf(1e-6f))));
        assert_true(gate4(-1e-20f, 0, 0, 0, 1, 0) < 0.5f && gate4(1e-20f, 0, 0, 0, 1, 0) > 0.5f);
    }
}

static const hk_set set = {ops, 1};
#define SET (void *)(uintptr_t)&set

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants),
        cmocka_unit_test(constants_refuse),
        cmocka_unit_test(spec_vectors),
        cmocka_unit_test(script_vectors),
        cmocka_unit_test(long_sequences),
        cmocka_unit_test(gate_values),
        cmocka_unit_test(gate_bound),
        cmocka_unit_test_prestate(hk_model, SET),
        cmocka_unit_test_prestate(hk_needed, SET),
        cmocka_unit_test_prestate(hk_splits, SET),
        cmocka_unit_test_prestate(hk_threads, SET),
        cmocka_unit_test_prestate(hk_twins, SET),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
