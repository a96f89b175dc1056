/* The HF container: folders, single files, indexed shards; every way in which index, shards and configuration can
 * disagree is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/k.h"
#include "lib/model.h"
#include "tests/h_hf.h"

static char *dir; /* of the test that runs */

static int set_up(void **state) {
    (void)state;
    dir = h_tmp();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    h_tmp_remove(dir);
    return 0;
}

static const char *in(const char *file) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return path;
}

/* Two small tensors in two shards. */
static h_hf *pair(void) {
    h_hf *h = calloc(1, sizeof *h);
    assert_non_null(h);
    h->config = json_pack("{s:s}", "model_type", "toy");
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    h_hf_add(h, "a.weight", "F32", 2, (int64_t[]){2, 3}, x);
    h_hf_add(h, "b", "BF16", 1, (int64_t[]){4}, NULL)->shard = 1;
    return h;
}

static q4x_model *opened(const char *path) {
    q4x_model *m = NULL;
    q4x_err err = {0};
    if (q4x_model_open(path, &m, &err)) fail_msg("%s", err.msg);
    return m;
}

static void refused_at(int line, const char *path, int code, const char *words) {
    q4x_model *m = NULL;
    q4x_err err = {0};
    int rc = q4x_model_open(path, &m, &err);
    if (rc != code || m) fail_msg("line %d: %d (%s), expected %d", line, rc, err.msg, code);
    if (!strstr(err.msg, words)) fail_msg("line %d: '%s' lacks '%s'", line, err.msg, words);
}
#define REFUSED(path, code, words) refused_at(__LINE__, path, Q4X_E_##code, words)

static void check_pair(const char *path, int nshards) {
    q4x_model *m = opened(path);
    assert_int_equal(q4x_model_container(m), Q4X_HF);
    assert_string_equal(q4x_model_arch(m), "toy");
    assert_string_equal(q4x_model_path(m), path);
    assert_int_equal(q4x_model_nshards(m), nshards);
    assert_int_equal(q4x_model_ntensors(m), 2);
    const q4x_tensor *t = q4x_model_find(m, "a.weight");
    assert_non_null(t);
    assert_int_equal(t->type, K_T_F32);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->ne[0], 3);
    assert_int_equal(t->ne[1], 2);
    assert_int_equal(t->ne[2], 1);
    assert_int_equal(t->bytes, 24);
    float last;
    memcpy(&last, (const char *)t->data + 20, 4);
    assert_true(last == 6);
    assert_int_equal(q4x_model_find(m, "b")->shard, nshards - 1);
    assert_null(q4x_model_find(m, "c"));
    assert_true(q4x_model_config(m) == q4x_model_text_config(m));
    int64_t v = 7;
    assert_int_equal(q4x_kv_i64(m, "general.alignment", &v, NULL), 1);
    assert_int_equal(v, 7);
    q4x_model_close(m);
}

static void ways_in(void **state) {
    (void)state;
    h_hf *h = pair();
    h_hf_write(h, dir, 0);
    check_pair(dir, 1);
    check_pair(in(""), 1);
    check_pair(in("model.safetensors"), 1);
    h_hf_write(h, dir, 2);
    check_pair(in("model.safetensors.index.json"), 2);
    check_pair(in("model-00002-of-00002.safetensors"), 2); /* a shard brings its set */
    check_pair(dir, 1);                                    /* a whole file wins over an index */
    unlink(in("model.safetensors"));
    check_pair(dir, 2);
    h_hf_free(h);
    char *was = getcwd(NULL, 0);
    assert_non_null(was);
    assert_int_equal(chdir(dir), 0);
    check_pair(".", 2);
    check_pair("model.safetensors.index.json", 2);
    check_pair("model-00001-of-00002.safetensors", 2);
    q4x_model *m = opened("model.safetensors.index.json");
    assert_string_equal(q4x_model_shard(m, 1)->path, "model-00002-of-00002.safetensors");
    q4x_model_close(m);
    assert_int_equal(chdir(was), 0);
    free(was);
}

static void text_config(void **state) {
    (void)state;
    h_hf *h = pair();
    h_hf_set(h->config, "model_type", "\"outer\"");
    h_hf_set(h->config, "text_config", "{\"model_type\":\"inner\",\"x\":1}");
    h_hf_write(h, dir, 0);
    q4x_model *m = opened(dir);
    assert_string_equal(q4x_model_arch(m), "outer");
    assert_int_equal(json_integer_value(json_object_get(q4x_model_text_config(m), "x")), 1);
    q4x_model_close(m);
    h_hf_set(h->config, "model_type", NULL);
    h_hf_write(h, dir, 0);
    m = opened(dir);
    assert_string_equal(q4x_model_arch(m), "inner");
    q4x_model_close(m);
    h_hf_free(h);
}

