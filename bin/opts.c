/* opts.c: the options of the commands that run a model: prompt, length, arm. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bin/cmd.h"
#include "lib/io.h"
#include "lib/utf8.h"

enum { KEY_IDS = 0x100, KEY_DEVICE, KEY_SPEC, KEY_THREADS, KEY_FORCE, KEY_STOP, KEY_AS };
enum { MAX_IDS = 1 << 24 };

/* ---- lists of ids ---- */

/* Ids with blanks, lines or one comma between them; a comma that no id follows, or none precedes, is a mistake: wrong
 * is its code. */
static int parse_list(const char *what, const char *text, int wrong, int32_t **ret, int32_t *ret_n, q4x_err *err) {
    int32_t *ids = NULL, n = 0, cap = 0;
    const char *p = text;
    for (int due = 0;; due = *p == ',', p += due) {
        while (isspace((unsigned char)*p)) p++;
        if (!*p && !due) break;
        char *end;
        errno = 0;
        long v = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : -1;
        if (v < 0 || v > INT32_MAX || errno || (*end && *end != ',' && !isspace((unsigned char)*end))) {
            int len = (int)strcspn(p, ", \t\r\n");
            free(ids);
            return q4x_fail(err, wrong, "%s: element %d is '%.*s', expected a token id", what, n, len < 20 ? len : 20,
                            p);
        }
        if (n == cap) {
            cap = cap ? 2 * cap : 64;
            int32_t *more = cap > MAX_IDS ? NULL : realloc(ids, (size_t)cap * sizeof *ids);
            if (!more) {
                free(ids);
                return q4x_fail(err, Q4X_E_NOMEM, "%s: more than %d ids", what, n);
            }
            ids = more;
        }
        ids[n++] = (int32_t)v;
        for (p = end; isspace((unsigned char)*p); p++) {}
    }
    *ret = ids;
    *ret_n = n;
    return 0;
}

int cmd_parse_ids(const char *what, const char *text, int32_t **ret, int32_t *ret_n, q4x_err *err) {
    if (text[0] != '@') {
        int rc = parse_list(what, text, Q4X_E_ARG, ret, ret_n, err);
        return rc || *ret_n ? rc : q4x_fail(err, Q4X_E_ARG, "%s: empty, expected token ids", what);
    }
    const char *path = text + 1, *name = strcmp(path, "-") ? q4x_tail(path) : "standard input";
    char *file = NULL;
    size_t n = 0;
    if (!*path) return q4x_fail(err, Q4X_E_ARG, "%s: '@' names no file", what);
    int rc = cmd_read_file(path, &file, &n, err);
    if (!rc && memchr(file, 0, n))
        rc = q4x_fail(err, Q4X_E_FORMAT, "%s: byte %zu is 0, expected token ids as text", name, strlen(file));
    if (!rc) rc = parse_list(name, file, Q4X_E_FORMAT, ret, ret_n, err);
    if (!rc && !*ret_n) rc = q4x_fail(err, Q4X_E_FORMAT, "%s: empty, expected token ids", name);
    free(file);
    q4x_err_prefix(rc ? err : NULL, "%s", what);
    return rc;
}

/* ---- argp ---- */

static long number(struct argp_state *state, const char *what, const char *arg, long lo, long hi) {
    char *end;
    errno = 0;
    long v = strtol(arg, &end, 10);
    if (errno || end == arg || *end || v < lo || v > hi)
        argp_error(state, "%s: '%.40s', expected a number from %ld to %ld", what, arg, lo, hi);
    return v;
}

