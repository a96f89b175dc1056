/* Inherited differences: outliers are found at the right node and row on an honest background; flips are no outliers;
 * forwards that consumed other ids are left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/fmt.h"
#include "tests/h_judge.h"

static void expect(pair *p, const char *name, const char *reason, int exit) {
    pair_expect(p, name, reason, exit);
    pair_free(p);
}

static int says(const bis_lines *l, const char *text) {
    for (int i = 0; i < l->n; i++)
        if (strstr(l->line[i], text)) return 1;
    return 0;
}

/* ---- outliers ---- */

static void outlier_by_row(void **s) {
    (void)s;
    static const char *const node[] = {"L02.moe", "L01.blk", "L03.s.mlp", "out"};
    for (int k = 0; k < 4; k++) {
        pair p;
        pair_honest(&p);
        p.a.rms = p.b.rms = 1e-3; /* the source is within 4 x that, the planted row is not */
        p.hb.plant = node[k];
        p.hb.plant_f = 0;
        p.hb.plant_row = 3;
        p.hb.factor = 1.2f;
        pair_expect(&p, "DIVERGED CONTAMINATED", "gain_outlier", 1);
        const bis_map *m = &p.c->map;
        assert_string_equal(p.da->nodes[m->out_n].name, node[k]);
        assert_int_equal(m->out_f, 0);
        assert_int_equal(m->noutliers, 1);
        assert_int_equal(m->outlier[0].row, 3);
        assert_int_equal(m->outlier[0].nrows, 1);
        assert_true(m->outlier[0].gain > 50 * m->outlier[0].median);
        int32_t at[4];
        assert_true(bis_map_between(m, p.c->pair, 0, m->out_n, at, 4) >= 1);
        pair_free(&p);
    }
    pair p; /* twin: the same plant at the size of the background */
    pair_honest(&p);
    p.a.rms = p.b.rms = 1e-3;
    p.hb.plant = "L02.moe";
    p.hb.plant_f = 0;
    p.hb.plant_row = 3;
    p.hb.factor = 1.002f;
    expect(&p, "WITHIN_BAND", "within_band", 0);
    pair_honest(&p); /* twin: a band so wide that the node itself may add it */
    p.hb.plant = "L02.moe";
    p.hb.plant_f = 0;
    p.hb.plant_row = 3;
    p.hb.factor = 1.2f;
    expect(&p, "WITHIN_BAND", "within_band", 0);
}

/* As recorded by default: distances and bands of the public nodes, bits of the others; the source must be public. */
static void outlier_between_public_nodes(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.hb.round = "emb";
    p.a.sketch_all = p.b.sketch_all = 0;
    p.a.rms = p.b.rms = 1e-3;
    p.hb.plant = "L02.moe.weights"; /* hashed only: seen at the next public node, between its recorded ancestors */
    p.hb.plant_f = 0;
    p.hb.plant_row = 1;
    p.hb.factor = 3;
    pair_expect(&p, "DIVERGED CONTAMINATED", "gain_outlier", 1);
    assert_string_equal(p.c->where, "L02.moe in forward 0");
    assert_int_equal(p.c->map.outlier[0].row, 1);
    int32_t at[4];
    assert_int_equal(bis_map_between(&p.c->map, p.c->pair, 0, p.c->map.out_n, at, 4), 1);
    assert_string_equal(p.da->nodes[at[0]].name, "L02.s.attn");
    pair_free(&p);

    pair_honest(&p); /* decode: states are hashed only, so nothing is guessed about nodes that read them */
    p.hb.round = "emb";
    p.a.sketch_all = p.b.sketch_all = 0;
    p.a.rms = p.b.rms = 1e-3;
    p.hb.plant = "L02.blk";
    p.hb.plant_f = 3;
    p.hb.factor = 1.5f;
    pair_make(&p);
    pair_judge(&p);
    assert_true(p.c->map.unjudged > 0);
    assert_true(says(&p.c->limits, "inherited differences were not judged"));
    pair_free(&p);

    pair_honest(&p); /* wide rows: sketched, estimated, and still found by row */
    p.a.D = p.b.D = 1032;
    p.a.layers = p.b.layers = 3;
    p.a.T = p.b.T = 12; /* 64 buckets a row */
    p.a.forwards = p.b.forwards = 2;
    p.a.rms = p.b.rms = 1e-3;
    p.hb.plant = "L01.moe";
    p.hb.plant_f = 0;
    p.hb.plant_row = 9;
    p.hb.factor = 1.2f;
    pair_expect(&p, "DIVERGED CONTAMINATED", "gain_outlier", 1);
    assert_string_equal(p.c->where, "L01.moe in forward 0");
    assert_int_equal(p.c->map.outlier[0].row, 9);
    pair_free(&p);
}

