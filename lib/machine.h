/* machine.h: is this processor, in its present state, fit to keep the arithmetic's promises?
 *
 * Compiled for any x86-64, so that the question can be asked before an instruction is met that is not there.
 */
#ifndef Q4X_MACHINE_H
#define Q4X_MACHINE_H

#include "lib/err.h"

/* Checks: the instruction set that the rest was compiled for, rounding to nearest, subnormals kept (MXCSR 0x1f80 but
 * for its sticky flags). Q4X_E_UNSUPPORTED with a sentence. */
int q4x_machine_check(q4x_err *err);

/* Bytes resident now and at the peak, from the system; 0 where it does not say. Not thread-safe with itself. */
unsigned long long q4x_machine_resident(void);
unsigned long long q4x_machine_resident_peak(void);
/* Bytes of memory that this machine has; 0: the system does not say. */
unsigned long long q4x_machine_memory(void);
/* Logical processors this process may use. */
int q4x_machine_cpus(void);
/* Seconds of a monotonic clock. */
double q4x_machine_now(void);

#endif
