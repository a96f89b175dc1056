/* cmd_report.c: a case as Markdown: of two dumps, of a session, or of the last bisect here. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bin/cmd_pair.h"

static error_t option(int key, char *arg, struct argp_state *state) {
    (void)arg;
    if (key != ARGP_KEY_INIT) return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = state->input;
    return 0;
}

/* A dump, by its name with or without .q4d? */
static int is_file(const char *name) {
    struct stat st;
    char with[4096];
    if (!stat(name, &st)) return S_ISREG(st.st_mode);
    int n = snprintf(with, sizeof with, "%s.q4d", name);
    return n > 0 && (size_t)n < sizeof with && !access(with, F_OK);
}

/* A session is named once, and holds its own dumps and controls. Returns an exit code. */
static int check_operands(const cmd_pair *p, cmd_ctx *c) {
    if (p->session && p->operands)
        return cmd_misuse(c, "--session is the case to report: leave '%.80s' out", p->name[0]);
    if (p->operands == 1 && is_file(p->name[0]))
        return cmd_misuse(c, "'%.80s' is one file: expected two dumps, or the folder of a session", p->name[0]);
    if (p->operands < 2 && (p->floor_a || p->floor_b || p->null_a || p->allow_confounded))
        return cmd_misuse(c, "a session has its own controls: they go with two dumps");
    return CMD_OK;
}

/* The pair that the session's last entry names, with the controls it was judged with. */
static int from_session(cmd_pair *p, const char *name, json_t **ret_entry, const char **ret_command, cmd_ctx *c) {
    q4x_err err = {0};
    if (bis_session_last(name, ret_entry, &err) || cmd_pair_from_entry(*ret_entry, p, &err)) return cmd_fail(c, &err);
    *ret_command = json_string_value(json_object_get(*ret_entry, "command"));
    return CMD_OK;
}

int cmd_report(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_child child[] = {{&cmd_pair_argp, 0, 0, 0}, {0}};
    static const struct argp argp = {
        0,
        option,
        "[A B | SESSION]",
        "Write the whole case as Markdown on stdout: what was compared, the controls, where the runs part, what "
        "decided "
        "the ids, what to record next, and what is not established. Without arguments: the last bisect here."
        "\vThe exit code is 0 when the report was written; the verdict's own exit code stands in it.",
        child,
        0,
        0};
    cmd_pair p = {0};
    cmd_case k = {0};
    q4x_err err = {0};
    json_t *entry = NULL;
    cmd_parse(&argp, argc, argv, c, 1, &p);
    char *own = cmd_line(c);
    const char *command = own;
    int code = check_operands(&p, c);
    if (!code && p.operands < 2) code = from_session(&p, p.operands ? p.name[0] : p.session, &entry, &command, c);
    if (!code) code = cmd_case_open(&p, NULL, command, c, &k);
    if (!code) {
        if (entry && cmd_case_unchanged(&k, entry, &err))
            code = cmd_fail(c, &err);
        else if (c->json)
            code = cmd_print_json(c, bis_json(k.c, &k.names), 9);
        else
            bis_report(k.c, &k.names, stdout);
        cmd_case_close(&k);
    }
    json_decref(entry);
    free(own);
    return code;
}
