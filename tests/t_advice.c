/* t_advice.c: what a case says beyond its verdict: what it does not establish, and the commands that record what is
 * missing. tests/cli/advice.sh runs such commands. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/case.h"
#include "tests/h_judge.h"

static int says(const bis_lines *l, const char *what) {
    for (int i = 0; i < l->n; i++)
        if (strstr(l->line[i], what)) return 1;
    return 0;
}

/* ---- a fault behind unequal inputs ---- */

static char *text_of(const bis_case *c) {
    char *text = NULL;
    size_t size;
    bis_names names = {.a = "a", .b = "b"};
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    bis_text(c, &names, 0, f);
    bis_report(c, &names, f);
    json_t *j = bis_json(c, &names);
    json_dumpf(json_object_get(json_object_get(j, "details"), "not_established"), f, 0);
    json_decref(j);
    fclose(f);
    return text;
}

static int times(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

static void what_unequal_inputs_hide(void **s) {
    (void)s;
    for (int k = 0; k < 4; k++) { /* one lever; two; a tie of two; the twin: nothing differs */
        pair p;
        k == 3 ? pair_equal(&p) : pair_honest(&p);
        if (k == 1 || k == 2) p.b.levers = "{\"act\":\"bf16\",\"gdn\":\"chunk64\"}";
        if (k == 2) {
            p.ha.top_f = p.hb.top_f = 4;
            p.ha.top_gap = 1e-5f;
            p.hb.top_gap = -1e-5f;
        }
        pair_make(&p);
        pair_judge(&p);
        assert_int_equal(p.c->verdict, k == 3 ? BIS_V_IDENTICAL : k == 2 ? BIS_V_TIE : BIS_V_WITHIN_BAND);
        assert_int_equal(says(&p.c->limits, "That no fault hides behind unequal inputs"), k != 3);
        assert_int_equal(says(&p.c->limits, "pairs that differ in one lever"), k == 1 || k == 2);
        char *text = text_of(p.c);
        assert_int_equal(times(text, "hides behind unequal inputs"), k == 3 ? 0 : 3); /* terminal, Markdown, JSON */
        free(text);
        pair_free(&p);
    }
}

/* ---- commands ---- */

static char *command(const bis_case *c, int arm) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    int any = bis_again(c, arm, 1, f);
    fclose(f);
    assert_int_equal(any, *text != 0);
    return text;
}

static void expect_command(const bis_case *c, int arm, const char *want) {
    char *got = command(c, arm);
    assert_string_equal(got, want);
    free(got);
}

static void rows_of_a_long_prompt(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.a.rows_kept = p.b.rows_kept = 2; /* of 5 */
    p.hb.round = "moe.logits";         /* --bands alone keeps no more of it than bits: it must be asked for */
    pair_make(&p);
    pair_judge(&p);
    assert_int_equal(p.c->reason, BIS_R_rows_not_kept);
    assert_true(says(&p.c->next, "`--bands --rows all --node '*'`: not all rows of L00.moe.logits were kept"));
    expect_command(p.c, 0, "q4x tap models/m.gguf --ids 3,8,13,18,23 -n 6 --bands --rows all --node '*' --arm again-a");
    expect_command(p.c, 1,
                   "q4x tap models/m.gguf --ids 3,8,13,18,23 -n 6 --spec cpu:act=bf16 --bands --rows all --node '*' "
                   "--arm again-b");
    pair_free(&p);
}

/* Public nodes are kept, and those at which a lever other than act is read. */
static void what_bands_keep_need_not_be_asked_for(void **s) {
    (void)s;
    for (int k = 0; k < 2; k++) {
        pair p;
        pair_honest(&p);
        p.hb.round = k ? "gdn.core" : "L00.ahc.mix";
        p.a.rows_kept = p.b.rows_kept = 2;
        pair_make(&p);
        pair_judge(&p);
        assert_int_equal(p.c->reason, BIS_R_rows_not_kept);
        assert_string_equal(p.c->again, "--bands --rows all");
        pair_free(&p);
    }
}

/* A path stands where provenance does; one that the shell would not find, or none, is MODEL. */
static void paths(void **s) {
    static const struct {
        const char *path, *want;
    } list[] = {{"m.gguf", "q4x tap m.gguf "},
                {"/a b/it's.gguf", "q4x tap '/a b/it'\\''s.gguf' "},
                {"m\xc3\xa9.gguf", "q4x tap MODEL "},
                {"a\nb", "q4x tap MODEL "},
                {"", "q4x tap MODEL "},
                {NULL, "q4x tap MODEL "}};
    (void)s;
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        pair p;
        pair_honest(&p);
        p.a.rows_kept = p.b.rows_kept = 2;
        p.hb.round = "moe.logits";
        pair_make(&p);
        json_t *m = json_object_get(p.da->header, "model");
        if (list[k].path)
            json_object_set_new(m, "path", json_string(list[k].path));
        else
            json_object_del(m, "path");
        pair_judge(&p);
        char *with = command(p.c, 0), *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);
        assert_non_null(f);
        assert_true(bis_again(p.c, 0, 0, f));
        fclose(f);
        if (strncmp(with, list[k].want, strlen(list[k].want))) fail_msg("%s: '%s'", list[k].want, with);
        assert_int_equal(strncmp(text, "q4x tap MODEL ", 14), 0);
        assert_string_equal(strstr(text, " --ids"), strstr(with, " --ids"));
        free(with);
        free(text);
        pair_free(&p);
    }
}

