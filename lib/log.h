/* log.h: the talk. Text goes to a sink that the caller gives; the library itself is silent without one.
 *
 * A progress line is drawn only when the sink is a terminal, at most six times a second, and is wiped before any other
 * text, so logs and pipes never see it.
 */
#ifndef Q4X_LOG_H
#define Q4X_LOG_H

#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *to;     /* NULL: silent */
    int terminal; /* draw progress */
    int verbose;
    double started, drawn;
    int width; /* columns of the line on the screen now */
} q4x_log;

/* to: stderr, say. progress 0: never draw. */
void q4x_log_init(q4x_log *l, FILE *to, int verbose, int progress);
/* One line of talk; with level above the log's verbosity nothing happens. */
void q4x_log_say(q4x_log *l, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* done of total units of `what`; total 0: unknown. Estimates the time left. Cheap when there is nothing to draw. */
void q4x_log_progress(q4x_log *l, const char *what, uint64_t done, uint64_t total);
/* The line as it would be drawn after `seconds`, without control bytes; returns its length. For tests. */
int q4x_log_line(char *buf, size_t size, const char *what, uint64_t done, uint64_t total, double seconds);
/* Wipe the progress line. */
void q4x_log_done(q4x_log *l);

#endif
