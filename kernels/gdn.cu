/* gdn.cu: the delta rule of gdn.h. Chains over key dims, rows and tokens are serial by contract; columns of a head do
 * not meet, so a thread carries one column through them. */
#include "kernels/gdn.h"

#include "kernels/arith.h"
#include "kernels/cuda.cuh"
#include "kernels/round.h"

enum { CH = K_GDN_CHUNK };

/* One value head of the call, as in gdn_head.h. */
typedef struct {
    const float *q, *k, *v, *g, *beta;
    float *out, *S;
    int64_t kstep, vstep, hstep;
} head;

static __device__ __forceinline__ head head_of(const k_args *a, int32_t h) {
    const int64_t kh = (int64_t)k_gdn_key_head(&a->d, h) * a->d.dk, vh = (int64_t)h * a->d.dv;
    head x;
    x.q = a->c.in[0] + kh;
    x.k = a->c.in[1] + kh;
    x.v = a->c.in[2] + vh;
    x.g = a->c.in[3] + h;
    x.beta = a->c.in[4] + h;
    x.out = a->c.out + vh;
    x.S = a->st.f + (int64_t)h * a->d.dk * a->d.dv;
    x.kstep = (int64_t)a->d.nk * a->d.dk;
    x.vstep = (int64_t)a->d.nv * a->d.dv;
    x.hstep = a->d.nv;
    return x;
}

/* ---- token by token: a block is a warp with 32 columns of a head, kept in shared memory when they fit ---- */

static __global__ void gdn_seq_k(const __grid_constant__ k_args a, int kept) {
    K_DYNAMIC(float, room);
    const int32_t dk = a.d.dk, dv = a.d.dv, lane = k_lane();
    const int64_t j = (int64_t)blockIdx.x * K_WARP + lane;
    const head x = head_of(&a, (int32_t)blockIdx.y);
    float *k = room, *qs = room + dk, *S = kept ? room + 2 * dk + lane : x.S + j;
    const int64_t ld = kept ? K_WARP : dv;
    const float root = sqrtf((float)dk);
    for (int32_t i = 0; kept && j < dv && i < dk; i++) S[i * ld] = x.S[(int64_t)i * dv + j];
    for (int32_t t = 0; t < a.c.T; t++) {
        __syncwarp();
        for (int32_t i = lane; i < dk; i += K_WARP) {
            k[i] = x.k[t * x.kstep + i];
            qs[i] = x.q[t * x.kstep + i] / root;
        }
        __syncwarp();
        if (j >= dv) continue;
        const float w = k_exp(x.g[t * x.hstep]), beta = x.beta[t * x.hstep];
        float m = 0.0f, y = 0.0f;
        for (int32_t i = 0; i < dk; i++) {
            float s = S[i * ld] * w;
            S[i * ld] = s;
            m = fmaf(s, k[i], m);
        }
        const float dl = (x.v[t * x.vstep + j] - m) * beta;
        for (int32_t i = 0; i < dk; i++) {
            float s = fmaf(k[i], dl, S[i * ld]);
            S[i * ld] = s;
            y = fmaf(s, qs[i], y);
        }
        x.out[t * x.vstep + j] = k_rd(y, a.lv.act);
    }
    for (int32_t i = 0; kept && j < dv && i < dk; i++) x.S[(int64_t)i * dv + j] = S[i * ld];
}

/* ---- by chunks: a block a head; matrices by their names in gdn.h, in the call's scratch ---- */

typedef struct {
    float *G, *E, *L, *beta; /* [64] */
    float *A, *P;            /* [64, 64] */
    float *qs, *K;           /* [64, dk] */
    float *U;                /* [64, dv]; N after fresh() */
    float *M;                /* [64, 64]: the rounded inverse (gdn.inv) */
    int32_t n, dk, dv, places;
} chunk;

