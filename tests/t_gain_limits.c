/* What a gain is measured by, and where its limit lies: for each rule an honest pair that the rule keeps silent, and a
 * fault beside it that is still named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/h_judge.h"

/* On top of an arm's hook: columns off .. off+width of one node's row are multiplied. width 0: all. */
typedef struct {
    arm_hook *base;
    struct {
        const char *node; /* NULL: none */
        int f, row, off, width;
        float factor;
    } more[3];
} extra;

static void extra_fn(void *ctx, int f, const char *node, int rows, int cols, float *x, int32_t *ids) {
    const extra *e = ctx;
    hook_fn(e->base, f, node, rows, cols, x, ids);
    for (int k = 0; k < 3 && x; k++) {
        if (!e->more[k].node || strcmp(e->more[k].node, node) || e->more[k].f != f || e->more[k].row >= rows) continue;
        float *v = x + e->more[k].row * cols + e->more[k].off;
        for (int i = 0; i < (e->more[k].width ? e->more[k].width : cols); i++) v[i] *= e->more[k].factor;
    }
}

/* An honest pair whose source is within 4 x 1e-3. */
static void pair_tight(pair *p) {
    pair_honest(p);
    p->a.rms = p->b.rms = 1e-3;
}

static void make_with(pair *p, extra *a, extra *b) {
    a->base = &p->ha;
    b->base = &p->hb;
    p->a.hook = p->b.hook = extra_fn;
    p->a.ctx = a;
    p->b.ctx = b;
    p->da = mk_dump(&p->a);
    p->db = mk_dump(&p->b);
    p->rq.a = p->da;
    p->rq.b = p->db;
}

static void is(pair *p, const char *name, const char *where) {
    pair_judge(p);
    assert_string_equal(p->c->name, name);
    assert_string_equal(p->c->where, where);
    pair_free(p);
}

/* A row that is small beside the others of its node, before a norm that makes it as large as they are: the difference
 * is compared with the small row's own norm. */
static void small_input_rows(void **s) {
    (void)s;
    for (int fault = 0; fault < 2; fault++) {
        pair p;
        pair_tight(&p);
        extra a = {.more = {{"L01.s.mlp", 0, 3, 0, 0, 1e-4f}}}, b = a;
        if (fault) b.more[1].node = "L02.ahc.mix", b.more[1].row = 3, b.more[1].factor = 1.3f;
        make_with(&p, &a, &b);
        is(&p, fault ? "DIVERGED CONTAMINATED" : "WITHIN_BAND", fault ? "L02.ahc.mix in forward 0" : "");
    }
}

static void call_it(q4x_dump *d, const char *node, const char *op) {
    q4x_dump_node *k = &d->nodes[mk_node(d, node)];
    free(k->op);
    k->op = strdup(op);
}

/* An op that normalises head by head shows what happened in a small head. */
static void small_heads(void **s) {
    (void)s;
    enum { HIDDEN, FAULT, OTHER_OP, NOT_RECORDED };
    for (int k = HIDDEN; k <= NOT_RECORDED; k++) {
        pair p;
        pair_tight(&p);
        if (k == NOT_RECORDED) p.a.D = p.b.D = 1032, p.a.layers = p.b.layers = 3;
        extra a = {.more = {{"L01.gdn.core", 0, 3, 0, 8, 1e-4f}, {"L01.blk", 0, 3, 0, 0, 1}}}, b = a;
        if (k != FAULT) b.more[0].factor = 1.3e-4f; /* a head's 0.3, of the row 1e-5 */
        b.more[1].factor = 1.3f;                    /* as the op would show it; with FAULT nothing accounts for it */
        make_with(&p, &a, &b);
        for (int arm = 0; arm < 2; arm++) {
            q4x_dump *d = arm ? p.db : p.da;
            for (int l = 0; l < p.a.layers; l++) {
                char core[24], blk[24];
                snprintf(core, sizeof core, "L%02d.gdn.core", l);
                snprintf(blk, sizeof blk, "L%02d.blk", l);
                d->nodes[mk_node(d, core)].heads = (q4x_heads){1, 0, p.a.D / 6, 2, 6, 0};
                if (k != OTHER_OP) call_it(d, blk, "gdn_norm");
            }
        }
        pair_judge(&p);
        const bis_cell *blk = bis_map_cell(&p.c->map, p.c->pair, 0, mk_node(p.da, "L01.blk"));
        assert_int_equal(blk->cls == BIS_C_OUTLIER, k == FAULT || k == OTHER_OP);
        assert_int_equal(isnan(blk->gain) != 0, k == NOT_RECORDED); /* buckets know no heads: not judged, and said */
        if (k == NOT_RECORDED) assert_true(p.c->map.unjudged > 0);
        if (k == HIDDEN) assert_int_equal(p.c->verdict, BIS_V_WITHIN_BAND);
        pair_free(&p);
    }
}

