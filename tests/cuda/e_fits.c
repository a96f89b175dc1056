/* e_fits.c: the calls that runs make of every op of a device, spoilt in every way that an operand can be: missing, a
 * column or a row short, beyond what was allocated, of a type that nothing decodes, more than a launch takes. Each is
 * refused, and nothing reaches the device; unspoilt it is taken. A run that comes to such a call ends with its node. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/dev_shape.h"
#include "kernels/ops.h"
#include "lib/net_dev.h"
#include "lib/run_int.h"
#include "tests/emu/emu.h"
#include "tests/h_forward.h"

static int64_t refusals, seen[K_OP_COUNT];

/* A call of the device, and copies of what it points at. */
typedef struct {
    k_call c;
    k_state st[K_MAXST];
    k_dims d;
    k_levers lv;
    k_weight *w;
} own;

static own copy_of(const own *from) {
    own o = *from;
    o.w = NULL;
    if (from->c.nw[0] > 0) {
        o.w = malloc((size_t)from->c.nw[0] * sizeof *o.w);
        assert_non_null(o.w);
        memcpy(o.w, from->c.w[0], (size_t)from->c.nw[0] * sizeof *o.w);
    }
    return o;
}

/* Its pointers lead to its own parts: only now, since it may have been moved. */
static const k_call *call_of(own *o) {
    for (int k = 0; k < K_MAXST; k++)
        if (o->c.st[k]) o->c.st[k] = &o->st[k];
    if (o->c.d) o->c.d = &o->d;
    if (o->c.lv) o->c.lv = &o->lv;
    if (o->c.w[0]) o->c.w[0] = o->w;
    return &o->c;
}

/* Spoils the call of an op in the way `how`, part k of it; 0: it has no such part; -1: no such way. */
static int spoil(const k_shape *s, int how, int k, own *o) {
    k_call *c = &o->c;
    k_weight *w = c->w[0] ? &o->w[k % (c->nw[0] > 0 ? c->nw[0] : 1)] : NULL;
    const int in = k < K_MAXIN && s->in[k] != 0, exact = in && s->in[k] != K_ANY, par = k < K_MAXW && s->par[k] != 0,
              st = k == 0 && s->st_cols, one = k == 0, any = s->w_cols && w && (k == 0 || k == c->nw[0] - 1);
    switch (how) {
    case 0: return in ? c->in[k] = NULL, 1 : 0;
    case 1: return exact ? c->in_cols[k] = 0, 1 : 0;
    case 2: return exact ? c->in_cols[k] = -1, 1 : 0;
    case 3: return exact ? c->in_cols[k] = (int64_t)1 << 41, 1 : 0;
    case 4: return par ? c->par[k] = NULL, 1 : 0;
    case 5: return st ? c->st[0] = NULL, 1 : 0;
    case 6: return st && s->st_rows ? o->st[0].f = NULL, 1 : 0;
    case 7: return st ? o->st[0].cols--, 1 : 0;
    case 8: return st && s->st_rows ? o->st[0].cap = s->st_rows - 1, 1 : 0;
    case 9: return one ? c->out = NULL, 1 : 0;
    case 10: return one && s->scratch ? c->scratch = NULL, 1 : 0;
    case 11: return one && s->scratch ? c->scratch_n = s->scratch - 1, 1 : 0;
    case 12: return one && s->w_cols ? c->w[0] = NULL, 1 : 0;
    case 13: return one && s->w_cols ? c->nw[0] = 0, 1 : 0;
    case 14: return one && s->w_list ? c->w_dev[0] = NULL, 1 : 0;
    case 15: return any ? w->data = NULL, 1 : 0;
    case 16: return any && s->w_rows != K_ANY ? w->rows++, 1 : 0;
    case 17: return any ? w->cols += 256, 1 : 0;
    case 18: return any ? w->row_bytes--, 1 : 0;
    case 19: return any ? w->type = 64, 1 : 0;
    case 20: return any ? w->type = -1, 1 : 0;
    case 21: return any ? w->type = 63, 1 : 0;
    case 22: return any ? w->rows = 0, 1 : 0;
    case 23: return one ? c->T = -1, 1 : 0;
    case 24: return one ? c->T = 65536, 1 : 0;
    case 25: return one ? c->cols = (int64_t)1 << 36, 1 : 0;
    case 26: return one ? c->d = NULL, 1 : 0;
    case 27: return one ? c->lv = NULL, 1 : 0;
    case 28: return one ? o->lv.act = 2, 1 : 0;
    case 29: return one ? c->pos0 = -1, 1 : 0;
    default: return -1;
    }
}

