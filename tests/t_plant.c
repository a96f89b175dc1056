/* t_plant.c: every fault moves bits from its node and forward on and not before; no two are alike; each is refused at a
 * node where it has no meaning. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/hash.h"
#include "lib/plant.h"
#include "tests/check.h"
#include "tests/h_forward.h"

#define MICRO_B "tests/golden/micro-b"
#define DENSE_A "tests/golden/dense-a"

enum { FORWARDS = 3, FIRST = 70 };

/* Bits of every node in every forward, and of every state behind the last one. */
typedef struct {
    q4x_run *run;
    const q4x_plan *p;
    q4x_hash *node, *state; /* [FORWARDS][nnodes], [FORWARDS][nstates] */
    char *flagged;          /* [FORWARDS][nnodes]: the event says planted */
} trace;

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    (void)err;
    trace *t = ctx;
    const int64_t at = (int64_t)q4x_run_nforward(t->run) * t->p->nnodes + ev->node;
    q4x_hash both[2] = {t->node[at], q4x_bits_of(Q4X_BITS_RAW, ev->data, (size_t)ev->nrows * (size_t)ev->cols * 4)};
    t->node[at] = q4x_xxh128(both, sizeof both);
    if (ev->planted) t->flagged[at] = 1;
    return 0;
}

/* A prompt, then single ids: the same id twice never follows. */
static trace *trace_of(const q4x_net *net, const char *spec, int tile) {
    trace *t = calloc(1, sizeof *t);
    q4x_arm arm;
    q4x_err err = {0};
    assert_non_null(t);
    assert_rc_ok(q4x_arm_parse(spec, &arm, &err), &err);
    arm.threads = 2;
    assert_rc_ok(q4x_run_new(net, &arm, FIRST + FORWARDS, tile, &t->run, &err), &err);
    t->p = q4x_net_plan(net);
    t->node = calloc((size_t)(FORWARDS * t->p->nnodes), sizeof *t->node);
    t->state = calloc((size_t)(FORWARDS * t->p->nstates + 1), sizeof *t->state);
    t->flagged = calloc((size_t)(FORWARDS * t->p->nnodes), 1);
    assert_true(t->node && t->state && t->flagged);
    q4x_run_on_node(t->run, on_node, t);
    int32_t ids[FIRST + FORWARDS];
    for (int i = 0; i < FIRST + FORWARDS; i++) ids[i] = 1 + i * 37 % (t->p->d.V - 1);
    for (int f = 0, at = 0; f < FORWARDS; f++) {
        assert_rc_ok(q4x_run_forward(t->run, ids + at, f ? 1 : FIRST, 0, &err), &err);
        at += f ? 1 : FIRST;
        for (int s = 0; s < t->p->nstates; s++) {
            const k_state *st = h_run_state(t->run, s);
            t->state[f * t->p->nstates + s] = q4x_xxh128(st->f, (size_t)(st->rows * st->cols) * 4);
        }
    }
    return t;
}

static void trace_free(trace *t) {
    q4x_run_free(t->run);
    free(t->node);
    free(t->state);
    free(t->flagged);
    free(t);
}

/* The first node that differs, in order of the run, as "f1 L00.gdn.conv". */
static const char *first_of(const trace *a, const trace *b, char *buf, size_t size) {
    for (int i = 0; i < FORWARDS * a->p->nnodes; i++)
        if (!q4x_hash_eq(&a->node[i], &b->node[i])) {
            snprintf(buf, size, "f%d %s", i / a->p->nnodes, a->p->node[i % a->p->nnodes].name);
            return buf;
        }
    return "nothing";
}

/* States that differ behind forward f. */
static int states_moved(const trace *a, const trace *b, int f, const char **name) {
    int n = 0;
    for (int s = 0; s < a->p->nstates; s++)
        if (!q4x_hash_eq(&a->state[f * a->p->nstates + s], &b->state[f * a->p->nstates + s])) {
            *name = a->p->state[s].name;
            n++;
        }
    return n;
}

static int same(const trace *a, const trace *b) {
    return !memcmp(a->node, b->node, sizeof *a->node * (size_t)(FORWARDS * a->p->nnodes));
}

