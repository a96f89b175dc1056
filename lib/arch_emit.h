/* arch_emit.h: short words for lib/arch_*.c, in which a plan reads top to bottom like the forward it describes. They
 * expect the plan being emitted under the name e (q4x_emit *). Nobody else includes it.
 */
#ifndef Q4X_ARCH_EMIT_H
#define Q4X_ARCH_EMIT_H

#include "lib/plan.h"

#define NODE(name, op_, cols_, ...) q4x_emit_node(e, (q4x_node){.op = K_OP_##op_, .cols = (cols_), __VA_ARGS__}, name)
#define STATE(name, ...) q4x_emit_state(e, (q4x_state_desc){__VA_ARGS__}, name)
#define IN(...) .nin = (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), .in = {__VA_ARGS__}
#define ST(...) .nst = (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), .st = {__VA_ARGS__}
#define W1(weight) .w = {weight}, .nw = {1}
#define PUBLIC .is_public = 1
#define RESID .per = 1 /* of an add: the sum is the residual stream */

#endif
