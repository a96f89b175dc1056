/* Two head orders: aligned where values exist, unknown where they do not; and exact distances against a plain sum. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/align.h"
#include "bisect/distance.h"
#include "kernels/k.h"
#include "tests/h_judge.h"

static void aligned(void **s) {
    (void)s;
    for (int full = 0; full < 2; full++) { /* from raw rows, from full tensors */
        pair p;
        pair_equal(&p);
        p.b.gguf_heads = 1;
        p.a.full = p.b.full = full;
        pair_make(&p);
        /* the stored values really are in another order */
        assert_false(q4x_hash_eq(&mk_tap(p.da, 0, "L01.blk")->bits, &mk_tap(p.db, 0, "L01.blk")->bits));
        pair_expect(&p, "IDENTICAL", "bits_equal", 0);
        assert_int_equal(p.c->pair->compared, 6 * 47);
        assert_int_equal(p.c->pair->unaligned, 0);
        pair_free(&p);
    }
    pair p; /* twin: an element that differs is found through the permutation, with its distance */
    pair_equal(&p);
    p.b.gguf_heads = 1;
    p.hb.plant = "L01.blk";
    p.hb.plant_f = 0;
    p.hb.plant_row = 2;
    p.hb.use_set = 1;
    p.hb.set = 7;
    pair_expect(&p, "FAULT", "same_arithmetic_bits_differ", 1);
    assert_string_equal(p.c->where, "L01.blk in forward 0");
    const bis_dist *d = bis_map_cell(&p.c->map, p.c->pair, 0, p.c->map.first_n)->dist;
    const float was = mk_tap(p.da, 0, "L01.blk")->sketch.values[2 * 48];
    assert_int_equal(d->ndiff, 1);
    assert_true(fabs(d->d - fabs(7 - (double)was)) < 1e-12);
    pair_free(&p);
}

static void not_alignable(void **s) {
    (void)s;
    pair p;
    pair_equal(&p); /* hashes alone */
    p.b.gguf_heads = 1;
    p.a.hash_only = p.b.hash_only = 1;
    pair_expect(&p, "IDENTICAL", "bits_equal_where_comparable", 0);
    assert_int_equal(p.c->pair->unaligned, 6 * 4);
    assert_int_equal(p.c->pair->compared, 6 * 43);
    assert_int_equal(p.c->pair->identical, 6 * 43);
    pair_free(&p);
    pair_equal(&p); /* sketches of wide rows */
    p.b.gguf_heads = 1;
    p.a.D = p.b.D = 516;
    p.a.forwards = p.b.forwards = 2;
    pair_expect(&p, "IDENTICAL", "bits_equal_where_comparable", 0);
    pair_free(&p);
    pair_equal(&p); /* not all rows kept: what was kept is equal, the rest is unknown */
    p.b.gguf_heads = 1;
    p.a.rows_kept = p.b.rows_kept = 3;
    p.a.forwards = p.b.forwards = 1;
    pair_expect(&p, "IDENTICAL", "bits_equal_where_comparable", 0);
    assert_int_equal(p.c->pair->unaligned, 4);
    pair_free(&p);
    pair_equal(&p); /* an unknown input is not an equal one: nothing is charged to the node that reads it */
    p.b.gguf_heads = 1;
    p.a.hash_only = p.b.hash_only = 1;
    p.hb.plant = "L01.s.attn";
    p.hb.plant_f = 2;
    p.hb.factor = 1.01f;
    pair_expect(&p, "DIVERGED CONTAMINATED", "inputs_not_equal", 1);
    assert_int_equal(bis_map_cell(&p.c->map, p.c->pair, 2, p.c->map.first_n)->in, BIS_UNKNOWN);
    pair_free(&p);
}

/* Heads along the rows, as in the delta state. */
static void along_rows(void **s) {
    (void)s;
    pair p;
    pair_equal(&p);
    p.a.T = p.b.T = 12;
    p.a.forwards = p.b.forwards = 1;
    pair_make(&p);
    q4x_heads h = {2, 0, 2, 2, 6, 0};
    int n = mk_node(p.da, "L01.blk");
    p.da->nodes[n].heads = h;
    h.gguf = 1;
    p.db->nodes[n].heads = h;
    q4x_tap *a = mk_tap(p.da, 0, "L01.blk"), *b = mk_tap(p.db, 0, "L01.blk");
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < 3; r++)
            memcpy(b->sketch.values + (r * 2 + k) * 2 * 48, a->sketch.values + (k * 3 + r) * 2 * 48,
                   2 * 48 * sizeof(float));
    b->bits.b[0] ^= 1;
    pair_expect(&p, "IDENTICAL", "bits_equal", 0);
    pair_free(&p);
}

/* ---- distances ---- */

