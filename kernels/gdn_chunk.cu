/* gdn_chunk.cu: the delta rule of gdn.h by chunks of 64 rows. Chains over rows and key dims are serial by contract,
 * each its own; a chunk is three launches:
 *   weights  G, E, L, A, P: a block 16 rows of a head, a thread four pairs of rows
 *   solve    U and K: a warp eight columns, whose rows are its lanes; a row that is known goes to all rows behind it
 *   step     N, the outputs, the new state: a block 32 columns of the state, a warp rows of the chunk
 * What they leave for each other lies in the call's scratch. Names of matrices as in gdn.h.
 */
#include "kernels/arith.h"
#include "kernels/gdn_head.cuh"

enum { CH = K_GDN_CHUNK, PAD = CH + 1, THREADS = 256, WARPS = THREADS / K_WARP };
enum { ROWS = 16 /* of a block of weights */, PAIRS = ROWS * CH / THREADS, DIMS = 64 /* at once */ };
enum { COLS = 8 /* of a warp of solve */, HALVES = CH / K_WARP };
enum { OWN = CH / WARPS /* rows of a warp of step */, SLICE = 32 /* key dims at once */ };
enum { KEPT = 20 * 1024 /* bytes of the state's columns that fit into shared memory beside the rest */ };

/* One chunk of one head: rows from t0 on, of its n. */
typedef struct {
    k_dev_head h;
    float *E, *L, *beta; /* [64] */
    float *A, *P;        /* [64, 64], +0 above the diagonal */
    float *K, *U;        /* [64, dk], [64, dv] */
    int32_t n, dk, dv, places;
} chunk;

static __device__ __forceinline__ chunk chunk_of(const k_args *a, int32_t t0) {
    const int32_t head = (int32_t)blockIdx.x;
    chunk x;
    x.h = k_dev_head_of(a, head);
    x.h.q += t0 * x.h.kstep;
    x.h.k += t0 * x.h.kstep;
    x.h.v += t0 * x.h.vstep;
    x.h.g += t0 * x.h.hstep;
    x.h.beta += t0 * x.h.hstep;
    x.h.out += t0 * x.h.vstep;
    x.E = a->c.scratch + head * k_gdn_chunk_floats(&a->d);
    x.L = x.E + CH;
    x.beta = x.L + CH;
    x.A = x.beta + CH;
    x.P = x.A + CH * CH;
    x.K = x.P + CH * CH;
    x.U = x.K + CH * (int64_t)a->d.dk;
    x.n = a->c.T - t0 < CH ? a->c.T - t0 : (int32_t)CH;
    x.dk = a->d.dk;
    x.dv = a->d.dv;
    x.places = k_gdn_places(&a->lv);
    return x;
}

/* The dtype of what a lever places. */
static __device__ __forceinline__ int32_t placed(const chunk *x, int32_t place) {
    return x->places & place ? K_ACT_BF16 : K_ACT_F32;
}

/* Dims d0 .. d0 + wide of rows r0 .. of m [n, .] times scale, into `to`, `rows` by `wide`, ld apart; +0 where there is
 * none. */
static __device__ __forceinline__ void fetch(const float *m, int64_t step, float scale, int32_t r0, int32_t rows,
                                             int32_t n, int32_t d0, int32_t dims, int32_t wide, float *to, int32_t ld) {
    for (int32_t at = (int32_t)threadIdx.x; at < rows * wide; at += THREADS) {
        const int32_t i = at / wide, d = at % wide;
        to[i * ld + d] = r0 + i < n && d0 + d < dims ? m[(r0 + i) * step + d0 + d] * scale : 0.0f;
    }
}

/* ---- weights ---- */

/* G and beta of all rows; the block of the first ones leaves E, L and beta. */
static __device__ __forceinline__ void gates(const chunk *x, float *G, float *beta, int leave) {
    const int32_t i = (int32_t)threadIdx.x;
    if (i < x->n) {
        G[i] = x->h.g[i * x->h.hstep];
        beta[i] = x->h.beta[i * x->h.hstep];
    }
    __syncthreads();
    if (i == 0) {
        float sum = 0.0f;
#pragma unroll 8
        for (int32_t k = 0; k < x->n; k++) {
            sum = sum + G[k];
            G[k] = sum;
        }
    }
    __syncthreads();
    if (!leave || i >= x->n) return;
    x->E[i] = k_exp(G[i]);
    x->L[i] = k_exp(G[x->n - 1] - G[i]);
    x->beta[i] = beta[i];
}

