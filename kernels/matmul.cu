/* matmul.cu: products of stored rows and f32 columns (matmul.h, moe.h: moe_expert), in order lanes32 where lever dot does
 * not ask for another (qdot.cu).
 *
 * A warp computes an output: its lanes are the 32 accumulators, so neither tiles nor the number of columns can change a
 * bit. Few columns: a warp takes one row, decodes it as it goes and multiplies it with up to four columns. Many
 * columns: rows are decoded to f32 once, into scratch, and a warp takes 4 rows times 4 columns.
 */
#include "kernels/matmul.h"

#include "kernels/moe.h"
#include "kernels/panel.cuh"
#include "kernels/quant_lane.cuh"

enum { COLS = 4, ROWS = 4, MANY = 16 /* columns from which decoding into scratch pays */ };

/* ---- few columns ---- */

/* Rows that a warp takes at once, elements that it does at once, and what it keeps of them in shared memory. */
enum { PAIR = 2, SPAN = K_WARP * K_WARP, GROUPS = 8, MOST_BYTES = 1088 /* of SPAN elements: Q8_0's */ };

typedef struct {
    k_word16 bytes[PAIR][MOST_BYTES / 16 + 2];
    k_shared group[PAIR][K_WARP];
} stage;

/* Rows of one weight; what lies between from and end may be read. */
typedef struct {
    const uint8_t *row[PAIR], *from, *end;
} rows;

/* Elements 32 g + lane of SPAN from i on, g < groups. b: where the span begins, of either row. */
template <int32_t TYPE, int C>
static __device__ __forceinline__ void span(const uint8_t *const b[PAIR], const k_shared (*s)[K_WARP], int32_t groups,
                                            const float *const x[C], int64_t i, float acc[PAIR][C]) {
    typedef k_stored<TYPE> T;
    constexpr int32_t per = T::elems / K_WARP;
    const int32_t l = k_lane();
    for (int32_t g0 = 0; g0 < groups; g0 += GROUPS) {
#pragma unroll
        for (int32_t u = 0; u < GROUPS; u++) {
            if (T::elems < K_WARP * GROUPS && g0 + u >= groups) break;
            float xe[C];
#pragma unroll
            for (int c = 0; c < C; c++) xe[c] = x[c][i + K_WARP * (g0 + u) + l];
#pragma unroll
            for (int r = 0; r < PAIR; r++) {
                const uint8_t *at = b[r] + (g0 / per + u / per) * T::bytes;
                const float w = k_split<TYPE>::value(at, u % per, l, s[r][g0 + u]);
#pragma unroll
                for (int c = 0; c < C; c++) acc[r][c] = fmaf(w, xe[c], acc[r][c]);
            }
        }
    }
}

/* By groups: a span's bytes come by wide loads, each lane makes what one group shares, then all take their elements. */
template <int32_t TYPE, int C>
static __device__ __forceinline__ void dots_grouped(const rows *w, stage *st, int64_t K, const float *const x[C],
                                                    float acc[PAIR][C]) {
    typedef k_stored<TYPE> T;
    constexpr int32_t per = T::elems / K_WARP;
    const int32_t l = k_lane();
    for (int64_t i = 0; i < K; i += SPAN) {
        const int32_t groups = (int32_t)((K - i < SPAN ? K - i : (int64_t)SPAN) / K_WARP);
        const uint8_t *b[PAIR];
        __syncwarp();
        for (int r = 0; r < PAIR; r++)
            b[r] = k_fetch(w->from, w->end, w->row[r] + i / T::elems * T::bytes, groups / per * T::bytes, st->bytes[r]);
        __syncwarp();
        for (int r = 0; r < PAIR; r++)
            if (l < groups) st->group[r][l] = k_split<TYPE>::group(b[r] + l / per * T::bytes, l % per);
        __syncwarp();
        span<TYPE, C>(b, st->group, groups, x, i, acc);
    }
}