static const struct {
    const char *model, *plant, *first; /* NULL: nothing moves */
} CASES[] = {
    {MICRO_B, "sign@L02.gdn.core#0", "f0 L02.gdn.core"},
    {MICRO_B, "sign@L02.gdn.core#2", "f2 L02.gdn.core"},
    {MICRO_B, "swap@L03.attn.gated#1", "f1 L03.attn.gated"},
    {MICRO_B, "swap@L03.attn.gated", "f0 L03.attn.gated"},
    {MICRO_B, "roll@L04.moe.ids#0", "f0 L04.moe.ids"},
    {MICRO_B, "ulp@L06.mhc.mix#1", "f1 L06.mhc.mix"},
    {MICRO_B, "nan@L01.ple.gate#1", "f1 L01.ple.gate"},
    {MICRO_B, "inf@L07.attn.prob#1", "f1 L07.attn.prob"},
    {MICRO_B, "scale@L05.gdn.q#1", "f1 L05.gdn.q"},
    {MICRO_B, "scale@L05.gdn.q", "f0 L05.gdn.q"},
    {MICRO_B, "stale@emb#1", "f1 emb"}, /* a stale token id */
    {MICRO_B, "stale@emb#2", "f2 emb"},
    {MICRO_B, "stale@emb", "f1 emb"},
    {MICRO_B, "stale@L01.ple.ids#1", "f1 L01.ple.ids"},
    {MICRO_B, "stale@L03.attn.idx.sel#2", "f2 L03.attn.idx.sel"},
    {MICRO_B, "stale@L03.attn.score#1", "f1 L03.attn.score"}, /* a row of another width */
    {MICRO_B, "tail@L02.moe.routed#1", "f1 L02.moe.routed"},
    {MICRO_B, "tail@emb#1", "f1 emb"},
    {MICRO_B, "row@emb#0", "f0 emb"},
    {MICRO_B, "row@emb#1", "f1 emb"},
    {MICRO_B, "row@L01.ple.emb#0", "f0 L01.ple.emb"},
    {MICRO_B, "row@L02.moe.gate#1", "f1 L02.moe.gate"}, /* a row of another expert */
    {MICRO_B, "row@L02.moe.down#0", "f0 L02.moe.down"},
    {MICRO_B, "order@L02.moe.ids#1", "f1 L02.moe.ids"},
    {MICRO_B, "order@L02.moe.weights#1", "f1 L02.moe.weights"},
    {MICRO_B, "conv-off-by-one@L04.gdn.conv#1", "f1 L04.gdn.conv"},
    {MICRO_B, "conv-off-by-one@L01.ple.conv#2", "f2 L01.ple.conv"},
    {MICRO_B, "conv-off-by-one@L04.gdn.conv", "f1 L04.gdn.conv"},
    {MICRO_B, "post-conv@L04.gdn.conv#0", "f1 L04.gdn.conv"}, /* what was kept is read by the next forward */
    {MICRO_B, "post-conv@L04.gdn.conv#1", "f2 L04.gdn.conv"},
    {MICRO_B, "post-conv@L01.ple.conv#0", "f1 L01.ple.conv"},
    {MICRO_B, "kept-stale@L02.gdn.core#0", "f1 L02.gdn.core"},
    {MICRO_B, "kept-stale@L03.attn.ctx#0", "f1 L03.attn.ctx"},
    {MICRO_B, "kept-early@L03.attn.score#0", "f1 L03.attn.score"},
    {MICRO_B, "kept-early@L01.ple.conv#0", "f1 L01.ple.conv"},
    {MICRO_B, "kept-unrotated@L03.attn.score#0", "f1 L03.attn.score"},
    {MICRO_B, "kept-twice@L02.gdn.core#1", "f2 L02.gdn.core"},
    {MICRO_B, "kept-ulp@L04.gdn.conv#1", "f2 L04.gdn.conv"},
    {MICRO_B, "window+1@L03.attn.prob#0", "f0 L03.attn.prob"},
    {MICRO_B, "window+1@L03.attn.prob#1", NULL}, /* a single id is the last: there is no later one */
    {MICRO_B, "window-1@L03.attn.prob#0", "f0 L03.attn.prob"},
    {MICRO_B, "window-1@L03.attn.prob#1", "f1 L03.attn.prob"},
    {MICRO_B, "no-rope-scale@L03.attn.rope.q#0", "f0 L03.attn.rope.q"},
    {MICRO_B, "no-rope-scale@L07.attn.idx.q#1", "f1 L07.attn.idx.q"},
    {MICRO_B, "parts@L05.ahc.norm#1", "f1 L05.ahc.norm"}, /* a stream in another's place */
    {MICRO_B, "parts@L03.attn.kn#0", "f0 L03.attn.kn"},
    {MICRO_B, "parts@L02.gdn.k#2", "f2 L02.gdn.k"},
    {MICRO_B, "parts@L02.gdn.norm#0", "f0 L02.gdn.norm"},
    {MICRO_B, "unnormed@L01.ple.norm#0", "f0 L01.ple.norm"},
    {MICRO_B, "unnormed@L04.gdn.k#1", "f1 L04.gdn.k"},
    {DENSE_A, "unnormed@L02.norm.mlp#1", "f1 L02.norm.mlp"}, /* the part is the row */
    {DENSE_A, "stale@emb#1", "f1 emb"},
    {DENSE_A, "tail@L01.mlp.act#2", "f2 L01.mlp.act"},
    {DENSE_A, "conv-off-by-one@L01.gdn.conv#1", "f1 L01.gdn.conv"},
    {DENSE_A, "kept-unrotated@L03.attn.score#1", "f2 L03.attn.score"},
    {DENSE_A, "window+1@L03.attn.prob#0", "f0 L03.attn.prob"},
    {DENSE_A, "window-1@L03.attn.prob#1", "f1 L03.attn.prob"},
    {DENSE_A, "no-rope-scale@L03.attn.rope.k#1", "f1 L03.attn.rope.k"},
};
enum { NCASES = sizeof CASES / sizeof *CASES };

