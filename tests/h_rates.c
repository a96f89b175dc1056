#include "tests/h_rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bisect/selftest.h"
#include "kernels/ops.h"
#include "lib/names.h"
#include "lib/plant_kept.h"
#include "tests/check.h"
#include "tests/h_forward.h"
#include "tests/h_synth.h"

const h_honest h_honest_pairs[] = {
    {"cpu/1", "cpu/1:act=bf16", 0, 0},
    {"cpu/1", "cpu/1:gdn=chunk64", 0, 0},
    {"cpu/1", "cpu/1:rope.freq=bf16", 0, 0},
    {"cpu/1", "cpu/1:moe.combine=experts", 1, 0},
    {"cpu/1", "cpu/1:moe.softmax=bf16", 1, 0},
    {"cpu/1", "cpu/1:moe.logits=bf16", 1, 0},
    {"cpu/1:act=bf16", "cpu/1:act=bf16,gdn=chunk64", 0, 0},
    {"cpu/1:act=bf16", "cpu/1:act=bf16,rope.freq=bf16", 0, 0},
    {"cpu/1:act=bf16", "cpu/1:act=bf16,moe.combine=experts", 1, 0},
    {"cpu/1:act=bf16", "cpu/1:act=bf16,moe.logits=f32", 1, 0},
    {"cpu/1", "cpu/1:act=bf16,gdn=chunk64", 0, 0},
    {"cpu/1", "cpu/1:gdn=chunk64,rope.freq=bf16", 0, 0},
    {"cpu/1", "cpu/1:gdn=chunk64,moe.combine=experts,moe.softmax=bf16", 1, 0},
    {"cpu/1:act=bf16", "cpu/1:gdn=chunk64", 0, 0},
    {"cpu/1:as=hf-f32", "cpu/1:as=hf-bf16", 0, 0},
    {"cpu/1", "cpu/1:as=hf-bf16-seq", 0, 0},
    {"cpu/1", "cpu/1:act=bf16@emb", 0, 0},
    {"cpu/1", "cpu/1:act=bf16@out", 0, 0},
    {"cpu/1", "cpu/1:act=bf16@L01.*", 0, 0},
    {"cpu/1", "cpu/1:act=bf16@gdn.core", 0, 0},
    {"cpu/1", "cpu/1:act=bf16@attn.*", 0, 0},
    {"cpu/1", "cpu/1:act=bf16@blk#1", 0, 0},
    {"cpu/1", "cpu/1:act=bf16@moe.*", 1, 0},
    {"cpu/1", "cpu/1:topk.tie=highest", 1, 0},
    {"cpu/1", "cpu/1", 0, 1},
    {"cpu/1", "cpu/2", 0, 1},
    {"cpu/1:act=bf16,gdn=chunk64", "cpu/1:act=bf16,gdn=chunk64", 0, 1},
};
const int h_nhonest = (int)(sizeof h_honest_pairs / sizeof *h_honest_pairs);

/* Block types of three sizes and none, one and more bits to an element. */
static const q4x_file_type types[] = {Q4X_FT_F32,  Q4X_FT_BF16,   Q4X_FT_Q8_0,   Q4X_FT_Q4_K_M, Q4X_FT_UD_IQ1_S,
                                      Q4X_FT_F16,  Q4X_FT_IQ4_NL, Q4X_FT_IQ2_XS, Q4X_FT_Q4_0,   Q4X_FT_IQ3_S,
                                      Q4X_FT_Q6_K, Q4X_FT_TQ2_0,  Q4X_FT_MXFP4,  Q4X_FT_IQ1_M};
enum { NTYPES = (int)(sizeof types / sizeof *types) };

static int32_t pick(h_rand *r, const int32_t *from, uint32_t n) {
    return from[h_below(r, n)];
}
#define PICK(...)                                                                                                      \
    pick(x, (const int32_t[]){__VA_ARGS__}, (uint32_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))

