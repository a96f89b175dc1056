/* t_export.c: full tensors out as safetensors: names, bytes, head order, masks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/h_dump.h"
#include "tests/h_rand.h"

/* ---- a reader of safetensors that shares nothing with the writer ---- */

typedef struct {
    char dtype[8];
    long shape[3];
    int ndim;
    const uint8_t *data;
    size_t bytes;
} tensor;

/* 1 when the file has key; every offset is held against the file. */
static int find(const uint8_t *file, size_t n, const char *key, tensor *t) {
    uint64_t head;
    char quoted[128];
    memcpy(&head, file, 8);
    assert_true(n >= 8 && head <= n - 8 && (8 + head) % 8 == 0 && file[8] == '{');
    char *text = malloc(head + 1);
    memcpy(text, file + 8, head);
    text[head] = 0;
    snprintf(quoted, sizeof quoted, "\"%s\":{\"dtype\":\"", key);
    char *p = strstr(text, quoted);
    int found = p != NULL;
    if (p) {
        long a, b;
        *t = (tensor){.ndim = 0};
        p += strlen(quoted);
        assert_int_equal(sscanf(p, "%7[A-Z0-9]\",\"shape\":[", t->dtype), 1);
        p = strstr(p, "\"shape\":[") + 9;
        for (; *p != ']'; p += *p == ',') t->shape[t->ndim++] = strtol(p, &p, 10);
        assert_memory_equal(p, "],\"data_offsets\":[", 18);
        a = strtol(p + 18, &p, 10);
        assert_true(*p == ',');
        b = strtol(p + 1, &p, 10);
        assert_memory_equal(p, "]}", 2);
        assert_true(0 <= a && a <= b && (size_t)b <= n - 8 - head);
        t->data = file + 8 + head + a;
        t->bytes = (size_t)(b - a);
        size_t want = t->dtype[0] == 'B' || !strcmp(t->dtype, "F16") ? 2 : 4;
        assert_true((size_t)(t->data - file - 8 - (ptrdiff_t)head) % want == 0);
        for (int i = 0; i < t->ndim; i++) want *= (size_t)t->shape[i];
        assert_int_equal(t->bytes, want);
    }
    free(text);
    return found;
}

/* Bytes of all tensors: the data section has neither holes nor a tail. */
static size_t total(const uint8_t *file, size_t n) {
    uint64_t head;
    memcpy(&head, file, 8);
    return n - 8 - (size_t)head;
}

static q4x_dump *written(q4x_dump *made) {
    q4x_dump *d = NULL;
    q4x_err err = {0};
    if (h_dump_write(made, h_temp("a.q4d"), NULL, &err) || q4x_dump_read(h_temp("a.q4d"), &d, &err))
        fail_msg("%s", err.msg);
    return d;
}

static uint8_t *exported(const q4x_dump *d, size_t *n) {
    q4x_err err = {0};
    q4x_export_done done;
    if (q4x_dump_export(d, h_temp("a.safetensors"), &done, &err)) fail_msg("%s", err.msg);
    uint8_t *file = h_file_read(h_temp("a.safetensors"), n);
    int64_t keys = 0;
    for (size_t i = 0; i + 7 <= *n; i++) keys += !memcmp(file + i, "\"dtype\"", 7);
    assert_int_equal(done.tensors, keys);
    assert_int_equal(done.bytes, *n);
    return file;
}

static const char *const NAMES[H_NODES] = {"emb",
                                           "wide",
                                           NULL,
                                           "L00.gdn.v",
                                           "L00.moe.ids",
                                           "L00.moe.weights",
                                           "L03.attn.idx.sel",
                                           "L03.moe",
                                           "logits",
                                           "L00.state.delta",
                                           "L01.state.hist"};

