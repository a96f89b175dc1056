/* main.c: dispatch, exit codes, the last look at stdout. Compiled for any x86-64 (see lib/machine.h). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bin/cmd.h"
#include "lib/doomed.h"
#include "lib/io.h"
#include "lib/machine.h"

const cmd_row cmd_list[] = {
#define CMD(name, fn, needs, help) {name, fn, needs, help},
#include "bin/commands.def"
#undef CMD
};
const int cmd_count = (int)(sizeof cmd_list / sizeof *cmd_list);

static char running[32] = "q4x"; /* for the message of close_stdout, which the C library calls without arguments */

static char written[220]; /* and what stays for all that */

void cmd_written(const char *path) {
    const char *tail = q4x_tail(path);
    char plain[180];
    snprintf(written, sizeof written, "; %s is complete and stays", cmd_plain(tail, strlen(tail), plain, sizeof plain));
}

/* A full disk behind `> file` shows at the last flush: it must not end as success. */
static void close_stdout(void) {
    int bad = ferror(stdout);
    errno = 0;
    if (fflush(stdout) || bad) {
        if (errno != EPIPE) /* a reader that has enough, like head, is no news */
            fprintf(stderr, "%s: standard output: cannot write: %s%s\n", running,
                    errno ? strerror(errno) : "output error", written);
        _exit(CMD_FATAL);
    }
}

static const char *command_name(int i, void *ctx) {
    (void)ctx;
    return cmd_list[i].name;
}

static const cmd_row *find(const char *name) {
    for (int i = 0; i < cmd_count; i++)
        if (!strcmp(cmd_list[i].name, name)) return &cmd_list[i];
    return NULL;
}

static int unknown(const char *name) {
    char plain[64];
    const char *near = cmd_nearest(name, command_name, cmd_count, NULL);
    fprintf(stderr, "q4x: no command '%s'", cmd_plain(name, strlen(name), plain, sizeof plain));
    if (near) fprintf(stderr, "; did you mean '%s'?", near);
    fprintf(stderr, " (see 'q4x help')\n");
    return CMD_USAGE;
}

static void print_help(FILE *to) {
    fprintf(to, "usage: q4x COMMAND [ARGUMENT...]\n\n"
                "Finds where two runs of the same language model stop agreeing.\n\n");
    for (int i = 0; i < cmd_count; i++)
        fprintf(to, "  %-9s %-10s %s\n", cmd_list[i].name, cmd_list[i].needs, cmd_list[i].help);
    fprintf(to, "\n'q4x COMMAND --help' lists a command's options.\n"
                "Exit codes: 0 no divergence, or done; 1 divergence; 125 cannot judge; 128 fatal; 129 usage.\n");
}

static void print_help_markdown(void) {
    printf("| command | what it does |\n|---|---|\n");
    for (int i = 0; i < cmd_count; i++)
        printf("| `q4x %s%s%s` | %s |\n", cmd_list[i].name, cmd_list[i].needs[0] ? " " : "", cmd_list[i].needs,
               cmd_list[i].help);
}

static int dispatch(const cmd_row *k, int argc, char **argv, const char *exe) {
    char **given =
        malloc(((size_t)argc + 1) * sizeof *given); /* argp moves arguments about; dumps record them as typed */
    if (!given) return CMD_FATAL;
    memcpy(given, argv, ((size_t)argc + 1) * sizeof *given);
    cmd_ctx c = {.exe = exe, .argc = argc, .argv = given};
    snprintf(c.name, sizeof c.name, "q4x %s", k->name);
    snprintf(running, sizeof running, "%s", c.name);
    int code = k->fn(argc, argv, &c);
    free(given);
    return code;
}

/* ---- q4x help ---- */

typedef struct {
    const char *name;
    int markdown;
} help_options;

static error_t help_option(int key, char *arg, struct argp_state *state) {
    help_options *o = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    if (key == 'm')
        o->markdown = 1;
    else if (key == ARGP_KEY_ARG && !o->name)
        o->name = arg;
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

int cmd_help(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_option options[] = {{"markdown", 'm', 0, 0, "the list as a Markdown table", 0}, {0}};
    static const struct argp argp = {options, help_option, "[COMMAND]", "List the commands.", 0, 0, 0};
    help_options o = {0};
    cmd_parse(&argp, argc, argv, c, 0, &o);
    if (!o.name) {
        if (o.markdown)
            print_help_markdown();
        else
            print_help(stdout);
        return CMD_OK;
    }
    if (o.markdown) return cmd_misuse(c, "--markdown is for the list of commands alone");
    const cmd_row *k = find(o.name);
    if (!k) return unknown(o.name);
    char *args[] = {argv[0], "--help", NULL};
    return dispatch(k, 2, args, c->exe);
}

int main(int argc, char **argv) {
    q4x_err err;
    if (atexit(close_stdout)) return CMD_FATAL;
    q4x_doom_on_signals();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of write, which names it */
    if (q4x_machine_check(&err)) {
        fprintf(stderr, "q4x: %s\n", err.msg);
        return CMD_FATAL;
    }
    if (argc < 2) {
        print_help(stderr);
        return CMD_USAGE;
    }
    if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help")) {
        print_help(stdout);
        return CMD_OK;
    }
    const char *name = !strcmp(argv[1], "--version") || !strcmp(argv[1], "-V") ? "version" : argv[1];
    if (name[0] == '-') {
        char plain[64];
        fprintf(stderr, "q4x: unknown option '%s' (see 'q4x help')\n",
                cmd_plain(name, strlen(name), plain, sizeof plain));
        return CMD_USAGE;
    }
    const cmd_row *k = find(name);
    return k ? dispatch(k, argc - 1, argv + 1, argv[0]) : unknown(name);
}
