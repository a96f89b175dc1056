/* t_dump_hostile.c: dumps that are cut, damaged or made to hurt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/h_dump.h"
#include "tests/h_rand.h"

static uint8_t *make(const h_dump_opts *o, size_t *n, q4x_dump **keep) {
    q4x_err err = {0};
    q4x_dump *d = h_dump_make(o);
    if (h_dump_write(d, h_temp("a.q4d"), NULL, &err)) fail_msg("%s", err.msg);
    uint8_t *p = h_file_read(h_temp("a.q4d"), n);
    if (keep)
        *keep = d;
    else
        q4x_dump_free(d);
    h_temp_remove();
    return p;
}

/* Small enough to be cut and bent at every byte. */
static h_dump_opts tiny(void) {
    h_dump_opts o = h_dump_small;
    o.full = 1;
    o.rows = 1;
    o.forwards = 2;
    o.wide = 513;
    return o;
}

static q4x_dump *const UNTOUCHED = (q4x_dump *)(uintptr_t)8;

/* The bytes end where the allocation ends, so that the address sanitizer sees a read past them. */
static int parse(const void *bytes, size_t n, q4x_dump **ret, q4x_err *err) {
    uint8_t *copy = malloc(n ? n : 1);
    if (n) memcpy(copy, bytes, n);
    *ret = UNTOUCHED;
    *err = (q4x_err){0};
    int rc = q4x_dump_read_mem(copy, n, "x.q4d", ret, err);
    assert_int_equal(rc, err->code);
    if (rc) assert_true(!strncmp(err->msg, "x.q4d: ", 7));
    if (rc == 0 || (rc == Q4X_E_TRUNCATED && *ret != UNTOUCHED)) {
        for (int32_t f = 0; f < (*ret)->nforwards; f++)
            for (int32_t k = 0; k < (*ret)->forwards[f].ntaps; k++)
                if ((*ret)->forwards[f].taps[k].has_full) q4x_dump_full(*ret, &(*ret)->forwards[f].taps[k], NULL);
    }
    free(copy);
    return rc;
}

/* Cut at every offset: named truncated, whole forwards kept, equal to what was written. */
static void test_cut(void **state) {
    (void)state;
    h_dump_opts o = tiny();
    q4x_dump *d, *r;
    q4x_err err;
    size_t n;
    uint8_t *p = make(&o, &n, &d);
    h_chunks c = h_chunks_split(p, n);
    size_t nodes_end = 0, forward_end[2] = {0}, at = 24;
    for (int i = 0, f = 0; i < c.n; i++) {
        at += 32 + c.c[i].n;
        if (!memcmp(&c.c[i].type, "NODE", 4)) nodes_end = at;
        if (!memcmp(&c.c[i].type, "FWRD", 4)) forward_end[f++] = at;
    }
    for (size_t len = 0; len < n; len++) {
        assert_int_equal(parse(p, len, &r, &err), Q4X_E_TRUNCATED);
        int whole = (len >= forward_end[0]) + (len >= forward_end[1]);
        assert_int_equal(r != UNTOUCHED, len >= nodes_end);
        char says[64];
        snprintf(says, sizeof says, "cut at byte %zu", len);
        assert_non_null(strstr(err.msg, says));
        snprintf(says, sizeof says, "%d whole forwards", whole);
        assert_non_null(strstr(err.msg, says));
        if (r == UNTOUCHED) continue;
        assert_int_equal(r->nforwards, whole);
        d->nforwards = whole;
        assert_true(h_dump_equal(d, r));
        d->nforwards = 2;
        q4x_dump_free(r);
    }
    assert_int_equal(parse(p, n, &r, &err), 0); /* the twin: uncut it is whole */
    assert_true(h_dump_equal(d, r));
    q4x_dump_free(r);
    h_chunks_free(&c);
    q4x_dump_free(d);
    free(p);
}