/* ---- streams ---- */

enum { STREAMS = 4 };
typedef enum { RIGHT, UNNORMED, SWAPPED, EPS, SCALED } norm_fault;

/* An arm whose ahc.mix norms each of four streams of its row on its own, right or wrong in one row of L02. */
typedef struct {
    extra on;
    float H[5 * 1032];
    norm_fault fault;
    int row;
} streamed;

static void norm_streams(const float *h, float *y, int width, norm_fault fault) {
    for (int s = 0; s < STREAMS; s++) {
        const int from = fault == SWAPPED && (s == 1 || s == 2) ? 3 - s : s;
        double q = 0;
        for (int i = 0; i < width; i++) q += (double)h[from * width + i] * (double)h[from * width + i];
        const double r = 1 / sqrt(q / width + (fault == EPS ? 10 : 1e-6)) * (fault == SCALED ? 1.01 : 1);
        for (int i = 0; i < width; i++)
            y[s * width + i] = h[from * width + i] * (fault == UNNORMED && s == 1 ? 1 : (float)r);
    }
}

static void streamed_fn(void *ctx, int f, const char *node, int rows, int cols, float *x, int32_t *ids) {
    streamed *a = ctx;
    extra_fn(&a->on, f, node, rows, cols, x, ids);
    if (!strcmp(node + 3, ".in")) memcpy(a->H, x, (size_t)(rows * cols) * sizeof *x);
    for (int t = 0; !strcmp(node + 3, ".ahc.mix") && t < rows; t++)
        norm_streams(a->H + t * cols, x + t * cols, cols / STREAMS,
                     f == 0 && t == a->row && !strncmp(node, "L02", 3) ? a->fault : RIGHT);
}

/* How much of the streams a dump tells: their values; the size of the smallest; nothing. And the norm under the name of
 * an op that takes its rows whole. */
typedef enum { VALUES, SIZES, NOTHING, WHOLE, TOLD } telling;

/* A pair in which stream 0 of row 3 is 1e-3 of the others after layer 1, and B differs in it by a third: of the row,
 * 1e-4. Row 1 is 4 times as large as others. equal 1: B differs in nothing but the fault. */
static void streams_make(pair *p, telling how, int equal, norm_fault fault, int row) {
    static streamed a, b;
    pair_tight(p);
    if (equal) pair_equal(p);
    if (how != VALUES) p->a.D = p->b.D = 1032;
    if (how == SIZES || how == WHOLE) p->a.parts = p->b.parts = STREAMS;
    a = (streamed){.on = {.base = &p->ha, .more = {{"L01.s.mlp", 0, 3, 0, p->a.D / STREAMS, 1e-3f}}}};
    a.on.more[2] = a.on.more[0], a.on.more[2].row = 1, a.on.more[2].width = 0, a.on.more[2].factor = 4;
    b = a;
    b.on.base = &p->hb;
    b.on.more[1] = a.on.more[0], b.on.more[1].width /= 2, b.on.more[1].factor = equal ? 1 : 1.5f;
    b.fault = fault;
    b.row = row;
    p->a.hook = p->b.hook = streamed_fn;
    p->a.ctx = &a;
    p->b.ctx = &b;
    p->da = mk_dump(&p->a);
    p->db = mk_dump(&p->b);
    p->rq.a = p->da;
    p->rq.b = p->db;
    for (int l = 0; l < p->a.layers; l++)
        for (int arm = 0; arm < 2; arm++) {
            char mix[24];
            q4x_dump *d = arm ? p->db : p->da;
            snprintf(mix, sizeof mix, "L%02d.ahc.mix", l);
            d->nodes[mk_node(d, mix)].heads = (q4x_heads){1, 0, p->a.D / STREAMS, STREAMS, STREAMS, 0};
            if (how == WHOLE) call_it(d, mix, "matmul");
        }
}

