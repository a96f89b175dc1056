/* cmd_run.c: ids in, ids out. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bin/cmd.h"
#include "lib/io.h"

typedef struct {
    cmd_gen gen;
    const char *logits;
    int all_rows;
} options;

typedef struct {
    const options *o;
    cmd_ctx *c;
    q4x_run *run;
    json_t *ids, *forwards;
    q4x_out *logits;
    int32_t made;
} result;

enum { KEY_ARM = 0x200, KEY_LOGITS, KEY_ROWS };

static error_t option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->gen; return 0;
    case KEY_ARM: o->gen.spec = arg; return 0;
    case KEY_LOGITS: o->logits = arg; return 0;
    case KEY_ROWS:
        if (strcmp(arg, "all") && strcmp(arg, "last"))
            argp_error(state, "--logits-rows: '%.40s', expected last or all", arg);
        o->all_rows = !strcmp(arg, "all");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* {id, logit} of place i, null when the row is shorter. */
static json_t *top(const q4x_step *s, int i) {
    return s->top_id[i] < 0 ? json_null()
                            : json_pack("{s:i, s:o}", "id", s->top_id[i], "logit", cmd_real((double)s->top[i]));
}

static int step(void *ctx, const q4x_step *s, q4x_err *err) {
    result *r = ctx;
    const options *o = r->o;
    r->made++;
    json_t *f = json_pack("{s:o, s:o, s:o}", "top1", top(s, 0), "top2", top(s, 1), "margin",
                          s->top_id[1] < 0 ? json_null() : cmd_real(s->margin));
    if (json_array_append_new(r->forwards, f) || json_array_append_new(r->ids, json_integer(s->chosen)))
        return q4x_fail(err, Q4X_E_NOMEM, "no memory for the result");
    if (!r->c->json && r->c->verbose) {
        if (r->made == 1) printf("forward  consumed      id       logit    second       logit      margin\n");
        printf("%7d  %8d  %6d  %10.6f  %8d  %10.6f  %10.3e\n", s->forward, s->n_ids, s->chosen, (double)s->top[0],
               s->top_id[1], (double)s->top[1], s->margin);
    }
    q4x_log_progress(&r->c->log, "run", (uint64_t)r->made, (uint64_t)o->gen.n);
    if (!r->logits) return 0;
    int32_t rows;
    const float *x = q4x_run_logits(r->run, &rows);
    return q4x_out_write(r->logits, x, (size_t)rows * (size_t)q4x_run_plan(r->run)->d.V * sizeof *x, err);
}

static int print(result *r, cmd_ctx *c) {
    if (c->json) {
        json_t *prompt = cmd_ids(r->o->gen.prompt, r->o->gen.n_prompt);
        json_t *all =
            json_pack("{s:o, s:O, s:n, s:O}", "prompt_ids", prompt, "ids", r->ids, "text", "forwards", r->forwards);
        return cmd_print_json(c, all, 9);
    }
    size_t n = json_array_size(r->ids);
    for (size_t i = 0; i < n; i++)
        printf("%s%lld", i ? "," : "", (long long)json_integer_value(json_array_get(r->ids, i)));
    putchar('\n');
    return CMD_OK;
}

/* Of plants the run itself knows; other levers are witnessed by `q4x tap`. */
static void say_inert(const q4x_run *run, const cmd_ctx *c) {
    const q4x_arm *a = q4x_run_arm(run);
    for (int k = 0; k < a->nitems; k++) {
        char text[128];
        if (!a->item[k].plant[0] || q4x_run_planted(run, k)) continue;
        q4x_item_text(&a->item[k], text, sizeof text);
        fprintf(stderr, "%s: lever %s moved nothing in this run: INERT\n", c->name, text);
    }
}

static int run(options *o, cmd_ctx *c, result *r, q4x_err *err) {
    int rc;
    q4x_net *net = NULL;
    const cmd_gen *g = &o->gen;
    q4x_greedy_opts go = cmd_greedy(g);
    go.all_logits = o->all_rows;
    TRY(q4x_net_open(g->model, &net, err));
    TRY(q4x_run_new(net, &g->arm, q4x_greedy_positions(&go), 0, &r->run, err));
    if (o->logits) TRY(q4x_out_open(o->logits, &r->logits, err));
    TRY(q4x_greedy(r->run, &go, step, r, err));
    q4x_log_done(&c->log);
    say_inert(r->run, c);
    if (r->logits) {
        q4x_out *w = r->logits;
        r->logits = NULL;
        TRY(q4x_out_close(w, err));
        cmd_written(o->logits);
    }
done:
    q4x_out_abort(r->logits);
    q4x_run_free(r->run);
    q4x_net_close(net);
    return rc;
}

int cmd_run(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_option own[] = {
        {"arm", KEY_ARM, "ARM", OPTION_HIDDEN, "another name of --spec", 2},
        {0, 0, 0, 0, "Output:", 3},
        {"logits", KEY_LOGITS, "FILE", 0,
         "write the logit rows, before the last rounding: little-endian f32, row after row", 3},
        {"logits-rows", KEY_ROWS, "last|all", 0,
         "rows to write: the last of each forward (default), or one for each id", 3},
        {0}};
    static const struct argp_child child[] = {{&cmd_gen_argp, 0, 0, 0}, {0}};
    static const struct argp argp = {own,
                                     option,
                                     "MODEL",
                                     "Greedy decode: make ids after a prompt of ids. The highest logit is chosen, the "
                                     "lowest id on a tie.",
                                     child,
                                     0,
                                     0};
    options o = {0};
    q4x_err err = {0};
    cmd_parse(&argp, argc, argv, c, 1, &o);
    result r = {.o = &o, .c = c, .ids = json_array(), .forwards = json_array()};
    int code = cmd_gen_ready(&o.gen, c);
    if (!code) code = run(&o, c, &r, &err) ? cmd_refused(c, &err) : print(&r, c);
    json_decref(r.ids);
    json_decref(r.forwards);
    cmd_gen_free(&o.gen);
    return code;
}