/* A geometry as small as its ops allow. */
static q4x_geometry geometry(h_rand *x, int flash) {
    q4x_geometry g = *q4x_geometry_find("tiny");
    g.name = "rates";
    g.L = PICK(4, 5, 6, 8);
    g.interval = flash ? PICK(3, 4) : PICK(2, 3, 4); /* the n-gram embedding is in layer 1 */
    g.D = PICK(64, 64, 128, 256);
    g.V = PICK(512, 600, 800);
    g.H = PICK(2, 4);
    g.G = PICK(1, 2);
    g.hd = PICK(32, 64);
    g.nk = PICK(1, 2);
    g.nv = g.nk * PICK(1, 2, 3);
    g.dk = g.dv = PICK(16, 32);
    if (flash) {
        g.E = PICK(8, 16, 32);
        g.K = PICK(2, 3, 4);
        g.F = g.Fs = PICK(64, 128);
        g.R = PICK(32, 64);
        g.ngram_base = 509;
        return g;
    }
    g.arch = "qwen35";
    g.N = g.R = g.E = g.K = g.F = g.Fs = g.ih = g.id = g.budget = g.ratio = 0;
    g.ple = g.n = g.hpn = g.pw = g.Kp = 0;
    g.ngram_base = g.ngram_multiple = g.ngram_seed = 0;
    g.ffn = PICK(128, 192, 256);
    return g;
}

/* Models that are shipped: one trained, three that a reference computed. */
static const char *const shipped[] = {"tests/models/demo.gguf", "tests/models/micro-a-bf16.gguf",
                                      "tests/golden/micro-b", "tests/golden/dense-a"};

static void make_model(h_rig *r, const char *dir) {
    const q4x_file_type ft = types[r->seed % NTYPES];
    r->flash = r->seed % 3 != 0;
    q4x_geometry g = geometry(&r->rand, r->flash);
    snprintf(r->path, sizeof r->path, "%s/m.gguf", dir);
    h_synth(r->path, &g, ft, r->seed, 1, 1);
    r->made = 1;
    r->net = h_net(r->path);
    snprintf(r->what, sizeof r->what, "%s %s, %d layers of %d", g.arch, q4x_file_types[ft].name, g.L, g.D);
}

static void take_model(h_rig *r) {
    snprintf(r->path, sizeof r->path, "%s", shipped[r->seed / 8 % 4]);
    r->net = h_net(r->path);
    r->flash = strcmp(q4x_net_plan(r->net)->arch, "qwen35") != 0;
    snprintf(r->what, sizeof r->what, "%s", r->path);
}

void h_rig_open(uint64_t seed, const char *dir, h_rig *ret) {
    h_rig r = {.seed = seed, .rand = {seed * 7919 + 17}};
    h_rand *x = &r.rand;
    if (seed % 8 == 7)
        take_model(&r);
    else
        make_model(&r, dir);
    const uint32_t V = (uint32_t)q4x_net_dims(r.net)->V;
    snprintf(r.dump, sizeof r.dump, "%s/d.q4d", dir);
    r.n_prompt = h_below(x, 6) ? 3 + (int32_t)h_below(x, 20) : 70 + (int32_t)h_below(x, 131);
    r.n = r.n_prompt > 40 ? 4 : 4 + (int32_t)h_below(x, 7);
    r.forced = h_below(x, 2) != 0;
    r.all = h_below(x, 2) != 0;
    for (int i = 0; i < r.n_prompt; i++) r.prompt[i] = (int32_t)h_below(x, V);
    for (int i = 0; i < 16; i++) r.force[i] = (int32_t)h_below(x, V);
    size_t at = strlen(r.what);
    snprintf(r.what + at, sizeof r.what - at, ", %d ids, %d forwards%s%s", r.n_prompt, r.n, r.forced ? ", forced" : "",
             r.all ? ", all nodes" : "");
    *ret = r;
}

void h_rig_close(h_rig *r) {
    q4x_net_close(r->net);
    if (r->made) unlink(r->path);
    r->net = NULL;
}

