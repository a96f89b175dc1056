/* t_gguf_write.c: what the writer wrote, the strict reader reads: keys, tensors, bytes, for any cut into files. What
 * the reader would refuse is refused; nothing is there under its final name before it is whole.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/gguf.h"
#include "lib/gguf_write.h"
#include "lib/io.h"
#include "tests/check.h"
#include "tests/h_gguf.h"
#include "tests/h_rand.h"

static char dir[] = "/tmp/q4x-gw-XXXXXX";
static char path[64];

static int setup(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return rmdir(dir);
}

/* Remove every file; how many there were. */
static int sweep(void) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (const struct dirent *e; (e = readdir(d));) {
        char p[512];
        if (e->d_name[0] == '.') continue;
        snprintf(p, sizeof p, "%s/%s", dir, e->d_name);
        assert_int_equal(remove(p), 0);
        n++;
    }
    closedir(d);
    return n;
}

/* ---- a model of every kind ---- */

static const struct {
    const char *name;
    int32_t type;
    int ndim;
    int64_t ne[4];
    size_t bytes;
} tens[] = {
    {"a.weight", 0, 1, {3}, 12},   {"b with a blank", 19, 2, {512, 7}, 700},
    {"c", 20, 3, {32, 5, 3}, 270}, {"d", 14, 4, {256, 1, 2, 2}, 840},
    {"e", 30, 2, {1, 9}, 18},      {"f", 8, 1, {64}, 68},
};
enum { NT = sizeof tens / sizeof *tens };

static void payload(int t, uint8_t *p) {
    h_rand r = {(uint64_t)t + 1};
    for (size_t i = 0; i < tens[t].bytes; i++) p[i] = (uint8_t)h_rand64(&r);
}

static void declare(q4x_gguf_out *o) {
    static const uint32_t u[] = {0, UINT32_MAX};
    static const int32_t s[] = {INT32_MIN, -1, 0, 7};
    static const uint64_t l[] = {1, UINT64_C(23703573157769)};
    static const float f[] = {0.5f, -0.0f};
    static const uint8_t b[] = {1, 0, 1};
    static const char *const text[] = {"", "two words", "\xc4\xa0x"};
    static const char bytes[] = "ab\0c";
    const char *const raw[] = {bytes, bytes + 2};
    const size_t len[] = {4, 2};
    q4x_err err = {0};
    assert_rc_ok(q4x_gguf_out_str(o, "general.architecture", "toy", &err), &err);
    assert_rc_ok(q4x_gguf_out_u32(o, "u32", UINT32_MAX, &err), &err);
    assert_rc_ok(q4x_gguf_out_i32(o, "i32", -5, &err), &err);
    assert_rc_ok(q4x_gguf_out_u64(o, "u64", UINT64_MAX, &err), &err);
    assert_rc_ok(q4x_gguf_out_f32(o, "f32", 1e-6f, &err), &err);
    assert_rc_ok(q4x_gguf_out_bool(o, "bool", 2, &err), &err);
    assert_rc_ok(q4x_gguf_out_str(o, "str", "", &err), &err);
    assert_rc_ok(q4x_gguf_out_u32s(o, "u32s", u, 2, &err), &err);
    assert_rc_ok(q4x_gguf_out_i32s(o, "i32s", s, 4, &err), &err);
    assert_rc_ok(q4x_gguf_out_u64s(o, "u64s", l, 2, &err), &err);
    assert_rc_ok(q4x_gguf_out_f32s(o, "f32s", f, 2, &err), &err);
    assert_rc_ok(q4x_gguf_out_bools(o, "bools", b, 3, &err), &err);
    assert_rc_ok(q4x_gguf_out_strs(o, "strs", text, NULL, 3, &err), &err);
    assert_rc_ok(q4x_gguf_out_strs(o, "raw", raw, len, 2, &err), &err);
    assert_rc_ok(q4x_gguf_out_i32s(o, "none", NULL, 0, &err), &err);
    for (int t = 0; t < NT; t++)
        assert_rc_ok(q4x_gguf_out_tensor(o, tens[t].name, tens[t].type, tens[t].ndim, tens[t].ne, &err), &err);
}

static q4x_gguf_out *begun(const q4x_gguf_cut *cut) {
    q4x_gguf_out *o = NULL;
    q4x_err err = {0};
    assert_rc_ok(q4x_gguf_out_new(path, cut, &o, &err), &err);
    declare(o);
    assert_rc_ok(q4x_gguf_out_begin(o, &err), &err);
    return o;
}

