/* Bands of the attention ops, from their operands. Sums over the products of one token's heads use the energies of the
 * keys or values that the token sees, so that the H / G heads of a group share them.
 *
 *   score  sum over visible j of (q_i k_ji)^2 = q_i^2 e_i, e_i = sum_j k_ji^2; sum|x| <= sqrt(hd sum x^2)
 *   prob   relative error of p_j: d_j = u|s_j - max| + 2u (exp) + the sum's and the division's, both common to the row;
 *          an error of one term of the sum enters with its weight p
 *   ctx    sum over columns of (p_j v_ji)^2 = p_j^2 |v_j|^2; the chain is as long as the visible list. Online the
 *          errors of exp and of the sum join it, as in prob, and each step of the chain rounds to the cache's type
 * What the caches' type takes off new keys and values, and online off a query, is known, and is counted with random
 * signs; what is in the caches already is given.
 */
#include "kernels/attn.h"
#include "kernels/attn_runs.h"
#include "kernels/band.h"
#include "kernels/round.h"
#include "kernels/vec8.h"

static double sq(double x) {
    return x * x;
}

/* e_i of one group for the tokens in see, and d_i, the same of what rounding took off the new ones. */
static void key_energy(const k_call *c, const k_runs *see, int64_t g, float *e, float *d) {
    const int64_t hd = c->d->hd, step = c->d->G * hd;
    const int32_t type = k_kv_type(c->lv), rounds = type != K_KV_F32;
    memset(e, 0, (size_t)hd * sizeof *e);
    memset(d, 0, (size_t)hd * sizeof *d);
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) {
            const float *k = c->st[0]->f + j * step + g * hd, *x = c->in[1] + (j - c->pos0) * step + g * hd;
            for (int64_t i = 0; i < hd; i++) e[i] += k[i] * k[i];
            for (int64_t i = 0; rounds && j >= c->pos0 && i < hd; i++) {
                const float off = x[i] - k_kv_round(x[i], type);
                d[i] += off * off;
            }
        }
}

/* Sum over visible j of (q_i k_ji)^2 / hd. */
static double terms2(const float *q, const float *e, int64_t hd) {
    double x2 = 0.0;
    for (int64_t i = 0; i < hd; i++) x2 += sq((double)q[i]) * (double)e[i] / (double)hd;
    return x2;
}

/* Sum over i of what rounding a query took off it, with the energies of the keys. */
static double taken2(const k_call *c, const float *q, const float *e) {
    double s = 0.0;
    if (k_sweep_type(c) == K_KV_F32) return s;
    for (int64_t i = 0; i < c->d->hd; i++)
        s += sq((double)q[i] - (double)k_kv_round(q[i], k_sweep_type(c))) * (double)e[i] / (double)c->d->hd;
    return s;
}

/* One token and head; e, d: key_energy. What is behind the dot: a store, the product with the scale (exact when that
 * is a power of two), a store of the product (then exact too). */
static void score_row(const k_call *c, const k_runs *see, int64_t row, const float *e, const float *d, k_band *add) {
    const double hd = c->d->hd;
    const int exact = (k_f32_bits((float)(1.0 / sqrt(hd))) & 0x7fffffu) == 0;
    const int32_t act = k_follow(c->lv->inner, c->lv->act);
    const float *q = c->in[0] + row * c->d->hd, *s = c->out + row * c->Tc;
    const double x2 = terms2(q, e, c->d->hd), store = k_store_hard(act);
    const double kept = terms2(q, d, c->d->hd), taken = taken2(c, q, e);
    double s2 = 0.0;
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) s2 += sq((double)s[j]);
    double after = exact ? store : 2.0 * store + 2.0 * K_U;
    add->hard2 +=
        sq(k_lanes32_gamma(hd) * sqrt(hd * x2) + sqrt(hd * kept) + 1.01 * sqrt(hd * taken) + after * sqrt(s2));
    add->rms2 += k_lanes32_rms2(hd, x2, s2) + k_store_rms2(act, s2) + kept + taken;
    if (!exact) add->rms2 += k_store_rms2(act, s2) + 2.0 * K_RMS2 * sq(K_U) * s2;
}

void attn_score_band(const k_call *c, k_band *add) {
    const k_dims *d = c->d;
    const int64_t per = d->H / d->G;
    float *e = c->scratch + k_visible_work(d, c->Tc), *off = e + d->hd;
    for (int64_t t = 0; t < c->T; t++) {
        const k_runs see = k_visible(c, 2, (int32_t)t, c->scratch);
        for (int64_t g = 0; g < d->G; g++) {
            key_energy(c, &see, g, e, off);
            for (int64_t h = g * per; h < (g + 1) * per; h++) score_row(c, &see, t * d->H + h, e, off, add);
        }
    }
}

/* New rows of a cache. */
static void append_band(const k_call *c, k_band *state) {
    const int64_t kw = (int64_t)c->d->G * c->d->hd;
    k_kept_band(c->in[1], c->T * kw, c->lv, state);
}

void attn_score_bands(const k_call *c, k_band *add, k_band *state) {
    attn_score_band(c, add);
    append_band(c, state);
}

