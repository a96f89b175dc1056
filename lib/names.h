/* names.h: where names read from files live, and how they are found again.
 *
 * A pool owns NUL-terminated copies and frees them at once. A table maps names to numbers in constant time; its hash
 * is seeded at random, so that a file cannot be made to collide. The seed changes no result, only where slots lie.
 */
#ifndef Q4X_NAMES_H
#define Q4X_NAMES_H

#include <stddef.h>
#include <stdint.h>

/* 1 when name is one of the blank-separated words. */
int q4x_word_in(const char *words, const char *name);

/* The next word of a list with commas between them: *p moves behind it (start with the list; it becomes NULL after the
 * last word). Copied into buf, cut to size. Returns 0 when there is none left. "" is a list of one empty word, "a," has
 * an empty one at its end: who asks refuses them. */
int q4x_next_word(const char **p, char *buf, size_t size);

/* ---- pool; zero-initialise ---- */
typedef struct q4x_pool_chunk q4x_pool_chunk;
typedef struct {
    q4x_pool_chunk *chunk;
} q4x_pool;

char *q4x_pool_str(q4x_pool *p, const void *bytes, size_t n); /* copy and NUL; NULL: no memory */
void q4x_pool_free(q4x_pool *p);

/* ---- table; zero-initialise ---- */
typedef struct {
    const char *name; /* borrowed; NULL: free slot */
    size_t len;
    uint64_t hash;
    int64_t value;
} q4x_names_slot;

typedef struct {
    q4x_names_slot *slot;
    size_t cap, n; /* cap: 0 or a power of two */
    uint64_t seed;
} q4x_names;

/* Add name -> value (value >= 0). 0; 1 when the name is there already; Q4X_E_NOMEM. */
int q4x_names_add(q4x_names *t, const char *name, size_t len, int64_t value);
/* The value, or -1. */
int64_t q4x_names_find(const q4x_names *t, const char *name, size_t len);
void q4x_names_free(q4x_names *t);

#endif
