/* thin.cuh: products of stored rows and few f32 columns, in order lanes32.
 *
 * Eight lanes keep a row's 32 accumulators, four in a row each, as types have their scales and code books; a warp takes
 * four rows and up to C columns, and decodes as it goes. Rows travel through shared memory, several spans ahead. What
 * does not lie at the addresses that this needs is read element by element. Each output has its own accumulators:
 * neither this shape nor the number of columns changes a bit.
 */
#ifndef K_THIN_CUH
#define K_THIN_CUH

#include "kernels/panel.cuh"
#include "kernels/quant_four.cuh"

enum {
    THIN_LANES = 8,                  /* of a row */
    THIN_FOUR = K_WARP / THIN_LANES, /* accumulators of a lane */
    THIN_ROWS = K_WARP / THIN_LANES, /* of a warp */
    THIN_WARPS = 4,                  /* of a block */
    THIN_SPAN = K_WARP * THIN_LANES  /* elements of a row that travel at once: a group of 32 for each of its lanes */
};

/* Four of a column. */
typedef struct __attribute__((aligned(16))) {
    float v[THIN_FOUR];
} thin_x;

/* Which of a warp's rows the thread helps with, and which of its lanes it is. */
typedef struct {
    int32_t row, lane;
} thin_place;

template <int C> static __device__ __forceinline__ void thin_add(const float v[4], const thin_x x[C], float acc[C][4]) {
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[c][j] = fmaf(v[j], x[c].v[j], acc[c][j]);
}

/* Element by element, whatever lies where. */
template <int32_t TYPE, int C>
static __device__ __forceinline__ void thin_slow(const uint8_t *row, int64_t K, const float *const x[C], int32_t lane,
                                                 float acc[C][4]) {
    for (int64_t i = THIN_FOUR * lane; i < K; i += K_WARP)
#pragma unroll
        for (int j = 0; j < THIN_FOUR; j++)
            if (i + j < K) {
                const float v = k_stored<TYPE>::at(row, i + j);
#pragma unroll
                for (int c = 0; c < C; c++) acc[c][j] = fmaf(v, x[c][i + j], acc[c][j]);
            }
}

/* Spans of a warp's rows on their way and at hand, in pieces of one block or of 32 elements. Rows lie so far apart that
 * lanes of different rows meet different banks. */
template <int32_t TYPE> struct thin_warp {
    typedef k_stored<TYPE> T;
    static constexpr int32_t elems = T::elems < K_WARP ? K_WARP : T::elems; /* of a piece, */
    static constexpr int32_t per = elems / K_WARP;                          /* its groups, */
    static constexpr int32_t piece = elems / T::elems * T::bytes;           /* its bytes */
    static constexpr int32_t bytes = THIN_SPAN / elems * piece;             /* of a span, */
    static constexpr int32_t words = (bytes + 30) / 16;                     /* its words of 16, wherever it begins, */
    static constexpr int32_t mine = (words + THIN_LANES - 1) / THIN_LANES;  /* those of a lane */
    static constexpr int32_t stride = 16 * (words + 1) + (160 - 16 * (words + 1) % 128) % 128;
    static constexpr int32_t depth = bytes > 512 ? 2 : 4; /* spans at once */
    k_word16 line[depth][THIN_ROWS][stride / 16];
    typename k_four<TYPE>::once step[THIN_ROWS][THIN_LANES + 1];
};
template <int32_t TYPE> struct thin_block {
    thin_warp<TYPE> warp[THIN_WARPS];
    typename k_four<TYPE>::entry table[k_four<TYPE>::room + 1];
};

/* A row as words of 16 bytes, of which its weight, from .. end, need not have all. */
typedef struct {
    const uint8_t *from, *end, *word;
    uint32_t bytes, skew, words; /* the row begins so far behind the first one; how many it has */
    int whole;                   /* the weight has them all */
    k_shared to;                 /* where span 0 goes */
} thin_row;

static __device__ __forceinline__ thin_row thin_row_of(const k_weight *w, int64_t O, int64_t r, uint32_t bytes) {
    const uint8_t *row = (const uint8_t *)w->data + (size_t)(r < O ? r : O - 1) * w->row_bytes;
    thin_row l;
    l.from = (const uint8_t *)w->data;
    l.end = l.from + (size_t)O * w->row_bytes;
    l.skew = (uint32_t)((uintptr_t)row % 16);
    l.word = row - l.skew;
    l.bytes = bytes;
    l.words = (l.skew + bytes + 15) / 16;
    l.whole = l.word >= l.from && l.word + 16 * (size_t)l.words <= l.end;
    l.to = 0;
    return l;
}