static void exact_distance(void **s) {
    (void)s;
    pair p;
    pair_honest(&p);
    pair_make(&p);
    pair_judge(&p);
    int n = mk_node(p.da, "L02.moe");
    const bis_dist *d = bis_map_cell(&p.c->map, p.c->pair, 0, n)->dist;
    const float *x = mk_tap(p.da, 0, "L02.moe")->sketch.values, *y = mk_tap(p.db, 0, "L02.moe")->sketch.values;
    long double e = 0, na = 0, row = 0, rown = 0, big = 0;
    for (int i = 0; i < 5 * 48; i++) {
        long double t = (long double)x[i] - (long double)y[i];
        e += t * t;
        na += (long double)x[i] * (long double)x[i];
        if (i / 48 == 2) row += t * t, rown += (long double)x[i] * (long double)x[i];
        big = fabsl(t) > big ? fabsl(t) : big;
    }
    assert_int_equal(d->how, BIS_D_EXACT);
    assert_true(fabsl(d->d - sqrtl(e)) <= 1e-15L * sqrtl(e) * 100);
    assert_true(fabsl(d->rel - sqrtl(e / na)) <= 1e-13L * d->rel);
    assert_true(fabsl(d->row_rel[2] - sqrtl(row / rown)) <= 1e-13L);
    assert_true((double)big == d->max_abs);
    assert_true(d->lo == d->d && d->hi == d->d);
    pair_free(&p);
}

/* A sketch's interval holds the exact distance of the same tensors nearly always (95 %). */
static void sketch_against_exact(void **s) {
    (void)s;
    pair p;
    int n = 0, in = 0;
    pair_honest(&p);
    p.a.D = p.b.D = 1032;
    p.a.layers = p.b.layers = 2;
    p.a.full = p.b.full = 1;
    p.a.forwards = p.b.forwards = 3;
    pair_make(&p);
    pair_judge(&p); /* full tensors win */
    bis_case *exact = p.c;
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < p.da->forwards[f].ntaps; i++) p.da->forwards[f].taps[i].has_full = 0;
    p.c = NULL;
    pair_judge(&p);
    for (int f = 0; f < 3; f++)
        for (int k = 0; k < p.da->nnodes; k++) {
            const bis_dist *x = bis_map_cell(&exact->map, exact->pair, f, k)->dist;
            const bis_dist *y = bis_map_cell(&p.c->map, p.c->pair, f, k)->dist;
            if (!x || !y || y->how != BIS_D_SKETCH) continue;
            assert_int_equal(x->how, BIS_D_EXACT);
            assert_true(y->d > 0.5 * x->d && y->d < 2 * x->d);
            n++;
            in += y->lo <= x->d && x->d <= y->hi;
        }
    assert_true(n >= 30);
    assert_true(in >= n - n / 8);
    bis_case_free(exact);
    pair_free(&p);
}

static q4x_tap tap_of(float *v, int rows, int cols) {
    return (q4x_tap){.dtype = K_T_F32, .rows = rows, .cols = cols, .has_full = 1, .full = v};
}

static bis_dist distance_of(float *x, float *y, int rows, int cols) {
    q4x_tap a = tap_of(x, rows, cols), b = tap_of(y, rows, cols), *pa = &a, *pb = &b;
    int heads = 0;
    bis_pair p = {.nn = 1, .nf = 1, .ta = &pa, .tb = &pb, .heads_differ = &heads};
    bis_dist d;
    assert_int_equal(bis_distance(&p, 0, 0, &d, NULL), 0);
    bis_dist_free(&d);
    return d;
}

static void special_values(void **s) {
    (void)s;
    float x[4] = {1, 2, 3, 4}, y[4] = {1, 2, 3, NAN};
    bis_dist d = distance_of(x, y, 1, 4);
    assert_int_equal(d.nonfinite, 1);
    assert_true(isnan(d.d) && isnan(d.lo) && isnan(d.hi) && isnan(d.rel));
    assert_false(d.hi <= 1e30); /* what the judge asks: never true */
    x[3] = NAN;                 /* both: no difference */
    d = distance_of(x, y, 1, 4);
    assert_int_equal(d.nonfinite, 0);
    assert_true(d.d == 0 && d.ndiff == 0);
    x[3] = INFINITY;
    y[3] = -INFINITY;
    d = distance_of(x, y, 1, 4);
    assert_int_equal(d.nonfinite, 1);
    float p0[2] = {0.0f, 1}, m0[2] = {-0.0f, 1}; /* zeros of two signs differ by bits, by no distance */
    d = distance_of(p0, m0, 1, 2);
    assert_true(d.ndiff == 1 && d.d == 0 && d.ulp_max == 0);
    float z[2] = {0, 0}, one[2] = {1, 0}; /* a zero arm A: the relative distance is infinite, not small */
    d = distance_of(z, one, 1, 2);
    assert_true(isinf(d.rel) && d.d == 1);
    float u[2] = {1, 1}, w[2] = {1.0000001f, 1};
    d = distance_of(u, w, 1, 2);
    assert_true(d.ulp_max == 1 && d.ulp[0] == 1 && !d.ulp16);
    float h[2] = {1, 2}, g[2] = {1.0078125f, 2}; /* on the bf16 grid ulps are those of bf16 */
    d = distance_of(h, g, 1, 2);
    assert_true(d.ulp16 && d.ulp_max == 1);
    float neg[1] = {-1e-45f}, pos[1] = {1e-45f}; /* across zero: two steps */
    d = distance_of(neg, pos, 1, 1);
    assert_int_equal(d.ulp_max, 2);
    assert_true(d.share16 == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligned),        cmocka_unit_test(not_alignable),        cmocka_unit_test(along_rows),
        cmocka_unit_test(exact_distance), cmocka_unit_test(sketch_against_exact), cmocka_unit_test(special_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
