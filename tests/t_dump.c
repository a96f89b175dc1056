/* t_dump.c: what is written is read; what two runs share; what the writer refuses; a disk that fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/k.h"
#include "tests/check.h"
#include "tests/h_dump.h"
#include "tests/h_rand.h"

static q4x_dump *read_ok(const char *path) {
    q4x_dump *d = NULL;
    q4x_err err = {0};
    if (q4x_dump_read(path, &d, &err)) fail_msg("%s", err.msg);
    return d;
}

static void write_ok(const q4x_dump *d, const char *path, q4x_hash *content) {
    q4x_err err = {0};
    if (h_dump_write(d, path, content, &err)) fail_msg("%s", err.msg);
}

static h_dump_opts opts(int full, int nonfinite) {
    h_dump_opts o = h_dump_small;
    o.full = full;
    o.nonfinite = nonfinite;
    o.parts = 4;
    return o;
}

/* write -> read -> write gives the same bytes; the middle holds everything that went in. */
static void test_round_trip(void **state) {
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        h_dump_opts o = opts(mode & 1, mode >> 1);
        o.tail = mode > 1;
        q4x_dump *d = h_dump_make(&o);
        d->nodes[H_WIDE].heads = (q4x_heads){1, 0, 130, 4, 4, 0}; /* streams: groups in one order */
        q4x_hash content;
        char path[160];
        strcpy(path, h_temp("a.q4d"));
        write_ok(d, path, &content);
        q4x_dump *back = read_ok(path);
        assert_string_equal(back->path, path);
        assert_int_equal(back->version, Q4X_DUMP_VERSION);
        assert_memory_equal(&back->content, &content, 16);
        assert_true(h_dump_equal(d, back)); /* loads the full tensors, which the second writing needs */
        write_ok(back, h_temp("b.q4d"), NULL);
        size_t n, m;
        uint8_t *x = h_file_read(path, &n), *y = h_file_read(h_temp("b.q4d"), &m);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n);
        assert_int_equal(h_temp_count(), 2);
        /* twins: the comparison sees one bit */
        back->forwards[1].taps[3].bits.b[15] ^= 1;
        assert_false(h_dump_equal(d, back));
        back->forwards[1].taps[3].bits.b[15] ^= 1;
        back->forwards[0].taps[1].sketch.buckets[7] += 1e-3;
        assert_false(h_dump_equal(d, back));
        back->forwards[0].taps[1].sketch.buckets[7] = d->forwards[0].taps[1].sketch.buckets[7];
        assert_true(h_dump_equal(d, back));
        back->forwards[0].taps[1].sketch.row_least[8] += 1e-3;
        assert_false(h_dump_equal(d, back));
        free(x), free(y);
        q4x_dump_free(back);
        q4x_dump_free(d);
        h_temp_remove();
    }
}

static void test_lookup(void **state) {
    (void)state;
    h_dump_opts o = opts(0, 0);
    q4x_dump *made = h_dump_make(&o);
    write_ok(made, h_temp("a.q4d"), NULL);
    q4x_dump *read = read_ok(h_temp("a.q4d"));
    for (int k = 0; k < 2; k++) {
        q4x_dump *d = k ? made : read;
        assert_int_equal(q4x_dump_node_find(d, "L00.moe.ids"), H_IDS);
        assert_int_equal(q4x_dump_node_find(d, "emb"), H_EMB);
        assert_int_equal(q4x_dump_node_find(d, "wide"), H_WIDE);
        assert_int_equal(q4x_dump_node_find(d, "zzz"), -1);
        assert_int_equal(q4x_dump_node_find(d, ""), -1);
        for (int f = -1; f < 4; f++)
            for (int node = -1; node <= H_NODES; node++) {
                q4x_tap *t = q4x_dump_tap(d, f, node);
                int there = f >= 0 && f < 3 && node >= 0 && node < H_NODES && node != H_IN;
                assert_int_equal(t != NULL, there);
                if (t) assert_true(t->node == node && t->forward == f);
            }
    }
    q4x_dump_free(NULL);
    q4x_dump_free(read);
    q4x_dump_free(made);
    h_temp_remove();
}

