/* t_rates.c [whole]: how often is the judge wrong? Independent small models (h_rates.h), pairs of arms without a fault,
 * with a fault against an equal arm, with a fault on top of an honest difference; every count with what it excludes at
 * 95 %.
 *
 * No constant of bisect/ was set with the seeds that are run here: those below 2000 were for that. `whole` runs
 * enough of them to speak of rates; its table stands in README.md. `long` runs a few more than `make check`.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/h_rates.h"

static struct {
    uint64_t seed;                 /* first */
    int models, honest, equal, on; /* pairs a model */
} plan = {2004, 3, 5, 5, 4};       /* small ones: within two seconds */

static char dir[] = "/tmp/q4x-rates-XXXXXX";

static int setup(void **state) {
    (void)state;
    return !mkdtemp(dir);
}

static int teardown(void **state) {
    (void)state;
    return rmdir(dir);
}

static void tell(const char *what, const h_rig *r, const char *a, const char *b, const bis_case *c) {
    print_message("    %s: seed %llu, %s\n        %s | %s: %s (%s) %s\n", what, (unsigned long long)r->seed, r->what, a,
                  b, c->name, bis_reason_word(c->reason), c->where);
}

/* A count, its rate, and what it excludes at 95 %. */
static void rate(const char *what, int64_t k, int64_t n) {
    const double lo = k ? 1 - h_rate_upper(n - k, n) : 0, hi = h_rate_upper(k, n);
    print_message("    | %s | %lld of %lld | %.1f to %.1f %% |\n", what, (long long)k, (long long)n, 100 * lo,
                  100 * hi);
}

/* ---- arms without a fault ---- */

static void test_honest(void **state) {
    (void)state;
    int64_t n[BIS_ANSWERS] = {0}, all = 0, same = 0, equal = 0;
    for (int k = 0; k < plan.models; k++) {
        h_rig r;
        h_rig_open(plan.seed + (uint64_t)k, dir, &r);
        for (int i = 0; i < plan.honest; i++) {
            const h_honest *p = h_rig_pair(&r, 0);
            q4x_dump *a = h_rig_record(&r, p->a), *b = h_rig_record(&r, p->b);
            bis_case *c = h_rig_judge(a, b);
            bis_answer w = bis_answer_of(c);
            n[w]++;
            all++;
            same += p->same;
            equal += p->same && w == BIS_A_SAME;
            if (w == BIS_A_ALARM || (p->same && w != BIS_A_SAME)) tell("false alarm", &r, p->a, p->b, c);
            bis_case_free(c);
            q4x_dump_free(a);
            q4x_dump_free(b);
        }
        h_rig_close(&r);
    }
    print_message("    %d models; IDENTICAL %lld, WITHIN_BAND %lld, TIE %lld, TOKENS_DIFFER %lld, not recorded %lld\n",
                  plan.models, (long long)n[BIS_A_SAME], (long long)n[BIS_A_WITHIN], (long long)n[BIS_A_TIE],
                  (long long)n[BIS_A_TOKENS], (long long)n[BIS_A_UNKNOWN]);
    rate("false alarms: a node is named, none is at fault", n[BIS_A_ALARM], all);
    assert_int_equal(n[BIS_A_ALARM], 0);
    assert_int_equal(equal, same);
    assert_true(n[BIS_A_WITHIN] * 3 > all); /* silence because nothing could be judged would prove nothing */
}

/* ---- a fault against an equal arm ---- */

static int at_its_place(const bis_case *c, const h_fault *x) {
    int32_t f, n;
    return bis_named(c, &f, &n) && f == x->forward && n == x->n && c->map.first_f == f && c->map.first_n == n &&
           (c->verdict == BIS_V_FAULT || c->verdict == BIS_V_NON_FINITE);
}

/* Draws a fault. */
typedef h_fault (*draw)(h_rig *r, const char *arm);

static void against_equal(draw fault, const char *what) {
    static const char *const arm[] = {"cpu/1", "cpu/1:act=bf16", "cpu/1:act=bf16,gdn=chunk64", "cpu/1:as=hf-bf16"};
    int64_t n = 0, missed = 0;
    for (int k = 0; k < plan.models; k++) {
        h_rig r;
        h_rig_open(plan.seed + (uint64_t)k, dir, &r);
        for (int i = 0; i < plan.equal; i++) {
            const char *base = arm[h_below(&r.rand, 4)];
            h_fault x = fault(&r, base);
            q4x_dump *a = h_rig_record(&r, base), *b = h_rig_record(&r, x.spec);
            bis_case *c = h_rig_judge(a, b);
            if (bis_lever_moved(b)) {
                n++;
                missed += !at_its_place(c, &x);
                if (!at_its_place(c, &x)) tell("not at its place", &r, base, x.spec, c);
            }
            bis_case_free(c);
            q4x_dump_free(a);
            q4x_dump_free(b);
        }
        h_rig_close(&r);
    }
    rate(what, missed, n);
    assert_int_equal(missed, 0);
    assert_true(n * 10 > 9 * (int64_t)plan.models * plan.equal);
}

static void test_equal(void **state) {
    (void)state;
    against_equal(h_rig_fault, "faults against an equal arm, not at their place");
}

static void test_kept_equal(void **state) {
    (void)state;
    against_equal(h_rig_kept, "faults of a state against an equal arm, not at their place");
}