/* All bytes, in portions that mean nothing. */
static void pour(q4x_gguf_out *o) {
    h_rand r = {77};
    q4x_err err = {0};
    for (int t = 0; t < NT; t++) {
        uint8_t p[1024];
        uint64_t left = 0;
        payload(t, p);
        assert_string_equal(q4x_gguf_out_next(o, &left)->name, tens[t].name);
        assert_int_equal(left, tens[t].bytes);
        for (size_t at = 0; at < tens[t].bytes;) {
            size_t n = 1 + h_rand64(&r) % 300;
            if (n > tens[t].bytes - at) n = tens[t].bytes - at;
            assert_rc_ok(q4x_gguf_out_write(o, p + at, n, &err), &err);
            at += n;
        }
    }
    assert_null(q4x_gguf_out_next(o, NULL));
}

static void check_keys(const q4x_model *m) {
    static const char *const order[] = {"general.architecture",
                                        "u32",
                                        "i32",
                                        "u64",
                                        "f32",
                                        "bool",
                                        "str",
                                        "u32s",
                                        "i32s",
                                        "u64s",
                                        "f32s",
                                        "bools",
                                        "strs",
                                        "raw",
                                        "none"};
    q4x_err err = {0};
    uint64_t u = 0;
    int64_t *v = NULL, n = 0, i = 0;
    double d = 0;
    int b = 0;
    const char *s = NULL;
    size_t len = 9;
    for (size_t k = 0; k < sizeof order / sizeof *order; k++) assert_string_equal(q4x_kv_key(m, (int64_t)k), order[k]);
    assert_string_equal(q4x_model_arch(m), "toy");
    assert_true(!q4x_kv_u64(m, "u32", &u, &err) && u == UINT32_MAX);
    assert_true(!q4x_kv_i64(m, "i32", &i, &err) && i == -5);
    assert_true(!q4x_kv_u64(m, "u64", &u, &err) && u == UINT64_MAX);
    assert_true(!q4x_kv_f64(m, "f32", &d, &err) && d == (double)1e-6f);
    assert_true(!q4x_kv_bool(m, "bool", &b, &err) && b == 1);
    assert_true(!q4x_kv_str(m, "str", &s, &len, &err) && len == 0);
    static const struct {
        const char *key;
        int64_t n, last;
    } ints[] = {{"u32s", 2, UINT32_MAX}, {"i32s", 4, 7}, {"u64s", 2, 23703573157769}, {"bools", 3, 1}, {"none", 0, 0}};
    for (size_t k = 0; k < sizeof ints / sizeof *ints; k++) {
        assert_rc_ok(q4x_kv_ints(m, ints[k].key, &v, &n, &err), &err);
        assert_int_equal(n, ints[k].n);
        if (n) assert_int_equal(v[n - 1], ints[k].last);
        free(v);
    }
    assert_true(!q4x_kv_strs_count(m, "strs", &n, &err) && n == 3);
    assert_true(!q4x_kv_strs_get(m, "strs", 2, &s, &len, &err) && len == 3 && !memcmp(s, "\xc4\xa0x", 3));
    assert_true(!q4x_kv_strs_get(m, "raw", 0, &s, &len, &err) && len == 4 && !memcmp(s, "ab\0c", 4));
    assert_true(!q4x_kv_strs_get(m, "raw", 1, &s, &len, &err) && len == 2 && !memcmp(s, "\0c", 2));
    const q4x_gguf_kv *f = q4x_gguf_find(m->priv, "f32s");
    assert_true(f && f->type == Q4X_GGUF_ARR && f->etype == Q4X_GGUF_F32 && f->count == 2);
}

static void check_tensors(const q4x_model *m) {
    assert_int_equal(q4x_model_ntensors(m), NT);
    for (int t = 0; t < NT; t++) {
        const q4x_tensor *x = q4x_model_tensor(m, t);
        uint8_t p[1024];
        payload(t, p);
        assert_string_equal(x->name, tens[t].name);
        assert_int_equal(x->type, tens[t].type);
        assert_int_equal(x->ndim, tens[t].ndim);
        for (int i = 0; i < 4; i++) assert_int_equal(x->ne[i], i < x->ndim ? tens[t].ne[i] : 1);
        assert_int_equal(x->bytes, tens[t].bytes);
        assert_memory_equal(x->data, p, x->bytes);
    }
}