static __device__ __forceinline__ chunk chunk_of(const k_args *a, int32_t h) {
    chunk x;
    x.G = a->c.scratch + h * k_gdn_chunk_floats(&a->d);
    x.E = x.G + CH;
    x.L = x.E + CH;
    x.beta = x.L + CH;
    x.A = x.beta + CH;
    x.P = x.A + CH * CH;
    x.qs = x.P + CH * CH;
    x.K = x.qs + CH * (int64_t)a->d.dk;
    x.U = x.K + CH * (int64_t)a->d.dk;
    x.M = x.U + CH * (int64_t)a->d.dv;
    x.dk = a->d.dk;
    x.dv = a->d.dv;
    x.places = k_gdn_places(&a->lv);
    return x;
}

/* The dtype of what a lever places. */
static __device__ __forceinline__ int32_t placed(const chunk *x, int32_t place) {
    return x->places & place ? K_ACT_BF16 : K_ACT_F32;
}

/* G, E, L, beta, qs, then A and P. */
static __device__ void weights(const chunk *x, const head *h, float scale) {
    const int32_t n = x->n, dk = x->dk, step = (int32_t)blockDim.x;
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int32_t i = 0; i < n; i++) {
            sum = sum + h->g[i * h->hstep];
            x->G[i] = sum;
        }
    }
    for (int32_t i = (int32_t)threadIdx.x; i < n * dk; i += step) x->qs[i] = h->q[i / dk * h->kstep + i % dk] * scale;
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += step) {
        x->beta[i] = h->beta[i * h->hstep];
        x->E[i] = k_exp(x->G[i]);
        x->L[i] = k_exp(x->G[n - 1] - x->G[i]);
    }
    __syncthreads();
    for (int32_t at = (int32_t)threadIdx.x; at < n * n; at += step) {
        const int32_t i = at / n, j = at % n;
        if (j > i) continue;
        const float *ki = h->k + i * h->kstep, *kj = h->k + j * h->kstep, *qi = x->qs + i * dk;
        float kk = 0.0f, qk = 0.0f;
        for (int32_t e = 0; e < dk; e++) {
            kk = fmaf(ki[e], kj[e], kk);
            qk = fmaf(qi[e], kj[e], qk);
        }
        const float w = k_exp(x->G[i] - x->G[j]);
        x->A[i * CH + j] = (x->beta[i] * kk) * w;
        x->P[i * CH + j] = qk * w;
    }
    __syncthreads();
}

/* What U and K are made of: element j of row i. */
static __device__ __forceinline__ float right_side(const chunk *x, const head *h, int is_u, int32_t i, int32_t j) {
    return is_u ? x->beta[i] * h->v[i * h->vstep + j] : (x->beta[i] * x->E[i]) * h->k[i * h->kstep + j];
}

/* Column c of M: substituted in f32, rounded when it is whole. */
static __device__ void inverse(const chunk *x) {
    for (int32_t c = (int32_t)threadIdx.x; c < x->n; c += (int32_t)blockDim.x) {
        for (int32_t i = 0; i < x->n; i++) {
            float acc = 0.0f;
            for (int32_t r = 0; r < i; r++) acc = fmaf(x->A[i * CH + r], x->M[r * CH + c], acc);
            x->M[i * CH + c] = (i == c ? 1.0f : 0.0f) - acc;
        }
        for (int32_t i = 0; i < x->n; i++) x->M[i * CH + c] = k_round_bf16(x->M[i * CH + c]);
    }
    __syncthreads();
}

/* Column c of U, or of K behind them: by the inverse, or by forward substitution down all rows; then its store. */
static __device__ void solve(const chunk *x, const head *h) {
    if (x->places & K_PLACE_INV) inverse(x);
    for (int32_t c = (int32_t)threadIdx.x; c < x->dv + x->dk; c += (int32_t)blockDim.x) {
        const int is_u = c < x->dv, j = is_u ? c : c - x->dv, ld = is_u ? x->dv : x->dk;
        float *col = (is_u ? x->U : x->K) + j;
        for (int32_t i = 0; i < x->n; i++) {
            float acc = 0.0f;
            if (x->places & K_PLACE_INV) {
                for (int32_t r = 0; r <= i; r++) acc = fmaf(x->M[i * CH + r], right_side(x, h, is_u, r, j), acc);
                col[i * ld] = acc;
            } else {
                for (int32_t r = 0; r < i; r++) acc = fmaf(x->A[i * CH + r], col[r * ld], acc);
                col[i * ld] = right_side(x, h, is_u, i, j) - acc;
            }
        }
        const int32_t act = placed(x, is_u ? K_PLACE_U : K_PLACE_W);
        for (int32_t i = 0; i < x->n; i++) col[i * ld] = k_rd(col[i * ld], act);
    }
    __syncthreads();
}

