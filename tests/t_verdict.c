/* Every row of the verdict table (design.md 6) is reached, and its twin without the cause is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/h_judge.h"

static void expect(pair *p, const char *name, const char *reason, int exit) {
    pair_expect(p, name, reason, exit);
    pair_free(p);
}

/* ---- IDENTICAL ---- */

static void identical(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    p.b.free_time = "2027-02-03T00:00:00Z"; /* free fields do not count */
    pair_expect(&p, "IDENTICAL", "bits_equal", 0);
    assert_int_equal(p.c->pair->compared, 6 * 47);
    assert_int_equal(p.c->logit_rows_equal, 6);
    pair_free(&p);

    pair_equal(&p); /* twin: one bit of one state of the last forward */
    pair_make(&p);
    mk_tap(p.db, 5, "L03.state.delta")->bits.b[0] ^= 1;
    expect(&p, "FAULT", "same_arithmetic_bits_differ", 1);

    pair_equal(&p); /* twin: one bit of the last logit row alone, which no node accounts for */
    pair_make(&p);
    p.db->forwards[5].logits[7] = nextafterf(p.db->forwards[5].logits[7], 0);
    expect(&p, "DIVERGED CONTAMINATED", "inputs_not_equal", 1);

    pair_equal(&p); /* NaNs of any payload in a row are equal, a NaN and a number are not */
    pair_make(&p);
    p.da->forwards[0].logits[3] = NAN;
    p.db->forwards[0].logits[3] = -NAN;
    expect(&p, "IDENTICAL", "bits_equal", 0);
}

static void non_finite_twice_is_identical_and_said(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    p.ha.plant = p.hb.plant = "L01.moe";
    p.ha.plant_f = p.hb.plant_f = 4;
    p.ha.use_set = p.hb.use_set = 1;
    p.ha.set = p.hb.set = NAN;
    pair_expect(&p, "IDENTICAL", "bits_equal", 0);
    assert_non_null(strstr(p.c->notes.line[0], "Non-finite values in both arms"));
    assert_non_null(strstr(p.c->notes.line[0], "L01.moe in forward 4"));
    pair_free(&p);
}

/* ---- TRUNCATED ---- */

static void truncated(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    p.rq.truncated_b = 1;
    pair_expect(&p, "TRUNCATED", "no_end_marker", 125);
    assert_non_null(strstr(p.c->where, "arm B: 6"));
    pair_free(&p);
}

/* ---- UNSTRUCTURED ---- */

static void drop_last_tap(q4x_dump *d, int f) {
    q4x_tap *t = &d->forwards[f].taps[--d->forwards[f].ntaps]; /* a state: its sketch is ours to free */
    free(t->sketch.buckets);
    free(t->sketch.values);
    free(t->sketch.row_sumabs);
    free(t->sketch.row_sumsq);
}

static void name_node(q4x_dump *d, int n, const char *name) {
    free(d->nodes[n].name);
    d->nodes[n].name = strdup(name);
}

