/* h_pins.h: hashes of the transcendentals' bits on all 2^32 inputs (t_arith.c says of what): every compiler and every
 * device must give them. One line a function, in the order of arith.h's table.
 */
#ifndef H_PINS_H
#define H_PINS_H

/* clang-format off */
#define H_PIN_ALL_exp 0x19f59db703992d4d
#define H_PIN_ALL_log 0xaa0fca21955742b4
#define H_PIN_ALL_log1p 0x0ed7515d55cd8425
#define H_PIN_ALL_sin 0xb1cc489515f907ac
#define H_PIN_ALL_cos 0x1b4b6c0010acbb22
#define H_PIN_ALL_tanh 0x2dfb86298ffa355c
#define H_PIN_ALL_sigmoid 0x9b31e2b87b245535
#define H_PIN_ALL_silu 0x0c27cbdb693bda4c
#define H_PIN_ALL_softplus 0xdc5f1c1ebe8ef4b0
#define H_PIN_ALL_rsqrt 0x205e1bdcd3af465a
#define H_PIN_ALL_erf 0x0724cc614f2822d4
#define H_PIN_ALL_gelu 0xb430752c7ef029fd
#define H_PINS_ALL \
    PIN(exp, H_PIN_ALL_exp) \
    PIN(log, H_PIN_ALL_log) \
    PIN(log1p, H_PIN_ALL_log1p) \
    PIN(sin, H_PIN_ALL_sin) \
    PIN(cos, H_PIN_ALL_cos) \
    PIN(tanh, H_PIN_ALL_tanh) \
    PIN(sigmoid, H_PIN_ALL_sigmoid) \
    PIN(silu, H_PIN_ALL_silu) \
    PIN(softplus, H_PIN_ALL_softplus) \
    PIN(rsqrt, H_PIN_ALL_rsqrt) \
    PIN(erf, H_PIN_ALL_erf) \
    PIN(gelu, H_PIN_ALL_gelu)
/* clang-format on */

#endif
