/* t_states.c: a state is judged by a band of its own, beside the output of the op that writes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "bisect/case.h"
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(beside_the_output),
        cmocka_unit_test(not_judged_is_said),
        cmocka_unit_test(same_claims),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
