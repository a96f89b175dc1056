/* dev_need.c: what dev.h says without a device, alike in every build. */
#include "kernels/attn.h"
#include "kernels/dev.h"
#include "kernels/gdn.h"
#include "kernels/indexer_extra.h"
#include "kernels/matmul.h"
#include "kernels/moe.h"

/* 32 MiB: rows of a matrix decoded to f32 while they stay in the second-level cache. */
enum { DECODED = 8 << 20 };

int64_t k_dev_scratch(const k_dims *d, int64_t tile, int64_t n_ctx) {
    const int64_t nb = d->ratio ? n_ctx / d->ratio : 0;
    const int64_t wide[] = {d->D,  d->W,  (int64_t)d->nv * d->dv, (int64_t)d->H * d->hd,
                            d->Fd, d->Fs, (int64_t)d->P * d->pw};
    int64_t K = 0; /* the longest input of a product */
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (wide[i] > K) K = wide[i];
    const int64_t needs[] = {DECODED,
                             k_gemm_scratch(tile, K),
                             k_dot_act_floats(tile, K),
                             k_dev_lists(tile * d->K, d->E) + k_dot_act_floats(tile, d->D),
                             k_dev_lists(tile * d->K, d->E) + k_dot_act_floats(tile * d->K, d->F),
                             3 * (int64_t)d->E * tile, /* router: probabilities, keys, places */
                             2 * (nb + 1) * tile,      /* selection */
                             d->ratio ? k_see_floats(n_ctx, d->ratio, d->nsel) * tile : 0, /* visible tokens */
                             d->ratio ? k_extra_floats(n_ctx, d->ratio) : 0,
                             d->nv * k_gdn_chunk_floats(d)};
    int64_t most = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i] > most) most = needs[i];
    return (most + 15) / 16 * 16;
}
