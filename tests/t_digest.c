/* t_digest.c: a tensor's hash is that of its bytes alone, in one file and in many, by one thread or several, in one
 * portion or several; a file's is the SHA-256 that others compute.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/digest.h"
#include "lib/gguf.h"
#include "tests/check.h"
#include "tests/h_gguf.h"
#include "tests/h_hf.h"
#include "tests/h_synth.h"

typedef struct {
    q4x_model *m;
    q4x_hash *h;
} digests;

static digests of(const char *path, int threads) {
    q4x_err err = {0};
    digests d;
    assert_rc_ok(q4x_model_open(path, &d.m, &err), &err);
    assert_rc_ok(q4x_digest_tensors(d.m, threads, NULL, NULL, &d.h, &err), &err);
    return d;
}

static void drop(digests *d) {
    free(d->h);
    q4x_model_close(d->m);
}

static void of_the_bytes(void **state) {
    (void)state;
    static const char *const paths[] = {"tests/models/demo.gguf", "tests/golden/micro-a"};
    for (int i = 0; i < 2; i++)
        for (int threads = 0; threads < 4; threads++) {
            digests d = of(paths[i], threads);
            int64_t distinct = 0;
            for (int64_t k = 0; k < q4x_model_ntensors(d.m); k++) {
                const q4x_tensor *t = q4x_model_tensor(d.m, k);
                q4x_hash want = q4x_xxh128(t->data, t->bytes);
                if (!q4x_hash_eq(&d.h[k], &want)) fail_msg("%s, %d threads: %s", paths[i], threads, t->name);
                distinct += !k || !q4x_hash_eq(&d.h[k], &d.h[k - 1]);
            }
            assert_true(distinct > q4x_model_ntensors(d.m) / 2); /* a constant would not do */
            drop(&d);
        }
}

/* The same tensors in one file and in three; a flipped bit is seen, and in its tensor alone. */
static void single_and_split(void **state) {
    (void)state;
    char *dir = h_tmp(), path[512];
    snprintf(path, sizeof path, "%s/one.gguf", dir);
    h_synth_tiny(path, 3, 1);
    digests one = of(path, 2);
    snprintf(path, sizeof path, "%s/s.gguf", dir);
    h_synth_tiny(path, 3, 3);
    snprintf(path, sizeof path, "%s/s-00002-of-00003.gguf", dir);
    digests many = of(path, 2);
    assert_int_equal(q4x_model_nshards(many.m), 3);
    assert_int_equal(q4x_model_ntensors(one.m), q4x_model_ntensors(many.m));
    const q4x_tensor *victim = q4x_model_tensor(many.m, 5);
    for (int64_t i = 0; i < q4x_model_ntensors(one.m); i++) {
        assert_string_equal(q4x_model_tensor(one.m, i)->name, q4x_model_tensor(many.m, i)->name);
        assert_true(q4x_hash_eq(&one.h[i], &many.h[i]));
    }
    const q4x_shard *s = q4x_model_shard(many.m, victim->shard);
    FILE *f = fopen(s->path, "r+b");
    assert_non_null(f);
    uint64_t at = s->data_off; /* of the shard's first tensor */
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    fputc(c ^ 1, f);
    fclose(f);
    digests again = of(path, 1);
    int differ = 0;
    for (int64_t i = 0; i < q4x_model_ntensors(one.m); i++) differ += !q4x_hash_eq(&again.h[i], &one.h[i]);
    assert_int_equal(differ, 1);
    drop(&one);
    drop(&many);
    drop(&again);
    h_tmp_remove(dir);
}

static void tell(void *ctx, uint64_t done, uint64_t total) {
    uint64_t *seen = ctx;
    assert_true(done <= total && done > 0);
    seen[0]++;
    if (done > seen[1]) seen[1] = done;
}

/* Longer than a portion, and not a multiple of one. */
static void portions(void **state) {
    (void)state;
    h_gguf g;
    q4x_model *m;
    q4x_hash *h;
    q4x_err err = {0};
    uint64_t seen[2] = {0}, ne = 9000001;
    float *data = malloc(ne * sizeof *data);
    assert_non_null(data);
    for (uint64_t i = 0; i < ne; i++) data[i] = (float)i;
    h_gguf_init(&g);
    h_gguf_kv_str(&g, "general.architecture", "toy");
    h_gguf_tensor(&g, "long", 0, 1, &ne, data);
    h_buf b = h_gguf_bytes(&g);
    assert_rc_ok(q4x_gguf_parse_mem(b.p, b.n, "x.gguf", &m, &err), &err);
    assert_rc_ok(q4x_digest_tensors(m, 1, tell, seen, &h, &err), &err);
    q4x_hash want = q4x_xxh128(data, ne * sizeof *data);
    assert_true(q4x_hash_eq(&h[0], &want));
    assert_int_equal(seen[0], 3);
    assert_true(seen[1] == ne * sizeof *data);
    free(h);
    q4x_model_close(m);
    h_buf_free(&b);
    h_gguf_free(&g);
    free(data);
}

static void files(void **state) {
    (void)state;
    char *dir = h_tmp(), path[512], hex[65], line[400], sum[100] = "";
    q4x_err err = {0};
    snprintf(path, sizeof path, "%s/f", dir);
    h_write_file(path, "abc", 3);
    assert_rc_ok(q4x_digest_file(path, 3, NULL, NULL, hex, &err), &err);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_rc_ok(q4x_digest_file(path, UINT64_MAX, NULL, NULL, hex, &err), &err);
    assert_int_equal(q4x_digest_file(path, 4, NULL, NULL, hex, &err), Q4X_E_TRUNCATED);
    assert_non_null(strstr(err.msg, "expected the 4 bytes it had when it was opened, found 3"));
    h_write_file(path, "", 0);
    assert_rc_ok(q4x_digest_file(path, 0, NULL, NULL, hex, &err), &err);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_int_equal(q4x_digest_file(dir, UINT64_MAX, NULL, NULL, hex, &err), Q4X_E_IO);
    assert_rc_ok(q4x_digest_file("tests/models/demo.gguf", UINT64_MAX, NULL, NULL, hex, &err), &err);
    FILE *p = popen("sha256sum tests/models/demo.gguf", "r");
    assert_non_null(p);
    if (fgets(line, sizeof line, p)) snprintf(sum, sizeof sum, "%.64s", line);
    pclose(p);
    assert_string_equal(hex, sum);
    h_tmp_remove(dir);
}

/* A file that was cut since it was opened. */
static void cut(void **state) {
    (void)state;
    char *dir = h_tmp(), path[512];
    q4x_err err = {0};
    q4x_model *m;
    q4x_hash *h = NULL;
    snprintf(path, sizeof path, "%s/one.gguf", dir);
    h_synth_tiny(path, 3, 1);
    assert_rc_ok(q4x_model_open(path, &m, &err), &err);
    assert_int_equal(truncate(path, 100000), 0);
    assert_int_equal(q4x_digest_tensors(m, 1, NULL, NULL, &h, &err), Q4X_E_TRUNCATED);
    assert_null(h);
    q4x_model_close(m);
    h_tmp_remove(dir);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(of_the_bytes), cmocka_unit_test(single_and_split),
                                       cmocka_unit_test(portions), cmocka_unit_test(files), cmocka_unit_test(cut)};
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