/* blockIdx.x: the head; y: rows. Thread: row i and columns j, j + 16, .. */
static __global__ void chunk_weights_k(const __grid_constant__ k_args a, int32_t t0, float scale) {
    __shared__ float G[CH], beta[CH], ks[CH * PAD], qs[ROWS * PAD];
    const chunk x = chunk_of(&a, t0);
    const int32_t r0 = (int32_t)blockIdx.y * ROWS, own = (int32_t)threadIdx.x / ROWS, i = r0 + own,
                  j = (int32_t)threadIdx.x % ROWS;
    float kk[PAIRS] = {0}, qk[PAIRS] = {0};
    if (r0 >= x.n) return;
    gates(&x, G, beta, r0 == 0);
    for (int32_t d0 = 0; d0 < x.dk; d0 += DIMS) {
        const int32_t dims = x.dk - d0 < DIMS ? x.dk - d0 : (int32_t)DIMS;
        __syncthreads();
        fetch(x.h.k, x.h.kstep, 1.0f, 0, CH, x.n, d0, x.dk, DIMS, ks, PAD);
        fetch(x.h.q, x.h.kstep, scale, r0, ROWS, x.n, d0, x.dk, DIMS, qs, PAD);
        __syncthreads();
#pragma unroll 4
        for (int32_t d = 0; d < dims; d++) {
            const float ki = ks[i * PAD + d], qi = qs[own * PAD + d];
#pragma unroll
            for (int u = 0; u < PAIRS; u++) {
                const float kj = ks[(j + ROWS * u) * PAD + d];
                kk[u] = fmaf(ki, kj, kk[u]);
                qk[u] = fmaf(qi, kj, qk[u]);
            }
        }
    }
    if (i >= x.n) return;
    for (int u = 0; u < PAIRS; u++) {
        const int32_t c = j + ROWS * u;
        const float w = c <= i ? k_exp(G[i] - G[c]) : 0.0f;
        x.A[i * CH + c] = c < i ? (beta[i] * kk[u]) * w : 0.0f;
        x.P[i * CH + c] = c <= i ? qk[u] * w : 0.0f;
    }
}

/* ---- solve ---- */

/* Of eight columns, rows lane and lane + 32. */
typedef struct {
    float v[COLS][HALVES];
} columns;

/* (I + A) y = x by rows, each subtracted from those behind it as soon as it is known: for one row these still are in
 * ascending order. What a row before it adds up is used by nobody. at[r][i]: A_ir. */
static __device__ __forceinline__ columns substitute(const float *at, int32_t n, const columns *x) {
    columns y = {{{0}}}, acc = {{{0}}};
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll 4
        for (int32_t l = 0; l < K_WARP && half * K_WARP + l < n; l++) {
            const float *row = at + (half * K_WARP + l) * PAD + k_lane();
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                const float v = x->v[c][half] - acc.v[c][half], known = __shfl_sync(0xffffffffu, v, l);
                if (k_lane() == l) y.v[c][half] = v;
#pragma unroll
                for (int h = half; h < HALVES; h++) acc.v[c][h] = fmaf(row[h * K_WARP], known, acc.v[c][h]);
            }
        }
    return y;
}

/* M x, M lower triangular; mt[r][i]: M_ir. */
static __device__ __forceinline__ columns multiply(const float *mt, int32_t n, const columns *x) {
    columns y = {{{0}}};
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll 4
        for (int32_t l = 0; l < K_WARP && half * K_WARP + l < n; l++) {
            const float *row = mt + (half * K_WARP + l) * PAD + k_lane();
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                const float known = __shfl_sync(0xffffffffu, x->v[c][half], l);
#pragma unroll
                for (int h = half; h < HALVES; h++)
                    if (h > half || k_lane() >= l) y.v[c][h] = fmaf(row[h * K_WARP], known, y.v[c][h]);
            }
        }
    return y;
}

/* The block's M, rounded, transposed: a warp eight columns. */
static __device__ __forceinline__ void invert(const float *at, int32_t n, float *mt) {
    const int32_t c0 = (int32_t)threadIdx.x / K_WARP * COLS;
    if (c0 < n) {
        columns e;
#pragma unroll
        for (int c = 0; c < COLS; c++)
            for (int h = 0; h < HALVES; h++) e.v[c][h] = k_lane() + h * K_WARP == c0 + c ? 1.0f : 0.0f;
        e = substitute(at, n, &e);
#pragma unroll
        for (int c = 0; c < COLS; c++)
            for (int h = 0; h < HALVES; h++) mt[(c0 + c) * PAD + k_lane() + h * K_WARP] = k_round_bf16(e.v[c][h]);
    }
    __syncthreads();
}

