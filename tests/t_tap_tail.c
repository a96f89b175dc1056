/* t_tap_tail.c: what a tap set knows at the end of its run: levers that moved something and levers that did not,
 * buffers read twice, the run without taps. Each with the twin that fails. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "bisect/control.h"
#include "lib/tap_int.h"
#include "tests/check.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"

enum { PROMPT = 9, STEPS = 3 };

static q4x_net *net;
static const int32_t IDS[PROMPT] = {366, 380, 486, 573, 261, 7, 12, 90, 3};

static int open_net(void **state) {
    (void)state;
    net = h_net("tests/models/demo.gguf");
    return 0;
}

static int close_net(void **state) {
    (void)state;
    q4x_net_close(net);
    h_temp_remove();
    return 0;
}

static int step(void *ctx, const q4x_step *s, q4x_err *err) {
    return q4x_tapset_forward(ctx, s->ids, s->n_ids, s->forced, s->chosen, err);
}

typedef struct {
    q4x_run *run;
    q4x_tapset *taps;
    q4x_greedy_opts go;
} taken;

static taken take(const char *spec, q4x_tap_opts o) {
    taken t = {.go = {.prompt = IDS, .n_prompt = PROMPT, .n = STEPS}};
    q4x_err err = {0};
    q4x_arm arm;
    assert_rc_ok(q4x_arm_parse(spec, &arm, &err), &err);
    assert_rc_ok(q4x_run_new(net, &arm, 32, 0, &t.run, &err), &err);
    assert_rc_ok(q4x_tapset_open(t.run, net, &o, h_temp("t.q4d"), json_object(), &t.taps, &err), &err);
    assert_rc_ok(q4x_greedy(t.run, &t.go, step, t.taps, &err), &err);
    return t;
}

/* Close, and read what was written. */
static q4x_dump *written(taken *t) {
    q4x_err err = {0};
    q4x_dump *d = NULL;
    assert_rc_ok(q4x_tapset_close(t->taps, NULL, &err), &err);
    q4x_run_free(t->run);
    assert_rc_ok(q4x_dump_read(h_temp("t.q4d"), &d, &err), &err);
    return d;
}

static const char *text_of(const q4x_dump *d, size_t item, const char *key) {
    const char *s = json_string_value(json_object_get(json_array_get(json_object_get(d->tail, "levers"), item), key));
    return s ? s : "";
}

/* ---- levers ---- */

static void levers(void **state) {
    (void)state;
    static const struct {
        const char *spec, *outcome, *node;
        int forward;
    } list[] = {
        {"cpu:act=bf16", "moved", "emb", 0},
        {"cpu:act=bf16@*#2", "moved", "emb", 2},
        {"cpu:act=f32", "default", "", 0},
        {"cpu:act=bf16@logits", "inert", "", 0},            /* logits are never rounded, and the choice is the same */
        {"cpu:act=bf16@*.gdn.conv", "not measured", "", 0}, /* it changes a state: it cannot be run again */
        {"cpu:gdn=chunk64", "moved", "L00.gdn.core", 0},
        {"cpu:gdn=chunk64@L02.*", "moved", "L02.gdn.core", 0},
        {"cpu:gdn=chunk64@*#1", "inert", "", 0}, /* a decode step goes by tokens */
        {"cpu:moe.combine=experts", "moved", "L00.moe.routed", 0},
        {"cpu:rope.freq=bf16", "moved", "L03.attn.rope.q", 0},
        {"cpu:rope.table=bf16", "moved", "L03.attn.rope.q", 0},
        {"cpu:moe.logits=bf16", "moved", "L00.moe.logits", 0}, /* read by some products alone */
        {"cpu:resid=bf16", "moved", "L00.s.attn", 0},
        {"cpu:resid=bf16@s.ple", "moved", "L01.s.ple", 0}, /* by some sums alone */
        {"cpu:gdn.gate=silu", "moved", "L00.gdn.norm", 0},
        {"cpu:gdn.gate=sigmoid", "inert", "", 0}, /* which it is */
        {"cpu:gdn.h=bf16", "inert", "", 0},       /* there are no chunks */
        {"cpu:topk.tie=highest", "inert", "", 0}, /* no tie in these runs */
        {"cpu:moe.logits=bf16", "moved", "L00.moe.logits", 0},
        {"cpu:logits=bf16", "inert", "", 0},
        {"cpu:kv=f16", "moved", "L03.attn.idx.pool", 0}, /* ops whose state grows are run again on their own */
        {"cpu:kv=f16@attn.ctx#2", "moved", "L03.attn.ctx", 2},
        {"cpu:kv=f32", "inert", "", 0}, /* another word for the same */
        {"cpu:attn.round=bf16@L07.attn.prob", "moved", "L07.attn.prob", 0},
        {"cpu:attn.softmax=online", "moved", "L03.attn.prob", 0},
        {"cpu:plant=sign@L02.moe#1", "moved", "", 0},
        {"cpu:plant=swap@L00.moe.sgate#1", "inert", "", 0}, /* one row of one column: nothing to exchange */
    };
    for (int bands = 0; bands < 2; bands++)
        for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
            taken t = take(list[i].spec, (q4x_tap_opts){.mode = Q4X_MODE_HASH, .bands = bands});
            assert_int_equal(q4x_tapset_inert(t.taps, 0), !strcmp(list[i].outcome, "inert"));
            q4x_dump *d = written(&t);
            if (strcmp(text_of(d, 0, "outcome"), list[i].outcome) || strcmp(text_of(d, 0, "node"), list[i].node))
                fail_msg("%s: %s at '%s', expected %s at '%s'", list[i].spec, text_of(d, 0, "outcome"),
                         text_of(d, 0, "node"), list[i].outcome, list[i].node);
            const json_t *row = json_array_get(json_object_get(d->tail, "levers"), 0);
            assert_int_equal(json_integer_value(json_object_get(row, "forward")), list[i].forward);
            q4x_dump_free(d);
        }
}

