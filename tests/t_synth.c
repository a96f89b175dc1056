/* t_synth.c: synthetic models: bytes follow from the seed alone, whatever the threads, portions and files; blocks of
 * every type are valid, of mean 0 and the size that was asked for; the file says what it is; the tiny one runs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/quant.h"
#include "lib/greedy.h"
#include "lib/hash.h"
#include "tests/check.h"
#include "tests/h_forward.h"
#include "tests/h_synth.h"

static char dir[] = "/tmp/q4x-synth-XXXXXX";

static int setup(void **state) {
    (void)state;
    return !mkdtemp(dir);
}

static int teardown(void **state) {
    (void)state;
    return rmdir(dir);
}

/* ---- blocks ---- */

static int holds_weights(int32_t type) {
    q4x_fill f;
    return !q4x_fill_spread(type, 1, &f);
}

/* Of every type and size: finite, as large as asked, mean 0 within four standard errors. */
static void test_spread(void **state) {
    (void)state;
    enum { BLOCKS = 4096 };
    static const double sizes[] = {0.0036, 0.05, 1, 50};
    static float x[BLOCKS * 256];
    uint8_t *b = aligned_alloc(64, BLOCKS * 256 + 64);
    int types = 0;
    assert_non_null(b);
    for (int32_t t = 0; t < 64; t++) {
        if (!holds_weights(t)) continue;
        const k_quant *q = k_quant_get(t);
        int64_t blocks = q->elems == 1 ? BLOCKS * 32 : BLOCKS, n = blocks * q->elems;
        double worst_size = 0, worst_mean = 0;
        for (size_t i = t == K_T_NVFP4; i < sizeof sizes / sizeof *sizes; i++) { /* its scales end at 2^-10 */
            q4x_fill f;
            double sum = 0, squares = 0;
            assert_int_equal(q4x_fill_spread(t, sizes[i], &f), 0);
            q4x_fill_blocks(&f, q4x_fill_key("a.weight", i), 0, blocks, b);
            q->decode(b, x, blocks);
            for (int64_t k = 0; k < n; k++) {
                assert_true(fabsf(x[k]) < 1e4f);
                sum += (double)x[k];
                squares += (double)x[k] * (double)x[k];
            }
            double rms = sqrt(squares / (double)n), off = fabs(rms / sizes[i] - 1);
            double mean = fabs(sum / (double)n) / rms * sqrt((double)n);
            if (off > worst_size) worst_size = off;
            if (mean > worst_mean) worst_mean = mean;
        }
        print_message("    %-8s size within %.1f %%, mean within %.1f standard errors\n", q->name, 100 * worst_size,
                      worst_mean);
        assert_true(worst_size < (t == K_T_MXFP4 ? 0.1 : 0.02)); /* powers of two are far apart */
        assert_true(worst_mean < 4);
        types++;
    }
    assert_int_equal(types, 28);
    free(b);
}

/* Any part, made alone, is that part of the whole; another key gives other bytes. */
static void test_parts(void **state) {
    (void)state;
    enum { N = 200 };
    static uint64_t whole[N * 256 / 8 + 8], part[N * 256 / 8 + 8];
    for (int32_t t = 0; t < 64; t++) {
        q4x_fill f;
        if (q4x_fill_spread(t, 0.1, &f)) continue;
        size_t bytes = (size_t)k_quant_get(t)->bytes;
        uint64_t key = q4x_fill_key("blk.0.x.weight", 3);
        q4x_fill_blocks(&f, key, 0, N, whole);
        for (int64_t at = 0; at < N; at += 8)
            for (int64_t n = 1; n <= N - at; n += 37) {
                q4x_fill_blocks(&f, key, at, n, part);
                assert_memory_equal(part, (uint8_t *)whole + (size_t)at * bytes, (size_t)n * bytes);
            }
        q4x_fill_blocks(&f, q4x_fill_key("blk.1.x.weight", 3), 0, N, part);
        assert_memory_not_equal(part, whole, N * bytes);
        q4x_fill_blocks(&f, q4x_fill_key("blk.0.x.weight", 4), 0, N, part);
        assert_memory_not_equal(part, whole, N * bytes);
    }
}

static void test_range(void **state) {
    (void)state;
    enum { N = 20000 };
    static uint64_t raw[N / 2 + 4];
    const float *x = (const float *)raw;
    q4x_fill f;
    double sum = 0, logs = 0;
    q4x_fill_range(0.5, 1.1, 0, &f);
    q4x_fill_blocks(&f, 9, 0, N, raw);
    for (int i = 0; i < N; i++) {
        assert_true(x[i] >= 0.5f && x[i] <= 1.1f);
        sum += (double)x[i];
    }
    assert_true(fabs(sum / N - 0.8) < 0.005);
    q4x_fill_range(-4, 1, 1, &f);
    q4x_fill_blocks(&f, 9, 0, N, raw);
    for (int i = 0; i < N; i++) {
        assert_true(x[i] <= -0.0183f && x[i] >= -2.7183f);
        logs += log(-(double)x[i]);
    }
    assert_true(fabs(logs / N + 1.5) < 0.05);
}

