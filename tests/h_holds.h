/* h_holds.h: an invariant that a fuzz target demands; says which and aborts. */
#ifndef H_HOLDS_H
#define H_HOLDS_H

#include <stdio.h>
#include <stdlib.h>

#define HOLDS(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #cond);                                  \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
