/* cmd_run.c: a prompt in, ids and text out. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bin/cmd.h"
#include "lib/io.h"

typedef struct {
    cmd_gen gen;
    const char *logits;
    int rows_given, all_rows;
} options;

typedef struct {
    const options *o;
    cmd_ctx *c;
    q4x_run *run;
    json_t *ids, *forwards;
    q4x_out *logits;
    int32_t made;
    cmd_nonfinite odd;
    q4x_tok_stream *stream; /* NULL: no text is made */
    FILE *text;             /* all of it so far, in memory */
    char *text_bytes;
    size_t text_len;
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
        o->rows_given = 1;
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

/* ---- text ---- */

/* Text appears as it is made, when it is asked for and nothing else stands on stdout. */
static int is_live(const result *r) {
    return cmd_text_given(&r->o->gen.text) && !r->c->json && !r->c->verbose;
}

/* A text prompt wants text; so does JSON, where the model has a tokenizer that can be used. */
static int text_open(cmd_gen *g, const q4x_model *m, result *r, q4x_err *err) {
    q4x_err why = {0};
    if (!g->tok && r->c->json && q4x_tok_open(m, &g->tok, &why) < 0)
        q4x_log_say(&r->c->log, 0, "%s: no text: %s", r->c->name, why.msg);
    if (!g->tok) return 0;
    r->text = open_memstream(&r->text_bytes, &r->text_len);
    if (!r->text) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the text");
    return q4x_tok_stream_open(g->tok, &r->stream, err);
}

/* id -1: the end. A model may have more rows than its tokenizer has ids; those say nothing. */
static int text_add(result *r, int32_t id, q4x_err *err) {
    const char *p = NULL;
    size_t n = 0;
    if (!r->stream || (id >= 0 && q4x_tok_type_of(r->o->gen.tok, id) == Q4X_TOK_NONE)) return 0;
    int rc = id < 0 ? q4x_tok_stream_end(r->stream, &p, &n, err) : q4x_tok_stream_add(r->stream, id, &p, &n, err);
    if (rc) return rc;
    if (fwrite(p, 1, n, r->text) != n) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the text");
    if (!is_live(r)) return 0;
    cmd_put_text(stdout, p, n);
    fflush(stdout);
    return 0;
}

static int text_done(result *r, q4x_err *err) {
    int rc = text_add(r, -1, err);
    if (!rc && r->text && fflush(r->text)) rc = q4x_fail(err, Q4X_E_NOMEM, "no memory for the text");
    return rc;
}

static void text_close(result *r) {
    q4x_tok_stream_close(r->stream);
    if (r->text) fclose(r->text);
    free(r->text_bytes);
}

/* ---- forwards ---- */

static void table_row(const result *r, const q4x_step *s) {
    const uint8_t *bytes;
    size_t n;
    if (r->made == 1)
        printf("forward  consumed      id       logit    second       logit      margin%s\n",
               r->stream ? "  text" : "");
    printf("%7d  %8d  %6d  %10.6f  %8d  %10.6f  %10.3e", s->forward, s->n_ids, s->chosen, (double)s->top[0],
           s->top_id[1], (double)s->top[1], s->margin);
    if (r->stream && !q4x_tok_bytes(r->o->gen.tok, s->chosen, &bytes, &n, NULL)) {
        printf("  ");
        cmd_put_bytes(stdout, bytes, n);
    }
    putchar('\n');
}

static int step(void *ctx, const q4x_step *s, q4x_err *err) {
    result *r = ctx;
    const options *o = r->o;
    r->made++;
    cmd_nonfinite_add(&r->odd, s);
    json_t *f = json_pack("{s:o, s:o, s:o, s:i}", "top1", top(s, 0), "top2", top(s, 1), "margin",
                          s->top_id[1] < 0 ? json_null() : cmd_real(s->margin), "nonfinite", s->nonfinite);
    if (json_array_append_new(r->forwards, f) || json_array_append_new(r->ids, json_integer(s->chosen)))
        return q4x_fail(err, Q4X_E_NOMEM, "no memory for the result");
    int rc = text_add(r, s->chosen, err);
    if (rc) return rc;
    if (!r->c->json && r->c->verbose) table_row(r, s);
    if (!is_live(r)) q4x_log_progress(&r->c->log, "run", (uint64_t)r->made, (uint64_t)o->gen.n);
    if (!r->logits) return 0;
    int32_t rows;
    const float *x = q4x_run_logits(r->run, &rows);
    return q4x_out_write(r->logits, x, (size_t)rows * (size_t)q4x_run_plan(r->run)->d.V * sizeof *x, err);
}

static int print(result *r, cmd_ctx *c) {
    if (c->json) {
        cmd_nonfinite_say(&r->odd, c);
        json_t *prompt = cmd_ids(r->o->gen.prompt, r->o->gen.n_prompt);
        json_t *text = r->text ? json_stringn(r->text_bytes, r->text_len) : json_null();
        json_t *all = json_pack("{s:o, s:O, s:o, s:O}", "prompt_ids", prompt, "ids", r->ids, "text", text, "forwards",
                                r->forwards);
        return cmd_print_json(c, all, 9);
    }
    if (r->text && !is_live(r)) cmd_put_text(stdout, r->text_bytes, r->text_len);
    if (r->text) putchar('\n');
    size_t n = json_array_size(r->ids);
    for (size_t i = 0; i < n; i++)
        printf("%s%lld", i ? "," : "", (long long)json_integer_value(json_array_get(r->ids, i)));
    putchar('\n');
    cmd_nonfinite_say(&r->odd, c);
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
    cmd_gen *g = &o->gen;
    TRY(q4x_net_open(g->model, &net, err));
    TRY(cmd_gen_prompt(g, q4x_net_model(net), err));
    TRY(text_open(g, q4x_net_model(net), r, err));
    q4x_greedy_opts go = cmd_greedy(g);
    go.all_logits = o->all_rows;
    TRY(q4x_run_new_all(net, &g->arm, q4x_greedy_positions(&go), 0, go.all_logits, 0, &r->run, err));
    if (o->logits) TRY(q4x_out_open(o->logits, &r->logits, err));
    TRY(q4x_greedy(r->run, &go, step, r, err));
    TRY(text_done(r, err));
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
                                     "Greedy decode: make ids after a prompt. The highest logit is chosen, the lowest "
                                     "id on a tie. After a prompt of text the text comes first, as it is made, then "
                                     "the ids on a line of their own.",
                                     child,
                                     0,
                                     0};
    options o = {0};
    q4x_err err = {0};
    cmd_parse(&argp, argc, argv, c, 1, &o);
    result r = {.o = &o, .c = c, .ids = json_array(), .forwards = json_array()};
    int code = cmd_gen_ready(&o.gen, c);
    if (!code && o.gen.threads && o.gen.arm.cuda) code = cmd_misuse(c, "--threads: device cuda has none");
    if (!code && o.rows_given && !o.logits) code = cmd_misuse(c, "--logits-rows goes with --logits FILE");
    if (!code) code = cmd_dash(c, "--logits", o.logits);
    if (!code) code = run(&o, c, &r, &err) ? cmd_refused(c, &err) : print(&r, c);
    json_decref(r.ids);
    json_decref(r.forwards);
    text_close(&r);
    cmd_gen_free(&o.gen);
    return code;
}
