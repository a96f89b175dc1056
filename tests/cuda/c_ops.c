/* Every op on the device against the CPU by bits: shapes around 32 and 64 and long ones, both acts, every lever that the
 * op reads, random operands with NaN, infinities, subnormals and signed zeros strewn in, states included. On the
 * emulator the long shapes are left to a GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/arith.h"
#include "kernels/ops.h"
#include "kernels/quant.h"
#include "tests/cuda/h_pair.h"
#include "tests/h_call.h"

static int emulated;
static h_rng rng = {2026};

/* One call being built. */
typedef struct {
    k_call c;
    k_dims d;
    k_levers lv;
    k_state st;
    int64_t par_n[K_MAXW];
    k_weight *w;
    void *owned[24];
    int nowned;
} kit;

static void *own(kit *k, size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    assert_true(k->nowned < 24);
    return k->owned[k->nowned++] = p;
}

static kit fresh(int32_t T, int32_t act) {
    kit k = {.lv.act = act, .d.eps = 1e-6f};
    k.c.T = k.c.Tcall = k.c.Tc = T;
    return k;
}

static void done(kit *k) {
    while (k->nowned) free(k->owned[--k->nowned]);
}

/* n values between -2 amp and 2 amp, on the grid of act; wild: one in 128 is something special. */
static float *values(kit *k, int64_t n, double amp, int wild) {
    static const uint32_t special[] = {0x7fc00000, 0xffc00001, 0x7f800000, 0xff800000, 0x00000001, 0x80000123,
                                       0x00000000, 0x80000000, 0x7f7fffff, 0x00800000, 0x33800000, 0xc2f00000,
                                       0x3f800000, 0xbf800000, 0x807fffff, 0x42b17218};
    float *x = own(k, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t u = h_next(&rng);
        x[i] = (float)(amp * ((double)(int32_t)(u >> 32) * 0x1p-30));
        if (wild && (u & 127) == 0) x[i] = k_bits_f32(special[u >> 7 & 15]);
        x[i] = k_rd(x[i], k->lv.act);
    }
    return x;
}

static void input(kit *k, int slot, int64_t cols, double amp, int wild) {
    k->c.in[slot] = values(k, k->c.T * cols, amp, wild);
    k->c.in_cols[slot] = cols;
}

static void par(kit *k, int slot, int64_t n, double amp) {
    k->c.par[slot] = values(k, n, amp, 0);
    k->par_n[slot] = n;
}

static void state(kit *k, int64_t cap, int64_t cols, double amp) {
    k->st = (k_state){.f = values(k, cap * cols, amp, 0), .cols = cols, .cap = cap, .rows = cap};
    k->c.st[0] = &k->st;
}

static int64_t run(kit *k, k_op op, const char *note) {
    char what[160];
    snprintf(what, sizeof what, "%s T=%d act=%s %s", k_ops[op].name, k->c.T, k->lv.act ? "bf16" : "f32", note);
    k->c.d = &k->d;
    k->c.lv = &k->lv;
    if (k->st.f) k->c.st[0] = &k->st;
    int64_t bad = hp_differ(what, op, &k->c, k->par_n);
    done(k);
    return bad;
}

static const int32_t Ts[] = {1, 5, 63, 64, 65, 512};
static const int32_t Ks[] = {1, 31, 33, 96, 160, 320, 640, 2560, 10240};
#define EACH(x, list) for (int x##_i = 0; x##_i < (int)(sizeof list / sizeof *list); x##_i++)

/* The emulator makes what takes it a moment. */
static int too_long(int64_t work) {
    return emulated && work > 400000;
}

/* ---- one output from a few numbers ---- */

typedef void (*elem_fn)(kit *k, int64_t n);

