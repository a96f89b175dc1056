/* qdot.cu: products in the orders of qdot.h. Activations are quantised on the device, once a call; a warp makes a row:
 * its lanes decode blocks, share their whole numbers, and take the f32 steps in the order of the contract. Chains that
 * are serial over a row's elements are a lane's each, 32 rows a warp.
 */
#include "kernels/panel.cuh"
#include "kernels/qdot_f32.h"
#include "kernels/qdot_gpu.h"
#include "kernels/quant.cuh"

/* ---- activations ---- */

static __device__ __forceinline__ int32_t warp_sum(int32_t v) {
    for (int t = 16; t >= 1; t >>= 1) v += __shfl_xor_sync(0xffffffffu, v, t);
    return v;
}

/* A warp a block of 32 values; formats but q8_K. */
static __global__ void quantise32_k(const float *x, int64_t blocks, int32_t format, uint8_t *to) {
    const int64_t i = k_warp(), bytes = k_actq_bytes(format);
    if (i >= blocks) return;
    const float v = x[32 * i + k_lane()];
    float a = fabsf(v);
    for (int t = 16; t >= 1; t >>= 1) { /* the largest; NaN where there is one */
        const float o = __shfl_xor_sync(0xffffffffu, a, t);
        a = o > a || o != o ? o : a;
    }
    const float d = a / 127.0f, r = d != 0.0f ? 1.0f / d : 0.0f;
    const int32_t code = k_actq_code(format, v, a, d, r), codes = warp_sum(code);
    const float sum = k_warp_fold(v);
    uint8_t *b = to + i * bytes;
    b[bytes - 32 + k_lane()] = (uint8_t)code;
    if (k_lane()) return;
    k_put_half(b, d);
    if (format == K_ACTQ_Q8_1) k_put_half(b + 2, (float)codes * d);
    if (format == K_ACTQ_Q8_1_GPU) k_put_half(b + 2, sum);
}

/* A warp a block of 256; lane l has elements l, 32 + l, .. The first of the largest in size gives the scale. */
static __global__ void quantise256_k(const float *x, int64_t blocks, uint8_t *to) {
    const int64_t i = k_warp();
    const int32_t l = k_lane();
    if (i >= blocks) return;
    uint8_t *b = to + i * 292;
    float v[8], a = 0.0f;
    for (int k = 0; k < 8; k++) {
        v[k] = x[256 * i + 32 * k + l];
        if (fabsf(v[k]) > a) a = fabsf(v[k]);
    }
    a = k_warp_max(a);
    int32_t first = 256;
    for (int k = 7; k >= 0; k--)
        if (fabsf(v[k]) == a) first = 32 * k + l;
    for (int t = 16; t >= 1; t >>= 1) {
        const int32_t o = __shfl_xor_sync(0xffffffffu, first, t);
        first = o < first ? o : first;
    }
    const float r = a > 0.0f ? -127.0f / x[256 * i + first] : 0.0f;
    const uint32_t d = a > 0.0f ? k_f32_bits(1.0f / r) : 0;
    for (int k = 0; k < 8; k++) {
        const int32_t code = a > 0.0f ? k_code_q8_K(v[k], r) : 0;
        int32_t sum = code;
        for (int t = 8; t >= 1; t >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, t);
        b[4 + 32 * k + l] = (uint8_t)code;
        if (l % 16 < 2) b[260 + 2 * (2 * k + l / 16) + l % 16] = (uint8_t)(sum >> 8 * (l % 16));
    }
    if (l < 4) b[l] = (uint8_t)(d >> 8 * l);
}

static void quantise(const float *x, int64_t n, int32_t format, uint8_t *to, void *stream) {
    const int64_t blocks = n / k_actq_elems(format);
    const dim3 grid(k_blocks(blocks, K_WARPS)), block(K_WARPS * K_WARP);
    if (format == K_ACTQ_Q8_K)
        K_LAUNCH(quantise256_k, grid, block, 0, stream, x, blocks, to);
    else
        K_LAUNCH(quantise32_k, grid, block, 0, stream, x, blocks, format, to);
}

/* ---- what every rule is given ---- */

typedef struct {
    k_dot_rule rule;
    const uint8_t *act;    /* quantised columns */
    int64_t column, block; /* bytes of a column, and of the part of it that a block of weights meets */
} how;

