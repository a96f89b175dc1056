/* t_gguf.c: the GGUF parser accepts what the format promises and names what it refuses: every row of gguf-quants 1.4
 * and the defect classes of 1.6 that a container can have. Each file is opened from memory and from disk, with equal
 * outcome.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <unistd.h>

#include "tests/h_gguf.h"
#include "tests/h_walk.h"

static char dir[] = "/tmp/q4x-gguf-XXXXXX";
static char file[64]; /* dir/t.gguf */

static int setup(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(file, sizeof file, "%s/t.gguf", dir);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(file);
    return rmdir(dir);
}

static const char *seeds; /* --seeds DIR: leave every small file there, as what fuzzing begins with */

static void leave_seed(const h_buf *b) {
    static int n;
    char path[256];
    if (!seeds || b->n > 4096) return;
    snprintf(path, sizeof path, "%s/row-%03d", seeds, n++);
    h_write_file(path, b->p, b->n);
}

/* Open bytes both ways; the outcomes must agree. Returns it, with the model's walk done. */
static int open_both(const h_buf *b, q4x_err *err) {
    q4x_model *m = NULL, *d = NULL;
    q4x_err disk = {0};
    leave_seed(b);
    int rc = q4x_gguf_parse_mem(b->p, b->n, file, &m, err);
    h_write_file(file, b->p, b->n);
    int rd = q4x_model_open(file, &d, &disk);
    assert_int_equal(rc, rd);
    assert_string_equal(err->msg, disk.msg);
    if (rc) {
        assert_null(m);
        assert_null(d);
        walk_error(rc, err, file);
    } else {
        assert_int_equal(walk_model(m), walk_model(d));
    }
    q4x_model_close(m);
    q4x_model_close(d);
    return rc;
}

/* ---- rows ---- */

static const uint64_t NE8[1] = {8};

#define MAKE(name, ...)                                                                                                \
    static void name(h_gguf *g) {                                                                                      \
        __VA_ARGS__;                                                                                                   \
    }
#define PATCH(name, ...)                                                                                               \
    static void name(h_buf *b) {                                                                                       \
        __VA_ARGS__;                                                                                                   \
    }

/* What every row starts from: a key and a tensor, both right. */
MAKE(base, h_gguf_init(g); h_gguf_kv_str(g, "general.architecture", "toy"); h_gguf_tensor(g, "w", 0, 1, NE8, NULL))

typedef struct {
    const char *name;
    void (*make)(h_gguf *g); /* change the base, or NULL */
    void (*patch)(h_buf *b); /* change the bytes, or NULL */
    int rc;
    const char *says[2]; /* both must stand in the message */
} row;

static void run_rows(const row *r, size_t n) {
    for (size_t i = 0; i < n; i++) {
        h_gguf g;
        base(&g);
        if (r[i].make) r[i].make(&g);
        h_buf b = h_gguf_bytes(&g);
        if (r[i].patch) r[i].patch(&b);
        q4x_err err = {0};
        int rc = open_both(&b, &err);
        int ok = rc == r[i].rc;
        for (int k = 0; k < 2; k++)
            if (r[i].says[k] && !strstr(err.msg, r[i].says[k])) ok = 0;
        if (!ok) print_error("row '%s': rc %d, expected %d; message: %s\n", r[i].name, rc, r[i].rc, err.msg);
        assert_true(ok);
        h_buf_free(&b);
        h_gguf_free(&g);
    }
}
#define RUN(rows) run_rows(rows, sizeof rows / sizeof *rows)
#define BAD Q4X_E_FORMAT
#define CUT Q4X_E_TRUNCATED
#define UNS Q4X_E_UNSUPPORTED

/* ---- head ---- */

