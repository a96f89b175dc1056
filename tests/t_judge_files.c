/* The judge on dumps that went through a file: the same case as in memory; cut files are TRUNCATED, never judged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/h_judge.h"

static const bis_names names = {"a", "b", NULL, NULL, NULL};

static char dir[] = "/tmp/q4x-judge-XXXXXX";

static const char *in_dir(char *buf, const char *name) {
    snprintf(buf, 100, "%s/%s", dir, name);
    return buf;
}

static int enter(void **s) {
    (void)s;
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    return !mkdtemp(dir);
}

static int leave(void **s) {
    char path[100];
    (void)s;
    unlink(in_dir(path, "a.q4d"));
    unlink(in_dir(path, "b.q4d"));
    unlink(in_dir(path, "cut.q4d"));
    return rmdir(dir);
}

/* What a case says, without the hashes that the two ways of making a dump define differently. */
static json_t *said(const bis_case *c) {
    json_t *j = bis_json(c, &names), *d = json_object_get(j, "details");
    json_object_del(json_object_get(d, "a"), "content");
    json_object_del(json_object_get(d, "b"), "content");
    json_object_del(j, "provenance");
    return j;
}

static void through_files(void **s) {
    (void)s;
    for (int k = 0; k < 3; k++) {
        pair p;
        char pa[100], pb[100];
        q4x_dump *fa = NULL, *fb = NULL;
        q4x_err err = {0};
        pair_honest(&p);
        p.a.full = p.b.full = k == 1;
        p.a.D = p.b.D = k == 2 ? 600 : 48;
        p.a.rms = p.b.rms = 1e-3;
        p.hb.plant = "L02.moe";
        p.hb.plant_f = 1;
        p.hb.factor = 1.4f;
        p.ha.tie_node = p.hb.tie_node = "L01.moe.logits";
        p.ha.tie_f = p.hb.tie_f = 0;
        p.ha.tie_row = p.hb.tie_row = 2;
        p.ha.tie_gap = 1e-3f;
        p.hb.tie_gap = -1e-3f;
        pair_make(&p);
        pair_judge(&p);
        assert_int_equal(mk_write(p.da, in_dir(pa, "a.q4d"), &err), 0);
        assert_int_equal(mk_write(p.db, in_dir(pb, "b.q4d"), &err), 0);
        assert_int_equal(q4x_dump_read(pa, &fa, &err), 0);
        assert_int_equal(q4x_dump_read(pb, &fb, &err), 0);
        bis_request rq = {.a = fa, .b = fb};
        bis_case *c = NULL;
        assert_int_equal(bis_judge(&rq, &c, &err), 0);
        json_t *x = said(p.c), *y = said(c);
        assert_string_equal(c->name, "DIVERGED CONTAMINATED");
        assert_true(json_equal(x, y));
        for (int f = 0; k == 1 && f < fa->nforwards; f++) /* full tensors were given back after use */
            for (int i = 0; i < fa->forwards[f].ntaps; i++) assert_null(fa->forwards[f].taps[i].full);
        json_decref(x);
        json_decref(y);
        bis_case_free(c);
        q4x_dump_free(fa);
        q4x_dump_free(fb);
        pair_free(&p);
    }
}

/* A file cut anywhere is TRUNCATED or, where not even its nodes are whole, an empty dump that is TRUNCATED too. */
static void cut_files(void **s) {
    (void)s;
    pair p;
    char pa[100], cut[100];
    q4x_err err = {0};
    pair_equal(&p);
    p.a.forwards = p.b.forwards = 2;
    pair_make(&p);
    assert_int_equal(mk_write(p.da, in_dir(pa, "a.q4d"), &err), 0);
    FILE *f = fopen(pa, "rb");
    char *bytes = malloc(1 << 22);
    size_t n = fread(bytes, 1, 1 << 22, f), tried = 0;
    fclose(f);
    in_dir(cut, "cut.q4d");
    for (size_t k = 40; k < n; k += n / 37 + 1, tried++) {
        q4x_dump *d = NULL;
        f = fopen(cut, "wb");
        fwrite(bytes, 1, k, f);
        fclose(f);
        assert_int_equal(q4x_dump_read(cut, &d, &err), Q4X_E_TRUNCATED);
        if (!d) d = bis_empty_dump(cut);
        bis_request rq = {.a = p.da, .b = d, .truncated_b = 1};
        bis_case *c = NULL;
        assert_int_equal(bis_judge(&rq, &c, &err), 0);
        assert_string_equal(c->name, "TRUNCATED");
        assert_int_equal(c->exit, 125);
        json_t *j = bis_json(c, &names);
        assert_non_null(j);
        json_decref(j);
        bis_case_free(c);
        q4x_dump_free(d);
    }
    assert_true(tried > 30);
    free(bytes);
    pair_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(through_files, enter, leave),
        cmocka_unit_test_setup_teardown(cut_files, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
