/* What is printed: JSON key by key, the terminal summary, the Markdown report. Deterministic, hostile names harmless.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/h_judge.h"

static const bis_names names = {"armA.q4d", "armB.q4d", NULL, NULL, "q4x bisect armA armB"};

/* A pair with everything in it: a flip, a disagreement, excluded forwards, an outlier. */
static void rich(pair *p) {
    pair_honest(p);
    p->a.forwards = p->b.forwards = 7;
    p->a.rms = p->b.rms = 1e-3;
    p->ha.top_f = p->hb.top_f = 3;
    p->ha.top_gap = 5e-2f;
    p->hb.top_gap = -5e-2f;
    p->ha.tie_node = p->hb.tie_node = "L01.moe.logits";
    p->ha.tie_f = p->hb.tie_f = 0;
    p->ha.tie_row = p->hb.tie_row = 2;
    p->ha.tie_gap = 1e-3f;
    p->hb.tie_gap = -1e-3f;
    p->hb.plant = "L02.moe";
    p->hb.plant_f = 1;
    p->hb.factor = 1.3f;
}

__attribute__((noinline)) static char *render(const bis_case *c,
                                              void (*fn)(const bis_case *, const bis_names *, FILE *)) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    fn(c, &names, f);
    fclose(f);
    return text;
}

static void text_fn(const bis_case *c, const bis_names *n, FILE *f) {
    bis_text(c, n, 0, f);
}
static void loud_fn(const bis_case *c, const bis_names *n, FILE *f) {
    bis_text(c, n, 1, f);
}

/* Everything but what stands between the lines of the provenance block. */
static char *outside(const char *text) {
    char *copy = strdup(text), *a = strstr(copy, "<!-- provenance -->\n"), *b = strstr(copy, "<!-- /provenance -->\n");
    assert_non_null(a);
    assert_non_null(b);
    assert_true(a < b);
    memmove(a, b, strlen(b) + 1);
    return copy;
}

/* ---- JSON ---- */

static void keys_are(const json_t *j, const char *list) {
    char got[600] = "";
    const char *k;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)j, k, v) {
        (void)v;
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", *got ? " " : "", k);
    }
    assert_string_equal(got, list);
}

static json_t *at(const json_t *j, const char *key) {
    json_t *v = json_object_get(j, key);
    if (!v) print_message("no key %s\n", key);
    assert_non_null(v);
    return v;
}

