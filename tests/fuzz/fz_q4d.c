/* fz_q4d.c: the dump reader and what follows it, on hostile bytes.
 *
 * Every input runs twice: as it is, and with the checksums and the content hash made right, since no fuzzer finds
 * those. What the reader accepts must be writable again with the same content, and exportable or refused.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/dump.h"
#include "lib/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PREAMBLE = 24, HEAD = 32 };

static uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void put64(uint8_t *p, uint64_t v) {
    memcpy(p, &v, sizeof v);
}

/* Right checksums over whatever chunks the bytes have. Returns where the payload of the last chunk begins. */
static size_t resum(uint8_t *p, size_t n) {
    size_t last = 0;
    if (n < PREAMBLE) return 0;
    put64(p + 16, q4x_xxh64(p, 16));
    for (size_t at = PREAMBLE; n - at >= HEAD;) {
        uint64_t len = get64(p + at + 8);
        if (len > n - at - HEAD) len = n - at - HEAD;
        put64(p + at + 16, q4x_xxh64(p + at + HEAD, (size_t)len));
        put64(p + at + 24, q4x_xxh64(p + at, 24));
        last = at + HEAD;
        at = last + (size_t)len;
    }
    return last;
}

#define CHECK(x) ((x) ? (void)0 : abort())

static void write_again(q4x_dump *d, int whole) {
    q4x_dumpw *w = NULL;
    q4x_hash content;
    q4x_err err = {0};
    int rc = q4x_dumpw_open("/dev/null", d->header, d->nodes, d->nnodes, &w, &err);
    CHECK(rc == 0);
    for (int32_t f = 0; f < d->nforwards; f++) {
        for (int32_t k = 0; k < d->forwards[f].ntaps; k++) {
            q4x_tap t = d->forwards[f].taps[k];
            if (!t.full) t.has_full = 0;
            CHECK(q4x_dumpw_tap(w, &t, &err) == 0);
        }
        CHECK(q4x_dumpw_forward(w, &d->forwards[f], &err) == 0);
    }
    CHECK(q4x_dumpw_close(w, &content, &err) == 0);
    if (whole) CHECK(q4x_hash_eq(&content, &d->content));
}

/* Everything a user of a dump does with it. */
static void use(q4x_dump *d, int whole) {
    q4x_err err = {0};
    q4x_sketch_dist dist;
    for (int32_t i = 0; i < d->nnodes; i++) CHECK(q4x_dump_node_find(d, d->nodes[i].name) == i);
    for (int32_t f = 0; f < d->nforwards; f++)
        for (int32_t k = 0; k < d->forwards[f].ntaps; k++) {
            q4x_tap *t = &d->forwards[f].taps[k];
            CHECK(q4x_dump_tap(d, d->forwards[f].index, t->node) == t);
            if (t->has_full) q4x_dump_full(d, t, &err);
            if (t->full && t->rows * t->cols < 100000) {
                q4x_hash h = q4x_bits_of(Q4X_BITS_RAW, t->full, 1);
                (void)h;
            }
            const q4x_tap *o = f ? q4x_dump_tap(d, d->forwards[f - 1].index, t->node) : t;
            if (o && o->has_sketch && t->has_sketch) q4x_sketch_compare(&o->sketch, &t->sketch, &dist, NULL, &err);
        }
    write_again(d, whole);
    q4x_dump_export(d, "/dev/null", NULL, &err);
}

static int parse(const uint8_t *p, size_t n, q4x_err *err) {
    q4x_dump *d = NULL;
    int rc = q4x_dump_read_mem(p, n, "fuzz", &d, err);
    CHECK(rc == 0 || (rc < 0 && rc == err->code));
    CHECK(d || rc);
    CHECK(!d || rc == 0 || rc == Q4X_E_TRUNCATED);
    if (d) use(d, rc == 0);
    q4x_dump_free(d);
    return rc;
}

/* The content hash that the reader found, from its sentence, into the end marker. */
static int right_content(const q4x_err *err, uint8_t *end, size_t room) {
    const char *found = strstr(err->msg, "content hash: expected ");
    found = found ? strstr(found, ", found ") : NULL;
    if (!found || room < 48 + 16) return -1;
    return q4x_unhex(found + 8, 32, end + 48, 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    q4x_err err = {0};
    parse(data, size, &err);
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) return 0;
    if (size) memcpy(copy, data, size);
    size_t last = resum(copy, size);
    err = (q4x_err){0};
    int rc = parse(copy, size, &err);
    if (rc == Q4X_E_CHECKSUM && last && !right_content(&err, copy + last, size - last)) {
        resum(copy, size);
        err = (q4x_err){0};
        parse(copy, size, &err);
    }
    free(copy);
    return 0;
}

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
/* Mutations that keep lengths and checksums right: most inputs stay whole files. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

/* Start and payload length of chunk number `which` (modulo their number); 0 when the bytes have no chunk. */
static size_t chunk_at(const uint8_t *p, size_t n, unsigned which, size_t *ret_len) {
    size_t at[256], len[256], count = 0;
    for (size_t a = PREAMBLE; a < n && n - a >= HEAD && count < 256;) {
        uint64_t l = get64(p + a + 8);
        if (l > n - a - HEAD) break;
        at[count] = a;
        len[count++] = (size_t)l;
        a += HEAD + (size_t)l;
    }
    if (!count) return 0;
    *ret_len = len[which % count];
    return at[which % count];
}

static size_t mutate_payload(uint8_t *p, size_t n, size_t max, size_t at, size_t len) {
    size_t room = len + (max - n) < len + 256 ? len + (max - n) : len + 256, tail = n - at - HEAD - len;
    uint8_t *tmp = malloc(room + 1);
    if (!tmp) return n;
    memcpy(tmp, p + at + HEAD, len);
    size_t now = room ? LLVMFuzzerMutate(tmp, len, room) : 0;
    memmove(p + at + HEAD + now, p + at + HEAD + len, tail);
    memcpy(p + at + HEAD, tmp, now);
    put64(p + at + 8, now);
    free(tmp);
    return at + HEAD + now + tail;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    size_t len = 0, at = size <= max ? chunk_at(data, size, seed >> 8, &len) : 0;
    if (!at || seed % 16 == 0) return LLVMFuzzerMutate(data, size, max);
    size_t whole = HEAD + len;
    if (seed % 16 == 1 && size + whole <= max) { /* twice */
        memmove(data + at + whole, data + at, size - at);
        size += whole;
    } else if (seed % 16 == 2) { /* gone */
        memmove(data + at, data + at + whole, size - at - whole);
        size -= whole;
    } else {
        size = mutate_payload(data, size, max, at, len);
    }
    resum(data, size);
    return size;
}
#endif