/* Span n of the row is on its way; its lanes take words in turn. */
template <int32_t TYPE>
static __device__ __forceinline__ void thin_ask(const thin_row *l, thin_warp<TYPE> *s, uint32_t n, thin_place at) {
    typedef thin_warp<TYPE> S;
    const uint32_t first = (l->skew + n * S::bytes) / 16;
    /* of spans behind the row nothing is asked for, which nobody would wait for */
    const uint32_t words = n * S::bytes < l->bytes ? l->words : 0;
    if (l->whole) {
        const k_shared line = l->to + n % S::depth * THIN_ROWS * S::stride;
#pragma unroll
        for (int32_t k = 0; k < S::mine; k++) {
            const uint32_t i = (uint32_t)(k * THIN_LANES + at.lane);
            if ((k + 1 < S::mine || i < (uint32_t)S::words) && first + i < words)
                k_copy16(line + 16 * i, l->word + 16 * (size_t)(first + i));
        }
    } else {
        k_word16 *line = s->line[n % S::depth][at.row];
#pragma unroll 1
        for (uint32_t i = (uint32_t)at.lane; i < (uint32_t)S::words && first + i < words; i += THIN_LANES)
            line[i] = k_load16(l->from, l->end, l->word + 16 * (size_t)(first + i));
    }
    k_copy_commit();
}

/* Four of group g of the columns. */
template <int C> static __device__ __forceinline__ void thin_columns(const float *const xs[C], int32_t g, thin_x x[C]) {
#pragma unroll
    for (int c = 0; c < C; c++) x[c] = *(const thin_x *)(const void *)(xs[c] + K_WARP * g);
}

/* The steps of a span's groups, a lane each. Whether all of the warp's may be part of fused values. */
template <int32_t TYPE>
static __device__ __forceinline__ int thin_steps(const uint8_t *line, typename k_four<TYPE>::once *step, int32_t groups,
                                                 int32_t lane) {
    typedef thin_warp<TYPE> S;
    typedef k_four<TYPE> F;
    int sound = 1;
    if (lane < groups) {
        const typename F::once s = F::step(line + lane / S::per * S::piece, lane % S::per);
        sound = !F::fused || k_sound(s);
        step[lane] = s;
    }
    __syncwarp(); /* a vote would not make the steps known to the other lanes */
    return F::fused ? __all_sync(0xffffffffu, sound) : 1;
}

/* A whole span, written out: all is read before anything is multiplied. */
template <int32_t TYPE>
static __device__ __forceinline__ void thin_whole(const uint8_t *line, const typename k_four<TYPE>::once *step,
                                                  const typename k_four<TYPE>::entry *table, const thin_x x[THIN_LANES],
                                                  int32_t lane, float acc[1][4]) {
    typedef thin_warp<TYPE> S;
    typedef k_four<TYPE> F;
    typename F::raw raw[THIN_LANES];
#pragma unroll
    for (int32_t g = 0; g < THIN_LANES; g++) raw[g] = F::read(line + g / S::per * S::piece, g % S::per, lane, table);
#pragma unroll
    for (int32_t g = 0; g < THIN_LANES; g++) {
        float v[4];
        F::values(raw[g], step[g], lane, table, v);
        thin_add<1>(v, x + g, acc);
    }
}

/* The first groups of a span, one by one. own: by the type's own form. */
template <int32_t TYPE, int C>
static __device__ __forceinline__ void thin_part(const uint8_t *line, const typename k_four<TYPE>::once *step,
                                                 const typename k_four<TYPE>::entry *table, const float *const xs[C],
                                                 int32_t groups, int own, int32_t lane, float acc[C][4]) {
    typedef thin_warp<TYPE> S;
    typedef k_four<TYPE> F;
#pragma unroll 1
    for (int32_t g = 0; g < groups; g++) {
        const uint8_t *b = line + g / S::per * S::piece;
        thin_x x[C];
        float v[4];
        thin_columns<C>(xs, g, x);
        if (F::own && C > 1 && own)
            F::values(F::read(b, g % S::per, lane, table), step[g], lane, table, v);
        else
            k_four_core<TYPE>(b, g % S::per, lane, v);
        thin_add<C>(v, x, acc);
    }
}

/* The block's table, by all of its threads. */
template <int32_t TYPE> static __device__ __forceinline__ void thin_fill(typename k_four<TYPE>::entry *table) {
#pragma unroll 8
    for (int32_t i = (int32_t)threadIdx.x; i < k_four<TYPE>::room; i += THIN_WARPS * K_WARP)
        table[i] = k_four<TYPE>::table(i);
    __syncthreads();
}

