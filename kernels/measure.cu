/* measure.cu: the jobs of measure.h. A block is 256 threads: eight leaves, one row of sums, 1024 words, or one cut. */
#include "kernels/measure.cuh"

#include "kernels/cuda.cuh"

enum { WARPS = K_THREADS / K_WARP, WORDS = 4 * K_THREADS, LEAF_WORDS = K_LEAF / 4 };
typedef unsigned long long ull; /* as the atomics have it */

/* ---- what threads do together ---- */

static __device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static __device__ __forceinline__ uint64_t warp_max(uint64_t v) {
    for (int t = 16; t >= 1; t >>= 1) v = larger(v, __shfl_xor_sync(0xffffffffu, v, t));
    return v;
}

static __device__ __forceinline__ uint64_t warp_sum(uint64_t v) {
    for (int t = 16; t >= 1; t >>= 1) v += __shfl_xor_sync(0xffffffffu, v, t);
    return v;
}

/* The largest of the block, for all its threads. room: not in use since the last __syncthreads. */
static __device__ __forceinline__ uint64_t block_max(uint64_t v, uint64_t *room) {
    v = warp_max(v);
    if (k_lane() == 0) room[threadIdx.x / K_WARP] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < WARPS; w++) v = larger(v, room[w]);
    return v;
}

static __device__ __forceinline__ bool is_finite(uint32_t u) {
    return (u & 0x7fffffffu) < 0x7f800000u;
}

static __device__ __forceinline__ bool is_nan(uint32_t u) {
    return (u & 0x7fffffffu) > 0x7f800000u;
}

/* Rare, so that the counters may be far away. */
static __device__ void count_nonfinite(k_measured *m, uint32_t u) {
    atomicAdd((ull *)(is_nan(u) ? &m->nan : u >> 31 ? &m->ninf : &m->pinf), (ull)1);
}

/* ---- leaves ---- */

/* Words of a leaf as they are hashed. */
typedef struct {
    const uint32_t *x;
    k_measured *seen;
    bool canonical;
} words;

static __device__ __forceinline__ uint32_t as_hashed(const words &w, uint32_t u) {
    return w.canonical && is_nan(u) ? 0x7fc00000u : u;
}

static __device__ __forceinline__ uint64_t pair_of(const words &w, uint32_t at) {
    return as_hashed(w, w.x[at]) | (uint64_t)as_hashed(w, w.x[at + 1]) << 32;
}

/* Counted apart from hashing: nearly every leaf is finite. */
static __device__ __forceinline__ void count_leaf(const words &w, uint32_t n) {
    for (uint32_t i = (uint32_t)k_lane(); w.seen && i < n / 4; i += K_WARP)
        if (!is_finite(w.x[i])) count_nonfinite(w.seen, w.x[i]);
}

/* n > K_XXH3_SHORT bytes by one warp: lane l takes lane l mod 8 of every fourth stripe; all lanes hold the sums. */
static __device__ k_u128 hash_long(const words &w, uint32_t n) {
    const int lane = k_lane() % K_XXH3_LANES, first = k_lane() / K_XXH3_LANES;
    const uint32_t stripes = (n - 1) / K_XXH3_STRIPE;
    uint64_t acc = k_xxh3_start(lane), key[K_XXH3_STRIPES / 4];
    const uint64_t scramble = k_xxh3_key(K_XXH3_AT_SCRAMBLE + 8 * lane);
#pragma unroll
    for (int k = 0; k < K_XXH3_STRIPES / 4; k++) key[k] = k_xxh3_key(8 * (first + 4 * k) + 8 * lane);
    for (uint32_t block = 0; block < stripes; block += K_XXH3_STRIPES) {
        uint64_t sum = 0, beside = 0;
#pragma unroll
        for (int k = 0; k < K_XXH3_STRIPES / 4; k++) {
            const uint32_t s = block + (uint32_t)(first + 4 * k);
            if (s >= stripes) continue;
            const uint64_t v = pair_of(w, s * (K_XXH3_STRIPE / 4) + 2 * (uint32_t)lane);
            sum += k_xxh3_part(v, key[k]);
            beside += v;
        }
        sum += __shfl_xor_sync(0xffffffffu, beside, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 8);
        sum += __shfl_xor_sync(0xffffffffu, sum, 16);
        acc += sum;
        if (block + K_XXH3_STRIPES <= stripes) acc = k_xxh3_scramble(acc, scramble);
    }
    const uint64_t v = pair_of(w, n / 4 - K_XXH3_STRIPE / 4 + 2 * (uint32_t)lane);
    acc += k_xxh3_part(v, k_xxh3_key(K_XXH3_AT_LAST + 8 * lane));
    acc += __shfl_xor_sync(0xffffffffu, v, 1);
    const uint64_t beside = __shfl_xor_sync(0xffffffffu, acc, 1);
    const uint64_t even = lane & 1 ? beside : acc, odd = lane & 1 ? acc : beside;
    uint64_t low = k_xxh3_merge(even, odd, lane / 2, K_XXH3_AT_LOW),
             high = k_xxh3_merge(even, odd, lane / 2, K_XXH3_AT_HIGH);
    for (int t = 2; t <= 4; t <<= 1) {
        low += __shfl_xor_sync(0xffffffffu, low, t);
        high += __shfl_xor_sync(0xffffffffu, high, t);
    }
    return k_xxh3_finish(low, high, n);
}

