/* t_parts.c: rows that an op norms part by part: as the plan cuts them, as a dump says so, as the judge measures them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bisect/align.h"
#include "bisect/case.h"
#include "bisect/map_int.h"
#include "bisect/selftest.h"
#include "tests/check.h"
#include "tests/h_forward.h"

static const char *const A = "tests/golden/micro-a", *const DENSE = "tests/golden/dense-a",
                         *const DEMO = "tests/models/demo.gguf";

/* ---- the plan ---- */

static void test_plan(void **state) {
    (void)state;
    static const struct {
        const char *node;
        q4x_parts cut; /* as those that read it cut it */
        q4x_heads out; /* its own groups, unless it has V heads */
    } list[] = {{"emb", {0}, {0}},
                {"wide", {0, 64, 64, 4}, {0}},
                {"L00.in", {0, 64, 64, 4}, {0}},
                {"L00.ahc.norm", {0}, {1, 0, 64, 4, 4, 0}},
                {"L00.ahc.mix", {0}, {0}},
                {"L00.s.attn", {0, 64, 64, 4}, {0}},
                {"L01.in", {0, 64, 64, 4}, {0}}, /* ahc.norm does not read it, the query does */
                {"L01.ple.kproj", {0, 64, 64, 4}, {0}},
                {"L01.ple.gv", {0, 64, 64, 4}, {0}},
                {"L01.ple.query", {0}, {1, 0, 64, 4, 4, 0}},
                {"L01.s.ple", {0, 64, 64, 4}, {0}},
                {"L00.gdn.conv", {0, 16, 16, 4}, {1, 64, 16, 2, 4, 1}}, /* two queries, two keys */
                {"L00.gdn.q", {0}, {1, 0, 16, 2, 2, 0}},
                {"L00.gdn.k", {0}, {1, 0, 16, 2, 2, 0}},
                {"L00.gdn.core", {0, 16, 16, 4}, {1, 0, 16, 2, 4, 1}},
                {"L03.attn.qg", {0, 32, 64, 4}, {0}}, /* a gate behind each */
                {"L03.attn.qn", {0}, {1, 0, 32, 4, 4, 0}},
                {"L03.attn.k", {0, 32, 32, 2}, {0}},
                {"L03.attn.idx.proj", {0, 16, 16, 2}, {0}},
                {"L03.s.mlp", {0, 64, 64, 4}, {0}},
                {"logits", {0}, {0}}};
    q4x_net *net = h_net("tests/models/micro-a-bf16.gguf");
    const q4x_plan *p = q4x_net_plan(net);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const int32_t n = q4x_plan_find(p, list[i].node);
        if (n < 0) fail_msg("no %s", list[i].node);
        const q4x_parts cut = q4x_plan_parts(p, n);
        if (memcmp(&cut, &list[i].cut, sizeof cut) || memcmp(&p->node[n].heads, &list[i].out, sizeof list[i].out))
            fail_msg("%s: cut %d %d %d %d, groups %d %d %d %d %d %d", list[i].node, cut.off, cut.width, cut.step, cut.n,
                     p->node[n].heads.axis, p->node[n].heads.off, p->node[n].heads.width, p->node[n].heads.nk,
                     p->node[n].heads.nv, p->node[n].heads.gguf);
    }
    q4x_net_close(net);
    net = h_net(DENSE); /* norms of whole rows */
    p = q4x_net_plan(net);
    for (int32_t n = 0; n < p->nnodes; n++)
        if (strstr(p->node[n].name, "norm.") || !strcmp(p->node[n].name, "out")) {
            assert_int_equal(p->node[n].heads.axis, 0);
            assert_int_equal(q4x_plan_parts(p, p->node[n].in[0]).n, 0);
        }
    q4x_net_close(net);
}

/* ---- a dump ---- */

enum { IDS = 9, FORWARDS = 3 };

static q4x_dump *record(const q4x_net *net, const char *spec) {
    static char path[64];
    int32_t ids[IDS];
    const q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH, .bands = 1, .nodes = "*", .nrows = -1};
    const q4x_greedy_opts go = {.prompt = ids, .n_prompt = IDS, .n = FORWARDS};
    q4x_dump *d = NULL;
    q4x_err err = {0};
    snprintf(path, sizeof path, "/tmp/q4x-parts-%d.q4d", (int)getpid());
    for (int i = 0; i < IDS; i++) ids[i] = 3 + 11 * i;
    assert_rc_ok(bis_dump_arm(net, spec, &go, &o, path, &err), &err);
    assert_rc_ok(q4x_dump_read(path, &d, &err), &err);
    unlink(path);
    return d;
}

