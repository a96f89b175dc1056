/* t_states.c: a state is judged by a band of its own, beside the output of the op that writes it; where inputs differ,
 * by the rows that it keeps, or by its gain. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bisect/case.h"
#include "bisect/selftest.h"
#include "tests/check.h"
#include "tests/h_forward.h"
#include "tests/h_judge.h"

enum { L = 3 }; /* the layer whose state is touched: what follows it in forward 0 reads no state */

/* Two arms alike in all but a declared lever and what is done to the state of layer 3 after forward 0 in arm B. From
 * forward 1 on both are alike again, as where a difference has died away. */
static void begin(pair *p) {
    pair_honest(p);
    p->hb.round = NULL;
    pair_make(p);
}

static q4x_tap *state(q4x_dump *d) {
    return mk_tap(d, 0, "L03.state.delta");
}

/* Another value, `part` of the norm away, with the bits to show it. */
static void move(pair *p, double part) {
    q4x_tap *a = state(p->da), *b = state(p->db);
    float *x = b->sketch.values;
    assert_true(b->sketch.raw && b->sketch.nrows == b->rows);
    x[0] += (float)(part * sqrt(a->stats.sumsq));
    b->bits.b[0] ^= 1;
}

static void band(pair *p, double rms, double hard) {
    for (int arm = 0; arm < 2; arm++) {
        q4x_tap *t = state(arm ? p->db : p->da);
        double norm = sqrt(t->stats.sumsq);
        t->has_band = rms >= 0;
        t->band_rms = rms * norm;
        t->band_hard = hard * norm;
    }
}

/* The op's output differs too, within its own band. */
static void move_output(pair *p) {
    q4x_tap *b = mk_tap(p->db, 0, "L03.gdn.core");
    b->sketch.values[0] = nextafterf(b->sketch.values[0], 9);
    b->bits.b[0] ^= 1;
}

static void expect(pair *p, bis_verdict v, bis_reason why, int at_state) {
    pair_judge(p);
    if (p->c->verdict != v || p->c->reason != why)
        fail_msg("%s (%s), expected %s (%s)", p->c->name, bis_reason_word(p->c->reason), bis_verdict_name(v),
                 bis_reason_word(why));
    assert_int_equal(!strcmp(p->c->where, "L03.state.delta in forward 0"), at_state);
    pair_free(p);
}

static void alone(void **s) {
    (void)s;
    pair p;
    begin(&p); /* within its band: rounding that the store of the output hides */
    band(&p, 1e-6, 1e-3);
    move(&p, 1e-6);
    expect(&p, BIS_V_WITHIN_BAND, BIS_R_within_band, 0);
    begin(&p);
    band(&p, 1e-6, 1e-3);
    move(&p, 1e-4);
    expect(&p, BIS_V_DIVERGED, BIS_R_above_rms_band, 1);
    begin(&p);
    band(&p, 1e-6, 1e-3);
    move(&p, 1e-2);
    expect(&p, BIS_V_FAULT, BIS_R_above_hard_band, 1);
    begin(&p);
    band(&p, -1, 0);
    move(&p, 1e-6);
    expect(&p, BIS_V_DIVERGED, BIS_R_band_not_recorded, 1);
    begin(&p); /* a copy has a band of nothing: whoever knows that bits differ knows enough */
    band(&p, 0, 0);
    move(&p, 1e-6);
    state(p.db)->has_sketch = state(p.db)->has_stats = 0;
    expect(&p, BIS_V_FAULT, BIS_R_above_hard_band, 1);
    begin(&p); /* the twin: with room to round, that is too little to know */
    band(&p, 1e-6, 1e-3);
    move(&p, 1e-6);
    state(p.db)->has_sketch = state(p.db)->has_stats = 0;
    expect(&p, BIS_V_DIVERGED, BIS_R_distance_not_recorded, 1);
}