/* By one thread of the warp, from its own copy. */
static __device__ k_u128 hash_short(const words &w, uint32_t n, uint32_t *copy) {
    for (uint32_t i = (uint32_t)k_lane(); i < n / 4; i += K_WARP) copy[i] = as_hashed(w, w.x[i]);
    __syncwarp();
    k_u128 h = {0, 0};
    if (k_lane() == 0) h = k_xxh3_128_short((const uint8_t *)copy, n);
    return h;
}

static __device__ void bits(const k_measure_job &j, int64_t block) {
    __shared__ __align__(8) uint32_t copy[WARPS][K_XXH3_SHORT / 4];
    const int warp = (int)(threadIdx.x / K_WARP);
    const int64_t leaf = block * WARPS + warp, rest = j.rows - leaf * K_LEAF;
    if (rest <= 0) return;
    const words w = {(const uint32_t *)j.x + leaf * LEAF_WORDS, j.seen, j.canonical != 0};
    const uint32_t n = rest < K_LEAF ? (uint32_t)rest : (uint32_t)K_LEAF;
    count_leaf(w, n);
    const k_u128 h = n > K_XXH3_SHORT ? hash_long(w, n) : hash_short(w, n, copy[warp]);
    uint64_t *digest = (uint64_t *)j.out + 2 * leaf;
    if (k_lane() > 0) return;
    digest[0] = k_xxh3_swap64(h.high);
    digest[1] = k_xxh3_swap64(h.low);
}

/* ---- rows ---- */

/* What a thread finds in its columns of a row: those that are its number mod 256. */
typedef struct {
    double sumabs, sumsq, bucket;
    uint64_t zeros_bf16, f16_bad; /* two counts each, the second in the high half */
    uint32_t low, high;
    uint64_t best; /* its largest element */
} share;

static __device__ __forceinline__ void look(share *s, const k_measure_job &j, uint32_t u, uint32_t index, bool kept) {
    const uint32_t a = u & 0x7fffffffu;
    if (!is_finite(u)) {
        count_nonfinite(j.seen, u);
        if (kept) s->f16_bad += (uint64_t)1 << 32;
        return;
    }
    const double v = (double)k_bits_f32(u);
    s->sumabs += fabs(v);
    s->sumsq += v * v; /* the product is exact */
    s->zeros_bf16 += (uint64_t)(a == 0) | (uint64_t)((u & 0xffffu) == 0) << 32;
    s->f16_bad += k_on_f16(a);
    const uint32_t order = k_f32_order(u);
    s->low = ~order > s->low ? ~order : s->low;
    s->high = order > s->high ? order : s->high;
    s->best = larger(s->best, k_measure_key(u, index));
}

/* What block b gives to bucket k: the signed element k xor m_b; 0 where there is none that is finite. */
static __device__ __forceinline__ double signed_element(const uint32_t *x, int64_t cols, int64_t b, uint32_t k) {
    const uint32_t e = k ^ (uint32_t)(k_sketch_h((uint32_t)b, 0) & (K_SKETCH_BLOCK - 1));
    const int64_t c = b * K_SKETCH_BLOCK + e;
    if (c >= cols || !is_finite(x[c])) return 0;
    const uint32_t negated = (uint32_t)(k_sketch_h((uint32_t)b, 1 + (e >> 6)) >> (e & 63)) & 1;
    return (double)k_bits_f32(x[c] ^ negated << 31);
}

/* Halved 128, 64, .. 1, for thread 0; acc [256] of the block. */
static __device__ double halved(double v, double *acc) {
    const int k = (int)threadIdx.x;
    acc[k] = v;
    for (int n = K_SKETCH_BLOCK / 2; n >= K_WARP; n /= 2) {
        __syncthreads();
        if (k < n) acc[k] = acc[k] + acc[k + n];
    }
    v = acc[k]; /* the first warp has written its own */
    for (int t = K_WARP / 2; t >= 1; t /= 2) v = v + __shfl_xor_sync(0xffffffffu, v, t);
    return v;
}