/* One bit changed anywhere: an error, never "truncated" (that would send the reader looking for a longer file). */
static void test_flip(void **state) {
    (void)state;
    h_dump_opts o = tiny();
    h_rand rnd = {7};
    q4x_dump *r;
    q4x_err err;
    size_t n;
    uint8_t *p = make(&o, &n, NULL);
    int checksum = 0;
    for (size_t i = 0; i < n; i++)
        for (int b = 0; b < 8; b++) {
            if (i >= 300 && b != (int)(h_below(&rnd, 8))) continue;
            p[i] ^= (uint8_t)(1 << b);
            int rc = parse(p, n, &r, &err);
            assert_true(i < 8 ? rc == Q4X_E_FORMAT : rc == Q4X_E_CHECKSUM);
            assert_ptr_equal(r, UNTOUCHED);
            checksum += rc == Q4X_E_CHECKSUM;
            p[i] ^= (uint8_t)(1 << b);
        }
    assert_true(checksum > 1000);
    assert_int_equal(parse(p, n, &r, &err), 0);
    q4x_dump_free(r);
    free(p);
}

/* Random damage with the checksums made right again: any answer but a crash; what is accepted can be written again. */
static void test_resummed(void **state) {
    (void)state;
    h_dump_opts o = tiny();
    h_rand rnd = {8};
    size_t n;
    uint8_t *p = make(&o, &n, NULL), *q = malloc(n);
    int accepted = 0, refused = 0;
    for (int i = 0; i < 2000; i++) {
        q4x_dump *r;
        q4x_err err;
        memcpy(q, p, n);
        for (uint32_t k = 1 + h_below(&rnd, 3); k; k--)
            q[h_below(&rnd, (uint32_t)n)] ^= (uint8_t)(1u << h_below(&rnd, 8));
        h_resum(q, n);
        int rc = parse(q, n, &r, &err);
        refused += rc != 0;
        int whole = !rc;
        for (int32_t f = 0; whole && f < r->nforwards; f++)
            for (int32_t t = 0; t < r->forwards[f].ntaps; t++)
                whole &= !r->forwards[f].taps[t].has_full || r->forwards[f].taps[t].full;
        if (whole) {
            q4x_hash content;
            assert_int_equal(h_dump_write(r, h_temp("again.q4d"), &content, &err), 0);
            assert_true(q4x_hash_eq(&content, &r->content));
            accepted++;
        }
        if (r != UNTOUCHED) q4x_dump_free(r);
    }
    h_temp_remove();
    assert_true(accepted > 20 && refused > 500);
    free(q);
    free(p);
}

/* ---- one defect at a time, with right checksums ---- */

static void put32(h_chunks *c, const char *type, int nth, size_t at, int32_t v) {
    h_chunk *k = &c->c[h_chunks_find(c, type, nth)];
    assert_true(at + 4 <= k->n);
    memcpy(k->data + at, &v, 4);
}

static void put64(h_chunks *c, const char *type, int nth, size_t at, int64_t v) {
    h_chunk *k = &c->c[h_chunks_find(c, type, nth)];
    assert_true(at + 8 <= k->n);
    memcpy(k->data + at, &v, 8);
}

static void replace(h_chunks *c, const char *type, const char *text) {
    int i = h_chunks_find(c, type, 0);
    h_chunks_remove(c, i);
    h_chunks_insert(c, i, type, 0, text, strlen(text));
}

/* Where record `nth` of the first TAPS chunk begins: the made-up dump's records 0 (emb) and 1 (wide). */
enum { FIRST = 8, PARTS = 12 + 16 + 16 - 0 };

typedef struct {
    int code;
    const char *says;
} expected;