static void configs(void **state) {
    (void)state;
    h_hf *h = pair();
    REFUSED(dir, IO, "config.json: cannot open");
    h_hf_write(h, dir, 0);
    unlink(in("model.safetensors"));
    REFUSED(dir, IO, "expected model.safetensors or model.safetensors.index.json");
    h_hf_write(h, dir, 0);
    h_text_write(dir, "config.json", "[]");
    REFUSED(dir, FORMAT, "config.json: expected a JSON object");
    h_text_write(dir, "config.json", "");
    REFUSED(dir, FORMAT, "config.json: line 1");
    h_text_write(dir, "config.json", "{}");
    REFUSED(dir, FORMAT, "model_type: expected a string");
    h_text_write(dir, "config.json", "{\"model_type\":7}");
    REFUSED(dir, FORMAT, "model_type: expected a string");
    h_text_write(dir, "config.json", "{\"model_type\":\"x\",\"text_config\":[]}");
    REFUSED(dir, FORMAT, "text_config: expected an object");
    h_text_write(dir, "config.json", "{\"model_type\":\"x\",\"model_type\":\"y\"}");
    REFUSED(dir, FORMAT, "duplicate object key");
    h_text_write(dir, "config.json", "{\"a\":[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}");
    REFUSED(dir, FORMAT, "deeper than 16");
    size_t n = (4 << 20) + 2;
    char *big = malloc(n + 1);
    assert_non_null(big);
    memset(big, ' ', n);
    big[n] = 0;
    h_text_write(dir, "config.json", big);
    free(big);
    REFUSED(dir, FORMAT, "expected at most 4194304");
    h_hf_free(h);
}

static void tensors(void **state) {
    (void)state;
    h_hf *h = pair();
    /* other parts may hold what the house has no type for */
    h_hf_add(h, "model.visual.patch.weight", "F32", 5, (int64_t[]){2, 3, 1, 2, 2}, NULL);
    h_hf_add(h, "mtp.x", "F8_E4M3", 1, (int64_t[]){3}, NULL);
    h_hf_write(h, dir, 0);
    q4x_model *m = opened(dir);
    assert_int_equal(q4x_model_ntensors(m), 3);
    const q4x_tensor *t = q4x_model_find(m, "model.visual.patch.weight");
    assert_int_equal(t->ndim, 4);
    assert_int_equal(t->ne[2], 1);
    assert_int_equal(t->ne[3], 6);
    char a[33], b[33];
    assert_int_equal(q4x_model_fingerprint(m, a, NULL), 0);
    q4x_model_close(m);
    /* the same content has one fingerprint, however it is cut; another value another one */
    h_hf_write(h, dir, 2);
    unlink(in("model.safetensors"));
    m = opened(dir);
    assert_int_equal(q4x_model_fingerprint(m, b, NULL), 0);
    assert_string_equal(a, b);
    q4x_model_close(m);
    ((char *)h_hf_get(h, "b")->data)[1] = 1;
    h_hf_write(h, dir, 0);
    m = opened(dir);
    assert_int_equal(q4x_model_fingerprint(m, b, NULL), 0);
    assert_string_not_equal(a, b);
    q4x_model_close(m);
    h_hf_set(h->config, "new", "1");
    h_hf_write(h, dir, 0);
    m = opened(dir);
    assert_int_equal(q4x_model_fingerprint(m, a, NULL), 0);
    assert_string_not_equal(a, b);
    q4x_model_close(m);

    h_hf_add(h, "q", "F8_E4M3", 1, (int64_t[]){3}, NULL);
    h_hf_write(h, dir, 0);
    REFUSED(dir, UNSUPPORTED, "model.safetensors: tensor q: dtype F8_E4M3");
    h_hf_drop(h, "q");
    h_hf_add(h, "q r", "F32", 1, (int64_t[]){3}, NULL);
    h_hf_write(h, dir, 0);
    REFUSED(dir, FORMAT, "printable ASCII, found byte 0x20");
    h_hf_drop(h, "q r");
    h_hf_add(h, "q", "F32", 2, (int64_t[]){3, 0}, NULL);
    h_hf_write(h, dir, 0);
    REFUSED(dir, FORMAT, "tensor q: shape[1] is 0");
    h_hf_drop(h, "q");
    char name[256];
    memset(name, 'n', 255);
    name[255] = 0;
    h_hf_add(h, name, "F32", 0, NULL, NULL);
    h_hf_write(h, dir, 0);
    q4x_model_close(opened(dir));
    h_hf_free(h);
}