/* A norm over each stream shows what happened in a small one: no alarm, whatever of the streams is known. */
static void small_streams(void **state) {
    (void)state;
    for (telling how = VALUES; how < TOLD; how++) {
        pair p;
        streams_make(&p, how, 0, RIGHT, 0);
        pair_judge(&p);
        const bis_cell *mix = bis_map_cell(&p.c->map, p.c->pair, 0, mk_node(p.da, "L02.ahc.mix"));
        assert_int_equal(mix->cls == BIS_C_OUTLIER, how == WHOLE); /* what it was taken for */
        assert_int_equal(isnan(mix->gain) != 0, how == NOTHING);
        assert_int_equal(p.c->verdict, how == WHOLE ? BIS_V_DIVERGED : BIS_V_WITHIN_BAND);
        if (how == NOTHING) assert_true(p.c->map.unjudged > 0 && !p.c->map.noutliers);
        if (how == VALUES) assert_true(mix->gain > 0.2 && mix->gain <= 1);
        if (how == SIZES) assert_true(mix->gain > 1e-3 && mix->gain < 0.1); /* all of row 3 might lie in stream 0 */
        pair_free(&p);
    }
}

/* A norm that is wrong is named beside it: in another row, on top of an honest difference, and in any row of an equal
 * arm, however small the fault is there. */
static void wrong_streams(void **state) {
    (void)state;
    for (telling how = VALUES; how <= SIZES; how++)
        for (norm_fault x = UNNORMED; x <= SCALED; x++)
            for (int equal = 0; equal < 2; equal++)
                for (int row = 1; row < (equal ? 4 : 2); row++) {
                    pair p;
                    streams_make(&p, how, equal, x, row);
                    pair_judge(&p);
                    const int seen = equal || x != SCALED; /* a hundredth is no outlier beside a thousandth */
                    assert_int_equal(p.c->verdict, equal ? BIS_V_FAULT : seen ? BIS_V_DIVERGED : BIS_V_WITHIN_BAND);
                    assert_string_equal(p.c->where, seen ? "L02.ahc.mix in forward 0" : "");
                    pair_free(&p);
                }
}

/* ---- other measures ---- */

/* What a softmax makes relative is the distance of the scores itself: however small it is beside large scores. */
static void softmax_sees_distances(void **s) {
    (void)s;
    double seen[3] = {0};
    for (int k = 0; k < 3; k++) { /* honest; the same under another op's name; a fault */
        pair p;
        pair_tight(&p);
        extra a = {.more = {{"L02.moe.logits", 0, 0, 0, 0, 400}}}, b = a;
        if (k == 2) b.more[1].node = "L02.moe.weights", b.more[1].row = 3, b.more[1].factor = -1;
        make_with(&p, &a, &b);
        for (int l = 0; k == 1 && l < 4; l++)
            for (int arm = 0; arm < 2; arm++) {
                char node[24];
                snprintf(node, sizeof node, "L%02d.moe.weights", l);
                call_it(arm ? p.db : p.da, node, "matmul");
            }
        pair_judge(&p);
        const bis_cell *w = bis_map_cell(&p.c->map, p.c->pair, 0, mk_node(p.da, "L02.moe.weights")),
                       *z = bis_map_cell(&p.c->map, p.c->pair, 0, mk_node(p.da, "L02.moe.logits"));
        seen[k] = w->d_in;
        if (k != 1) assert_true(fabs(w->d_in * sqrt(5) / z->dist->d - 1) < 1e-9); /* root mean square of 5 rows */
        assert_int_equal(w->cls == BIS_C_OUTLIER, k == 2);
        pair_free(&p);
    }
    assert_true(seen[0] > 100 * seen[1]);
}

