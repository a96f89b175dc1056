/* dump_pack.c: byte planes and Huffman coding for full tensors.
 *
 * Plane p holds byte p of every element in order; the planes follow one another in one zlib stream without matches
 * (Z_HUFFMAN_ONLY): signs and exponents shrink, mantissas pass.
 */
#include <stdlib.h>

#include <zlib.h>

#include "lib/dump_int.h"

enum { STEP = 65536 };

static int out_of_memory(size_t n, q4x_err *err) {
    return q4x_fail(err, Q4X_E_NOMEM, "no memory to pack or unpack a tensor of %zu bytes", n);
}

/* Room for at least one more byte; never more than `most` in all. */
static int more_room(uint8_t **buf, size_t *cap, size_t most) {
    size_t want = *cap ? 2 * *cap : STEP;
    if (want > most) want = most;
    uint8_t *p = realloc(*buf, want);
    if (!p) return -1;
    *buf = p;
    *cap = want;
    return 0;
}

int q4x_planes_pack(const void *data, size_t n, size_t elem, uint8_t **ret, size_t *ret_n, q4x_err *err) {
    const uint8_t *src = data;
    uint8_t step[STEP], *buf = NULL;
    size_t count = n / elem, cap = 0, used = 0;
    int rc = 0, end = 0;
    z_stream z = {0};
    *ret = NULL;
    if (n < 2) return 0;
    if (deflateInit2(&z, 1, Z_DEFLATED, 15, 9, Z_HUFFMAN_ONLY) != Z_OK) return out_of_memory(n, err);
    for (size_t p = 0; p < elem; p++)
        for (size_t at = 0; at < count; at += STEP) {
            size_t m = count - at < STEP ? count - at : STEP;
            for (size_t i = 0; i < m; i++) step[i] = src[(at + i) * elem + p];
            int last = p + 1 == elem && at + m == count;
            z.next_in = step;
            z.avail_in = (uInt)m;
            do {
                if (used == cap) {
                    if (cap == n - 1) goto done; /* as large as the tensor: stored it is */
                    if (more_room(&buf, &cap, n - 1)) TRY(out_of_memory(n, err));
                }
                size_t room = cap - used < (1u << 30) ? cap - used : 1u << 30;
                z.next_out = buf + used;
                z.avail_out = (uInt)room;
                end = deflate(&z, last ? Z_FINISH : Z_NO_FLUSH) == Z_STREAM_END;
                used += room - z.avail_out;
            } while (last ? !end : z.avail_in || !z.avail_out);
        }
    *ret = buf;
    *ret_n = used;
    buf = NULL;
done:
    deflateEnd(&z);
    free(buf);
    return rc;
}

/* Bytes at .. at+m of the concatenated planes to their places. */
static void scatter(uint8_t *dst, size_t count, size_t elem, size_t at, const uint8_t *step, size_t m) {
    size_t p = at / count, i = at % count;
    for (size_t k = 0; k < m; k++) {
        dst[i * elem + p] = step[k];
        if (++i == count) i = 0, p++;
    }
}

int q4x_planes_unpack(const uint8_t *src, size_t n, size_t elem, void *dst, size_t raw, q4x_err *err) {
    uint8_t step[STEP];
    size_t fed = 0, got = 0;
    int end = 0, rc = 0;
    z_stream z = {0};
    if (inflateInit(&z) != Z_OK) return out_of_memory(raw, err);
    while (!end) {
        if (!z.avail_in) {
            size_t m = n - fed < (1u << 30) ? n - fed : 1u << 30;
            z.next_in = (Bytef *)(uintptr_t)(src + fed);
            z.avail_in = (uInt)m;
            fed += m;
        }
        z.next_out = step;
        z.avail_out = STEP;
        int zrc = inflate(&z, Z_NO_FLUSH);
        size_t m = STEP - z.avail_out;
        end = zrc == Z_STREAM_END;
        if (zrc == Z_MEM_ERROR) TRY(out_of_memory(raw, err));
        if (!(zrc == Z_OK || end) || m > raw - got)
            TRY(q4x_fail(err, Q4X_E_FORMAT, "packed tensor: expected %zu bytes, found a stream that %s after %zu", raw,
                         m > raw - got ? "goes on" : "is cut or damaged", got));
        if (m) scatter(dst, raw / elem, elem, got, step, m);
        got += m;
    }
    if (got != raw || fed - z.avail_in != n)
        TRY(q4x_fail(err, Q4X_E_FORMAT, "packed tensor: expected %zu bytes from %zu, found %zu from %zu", raw, n, got,
                     fed - z.avail_in));
done:
    inflateEnd(&z);
    return rc;
}