static void test_tensors(void **state) {
    (void)state;
    for (int nonfinite = 0; nonfinite < 2; nonfinite++) {
        h_dump_opts o = h_dump_small;
        o.full = 1;
        o.nonfinite = nonfinite;
        q4x_dump *made = h_dump_make(&o), *d = written(made);
        size_t n, m, bytes = 0;
        uint8_t *file = exported(d, &n);
        for (int f = 0; f < 3; f++)
            for (int node = 0; node < H_NODES; node++) {
                char key[64];
                tensor t = {0};
                if (!NAMES[node]) continue;
                snprintf(key, sizeof key, "f%d/%s", f, NAMES[node]);
                const q4x_tap *tap = q4x_dump_tap(made, f, node);
                assert_true(find(file, n, key, &t));
                assert_string_equal(t.dtype, made->nodes[node].is_ids ? "I32" : node == H_HALF ? "BF16" : "F32");
                assert_true(t.ndim == 2 && t.shape[0] == tap->rows && t.shape[1] == tap->cols);
                int moved = memcmp(t.data, tap->full, t.bytes) != 0;
                assert_int_equal(moved, node == H_V || node == H_DELTA);
                assert_null(q4x_dump_tap(d, f, node)->full); /* export keeps nothing in the dump */
                bytes += t.bytes;
            }
        for (int f = 0; f < 3; f++) {
            tensor t = {0};
            char key[64];
            snprintf(key, sizeof key, "f%d/L03.attn.sel", f);
            assert_true(find(file, n, key, &t));
            bytes += t.bytes;
        }
        assert_int_equal(bytes, total(file, n));
        tensor t = {0};
        assert_false(find(file, n, "f0/L00.in", &t)); /* twins: what is not there is not found */
        assert_false(find(file, n, "f3/emb", &t));
        /* from structures of an importer: the same bytes but for the content hash */
        uint8_t *other = exported(made, &m);
        assert_int_equal(n, m);
        assert_memory_equal(file + n - bytes, other + m - bytes, bytes);
        free(other);
        free(file);
        q4x_dump_free(d);
        q4x_dump_free(made);
        h_temp_remove();
    }
}

/* nv = 6 heads over nk = 2: GGUF's head r * 2 + k is HF's k * 3 + r (spec 9.4). */
static void test_heads(void **state) {
    (void)state;
    h_dump_opts o = h_dump_small;
    o.full = 1;
    q4x_dump *made = h_dump_make(&o), *d = written(made);
    size_t n;
    uint8_t *file = exported(d, &n);
    for (int f = 0; f < 3; f++) {
        char key[64];
        tensor v = {0}, s = {0};
        snprintf(key, sizeof key, "f%d/L00.gdn.v", f);
        assert_true(find(file, n, key, &v));
        const q4x_tap *tap = q4x_dump_tap(made, f, H_V);
        for (long t = 0; t < v.shape[0]; t++)
            for (int c = 0; c < 22; c++) {
                int from = c; /* heads of width 3 from column 2 on: columns 2 .. 19 */
                if (c >= 2 && c < 20) {
                    int hf = (c - 2) / 3, k = hf / 3, r = hf % 3;
                    from = 2 + (r * 2 + k) * 3 + (c - 2) % 3;
                }
                assert_memory_equal(v.data + 4 * (t * 22 + c), (const float *)tap->full + t * 22 + from, 4);
            }
        snprintf(key, sizeof key, "f%d/L00.state.delta", f);
        assert_true(find(file, n, key, &s));
        tap = q4x_dump_tap(made, f, H_DELTA);
        for (int row = 0; row < 12; row++) { /* heads of 2 rows */
            int hf = row / 2, k = hf / 3, r = hf % 3, from = (r * 2 + k) * 2 + row % 2;
            assert_memory_equal(s.data + 16 * row, (const float *)tap->full + 4 * from, 16);
        }
    }
    free(file);
    q4x_dump_free(d);
    q4x_dump_free(made);
    h_temp_remove();
}

static void test_heads_to_hf(void **state) {
    (void)state;
    h_rand r = {3};
    q4x_err err = {0};
    for (int i = 0; i < 300; i++) {
        int nk = 1 + (int)h_below(&r, 4), per = 1 + (int)h_below(&r, 4), width = 1 + (int)h_below(&r, 3);
        int off = (int)h_below(&r, 3), axis = 1 + (int)h_below(&r, 2), tail = (int)h_below(&r, 3);
        q4x_heads h = {axis, off, width, nk, nk * per, i % 5 != 0};
        int along = off + nk * per * width + tail, across = (int)h_below(&r, 4);
        int rows = axis == 2 ? along : across, cols = axis == 2 ? across : along;
        uint16_t x[400] = {0}, y[400];
        assert_true(rows * cols <= 400);
        for (int k = 0; k < rows * cols; k++) x[k] = y[k] = (uint16_t)k;
        assert_int_equal(q4x_heads_to_hf(&h, y, 2, rows, cols, &err), 0);
        for (int row = 0; row < rows; row++)
            for (int col = 0; col < cols; col++) {
                int at = axis == 2 ? row : col, from = at, g = (at - off) / width;
                if (h.gguf && at >= off && g < h.nv) from = off + (g % per * nk + g / per) * width + (at - off) % width;
                assert_int_equal(y[row * cols + col], axis == 2 ? x[from * cols + col] : x[row * cols + from]);
            }
        if (!across || !h.gguf) continue;
        h.off = along; /* past the end: refused, nothing written */
        assert_int_equal(q4x_heads_to_hf(&h, y, 2, rows, cols, &err), Q4X_E_FORMAT);
    }
    q4x_heads bad = {1, 0, INT32_MAX, 1, 2, 1}, none = {0};
    float one = 1;
    assert_int_equal(q4x_heads_to_hf(&bad, &one, 4, 1, 1, &err), Q4X_E_FORMAT);
    assert_int_equal(q4x_heads_to_hf(&none, &one, 4, 1, 1, &err), 0);
    bad.nv = 0, bad.width = 1;
    assert_int_equal(q4x_heads_to_hf(&bad, &one, 4, 1, 1, &err), Q4X_E_FORMAT);
}