/* The made-up dump has no tail: one is put in, and declared. */
static expected tail_damage(h_chunks *c, int what) {
    static const struct {
        const char *text;
        uint32_t flags;
        int back; /* chunks behind it */
        int minor;
        expected e;
    } list[] = {
        {"{\"a\":1}", 1, 1, 1, {0, NULL}}, /* the twin: this one is right */
        {"{\"a\":1}", 0, 1, 1, {Q4X_E_FORMAT, "chunk flags: expected 1, found 0"}},
        {"{\"a\":1}", 1, 1, 0, {Q4X_E_FORMAT, "version 1.0"}},
        {"{\"a\":1}", 1, 2, 1, {Q4X_E_FORMAT, "one tail, after the last forward"}}, /* records are open */
        {"{\"a\":1}", 1, 3, 1, {Q4X_E_FORMAT, "the end marker behind the tail"}},   /* a forward follows */
        {"[]", 1, 1, 1, {Q4X_E_FORMAT, "tail: expected an object"}},
        {"{", 1, 1, 1, {Q4X_E_FORMAT, "tail: expected JSON"}},
        {"{\"a\":1,\"a\":1}", 1, 1, 1, {Q4X_E_FORMAT, "tail: expected JSON"}},
    };
    const int n = (int)(sizeof list / sizeof *list);
    if (what > n) return (expected){1, NULL};
    const char *text = what < n ? list[what].text : "{}";
    int at = c->n - (what < n ? list[what].back : 1);
    put64(c, "DONE", 0, 40, c->n - 1 + (what < n ? 1 : 2));
    c->minor = what < n ? (uint32_t)list[what].minor : 1;
    h_chunks_insert(c, at, "TAIL", what < n ? list[what].flags : 1, text, strlen(text));
    if (what < n) return list[what].e;
    h_chunks_insert(c, at, "TAIL", 1, text, strlen(text)); /* two */
    return (expected){Q4X_E_FORMAT, "one tail, after the last forward"};
}

/* PART of forward 0 is chunk 3: i32 forward, i32 1, i32 H_WIDE, i32 9, f64[9]. */
static expected part_damage(h_chunks *c, int what) {
    const double nan = NAN, negative = -1;
    h_chunk *k = &c->c[3];
    switch (what) {
    case 0: return (expected){0, NULL}; /* the twin */
    case 1: k->flags = 0; return (expected){Q4X_E_FORMAT, "chunk flags: expected 1, found 0"};
    case 2: c->minor = 1; return (expected){Q4X_E_FORMAT, "version 1.1"};
    case 3: put32(c, "PART", 0, 0, 1); return (expected){Q4X_E_FORMAT, "records of forward 1 before them"};
    case 4: put32(c, "PART", 0, 4, INT32_MAX); return (expected){Q4X_E_FORMAT, "number of records"};
    case 5: put32(c, "PART", 0, 4, -1); return (expected){Q4X_E_FORMAT, "number of records"};
    case 6: put32(c, "PART", 0, 4, 0); return (expected){Q4X_E_FORMAT, "expected the end of the chunk"};
    case 7: put32(c, "PART", 0, 8, H_EMB); return (expected){Q4X_E_FORMAT, "of which 9 rows are sketched"}; /* raw */
    case 8: put32(c, "PART", 0, 8, H_V); return (expected){Q4X_E_FORMAT, "of which 9 rows are sketched"};   /* hashed */
    case 9: put32(c, "PART", 0, 8, 99); return (expected){Q4X_E_FORMAT, "node 99: expected a record"};
    case 10: put32(c, "PART", 0, 12, 8); return (expected){Q4X_E_FORMAT, "of which 8 rows are sketched"};
    case 11: put32(c, "PART", 0, 12, INT32_MAX); return (expected){Q4X_E_FORMAT, "rows at byte"};
    case 12: memcpy(k->data + 16, &nan, 8); return (expected){Q4X_E_FORMAT, "finite ones that are not negative"};
    case 13: memcpy(k->data + 16, &negative, 8); return (expected){Q4X_E_FORMAT, "that are not negative"};
    case 14: h_chunks_insert(c, 2, "PART", 1, k->data, k->n); return (expected){Q4X_E_FORMAT, "forward 0 before them"};
    case 15: h_chunks_insert(c, 4, "PART", 1, k->data, k->n); return (expected){Q4X_E_FORMAT, "before them, in order"};
    case 16: /* as a writer of 1.1 leaves it */
        h_chunks_remove(c, 3);
        put64(c, "DONE", 0, 40, c->n - 1);
        return (expected){0, NULL};
    default: return (expected){1, NULL};
    }
}