PATCH(cut23, b->n = 23)
PATCH(cut4, b->n = 4)
PATCH(cut0, b->n = 0)
MAKE(all, h_gguf_free(g); h_gguf_everything(g))
MAKE(magic, g->magic ^= 1)
MAKE(v0, g->version = 0)
MAKE(v1, g->version = 1)
MAKE(v2, g->version = 2)
MAKE(v4, g->version = 4)
MAKE(vbig, g->version = 0x03000000)
MAKE(nt_neg, g->ntensors = UINT64_MAX)
MAKE(nk_neg, g->nkv = UINT64_MAX)
MAKE(nt_min, g->ntensors = 1ull << 63)
MAKE(nt_big, g->ntensors = 1000)
MAKE(nk_big, g->nkv = 1000)
/* Times the size of a record these wrap to something small. */
MAKE(nt_wrap, g->ntensors = UINT64_MAX / 24 + 2)
MAKE(nk_wrap, g->nkv = UINT64_MAX / 13 + 2)
MAKE(nt_more, g->ntensors = 3)
MAKE(nk_more, g->nkv = 3)
MAKE(nk_less, g->nkv = 0)
PATCH(grow_27m, h_zeros(b, 27000000))
MAKE(nk_ceiling, g->nkv = Q4X_GGUF_MAX_KV + 1)
MAKE(nt_ceiling, g->ntensors = Q4X_GGUF_MAX_TENSORS + 1)
MAKE(no_tensor, g->ntensors = g->ti.n = g->data.n = g->next = 0)
/* Up to the end of the one key. */
PATCH(no_padding, b->n = 24 + 8 + 20 + 4 + 8 + 3)

static void test_head(void **state) {
    (void)state;
    static const row rows[] = {
        {"base", NULL, NULL, 0, {0}},
        {"everything", all, NULL, 0, {0}},
        {"empty", NULL, cut0, CUT, {"magic at byte 0", "incomplete"}},
        {"4 bytes", NULL, cut4, CUT, {"version at byte 4"}},
        {"23 bytes", NULL, cut23, CUT, {"n_kv at byte 16", "found 7"}},
        {"magic", magic, NULL, BAD, {"magic at byte 0: expected 'GGUF'", "found bytes 46 47 55 46"}},
        {"version 0", v0, NULL, UNS, {"version at byte 4: expected 2 or 3, found 0"}},
        {"version 1", v1, NULL, UNS, {"version at byte 4: expected 2 or 3, found 1"}},
        {"version 2", v2, NULL, 0, {0}},
        {"version 4", v4, NULL, UNS, {"version at byte 4", "found 4"}},
        {"big-endian", vbig, NULL, UNS, {"version at byte 4", "big-endian"}},
        {"n_tensors -1", nt_neg, NULL, BAD, {"n_tensors at byte 8", "found 18446744073709551615"}},
        {"n_tensors -2^63", nt_min, NULL, BAD, {"n_tensors at byte 8"}},
        {"n_kv -1", nk_neg, NULL, BAD, {"n_kv at byte 16", "found 18446744073709551615"}},
        {"n_tensors x 24 wraps", nt_wrap, NULL, BAD, {"n_tensors at byte 8"}},
        {"n_kv x 13 wraps", nk_wrap, NULL, BAD, {"n_kv at byte 16"}},
        {"n_tensors beyond the file", nt_big, NULL, BAD, {"n_tensors at byte 8", "found 1000"}},
        {"n_kv beyond the file", nk_big, NULL, BAD, {"n_kv at byte 16", "found 1000"}},
        {"two tensors too many", nt_more, NULL, BAD, {"tensor 1: name at byte"}},
        {"two keys too many", nk_more, NULL, BAD, {"key 2: key at byte"}},
        {"a key too few", nk_less, NULL, BAD, {"tensor 0 'general.architecture'"}},
        {"n_kv ceiling", nk_ceiling, grow_27m, BAD, {"n_kv at byte 16: expected at most 65536"}},
        {"n_tensors ceiling", nt_ceiling, grow_27m, BAD, {"n_tensors at byte 8: expected at most 1048576"}},
        {"no tensors", no_tensor, NULL, 0, {0}},
        {"no tensors, no padding", no_tensor, no_padding, 0, {0}},
        {"a tensor, no padding", NULL, no_padding, CUT, {"tensor 0: name at byte"}},
    };
    RUN(rows);
}

/* ---- keys and values ---- */

