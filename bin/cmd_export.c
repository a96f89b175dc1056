/* cmd_export.c: full tensors of a dump as safetensors. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bin/cmd.h"
#include "lib/dump.h"

typedef struct {
    const char *dump, *out, *to;
} options;

static error_t option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case 't': o->to = arg; return 0;
    case ARGP_KEY_ARG:
        if (!o->dump)
            o->dump = arg;
        else if (!o->out)
            o->out = arg;
        else
            return ARGP_ERR_UNKNOWN;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* A pipe or a device gets the tensors alone: it may be stdout. */
static int is_file(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode);
}

int cmd_export(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_option own[] = {{"to", 't', "FORMAT", 0, "safetensors (the only one, and the default)", 0},
                                             {0}};
    static const struct argp argp = {own,
                                     option,
                                     "DUMP OUT",
                                     "Write every full tensor of a dump (made with --mode full) under the key fN/TAP, "
                                     "V heads in the order of the HF checkpoint.",
                                     0,
                                     0,
                                     0};
    options o = {.to = "safetensors"};
    q4x_err err = {0};
    q4x_dump *d = NULL;
    cmd_parse(&argp, argc, argv, c, 0, &o);
    if (!o.out) return cmd_misuse(c, "expected a dump and the file to write");
    if (cmd_dash(c, "OUT", o.out)) return CMD_USAGE;
    if (strcmp(o.to, "safetensors")) return cmd_misuse(c, "--to: '%.40s', expected safetensors", o.to);
    q4x_export_done done = {0};
    int rc = cmd_dump_read(o.dump, &d, &err);
    if (!rc) rc = q4x_dump_export(d, o.out, &done, &err);
    q4x_dump_free(d);
    if (rc) return cmd_fail(c, &err);
    if (is_file(o.out)) {
        cmd_written(o.out);
        printf("%s: safetensors, %lld tensors, %llu bytes\n", o.out, (long long)done.tensors,
               (unsigned long long)done.bytes);
    }
    return CMD_OK;
}
