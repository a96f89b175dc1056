/* Encoders of code-book types: IQ1_S, IQ2_XXS. */
#include "kernels/quant_grids.h"
#include "lib/encode_book.h"

static double sum(const double *v, int n) {
    double s = 0;
    for (int i = 0; i < n; i++) s += v[i];
    return s;
}

/* ---- IQ1_S: rows of -1, 0, 1, all moved by +-1/8; the variant is the sign of that ---- */

static const double iq1_steps[] = {1, 3, 5, 7, 9, 11, 13, 15};

/* Of the rows with equally many entries 1 and equally many -1 only one can be best, whatever step and variant, when all
 * weights are equal: the one with most x . g. With other weights it is the one that gains most. */
typedef struct {
    double dot[81], mass[81]; /* sums of w x g and w g^2 */
    int row[81];              /* -1: none */
} iq1_classes;

static void classes_iq1(const double sw[256], const double sx[256], iq1_classes *k) {
    enum { ROWS = 2048 };
    double score[81];
    for (int i = 0; i < 81; i++) {
        score[i] = -INFINITY;
        k->mass[i] = 1;
        k->row[i] = -1;
    }
    for (int r = 0; r < ROWS; r++) {
        uint32_t plus = K_TAB(k_iq1_grid)[r] & 255, minus = K_TAB(k_iq1_grid)[r] >> 8;
        double dot = sx[plus] - sx[minus], mass = sw[plus] + sw[minus];
        int i = 9 * __builtin_popcount(plus) + __builtin_popcount(minus);
        if (k->row[i] >= 0 && !(dot * fabs(dot) * k->mass[i] > score[i] * mass)) continue;
        score[i] = dot * fabs(dot);
        k->dot[i] = dot;
        k->mass[i] = mass;
        k->row[i] = r;
    }
}

static void hulls_iq1(const double *x, const double *w, q4x_hull *up, q4x_hull *down) {
    double wx[8], sw[256], sx[256], W = sum(w, 8);
    iq1_classes k;
    q4x_bins bins[2];
    for (int i = 0; i < 8; i++) wx[i] = w[i] * x[i];
    q4x_subset_sums(w, sw);
    q4x_subset_sums(wx, sx);
    classes_iq1(sw, sx, &k);
    /* M is (4 N + S + 1/2) / 4 for N entries that are not 0 and S their sum: 41 values when all weights are 1 */
    for (int v = 0; v < 2; v++) q4x_bins_clear(&bins[v], 0, W > 0 ? 32 / W : 0);
    for (int i = 0; i < 81; i++) {
        if (k.row[i] < 0) continue;
        uint32_t g = K_TAB(k_iq1_grid)[k.row[i]];
        double quarter = 0.25 * (sw[g & 255] - sw[g >> 8]), rest = W / 64;
        q4x_bins_add(&bins[0], k.mass[i] + quarter + rest, k.dot[i] + 0.125 * sx[255], k.row[i]);
        q4x_bins_add(&bins[1], k.mass[i] - quarter + rest, k.dot[i] - 0.125 * sx[255], k.row[i]);
    }
    q4x_bins_hull(&bins[0], up);
    q4x_bins_hull(&bins[1], down);
}

/* Step that suits rows of which half the entries are 0. */
static double guess_iq1(const q4x_block *b) {
    double most = 0;
    for (int j = 0; j < Q4X_GROUPS; j++) {
        double a = 0, n = 0;
        for (int i = 32 * j; i < 32 * j + 32; i++) {
            a += b->w[i] * fabs(b->x[i]);
            n += b->w[i];
        }
        if (n > 0 && a / n > most) most = a / n;
    }
    return 1.25 * most / 15;
}

void q4x_encode_IQ1_S(const q4x_block *b) {
    q4x_book k = {.variants = 2, .codes = 8, .mult = iq1_steps};
    q4x_choice c;
    for (int i = 0; i < Q4X_OCTETS; i++) hulls_iq1(b->x + 8 * i, b->w + 8 * i, &k.hull[0][i], &k.hull[1][i]);
    q4x_book_search(&k, guess_iq1(b), &c);
    q4x_put16(b->out, q4x_half_bits(c.d));
    for (int j = 0; j < Q4X_GROUPS; j++) {
        uint32_t h = (uint32_t)c.code[j] << 12 | (uint32_t)c.variant[j] << 15;
        for (int l = 0; l < 4; l++) {
            uint32_t r = c.row[4 * j + l];
            b->out[2 + 4 * j + l] = (uint8_t)r;
            h |= r >> 8 << 3 * l;
        }
        q4x_put16(b->out + 34 + 2 * j, h);
    }
}