static void unstructured(void **s) {
    (void)s;
    static const char *const reason[] = {
        "forwards_not_contiguous",
        "positions_not_contiguous",
        "forward_count_differs",
        "forward_lengths_differ",
        "blocks_not_uniform",
        "duplicate_keys",
        "duplicate_keys",
        "bad_index",
        "bad_index",
        "keys_differ",
        "graph_differs",
        "graph_differs",
        "shapes_differ",
        "dtypes_differ",
        "logits_one_sided",
        "logits_one_sided",
        "forwards_not_contiguous",
        "instrument_inconsistent",
        "keys_differ",
    };
    static const int32_t odd[] = {4, 17, 4, 30, 4, 17};
    for (int k = 0; k < (int)(sizeof reason / sizeof *reason); k++) {
        pair p;
        pair_equal(&p);
        if (k == 2) p.b.forwards = 5;
        if (k == 17) p.b.sampled = odd;
        pair_make(&p);
        q4x_dump *d = p.db;
        switch (k) {
        case 0: d->forwards[3].index = 4; break;
        case 1: d->forwards[3].pos0++; break;
        case 2: break;
        case 3:
            d->forwards[5].ids = realloc(d->forwards[5].ids, 2 * sizeof(int32_t));
            d->forwards[5].ids[d->forwards[5].n_ids++] = 1;
            break;
        case 4: drop_last_tap(d, 2); break;
        case 5: d->forwards[1].taps[7].node = d->forwards[1].taps[6].node; break;
        case 6: name_node(d, 4, d->nodes[3].name); break;
        case 7: d->forwards[1].taps[7].node = d->nnodes; break;
        case 8: d->nodes[9].in[0] = d->nnodes; break;
        case 9: name_node(d, 4, "L09.zz"); break;
        case 10: d->nodes[9].in[0] = 1; break;
        case 11: d->nodes[9].op[0] = 'x'; break;
        case 12: mk_tap(d, 1, "out")->cols = 24; break;
        case 13: mk_tap(d, 1, "out")->dtype = 30; break;
        case 14: free(d->forwards[2].logits), d->forwards[2].logits = NULL; break;
        case 15: d->forwards[2].vocab = 39; break;
        case 16: d->forwards[2].n_ids = 0; break;
        case 18:
            for (int f = 0; f < 6; f++) drop_last_tap(d, f);
            break;
        default: break;
        }
        pair_judge(&p);
        if (strcmp(bis_reason_word(p.c->reason), reason[k])) print_message("case %d\n", k);
        assert_string_equal(bis_reason_word(p.c->reason), reason[k]);
        assert_string_equal(p.c->name, "UNSTRUCTURED");
        assert_int_equal(p.c->exit, 125);
        pair_free(&p);
    }
}

static void nothing_recorded_is_not_identical(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    pair_make(&p);
    int n[2] = {p.da->nforwards, p.db->nforwards};
    p.da->nforwards = p.db->nforwards = 0;
    pair_expect(&p, "UNSTRUCTURED", "no_forwards", 125);
    bis_case_free(p.c);
    p.c = NULL;
    p.da->nforwards = n[0];
    p.db->nforwards = n[1];
    int taps[2][6];
    for (int f = 0; f < 6; f++) {
        taps[0][f] = p.da->forwards[f].ntaps;
        taps[1][f] = p.db->forwards[f].ntaps;
        p.da->forwards[f].ntaps = p.db->forwards[f].ntaps = 0;
    }
    pair_expect(&p, "UNSTRUCTURED", "no_records", 125);
    for (int f = 0; f < 6; f++) {
        p.da->forwards[f].ntaps = taps[0][f];
        p.db->forwards[f].ntaps = taps[1][f];
    }
    pair_free(&p);
}

/* ---- NOT_COMPARABLE ---- */

static void not_comparable(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    p.b.model = "beef";
    expect(&p, "NOT_COMPARABLE", "model_differs", 125);
    pair_equal(&p);
    p.b.T = 4;
    expect(&p, "NOT_COMPARABLE", "prompt_differs", 125);
    pair_equal(&p);
    pair_make(&p);
    json_object_set_new(p.db->header, "vocabulary_version", json_integer(99));
    expect(&p, "NOT_COMPARABLE", "vocabulary_differs", 125);

    pair_equal(&p); /* the header says one prompt, forward 0 consumed another */
    pair_make(&p);
    p.db->forwards[0].ids[2]++;
    pair_expect(&p, "NOT_COMPARABLE", "forward0_differs", 125);
    assert_int_equal(p.c->pair->nexcluded, 6);
    assert_int_equal(p.c->pair->excluded[0].id_b, p.c->pair->excluded[0].id_a + 1);
    pair_free(&p);

    pair_equal(&p); /* equal ids after an unequal history that only the recorder knows of */
    pair_make(&p);
    p.db->forwards[0].prefix.b[5] ^= 1;
    expect(&p, "NOT_COMPARABLE", "forward0_differs", 125);

    pair_equal(&p);
    p.b.label = "run-CUDA";
    expect(&p, "NOT_COMPARABLE", "label_contradicts_device", 125);
    pair_equal(&p); /* twin: a label that names both devices, or the right one, is no contradiction */
    p.b.label = "cpu-not-cuda";
    expect(&p, "IDENTICAL", "bits_equal", 0);
}

