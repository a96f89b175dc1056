/* dump_pack.c: byte planes and Huffman coding for full tensors.
 *
 * Plane p holds byte p of every element in order; the planes follow one another in one zlib stream without matches
 * (Z_HUFFMAN_ONLY): signs and exponents shrink, mantissas pass. A plane is cut into pieces, each of which is coded
 * alone and ends at a byte of the stream, so that threads share them and the stream is the same for any number of
 * threads; a piece whose bytes are nearly evenly spread is stored as it is.
 */
#include <stdlib.h>

#include <zlib.h>

#include "lib/dump_int.h"

enum { STEP = 65536 }; /* of a stream that is read */

static int out_of_memory(size_t n, q4x_err *err) {
    return q4x_fail(err, Q4X_E_NOMEM, "no memory to pack or unpack a tensor of %zu bytes", n);
}

/* ---- writing ---- */

enum {
    PIECE = 60 << 10,
    ROOM = PIECE + (PIECE >> 6) + 64,
    LEVEL = 1,
    SMALL = 16 << 10, /* bytes of a tensor */
    SHARE = 128 << 10 /* bytes worth waking a thread for */
};

/* One piece: m bytes of the planes, one behind the other, from byte `at` on, coded into ROOM bytes. */
typedef struct {
    size_t at, m, used;
    uLong sum; /* adler32 of its bytes */
    uint8_t *out;
} piece;

static void gather(const piece *x, const uint8_t *src, size_t count, size_t elem, uint8_t *plane) {
    for (size_t k = 0; k < x->m;) {
        const size_t p = (x->at + k) / count, i = (x->at + k) % count, left = x->m - k,
                     n = count - i < left ? count - i : left;
        const uint8_t *from = src + i * elem + p;
        for (size_t j = 0; j < n; j++) plane[k + j] = from[j * elem];
        k += n;
    }
}

/* With 256 sum c^2 <= 17/16 n^2 the entropy of a byte is at least 8 - log2(17/16) bits: 1.1 % at most could be gained,
 * at a tenth of the speed. */
static int is_even(const uint8_t *b, size_t n) {
    uint32_t count[4][256] = {{0}};
    uint64_t squares = 0;
    for (size_t i = 0; i < n; i++) count[i & 3][b[i]]++;
    for (int k = 0; k < 256; k++) {
        const uint64_t c = count[0][k] + count[1][k] + count[2][k] + count[3][k];
        squares += c * c;
    }
    return 256 * 16 * squares <= 17 * (uint64_t)n * n;
}

/* A stored block; last 1: the stream ends with it. */
static void store(piece *x, const uint8_t *plane, int last) {
    const uint16_t n = (uint16_t)x->m, not_n = (uint16_t)~n;
    x->out[0] = (uint8_t)last;
    memcpy(x->out + 1, &n, 2);
    memcpy(x->out + 3, &not_n, 2);
    memcpy(x->out + 5, plane, x->m);
    x->used = 5 + x->m;
}

/* used stays 0 when zlib refuses, or there is no room, which there always is. */
static void code(piece *x, z_stream *z, const uint8_t *src, size_t count, size_t elem, int last) {
    uint8_t plane[PIECE];
    gather(x, src, count, elem, plane);
    x->sum = adler32(1, plane, (uInt)x->m);
    if (is_even(plane, x->m)) {
        store(x, plane, last);
        return;
    }
    if (deflateReset(z) != Z_OK) return;
    z->next_in = plane;
    z->avail_in = (uInt)x->m;
    z->next_out = x->out;
    z->avail_out = ROOM;
    const int rc = deflate(z, last ? Z_FINISH : Z_SYNC_FLUSH);
    if (last ? rc == Z_STREAM_END : rc == Z_OK && !z->avail_in && z->avail_out) x->used = ROOM - z->avail_out;
}

/* zlib's measure of memory for m bytes at a time as one block. More of it than that is cleared for every piece, which
 * small ones would feel. */