/* Columns j .. j + n, n <= COLS, of rows r .. of one weight. */
typedef struct {
    const k_dev_panel *p;
    const k_weight *w;
    how h;
    int64_t r, j;
    int32_t n;
} part;

static __device__ __forceinline__ const uint8_t *row_at(const part *t, int64_t r) {
    return (const uint8_t *)t->w->data + (size_t)r * t->w->row_bytes;
}
static __device__ __forceinline__ int64_t column_of(const part *t, int32_t c) {
    return k_panel_slot(t->p, t->j + (c < t->n ? c : 0)) / t->p->div;
}
static __device__ __forceinline__ const float *x_of(const part *t, int32_t c) {
    return t->p->x + column_of(t, c) * t->p->K;
}
static __device__ __forceinline__ void put(const part *t, int32_t c, int64_t r, float y) {
    if (c < t->n && r < t->p->O) k_panel_store(t->p, k_panel_slot(t->p, t->j + c), r, y);
}

/* ---- decoded rows ---- */

/* A lane a row: 32 elements of 32 rows are decoded side by side, then each lane goes on with its own row's chain. */
template <int32_t TYPE, typename SUM> struct serial_rows {
    enum { ROWS = K_WARP, COLS = 4, WARPS = 1 };
    struct stage {
        float w[K_WARP][K_WARP + 1], x[COLS][K_WARP];
    };
    static __device__ __forceinline__ float on(const float *w, const float *x, int64_t n, float s) {
        return k_serial_on(w, x, n, s);
    }
    static __device__ __forceinline__ double on(const float *w, const float *x, int64_t n, double s) {
        return k_f64_on(w, x, n, s);
    }
    static __device__ void run(const part *t, stage *st) {
        const int32_t l = k_lane();
        SUM s[COLS];
        for (int c = 0; c < COLS; c++) s[c] = 0;
        for (int64_t i = 0; i < t->p->K; i += K_WARP) {
            const int64_t n = t->p->K - i < K_WARP ? t->p->K - i : (int64_t)K_WARP;
            __syncwarp();
            if (l < n) {
#pragma unroll 8
                for (int r = 0; r < K_WARP; r++)
                    if (t->r + r < t->p->O) st->w[r][l] = k_stored<TYPE>::at(row_at(t, t->r + r), i + l);
                for (int c = 0; c < COLS; c++) st->x[c][l] = k_as_weight(t->h.rule, TYPE, x_of(t, c)[i + l]);
            }
            __syncwarp();
            if (t->r + l < t->p->O)
                for (int c = 0; c < COLS; c++) s[c] = on(st->w[l], st->x[c], n, s[c]);
        }
        for (int c = 0; c < COLS; c++) put(t, c, t->r + l, (float)s[c]);
    }
};

/* A lane an accumulator of the block at hand. */
template <int32_t TYPE> struct blocked_rows {
    enum { ROWS = 1, COLS = 4, WARPS = K_WARPS };
    struct stage {};
    static __device__ void run(const part *t, stage *) {
        const uint8_t *row = row_at(t, t->r);
        const int64_t K = t->p->K;
        float s[COLS] = {0, 0, 0, 0};
        for (int64_t i = 0; i < K; i += K_DOT_BLOCK) {
            float acc[COLS] = {0, 0, 0, 0};
            for (int64_t e = i + k_lane(); e < K && e < i + K_DOT_BLOCK; e += K_WARP) {
                const float w = k_stored<TYPE>::at(row, e);
                for (int c = 0; c < COLS; c++) acc[c] = fmaf(w, x_of(t, c)[e], acc[c]);
            }
            for (int c = 0; c < COLS; c++) s[c] = s[c] + k_warp_fold(acc[c]);
        }
        for (int c = 0; c < COLS; c++)
            if (k_lane() == 0) put(t, c, t->r, s[c]);
    }
};