/* A header that was edited: what a dump says of itself is said twice, and must be one thing. */
static void header_inconsistent(void **s) {
    (void)s;
    enum { DEVICE, LEVERS, PROMPT, SHORT, SCOPED, IMPORTED, HONEST, CASES };
    static const char *const where[] = {"arm B: arm.device: expected cpu as arm.spec has it, found cuda",
                                        "arm B: arm.levers.act: expected bf16 as node emb has it, found f32",
                                        "arm A: prompt.ids[2]: expected 13 as forward 0 has it, found 7",
                                        "arm A: prompt.ids: expected the 5 ids of forward 0, found 4"};
    for (int k = 0; k < CASES; k++) { /* the last three are twins */
        pair p;
        pair_honest(&p);
        if (k == SCOPED) p.b.scoped = "[\"act=bf16@*\"]";
        if (k == IMPORTED) p.b.imported = 1;
        pair_make(&p);
        json_t *arm = json_object_get(p.db->header, "arm");
        if (k == DEVICE) json_object_set_new(arm, "device", json_string("cuda"));
        if (k == LEVERS || k == SCOPED || k == IMPORTED)
            json_object_set_new(json_object_get(arm, "levers"), "act", json_string("f32"));
        for (int i = 0; i < 2 && (k == PROMPT || k == SHORT); i++) { /* both alike: the prompts are equal */
            json_t *ids = json_object_get(json_object_get((i ? p.db : p.da)->header, "prompt"), "ids");
            if (k == PROMPT)
                json_array_set_new(ids, 2, json_integer(7));
            else
                json_array_remove(ids, 4);
        }
        pair_judge(&p);
        assert_int_equal(p.c->reason == BIS_R_header_inconsistent, k < SCOPED);
        if (k < SCOPED) {
            assert_int_equal(p.c->verdict, BIS_V_NOT_COMPARABLE);
            assert_int_equal(p.c->exit, 125);
            assert_string_equal(p.c->where, where[k]);
        }
        pair_free(&p);
    }
}

static void imports(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    p.b.imported = 2;
    expect(&p, "NOT_COMPARABLE", "unknown_provenance", 125);

    for (int k = 0; k < 2; k++) { /* a dump of ours that does not name its model; let through, and said */
        pair_equal(&p);
        p.hb.round = "gdn.core";
        p.rq.allow_confounded = k;
        pair_make(&p);
        json_object_del(json_object_get(p.db->header, "model"), "fingerprint");
        pair_expect(&p, k ? "FAULT CONFOUNDED(1: unknown provenance)" : "NOT_COMPARABLE",
                    k ? "same_arithmetic_bits_differ" : "unknown_provenance", k ? 1 : 125);
        pair_free(&p);
    }

    pair_equal(&p); /* allowed: compared, and said */
    p.b.imported = 2;
    p.rq.allow_confounded = 1;
    pair_expect(&p, "IDENTICAL CONFOUNDED(2: build, unknown provenance)", "bits_equal", 0);
    pair_free(&p);

    pair_equal(&p); /* declared, but two differences: the engine and a lever */
    p.a.imported = p.b.imported = 1;
    p.b.levers = "{\"act\":\"bf16\",\"gdn\":\"chunk64\"}";
    expect(&p, "NOT_COMPARABLE", "confounded_import", 125);
    pair_equal(&p);
    p.a.imported = p.b.imported = 1;
    p.b.levers = "{\"act\":\"bf16\",\"gdn\":\"seq\"}"; /* one: fine */
    expect(&p, "IDENTICAL", "bits_equal", 0);

    pair_equal(
        &p); /* nodes that one side lacks are refused in dumps of ours, listed for imports that are let through */
    p.b.imported = 2;
    p.rq.allow_confounded = 1;
    pair_make(&p);
    for (int f = 0; f < 6; f++) drop_last_tap(p.db, f);
    pair_expect(&p, "IDENTICAL CONFOUNDED(2: build, unknown provenance)", "bits_equal", 0);
    assert_int_equal(p.c->pair->nonly_a, 1);
    assert_int_equal(p.c->pair->compared, 6 * 46);
    pair_free(&p);

    pair_equal(&p); /* an import claims no arithmetic of ours: equal levers make no FAULT */
    p.a.imported = p.b.imported = 1;
    p.hb.round = "gdn.core";
    expect(&p, "DIVERGED", "band_not_recorded", 125);
}