/* A tail is no content; it comes last and once. */
static void test_tail(void **state) {
    (void)state;
    h_dump_opts o = opts(0, 0);
    q4x_hash with, without;
    q4x_err err = {0};
    q4x_dump *d = h_dump_make(&o);
    write_ok(d, h_temp("a.q4d"), &without);
    d->tail = json_pack("{s:i}", "x", 1);
    write_ok(d, h_temp("b.q4d"), &with);
    assert_memory_equal(&with, &without, 16);
    q4x_dump *back = read_ok(h_temp("a.q4d"));
    assert_null(back->tail);
    assert_false(h_dump_equal(d, back));
    q4x_dump_free(back);
    back = read_ok(h_temp("b.q4d"));
    assert_true(h_dump_equal(d, back));
    q4x_dump_free(back);
    for (int what = 0; what < 5; what++) {
        q4x_dumpw *w = NULL;
        const char *says[] = {"a second one", "after the tail", "after the tail", "not followed", "a JSON object"};
        json_t *list = json_array();
        assert_rc_ok(q4x_dumpw_open(h_temp("c.q4d"), d->header, d->nodes, d->nnodes, &w, &err), &err);
        int rc = what == 3 ? q4x_dumpw_tap(w, &d->forwards[0].taps[0], &err) : 0;
        assert_int_equal(rc, 0);
        rc = q4x_dumpw_tail(w, what == 4 ? list : d->tail, &err);
        if (what < 3) assert_int_equal(rc, 0);
        if (what == 0) rc = q4x_dumpw_tail(w, d->tail, &err);
        if (what == 1) rc = q4x_dumpw_tap(w, &d->forwards[0].taps[0], &err);
        if (what == 2) rc = q4x_dumpw_forward(w, &d->forwards[0], &err);
        assert_int_equal(rc, Q4X_E_ARG);
        if (!strstr(err.msg, says[what])) fail_msg("%d: %s", what, err.msg);
        assert_int_equal(q4x_dumpw_close(w, NULL, &err), Q4X_E_ARG);
        json_decref(list);
    }
    q4x_dump_free(d);
    h_temp_remove();
}

/* Indices of forwards may have gaps: an importer has what it has. */
static void test_gaps(void **state) {
    (void)state;
    h_dump_opts o = opts(1, 0);
    q4x_dump *d = h_dump_make(&o);
    for (int f = 0; f < 3; f++) {
        d->forwards[f].index = 5 + 2 * f;
        for (int k = 0; k < d->forwards[f].ntaps; k++) d->forwards[f].taps[k].forward = 5 + 2 * f;
    }
    free(d->forwards[1].logits); /* none kept */
    d->forwards[1].logits = NULL;
    d->forwards[1].n_logits = 0;
    write_ok(d, h_temp("a.q4d"), NULL);
    q4x_dump *back = read_ok(h_temp("a.q4d"));
    assert_true(h_dump_equal(d, back));
    assert_null(q4x_dump_tap(back, 6, H_EMB));
    assert_non_null(q4x_dump_tap(back, 9, H_EMB));
    assert_null(back->forwards[1].logits);
    q4x_dump_free(back);
    q4x_dump_free(d);
    h_temp_remove();
}

/* ---- content ---- */

static q4x_hash content_of(const q4x_dump *d, const char *name) {
    q4x_hash h;
    write_ok(d, h_temp(name), &h);
    return h;
}

static void change(q4x_dump *d, int what) {
    q4x_forward *f = &d->forwards[1];
    q4x_tap *t = &f->taps[0];
    json_t *arm = json_object_get(d->header, "arm");
    switch (what) {
    case 0: f->ids[0] ^= 1; break;
    case 1: f->pos0++; break;
    case 2: t->bits.b[0] ^= 1; break;
    case 3: f->sampled++; break;
    case 4: f->logits[39] = nextafterf(f->logits[39], 100); break;
    case 5: json_object_set_new(json_object_get(arm, "levers"), "act", json_string("f32")); break;
    case 6: json_array_append_new(json_object_get(arm, "scoped"), json_string("gdn=seq@L01.*")); break;
    case 7: d->nodes[t->node].name[0] = 'E'; break;
    case 8:
        f = &d->forwards[2];
        f->index = 7;
        for (int k = 0; k < f->ntaps; k++) f->taps[k].forward = 7;
        break;
    /* from here on: not content */
    case 9: json_object_set_new(d->header, "free", json_pack("{s:s}", "time", "tuesday")); break;
    case 10: json_object_set_new(arm, "label", json_string("B")); break;
    case 11: json_object_set_new(arm, "device", json_string("cuda")); break;
    case 12: t->stats.min -= 1; break;
    case 13: d->nodes[0].levers[4] = 'f'; break;
    case 14: f->forced = 1; break;
    default: json_object_set_new(json_object_get(d->header, "model"), "path", json_string("elsewhere")); break;
    }
}

