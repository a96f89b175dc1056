/* t_selftest.c: the selftest has a trial for every fault, and counts as bad what is not at its place or not silent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bisect/selftest.h"
#include "kernels/ops.h"
#include "lib/names.h"
#include "lib/plant.h"
#include "tests/check.h"
#include "tests/h_forward.h"

#define MICRO "tests/models/micro-a-bf16.gguf"
#define DEMO "tests/models/demo.gguf"

static char dir[] = "/tmp/q4x-selftest-XXXXXX";

static int setup(void **state) {
    (void)state;
    return !mkdtemp(dir);
}

static int teardown(void **state) {
    (void)state;
    return rmdir(dir);
}

/* ---- every fault has its trials ---- */

/* Op of the node that is named without its layer; "": none. */
static const char *op_of(const q4x_plan *p, const char *node) {
    for (int i = 0; i < p->nnodes; i++) {
        const char *dot = strchr(p->node[i].name, '.');
        if (!strcmp(p->node[i].name, node) || (p->node[i].layer >= 0 && dot && !strcmp(dot + 1, node)))
            return k_ops[p->node[i].op].name;
    }
    return "";
}

/* Trials of a fault ("sign") or lever ("eps") at nodes of op (NULL: any). */
static int trials_of(const q4x_plan *p, const bis_plant *x, int n, const char *fault, const char *op) {
    int k = 0;
    const size_t len = strlen(fault);
    for (int i = 0; i < n; i++) {
        if (strncmp(x[i].fault, fault, len) != 0 || (x[i].fault[len] && x[i].fault[len] != '=')) continue;
        k += !op || !strcmp(op_of(p, x[i].node), op);
    }
    return k;
}

/* The first kind of fault, or lever of kind formula, that lacks a trial; NULL: none. */
static const char *uncovered(const q4x_plan *p, const bis_plant *x, int n) {
    for (int i = 0; i < q4x_nplant_kinds; i++) {
        const q4x_plant_kind *k = &q4x_plant_kinds[i];
        if (!strcmp(k->ops, "*") && trials_of(p, x, n, k->name, NULL) < 2) return k->name;
        for (int op = 0; op < K_OP_COUNT && strcmp(k->ops, "*") != 0; op++)
            if (q4x_word_in(k->ops, k_ops[op].name) && !trials_of(p, x, n, k->name, k_ops[op].name)) return k->name;
    }
    for (int i = 0; i < q4x_nlevers; i++) {
        const q4x_lever *l = &q4x_levers[i];
        if (strcmp(l->kind, "formula") != 0 || !strcmp(l->name, "qsa.extra")) continue;
        if (!trials_of(p, x, n, l->name, NULL)) return l->name;
    }
    return NULL;
}

static void test_covered(void **state) {
    (void)state;
    q4x_net *net = h_net(DEMO);
    const q4x_plan *p = q4x_net_plan(net);
    assert_null(uncovered(p, bis_plants, bis_nplants));
    int missed = 0, single = 0; /* twin: without any one trial that stands alone, or of two, something is uncovered */
    bis_plant *less = calloc((size_t)bis_nplants, sizeof *less);
    assert_non_null(less);
    for (int i = 0; i < bis_nplants; i++) {
        memcpy(less, bis_plants, (size_t)bis_nplants * sizeof *less);
        less[i].fault = "off";
        const char *why = uncovered(p, less, bis_nplants);
        single++;
        missed += why && !strncmp(bis_plants[i].fault, why, strlen(why));
        assert_true(!why || !strncmp(bis_plants[i].fault, why, strlen(why)));
    }
    assert_true(2 * missed > single);
    free(less);
    q4x_net_close(net);
}

/* ---- a trial is good only at its place ---- */

static void keep(void *ctx, const bis_trial *t) {
    *(bis_trial *)ctx = *t;
}

static bis_trial try_one(bis_plant x) {
    bis_trial t = {0};
    int bad = -1;
    q4x_err err = {0};
    assert_rc_ok(bis_selftest_plants(MICRO, dir, &x, 1, keep, &t, &bad, &err), &err);
    assert_int_equal(bad, !t.good);
    return t;
}

static int fates(const bis_trial *t, bis_fate want) {
    int n = 0;
    for (int i = 0; i < BIS_NHONEST; i++) n += t->on[i].ran && t->on[i].moved && t->on[i].fate == want;
    return n;
}