/* As with --rows A-B: nodes keep so few rows of forward f, 0 or 1, which is made equal; states keep all, and what the
 * pair begins to differ in does. */
static void keep_few(pair *p, int f, int rows) {
    for (int arm = 0; arm < 2; arm++)
        for (int32_t i = 0; i < p->da->forwards[f].ntaps; i++) {
            q4x_tap *t = &(arm ? p->db : p->da)->forwards[f].taps[i], *a = &p->da->forwards[f].taps[i];
            if (p->da->nodes[t->node].is_state || !t->has_sketch) continue;
            if (!strcmp(p->da->nodes[t->node].name, "L00.gdn.core")) continue;
            t->sketch.nrows = rows;
            if (rows && t->sketch.raw)
                memcpy(t->sketch.values, a->sketch.values, (size_t)t->sketch.width * sizeof(float));
            else if (rows)
                memcpy(t->sketch.buckets, a->sketch.buckets, (size_t)t->sketch.width * sizeof(double));
        }
}

/* A difference in rows that were not kept is not 0: no gain takes it for that, and none is drawn as equal. */
static void rows_not_kept_are_not_known(void **s) {
    (void)s;
    static const struct {
        int f, rows; /* rows that are kept of it, -1: all, the twins */
    } list[] = {{0, -1}, {0, 0}, {0, 1}, {2, -1}, {2, 0}};
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        const int f = list[k].f, kept = list[k].rows < 0;
        pair p;
        pair_honest(&p);
        p.a.rms = p.b.rms = 1e-3;
        p.hb.plant = "L02.blk"; /* far from what came before: the state of layer 3 holds it, too */
        p.hb.plant_f = f;
        p.hb.factor = 1.5f;
        pair_make(&p);
        if (!kept) keep_few(&p, f, list[k].rows);
        pair_judge(&p);
        const int blk = mk_node(p.da, "L02.blk"), state = mk_node(p.da, "L03.state.delta");
        const bis_cell *c = bis_map_cell(&p.c->map, p.c->pair, f, blk),
                       *st = bis_map_cell(&p.c->map, p.c->pair, f, state);
        double rel[4];
        assert_int_equal(bis_depth(p.c, f, rel), 1);
        assert_int_equal(bis_dist_ranked(c->dist), kept);
        assert_int_equal(isnan(c->gain), !kept);
        assert_int_equal(c->cls, kept ? BIS_C_OUTLIER : BIS_C_PASSED);
        assert_int_equal(isnan(rel[2]), !kept);
        assert_int_equal(isnan(st->gain), !kept);
        assert_int_not_equal(st->cls, BIS_C_OUTLIER);
        if (!kept) assert_true(isnan(c->dist->rel) || c->dist->how == BIS_D_BOUND);
        if (!kept) assert_int_equal(p.c->map.noutliers, 0);
        pair_free(&p);
    }
}