/* Of several items each is asked by itself; those that another one overrides do nothing. */
static void levers_of_a_profile(void **state) {
    (void)state;
    taken t = take("cpu:as=hf-bf16,act=f32@emb,act=bf16@emb", (q4x_tap_opts){.mode = Q4X_MODE_HASH});
    q4x_dump *d = written(&t);
    assert_string_equal(text_of(d, 0, "item"), "act=bf16");
    assert_string_equal(text_of(d, 0, "outcome"), "moved");
    assert_string_equal(text_of(d, 1, "item"), "gdn=chunk64"); /* behind bf16 stores its outputs may be equal */
    assert_string_equal(text_of(d, 1, "outcome"), "moved");
    assert_string_equal(text_of(d, 5, "item"), "act=f32@emb");
    assert_string_equal(text_of(d, 5, "outcome"), "default");
    assert_string_equal(text_of(d, 6, "item"), "act=bf16@emb");
    assert_string_equal(text_of(d, 6, "outcome"), "moved");
    q4x_dump_free(d);
}

/* The witness runs ops again: not a bit of the run may move by it. */
static void witness_moves_nothing(void **state) {
    (void)state;
    taken t = take("cpu:as=hf-bf16,gdn=seq@L02.*", (q4x_tap_opts){.mode = Q4X_MODE_HASH, .controls = 1});
    q4x_tap_count twice, untapped;
    q4x_err err = {0};
    assert_rc_ok(q4x_tapset_untapped(t.taps, &t.go, &err), &err);
    q4x_tapset_controls(t.taps, &twice, &untapped);
    assert_int_equal(untapped.differing, 0);
    q4x_dump_free(written(&t));
}

/* ---- controls ---- */

static void controls(void **state) {
    (void)state;
    q4x_err err = {0};
    q4x_tap_count twice, untapped;
    taken t = take("cpu:as=hf-bf16", (q4x_tap_opts){.mode = Q4X_MODE_SKETCH, .controls = 1});
    assert_rc_ok(q4x_tapset_untapped(t.taps, &t.go, &err), &err);
    q4x_tapset_controls(t.taps, &twice, &untapped);
    assert_int_equal(twice.differing, 0);
    assert_int_equal(untapped.differing, 0);
    assert_int_equal(untapped.compared, 2 * STEPS); /* an id and a row of each forward */
    q4x_dump *d = written(&t);
    int64_t records = 0;
    for (int f = 0; f < d->nforwards; f++) records += d->forwards[f].ntaps;
    assert_int_equal(twice.compared, records);
    bis_count n = bis_recorded(d, "read_twice");
    assert_true(n.measured && n.compared == records && n.differing == 0);
    n = bis_recorded(d, "perturbation");
    assert_true(n.measured && n.compared == 2 * STEPS && n.differing == 0);
    q4x_dump_free(d);
    t = take("cpu", (q4x_tap_opts){.mode = Q4X_MODE_SKETCH}); /* not asked for: not measured */
    d = written(&t);
    assert_false(bis_recorded(d, "read_twice").measured || bis_recorded(d, "perturbation").measured);
    q4x_dump_free(d);
}