static void all_kinds_have_a_case(void **state) {
    (void)state;
    for (int k = 0; k < q4x_nplant_kinds; k++) {
        char word[40];
        int i = 0;
        snprintf(word, sizeof word, "%s@", q4x_plant_kinds[k].name);
        while (i < NCASES && strncmp(CASES[i].plant, word, strlen(word))) i++;
        if (i == NCASES) fail_msg("no case plants %s", q4x_plant_kinds[k].name);
    }
}

static void moves_from_its_node_on(void **state) {
    (void)state;
    for (int tile = 0; tile <= 64; tile += 64) {
        q4x_net *net = NULL;
        trace *clean = NULL;
        for (int i = 0; i < NCASES; i++) {
            char spec[96], first[64];
            if (!i || strcmp(CASES[i].model, CASES[i - 1].model)) {
                if (clean) trace_free(clean);
                q4x_net_close(net);
                net = h_net(CASES[i].model);
                clean = trace_of(net, "cpu", tile);
            }
            snprintf(spec, sizeof spec, "cpu:plant=%s", CASES[i].plant);
            trace *t = trace_of(net, spec, tile);
            const char *is = first_of(clean, t, first, sizeof first);
            if (strcmp(is, CASES[i].first ? CASES[i].first : "nothing"))
                fail_msg("%s: first %s, expected %s", CASES[i].plant, is, CASES[i].first ? CASES[i].first : "nothing");
            assert_int_equal(q4x_run_planted(t->run, 0), CASES[i].first != NULL);
            int flags = 0;
            for (int k = 0; k < FORWARDS * t->p->nnodes; k++) {
                flags += t->flagged[k];
                const char *node = t->p->node[k % t->p->nnodes].name, *at = strchr(CASES[i].plant, '@') + 1;
                if (t->flagged[k] && (strlen(node) != strcspn(at, "#") || strncmp(node, at, strlen(node))))
                    fail_msg("%s: %s is flagged", CASES[i].plant, node);
            }
            assert_int_equal(flags > 0, CASES[i].first != NULL);
            trace_free(t);
        }
        trace_free(clean);
        q4x_net_close(net);
    }
}