static void first_path(int shards, char *to, size_t size) {
    if (shards == 1)
        snprintf(to, size, "%s/m.gguf", dir);
    else
        snprintf(to, size, "%s/m-00001-of-%05d.gguf", dir, shards);
}

static void test_round_trip(void **state) {
    (void)state;
    static const struct {
        q4x_gguf_cut cut;
        int files, keys; /* keys beside those declared */
    } row[] = {
        {{0}, 1, 0},
        {{.shards = 1, .align = 8}, 1, 1},
        {{.align = 65536}, 1, 1},
        {{.shards = 2}, 2, 3},
        {{.shards = 3, .align = 64}, 3, 4},
        {{.shards = 7}, 7, 3},
        {{.shard_bytes = 1}, 7, 3},       /* every tensor is larger: each alone */
        {{.shard_bytes = 1 << 20}, 1, 0}, /* all in one: no set */
        {{.shard_bytes = 1024}, 3, 3},    /* 32 + 704 + 288 = 1024 | 864 + 32 + 96 */
        {{.shard_bytes = 1023}, 4, 3},    /* 32 + 704 | 288 | 864 + 32 + 96 */
    };
    char hex[2][33];
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        char first[96];
        q4x_gguf_out *o = begun(&row[r].cut);
        q4x_err err = {0};
        q4x_model *m = NULL;
        pour(o);
        int files = q4x_gguf_out_nshards(o);

        assert_rc_ok(q4x_gguf_out_finish(o, &err), &err);
        assert_int_equal(files, row[r].files);
        first_path(files, first, sizeof first);
        assert_rc_ok(q4x_model_open(first, &m, &err), &err);
        assert_int_equal(q4x_model_nshards(m), files);
        assert_int_equal(q4x_kv_count(m), 15 + row[r].keys);
        check_keys(m);
        check_tensors(m);
        for (int i = 0; i < files; i++) {
            const q4x_shard *s = q4x_model_shard(m, i);
            assert_int_equal(s->data_off % (row[r].cut.align ? row[r].cut.align : 32), 0);
        }
        if (files > 1) assert_int_equal(q4x_model_shard(m, 0)->data_off, q4x_model_shard(m, 0)->size);
        if (!row[r].cut.align) { /* the cut is no part of what a model is; the alignment key is */
            assert_rc_ok(q4x_model_fingerprint(m, hex[r > 0], &err), &err);
            assert_string_equal(hex[0], hex[r > 0]);
        }
        q4x_model_close(m);
        assert_int_equal(sweep(), files);
    }
}

/* Headers can be had without a file, and are what a file begins with; sizes are known before. */
static void test_header_only(void **state) {
    (void)state;
    for (int shards = 1; shards < 5; shards++) {
        q4x_gguf_out *o = NULL;
        q4x_err err = {0};
        q4x_gguf_cut cut = {.shards = shards};
        assert_rc_ok(q4x_gguf_out_new(path, &cut, &o, &err), &err);
        declare(o);
        assert_rc_ok(q4x_gguf_out_layout(o, &err), &err);
        assert_int_equal(q4x_gguf_out_nshards(o), shards);
        assert_int_equal(q4x_gguf_out_ntensors(o), NT);
        assert_int_equal(sweep(), 0);
        uint8_t *head[4];
        size_t n[4];
        uint64_t size[4];
        char name[4][96];
        for (int i = 0; i < shards; i++) {
            assert_rc_ok(q4x_gguf_out_header(o, i, &head[i], &n[i], &err), &err);
            size[i] = q4x_gguf_out_shard(o, i)->size;
            assert_int_equal(q4x_gguf_out_shard(o, i)->data_off, n[i]);
            snprintf(name[i], sizeof name[i], "%s", q4x_gguf_out_shard(o, i)->path);
        }
        assert_rc_ok(q4x_gguf_out_begin(o, &err), &err);
        pour(o);
        assert_rc_ok(q4x_gguf_out_finish(o, &err), &err);
        for (int i = 0; i < shards; i++) {
            q4x_map m;
            assert_rc_ok(q4x_map_open(name[i], &m, &err), &err);
            assert_int_equal(m.size, size[i]);
            assert_memory_equal(m.data, head[i], n[i]);
            q4x_map_close(&m);
            free(head[i]);
        }
        assert_int_equal(sweep(), shards);
    }
}