static void b_two(kit *k, int64_t n) {
    input(k, 0, n, 3, 1);
    input(k, 1, n, 3, 1);
    k->c.cols = n;
}
static void b_slice(kit *k, int64_t n) {
    input(k, 0, n + 7, 3, 1);
    k->c.off = 5;
    k->c.cols = n;
}
static void b_widen(kit *k, int64_t n) {
    input(k, 0, n, 3, 1);
    k->c.cols = 4 * n;
}
static void b_gate(kit *k, int64_t n) {
    k->d.hd = 8;
    k->c.cols = (n + 7) / 8 * 8;
    input(k, 0, k->c.cols, 3, 1);
    input(k, 1, 2 * k->c.cols, 3, 1);
}
static void b_gdn_g(kit *k, int64_t n) {
    input(k, 0, n, 3, 1);
    par(k, 0, n, 1);
    par(k, 1, n, 1);
    k->c.cols = n;
}
static void b_hc_mix(kit *k, int64_t n) {
    input(k, 0, 4 * n, 1, 1);
    input(k, 1, 4 * n, 1, 1);
    k->c.cols = n;
}
static void b_hc_add(kit *k, int64_t n) {
    input(k, 0, 4 * n, 1, 1);
    input(k, 1, n, 1, 1);
    input(k, 2, 4, 1, 1);
    k->c.cols = 4 * n;
}
static void b_moe_out(kit *k, int64_t n) {
    input(k, 0, n, 1, 1);
    input(k, 1, n, 1, 1);
    input(k, 2, 1, 1, 1);
    k->c.cols = n;
}
static void b_ple_mul(kit *k, int64_t n) {
    input(k, 0, 4, 1, 1);
    input(k, 1, n, 1, 1);
    k->c.cols = 4 * n;
}
static void b_ple_gate(kit *k, int64_t n) {
    input(k, 0, 4 * n, 1, 0);
    input(k, 1, 4 * n, 1, h_int(&rng, 0, 1));
    k->c.cols = 4;
}
static void b_rmsnorm(kit *k, int64_t n) {
    input(k, 0, 4 * n + 3, 1, h_int(&rng, 0, 1));
    par(k, 0, 4 * n, 1);
    k->c.G = (int32_t)n;
    k->c.stride = (int32_t)n;
    k->c.off = 3;
    k->c.per = 1;
    k->c.cols = 4 * n;
}
static void b_l2norm(kit *k, int64_t n) {
    input(k, 0, 2 * n + 3, 1, h_int(&rng, 0, 1));
    k->c.G = (int32_t)n;
    k->c.off = 3;
    k->c.cols = 2 * n;
}
static void b_gdn_norm(kit *k, int64_t n) {
    input(k, 0, 2 * n, 1, h_int(&rng, 0, 1));
    input(k, 1, 2 * n, 1, 1);
    par(k, 0, n, 1);
    k->d.gate_silu = h_int(&rng, 0, 1);
    k->c.G = (int32_t)n;
    k->c.cols = 2 * n;
}
static void b_rope(kit *k, int64_t n) {
    k->c.G = (int32_t)(n + 4);
    k->d.rot = (int32_t)(n / 2 * 2);
    input(k, 0, 3 * (n + 4) + 1, 1, 1);
    par(k, 0, n / 2 + 1, 1);
    k->c.pos0 = 1000;
    k->c.cols = 3 * (n + 4) + 1;
}
static void b_conv1d(kit *k, int64_t n) {
    k->d.Kc = 4;
    input(k, 0, n, 1, 1);
    par(k, 0, 4 * n, 1);
    state(k, 3, n, 1);
    k->c.pos0 = h_int(&rng, 0, 4);
    k->c.cols = n;
}
static void b_ple_conv(kit *k, int64_t n) {
    k->d.Kp = 4;
    k->d.n = 3;
    input(k, 0, n, 1, 1);
    par(k, 0, 4 * n, 1);
    state(k, 9, n, 1);
    k->c.pos0 = h_int(&rng, 0, 12);
    k->c.cols = n;
}

static const struct {
    k_op op;
    elem_fn build;
} plain[] = {
    {K_OP_slice, b_slice},     {K_OP_widen, b_widen},       {K_OP_add, b_two},           {K_OP_sigmoid, b_two},
    {K_OP_swiglu, b_two},      {K_OP_attn_gate, b_gate},    {K_OP_gdn_g, b_gdn_g},       {K_OP_hc_mix, b_hc_mix},
    {K_OP_hc_add, b_hc_add},   {K_OP_moe_out, b_moe_out},   {K_OP_ple_mul, b_ple_mul},   {K_OP_ple_gate, b_ple_gate},
    {K_OP_rmsnorm, b_rmsnorm}, {K_OP_l2norm, b_l2norm},     {K_OP_gdn_norm, b_gdn_norm}, {K_OP_rope, b_rope},
    {K_OP_conv1d, b_conv1d},   {K_OP_ple_conv, b_ple_conv},
};