static expected damage(h_chunks *c, int what) {
    int i;
    switch (what) {
    case 0: c->version = 2; return (expected){Q4X_E_UNSUPPORTED, "version at byte 8: expected 1..1, found 2"};
    case 1: c->version = 0; return (expected){Q4X_E_UNSUPPORTED, "found 0"};
    case 2: h_chunks_insert(c, 1, "NEWS", 1, "x", 1); return (expected){Q4X_E_FORMAT, "version 1.2"};
    case 3:
        c->minor = 3;
        h_chunks_insert(c, 3, "NEWS", 0, "x", 1);
        return (expected){Q4X_E_UNSUPPORTED, "version 1.3"};
    case 4:
        c->minor = 3;
        h_chunks_insert(c, 3, "NEWS", 3, "x", 1); /* a flag nobody knows */
        return (expected){Q4X_E_UNSUPPORTED, "version 1.3"};
    case 5: c->c[3].flags = 1; return (expected){Q4X_E_FORMAT, "chunk flags: expected 0, found 1"};
    case 6: h_chunks_insert(c, 1, "HEAD", 0, "{}", 2); return (expected){Q4X_E_FORMAT, "order of chunks"};
    case 7: h_chunks_remove(c, 0); return (expected){Q4X_E_FORMAT, "order of chunks"};
    case 8: h_chunks_remove(c, 1); return (expected){Q4X_E_FORMAT, "order of chunks"};
    case 9: replace(c, "HEAD", "{\"a\":1,\"a\":2}"); return (expected){Q4X_E_FORMAT, "header: expected JSON"};
    case 10: replace(c, "HEAD", "[]"); return (expected){Q4X_E_FORMAT, "expected an object"};
    case 11: replace(c, "HEAD", "{\"a\":1} x"); return (expected){Q4X_E_FORMAT, "header: expected JSON"};
    case 12: replace(c, "HEAD", ""); return (expected){Q4X_E_FORMAT, "header: expected JSON"};
    case 13: put32(c, "NODE", 0, 0, INT32_MAX); return (expected){Q4X_E_FORMAT, "number of nodes"};
    case 14: put32(c, "NODE", 0, 0, -1); return (expected){Q4X_E_FORMAT, "number of nodes"};
    case 15: put32(c, "NODE", 0, 0, H_NODES - 1); return (expected){Q4X_E_FORMAT, "found"};
    case 16: put32(c, "NODE", 0, 4, 0xffff); return (expected){Q4X_E_FORMAT, "node"};
    case 17: memcpy(c->c[1].data + 6, "e\nb", 3); return (expected){Q4X_E_FORMAT, "printable"};
    case 18: memcpy(c->c[1].data + 6, "e\0b", 3); return (expected){Q4X_E_FORMAT, "zero byte"};
    case 19: put32(c, "TAPS", 0, 0, -1); return (expected){Q4X_E_FORMAT, "forward: expected 0 or later"};
    case 20: put32(c, "TAPS", 0, 4, INT32_MAX); return (expected){Q4X_E_FORMAT, "number of records"};
    case 21: put32(c, "TAPS", 0, 4, 1); return (expected){Q4X_E_FORMAT, "expected the end of the chunk"};
    case 22: put32(c, "TAPS", 0, FIRST, H_NODES); return (expected){Q4X_E_FORMAT, "tap: node: expected 0..10"};
    case 23: put32(c, "TAPS", 0, FIRST, H_WIDE); return (expected){Q4X_E_FORMAT, "two records of wide"};
    case 24: put32(c, "TAPS", 0, FIRST + 4, 12); return (expected){Q4X_E_FORMAT, "dtype"};
    case 25: put64(c, "TAPS", 0, FIRST + 8, -1); return (expected){Q4X_E_FORMAT, "shape"};
    case 26: put64(c, "TAPS", 0, FIRST + 16, INT64_MAX); return (expected){Q4X_E_FORMAT, "shape"};
    case 27: put64(c, "TAPS", 0, FIRST + 16, 8); return (expected){Q4X_E_FORMAT, "statistics"};
    case 28: put32(c, "TAPS", 0, FIRST + 40, 128); return (expected){Q4X_E_FORMAT, "tap parts"};
    case 29: put32(c, "TAPS", 0, FIRST + 40, 3 | 32); return (expected){Q4X_E_FORMAT, "tap parts"};
    case 30: put32(c, "TAPS", 0, FIRST + 44 + 96, 9); return (expected){Q4X_E_FORMAT, "top elements"};
    case 31: put32(c, "TAPS", 0, FIRST + 44 + 96, -1); return (expected){Q4X_E_FORMAT, "top elements"};
    case 32: put32(c, "TAPS", 0, FIRST + 44 + 100 + 96 + 4, INT32_MAX); return (expected){Q4X_E_FORMAT, "sketch rows"};
    case 33: put32(c, "TAPS", 0, FIRST + 44 + 100 + 96 + 8, INT32_MAX); return (expected){Q4X_E_FORMAT, "sketch"};
    case 34: put32(c, "TAPS", 0, FIRST + 44 + 100 + 96 + 12, 2); return (expected){Q4X_E_FORMAT, "sketch"};
    case 35: put32(c, "FWRD", 0, 0, 1); return (expected){Q4X_E_FORMAT, "forward index: expected 0, found 1"};
    case 36: put32(c, "FWRD", 0, 4, INT32_MAX); return (expected){Q4X_E_FORMAT, "number of ids"};
    case 37: put32(c, "FWRD", 0, 4, -1); return (expected){Q4X_E_FORMAT, "number of ids"};
    case 38: put32(c, "FWRD", 0, 36, INT32_MAX); return (expected){Q4X_E_FORMAT, "logits"};
    case 39: put32(c, "FWRD", 0, 12, 7); return (expected){Q4X_E_FORMAT, "forced"};
    case 40: put32(c, "FWRD", 0, 60, 9); return (expected){Q4X_E_FORMAT, "expected 9 records"};
    case 41: put32(c, "FWRD", 0, 64, 0); return (expected){Q4X_E_FORMAT, "0 selections"};
    case 42: put32(c, "FWRD", 0, 68, 1); return (expected){Q4X_E_FORMAT, "full tensors"};
    case 43: put32(c, "FWRD", 0, 72, 2); return (expected){Q4X_E_FORMAT, "logits present"};
    case 44: put32(c, "FWRD", 1, 0, 0); return (expected){Q4X_E_FORMAT, "forward index"};
    case 45: put32(c, "FWRD", 0, 16, 0); return (expected){0, NULL}; /* the prefix is the recorder's word */
    case 46: put32(c, "FWRD", 0, 32, 99); return (expected){Q4X_E_CHECKSUM, "content hash"};
    case 47: put32(c, "DONE", 0, 0, 4); return (expected){Q4X_E_FORMAT, "declared forwards: expected 4, found 3"};
    case 48: put32(c, "DONE", 0, 4, 4); return (expected){Q4X_E_FORMAT, "declared nodes"};
    case 49: put64(c, "DONE", 0, 8, 4); return (expected){Q4X_E_FORMAT, "declared records"};
    case 50: put64(c, "DONE", 0, 16, 4); return (expected){Q4X_E_FORMAT, "declared selections"};
    case 51: put64(c, "DONE", 0, 24, 4); return (expected){Q4X_E_FORMAT, "declared full tensors"};
    case 52: put64(c, "DONE", 0, 32, 4); return (expected){Q4X_E_FORMAT, "declared logit rows"};
    case 53: put64(c, "DONE", 0, 40, 4); return (expected){Q4X_E_FORMAT, "declared chunks"};
    case 54: put32(c, "DONE", 0, 48, 4); return (expected){Q4X_E_CHECKSUM, "content hash"};
    case 55:
        h_chunks_insert(c, c->n, "FWRD", 0, "", 0);
        return (expected){Q4X_E_FORMAT, "expected the end of the file"};
    case 56: h_chunks_remove(c, c->n - 1); return (expected){Q4X_E_TRUNCATED, "3 whole forwards"};
    case 57: h_chunks_remove(c, h_chunks_find(c, "FWRD", 2)); return (expected){Q4X_E_FORMAT, "has records but no end"};
    case 58: h_chunks_remove(c, h_chunks_find(c, "TAPS", 1)); return (expected){Q4X_E_FORMAT, "expected 10 records"};
    case 59: /* a whole forward taken out */
        h_chunks_remove(c, h_chunks_find(c, "TAPS", 1));
        h_chunks_remove(c, h_chunks_find(c, "FWRD", 1));
        return (expected){Q4X_E_FORMAT, "declared forwards"};
    case 60: /* the same chunk of records twice */
        i = h_chunks_find(c, "TAPS", 0);
        h_chunks_insert(c, i, "TAPS", 0, c->c[i].data, c->c[i].n);
        return (expected){Q4X_E_FORMAT, "expected 10 records"};
    case 61: /* and declared so */
        i = h_chunks_find(c, "TAPS", 0);
        h_chunks_insert(c, i, "TAPS", 0, c->c[i].data, c->c[i].n);
        put32(c, "FWRD", 0, 60, 20);
        put32(c, "FWRD", 0, 64, 4);
        return (expected){Q4X_E_FORMAT, "two records of"};
    case 62: c->c[2].data[FIRST + 28] ^= 1; return (expected){Q4X_E_CHECKSUM, "content hash"}; /* bits of emb */
    case 63: put32(c, "NODE", 0, 0, 0); return (expected){Q4X_E_FORMAT, "expected the end of the chunk"};
    default: return tail_damage(c, what - 64);
    }
}