/* Every way; the device is not asked. */
static void all_ways(k_dev *d, k_op op, const own *from) {
    own good = copy_of(from);
    const k_call *c = call_of(&good);
    const k_shape s = k_shape_of(op, c);
    if (s.wrong || k_dev_unfit(op, c)) fail_msg("%s: %s", k_ops[op].name, k_dev_unfit(op, c)); /* the twin */
    const int64_t ops = emu.ops, calls = emu_calls("cudaSetDevice");
    for (int how = 0, is = 0; is >= 0; how++)
        for (int k = 0; k < (c->nw[0] > K_MAXIN ? c->nw[0] : K_MAXIN); k++) {
            own bad = copy_of(&good);
            is = spoil(&s, how, k, &bad);
            if (is > 0) {
                const k_call *x = call_of(&bad);
                if (!k_dev_unfit(op, x)) fail_msg("%s: way %d of part %d was taken", k_ops[op].name, how, k);
                assert_int_equal(k_dev_run(d, op, x), 1);
                refusals++;
            }
            free(bad.w);
        }
    assert_true(emu.ops == ops && emu_calls("cudaSetDevice") == calls);
    seen[op]++;
    free(good.w);
}

/* Operands that lie elsewhere, or reach beyond: kept from the run by what it knows of its memory. */
static void all_places(const q4x_run *r, int32_t i, const own *from) {
    const q4x_node *n = &r->plan->node[i];
    assert_null(q4x_run_dev_misfit(r, i, &from->c)); /* the twin */
    static const int64_t far = (int64_t)1 << 32;
    for (int k = 0; k < n->nin; k++) {
        own o = *from;
        o.c.in[k] += far;
        assert_non_null(q4x_run_dev_misfit(r, i, &o.c));
        o.c.in[k] -= 2 * far;
        assert_non_null(q4x_run_dev_misfit(r, i, &o.c));
        refusals += 2;
    }
    for (int k = 0; k < n->nst; k++) {
        own o = *from;
        call_of(&o);
        o.c.w[0] = from->c.w[0];
        if (!o.st[k].f) continue;
        o.st[k].cap = far;
        assert_non_null(q4x_run_dev_misfit(r, i, &o.c));
        o.st[k].cap = from->st[k].cap;
        o.st[k].f -= far;
        assert_non_null(q4x_run_dev_misfit(r, i, &o.c));
        refusals += 2;
    }
    own o = *from;
    o.c.out += far;
    assert_non_null(q4x_run_dev_misfit(r, i, &o.c));
    o.c.out = from->c.out;
    o.c.scratch_n = far;
    assert_non_null(q4x_run_dev_misfit(r, i, &o.c));
    refusals += 2;
}

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    q4x_run *r = ctx;
    const k_op op = r->plan->node[ev->node].op;
    (void)err;
    if (op == K_OP_alias || k_dev_on_host((int32_t)op)) return 0;
    own o = {.d = *ev->call->d, .lv = *ev->call->lv};
    o.c = q4x_run_dev_call(r, ev->node, ev->call, o.st);
    all_places(r, ev->node, &o);
    if (seen[op] < 6) all_ways(q4x_run_device(r), op, &o);
    return 0;
}

static q4x_run *open_run(const q4x_net *net, const char *spec) {
    q4x_err err = {0};
    q4x_run *r = NULL;
    q4x_arm arm;
    if (q4x_arm_parse(spec, &arm, &err) || q4x_run_new(net, &arm, 64, 0, &r, &err)) fail_msg("%s", err.msg);
    return r;
}

static void every_op(void **state) {
    static const char *const jobs[][2] = {
        {"tests/golden/micro-a", "cuda"},
        {"tests/golden/micro-a", "cuda:qsa.extra=stl,dot=q8k,gdn=chunk64,attn.softmax=online"},
        {"tests/golden/dense-a", "cuda"},
    };
    int ever[K_OP_COUNT] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        q4x_err err = {0};
        const int32_t ids[] = {5, 6, 7, 8, 9};
        q4x_net *net = h_net(jobs[i][0]);
        q4x_run *r = open_run(net, jobs[i][1]);
        memset(seen, 0, sizeof seen);
        q4x_run_on_node(r, on_node, r);
        if (q4x_run_forward(r, ids, 5, 0, &err)) fail_msg("%s", err.msg);
        for (int op = 0; op < K_OP_COUNT; op++) ever[op] |= seen[op] > 0;
        q4x_run_free(r);
        q4x_net_close(net);
    }
    for (int op = 0; op < K_OP_COUNT; op++)
        if (!ever[op] && op != K_OP_alias && !k_dev_on_host(op)) fail_msg("no model has %s", k_ops[op].name);
    print_message("    %lld refused\n", (long long)refusals);
}

