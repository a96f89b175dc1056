/* h_oom.h: the program's own malloc, which fails from the n-th allocation on. Included by the one file of a test that
 * makes allocations fail. h_left: allocations that still succeed, -1: all. h_once: only one fails, those after it
 * succeed again. h_failed: set when one did. h_live: blocks that were not freed.
 */
#ifndef H_OOM_H
#define H_OOM_H

#include <stdlib.h>

#include "tests/h_sanitizer.h"

static long h_left = -1, h_live;
static int h_once __attribute__((unused)), h_failed __attribute__((unused)); /* not every test asks */

#if H_SANITIZER || !defined(__GLIBC__)
#define H_OWN_MALLOC 0
#else
#define H_OWN_MALLOC 1

/* glibc's, with the countdown and the count. */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);

static int fails(void) {
    if (h_left < 0) return 0;
    if (h_left > 0) return h_left--, 0;
    h_failed = 1;
    if (h_once) h_left = -1; /* else all that follow fail too */
    return 1;
}

void *malloc(size_t n) {
    void *p = fails() ? NULL : __libc_malloc(n);
    h_live += p != NULL;
    return p;
}

void *calloc(size_t n, size_t size) {
    void *p = fails() ? NULL : __libc_calloc(n, size);
    h_live += p != NULL;
    return p;
}

void *realloc(void *old, size_t n) {
    if (fails()) return NULL;
    void *p = __libc_realloc(old, n);
    h_live += !old && p;
    return p;
}

void *aligned_alloc(size_t align, size_t n) {
    void *p = fails() ? NULL : __libc_memalign(align, n);
    h_live += p != NULL;
    return p;
}

void free(void *p) {
    h_live -= p != NULL;
    __libc_free(p);
}
#endif

#endif