/* A source without a distance adds what nobody knows: who reads it and a state has no gain over the state alone. */
static void source_that_is_not_recorded(void **s) {
    (void)s;
    for (int recorded = 0; recorded < 2; recorded++) {
        pair p;
        pair_honest(&p);
        p.a.rms = p.b.rms = 1e-3;
        p.hb.round = "ahc.mix";
        p.hb.plant = "L00.ahc.mix";
        p.hb.plant_f = 2;
        p.hb.factor = 1.5f;
        pair_make(&p);
        for (int arm = 0; arm < 2 && !recorded; arm++) {
            q4x_tap *t = mk_tap(arm ? p.db : p.da, 2, "L00.ahc.mix");
            t->has_sketch = t->has_stats = 0;
        }
        pair_judge(&p);
        const bis_cell *mix = bis_map_cell(&p.c->map, p.c->pair, 2, mk_node(p.da, "L00.ahc.mix")),
                       *core = bis_map_cell(&p.c->map, p.c->pair, 2, mk_node(p.da, "L00.gdn.core"));
        assert_int_equal(mix->in, BIS_SAME);
        assert_int_equal(core->in, BIS_DIFF);
        assert_int_equal(isnan(core->gain), !recorded);
        assert_int_equal(core->cls, BIS_C_PASSED);
        pair_free(&p);
    }
}

/* Tensors without rows: there is nothing to allocate, and nothing fails. */
static void no_rows_are_no_lack_of_memory(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.a.layers = p.b.layers = p.a.forwards = p.b.forwards = 1;
    pair_make(&p);
    for (int arm = 0; arm < 2; arm++) {
        q4x_dump *d = arm ? p.db : p.da;
        for (int32_t i = 0; i < d->forwards[0].ntaps; i++) {
            q4x_tap *t = &d->forwards[0].taps[i];
            if (t->has_sketch && strcmp(d->nodes[t->node].name, "L00.gdn.core")) t->rows = t->sketch.nrows = 0;
        }
    }
    pair_judge(&p);
    assert_true(bis_map_cell(&p.c->map, p.c->pair, 0, mk_node(p.da, "L00.blk"))->d_in > 0);
    pair_free(&p);
}

static void contaminated_without_a_source(void **s) {
    (void)s;
    pair p;
    pair_honest(&p); /* no inputs recorded: everything before stands for them, and it is equal */
    p.a.no_graph = p.b.no_graph = 1;
    pair_expect(&p, "WITHIN_BAND", "within_band", 0);
    assert_int_equal(bis_map_cell(&p.c->map, p.c->pair, 0, p.c->map.first_n)->guessed, 1);
    pair_free(&p);
    pair_equal(
        &p); /* the first difference reads a state that was not equal before, and that nothing recorded explains */
    pair_make(&p);
    int n = mk_node(p.db, "L01.gdn.core");
    for (int f = 0; f < 6; f++) mk_tap(p.db, f, "L01.gdn.core")->bits.b[0] ^= f >= 2;
    /* L01.state.delta is not tapped in either arm: its value before a forward is unknown */
    for (int arm = 0; arm < 2; arm++) {
        q4x_dump *d = arm ? p.db : p.da;
        for (int f = 0; f < 6; f++) {
            q4x_tap *t = mk_tap(d, f, "L01.state.delta"), *last = &d->forwards[f].taps[d->forwards[f].ntaps - 1],
                    tmp = *t;
            *t = *last;
            *last = tmp;
            d->forwards[f].ntaps--;
        }
    }
    pair_judge(&p);
    assert_string_equal(p.c->name, "DIVERGED CONTAMINATED");
    assert_int_equal(p.c->reason, BIS_R_inputs_not_equal);
    assert_int_equal(p.c->map.first_n, n);
    for (int arm = 0; arm < 2; arm++)
        for (int f = 0; f < 6; f++) (arm ? p.db : p.da)->forwards[f].ntaps++;
    pair_free(&p);
}

/* ---- selections ---- */