q4x_dump *h_rig_record(const h_rig *r, const char *spec) {
    q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH, .bands = 1, .nodes = r->all ? "*" : NULL, .nrows = r->all ? -1 : 0};
    q4x_greedy_opts go = {.prompt = r->prompt,
                          .n_prompt = r->n_prompt,
                          .force = r->force,
                          .n_force = r->forced ? r->n - 1 : 0,
                          .n = r->n};
    q4x_dump *d = NULL;
    q4x_err err = {0};
    assert_rc_ok(bis_dump_arm(r->net, spec, &go, &o, r->dump, &err), &err);
    assert_rc_ok(q4x_dump_read(r->dump, &d, &err), &err);
    unlink(r->dump);
    return d;
}

bis_case *h_rig_judge(q4x_dump *a, q4x_dump *b) {
    bis_request rq = {.a = a, .b = b};
    bis_case *c = NULL;
    q4x_err err = {0};
    assert_rc_ok(bis_judge(&rq, &c, &err), &err);
    return c;
}

const h_honest *h_rig_pair(h_rig *r, int differing) {
    for (;;) {
        const h_honest *p = &h_honest_pairs[h_below(&r->rand, (uint32_t)h_nhonest)];
        if ((!p->flash || r->flash) && (!p->same || !differing)) return p;
    }
}

static int on_ids(const char *kind) {
    for (int i = 0; i < q4x_nplant_kinds; i++)
        if (!strcmp(q4x_plant_kinds[i].name, kind)) return q4x_plant_kinds[i].on_ids;
    return 0;
}

static void say_spec(h_fault *x, const char *arm) {
    snprintf(x->spec, sizeof x->spec, "%s%splant=%s@%s#%d", arm, strchr(arm, ':') ? "," : ":", x->kind, x->node,
             x->forward);
}

h_fault h_rig_fault(h_rig *r, const char *arm) {
    static const char *const kinds[] = {"sign", "swap", "roll", "ulp", "nan", "inf"};
    const q4x_plan *p = q4x_net_plan(r->net);
    h_fault x;
    snprintf(x.kind, sizeof x.kind, "%s", kinds[h_below(&r->rand, sizeof kinds / sizeof *kinds)]);
    for (;;) {
        x.n = (int32_t)h_below(&r->rand, (uint32_t)p->nnodes);
        const q4x_node *n = &p->node[x.n];
        if (n->is_ids && !on_ids(x.kind)) continue;
        if (!strcmp(n->name, "out") && !r->flash) continue; /* the glob takes the end of every layer too */
        x.forward = (int32_t)h_below(&r->rand, (uint32_t)r->n);
        snprintf(x.node, sizeof x.node, "%s", n->name);
        break;
    }
    say_spec(&x, arm);
    return x;
}

h_fault h_rig_kept(h_rig *r, const char *arm) {
    const q4x_plan *p = q4x_net_plan(r->net);
    h_fault x;
    for (;;) {
        const q4x_plant_kind *k = &q4x_plant_kinds[h_below(&r->rand, (uint32_t)q4x_nplant_kinds)];
        const q4x_node *n = &p->node[h_below(&r->rand, (uint32_t)p->nnodes)];
        if (!q4x_kept_is(k->name) || !q4x_word_in(k->ops, k_ops[n->op].name)) continue;
        x.n = p->nnodes + n->st[0]; /* a dump has the states behind the nodes */
        x.forward = (int32_t)h_below(&r->rand, (uint32_t)r->n);
        snprintf(x.kind, sizeof x.kind, "%s", k->name);
        snprintf(x.node, sizeof x.node, "%s", n->name);
        break;
    }
    say_spec(&x, arm);
    return x;
}

double h_rate_upper(int64_t k, int64_t n) {
    if (n < 1) return 1;
    if (!k) return fmin(1, 3.0 / (double)n);
    const double z = 1.96, p = (double)k / (double)n, m = (double)n;
    return (p + z * z / (2 * m) + z * sqrt(p * (1 - p) / m + z * z / (4 * m * m))) / (1 + z * z / m);
}