/* ---- NON_FINITE ---- */

static void non_finite(void **s) {
    (void)s;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        pair p;
        pair_honest(&p);
        p.hb.plant = "L02.moe";
        p.hb.plant_f = 1;
        p.hb.use_set = 1;
        p.hb.set = bad[k];
        pair_expect(&p, "NON_FINITE", "non_finite_added", 1);
        assert_string_equal(p.c->where, "L02.moe in forward 1 of arm B");
        pair_free(&p);
        pair_honest(&p); /* the other arm */
        p.ha.plant = "L02.moe";
        p.ha.plant_f = 1;
        p.ha.use_set = 1;
        p.ha.set = bad[k];
        pair_expect(&p, "NON_FINITE", "non_finite_added", 1);
        assert_string_equal(p.c->where, "L02.moe in forward 1 of arm A");
        pair_free(&p);
    }
    pair p; /* in both arms alike, with other differences: not this row, but said */
    pair_honest(&p);
    p.ha.plant = p.hb.plant = "L02.moe";
    p.ha.plant_f = p.hb.plant_f = 1;
    p.ha.use_set = p.hb.use_set = 1;
    p.ha.set = p.hb.set = NAN;
    pair_make(&p);
    pair_judge(&p);
    assert_int_not_equal(p.c->verdict, BIS_V_NON_FINITE);
    assert_true(p.c->map.both_nonfinite > 0);
    assert_string_equal(p.da->nodes[p.c->map.both_n].name, "L02.moe");
    pair_free(&p);
    pair_honest(&p); /* behind inner nodes that are hashed only: the public node is still the first with known inputs */
    p.a.sketch_all = p.b.sketch_all = 0;
    p.hb.plant = "L01.gdn.core";
    p.hb.plant_f = 0;
    p.hb.plant_row = 3;
    p.hb.use_set = 1;
    p.hb.set = NAN;
    pair_expect(&p, "NON_FINITE", "non_finite_added", 1);
    assert_string_equal(p.c->where, "L01.blk in forward 0 of arm B");
    pair_free(&p);
}

/* ---- FAULT, DIVERGED on equal inputs ---- */

static void fault(void **s) {
    (void)s;
    pair p;
    pair_equal(&p); /* the same arithmetic */
    p.hb.plant = "L02.s.attn";
    p.hb.plant_f = 3;
    p.hb.factor = 1.0000002f;
    pair_expect(&p, "FAULT", "same_arithmetic_bits_differ", 1);
    assert_string_equal(p.c->where, "L02.s.attn in forward 3");
    assert_int_equal(p.c->map.first_f, 3);
    pair_free(&p);

    pair_equal(&p); /* on two devices, which claim equal bits too */
    p.b.device = "cuda";
    p.hb.plant = "L02.s.attn";
    p.hb.factor = 1.0000002f;
    expect(&p, "FAULT", "same_arithmetic_bits_differ", 1);

    pair_honest(&p); /* declared, but beyond what rounding can do */
    p.a.hard = p.b.hard = 1e-5;
    p.a.rms = p.b.rms = 1e-6;
    pair_expect(&p, "FAULT", "above_hard_band", 1);
    assert_string_equal(p.c->where, "L00.gdn.core in forward 0");
    pair_free(&p);

    pair_honest(&p); /* a plant is no lever that excuses: the node's claim stays, the scoped item is a declared lever */
    p.b.levers = NULL;
    p.b.node_levers = NULL;
    p.hb.round = NULL;
    p.b.scoped = "[\"plant=swap@L02.blk#1\"]";
    p.hb.plant = "L02.blk";
    p.hb.plant_f = 1;
    p.hb.factor = 0.5f;
    pair_expect(&p, "FAULT", "same_arithmetic_bits_differ", 1);
    assert_int_equal(p.c->header.nlever, 1);
    assert_string_equal(p.c->where, "L02.blk in forward 1");
    pair_free(&p);

    pair_honest(&p); /* a lever bound to a forward excuses there and not elsewhere */
    p.b.levers = p.b.node_levers = NULL;
    p.b.scoped = "[\"act=bf16@gdn.core#0\"]";
    pair_make(&p);
    pair_judge(&p);
    const bis_cell *c0 = bis_map_cell(&p.c->map, p.c->pair, 0, mk_node(p.da, "L00.gdn.core"));
    const bis_cell *c1 = bis_map_cell(&p.c->map, p.c->pair, 1, mk_node(p.da, "L00.gdn.core"));
    assert_int_equal(c0->cls, BIS_C_WITHIN);
    assert_int_equal(c1->why, BIS_R_same_arithmetic_bits_differ);
    pair_free(&p);
}

