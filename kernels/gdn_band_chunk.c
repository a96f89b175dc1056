/* The band of the chunked rule (the frame: gdn_band.c). Names as in gdn.h, |X_i| norms of rows, S before the chunk.
 *
 * N solves (I + A) N = beta V - beta E k S. So to first order an error dA of the weights enters as dA N (not as dA U
 * and dA K S one by one), and so do the roundings e made while U and K are built; all of these pass through
 * M = (I + A)^-1. Errors f made behind the solve do not:
 *   e_i   = sum_(j<i) dA_ij |N_j| + roundings of U_i + |S| (roundings of K_i)
 *   f_i   = gamma(dk)|K_i||S| + u|N_i|
 *   dA_ij = |A_ij|(2u + x_ij) + beta X_ij gamma(dk)|k_i||k_j|
 *   x_ij  = 2u + sum_(j<r<=i) u|G_r| + u|G_i - G_j|, the relative error of X_ij; x_i that of E_i
 * An error s of S itself reaches row i of the outputs through R_i = E_i q_i - sum_j P_ij K_j, and the next S through
 * T = E I - sum_i L_i k_i K_i^T, the product of the token maps, of norm at most E prod lambda:
 *   o_i = |R_i| s + sum_j |(P M)_ij| e_j + sum_j |P_ij| f_j + (gamma(dk) + 2u + x_i) E_i|q_i||S|
 *         + sum_j dP_ij |N_j| + gamma(i+2) sum_j |P_ij||N_j| + u|o_i|
 *   s   = |T| s + sum_j |Z_j| e_j + sum_i L_i|k_i| (f_i + (u + x + gamma(n))|N_i|) + x E|S| + u|S'|
 *         Z_j = sum_i L_i k_i M_ij
 * The mean squares: squares in place of the bounds, .18 u^2 chains in place of gamma; a product of an error of S with
 * a vector keeps 1/dk of the square, |T|^2/dk that of T.
 *
 * A rounding to bf16 that a lever places adds, with v = 2^-8, behind the solve
 *   f_i   += v|U_i| (gdn.u), v|K_i||S| (gdn.w), v|N_i| (gdn.vnew), v sum_(j<i) |M_ij||r_j| (gdn.inv),
 *            r = (I + A) N, what M is multiplied with
 * and, as an error v|S| of S that reaches o_i through E_i q_i (gdn.h), through R_i - E_i q_i (gdn.hop) or R_i (both),
 * and the next S through T - E I (gdn.hop). gdn.inv adds the f32 roundings of M (into e) and of its products (into f).
 * Products of two of these errors are 2^-8 of one: hard is taken 1.1 times.
 */
#include <string.h>

#include "kernels/arith.h"
#include "kernels/gdn_head.h"

enum { CH = K_GDN_CHUNK };

#define RU2 (K_RMS2 * K_U * K_U)

typedef struct {
    double h, r2;
} err;

/* One chunk's sizes and errors; matrices in scratch. */
typedef struct {
    float *U, *out, *M, *PM, *row;                 /* [CH, dv] before N, [CH, dv], [CH, CH] twice, [dk] or [dv] */
    double k2[CH], u2[CH], w2[CH], n2[CH], ks[CH]; /* |k_i|^2 |U_i|^2 |K_i|^2 |N_i|^2 |K_i S|^2 */
    double lu[CH], lw[CH];                         /* |sum_j A_ij U_j|^2, |sum_j A_ij K_j|^2 */
    double cg[CH], cg2[CH];                        /* running sums of |G_r|, G_r^2 */
    err e[CH], f[CH];
    double s2, grow; /* |S|^2 before the chunk, product of lambda */
    err s;           /* of S */
    double keep;     /* what the chunks so far leave of the square of an error of S */
    double slack;    /* second orders of roundings to bf16 */
} sizes;

/* The mean square of one rounding to bf16, relative. */
#define RV2 (K_RMS2 * 0x1p-16)
#define RV 0x1p-8