/* Each defect of a dump gets its answer. Returns how many there are. */
static int answers(const h_dump_opts *o, expected (*defect)(h_chunks *c, int what)) {
    size_t n, m;
    uint8_t *p = make(o, &n, NULL);
    int what = 0;
    for (;; what++) {
        h_chunks c = h_chunks_split(p, n);
        expected e = defect(&c, what);
        q4x_dump *r;
        q4x_err err;
        uint8_t *q = h_chunks_join(&c, &m);
        h_chunks_free(&c);
        if (e.code == 1) {
            assert_true(m == n && !memcmp(p, q, n)); /* apart and together again: the same file */
            free(q);
            break;
        }
        int rc = parse(q, m, &r, &err);
        if (rc != e.code || (e.says && !strstr(err.msg, e.says)))
            fail_msg("defect %d: expected %d \"%s\", found %d \"%s\"", what, e.code, e.says ? e.says : "", rc, err.msg);
        if (r != UNTOUCHED) q4x_dump_free(r);
        free(q);
    }
    free(p);
    return what;
}

static void test_defects(void **state) {
    (void)state;
    h_dump_opts o = h_dump_small;
    assert_int_equal(answers(&o, damage), 73);
    o.parts = 4;
    assert_int_equal(answers(&o, part_damage), 17);
}

