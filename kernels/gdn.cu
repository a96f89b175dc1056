/* gdn.cu: the delta rule of gdn.h token by token (gdn_chunk.cu: by chunks). Chains over key dims and tokens are serial
 * by contract; columns of a head do not meet, so a thread carries one column through them. */
#include "kernels/arith.h"
#include "kernels/dev_shape.h"
#include "kernels/gdn_head.cuh"

/* A block is a warp with 32 columns of a head, kept in shared memory when they fit. */
static __global__ void gdn_seq_k(const __grid_constant__ k_args a, int kept) {
    K_DYNAMIC(float, room);
    const int32_t dk = a.d.dk, dv = a.d.dv, lane = k_lane();
    const int64_t j = (int64_t)blockIdx.x * K_WARP + lane;
    const k_dev_head x = k_dev_head_of(&a, (int32_t)blockIdx.y);
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

void gdn_core_cuda(const k_call *c, void *stream) {
    const k_dims *d = c->d;
    if (k_gdn_chunked(c)) {
        k_gdn_chunk_cuda(c, stream);
    } else {
        const size_t vectors = 2 * (size_t)d->dk * sizeof(float), columns = K_WARP * (size_t)d->dk * sizeof(float);
        const int kept = vectors + columns <= K_DEV_SHARED;
        K_LAUNCH(gdn_seq_k, dim3(k_blocks(d->dv, K_WARP), (unsigned)d->nv), dim3(K_WARP),
                 vectors + (kept ? columns : 0), stream, k_args_of(c), kept);
    }
    c->st[0]->rows = (int64_t)d->nv * d->dk;
}
