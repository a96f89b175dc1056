/* session.h: the memory of `q4x bisect`: a directory with an append-only journal, one JSON object a line.
 *
 * Default sessions are .q4x/001, .q4x/002, ..; making the directory is the lock, so two processes never get one number.
 * A named session (--session DIR) may be used again; its journal is locked while a process uses it. .q4x/last names the
 * last one used here.
 */
#ifndef BISECT_SESSION_H
#define BISECT_SESSION_H

#include <jansson.h>

#include "lib/err.h"

typedef struct bis_session bis_session;

/* dir NULL: the next number. */
int bis_session_open(const char *dir, bis_session **ret, q4x_err *err);
void bis_session_close(bis_session *s); /* NULL is fine */
const char *bis_session_dir(const bis_session *s);

/* Append one entry (borrowed) as a line, and name the session in .q4x/last. A numbered session that never got one
 * disappears when closed. */
int bis_session_append(bis_session *s, const json_t *entry, q4x_err *err);

/* 1 when the journal holds an entry with "device_null": true for this model and these kernels, of which "levers" is
 * equal to one of these (not NULL). */
int bis_session_has_null(const bis_session *s, const char *fingerprint, const char *kernels, const json_t *levers_a,
                         const json_t *levers_b);

/* Last complete entry of a session: a directory, a number below .q4x, or NULL for the last one used here. New
 * reference. */
int bis_session_last(const char *name, json_t **ret, q4x_err *err);

#endif
