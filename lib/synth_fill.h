/* synth_fill.h: blocks of every stored type with random codes and chosen scales, made directly in the stored form.
 *
 * The bytes of a tensor are those of a counter-based generator: the eight at offset 8 i are mix64(key + GAMMA (i + 1))
 * (splitmix64), so any part can be made alone, in any order, by any thread. Then the fields that must not be random are
 * set from what lies there: a scale is looked up by its own low byte among 256 binary16 numbers (five significant bits,
 * so that a minimum of -(q_max / 2) scales is exact; a type whose codes are not symmetric gets both signs, or its mean
 * would not be 0). Every code of every type is valid: grids are indexed by as many bits as they have rows.
 */
#ifndef Q4X_SYNTH_FILL_H
#define Q4X_SYNTH_FILL_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int32_t type;
    float lo, step;      /* F32: lo + step (u32 / 2^32) */
    int negative_exp;    /* F32: minus exp of that */
    uint16_t scale[256]; /* binary16 scales by byte */
    uint16_t min[256];   /* of the types that store one */
    uint8_t code[256];   /* MXFP4, NVFP4 */
    uint16_t half[4096]; /* F16, BF16: the values themselves */
} q4x_fill;

/* Values of mean 0 and the given rms (> 0). Returns 0; -1: this type is none that holds weights. */
int q4x_fill_spread(int32_t type, double rms, q4x_fill *ret);
/* F32 values from lo to hi, uniform; or minus exp of them. */
void q4x_fill_range(double lo, double hi, int negative_exp, q4x_fill *ret);

/* The key of a tensor. */
uint64_t q4x_fill_key(const char *name, uint64_t seed);

/* Blocks first .. first + n of the tensor with this key into dst. first is a multiple of 8. dst: n blocks, of the
 * type's size, aligned to 8; up to 7 bytes behind them are written too. */
void q4x_fill_blocks(const q4x_fill *f, uint64_t key, int64_t first, int64_t n, void *dst);

#endif
