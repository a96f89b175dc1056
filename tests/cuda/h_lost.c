#include "tests/cuda/h_lost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/round.h"
#include "lib/run_int.h"
#include "tests/h_forward.h"

const hl_plan hl_none = {.forward = -1};

typedef struct {
    q4x_run *run;
    q4x_tapset *taps;
    q4x_node_fn fn; /* the tap set's hook, and what it is given */
    void *fn_ctx;
    const hl_plan *plan;
} spring;

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    const spring *s = ctx;
    const int forward = q4x_run_nforward(s->run);
    int rc = s->fn(s->fn_ctx, ev, err);
    if (rc) return rc;
    if (s->plan->seen) s->plan->seen(forward, ev->node);
    if (forward == s->plan->forward && ev->node == s->plan->node)
        assert_int_equal(s->plan->lose(q4x_run_device(s->run)), 0);
    return 0;
}

static int step(void *ctx, const q4x_step *s, q4x_err *err) {
    const spring *x = ctx;
    return q4x_tapset_forward(x->taps, s->ids, s->n_ids, s->forced, s->chosen, err);
}

int hl_tap(const char *model, const char *spec, const char *path, const hl_plan *plan, q4x_err *err) {
    static const int32_t prompt[HL_PROMPT] = {5, 6, 7, 11, 3, 90, 41, 2, 17};
    const q4x_greedy_opts go = {.prompt = prompt, .n_prompt = plan->prompt ? plan->prompt : 3, .n = HL_FORWARDS};
    const q4x_tap_opts o = {.mode = Q4X_MODE_FULL, .most = plan->most};
    spring s = {.plan = plan};
    q4x_arm arm;
    q4x_hash content;
    int rc;
    q4x_net *net = h_net(model);
    TRY(q4x_arm_parse(spec, &arm, err));
    TRY(q4x_run_new(net, &arm, q4x_greedy_positions(&go), 0, &s.run, err));
    TRY(q4x_tapset_open(s.run, net, &o, path, json_object(), &s.taps, err));
    s.fn = s.run->fn;
    s.fn_ctx = s.run->fn_ctx;
    if (plan->forward >= 0 || plan->seen) q4x_run_on_node(s.run, on_node, &s);
    TRY(q4x_greedy(s.run, &go, step, &s, err));
    q4x_tapset *t = s.taps;
    s.taps = NULL;
    rc = q4x_tapset_close(t, &content, err);
done:
    if (rc == Q4X_E_DEVICE && s.taps)
        q4x_tapset_cut(s.taps, err);
    else
        q4x_tapset_abort(s.taps);
    q4x_run_free(s.run);
    q4x_net_close(net);
    return rc;
}

static void same_forward(q4x_forward *a, q4x_forward *b) {
    assert_int_equal(a->index, b->index);
    assert_int_equal(a->n_ids, b->n_ids);
    assert_int_equal(a->sampled, b->sampled);
    assert_int_equal(a->ntaps, b->ntaps);
    assert_true(q4x_hash_eq(&a->prefix, &b->prefix) && a->vocab == b->vocab && a->n_logits == b->n_logits);
    assert_memory_equal(a->logits, b->logits, (size_t)a->vocab * (size_t)a->n_logits * sizeof(float));
    for (int k = 0; k < a->ntaps; k++) {
        assert_int_equal(a->taps[k].node, b->taps[k].node);
        assert_true(q4x_hash_eq(&a->taps[k].bits, &b->taps[k].bits));
    }
}

void hl_is_cut(const char *path, const q4x_dump *want, int forwards) {
    q4x_dump *d = NULL;
    q4x_err err = {0};
    if (q4x_dump_read(path, &d, &err) != Q4X_E_TRUNCATED || !d) fail_msg("expected a cut dump, found: %s", err.msg);
    assert_non_null(strstr(err.msg, "the run ended early: device cuda/0: "));
    const json_t *ended = json_object_get(d->tail, "ended");
    assert_int_equal(json_object_size(d->tail), 1);
    assert_int_equal(json_integer_value(json_object_get(ended, "forwards")), forwards);
    assert_non_null(json_string_value(json_object_get(ended, "error")));
    assert_int_equal(d->nforwards, forwards);
    for (int f = 0; want && f < forwards; f++) same_forward(&d->forwards[f], &want->forwards[f]);
    for (int f = 0; f < forwards; f++) /* and every tensor can be had */
        for (int k = 0; k < d->forwards[f].ntaps; k++)
            if (d->forwards[f].taps[k].has_full && q4x_dump_full(d, &d->forwards[f].taps[k], &err))
                fail_msg("%s", err.msg);
    q4x_dump_free(d);
}
