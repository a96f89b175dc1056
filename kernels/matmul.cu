/* matmul.cu: products of stored rows and f32 columns (matmul.h, moe.h: moe_expert), in order lanes32 where lever dot
 * does not ask for another (qdot.cu).
 *
 * Each output has its own 32 accumulators, so neither tiles nor the number of columns can change a bit. Few columns:
 * four lanes keep a row's accumulators, eight in a row each, as types have their scales and code books; a warp takes
 * eight rows and up to four columns, decoding as it goes. Many columns: rows are decoded to f32 once, into scratch, and
 * a warp, whose lanes are the accumulators, takes 4 rows times 4 columns.
 */
#include "kernels/matmul.h"

#include "kernels/moe.h"
#include "kernels/panel.cuh"
#include "kernels/quant_eight.cuh"

enum { COLS = 4, ROWS = 4, MANY = 16 /* columns from which decoding into scratch pays */ };

/* ---- few columns ---- */

/* Rows of a warp, lanes of a row, accumulators of a lane; elements whose bytes are fetched at once. */
enum { OCTET = 8, QUAD = K_WARP / OCTET, EIGHT = K_WARP / QUAD, SPAN = 512 };

typedef struct __attribute__((aligned(16))) {
    float v[4];
} four;

/* Rows, one weight's; what lies between from and end may be read. */
typedef struct {
    const uint8_t *row, *from, *end;
} lines;

/* Where the lane's eight elements of a group of 32 begin. */
static __device__ __forceinline__ int32_t own_eight(void) {
    return k_lane() % QUAD;
}

/* Eight of a column; WIDE: at an address of 16 bytes. */
template <int WIDE> static __device__ __forceinline__ void eight_of(const float *x, float v[EIGHT]) {
    if (WIDE) {
        const four a = *(const four *)(const void *)x, b = *(const four *)(const void *)(x + 4);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = a.v[j];
            v[4 + j] = b.v[j];
        }
    } else {
#pragma unroll
        for (int j = 0; j < EIGHT; j++) v[j] = x[j];
    }
}

template <int C, int WIDE>
static __device__ __forceinline__ void add_eight(const float v[EIGHT], const float *const x[C], int64_t i,
                                                 float acc[C][EIGHT]) {
#pragma unroll
    for (int c = 0; c < C; c++) {
        float xe[EIGHT];
        eight_of<WIDE>(x[c] + i, xe);
#pragma unroll
        for (int j = 0; j < EIGHT; j++) acc[c][j] = fmaf(v[j], xe[j], acc[c][j]);
    }
}

/* A warp's rows in shared memory, so far apart that lanes of different rows meet different banks. */
template <int32_t TYPE> struct staged {
    typedef k_stored<TYPE> T;
    static constexpr int32_t per = T::elems / K_WARP, blocks = SPAN / (T::elems < 32 ? 32 : T::elems),
                             bytes = blocks * T::bytes, words = (bytes + 30) / 16, each = (words + QUAD - 1) / QUAD,
                             stride = 16 * (words + 1) + (160 - 16 * (words + 1) % 128) % 128;
    k_word16 line[OCTET][stride / 16];
    float levels[K_LEVELS];
};

/* Bytes of elements i .. i + SPAN of the lane's row, on their way; a row's lanes take words in turn. */
template <int32_t TYPE>
static __device__ __forceinline__ void ask(const lines *w, int64_t i, int64_t K, k_word16 *ret) {
    typedef staged<TYPE> S;
    const uint8_t *p = w->row + i / S::T::elems * S::T::bytes;
    const int32_t skew = (int32_t)((uintptr_t)p % 16), n = K - i < SPAN ? (int32_t)(K - i) : (int32_t)SPAN,
                  words = (skew + n / S::T::elems * S::T::bytes + 15) / 16;
#pragma unroll
    for (int32_t k = 0; k < S::each; k++) {
        const int32_t at = QUAD * k + own_eight();
        if (at < words) ret[k] = k_load16(w->from, w->end, p - skew + 16 * at);
    }
}

/* Block types: the bytes of the next span travel while this one is multiplied. */
template <int32_t TYPE, int C, int WIDE>
static __device__ __forceinline__ void dots_staged(const lines *w, staged<TYPE> *st, int64_t K, const float *const x[C],
                                                   float acc[C][EIGHT]) {
    typedef staged<TYPE> S;
    constexpr int32_t once = k_eight<TYPE>::own && WIDE ? S::per : 1; /* groups that are written out */
    (void)once;                                                       /* a host's compiler knows no such pragma */
    const int32_t t = own_eight();
    k_word16 next[S::each], *line = st->line[k_lane() / QUAD];
    ask<TYPE>(w, 0, K, next);
    for (int64_t i = 0; i < K; i += SPAN) {
        __syncwarp();
#pragma unroll
        for (int32_t k = 0; k < S::each; k++)
            if (QUAD * k + t < S::words) line[QUAD * k + t] = next[k];
        __syncwarp();
        if (i + SPAN < K) ask<TYPE>(w, i + SPAN, K, next);
        const int32_t blocks = K - i < SPAN ? (int32_t)(K - i) / S::T::elems : S::blocks;
        const uint8_t *b = (const uint8_t *)line + (uintptr_t)(w->row + i / S::T::elems * S::T::bytes) % 16;
        for (int32_t k = 0; k < blocks; k++, b += S::T::bytes) {
            const k_head h = k_eight<TYPE>::head(b);
#pragma unroll once
            for (int32_t g = 0; g < S::per; g++) {
                float v[EIGHT];
                k_eight<TYPE>::values(b, h, g, t, st->levels, v);
                add_eight<C, WIDE>(v, x, i + k * S::T::elems + K_WARP * g + EIGHT * t, acc);
            }
        }
    }
}