/* A name that is a shard's already gives its set; one without ".gguf" is a prefix. */
static void test_names(void **state) {
    (void)state;
    static const char *const row[][3] = {
        {"m.gguf", "m.gguf", "m-00002-of-00002.gguf"},
        {"m", "m", "m-00002-of-00002.gguf"},
        {"m-00001-of-00003.gguf", "m-00001-of-00003.gguf", "m-00002-of-00002.gguf"},
        {"m-0001-of-00003.gguf", "m-0001-of-00003.gguf", "m-0001-of-00003-00002-of-00002.gguf"},
        {"m+00001-of-00003.gguf", "m+00001-of-00003.gguf", "m+00001-of-00003-00002-of-00002.gguf"},
        {".gguf", ".gguf", "-00002-of-00002.gguf"},
    };
    for (size_t r = 0; r < sizeof row / sizeof *row; r++)
        for (int n = 1; n < 3; n++) {
            q4x_gguf_out *o = NULL;
            q4x_gguf_cut cut = {.shards = n};
            assert_int_equal(q4x_gguf_out_new(row[r][0], &cut, &o, NULL), 0);
            declare(o);
            assert_int_equal(q4x_gguf_out_layout(o, NULL), 0);
            assert_string_equal(q4x_gguf_out_shard(o, n - 1)->path, row[r][n]);
            q4x_gguf_out_abort(o);
        }
}

/* ---- what is refused ---- */

static void says(int rc, int want, const q4x_err *err, const char *words) {
    if (rc != want || (rc && (err->code != rc || !strstr(err->msg, words))))
        fail_msg("rc %d, expected %d with '%s': %s", rc, want, words, err->msg);
}
/* The call gives rc, and a message with these words. */
#define SAYS(call, rc, words) (err = (q4x_err){0}, says(call, rc, &err, words))

static void test_bad_keys(void **state) {
    (void)state;
    q4x_err err;
    q4x_gguf_out *o = NULL;
    char *huge = malloc(65537 + 1);
    static const uint8_t two[] = {0, 2};
    assert_non_null(huge);
    memset(huge, 'k', 65537);
    huge[65536] = 0;
    assert_int_equal(q4x_gguf_out_new(path, NULL, &o, NULL), 0);
    SAYS(q4x_gguf_out_u32(o, "", 1, &err), Q4X_E_ARG, "a length of 1 to 65535");
    SAYS(q4x_gguf_out_u32(o, huge, 1, &err), Q4X_E_ARG, "a length of 1 to 65535");
    SAYS(q4x_gguf_out_str(o, "a b", "x", &err), Q4X_E_ARG, "without blanks");
    SAYS(q4x_gguf_out_str(o, "a\xc3\xa9", "x", &err), Q4X_E_ARG, "printable ASCII");
    SAYS(q4x_gguf_out_u32(o, "general.alignment", 32, &err), Q4X_E_ARG, "by itself");
    SAYS(q4x_gguf_out_u32(o, "split.count", 32, &err), Q4X_E_ARG, "by itself");
    SAYS(q4x_gguf_out_bools(o, "b", two, 2, &err), Q4X_E_ARG, "0 or 1");
    SAYS(q4x_gguf_out_i32s(o, "n", NULL, (size_t)Q4X_GGUF_MAX_NUMS + 1, &err), Q4X_E_ARG, "more elements");
    SAYS(q4x_gguf_out_strs(o, "n", NULL, NULL, 0, &err), 0, "");
    SAYS(q4x_gguf_out_f32(o, "n", 1, &err), Q4X_E_ARG, "there already");
    huge[65535] = 0;
    SAYS(q4x_gguf_out_u32(o, huge, 1, &err), 0, ""); /* the twin: one byte less */
    const size_t much = ((size_t)64 << 20) + 1;
    const char *const strs[] = {"x"};
    SAYS(q4x_gguf_out_strs(o, "s", strs, &much, 1, &err), Q4X_E_ARG, "64 MiB");
    free(huge);
    q4x_gguf_out_abort(o);
}