static void json_schema(void **s) {
    (void)s;
    pair p;
    rich(&p);
    pair_make(&p);
    pair_judge(&p);
    json_t *j = bis_json(p.c, &names), *x;
    assert_non_null(j);
    keys_are(j,
             "verdict reason exit comparable excluded structure common_prefix taps first_disagreement first_different "
             "first_out_of_band controls details provenance");
    assert_string_equal(json_string_value(at(j, "verdict")), "DIVERGED CONTAMINATED");
    assert_string_equal(json_string_value(at(j, "reason")), "gain_outlier");
    assert_int_equal(json_integer_value(at(j, "exit")), 1);
    assert_int_equal(json_array_size(at(j, "comparable")), 4);
    assert_int_equal(json_integer_value(json_array_get(at(j, "comparable"), 3)), 3);
    x = json_array_get(at(j, "excluded"), 0);
    keys_are(x, "forward reason first_differing_id_a first_differing_id_b");
    assert_int_equal(json_integer_value(at(x, "forward")), 4);
    assert_string_equal(json_string_value(at(x, "reason")), "ids_differ");
    assert_int_equal(json_integer_value(at(x, "first_differing_id_a")), 10);
    assert_int_equal(json_integer_value(at(x, "first_differing_id_b")), 11);
    keys_are(at(j, "structure"),
             "forwards prefill layers nodes public_nodes states taps_per_forward logit_rows vocabulary");
    assert_int_equal(json_integer_value(at(j, "common_prefix")), 3);
    keys_are(at(j, "taps"), "compared identical only_a only_b");
    assert_int_equal(json_integer_value(at(at(j, "taps"), "compared")), 4 * 47);
    x = at(j, "first_disagreement");
    keys_are(x, "index forward a b margin_a margin_b contrast_a contrast_b");
    assert_int_equal(json_integer_value(at(x, "index")), 3);
    assert_int_equal(json_integer_value(at(x, "a")), 10);
    assert_true(json_real_value(at(x, "contrast_a")) > 0 && json_real_value(at(x, "contrast_b")) < 0);
    x = at(j, "first_different");
    keys_are(x, "forward node layer inputs_identical");
    assert_string_equal(json_string_value(at(x, "node")), "L00.gdn.core");
    assert_int_equal(json_integer_value(at(x, "layer")), 0);
    assert_true(json_is_true(at(x, "inputs_identical")));
    x = at(j, "first_out_of_band");
    assert_string_equal(json_string_value(at(x, "node")), "L02.moe");
    assert_string_equal(json_string_value(at(x, "kind")), "GAIN");
    assert_true(json_real_value(at(x, "gain")) > 8 * json_real_value(at(x, "median_gain")));
    assert_string_equal(json_string_value(json_array_get(at(x, "between"), 0)), "L02.s.attn");
    x = at(j, "controls");
    keys_are(x, "floor_a floor_b perturbation read_twice");
    assert_true(json_is_null(at(x, "floor_a")) && json_is_null(at(x, "read_twice")));
    json_decref(j);

    mk_opts o = p.a; /* measured: numbers */
    o.path = "again";
    o.free_time = "2026-01-02T00:00:00Z";
    p.rq.floor_a = mk_dump(&o);
    bis_case_free(p.c);
    p.c = NULL;
    pair_judge(&p);
    j = bis_json(p.c, &names);
    x = at(at(j, "controls"), "floor_a");
    keys_are(x, "differing compared");
    assert_int_equal(json_integer_value(at(x, "differing")), 0);
    assert_int_equal(json_integer_value(at(x, "compared")), 7 * 48);
    json_decref(j);
    q4x_dump_free((q4x_dump *)p.rq.floor_a);
    pair_free(&p);
}

/* No data is null; NaN and infinities are words. */
static void json_of_nothing(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    p.b.model = "beef";
    pair_make(&p);
    pair_judge(&p);
    json_t *j = bis_json(p.c, &names);
    static const char *const null[] = {"structure",          "common_prefix",   "taps",
                                       "first_disagreement", "first_different", "first_out_of_band"};
    for (size_t i = 0; i < sizeof null / sizeof *null; i++) assert_true(json_is_null(at(j, null[i])));
    assert_int_equal(json_array_size(at(j, "comparable")), 0);
    assert_int_equal(json_array_size(at(j, "excluded")), 0);
    json_decref(j);
    pair_free(&p);

    pair_honest(&p); /* disagreement without logit rows: margins and contrasts are null */
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 5e-2f;
    p.hb.top_gap = -5e-2f;
    p.a.no_logits = p.b.no_logits = 1;
    pair_make(&p);
    pair_judge(&p);
    j = bis_json(p.c, &names);
    assert_true(json_is_null(at(at(j, "first_disagreement"), "margin_a")));
    assert_true(json_is_null(at(at(j, "first_disagreement"), "contrast_b")));
    json_decref(j);
    pair_free(&p);

    pair_honest(&p); /* a row of NaN */
    p.ha.top_f = p.hb.top_f = 3;
    p.ha.top_gap = 5e-2f;
    p.hb.top_gap = -5e-2f;
    pair_make(&p);
    for (int i = 0; i < 40; i++) p.da->forwards[3].logits[i] = i == 11 ? 1e38f * 10 : 0;
    pair_judge(&p);
    j = bis_json(p.c, &names);
    assert_string_equal(json_string_value(at(at(j, "first_disagreement"), "margin_a")), "inf");
    assert_string_equal(json_string_value(at(at(j, "first_disagreement"), "contrast_a")), "-inf");
    json_decref(j);
    pair_free(&p);
}

