#include "lib/log.h"

#include <stdarg.h>
#include <unistd.h>

#include "lib/machine.h"

static const double PERIOD = 1.0 / 6;

void q4x_log_init(q4x_log *l, FILE *to, int verbose, int progress) {
    l->to = to;
    l->terminal = to && progress && isatty(fileno(to)) == 1;
    l->verbose = verbose;
    l->started = q4x_machine_now();
    l->drawn = l->started; /* nothing is drawn for what is done within a period */
    l->width = 0;
}

void q4x_log_done(q4x_log *l) {
    if (!l->width) return;
    fprintf(l->to, "\r%*s\r", l->width, "");
    fflush(l->to);
    l->width = 0;
}

void q4x_log_say(q4x_log *l, int level, const char *fmt, ...) {
    if (!l->to || level > l->verbose) return;
    q4x_log_done(l);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(l->to, fmt, ap);
    va_end(ap);
    fputc('\n', l->to);
}

int q4x_log_line(char *buf, size_t size, const char *what, uint64_t done, uint64_t total, double seconds) {
    if (!total || !done || done > total) return snprintf(buf, size, "%.40s  %llu", what, (unsigned long long)done);
    double share = (double)done / (double)total, left = seconds * (1 - share) / share;
    int bar = (int)(share * 20);
    int n = snprintf(buf, size, "%.40s  [%.*s%.*s]  %llu/%llu", what, bar, "####################", 20 - bar,
                     "....................", (unsigned long long)done, (unsigned long long)total);
    if (n < 0 || (size_t)n >= size) return n;
    if (left < 90) return n + snprintf(buf + n, size - (size_t)n, "  %.0f s left", left);
    if (left < 5400) return n + snprintf(buf + n, size - (size_t)n, "  %.0f min left", left / 60);
    return n + snprintf(buf + n, size - (size_t)n, "  %.1f h left", left / 3600);
}

void q4x_log_progress(q4x_log *l, const char *what, uint64_t done, uint64_t total) {
    if (!l->terminal) return;
    double now = q4x_machine_now();
    if (!(now - l->drawn >= PERIOD)) return;
    char line[160];
    int n = q4x_log_line(line, sizeof line, what, done, total, now - l->started);
    if (n >= (int)sizeof line) n = (int)sizeof line - 1;
    fprintf(l->to, "\r%s%*s", line, l->width > n ? l->width - n : 0, "");
    fflush(l->to);
    l->width = n;
    l->drawn = now;
}