/* The mask from its words: a query at pos sees the tokens of its blocks and those past the last whole block. */
static void test_mask(void **state) {
    (void)state;
    h_dump_opts o = h_dump_small;
    o.full = 1;
    q4x_dump *made = h_dump_make(&o), *d = written(made);
    size_t n;
    uint8_t *file = exported(d, &n);
    int visible = 0, pruned = 0;
    for (int f = 0; f < 3; f++) {
        char key[64];
        tensor t = {0};
        snprintf(key, sizeof key, "f%d/L03.attn.sel", f);
        assert_true(find(file, n, key, &t));
        const q4x_tap *tap = q4x_dump_tap(made, f, H_IDX);
        int T = f ? 1 : 9, pos0 = f ? 8 + f : 0;
        assert_true(t.ndim == 3 && t.shape[0] == 1 && t.shape[1] == T && t.shape[2] == pos0 + T);
        for (int q = 0; q < T; q++)
            for (int j = 0; j < pos0 + T; j++) {
                int pos = pos0 + q, see = j <= pos && j / 4 == (pos + 1) / 4;
                for (int i = 0; i < tap->cols; i++) see |= ((const int32_t *)tap->full)[q * tap->cols + i] == j / 4;
                float v;
                memcpy(&v, t.data + 4 * (q * (pos0 + T) + j), 4);
                assert_true(v == (see ? 0.0f : -FLT_MAX));
                visible += see;
                pruned += !see && j <= pos;
            }
    }
    assert_true(visible > 30 && pruned == 0); /* 2 blocks of at most 2 whole ones: nothing is pruned yet */
    free(file);
    /* one block fewer, and the mask hides its tokens */
    q4x_tap *tap = q4x_dump_tap(made, 2, H_IDX);
    ((int32_t *)tap->full)[1] = tap->sel.ids[1] = -1;
    tap->bits = q4x_bits_of(Q4X_BITS_RAW, tap->full, 8);
    file = exported(made, &n);
    tensor t = {0};
    assert_true(find(file, n, "f2/L03.attn.sel", &t));
    for (int j = 0; j < 11; j++) {
        float v;
        memcpy(&v, t.data + 4 * j, 4);
        pruned += v != 0;
    }
    assert_int_equal(pruned, 4);
    free(file);
    /* a block of the future, or nonsense, is an error */
    const int32_t bad[] = {2, -2, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        q4x_err err = {0};
        ((int32_t *)tap->full)[1] = tap->sel.ids[1] = bad[i];
        tap->bits = q4x_bits_of(Q4X_BITS_RAW, tap->full, 8);
        remove(h_temp("a.safetensors"));
        assert_int_equal(q4x_dump_export(made, h_temp("a.safetensors"), NULL, &err), Q4X_E_FORMAT);
        assert_non_null(strstr(err.msg, "f2/L03.attn.idx.sel"));
        assert_int_equal(h_temp_count(), 1); /* the dump: nothing half-written */
    }
    q4x_dump_free(d);
    q4x_dump_free(made);
    h_temp_remove();
}

