/* json_in.h: hostile JSON, read within bounds. jansson does the reading; this adds what it leaves open.
 *
 * A JSON text can ask for forty times its size in memory ("[],[],[]..."), so nesting, containers and values are counted
 * before anything is allocated. Duplicate keys and NUL characters are errors.
 */
#ifndef Q4X_JSON_IN_H
#define Q4X_JSON_IN_H

#include <jansson.h>
#include <stddef.h>

#include "lib/err.h"

typedef struct {
    size_t bytes;      /* of the text */
    size_t depth;      /* of nested objects and arrays */
    size_t containers; /* objects and arrays */
    size_t commas;     /* bounds the number of values */
} q4x_json_limits;

/* Parse one value that fills text[0..n) (blanks around it are fine). `where` begins the error sentence: a file, or a
 * file and a field. *ret is a new reference. */
int q4x_json_read(const char *text, size_t n, const q4x_json_limits *lim, const char *where, json_t **ret,
                  q4x_err *err);

/* Bytes of the string, object or array that begins at text[0], by its quotes and brackets alone; 0: it does not end,
 * or something else begins there. */
size_t q4x_json_span(const char *text, size_t n);

#endif