void attn_ctx_bands(const k_call *c, k_band *add, k_band *state) {
    attn_ctx_band(c, add);
    append_band(c, state);
}

/* One row: the errors of exp are independent; that of the sum is common to all. */
static void prob_row(const k_call *c, const k_runs *see, int64_t row, k_band *add) {
    const float *s = c->in[0] + row * c->Tc, *p = c->out + row * c->Tc;
    float max = -INFINITY;
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) max = s[j] > max ? s[j] : max;
    double p2 = 0.0, e1 = 0.0, eh2 = 0.0, er2 = 0.0, n = 0.0;
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) {
            double pj = (double)p[j], d = fabs((double)s[j] - (double)max), one = K_U * (d + 2.0);
            p2 += sq(pj);
            e1 += pj * one;
            eh2 += sq(pj * one);
            er2 += sq(pj) * K_RMS2 * sq(K_U) * (sq(d) + 1.0);
            n += 1.0;
        }
    const int online = c->lv->sweep == K_SWEEP_ONLINE;
    const int32_t act = k_follow(c->lv->inner, c->lv->act);
    const double chain = n < (double)c->Tc ? n : (double)c->Tc;
    const double common = e1 + (online ? k_gamma(3.0 * n) : k_lanes32_gamma((double)c->Tc)) + K_U;
    const double sum2 = online ? k_serial_rms2(n, p2, 1.0) : k_lanes32_rms2(chain, p2, 1.0);
    add->hard2 += sq(sqrt(eh2) + (common + k_store_hard(act)) * sqrt(p2));
    add->rms2 += er2 + p2 * (er2 + sum2) + K_RMS2 * sq(K_U) * p2;
    add->rms2 += k_store_rms2(act, p2);
}

void attn_prob_band(const k_call *c, k_band *add) {
    for (int32_t t = 0; t < c->T; t++) {
        const k_runs see = k_visible(c, 1, t, c->scratch);
        for (int64_t h = 0; h < c->d->H; h++) prob_row(c, &see, (int64_t)t * c->d->H + h, add);
    }
}

/* Sums over the visible tokens and the heads of a group: (p v)^2, the same of what rounding took off new values, and,
 * online, of what exp does to each. */
typedef struct {
    double all, kept, exp2;
} products;

static products group_products(const k_call *c, const k_runs *see, int64_t t, int64_t g) {
    const k_dims *d = c->d;
    const int64_t hd = d->hd, step = d->G * hd, per = d->H / d->G;
    const int32_t type = k_kv_type(c->lv);
    products x = {0.0, 0.0, 0.0};
    for (int64_t h = g * per; h < (g + 1) * per; h++) {
        const float *p = c->in[0] + (t * d->H + h) * c->Tc;
        const float *s = c->lv->sweep == K_SWEEP_ONLINE ? c->in[2] + (t * d->H + h) * c->Tc : NULL;
        float max = -INFINITY;
        for (int32_t r = 0; s && r < see->n; r++)
            for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) max = s[j] > max ? s[j] : max;
        for (int32_t r = 0; r < see->n; r++)
            for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) {
                const float *v = c->st[0]->f + j * step + g * hd;
                const double pv2 = sq((double)p[j]) * (double)k_v8_dot(v, v, hd);
                x.all += pv2;
                if (j >= c->pos0)
                    x.kept += sq((double)p[j]) * k_kept_error2(c->in[1] + (j - c->pos0) * step + g * hd, hd, type);
                if (s) x.exp2 += pv2 * (sq((double)s[j] - (double)max) + 8.0);
            }
    }
    return x;
}

void attn_ctx_band(const k_call *c, k_band *add) {
    const k_dims *d = c->d;
    const int64_t hd = d->hd, per = d->H / d->G;
    const int online = c->lv->sweep == K_SWEEP_ONLINE;
    const double step = k_sweep_type(c) == K_KV_F16 ? 0x1p-11 : 0.0; /* each step of the chain */
    for (int32_t t = 0; t < c->T; t++) {
        const k_runs see = k_visible(c, 3, t, c->scratch);
        double n = 0.0;
        for (int32_t r = 0; r < see.n; r++) n += see.at[2 * r + 1] - see.at[2 * r];
        for (int64_t g = 0; g < d->G; g++) {
            const products x = group_products(c, &see, t, g);
            const float *y = c->out + (t * d->H + g * per) * hd;
            double y2 = 0.0;
            for (int64_t i = 0; i < per * hd; i++) y2 += sq((double)y[i]);
            add->hard2 += sq((k_gamma(n) + 2.02 * n * step) * sqrt(n * x.all) + sqrt(n * x.kept) +
                             k_store_hard(c->lv->act) * sqrt(y2) + 4.0 * K_U * sqrt(n * x.exp2) +
                             (online ? k_gamma(5.0 * n) * sqrt(y2) : 0.0));
            add->rms2 += k_serial_rms2(n, x.all, y2) + k_store_rms2(c->lv->act, y2) + x.kept;
            if (online)
                add->rms2 += K_RMS2 * sq(step) * (n / 2.0 * x.all + n / 3.0 * y2) + K_RMS2 * sq(K_U) * x.exp2 +
                             k_serial_rms2(n, 0.0, y2);
        }
    }
}