static void flips_are_no_outliers(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.a.rms = p.b.rms = 1e-3;
    p.ha.tie_node = p.hb.tie_node = "L01.moe.logits";
    p.ha.tie_f = p.hb.tie_f = 0;
    p.ha.tie_row = p.hb.tie_row = 2;
    p.ha.tie_gap = 1e-3f;
    p.hb.tie_gap = -1e-3f; /* expert 11 instead of 3 */
    pair_expect(&p, "WITHIN_BAND", "within_band", 0);
    assert_int_equal(p.c->flips.n, 1);
    const bis_flip *x = &p.c->flips.flip[0];
    assert_string_equal(p.da->nodes[x->node].name, "L01.moe.ids");
    assert_int_equal(x->row, 2);
    assert_int_equal(x->swapped, 1);
    assert_int_equal(x->k, 4);
    assert_true(fabs(x->margin_a - 1e-3) < 1e-6 && fabs(x->margin_b - 1e-3) < 1e-6);
    assert_int_equal(p.c->flips.row[0].first_layer, 1);
    assert_int_equal(p.c->flips.row[0].strip[1], '1');
    const bis_cell *moe = bis_map_cell(&p.c->map, p.c->pair, 0, mk_node(p.da, "L01.moe"));
    assert_int_equal(moe->cls, BIS_C_FLIPPED);
    assert_true(moe->gain > 8); /* it would be an outlier by its gain */
    pair_free(&p);

    pair_honest(&p); /* a fault in another row of the same node is still found */
    p.a.rms = p.b.rms = 1e-3;
    p.ha.tie_node = p.hb.tie_node = "L01.moe.logits";
    p.ha.tie_f = p.hb.tie_f = 0;
    p.ha.tie_row = p.hb.tie_row = 2;
    p.ha.tie_gap = 1e-3f;
    p.hb.tie_gap = -1e-3f;
    p.hb.plant = "L01.moe";
    p.hb.plant_f = 0;
    p.hb.plant_row = 3;
    p.hb.factor = 1.3f;
    pair_expect(&p, "DIVERGED CONTAMINATED", "gain_outlier", 1);
    assert_string_equal(p.c->where, "L01.moe in forward 0");
    assert_int_equal(p.c->map.outlier[0].row, 3);
    assert_int_equal(p.c->map.outlier[0].nrows, 1);
    pair_free(&p);

    pair_honest(&p); /* ids not recorded: every row may be behind a flip, none is called an outlier, and it is said */
    p.a.rms = p.b.rms = 1e-3;
    p.a.no_ids = p.b.no_ids = 1;
    p.ha.tie_node = p.hb.tie_node = "L01.moe.logits";
    p.ha.tie_f = p.hb.tie_f = 0;
    p.ha.tie_row = p.hb.tie_row = 2;
    p.ha.tie_gap = 1e-3f;
    p.hb.tie_gap = -1e-3f;
    pair_expect(&p, "WITHIN_BAND", "within_band", 0);
    assert_true(p.c->flips.row[0].unrecorded >= 1);
    pair_free(&p);
}

static void selection_source(void **s) {
    (void)s;
    pair p; /* tie rule: equal scores at the cut, equal inputs, a declared lever: within; undeclared: a fault */
    for (int k = 0; k < 3; k++) {
        pair_honest(&p);
        p.hb.round = NULL;
        p.ha.tie_node = p.hb.tie_node = "L01.moe.logits";
        p.ha.tie_f = p.hb.tie_f = 0;
        p.ha.tie_gap = p.hb.tie_gap = k == 1 ? 1e-3f : 0;
        if (k == 2) p.b.node_levers = NULL;
        pair_make(&p);
        q4x_tap *t = mk_tap(p.db, 0, "L01.moe.ids");
        t->sel.ids[3] = t->sel.ids[3] == 3 ? 11 : 3;
        t->bits.b[0] ^= 1;
        pair_judge(&p);
        if (k == 0) assert_int_equal(p.c->verdict, BIS_V_WITHIN_BAND);
        if (k == 1) assert_int_equal(p.c->reason, BIS_R_selection_differs);
        if (k == 1) assert_int_equal(p.c->verdict, BIS_V_DIVERGED);
        if (k == 2) assert_int_equal(p.c->reason, BIS_R_same_arithmetic_bits_differ);
        pair_free(&p);
    }
    pair_honest(&p); /* the same set in another order is no flip */
    p.hb.round = NULL;
    pair_make(&p);
    q4x_tap *t = mk_tap(p.db, 0, "L01.moe.ids");
    int32_t x = t->sel.ids[0];
    t->sel.ids[0] = t->sel.ids[1];
    t->sel.ids[1] = x;
    t->bits.b[0] ^= 1;
    pair_judge(&p);
    assert_int_equal(p.c->flips.n, 0);
    assert_int_equal(p.c->flips.row[0].order, 1);
    assert_string_equal(p.c->flips.row[0].strip, ".o..");
    pair_free(&p);
}