int64_t k_gdn_band_chunk_work(const k_dims *d) {
    return k_gdn_chunk_work(d) + CH * (d->dv + 15 + 16 + (int64_t)d->dv + 2 * CH) + d->dk + d->dv;
}

/* sum (scale x - y)^2 */
static double dist2(const float *x, const float *y, double scale, int64_t n) {
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double v = scale * (double)x[i] - (double)y[i];
        s += v * v;
    }
    return s;
}

static double state2(const k_gdn_rows *x) {
    double s = 0.0;
    for (int64_t e = 0; e < x->a->dk; e++) s += k_norm2(x->S + e * x->vw, x->a->dv);
    return s;
}

/* Relative error of exp(G_i - G_j) from the roundings of G behind j; r2 in units of .18 u^2. j = -1: exp(G_i). */
static err exp_error(const k_gdn_rows *x, const sizes *z, int32_t i, int32_t j) {
    if (j < 0) return (err){K_U * (z->cg[i] + 2.0), z->cg2[i] + 2.0};
    double d = fabs((double)x->G[i] - (double)x->G[j]);
    return (err){K_U * (z->cg[i] - z->cg[j] + d + 2.0), z->cg2[i] - z->cg2[j] + d * d + 2.0};
}

/* Before N takes U's place. */
static void sizes_of(const k_gdn_rows *x, sizes *z) {
    const k_gdn_head *a = x->a;
    double cg = 0.0, cg2 = 0.0;
    z->grow = 1.0;
    for (int32_t i = 0; i < x->n; i++) {
        const float *k = a->k + (x->t + i) * a->kstep, *v = a->v + (x->t + i) * a->vstep;
        const double b = (double)x->beta[i];
        z->k2[i] = k_norm2(k, a->dk);
        z->u2[i] = k_norm2(x->U + i * x->vw, a->dv);
        z->w2[i] = k_norm2(x->K + i * x->kw, a->dk);
        z->lu[i] = dist2(v, x->U + i * x->vw, b, a->dv);
        z->lw[i] = dist2(k, x->K + i * x->kw, b * (double)x->E[i], a->dk);
        z->cg[i] = cg += fabs((double)x->G[i]);
        z->cg2[i] = cg2 += (double)x->G[i] * (double)x->G[i];
        if (fabs(1.0 - b * z->k2[i]) > 1.0) z->grow *= fabs(1.0 - b * z->k2[i]);
    }
    memcpy(z->U, x->U, (size_t)(x->n * x->vw) * sizeof *z->U);
    z->s2 = state2(x);
}

/* M and P M, lower triangles. */
static void inverse(const k_gdn_rows *x, const sizes *z) {
    memset(z->M, 0, sizeof(float[CH * CH]));
    memset(z->PM, 0, sizeof(float[CH * CH]));
    for (int32_t i = 0; i < x->n; i++) {
        float *M = z->M + i * CH, *PM = z->PM + i * CH;
        for (int32_t j = 0; j < i; j++)
            for (int32_t c = 0; c <= j; c++) M[c] -= x->A[i * CH + j] * z->M[j * CH + c];
        M[i] = 1.0f;
        for (int32_t j = 0; j <= i; j++)
            for (int32_t c = 0; c <= j; c++) PM[c] += x->P[i * CH + j] * z->M[j * CH + c];
    }
}

