/* selfnull.c: runs of any model that must not differ by a bit (selftest MODEL), on the processor or a device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bisect/selftest.h"
#include "lib/greedy.h"
#include "lib/machine.h"
#include "lib/net_dev.h"
#include "lib/tap.h"

enum { PROMPT = 8, STEPS = 3 };

/* Bits of one sequence, whatever the calls it was cut into: the rows of every public node of fixed width, joined; the
 * states at the end; the last row of logits. */
typedef struct {
    const q4x_plan *plan;
    int hooked;
    q4x_bits **node; /* [nnodes], NULL: not recorded */
    q4x_hash *bits;  /* [nnodes + nstates + 1] */
    char *have;      /* the same */
} record;

static void record_free(record *r) {
    for (int i = 0; r->node && i < r->plan->nnodes; i++) q4x_bits_free(r->node[i]);
    free(r->node);
    free(r->bits);
    free(r->have);
}

static int record_new(const q4x_plan *p, int hooked, record *r, q4x_err *err) {
    size_t n = (size_t)p->nnodes + (size_t)p->nstates + 1;
    *r = (record){.plan = p,
                  .hooked = hooked,
                  .node = calloc((size_t)p->nnodes, sizeof *r->node),
                  .bits = calloc(n, sizeof *r->bits),
                  .have = calloc(n, 1)};
    int bad = !r->node || !r->bits || !r->have;
    for (int i = 0; hooked && !bad && i < p->nnodes; i++) {
        if (!p->node[i].is_public || p->node[i].cols_kind != Q4X_COLS_FIXED || i == p->logits) continue;
        bad = !(r->node[i] = q4x_bits_new());
        if (!bad) q4x_bits_begin(r->node[i], p->node[i].is_ids ? Q4X_BITS_RAW : Q4X_BITS_F32);
    }
    if (!bad) return 0;
    record_free(r);
    *r = (record){0};
    return q4x_fail(err, Q4X_E_NOMEM, "selftest: no memory for the record of a run");
}

static int on_node(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    record *r = ctx;
    if (!r->node[ev->node]) return 0;
    int rc = q4x_bits_add(r->node[ev->node], ev->data, (size_t)ev->nrows * (size_t)ev->cols * 4);
    return rc ? q4x_fail(err, rc, "selftest: no memory for the bits of a node") : 0;
}

static int finish(record *r, const q4x_run *run, q4x_err *err) {
    const q4x_plan *p = r->plan;
    int32_t rows, k = 0;
    for (int i = 0; i < p->nnodes; i++, k++)
        if ((r->have[k] = r->node[i] != NULL)) r->bits[k] = q4x_bits_end(r->node[i]);
    for (int i = 0; i < p->nstates; i++, k++) {
        const k_state *s;
        int rc = q4x_run_state(run, i, &s, err);
        if (rc) return rc;
        r->have[k] = 1;
        r->bits[k] =
            q4x_bits_of(p->state[i].is_ids ? Q4X_BITS_RAW : Q4X_BITS_F32, s->f, (size_t)s->rows * (size_t)s->cols * 4);
    }
    const float *logits = q4x_run_logits(run, &rows);
    r->have[k] = 1;
    r->bits[k] = q4x_bits_of(Q4X_BITS_F32, logits + (int64_t)(rows - 1) * p->d.V, (size_t)p->d.V * 4);
    return 0;
}

/* How a sequence is run. */
typedef struct {
    const char *spec;
    int threads; /* 0: all */
    int one_by_one, hooked;
    const char *dump; /* path: under a tap set, into a dump that is removed again */
} how;

static int tap_step(void *ctx, const q4x_step *s, q4x_err *err) {
    return ctx ? q4x_tapset_forward(ctx, s->ids, s->n_ids, s->forced, s->chosen, err) : 0;
}

static int sequence(const q4x_net *net, how h, record *r, q4x_err *err) {
    int rc;
    int32_t ids[PROMPT], vocab = q4x_net_dims(net)->V;
    q4x_run *run = NULL;
    q4x_tapset *taps = NULL;
    q4x_arm arm;
    *r = (record){0};
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)((1 + 37 * (int64_t)i) % vocab);
    q4x_greedy_opts go = {.prompt = ids, .n_prompt = PROMPT, .n = STEPS, .one_by_one = h.one_by_one};
    TRY(q4x_arm_parse(h.spec, &arm, err));
    arm.threads = h.threads;
    TRY(q4x_run_new(net, &arm, q4x_greedy_positions(&go), 0, &run, err));
    TRY(record_new(q4x_run_plan(run), h.hooked, r, err));
    if (h.hooked) q4x_run_on_node(run, on_node, r);
    if (h.dump) {
        q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH};
        TRY(q4x_tapset_open(run, net, &o, h.dump, json_object(), &taps, err));
    }
    TRY(q4x_greedy(run, &go, tap_step, taps, err));
    TRY(finish(r, run, err));
done:
    q4x_tapset_abort(taps);
    q4x_run_free(run);
    if (rc) {
        record_free(r);
        *r = (record){0};
    }
    return rc;
}