/* What is kept wrong differs in its own forward, and nothing else does, whatever the tiles. */
static void what_is_kept_is_in_the_state(void **state) {
    (void)state;
    static const char *const CASE[][2] = {
        {"post-conv@L04.gdn.conv#0", "L04.state.conv"},        {"kept-stale@L04.gdn.conv#0", "L04.state.conv"},
        {"kept-stale@L02.gdn.core#0", "L02.state.delta"},      {"kept-stale@L03.attn.idx.pool#0", "L03.state.idx"},
        {"kept-stale@L03.attn.idx.score#0", "L03.state.pool"}, {"kept-early@L01.ple.conv#0", "L01.state.ple.conv"},
        {"kept-early@L03.attn.ctx#0", "L03.state.v"},          {"kept-unrotated@L03.attn.score#0", "L03.state.k"},
        {"kept-twice@L02.gdn.core#1", "L02.state.delta"},      {"kept-ulp@L03.attn.score#0", "L03.state.k"},
    };
    q4x_net *net = h_net(MICRO_B);
    trace *clean = trace_of(net, "cpu", 0);
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++)
        for (int tile = 0; tile <= 64; tile += 64) {
            char spec[96];
            const char *name = "";
            snprintf(spec, sizeof spec, "cpu:plant=%s", CASE[i][0]);
            trace *t = trace_of(net, spec, tile);
            const int f = atoi(strchr(CASE[i][0], '#') + 1);
            if (states_moved(clean, t, f, &name) != 1 || strcmp(name, CASE[i][1]))
                fail_msg("%s: %s differs", CASE[i][0], name);
            assert_true(states_moved(clean, t, f + 1, &name) >= 1);
            trace_free(t);
        }
    trace_free(clean);
    q4x_net_close(net);
}

/* Faults at one node in one forward are told apart by what follows. */
static void no_two_are_alike(void **state) {
    (void)state;
    static const char *const SETS[][10] = {
        {"sign@emb#1", "roll@emb#1", "ulp@emb#1", "nan@emb#1", "inf@emb#1", "scale@emb#1", "stale@emb#1", "tail@emb#1",
         "row@emb#1", "swap@emb#1"},
        {"swap@L02.moe.ids#1", "roll@L02.moe.ids#1", "stale@L02.moe.ids#1", "row@L02.moe.gate#1",
         "order@L02.moe.weights#1", "row@L02.moe.up#1", "row@L02.moe.down#1"},
        {"conv-off-by-one@L04.gdn.conv#1", "post-conv@L04.gdn.conv#0", "post-conv@L04.gdn.conv#1",
         "stale@L04.gdn.conv#1", "roll@L04.gdn.conv#1", "kept-stale@L04.gdn.conv#1", "kept-early@L04.gdn.conv#1",
         "kept-ulp@L04.gdn.conv#1"},
        {"kept-stale@L03.attn.score#0", "kept-early@L03.attn.score#0", "kept-unrotated@L03.attn.score#0",
         "kept-ulp@L03.attn.score#0"},
        {"parts@L02.ahc.norm#1", "unnormed@L02.ahc.norm#1", "scale@L02.ahc.norm#1", "swap@L02.ahc.norm#1"},
        {"window+1@L03.attn.prob#0", "window-1@L03.attn.prob#0", "roll@L03.attn.prob#0", "scale@L03.attn.prob#0",
         "no-rope-scale@L03.attn.rope.q#0", "no-rope-scale@L03.attn.rope.k#0"},
    };
    q4x_net *net = h_net(MICRO_B);
    for (size_t s = 0; s < sizeof SETS / sizeof *SETS; s++) {
        trace *t[10];
        int n = 0;
        for (; n < 10 && SETS[s][n]; n++) {
            char spec[96];
            snprintf(spec, sizeof spec, "cpu:plant=%s", SETS[s][n]);
            t[n] = trace_of(net, spec, 0);
        }
        for (int i = 0; i < n; i++)
            for (int j = 0; j < i; j++)
                if (same(t[i], t[j])) fail_msg("%s and %s are one", SETS[s][i], SETS[s][j]);
        while (n) trace_free(t[--n]);
    }
    q4x_net_close(net);
}

