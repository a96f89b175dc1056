#include "kernels/ple.h"

#include "kernels/elem.h"
#include "kernels/par.h"
#include "kernels/reduce.h"

/* ---- row ids ---- */

void ple_ids_cpu(const k_call *c) {
    int32_t n = c->d->n, P = c->d->P, heads = P / (n - 1), *hist = c->st[0]->i;
    const int32_t *tok = c->in_i[0];
    const int64_t *mult = c->ipar, *size = mult + n, *off = size + P;
    for (int64_t t = 0; t < c->T; t++) k_ple_row(tok, t, hist, n, heads, c->d->eos, mult, size, off, c->out_i + t * P);
    /* ascending: place i takes what lay at T + i of history and tile put together, never below what is overwritten */
    for (int64_t i = 0; i < n - 1; i++) hist[i] = c->T + i < n - 1 ? hist[c->T + i] : tok[c->T + i - (n - 1)];
    c->st[0]->rows = n - 1;
}

/* ---- gate ---- */

K_INLINE float gate_sum(const float *restrict k, const float *restrict q, int64_t n, int32_t act) {
    float acc[32] = {0};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int l = 0; l < 32; l++) acc[l] = acc[l] + k_rd(k[i + l] * q[i + l], act);
    for (int l = 0; i + l < n; l++) acc[l] = acc[l] + k_rd(k[i + l] * q[i + l], act);
    return k_lanes32_fold(acc);
}

static void ple_gate_groups(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t N = c->cols, D = c->in_cols[0] / N;
    int32_t act = c->lv->act;
    for (int64_t k = lo; k < hi; k++)
        c->out[k] = k_ple_gate1(K_BY_ACT(act, gate_sum, c->in[0] + k * D, c->in[1] + k * D, D), D, act);
}

void ple_gate_cpu(const k_call *c) {
    k_spread(c, c->T * c->cols, 0, c->T * c->in_cols[0], ple_gate_groups, NULL);
}

/* ---- gated value ---- */

K_INLINE void mul_stream(float g, const float *restrict v, float *restrict y, int64_t n, int32_t act) {
    for (int64_t i = 0; i < n; i++) y[i] = k_rd(g * v[i], act);
}

static void ple_mul_groups(const k_call *c, const void *ctx, int64_t lo, int64_t hi) {
    (void)ctx;
    int64_t N = c->in_cols[0], D = c->in_cols[1];
    for (int64_t k = lo; k < hi; k++)
        K_BY_ACT(c->lv->act, mul_stream, c->in[0][k], c->in[1] + k / N * D, c->out + k * D, D);
}

void ple_mul_cpu(const k_call *c) {
    k_spread(c, c->T * c->in_cols[0], 0, c->T * c->cols, ple_mul_groups, NULL);
}

void ple_mul_band(const k_call *c, k_band *add) {
    k_store_band(c, 1, 1, add);
}

/* ---- constants ---- */

static const uint64_t gamma64 = 0x9e3779b97f4a7c15u;

static uint64_t mix64(uint64_t z) {
    z += gamma64;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static const int64_t most = 1 << 14; /* primes worth finding: a hostile header must not buy hours */

__extension__ typedef unsigned __int128 u128;

static uint64_t powmod(uint64_t b, uint64_t e, uint64_t m) {
    uint64_t r = 1;
    for (b %= m; e; e >>= 1) {
        if (e & 1) r = (uint64_t)((u128)r * b % m);
        b = (uint64_t)((u128)b * b % m);
    }
    return r;
}

/* Miller-Rabin to the first twelve primes: decides every 64-bit number. */
static int is_prime(uint64_t v) {
    static const uint64_t bases[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
    if (v < 2) return 0;
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        if (v % bases[i] == 0) return v == bases[i];
    uint64_t d = v - 1;
    int s = 0;
    for (; !(d & 1); d >>= 1) s++;
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        uint64_t x = powmod(bases[i], d, v);
        int pass = x == 1 || x == v - 1;
        for (int r = 1; r < s && !pass; r++) {
            x = (uint64_t)((u128)x * x % v);
            pass = x == v - 1;
        }
        if (!pass) return 0;
    }
    return 1;
}

int k_ple_consts(int64_t V, int32_t n, int32_t heads, int64_t base, int64_t seed, int32_t index, int64_t *mult,
                 int64_t *size, int64_t *off) {
    if (V < 1 || n < 2 || heads < 1 || base < 2 || index < 0) return -1;
    int64_t P = (int64_t)(n - 1) * heads;
    if (P > most || P * ((int64_t)index + 1) > most) return -1;
    uint64_t half = (uint64_t)(INT64_MAX / V / 2), start = (uint64_t)seed + 10007u * (uint64_t)index;
    if (half < 1) half = 1;
    for (int32_t i = 0; i < n; i++) mult[i] = (int64_t)(2 * (mix64(start + gamma64 * ((uint64_t)i + 1)) % half) + 1);
    int64_t skip = index * P, sum = 0, found = 0;
    for (int64_t v = base; found < P; v++) {
        if (is_prime((uint64_t)v) && skip-- <= 0) {
            size[found] = v;
            off[found++] = sum;
            if (v > INT64_MAX - sum) return -1;
            sum += v;
        }
        if (v == INT64_MAX) return -1;
    }
    return 0;
}