static void plain_ops(void **s) {
    int64_t bad = 0;
    (void)s;
    EACH(o, plain)
    EACH(K, Ks)
    EACH(T, Ts)
    for (int v = 0; v < 4; v++) {
        const int32_t K = Ks[K_i], T = Ts[T_i];
        if (too_long((int64_t)K * T * 8)) continue;
        kit k = fresh(T, v & 1);
        if (v & 2) { /* the other value of every lever that some of them read */
            k.lv.gated = K_GATED_GELU;
            k.lv.sgate = K_SGATE_OFF;
            k.lv.freq = K_FREQ_BF16;
            k.lv.gdn_gate = K_GATE_SILU;
            k.lv.resid = k.lv.table = v & 1 ? K_FOLLOW_F32 : K_FOLLOW_BF16;
            k.lv.eps = (int32_t)k_f32_bits(1e-2f);
            k.lv.eps_floor = (int32_t)k_f32_bits(K & 1 ? 1e-1f : 1e-3f);
            k.c.per = plain[o_i].op == K_OP_add; /* the residual stream */
        }
        char note[40];
        snprintf(note, sizeof note, "K=%d levers %d", K, v >> 1);
        plain[o_i].build(&k, K);
        bad += run(&k, plain[o_i].op, note);
    }
    assert_int_equal(bad, 0);
}

/* ---- products ---- */

/* Random bytes that decode to numbers which sums survive, as most do; zeros when none is found. */
static void block(const k_quant *q, uint8_t *b) {
    float v[256];
    for (int try = 0, good = 0; !good && try < 100; try++) {
        for (int i = 0; i < q->bytes; i++) b[i] = (uint8_t)h_next(&rng);
        k_decode_plain(q->id, b, v, q->elems);
        good = 1;
        for (int i = 0; i < q->elems; i++) good &= fabsf(v[i]) < 1e12f;
        if (good) return;
    }
    memset(b, 0, (size_t)q->bytes);
}

/* n weights of rows x cols; wild: any bytes. */
static void weights(kit *k, int32_t type, int32_t n, int64_t rows, int64_t cols, int wild) {
    const k_quant *q = k_quant_get(type);
    const size_t row = (size_t)(cols / q->elems) * (size_t)q->bytes, all = (size_t)n * (size_t)rows * row;
    uint8_t *data = own(k, all);
    if (type == K_T_F32)
        memcpy(data, values(k, n * rows * cols, 1, 0), all);
    else if (wild)
        for (size_t i = 0; i < all; i++) data[i] = (uint8_t)h_next(&rng);
    else
        for (size_t i = 0; i < all; i += (size_t)q->bytes) block(q, data + i);
    k->w = own(k, (size_t)n * sizeof *k->w);
    for (int32_t e = 0; e < n; e++) k->w[e] = (k_weight){data + (size_t)e * (size_t)rows * row, rows, cols, row, type};
    k->c.w[0] = k->w;
    k->c.nw[0] = n;
}

static int64_t product(int32_t type, int64_t K, int32_t T, int act, int epi) {
    const int64_t O = 13;
    char note[60];
    kit k = fresh(T, act);
    k.d.N = 3;
    k.c.epi = epi;
    k.c.cols = O;
    k.lv.router = epi == K_EPI_ROUTER ? K_ROUTER_BF16 : 0;
    weights(&k, type, 1, O, K, K > 256 && T == 3);
    input(&k, 0, K, 1, 0);
    snprintf(note, sizeof note, "%s K=%lld epilogue %d", k_quant_get(type)->name, (long long)K, epi);
    return run(&k, K_OP_matmul, note);
}

static void matmul(void **s) {
    int64_t bad = 0;
    (void)s;
    EACH(K, Ks)
    EACH(T, Ts)
    for (int v = 0; v < 10; v++)
        if (!too_long((int64_t)Ks[K_i] * Ts[T_i] * 13)) bad += product(K_T_F32, Ks[K_i], Ts[T_i], v & 1, v >> 1);
    assert_int_equal(bad, 0);
}

static void matmul_types(void **s) {
    static const int32_t T[] = {1, 3, 4, 15, 16, 65};
    int64_t bad = 0;
    int types = 0;
    (void)s;
    for (int32_t id = 0; id < 64; id++) {
        if (!k_quant_get(id)) continue;
        types++;
        EACH(T, T)
        for (int64_t K = k_quant_get(id)->elems; K <= 2560; K *= 5)
            if (!too_long(K * T[T_i] * 13)) bad += product(id, K, T[T_i], T_i % 2, K_EPI_NONE);
    }
    print_message("%d types\n", types);
    assert_int_equal(bad, 0);
    assert_true(types > 30);
}

/* ---- orders of lever dot ---- */