static void test_bad_tensors(void **state) {
    (void)state;
    static const char n64[] = "0123456789012345678901234567890123456789012345678901234567890123";
    static const struct {
        const char *name;
        int32_t type;
        int ndim;
        int64_t ne[4];
        const char *says;
    } row[] = {
        {"", 0, 1, {1}, "1 to 63 bytes"},
        {n64, 0, 1, {1}, "1 to 63 bytes"},
        {n64 + 1, 0, 1, {1}, NULL},
        {"a\tb", 0, 1, {1}, "printable ASCII"},
        {"q8_1", 9, 1, {32}, "a type that files hold"},
        {"gone", 4, 1, {32}, "a type that files hold"},
        {"minus", -1, 1, {32}, "a type that files hold"},
        {"scalar", 0, 0, {1}, "1 to 4 dimensions"},
        {"five", 0, 5, {1}, "1 to 4 dimensions"},
        {"zero", 0, 2, {1, 0}, "dimensions of 1 to 2^40"},
        {"less", 0, 1, {-1}, "dimensions of 1 to 2^40"},
        {"far", 0, 1, {((int64_t)1 << 40) + 1}, "dimensions of 1 to 2^40"},
        {"wraps", 0, 2, {(int64_t)1 << 32, (int64_t)1 << 32}, "2^48 elements"},
        {"part", 19, 1, {640}, "whole blocks of 256 for IQ1_S, found 640"},
        {"whole", 20, 1, {640}, NULL},
        {"whole", 20, 1, {640}, "there already"},
        {"largest", 28, 2, {(int64_t)1 << 40, 256}, NULL},
    };
    q4x_gguf_out *o = NULL;
    assert_int_equal(q4x_gguf_out_new(path, NULL, &o, NULL), 0);
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        q4x_err err = {0};
        int rc = q4x_gguf_out_tensor(o, row[r].name, row[r].type, row[r].ndim, row[r].ne, &err);
        assert_int_equal(rc, row[r].says ? Q4X_E_ARG : 0);
        if (row[r].says && !strstr(err.msg, row[r].says)) fail_msg("%s: %s", row[r].says, err.msg);
    }
    q4x_gguf_out_abort(o);
}

static void test_bad_cuts(void **state) {
    (void)state;
    q4x_err err;
    q4x_gguf_out *o = NULL;
    SAYS(q4x_gguf_out_new(path, &(q4x_gguf_cut){.align = 4}, &o, &err), Q4X_E_ARG, "8 to 65536, found 4");
    SAYS(q4x_gguf_out_new(path, &(q4x_gguf_cut){.align = 48}, &o, &err), Q4X_E_ARG, "power of two");
    SAYS(q4x_gguf_out_new(path, &(q4x_gguf_cut){.align = 131072}, &o, &err), Q4X_E_ARG, "found 131072");
    SAYS(q4x_gguf_out_new(path, &(q4x_gguf_cut){.shards = -1}, &o, &err), Q4X_E_ARG, "1 to 1000 files");
    SAYS(q4x_gguf_out_new(path, &(q4x_gguf_cut){.shards = 1001}, &o, &err), Q4X_E_ARG, "found 1001");
    assert_null(o);
    /* more files than tensors */
    assert_int_equal(q4x_gguf_out_new(path, &(q4x_gguf_cut){.shards = NT + 2}, &o, &err), 0);
    declare(o);
    SAYS(q4x_gguf_out_begin(o, &err), Q4X_E_ARG, "at most 7 files for 6 tensors");
    q4x_gguf_out_abort(o);
    /* a limit that would need too many */
    assert_int_equal(q4x_gguf_out_new(path, &(q4x_gguf_cut){.shard_bytes = 32}, &o, &err), 0);
    for (int i = 0; i < 1000; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        assert_int_equal(q4x_gguf_out_tensor(o, name, 0, 1, (int64_t[]){8}, &err), 0);
    }
    SAYS(q4x_gguf_out_begin(o, &err), Q4X_E_ARG, "at most 1000 files, found 1001");
    q4x_gguf_out_abort(o);
    /* data of more than an address space holds */
    assert_int_equal(q4x_gguf_out_new(path, NULL, &o, &err), 0);
    for (int i = 0; i < 2049; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        assert_int_equal(q4x_gguf_out_tensor(o, name, 28, 2, (int64_t[]){(int64_t)1 << 40, 256}, &err), 0);
    }
    SAYS(q4x_gguf_out_begin(o, &err), Q4X_E_ARG, "2^62 bytes");
    q4x_gguf_out_abort(o);
    assert_int_equal(sweep(), 0);
}

