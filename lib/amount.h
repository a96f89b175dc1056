/* amount.h: bytes in words, the same in every message and table, so that two of them can be compared. */
#ifndef Q4X_AMOUNT_H
#define Q4X_AMOUNT_H

#include <stddef.h>
#include <stdint.h>

/* Three digits and a unit of 1000: "512 B", "4.10 kB", "67.0 MB". */
typedef struct {
    char s[16];
} q4x_amount_text;
q4x_amount_text q4x_amount(uint64_t bytes);

#endif