static void key_n(h_gguf *g, const void *s, size_t n) {
    h_strn(&g->kv, s, n);
    h_u32(&g->kv, 4);
    h_u32(&g->kv, 7);
    g->nkv++;
}
static void long_key(h_gguf *g, size_t n) {
    h_buf b = {0};
    for (size_t i = 0; i < n; i++) h_u8(&b, 'k');
    key_n(g, b.p, n);
    h_buf_free(&b);
}
MAKE(k_empty, key_n(g, "", 0))
MAKE(k_twice, h_gguf_kv_u32(g, "general.architecture", 1))
MAKE(k_65535, long_key(g, 65535))
MAKE(k_65536, long_key(g, 65536))
MAKE(k_nul, key_n(g, "general.alignment\0x", 19))
MAKE(k_ctl, key_n(g, "a\x1f", 2))
MAKE(k_del, key_n(g, "a\x7f", 2))
MAKE(k_utf, key_n(g, "a\xc3\xa9", 3))
MAKE(k_space, key_n(g, "a b", 3))
static void k_huge(h_gguf *g) {
    h_u64(&g->kv, UINT64_MAX); /* n + 1 is 0 */
    g->nkv++;
}
MAKE(k_cut, h_u64(&g->kv, 60000); g->nkv++)
MAKE(t_13, h_gguf_kv(g, "x", 13, "aaaaaaaa", 8))
MAKE(t_max, h_gguf_kv(g, "x", UINT32_MAX, "aaaaaaaa", 8))
MAKE(b_2, h_gguf_kv_bool(g, "x", 2))
MAKE(b_255, h_gguf_kv_bool(g, "x", 255))
MAKE(b_arr, h_gguf_arr(g, "x", 7, 3, "\1\0\2", 3))
MAKE(b_arr_ok, h_gguf_arr(g, "x", 7, 3, "\1\0\1", 3))
MAKE(a_nested, h_gguf_arr(g, "x", 9, 1, "\4\0\0\0\0\0\0\0\0\0\0\0", 12))
MAKE(a_13, h_gguf_arr(g, "x", 13, 1, "aaaaaaaa", 8))
static void a_0(h_gguf *g) {
    for (uint32_t t = 0; t < 13; t++) {
        char key[8];
        snprintf(key, sizeof key, "x%u", t);
        if (t != 9) h_gguf_arr(g, key, t, 0, NULL, 0);
    }
}
MAKE(s_0, h_gguf_kv_str(g, "x", ""))
MAKE(a_long, h_gguf_arr(g, "x", 5, 4096, "aaaa", 4))
/* Times 8 this is 8. */
MAKE(a_wrap, h_gguf_arr(g, "x", 10, (1ull << 61) + 1, "aaaaaaaa", 8))
MAKE(a_2_63, h_gguf_arr(g, "x", 0, 1ull << 63, "a", 1))
MAKE(a_strs_long, h_gguf_arr(g, "x", 8, 1000, "\0\0\0\0\0\0\0\0", 8))
MAKE(a_strs_inner, h_gguf_arr(g, "x", 8, 2, "\0\0\0\0\0\0\0\0\xff\xff\0\0\0\0\0\0", 16))
MAKE(a_strs_wrap, h_gguf_arr(g, "x", 8, 1, "\xff\xff\xff\xff\xff\xff\xff\xff", 8))
MAKE(a_strs_big, h_gguf_arr(g, "x", 8, 1, "\1\0\0\4\0\0\0\0", 8))
static void s_len(h_gguf *g, uint64_t n) {
    h_gguf_kv(g, "x", 8, NULL, 0);
    h_u64(&g->kv, n);
}
MAKE(s_left, s_len(g, 100000))
MAKE(s_max, s_len(g, UINT64_MAX))
MAKE(s_2_31, s_len(g, 1ull << 31))
/* As a 32-bit number this is 1. */
MAKE(s_2_32, s_len(g, (1ull << 32) + 1))
MAKE(s_ceiling, s_len(g, Q4X_GGUF_MAX_STR + 1ull))
PATCH(grow_70m, h_zeros(b, 70u << 20))
MAKE(arch_u32, g->kv.n = 0, g->nkv = 0; h_gguf_kv_u32(g, "general.architecture", 1))
static void arch_is(h_gguf *g, const char *s) {
    g->kv.n = 0, g->nkv = 0;
    h_gguf_kv_str(g, "general.architecture", s);
}
MAKE(arch_0, arch_is(g, ""))
MAKE(arch_64, arch_is(g, "0123456789012345678901234567890123456789012345678901234567890123"))
MAKE(arch_esc, arch_is(g, "a\x1b[2J"))