static void test_place(void **state) {
    (void)state;
    bis_trial t = try_one((bis_plant){"sign", "gdn.core", BIS_AT_FIRST, 1, ""});
    assert_true(t.good && !strcmp(t.verdict, "FAULT"));
    assert_int_equal(fates(&t, BIS_F_EXACT), BIS_NHONEST);
    t = try_one((bis_plant){"sign", "gdn.core", BIS_AT_FIRST, 1, "gdn.norm"}); /* twins: another node is expected */
    assert_true(!t.good && !strcmp(t.verdict, "FAULT"));
    assert_int_equal(fates(&t, BIS_F_ASTRAY), BIS_NHONEST);
    assert_false(try_one((bis_plant){"sign", "gdn.core", BIS_AT_FIRST, 1, "gdn.qkv"}).good);
    t = try_one((bis_plant){"window+1", "attn.prob", BIS_AT_FIRST, 1, ""}); /* moves nothing: there is no later token */
    assert_false(t.good);
    assert_string_equal(t.on[0].word, "moved nothing");
    t = try_one((bis_plant){"sign", "gdn.cores", BIS_AT_FIRST, 1, ""});
    assert_true(!t.good && strstr(t.found, "no node gdn.cores"));
}

static void test_lever(void **state) {
    (void)state;
    assert_true(try_one((bis_plant){"eps=0.01", "ahc.norm", BIS_AT_FIRST, 0, ""}).good);
    assert_false(try_one((bis_plant){"eps=1e-6", "ahc.norm", BIS_AT_FIRST, 0, ""}).good); /* what the file says */
}

/* One ulp beside an honest difference is below what can be told, and the ratio says so. */
static void test_below(void **state) {
    (void)state;
    bis_trial t = try_one((bis_plant){"ulp", "mhc.mix", BIS_AT_LAST, 2, ""});
    assert_true(t.good);
    assert_int_equal(fates(&t, BIS_F_MISSED), BIS_NHONEST);
    for (int i = 0; i < BIS_NHONEST; i++)
        assert_true(t.on[i].ratio > 0 && t.on[i].ratio < 1 && !strncmp(t.on[i].word, "below ", 6));
}

/* ---- silence ---- */

static int quiet(const q4x_net *net, const char *a, const char *b, bis_quiet_kind kind) {
    bis_trial t;
    q4x_err err = {0};
    const bis_quiet q = {"a pair", a, b, kind};
    assert_rc_ok(bis_quiet_pair(net, dir, &q, &t, &err), &err);
    return t.good;
}

static void test_quiet(void **state) {
    (void)state;
    q4x_net *net = h_net(MICRO);
    assert_true(quiet(net, "cpu/1", "cpu/2", BIS_Q_EQUAL));
    assert_true(quiet(net, "cpu/1", "cpu/1:act=bf16", BIS_Q_HONEST));
    assert_false(quiet(net, "cpu/1", "cpu/1:act=bf16", BIS_Q_EQUAL));
    assert_false(quiet(net, "cpu/1", "cpu/1:plant=ulp@out#3", BIS_Q_EQUAL));
    assert_false(quiet(net, "cpu/1", "cpu/1", BIS_Q_HONEST)); /* nothing differs: proves nothing */
    assert_false(quiet(net, "cpu/1", "cpu/1:act=bf16,plant=sign@L00.gdn.core#0", BIS_Q_HONEST));
    assert_false(quiet(net, "cpu/1", "cpu/1:act=bf16", BIS_Q_TIED)); /* what follows the experts differs */
    /* another rule for ties is no excuse for ids whose weights move */
    assert_false(quiet(net, "cpu/1", "cpu/1:topk.tie=highest,plant=roll@L00.moe.ids#0", BIS_Q_HONEST));
    q4x_net_close(net);
}

static void keep_last(void *ctx, const bis_trial *t) {
    int *n = ctx;
    ++*n;
    if (strstr(t->what, "tie")) assert_string_equal(t->verdict, "WITHIN_BAND");
}

/* Probabilities tie at 0 while the scores lie far apart: no fault. */
static void test_tied(void **state) {
    (void)state;
    int n = 0, bad = -1;
    q4x_err err = {0};
    assert_rc_ok(bis_selftest_quiet(MICRO, dir, keep_last, &n, &bad, &err), &err);
    assert_true(n >= 4 && bad == 0);
    assert_true(bis_selftest_quiet("tests/golden/micro-a/model.safetensors", dir, keep_last, &n, &bad, &err) < 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_covered), cmocka_unit_test(test_place), cmocka_unit_test(test_lever),
        cmocka_unit_test(test_below),   cmocka_unit_test(test_quiet), cmocka_unit_test(test_tied),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
