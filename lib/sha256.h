/* sha256.h: SHA-256 (FIPS 180-4), for identities that others publish. Our own are XXH3 (lib/hash.h). */
#ifndef Q4X_SHA256_H
#define Q4X_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t block[64];
} q4x_sha256;

void q4x_sha256_begin(q4x_sha256 *s);
void q4x_sha256_add(q4x_sha256 *s, const void *data, size_t n);
/* 64 lower-case digits and a NUL. */
void q4x_sha256_end(q4x_sha256 *s, char hex[65]);

#endif