/* Items apply left to right: the last one at a node counts, and off takes back. */
static void the_last_one_counts(void **state) {
    (void)state;
    q4x_net *net = h_net(MICRO_B);
    trace *clean = trace_of(net, "cpu", 0), *sign = trace_of(net, "cpu:plant=sign@L02.blk#1", 0);
    trace *both = trace_of(net, "cpu:plant=ulp@L02.blk#1,plant=sign@L02.blk#1", 0);
    trace *off = trace_of(net, "cpu:plant=sign@L02.blk#1,plant=stale@emb,plant=off", 0);
    trace *some = trace_of(net, "cpu:plant=sign@L02.blk#1,plant=stale@emb,plant=off@emb", 0);
    assert_true(same(both, sign) && !q4x_run_planted(both->run, 0) && q4x_run_planted(both->run, 1));
    assert_true(same(off, clean) && !q4x_run_planted(off->run, 0));
    assert_true(same(some, sign) && !same(sign, clean));
    /* a run that is reset looks back at nothing */
    trace *t = trace_of(net, "cpu:plant=stale@emb#1", 0);
    q4x_hash *old = t->node;
    t->node = calloc((size_t)(FORWARDS * t->p->nnodes), sizeof *t->node);
    q4x_run_reset(t->run);
    int32_t ids[2] = {5, 9};
    q4x_err err = {0};
    assert_rc_ok(q4x_run_forward(t->run, ids, 1, 0, &err), &err);
    assert_rc_ok(q4x_run_forward(t->run, ids + 1, 1, 0, &err), &err);
    assert_true(q4x_hash_eq(&t->node[0], &t->node[t->p->nnodes])); /* emb of 5, and again of 5 for 9 */
    free(old);
    trace *all[] = {clean, sign, both, off, some, t};
    for (int i = 0; i < 6; i++) trace_free(all[i]);
    q4x_net_close(net);
}

static void refused(const q4x_net *net, const char *plant, const char *word) {
    char spec[96];
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r = NULL;
    snprintf(spec, sizeof spec, "cpu:plant=%s", plant);
    int rc = q4x_arm_parse(spec, &arm, &err);
    if (!rc) rc = q4x_run_new(net, &arm, 16, 0, &r, &err);
    if (!rc) fail_msg("%s was accepted", plant);
    if (!strstr(err.msg, word)) fail_msg("%s: '%s' does not say '%s'", plant, err.msg, word);
}

static void refused_without_meaning(void **state) {
    (void)state;
    q4x_net *net = h_net(MICRO_B);
    refused(net, "sign", "NODE");
    refused(net, "sine@emb", "sign|swap");
    refused(net, "sign@nowhere", "no node");
    static const char *const floats[] = {"sign", "ulp", "nan", "inf", "scale", "tail"};
    for (int i = 0; i < 6; i++) {
        char plant[40];
        snprintf(plant, sizeof plant, "%s@L02.moe.ids", floats[i]);
        refused(net, plant, "holds ids");
    }
    refused(net, "row@L02.moe.routed", "moe_expert");
    refused(net, "row@L02.gdn.core", "means nothing at L02.gdn.core (op gdn_core)");
    refused(net, "order@L02.moe.routed", "moe_weights");
    refused(net, "conv-off-by-one@L02.gdn.core", "conv1d");
    refused(net, "post-conv@L03.attn.k", "conv1d");
    refused(net, "kept-stale@L03.attn.k", "attn_score");
    refused(net, "kept-stale@L01.ple.ids", "attn_score"); /* it keeps ids */
    refused(net, "kept-early@L02.gdn.core", "ple_conv");
    refused(net, "kept-unrotated@L03.attn.ctx", "attn_score");
    refused(net, "kept-twice@L02.gdn.conv", "gdn_core");
    refused(net, "kept-ulp@L03.attn.k", "attn_score");
    refused(net, "window+1@L03.attn.score", "attn_prob");
    refused(net, "window-1@L02.gdn.core", "attn_prob");
    refused(net, "no-rope-scale@L03.attn.qn", "rope");
    refused(net, "parts@L02.gdn.core", "gdn_norm");
    refused(net, "unnormed@L02.gdn.norm", "l2norm");
    refused(net, "stale@emb#0", "forward 1 is the first");
    refused(net, "tail@emb#0", "forward 1 is the first");
    refused(net, "conv-off-by-one@L02.gdn.conv#0", "forward 1 is the first");
    q4x_net_close(net);
    net = h_net(DENSE_A);
    refused(net, "parts@L02.norm.mlp", "whose rows have one part");
    q4x_net_close(net);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kinds_have_a_case),        cmocka_unit_test(moves_from_its_node_on),
        cmocka_unit_test(what_is_kept_is_in_the_state), cmocka_unit_test(no_two_are_alike),
        cmocka_unit_test(the_last_one_counts),          cmocka_unit_test(refused_without_meaning),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("plant", tests, NULL, NULL);
}