/* Every tensor of the released files has a class that its type can hold. */
static void test_classes(void **state) {
    (void)state;
    for (int g = 0; g < Q4X_GEOMETRIES; g++)
        for (int ft = 0; ft < Q4X_FT_COUNT; ft++) {
            q4x_geometry_tensor *t = NULL;
            int64_t n = 0;
            q4x_err err = {0};
            assert_rc_ok(q4x_geometry_tensors(&q4x_geometries[g], (q4x_file_type)ft, &t, &n, &err), &err);
            for (int64_t i = 0; i < n; i += ft ? 43 : 7) {
                q4x_fill f;
                q4x_tensor x = {.name = t[i].name, .type = t[i].type, .ne = {t[i].ne[0]}};
                assert_rc_ok(q4x_synth_fill_of(&x, &f, &err), &err);
                assert_int_equal(f.type, x.type);
            }
            free(t);
        }
    q4x_fill f;
    q4x_err err = {0};
    q4x_tensor bad = {.name = "blk.0.ssm_a", .type = K_T_Q8_0, .ne = {32}};
    assert_int_equal(q4x_synth_fill_of(&bad, &f, &err), Q4X_E_ARG);
    assert_non_null(strstr(err.msg, "ssm_a: expected F32"));
    bad = (q4x_tensor){.name = "x.weight", .type = K_T_I32, .ne = {32}};
    assert_int_equal(q4x_synth_fill_of(&bad, &f, &err), Q4X_E_ARG);
}

/* ---- files ---- */

static const char *in_dir(const char *name) {
    static char path[4][96];
    static int i;
    char *p = path[i++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static void remove_set(const char *stem, int shards) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s.gguf", dir, stem);
    for (int i = 1; i <= shards; i++) {
        if (shards > 1) snprintf(path, sizeof path, "%s/%s-%05d-of-%05d.gguf", dir, stem, i, shards);
        assert_int_equal(unlink(path), 0);
    }
}

/* Hash of all tensors' bytes in order. */
static void content(const char *path, int want_shards, char hex[33]) {
    q4x_model *m = NULL;
    q4x_err err = {0};
    q4x_bits *b = q4x_bits_new();
    assert_non_null(b);
    assert_rc_ok(q4x_model_open(path, &m, &err), &err);
    assert_int_equal(q4x_model_nshards(m), want_shards);
    q4x_bits_begin(b, Q4X_BITS_RAW);
    for (int64_t i = 0; i < q4x_model_ntensors(m); i++) {
        const q4x_tensor *t = q4x_model_tensor(m, i);
        assert_int_equal(q4x_bits_add(b, t->data, t->bytes), 0);
    }
    q4x_hash h = q4x_bits_end(b);
    q4x_hash_hex(&h, hex);
    q4x_bits_free(b);
    q4x_model_close(m);
}

static void test_seed(void **state) {
    (void)state;
    static const struct {
        uint64_t seed;
        int shards, threads, same;
    } row[] = {
        {0, 1, 1, 1}, {0, 1, 3, 1}, {0, 2, 2, 1}, {0, 3, 1, 1}, {0, 7, 0, 1}, {1, 1, 1, 0}, {1234567890123, 1, 1, 0}};
    const q4x_geometry *g = q4x_geometry_find("tiny");
    char hex[33];
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char first[40] = "s.gguf";
        if (row[i].shards > 1) snprintf(first, sizeof first, "s-00001-of-%05d.gguf", row[i].shards);
        q4x_synth_cost cost = h_synth(in_dir("s.gguf"), g, g->type, row[i].seed, row[i].shards, row[i].threads);
        assert_true(cost.bytes > 5000000 && cost.made > 0 && cost.seconds > 0);
        content(in_dir(first), row[i].shards, hex);
        /* the same on every machine and in every version that reads these files as equal */
        if (row[i].same != !strcmp(hex, "850f0247d9e580cdc88572687c89e6fa")) fail_msg("row %zu: %s", i, hex);
        remove_set("s", row[i].shards);
    }
}

/* What a cut keeps of a tensor is what the whole has there. */
static void test_cut(void **state) {
    (void)state;
    const q4x_geometry *g = q4x_geometry_find("tiny");
    q4x_geometry cut = *g;
    q4x_model *a = NULL, *b = NULL;
    q4x_err err = {0};
    cut.L = 3, cut.E = 8, cut.V = 700;
    h_synth(in_dir("a.gguf"), g, g->type, 3, 0, 1);
    h_synth(in_dir("b.gguf"), &cut, g->type, 3, 0, 1);
    assert_rc_ok(q4x_model_open(in_dir("a.gguf"), &a, &err), &err);
    assert_rc_ok(q4x_model_open(in_dir("b.gguf"), &b, &err), &err);
    assert_true(q4x_model_ntensors(b) < q4x_model_ntensors(a));
    for (int64_t i = 0; i < q4x_model_ntensors(b); i++) {
        const q4x_tensor *t = q4x_model_tensor(b, i), *whole = q4x_model_find(a, t->name);
        assert_non_null(whole);
        assert_true(t->bytes <= whole->bytes && !memcmp(t->data, whole->data, t->bytes));
    }
    q4x_model_close(a);
    q4x_model_close(b);
    remove_set("a", 1);
    remove_set("b", 1);
}