static void bands(void **s) {
    (void)s;
    for (int k = 0; k < 3; k++) { /* not asked for; asked for; an op that has none */
        pair p;
        pair_honest(&p);
        p.a.rms = 0;
        pair_make(&p);
        if (k)
            json_object_set_new(p.da->header, "bands", json_true()),
                json_object_set_new(p.db->header, "bands", json_true());
        for (int i = 0; i < p.da->nnodes && k == 2; i++)
            if (!strcmp(p.da->nodes[i].name, "L00.gdn.core")) {
                free(p.da->nodes[i].op), free(p.db->nodes[i].op);
                p.da->nodes[i].op = strdup("conv1d"), p.db->nodes[i].op = strdup("conv1d");
            }
        pair_judge(&p);
        assert_int_equal(p.c->reason, BIS_R_band_not_recorded);
        assert_string_equal(p.c->again, k == 0   ? "--bands"
                                        : k == 1 ? "--bands --node '*'"
                                                 : "--mode full --bands --layer 0 --node 'gdn.core'");
        assert_int_equal(says(&p.c->next, "its op states no band"), k == 2);
        pair_free(&p);
    }
}

static void forced_ids_are_given_again(void **s) {
    (void)s;
    static const int32_t force[] = {4, 17, 20, 11, 12};
    pair p;
    pair_honest(&p);
    p.a.force = p.b.force = force;
    p.a.rows_kept = p.b.rows_kept = 2;
    pair_make(&p);
    pair_judge(&p);
    char *got = command(p.c, 0);
    assert_non_null(strstr(got, " --force-ids 4,17,20,11,12 -n 6 "));
    free(got);
    pair_free(&p);
}

/* Both arms on arm A's ids where their own part. */
static void parted_ids(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 5e-2f;
    p.hb.top_gap = -5e-2f;
    pair_make(&p);
    pair_judge(&p);
    char list[80] = " --force-ids ";
    for (int f = 0; f < 5; f++) snprintf(list + strlen(list), 12, "%s%d", f ? "," : "", p.da->forwards[f].sampled);
    for (int arm = 0; arm < 2; arm++) {
        char *got = command(p.c, arm);
        if (!strstr(got, list)) fail_msg("%s: expected ids %s", got, list);
        free(got);
    }
    pair_free(&p);
}

/* What is recorded already is asked for again: rows, full tensors. A layer alone would leave out the others. */
static void what_is_recorded_stays(void **s) {
    (void)s;
    for (int k = 0; k < 3; k++) { /* as by default; all rows; full tensors too */
        pair p;
        pair_honest(&p);
        p.hb.round = "moe.logits"; /* --bands alone keeps no more of it than bits */
        pair_make(&p);
        for (int arm = 0; arm < 2; arm++) {
            json_t *h = (arm ? p.db : p.da)->header;
            for (int f = 0; f < 6; f++) mk_tap(arm ? p.db : p.da, f, "L00.moe.logits")->has_sketch = 0;
            json_object_set_new(h, "rows", k ? json_pack("[i, i]", 0, -1) : json_pack("[i, i]", 0, 0));
            json_object_set_new(h, "mode", json_string(k == 2 ? "full" : "sketch"));
        }
        pair_judge(&p);
        assert_int_equal(p.c->reason, BIS_R_distance_not_recorded);
        assert_string_equal(p.c->again, k == 0   ? "--bands --node '*'"
                                        : k == 1 ? "--bands --rows all --node '*'"
                                                 : "--mode full --bands --rows all --node '*'");
        pair_free(&p);
    }
}

/* Full tensors of an outlier are asked for once, of its layer where no other holds a source. */
static void tensors_are_asked_for_once(void **s) {
    (void)s;
    for (int k = 0; k < 3; k++) {
        pair p;
        pair_honest(&p);
        p.a.full = p.b.full = k == 1;
        if (k < 2) p.hb.round = "emb";
        p.a.rms = p.b.rms = 1e-3;
        p.hb.plant = "L02.blk";
        p.hb.plant_f = 1;
        p.hb.plant_row = -1;
        p.hb.factor = -1;
        pair_make(&p);
        pair_judge(&p);
        assert_int_equal(p.c->reason, BIS_R_gain_outlier);
        assert_string_equal(p.c->again, k == 0   ? "--mode full --layer 2 --node '*'"
                                        : k == 1 ? ""
                                                 : "--mode full --node '*'");
        pair_free(&p);
    }
}

