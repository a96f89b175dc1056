#include "bisect/selftest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bisect/case.h"
#include "lib/greedy.h"
#include "lib/tap.h"

/* What is planted: a kind of fault, a node (without its layer) in a kind of layer, a forward. Whole tensors, rows,
 * single elements, ids; both mixers, the experts, the n-gram embedding, both ends; prefill and decode. */
typedef enum { AT_TOP, AT_FIRST, AT_LAST } place; /* no layer, the first layer that has the node, the last */
static const struct {
    const char *kind, *node;
    place at;
    int forward;
} plants[] = {
    {"sign", "emb", AT_TOP, 0},        {"roll", "gdn.qkv", AT_FIRST, 0}, {"sign", "gdn.core", AT_FIRST, 0},
    {"ulp", "gdn.norm", AT_LAST, 2},   {"swap", "ple.ids", AT_FIRST, 0}, {"ulp", "ple.conv", AT_FIRST, 0},
    {"swap", "attn.ctx", AT_FIRST, 0}, {"nan", "attn.k", AT_FIRST, 1},   {"sign", "attn.gated", AT_LAST, 3},
    {"ulp", "ahc.mix", AT_LAST, 0},    {"swap", "moe.ids", AT_FIRST, 0}, {"roll", "moe.routed", AT_LAST, 1},
    {"inf", "moe.down", AT_FIRST, 2},  {"sign", "mhc.inj", AT_LAST, 0},  {"nan", "out", AT_TOP, 3},
};
enum { NPLANTS = (int)(sizeof plants / sizeof *plants), PROMPT = 12, MADE = 4 };

static void prompt_ids(int32_t vocab, int32_t ids[PROMPT]) {
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)((1 + 37 * (int64_t)i) % vocab);
}

typedef struct {
    q4x_tapset *taps;
} tap_ctx;

static int tap_step(void *ctx, const q4x_step *s, q4x_err *err) {
    return q4x_tapset_forward(((tap_ctx *)ctx)->taps, s->ids, s->n_ids, s->forced, s->chosen, err);
}

int bis_dump_arm(const q4x_net *net, const char *spec, const q4x_greedy_opts *go, const q4x_tap_opts *o,
                 const char *path, q4x_err *err) {
    int rc;
    q4x_run *run = NULL;
    tap_ctx t = {NULL};
    q4x_arm arm;
    q4x_hash content;
    TRY(q4x_arm_parse(spec, &arm, err));
    TRY(q4x_run_new(net, &arm, q4x_greedy_positions(go), 0, &run, err));
    TRY(q4x_tapset_open(run, net, o, path, json_object(), &t.taps, err));
    TRY(q4x_greedy(run, go, tap_step, &t, err));
    q4x_tapset *taps = t.taps;
    t.taps = NULL;
    rc = q4x_tapset_close(taps, &content, err);
done:
    q4x_tapset_abort(t.taps);
    q4x_run_free(run);
    return rc;
}

/* Dump a run of spec into path, and read it back. All forwards consume the same ids in every arm. */
static int dump_arm(const q4x_net *net, const char *spec, const char *path, q4x_dump **ret, q4x_err *err) {
    q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH, .bands = 1};
    int32_t ids[PROMPT], force[MADE - 1] = {3, 5, 8};
    prompt_ids(q4x_net_dims(net)->V, ids);
    q4x_greedy_opts go = {.prompt = ids, .n_prompt = PROMPT, .force = force, .n_force = MADE - 1, .n = MADE};
    int rc = bis_dump_arm(net, spec, &go, &o, path, err);
    if (!rc) rc = q4x_dump_read(path, ret, err);
    unlink(path);
    return rc;
}

/* Name of the node in this model, "" when it has none. */
static void name_node(const q4x_plan *p, const char *suffix, place at, char *buf, size_t size) {
    buf[0] = 0;
    for (int i = 0; i < p->nnodes; i++) {
        const char *name = p->node[i].name, *dot = strchr(name, '.');
        int hit = at == AT_TOP ? !strcmp(name, suffix) : p->node[i].layer >= 0 && dot && !strcmp(dot + 1, suffix);
        if (!hit) continue;
        snprintf(buf, size, "%s", name);
        if (at != AT_LAST) return;
    }
}