static void test_content(void **state) {
    (void)state;
    for (int what = 0; what < 16; what++) {
        h_dump_opts o = opts(0, 0);
        q4x_dump *a = h_dump_make(&o), *b = h_dump_make(&o);
        change(b, what);
        q4x_hash x = content_of(a, "a.q4d"), y = content_of(b, "b.q4d"), again = content_of(a, "c.q4d");
        size_t n, m;
        uint8_t *p = h_file_read(h_temp("a.q4d"), &n), *q = h_file_read(h_temp("b.q4d"), &m);
        assert_true(n != m || memcmp(p, q, n) != 0);
        assert_true(q4x_hash_eq(&x, &again));
        assert_int_equal(q4x_hash_eq(&x, &y), what >= 9);
        q4x_dump *back = read_ok(h_temp("b.q4d"));
        assert_true(q4x_hash_eq(&back->content, &y));
        free(p), free(q);
        q4x_dump_free(back);
        q4x_dump_free(a);
        q4x_dump_free(b);
    }
    /* the order of the levers' keys is no difference */
    h_dump_opts o = opts(0, 0);
    q4x_dump *a = h_dump_make(&o), *b = h_dump_make(&o);
    json_object_set_new(json_object_get(b->header, "arm"), "levers",
                        json_pack("{s:f, s:s}", "eps", 1e-6, "act", "bf16"));
    q4x_hash x = content_of(a, "a.q4d"), y = content_of(b, "b.q4d");
    assert_true(q4x_hash_eq(&x, &y));
    q4x_dump_free(a);
    q4x_dump_free(b);
    h_temp_remove();
}

/* ---- the writer's refusals ---- */

static void spoil(q4x_dump *d, int what) {
    q4x_forward *f = &d->forwards[1];
    q4x_tap *t = &f->taps[0], *wide = &f->taps[1];
    switch (what) {
    case 0: t->node = H_NODES; break;
    case 1: t->node = f->taps[1].node; break; /* twice */
    case 2: t->forward = 0; break;
    case 3: t->dtype = K_T_Q4_K; break;
    case 4: t->rows = -1; break;
    case 5: t->cols = INT64_MAX; break;
    case 6: t->stats.n++; break;
    case 7: t->stats.ntop = 9; break;
    case 8: t->stats.top_index[0] = t->stats.n; break;
    case 9: wide->sketch.width = 128; break;
    case 10: wide->sketch.nrows = 2; break;
    case 11: wide->sketch.buckets[3] = (double)NAN; break;
    case 12: wide->sketch.row_sumabs[0] = INFINITY; break;
    case 13: q4x_dump_tap(d, 1, H_IDS)->sel.ids[1] ^= 1; break; /* no longer the ids of its bits */
    case 14: q4x_dump_tap(d, 1, H_IDS)->sel.rows = -3; break;
    case 15: ((uint8_t *)t->full)[2] ^= 1; break;
    case 16: free(t->full), t->full = NULL; break;
    case 17: f->index = 0; break;
    case 18: f->index = 4; break; /* its taps say 1 */
    case 19: f->forced = 2; break;
    case 20: f->n_ids = -1; break;
    case 21: d->nodes[2].alias = 2; break;
    case 22: d->nodes[2].in[0] = 5; break;
    case 23: d->nodes[3].st[0] = 1; break;
    case 24: strcpy(d->nodes[8].name, "wide"); break; /* twice */
    case 25: d->nodes[4].name[1] = '\n'; break;
    case 26: d->nodes[4].name[0] = 0; break;
    case 27: d->nodes[3].heads.nk = 4; break;
    case 28: json_decref(d->header), d->header = json_array(); break;
    case 30: wide->sketch.row_least[0] = (double)NAN; break;
    case 31: wide->sketch.row_least[0] = -1; break;
    case 32: d->nodes[1].heads = (q4x_heads){1, 0, 130, 4, 6, 0}; break;
    case 33: d->nodes[1].heads = (q4x_heads){1, 0, 0, 4, 4, 0}; break;
    case 34: d->nodes[1].heads = (q4x_heads){1, -1, 130, 4, 4, 0}; break;
    case 35: d->nodes[1].heads = (q4x_heads){1, 0, 130, 4, 4, 2}; break;
    case 36: d->nodes[1].heads = (q4x_heads){3, 0, 130, 4, 4, 0}; break;
    case 37: d->nodes[1].heads = (q4x_heads){1, 0, 1 << 30, 4, 4, 0}; break;
    case 29: t->stats.zeros = t->stats.n + 1; break;
    default: wide->sketch.row0 = 1; break;
    }
}