static void test_keys(void **state) {
    (void)state;
    static const row rows[] = {
        {"empty key", k_empty, NULL, BAD, {"key 1", "a length of 1 to 65535 bytes, found 0"}},
        {"key twice", k_twice, NULL, BAD, {"key 1 'general.architecture'", "key 0 has already"}},
        {"key of 65535", k_65535, NULL, 0, {0}},
        {"key of 65536", k_65536, NULL, BAD, {"key 1", "found 65536"}},
        {"NUL in a key", k_nul, NULL, BAD, {"key 1", "found byte 0x00"}},
        {"control byte in a key", k_ctl, NULL, BAD, {"key 1", "found byte 0x1f"}},
        {"DEL in a key", k_del, NULL, BAD, {"key 1", "found byte 0x7f"}},
        {"UTF-8 in a key", k_utf, NULL, BAD, {"key 1", "found byte 0xc3"}},
        {"blank in a key", k_space, NULL, BAD, {"key 1", "found byte 0x20"}},
        {"key length 2^64-1", k_huge, NULL, BAD, {"key 1", "found 18446744073709551615"}},
        {"key longer than the file", k_cut, NULL, CUT, {"key 1", "expected 60000 more bytes"}},
        {"value type 13", t_13, NULL, BAD, {"key 1 'x': value type at byte", "found 13"}},
        {"value type 2^32-1", t_max, NULL, BAD, {"key 1 'x': value type at byte", "found 4294967295"}},
        {"bool 2", b_2, NULL, BAD, {"key 1 'x': value at byte", "found 2"}},
        {"bool 255", b_255, NULL, BAD, {"key 1 'x': value at byte", "found 255"}},
        {"bool 2 in an array", b_arr, NULL, BAD, {"key 1 'x': bool at byte", "found 2"}},
        {"bools", b_arr_ok, NULL, 0, {0}},
        {"nested array", a_nested, NULL, BAD, {"key 1 'x': element type", "nested array"}},
        {"element type 13", a_13, NULL, BAD, {"key 1 'x': element type", "found 13"}},
        {"arrays of none", a_0, NULL, 0, {0}},
        {"empty string", s_0, NULL, 0, {0}},
        {"array longer than the file", a_long, NULL, CUT, {"key 1 'x': element count", "found 4096"}},
        {"array bytes wrap", a_wrap, NULL, BAD, {"key 1 'x': element count", "found 2305843009213693953"}},
        {"array of 2^63", a_2_63, NULL, BAD, {"key 1 'x': element count"}},
        {"strings longer than the file", a_strs_long, NULL, CUT, {"key 1 'x': element count", "found 1000"}},
        {"string in an array cut",
         a_strs_inner,
         NULL,
         CUT,
         {"key 1 'x': length of a string in an array", "found 65535"}},
        {"string in an array 2^64-1", a_strs_wrap, NULL, BAD, {"key 1 'x': length of a string in an array"}},
        {"string in an array over the ceiling", a_strs_big, grow_70m, BAD, {"at most 67108864 bytes, found 67108865"}},
        {"string longer than the file", s_left, NULL, CUT, {"key 1 'x': length of the string", "found 100000"}},
        {"string 2^64-1", s_max, NULL, BAD, {"key 1 'x': length of the string", "found 18446744073709551615"}},
        {"string 2^31", s_2_31, NULL, BAD, {"key 1 'x': length of the string", "found 2147483648"}},
        {"string 2^32+1", s_2_32, NULL, BAD, {"key 1 'x': length of the string", "found 4294967297"}},
        {"string ceiling", s_ceiling, grow_70m, BAD, {"at most 67108864 bytes, found 67108865"}},
        {"architecture a number", arch_u32, NULL, BAD, {"key 0 'general.architecture'", "a string, found type u32"}},
        {"architecture empty", arch_0, NULL, BAD, {"key 0 'general.architecture'", "found 0"}},
        {"architecture 64 bytes", arch_64, NULL, BAD, {"key 0 'general.architecture'", "found 64"}},
        {"architecture with escapes", arch_esc, NULL, BAD, {"key 0 'general.architecture'", "found byte 0x1b"}},
    };
    RUN(rows);
}

/* ---- alignment ---- */