static error_t gen_option(int key, char *arg, struct argp_state *state) {
    cmd_gen *g = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case KEY_IDS: g->ids = arg; return 0;
    case 'n':
        g->n_given = 1;
        g->n = (int32_t)number(state, "-n", arg, 1, MAX_IDS);
        return 0;
    case KEY_FORCE: g->force_ids = arg; return 0;
    case KEY_STOP: g->stop_ids = arg; return 0;
    case KEY_SPEC: g->spec = arg; return 0;
    case KEY_DEVICE: g->device = arg; return 0;
    case KEY_THREADS: g->threads = (int)number(state, "--threads", arg, 1, 1024); return 0;
    case KEY_AS:
    case 'l':
        if (g->nlevers == (int)(sizeof g->lever / sizeof *g->lever))
            argp_error(state, "more than %zu --lever and --as", sizeof g->lever / sizeof *g->lever);
        else
            g->lever[g->nlevers++] = (cmd_lever_arg){key == KEY_AS, arg};
        return 0;
    case ARGP_KEY_ARG:
        if (g->model)
            argp_error(state, "'%.40s' is one argument too many; a prompt goes with -p TEXT or --ids IDS", arg);
        g->model = arg;
        return 0;
    case ARGP_KEY_INIT: state->child_inputs[0] = &g->text; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option gen_options[] = {
    {0, 0, 0, 0, "Prompt and length:", 1},
    {"ids", KEY_IDS, "IDS", 0, "the prompt: token ids, 1,2,3 or @FILE", 1},
    {0, 'n', "N", 0, "ids to make (default 8); the end-of-text id does not stop it", 1},
    {"stop", KEY_STOP, "IDS", 0, "stop after one of these ids", 1},
    {"force-ids", KEY_FORCE, "IDS", 0, "feed these ids after the prompt, whatever is chosen (teacher forcing)", 1},
    {0, 0, 0, 0, "The arm:", 2},
    {"spec", KEY_SPEC, "ARM", 0, "cpu[/THREADS] or cuda[/N], then [:LEVER=VALUE[@GLOB[#F]],...], such as cpu:act=bf16",
     2},
    {"device", KEY_DEVICE, "DEV", 0, "cpu[/THREADS] (default cpu) or cuda[/N], GPU N of those counted from 0", 2},
    {"lever", 'l', "K=V[@GLOB[#F]]", 0,
     "set a lever, everywhere or at nodes GLOB in forward F; may be repeated: --lever and --as apply behind "
     "--spec, from left to right, and the last to set a lever counts",
     2},
    {"as", KEY_AS, "PROFILE", 0, "set the levers of a profile; an arm has one at most", 2},
    {"threads", KEY_THREADS, "N", 0, "threads of the processor; never moves a bit", 2},
    {0}};

static const struct argp_child gen_child[] = {{&cmd_text_argp, 0, 0, 0}, {0}};
const struct argp cmd_gen_argp = {gen_options, gen_option, 0, 0, gen_child, 0, 0};

void cmd_gen_free(cmd_gen *g) {
    free(g->prompt);
    free(g->force);
    free(g->stop);
    free(g->prompt_text);
    q4x_tok_close(g->tok);
}

/* One ARM text from --spec or --device and the levers, so that the arm records what can be typed again. */
static int spell_arm(const cmd_gen *g, char *buf, size_t size) {
    int n = snprintf(buf, size, "%s", g->spec ? g->spec : g->device ? g->device : "cpu");
    char sep = strchr(buf, ':') ? ',' : ':';
    for (int i = 0; i < g->nlevers && n >= 0 && (size_t)n < size; i++, sep = ',')
        n += snprintf(buf + n, size - (size_t)n, "%c%s%s", sep, g->lever[i].profile ? "as=" : "", g->lever[i].text);
    return n < 0 || (size_t)n >= size;
}

static int read_ids(cmd_gen *g, q4x_err *err) {
    int rc = 0;
    if (g->ids) TRY(cmd_parse_ids("--ids", g->ids, &g->prompt, &g->n_prompt, err));
    if (g->force_ids) TRY(cmd_parse_ids("--force-ids", g->force_ids, &g->force, &g->n_force, err));
    if (g->stop_ids) TRY(cmd_parse_ids("--stop", g->stop_ids, &g->stop, &g->n_stop, err));
done:
    return rc;
}

int cmd_gen_ready(cmd_gen *g, cmd_ctx *c) {
    q4x_err err = {0};
    char spec[sizeof g->arm.spec];
    if (!g->model) return cmd_misuse(c, "which model? Expected a .gguf file or a checkpoint folder");
    if (!g->ids && !cmd_text_given(&g->text))
        return cmd_misuse(c, "which prompt? Give it as text, -p TEXT, or as token ids, --ids 1,2,3");
    if (g->ids && cmd_text_given(&g->text))
        return cmd_misuse(c, "two prompts: give --ids, or text with -p or --prompt-file");
    if (g->ids && g->text.plain) return cmd_misuse(c, "--no-special goes with a prompt of text");
    if (g->spec && g->device) return cmd_misuse(c, "--spec names the device already: leave --device out");
    if (spell_arm(g, spec, sizeof spec)) return cmd_misuse(c, "the arm is longer than %zu characters", sizeof spec - 1);
    if (q4x_utf8_valid((const uint8_t *)spec, strlen(spec)) < strlen(spec))
        return cmd_misuse(c, "arm '%s': not UTF-8", spec);
    if (q4x_arm_parse(spec, &g->arm, &err)) return cmd_misuse(c, "%s", err.msg);
    if (g->threads && g->arm.threads)
        return cmd_misuse(c, "the arm names %d threads already: leave --threads out", g->arm.threads);
    if (g->threads) g->arm.threads = g->threads;
    if (read_ids(g, &err)) return cmd_refused(c, &err);
    if (!g->n_given) g->n = g->n_force ? g->n_force + 1 : 8;
    return CMD_OK;
}

void cmd_nonfinite_add(cmd_nonfinite *k, const q4x_step *s) {
    k->of++;
    if (!s->nonfinite || k->rows++) return;
    k->forward = s->forward;
    k->values = s->nonfinite;
    k->vocab = s->vocab;
}

void cmd_nonfinite_say(const cmd_nonfinite *k, const cmd_ctx *c) {
    if (!k->rows) return;
    fflush(stdout); /* which it is about */
    fprintf(stderr,
            "%s: NON_FINITE logits in %d of %d forwards, first in forward %d (%d of %d): ids from there on "
            "may say nothing\n",
            c->name, k->rows, k->of, k->forward, k->values, k->vocab);
}

q4x_greedy_opts cmd_greedy(const cmd_gen *g) {
    return (q4x_greedy_opts){.prompt = g->prompt,
                             .force = g->force,
                             .stop = g->stop,
                             .n_prompt = g->n_prompt,
                             .n_force = g->n_force,
                             .n_stop = g->n_stop,
                             .n = g->n};
}