static int memory_for(size_t m) {
    int level = 1;
    while (level < 9 && ((size_t)1 << (level + 6)) <= m) level++;
    return level;
}

/* Of n pieces those that are this thread's: all, where there is one thread. */
static void code_mine(piece *x, int64_t n, const uint8_t *src, size_t count, size_t elem) {
    z_stream z = {0};
    const int ready = deflateInit2(&z, LEVEL, Z_DEFLATED, -15, memory_for(x->m), Z_HUFFMAN_ONLY) == Z_OK;
#pragma omp for schedule(static, 1) nowait
    for (int64_t i = 0; i < n; i++)
        if (ready) code(&x[i], &z, src, count, elem, i == n - 1);
    if (ready) deflateEnd(&z);
}

/* 1: one of the pieces could not be coded. */
static int code_all(piece *x, int64_t n, const uint8_t *src, size_t count, size_t elem, int threads) {
    int bad = 0;
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        code_mine(x, n, src, count, elem);
    } else { /* a team of one costs, too */
        code_mine(x, n, src, count, elem);
    }
    for (int64_t i = 0; i < n; i++) bad |= !x[i].used;
    return bad;
}

/* Bytes of a plane that are a piece. A small tensor is one, of all planes: codes of its own for each cost more than
 * they gain. */
static size_t piece_of(size_t count, size_t elem) {
    const size_t m = count * elem <= SMALL ? count * elem : count;
    return m < PIECE ? m : PIECE;
}

/* Returns the pieces. x NULL: counts them. */
static size_t cut(piece *x, uint8_t *out, size_t count, size_t elem) {
    const size_t m = piece_of(count, elem), span = m > count ? m : count; /* a piece ends with its plane */
    size_t n = 0;
    for (size_t p = 0; p < count * elem; p += span)
        for (size_t at = 0; at < span; at += m, n++)
            if (x) x[n] = (piece){.at = p + at, .m = span - at < m ? span - at : m, .out = out + n * ROOM};
    return n;
}

/* The pieces one behind the other, between the head of a zlib stream and its sum, in place; returns the bytes. */
static size_t join(uint8_t *out, const piece *x, int64_t n) {
    static const uint8_t head[2] = {0x78, 0x01};
    uLong sum = 1;
    size_t used = sizeof head;
    for (int64_t i = 0; i < n; i++) {
        memmove(out + used, x[i].out, x[i].used);
        used += x[i].used;
        sum = adler32_combine(sum, x[i].sum, (z_off_t)x[i].m);
    }
    memcpy(out, head, sizeof head);
    for (int k = 24; k >= 0; k -= 8) out[used++] = (uint8_t)(sum >> k);
    return used;
}

int q4x_planes_pack(const void *data, size_t n, size_t elem, int threads, uint8_t **ret, size_t *ret_n, q4x_err *err) {
    const size_t count = n / elem, gap = 16; /* before the first piece */
    size_t pieces = 0;
    int rc = 0;
    piece *x = NULL;
    uint8_t *buf = NULL;
    *ret = NULL;
    if (n < 2) return 0;
    pieces = cut(NULL, NULL, count, elem);
    x = malloc(pieces * sizeof *x);
    buf = malloc(gap + pieces * ROOM + gap);
    if (!x || !buf) TRY(out_of_memory(n, err));
    cut(x, buf + gap, count, elem);
    if ((size_t)threads > n / SHARE) threads = (int)(n / SHARE);
    if (code_all(x, (int64_t)pieces, data, count, elem, threads)) TRY(out_of_memory(n, err));
    const size_t used = join(buf, x, (int64_t)pieces);
    if (used >= n) goto done; /* stored it is */
    *ret = buf;
    *ret_n = used;
    buf = NULL;
done:
    free(x);
    free(buf);
    return rc;
}

/* ---- reading ---- */

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