/* ---- the terminal ---- */

static int count_lines(const char *t) {
    int n = 0;
    for (; *t; t++) n += *t == '\n';
    return n;
}

static void terminal(void **s) {
    (void)s;
    pair p;
    rich(&p);
    p.b.levers = "{\"act\":\"bf16\",\"gdn\":\"chunk64\",\"a\":1,\"b\":1,\"c\":1,\"d\":1}";
    pair_make(&p);
    pair_judge(&p);
    char *t = render(p.c, text_fn), *last = strrchr(t, '\n');
    assert_true(count_lines(t) <= 40);
    *last = 0;
    last = strrchr(t, '\n') + 1;
    assert_string_equal(last,
                        "verdict: DIVERGED CONTAMINATED CONFOUNDED(6: act, gdn, a, b, c, d) (gain_outlier) exit 1");
    assert_non_null(strstr(t, "first     L00.gdn.core"));
    assert_non_null(strstr(t, "common prefix 3, first disagreement at id 3 (10 | 11): ROOT"));
    assert_non_null(strstr(t, "excluded  forwards 4-6: consumed ids differ at 4 (10 | 11)"));
    assert_non_null(strstr(t, "floor A NOT MEASURED, floor B NOT MEASURED, perturbation NOT MEASURED"));
    free(t);
    t = render(p.c, loud_fn);
    assert_true(count_lines(t) <= 44);
    free(t);
    pair_free(&p);

    pair_equal(&p);
    p.rq.truncated_a = p.rq.truncated_b = 1;
    pair_make(&p);
    pair_judge(&p);
    t = render(p.c, text_fn);
    assert_non_null(strstr(t, "\nverdict: TRUNCATED (no_end_marker) exit 125\n"));
    free(t);
    pair_free(&p);
}

/* ---- Markdown ---- */

static void report_sections(void **s) {
    (void)s;
    static const char *const need[] = {"# armA against armB: DIVERGED",
                                       "## What was compared",
                                       "| act | f32 | bf16 |",
                                       "## Controls",
                                       "| floor of A | NOT MEASURED |",
                                       "## Structure",
                                       "## Comparability",
                                       "| 4 | consumed ids differ | 10 | 11 |",
                                       "## Tokens",
                                       "| 3 | 10 | 11 | comparable | ROOT |",
                                       "coincidental",
                                       "## First difference",
                                       "First different node: **L00.gdn.core** in forward 0",
                                       "First out-of-band node: **L02.moe** in forward 1",
                                       "## Differing nodes",
                                       "## Growth with depth",
                                       "## Gains",
                                       "## Selections",
                                       "L01.moe.ids",
                                       "## Decisions",
                                       "## Verdict",
                                       "## What to record next",
                                       "--force-ids",
                                       "## What this does not establish",
                                       "Floor of either arm: NOT MEASURED"};
    pair p;
    rich(&p);
    pair_make(&p);
    pair_judge(&p);
    char *t = render(p.c, bis_report);
    for (size_t i = 0; i < sizeof need / sizeof *need; i++) {
        if (!strstr(t, need[i])) print_message("missing: %s\n", need[i]);
        assert_non_null(strstr(t, need[i]));
    }
    /* prose is folded, tables have one number of columns, no blank line is doubled */
    assert_null(strstr(t, "\n\n\n"));
    int cols = 0;
    for (char *l = t, *e; *l; l = e + 1) {
        e = strchr(l, '\n');
        int n = 0, bars = 0;
        for (char *q = l; q < e; q++) {
            n += (*q & 0xc0) != 0x80;
            bars += *q == '|' && (q == l || q[-1] != '\\');
        }
        if (*l == '|') {
            assert_true(!cols || cols == bars);
            assert_true(n <= 160);
            cols = bars;
        } else {
            if (n > 112) print_message("%.*s\n", (int)(e - l), l);
            assert_true(n <= 112);
            cols = 0;
        }
    }
    free(t);
    pair_free(&p);
}