/* ---- IQ2_XXS: magnitudes 8, 25, 43, and signs of which an even number is set ---- */

static const double iq2_steps[] = {0.125, 0.375, 0.625, 0.875, 1.125, 1.375, 1.625, 1.875,
                                   2.125, 2.375, 2.625, 2.875, 3.125, 3.375, 3.625, 3.875};

static uint32_t signs_of(const double *x) {
    uint32_t s = 0;
    for (int i = 0; i < 8; i++) s |= (uint32_t)(x[i] < 0) << i;
    return s;
}

/* With an odd number of signs one element gets the wrong one: the one for which that costs least. */
static double least_flip(const double *wx, uint32_t row, int *ret_at) {
    double least = INFINITY;
    for (int i = 0; i < 8; i++) {
        double f = wx[i] * k_plane_iq2(row, i);
        if (!(f < least)) continue;
        least = f;
        *ret_at = i;
    }
    return least;
}

static void hull_iq2(const double *x, const double *w, q4x_hull *ret) {
    enum { ROWS = 256, LOW = 8 * 8, MID = 25 * 25 - LOW, TOP = 43 * 43 - LOW };
    double wx[8], sw[256], sx[256], W = sum(w, 8);
    int odd = __builtin_popcount(signs_of(x)) & 1, at = 0;
    q4x_bins bins;
    for (int i = 0; i < 8; i++) wx[i] = w[i] * fabs(x[i]);
    q4x_subset_sums(w, sw);
    q4x_subset_sums(wx, sx);
    q4x_bins_clear(&bins, LOW * W, W > 0 ? Q4X_MAX_BINS / (W * (TOP + 1)) : 0);
    for (int r = 0; r < ROWS; r++) {
        uint32_t g = K_TAB(k_iq2xxs_grid)[r], mid = g & 255, top = g >> 8;
        double M = LOW * W + MID * sw[mid] + TOP * sw[top], Q = 8 * sx[255] + 17 * sx[mid] + 35 * sx[top];
        q4x_bins_add(&bins, M, odd ? Q - 2 * least_flip(wx, g, &at) : Q, r);
    }
    q4x_bins_hull(&bins, ret);
}

/* Seven bits of signs; the eighth follows. */
static uint32_t sign_code(const double *x, const double *w, uint32_t row) {
    uint32_t s = signs_of(x);
    double wx[8];
    int at = 0;
    if (!(__builtin_popcount(s) & 1)) return s & 127;
    for (int i = 0; i < 8; i++) wx[i] = w[i] * fabs(x[i]);
    least_flip(wx, row, &at);
    return (s ^ 1u << at) & 127;
}

void q4x_encode_IQ2_XXS(const q4x_block *b) {
    q4x_book k = {.variants = 1, .codes = 16, .mult = iq2_steps};
    q4x_choice c;
    double most = 0;
    for (int i = 0; i < 256; i++)
        if (b->w[i] > 0 && fabs(b->x[i]) > most) most = fabs(b->x[i]);
    for (int i = 0; i < Q4X_OCTETS; i++) hull_iq2(b->x + 8 * i, b->w + 8 * i, &k.hull[0][i]);
    q4x_book_search(&k, most / 43 / iq2_steps[15], &c);
    q4x_put16(b->out, q4x_half_bits(c.d));
    for (int j = 0; j < Q4X_GROUPS; j++) {
        uint32_t word = (uint32_t)c.code[j] << 28;
        for (int l = 0; l < 4; l++) {
            int i = 4 * j + l;
            b->out[2 + 8 * j + l] = (uint8_t)c.row[i];
            word |= sign_code(b->x + 8 * i, b->w + 8 * i, K_TAB(k_iq2xxs_grid)[c.row[i]]) << 7 * l;
        }
        q4x_put32(b->out + 2 + 8 * j + 4, word);
    }
}