static void solve_errors(const k_gdn_rows *x, sizes *z) {
    const double dk = x->a->dk, s = sqrt(z->s2);
    for (int32_t i = 0; i < x->n; i++) {
        const double b = fabs((double)x->beta[i]), k = b * (double)x->E[i] * sqrt(z->k2[i]), w = sqrt(z->w2[i]);
        const err E = exp_error(x, z, i, -1);
        double h = 0.0, r2 = 0.0, au = 0.0, aw = 0.0, au2 = 0.0, aw2 = 0.0;
        for (int32_t j = 0; j < i; j++) {
            const err X = exp_error(x, z, i, j);
            const double A2 = (double)x->A[i * CH + j] * (double)x->A[i * CH + j], A = sqrt(A2);
            const double bX = b * (double)k_exp(x->G[i] - x->G[j]), kk2 = z->k2[i] * z->k2[j];
            h += (A * (2.0 * K_U + X.h) + bX * k_gamma(dk) * sqrt(kk2)) * sqrt(z->n2[j]);
            r2 += RU2 * (A2 * (2.0 + X.r2 + dk / 3) + bX * bX * kk2 / 2) * z->n2[j];
            au += A * sqrt(z->u2[j]);
            aw += A * sqrt(z->w2[j]);
            au2 += A2 * z->u2[j];
            aw2 += A2 * z->w2[j];
        }
        h += k_gamma(i) * au + K_U * (2.0 * sqrt(z->u2[i]) + sqrt(z->lu[i]));
        h += s * (k_gamma(i) * aw + (2.0 * K_U + E.h) * k + K_U * w);
        r2 += k_serial_rms2(i, au2, z->lu[i]) + RU2 * (2.0 * z->u2[i] + z->lu[i]);
        r2 += z->s2 / dk * (k_serial_rms2(i, aw2, z->lw[i]) + RU2 * ((2.0 + E.r2) * k * k + z->w2[i]));
        z->e[i] = (err){h, r2};
        z->f[i].h = k_gamma(dk) * w * s + K_U * sqrt(z->n2[i]);
        z->f[i].r2 = k_serial_rms2(dk, z->w2[i] * z->s2 / dk, z->ks[i]) + RU2 * z->n2[i];
    }
}

/* r_i into z->row; its size. */
static double right_side(const k_gdn_rows *x, const sizes *z, int32_t i) {
    const int32_t dv = x->a->dv;
    memcpy(z->row, x->U + i * x->vw, (size_t)dv * sizeof *z->row);
    for (int32_t j = 0; j < i; j++)
        for (int32_t c = 0; c < dv; c++) z->row[c] += x->A[i * CH + j] * x->U[j * x->vw + c];
    return sqrt(k_norm2(z->row, dv));
}

static void inverse_errors(const k_gdn_rows *x, sizes *z) {
    const k_gdn_head *a = x->a;
    double r[CH], m[CH], bv[CH], bk[CH];
    for (int32_t i = 0; i < x->n; i++) {
        const double b = fabs((double)x->beta[i]);
        double h = 0.0, r2 = 0.0, parts = 0.0, rows = 0.0;
        r[i] = right_side(x, z, i);
        bv[i] = b * sqrt(k_norm2(a->v + (x->t + i) * a->vstep, a->dv));
        bk[i] = b * (double)x->E[i] * sqrt(z->k2[i] * z->s2);
        m[i] = 0.0;
        for (int32_t j = 0; j <= i; j++) {
            const double M = fabs((double)z->M[i * CH + j]);
            m[i] += M * r[j];
            parts += M * (bv[j] + bk[j]);
            if (j == i) break; /* the diagonal is 1 */
            h += RV * M * r[j];
            r2 += RV2 * M * M * r[j] * r[j];
            rows += fabs((double)x->A[i * CH + j]) * m[j];
        }
        z->e[i].h += k_gamma(i + 1) * rows + K_U * m[i];
        z->f[i].h += h + k_gamma(i + 1) * parts;
        z->f[i].r2 += r2;
    }
}

/* What the levers' roundings leave behind the solve. */
static void place_errors(const k_gdn_rows *x, sizes *z) {
    const int32_t places = x->a->places;
    for (int32_t i = 0; i < x->n; i++) {
        const double u2 = places & K_PLACE_U ? z->u2[i] : 0.0, n2 = places & K_PLACE_VNEW ? z->n2[i] : 0.0;
        const double w2 = places & K_PLACE_W ? z->w2[i] * z->s2 : 0.0;
        z->f[i].h += RV * (sqrt(u2) + sqrt(n2) + sqrt(w2));
        z->f[i].r2 += RV2 * (u2 + n2 + w2 / x->a->dk);
    }
    if (places & K_PLACE_INV) inverse_errors(x, z);
}