static void test_refusals(void **state) {
    (void)state;
    for (int what = 0; what < 39; what++) {
        h_dump_opts o = opts(1, 0);
        q4x_dump *d = h_dump_make(&o);
        spoil(d, what);
        q4x_err err = {0};
        assert_int_equal(h_dump_write(d, h_temp("a.q4d"), NULL, &err), Q4X_E_ARG);
        assert_true(err.code == Q4X_E_ARG && strstr(err.msg, "a.q4d"));
        assert_int_equal(h_temp_count(), 0);
        q4x_dump_free(d);
    }
    /* a forward that never ends; and after a failure nothing is accepted, close included */
    h_dump_opts o = opts(0, 0);
    q4x_dump *d = h_dump_make(&o);
    for (int failed = 0; failed < 3; failed++) {
        q4x_dumpw *w = NULL;
        q4x_err err = {0};
        q4x_hash content = {{1}};
        q4x_tap bad = {.node = -1};
        assert_int_equal(q4x_dumpw_open(h_temp("a.q4d"), d->header, d->nodes, d->nnodes, &w, &err), 0);
        if (failed == 2) assert_int_equal(q4x_dumpw_tap(w, &bad, &err), Q4X_E_ARG);
        assert_int_equal(q4x_dumpw_tap(w, &d->forwards[0].taps[0], &err), failed == 2 ? Q4X_E_ARG : 0);
        if (failed) {
            assert_int_equal(q4x_dumpw_tap(w, &d->forwards[0].taps[0], &err), Q4X_E_ARG);
            assert_int_equal(q4x_dumpw_tap(w, &d->forwards[0].taps[1], &err), Q4X_E_ARG);
            assert_int_equal(q4x_dumpw_forward(w, &d->forwards[0], &err), Q4X_E_ARG);
        }
        assert_int_equal(q4x_dumpw_close(w, &content, &err), Q4X_E_ARG);
        assert_int_equal(content.b[0], 1);
        assert_int_equal(h_temp_count(), 0);
    }
    q4x_dump_free(d);
    h_temp_remove();
}

/* ---- a disk that fails ---- */

static void test_abort_and_old_file(void **state) {
    (void)state;
    h_dump_opts o = opts(1, 0);
    q4x_dump *d = h_dump_make(&o);
    q4x_dumpw *w = NULL;
    q4x_err err = {0};
    h_file_write(h_temp("a.q4d"), "old", 3);
    assert_int_equal(q4x_dumpw_open(h_temp("a.q4d"), d->header, d->nodes, d->nnodes, &w, &err), 0);
    for (int k = 0; k < d->forwards[0].ntaps; k++) assert_int_equal(q4x_dumpw_tap(w, &d->forwards[0].taps[k], &err), 0);
    assert_int_equal(h_temp_count(), 2); /* the old one and a temporary */
    q4x_dumpw_abort(w);
    q4x_dumpw_abort(NULL);
    size_t n;
    uint8_t *p = h_file_read(h_temp("a.q4d"), &n);
    assert_true(n == 3 && !memcmp(p, "old", 3) && h_temp_count() == 1);
    free(p);
    write_ok(d, h_temp("a.q4d"), NULL); /* and is replaced by a whole one */
    q4x_dump_free(read_ok(h_temp("a.q4d")));
    assert_int_equal(h_temp_count(), 1);
    q4x_dump_free(d);
    h_temp_remove();
}

