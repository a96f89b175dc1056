/* indexer.cu: the ops of indexer.h: a warp a pooled key, a warp a score, a block a selection. */
#include "kernels/indexer.h"

#include "kernels/indexer_extra.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/topk.cuh"

/* Rows of the tile join the raw cache before this. A lane owns elements lane, lane + 32, ..: accumulator l of the sum
 * of squares is lane l's. */
static __global__ void idx_pool_k(const __grid_constant__ k_args a) {
    const int64_t t = k_warp(), id = a.d.id;
    const int32_t ratio = a.d.ratio, half = a.d.rot / 2, act = a.lv.act;
    if (t >= a.c.T) return;
    float *y = a.c.out + t * id, acc = 0.0f;
    const int32_t pos = a.c.pos0 + (int32_t)t;
    if (!k_completes(pos, ratio)) {
        for (int64_t i = k_lane(); i < id; i += K_WARP) y[i] = 0.0f;
        return;
    }
    const int64_t b = pos / ratio;
    const float *raw = a.st.f + b * ratio * id;
    for (int64_t i = k_lane(); i < id; i += K_WARP) {
        float s = raw[i];
        for (int32_t r = 1; r < ratio; r++) s = s + raw[(int64_t)r * id + i];
        y[i] = k_rd(s / (float)ratio, act);
        acc = fmaf(y[i], y[i], acc);
    }
    const float r = k_rms_r(k_warp_fold(acc), id, k_eps(&a.d, &a.lv));
    for (int64_t i = k_lane(); i < id; i += K_WARP) y[i] = k_rmsnorm1(y[i], r, a.c.par[0][i], act);
    __syncwarp();
    for (int32_t i = k_lane(); i < half; i += K_WARP) {
        float cc, ss;
        k_rope_angle(a.c.par[1][i], (int32_t)b * ratio, &a.lv, &cc, &ss);
        k_rope_pair(&y[i], &y[half + i], cc, ss, act);
    }
}
static __global__ void append_raw_k(const __grid_constant__ k_args a) {
    const int64_t i = k_tid(), id = a.d.id;
    if (i < a.c.T * id) a.st.f[a.c.pos0 * id + i] = k_kv_round(a.c.in[0][i], k_kv_type(&a.lv));
}
void idx_pool_cuda(const k_call *c, void *stream) {
    k_each(append_raw_k, c, (int64_t)c->T * c->d->id, stream);
    c->st[0]->rows = c->pos0 + c->T;
    k_warps(idx_pool_k, c, c->T, stream);
}

/* The keys of the blocks that this tile completes. */
static __global__ void store_pooled_k(const __grid_constant__ k_args a) {
    const int64_t i = k_tid(), id = a.d.id, t = i / id;
    const int32_t pos = a.c.pos0 + (int32_t)t;
    if (i < a.c.T * id && k_completes(pos, a.d.ratio)) a.st.f[pos / a.d.ratio * id + i % id] = a.c.in[1][i];
}

static __global__ void idx_score_k(const __grid_constant__ k_args a) {
    const int64_t k = k_warp(), t = k / a.c.cols, b = k % a.c.cols, id = a.d.id;
    if (t >= a.c.T) return;
    float y = -1.0f;
    if (b < k_nblocks(a.c.pos0 + (int32_t)t, a.d.ratio)) {
        float s = 0.0f;
        for (int64_t h = 0; h < a.d.ih; h++)
            s = s + k_relu(k_warp_dot(a.c.in[0] + (t * a.d.ih + h) * id, a.st.f + b * id, id));
        y = s / sqrtf((float)a.d.id);
    }
    if (k_lane() == 0) a.c.out[k] = y;
}
void idx_score_cuda(const k_call *c, void *stream) {
    k_each(store_pooled_k, c, (int64_t)c->T * c->d->id, stream);
    c->st[0]->rows = (c->pos0 + c->T) / c->d->ratio;
    k_warps(idx_score_k, c, c->T * c->cols, stream);
}

static __global__ void __launch_bounds__(1024) idx_sel_k(const __grid_constant__ k_args a) {
    __shared__ k_topk_room room;
    const int64_t t = blockIdx.x, width = a.c.in_cols[0];
    const int32_t nb = k_nblocks(a.c.pos0 + (int32_t)t, a.d.ratio), k = nb < a.d.nsel ? nb : a.d.nsel;
    int32_t *ids = a.c.out_i + t * a.c.cols, *work = (int32_t *)(void *)a.c.scratch + t * 2 * width;
    for (int64_t i = k + (int64_t)threadIdx.x; i < a.c.cols; i += blockDim.x) ids[i] = -1;
    k_topk_block(a.c.in[0] + t * width, nb, k, a.lv.tie, ids, work, &room);
}
void idx_sel_cuda(const k_call *c, void *stream) {
    const unsigned threads = c->in_cols[0] < 4096 ? K_THREADS : 1024; /* more of them pay when the scores are many */
    K_LAUNCH(idx_sel_k, dim3((unsigned)c->T), dim3(threads), 0, stream, k_args_of(c));
}

static __global__ void no_extra_k(const __grid_constant__ k_args a) {
    const int64_t i = k_tid();
    if (i < a.c.T * a.c.cols) a.c.out_i[i] = -1;
}

/* A block a query, from row t0 on: tokens enter side by side, the heap is one thread's. */
static __global__ void idx_extra_k(const __grid_constant__ k_args a, int64_t t0) {
    const int64_t t = t0 + blockIdx.x, most = a.c.cols, wide = k_extra_floats(a.c.Tc, a.d.ratio);
    const int32_t n = a.c.pos0 + (int32_t)t + 1;
    const k_extra_room r = k_extra_room_in(a.c.scratch + blockIdx.x * wide, n);
    int32_t *ids = a.c.out_i + t * most;
    int64_t found = 0;
    if (n > k_extra_list(&a.d)) {
        const float *score = a.c.in[0] + t * a.c.in_cols[0];
        for (int32_t j = (int32_t)threadIdx.x; j < n; j += (int32_t)blockDim.x)
            k_extra_enter(&r, score, n, a.d.ratio, j);
        __syncthreads();
        if (threadIdx.x == 0)
            found = k_extra_pick(&r, n, &a.d, a.c.in_i[1] + t * a.c.in_cols[1], a.c.in_cols[1], ids, most);
    }
    for (; threadIdx.x == 0 && found < most; found++) ids[found] = -1;
}
void idx_extra_cuda(const k_call *c, void *stream) {
    if (c->lv->extra != K_EXTRA_STL) {
        k_each(no_extra_k, c, c->T * c->cols, stream);
        return;
    }
    const int64_t room = c->scratch_n / k_extra_floats(c->Tc, c->d->ratio);
    for (int64_t t = 0; t < c->T; t += room)
        K_LAUNCH(idx_extra_k, dim3((unsigned)(c->T - t < room ? c->T - t : room)), dim3(K_THREADS), 0, stream,
                 k_args_of(c), t);
}