/* Rows span by span, the next ones travelling meanwhile. fill: the table is not there yet. */
template <int32_t TYPE, int C>
static __device__ __forceinline__ void thin_staged(thin_row *l, thin_block<TYPE> *b, int64_t K, const float *const x[C],
                                                   int fill, float acc[C][4]) {
    typedef thin_warp<TYPE> S;
    typedef k_four<TYPE> F;
    constexpr bool early = F::own && C == 1; /* spans are written out, columns asked for first */
    const int32_t own = k_lane_kept();
    const thin_place at = {own / THIN_LANES, own % THIN_LANES};
    S *s = &b->warp[threadIdx.x / K_WARP];
    const float *xs[C];
#pragma unroll
    for (int c = 0; c < C; c++) xs[c] = x[c] + THIN_FOUR * at.lane;
    l->to = k_shared_at(s->line[0][at.row]);
    __syncwarp(); /* the columns before are done with the lines */
#pragma unroll 1
    for (uint32_t n = 0; n < S::depth - 1; n++) thin_ask<TYPE>(l, s, n, at);
    if (F::room > 0 && fill) thin_fill<TYPE>(b->table);
    int32_t left = (int32_t)(K / K_WARP);
    for (uint32_t n = 0; left > 0; n++, left -= THIN_LANES) {
        const int32_t groups = left < THIN_LANES ? left : THIN_LANES;
        thin_x soon[early ? THIN_LANES : 1];
        if (early && left >= THIN_LANES)
#pragma unroll
            for (int32_t g = 0; g < THIN_LANES; g++) thin_columns<1>(xs, g, soon + (early ? g : 0));
        k_copy_wait<S::depth - 2>();
        __syncwarp();
        thin_ask<TYPE>(l, s, n + S::depth - 1, at);
        const uint8_t *line = (const uint8_t *)s->line[n % S::depth][at.row] + (l->skew + n * S::bytes) % 16;
        typename F::once *step = s->step[at.row];
        const int sound = F::steps ? thin_steps<TYPE>(line, step, groups, at.lane) : 1;
        if constexpr (early) {
            if (left >= THIN_LANES && sound)
                thin_whole<TYPE>(line, step, b->table, soon, at.lane, acc);
            else
                thin_part<TYPE, C>(line, step, b->table, xs, groups, 0, at.lane, acc);
        } else {
            thin_part<TYPE, C>(line, step, b->table, xs, groups, sound, at.lane, acc);
        }
#pragma unroll
        for (int c = 0; c < C; c++) xs[c] += THIN_SPAN;
    }
}

/* The levels 16, 8 and 4 of lanes32 between the lanes of a row, 2 and 1 within each: all get the sum. */
static __device__ __forceinline__ float thin_fold(const float acc[4]) {
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[j] = acc[j] + __shfl_xor_sync(0xffffffffu, acc[j], 4);
        v[j] = v[j] + __shfl_xor_sync(0xffffffffu, v[j], 2);
        v[j] = v[j] + __shfl_xor_sync(0xffffffffu, v[j], 1);
    }
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* blockIdx.x: THIN_ROWS rows a warp; y: walks through the columns; z: turns of experts (panel.cuh), of which those of
 * this type are multiplied, in the array `many` on the device. */
template <int32_t TYPE, int C>
static __global__ void __launch_bounds__(THIN_WARPS *K_WARP, k_four<TYPE>::fused ? 4 : 5)
    thin_k(const __grid_constant__ k_dev_panel p, const __grid_constant__ k_weight w, const k_weight *many) {
    typedef k_four<TYPE> F;
    constexpr bool staged = F::own || k_stored<TYPE>::elems >= K_WARP;
    __shared__ thin_block<staged ? TYPE : K_T_Q8_0> s;
    const k_dev_turn turn = k_turn_of(&p, &w, many);
    const k_weight *we = turn.w;
    const int32_t lane = k_lane() % THIN_LANES;
    const int64_t r = k_warp() * THIN_ROWS + k_lane() / THIN_LANES, first = turn.from + (int64_t)blockIdx.y * C,
                  end = turn.end;
    if (!we || we->type != TYPE) return;
    typedef thin_warp<TYPE> S;
    thin_row l = thin_row_of(we, p.O, r, (uint32_t)(p.K / S::elems * S::piece));
    for (int64_t j = first; j < end; j += (int64_t)gridDim.y * C) {
        const float *x[C];
        float acc[C][4];
        int wide = (uintptr_t)we->data % F::aligned == 0 && we->row_bytes % F::aligned == 0;
        int64_t done = 0; /* elements */
        for (int c = 0; c < C; c++) {
            x[c] = p.x + k_panel_slot(&p, j + c < end ? j + c : j) / p.div * p.K;
            wide &= (uintptr_t)x[c] % 16 == 0;
            for (int k = 0; k < THIN_FOUR; k++) acc[c][k] = 0.0f;
        }
        if constexpr (staged)
            if (wide) {
                thin_staged<TYPE, C>(&l, &s, p.K, x, j == first, acc);
                done = p.K / K_WARP * K_WARP;
            }
        if (done < p.K) {
            const float *rest[C];
            for (int c = 0; c < C; c++) rest[c] = x[c] + done;
            thin_slow<TYPE, C>(l.word + l.skew + done / k_stored<TYPE>::elems * k_stored<TYPE>::bytes, p.K - done, rest,
                               lane, acc);
        }
        for (int c = 0; c < C; c++) {
            const float y = thin_fold(acc[c]);
            if (lane == 0 && j + c < end && r < p.O) k_panel_store(&p, k_panel_slot(&p, j + c), r, y);
        }
    }
}

#endif