/* Without the ratio, or with positions that the dump's ids do not reach, there is no mask: said in the metadata. */
static void test_no_mask(void **state) {
    (void)state;
    for (int what = 0; what < 4; what++) {
        h_dump_opts o = h_dump_small;
        o.full = 1;
        q4x_dump *made = h_dump_make(&o);
        if (what == 0) json_object_del(made->header, "qsa");
        if (what == 1) json_object_set_new(json_object_get(made->header, "qsa"), "ratio", json_integer(0));
        if (what == 2) json_object_set_new(json_object_get(made->header, "qsa"), "ratio", json_integer(INT64_MAX));
        if (what == 3) made->forwards[2].pos0 = 2000000000;
        size_t n;
        uint8_t *file = exported(made, &n);
        tensor t = {0};
        assert_int_equal(find(file, n, "f0/L03.attn.sel", &t), what == 3);
        assert_false(find(file, n, "f2/L03.attn.sel", &t));
        assert_true(find(file, n, "f2/L03.attn.idx.sel", &t));
        assert_non_null(memmem(file, n, what == 3 ? "left_out\":\"1\"" : "left_out\":\"3\"", 13));
        free(file);
        q4x_dump_free(made);
    }
    h_temp_remove();
}

static void test_refusals(void **state) {
    (void)state;
    h_dump_opts o = h_dump_small;
    q4x_err err = {0};
    q4x_dump *made = h_dump_make(&o), *d = written(made);
    assert_int_equal(q4x_dump_export(d, h_temp("a.safetensors"), NULL, &err), Q4X_E_ARG); /* no full tensor */
    assert_non_null(strstr(err.msg, "--mode full"));
    q4x_tap *t = q4x_dump_tap(d, 0, H_EMB);
    assert_int_equal(q4x_dump_full(d, t, &err), Q4X_E_ARG);
    assert_null(t->full);
    assert_int_equal(h_temp_count(), 1);
    q4x_dump_free(d);
    q4x_dump_free(made);
    o.full = 1;
    made = h_dump_make(&o);
    ((uint8_t *)q4x_dump_tap(made, 1, H_HALF)->full)[3] ^= 1; /* no longer its bits */
    assert_int_equal(q4x_dump_export(made, h_temp("a.safetensors"), NULL, &err), Q4X_E_CHECKSUM);
    assert_non_null(strstr(err.msg, "f1/L03.moe"));
    ((uint8_t *)q4x_dump_tap(made, 1, H_HALF)->full)[3] ^= 1;
    assert_int_equal(q4x_dump_export(made, h_temp("no/a.safetensors"), NULL, &err), Q4X_E_IO);
    made->nodes[H_V].heads.off = 5; /* heads that do not fit */
    assert_int_equal(q4x_dump_export(made, h_temp("a.safetensors"), NULL, &err), Q4X_E_FORMAT);
    assert_int_equal(h_temp_count(), 1);
    q4x_dump_free(made);
    h_temp_remove();
}

/* Full tensors of every element size and of sizes around the coder's steps come back exactly. */
static void test_full_sizes(void **state) {
    (void)state;
    h_rand r = {9};
    const int sizes[] = {0, 1, 2, 3, 520, 65535, 65536, 65537, 200000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 4; kind++) {
            h_dump_opts o = h_dump_small;
            o.forwards = 1;
            o.full = 1;
            q4x_dump *made = h_dump_make(&o);
            q4x_tap *t = q4x_dump_tap(made, 0, kind == 3 ? H_HALF : H_V);
            size_t n = (size_t)sizes[i], elem = kind == 3 ? 2 : 4;
            free(t->full);
            uint8_t *x = t->full = malloc(n * 4 + 4);
            made->nodes[H_V].heads.axis = 0;
            for (size_t k = 0; k < n; k++) {
                uint32_t u = (uint32_t)h_rand64(&r); /* kind 0: random bits, stored as they are */
                float f = (float)h_gaussian(&r);
                if (kind) memcpy(&u, &f, 4); /* 1: shrinks; 2: constant; 3: 16 bits */
                if (kind == 2) u = 0x7f800123;
                memcpy(x + k * elem, &u, elem);
            }
            t->rows = 1, t->cols = sizes[i];
            t->bits = q4x_bits_of(kind == 3 ? Q4X_BITS_BF16 : Q4X_BITS_F32, x, n * elem);
            q4x_dump *d = written(made);
            assert_true(h_dump_equal(made, d));
            size_t bytes, whole = n * elem;
            free(h_file_read(h_temp("a.q4d"), &bytes));
            if (kind == 2 && n > 60000) assert_true(bytes < whole / 4);
            if (kind == 1 && n > 60000) assert_true(bytes < whole);
            q4x_dump_free(d);
            q4x_dump_free(made);
        }
    h_temp_remove();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),    cmocka_unit_test(test_heads),   cmocka_unit_test(test_heads_to_hf),
        cmocka_unit_test(test_mask),       cmocka_unit_test(test_no_mask), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_full_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
