#include "kernels/attn_runs.h"

#include <string.h>

int64_t k_visible_work(const k_dims *d, int64_t Tc) {
    if (!d->ratio) return 2;
    int64_t nb = Tc / d->ratio, runs = (nb < d->nsel ? nb : d->nsel) + 1 + d->ratio;
    return (nb + 31) / 32 + d->ratio + 2 * runs;
}

static int32_t push(int32_t *at, int32_t n, int32_t begin, int32_t end) {
    if (begin == end) return n;
    if (n && at[2 * n - 1] == begin) {
        at[2 * n - 1] = end;
        return n;
    }
    at[2 * n] = begin;
    at[2 * n + 1] = end;
    return n + 1;
}

/* Extras x[*e ..] below `until`, but for those that a run already holds. */
static int32_t between(int32_t *at, int32_t n, const int32_t *x, int32_t nx, int32_t *e, int32_t until) {
    for (; *e < nx && x[*e] < until; ++*e)
        if (!n || x[*e] >= at[2 * n - 1]) n = push(at, n, x[*e], x[*e] + 1);
    return n;
}

/* The extra tokens of row t below end, ascending, into x; their number. */
static int32_t extras(const k_call *c, int slot, int32_t t, int32_t end, int32_t *x) {
    const int32_t *ids = c->in_i[slot];
    const int64_t width = ids ? c->in_cols[slot] : 0;
    int32_t n = 0;
    for (int64_t i = 0; i < width && n < c->d->ratio; i++) {
        int32_t id = ids[t * width + i], k = n;
        if (id < 0 || id >= end) continue;
        for (; k > 0 && x[k - 1] > id; k--) x[k] = x[k - 1];
        x[k] = id;
        n++;
    }
    return n;
}

k_runs k_visible(const k_call *c, int sel, int32_t t, float *work) {
    const int32_t ratio = c->d->ratio, end = c->pos0 + t + 1, *ids = c->in_i[sel];
    int32_t *at = (int32_t *)(void *)work, n = 0;
    if (!ids) {
        at[0] = 0;
        at[1] = end;
        return (k_runs){1, at};
    }
    const int32_t nb = end / ratio, words = (nb + 31) / 32;
    const int64_t width = c->in_cols[sel];
    uint32_t *bit = (uint32_t *)(void *)work;
    int32_t *x = at + words, nx = extras(c, sel + 1, t, end, x), e = 0;
    at = x + nx;
    memset(bit, 0, (size_t)words * sizeof *bit);
    for (int64_t i = 0; i < width; i++) {
        int32_t b = ids[t * width + i];
        if (b >= 0 && b < nb) bit[b / 32] |= UINT32_C(1) << (b % 32);
    }
    for (int32_t w = 0; w < words; w++)
        for (uint32_t m = bit[w]; m; m &= m - 1) {
            int32_t b = 32 * w + __builtin_ctz(m);
            n = between(at, n, x, nx, &e, b * ratio);
            n = push(at, n, b * ratio, (b + 1) * ratio);
        }
    n = between(at, n, x, nx, &e, nb * ratio);
    n = push(at, n, nb * ratio, end);
    return (k_runs){n, at};
}