static void align(h_gguf *g, uint32_t a) {
    no_tensor(g);
    g->align = a >= 8 && a <= 65536 ? a : 32;
    h_gguf_kv_u32(g, "general.alignment", a);
    h_gguf_tensor(g, "w", 0, 1, NE8, NULL);
    h_gguf_tensor(g, "v", 0, 1, NE8, NULL);
}
MAKE(al_0, align(g, 0))
MAKE(al_1, align(g, 1))
MAKE(al_2, align(g, 2))
MAKE(al_3, align(g, 3))
MAKE(al_4, align(g, 4))
MAKE(al_8, align(g, 8))
MAKE(al_24, align(g, 24))
MAKE(al_64k, align(g, 65536))
MAKE(al_128k, align(g, 131072))
MAKE(al_2_31, align(g, 1u << 31))
MAKE(al_u64, h_gguf_kv_u64(g, "general.alignment", 32))
MAKE(al_arr, h_gguf_arr(g, "general.alignment", 4, 1, "\40\0\0\0", 4))

static void test_alignment(void **state) {
    (void)state;
    static const row rows[] = {
        {"0", al_0, NULL, BAD, {"general.alignment at byte", "found 0"}},
        {"1", al_1, NULL, BAD, {"general.alignment at byte", "found 1"}},
        {"2", al_2, NULL, BAD, {"general.alignment at byte", "found 2"}},
        {"3", al_3, NULL, BAD, {"general.alignment at byte", "found 3"}},
        {"4", al_4, NULL, BAD, {"a power of two from 8 to 65536, found 4"}},
        {"8", al_8, NULL, 0, {0}},
        {"24", al_24, NULL, BAD, {"general.alignment at byte", "found 24"}},
        {"65536", al_64k, NULL, 0, {0}},
        {"131072", al_128k, NULL, BAD, {"general.alignment at byte", "found 131072"}},
        {"2^31", al_2_31, NULL, BAD, {"general.alignment at byte", "found 2147483648"}},
        {"u64", al_u64, NULL, BAD, {"general.alignment at byte", "type u32, found u64"}},
        {"array", al_arr, NULL, BAD, {"general.alignment at byte", "type u32, found array of u32"}},
    };
    RUN(rows);
}

/* ---- tensors ---- */