/* Half a warp a column: a lane is one of Arm's sixteen. */
template <int32_t TYPE> struct neon_rows {
    enum { ROWS = 1, COLS = 2, WARPS = K_WARPS };
    struct stage {};
    static __device__ void run(const part *t, stage *) {
        const uint8_t *row = row_at(t, t->r);
        const int32_t c = k_lane() / 16;
        const int64_t K = t->p->K, whole = K / 16 * 16;
        const float *x = x_of(t, c);
        float s = 0.0f;
        for (int64_t e = k_lane() % 16; e < whole; e += 16)
            s = fmaf(k_stored<TYPE>::at(row, e), k_as_weight(t->h.rule, TYPE, x[e]), s);
        s = s + __shfl_xor_sync(0xffffffffu, s, 8);
        s = s + __shfl_xor_sync(0xffffffffu, s, 4);
        s = s + __shfl_xor_sync(0xffffffffu, s, 1);
        s = s + __shfl_xor_sync(0xffffffffu, s, 2);
        for (int64_t e = whole; e < K; e++) s = fmaf(k_stored<TYPE>::at(row, e), k_as_weight(t->h.rule, TYPE, x[e]), s);
        if (k_lane() % 16 == 0) put(t, c, t->r, s);
    }
};

/* ---- rows of codes ---- */

/* Types that gguf-quants.md 4.1 gives codes. */
template <int32_t TYPE> constexpr bool coded = k_stored<TYPE>::elems >= 32 && TYPE != K_T_Q8_1 &&TYPE != K_T_Q8_K;

/* n blocks at b, by a warp. */
template <int32_t TYPE> static __device__ __forceinline__ void codes_of(const uint8_t *b, int32_t n, k_qcodes *c) {
    typedef k_stored<TYPE> T;
    for (int32_t e = k_lane(); e < n * T::elems; e += K_WARP)
        c[e / T::elems].q[e % T::elems] = (int8_t)k_qcode(TYPE, b + e / T::elems * T::bytes, e % T::elems);
    for (int32_t i = k_lane(); i < n * k_qgroups(TYPE, T::elems); i += K_WARP) {
        const int32_t groups = k_qgroups(TYPE, T::elems);
        k_qcodes_group(TYPE, b + i / groups * T::bytes, i % groups, &c[i / groups]);
    }
    if (TYPE == K_T_IQ1_M)
        for (int32_t i = k_lane(); i < n * 32; i += K_WARP)
            c[i / 32].sg[i % 32] = k_qdelta(b + i / 32 * T::bytes, i % 32);
    for (int32_t i = k_lane(); i < n; i += K_WARP) k_qcodes_block(TYPE, b + i * T::bytes, &c[i]);
}

enum { BYTES = 576 / 16 + 2 /* the most that is fetched at once: NVFP4's sixteen blocks */ };

/* As ggml's CUDA: 32 lanes take the blocks that one of its four warps takes; the sums of the four are kept apart. */
template <int32_t TYPE> struct gpu_rows {
    enum { ROWS = 1, COLS = 4, WARPS = K_WARPS, FOUR = K_GPU_THREADS / K_WARP };
    struct stage {
        k_word16 bytes[BYTES];
        k_qcodes c[16];
    };
    static __device__ __forceinline__ void load(const part *t, int64_t i, int32_t n, stage *st) {
        typedef k_stored<TYPE> T;
        const uint8_t *from = (const uint8_t *)t->w->data, *end = from + (size_t)t->w->rows * t->w->row_bytes;
        __syncwarp();
        const uint8_t *b = k_fetch(from, end, row_at(t, t->r) + i * T::bytes, n * T::bytes, st->bytes);
        __syncwarp();
        codes_of<TYPE>(b, n, st->c);
        __syncwarp();
    }
    static __device__ void run(const part *t, stage *st) {
        int32_t units;
        const int32_t P = k_gpu_threads(TYPE, &units), G = K_WARP / P, own = k_lane() / P;
        const int64_t nb = t->p->K / k_stored<TYPE>::elems;
        const uint8_t *act[COLS];
        float acc[COLS][FOUR];
        for (int c = 0; c < COLS; c++) {
            act[c] = t->h.act + column_of(t, c) * t->h.column;
            for (int v = 0; v < FOUR; v++) acc[c][v] = 0.0f;
        }
        for (int64_t i = 0; i < nb; i += FOUR * G)
#pragma unroll
            for (int v = 0; v < FOUR; v++) {
                const int64_t at = i + v * G;
                if (at >= nb) break;
                const int32_t n = nb - at < G ? (int32_t)(nb - at) : G;
                load(t, at, n, st);
#pragma unroll
                for (int c = 0; c < COLS; c++)
                    if (c < t->n && own < n)
                        acc[c][v] = acc[c][v] + k_gpu_part(TYPE, &st->c[own], act[c] + (at + own) * t->h.block,
                                                           units * (k_lane() % P));
            }
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            float y = acc[c][0];
            for (int v = 1; v < FOUR; v++) y = y + acc[c][v];
            y = k_warp_fold(y);
            if (k_lane() == 0) put(t, c, t->r, y);
        }
    }
};

