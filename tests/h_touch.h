/* h_touch.h: bind as a forward would, for fuzz targets: everything that bound weights point at is read, so that a
 * sanitizer sees it. What does not hold aborts.
 */
#ifndef H_TOUCH_H
#define H_TOUCH_H

#include "lib/arch_qwen35.h"
#include "lib/arch_qwen4.h"

/* Either a named error, or weights that are all there and make a plan. */
void h_take_qwen4(const q4x_model *m);
void h_take_qwen35(const q4x_model *m);
/* An error as the house writes them: its code, and a message worth reading. */
void h_named_error(int rc, const q4x_err *e);

#endif