static void downstream_is_labelled(void **s) {
    (void)s;
    static const int32_t sa[] = {4, 17, 20, 8, 9, 5}, sb[] = {4, 17, 21, 7, 9, 6};
    pair p;
    pair_equal(&p);
    p.a.sampled = sa;
    p.b.sampled = sb;
    p.a.no_logits = p.b.no_logits = 1;
    pair_make(&p);
    pair_judge(&p);
    char *t = render(p.c, bis_report);
    assert_non_null(strstr(t, "| 1 | 17 | 17 | comparable | same |\n| 2 | 20 | 21 | comparable | ROOT |\n"
                              "| 3 | 8 | 7 | excluded | DOWNSTREAM(2) |\n| 4 | 9 | 9 | excluded | coincidental |\n"
                              "| 5 | 5 | 6 | excluded | DOWNSTREAM(2) |\n"));
    assert_non_null(strstr(t, "Common prefix: 2 of 6 ids. First disagreement: id 2, 20 against 21."));
    assert_null(strstr(t, "of 6 agree"));
    free(t);
    pair_free(&p);
}

/* The summary says of later ids what the report labels them. */
static void later_ids(void **s) {
    static const int32_t sa[] = {4, 17, 20, 8, 9, 5}, sb[] = {4, 17, 21, 7, 9, 6}, sc[] = {4, 17, 21, 8, 9, 5};
    static const int32_t force[] = {4, 17, 20, 8, 9};
    static const char *const want[] = {"ROOT; later ones are downstream\n", "ROOT\n",
                                       "ROOT; later ones are ROOT too\n"};
    (void)s;
    for (int k = 0; k < 3; k++) { /* behind it; none; forced ids, where each is one of its own */
        pair p;
        pair_equal(&p);
        p.a.sampled = sa;
        p.b.sampled = k == 1 ? sc : sb;
        if (k == 2) p.a.force = p.b.force = force;
        p.a.no_logits = p.b.no_logits = 1;
        pair_make(&p);
        pair_judge(&p);
        char *t = render(p.c, text_fn);
        if (!strstr(t, want[k])) fail_msg("'%s' is not in %s", want[k], t);
        free(t);
        pair_free(&p);
    }
}

/* A dump without an end has no hash of its content. */
static void content_of_a_cut_dump(void **s) {
    (void)s;
    for (int k = 0; k < 2; k++) {
        pair p;
        pair_equal(&p);
        pair_make(&p);
        p.da->content = p.db->content = (q4x_hash){{1}};
        if (k) p.db->content = (q4x_hash){{0}};
        p.rq.truncated_b = k;
        pair_judge(&p);
        char *t = render(p.c, bis_report);
        assert_int_equal(strstr(t, "| 01000000000000000000000000000000 | not known |") != NULL, k);
        assert_int_equal(strstr(t, "not known |") != NULL, k);
        free(t);
        json_t *j = bis_json(p.c, &(bis_names){.a = "a", .b = "b"});
        json_t *b = json_object_get(json_object_get(json_object_get(j, "details"), "b"), "content");
        assert_int_equal(json_is_null(b), k);
        json_decref(j);
        pair_free(&p);
    }
}

