/* err.h: how a failure travels. Functions that can fail return 0 or a negative Q4X_E_*, and take a q4x_err last.
 *
 * The message is one complete sentence made where the facts are known: file, field, expected, found, remedy.
 * A q4x_err is untouched on success and may be NULL. The library never prints and never exits.
 */
#ifndef Q4X_ERR_H
#define Q4X_ERR_H

#include <stdarg.h>

enum {
    Q4X_OK = 0,
    Q4X_E_NOMEM = -1,
    Q4X_E_ARG = -2,
    Q4X_E_IO = -10,
    Q4X_E_FULL = -11,
    Q4X_E_FORMAT = -20,
    Q4X_E_TRUNCATED = -21,
    Q4X_E_CHECKSUM = -22,
    Q4X_E_UNSUPPORTED = -30,
    Q4X_E_MISMATCH = -40,
    Q4X_E_DEVICE = -50,
    Q4X_E_SEARCH = -60,
};

typedef struct {
    int code;
    char msg[480];
    const char *file; /* where in our source it arose */
    int line;
} q4x_err;

/* The remedy where a little memory of the host is missing, and nothing that was asked for would make it less. */
#define Q4X_MORE_MEMORY "end other programs, or raise the limit (ulimit -v)"

/* Fill err (if not NULL) and return code. Control bytes and bytes that are not printable ASCII in the formatted text
 * become '?', so that hostile names cannot drive a terminal. */
int q4x_fail_at(q4x_err *err, const char *file, int line, int code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#ifdef __clang_analyzer__ /* it must see that a failure's code is not 0 */
#define q4x_fail(err, code, ...) (q4x_fail_at(err, __FILE__, __LINE__, code, __VA_ARGS__), (code))
#else
#define q4x_fail(err, code, ...) q4x_fail_at(err, __FILE__, __LINE__, code, __VA_ARGS__)
#endif

/* Put "prefix: " before a message that is already there. */
void q4x_err_prefix(q4x_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The house's one control-flow macro: needs `int rc` and a label `done` in scope. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        rc = (call);                                                                                                   \
        if (rc) goto done;                                                                                             \
    } while (0)

/* An impossible state is our bug: print where, abort. Never for input. */
_Noreturn void q4x_bug(const char *file, int line, const char *what);
#define Q4X_BUG_IF(cond)                                                                                               \
    do {                                                                                                               \
        if (cond) q4x_bug(__FILE__, __LINE__, #cond);                                                                  \
    } while (0)

#endif