static const char *name_of(const q4x_plan *p, int k) {
    if (k < p->nnodes) return p->node[k].name;
    return k < p->nnodes + p->nstates ? p->state[k - p->nnodes].name : "the last logits";
}

/* Compare what both recorded. */
static void compare(const record *a, const record *b, bis_trial *t, int must_differ) {
    int n = a->plan->nnodes + a->plan->nstates + 1, compared = 0, differing = 0, first = -1;
    for (int k = 0; k < n; k++) {
        if (!a->have[k] || !b->have[k]) continue;
        compared++;
        if (q4x_hash_eq(&a->bits[k], &b->bits[k])) continue;
        if (!differing++) first = k;
    }
    snprintf(t->found, sizeof t->found, "%d of %d differ%s%s", differing, compared, first < 0 ? "" : ", first ",
             first < 0 ? "" : name_of(a->plan, first));
    t->good = compared > 1 && (must_differ ? differing > 0 : differing == 0);
}

/* The trials of a model: all are compared with the base, a run on the device under no lever. */
typedef struct {
    const char *model, *device; /* "cpu", "cuda/1" */
    q4x_net *net;
    record base;
    bis_trial_fn fn;
    void *ctx;
    int bad;
} nulls;

static void tell(nulls *k, const bis_trial *t) {
    k->bad += !t->good;
    k->fn(k->ctx, t);
}

/* One row: run h, compare with the base, tell. A run that fails, as on a device that is lost, is no trial. */
static int trial(nulls *k, const q4x_net *net, how h, const char *what, int must_differ, q4x_err *err) {
    record r;
    bis_trial t = {0};
    int rc = sequence(net, h, &r, err);
    if (rc) return rc;
    snprintf(t.what, sizeof t.what, "%s", what);
    compare(&k->base, &r, &t, must_differ);
    tell(k, &t);
    record_free(&r);
    return 0;
}

/* Open the file a second time: the same fingerprint, the same run. A device need not hold both. */
static int read_twice(nulls *k, q4x_err *err) {
    int rc;
    char one[33], two[33];
    q4x_net *again = NULL;
    bis_trial t = {.what = "read twice: fingerprint"};
    TRY(q4x_net_open(k->model, &again, err));
    TRY(q4x_model_fingerprint(q4x_net_model(k->net), one, err));
    TRY(q4x_model_fingerprint(q4x_net_model(again), two, err));
    t.good = !strcmp(one, two);
    snprintf(t.found, sizeof t.found, t.good ? "%s" : "%s, then another", one);
    tell(k, &t);
    q4x_net_dev_free(q4x_net_devices(k->net));
    TRY(trial(k, again, (how){.spec = k->device, .hooked = 1}, "read twice: a run", 0, err));
done:
    q4x_net_close(again);
    return rc;
}

static int threads(nulls *k, q4x_err *err) {
    char what[80];
    snprintf(what, sizeof what, "1 thread against %d", q4x_machine_cpus());
    int rc = trial(k, k->net, (how){.spec = k->device, .threads = 1, .hooked = 1}, what, 0, err);
    return rc ? rc : trial(k, k->net, (how){.spec = k->device, .threads = 3, .hooked = 1}, "3 threads", 0, err);
}

/* What other devices than the processor promise: its bits. */
static int against_cpu(nulls *k, q4x_err *err) {
    char what[80];
    snprintf(what, sizeof what, "%s against cpu", k->device);
    return trial(k, k->net, (how){.spec = "cpu", .hooked = 1}, what, 0, err);
}

int bis_selftest_nulls(const char *model, const char *device, const char *dir, bis_trial_fn fn, void *ctx, int *ret_bad,
                       q4x_err *err) {
    nulls k = {.model = model, .device = device, .fn = fn, .ctx = ctx};
    char path[4096], seq[64], bf16[64];
    int rc;
    snprintf(path, sizeof path, "%s/selftest.q4d", dir);
    snprintf(seq, sizeof seq, "%s:gdn=seq", device);
    snprintf(bf16, sizeof bf16, "%s:act=bf16", device);
    TRY(q4x_net_open(model, &k.net, err));
    TRY(sequence(k.net, (how){.spec = device, .hooked = 1}, &k.base, err));
    TRY(trial(&k, k.net, (how){.spec = device, .hooked = 1}, "two runs", 0, err));
    TRY(strcmp(device, "cpu") ? against_cpu(&k, err) : threads(&k, err));
    TRY(trial(&k, k.net, (how){.spec = device}, "watched against unwatched", 0, err));
    TRY(trial(&k, k.net, (how){.spec = device, .dump = path}, "tapped against untapped", 0, err));
    TRY(trial(&k, k.net, (how){.spec = seq, .one_by_one = 1, .hooked = 1}, "prefill against id by id", 0, err));
    TRY(read_twice(&k, err));
    TRY(trial(&k, k.net, (how){.spec = bf16, .hooked = 1}, "twin: act=bf16 must differ", 1, err));
    *ret_bad = k.bad;
done:
    record_free(&k.base);
    q4x_net_close(k.net);
    return rc;
}