/* A fault in the state is not hidden by a difference of the output that is within its band. */
static void beside_the_output(void **s) {
    (void)s;
    pair p;
    begin(&p);
    band(&p, 1e-6, 1e-3);
    move(&p, 1e-6);
    move_output(&p);
    expect(&p, BIS_V_WITHIN_BAND, BIS_R_within_band, 0);
    begin(&p);
    band(&p, 1e-6, 1e-3);
    move(&p, 1e-2);
    move_output(&p);
    expect(&p, BIS_V_FAULT, BIS_R_above_hard_band, 1);
}

static int says(const bis_lines *l, const char *what) {
    for (int i = 0; i < l->n; i++)
        if (strstr(l->line[i], what)) return 1;
    return 0;
}

/* Without a band it is not judged there, and that is said; the op's output is. */
static void not_judged_is_said(void **s) {
    (void)s;
    for (int k = 0; k < 2; k++) {
        pair p;
        begin(&p);
        band(&p, k ? 1e-6 : -1, k ? 1e-3 : 0);
        move(&p, 1e-6);
        move_output(&p);
        pair_judge(&p);
        assert_int_equal(p.c->verdict, BIS_V_WITHIN_BAND);
        assert_int_equal(says(&p.c->limits, "1 states differ beside the output of their op and were not judged"), !k);
        pair_free(&p);
    }
}

/* Where both arms claim the same arithmetic the op is the fault, not its state. */
static void same_claims(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    pair_make(&p);
    move(&p, 1e-6);
    move_output(&p);
    pair_judge(&p);
    assert_int_equal(p.c->reason, BIS_R_same_arithmetic_bits_differ);
    assert_string_equal(p.c->where, "L03.gdn.core in forward 0");
    assert_int_equal(p.c->map.nsources, 1);
    pair_free(&p);
}

/* ---- states that keep rows, of real runs ---- */

#define DEMO "tests/models/demo.gguf"
static char dir[] = "/tmp/q4x-states-XXXXXX";
static q4x_net *net;

static int setup(void **s) {
    (void)s;
    net = h_net(DEMO);
    return !mkdtemp(dir);
}

static int teardown(void **s) {
    (void)s;
    q4x_net_close(net);
    return rmdir(dir);
}

typedef struct {
    q4x_dump *d[2];
    bis_case *c;
} two;

/* A prompt of 8 ids and three more, every node and row recorded. */
static two record(const char *a, const char *b) {
    two t = {.c = NULL};
    q4x_err err = {0};
    assert_rc_ok(bis_selftest_dump(net, a, dir, 1, &t.d[0], &err), &err);
    assert_rc_ok(bis_selftest_dump(net, b, dir, 1, &t.d[1], &err), &err);
    return t;
}

static void judge(two *t) {
    bis_request rq = {.a = t->d[0], .b = t->d[1]};
    q4x_err err = {0};
    bis_case_free(t->c);
    assert_rc_ok(bis_judge(&rq, &t->c, &err), &err);
}

static void done(two *t) {
    bis_case_free(t->c);
    q4x_dump_free(t->d[0]);
    q4x_dump_free(t->d[1]);
}

static void named(const two *t, const char *node, int f) {
    int32_t is_f = -1, n = -1;
    if (!bis_named(t->c, &is_f, &n)) {
        if (node) fail_msg("nothing is named: %s (%s), expected %s", t->c->name, bis_reason_word(t->c->reason), node);
        return;
    }
    if (!node) fail_msg("%s in forward %d is named", t->d[0]->nodes[n].name, is_f);
    assert_string_equal(t->d[0]->nodes[n].name, node);
    assert_int_equal(is_f, f);
    assert_int_equal(t->c->verdict, BIS_V_FAULT);
    assert_int_equal(t->c->reason, BIS_R_move_changed_bits);
}

