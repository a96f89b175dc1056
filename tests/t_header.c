/* Header differences: what is free, what is a lever, what is fatal; how levers are counted; what a suffix says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "tests/h_judge.h"

/* Declared differences of two arms, as "name a|b; ..". */
static void levers_of(pair *p, char *buf, size_t size) {
    pair_make(p);
    pair_judge(p);
    buf[0] = 0;
    for (int i = 0; i < p->c->header.nlever; i++) {
        const bis_lever *l = &p->c->header.lever[i];
        size_t n = strlen(buf);
        snprintf(buf + n, size - n, "%s%s %s|%s", i ? "; " : "", l->name, l->a, l->b);
    }
}

static void counting(void **s) {
    (void)s;
    static const struct {
        const char *levers, *profile, *spec, *scoped_a, *scoped_b, *device, *kernels, *compiler, *want, *suffix;
    } row[] = {
        {.want = "", .suffix = ""},
        {.levers = "{\"act\":\"bf16\",\"gdn\":\"seq\"}", .want = "act f32|bf16", .suffix = ""},
        {.levers = "{\"act\":\"bf16\",\"gdn\":\"chunk64\"}",
         .want = "act f32|bf16; gdn seq|chunk64",
         .suffix = " CONFOUNDED(2: act, gdn)"},
        /* a dump that is older than a lever had its default */
        {.levers = "{\"act\":\"f32\"}", .want = "", .suffix = ""},
        {.levers = "{\"act\":\"f32\",\"gdn\":\"seq\",\"moe.renorm\":\"file\"}", .want = "", .suffix = ""},
        {.levers = "{\"act\":\"f32\",\"gdn\":\"seq\",\"moe.renorm\":\"off\"}",
         .want = "moe.renorm (absent)|off",
         .suffix = ""},
        {.levers = "{\"act\":\"f32\",\"gdn\":\"seq\",\"of.others\":\"file\"}",
         .want = "of.others (absent)|file",
         .suffix = ""},
        /* a profile counts as one, whatever it sets */
        {.levers = "{\"act\":\"bf16\",\"gdn\":\"chunk64\"}",
         .profile = "hf-bf16",
         .spec = "cpu:as=hf-bf16",
         .want = "profile (none)|hf-bf16",
         .suffix = ""},
        /* and what an arm sets beside it counts on its own */
        {.levers = "{\"act\":\"bf16\",\"gdn\":\"chunk64\"}",
         .profile = "hf-bf16-seq",
         .spec = "cpu:as=hf-bf16-seq,gdn=chunk64",
         .want = "gdn seq|chunk64; profile (none)|hf-bf16-seq",
         .suffix = " CONFOUNDED(2: gdn, profile)"},
        /* a profile that sets nothing is a name */
        {.profile = "exact", .spec = "cpu:as=exact", .want = "", .suffix = ""},
        {.device = "cuda", .want = "device cpu|cuda", .suffix = ""},
        {.device = "cuda",
         .levers = "{\"act\":\"f32\",\"gdn\":\"chunk64\"}",
         .want = "device cpu|cuda; gdn seq|chunk64",
         .suffix = " CONFOUNDED(2: device, gdn)"},
        {.scoped_b = "[\"act=bf16@L03.*\"]", .want = "act@L03.* (absent)|bf16", .suffix = ""},
        {.scoped_a = "[\"act=bf16@L03.*\",\"gdn=chunk64@L00.*\"]",
         .scoped_b = "[\"gdn=chunk64@L00.*\",\"act=f32@L03.*\"]",
         .want = "act@L03.* bf16|f32",
         .suffix = ""},
        {.scoped_a = "[\"act=bf16@L03.*#1\"]",
         .scoped_b = "[\"act=bf16@L03.*#2\"]",
         .want = "act@L03.*#1 bf16|(absent); act@L03.*#2 (absent)|bf16",
         .suffix = " CONFOUNDED(2: act@L03.*#1, act@L03.*#2)"},
        {.kernels = "99", .compiler = "clang", .want = "build 11aa|99", .suffix = ""}, /* one build, one lever */
        {.compiler = "clang", .want = "build gcc|clang", .suffix = ""},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        pair p;
        char got[400], name[300];
        pair_equal(&p);
        if (row[i].levers) p.b.levers = row[i].levers;
        if (row[i].profile) p.b.profile = row[i].profile;
        if (row[i].spec) p.b.spec = row[i].spec;
        p.a.scoped = row[i].scoped_a;
        p.b.scoped = row[i].scoped_b;
        p.b.device = row[i].device;
        p.b.kernels = row[i].kernels;
        p.b.compiler = row[i].compiler;
        levers_of(&p, got, sizeof got);
        assert_string_equal(got, row[i].want);
        snprintf(name, sizeof name, "IDENTICAL%s", row[i].suffix);
        assert_string_equal(p.c->name, name);
        assert_int_equal(p.c->exit, 0);
        pair_free(&p);
    }
}