static void alarms(void **s) {
    (void)s;
    pair p; /* flips across a wide cut, with little overlap: other inputs, not rounding */
    pair_honest(&p);
    p.hb.round = "emb";
    pair_make(&p);
    for (int l = 0; l < 4; l++) {
        char name[24];
        snprintf(name, sizeof name, "L%02d.moe.ids", l);
        q4x_tap *t = mk_tap(p.db, 2, name);
        for (int i = 0; i < 3; i++) t->sel.ids[i] = (t->sel.ids[i] + 5 + i) % 16;
        t->sel.lo[0] = mk_tap(p.da, 2, name)->sel.lo[0] = 2;
        mk_tap(p.da, 2, name)->sel.hi[0] = 1;
        t->bits.b[0] ^= 1;
    }
    pair_judge(&p);
    assert_true(says(&p.c->notes, "Alarm: in forward 2"));
    assert_true(says(&p.c->notes, "more than 8 bf16 steps wide"));
    pair_free(&p);
    pair_honest(&p); /* twin */
    pair_make(&p);
    pair_judge(&p);
    assert_false(says(&p.c->notes, "Alarm"));
    pair_free(&p);
}

/* A tensor that is all zero in one arm is said before any distance (R14). */
static void flat_tensors_are_said(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.hb.plant = "L02.blk";
    p.hb.plant_f = 1;
    p.hb.factor = 0;
    pair_make(&p);
    pair_judge(&p);
    assert_true(says(&p.c->notes,
                     "Arm B holds one value throughout in 1 taps where the other arm does not, first L02.blk "
                     "in forward 1."));
    pair_free(&p);
    pair_honest(&p); /* twin */
    pair_make(&p);
    pair_judge(&p);
    assert_false(says(&p.c->notes, "one value throughout"));
    pair_free(&p);
}

/* ---- comparability (requirements F1 to F3, section E) ---- */

static void later_forwards_are_left_out(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.a.forwards = p.b.forwards = 7;
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 5e-2f;
    p.hb.top_gap = -5e-2f;
    p.hb.plant = "L02.moe"; /* in an excluded forward: no statistic may see it */
    p.hb.plant_f = 5;
    p.hb.use_set = 1;
    p.hb.set = NAN;
    pair_make(&p);
    pair_judge(&p);
    assert_int_equal(p.c->verdict, BIS_V_TOKENS_DIFFER);
    assert_int_equal(p.c->pair->ncomparable, 4);
    assert_int_equal(p.c->pair->nexcluded, 3);
    assert_int_equal(p.c->pair->excluded[0].why, BIS_R_ids_differ);
    assert_int_equal(p.c->pair->excluded[0].id_a, 10);
    assert_int_equal(p.c->pair->excluded[0].id_b, 11);
    assert_int_equal(p.c->pair->compared, 4 * 47);
    assert_int_equal(p.c->choices.n, 4);
    assert_int_equal(p.c->map.both_nonfinite, 0);
    assert_true(says(&p.c->next, "--force-ids"));
    assert_true(says(&p.c->limits, "coincidental"));
    pair_free(&p);
}

/* Forward 5 consumes the same id in both arms after a different history: excluded, and an equal id there is
 * coincidental. */
