/* embed.h: ops `embed` and `ple_gather`: rows of tables.
 *
 * computes  embed: out[t] = rd(row ids[t]); ple_gather: out[t][h] = rd(row ids[t][h]), h < P, of a table in shards:
 *           shard id / R, row id mod R, R the rows of shard 0 (the last shard may differ)
 * inputs    embed: in_i[0] ids [T,1], w[0] [V,D]; ple_gather: in_i[0] ids [T,P] (P = in_cols[0]), w[0] array of nw[0]
 *           shards [R,pw]
 * outputs   embed [T,D]; ple_gather [T,P*pw], head-major
 * class     EXACT
 * order     none
 * rounds    rd of the decoded value
 * fma       none
 * special   values travel as decoded; an id outside the table gives a row of NaN (callers check ids: this keeps a
 *           graft that wrote a wild one from reading past the file)
 * bound     hard 2^-8 |v|, rms 0.737 2^-8 / sqrt(3) |v| under act = bf16, else 0
 * levers    act
 * engines   all
 */
#ifndef K_EMBED_H
#define K_EMBED_H

#include "kernels/k.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Row id of a table in shards of equal rows, as it is stored in w[*ret_shard]; NULL when there is none. */
static inline const void *k_table_row(const k_weight *w, int32_t nw, int64_t id, int64_t *ret_shard) {
    const int64_t R = w[0].rows, s = id >= 0 && R > 0 ? id / R : -1, r = s >= 0 ? id - s * R : 0;
    if (s < 0 || s >= nw || r >= w[s].rows) return NULL;
    *ret_shard = s;
    return (const uint8_t *)w[s].data + (size_t)r * w[s].row_bytes;
}

void embed_cpu(const k_call *c);
void embed_band(const k_call *c, k_band *add); /* reads c->out: what the op stored */
void ple_gather_cpu(const k_call *c);
void ple_gather_band(const k_call *c, k_band *add); /* reads c->out */

#ifdef __cplusplus
}
#endif
#endif