static void diverged(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.a.rms = p.b.rms = 1e-4; /* 4 sqrt(2) 1e-4 of the norm < 1.6e-3 < 4 */
    pair_expect(&p, "DIVERGED", "above_rms_band", 1);
    assert_string_equal(p.c->where, "L00.gdn.core in forward 0");
    assert_int_equal(p.c->contaminated, 0);
    pair_free(&p);

    pair_honest(&p);
    p.a.rms = p.b.rms = 0;
    expect(&p, "DIVERGED", "band_not_recorded", 125);
    pair_honest(&p); /* a band in one arm alone is no pair's band */
    p.b.rms = 0;
    expect(&p, "DIVERGED", "band_not_recorded", 125);

    pair_honest(&p); /* other kernels claim no equal bits */
    p.b.levers = p.b.node_levers = NULL;
    p.b.kernels = "22bb";
    p.a.rms = p.b.rms = 0;
    pair_expect(&p, "DIVERGED", "band_not_recorded", 125);
    assert_string_equal(p.c->header.lever[0].name, "build");
    pair_free(&p);

    pair_honest(&p); /* a prompt longer than the kept rows: what was not kept is not within */
    p.a.rows_kept = p.b.rows_kept = 3;
    expect(&p, "DIVERGED", "rows_not_kept", 125);
    pair_honest(&p);
    p.a.rows_kept = p.b.rows_kept = 5;
    expect(&p, "WITHIN_BAND", "within_band", 0);

    pair_honest(&p); /* bands, but no distance */
    pair_make(&p);
    for (int f = 0; f < 6; f++) mk_tap(p.da, f, "L00.gdn.core")->has_sketch = 0;
    expect(&p, "DIVERGED", "distance_not_recorded", 125);
    pair_honest(&p); /* norms are a lower bound: enough to be out of band, never enough to be within */
    p.hb.plant = "L00.gdn.core";
    p.hb.factor = 3;
    pair_make(&p);
    for (int f = 0; f < 6; f++) {
        mk_tap(p.da, f, "L00.gdn.core")->has_sketch = 0;
        mk_tap(p.da, f, "L00.gdn.core")->band_hard = mk_tap(p.da, f, "L00.gdn.core")->band_rms = 1;
        mk_tap(p.db, f, "L00.gdn.core")->band_hard = mk_tap(p.db, f, "L00.gdn.core")->band_rms = 1;
    }
    expect(&p, "FAULT", "above_hard_band", 1);
}

static void within_band_and_a_wider_sketch(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    pair_expect(&p, "WITHIN_BAND", "within_band", 0);
    assert_true(p.c->map.nsources > 0 && p.c->map.nsources == p.c->map.nwithin);
    pair_free(&p);
    pair_honest(&p); /* estimated distances, with their interval */
    p.a.D = p.b.D = 1032;
    p.a.layers = p.b.layers = 2;
    pair_expect(&p, "WITHIN_BAND", "within_band", 0);
    const bis_dist *d = bis_map_cell(&p.c->map, p.c->pair, 0, mk_node(p.da, "L00.gdn.core"))->dist;
    assert_int_equal(d->how, BIS_D_SKETCH);
    assert_true(d->lo < d->d && d->d < d->hi);
    pair_free(&p);
}

/* ---- NaN never passes ---- */

