/* moe.cu: router and sums of moe.h. The sum of the softmax is lanes32 by expert index: a warp's. A block that selects
 * has it made by each of its warps. */
#include "kernels/moe.h"

#include "kernels/topk.cuh"

/* 1 when every logit of the row is a number. */
static __device__ __forceinline__ int row_is_finite(const float *logit, int64_t E) {
    int finite = 1;
    for (int64_t i = k_lane(); i < E; i += K_WARP) finite &= k_moe_finite1(logit[i]);
    return __all_sync(0xffffffffu, finite);
}

static __device__ __forceinline__ float softmax_terms(const float *logit, int64_t E, float *most) {
    float max = -INFINITY, acc = 0.0f;
    for (int64_t i = k_lane(); i < E; i += K_WARP) max = logit[i] > max ? logit[i] : max;
    *most = k_warp_max(max);
    for (int64_t i = k_lane(); i < E; i += K_WARP) acc = acc + k_exp(logit[i] - *most);
    return k_warp_fold(acc);
}

enum { KEPT = 4096 /* experts whose logits fit into shared memory beside what selects */ };

/* A block a token; in scratch 2 E words a token, then E of each token whose logits are not kept. */
static __global__ void moe_ids_k(const __grid_constant__ k_args a, int kept) {
    __shared__ k_topk_room room;
    K_DYNAMIC(float, shared);
    const int64_t t = blockIdx.x, E = a.c.in_cols[0], K = a.c.cols;
    const float *logit = a.c.in[0] + t * E;
    int32_t *id = a.c.out_i + t * K, *work = (int32_t *)(void *)a.c.scratch + t * 2 * E;
    float *p = kept ? shared : a.c.scratch + a.c.T * 2 * E + t * E, most;
    for (int64_t i = threadIdx.x; i < E; i += blockDim.x) p[i] = logit[i];
    __syncthreads();
    const int finite = row_is_finite(p, E);
    const float sum = softmax_terms(p, E, &most);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < E; i += blockDim.x)
        p[i] = k_rd(k_exp(p[i] - most) / sum, k_moe_softmax_rd(&a.lv));
    for (int64_t k = threadIdx.x; !finite && k < K; k += blockDim.x) id[k] = -1;
    __syncthreads();
    if (finite) k_topk_block(p, (int32_t)E, (int32_t)K, a.lv.tie, id, work, &room);
}
void moe_ids_cuda(const k_call *c, void *stream) {
    const int64_t E = c->in_cols[0];
    const unsigned threads = E < K_THREADS ? k_blocks(E, K_WARP) * K_WARP : (unsigned)K_THREADS;
    K_LAUNCH(moe_ids_k, dim3((unsigned)c->T), dim3(threads), E > KEPT ? 0 : (size_t)E * sizeof(float), stream,
             k_args_of(c), E <= KEPT);
}

static __global__ void moe_weights_k(const __grid_constant__ k_args a, int renorm) {
    const int64_t t = k_warp(), E = a.c.in_cols[0], K = a.c.cols;
    if (t >= a.c.T) return;
    const float *logit = a.c.in[0] + t * E;
    const int32_t *id = a.c.in_i[1] + t * K;
    const int32_t kept = k_moe_softmax_rd(&a.lv);
    float *w = a.c.out + t * K, most;
    int finite = row_is_finite(logit, E);
    float all = softmax_terms(logit, E, &most), sum = 0.0f;
    for (int64_t from = 0; from < K; from += K_WARP) {
        const int64_t k = from + k_lane();
        const int32_t e = k < K ? id[k] : -1;
        const float p = finite && e >= 0 && e < E ? k_rd(k_exp(logit[e] - most) / all, kept) : NAN;
        if (k < K) w[k] = p;
        for (int l = 0; l < K_WARP && from + l < K; l++) sum += __shfl_sync(0xffffffffu, p, l); /* a chain over slots */
    }
    sum = k_rd(sum, kept);
    for (int64_t k = k_lane(); k < K; k += K_WARP) {
        const float p = renorm ? k_rd(w[k] / sum, kept) : w[k];
        w[k] = k_rd(p, a.lv.act);
    }
}
void moe_weights_cuda(const k_call *c, void *stream) {
    K_LAUNCH(moe_weights_k, dim3(k_blocks(c->T, K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream, k_args_of(c),
             k_moe_renorm(c));
}

/* Place of slot k among the K: its rank, or that of its id, equal ids by rank. order[place] = k. */
static __device__ __forceinline__ void slot_order(const int32_t *ids, int64_t K, int32_t combine, int32_t *order) {
    for (int64_t k = threadIdx.x; k < K; k += blockDim.x) {
        int64_t at = k;
        if (combine == K_COMBINE_EXPERTS) {
            at = 0;
            for (int64_t i = 0; i < K; i++) at += ids[i] < ids[k] || (ids[i] == ids[k] && i < k);
        }
        order[at] = (int32_t)k;
    }
}

/* A block row of threads a token (blockIdx.y), one thread a column. */
static __global__ void moe_routed_k(const __grid_constant__ k_args a) {
    K_DYNAMIC(int32_t, order);
    const int64_t t = blockIdx.y, K = a.c.in_cols[1], D = a.c.cols, i = k_tid();
    const int32_t each = k_moe_combine_rd(&a.lv);
    slot_order(a.c.in_i[2] + t * K, K, a.lv.combine, order);
    __syncthreads();
    if (i >= D) return;
    float y = 0.0f;
    for (int64_t k = 0; k < K; k++)
        y = k_moe_routed1(y, a.c.in[0][(t * K + order[k]) * D + i], a.c.in[1][t * K + order[k]], a.lv.act, each);
    a.c.out[t * D + i] = k_rd(y, a.lv.act);
}
void moe_routed_cuda(const k_call *c, void *stream) {
    K_LAUNCH(moe_routed_k, dim3(k_blocks(c->cols, K_THREADS), (unsigned)c->T), dim3(K_THREADS),
             (size_t)c->in_cols[1] * sizeof(int32_t), stream, k_args_of(c));
}

static __global__ void moe_out_k(const __grid_constant__ k_args a) {
    int64_t i = k_tid();
    if (i >= a.c.T * a.c.cols) return;
    float g = k_moe_sgate1(a.c.in[2][i / a.c.cols], &a.lv);
    a.c.out[i] = k_moe_out1(a.c.in[0][i], a.c.in[1][i], g, a.lv.act);
}
void moe_out_cuda(const k_call *c, void *stream) {
    k_each(moe_out_k, c, c->T * c->cols, stream);
}