/* Types whose block is one element: from where they lie. */
template <int32_t TYPE, int C>
static __device__ __forceinline__ void dots_plain(const uint8_t *row, int64_t K, const float *const x[C], int wide,
                                                  float acc[C][EIGHT]) {
    typedef k_stored<TYPE> T;
    int64_t i = EIGHT * own_eight();
    if constexpr (k_eight_wide<TYPE>::own) {
        if (wide && (uintptr_t)row % 16 == 0)
#pragma unroll 8
            for (; i + EIGHT <= K; i += K_WARP) {
                float v[EIGHT];
                k_eight_wide<TYPE>::values(row + i * T::bytes, v);
                add_eight<C, 1>(v, x, i, acc);
            }
    }
    for (; i < K; i += K_WARP)
#pragma unroll
        for (int j = 0; j < EIGHT; j++)
            if (i + j < K) {
                const float v = T::at(row, i + j);
                for (int c = 0; c < C; c++) acc[c][j] = fmaf(v, x[c][i + j], acc[c][j]);
            }
}

/* The levels 16 and 8 of lanes32 between the lanes of a row, 4, 2 and 1 within each: all get the sum. */
static __device__ __forceinline__ float fold_eight(const float acc[EIGHT]) {
    float v[EIGHT];
#pragma unroll
    for (int j = 0; j < EIGHT; j++) {
        v[j] = acc[j] + __shfl_xor_sync(0xffffffffu, acc[j], 2);
        v[j] = v[j] + __shfl_xor_sync(0xffffffffu, v[j], 1);
    }
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* blockIdx.x: OCTET rows, a warp; y: walks through the columns; z: the expert, of which those of this type are
 * multiplied, in the array `many` on the device. */
template <int32_t TYPE, int C>
static __global__ void thin_k(const __grid_constant__ k_dev_panel p, const __grid_constant__ k_weight w,
                              const k_weight *many) {
    __shared__ staged<TYPE> st;
    const int64_t from = p.first ? p.first[blockIdx.z] : 0, end = p.first ? p.first[blockIdx.z + 1] : p.n;
    const k_weight *we = many ? many + blockIdx.z : &w;
    const int64_t r = (int64_t)blockIdx.x * OCTET + k_lane() / QUAD;
    if (from == end || we->type != TYPE) return;
    if (k_lane() < K_LEVELS) st.levels[k_lane()] = (float)K_TAB(k_iq4_levels)[k_lane()];
    lines v;
    v.from = (const uint8_t *)we->data;
    v.end = v.from + (size_t)p.O * we->row_bytes;
    v.row = v.from + (size_t)(r < p.O ? r : p.O - 1) * we->row_bytes;
    for (int64_t j = from + (int64_t)blockIdx.y * C; j < end; j += (int64_t)gridDim.y * C) {
        const float *x[C];
        float acc[C][EIGHT];
        int wide = 1;
        for (int c = 0; c < C; c++) {
            x[c] = p.x + k_panel_slot(&p, j + c < end ? j + c : j) / p.div * p.K;
            wide &= (uintptr_t)x[c] % 16 == 0;
            for (int k = 0; k < EIGHT; k++) acc[c][k] = 0.0f;
        }
        if constexpr (k_stored<TYPE>::elems < K_WARP)
            dots_plain<TYPE, C>(v.row, p.K, x, wide, acc);
        else if (wide)
            dots_staged<TYPE, C, 1>(&v, &st, p.K, x, acc);
        else
            dots_staged<TYPE, C, 0>(&v, &st, p.K, x, acc);
        for (int c = 0; c < C; c++) {
            const float y = fold_eight(acc[c]);
            if (own_eight() == 0 && j + c < end && r < p.O) k_panel_store(&p, k_panel_slot(&p, j + c), r, y);
        }
    }
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
            dim3 grid(k_blocks(p.O, OCTET), p.n < COLS ? 1u : k_blocks(p.n, COLS));
            auto one = thin_k<TYPE, 1>, some = thin_k<TYPE, COLS>;
            K_LAUNCH(p.n == 1 ? one : some, grid, dim3(K_WARP), 0, stream, p, w, (const k_weight *)NULL);
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
        dim3 grid(k_blocks(p.O, OCTET), 1, (unsigned)c->nw[0]);
        auto one = thin_k<TYPE, 1>, some = thin_k<TYPE, COLS>;
        K_LAUNCH(c->T == 1 ? one : some, grid, dim3(K_WARP), 0, stream, p, c->w[0][0], c->w_dev[0]);
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
