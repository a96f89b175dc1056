/* topk.c: selections. All rules compare scores through one total pre-order (NaN below everything, -0 = +0), so that
 * the library's algorithms below get the strict weak order they need, whatever the scores hold.
 */
#include "kernels/topk.h"

#include "kernels/round.h"

/* Both halves of the scratch are words. */
typedef uint32_t __attribute__((may_alias)) word;
typedef int32_t __attribute__((may_alias)) index_t;

/* Larger score, larger key; equal scores, equal keys. */
static uint32_t key_of(float x) {
    uint32_t u = k_f32_bits(x);
    if ((u & 0x7fffffff) > 0x7f800000) return 0;
    if (u == 0x80000000) u = 0;
    return u & 0x80000000 ? ~u : u | 0x80000000;
}

typedef struct {
    const word *key;
    index_t *v; /* indices, permuted */
    int32_t down;
} picks;

static int better(const picks *p, int32_t a, int32_t b) {
    return p->key[a] > p->key[b];
}

static void swap(index_t *v, int32_t a, int32_t b) {
    int32_t x = v[a];
    v[a] = v[b];
    v[b] = x;
}

/* ---- a total order: equal scores by index, ascending or descending ---- */

/* a comes before b. */
static int before(const picks *p, int32_t a, int32_t b) {
    if (p->key[a] != p->key[b]) return p->key[a] > p->key[b];
    return p->down ? a > b : a < b;
}

/* v[0..len) as a heap with the last in order on top: restore it below `at`. */
static void sift(const picks *p, int32_t at, int32_t len) {
    int32_t x = p->v[at];
    for (int32_t c; (c = 2 * at + 1) < len; at = c) {
        if (c + 1 < len && before(p, p->v[c], p->v[c + 1])) c++;
        if (!before(p, x, p->v[c])) break;
        p->v[at] = p->v[c];
    }
    p->v[at] = x;
}

static void total_order(const picks *p, int32_t n, int32_t k) {
    for (int32_t i = k / 2 - 1; i >= 0; i--) sift(p, i, k);
    for (int32_t i = k; i < n; i++)
        if (before(p, p->v[i], p->v[0])) {
            p->v[0] = p->v[i];
            sift(p, 0, k);
        }
    for (int32_t i = k - 1; i > 0; i--) {
        swap(p->v, 0, i);
        sift(p, 0, i);
    }
}

/* ---- libstdc++'s algorithms on [lo, hi), whose traces decide among equal scores (qwen4_exp.md 13.5, 13.13) ---- */

/* Heap of len elements from lo on: let x sink into the hole, then rise. */
static void adjust(const picks *p, int32_t lo, int32_t hole, int32_t len, int32_t x) {
    index_t *v = p->v + lo;
    int32_t top = hole, c = hole;
    while (c < (len - 1) / 2) {
        c = 2 * (c + 1);
        if (better(p, v[c], v[c - 1])) c--;
        v[hole] = v[c];
        hole = c;
    }
    if (len % 2 == 0 && c == (len - 2) / 2) {
        c = 2 * (c + 1);
        v[hole] = v[c - 1];
        hole = c - 1;
    }
    for (int32_t up = (hole - 1) / 2; hole > top && better(p, v[up], x); up = (hole - 1) / 2) {
        v[hole] = v[up];
        hole = up;
    }
    v[hole] = x;
}

/* The best mid - lo of [lo, hi) as a heap in [lo, mid), the worst of them first. */
static void heap_select(const picks *p, int32_t lo, int32_t mid, int32_t hi) {
    int32_t len = mid - lo;
    for (int32_t i = (len - 2) / 2; len > 1 && i >= 0; i--) adjust(p, lo, i, len, p->v[lo + i]);
    for (int32_t i = mid; i < hi; i++)
        if (better(p, p->v[i], p->v[lo])) {
            int32_t x = p->v[i];
            p->v[i] = p->v[lo];
            adjust(p, lo, 0, len, x);
        }
}