static const struct {
    int32_t dot, repack;
    const char *name;
} dots[] = {
    {K_DOT_SERIAL, K_REPACK_OFF, "serial"},
    {K_DOT_BLOCKED, K_REPACK_OFF, "blocked"},
    {K_DOT_Q8K, K_REPACK_OFF, "q8k"},
    {K_DOT_Q8_1, K_REPACK_OFF, "q8_1"},
    {K_DOT_NEON, K_REPACK_OFF, "neon"},
    {K_DOT_Q8K, K_REPACK_Q8_0X4, "q8k, q8_0x4"},
    {K_DOT_NEON, K_REPACK_Q4_KX8, "neon, q4_kx8"},
};

/* wild: weights of any bytes, and specials among the activations. */
static int64_t dot_product(int which, int32_t type, int64_t K, int32_t T, int wild) {
    const int64_t O = wild ? 8 : 37; /* rows that lie interleaved, and more than a warp of them */
    char note[80];
    kit k = fresh(T, T % 2 ? K_ACT_F32 : K_ACT_BF16);
    k.d.N = 1;
    k.lv.dot = dots[which].dot;
    k.lv.repack = dots[which].repack;
    k.c.cols = O;
    weights(&k, type, 1, O, K, wild);
    input(&k, 0, K, 1, wild);
    snprintf(note, sizeof note, "%s K=%lld %s%s", k_quant_get(type)->name, (long long)K, dots[which].name,
             wild ? ", wild" : "");
    return run(&k, K_OP_matmul, note);
}

static void dot_orders(void **s) {
    static const int32_t T[] = {1, 2, 5, 8, 9, 70};
    int64_t bad = 0;
    (void)s;
    EACH(d, dots)
    for (int32_t id = 0; id < 64; id++) {
        const k_quant *q = k_quant_get(id);
        if (!q) continue;
        EACH(T, T)
        for (int64_t n = 1; n <= 45; n = n < 5 ? n + 2 : 9 * n) { /* blocks, or elements: odd numbers of them */
            const int64_t K = q->elems == 1 ? 23 * n : q->elems * n;
            if (!too_long(K * T[T_i] * 100)) bad += dot_product(d_i, id, K, T[T_i], (n + T_i) % 3 == 0);
        }
    }
    assert_int_equal(bad, 0);
}

static void embed(void **s) {
    int64_t bad = 0;
    (void)s;
    for (int32_t id = 0; id < 64; id++)
        for (int act = 0; act < 2; act++) {
            if (!k_quant_get(id)) continue;
            kit k = fresh(5, act);
            int32_t *ids = own(&k, 5 * sizeof *ids);
            weights(&k, id, 1, 11, 256, act);
            for (int i = 0; i < 5; i++) ids[i] = (int32_t[]){0, 10, 11, -1, 4}[i];
            k.c.in_i[0] = ids;
            k.c.in_cols[0] = 1;
            k.c.cols = 256;
            bad += run(&k, K_OP_embed, k_quant_get(id)->name);
        }
    assert_int_equal(bad, 0);
}

/* ---- experts ---- */