/* Counts and extremes of the block into what its job has seen. room [4 * WARPS]. */
static __device__ void add_counts(const share &s, k_measured *seen, uint64_t *room) {
    const uint64_t v[4] = {warp_sum(s.zeros_bf16), warp_sum(s.f16_bad), warp_max(s.low), warp_max(s.high)};
    const int k = (int)threadIdx.x;
    if (k_lane() == 0)
        for (int i = 0; i < 4; i++) room[i * WARPS + k / K_WARP] = v[i];
    __syncthreads();
    if (k >= 4) return;
    uint64_t all = 0;
    for (int w = 0; w < WARPS; w++) all = k < 2 ? all + room[k * WARPS + w] : larger(all, room[k * WARPS + w]);
    const ull lower = (ull)(all & 0xffffffffu), upper = (ull)(all >> 32);
    if (k == 0) {
        atomicAdd((ull *)&seen->zeros, lower);
        atomicAdd((ull *)&seen->on_bf16, upper);
    } else if (k == 1) {
        atomicAdd((ull *)&seen->on_f16, lower);
        if (upper) atomicAdd((ull *)&seen->skipped, upper);
    } else {
        atomicMax(k == 2 ? &seen->low : &seen->high, (uint32_t)all);
    }
}

/* The thread's largest element that is smaller than this one. */
static __device__ uint64_t next_best(const uint32_t *x, int64_t cols, uint32_t index0, uint64_t limit) {
    uint64_t best = 0;
    for (int64_t c = threadIdx.x; c < cols; c += K_SKETCH_BLOCK) {
        const uint64_t key = k_measure_key(x[c], index0 + (uint32_t)c);
        if (is_finite(x[c]) && key < limit) best = larger(best, key);
    }
    return best;
}

/* The largest elements of the row join those of the job. A slot keeps the largest that comes by and hands the other
 * on; the row's k-th enters at slot k, as slots before it are for those before it. In whichever order rows come, slot k
 * ends with the k-th of all. */
static __device__ void add_top(const k_measure_job &j, const uint32_t *x, uint32_t index0, uint64_t best,
                               uint64_t *room) {
    uint64_t *top = j.seen->top, *list = room + 2 * WARPS, *floor = list + K_MEASURE_TOP;
    const int k = (int)threadIdx.x;
    if (k < K_MEASURE_TOP) list[k] = 0;
    if (k == 0) *floor = *(volatile uint64_t *)&top[K_MEASURE_TOP - 1]; /* it only grows */
    for (int i = 0; i < K_MEASURE_TOP; i++) {
        const uint64_t m = block_max(best, room + (i & 1) * WARPS);
        if (m <= *floor) break; /* 0 too: there is no more */
        if (k == 0) list[i] = m;
        if (best == m) best = next_best(x, j.cols, index0, m);
    }
    __syncthreads();
    if (k >= K_MEASURE_TOP) return;
    uint64_t key = list[k];
    for (int s = k; s < K_MEASURE_TOP && key; s++) {
        const uint64_t was = atomicMax((ull *)&top[s], (ull)key);
        key = was < key ? was : key;
    }
}

static __device__ void keep_row(const k_measure_job &j, const uint32_t *x, int64_t at, double bucket, double *room) {
    const int k = (int)threadIdx.x;
    if (!j.width) {
        for (int64_t c = k; c < j.cols; c += K_THREADS) ((uint32_t *)j.kept)[at * j.cols + c] = x[c];
    } else if (j.width == K_SKETCH_BLOCK) {
        ((double *)j.kept)[at * K_SKETCH_BLOCK + k] = bucket;
    } else {
        room[k] = bucket;
        __syncthreads();
        if (k < K_SKETCH_FOLD)
            ((double *)j.kept)[at * K_SKETCH_FOLD + k] = ((room[k] + room[k + 64]) + room[k + 128]) + room[k + 192];
    }
}

static __device__ void row(const k_measure_job &j, int64_t r) {
    __shared__ double sums[3][K_SKETCH_BLOCK];
    __shared__ uint64_t room[2][4 * WARPS];
    const uint32_t *x = (const uint32_t *)j.x + r * j.cols;
    const uint32_t k = threadIdx.x, index0 = (uint32_t)(r * j.cols);
    const bool kept = r >= j.keep0 && r < j.keep1;
    share s = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int64_t b = 0; b * K_SKETCH_BLOCK < j.cols; b++) {
        const int64_t c = b * K_SKETCH_BLOCK + k;
        if (c < j.cols) look(&s, j, x[c], index0 + (uint32_t)c, kept);
        if (kept && j.width) s.bucket += signed_element(x, j.cols, b, k);
    }
    const double sumabs = halved(s.sumabs, sums[0]), sumsq = halved(s.sumsq, sums[1]);
    if (k == 0) {
        ((double *)j.out)[2 * r] = sumabs;
        ((double *)j.out)[2 * r + 1] = sumsq;
    }
    add_counts(s, j.seen, room[0]);
    add_top(j, x, index0, s.best, room[1]);
    if (kept) keep_row(j, x, r - j.keep0, s.bucket, sums[2]);
}

