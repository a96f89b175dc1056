/* utf8.h: one character of UTF-8 at a time, strictly (Unicode, table 3-7): no surrogates, no overlong forms, nothing
 * above U+10FFFF. */
#ifndef Q4X_UTF8_H
#define Q4X_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The n > 0 bytes at p begin with a character: its length, 1 to 4. They are the beginning of one and end too soon: 0.
 * They are neither: -k, where the first k bytes (1 to 3) are what one replacement character stands for, the longest
 * beginning of a character that is there, or one byte. */
static inline int q4x_utf8(const uint8_t *p, size_t n) {
    uint8_t b = p[0], lo = 0x80, hi = 0xbf; /* the range of the second byte */
    if (b < 0x80) return 1;
    if (b < 0xc2 || b > 0xf4) return -1;
    int len = b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
    if (b == 0xe0) lo = 0xa0;
    if (b == 0xed) hi = 0x9f;
    if (b == 0xf0) lo = 0x90;
    if (b == 0xf4) hi = 0x8f;
    for (int i = 1; i < len; i++, lo = 0x80, hi = 0xbf) {
        if ((size_t)i == n) return 0;
        if (p[i] < lo || p[i] > hi) return -i;
    }
    return len;
}

/* Code point of the well-formed character of len bytes at p. */
static inline uint32_t q4x_utf8_code(const uint8_t *p, int len) {
    uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (int i = 1; i < len; i++) c = c << 6 | (p[i] & 0x3fu);
    return c;
}

/* Where the n bytes stop being UTF-8; n when they never do. */
static inline size_t q4x_utf8_valid(const uint8_t *p, size_t n) {
    size_t at = 0;
    while (at < n) {
        int len = q4x_utf8(p + at, n - at);
        if (len <= 0) break;
        at += (size_t)len;
    }
    return at;
}

#endif