/* Element by element, the blocks of 256 at once: their places are known when this is compiled. */
template <int32_t TYPE, int C>
static __device__ __forceinline__ void dots_plain(const rows *w, int64_t K, const float *const x[C],
                                                  float acc[PAIR][C]) {
    typedef k_stored<TYPE> T;
    constexpr int32_t whole = 256;
    const int32_t l = k_lane();
    int64_t i = 0;
    for (; i + whole <= K; i += whole)
#pragma unroll
        for (int32_t u = 0; u < whole / K_WARP; u++) {
            const int32_t e = K_WARP * u, skip = T::elems == 1 ? 0 : e / T::elems;
#pragma unroll
            for (int r = 0; r < PAIR; r++) {
                const float v = T::in(w->row[r] + i / T::elems * T::bytes + skip * T::bytes, e - skip * T::elems + l);
#pragma unroll
                for (int c = 0; c < C; c++) acc[r][c] = fmaf(v, x[c][i + e + l], acc[r][c]);
            }
        }
    for (i += l; i < K; i += K_WARP)
        for (int r = 0; r < PAIR; r++) {
            const float v = T::at(w->row[r], i);
            for (int c = 0; c < C; c++) acc[r][c] = fmaf(v, x[c][i], acc[r][c]);
        }
}

/* Rows r, r + 1 of the weight times columns j .. j + n, n <= C. */
template <int32_t TYPE, int C>
static __device__ __forceinline__ void rows_times(const k_dev_panel *p, const k_weight *w, stage *st, int64_t r,
                                                  int64_t j, int64_t n) {
    const float *x[C];
    float acc[PAIR][C];
    rows v;
    v.from = (const uint8_t *)w->data;
    v.end = v.from + (size_t)p->O * w->row_bytes;
    for (int k = 0; k < PAIR; k++) {
        v.row[k] = v.from + (size_t)(r + k < p->O ? r + k : r) * w->row_bytes;
        for (int c = 0; c < C; c++) acc[k][c] = 0.0f;
    }
    for (int c = 0; c < C; c++) x[c] = p->x + k_panel_slot(p, c < n ? j + c : j) / p->div * p->K;
    if constexpr (k_split<TYPE>::grouped)
        dots_grouped<TYPE, C>(&v, st, p->K, x, acc);
    else
        dots_plain<TYPE, C>(&v, p->K, x, acc);
    for (int k = 0; k < PAIR; k++)
        for (int c = 0; c < C; c++) {
            float y = k_warp_fold(acc[k][c]);
            if (k_lane() == 0 && c < n && r + k < p->O) k_panel_store(p, k_panel_slot(p, j + c), r + k, y);
        }
}

static unsigned pairs(int64_t rows) {
    return k_blocks((rows + PAIR - 1) / PAIR, K_WARPS);
}

/* A warp a pair of rows: blockIdx.y walks through the columns. */
template <int32_t TYPE, int C>
static __global__ void thin_k(const __grid_constant__ k_dev_panel p, const __grid_constant__ k_weight w) {
    __shared__ stage st[K_WARPS];
    const int64_t r = k_warp() * PAIR;
    if (r >= p.O) return;
    for (int64_t j = (int64_t)blockIdx.y * C; j < p.n; j += (int64_t)gridDim.y * C)
        rows_times<TYPE, C>(&p, &w, &st[threadIdx.x / K_WARP], r, j, p.n - j < C ? p.n - j : C);
}

/* The same for experts: blockIdx.y is the expert, whose weight of another type is another launch's. */
template <int32_t TYPE, int C>
static __global__ void experts_k(const __grid_constant__ k_dev_panel p, const k_weight *w) {
    __shared__ stage st[K_WARPS];
    const int64_t r = k_warp() * PAIR, from = p.first[blockIdx.y], end = p.first[blockIdx.y + 1];
    const k_weight *we = w + blockIdx.y;
    if (r >= p.O || from == end || we->type != TYPE) return;
    for (int64_t j = from; j < end; j += C)
        rows_times<TYPE, C>(&p, we, &st[threadIdx.x / K_WARP], r, j, end - j < C ? end - j : C);
}

