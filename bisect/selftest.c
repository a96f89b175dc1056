/* selftest.c: faults against an equal arm and on top of honest differences. selfquiet.c has the pairs without one. */
#include "bisect/selftest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT_TOP BIS_AT_TOP
#define AT_FIRST BIS_AT_FIRST
#define AT_LAST BIS_AT_LAST
const bis_plant bis_plants[] = {
#define TRIAL(fault, node, at, forward, seen) {fault, node, at, forward, seen},
#include "bisect/trials.def"
#undef TRIAL
};
const int bis_nplants = (int)(sizeof bis_plants / sizeof *bis_plants);

const char *const bis_honest[BIS_NHONEST] = {"act=bf16", "gdn=chunk64", "dot=serial"};

enum { PROMPT = 8, MADE = 4 }; /* no more columns than dot=serial sums in its own order */

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

/* All forwards consume the same ids in every arm. */
int bis_selftest_dump(const q4x_net *net, const char *spec, const char *dir, int bands, q4x_dump **ret, q4x_err *err) {
    q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH};
    int32_t ids[PROMPT], force[MADE - 1] = {3, 5, 8};
    char path[4096];
    snprintf(path, sizeof path, "%s/selftest.q4d", dir);
    if (bands) o = (q4x_tap_opts){.mode = Q4X_MODE_SKETCH, .nodes = "*", .nrows = -1, .bands = 1};
    prompt_ids(q4x_net_dims(net)->V, ids);
    q4x_greedy_opts go = {.prompt = ids, .n_prompt = PROMPT, .force = force, .n_force = MADE - 1, .n = MADE};
    int rc = bis_dump_arm(net, spec, &go, &o, path, err);
    if (!rc) rc = q4x_dump_read(path, ret, err);
    unlink(path);
    return rc;
}

/* Name of the node in this model, "" when it has none. */
static void name_node(const q4x_plan *p, const bis_plant *x, char *buf, size_t size) {
    buf[0] = 0;
    for (int i = 0; i < p->nnodes; i++) {
        const char *name = p->node[i].name, *dot = strchr(name, '.');
        int hit =
            x->at == BIS_AT_TOP ? !strcmp(name, x->node) : p->node[i].layer >= 0 && dot && !strcmp(dot + 1, x->node);
        if (!hit) continue;
        snprintf(buf, size, "%s", name);
        if (x->at != BIS_AT_LAST) return;
    }
}

/* A fault in this model. */
typedef struct {
    const bis_plant *plant;
    char node[64], seen[64]; /* "L03.gdn.conv", "L03.state.conv" */
    char item[160];          /* "plant=post-conv@L03.gdn.conv#1" */
} fault;

static void locate(const q4x_plan *p, const bis_plant *x, fault *ret) {
    *ret = (fault){.plant = x};
    name_node(p, x, ret->node, sizeof ret->node);
    const char *dot = strchr(ret->node, '.');
    if (x->seen[0] && dot)
        snprintf(ret->seen, sizeof ret->seen, "%.*s.%.40s", (int)(dot - ret->node), ret->node, x->seen);
    else
        snprintf(ret->seen, sizeof ret->seen, "%s", ret->node);
    snprintf(ret->item, sizeof ret->item, "%s%s@%s#%d", strchr(x->fault, '=') ? "" : "plant=", x->fault, ret->node,
             x->forward);
}

/* Does the verdict fit the kind of fault? One ulp may well be within the band of its node; nothing else may. */
static int verdict_fits(const char *kind, const bis_case *c) {
    if (!strcmp(kind, "ulp")) return c->verdict != BIS_V_IDENTICAL;
    if (!strcmp(kind, "nan") || !strcmp(kind, "inf")) return c->verdict == BIS_V_NON_FINITE;
    return c->exit == 1;
}

/* The first difference is at the fault's place, and its inputs are equal. */
static void against_equal(const bis_case *c, const fault *x, bis_trial *t) {
    const bis_map *m = &c->map;
    snprintf(t->verdict, sizeof t->verdict, "%s", bis_verdict_name(c->verdict));
    if (!c->compared || m->first_f < 0) {
        snprintf(t->found, sizeof t->found, "nothing: %lld of %lld records equal",
                 c->pair ? (long long)c->pair->identical : 0LL, c->pair ? (long long)c->pair->compared : 0LL);
        return;
    }
    const char *name = c->pair->a->nodes[m->first_n].name;
    int equal_in = bis_map_cell(m, c->pair, m->first_f, m->first_n)->in == BIS_SAME;
    snprintf(t->found, sizeof t->found, "%s, forward %d, inputs %s", name, m->first_f, equal_in ? "equal" : "differ");
    t->good = !strcmp(name, x->seen) && m->first_f == x->plant->forward && equal_in && verdict_fits(x->plant->fault, c);
}

