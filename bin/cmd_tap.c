/* cmd_tap.c: a run with taps, into a dump. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bin/cmd.h"
#include "lib/need.h"
#include "lib/tap.h"
#include "lib/utf8.h"
#include "lib/version.h"

typedef struct {
    cmd_gen gen;
    q4x_tap_opts tap;
    const char *name, *out;
    int rows_given;
    char path[4096];
} options;

typedef struct {
    const options *o;
    cmd_ctx *c;
    q4x_tapset *taps;
    json_t *ids, *inert; /* inert: items of the arm that moved nothing */
    json_t *nonfinite;   /* NaNs and infinities in the logit row of each forward */
    cmd_nonfinite odd;
    q4x_hash content;
    q4x_tap_count read_twice, perturbation;
} result;

enum { KEY_ARM = 0x200, KEY_LAYER, KEY_NODE, KEY_MODE, KEY_ROWS, KEY_BANDS, KEY_CONTROLS };

/* "all", "N" (the last N) or "a-b". */
static int parse_rows(const char *arg, q4x_tap_opts *t) {
    long a, b;
    char rest;
    if (!strcmp(arg, "all")) {
        t->row0 = 0;
        t->nrows = -1;
    } else if (sscanf(arg, "%18ld-%18ld%c", &a, &b, &rest) == 2 && a >= 0 && b >= a) {
        t->row0 = a;
        t->nrows = b - a + 1;
    } else if (sscanf(arg, "%18ld%c", &a, &rest) == 1 && a > 0) {
        t->row0 = -1;
        t->nrows = a;
    } else {
        return -1;
    }
    return 0;
}

static int parse_mode(const char *arg, q4x_mode *ret) {
    static const char *const names[] = {"hash", "sketch", "full"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(arg, names[i])) {
            *ret = (q4x_mode)i;
            return 0;
        }
    return -1;
}

static int ends_as_dump(const char *name) {
    const size_t n = strlen(name);
    return n > 4 && !strcmp(name + n - 4, ".q4d");
}

/* A name that stands in headers and on lines of others, and before .q4d in that of a file that `ls` shows. */
static int is_name(const char *arg) {
    char plain[sizeof((q4x_arm){0}.label) + 16];
    return strlen(arg) < sizeof((q4x_arm){0}.label) && !strchr(arg, '/') && arg[0] != '.' && !ends_as_dump(arg) &&
           !strcmp(cmd_plain(arg, strlen(arg), plain, sizeof plain), arg);
}

static error_t option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->gen; return 0;
    case KEY_ARM:
        if (!is_name(arg))
            argp_error(state,
                       "--arm: '%.80s', expected a short name without '/', without '.' in front or .q4d behind; for a "
                       "path use -o",
                       arg);
        o->name = arg;
        return 0;
    case 'o': o->out = arg; return 0;
    case KEY_LAYER: o->tap.layers = arg; return 0;
    case KEY_NODE: o->tap.nodes = arg; return 0;
    case KEY_MODE:
        if (parse_mode(arg, &o->tap.mode)) argp_error(state, "--mode: '%.40s', expected hash, sketch or full", arg);
        return 0;
    case KEY_ROWS:
        o->rows_given = 1;
        if (parse_rows(arg, &o->tap)) argp_error(state, "--rows: '%.40s', expected all, N or A-B", arg);
        return 0;
    case KEY_BANDS: o->tap.bands = 1; return 0;
    case KEY_CONTROLS: o->tap.controls = 1; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int step(void *ctx, const q4x_step *s, q4x_err *err) {
    result *r = ctx;
    cmd_nonfinite_add(&r->odd, s);
    if (json_array_append_new(r->ids, json_integer(s->chosen)) ||
        json_array_append_new(r->nonfinite, json_integer(s->nonfinite)))
        return q4x_fail(err, Q4X_E_NOMEM, "no memory for the result");
    q4x_log_progress(&r->c->log, "tap", (uint64_t)s->forward + 1, (uint64_t)r->o->gen.n);
    return q4x_tapset_forward(r->taps, s->ids, s->n_ids, s->forced, s->chosen, err);
}

/* What only the door knows of a dump's header. A text with a NUL is left out: readers of JSON refuse one. */
static json_t *header(const options *o, const cmd_ctx *c, int threads) {
    const cmd_gen *g = &o->gen;
    int has_text = g->prompt_text && !memchr(g->prompt_text, 0, g->prompt_len);
    return json_pack("{s:{s:o, s:o}, s:o}", "prompt", "ids", cmd_ids(g->prompt, g->n_prompt), "text",
                     has_text ? json_stringn(g->prompt_text, g->prompt_len) : json_null(), "free",
                     q4x_build_free(threads, c->argc, c->argv));
}