/* Sum of eight numbers over the warp, each: lane l gets number l / 4. */
static __device__ __forceinline__ int32_t warp_sum8(int32_t v[8]) {
    const int32_t l = k_lane();
#pragma unroll
    for (int half = 4; half >= 1; half >>= 1)
#pragma unroll
        for (int i = 0; i < half; i++) {
            const int upper = (l & 4 * half) != 0;
            const int32_t mine = upper ? v[i + half] : v[i], other = upper ? v[i] : v[i + half];
            v[i] = mine + __shfl_xor_sync(0xffffffffu, other, 4 * half);
        }
    int32_t s = v[0] + __shfl_xor_sync(0xffffffffu, v[0], 2);
    return s + __shfl_xor_sync(0xffffffffu, s, 1);
}

/* As ggml's CPUs: 256 elements at a time, eight a lane; column c's f32 steps are lane c's. */
template <int32_t TYPE> struct cpu_rows {
    enum { ROWS = 1, COLS = 4, WARPS = K_WARPS, SPAN = 256, ELEMS = k_stored<TYPE>::elems, BLOCKS = SPAN / ELEMS };
    struct stage {
        k_word16 bytes[BYTES];
        k_qcodes c[BLOCKS];
        k_whole whole[COLS][BLOCKS];
    };

    /* Whole numbers of `blocks` blocks with one column. */
    static __device__ __forceinline__ void wholes(k_dot_rule rule, const k_qcodes *codes, const uint8_t *act,
                                                  int64_t block, int32_t blocks, k_whole *to) {
        const int32_t l = k_lane(), b = 8 * l / ELEMS, e = 8 * l % ELEMS, gather = k_gather_of(rule, TYPE);
        const int there = b < blocks;
        const k_qcodes *c = &codes[there ? b : 0];
        const int8_t *a = k_cpu_codes(TYPE, act + (there ? b : 0) * block, e);
        if (gather == K_GATHER_ALL) {
            const int32_t s = warp_sum(c->sc[e / k_qgroup(TYPE)] * k_idot(c->q + e, a, 8));
            if (l == 0) to->n[0] = s;
        } else if (gather == K_GATHER_LANES) {
            int32_t v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            k_eight_lanes(c, k_qgroup(TYPE), e, a, v);
            const int32_t s = warp_sum8(v);
            if (l % 4 == 0) to->n[l / 4] = s;
        } else if (gather == K_GATHER_NEON) {
            int32_t lo = k_idot(c->q + e, a, 4), hi = k_idot(c->q + e + 4, a + 4, 4);
            lo += __shfl_xor_sync(0xffffffffu, lo, 2);
            hi += __shfl_xor_sync(0xffffffffu, hi, 2);
            if (there && l % 4 < 2) {
                to[b].n[l % 2 * 2] = lo;
                to[b].n[l % 2 * 2 + 1] = hi;
            }
        } else {
            int32_t s = k_idot(c->q + e, a, 8);
            s += __shfl_xor_sync(0xffffffffu, s, 1);
            if (gather == K_GATHER_32) s += __shfl_xor_sync(0xffffffffu, s, 2);
            if (there && e % (gather == K_GATHER_32 ? 32 : 16) == 0) to[b].n[e / (gather == K_GATHER_32 ? 32 : 16)] = s;
        }
        if (k_minima(TYPE)) {
            const int32_t j = warp_sum(l < k_minima(TYPE) ? k_minimum(TYPE, codes, act, l) : 0);
            if (l == 0) to->j = j;
        }
    }

    static __device__ void run(const part *t, stage *st) {
        typedef k_stored<TYPE> T;
        const uint8_t *from = (const uint8_t *)t->w->data, *end = from + (size_t)t->w->rows * t->w->row_bytes;
        const int64_t nb = t->p->K / T::elems;
        const int32_t l = k_lane(), mine = l < t->n ? l : 0;
        const uint8_t *act = t->h.act + column_of(t, mine) * t->h.column;
        k_qsum s;
        memset(&s, 0, sizeof s);
        for (int64_t i = 0; i < nb; i += BLOCKS) {
            const int32_t n = nb - i < BLOCKS ? (int32_t)(nb - i) : BLOCKS;
            __syncwarp();
            const uint8_t *b = k_fetch(from, end, row_at(t, t->r) + i * T::bytes, n * T::bytes, st->bytes);
            __syncwarp();
            codes_of<TYPE>(b, n, st->c);
            __syncwarp();
            for (int32_t c = 0; c < t->n; c++)
                wholes(t->h.rule, st->c, t->h.act + column_of(t, c) * t->h.column + i * t->h.block, t->h.block, n,
                       st->whole[c]);
            __syncwarp();
            for (int32_t k = 0; l < t->n && k < n; k++)
                k_code_step(t->h.rule, TYPE, &st->c[k], act + (i + k) * t->h.block, i + k, nb, &st->whole[l][k], &s);
        }
        if (l < t->n) put(t, l, t->r, k_code_end(t->h.rule, TYPE, nb, &s));
    }
};