static void nan_never_passes(void **s) {
    (void)s;
    for (int k = 0; k < 7; k++) {
        pair p;
        pair_honest(&p);
        p.a.D = p.b.D = 1032;
        p.a.layers = p.b.layers = 2;
        p.a.forwards = p.b.forwards = 1;
        pair_make(&p);
        q4x_tap *a = mk_tap(p.da, 0, "L00.gdn.core"), *b = mk_tap(p.db, 0, "L00.gdn.core");
        switch (k) {
        case 0: a->band_rms = NAN; break;
        case 1: b->band_hard = NAN; break;
        case 2: a->band_rms = -1, b->band_rms = NAN; break;
        case 3: a->sketch.buckets[3] = NAN; break;
        case 4: b->sketch.buckets[3] = INFINITY; break;
        case 5: a->sketch.skipped = 1; break;
        case 6: a->sketch.row_sumabs[0] = NAN, a->sketch.buckets[0] = NAN; break;
        default: break;
        }
        int rc = bis_judge(&p.rq, &p.c, &p.err);
        if (!rc)
            assert_true(
                p.c->exit == 1 ||
                (p.c->exit == 125 && bis_unmeasured(p.c->reason))); /* an error of the sketch's reader is as good */
        if (rc) assert_true(k >= 3);
        pair_free(&p);
    }
}

/* ---- tokens ---- */

static void ties(void **s) {
    (void)s;
    pair p;
    pair_honest(&p); /* contrasts within the pair's own noise */
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 1e-3f;
    p.hb.top_gap = -1e-3f;
    pair_expect(&p, "TIE", "contrast_within_noise", 125);
    assert_int_equal(p.c->choices.first, 3);
    assert_int_equal(p.c->choices.s_n, 3);
    assert_int_equal(p.c->choices.prefix, 3);
    assert_true(p.c->choices.s > 3e-4);
    pair_free(&p);

    pair_honest(&p); /* twin: one arm is sure */
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 5e-2f;
    p.hb.top_gap = -1e-3f;
    expect(&p, "TOKENS_DIFFER", "contrast_above_noise", 1);
    pair_honest(&p); /* twin: the other is */
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 1e-3f;
    p.hb.top_gap = -5e-2f;
    expect(&p, "TOKENS_DIFFER", "contrast_above_noise", 1);
    pair_honest(&p); /* twin: n < 3 measures no noise */
    p.ha.top_f = p.hb.top_f = 2;
    p.ha.top_gap = 1e-3f;
    p.hb.top_gap = -1e-3f;
    expect(&p, "TOKENS_DIFFER", "few_agreeing_forwards", 1);
    pair_honest(&p); /* twin: no rows */
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 1e-3f;
    p.hb.top_gap = -1e-3f;
    p.a.no_logits = p.b.no_logits = 1;
    expect(&p, "TOKENS_DIFFER", "logits_absent", 1);

    pair_honest(&p); /* an exact tie after the last rounding in one arm; needs no noise */
    p.ha.top_f = p.hb.top_f = 0;
    p.ha.top_gap = -1e-3f; /* 10 and 11 round to one bf16 value: the lower id wins */
    p.hb.top_gap = -0.5f;
    p.a.round_top = p.b.round_top = 1;
    pair_expect(&p, "TIE", "exact_tie", 125);
    assert_int_equal(p.c->choices.choice[0].a, 10);
    assert_int_equal(p.c->choices.choice[0].b, 11);
    pair_free(&p);
    pair_honest(&p); /* twin: no rounding, no tie */
    p.ha.top_f = p.hb.top_f = 0;
    p.ha.top_gap = 1e-3f;
    p.hb.top_gap = -5e-2f;
    expect(&p, "TOKENS_DIFFER", "few_agreeing_forwards", 1);

    pair_honest(&p); /* twin: a tie between other ids than those chosen explains nothing */
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 5e-2f;
    p.hb.top_gap = -5e-2f;
    pair_make(&p);
    p.da->forwards[3].top_id[1] = 7;
    p.da->forwards[3].top_val[1] = p.da->forwards[3].top_val[0];
    expect(&p, "TOKENS_DIFFER", "contrast_above_noise", 1);

    pair_honest(&p); /* a fault comes before a tie */
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 1e-3f;
    p.hb.top_gap = -1e-3f;
    p.a.rms = p.b.rms = 1e-4;
    expect(&p, "DIVERGED", "above_rms_band", 1);

    pair_honest(&p); /* NaN in an agreeing row: the noise is no number, so there is no tie */
    p.ha.top_f = p.hb.top_f = 4;
    p.ha.top_gap = 1e-3f;
    p.hb.top_gap = -1e-3f;
    pair_make(&p);
    for (int i = 0; i < 40; i++) p.da->forwards[1].logits[i] = NAN;
    pair_judge(&p);
    assert_true(isnan(p.c->choices.s));
    assert_int_equal(p.c->verdict, BIS_V_TOKENS_DIFFER);
    pair_free(&p);
}