/* A run comes to a call that must not be made: an operand of the net's lies beyond what was uploaded. */
static void a_run_ends(void **state) {
    static const char *const why[] = {"a parameter beyond those of the model", "a weight beyond those of the model",
                                      "a list of weights beyond those of the model"};
    (void)state;
    for (int way = 0; way < 3; way++) {
        q4x_err err = {0};
        const q4x_net_dev *there = NULL;
        const int32_t ids[] = {5, 6, 7};
        q4x_net *net = h_net("tests/golden/micro-a");
        q4x_run *r = open_run(net, "cuda");
        const q4x_plan *p = q4x_net_plan(net);
        int i = 20;
        assert_int_equal(q4x_net_dev_get(net, 0, &there, &err), 0);
        for (;; i++) {
            const q4x_node *n = &p->node[i];
            if (way == 0 ? n->par[0] != NULL : way == 1 ? n->w[0] && n->nw[0] == 1 : n->op == K_OP_moe_expert) break;
        }
        q4x_node_dev *x = (q4x_node_dev *)(uintptr_t)q4x_net_dev_node(there, i);
        k_weight *w = (k_weight *)(uintptr_t)x->w[0];
        if (way == 0) x->par[0] += (int64_t)1 << 32;
        if (way == 1) w->data = (const char *)w->data + ((int64_t)1 << 32);
        if (way == 2) x->w_dev[0] += (int64_t)1 << 28;
        assert_int_equal(q4x_run_forward(r, ids, 3, 0, &err), Q4X_E_DEVICE);
        char text[200];
        snprintf(text, sizeof text, "device cuda/0: node %s, forward 0: not run: %s", p->node[i].name, why[way]);
        if (strcmp(err.msg, text)) fail_msg("expected %s, found %s", text, err.msg);
        q4x_run_free(r);
        q4x_net_close(net);
    }
    assert_true(emu.live == 0 && emu.used == 0);
}

/* Nothing to be made: no operand is asked for or looked at, and nothing is enqueued. */
static void empty(void **state) {
    static const k_levers levers[] = {{0}, {.gemm = K_GEMM_CUBLAS, .act = K_ACT_BF16}, {.gdn = K_GDN_CHUNK64}};
    static const k_dims none = {0};
    q4x_net *net = h_net("tests/golden/micro-a");
    q4x_run *r = open_run(net, "cuda");
    const int64_t ops = emu.ops;
    (void)state;
    for (int op = 0; op < K_OP_COUNT; op++)
        for (int way = 0; way < 4 && op != K_OP_alias && !k_dev_on_host(op); way++)
            for (size_t l = 0; l < sizeof levers / sizeof *levers; l++) {
                k_call c = {.d = &none, .lv = &levers[l], .Tcall = 9};
                c.T = way < 2 ? 0 : 9, c.cols = way < 2 ? 4 : 0;
                for (int k = 0; k < K_MAXIN; k++) c.in_cols[k] = way % 2 ? 4 : 0;
                if (k_dev_run(q4x_run_device(r), (k_op)op, &c))
                    fail_msg("%s, way %d: not let through", k_ops[op].name, way);
                c.T = 1, c.cols = 1; /* the twin */
                if (!k_dev_run(q4x_run_device(r), (k_op)op, &c))
                    fail_msg("%s, way %d: nothing is missing", k_ops[op].name, way);
            }
    assert_true(emu.ops == ops);
    q4x_run_free(r);
    q4x_net_close(net);
}