/* |q E_i q_i - k sum_j P_ij K_j|^2: R_i with q = k = 1 */
static double reach2(const k_gdn_rows *x, const sizes *z, int32_t i, float q, float k) {
    const int32_t dk = x->a->dk;
    for (int32_t c = 0; c < dk; c++) z->row[c] = q * x->E[i] * x->qs[i * x->kw + c];
    for (int32_t j = 0; j <= i; j++)
        for (int32_t c = 0; c < dk; c++) z->row[c] -= k * x->P[i * CH + j] * x->K[j * x->kw + c];
    return k_norm2(z->row, dk);
}

/* The same of what reads a rounded S. */
static double reach_rounded2(const k_gdn_rows *x, const sizes *z, int32_t i) {
    const int h = (x->a->places & K_PLACE_H) != 0, hop = (x->a->places & K_PLACE_HOP) != 0;
    return h || hop ? reach2(x, z, i, (float)h, (float)hop) : 0.0;
}

static void out_errors(const k_gdn_rows *x, const sizes *z, k_band *add) {
    const k_gdn_head *a = x->a;
    const double dk = a->dk;
    for (int32_t i = 0; i < x->n; i++) {
        const double q2 = k_norm2(x->qs + i * x->kw, a->dk), E = (double)x->E[i];
        const double R2 = reach2(x, z, i, 1.0f, 1.0f), S2 = reach_rounded2(x, z, i) * z->s2;
        const double o2 = k_norm2(z->out + (int64_t)i * a->dv, a->dv), qs2 = E * E * q2 * z->s2 / dk;
        const err eE = exp_error(x, z, i, -1);
        double h = sqrt(R2) * z->s.h + (k_gamma(dk) + 2.0 * K_U + eE.h) * sqrt(dk * qs2) + K_U * sqrt(o2), pn = 0.0;
        double r2 = R2 / dk * z->s.r2 + k_serial_rms2(dk, qs2 / dk, qs2) + RU2 * ((2.0 + eE.r2) * qs2 + o2), pn2 = 0.0;
        for (int32_t j = 0; j <= i; j++) {
            const err X = exp_error(x, z, i, j);
            const double P2 = (double)x->P[i * CH + j] * (double)x->P[i * CH + j], P = sqrt(P2), n = sqrt(z->n2[j]);
            const double PM = fabs((double)z->PM[i * CH + j]), Xe = (double)k_exp(x->G[i] - x->G[j]);
            h += PM * z->e[j].h + P * (z->f[j].h + (K_U + X.h) * n);
            h += Xe * (k_gamma(dk) + K_U) * sqrt(q2 * z->k2[j]) * n;
            r2 += PM * PM * z->e[j].r2 + P2 * (z->f[j].r2 + RU2 * (2.0 + X.r2 + dk / 3) * z->n2[j]);
            r2 += RU2 / 2 * Xe * Xe * q2 * z->k2[j] * z->n2[j];
            pn += P * n;
            pn2 += P2 * z->n2[j];
        }
        h += k_gamma(i + 2) * pn + RV * sqrt(S2);
        r2 += k_serial_rms2(i + 1, pn2, pn2) + RV2 * S2 / dk;
        k_gdn_band_out(a->act, sqrt(o2), z->slack * h, r2, add);
    }
}