static void equal_ids_after_a_difference_are_coincidental(void **s) {
    (void)s;
    static const int32_t fa[] = {4, 17, 20, 11, 12}, fb[] = {4, 17, 21, 11, 13};
    static const int32_t sa[] = {4, 17, 20, 8, 9, 5}, sb[] = {4, 17, 21, 8, 9, 6};
    pair p;
    pair_equal(&p);
    p.a.force = fa;
    p.b.force = fb;
    p.a.sampled = sa;
    p.b.sampled = sb;
    pair_make(&p);
    for (int f = 0; f < 6; f++) /* no rows: this is about ids alone */
        p.da->forwards[f].n_logits = p.db->forwards[f].n_logits = 0;
    pair_judge(&p);
    const bis_pair *q = p.c->pair;
    assert_int_equal(q->ncomparable, 3);
    assert_int_equal(q->nexcluded, 3);
    assert_int_equal(q->excluded[0].why, BIS_R_ids_differ);
    assert_int_equal(q->excluded[1].why, BIS_R_prefix_differs);
    assert_int_equal(q->excluded[1].id_a, 20); /* the root of the difference */
    assert_int_equal(q->excluded[1].id_b, 21);
    assert_int_equal(q->excluded[2].why, BIS_R_ids_differ);
    assert_int_equal(q->excluded[2].id_a, 12);
    assert_int_equal(p.c->choices.prefix, 2);
    assert_int_equal(p.c->choices.first, 2);
    assert_int_equal(p.c->choices.ndiffer, 1);
    pair_free(&p);

    pair_equal(&p); /* equal ids, but the recorder says that the history differs: believed */
    pair_make(&p);
    for (int f = 3; f < 6; f++) p.db->forwards[f].prefix.b[0] ^= 1;
    pair_judge(&p);
    assert_int_equal(p.c->pair->ncomparable, 3);
    assert_int_equal(p.c->pair->excluded[0].why, BIS_R_prefix_differs);
    pair_free(&p);
    pair_equal(&p); /* and it never mends: a later equal hash does not make a forward comparable again */
    pair_make(&p);
    p.db->forwards[3].prefix.b[0] ^= 1;
    pair_judge(&p);
    assert_int_equal(p.c->pair->ncomparable, 3);
    pair_free(&p);
}

/* Teacher forcing: every forward is comparable, and disagreements are single ones. */
static void forced_forwards_stay_comparable(void **s) {
    (void)s;
    static const int32_t force[] = {4, 17, 4, 17, 4};
    pair p;
    pair_honest(&p);
    p.a.force = p.b.force = force;
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 5e-2f;
    p.hb.top_gap = -5e-2f;
    pair_make(&p);
    pair_judge(&p);
    assert_int_equal(p.c->pair->ncomparable, 6);
    assert_int_equal(p.c->choices.ndiffer, 1);
    assert_int_equal(p.c->choices.s_n, 5);
    pair_free(&p);
}

/* ---- floors ---- */

static void floors(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    pair_make(&p);
    mk_opts o = p.a;
    o.path = "again";
    o.free_time = "2026-05-05T00:00:00Z";
    q4x_dump *again = mk_dump(&o);
    p.rq.floor_a = again;
    pair_judge(&p);
    assert_int_equal(p.c->floor_a.measured, 1);
    assert_int_equal(p.c->floor_b.measured, 0);
    assert_int_equal(p.c->floor_a.compared, 6 * 48);
    assert_int_equal(p.c->floor_a.differing, 0);
    assert_false(says(&p.c->notes, "floor"));
    bis_case_free(p.c);
    p.c = NULL;

    mk_tap(again, 2, "L01.blk")->bits.b[3] ^= 1; /* a floor that is not zero is a number, and said */
    mk_tap(again, 4, "L02.blk")->bits.b[3] ^= 1;
    again->forwards[5].logits[0] += 1;
    pair_judge(&p);
    assert_int_equal(p.c->floor_a.differing, 3);
    assert_string_equal(p.c->floor_a.first_node, "L01.blk");
    assert_int_equal(p.c->floor_a.first_forward, 2);
    assert_int_equal(p.c->floor_a.nstages, 2);
    assert_string_equal(p.c->floor_a.stage[0].kind, "blk");
    assert_int_equal(p.c->floor_a.stage[0].differing, 2);
    assert_true(says(&p.c->notes, "The floor of arm A is not zero: 3 of 288"));
    bis_case_free(p.c);
    p.c = NULL;

    p.rq.floor_a = NULL; /* refused: the other arm is no floor, nor is the arm itself */
    p.rq.floor_b = again;
    assert_int_equal(bis_judge(&p.rq, &p.c, &p.err), Q4X_E_MISMATCH);
    assert_non_null(strstr(p.err.msg, "act differs"));
    p.rq.floor_b = p.db;
    assert_int_equal(bis_judge(&p.rq, &p.c, &p.err), Q4X_E_MISMATCH);
    assert_non_null(strstr(p.err.msg, "is the arm itself"));
    q4x_dump_free(again);
    pair_free(&p);
}