/* blockIdx.x: the head; y: 64 columns of U, and behind them of K. */
static __global__ void chunk_solve_k(const __grid_constant__ k_args a, int32_t t0) {
    __shared__ float at[CH * PAD], mt[CH * PAD];
    const chunk x = chunk_of(&a, t0);
    const int32_t c0 = ((int32_t)blockIdx.y * WARPS + (int32_t)threadIdx.x / K_WARP) * COLS, all = x.dv + x.dk;
    const int invert_first = (x.places & K_PLACE_INV) != 0;
    for (int32_t k = (int32_t)threadIdx.x; k < CH * CH; k += THREADS)
        at[k % CH * PAD + k / CH] = k / CH < x.n ? x.A[k] : 0.0f;
    __syncthreads();
    if (invert_first) invert(at, x.n, mt);
    if (c0 >= all) return;
    columns y;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        const int32_t i = k_lane() + h * K_WARP;
        const float beta = i < x.n ? x.beta[i] : 0.0f, scaled = i < x.n ? beta * x.E[i] : 0.0f;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const int32_t j = c0 + c;
            y.v[c][h] = 0.0f;
            if (i < x.n && j < all)
                y.v[c][h] = j < x.dv ? beta * x.h.v[i * x.h.vstep + j] : scaled * x.h.k[i * x.h.kstep + j - x.dv];
        }
    }
    y = invert_first ? multiply(mt, x.n, &y) : substitute(at, x.n, &y);
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        const int32_t i = k_lane() + h * K_WARP;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const int32_t j = c0 + c;
            if (i >= x.n || j >= all) continue;
            if (j < x.dv)
                x.U[(int64_t)i * x.dv + j] = k_rd(y.v[c][h], placed(&x, K_PLACE_U));
            else
                x.K[(int64_t)i * x.dk + j - x.dv] = k_rd(y.v[c][h], placed(&x, K_PLACE_W));
        }
    }
}

/* ---- step ---- */

typedef struct __attribute__((aligned(16))) {
    float v[4];
} four;

/* What a block of step has in shared memory beside the state's columns. */
typedef struct {
    float N[CH][K_WARP];
    union {
        struct {
            four k[CH][SLICE / 4], q[CH][SLICE / 4];
        };
        float P[CH * CH];
    };
    float E[CH], L[CH];
} step_room;

/* The lane's column of the state before. */
typedef struct {
    const float *at;
    int64_t ld;
    int there;
} state_column;

/* ks, qs: sums over key dims of K and of qs with the state, of rows warp, warp + 8, .. */
static __device__ __forceinline__ void with_state(const chunk *x, const state_column *S, float scale, step_room *room,
                                                  float ks[OWN], float qs[OWN]) {
    const int32_t warp = (int32_t)threadIdx.x / K_WARP, hop = placed(x, K_PLACE_HOP), read = placed(x, K_PLACE_H);
    for (int32_t e0 = 0; e0 < x->dk; e0 += SLICE) {
        __syncthreads();
        fetch(x->K, x->dk, 1.0f, 0, CH, x->n, e0, x->dk, SLICE, (float *)(void *)room->k, SLICE);
        fetch(x->h.q, x->h.kstep, scale, 0, CH, x->n, e0, x->dk, SLICE, (float *)(void *)room->q, SLICE);
        __syncthreads();
        for (int32_t e = e0; e < x->dk && e < e0 + SLICE; e += 4) {
            float s[4];
#pragma unroll
            for (int m = 0; m < 4; m++) s[m] = S->there && e + m < x->dk ? S->at[(e + m) * S->ld] : 0.0f;
#pragma unroll
            for (int u = 0; u < OWN; u++) {
                const four k = room->k[warp + WARPS * u][(e - e0) / 4], q = room->q[warp + WARPS * u][(e - e0) / 4];
#pragma unroll
                for (int m = 0; m < 4; m++)
                    if (e + m < x->dk) {
                        ks[u] = fmaf(k.v[m], k_rd(s[m], hop), ks[u]);
                        qs[u] = fmaf(q.v[m], k_rd(s[m], read), qs[u]);
                    }
            }
        }
    }
}

/* The sums over rows of P and N, of the warp's rows. */
static __device__ __forceinline__ void with_weights(const chunk *x, step_room *room, float pn[OWN]) {
    const int32_t warp = (int32_t)threadIdx.x / K_WARP;
    float *P = room->P;
    for (int32_t at = (int32_t)threadIdx.x; at < x->n * CH; at += THREADS) P[at] = x->P[at];
    __syncthreads();
#pragma unroll 4
    for (int32_t r = 0; r < x->n; r++) {
        const float n = room->N[r][k_lane()];
#pragma unroll
        for (int u = 0; u < OWN; u++)
            if (r <= warp + WARPS * u) pn[u] = fmaf(P[(warp + WARPS * u) * CH + r], n, pn[u]);
    }
}