/* F15: with rows that contradict the ids the instrument is broken; with honest rows the check holds. */
static void instrument_check(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    p.b.sampled = (const int32_t[]){4, 17, 4, 30, 4, 17};
    pair_expect(&p, "UNSTRUCTURED", "instrument_inconsistent", 125);
    assert_string_equal(p.c->where, "forward 3");
    pair_free(&p);
    pair_honest(&p);
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 5e-2f;
    p.hb.top_gap = -5e-2f;
    pair_make(&p);
    pair_judge(&p);
    assert_int_equal(p.c->choices.broken, -1);
    const bis_choice *x = &p.c->choices.choice[3];
    assert_true(fmin(x->margin_a, x->margin_b) <= x->max_dz);
    assert_int_equal(x->at_risk, 1);
    pair_free(&p);
}

/* The margin that is at risk is that of the raw rows: two ids that the last rounding makes equal are a tie, and where
 * no logit differs nothing is at risk of it. */
static void at_risk_by_the_raw_rows(void **s) {
    static const struct {
        float gap;
        int at_risk;
    } list[] = {{1e-3f, 0}, {0, 1}};
    (void)s;
    for (int i = 0; i < 2; i++) {
        pair p;
        pair_equal(&p);
        p.ha.top_f = p.hb.top_f = 3;
        p.ha.top_gap = p.hb.top_gap = list[i].gap;
        p.a.round_top = p.b.round_top = 1;
        pair_expect(&p, "IDENTICAL", "bits_equal", 0);
        const bis_choice *x = &p.c->choices.choice[3];
        assert_true(x->choice_a == 0 && x->max_dz == 0);
        assert_int_equal(x->at_risk, list[i].at_risk);
        pair_free(&p);
    }
}

static int says(const bis_lines *l, const char *what) {
    int n = 0;
    for (int i = 0; i < l->n; i++) n += strstr(l->line[i], what) != NULL;
    return n;
}

/* What is no number lies on no grid; the numbers beside it may. */
static void nan_is_on_no_grid(void **s) {
    (void)s;
    for (int k = 0; k < 3; k++) { /* all NaN; NaN beside ones; NaN beside thirds */
        pair p;
        pair_equal(&p);
        pair_make(&p);
        for (int f = 0; f < p.da->nforwards; f++)
            for (int i = 0; i < p.da->forwards[f].vocab; i++)
                p.da->forwards[f].logits[i] = p.db->forwards[f].logits[i] = k == 0 || i % 2 ? NAN
                                                                            : k == 1        ? 1.0f
                                                                                            : 1.0f / 3;
        pair_judge(&p);
        const double share = p.c->choices.lattice_a;
        assert_true(k == 0 ? isnan(share) : share == (k == 1));
        assert_int_equal(says(&p.c->notes, "bf16 grid"), k == 1);
        pair_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identical),
        cmocka_unit_test(non_finite_twice_is_identical_and_said),
        cmocka_unit_test(truncated),
        cmocka_unit_test(unstructured),
        cmocka_unit_test(nothing_recorded_is_not_identical),
        cmocka_unit_test(not_comparable),
        cmocka_unit_test(header_inconsistent),
        cmocka_unit_test(imports),
        cmocka_unit_test(non_finite),
        cmocka_unit_test(fault),
        cmocka_unit_test(diverged),
        cmocka_unit_test(within_band_and_a_wider_sketch),
        cmocka_unit_test(nan_never_passes),
        cmocka_unit_test(ties),
        cmocka_unit_test(instrument_check),
        cmocka_unit_test(at_risk_by_the_raw_rows),
        cmocka_unit_test(nan_is_on_no_grid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