/* The smallest part is recorded of rows in buckets that an op norms part by part, and of none else. */
static void test_recorded(void **state) {
    (void)state;
    q4x_net *net = h_net(DEMO);
    q4x_dump *d = record(net, "cpu/1");
    int64_t with = 0, without = 0;
    for (int32_t f = 0; f < d->nforwards; f++)
        for (int32_t i = 0; i < d->forwards[f].ntaps; i++) {
            const q4x_tap *t = &d->forwards[f].taps[i];
            const q4x_plan *p = q4x_net_plan(net);
            const int wants =
                t->node < p->nnodes && t->has_sketch && !t->sketch.raw && q4x_plan_parts(p, t->node).n > 0;
            if ((t->sketch.row_least != NULL) != wants) fail_msg("%s", d->nodes[t->node].name);
            with += wants;
            without += t->has_sketch && !t->sketch.raw && !wants;
            for (int32_t r = 0; wants && r < t->sketch.nrows; r++)
                assert_true(t->sketch.row_least[r] > 0 && t->sketch.row_least[r] * 4 <= t->sketch.row_sumsq[r] * 1.001);
        }
    assert_true(with > 3 * 8 * FORWARDS && without > FORWARDS);
    q4x_dump_free(d);
    q4x_net_close(net);
}

/* ---- the judge ---- */

/* The largest relative distance of a part of a row, root mean square over rows, of values that are kept. */
static double expected(const bis_pair *p, int32_t f, int32_t n, const q4x_parts *cut) {
    double all = 0;
    bis_values v;
    int have = 0;
    assert_int_equal(bis_values_get(p, f, n, &v, &have, NULL), 0);
    assert_true(have);
    for (int64_t t = 0; t < v.nrows; t++) {
        double most = 0;
        for (int32_t i = 0; i < cut->n; i++) {
            double e = 0, q = 0;
            for (int64_t c = t * v.cols + cut->off + i * cut->step, k = 0; k < cut->width; k++, c++) {
                e += ((double)v.a[c] - (double)v.b[c]) * ((double)v.a[c] - (double)v.b[c]);
                q += (double)v.a[c] * (double)v.a[c];
            }
            most = fmax(most, sqrt(e / q));
        }
        all += most * most;
    }
    const double rows = (double)v.nrows;
    bis_values_free(&v);
    return sqrt(all / rows);
}

/* What the op at n reads of its input, as the plan has it: of the parts that all its readers cut, its own. */
static q4x_parts cut_of(const q4x_node *n) {
    return (q4x_parts){n->off, n->G, n->op == K_OP_rmsnorm ? n->stride : n->G, (int32_t)(n->cols / n->G)};
}

/* Every norm of the plan is judged by the parts that it takes, in both architectures; and streams are known from the
 * shapes of a dump that does not tell them, as one before 1.2. */
static void judged(const char *model, int old, int64_t least_cut, int64_t least_whole) {
    q4x_net *net = h_net(model);
    const q4x_plan *plan = q4x_net_plan(net);
    q4x_dump *a = record(net, "cpu/1"), *b = record(net, "cpu/1:act=bf16");
    for (int32_t n = 0; old && n < plan->nnodes; n++)
        if (a->nodes[n].heads.nk == a->nodes[n].heads.nv) a->nodes[n].heads = b->nodes[n].heads = (q4x_heads){0};
    bis_request rq = {.a = a, .b = b};
    bis_case *c = NULL;
    q4x_err err = {0};
    assert_rc_ok(bis_judge(&rq, &c, &err), &err);
    int64_t cut = 0, whole = 0;
    for (int32_t f = 0; f < c->pair->ncomparable; f++)
        for (int32_t n = 0; n < plan->nnodes; n++) {
            const q4x_node *k = &plan->node[n];
            const bis_cell *cell = bis_map_cell(&c->map, c->pair, f, n);
            const int norm = k->op == K_OP_rmsnorm || k->op == K_OP_l2norm || k->op == K_OP_gdn_norm;
            if (!norm || !cell->dist || cell->in == BIS_SAME) continue;
            if (old && !strstr(k->name, "hc.norm")) continue;
            const bis_dist *in = bis_map_cell(&c->map, c->pair, f, k->in[0])->dist;
            const q4x_parts p = cut_of(k);
            const double parts = p.n > 1 ? expected(c->pair, f, k->in[0], &p) : 0, want = fmax(parts, in->rel);
            const int ok = k->nin > 1 ? cell->d_in >= want * (1 - 1e-9) : fabs(cell->d_in / want - 1) < 1e-9;
            if (!ok) fail_msg("%s in forward %d: %.17g, expected %.17g", k->name, f, cell->d_in, want);
            cut += p.n > 1;
            whole += p.n == 1;
        }
    assert_true(cut >= least_cut && whole >= least_whole);
    assert_int_equal(c->map.noutliers, 0);
    bis_case_free(c);
    q4x_dump_free(a);
    q4x_dump_free(b);
    q4x_net_close(net);
}

static void test_judged(void **state) {
    (void)state;
    judged(A, 0, FORWARDS * 20, 0);
    judged(DENSE, 0, FORWARDS * 5, FORWARDS * 5);
    judged(A, 1, FORWARDS * 7, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_judged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