/* Four elements in one row are judged, by a wider limit; and so are nodes of which there are only two. */
static void few_elements_and_few_tensors(void **s) {
    (void)s;
    for (int k = 0; k < 2; k++) {
        pair p;
        pair_tight(&p);
        p.hb.plant = "L02.moe.weights";
        p.hb.plant_f = 3;
        p.hb.factor = k ? 1.0005f : -1;
        pair_make(&p);
        is(&p, k ? "WITHIN_BAND" : "DIVERGED CONTAMINATED", k ? "" : "L02.moe.weights in forward 3");

        pair_tight(&p);
        p.a.layers = p.b.layers = 2;
        p.a.forwards = p.b.forwards = 1;
        p.hb.plant = "L01.blk";
        p.hb.factor = k ? 1 : -1;
        pair_make(&p);
        is(&p, k ? "WITHIN_BAND" : "DIVERGED CONTAMINATED", k ? "" : "L01.blk in forward 0");
    }
}

/* An alias that does not hold what its source holds is a fault of that arm, however much the arms differ already. */
static void an_alias_is_its_source(void **s) {
    (void)s;
    for (int k = 0; k < 3; k++) { /* nothing; one ulp in arm B; the same in both */
        pair p;
        pair_tight(&p);
        extra a = {0}, b = {0};
        if (k > 0) b.more[0].node = "L02.in", b.more[0].f = 2, b.more[0].width = 1, b.more[0].factor = 1.0000001f;
        if (k > 1) a = b;
        make_with(&p, &a, &b);
        pair_judge(&p);
        assert_int_equal(bis_map_cell(&p.c->map, p.c->pair, 2, mk_node(p.da, "L02.in"))->in, BIS_DIFF);
        assert_int_equal(p.c->verdict, k == 1 ? BIS_V_FAULT : BIS_V_WITHIN_BAND);
        if (k == 1) assert_int_equal(p.c->reason, BIS_R_move_changed_bits);
        if (k == 1) assert_string_equal(p.c->where, "L02.in in forward 2");
        pair_free(&p);
    }
}

/* An arm that rounds its softmax may rank scores in another order that lie within that rounding of each other. */
static void rounded_softmax_ranks_near_ties(void **s) {
    (void)s;
    static const struct {
        const char *levers;
        float gap;
        bis_verdict v;
    } row[] = {{"moe.softmax=bf16", 1e-3f, BIS_V_WITHIN_BAND}, {"moe.softmax=bf16", 6e-3f, BIS_V_WITHIN_BAND},
               {"moe.softmax=bf16", 8e-3f, BIS_V_DIVERGED},    {"topk.tie=highest", 1e-3f, BIS_V_DIVERGED},
               {"topk.tie=highest", 4e-6f, BIS_V_WITHIN_BAND}, {NULL, 4e-6f, BIS_V_FAULT}};
    for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
        pair p;
        pair_honest(&p);
        p.hb.round = NULL;
        p.b.node_levers = row[k].levers;
        p.ha.tie_node = p.hb.tie_node = "L01.moe.logits";
        p.ha.tie_f = p.hb.tie_f = 0;
        p.ha.tie_gap = p.hb.tie_gap = row[k].gap;
        pair_make(&p);
        q4x_tap *t = mk_tap(p.db, 0, "L01.moe.ids");
        const float lo = t->sel.lo[0]; /* 11 was chosen for 3: B's lowest is A's highest rejected */
        t->sel.ids[3] = 11;
        t->sel.lo[0] = t->sel.hi[0];
        t->sel.hi[0] = lo;
        t->bits.b[0] ^= 1;
        pair_judge(&p);
        assert_int_equal(p.c->flips.n, 1);
        assert_int_equal(p.c->verdict, row[k].v);
        if (row[k].v == BIS_V_DIVERGED) assert_int_equal(p.c->reason, BIS_R_selection_differs);
        pair_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_input_rows),       cmocka_unit_test(small_heads),
        cmocka_unit_test(small_streams),          cmocka_unit_test(wrong_streams),
        cmocka_unit_test(softmax_sees_distances), cmocka_unit_test(few_elements_and_few_tensors),
        cmocka_unit_test(an_alias_is_its_source), cmocka_unit_test(rounded_softmax_ranks_near_ties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