/* ---- differences that nothing judged ---- */

/* A planted sign behind unequal inputs, one of which is a state without a distance: seen only if they are recorded.
 * Twins: without the fault; all recorded; a fault against an equal arm, which has nothing unjudged. */
static void unjudged_differences(void **s) {
    (void)s;
    enum { HONEST, FAULTY, RECORDED, CASES };
    for (int k = 0; k < CASES; k++) {
        pair p;
        pair_honest(&p);
        p.a.rms = p.b.rms = 1e-3;
        if (k != HONEST) {
            p.hb.plant = "L02.gdn.core";
            p.hb.plant_f = 2;
            p.hb.plant_row = -1;
            p.hb.factor = -1;
        }
        pair_make(&p);
        for (int arm = 0; arm < 2 && k != RECORDED; arm++)
            for (int f = 0; f < 6; f++)
                for (int l = 0; l < 4; l++) {
                    char state[32];
                    snprintf(state, sizeof state, "L%02d.state.delta", l);
                    mk_tap(arm ? p.db : p.da, f, state)->has_sketch = 0;
                }
        pair_judge(&p);
        char *text = text_of(p.c);
        json_t *j = bis_json(p.c, &(bis_names){.a = "a", .b = "b"});
        const json_int_t n = json_integer_value(json_object_get(json_object_get(j, "details"), "inherited_unjudged"));
        assert_int_equal(n, p.c->map.unjudged);
        assert_int_equal(n > 0, k != RECORDED);
        assert_int_equal(times(text, "\nunjudged  "), k != RECORDED);
        if (k == RECORDED) {
            assert_int_equal(p.c->reason, BIS_R_gain_outlier);
            assert_int_equal(p.c->exit, 1);
        } else {
            assert_int_equal(p.c->reason, k == FAULTY ? BIS_R_inputs_not_recorded : BIS_R_within_band);
            assert_int_equal(p.c->exit, k == FAULTY ? 125 : 0);
            assert_string_equal(p.c->again, "--bands --node '*'");
            assert_non_null(strstr(p.c->next.line[0], "inherited differences, whose inputs' distances are not"));
        }
        if (k == FAULTY) assert_string_equal(p.c->where, "L02.gdn.core in forward 2");
        assert_int_equal(times(text, "inherited, not judged") > 0, k == FAULTY);
        json_decref(j);
        free(text);
        pair_free(&p);
    }
}

/* ---- weights that a fingerprint does not read ---- */

static void weights_between_the_ends(void **s) {
    (void)s;
    for (int k = 0; k < 2; k++) { /* a matmul; the twin: an op without weights */
        pair p;
        pair_equal(&p);
        p.hb.round = k ? "L01.gdn.core" : "L01.blk";
        pair_make(&p);
        pair_judge(&p);
        assert_int_equal(p.c->verdict, BIS_V_FAULT);
        assert_int_equal(says(&p.c->limits, "That both arms read equal weights"), !k);
        assert_int_equal(says(&p.c->next, "`q4x info --hash MODEL`"), !k);
        pair_free(&p);
    }
}

/* Words from files cannot leave their quotes. */
static void words_are_quoted(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.a.rows_kept = p.b.rows_kept = 2;
    p.b.spec = "cpu:act=bf16@L0*#1';rm -rf x\n";
    pair_make(&p);
    pair_judge(&p);
    char *got = command(p.c, 1);
    assert_non_null(strstr(got, " --spec 'cpu:act=bf16@L0*#1'\\'';rm -rf x?' "));
    free(got);
    pair_free(&p);
}

/* No command where it would not record the arm: a foreign dump, a case in which nothing is missing. */
static void no_command(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    p.a.rows_kept = p.b.rows_kept = 2;
    p.a.imported = 1;
    p.rq.allow_confounded = 1;
    pair_make(&p);
    pair_judge(&p);
    assert_true(says(&p.c->next, "--rows all"));
    expect_command(p.c, 0, "");
    expect_command(p.c, 1, "");
    pair_free(&p);
    pair_honest(&p);
    pair_make(&p);
    pair_judge(&p);
    assert_int_equal(p.c->verdict, BIS_V_WITHIN_BAND);
    expect_command(p.c, 0, "");
    pair_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_recorded_stays),
        cmocka_unit_test(tensors_are_asked_for_once),
        cmocka_unit_test(unjudged_differences),
        cmocka_unit_test(weights_between_the_ends),
        cmocka_unit_test(what_unequal_inputs_hide),
        cmocka_unit_test(rows_of_a_long_prompt),
        cmocka_unit_test(what_bands_keep_need_not_be_asked_for),
        cmocka_unit_test(bands),
        cmocka_unit_test(paths),
        cmocka_unit_test(forced_ids_are_given_again),
        cmocka_unit_test(parted_ids),
        cmocka_unit_test(words_are_quoted),
        cmocka_unit_test(no_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
