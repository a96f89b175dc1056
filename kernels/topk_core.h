/* topk_core.h: the selections of topk.h, one text for gcc and nvcc.
 *
 * All rules compare scores through one total pre-order (NaN below everything, -0 = +0), so that the library's
 * algorithms below get the strict weak order they need, whatever the scores hold.
 */
#ifndef K_TOPK_CORE_H
#define K_TOPK_CORE_H

#include "kernels/round.h"

/* Larger score, larger key; equal scores, equal keys. */
K_HD uint32_t k_topk_key(float x) {
    uint32_t u = k_f32_bits(x);
    if ((u & 0x7fffffff) > 0x7f800000) return 0;
    if (u == 0x80000000) u = 0;
    return u & 0x80000000 ? ~u : u | 0x80000000;
}

typedef struct {
    const uint32_t *key;
    int32_t *v; /* indices, permuted */
    int32_t down;
} k_picks;

K_HD int k_topk_better(const k_picks *p, int32_t a, int32_t b) {
    return p->key[a] > p->key[b];
}

K_HD void k_topk_swap(int32_t *v, int32_t a, int32_t b) {
    int32_t x = v[a];
    v[a] = v[b];
    v[b] = x;
}

/* ---- a total order: equal scores by index, ascending or descending ---- */

/* a comes before b. */
K_HD int k_topk_before(const k_picks *p, int32_t a, int32_t b) {
    if (p->key[a] != p->key[b]) return p->key[a] > p->key[b];
    return p->down ? a > b : a < b;
}

/* v[0..len) as a heap with the last in order on top: restore it below `at`. */
K_HD void k_topk_sift(const k_picks *p, int32_t at, int32_t len) {
    int32_t x = p->v[at];
    for (int32_t c; (c = 2 * at + 1) < len; at = c) {
        if (c + 1 < len && k_topk_before(p, p->v[c], p->v[c + 1])) c++;
        if (!k_topk_before(p, x, p->v[c])) break;
        p->v[at] = p->v[c];
    }
    p->v[at] = x;
}

K_HD void k_topk_total_order(const k_picks *p, int32_t n, int32_t k) {
    for (int32_t i = k / 2 - 1; i >= 0; i--) k_topk_sift(p, i, k);
    for (int32_t i = k; i < n; i++)
        if (k_topk_before(p, p->v[i], p->v[0])) {
            p->v[0] = p->v[i];
            k_topk_sift(p, 0, k);
        }
    for (int32_t i = k - 1; i > 0; i--) {
        k_topk_swap(p->v, 0, i);
        k_topk_sift(p, 0, i);
    }
}

/* ---- libstdc++'s algorithms on [lo, hi), whose traces decide among equal scores (qwen4_exp.md 13.5, 13.13) ---- */

/* Heap of len elements from lo on: let x sink into the hole, then rise. */
K_HD void k_topk_adjust(const k_picks *p, int32_t lo, int32_t hole, int32_t len, int32_t x) {
    int32_t *v = p->v + lo;
    int32_t top = hole, c = hole;
    while (c < (len - 1) / 2) {
        c = 2 * (c + 1);
        if (k_topk_better(p, v[c], v[c - 1])) c--;
        v[hole] = v[c];
        hole = c;
    }
    if (len % 2 == 0 && c == (len - 2) / 2) {
        c = 2 * (c + 1);
        v[hole] = v[c - 1];
        hole = c - 1;
    }
    for (int32_t up = (hole - 1) / 2; hole > top && k_topk_better(p, v[up], x); up = (hole - 1) / 2) {
        v[hole] = v[up];
        hole = up;
    }
    v[hole] = x;
}

/* The best mid - lo of [lo, hi) as a heap in [lo, mid), the worst of them first. */
K_HD void k_topk_heap_select(const k_picks *p, int32_t lo, int32_t mid, int32_t hi) {
    int32_t len = mid - lo;
    for (int32_t i = (len - 2) / 2; len > 1 && i >= 0; i--) k_topk_adjust(p, lo, i, len, p->v[lo + i]);
    for (int32_t i = mid; i < hi; i++)
        if (k_topk_better(p, p->v[i], p->v[lo])) {
            int32_t x = p->v[i];
            p->v[i] = p->v[lo];
            k_topk_adjust(p, lo, 0, len, x);
        }
}

K_HD void k_topk_partial_sort(const k_picks *p, int32_t lo, int32_t mid, int32_t hi) {
    k_topk_heap_select(p, lo, mid, hi);
    for (int32_t last = mid - 1; last > lo; last--) {
        int32_t x = p->v[last];
        p->v[last] = p->v[lo];
        k_topk_adjust(p, lo, 0, last - lo, x);
    }
}