/* What readers of 1.0 and 1.1 do with a dump of 1.2: tail and parts say that they may be skipped. */
static void test_older_readers(void **state) {
    (void)state;
    h_dump_opts o = h_dump_small;
    o.tail = 1;
    o.parts = 4;
    size_t n;
    uint8_t *p = make(&o, &n, NULL);
    h_chunks c = h_chunks_split(p, n);
    assert_int_equal(c.version, 1);
    assert_int_equal(c.minor, 2);
    for (int i = 0; i < c.n; i++)
        assert_int_equal(c.c[i].flags, !memcmp(&c.c[i].type, "TAIL", 4) || !memcmp(&c.c[i].type, "PART", 4));
    assert_int_equal(h_chunks_find(&c, "PART", 2), c.n - 4);
    assert_int_equal(h_chunks_find(&c, "TAIL", 0), c.n - 2);
    h_chunks_free(&c);
    free(p);
}

/* A newer minor version may add chunks that say they can be skipped. */
static void test_skippable(void **state) {
    (void)state;
    h_dump_opts o = h_dump_small;
    size_t n, m;
    q4x_dump *d, *r;
    q4x_err err;
    uint8_t *p = make(&o, &n, &d);
    h_chunks c = h_chunks_split(p, n);
    int64_t chunks = c.n + 1;
    c.minor = 3;
    h_chunks_insert(&c, 2, "NEWS", 1, "tomorrow", 8);
    h_chunks_insert(&c, 5, "MORE", 1, "", 0);
    put64(&c, "DONE", 0, 40, chunks);
    uint8_t *q = h_chunks_join(&c, &m);
    assert_int_equal(parse(q, m, &r, &err), 0);
    assert_true(h_dump_equal(d, r));
    q4x_dump_free(r);
    q[m / 2] ^= 1;
    assert_int_equal(parse(q, m, &r, &err), Q4X_E_CHECKSUM);
    h_chunks_free(&c);
    q4x_dump_free(d);
    free(q);
    free(p);
}