/* Limits of a launch that a model may exceed: said by name. */
static void limits(void **state) {
    enum { MANY = 65536 };
    static float x[4];
    k_weight *w = calloc(MANY, sizeof *w);
    k_levers lv = {0};
    k_dims d = {.nk = 1, .nv = MANY, .dk = 1, .dv = 1};
    k_state st = {.f = x, .cols = 1, .cap = MANY};
    (void)state;
    assert_non_null(w);
    for (int e = 0; e < MANY; e++) w[e] = (k_weight){x, 1, 1, 4, K_T_F32};
    k_call c = {.T = 1, .Tcall = 1, .cols = 1, .out = x, .in = {x, x}, .in_cols = {1, 1}, .d = &d, .lv = &lv};
    c.w[0] = c.w_dev[0] = w, c.nw[0] = MANY;
    c.scratch = x, c.scratch_n = 1 << 20;
    assert_null(k_dev_unfit(K_OP_moe_expert, &c)); /* the twin: one slot is one turn */
    c.cols = c.in_cols[1] = MANY;                  /* a token's slots have a turn each */
    assert_string_equal(k_dev_unfit(K_OP_moe_expert, &c), "more experts at once than the 65535 of one launch");
    c.cols = --c.in_cols[1];
    assert_null(k_dev_unfit(K_OP_moe_expert, &c));
    c.T = 2, c.nw[0] = MANY - 1; /* so have the experts of two, and the slots of none */
    assert_string_equal(k_dev_unfit(K_OP_moe_expert, &c), "more experts at once than the 65535 of one launch");
    c.nw[0]--;
    assert_null(k_dev_unfit(K_OP_moe_expert, &c));
    c.T = 1;
    c.Tc = 1, c.pos0 = INT32_MAX;
    assert_string_equal(k_dev_unfit(K_OP_attn_prob, &c), "more positions than 31 bits count");
    c.pos0 = 0, c.T = INT32_MAX, c.cols = (int64_t)1 << 40;
    assert_string_equal(k_dev_unfit(K_OP_add, &c), "more elements than one launch takes");
    c.T = 1;
    c.cols = MANY, c.st[0] = &st;
    for (int k = 0; k < 5; k++) c.in[k] = x, c.in_cols[k] = k < 2 ? 1 : MANY;
    assert_string_equal(k_dev_unfit(K_OP_gdn_core, &c), "more value heads than the 65535 of one launch");
    c.cols = --d.nv;
    for (int k = 2; k < 5; k++) c.in_cols[k]--;
    assert_null(k_dev_unfit(K_OP_gdn_core, &c));
    d.nk = d.nv = d.dv = 1, d.dk = 6145, st.cap = 6145;
    for (int k = 0; k < 5; k++) c.in_cols[k] = k < 2 ? 6145 : 1;
    c.cols = 1;
    assert_string_equal(k_dev_unfit(K_OP_gdn_core, &c), "a key head of more than the 6144 columns that a block keeps");
    c.in_cols[0] = c.in_cols[1] = --d.dk;
    assert_null(k_dev_unfit(K_OP_gdn_core, &c));
    lv.gdn = K_GDN_CHUNK64, d.dv = 32 * (MANY - 1) - 1, d.dk = 1, st.cap = 1;
    c.in_cols[0] = c.in_cols[1] = 1, c.cols = c.in_cols[2] = st.cols = d.dv;
    c.scratch_n = (int64_t)1 << 40;
    assert_null(k_dev_unfit(K_OP_gdn_core, &c));
    c.cols = c.in_cols[2] = st.cols = ++d.dv;
    assert_string_equal(k_dev_unfit(K_OP_gdn_core, &c), "more columns of a head than the 65535 words of one launch");
    d.H = d.G = MANY - 1, d.hd = 1;
    c.Tc = 1, c.in[3] = NULL, c.in_cols[0] = c.in_cols[1] = c.cols = st.cols = MANY - 1;
    assert_null(k_dev_unfit(K_OP_attn_ctx, &c));
    d.H = d.G = MANY;
    c.in_cols[0] = c.in_cols[1] = c.cols = st.cols = MANY;
    assert_string_equal(k_dev_unfit(K_OP_attn_ctx, &c), "more groups of heads than the 65535 of one launch");
    c.T = MANY;
    assert_string_equal(k_dev_unfit(K_OP_sigmoid, &c), "more rows than the 65535 of one launch");
    free(w);
}

/* Weights are looked at once a run, however many forwards there are: what a list costs is not paid again. */
static void once_a_run(void **state) {
    q4x_err err = {0};
    const q4x_net_dev *there = NULL;
    const int32_t ids[] = {5, 6};
    q4x_net *net = h_net("tests/golden/micro-a");
    q4x_run *r = open_run(net, "cuda");
    const q4x_plan *p = q4x_net_plan(net);
    int i = 0;
    (void)state;
    assert_int_equal(q4x_net_dev_get(net, 0, &there, &err), 0);
    while (p->node[i].op != K_OP_moe_expert) i++;
    k_weight *w = (k_weight *)(uintptr_t)q4x_net_dev_node(there, i)->w[0];
    for (int f = 0; f < 2; f++) {
        w[1].row_bytes--; /* the device has its own list; what it reads stays whole */
        const int rc = q4x_run_forward(r, ids, 2, 0, &err);
        assert_int_equal(rc, f ? 0 : Q4X_E_DEVICE);
        w[1].row_bytes++;
        q4x_run_reset(r);
        if (!f) assert_int_equal(q4x_run_forward(r, ids, 2, 0, &err), 0);
        q4x_run_reset(r);
    }
    q4x_run_free(r);
    q4x_net_close(net);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op), cmocka_unit_test(a_run_ends),
                                       cmocka_unit_test(empty), cmocka_unit_test(limits), cmocka_unit_test(once_a_run)};
    return cmocka_run_group_tests_name("e_fits", tests, NULL, NULL);
}