/* Too many bytes, too few, bytes after the end; an old file stays what it was until finish. */
static void test_byte_count(void **state) {
    (void)state;
    static const uint8_t zeros[1024];
    q4x_err err;
    h_write_file(path, "old", 3);
    q4x_gguf_out *o = begun(NULL);
    SAYS(q4x_gguf_out_write(o, zeros, 0, &err), 0, "");
    SAYS(q4x_gguf_out_write(o, zeros, 13, &err), Q4X_E_ARG, "tensor 'a.weight': expected 12 bytes in all, found 13");
    SAYS(q4x_gguf_out_write(o, zeros, 12, &err), 0, "");
    SAYS(q4x_gguf_out_write(o, zeros, 699, &err), 0, "");
    SAYS(q4x_gguf_out_write(o, zeros, 2, &err), Q4X_E_ARG, "'b with a blank': expected 700 bytes in all, found 701");
    SAYS(q4x_gguf_out_finish(o, &err), Q4X_E_ARG, "'b with a blank': expected 700 bytes, found 699 before the end");
    q4x_map m;
    assert_int_equal(q4x_map_open(path, &m, &err), 0);
    assert_true(m.size == 3 && !memcmp(m.data, "old", 3));
    q4x_map_close(&m);
    assert_int_equal(sweep(), 1);
    o = begun(&(q4x_gguf_cut){.shards = 3});
    pour(o);
    SAYS(q4x_gguf_out_write(o, zeros, 1, &err), Q4X_E_ARG, "no more data after the last tensor");
    q4x_gguf_out_abort(o);
    q4x_gguf_out_abort(NULL);
    assert_int_equal(sweep(), 0);
}

/* A device that takes nothing; a folder in a shard's place, seen before the work and only at the end. */
static void test_disk(void **state) {
    (void)state;
    q4x_err err;
    q4x_gguf_out *o = NULL;
    char block[96];
    assert_int_equal(q4x_gguf_out_new("/dev/full", NULL, &o, &err), 0);
    declare(o);
    SAYS(q4x_gguf_out_begin(o, &err), 0, "");
    for (int t = 0; t < NT; t++) { /* the last byte sends what is buffered out */
        uint8_t p[1024];
        payload(t, p);
        SAYS(q4x_gguf_out_write(o, p, tens[t].bytes, &err), t < NT - 1 ? 0 : Q4X_E_FULL, "/dev/full: cannot write");
    }
    SAYS(q4x_gguf_out_finish(o, &err), Q4X_E_FULL, "/dev/full");
    snprintf(block, sizeof block, "%s/m-00002-of-00003.gguf", dir);
    assert_int_equal(mkdir(block, 0700), 0);
    assert_int_equal(q4x_gguf_out_new(path, &(q4x_gguf_cut){.shards = 3}, &o, &err), 0);
    declare(o);
    SAYS(q4x_gguf_out_begin(o, &err), Q4X_E_IO, "m-00002-of-00003.gguf: is a folder");
    q4x_gguf_out_abort(o);
    assert_int_equal(sweep(), 1);
    o = begun(&(q4x_gguf_cut){.shards = 3});
    pour(o);
    snprintf(block, sizeof block, "%s/m-00003-of-00003.gguf", dir);
    assert_int_equal(mkdir(block, 0700), 0);
    SAYS(q4x_gguf_out_finish(o, &err), Q4X_E_IO, "cannot rename into place");
    assert_int_equal(sweep(), 1); /* the folder: no shard is there, no temporary */
}

static void test_cut_short(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            struct rlimit lim = {2048, 2048};
            q4x_err err = {0};
            q4x_gguf_out *o = NULL;
            signal(SIGXFSZ, SIG_IGN);
            if (!kind && setrlimit(RLIMIT_FSIZE, &lim)) _exit(2);
            if (q4x_gguf_out_new(path, NULL, &o, &err)) _exit(3);
            if (q4x_gguf_out_tensor(o, "t", 24, 1, (int64_t[]){300000}, &err)) _exit(4);
            if (q4x_gguf_out_begin(o, &err)) _exit(5);
            static const uint8_t big[300000];
            int rc = q4x_gguf_out_write(o, big, sizeof big, &err);
            if (kind) kill(getpid(), SIGKILL);
            if (rc != Q4X_E_IO || !strstr(err.msg, path)) _exit(6);
            q4x_gguf_out_abort(o);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, kind ? SIGKILL : 0);
        struct stat st;
        assert_int_not_equal(stat(path, &st), 0); /* nothing under the final name */
        assert_int_equal(sweep(), kind);          /* a killed writer leaves its temporary */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_header_only), cmocka_unit_test(test_names),
        cmocka_unit_test(test_bad_keys),   cmocka_unit_test(test_bad_tensors), cmocka_unit_test(test_bad_cuts),
        cmocka_unit_test(test_byte_count), cmocka_unit_test(test_disk),        cmocka_unit_test(test_cut_short),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
