/* cmd.c: what every command shares: options, error lines, JSON on stdout. */
#include "bin/cmd.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- parsing ---- */

typedef struct {
    cmd_ctx *c;
    void *input;
    int own;
} parse_input;

enum { KEY_USAGE = 0x300 };

static error_t common_option(int key, char *arg, struct argp_state *state) {
    cmd_ctx *c = state->input;
    (void)arg;
    switch (key) {
    case 'h': c->help = ARGP_HELP_STD_HELP; return 0;
    case KEY_USAGE: c->help = ARGP_HELP_USAGE; return 0;
    case 'v': c->verbose++; return 0;
    case 'j': c->json = 1; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t top_option(int key, char *arg, struct argp_state *state) {
    parse_input *p = state->input;
    (void)arg;
    if (key != ARGP_KEY_INIT) return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = p->input;
    state->child_inputs[1] = p->c;
    return 0;
}

/* The first message: what stands before argp's own hint, which begins a line; one that was typed may hold line ends,
 * and more than is to be repeated. Without the name that argp put in front, which cmd_misuse puts there itself. */
static const char *first_message(const cmd_ctx *c, char *said) {
    enum { MOST = 300 };
    size_t name = strlen(c->name);
    if (!said) return "these options and arguments cannot be read";
    char *hint = strstr(said, "\nTry `");
    if (hint) *hint = 0;
    if (strlen(said) > MOST) strcpy(said + MOST - 3, "...");
    return !strncmp(said, c->name, name) && !strncmp(said + name, ": ", 2) ? said + name + 2 : said;
}

/* The option of this key, in a command's own list or in those of its children. */
static const struct argp_option *find_option(const struct argp *a, int key) {
    for (const struct argp_option *o = a->options; o && (o->name || o->key || o->doc); o++)
        if (o->key == key) return o;
    for (const struct argp_child *k = a->children; k && k->argp; k++) {
        const struct argp_option *o = find_option(k->argp, key);
        if (o) return o;
    }
    return NULL;
}

int cmd_empty(const struct argp_state *state, int key, const char *arg) {
    if (!arg || *arg) return 0;
    if (key == ARGP_KEY_ARG) {
        argp_error(state, "an argument is empty");
        return 1;
    }
    const struct argp_option *o = find_option(state->root_argp, key);
    if (!o || !o->arg) return 0;
    if (o->name)
        argp_error(state, "--%s: empty, expected %s", o->name, o->arg);
    else
        argp_error(state, "-%c: empty, expected %s", key, o->arg);
    return 1;
}

void cmd_parse(const struct argp *own, int argc, char **argv, cmd_ctx *c, int with_json, void *input) {
    static const struct argp_option plain[] = {{"verbose", 'v', 0, 0, "say more", -1},
                                               {"help", 'h', 0, 0, "print this and stop", -1},
                                               {"usage", KEY_USAGE, 0, OPTION_HIDDEN, 0, -1},
                                               {0}};
    static const struct argp_option json[] = {{"json", 'j', 0, 0, "the result as JSON on stdout", -1},
                                              {"verbose", 'v', 0, 0, "say more", -1},
                                              {"help", 'h', 0, 0, "print this and stop", -1},
                                              {"usage", KEY_USAGE, 0, OPTION_HIDDEN, 0, -1},
                                              {0}};
    struct argp common = {with_json ? json : plain, common_option, 0, 0, 0, 0, 0};
    struct argp_child children[] = {{own, 0, 0, 0}, {&common, 0, 0, 0}, {0}};
    struct argp top = {0, top_option, 0, 0, children, 0, 0};
    parse_input in = {.c = c, .input = input};
    argp_err_exit_status = CMD_USAGE;
    setenv("ARGP_HELP_FMT", "rmargin=110,opt-doc-col=30,no-dup-args-note", 0);
    argv[0] = c->name; /* argp names the command by it */
    /* argp and getopt say two lines where one is due: they are heard here, and the first is passed on */
    char *said = NULL;
    size_t length = 0;
    FILE *own_stderr = stderr, *ear = open_memstream(&said, &length);
    if (ear) stderr = ear;
    error_t rc = argp_parse(&top, argc, argv, ARGP_NO_HELP | ARGP_NO_EXIT, NULL, &in);
    stderr = own_stderr;
    if (ear) fclose(ear);
    if (c->help) {
        argp_help(&top, stdout, (unsigned)c->help, c->name);
        exit(CMD_OK);
    }
    if (rc || length) exit(cmd_misuse(c, "%s", first_message(c, said)));
    free(said);
    q4x_log_init(&c->log, stderr, c->verbose, !c->json);
}

/* ---- errors ---- */

int cmd_fail(cmd_ctx *c, const q4x_err *err) {
    q4x_log_done(&c->log);
    fprintf(stderr, "%s: %s\n", c->name, err->msg);
    if (c->verbose && err->file) fprintf(stderr, "%s: (from %s:%d)\n", c->name, err->file, err->line);
    return CMD_FATAL;
}

int cmd_misuse(cmd_ctx *c, const char *fmt, ...) {
    char said[600], plain[4 * sizeof said + 16]; /* what was typed may hold anything */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(said, sizeof said, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s: %s (see '%s --help')\n", c->name, cmd_plain(said, strlen(said), plain, sizeof plain), c->name);
    return CMD_USAGE;
}

int cmd_dash(cmd_ctx *c, const char *what, const char *path) {
    if (!path || strcmp(path, "-")) return CMD_OK;
    return cmd_misuse(c, "%s: '-', expected a file; one of that name is ./-", what);
}

int cmd_refused(cmd_ctx *c, const q4x_err *err) {
    if (err->code != Q4X_E_ARG) return cmd_fail(c, err);
    q4x_log_done(&c->log);
    return cmd_misuse(c, "%s", err->msg);
}

/* ---- JSON ---- */

int cmd_print_json(cmd_ctx *c, json_t *value, int digits) {
    q4x_err err = {0};
    size_t flags = JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION((size_t)digits);
    int bad = !value || json_dumpf(value, stdout, flags);
    json_decref(value);
    if (bad && !ferror(stdout)) {
        q4x_fail(&err, Q4X_E_NOMEM, "no memory for the JSON result");
        return cmd_fail(c, &err);
    }
    putchar('\n');
    return CMD_OK;
}

json_t *cmd_real(double x) {
    if (isfinite(x)) return json_real(x);
    return json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
}

json_t *cmd_ids(const int32_t *ids, int32_t n) {
    json_t *a = json_array();
    for (int32_t i = 0; a && i < n; i++)
        if (json_array_append_new(a, json_integer(ids[i]))) {
            json_decref(a);
            return NULL;
        }
    return a;
}

json_t *cmd_string(const char *s, size_t n) {
    char buf[1024];
    json_t *j = json_stringn(s, n);
    return j ? j : json_string(cmd_plain(s, n, buf, sizeof buf));
}

/* ---- files ---- */

int cmd_find_model(const cmd_ctx *c, const char *name, char *buf, size_t size, q4x_err *err) {
    char exe[3000];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0) n = snprintf(exe, sizeof exe, "%s", c->exe);
    exe[n < (ssize_t)sizeof exe ? n : (ssize_t)sizeof exe - 1] = 0;
    snprintf(buf, size, "tests/models/%s", name);
    if (!access(buf, R_OK)) return 0;
    for (char *slash = strrchr(exe, '/'); slash; slash = strrchr(exe, '/')) {
        *slash = 0;
        snprintf(buf, size, "%s/tests/models/%s", exe, name);
        if (!access(buf, R_OK)) return 0;
        snprintf(buf, size, "%s/share/q4x/%s", exe, name);
        if (!access(buf, R_OK)) return 0;
    }
    return q4x_fail(err, Q4X_E_IO, "cannot find %s: looked in tests/models here and above the program; name a model",
                    name);
}

int cmd_dump_read(const char *name, q4x_dump **ret, q4x_err *err) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s.q4d", name);
    if (access(name, F_OK) && n > 0 && (size_t)n < sizeof path && !access(path, F_OK)) name = path;
    return q4x_dump_read(name, ret, err);
}

/* ---- the nearest word ---- */

enum { MAX_WORD = 32 };

/* Edits (insert, drop, change) between two words of at most MAX_WORD characters. */
static int edits(const char *a, const char *b) {
    int row[MAX_WORD + 1];
    int na = (int)strnlen(a, MAX_WORD), nb = (int)strnlen(b, MAX_WORD);
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diag = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int best = diag + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diag = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

const char *cmd_nearest(const char *typed, const char *(*word)(int i, void *ctx), int n, void *ctx) {
    const char *best = NULL;
    const size_t len = strlen(typed);
    if (len > MAX_WORD) return NULL;
    int least = (int)len / 3 + 2;
    for (int i = 0; i < n; i++) {
        const char *w = word(i, ctx);
        int d = edits(typed, w);
        if (len >= 2 && !strncmp(typed, w, len)) d = 0; /* a beginning of it */
        if (d < least) {
            least = d;
            best = w;
        }
    }
    return best;
}