/* The same runs recorded at another time, on another day, under other names: the same bytes outside the fence. */
static void reproducible(void **s) {
    (void)s;
    char *out[3];
    json_t *js[3];
    for (int k = 0; k < 3; k++) {
        pair p;
        rich(&p);
        if (k == 2) {
            p.a.free_time = "2031-01-01T00:00:00Z";
            p.b.free_time = "2032-01-01T00:00:00Z";
            p.a.path = "elsewhere/x.q4d";
            p.b.path = "elsewhere/y.q4d";
        }
        pair_make(&p);
        pair_judge(&p);
        char *t = render(p.c, bis_report), *again = render(p.c, bis_report);
        assert_string_equal(t, again);
        out[k] = outside(t);
        bis_names other = {"elsewhere/x.q4d", "elsewhere/y.q4d", NULL, NULL, "q4x bisect elsewhere/x elsewhere/y"};
        js[k] = bis_json(p.c, k == 2 ? &other : &names);
        free(t);
        free(again);
        pair_free(&p);
    }
    assert_string_equal(out[0], out[1]);
    assert_string_equal(out[0], out[2]);
    assert_true(json_equal(js[0], js[1]));
    assert_false(json_equal(js[0], js[2])); /* twin: provenance does differ */
    json_object_del(js[0], "provenance");
    json_object_del(js[2], "provenance");
    assert_true(json_equal(js[0], js[2]));
    for (int k = 0; k < 3; k++) {
        free(out[k]);
        json_decref(js[k]);
    }
}

static void hostile_names(void **s) {
    (void)s;
    pair p;
    rich(&p);
    p.a.label = "a|b`<script>*\x1b[31m\xff";
    pair_make(&p);
    json_object_set_new(json_object_get(p.da->header, "arm"), "label", json_string("a|b`<script>*\x1b[31m"));
    int n = mk_node(p.da, "L00.gdn.core");
    for (int k = 0; k < 2; k++) {
        q4x_dump *d = k ? p.db : p.da;
        free(d->nodes[n].name);
        d->nodes[n].name = strdup("L00.|<b>\x1b[2J\xff\xfe`x`");
    }
    pair_judge(&p);
    char *t = render(p.c, bis_report), *u = render(p.c, text_fn);
    json_t *j = bis_json(p.c, &names);
    assert_non_null(j);
    char *v = json_dumps(j, 0);
    assert_null(strchr(t, '\x1b'));
    assert_null(strchr(u, '\x1b'));
    assert_null(strstr(t, "<script>"));
    assert_null(strstr(t, "<b>"));
    assert_non_null(v);
    free(v);
    json_decref(j);
    free(t);
    free(u);
    pair_free(&p);
}

/* Every ending can be rendered. */
static void every_ending_renders(void **s) {
    (void)s;
    for (int k = 0; k < 6; k++) {
        pair p;
        pair_equal(&p);
        if (k == 1) p.b.model = "beef";
        if (k == 2) p.b.forwards = 4;
        if (k == 3) p.rq.truncated_a = 1;
        if (k == 4) p.a.hash_only = p.b.hash_only = 1, p.hb.round = "blk";
        pair_make(&p);
        if (k == 5) p.db->forwards[0].ids[0]++;
        pair_judge(&p);
        char *t = render(p.c, bis_report), *u = render(p.c, text_fn), want[400];
        json_t *j = bis_json(p.c, &names);
        assert_non_null(j);
        snprintf(want, sizeof want, "verdict: %s (%s) exit %d\n", p.c->name, bis_reason_word(p.c->reason), p.c->exit);
        assert_non_null(strstr(u, want));
        assert_non_null(strstr(t, "## What this does not establish"));
        assert_true(p.c->limits.n > 0);
        json_decref(j);
        free(t);
        free(u);
        pair_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_schema),
        cmocka_unit_test(json_of_nothing),
        cmocka_unit_test(terminal),
        cmocka_unit_test(report_sections),
        cmocka_unit_test(downstream_is_labelled),
        cmocka_unit_test(later_ids),
        cmocka_unit_test(content_of_a_cut_dump),
        cmocka_unit_test(reproducible),
        cmocka_unit_test(hostile_names),
        cmocka_unit_test(every_ending_renders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