/* Other files are told apart from damaged dumps. */
static void test_no_dump(void **state) {
    (void)state;
    q4x_dump *r;
    q4x_err err;
    char text[100] = "GGUF and so on";
    assert_int_equal(parse(text, sizeof text, &r, &err), Q4X_E_FORMAT);
    assert_non_null(strstr(err.msg, "no q4x dump"));
    assert_int_equal(parse("\x89Q4D\n\x1a\n\n", 8, &r, &err), Q4X_E_FORMAT); /* went through a text-mode copy */
    assert_int_equal(parse("", 0, &r, &err), Q4X_E_TRUNCATED);
    assert_int_equal(parse("\x89Q4", 3, &r, &err), Q4X_E_TRUNCATED);
    assert_int_equal(parse("\x89Q5", 3, &r, &err), Q4X_E_FORMAT);
}

/* ---- full tensors ---- */

/* A dump with one wide tensor, in chunks. */
static h_chunks with_full(q4x_dump **keep) {
    h_dump_opts o = h_dump_small;
    o.forwards = 1;
    o.full = 1;
    size_t n;
    uint8_t *p = make(&o, &n, keep);
    h_chunks c = h_chunks_split(p, n);
    free(p);
    return c;
}

/* What reading and then decoding the tensor of node gives. */
static int decode(const h_chunks *c, int node, q4x_err *err) {
    size_t n;
    uint8_t *q = h_chunks_join(c, &n);
    q4x_dump *r = NULL;
    *err = (q4x_err){0};
    int rc = q4x_dump_read_mem(q, n, "x.q4d", &r, err);
    if (!rc) {
        q4x_tap *t = q4x_dump_tap(r, 0, node);
        rc = q4x_dump_full(r, t, err);
        assert_int_equal(rc == 0, t->full != NULL);
        if (!rc) assert_int_equal(q4x_dump_full(r, t, err), 0);
    }
    q4x_dump_free(r);
    free(q);
    return rc;
}

static void deflate_into(h_chunk *k, const uint8_t *data, size_t n, int strategy) {
    uint8_t head[24], *out = malloc(n + 100);
    memcpy(head, k->data, 24);
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15, 9, strategy), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)data, z.avail_in = (uInt)n;
    z.next_out = out + 24, z.avail_out = (uInt)(n + 76);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    memcpy(out, head, 24);
    out[8] = 1;
    free(k->data);
    k->data = out;
    k->n = 24 + z.total_out;
    deflateEnd(&z);
}

