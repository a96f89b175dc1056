/* t_split.c: split sets on the disk, as they are written and as they go wrong: a missing, swapped, duplicated, cut or
 * foreign shard is an error that names the file, what was expected and what to do. Rules: t_gguf_split.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/io.h"
#include "tests/check.h"
#include "tests/h_gguf.h"
#include "tests/h_synth.h"

enum { N = 4 };
static char dir[] = "/tmp/q4x-split-XXXXXX";

static int setup(void **state) {
    (void)state;
    return !mkdtemp(dir);
}

static int teardown(void **state) {
    (void)state;
    return rmdir(dir);
}

static const char *shard(const char *stem, int i, int n) {
    static char path[4][96];
    static int k;
    char *p = path[k++ % 4];
    snprintf(p, sizeof path[0], "%s/%s-%05d-of-%05d.gguf", dir, stem, i, n);
    return p;
}

static void write_set(const char *stem, const q4x_geometry *g, uint64_t seed, int n) {
    char path[96];
    snprintf(path, sizeof path, "%s/%s.gguf", dir, stem);
    h_synth(path, g, g->type, seed, n, 1);
}

static void remove_set(const char *stem, int n) {
    for (int i = 1; i <= n; i++) unlink(shard(stem, i, n));
}

static void move(const char *from, const char *to) {
    assert_int_equal(rename(from, to), 0);
}

static void copy(const char *from, const char *to) {
    q4x_map m;
    assert_int_equal(q4x_map_open(from, &m, NULL), 0);
    h_write_file(to, m.data, (size_t)m.size);
    q4x_map_close(&m);
}

/* Opening any of the shards that are there must fail so. */
static void refused(int code, const char *words) {
    for (int i = 1; i <= N; i++) {
        q4x_model *m = NULL;
        q4x_err err = {0};
        if (access(shard("m", i, N), F_OK)) continue;
        int rc = q4x_model_open(shard("m", i, N), &m, &err);
        if (rc != code || !strstr(err.msg, words))
            fail_msg("through shard %d: rc %d, expected %d with '%s': %s", i, rc, code, words, err.msg);
        assert_non_null(strstr(err.msg, dir)); /* a file is named */
    }
}

static void whole(void) {
    for (int i = 1; i <= N; i++) {
        q4x_model *m = NULL;
        q4x_err err = {0};
        assert_rc_ok(q4x_model_open(shard("m", i, N), &m, &err), &err);
        assert_int_equal(q4x_model_nshards(m), N);
        assert_int_equal(q4x_model_ntensors(m), 113);
        q4x_model_close(m);
    }
}

static void missing(void) {
    for (int i = 1; i <= N; i++) {
        char words[64];
        snprintf(words, sizeof words, "shard %d of %d is needed beside the others", i, N);
        move(shard("m", i, N), shard("gone", i, N));
        refused(Q4X_E_IO, words);
        move(shard("gone", i, N), shard("m", i, N));
    }
}

static void swapped(void) {
    for (int i = 1; i <= N; i++)
        for (int k = i + 1; k <= N; k++)
            for (int back = 0; back < 2; back++) {
                move(shard("m", i, N), shard("tmp", 1, N));
                move(shard("m", k, N), shard("m", i, N));
                move(shard("tmp", 1, N), shard("m", k, N));
                if (!back) refused(Q4X_E_MISMATCH, "swapped");
            }
}

static void duplicated(void) {
    for (int i = 1; i <= N; i++)
        for (int k = 1; k <= N; k++) {
            if (i == k) continue;
            move(shard("m", i, N), shard("tmp", 1, N));
            copy(shard("m", k, N), shard("m", i, N)); /* k lies there twice */
            refused(Q4X_E_MISMATCH, "split.no");
            move(shard("tmp", 1, N), shard("m", i, N));
        }
}

/* Shards of a set of other tensors, of other length, and a file that is no shard. */
static void mixed(void) {
    q4x_geometry g = *q4x_geometry_find("tiny");
    g.L = 5;
    write_set("other", &g, 0, N);
    write_set("long", q4x_geometry_find("tiny"), 0, N + 1);
    h_synth_tiny(shard("one", 1, 1), 0, 1);
    for (int i = 1; i <= N; i++) {
        move(shard("m", i, N), shard("tmp", 1, N));
        copy(shard("other", i, N), shard("m", i, N));
        refused(Q4X_E_MISMATCH, "split.tensors.count");
        copy(shard("long", i, N + 1), shard("m", i, N));
        refused(Q4X_E_MISMATCH, "split.");
        if (i > 1) {
            copy(shard("one", 1, 1), shard("m", i, N));
            q4x_model *m = NULL;
            q4x_err err = {0};
            assert_int_equal(q4x_model_open(shard("m", 1, N), &m, &err), Q4X_E_MISMATCH);
            assert_non_null(strstr(err.msg, "this file is no shard"));
        }
        move(shard("tmp", 1, N), shard("m", i, N));
    }
    remove_set("other", N);
    remove_set("long", N + 1);
    remove_set("one", 1);
}

/* A shard cut short anywhere. */
static void cut(void) {
    for (int i = 2; i <= N; i++) {
        struct stat st;
        copy(shard("m", i, N), shard("tmp", 1, N));
        assert_int_equal(stat(shard("m", i, N), &st), 0);
        for (off_t n = st.st_size - 300; n > 0; n = n * 2 / 3) {
            assert_int_equal(truncate(shard("m", i, N), n), 0);
            q4x_model *m = NULL;
            q4x_err err = {0};
            int rc = q4x_model_open(shard("m", 1, N), &m, &err);
            assert_true(rc == Q4X_E_TRUNCATED || (n < 24 + 30 * 113 && rc == Q4X_E_FORMAT));
            assert_non_null(strstr(err.msg, shard("m", i, N)));
            copy(shard("tmp", 1, N), shard("m", i, N));
        }
    }
    unlink(shard("tmp", 1, N));
}

static void test_sets(void **state) {
    (void)state;
    static void (*const step[])(void) = {missing, swapped, duplicated, mixed, cut};
    write_set("m", q4x_geometry_find("tiny"), 0, N);
    whole();
    for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
        step[i]();
        whole(); /* the twin: put right, it opens again */
    }
    remove_set("m", N);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sets)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
