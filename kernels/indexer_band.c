/* Bands of the indexer's ops, from their operands. Angles count as given: two runs that take the same f32 angle take
 * the same rotation, and its distance from the real one is no disagreement. Frequencies that an arm rounds do count. */
#include "kernels/arith.h"
#include "kernels/band.h"
#include "kernels/indexer.h"
#include "kernels/norm.h"
#include "kernels/par.h"
#include "kernels/rope.h"
#include "kernels/round.h"
#include "kernels/vec8.h"

#define RU2 (K_RMS2 * K_U * K_U)

static double sq(double x) {
    return x * x;
}

/* Sum over the block's new rows of what the cache's type took off column i; pos: the block's first position. */
static double kept_error2(const k_call *c, int64_t i, int32_t pos) {
    double s = 0.0;
    for (int64_t p = pos < c->pos0 ? c->pos0 : pos; p < pos + c->d->ratio; p++)
        s += k_kept_error2(c->in[0] + (p - c->pos0) * c->d->id + i, 1, k_kv_type(c->lv));
    return s;
}

/* One pooled key. The mean of raw rows passes the norm, y_i = x_i r gamma_i, whose derivative has a norm of at most
 * 2 r max|gamma|; then three roundings a rotated element: table, products, sum. */
static void pool_block(const k_call *c, const float *raw, const float *y, int32_t pos, k_band *add) {
    const k_dims *d = c->d;
    const int64_t id = d->id;
    const int32_t act = c->lv->act;
    const double n = d->ratio, store = k_store_hard(act);
    double ss = 0.0, gmax = 0.0, eh2 = 0.0, er2 = 0.0, y2 = 0.0, rot2 = 0.0;
    for (int64_t i = 0; i < id; i++) {
        double sum = 0.0, abs = 0.0, x2 = 0.0;
        for (int32_t r = 0; r < d->ratio; r++) {
            double v = (double)raw[r * id + i];
            sum += v;
            abs += fabs(v);
            x2 += v * v;
        }
        double m = sum / n, g = (double)c->par[0][i];
        ss += m * m;
        gmax = fabs(g) > gmax ? fabs(g) : gmax;
        const double kept2 = kept_error2(c, i, pos);
        eh2 += sq(k_gamma(n - 1.0) * abs / n + sqrt(kept2 / n) + (store + K_U) * fabs(m));
        er2 += g * g *
               (k_serial_rms2(n - 1.0, x2 / sq(n), m * m) + RU2 * m * m + k_store_rms2(act, m * m) + kept2 / sq(n));
        y2 += sq((double)y[i]);
        if (i < d->rot) rot2 += sq((double)y[i]);
    }
    const double r = 1.0 / sqrt(ss / (double)id + (double)k_eps(d, c->lv));
    const double own = k_lanes32_gamma((double)id) / 2.0 + 6.0 * K_U;
    const double turn = k_rope_turn_hard(c->lv);
    double moved_hard2, moved_rms2;
    k_rope_freq_moves(y, c->par[1], d->rot / 2, pos, c->lv, &moved_hard2, &moved_rms2);
    add->hard2 +=
        sq(1.01 * (2.0 * r * gmax * sqrt(eh2) + (own + store) * sqrt(y2) + turn * sqrt(rot2)) + sqrt(moved_hard2));
    add->rms2 += moved_rms2;
    add->rms2 += r * r * er2 + 4.0 * RU2 * y2 + k_store_rms2(act, y2) + k_rope_turn_rms2(c->lv) * rot2;
}

void idx_pool_band(const k_call *c, k_band *add) {
    const int64_t id = c->d->id;
    const int32_t ratio = c->d->ratio;
    for (int32_t t = 0; t < c->T; t++) {
        if (!k_completes(c->pos0 + t, ratio)) continue;
        int64_t b = (c->pos0 + t) / ratio;
        pool_block(c, c->st[0]->f + b * ratio * id, c->out + t * id, (int32_t)b * ratio, add);
    }
}

void idx_pool_bands(const k_call *c, k_band *add, k_band *state) {
    idx_pool_band(c, add);
    k_kept_band(c->in[0], (int64_t)c->T * c->d->id, c->lv, state);
}

/* One score. relu never enlarges an error; a head that it cuts adds nothing to what is expected. */
static void score_one(const k_call *c, const float *q, const float *pk, double y, k_band *add) {
    const int64_t id = c->d->id;
    double hard = 0.0, r2 = 0.0, sum = 0.0;
    for (int32_t h = 0; h < c->d->ih; h++, q += id) {
        double x2 = 0.0;
        for (int64_t i = 0; i < id; i++) x2 += sq((double)(q[i] * pk[i]));
        double dot = (double)k_v8_dot(q, pk, id);
        hard += k_lanes32_gamma((double)id) * sqrt((double)id * x2);
        if (!(dot > 0.0)) continue;
        sum += dot;
        r2 += k_lanes32_rms2((double)id, x2, dot * dot) + (h ? RU2 * sum * sum : 0.0);
    }
    const double root = sqrt((double)id);
    add->hard2 += sq((hard + k_gamma(c->d->ih) * sum) / root + 2.0 * K_U * y);
    add->rms2 += r2 / (double)id + 2.0 * RU2 * y * y;
}

void idx_score_band(const k_call *c, k_band *add) {
    const k_dims *d = c->d;
    const int64_t id = d->id;
    for (int64_t t = 0; t < c->T; t++) {
        const int32_t nb = k_nblocks(c->pos0 + (int32_t)t, d->ratio);
        for (int64_t b = 0; b < nb; b++)
            score_one(c, c->in[0] + t * d->ih * id, c->st[0]->f + b * id, (double)c->out[t * c->cols + b], add);
    }
}