/* ---- a fault on top of an honest difference ---- */

typedef struct {
    int64_t n, fate[BIS_FATES],
        missed[3]; /* those whose part is below 8 times the honest one, below LIMIT times, above */
    double largest;
} tally;

/* What a fault may be beside the honest difference and pass: 8 (1 + 12 / n) of one tensor, the least that a gain is
 * judged by. */
enum { LIMIT = 104 };

static void miss(const h_rig *r, const h_honest *p, const h_fault *x, const bis_case *c, tally *t) {
    q4x_dump *clean = h_rig_record(r, p->b);
    double ratio;
    q4x_err err = {0};
    assert_rc_ok(bis_fate_ratio(c, x->forward, x->n, clean, &ratio, &err), &err);
    q4x_dump_free(clean);
    t->missed[ratio < 8 ? 0 : ratio < LIMIT ? 1 : 2]++;
    if (!(ratio <= t->largest)) t->largest = ratio;
    if (ratio < LIMIT) return;
    char what[64];
    snprintf(what, sizeof what, "missed, %.3g times the honest difference", ratio);
    tell(what, r, p->a, x->spec, c);
}

/* Faults of one ulp are counted apart. */
static void on_top(draw fault, tally *all, tally *ulp) {
    for (int k = 0; k < plan.models; k++) {
        h_rig r;
        h_rig_open(plan.seed + (uint64_t)k, dir, &r);
        for (int i = 0; i < plan.on; i++) {
            const h_honest *p = h_rig_pair(&r, 1);
            h_fault x = fault(&r, p->b);
            q4x_dump *a = h_rig_record(&r, p->a), *b = h_rig_record(&r, x.spec);
            bis_case *c = h_rig_judge(a, b);
            tally *t = strstr(x.kind, "ulp") ? ulp : all;
            if (bis_lever_moved(b) && c->compared && x.forward < c->pair->ncomparable) {
                bis_fate w = bis_fate_of(c, x.forward, x.n);
                t->n++;
                t->fate[w]++;
                if (w == BIS_F_ASTRAY) tell("astray", &r, p->a, x.spec, c);
                if (w == BIS_F_MISSED) miss(&r, p, &x, c, t);
            }
            bis_case_free(c);
            q4x_dump_free(a);
            q4x_dump_free(b);
        }
        h_rig_close(&r);
    }
}

static void print_tally(const char *what, const tally *t) {
    print_message("  %s:\n", what);
    rate("named at their place", t->fate[BIS_F_EXACT], t->n);
    rate("named at the next recorded node", t->fate[BIS_F_NEXT], t->n);
    rate("said to be not judged", t->fate[BIS_F_UNJUDGED], t->n);
    rate("missed, below 8 times the honest difference there", t->missed[0], t->n);
    rate("missed, below 104 times", t->missed[1], t->n);
    rate("missed, above", t->missed[2], t->n);
    rate("another node named", t->fate[BIS_F_ASTRAY], t->n);
    print_message("    largest miss: %.3g times the honest difference\n", t->largest);
}

static void test_on_top(void **state) {
    (void)state;
    tally all = {0}, ulp = {0};
    on_top(h_rig_fault, &all, &ulp);
    print_tally("sign, swap, roll, nan, inf", &all);
    print_tally("one ulp of one element", &ulp);
    assert_true(all.n > 0 && 2 * (all.fate[BIS_F_EXACT] + all.fate[BIS_F_NEXT]) > all.n);
    assert_int_equal(all.missed[2], 0);
}

static void test_kept_on_top(void **state) {
    (void)state;
    tally all = {0}, ulp = {0};
    on_top(h_rig_kept, &all, &ulp);
    print_tally("what a state holds: post-conv, kept-stale, kept-early, kept-unrotated, kept-twice", &all);
    print_tally("one ulp of one element of it", &ulp);
    assert_true(all.n > 0 && all.fate[BIS_F_EXACT] + all.fate[BIS_F_NEXT] > 0);
    assert_int_equal(all.missed[2], 0);
}

/* ---- the counts themselves ---- */

static void test_upper(void **state) {
    (void)state;
    assert_true(h_rate_upper(0, 300) == 0.01 && h_rate_upper(0, 2) == 1 && h_rate_upper(0, 0) == 1);
    assert_true(fabs(h_rate_upper(10, 100) - 0.1744) < 1e-4); /* Wilson: 0.0552 to 0.1744 */
    assert_true(fabs(1 - h_rate_upper(90, 100) - 0.0552) < 1e-4);
    assert_true(h_rate_upper(7, 7) <= 1);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_honest),     cmocka_unit_test(test_equal),       cmocka_unit_test(test_on_top),
        cmocka_unit_test(test_kept_equal), cmocka_unit_test(test_kept_on_top), cmocka_unit_test(test_upper),
    };
    const int whole = argc > 1 && !strcmp(argv[1], "whole");
    if (whole || (argc > 1 && !strcmp(argv[1], "long")))
        plan.seed = 2000, plan.models = whole ? 100 : 6, plan.honest = 10, plan.equal = 6, plan.on = 8;
    if (argc > 2) plan.seed = strtoull(argv[2], NULL, 10), plan.models = argc > 3 ? atoi(argv[3]) : plan.models;
    if (argc > 4) cmocka_set_test_filter(argv[4]);
    return cmocka_run_group_tests(tests, setup, teardown);
}
