#include "kernels/attn_runs.h"

#include <string.h>

int64_t k_visible_work(const k_dims *d, int64_t Tc) {
    if (!d->ratio) return 2;
    int64_t nb = Tc / d->ratio, runs = (nb < d->nsel ? nb : d->nsel) + 1;
    return 2 * runs + (nb + 31) / 32;
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

k_runs k_visible(const k_call *c, const int32_t *sel, int64_t width, int32_t t, float *work) {
    const int32_t ratio = c->d->ratio, end = c->pos0 + t + 1;
    int32_t *at = (int32_t *)(void *)work, n = 0;
    if (!sel) {
        at[0] = 0;
        at[1] = end;
        return (k_runs){1, at};
    }
    const int32_t nb = end / ratio, words = (nb + 31) / 32;
    uint32_t *bit = (uint32_t *)(void *)work;
    at += words;
    memset(bit, 0, (size_t)words * sizeof *bit);
    for (int64_t i = 0; i < width; i++) {
        int32_t b = sel[t * width + i];
        if (b >= 0 && b < nb) bit[b / 32] |= UINT32_C(1) << (b % 32);
    }
    for (int32_t w = 0; w < words; w++)
        for (uint32_t m = bit[w]; m; m &= m - 1) {
            int32_t b = 32 * w + __builtin_ctz(m);
            n = push(at, n, b * ratio, (b + 1) * ratio);
        }
    n = push(at, n, nb * ratio, end);
    return (k_runs){n, at};
}