static void rec(h_gguf *g, const void *name, size_t len, uint32_t nd, uint64_t a, uint64_t b, int32_t type) {
    uint64_t ne[8] = {a, b, 1, 1, 1, 1, 1, 1};
    h_gguf_record(g, name, len, nd, ne, type, g->next);
}
static const char n64[] = "0123456789012345678901234567890123456789012345678901234567890123";
MAKE(n_63, h_gguf_tensor(g, n64 + 1, 0, 1, NE8, NULL))
MAKE(n_64, h_gguf_tensor(g, n64, 0, 1, NE8, NULL))
MAKE(n_0, rec(g, "", 0, 1, 8, 1, 0))
MAKE(n_dup, h_gguf_tensor(g, "w", 0, 1, NE8, NULL))
MAKE(n_nul, rec(g, "w\0x", 3, 1, 8, 1, 0))
MAKE(n_ctl, rec(g, "v\n", 2, 1, 8, 1, 0))
MAKE(n_utf, rec(g, "v\xff", 2, 1, 8, 1, 0))
MAKE(d_0, rec(g, "v", 1, 0, 1, 1, 0))
MAKE(d_5, rec(g, "v", 1, 5, 8, 1, 0))
MAKE(d_max, h_str(&g->ti, "v"); h_u32(&g->ti, UINT32_MAX); g->ntensors++)
MAKE(ne_0, rec(g, "v", 1, 2, 8, 0, 0))
MAKE(ne_neg, rec(g, "v", 1, 2, 8, (uint64_t)-8, 0))
MAKE(ne_2_40, rec(g, "v", 1, 1, (1ull << 40) + 1, 1, 24))
MAKE(ne_wrap0, rec(g, "v", 1, 2, 1ull << 32, 1ull << 32, 0))
MAKE(ne_wrap1, rec(g, "v", 1, 2, 1ull << 62, 4, 0))
static void ne_wrap2(h_gguf *g) {
    uint64_t ne[4] = {1ull << 40, 1ull << 8, 1ull << 40, 8};
    h_gguf_record(g, "v", 1, 4, ne, 0, g->next);
}
MAKE(ne_2_48, rec(g, "v", 1, 2, 1ull << 40, 1ull << 9, 24))
MAKE(ne_limit, rec(g, "v", 1, 2, 1ull << 40, 1ull << 8, 28))
MAKE(ty_neg, rec(g, "v", 1, 1, 256, 1, -1))
MAKE(ty_min, rec(g, "v", 1, 1, 256, 1, INT32_MIN))
MAKE(ty_43, rec(g, "v", 1, 1, 256, 1, 43))
MAKE(ty_64, rec(g, "v", 1, 1, 256, 1, 64))
MAKE(ty_q81, h_gguf_tensor1(g, "v", 9, 256))
MAKE(ty_q8k, h_gguf_tensor1(g, "v", 15, 256))
MAKE(bl_33, rec(g, "v", 1, 1, 33, 1, 2))
/* 256 elements, but no row is a block. */
MAKE(bl_128, rec(g, "v", 1, 2, 128, 2, 12))
MAKE(of_gap, h_gguf_record(g, "v", 1, 1, NE8, 0, g->next + 32))
MAKE(of_same, h_gguf_record(g, "v", 1, 1, NE8, 0, 0))
MAKE(of_odd, h_gguf_record(g, "v", 1, 1, NE8, 0, g->next + 1))
MAKE(of_max, h_gguf_record(g, "v", 1, 1, NE8, 0, UINT64_MAX - 31))
static void of_swap(h_gguf *g) {
    no_tensor(g);
    h_gguf_record(g, "v", 1, 1, NE8, 0, 32);
    h_gguf_record(g, "w", 1, 1, NE8, 0, 0);
    h_zeros(&g->data, 64);
}
/* Every tensor is legal alone; the sum of their sizes passes 2^64. */
static void sum_wraps(h_gguf *g) {
    no_tensor(g);
    uint64_t ne[2] = {1ull << 40, 1ull << 8}, off = 0;
    for (int i = 0; i < 8193; i++) {
        char name[16];
        int len = snprintf(name, sizeof name, "t%d", i);
        h_gguf_record(g, name, (size_t)len, 2, ne, 28, off);
        off += 1ull << 51;
    }
}
PATCH(cut_1, b->n -= 1)
PATCH(cut_pad, b->n -= 8)
PATCH(tail, h_put(b, "trailing", 8))
MAKE(unpadded, h_gguf_tensor1(g, "v", 24, 24); g->no_tail = 1)
MAKE(padded, h_gguf_tensor1(g, "v", 24, 24))
static void dirty(h_buf *b) { /* the padding of the header and that before "v" */
    for (size_t i = b->n - 64; i < b->n - 32; i++) b->p[i] ^= 0xa5;
}
MAKE(far, rec(g, "v", 1, 1, 1ull << 20, 1, 0))
/* Up to the end of the last record. */
PATCH(no_room, b->n = 24 + 35 + 8 + 8 + 1 + 4 + 8 + 4 + 8)