/* The words of a fate: a miss by how it compares with the least that an outlier of gains can be. */
static void say_fate(bis_on_top *o) {
    static const char *const word[BIS_FATES] = {"found", "next", "not judged", "missed", "ASTRAY"};
    snprintf(o->word, sizeof o->word, "%s", o->moved ? word[o->fate] : "moved nothing");
    if (o->moved && o->fate == BIS_F_MISSED)
        snprintf(o->word, sizeof o->word, "%s %.2gx", o->ratio < BIS_GAIN_LIMIT ? "below" : "MISSED", o->ratio);
}

static int on_top(q4x_dump *clean, q4x_dump *honest, q4x_dump *faulty, const fault *x, bis_on_top *ret, q4x_err *err) {
    int rc = 0;
    int32_t f, n, at = q4x_dump_node_find(clean, x->seen);
    bis_request rq = {.a = clean, .b = faulty};
    bis_case *c = NULL;
    *ret = (bis_on_top){.ran = 1, .moved = bis_lever_moved(faulty), .fate = BIS_F_UNJUDGED, .ratio = NAN};
    TRY(bis_judge(&rq, &c, err));
    ret->reason = c->reason;
    if (at >= 0) ret->fate = bis_fate_of(c, x->plant->forward, at);
    if (bis_named(c, &f, &n)) snprintf(ret->named, sizeof ret->named, "%.40s#%d", clean->nodes[n].name, f);
    if (ret->fate == BIS_F_MISSED) TRY(bis_fate_ratio(c, x->plant->forward, at, honest, &ret->ratio, err));
    say_fate(ret);
done:
    bis_case_free(c);
    return rc;
}

/* What the trials of a model share. */
typedef struct {
    const q4x_net *net;
    const char *dir;
    q4x_dump *bare, *clean, *honest[BIS_NHONEST]; /* without a fault; bare: without bands, to find bits by */
} bench;

static int try_fault(const bench *k, const fault *x, bis_trial *t, q4x_err *err) {
    int rc;
    char spec[256];
    const int bands =
        strchr(x->plant->fault, '=') != NULL; /* a lever is declared: only its band tells that it is wrong */
    q4x_dump *d = NULL;
    bis_case *c = NULL;
    snprintf(spec, sizeof spec, "cpu/1:%s", x->item);
    TRY(bis_selftest_dump(k->net, spec, k->dir, bands, &d, err));
    bis_request rq = {.a = bands ? k->clean : k->bare, .b = d};
    TRY(bis_judge(&rq, &c, err));
    against_equal(c, x, t);
    for (int i = 0; i < BIS_NHONEST; i++) {
        q4x_dump *both = NULL;
        snprintf(spec, sizeof spec, "cpu/1:%s,%s", bis_honest[i], x->item);
        TRY(bis_selftest_dump(k->net, spec, k->dir, 1, &both, err));
        rc = on_top(k->clean, k->honest[i], both, x, &t->on[i], err);
        q4x_dump_free(both);
        if (rc) goto done;
        if (t->on[i].moved && t->on[i].fate == BIS_F_ASTRAY) t->good = 0;
    }
done:
    bis_case_free(c);
    q4x_dump_free(d);
    return rc;
}

int bis_selftest_plants(const char *model, const char *dir, const bis_plant *plant, int n, bis_trial_fn fn, void *ctx,
                        int *ret_bad, q4x_err *err) {
    int rc, bad = 0;
    char spec[128];
    fault x;
    q4x_net *net = NULL;
    bench k = {.dir = dir};
    TRY(q4x_net_open(model, &net, err));
    k.net = net;
    TRY(bis_selftest_dump(net, "cpu/1", dir, 0, &k.bare, err));
    TRY(bis_selftest_dump(net, "cpu/1", dir, 1, &k.clean, err));
    for (int i = 0; i < BIS_NHONEST; i++) {
        snprintf(spec, sizeof spec, "cpu/1:%s", bis_honest[i]);
        TRY(bis_selftest_dump(net, spec, dir, 1, &k.honest[i], err));
    }
    for (int i = 0; i < n; i++) {
        bis_trial t = {0};
        locate(q4x_net_plan(net), &plant[i], &x);
        snprintf(t.what, sizeof t.what, "%s@%s#%d", plant[i].fault, x.node[0] ? x.node : plant[i].node,
                 plant[i].forward);
        if (x.node[0])
            TRY(try_fault(&k, &x, &t, err));
        else
            snprintf(t.found, sizeof t.found, "the model has no node %s", plant[i].node);
        bad += !t.good;
        fn(ctx, &t);
    }
    *ret_bad = bad;
done:
    for (int i = 0; i < BIS_NHONEST; i++) q4x_dump_free(k.honest[i]);
    q4x_dump_free(k.clean);
    q4x_dump_free(k.bare);
    q4x_net_close(net);
    return rc;
}