static void describe(const bis_case *c, bis_trial *t, const char *node, int forward, int quiet) {
    const bis_map *m = &c->map;
    snprintf(t->verdict, sizeof t->verdict, "%s", bis_verdict_name(c->verdict));
    if (!c->compared || m->first_f < 0) {
        snprintf(t->found, sizeof t->found, "nothing: %lld of %lld records equal",
                 c->pair ? (long long)c->pair->identical : 0LL, c->pair ? (long long)c->pair->compared : 0LL);
        t->good = quiet && c->verdict == BIS_V_IDENTICAL && c->pair && c->pair->identical > 0;
        return;
    }
    const char *name = c->pair->a->nodes[m->first_n].name;
    int equal_in = bis_map_cell(m, c->pair, m->first_f, m->first_n)->in == BIS_SAME;
    snprintf(t->found, sizeof t->found, "%s, forward %d, inputs %s", name, m->first_f, equal_in ? "equal" : "differ");
    t->good = !quiet && !strcmp(name, node) && m->first_f == forward && equal_in;
}

/* Does the verdict fit the kind of fault? One ulp may well be within the band of its node; nothing else may. */
static int verdict_fits(const char *kind, const bis_case *c) {
    if (!strcmp(kind, "ulp")) return c->verdict != BIS_V_IDENTICAL;
    if (!strcmp(kind, "nan") || !strcmp(kind, "inf")) return c->verdict == BIS_V_NON_FINITE;
    return c->exit == 1;
}

static int judge(q4x_dump *a, q4x_dump *b, const char *kind, const char *node, int forward, bis_trial *t,
                 q4x_err *err) {
    bis_request rq = {.a = a, .b = b};
    bis_case *c = NULL;
    int rc = bis_judge(&rq, &c, err);
    if (rc) return rc;
    describe(c, t, node, forward, !kind);
    if (kind) t->good = t->good && verdict_fits(kind, c);
    bis_case_free(c);
    return 0;
}

int bis_selftest_plants(const char *model, const char *dir, bis_trial_fn fn, void *ctx, int *ret_bad, q4x_err *err) {
    int rc, bad = 0;
    char path[4096], node[64], spec[128];
    q4x_net *net = NULL;
    q4x_dump *clean = NULL, *other = NULL;
    snprintf(path, sizeof path, "%s/selftest.q4d", dir);
    TRY(q4x_net_open(model, &net, err));
    TRY(dump_arm(net, "cpu/1", path, &clean, err));
    for (int i = -1; i < NPLANTS; i++) {
        bis_trial t = {.what = "nothing (null: the same arm again)"};
        strcpy(spec, "cpu/1");
        node[0] = 0;
        if (i >= 0) {
            name_node(q4x_net_plan(net), plants[i].node, plants[i].at, node, sizeof node);
            snprintf(t.what, sizeof t.what, "%s@%s#%d", plants[i].kind, node[0] ? node : plants[i].node,
                     plants[i].forward);
            snprintf(spec, sizeof spec, "cpu/1:plant=%s", t.what);
        }
        if (i >= 0 && !node[0]) {
            snprintf(t.found, sizeof t.found, "the model has no node %s", plants[i].node);
        } else {
            TRY(dump_arm(net, spec, path, &other, err));
            TRY(judge(clean, other, i < 0 ? NULL : plants[i].kind, node, i < 0 ? -1 : plants[i].forward, &t, err));
            q4x_dump_free(other);
            other = NULL;
        }
        bad += !t.good;
        fn(ctx, &t);
    }
    *ret_bad = bad;
done:
    q4x_dump_free(other);
    q4x_dump_free(clean);
    q4x_net_close(net);
    return rc;
}
