/* synth.h: model files of a released geometry with synthetic weights: everything that depends on shapes, types and
 * sizes can be tried without the released data. They say of themselves that they are synthetic (general.name,
 * general.description, q4x.synthetic), and follow from their seed alone.
 *
 * Scales (lib/synth_classes.def). Every block reads a normalised vector x: qwen4exp mixes streams of rms about 0.82
 * (their norm's factors are uniform in 0.5..1.1) with gates about 1/2 into rms 0.42, and qwen35's factors in 0.25..0.6
 * give the same, so that one table serves both. A matrix of rows K with weights of rms w turns inputs of rms b into
 * outputs of rms w b sqrt(K); SPREAD solves that for w.
 *   gate of the mix       down gives 6, over 4 streams 1.5, silu of that 0.95; up gives 1, so its sigmoids spread over
 *                         0.27..0.73; inject gives 2.8, over 4 streams 0.7: factors 0.66..1.34 on what is added
 *   delta rule            q, k, v, z, a, b all 1; taps 0.5 on 4 columns keep 1; -exp(-4..1) softplus(1 -3..0) forgets
 *                         between 0.1 % and most of the state a token; norm and sigmoid leave 0.6
 *   attention             heads of norm factors 0.8..1.6 give scores of rms about 1.5; the mean of values and the
 *                         sigmoid leave about 0.35
 *   experts               router logits of rms 5: mean |logit| 4 (released: 7), those around the last one chosen so
 *                         close that some differ by 1e-3 and less; silu(1) x 1 leaves 0.6
 *   n-gram embedding      rows of 0.05; values of 20 at the gates' 0.5 are added to all streams
 *   residual stream       ids start it at rms 50, block l adds 13 / sqrt(l + 1) twice: sums of squares 50^2 + 1.1 (2
 *                         13^2) (1 + 1/2 + ... + 1/48) = 64^2, of some 10^5 elements the largest is 4.2 times that: in
 *                         the hundreds in every layer, and nothing overflows
 *   logits                of rms 2.5, so the best two of 248,320 are about 0.5 apart
 * Measured (tests/t_synth_range.c long), 48 layers, 5 ids: first mix sum|x| 4297 (released: 3600 to 6500), streams'
 * largest 177 to 260, mean |router logit| 3.9, smallest gap at the cut 4e-4.
 *
 * Not as released: the embedding's own scale (0.003) and streams that grow from it a thousandfold. Random blocks make a
 * relative difference of their input about twice as large in their output; trained ones do not. In streams that grow,
 * each block overwrites what came before, and two engines whose matrix products differ by 1 % were 70 % apart after
 * eight layers; in streams that keep their start they are 1.1 % apart after eight, so that a fault can be told from
 * rounding.
 */
#ifndef Q4X_SYNTH_H
#define Q4X_SYNTH_H

#include "lib/geometry.h"
#include "lib/synth_fill.h"

typedef struct {
    const q4x_geometry *g; /* checked */
    q4x_file_type type;
    uint64_t seed;
    int shards;  /* files; 0: as published */
    int threads; /* 0: all; never moves a bit */
} q4x_synth;

/* Declare all keys and tensors of the file at path. */
int q4x_synth_declare(const q4x_synth *s, const char *path, q4x_gguf_out **ret, q4x_err *err);

typedef struct {
    uint64_t bytes; /* of tensors */
    double made;    /* processor seconds spent making them, all threads together */
    double seconds; /* from begin to finish */
} q4x_synth_cost;
typedef void (*q4x_synth_tell)(void *ctx, uint64_t done, uint64_t total);

/* Write what declare declared. Takes over o, which is finished or aborted afterwards. tell: NULL, or called every few
 * MiB. */
int q4x_synth_write(const q4x_synth *s, q4x_gguf_out *o, q4x_synth_tell tell, void *ctx, q4x_synth_cost *ret,
                    q4x_err *err);

/* How one tensor is filled: name, type and ne[0] are read. */
int q4x_synth_fill_of(const q4x_tensor *t, q4x_fill *ret, q4x_err *err);

#endif