static void test_full(void **state) {
    (void)state;
    q4x_dump *d;
    q4x_err err;
    for (int what = 0; what < 15; what++) {
        h_chunks c = with_full(&d);
        int wide = h_chunks_find(&c, "FULL", 1), want = Q4X_E_FORMAT;
        h_chunk *k = &c.c[wide];
        assert_int_equal(k->data[8], 1); /* it is packed */
        int64_t huge = INT64_MAX;
        uint8_t zeros[9 * 520 * 4] = {0};
        switch (what) {
        case 0: want = 0; break; /* the twin: undamaged */
        case 1: memcpy(k->data + 16, &huge, 8); break;
        case 2: huge = 8 * (int64_t)(k->n - 24) + 4, memcpy(k->data + 16, &huge, 8); break;
        case 3: k->data[8] = 2; break;
        case 4: k->data[8] = 0; break; /* stored, but of the wrong size */
        case 5: k->data[12] = 2; break;
        case 6: k->data[4] = H_LOGITS; break;
        case 7: k->data[0] = 9; break;
        case 8: k->n -= 5; break;              /* the stream is cut */
        case 9: k->data[k->n / 2] ^= 4; break; /* or damaged */
        case 10: k->data[24] = 0xff; break;    /* or none */
        case 14:                               /* stored, whole, but not of the record's shape */
            k->data[8] = 0;
            huge = (int64_t)k->n - 24, memcpy(k->data + 16, &huge, 8);
            break;
        case 11: h_chunks_remove(&c, wide); break;                           /* no tensor for the record */
        case 12: h_chunks_insert(&c, wide, "FULL", 0, k->data, k->n); break; /* two */
        default:
            deflate_into(k, zeros, sizeof zeros, Z_HUFFMAN_ONLY), want = Q4X_E_CHECKSUM;
            break; /* another tensor */
        }
        int64_t chunks = c.n - 1;
        put64(&c, "DONE", 0, 40, chunks);
        int rc = decode(&c, H_WIDE, &err);
        /* a damaged literal may still be a stream: then it is the bits that tell */
        if (rc != want && !(what == 9 && rc == Q4X_E_CHECKSUM))
            fail_msg("defect %d: expected %d, found %d \"%s\"", what, want, rc, err.msg);
        h_chunks_free(&c);
        q4x_dump_free(d);
    }
    /* a stream that would blow up: 18720 zeros in a few bytes are refused before anything is allocated */
    h_chunks c = with_full(&d);
    uint8_t zeros[9 * 520 * 4] = {0};
    h_chunk *k = &c.c[h_chunks_find(&c, "FULL", 1)];
    deflate_into(k, zeros, sizeof zeros, Z_DEFAULT_STRATEGY);
    assert_true(k->n < 200);
    assert_int_equal(decode(&c, H_WIDE, &err), Q4X_E_FORMAT);
    assert_non_null(strstr(err.msg, "cannot be what"));
    /* more than declared in the stream, or less, or something behind it */
    h_chunks_free(&c);
    q4x_dump_free(d);
    for (int more = -1; more <= 1; more++) {
        c = with_full(&d);
        k = &c.c[h_chunks_find(&c, "FULL", 1)];
        uint8_t *planes = calloc(1, sizeof zeros + 4);
        const uint8_t *x = d->forwards[0].taps[1].full;
        for (size_t i = 0; i < sizeof zeros; i++) planes[i % 4 * (sizeof zeros / 4) + i / 4] = x[i];
        size_t len = more < 0 ? sizeof zeros - 4 : more > 0 ? sizeof zeros + 4 : sizeof zeros;
        deflate_into(k, planes, len, Z_HUFFMAN_ONLY);
        assert_int_equal(decode(&c, H_WIDE, &err), more ? Q4X_E_FORMAT : 0);
        if (!more) {
            k->data = realloc(k->data, k->n + 1);
            k->data[k->n++] = 0;
            assert_int_equal(decode(&c, H_WIDE, &err), Q4X_E_FORMAT);
        }
        free(planes);
        h_chunks_free(&c);
        q4x_dump_free(d);
    }
}

/* Reading costs memory in proportion to the file, whatever its counts say: with 16 MiB to spare every defect gets the
 * same answer as before, and none is out of memory. */
static int answers_in_little_memory(const uint8_t *p, size_t n) {
    FILE *f = fopen("/proc/self/statm", "r");
    char line[128];
    if (!f || !fgets(line, sizeof line, f)) return 2;
    fclose(f);
    unsigned long pages = strtoul(line, NULL, 10);
    struct rlimit lim = {0, 0};
    lim.rlim_cur = lim.rlim_max = pages * (rlim_t)sysconf(_SC_PAGESIZE) + (16u << 20);
    if (setrlimit(RLIMIT_AS, &lim)) return 2;
    if (malloc(32u << 20)) return 3; /* the twin: the limit holds */
    for (int what = 0;; what++) {
        size_t m;
        h_chunks c = h_chunks_split(p, n);
        expected e = damage(&c, what);
        if (e.code == 1) return 0;
        uint8_t *q = h_chunks_join(&c, &m);
        q4x_dump *r = NULL;
        if (q4x_dump_read_mem(q, m, "x.q4d", &r, NULL) != e.code) return 1;
        q4x_dump_free(r);
        free(q);
        h_chunks_free(&c);
    }
}

static void test_memory(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* a sanitizer reserves address space of its own */
#else
    h_dump_opts o = h_dump_small;
    size_t n;
    uint8_t *p = make(&o, &n, NULL);
    int status = -1;
    pid_t pid = fork();
    if (!pid) _exit(answers_in_little_memory(p, n));
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    free(p);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),     cmocka_unit_test(test_flip),      cmocka_unit_test(test_resummed),
        cmocka_unit_test(test_defects), cmocka_unit_test(test_skippable), cmocka_unit_test(test_older_readers),
        cmocka_unit_test(test_no_dump), cmocka_unit_test(test_full),      cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