/* The new state: a warp four key dims of a slice. */
static __device__ __forceinline__ void renew(const chunk *x, const state_column *S, int64_t j, step_room *room) {
    const int32_t warp = (int32_t)threadIdx.x / K_WARP;
    float *kl = (float *)(void *)room->k;
    for (int32_t e0 = 0; e0 < x->dk; e0 += SLICE) {
        float acc[4] = {0};
        __syncthreads();
        for (int32_t at = (int32_t)threadIdx.x; at < x->n * SLICE; at += THREADS) {
            const int32_t i = at / SLICE, e = e0 + at % SLICE;
            kl[at] = e < x->dk ? x->h.k[i * x->h.kstep + e] * room->L[i] : 0.0f;
        }
        __syncthreads();
#pragma unroll 4
        for (int32_t i = 0; i < x->n; i++) {
            const four k = room->k[i][warp];
            const float n = room->N[i][k_lane()];
#pragma unroll
            for (int m = 0; m < 4; m++) acc[m] = fmaf(k.v[m], n, acc[m]);
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int64_t e = e0 + 4 * warp + m;
            if (S->there && e < x->dk) x->h.S[e * x->dv + j] = fmaf(room->E[x->n - 1], S->at[e * S->ld], acc[m]);
        }
    }
}

/* blockIdx.x: the head; y: 32 columns, in shared memory when they fit. */
static __global__ void __launch_bounds__(THREADS)
    chunk_step_k(const __grid_constant__ k_args a, int32_t t0, float scale, int kept) {
    K_DYNAMIC(float, state);
    __shared__ step_room room;
    const chunk x = chunk_of(&a, t0);
    const int64_t j = (int64_t)blockIdx.y * K_WARP + k_lane();
    const int32_t warp = (int32_t)threadIdx.x / K_WARP;
    const state_column S = {kept ? state + k_lane() : x.h.S + j, kept ? K_WARP : x.dv, j < x.dv};
    float ks[OWN] = {0}, qs[OWN] = {0}, pn[OWN] = {0};
    for (int32_t e = warp; kept && S.there && e < x.dk; e += WARPS)
        state[e * K_WARP + k_lane()] = x.h.S[(int64_t)e * x.dv + j];
    if ((int32_t)threadIdx.x < x.n) {
        room.E[threadIdx.x] = x.E[threadIdx.x];
        room.L[threadIdx.x] = x.L[threadIdx.x];
    }
    with_state(&x, &S, scale, &room, ks, qs);
#pragma unroll
    for (int u = 0; u < OWN; u++) {
        const int32_t i = warp + WARPS * u;
        const float U = S.there && i < x.n ? x.U[(int64_t)i * x.dv + j] : 0.0f;
        room.N[i][k_lane()] = k_rd(U - ks[u], placed(&x, K_PLACE_VNEW));
    }
    __syncthreads();
    with_weights(&x, &room, pn);
#pragma unroll
    for (int u = 0; u < OWN; u++) {
        const int32_t i = warp + WARPS * u;
        if (S.there && i < x.n) x.h.out[i * x.h.vstep + j] = k_rd(fmaf(room.E[i], qs[u], pn[u]), a.lv.act);
    }
    renew(&x, &S, j, &room);
}

void k_gdn_chunk_cuda(const k_call *c, void *stream) {
    const k_dims *d = c->d;
    const float scale = (float)(1.0 / sqrt((double)d->dk));
    const size_t columns = K_WARP * (size_t)d->dk * sizeof(float);
    const unsigned heads = (unsigned)d->nv;
    for (int32_t t = 0; t < c->T; t += CH) {
        K_LAUNCH(chunk_weights_k, dim3(heads, CH / ROWS), dim3(THREADS), 0, stream, k_args_of(c), t, scale);
        K_LAUNCH(chunk_solve_k, dim3(heads, k_blocks(d->dv + d->dk, WARPS * COLS)), dim3(THREADS), 0, stream,
                 k_args_of(c), t);
        K_LAUNCH(chunk_step_k, dim3(heads, k_blocks(d->dv, K_WARP)), dim3(THREADS), columns <= KEPT ? columns : 0,
                 stream, k_args_of(c), t, scale, columns <= KEPT);
    }
}