/* What the tap set knows at the end of its run. */
static int look_back(result *r, q4x_run *run, const q4x_greedy_opts *go, q4x_err *err) {
    const q4x_arm *a = q4x_run_arm(run);
    int rc = r->o->tap.controls ? q4x_tapset_untapped(r->taps, go, err) : 0;
    for (int k = 0; k < a->nitems && !rc; k++) {
        char text[128];
        if (!q4x_tapset_inert(r->taps, k)) continue;
        q4x_item_text(&a->item[k], text, sizeof text);
        if (json_array_append_new(r->inert, json_string(text)))
            rc = q4x_fail(err, Q4X_E_NOMEM, "no memory for the result");
    }
    q4x_tapset_controls(r->taps, &r->read_twice, &r->perturbation);
    return rc;
}

/* The longest forward consumes the prompt: a row of its tensors for every id. */
static int check_rows(const options *o, const q4x_greedy_opts *go, q4x_err *err) {
    const int64_t first = o->tap.row0, last = first + o->tap.nrows - 1, n = go->n_prompt;
    if (o->tap.nrows <= 0 || first < n) return 0;
    return q4x_fail(err, Q4X_E_ARG,
                    "--rows: '%lld-%lld', expected rows from 0 to %lld: a forward here has up to %lld, one for each id",
                    (long long)first, (long long)last, (long long)(n - 1), (long long)n);
}

/* What the taps take of a device is counted with the run: it is refused before weights are moved. */
static int new_run(const q4x_net *net, const options *o, int64_t n_ctx, q4x_run **ret, q4x_err *err) {
    q4x_tap_memory m = {0};
    q4x_need n;
    int rc = o->gen.arm.cuda ? q4x_need_of(net, 1, n_ctx, 0, &n, err) : 0;
    if (!rc && o->gen.arm.cuda) rc = q4x_tap_memory_of(q4x_net_plan(net), &o->tap, n_ctx, n.tile, &m, err);
    return rc ? rc : q4x_run_new_all(net, &o->gen.arm, n_ctx, 0, 0, m.least, ret, err);
}

static int tap(options *o, cmd_ctx *c, result *r, q4x_err *err) {
    int rc;
    q4x_net *net = NULL;
    q4x_run *run = NULL;
    cmd_gen *g = &o->gen;
    TRY(q4x_net_open(g->model, &net, err));
    TRY(cmd_gen_prompt(g, q4x_net_model(net), err));
    q4x_greedy_opts go = cmd_greedy(g);
    TRY(check_rows(o, &go, err));
    TRY(new_run(net, o, q4x_greedy_positions(&go), &run, err));
    json_t *h = header(o, c, q4x_run_threads(run));
    if (!h) {
        rc = q4x_fail(err, Q4X_E_NOMEM, "no memory for the dump's header");
        goto done;
    }
    TRY(q4x_tapset_open(run, net, &o->tap, o->path, h, &r->taps, err));
    TRY(q4x_greedy(run, &go, step, r, err));
    q4x_log_done(&c->log);
    TRY(look_back(r, run, &go, err));
    q4x_tapset *t = r->taps;
    r->taps = NULL;
    TRY(q4x_tapset_close(t, &r->content, err));
    cmd_written(o->path);
done:
    if (rc == Q4X_E_DEVICE && r->taps)
        q4x_tapset_cut(r->taps, err); /* what it did before it was lost is worth keeping */
    else
        q4x_tapset_abort(r->taps);
    q4x_run_free(run);
    q4x_net_close(net);
    return rc;
}

static json_t *count_json(const q4x_tap_count *n) {
    return n->compared
               ? json_pack("{s:I, s:I}", "differing", (json_int_t)n->differing, "compared", (json_int_t)n->compared)
               : json_null();
}

static json_t *as_json(const options *o, const result *r, const char *content) {
    return json_pack("{s:o, s:s, s:s, s:i, s:O, s:O, s:O, s:{s:o, s:o}}", "dump", cmd_string(o->path, strlen(o->path)),
                     "arm", o->gen.arm.spec, "content", content, "forwards", (int)json_array_size(r->ids), "ids",
                     r->ids, "nonfinite", r->nonfinite, "inert", r->inert, "controls", "perturbation",
                     count_json(&r->perturbation), "read_twice", count_json(&r->read_twice));
}