/* ---- copies and cuts ---- */

static __device__ void copy(const k_measure_job &j, int64_t block) {
    for (int64_t i = block * WORDS + threadIdx.x; i < j.rows && i < (block + 1) * WORDS; i += K_THREADS)
        ((uint32_t *)j.out)[i] = ((const uint32_t *)j.x)[i];
}

/* A score as a candidate of its side: numbers before NaNs; of equal numbers the first, of NaNs the last. up 1: the
 * largest is sought. */
static __device__ __forceinline__ uint64_t candidate(uint32_t u, uint32_t i, bool up) {
    if (is_nan(u)) return (uint64_t)i + 1;
    const uint32_t order = k_f32_order(u == 0x80000000u ? 0 : u);
    return (uint64_t)1 << 63 | (uint64_t)(up ? order : ~order) << 31 | (0x7fffffffu - i);
}

static __device__ __forceinline__ uint32_t winner(const uint32_t *score, uint64_t c) {
    if (!c) return 0x7fc00000u;
    return score[c >> 63 ? 0x7fffffffu - (uint32_t)(c & 0x7fffffffu) : (uint32_t)c - 1];
}

static __device__ void cut(const k_measure_job &j, int64_t r) {
    enum { CHUNK = 32768 };
    __shared__ unsigned mark[CHUNK / 32];
    __shared__ uint64_t room[2][WARPS];
    const uint32_t *score = (const uint32_t *)j.x + r * j.cols;
    const int32_t *ids = j.ids + r * j.k;
    int64_t n = j.ratio ? (j.pos0 + r + 1) / j.ratio : j.cols;
    uint64_t low = 0, high = 0;
    if (n > j.cols) n = j.cols;
    for (int64_t c0 = 0; c0 < n; c0 += CHUNK) {
        const int64_t c1 = n - c0 < CHUNK ? n : c0 + CHUNK;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < CHUNK / 32; i += K_THREADS) mark[i] = 0;
        __syncthreads();
        for (int32_t i = (int32_t)threadIdx.x; i < j.k; i += K_THREADS)
            if (ids[i] >= c0 && ids[i] < c1) atomicOr(&mark[(ids[i] - c0) / 32], 1u << ((ids[i] - c0) % 32));
        __syncthreads();
        for (int64_t i = c0 + threadIdx.x; i < c1; i += K_THREADS) {
            const bool chosen = mark[(i - c0) / 32] >> ((i - c0) % 32) & 1;
            const uint64_t c = candidate(score[i], (uint32_t)i, !chosen);
            if (chosen)
                low = larger(low, c);
            else
                high = larger(high, c);
        }
    }
    low = block_max(low, room[0]);
    high = block_max(high, room[1]);
    if (threadIdx.x) return;
    ((uint32_t *)j.out)[2 * r] = winner(score, low);
    ((uint32_t *)j.out)[2 * r + 1] = winner(score, high);
}

/* ---- the launch ---- */

typedef struct {
    int32_t n;
    k_measure_job job[K_MEASURE_JOBS];
} table;
static_assert(sizeof(table) <= 4096, "a kernel's parameters");

static __global__ void measure_k(const __grid_constant__ table t) {
    int32_t i = 0;
    while (i + 1 < t.n && t.job[i + 1].block0 <= blockIdx.x) i++;
    const k_measure_job &j = t.job[i];
    const int64_t block = blockIdx.x - j.block0;
    switch (j.kind) {
    case K_MEASURE_BITS: bits(j, block); break;
    case K_MEASURE_ROWS: row(j, block); break;
    case K_MEASURE_COPY: copy(j, block); break;
    default: cut(j, block); break;
    }
}

static int64_t blocks_of(const k_measure_job *j) {
    switch (j->kind) {
    case K_MEASURE_BITS: return (j->rows + WARPS * K_LEAF - 1) / (WARPS * K_LEAF);
    case K_MEASURE_COPY: return (j->rows + WORDS - 1) / WORDS;
    default: return j->rows;
    }
}

void k_measure_launch(const k_measure_job *jobs, int n, void *stream) {
    table t;
    int64_t blocks = 0;
    t.n = n;
    for (int i = 0; i < n; i++) {
        t.job[i] = jobs[i];
        t.job[i].block0 = (uint32_t)blocks;
        blocks += blocks_of(&jobs[i]);
    }
    if (blocks) K_LAUNCH(measure_k, dim3((unsigned)blocks), dim3(K_THREADS), 0, stream, t);
}