static void test_label(void **state) {
    (void)state;
    const q4x_geometry *g = q4x_geometry_find("tiny");
    const char *path = in_dir("l.gguf"), *s;
    size_t n;
    int yes = 0;
    uint64_t seed = 0;
    q4x_err err = {0};
    q4x_model *m = NULL;
    h_synth(path, g, Q4X_FT_IQ3_S, 77, 0, 1);
    assert_rc_ok(q4x_model_open(path, &m, &err), &err);
    assert_true(!q4x_kv_bool(m, "q4x.synthetic", &yes, &err) && yes == 1);
    assert_true(!q4x_kv_u64(m, "q4x.synthetic.seed", &seed, &err) && seed == 77);
    assert_true(!q4x_kv_str(m, "q4x.synthetic.geometry", &s, &n, &err) && n == 4 && !memcmp(s, "tiny", 4));
    assert_true(!q4x_kv_str(m, "q4x.synthetic.file_type", &s, &n, &err) && n == 5 && !memcmp(s, "IQ3_S", 5));
    assert_true(!q4x_kv_str(m, "general.name", &s, &n, &err) && memmem(s, n, "synthetic", 9));
    assert_true(!q4x_kv_str(m, "general.description", &s, &n, &err) && !memcmp(s, "SYNTHETIC", 9) &&
                memmem(s, n, "seed 77", 7));
    assert_true(!q4x_kv_u64(m, "general.file_type", &seed, &err) && seed == 26);
    q4x_model_close(m);
    unlink(path);
}

static void ids_of(const char *path, int32_t out[8]) {
    q4x_net *net = h_net(path);
    q4x_run *r = NULL;
    q4x_arm arm;
    q4x_err err = {0};
    int32_t prompt[5] = {1, 2, 3, 4, 5}, top[2];
    float val[2];
    assert_rc_ok(q4x_arm_parse("cpu", &arm, &err), &err);
    assert_rc_ok(q4x_run_new(net, &arm, 32, 0, &r, &err), &err);
    assert_rc_ok(q4x_run_forward(r, prompt, 5, 0, &err), &err);
    for (int i = 0; i < 8; i++) {
        out[i] = q4x_run_choose(r, top, val);
        assert_true(out[i] >= 0 && val[0] > 2 && val[0] < 50);
        assert_rc_ok(q4x_run_forward(r, &out[i], 1, 0, &err), &err);
    }
    q4x_run_free(r);
    q4x_net_close(net);
}

/* Equal seeds choose equal ids, other seeds and types others. */
static void test_runs(void **state) {
    (void)state;
    const q4x_geometry *g = q4x_geometry_find("tiny");
    const char *path = in_dir("r.gguf");
    int32_t a[8], b[8];
    static const struct {
        q4x_file_type ft;
        uint64_t seed;
    } row[] = {{Q4X_FT_UD_IQ1_S, 5}, {Q4X_FT_UD_IQ1_S, 5}, {Q4X_FT_UD_IQ1_S, 6}, {Q4X_FT_Q4_K_M, 5},
               {Q4X_FT_IQ1_M, 5},    {Q4X_FT_NVFP4, 5},    {Q4X_FT_TQ1_0, 5},    {Q4X_FT_BF16, 5}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        h_synth(path, g, row[i].ft, row[i].seed, 0, 0);
        ids_of(path, i ? b : a);
        if (i == 1) assert_memory_equal(a, b, sizeof a);
        if (i > 1) assert_memory_not_equal(a, b, sizeof a);
        unlink(path);
    }
}

static void test_unwritable(void **state) {
    (void)state;
    const q4x_geometry *g = q4x_geometry_find("tiny");
    static const char *const path[] = {"/dev/full", "/tmp", "/tmp/q4x-no-such/m.gguf"};
    static const int code[] = {Q4X_E_FULL, Q4X_E_IO, Q4X_E_IO};
    for (int i = 0; i < 3; i++) {
        q4x_synth s = {.g = g, .type = g->type};
        q4x_gguf_out *o = NULL;
        q4x_synth_cost cost;
        q4x_err err = {0};
        assert_rc_ok(q4x_synth_declare(&s, path[i], &o, &err), &err);
        assert_int_equal(q4x_synth_write(&s, o, NULL, NULL, &cost, &err), code[i]);
        assert_non_null(strstr(err.msg, path[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spread),  cmocka_unit_test(test_parts), cmocka_unit_test(test_range),
        cmocka_unit_test(test_classes), cmocka_unit_test(test_seed),  cmocka_unit_test(test_cut),
        cmocka_unit_test(test_label),   cmocka_unit_test(test_runs),  cmocka_unit_test(test_unwritable),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