/* ---- launches ---- */

/* blockIdx.x: rows; y: walks through the columns; z: turns of experts. */
template <typename J>
static __global__ void rule_k(const __grid_constant__ k_dev_panel p, const __grid_constant__ k_weight w,
                              const k_weight *many, int32_t type, const __grid_constant__ how h) {
    __shared__ typename J::stage st[J::WARPS];
    const k_dev_turn turn = k_turn_of(&p, &w, many);
    part t;
    t.p = &p;
    t.w = turn.w;
    t.h = h;
    t.r = k_warp() * J::ROWS;
    if (!t.w || t.r >= p.O || t.w->type != type) return;
    for (t.j = turn.from + (int64_t)blockIdx.y * J::COLS; t.j < turn.end; t.j += (int64_t)gridDim.y * J::COLS) {
        t.n = turn.end - t.j < J::COLS ? (int32_t)(turn.end - t.j) : (int32_t)J::COLS;
        J::run(&t, &st[threadIdx.x / K_WARP]);
    }
}

struct rule_job {
    const k_dev_panel *p;
    const k_weight *w, *many;
    int32_t turns, type;
    how h;
    void *stream;
    template <typename J> void launch() const {
        const unsigned rows = k_blocks(k_blocks(p->O, J::ROWS), J::WARPS);
        const dim3 grid(rows, p->who ? 1u : k_blocks(p->n, J::COLS), (unsigned)turns);
        K_LAUNCH(rule_k<J>, grid, dim3(J::WARPS * K_WARP), 0, stream, *p, *w, many, type, h);
    }
    template <int32_t TYPE> void run() const {
        constexpr bool plain = TYPE == K_T_F32 || TYPE == K_T_F16 || TYPE == K_T_BF16;
        if (h.rule == K_RULE_SERIAL) launch<serial_rows<TYPE, float>>();
        if (h.rule == K_RULE_BLOCKED) launch<blocked_rows<TYPE>>();
        if constexpr (plain) {
            if (h.rule == K_RULE_F64) launch<serial_rows<TYPE, double>>();
            if (h.rule == K_RULE_NEON_F32) launch<neon_rows<TYPE>>();
        }
        if constexpr (coded<TYPE>) {
            int32_t units;
            if (h.rule == K_RULE_GPU && k_gpu_threads(TYPE, &units)) launch<gpu_rows<TYPE>>();
            if (h.rule >= K_RULE_CPU && h.rule != K_RULE_GPU) launch<cpu_rows<TYPE>>();
        }
    }
};

void k_dot_cuda(const k_dev_panel *p, k_dot_rule rule, int32_t type, const k_weight *w, const k_weight *many,
                int32_t turns, int64_t columns, float *work, void *stream) {
    how h = {rule, (const uint8_t *)(const void *)work, 0, 0};
    if (rule >= K_RULE_CPU) {
        const int32_t format = k_dot_format(rule, type);
        h.column = p->K / k_actq_elems(format) * k_actq_bytes(format);
        h.block = k_dot_block_bytes(rule, type);
        quantise(p->x, columns * p->K, format, (uint8_t *)(void *)work, stream);
    }
    k_by_type(type, rule_job{p, w, many, turns, type, h, stream});
}