/* Swap the median of the second, the middle and the last element to the front, split by it; first of the right part. */
K_HD int32_t k_topk_split(const k_picks *p, int32_t lo, int32_t hi) {
    int32_t *v = p->v;
    int32_t a = lo + 1, b = lo + (hi - lo) / 2, c = hi - 1, m;
    if (k_topk_better(p, v[a], v[b]))
        m = k_topk_better(p, v[b], v[c]) ? b : k_topk_better(p, v[a], v[c]) ? c : a;
    else
        m = k_topk_better(p, v[a], v[c]) ? a : k_topk_better(p, v[b], v[c]) ? c : b;
    k_topk_swap(v, lo, m);
    for (int32_t i = lo + 1, j = hi;; i++) {
        while (k_topk_better(p, v[i], v[lo])) i++;
        for (j--; k_topk_better(p, v[lo], v[j]);) j--;
        if (i >= j) return i;
        k_topk_swap(v, i, j);
    }
}

/* Shift the element at i left past all that it beats; one that stops it lies there. */
K_HD void k_topk_insert(const k_picks *p, int32_t i) {
    int32_t x = p->v[i];
    for (; k_topk_better(p, x, p->v[i - 1]); i--) p->v[i] = p->v[i - 1];
    p->v[i] = x;
}

K_HD void k_topk_insertion_sort(const k_picks *p, int32_t lo, int32_t hi) {
    for (int32_t i = lo + 1; i < hi; i++) {
        int32_t x = p->v[i], j = i;
        if (!k_topk_better(p, x, p->v[lo])) {
            k_topk_insert(p, i);
            continue;
        }
        for (; j > lo; j--) p->v[j] = p->v[j - 1];
        p->v[lo] = x;
    }
}

/* 2 floor(log2 n): splits before the library gives up on splitting. */
K_HD int32_t k_topk_depth_of(int32_t n) {
    int32_t d = 0;
    for (; n > 1; n >>= 1) d += 2;
    return d;
}

K_HD void k_topk_nth_element(const k_picks *p, int32_t lo, int32_t nth, int32_t hi) {
    for (int32_t depth = k_topk_depth_of(hi - lo); hi - lo > 3; depth--) {
        if (depth == 0) {
            k_topk_heap_select(p, lo, nth + 1, hi);
            k_topk_swap(p->v, lo, nth);
            return;
        }
        int32_t cut = k_topk_split(p, lo, hi);
        if (cut <= nth)
            lo = cut;
        else
            hi = cut;
    }
    k_topk_insertion_sort(p, lo, hi);
}

enum { K_TOPK_SMALL = 16 };

/* The library splits the right part of a range first, by recursion. Parts do not meet, so any order leaves the same
 * permutation: they wait on a stack, whose entries' depths descend, so that twice the bits of n are room enough. */
K_HD void k_topk_split_down(const k_picks *p, int32_t lo, int32_t hi, int32_t depth) {
    struct {
        int32_t lo, hi, depth;
    } wait[2 * 31 + 1];
    int32_t n = 0;
    for (;;) {
        while (hi - lo > K_TOPK_SMALL && depth > 0) {
            int32_t cut = k_topk_split(p, lo, hi);
            depth--;
            wait[n].lo = cut;
            wait[n].hi = hi;
            wait[n++].depth = depth;
            hi = cut;
        }
        if (hi - lo > K_TOPK_SMALL) k_topk_partial_sort(p, lo, hi, hi);
        if (n == 0) return;
        lo = wait[--n].lo;
        hi = wait[n].hi;
        depth = wait[n].depth;
    }
}

K_HD void k_topk_sort(const k_picks *p, int32_t lo, int32_t hi) {
    k_topk_split_down(p, lo, hi, k_topk_depth_of(hi - lo));
    k_topk_insertion_sort(p, lo, hi - lo > K_TOPK_SMALL ? lo + K_TOPK_SMALL : hi);
    for (int32_t i = lo + K_TOPK_SMALL; i < hi; i++) k_topk_insert(p, i);
}

/* ids[0..k) of the best; key and v: n words each, contents undefined. */
K_HD void k_topk_of(const float *score, int32_t n, int32_t k, int32_t tie, int32_t *ids, uint32_t *key, int32_t *v) {
    k_picks p;
    p.key = key;
    p.v = v;
    p.down = tie == K_TIE_HIGHEST;
    if (k <= 0) return;
    for (int32_t i = 0; i < n; i++) {
        key[i] = k_topk_key(score[i]);
        v[i] = i;
    }
    if (tie == K_TIE_LOWEST || tie == K_TIE_HIGHEST) {
        k_topk_total_order(&p, n, k);
    } else if (tie == K_TIE_STL || 64 * (int64_t)k <= n) {
        k_topk_partial_sort(&p, 0, k, n);
    } else {
        k_topk_nth_element(&p, 0, k - 1, n);
        k_topk_sort(&p, 0, k - 1);
    }
    for (int32_t i = 0; i < k; i++) ids[i] = v[i];
}

#endif
