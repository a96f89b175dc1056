/* cmd_bisect.c: two dumps -> verdict. The exit code is the verdict's; `git bisect run` understands it. */
#include <stdio.h>
#include <stdlib.h>

#include "bin/cmd_pair.h"

static error_t option(int key, char *arg, struct argp_state *state) {
    (void)arg;
    if (key != ARGP_KEY_INIT) return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = state->input;
    return 0;
}

/* A session that cannot be kept is no reason not to compare, unless it was asked for. */
static int open_session(const cmd_pair *p, cmd_ctx *c, bis_session **ret) {
    q4x_err err = {0};
    if (!bis_session_open(p->session, ret, &err)) return CMD_OK;
    if (p->session) return cmd_fail(c, &err);
    fprintf(stderr, "%s: not kept as a session: %s\n", c->name, err.msg);
    return CMD_OK;
}

static void keep(bis_session *s, const cmd_pair *p, const cmd_case *k, cmd_ctx *c) {
    q4x_err err = {0};
    json_t *e = s ? cmd_pair_entry(p, k) : NULL;
    if (s && (!e || bis_session_append(s, e, &err))) {
        fprintf(stderr, "%s: not kept in the session: %s\n", c->name, e ? err.msg : "no memory");
    } else if (s) {
        cmd_written(bis_session_dir(s));
        if (c->verbose) fprintf(stderr, "%s: kept in %s\n", c->name, bis_session_dir(s));
    }
    json_decref(e);
}

int cmd_bisect(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_child child[] = {{&cmd_pair_argp, 0, 0, 0}, {0}};
    static const struct argp argp = {
        0,
        option,
        "A B",
        "Compare two dumps: are they comparable, where do they part, was the difference added there, is it a fault, "
        "rounding or a tie, and which id does it change. A name without a file is tried with .q4d."
        "\vExit codes: 0 no divergence, 1 divergence, 125 cannot judge, 128 fatal, 129 usage.",
        child,
        0,
        0};
    cmd_pair p = {0};
    cmd_case k;
    bis_session *s = NULL;
    cmd_parse(&argp, argc, argv, c, 1, &p);
    if (p.operands < 2) return cmd_misuse(c, "which two dumps?");
    char *command = cmd_line(c);
    int code = open_session(&p, c, &s);
    if (!code)
        code = cmd_case_open(&p, s, command, c, &k);
    else
        k = (cmd_case){0};
    if (k.c) {
        keep(s, &p, &k, c);
        if (c->json)
            code = cmd_print_json(c, bis_json(k.c, &k.names), 9);
        else
            bis_text(k.c, &k.names, c->verbose, stdout);
        if (!code) code = k.c->exit;
        cmd_case_close(&k);
    }
    bis_session_close(s);
    free(command);
    return code;
}
