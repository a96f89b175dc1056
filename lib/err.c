#include "lib/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void printable(char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e) *s = '?';
}

int q4x_fail_at(q4x_err *err, const char *file, int line, int code, const char *fmt, ...) {
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    printable(err->msg);
    err->code = code;
    err->file = file;
    err->line = line;
    return code;
}

void q4x_err_prefix(q4x_err *err, const char *fmt, ...) {
    if (!err) return;
    char head[sizeof err->msg], old[sizeof err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    printable(head);
    memcpy(old, err->msg, sizeof old);
    size_t n = strlen(head);
    if (n > sizeof err->msg / 2) n = sizeof err->msg / 2;
    snprintf(err->msg, sizeof err->msg, "%.*s: %.*s", (int)n, head, (int)(sizeof err->msg - n - 3), old);
}

void q4x_bug(const char *file, int line, const char *what) {
    fprintf(stderr, "q4x: bug at %s:%d: %s\n", file, line, what);
    abort();
}
