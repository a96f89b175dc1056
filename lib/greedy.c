#include "lib/greedy.h"

#include <math.h>

int64_t q4x_greedy_positions(const q4x_greedy_opts *o) {
    int64_t n = (int64_t)o->n_prompt + o->n - 1;
    return n < 1 ? 1 : n;
}

int32_t q4x_greedy_forwards(const q4x_greedy_opts *o) {
    return o->one_by_one ? o->n_prompt + o->n - 1 : o->n;
}

/* Is a ahead of b? */
static int ahead(float a, float b) {
    return isnan(b) ? !isnan(a) : a > b;
}

void q4x_top2(const float *x, int32_t n, int32_t id[2], float val[2]) {
    id[0] = id[1] = -1;
    val[0] = val[1] = NAN;
    for (int32_t i = 0; i < n; i++) {
        if (id[0] < 0 || ahead(x[i], val[0])) {
            id[1] = id[0];
            val[1] = val[0];
            id[0] = i;
            val[0] = x[i];
        } else if (id[1] < 0 || ahead(x[i], val[1])) {
            id[1] = i;
            val[1] = x[i];
        }
    }
}

int32_t q4x_nonfinite(const float *x, int32_t n) {
    int32_t found = 0;
    for (int32_t i = 0; i < n; i++) found += !isfinite(x[i]);
    return found;
}

static int has(const int32_t *list, int32_t n, int32_t id) {
    for (int32_t i = 0; i < n; i++)
        if (list[i] == id) return 1;
    return 0;
}

static int forward(q4x_run *r, const q4x_greedy_opts *o, q4x_step *s, int choose, q4x_step_fn fn, void *ctx,
                   q4x_err *err) {
    int rc = q4x_run_forward(r, s->ids, s->n_ids, o->all_logits, err);
    if (rc) return rc;
    int32_t rows, vocab = q4x_run_plan(r)->d.V;
    const float *row = q4x_run_logits(r, &rows) + (int64_t)(rows - 1) * vocab;
    q4x_top2(row, vocab, s->top_id, s->top);
    s->margin = (double)s->top[0] - (double)s->top[1];
    s->vocab = vocab;
    s->nonfinite = q4x_nonfinite(row, vocab);
    int32_t top_id[2];
    float top_val[2];
    s->chosen = choose ? q4x_run_choose(r, top_id, top_val) : -1;
    return fn ? fn(ctx, s, err) : 0;
}

/* Every id is one of the model's; what names the list in the message. */
static int check_ids(const char *what, const int32_t *id, int32_t n, int32_t vocab, q4x_err *err) {
    for (int32_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= vocab)
            return q4x_fail(err, Q4X_E_ARG, "%s: element %d is %d, expected an id from 0 to %d", what, i, id[i],
                            vocab - 1);
    return 0;
}

static int check_opts(const q4x_run *r, const q4x_greedy_opts *o, q4x_err *err) {
    const int32_t vocab = q4x_run_plan(r)->d.V;
    int rc;
    if (o->n_prompt < 1) return q4x_fail(err, Q4X_E_ARG, "prompt: empty, expected at least one id");
    if (o->n < 1) return q4x_fail(err, Q4X_E_ARG, "ids to make: %d, expected at least 1", o->n);
    if (o->n_force >= o->n)
        return q4x_fail(err, Q4X_E_ARG, "--force-ids: %d ids, of which -n %d feeds %d; expected -n %lld, or fewer ids",
                        o->n_force, o->n, o->n - 1, (long long)o->n_force + 1);
    TRY(check_ids("prompt", o->prompt, o->n_prompt, vocab, err));
    TRY(check_ids("--force-ids", o->force, o->n_force, vocab, err));
    TRY(check_ids("--stop", o->stop, o->n_stop, vocab, err));
    TRY(q4x_arm_check_forwards(q4x_run_arm(r), q4x_greedy_forwards(o), err));
done:
    return rc;
}

int q4x_greedy(q4x_run *r, const q4x_greedy_opts *o, q4x_step_fn fn, void *ctx, q4x_err *err) {
    int rc;
    q4x_step s = {.forced = 1};
    if ((rc = check_opts(r, o, err))) return rc;
    if (o->one_by_one) {
        for (int32_t i = 0; i < o->n_prompt; i++, s.forward++) {
            s.ids = o->prompt + i;
            s.n_ids = 1;
            if ((rc = forward(r, o, &s, i == o->n_prompt - 1, fn, ctx, err))) return rc;
        }
    } else {
        s.ids = o->prompt;
        s.n_ids = o->n_prompt;
        if ((rc = forward(r, o, &s, 1, fn, ctx, err))) return rc;
        s.forward++;
    }
    for (int32_t k = 1; k < o->n; k++, s.forward++) {
        int32_t chosen = s.chosen;
        if (has(o->stop, o->n_stop, chosen)) break;
        s.forced = k <= o->n_force;
        s.ids = s.forced ? o->force + (k - 1) : &chosen;
        s.n_ids = 1;
        if ((rc = forward(r, o, &s, 1, fn, ctx, err))) return rc;
    }
    return 0;
}