/* The twin of "untapped": another sequence is seen, in its ids, in its rows, in what is missing. */
static void another_run_is_seen(void **state) {
    (void)state;
    for (int what = 0; what < 3; what++) {
        q4x_err err = {0};
        q4x_tap_count twice, untapped;
        int32_t other[PROMPT];
        taken t = take("cpu", (q4x_tap_opts){.mode = Q4X_MODE_HASH, .controls = 1});
        memcpy(other, IDS, sizeof other);
        other[0] = 8;
        if (what == 0) t.go.prompt = other; /* every row */
        if (what == 1) t.go.n = STEPS - 1;  /* one forward is missing */
        if (what == 2) t.go.n = STEPS + 1;  /* one too many */
        assert_rc_ok(q4x_tapset_untapped(t.taps, &t.go, &err), &err);
        q4x_tapset_controls(t.taps, &twice, &untapped);
        if (what == 0) assert_true(untapped.differing >= STEPS);
        if (what == 1) assert_true(untapped.differing == 2 && untapped.compared == 2 * STEPS);
        if (what == 2) assert_true(untapped.differing == 2 && untapped.compared == 2 * STEPS + 2);
        q4x_dump *d = written(&t);
        assert_int_equal(bis_recorded(d, "perturbation").differing, untapped.differing);
        q4x_dump_free(d);
    }
}

/* The twin of "read twice": a bit that is another at the second reading is seen, in a tensor of one tile or of two. */
static void a_moved_bit_is_seen(void **state) {
    (void)state;
    enum { ROWS = 6, COLS = 2500 };
    q4x_err err = {0};
    q4x_tap_count n, untapped;
    float *x = calloc(ROWS * COLS, sizeof *x);
    assert_non_null(x);
    taken t = take("cpu", (q4x_tap_opts){.mode = Q4X_MODE_HASH, .controls = 1});
    q4x_tapset_controls(t.taps, &n, &untapped);
    const int64_t before = n.compared;
    for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)i * 0.37f;
    x[77] = NAN;
    for (int tiles = 1; tiles <= 2; tiles++)
        for (int where = -1; where < ROWS * COLS; where += 4999) { /* -1: nothing moves */
            t.taps->tap[0].rec.bits = q4x_bits_of(Q4X_BITS_F32, x, ROWS * COLS * sizeof *x);
            q4x_tapset_controls(t.taps, &n, &untapped);
            const int64_t was = n.differing;
            if (where >= 0) x[where] = nextafterf(x[where], INFINITY);
            for (int k = 0; k < tiles; k++) {
                const int rows = ROWS / tiles;
                q4x_node_event ev = {.nrows = rows, .row0 = k * rows, .total = ROWS, .cols = COLS};
                ev.data = x + k * rows * COLS;
                assert_rc_ok(q4x_tap_second_read(t.taps, &ev, 0, &err), &err);
            }
            q4x_tapset_controls(t.taps, &n, &untapped);
            assert_int_equal(n.differing - was, where >= 0);
        }
    assert_int_equal(n.compared - before, 2 * 4);
    q4x_tapset_abort(t.taps);
    q4x_run_free(t.run);
    free(x);
}

/* What a file says of its controls is believed only when it is a pair of sensible numbers. */
static void hostile_counts(void **state) {
    (void)state;
    static const char *const bad[] = {
        "{}",
        "[]",
        "{\"controls\":7}",
        "{\"controls\":{\"read_twice\":null}}",
        "{\"controls\":{\"read_twice\":{\"differing\":0}}}",
        "{\"controls\":{\"read_twice\":{\"differing\":0,\"compared\":0}}}",
        "{\"controls\":{\"read_twice\":{\"differing\":-1,\"compared\":3}}}",
        "{\"controls\":{\"read_twice\":{\"differing\":4,\"compared\":3}}}",
        "{\"controls\":{\"read_twice\":{\"differing\":0,\"compared\":9223372036854775807}}}",
        "{\"controls\":{\"read_twice\":{\"differing\":\"0\",\"compared\":\"3\"}}}",
        "{\"controls\":{\"read_twice\":{\"differing\":0.5,\"compared\":3}}}"};
    q4x_dump d = {0};
    assert_false(bis_recorded(&d, "read_twice").measured);
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        const int good = i == sizeof bad / sizeof *bad;
        d.tail =
            json_loads(good ? "{\"controls\":{\"read_twice\":{\"differing\":2,\"compared\":3}}}" : bad[i], 0, NULL);
        assert_non_null(d.tail);
        bis_count n = bis_recorded(&d, "read_twice");
        if (n.measured != good) fail_msg("%s", good ? "the twin" : bad[i]);
        assert_int_equal(n.differing, good ? 2 : 0);
        json_decref(d.tail);
    }
    const bis_count one = {1, 1, 3}, none = {0};
    assert_true(bis_both((bis_count[2]){one, one}).compared == 6 && bis_both((bis_count[2]){one, one}).measured);
    assert_false(bis_both((bis_count[2]){one, none}).measured || bis_both((bis_count[2]){none, one}).measured);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levers),
        cmocka_unit_test(levers_of_a_profile),
        cmocka_unit_test(witness_moves_nothing),
        cmocka_unit_test(controls),
        cmocka_unit_test(another_run_is_seen),
        cmocka_unit_test(hostile_counts),
        cmocka_unit_test(a_moved_bit_is_seen),
    };
    return cmocka_run_group_tests_name("tap_tail", tests, open_net, close_net);
}