/* ---- many columns ---- */

/* rows x p.n outputs of f32 rows, ld apart; a warp takes ROWS x COLS of them. Row 0 is output r0. */
static __global__ void fat_k(const __grid_constant__ k_dev_panel p, const float *w, int64_t ld, int64_t r0,
                             int64_t rows) {
    const int64_t tiles = (rows + ROWS - 1) / ROWS, k = k_warp();
    const int64_t r = k % tiles * ROWS, j = k / tiles * COLS;
    if (j >= p.n) return;
    const float *x[COLS], *v[ROWS];
    float acc[ROWS][COLS];
    for (int c = 0; c < COLS; c++) x[c] = p.x + (j + c < p.n ? j + c : j) * p.K;
    for (int i = 0; i < ROWS; i++) {
        v[i] = w + (r + i < rows ? r + i : r) * ld;
        for (int c = 0; c < COLS; c++) acc[i][c] = 0.0f;
    }
    for (int64_t e = k_lane(); e < p.K; e += K_WARP) {
        float xe[COLS];
        for (int c = 0; c < COLS; c++) xe[c] = x[c][e];
        for (int i = 0; i < ROWS; i++) {
            float ve = v[i][e];
            for (int c = 0; c < COLS; c++) acc[i][c] = fmaf(ve, xe[c], acc[i][c]);
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int c = 0; c < COLS; c++) {
            float y = k_warp_fold(acc[i][c]);
            if (k_lane() == 0 && r + i < rows && j + c < p.n) k_panel_store(&p, j + c, r0 + r + i, y);
        }
}

static void fat(const k_dev_panel *p, const float *w, int64_t ld, int64_t r0, int64_t rows, void *stream) {
    int64_t warps = (rows + ROWS - 1) / ROWS * ((p->n + COLS - 1) / COLS);
    K_LAUNCH(fat_k, dim3(k_blocks(warps, K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream, *p, w, ld, r0, rows);
}

struct matmul_job {
    const k_call *c;
    k_dev_panel p;
    void *stream;
    template <int32_t TYPE> void run() const {
        const k_weight w = *c->w[0];
        const int64_t at_once = p.K > 0 ? c->scratch_n / p.K / ROWS * ROWS : 0;
        if (p.n < MANY || at_once < ROWS) {
            dim3 grid(pairs(p.O), p.n < COLS ? 1u : k_blocks(p.n, COLS));
            auto one = thin_k<TYPE, 1>, some = thin_k<TYPE, COLS>;
            K_LAUNCH(p.n == 1 ? one : some, grid, dim3(K_WARPS * K_WARP), 0, stream, p, w);
        } else if (TYPE == K_T_F32 && w.row_bytes % sizeof(float) == 0) {
            fat(&p, (const float *)w.data, (int64_t)(w.row_bytes / sizeof(float)), 0, w.rows, stream);
        } else {
            for (int64_t r = 0; r < w.rows; r += at_once) {
                int64_t rows = w.rows - r < at_once ? w.rows - r : at_once;
                K_LAUNCH(k_decode_k<TYPE>, dim3(k_blocks(rows * p.K, K_THREADS)), dim3(K_THREADS), 0, stream, w, r,
                         rows * p.K, c->scratch);
                fat(&p, c->scratch, p.K, r, rows, stream);
            }
        }
    }
};

void matmul_cuda(const k_call *c, void *stream) {
    k_dev_panel p;
    memset(&p, 0, sizeof p);
    p.x = c->in[0];
    p.K = c->in_cols[0];
    p.n = c->T;
    p.div = 1;
    p.out = c->out;
    p.O = c->cols;
    p.epi = c->epi;
    p.N = c->d->N;
    p.act = k_epilogue_act(c->epi, c->lv);
    if (c->T == 0 || c->cols == 0) return;
    const k_weight *w = c->w[0];
    const k_dot_rule rule = k_dot_rule_of(c->lv, c->Tcall, w->type, w->rows);
    if (rule == K_RULE_LANES32)
        k_by_type(w->type, matmul_job{c, p, stream});
    else
        k_dot_cuda(&p, rule, w->type, w, NULL, 1, c->T, c->scratch, stream);
}

/* ---- experts ---- */

/* One block. first[e] .. of the slots of expert e in slot[], first[E] .. of those without one. Counts and places are
 * integers; the order within an expert changes no bit. */
static __global__ void group_k(const int32_t *ids, int64_t slots, int32_t E, int32_t *first, int32_t *fill,
                               int32_t *slot) {
    for (int64_t e = threadIdx.x; e <= E + 1; e += blockDim.x) first[e] = 0;
    __syncthreads();
    for (int64_t s = threadIdx.x; s < slots; s += blockDim.x) {
        int32_t e = ids[s] >= 0 && ids[s] < E ? ids[s] : E;
        atomicAdd(&first[e + 1], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int32_t e = 0; e <= E; e++) first[e + 1] += first[e];
    __syncthreads();
    for (int64_t e = threadIdx.x; e <= E; e += blockDim.x) fill[e] = first[e];
    __syncthreads();
    for (int64_t s = threadIdx.x; s < slots; s += blockDim.x) {
        int32_t e = ids[s] >= 0 && ids[s] < E ? ids[s] : E;
        slot[atomicAdd(&fill[e], 1)] = (int32_t)s;
    }
}

static __global__ void no_expert_k(const __grid_constant__ k_dev_panel p, const int32_t *ids, int32_t E) {
    int64_t i = k_tid(), s = i / p.O;
    if (i < p.n * p.O && !(ids[s] >= 0 && ids[s] < E)) p.out[i] = NAN;
}

struct expert_job {
    const k_call *c;
    k_dev_panel p;
    void *stream;
    template <int32_t TYPE> void run() const {
        dim3 grid(pairs(p.O), (unsigned)c->nw[0]);
        auto one = experts_k<TYPE, 1>, some = experts_k<TYPE, COLS>;
        K_LAUNCH(c->T == 1 ? one : some, grid, dim3(K_WARPS * K_WARP), 0, stream, p, c->w_dev[0]);
    }
};

void moe_expert_cuda(const k_call *c, void *stream) {
    const int64_t K = c->in_cols[1], slots = (int64_t)c->T * K, E = c->nw[0];
    if (slots == 0 || E == 0 || c->cols == 0) return;
    int32_t *first = (int32_t *)(void *)c->scratch, *fill = first + E + 2, *slot = fill + E + 1;
    float *work = c->scratch + k_dev_lists(slots, E);
    k_dev_panel p;
    memset(&p, 0, sizeof p);
    p.x = c->in[0];
    p.K = c->per ? c->in_cols[0] / K : c->in_cols[0];
    p.slot = slot;
    p.first = first;
    p.n = (int32_t)slots;
    p.div = c->per ? 1 : (int32_t)K;
    p.out = c->out;
    p.O = c->cols / K;
    p.epi = K_EPI_NONE;
    p.act = c->lv->act;
    K_LAUNCH(group_k, dim3(1), dim3(K_THREADS), 0, stream, c->in_i[1], slots, (int32_t)E, first, fill, slot);
    K_LAUNCH(no_expert_k, dim3(k_blocks(slots * p.O, K_THREADS)), dim3(K_THREADS), 0, stream, p, c->in_i[1],
             (int32_t)E);
    uint64_t done = 0; /* types that were launched */
    for (int64_t e = 0; e < E; e++) {
        int32_t type = c->w[0][e].type;
        if (type < 0 || type > 63 || done >> type & 1) continue;
        done |= (uint64_t)1 << type;
        const k_dot_rule rule = k_dot_rule_of(c->lv, c->Tcall, type, p.O);
        if (rule == K_RULE_LANES32)
            k_by_type(type, expert_job{c, p, stream});
        else
            k_dot_cuda(&p, rule, type, c->w[0], c->w_dev[0], (int32_t)E, c->per ? slots : c->T, work, stream);
    }
}