static void test_no_folder(void **state) {
    (void)state;
    h_dump_opts o = opts(0, 0);
    q4x_dump *d = h_dump_make(&o);
    q4x_err err = {0};
    assert_int_equal(h_dump_write(d, h_temp("no/such/folder/a.q4d"), NULL, &err), Q4X_E_IO);
    assert_non_null(strstr(err.msg, "a.q4d"));
    q4x_dump *none = NULL;
    assert_int_equal(q4x_dump_read(h_temp("none.q4d"), &none, &err), Q4X_E_IO);
    assert_int_equal(q4x_dump_read("/", &none, &err), Q4X_E_IO);
    assert_null(none);
    q4x_dump_free(d);
    h_temp_remove();
}

static void test_full_disk(void **state) {
    (void)state;
    h_dump_opts o = opts(1, 0);
    o.wide = 20000; /* more than the writer's buffer */
    q4x_dump *d = h_dump_make(&o);
    q4x_err err = {0};
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(h_dump_write(d, "/dev/full", NULL, &err), Q4X_E_FULL);
        assert_non_null(strstr(err.msg, "/dev/full"));
    }
    write_ok(d, h_temp("a.q4d"), NULL);
    size_t n;
    free(h_file_read(h_temp("a.q4d"), &n));
    /* a limit on the file's size, at several places of the file, and right behind it (the twin: nothing fails) */
    const size_t limits[] = {0, 10, 3000, 70000, n / 2, n - 1, n};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        pid_t pid = fork();
        if (!pid) {
            signal(SIGXFSZ, SIG_IGN);
            struct rlimit lim = {limits[i], limits[i]};
            setrlimit(RLIMIT_FSIZE, &lim);
            int rc = h_dump_write(d, h_temp("b.q4d"), NULL, &err);
            _exit(rc == 0 ? 0 : (rc == Q4X_E_IO || rc == Q4X_E_FULL) && strstr(err.msg, "b.q4d") ? 1 : 2);
        }
        int status = -1;
        assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), limits[i] < n);
        assert_int_equal(h_temp_count(), limits[i] < n ? 1 : 2);
    }
    q4x_dump *b = read_ok(h_temp("b.q4d"));
    assert_true(h_dump_equal(d, b));
    q4x_dump_free(b);
    q4x_dump_free(d);
    h_temp_remove();
}

/* Many records: several chunks for one forward. */
static void test_large_forward(void **state) {
    (void)state;
    h_dump_opts o = opts(0, 0);
    q4x_dump *d = h_dump_make(&o);
    enum { N = 700 };
    q4x_dumpw *w = NULL;
    q4x_err err = {0};
    q4x_dump_node *nodes = calloc(N, sizeof *nodes);
    for (int i = 0; i < N; i++) {
        nodes[i] = (q4x_dump_node){.op = "x", .levers = "", .layer = -1, .alias = -1};
        nodes[i].name = malloc(16);
        snprintf(nodes[i].name, 16, "n%d", i);
    }
    assert_int_equal(q4x_dumpw_open(h_temp("a.q4d"), d->header, nodes, N, &w, &err), 0);
    for (int i = 0; i < N; i++) {
        q4x_tap t = d->forwards[0].taps[1]; /* 9 rows of 64 buckets: 4.8 KB each */
        t.node = (i * 101) % N;             /* in no order */
        assert_int_equal(q4x_dumpw_tap(w, &t, &err), 0);
    }
    assert_int_equal(q4x_dumpw_forward(w, &d->forwards[0], &err), 0);
    assert_int_equal(q4x_dumpw_close(w, NULL, &err), 0);
    size_t n;
    uint8_t *p = h_file_read(h_temp("a.q4d"), &n);
    h_chunks c = h_chunks_split(p, n);
    assert_true(h_chunks_find(&c, "TAPS", 2) > 0);
    q4x_dump *back = read_ok(h_temp("a.q4d"));
    assert_int_equal(back->forwards[0].ntaps, N);
    for (int i = 0; i < N; i++) assert_int_equal(q4x_dump_tap(back, 0, i)->node, i);
    h_chunks_free(&c);
    free(p);
    q4x_dump_free(back);
    for (int i = 0; i < N; i++) free(nodes[i].name);
    free(nodes);
    q4x_dump_free(d);
    h_temp_remove();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_tail),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_abort_and_old_file),
        cmocka_unit_test(test_no_folder),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_large_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
