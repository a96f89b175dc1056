/* Records that are valid one by one and make no sense together: every pair ends in a verdict that can be rendered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/h_judge.h"
#include "tests/h_rand.h"

static const bis_names names = {"a", "b", NULL, NULL, "q4x bisect a b"};

static h_rand rnd = {1};

static int32_t below(int32_t n) {
    return n > 0 ? (int32_t)h_below(&rnd, (uint32_t)n) : 0;
}

static double odd(void) {
    static const double v[] = {0, -0.0, 1, -1, 1e300, 1e-300, INFINITY, -INFINITY, NAN, 0x1p-149, 3.5};
    return v[below((int32_t)(sizeof v / sizeof *v))];
}

/* What the reader lets through: inputs are earlier nodes or the consumed ids, states are states. */
static void bend_node(q4x_dump *d) {
    static const char *const ops[] = {"rmsnorm", "l2norm", "gdn_norm", "widen"};
    int32_t n = below(d->nnodes), parts = 1 + below(60);
    q4x_dump_node *k = &d->nodes[n];
    switch (below(11)) {
    case 0: k->layer = below(4) ? below(200) : (int32_t)h_rand64(&rnd); break;
    case 1: k->alias = n ? below(n) : -1; break;
    case 2: k->is_ids = !k->is_ids; break;
    case 3: k->is_public = !k->is_public; break;
    case 4: k->nin = k->nin ? below(k->nin + 1) : 0; break;
    case 5:
        if (k->nin) k->in[below(k->nin)] = n ? below(n + 1) - 1 : -1;
        break;
    case 6: k->nst = 0; break;
    case 7: k->heads = (q4x_heads){below(3), below(8), 1 + below(8), 2, 6, below(2)}; break;
    case 8: k->heads = (q4x_heads){1, 0, 1 + below(60), parts, parts, 0}; break;
    case 9:
        free(k->op);
        k->op = strdup(ops[below(4)]);
        break;
    default: k->levers[0] = 0; break;
    }
}

static void bend_tap(q4x_dump *d) {
    q4x_forward *w = &d->forwards[below(d->nforwards)];
    if (!w->ntaps) return;
    q4x_tap *t = &w->taps[below(w->ntaps)];
    switch (below(14)) {
    case 0: t->node = below(d->nnodes); break;
    case 1: t->has_stats = !t->has_stats && t->has_sketch; break;
    case 2: t->has_sketch = 0; break;
    case 3: t->has_band = !t->has_band; break;
    case 4: t->band_rms = odd(), t->band_hard = odd(); break;
    case 5: t->stats.sumsq = odd(), t->stats.sumabs = odd(); break;
    case 6: t->bits.b[0] ^= 1; break;
    case 7: t->stats.nan = (uint64_t)below(3); break;
    case 8:
        if (t->has_sketch && t->sketch.raw) t->sketch.values[below(t->sketch.nrows * t->sketch.width)] = (float)odd();
        break;
    case 9:
        if (t->has_sel) t->sel.ids[below(t->sel.rows * t->sel.k)] = below(3) ? below(40) : (int32_t)h_rand64(&rnd);
        break;
    case 10:
        if (t->has_sel) t->sel.lo[below(t->sel.rows)] = (float)odd();
        break;
    case 11:
        if (t->has_sketch && t->sketch.row_least) t->sketch.row_least[below(t->sketch.nrows)] = fabs(odd());
        break;
    case 12: t->cols = below(3); break;
    default: t->has_sel = 0; break;
    }
}

static void bend_forward(q4x_dump *d) {
    q4x_forward *w = &d->forwards[below(d->nforwards)];
    switch (below(9)) {
    case 0: w->ids[below(w->n_ids)] = (int32_t)h_rand64(&rnd); break;
    case 1: w->sampled = below(4) ? below(60) - 1 : (int32_t)h_rand64(&rnd); break;
    case 2: w->prefix.b[3] ^= 1; break;
    case 3: w->pos0 = (int32_t)h_rand64(&rnd); break;
    case 4:
        if (w->logits) w->logits[below(w->vocab)] = (float)odd();
        break;
    case 5: w->top_id[below(2)] = (int32_t)h_rand64(&rnd); break;
    case 6: w->top_val[below(2)] = (float)odd(); break;
    case 7: w->forced = !w->forced; break;
    default: w->index += below(2); break;
    }
}

static void bend(q4x_dump *d) {
    switch (below(3)) {
    case 0: bend_node(d); break;
    case 1: bend_tap(d); break;
    default: bend_forward(d); break;
    }
}

static void any_pair_ends_in_a_verdict(void **s) {
    (void)s;
    int seen[BIS_V_COUNT] = {0}, errors = 0;
    FILE *out = fopen("/dev/null", "w");
    for (int k = 0; k < 500; k++) {
        pair p;
        pair_honest(&p);
        p.a.layers = p.b.layers = 2;
        p.a.forwards = p.b.forwards = 3;
        p.a.sketch_all = p.b.sketch_all = below(2);
        if (below(4) == 0) p.a.D = p.b.D = 600, p.a.parts = p.b.parts = 4;
        p.a.rms = p.b.rms = 1e-3;
        if (below(4) == 0) p.b.imported = 1 + below(2);
        p.rq.allow_confounded = below(2);
        pair_make(&p);
        for (int i = below(4); i >= 0; i--) bend(below(2) ? p.da : p.db);
        if (bis_judge(&p.rq, &p.c, &p.err)) {
            errors++; /* head orders that do not fit, sketches of another kind: a sentence, no case */
            assert_true(p.err.msg[0] != 0);
        } else {
            seen[p.c->verdict]++;
            json_t *j = bis_json(p.c, &names);
            assert_non_null(j);
            json_decref(j);
            bis_text(p.c, &names, 1, out);
            bis_report(p.c, &names, out);
            assert_int_equal(p.c->exit, bis_exit(p.c->verdict, p.c->reason));
        }
        pair_free(&p);
    }
    fclose(out);
    assert_true(errors < 100);
    assert_true(seen[BIS_V_UNSTRUCTURED] && seen[BIS_V_DIVERGED] && seen[BIS_V_WITHIN_BAND] &&
                seen[BIS_V_FAULT] + seen[BIS_V_NON_FINITE] + seen[BIS_V_NOT_COMPARABLE] + seen[BIS_V_TOKENS_DIFFER] >
                    0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_pair_ends_in_a_verdict)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