static void partial_sort(const picks *p, int32_t lo, int32_t mid, int32_t hi) {
    heap_select(p, lo, mid, hi);
    for (int32_t last = mid - 1; last > lo; last--) {
        int32_t x = p->v[last];
        p->v[last] = p->v[lo];
        adjust(p, lo, 0, last - lo, x);
    }
}

/* Swap the median of the second, the middle and the last element to the front, split by it; first of the right part. */
static int32_t split(const picks *p, int32_t lo, int32_t hi) {
    index_t *v = p->v;
    int32_t a = lo + 1, b = lo + (hi - lo) / 2, c = hi - 1, m;
    if (better(p, v[a], v[b]))
        m = better(p, v[b], v[c]) ? b : better(p, v[a], v[c]) ? c : a;
    else
        m = better(p, v[a], v[c]) ? a : better(p, v[b], v[c]) ? c : b;
    swap(v, lo, m);
    for (int32_t i = lo + 1, j = hi;; i++) {
        while (better(p, v[i], v[lo])) i++;
        for (j--; better(p, v[lo], v[j]);) j--;
        if (i >= j) return i;
        swap(v, i, j);
    }
}

/* Shift the element at i left past all that it beats; one that stops it lies there. */
static void insert(const picks *p, int32_t i) {
    int32_t x = p->v[i];
    for (; better(p, x, p->v[i - 1]); i--) p->v[i] = p->v[i - 1];
    p->v[i] = x;
}

static void insertion_sort(const picks *p, int32_t lo, int32_t hi) {
    for (int32_t i = lo + 1; i < hi; i++) {
        int32_t x = p->v[i], j = i;
        if (!better(p, x, p->v[lo])) {
            insert(p, i);
            continue;
        }
        for (; j > lo; j--) p->v[j] = p->v[j - 1];
        p->v[lo] = x;
    }
}

/* 2 floor(log2 n): splits before the library gives up on splitting. */
static int32_t depth_of(int32_t n) {
    int32_t d = 0;
    for (; n > 1; n >>= 1) d += 2;
    return d;
}

static void nth_element(const picks *p, int32_t lo, int32_t nth, int32_t hi) {
    for (int32_t depth = depth_of(hi - lo); hi - lo > 3; depth--) {
        if (depth == 0) {
            heap_select(p, lo, nth + 1, hi);
            swap(p->v, lo, nth);
            return;
        }
        int32_t cut = split(p, lo, hi);
        if (cut <= nth)
            lo = cut;
        else
            hi = cut;
    }
    insertion_sort(p, lo, hi);
}

enum { SMALL = 16 };

/* Right parts first, by recursion: at most `depth` levels. */
static void split_down(const picks *p, int32_t lo, int32_t hi, int32_t depth) {
    while (hi - lo > SMALL) {
        if (depth-- == 0) {
            partial_sort(p, lo, hi, hi);
            return;
        }
        int32_t cut = split(p, lo, hi);
        split_down(p, cut, hi, depth);
        hi = cut;
    }
}

static void sort(const picks *p, int32_t lo, int32_t hi) {
    split_down(p, lo, hi, depth_of(hi - lo));
    insertion_sort(p, lo, hi - lo > SMALL ? lo + SMALL : hi);
    for (int32_t i = lo + SMALL; i < hi; i++) insert(p, i);
}

void k_topk(const float *score, int32_t n, int32_t k, int32_t tie, int32_t *ids, float *work) {
    word *key = (word *)work;
    picks p = {.key = key, .v = (index_t *)(work + n), .down = tie == K_TIE_HIGHEST};
    if (k <= 0) return;
    for (int32_t i = 0; i < n; i++) {
        key[i] = key_of(score[i]);
        p.v[i] = i;
    }
    if (tie == K_TIE_LOWEST || tie == K_TIE_HIGHEST)
        total_order(&p, n, k);
    else if (tie == K_TIE_STL || 64 * (int64_t)k <= n)
        partial_sort(&p, 0, k, n);
    else {
        nth_element(&p, 0, k - 1, n);
        sort(&p, 0, k - 1);
    }
    for (int32_t i = 0; i < k; i++) ids[i] = p.v[i];
}