static int32_t *some_ids(kit *k, int64_t n, int32_t E) {
    int32_t *ids = own(k, (size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++) ids[i] = h_int(&rng, 0, 30) ? h_int(&rng, 0, E - 1) : h_int(&rng, -1, 0) * 7;
    return ids;
}

static void experts(void **s) {
    static const int32_t types[] = {K_T_F32, K_T_BF16, K_T_Q8_0, K_T_Q4_K, K_T_IQ1_S};
    const int orders = sizeof dots / sizeof *dots;
    int64_t bad = 0;
    (void)s;
    EACH(t, types)
    EACH(T, Ts)
    for (int v = 0; v < 4 * (1 + orders); v++) { /* from 4 on: each order of lever dot */
        const int32_t E = 9, K = 3, O = 8, T = Ts[T_i];
        const int64_t in = types[t_i] == K_T_F32 ? 33 : 256;
        if (too_long(T * K * O * in * (v < 4 ? 1 : 8))) continue;
        kit k = fresh(T, v & 1);
        k.c.per = v >> 1 & 1;
        if (v >= 4) {
            k.lv.dot = dots[v / 4 - 1].dot;
            k.lv.repack = dots[v / 4 - 1].repack;
        }
        weights(&k, types[t_i], E, O, in, 0);
        input(&k, 0, k.c.per ? K * in : in, 1, 0);
        k.c.in_i[1] = some_ids(&k, (int64_t)T * K, E);
        k.c.in_cols[1] = K;
        k.c.cols = K * O;
        k.d.E = E;
        k.d.K = K;
        char note[80];
        snprintf(note, sizeof note, "%s, %s, %s", k_quant_get(types[t_i])->name,
                 v >> 1 & 1 ? "a row a slot" : "a row a token", v < 4 ? "lanes32" : dots[v / 4 - 1].name);
        bad += run(&k, K_OP_moe_expert, note);
    }
    assert_int_equal(bad, 0);
}

static void router(void **s) {
    static const int32_t Es[] = {1, 31, 33, 96, 128, 512};
    int64_t bad = 0;
    (void)s;
    EACH(E, Es)
    EACH(T, Ts)
    for (int v = 0; v < 16; v++) {
        const int32_t E = Es[E_i], T = Ts[T_i], K = E < 8 ? E : 8;
        if (too_long((int64_t)T * E * 40)) continue;
        for (int which = 0; which < 2; which++) {
            kit k = fresh(T, v & 1);
            k.lv.softmax = v >> 1 & 1;
            k.lv.tie = v >> 2;
            k.lv.renorm = v >> 2 & 1;
            k.d.renorm = 1;
            k.d.E = E;
            k.d.K = K;
            input(&k, 0, E, v & 8 ? 0.01 : 3, 0);
            float *x = (float *)(uintptr_t)k.c.in[0];
            for (int64_t i = 0; i < (int64_t)T * E; i += 3) x[i] = x[i / 2]; /* ties */
            if (T > 2) x[E + E / 2] = v & 2 ? NAN : -INFINITY;               /* a row that fails closed */
            k.c.cols = K;
            if (which) {
                k.c.in_i[1] = some_ids(&k, (int64_t)T * K, E);
                k.c.in_cols[1] = K;
            }
            bad += run(&k, which ? K_OP_moe_weights : K_OP_moe_ids, "");
        }
    }
    assert_int_equal(bad, 0);
}

static void routed(void **s) {
    int64_t bad = 0;
    (void)s;
    EACH(K, Ks)
    EACH(T, Ts)
    for (int v = 0; v < 4; v++) {
        const int32_t K = 7, D = Ks[K_i], T = Ts[T_i];
        if (too_long((int64_t)T * K * D)) continue;
        kit k = fresh(T, v & 1);
        k.lv.combine = v >> 1;
        k.d.K = K;
        k.d.E = 9;
        input(&k, 0, (int64_t)K * D, 1, 1);
        input(&k, 1, K, 1, 0);
        k.c.in_i[2] = some_ids(&k, (int64_t)T * K, 9);
        k.c.in_cols[2] = K;
        k.c.cols = D;
        bad += run(&k, K_OP_moe_routed, v >> 1 ? "experts" : "slots");
    }
    assert_int_equal(bad, 0);
}

/* ---- delta rule ---- */

static void gdn(void **s) {
    static const int32_t shapes[][4] = {{1, 2, 8, 8}, {2, 4, 33, 40}, {2, 2, 128, 128}, {1, 1, 400, 5}};
    int64_t bad = 0;
    (void)s;
    EACH(g, shapes)
    EACH(T, Ts)
    for (int v = 0; v < 16; v++) { /* from 8 on: the placements, all six and then some of them */
        static const char *const notes[] = {"seq", "chunk64", "chunk64-bf16", "chunk64, placements"};
        const int32_t *g = shapes[g_i], T = Ts[T_i], rule = (v >> 1 & 1) + (v >> 3) * 2;
        if (too_long((int64_t)T * g[1] * g[2] * g[3] / 4)) continue;
        kit k = fresh(T, v & 1);
        k.lv.gdn = rule < 3 ? rule : K_GDN_CHUNK64;
        int32_t *place[] = {&k.lv.gdn_h, &k.lv.gdn_hop, &k.lv.gdn_w, &k.lv.gdn_u, &k.lv.gdn_vnew, &k.lv.gdn_inv};
        for (int i = 0; i < 6 && rule == 3; i++) *place[i] = h_int(&rng, 0, 1) ? K_FOLLOW_BF16 : K_FOLLOW;
        k.d.gguf_heads = v >> 2 & 1;
        k.d.nk = g[0], k.d.nv = g[1], k.d.dk = g[2], k.d.dv = g[3];
        k.c.pos0 = 64 * h_int(&rng, 0, 1);
        input(&k, 0, g[0] * g[2], 0.1, 0);
        input(&k, 1, g[0] * g[2], 0.1, 0);
        input(&k, 2, g[1] * g[3], 1, (v & 7) == 7);
        input(&k, 3, g[1], 1, 0);
        input(&k, 4, g[1], 1, 0);
        float *decay = (float *)(uintptr_t)k.c.in[3];
        for (int64_t i = 0; i < (int64_t)T * g[1]; i++) decay[i] = -fabsf(decay[i]);
        state(&k, (int64_t)g[1] * g[2], g[3], 0.3);
        k.c.cols = g[1] * g[3];
        bad += run(&k, K_OP_gdn_core, notes[rule]);
    }
    assert_int_equal(bad, 0);
}

/* ---- attention and indexer ---- */

/* Geometry of a call at pos0 whose queries see selected blocks (sel) or everything. */
static void attention_dims(kit *k, int32_t T, int32_t pos0, int sel) {
    k->d.H = 4;
    k->d.G = 2;
    k->d.hd = 40;
    k->d.ratio = sel ? 8 : 0;
    k->d.nsel = 3;
    k->c.pos0 = pos0;
    k->c.Tc = pos0 + T;
}

static int32_t *selection(kit *k, int32_t T, int32_t width, int32_t blocks) {
    int32_t *sel = own(k, (size_t)T * (size_t)width * sizeof *sel);
    for (int64_t i = 0; i < (int64_t)T * width; i++) sel[i] = h_int(&rng, -1, blocks);
    return sel;
}

/* What a query sees: all; selected blocks; and more tokens, some of them in those blocks, some of them none. */
enum { SEE_ALL, SEE_SELECTED, SEE_EXTRA, SEES };
static const char *const sees[SEES] = {"all", "selected", "selected and extra"};

static void visible(kit *k, int slot, int see) {
    const int32_t T = k->c.T, Tc = k->c.Tc;
    if (see == SEE_ALL) return;
    k->c.in_i[slot] = selection(k, T, 3, Tc / 8);
    k->c.in_cols[slot] = 3;
    if (see != SEE_EXTRA) return;
    k->c.in_i[slot + 1] = selection(k, T, 12, Tc); /* more than there may be: the first 8 count */
    k->c.in_cols[slot + 1] = 12;
}

static int64_t attention(int32_t T, int32_t pos0, int see, const k_levers *lv) {
    int64_t bad = 0;
    for (int which = 0; which < 3; which++) {
        static const k_op op[] = {K_OP_attn_score, K_OP_attn_prob, K_OP_attn_ctx};
        char note[80];
        kit k = fresh(T, lv->act);
        k.lv = *lv;
        attention_dims(&k, T, pos0, see != SEE_ALL);
        const int64_t Tc = k.c.Tc, kw = 2 * 40;
        input(&k, 0, which ? 4 * Tc : 4 * 40, which == 1 ? 4 : 1, which == 1 && T == 5);
        if (which != 1) {
            input(&k, 1, kw, 1, T == 5);
            state(&k, Tc + 3, kw, 1);
        }
        if (which == 2) input(&k, 2, 4 * Tc, 4, T == 5 && pos0);
        visible(&k, which == 1 ? 1 : which == 2 ? 3 : 2, see);
        k.c.cols = which == 2 ? 4 * 40 : 4 * Tc;
        snprintf(note, sizeof note, "pos0 %d, %s, softmax %d, kv %d, round %d", pos0, sees[see], lv->sweep, lv->kv,
                 lv->inner);
        bad += run(&k, op[which], note);
    }
    return bad;
}

static void attn(void **s) {
    static const k_levers sets[] = {
        {.act = K_ACT_F32},
        {.act = K_ACT_BF16},
        {.kv = K_KV_F16},
        {.act = K_ACT_BF16, .kv = K_KV_F32, .inner = K_FOLLOW_F32},
        {.sweep = K_SWEEP_ONLINE},
        {.sweep = K_SWEEP_ONLINE, .kv = K_KV_F16},
        {.act = K_ACT_BF16, .sweep = K_SWEEP_ONLINE},
        {.act = K_ACT_BF16, .sweep = K_SWEEP_ONLINE, .kv = K_KV_F16, .inner = K_FOLLOW_F32},
    };
    int64_t bad = 0;
    (void)s;
    EACH(T, Ts)
    EACH(set, sets)
    for (int see = 0; see < SEES; see++)
        for (int32_t pos0 = emulated ? 67 * (set_i % 2) : 0; pos0 < 200; pos0 += emulated ? 134 : 67)
            if (!too_long((int64_t)Ts[T_i] * (Ts[T_i] + pos0) * 80)) bad += attention(Ts[T_i], pos0, see, &sets[set_i]);
    assert_int_equal(bad, 0);
}

static int64_t indexing(int32_t T, int32_t pos0, int v) {
    int64_t bad = 0;
    for (int which = 0; which < 3; which++) {
        static const k_op op[] = {K_OP_idx_pool, K_OP_idx_score, K_OP_idx_sel};
        kit k = fresh(T, v & 1);
        k.d.ih = 3, k.d.id = 40, k.d.ratio = 8, k.d.rot = 16, k.d.nsel = 5;
        k.lv.freq = v >> 1 & 1;
        k.lv.table = v & 2 ? K_FOLLOW_BF16 - (v & 1) : K_FOLLOW;
        k.lv.eps = v & 2 ? (int32_t)k_f32_bits(1e-2f) : 0;
        k.lv.tie = v >> 1;
        k.c.pos0 = pos0;
        k.c.Tc = pos0 + T;
        const int32_t nb = k.c.Tc / 8 > 0 ? k.c.Tc / 8 : 1;
        if (which == 0) {
            input(&k, 0, 40, 1, 0);
            par(&k, 0, 40, 1);
            par(&k, 1, 8, 1);
            state(&k, k.c.Tc, 40, 1);
            k.c.cols = 40;
        } else if (which == 1) {
            input(&k, 0, 3 * 40, 1, 0);
            input(&k, 1, 40, 1, 0);
            state(&k, nb + 1, 40, 1);
            k.c.cols = nb;
        } else {
            input(&k, 0, nb, 1, 0);
            float *x = (float *)(uintptr_t)k.c.in[0];
            for (int64_t i = 0; i < (int64_t)T * nb; i += 2) x[i] = x[i / 3]; /* ties */
            if (T > 2) x[nb] = NAN;
            k.c.cols = nb < 5 ? nb : 5;
        }
        bad += run(&k, op[which], "");
    }
    return bad;
}

/* Extra tokens of queries over 8-token blocks of which many are equal, with fewer columns than the heap may leave. */
static int64_t extra(int32_t T, int32_t pos0, int on) {
    kit k = fresh(T, K_ACT_F32);
    char note[40];
    k.d.ratio = 8, k.d.nsel = 5;
    k.lv.extra = on ? K_EXTRA_STL : K_EXTRA_OFF;
    k.c.pos0 = pos0;
    k.c.Tc = pos0 + T;
    const int32_t nb = k.c.Tc / 8 > 0 ? k.c.Tc / 8 : 1;
    input(&k, 0, nb, 1, 0);
    float *x = (float *)(uintptr_t)k.c.in[0];
    for (int64_t i = 0; i < (int64_t)T * nb; i++) x[i] = h_int(&rng, 0, 3) ? roundf(8 * x[i]) : x[i / 2];
    if (T > 2) x[nb] = NAN;
    k.c.in_i[1] = selection(&k, T, 5, nb);
    k.c.in_cols[1] = 5;
    k.c.cols = T % 2 ? 7 : 3;
    snprintf(note, sizeof note, "pos0 %d, %s", pos0, on ? "stl" : "off");
    return run(&k, K_OP_idx_extra, note);
}

static void indexer(void **s) {
    int64_t bad = 0;
    (void)s;
    EACH(T, Ts)
    for (int v = 0; v < 8; v++)
        for (int32_t pos0 = 0; pos0 < 3000; pos0 = 7 * pos0 + 13)
            if (!too_long((int64_t)Ts[T_i] * (Ts[T_i] + pos0) * 20)) bad += indexing(Ts[T_i], pos0, v);
    EACH(T, Ts)
    for (int32_t pos0 = 0; pos0 < 3000; pos0 = 7 * pos0 + 13)
        if (!too_long((int64_t)Ts[T_i] * (Ts[T_i] + pos0) * 20))
            for (int on = 0; on < 2; on++) bad += extra(Ts[T_i], pos0, on);
    assert_int_equal(bad, 0);
}

/* ---- what is no call ---- */

/* Levers beyond their values are refused, and products and extra tokens that lack scratch or an operand. */
static void unfit(void **s) {
    static const struct {
        const char *values;
        size_t at;
    } levers[] = {
#define LEVER(field, name, values, kind, ops, doc) {values, offsetof(k_levers, field)},
#include "kernels/levers.def"
#undef LEVER
    };
    static float some[4096];
    (void)s;
    static const struct {
        k_op op;
        int64_t scratch; /* not a float more than is needed */
    } calls[] = {{K_OP_matmul, 2 * (64 / 32 * 9)},
                 {K_OP_idx_extra, 2 * 64 + 1},
                 {K_OP_moe_expert, (2 * (1 + 2) + 2 * 2 + 2) + 2 * (64 / 32 * 9)}};
    EACH(call, calls) {
        const k_op op = calls[call_i].op;
        k_weight w = {some, 1, 64, 36, K_T_Q4_0};
        kit k = fresh(2, K_ACT_F32);
        k.lv.dot = K_DOT_Q8_1;
        k.lv.extra = K_EXTRA_STL;
        k.d.ratio = 8, k.d.nsel = 2;
        k.c.Tc = 64, k.c.pos0 = 62;
        k.c.cols = 2, k.c.in_cols[0] = 64, k.c.in_cols[1] = 2;
        k.c.in[0] = k.c.in[1] = k.c.out = k.c.scratch = some;
        k.c.w[0] = k.c.w_dev[0] = &w, k.c.nw[0] = 1;
        k.c.d = &k.d, k.c.lv = &k.lv;
        k.c.scratch_n = calls[call_i].scratch;
        EACH(l, levers) {
            int32_t *v = (int32_t *)(void *)((char *)&k.lv + levers[l_i].at), own = *v, words = 1;
            for (const char *p = levers[l_i].values; *p; p++) words += *p == '|';
            const int number = strstr(levers[l_i].values, "..") != NULL;
            for (*v = -1; *v <= words; ++*v)
                if ((k_dev_unfit(op, &k.c) == NULL) != (number || (*v >= 0 && *v < words)))
                    fail_msg("%s: value %d of %s", k_ops[op].name, *v, levers[l_i].values);
            *v = own;
        }
        assert_null(k_dev_unfit(op, &k.c));
        k.c.scratch_n--;
        assert_non_null(k_dev_unfit(op, &k.c));
        k.c.scratch_n++;
        k.c.in[0] = NULL;
        assert_non_null(k_dev_unfit(op, &k.c));
    }
}

/* ---- the harness sees ---- */

/* One ulp, one sign, in an operand that only the host sees, shows in every op that reads it. */
static void twin(void **s) {
    (void)s;
    static const uint32_t flips[] = {1, 0x80000000u};
    EACH(o, plain)
    EACH(f, flips) {
        if (f_i == 0 && plain[o_i].op != K_OP_slice) continue; /* an ulp may round away */
        kit k = fresh(1, K_ACT_F32);
        plain[o_i].build(&k, 33);
        float *x = (float *)(uintptr_t)k.c.in[0];
        for (int64_t i = 0; i < k.c.in_cols[0]; i++) x[i] = 1.0f + (float)i;
        hp_flip(k.c.off, flips[f_i]);
        int64_t bad = run(&k, plain[o_i].op, "twin");
        hp_flip(0, 0);
        if (!bad) fail_msg("%s: a changed operand went unseen", k_ops[plain[o_i].op].name);
    }
    static const k_levers online = {.sweep = K_SWEEP_ONLINE, .kv = K_KV_F16};
    hp_flip(1, 0x80000000u); /* of a query, a score, and a probability, which the online softmax does not read */
    assert_true(attention(1, 3, SEE_ALL, &online) > 4);
    hp_flip(0, 0);
    hp_flip(0, 0x7f000000u); /* the first block's score, made a large one or a small one */
    int64_t seen = 0;
    for (int32_t pos0 = 330; pos0 < 340; pos0++) seen += extra(1, pos0, 1); /* where it is not selected anyhow */
    assert_true(seen > 0);
    hp_flip(0, 0);
    kit k = fresh(1, K_ACT_F32);
    weights(&k, K_T_Q4_0, 1, 3, 64, 0);
    input(&k, 0, 64, 1, 0);
    k.c.cols = 3;
    k.d.N = 1;
    hp_flip(0, 0x80000000u);
    assert_true(run(&k, K_OP_matmul, "twin") > 0);
    EACH(d, dots)
    if (!dot_product(d_i, d_i == 6 ? K_T_Q4_K : K_T_Q8_0, 256, 1, 0))
        fail_msg("%s: a changed operand went unseen", dots[d_i].name);
    hp_flip(0, 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_ops),  cmocka_unit_test(matmul),  cmocka_unit_test(matmul_types),
        cmocka_unit_test(dot_orders), cmocka_unit_test(embed),   cmocka_unit_test(experts),
        cmocka_unit_test(router),     cmocka_unit_test(routed),  cmocka_unit_test(gdn),
        cmocka_unit_test(attn),       cmocka_unit_test(indexer), cmocka_unit_test(unfit),
        cmocka_unit_test(twin),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    hp_device(&emulated);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hp_close();
    return failed;
}
