#include "tests/h_judge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "kernels/round.h"

arm_hook hook_none(void) {
    return (arm_hook){.plant_f = -1, .plant_row = -1, .factor = 1, .tie_f = -1, .tie_row = -1, .top_f = -1};
}

static int ends(const char *s, const char *with) {
    size_t n = strlen(s), k = strlen(with);
    return n >= k && !strcmp(s + n - k, with);
}

/* Experts 3 and 11 get the fourth and fifth best score of the row, `gap` apart. */
static void near_tie(float *z, int n, float gap) {
    for (int i = 0; i < n; i++) z[i] = z[i] * 0.1f - 2;
    z[1] = z[2] = z[5] = 3;
    z[2] = 2.5f;
    z[5] = 2;
    z[11] = 1;
    z[3] = 1 + gap;
}

void hook_fn(void *ctx, int f, const char *node, int rows, int cols, float *x, int32_t *ids) {
    const arm_hook *h = ctx;
    (void)ids;
    if (!x) return;
    if (h->round && ends(node, h->round))
        for (int i = 0; i < rows * cols; i++) x[i] = k_round_bf16(x[i]);
    if (h->plant && !strcmp(node, h->plant) && (h->plant_f < 0 || h->plant_f == f))
        for (int t = 0; t < rows; t++) {
            if (h->plant_row >= 0 && h->plant_row != t) continue;
            for (int i = 0; i < cols; i++) x[t * cols + i] *= h->factor;
            if (h->use_set) x[t * cols] = h->set;
        }
    if (h->tie_node && !strcmp(node, h->tie_node) && (h->tie_f < 0 || h->tie_f == f))
        for (int t = 0; t < rows; t++)
            if (h->tie_row < 0 || t == h->tie_row) near_tie(x + t * cols, cols, h->tie_gap);
    if (!strcmp(node, "logits") && f == h->top_f) {
        float *z = x + (rows - 1) * cols;
        z[11] = h->top_base != 0 ? h->top_base : 9;
        z[10] = z[11] + h->top_gap;
    }
}

void pair_equal(pair *p) {
    *p = (pair){.a = mk_default("armA"), .b = mk_default("armB"), .ha = hook_none(), .hb = hook_none()};
    p->a.sketch_all = p->b.sketch_all = 1;
}

void pair_honest(pair *p) {
    pair_equal(p);
    p->a.rms = p->b.rms = 1;
    p->a.hard = p->b.hard = 2;
    p->hb.round = "gdn.core";
    p->b.levers = "{\"act\":\"bf16\",\"gdn\":\"seq\"}";
    p->b.node_levers = "act=bf16";
    p->b.spec = "cpu:act=bf16";
}

void pair_make(pair *p) {
    p->a.hook = p->b.hook = hook_fn;
    p->a.ctx = &p->ha;
    p->b.ctx = &p->hb;
    p->da = mk_dump(&p->a);
    p->db = mk_dump(&p->b);
    p->rq.a = p->da;
    p->rq.b = p->db;
}

void pair_judge(pair *p) {
    int rc = bis_judge(&p->rq, &p->c, &p->err);
    if (rc) print_message("%s\n", p->err.msg);
    assert_int_equal(rc, 0);
}

void pair_free(pair *p) {
    bis_case_free(p->c);
    q4x_dump_free(p->da);
    q4x_dump_free(p->db);
    p->c = NULL;
    p->da = p->db = NULL;
}

void pair_expect(pair *p, const char *name, const char *reason, int exit) {
    if (!p->da) pair_make(p);
    pair_judge(p);
    assert_string_equal(p->c->name, name);
    assert_string_equal(bis_reason_word(p->c->reason), reason);
    assert_int_equal(p->c->exit, exit);
}