/* CONFOUNDED keeps the verdict, forbids attribution, and says which pairs would separate the levers. */
static void confounded(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.b.levers = "{\"act\":\"bf16\",\"gdn\":\"chunk64\"}";
    pair_expect(&p, "WITHIN_BAND CONFOUNDED(2: act, gdn)", "within_band", 0);
    int found = 0;
    for (int i = 0; i < p.c->next.n; i++) {
        found += strstr(p.c->next.line[i], "arm A with act = bf16 (here f32)") != NULL;
        found += strstr(p.c->next.line[i], "arm A with gdn = chunk64 (here seq)") != NULL;
    }
    assert_int_equal(found, 2);
    found = 0;
    for (int i = 0; i < p.c->limits.n; i++) found += strstr(p.c->limits.line[i], "nothing is attributed") != NULL;
    assert_int_equal(found, 1);
    pair_free(&p);
    pair_equal(&p); /* a lever that moved nothing is INERT */
    p.b.levers = "{\"act\":\"f32\",\"gdn\":\"chunk64\"}";
    pair_expect(&p, "IDENTICAL", "bits_equal", 0);
    assert_non_null(strstr(p.c->notes.line[0], "INERT: lever gdn"));
    pair_free(&p);
}

static void device_null(void **s) {
    (void)s;
    pair p;
    mk_opts oa = mk_default("nullA"), ob = mk_default("nullB");
    ob.device = "cuda";
    q4x_dump *na = mk_dump(&oa), *nb = mk_dump(&ob);

    pair_honest(&p); /* device and act: two levers, unless the device is known to move nothing */
    p.b.device = "cuda";
    p.b.spec = "cuda:act=bf16";
    pair_expect(&p, "WITHIN_BAND CONFOUNDED(2: device, act)", "within_band", 0);
    bis_case_free(p.c);
    p.c = NULL;
    p.rq.null_a = na;
    p.rq.null_b = nb;
    pair_expect(&p, "WITHIN_BAND", "within_band", 0);
    assert_int_equal(p.c->header.device_null, BIS_NULL_NAMED);
    assert_int_equal(p.c->null_compared, 6 * 48);
    bis_case_free(p.c);
    p.c = NULL;

    mk_tap(nb, 3, "L02.moe")->bits.b[0] ^=
        1; /* a pair that is not equal proves nothing: the device counts, and it is said */
    pair_expect(&p, "WITHIN_BAND CONFOUNDED(2: device, act)", "within_band", 0);
    assert_non_null(strstr(p.c->notes.line[0], "Device null failed: 1 of 288"));
    bis_case_free(p.c);
    p.c = NULL;

    p.rq.null_b = na; /* not a pair of devices */
    assert_int_equal(bis_judge(&p.rq, &p.c, &p.err), Q4X_E_MISMATCH);
    assert_non_null(strstr(p.err.msg, "differ in the device alone"));
    p.rq.null_a = p.rq.null_b = NULL;
    p.rq.session_null = 1;
    pair_expect(&p, "WITHIN_BAND", "within_band", 0);
    assert_int_equal(p.c->header.device_null, BIS_NULL_SESSION);
    q4x_dump_free(na);
    q4x_dump_free(nb);
    pair_free(&p);

    oa.levers = ob.levers = "{\"act\":\"bf16\",\"gdn\":\"chunk64\"}"; /* with levers of neither arm: refused */
    for (int k = 0; k < 2; k++) {
        na = mk_dump(&oa);
        nb = mk_dump(&ob);
        pair_honest(&p);
        p.b.device = "cuda";
        p.b.spec = "cuda:act=bf16";
        pair_make(&p);
        p.rq.null_a = na;
        p.rq.null_b = nb;
        assert_int_equal(bis_judge(&p.rq, &p.c, &p.err), k ? 0 : Q4X_E_MISMATCH);
        if (k)
            assert_non_null(strstr(p.c->notes.line[0], "with the levers of arm B, is equal in all 288 records"));
        else
            assert_non_null(strstr(p.err.msg, "expected the levers of arm A or of arm B, found"));
        q4x_dump_free(na);
        q4x_dump_free(nb);
        pair_free(&p);
        oa.levers = ob.levers = "{\"act\":\"bf16\",\"gdn\":\"seq\"}"; /* twin: with those of arm B */
    }

    oa.model = ob.model = "other"; /* a null of another model is refused */
    na = mk_dump(&oa);
    nb = mk_dump(&ob);
    pair_honest(&p);
    p.b.device = "cuda";
    p.b.spec = "cuda:act=bf16";
    pair_make(&p);
    p.rq.null_a = na;
    p.rq.null_b = nb;
    assert_int_equal(bis_judge(&p.rq, &p.c, &p.err), Q4X_E_MISMATCH);
    q4x_dump_free(na);
    q4x_dump_free(nb);
    pair_free(&p);
}

static void classes(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    p.b.free_time = "2030-01-01T00:00:00Z";
    p.b.levers = "{\"act\":\"bf16\",\"gdn\":\"seq\"}";
    p.b.text = "hello"; /* the text that ids stand for is a note, the ids decide */
    pair_make(&p);
    json_object_set_new(json_object_get(p.db->header, "tool"), "commit", json_string("f00"));
    pair_judge(&p);
    int free_ones = 0, levers = 0, fatal = 0, commit = 0;
    for (int i = 0; i < p.c->header.ndiff; i++) {
        const bis_hdiff *d = &p.c->header.diff[i];
        free_ones += d->cls == BIS_H_FREE;
        levers += d->cls == BIS_H_LEVER;
        fatal += d->cls == BIS_H_FATAL;
        commit += !strcmp(d->key, "tool.commit") && d->cls == BIS_H_FREE; /* equal kernels: the commit is free */
    }
    assert_int_equal(free_ones, 5); /* label, recording, time, text, commit */
    assert_int_equal(levers, 1);
    assert_int_equal(fatal, 0);
    assert_int_equal(commit, 1);
    pair_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counting),
        cmocka_unit_test(confounded),
        cmocka_unit_test(device_null),
        cmocka_unit_test(classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