static void test_tensors(void **state) {
    (void)state;
    static const row rows[] = {
        {"name of 63", n_63, NULL, 0, {0}},
        {"name of 64", n_64, NULL, BAD, {"tensor 1: name at byte", "found 64"}},
        {"empty name", n_0, NULL, BAD, {"tensor 1: name at byte", "found 0"}},
        {"name twice", n_dup, NULL, BAD, {"tensor 1 'w': name at byte", "tensor 0 of"}},
        {"NUL in a name", n_nul, NULL, BAD, {"tensor 1: name at byte", "found byte 0x00"}},
        {"newline in a name", n_ctl, NULL, BAD, {"tensor 1: name at byte", "found byte 0x0a"}},
        {"non-ASCII name", n_utf, NULL, BAD, {"tensor 1: name at byte", "found byte 0xff"}},
        {"0 dimensions", d_0, NULL, BAD, {"tensor 1 'v': n_dims at byte", "found 0"}},
        {"5 dimensions", d_5, NULL, BAD, {"tensor 1 'v': n_dims at byte", "found 5"}},
        {"2^32-1 dimensions", d_max, NULL, BAD, {"tensor 1 'v': n_dims at byte", "found 4294967295"}},
        {"dimension 0", ne_0, NULL, BAD, {"tensor 1 'v': dimension 1 at byte", "found 0"}},
        {"dimension -8", ne_neg, NULL, BAD, {"tensor 1 'v': dimension 1 at byte", "1 to 2^40"}},
        {"dimension over 2^40", ne_2_40, NULL, BAD, {"tensor 1 'v': dimension 0 at byte", "found 1099511627777"}},
        {"product wraps to 0", ne_wrap0, NULL, BAD, {"tensor 1 'v': dimension 1 at byte", "2^48"}},
        {"product wraps to 0 (2^62, 4)", ne_wrap1, NULL, BAD, {"tensor 1 'v': dimension 0 at byte"}},
        {"product of four wraps", ne_wrap2, NULL, BAD, {"tensor 1 'v': dimension 2 at byte"}},
        {"product over 2^48", ne_2_48, NULL, BAD, {"tensor 1 'v': dimension 1 at byte", "2^48"}},
        {"product of 2^48", ne_limit, NULL, CUT, {"tensor 1 'v': data at byte", "expected 2251799813685248 bytes"}},
        {"type -1", ty_neg, NULL, UNS, {"tensor 1 'v': type at byte", "found -1"}},
        {"type -2^31", ty_min, NULL, UNS, {"tensor 1 'v': type at byte", "found -2147483648"}},
        {"type 43", ty_43, NULL, UNS, {"tensor 1 'v': type at byte", "found 43"}},
        {"type 64", ty_64, NULL, UNS, {"tensor 1 'v': type at byte", "found 64"}},
        {"type Q8_1", ty_q81, NULL, BAD, {"tensor 1 'v': type at byte", "found Q8_1 (9)"}},
        {"type Q8_K", ty_q8k, NULL, BAD, {"tensor 1 'v': type at byte", "found Q8_K (15)"}},
        {"row of 33 in Q4_0", bl_33, NULL, BAD, {"tensor 1 'v': type at byte", "blocks of 32 for Q4_0"}},
        {"row of 128 in Q4_K", bl_128, NULL, BAD, {"tensor 1 'v': type at byte", "dimension 0 = 128"}},
        {"gap",
         of_gap,
         NULL,
         BAD,
         {"tensor 1 'v': offset at byte", "expected 32, where the tensor before ends, found 64"}},
        {"overlap", of_same, NULL, BAD, {"tensor 1 'v': offset at byte", "found 0"}},
        {"odd offset", of_odd, NULL, BAD, {"tensor 1 'v': offset at byte", "found 33"}},
        {"offset near 2^64", of_max, NULL, BAD, {"tensor 1 'v': offset at byte"}},
        {"out of order", of_swap, NULL, BAD, {"tensor 0 'v': offset at byte", "found 32"}},
        {"sum of sizes wraps", sum_wraps, NULL, BAD, {"tensor 8191 't8191': offset at byte", "fits in 64 bits"}},
        {"last byte of data missing", NULL, cut_1, CUT, {"tensor 0 'w': data at byte", "found 31 before the end"}},
        {"larger than the data present", far, NULL, CUT, {"tensor 1 'v': data at byte", "expected 4194304 bytes"}},
        {"no room for data at all", NULL, no_room, CUT, {"padding at byte"}},
        {"tail padding", padded, NULL, 0, {0}},
        {"no tail padding", unpadded, NULL, 0, {0}},
        {"half a tail padding", padded, cut_pad, 0, {0}},
        {"last byte of unpadded data missing", unpadded, cut_1, CUT, {"tensor 1 'v': data at byte", "found 23"}},
        {"trailing bytes", NULL, tail, 0, {0}},
        {"padding not zero", padded, dirty, 0, {0}},
    };
    RUN(rows);
}

/* Every id from -2 to 70: accepted exactly when the list says that files hold it. */
static void test_types(void **state) {
    (void)state;
    static const int stored[71] = {
#define QUANT(id, name, elems, bytes, stored) [id] = stored,
#include "kernels/quants.def"
#undef QUANT
    };
    int accepted = 0;
    for (int32_t id = -2; id <= 70; id++) {
        h_gguf g;
        base(&g);
        if (id >= 0 && id <= 42 && stored[id])
            h_gguf_tensor1(&g, "v", id, 512);
        else
            rec(&g, "v", 1, 1, 512, 1, id);
        h_buf b = h_gguf_bytes(&g);
        q4x_err err = {0};
        int rc = open_both(&b, &err);
        assert_int_equal(rc == 0, id >= 0 && stored[id]);
        accepted += rc == 0;
        h_buf_free(&b);
        h_gguf_free(&g);
    }
    assert_int_equal(accepted, 33);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--seeds"))
        seeds = argv[2];
    else if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head),    cmocka_unit_test(test_keys),  cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_tensors), cmocka_unit_test(test_types),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
