#include "lib/tapstat_look.h"

#include <math.h>

#include "kernels/measure.h"

enum { BLOCK = 256 }; /* elements looked at together */

/* What one block adds, over its finite values. */
typedef struct {
    uint32_t nonfinite, zeros, bf16, f16;
    uint32_t amax;
    int32_t kmin, kmax;
} block_stat;

/* ---- keys: integers in the order of the floats, so that minima are plain integer reductions ---- */

static inline int32_t key_of(uint32_t u) {
    return (int32_t)(u ^ ((0u - (u >> 31)) & 0x7fffffffu));
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static float key_value(int32_t key) {
    uint32_t u = (uint32_t)key;
    return float_of(u ^ ((0u - (u >> 31)) & 0x7fffffffu)) + 0.0f; /* a zero extreme is +0 */
}

/* No branches, integer reductions only: compilers make vectors of it. Meaningful when amax says that all are finite. */
static inline __attribute__((always_inline)) void look(const float *x, int n, block_stat *s) {
    uint32_t zeros = 0, bf16 = 0, f16 = 0;
    int32_t amax = 0, kmin = INT32_MAX, kmax = INT32_MIN;
    for (int i = 0; i < n; i++) {
        uint32_t u, a;
        memcpy(&u, x + i, 4);
        a = u & 0x7fffffffu;
        int32_t key = key_of(u);
        amax = (int32_t)a > amax ? (int32_t)a : amax;
        kmin = key < kmin ? key : kmin;
        kmax = key > kmax ? key : kmax;
        zeros += a == 0;
        bf16 += (u & 0xffff) == 0;
        f16 += k_on_f16(a);
    }
    s->nonfinite = 0, s->zeros = zeros, s->bf16 = bf16, s->f16 = f16;
    s->amax = (uint32_t)amax, s->kmin = kmin, s->kmax = kmax;
}

/* The block holds something that is not finite: look at the others, one by one. */
static void look_dirty(q4x_stats *st, const float *x, int n, block_stat *s) {
    *s = (block_stat){.kmin = INT32_MAX, .kmax = INT32_MIN};
    for (int i = 0; i < n; i++) {
        block_stat one;
        if (isnan(x[i]) || isinf(x[i])) {
            s->nonfinite++;
            if (isnan(x[i]))
                st->nan++;
            else if (x[i] > 0)
                st->pinf++;
            else
                st->ninf++;
            continue;
        }
        look(x + i, 1, &one);
        s->zeros += one.zeros, s->bf16 += one.bf16, s->f16 += one.f16;
        s->amax = one.amax > s->amax ? one.amax : s->amax;
        s->kmin = one.kmin < s->kmin ? one.kmin : s->kmin;
        s->kmax = one.kmax > s->kmax ? one.kmax : s->kmax;
    }
}

/* ---- the largest |x| ---- */

static uint32_t threshold(const q4x_stats *st) {
    return st->ntop < Q4X_NTOP ? 0 : q4x_magnitude(st->top_value[Q4X_NTOP - 1]);
}

static void top_insert(q4x_stats *st, float x, uint64_t index) {
    uint32_t a = q4x_magnitude(x);
    int k = st->ntop < Q4X_NTOP ? st->ntop++ : Q4X_NTOP - 1;
    for (; k > 0 && a > q4x_magnitude(st->top_value[k - 1]); k--) {
        st->top_value[k] = st->top_value[k - 1];
        st->top_index[k] = st->top_index[k - 1];
    }
    st->top_value[k] = x;
    st->top_index[k] = index;
}

/* Elements come in ascending index, so one that only equals a kept magnitude ranks behind it. Eight are tested at
 * once: most blocks that hold one candidate hold few. */
static void top_scan(q4x_stats *st, const float *x, int n, uint64_t index0) {
    for (int i = 0; i < n; i += 8) {
        int m = n - i < 8 ? n - i : 8, hit = st->ntop < Q4X_NTOP;
        int32_t limit = (int32_t)threshold(st);
        if (m == 8)
            for (int l = 0; l < 8; l++) hit |= (int32_t)q4x_magnitude(x[i + l]) > limit;
        else
            hit = 1;
        if (!hit) continue;
        for (int l = 0; l < m; l++) {
            uint32_t a = q4x_magnitude(x[i + l]);
            if (a < 0x7f800000u && (st->ntop < Q4X_NTOP || a > threshold(st)))
                top_insert(st, x[i + l], index0 + (uint64_t)(i + l));
        }
    }
}

/* ---- rows ---- */

int q4x_seen_row(q4x_seen *s, const float *x, int64_t cols, uint64_t index0) {
    int clean = 1;
    for (int64_t i = 0; i < cols; i += BLOCK) {
        int n = cols - i < BLOCK ? (int)(cols - i) : BLOCK;
        block_stat b;
        if (n == BLOCK)
            look(x + i, BLOCK, &b);
        else
            look(x + i, n, &b);
        if (b.amax >= 0x7f800000u) {
            look_dirty(&s->st, x + i, n, &b);
            clean = 0;
        }
        s->nonfinite += b.nonfinite;
        s->st.zeros += b.zeros, s->st.on_bf16 += b.bf16, s->st.on_f16 += b.f16;
        s->amax = b.amax > s->amax ? b.amax : s->amax;
        s->kmin = b.kmin < s->kmin ? b.kmin : s->kmin;
        s->kmax = b.kmax > s->kmax ? b.kmax : s->kmax;
        if (s->st.ntop < Q4X_NTOP || b.amax > threshold(&s->st)) top_scan(&s->st, x + i, n, index0 + (uint64_t)i);
    }
    return clean;
}

q4x_seen q4x_seen_none(void) {
    return (q4x_seen){.kmin = INT32_MAX, .kmax = INT32_MIN};
}

void q4x_seen_join(q4x_seen *a, const q4x_seen *b) {
    a->st.nan += b->st.nan, a->st.pinf += b->st.pinf, a->st.ninf += b->st.ninf;
    a->st.zeros += b->st.zeros, a->st.on_bf16 += b->st.on_bf16, a->st.on_f16 += b->st.on_f16;
    a->nonfinite += b->nonfinite;
    a->skipped += b->skipped;
    a->amax = b->amax > a->amax ? b->amax : a->amax;
    a->kmin = b->kmin < a->kmin ? b->kmin : a->kmin;
    a->kmax = b->kmax > a->kmax ? b->kmax : a->kmax;
    for (int k = 0; k < b->st.ntop; k++)
        if (a->st.ntop < Q4X_NTOP || q4x_magnitude(b->st.top_value[k]) > threshold(&a->st))
            top_insert(&a->st, b->st.top_value[k], b->st.top_index[k]);
}

q4x_seen q4x_seen_there(const k_measured *m, uint64_t index0) {
    q4x_seen s = q4x_seen_none();
    s.st.nan = m->nan, s.st.pinf = m->pinf, s.st.ninf = m->ninf;
    s.st.zeros = m->zeros, s.st.on_bf16 = m->on_bf16, s.st.on_f16 = m->on_f16;
    s.nonfinite = m->nan + m->pinf + m->ninf;
    s.skipped = m->skipped;
    if (!m->low) return s; /* nothing finite */
    s.kmin = (int32_t)(~m->low ^ 0x80000000u);
    s.kmax = (int32_t)(m->high ^ 0x80000000u);
    s.amax = k_measure_bits(m->top[0]) & 0x7fffffffu;
    for (int k = 0; k < Q4X_NTOP && m->top[k]; k++) {
        s.st.top_value[k] = float_of(k_measure_bits(m->top[k]));
        s.st.top_index[k] = index0 + k_measure_index(m->top[k]);
        s.st.ntop = k + 1;
    }
    return s;
}

void q4x_seen_extremes(const q4x_seen *s, q4x_stats *stats) {
    int none = s->nonfinite == s->st.n;
    stats->min = none ? (double)NAN : (double)key_value(s->kmin);
    stats->max = none ? (double)NAN : (double)key_value(s->kmax);
    stats->maxabs = none ? (double)NAN : (double)float_of(s->amax);
}