/* Files that are not what they seem. */
static void files(void **state) {
    (void)state;
    h_hf *h = pair();
    struct stat sb;
    h_hf_write(h, dir, 0);
    assert_int_equal(stat(in("model.safetensors"), &sb), 0);
    for (off_t n = sb.st_size - 1; n >= 0; n -= 5) {
        assert_int_equal(truncate(in("model.safetensors"), n), 0);
        REFUSED(dir, TRUNCATED, "model.safetensors: ");
    }
    assert_int_equal(truncate(in("model.safetensors"), 0), 0);
    REFUSED(dir, TRUNCATED, "0 bytes");
    unlink(in("model.safetensors"));
    assert_int_equal(mkfifo(in("model.safetensors"), 0600), 0);
    REFUSED(dir, IO, "expected a regular file");
    unlink(in("model.safetensors"));
    assert_int_equal(symlink("model.safetensors", in("model.safetensors")), 0);
    REFUSED(dir, IO, "expected model.safetensors"); /* a loop is no file */
    unlink(in("model.safetensors"));
    REFUSED(in("none.safetensors"), IO, "none.safetensors: cannot open");
    h_text_write(dir, "x.safetensors", "text, not tensors at all");
    REFUSED(in("x.safetensors"), FORMAT, "x.safetensors: header length");
    h_text_write(dir, "plain.txt", "hello");
    REFUSED(in("plain.txt"), UNSUPPORTED, "a folder with config.json");
    h_hf_free(h);
}

static void index_text(const char *map) {
    char text[2048];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":1},\"weight_map\":{%s}}", map);
    h_text_write(dir, "model.safetensors.index.json", text);
}

static void indexes(void **state) {
    (void)state;
    static const char one[] = "model-00001-of-00002.safetensors", two[] = "model-00002-of-00002.safetensors";
    char map[512];
    h_hf *h = pair();
    h_hf_write(h, dir, 2);
    check_pair(dir, 2);
    h_text_write(dir, "model.safetensors.index.json", "{}");
    REFUSED(dir, FORMAT, "index.json: weight_map: expected an object");
    index_text("");
    REFUSED(dir, FORMAT, "names no tensor");
    index_text("\"a\":1");
    REFUSED(dir, FORMAT, "weight_map: a: expected a file name");
    static const char *const bad[] = {"", ".", "..", "/etc/passwd", "../x.safetensors", "a/b", "a\\u0001"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(map, sizeof map, "\"a.weight\":\"%s\"", bad[i]);
        index_text(map);
        REFUSED(dir, FORMAT, "expected the name of a file in this folder");
    }
    snprintf(map, sizeof map, "\"a.weight\":\"%s\",\"a.weight\":\"%s\"", one, one);
    index_text(map);
    REFUSED(dir, FORMAT, "duplicate object key"); /* named twice */
    snprintf(map, sizeof map, "\"a.weight\":\"%s\",\"b\":\"gone.safetensors\"", one);
    index_text(map);
    REFUSED(dir, IO, "shard gone.safetensors is missing; it should hold tensor b");
    snprintf(map, sizeof map, "\"a.weight\":\"%s\",\"b\":\"%s\",\"c\":\"%s\"", one, two, two);
    index_text(map);
    REFUSED(dir, MISMATCH, "weight_map puts tensor c into model-00002-of-00002.safetensors, which lacks it");
    snprintf(map, sizeof map, "\"a.weight\":\"%s\",\"b\":\"%s\"", one, one);
    index_text(map);
    REFUSED(dir, MISMATCH, "puts tensor b into model-00001-of-00002.safetensors, which lacks it");
    snprintf(map, sizeof map, "\"a.weight\":\"%s\",\"b\":\"%s\"", two, one);
    index_text(map);
    REFUSED(dir, MISMATCH, "weight_map puts tensor a.weight into model-00002");
    snprintf(map, sizeof map, "\"a.weight\":\"%s\",\"c\":\"%s\"", one, two);
    index_text(map);
    REFUSED(dir, MISMATCH, "holds tensor b, which weight_map does not name");
    /* the same tensor in two shards, whatever the index says */
    h_hf_write(h, dir, 2);
    h_hf_write_st(dir, two, "{\"a.weight\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]}}", "x", 1);
    snprintf(map, sizeof map, "\"a.weight\":\"%s\",\"b\":\"%s\"", one, two);
    index_text(map);
    REFUSED(dir, FORMAT, "already");
    /* a cut shard is named, not the index */
    h_hf_write(h, dir, 2);
    assert_int_equal(truncate(in(two), 30), 0);
    REFUSED(dir, TRUNCATED, "model-00002-of-00002.safetensors: header length");
    h_hf_free(h);
}

static void demo(void **state) {
    (void)state;
    if (access("../shared/golden/demo/config.json", R_OK)) {
        print_message("../shared/golden/demo is not there: skipped\n");
        skip();
    }
    q4x_model *m = opened("../shared/golden/demo");
    assert_int_equal(q4x_model_nshards(m), 4);
    assert_string_equal(q4x_model_arch(m), "qwen4_exp_text");
    assert_non_null(q4x_model_find(m, "lm_head.weight"));
    q4x_model_close(m);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(ways_in), TEST(text_config), TEST(configs), TEST(tensors),
                                       TEST(files),   TEST(indexes),     TEST(demo)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