/* Row r of a state's record, in which something is `by` larger; its sketch has 64 or 256 buckets or all values. */
static void shift(q4x_dump *d, const char *node, int f, int r, double by) {
    q4x_tap *t = mk_tap(d, f, node);
    const int64_t at = (int64_t)(r - t->sketch.row0) * t->sketch.width + 5;
    assert_true(t->has_sketch && r >= t->sketch.row0 && r < t->sketch.row0 + t->sketch.nrows);
    if (t->sketch.raw)
        t->sketch.values[at] += (float)by;
    else
        t->sketch.buckets[at] += by;
    t->bits.b[0] ^= 1;
}

static const struct {
    const char *node;
    int f, row;
} ROWS[] = {
    {"L04.state.conv", 0, 0},     {"L04.state.conv", 0, 2}, /* of the prompt */
    {"L04.state.conv", 1, 0},     {"L04.state.conv", 1, 2}, /* moved on, new */
    {"L01.state.ple.conv", 0, 0},                           /* was cleared: the prompt is shorter than the state */
    {"L01.state.ple.conv", 0, 8}, {"L01.state.ple.conv", 2, 3}, {"L03.state.k", 0, 7},    {"L03.state.k", 1, 3},
    {"L03.state.k", 1, 8},        {"L07.state.v", 0, 0},        {"L07.state.v", 2, 9},    {"L03.state.idx", 1, 8},
    {"L03.state.idx", 2, 2},      {"L03.state.pool", 0, 1},     {"L03.state.pool", 3, 0},
};
enum { NROWS = sizeof ROWS / sizeof *ROWS };

/* Beside a difference of every node, in one arm alone, however small. */
static void one_row(void **s) {
    (void)s;
    for (int i = 0; i < NROWS; i++)
        for (int arm = 0; arm < 2; arm++) {
            two t = record("cpu/1", "cpu/1:act=bf16");
            judge(&t);
            named(&t, NULL, 0);
            shift(t.d[arm], ROWS[i].node, ROWS[i].f, ROWS[i].row, 1e-5);
            judge(&t);
            named(&t, ROWS[i].node, ROWS[i].f);
            done(&t);
        }
}

/* What both arms do alike is nothing that they differ in. */
static void both_arms(void **s) {
    (void)s;
    two t = record("cpu/1", "cpu/1:act=bf16");
    for (int arm = 0; arm < 2; arm++) shift(t.d[arm], "L03.state.k", 3, 10, 1e-5);
    judge(&t);
    named(&t, NULL, 0);
    done(&t);
}

static const bis_cell *cell(const two *t, const char *node, int f) {
    return bis_map_cell(&t->c->map, t->c->pair, f, mk_node(t->d[0], node));
}

/* Without the rows that it comes from a state is judged by how much larger its difference is than theirs. */
static void by_gain(void **s) {
    (void)s;
    static const char *const from[] = {"L03.attn.v", "L03.attn.rope.k"};
    two t = record("cpu/1", "cpu/1:act=bf16");
    judge(&t);
    assert_true(cell(&t, "L03.state.v", 1)->gain == 1 && isnan(cell(&t, "L03.state.v", 1)->d_in));
    for (int arm = 0; arm < 2; arm++)
        mk_tap(t.d[arm], 2, "L03.attn.v")->rows = 2; /* of one id: whose rows are these? */
    judge(&t);
    assert_true(cell(&t, "L03.state.v", 1)->gain == 1 && cell(&t, "L03.state.v", 2)->d_in > 0);
    for (int arm = 0; arm < 2; arm++)
        for (int f = 0; f < t.d[arm]->nforwards; f++)
            for (int i = 0; i < 2; i++) mk_tap(t.d[arm], f, from[i])->has_sketch = 0;
    for (int k = 1; k < 4; k++) shift(t.d[1], "L03.state.v", k, 8, 1e-5);
    judge(&t);
    named(&t, NULL, 0);
    assert_true(cell(&t, "L03.state.v", 1)->gain > 0 && cell(&t, "L03.state.v", 1)->d_in > 0);
    for (int k = 1; k < 4; k++) shift(t.d[1], "L03.state.v", k, 8, 1e5);
    judge(&t);
    int32_t f, n;
    assert_true(bis_named(t.c, &f, &n) && f == 1 && n == mk_node(t.d[0], "L03.state.v"));
    assert_int_equal(t.c->reason, BIS_R_gain_outlier);
    done(&t);
}

