/* Bands of the attention ops, from their operands. Sums over the products of one token's heads use the energies of the
 * keys or values that the token sees, so that the H / G heads of a group share them.
 *
 *   score  sum over visible j of (q_i k_ji)^2 = q_i^2 e_i, e_i = sum_j k_ji^2; sum|x| <= sqrt(hd sum x^2)
 *   prob   relative error of p_j: d_j = u|s_j - max| + 2u (exp) + the sum's and the division's, both common to the row;
 *          an error of one term of the sum enters with its weight p
 *   ctx    sum over columns of (p_j v_ji)^2 = p_j^2 |v_j|^2; the chain is as long as the visible list
 */
#include "kernels/attn.h"
#include "kernels/attn_runs.h"
#include "kernels/band.h"
#include "kernels/round.h"
#include "kernels/vec8.h"

static double sq(double x) {
    return x * x;
}

/* e_i of one group for the tokens in see. */
static void key_energy(const k_call *c, const k_runs *see, int64_t g, float *e) {
    const int64_t hd = c->d->hd, step = c->d->G * hd;
    memset(e, 0, (size_t)hd * sizeof *e);
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) {
            const float *k = c->st[0]->f + j * step + g * hd;
            for (int64_t i = 0; i < hd; i++) e[i] += k[i] * k[i];
        }
}

/* One token and head. What is behind the dot: a store, the product with the scale (exact when that is a power of two),
 * a store of the product (then exact too). */
static void score_row(const k_call *c, const k_runs *see, int64_t row, const float *e, k_band *add) {
    const double hd = c->d->hd;
    const int exact = (k_f32_bits((float)(1.0 / sqrt(hd))) & 0x7fffffu) == 0;
    const float *q = c->in[0] + row * c->d->hd, *s = c->out + row * c->Tc;
    double x2 = 0.0, s2 = 0.0, store = k_store_hard(c->lv->act);
    for (int64_t i = 0; i < c->d->hd; i++) x2 += sq((double)q[i]) * (double)e[i] / hd;
    for (int32_t r = 0; r < see->n; r++)
        for (int64_t j = see->at[2 * r]; j < see->at[2 * r + 1]; j++) s2 += sq((double)s[j]);
    double after = exact ? store : 2.0 * store + 2.0 * K_U;
    add->hard2 += sq(k_lanes32_gamma(hd) * sqrt(hd * x2) + after * sqrt(s2));
    add->rms2 += k_lanes32_rms2(hd, x2, s2) + k_store_rms2(c->lv->act, s2);
    if (!exact) add->rms2 += k_store_rms2(c->lv->act, s2) + 2.0 * K_RMS2 * sq(K_U) * s2;
}

void attn_score_band(const k_call *c, k_band *add) {
    const k_dims *d = c->d;
    const int64_t per = d->H / d->G;
    float *e = c->scratch + k_visible_work(d, c->Tc);
    for (int64_t t = 0; t < c->T; t++) {
        const k_runs see = k_visible(c, c->in_i[2], c->in_cols[2], (int32_t)t, c->scratch);
        for (int64_t g = 0; g < d->G; g++) {
            key_energy(c, &see, g, e);
            for (int64_t h = g * per; h < (g + 1) * per; h++) score_row(c, &see, t * d->H + h, e, add);
        }
    }
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
    const double chain = n < (double)c->Tc ? n : (double)c->Tc;
    const double common = e1 + k_lanes32_gamma((double)c->Tc) + K_U;
    add->hard2 += sq(sqrt(eh2) + (common + k_store_hard(c->lv->act)) * sqrt(p2));
    add->rms2 += er2 + p2 * (er2 + k_lanes32_rms2(chain, p2, 1.0)) + K_RMS2 * sq(K_U) * p2;
    add->rms2 += k_store_rms2(c->lv->act, p2);
}

void attn_prob_band(const k_call *c, k_band *add) {
    for (int32_t t = 0; t < c->T; t++) {
        const k_runs see = k_visible(c, c->in_i[1], c->in_cols[1], t, c->scratch);
        for (int64_t h = 0; h < c->d->H; h++) prob_row(c, &see, (int64_t)t * c->d->H + h, add);
    }
}

void attn_ctx_band(const k_call *c, k_band *add) {
    const k_dims *d = c->d;
    const int64_t hd = d->hd, step = d->G * hd, per = d->H / d->G;
    for (int32_t t = 0; t < c->T; t++) {
        const k_runs see = k_visible(c, c->in_i[2], c->in_cols[2], t, c->scratch);
        double n = 0.0;
        for (int32_t r = 0; r < see.n; r++) n += see.at[2 * r + 1] - see.at[2 * r];
        for (int64_t g = 0; g < d->G; g++) {
            double sum = 0.0, y2 = 0.0;
            for (int32_t r = 0; r < see.n; r++)
                for (int64_t j = see.at[2 * r]; j < see.at[2 * r + 1]; j++) {
                    const float *v = c->st[0]->f + j * step + g * hd;
                    double v2 = (double)k_v8_dot(v, v, hd);
                    for (int64_t h = g * per; h < (g + 1) * per; h++)
                        sum += sq((double)c->in[0][(t * d->H + h) * c->Tc + j]) * v2;
                }
            const float *y = c->out + (t * d->H + g * per) * hd;
            for (int64_t i = 0; i < per * hd; i++) y2 += sq((double)y[i]);
            add->hard2 += sq(k_gamma(n) * sqrt(n * sum) + k_store_hard(c->lv->act) * sqrt(y2));
            add->rms2 += k_serial_rms2(n, sum, y2) + k_store_rms2(c->lv->act, y2);
        }
    }
}