static int print(const options *o, const result *r, cmd_ctx *c) {
    char hex[33];
    q4x_hash_hex(&r->content, hex);
    int n = (int)json_array_size(r->ids), code = CMD_OK;
    for (size_t k = 0; k < json_array_size(r->inert); k++)
        fprintf(stderr, "%s: lever %s moved nothing in this run: INERT\n", c->name,
                json_string_value(json_array_get(r->inert, k)));
    cmd_nonfinite_say(&r->odd, c);
    if (c->json) {
        code = cmd_print_json(c, as_json(o, r, hex), 9);
    } else {
        printf("%s: %d forwards, content %s\nids ", o->path, n, hex);
        for (int i = 0; i < n; i++)
            printf("%s%lld", i ? "," : "", (long long)json_integer_value(json_array_get(r->ids, (size_t)i)));
        putchar('\n');
        if (o->tap.controls)
            printf("controls perturbation %lld/%lld, read-twice %lld/%lld\n", (long long)r->perturbation.differing,
                   (long long)r->perturbation.compared, (long long)r->read_twice.differing,
                   (long long)r->read_twice.compared);
    }
    return code || !(r->perturbation.differing + r->read_twice.differing) ? code : CMD_DIVERGED;
}

/* What was asked for and would not be kept, or cannot be. Returns an exit code. */
static int check_taps(const options *o, cmd_ctx *c) {
    const char *model = o->gen.model;
    if (q4x_utf8_valid((const uint8_t *)model, strlen(model)) < strlen(model))
        return cmd_misuse(c, "the model's path is not UTF-8, and a dump records it as text: name it by another path");
    if (o->gen.threads && o->gen.arm.cuda && !o->tap.bands && !o->gen.arm.nitems)
        return cmd_misuse(c, "--threads: device cuda has none; the processor's work on --bands and levers alone");
    if (o->tap.mode != Q4X_MODE_HASH) return CMD_OK;
    if (o->rows_given) return cmd_misuse(c, "--rows: --mode hash keeps no rows");
    if ((o->tap.layers || o->tap.nodes) && !o->tap.bands)
        return cmd_misuse(c, "--layer and --node: --mode hash keeps the same of all nodes, without --bands");
    return CMD_OK;
}

/* Where the dump goes and what its arm is called, from --arm and -o. */
static int name_dump(options *o, cmd_ctx *c) {
    if (!o->name && !o->out) return cmd_misuse(c, "where to? Give --arm NAME (writes NAME.q4d) or -o FILE");
    if (cmd_dash(c, "-o", o->out)) return CMD_USAGE;
    int n =
        o->out ? snprintf(o->path, sizeof o->path, "%s", o->out) : snprintf(o->path, sizeof o->path, "%s.q4d", o->name);
    if (n < 0 || (size_t)n >= sizeof o->path) return cmd_misuse(c, "-o: the path is too long");
    const char *base = strrchr(o->path, '/');
    base = base ? base + 1 : o->path;
    size_t len = strlen(base);
    if (ends_as_dump(base)) len -= 4;
    q4x_arm *a = &o->gen.arm;
    if (o->name)
        snprintf(a->label, sizeof a->label, "%s", o->name);
    else
        cmd_plain(base, len, a->label, sizeof a->label);
    return CMD_OK;
}

int cmd_tap(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_option own[] = {
        {0, 0, 0, 0, "Taps:", 3},
        {"layer", KEY_LAYER, "LIST", 0, "layers to keep statistics and sketches of: 0-3,47 (default: all)", 3},
        {"node", KEY_NODE, "GLOBS", 0, "nodes to keep them of: 'moe.*,L03.attn.*' (default: the public ones)", 3},
        {"mode", KEY_MODE, "MODE", 0, "hash, sketch (default) or full; bits of all nodes are kept in every mode", 3},
        {"rows", KEY_ROWS, "ROWS", 0, "rows to sketch: all, the last N (default 64), or A-B", 3},
        {"bands", KEY_BANDS, 0, 0, "let every op state its rounding bound (slower)", 3},
        {"controls", KEY_CONTROLS, 0, 0,
         "measure the instrument: read every buffer twice, make the run once more without taps", 3},
        {0, 0, 0, 0, "Output:", 4},
        {"arm", KEY_ARM, "NAME", 0, "name of the arm; writes NAME.q4d", 4},
        {"output", 'o', "FILE", 0, "the dump's file", 4},
        {0}};
    static const struct argp_child child[] = {{&cmd_gen_argp, 0, 0, 0}, {0}};
    static const struct argp argp = {own,   option, "MODEL", "Run a model as `q4x run` does and write a dump of it.",
                                     child, 0,      0};
    options o = {.tap.mode = Q4X_MODE_SKETCH};
    q4x_err err = {0};
    cmd_parse(&argp, argc, argv, c, 1, &o);
    result r = {.o = &o, .c = c, .ids = json_array(), .inert = json_array(), .nonfinite = json_array()};
    int code = cmd_gen_ready(&o.gen, c);
    if (!code) code = check_taps(&o, c);
    if (!code) code = name_dump(&o, c);
    if (!code) code = tap(&o, c, &r, &err) ? cmd_refused(c, &err) : print(&o, &r, c);
    json_decref(r.ids);
    json_decref(r.inert);
    json_decref(r.nonfinite);
    cmd_gen_free(&o.gen);
    return code;
}