/* |T|^2, row by row; e = 0: |T - E I|^2 */
static double turn2(const k_gdn_rows *x, const sizes *z, float e) {
    const int32_t dk = x->a->dk;
    double s = 0.0;
    for (int32_t r = 0; r < dk; r++) {
        for (int32_t c = 0; c < dk; c++) z->row[c] = c == r ? e : 0.0f;
        for (int32_t i = 0; i < x->n; i++) {
            float lk = x->kt[r * CH + i]; /* L_i k_i by now */
            for (int32_t c = 0; c < dk; c++) z->row[c] -= lk * x->K[i * x->kw + c];
        }
        s += k_norm2(z->row, dk);
    }
    return s;
}

/* |Z_j|^2 */
static double spread2(const k_gdn_rows *x, const sizes *z, int32_t j) {
    double s = 0.0;
    for (int32_t c = 0; c < x->a->dk; c++) {
        double v = 0.0;
        for (int32_t i = j; i < x->n; i++) v += (double)x->kt[c * CH + i] * (double)z->M[i * CH + j];
        s += v * v;
    }
    return s;
}

static void state_errors(const k_gdn_rows *x, sizes *z) {
    const k_gdn_head *a = x->a;
    const int32_t last = x->n - 1;
    const double E = (double)x->E[last], after2 = state2(x);
    const err eE = exp_error(x, z, last, -1);
    double h = E * (z->grow * z->s.h + eE.h * sqrt(z->s2)) + K_U * sqrt(after2), sum2 = 0.0;
    const double keep = turn2(x, z, x->E[last]) / a->dk;
    const double hop2 = a->places & K_PLACE_HOP ? turn2(x, z, 0.0f) * z->s2 : 0.0;
    double r2 = keep * z->s.r2 + RU2 * (E * E * eE.r2 * z->s2 + after2);
    z->keep *= keep;
    h += RV * sqrt(hop2);
    r2 += RV2 * hop2 / a->dk;
    for (int32_t i = 0; i < x->n; i++) {
        const err X = exp_error(x, z, last, i);
        const double lk2 = (double)x->L[i] * (double)x->L[i] * z->k2[i], Z2 = spread2(x, z, i);
        h += sqrt(Z2) * z->e[i].h + sqrt(lk2) * (z->f[i].h + (K_U + X.h + k_gamma(x->n)) * sqrt(z->n2[i]));
        r2 += Z2 * z->e[i].r2 + lk2 * (z->f[i].r2 + RU2 * (1.0 + X.r2) * z->n2[i]);
        sum2 += lk2 * z->n2[i];
    }
    z->s = (err){h, r2 + k_serial_rms2(x->n, sum2, sum2)};
}

void k_gdn_band_chunk(const k_gdn_head *a, float *work, k_band *add, k_gdn_turn *turn) {
    k_gdn_rows x = k_gdn_rows_of(a, work);
    sizes z = {.U = x.M + CH * CH, .keep = 1.0, .slack = a->places ? 1.1 : 1.0};
    z.out = z.U + CH * x.vw;
    z.M = z.out + (int64_t)CH * a->dv;
    z.PM = z.M + CH * CH;
    z.row = z.PM + CH * CH;
    for (x.t = 0; x.t < a->T; x.t += CH) {
        x.n = a->T - x.t < CH ? a->T - x.t : CH;
        k_gdn_chunk_weights(&x);
        k_gdn_chunk_solve(&x);
        sizes_of(&x, &z);
        k_gdn_chunk_new(&x);
        for (int32_t i = 0; i < x.n; i++) {
            z.n2[i] = k_norm2(x.U + i * x.vw, a->dv);
            z.ks[i] = dist2(z.U + i * x.vw, x.U + i * x.vw, 1.0, a->dv);
        }
        inverse(&x, &z);
        solve_errors(&x, &z);
        place_errors(&x, &z);
        k_gdn_chunk_finish(&x, z.out, a->dv);
        out_errors(&x, &z, add);
        state_errors(&x, &z);
    }
    k_gdn_band_state(z.slack * z.s.h, z.s.r2, &turn->made);
    turn->keep = z.keep;
    k_gdn_rows_end(&x);
}