/* A cache of another type rounds what it stores, and keeps it as it is from then on. */
static void rounded(void **s) {
    (void)s;
    two t = record("cpu/1:act=bf16@emb", "cpu/1:kv=f16");
    judge(&t);
    named(&t, NULL, 0);
    assert_true(cell(&t, "L07.state.k", 1)->gain == 1);
    const double step = mk_tap(t.d[1], 1, "L07.state.k")->band_hard;
    assert_true(step > 0);
    shift(t.d[1], "L07.state.k", 1, 8, step);
    shift(t.d[1], "L07.state.k", 2, 8, step); /* and stays */
    shift(t.d[1], "L07.state.k", 3, 8, step);
    judge(&t);
    named(&t, NULL, 0);
    shift(t.d[1], "L07.state.k", 2, 8, step); /* does not stay */
    judge(&t);
    named(&t, "L07.state.k", 2);
    done(&t);
    t = record("cpu/1:act=bf16@emb", "cpu/1:kv=f16");
    shift(t.d[1], "L07.state.k", 1, 8, 6 * step); /* more than rounding takes */
    judge(&t);
    named(&t, "L07.state.k", 1);
    done(&t);
}

/* The delta rule's state beside unequal inputs: by its gain, as its op. */
static void recurrent(void **s) {
    (void)s;
    two t = record("cpu/1", "cpu/1:act=bf16");
    judge(&t);
    const bis_cell *c = cell(&t, "L05.state.delta", 2);
    assert_true(c->in == BIS_DIFF && c->gain > 0 && c->gain < 8 && c->cls == BIS_C_PASSED);
    q4x_tap *b = mk_tap(t.d[1], 2, "L05.state.delta");
    for (int64_t i = 0; i < (int64_t)b->sketch.nrows * b->sketch.width; i++) b->sketch.buckets[i] *= -1;
    b->bits.b[0] ^= 1;
    judge(&t);
    int32_t f, n;
    assert_true(bis_named(t.c, &f, &n) && f == 2 && n == mk_node(t.d[0], "L05.state.delta"));
    assert_int_equal(t.c->reason, BIS_R_gain_outlier);
    done(&t);
}

/* Equal rows in, another state: bits alone tell, whatever else the op reads. */
static void equal_rows(void **s) {
    (void)s;
    two t = record("cpu/1", "cpu/1:rope.freq=bf16"); /* queries and keys differ, not the first values */
    judge(&t);
    named(&t, NULL, 0);
    q4x_tap *b = mk_tap(t.d[1], 0, "L03.state.v");
    assert_int_equal(cell(&t, "L03.state.v", 0)->in, BIS_SAME);
    assert_int_equal(cell(&t, "L03.attn.ctx", 0)->in, BIS_DIFF);
    b->bits.b[0] ^= 1;
    b->has_sketch = b->has_stats = 0;
    judge(&t);
    assert_int_equal(t.c->verdict, BIS_V_FAULT);
    assert_string_equal(t.c->where, "L03.state.v in forward 0");
    done(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),       cmocka_unit_test(beside_the_output), cmocka_unit_test(not_judged_is_said),
        cmocka_unit_test(same_claims), cmocka_unit_test(one_row),           cmocka_unit_test(both_arms),
        cmocka_unit_test(by_gain),     cmocka_unit_test(rounded),           cmocka_unit_test(recurrent),
        cmocka_unit_test(equal_rows),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
