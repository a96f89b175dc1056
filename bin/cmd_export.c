/* cmd_export.c: full tensors of a dump as safetensors. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

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
    if (strcmp(o.to, "safetensors")) return cmd_misuse(c, "--to: '%.40s', expected safetensors", o.to);
    int rc = cmd_dump_read(o.dump, &d, &err);
    if (!rc) rc = q4x_dump_export(d, o.out, &err);
    q4x_dump_free(d);
    return rc ? cmd_fail(c, &err) : CMD_OK;
}
