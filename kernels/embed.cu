/* embed.cu: embed.h's rows of a table, one thread an element. The table of ple_gather stays in its file: that op runs
 * on the host. */
#include "kernels/embed.h"

#include "kernels/quant.cuh"
#include "kernels/round.h"

template <int32_t TYPE> static __global__ void embed_k(const __grid_constant__ k_args a, const k_weight w) {
    int64_t i = k_tid(), n = a.c.cols;
    if (i >= a.c.T * n) return;
    int64_t id = a.c.in_i[0][i / n];
    float v = NAN;
    if (id >= 0 && id < w.rows)
        v = k_rd(k_stored<TYPE>::at((const uint8_t *)w.data + (size_t)id * w.row_bytes, i % n), a.lv.act);
    a.c.out[i] = v;
}

struct embed_job {
    const k_call *c;
    void *stream;
    template <int32_t TYPE> void run() const {
        K_LAUNCH(embed_k<TYPE>, dim3(k_blocks(c->T * c->cols, K_THREADS)), dim3(K_THREADS), 0, stream, k_args_of(c),
                 *c->w[0]);
    }
};

void embed_cuda(const k_call *c, void *stream) {
    k_by_type(c->w[0]->type, embed_job{c, stream});
}