static void drop_free(q4x_dump *d, const char *key) {
    json_object_del(json_object_get(d->header, "free"), key);
}

/* A copy of the arm's file is no floor: it is known by the recording's number, in older dumps by its time; where
 * neither is there, an equal one may be a copy. Twins: another number in the same second, time, content. */
static void copies_are_no_floors(void **s) {
    (void)s;
    static const struct {
        int number, time, bits; /* another one than the arm's: 1; the same: 0; none in both: -1 */
        const char *refused;    /* NULL: a floor */
    } list[] = {{0, 0, 0, "is a copy"},       {1, 0, 0, NULL},        {0, 1, 0, "is a copy"},
                {-1, 0, 0, "is a copy"},      {-1, 1, 0, NULL},       {-1, -1, 1, NULL},
                {-1, -1, 0, "may be a copy"}, {0, 0, 1, "is a copy"}, {-1, 0, 1, "is a copy"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        pair p;
        pair_honest(&p);
        pair_make(&p);
        q4x_dump *again = mk_dump(&p.a);
        free(again->path);
        again->path = strdup("copy");
        json_t *f = json_object_get(again->header, "free");
        if (list[i].number > 0) json_object_set_new(f, "recording", json_string("another"));
        if (list[i].time > 0) json_object_set_new(f, "time", json_string("2031-01-01T00:00:00Z"));
        for (int k = 0; k < 2; k++) {
            if (list[i].number < 0) drop_free(k ? again : p.da, "recording");
            if (list[i].time < 0) drop_free(k ? again : p.da, "time");
        }
        if (list[i].bits) again->content.b[0] ^= 1, mk_tap(again, 2, "L01.blk")->bits.b[3] ^= 1;
        p.rq.floor_a = again;
        int rc = bis_judge(&p.rq, &p.c, &p.err);
        if (rc != (list[i].refused ? Q4X_E_MISMATCH : 0) || (rc && !strstr(p.err.msg, list[i].refused)))
            fail_msg("%zu: %d %s", i, rc, rc ? p.err.msg : "");
        if (!rc) assert_int_equal(p.c->floor_a.differing, list[i].bits);
        q4x_dump_free(again);
        pair_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outlier_by_row),
        cmocka_unit_test(outlier_between_public_nodes),
        cmocka_unit_test(rows_not_kept_are_not_known),
        cmocka_unit_test(source_that_is_not_recorded),
        cmocka_unit_test(no_rows_are_no_lack_of_memory),
        cmocka_unit_test(contaminated_without_a_source),
        cmocka_unit_test(flips_are_no_outliers),
        cmocka_unit_test(selection_source),
        cmocka_unit_test(alarms),
        cmocka_unit_test(flat_tensors_are_said),
        cmocka_unit_test(later_forwards_are_left_out),
        cmocka_unit_test(equal_ids_after_a_difference_are_coincidental),
        cmocka_unit_test(forced_forwards_stay_comparable),
        cmocka_unit_test(floors),
        cmocka_unit_test(copies_are_no_floors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