/* U becomes N. */
static __device__ void fresh(const chunk *x, const head *h) {
    const int32_t hop = placed(x, K_PLACE_HOP), vnew = placed(x, K_PLACE_VNEW);
    for (int32_t at = (int32_t)threadIdx.x; at < x->n * x->dv; at += (int32_t)blockDim.x) {
        const int32_t i = at / x->dv, j = at % x->dv;
        float acc = 0.0f;
        for (int32_t e = 0; e < x->dk; e++)
            acc = fmaf(x->K[i * x->dk + e], k_rd(h->S[(int64_t)e * x->dv + j], hop), acc);
        x->U[at] = k_rd(x->U[at] - acc, vnew);
    }
    __syncthreads();
}

static __device__ void finish(const chunk *x, const head *h, int32_t act) {
    const int32_t n = x->n, dk = x->dk, dv = x->dv, read = placed(x, K_PLACE_H);
    for (int32_t at = (int32_t)threadIdx.x; at < n * dv; at += (int32_t)blockDim.x) {
        const int32_t i = at / dv, j = at % dv;
        float pn = 0.0f, qs = 0.0f;
        for (int32_t r = 0; r <= i; r++) pn = fmaf(x->P[i * CH + r], x->U[r * dv + j], pn);
        for (int32_t e = 0; e < dk; e++) qs = fmaf(x->qs[i * dk + e], k_rd(h->S[(int64_t)e * dv + j], read), qs);
        h->out[i * h->vstep + j] = k_rd(fmaf(x->E[i], qs, pn), act);
    }
    __syncthreads();
    for (int64_t at = threadIdx.x; at < (int64_t)dk * dv; at += blockDim.x) {
        const int64_t e = at / dv, j = at % dv;
        float acc = 0.0f;
        for (int32_t i = 0; i < n; i++) acc = fmaf(h->k[i * h->kstep + e] * x->L[i], x->U[i * dv + j], acc);
        h->S[at] = fmaf(x->E[n - 1], h->S[at], acc);
    }
    __syncthreads();
}

static __global__ void gdn_chunk_k(const __grid_constant__ k_args a, float scale) {
    head h = head_of(&a, (int32_t)blockIdx.x);
    chunk x = chunk_of(&a, (int32_t)blockIdx.x);
    for (int32_t t = 0; t < a.c.T; t += CH) {
        x.n = a.c.T - t < CH ? a.c.T - t : CH;
        weights(&x, &h, scale);
        solve(&x, &h);
        fresh(&x, &h);
        finish(&x, &h, a.lv.act);
        h.q += CH * h.kstep;
        h.k += CH * h.kstep;
        h.v += CH * h.vstep;
        h.g += CH * h.hstep;
        h.beta += CH * h.hstep;
        h.out += CH * h.vstep;
    }
}

void gdn_core_cuda(const k_call *c, void *stream) {
    const k_dims *d = c->d;
    if (c->T > 0 && k_gdn_chunked(c)) {
        const float scale = (float)(1.0 / sqrt((double)d->dk));
        K_LAUNCH(gdn_chunk_k, dim3((unsigned)d->nv), dim3(K_THREADS), 0, stream, k_args_of(c), scale);
    } else if (c->T > 0) {
        const size_t vectors = 2 * (size_t)d->dk * sizeof(float), columns = K_WARP * (size_t)d->dk * sizeof(float);
        const int kept = vectors + columns <= 48 * 1024; /* what every block may have */
        K_LAUNCH(gdn_seq_k, dim3(k_blocks(d->dv, K_WARP), (unsigned)d->nv), dim3(K_WARP),
                 vectors + (kept ? columns : 0), stream, k_args_of(c), kept);
    }
    c->st[0]->rows = (int64_t)d->nv * d->dk;
}
