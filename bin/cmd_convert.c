/* cmd_convert.c: a checkpoint to a GGUF file. */
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bin/cmd.h"
#include "lib/convert.h"
#include "lib/io.h"
#include "lib/machine.h"

typedef struct {
    const char *from, *to, *type, *name;
    int no_tokenizer, threads;
} options;

enum { KEY_NAME = 0x100, KEY_THREADS, KEY_NO_TOKENIZER };

static int parse_threads(const char *arg) {
    char *end;
    long n = strtol(arg, &end, 10);
    return *arg && !*end && n >= 1 && n <= 1024 ? (int)n : 0;
}

static error_t option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case 't': o->type = arg; return 0;
    case KEY_NAME: o->name = arg; return 0;
    case KEY_NO_TOKENIZER: o->no_tokenizer = 1; return 0;
    case KEY_THREADS:
        o->threads = parse_threads(arg);
        if (!o->threads) argp_error(state, "--threads: '%.40s', expected 1 to 1024", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (!o->from)
            o->from = arg;
        else if (!o->to)
            o->to = arg;
        else
            return ARGP_ERR_UNKNOWN;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The last part of the checkpoint's path that is a name, as a new string; NULL: no memory. */
static char *folder_name(const char *path) {
    size_t n = strlen(path), from;
    while (n && (path[n - 1] == '/' || (path[n - 1] == '.' && (n == 1 || path[n - 2] == '/' || path[n - 2] == '.'))))
        n--;
    for (from = n; from && path[from - 1] != '/';) from--;
    return n ? strndup(path + from, n - from) : strdup("model");
}

/* 1 when the file to write is there already, in the folder of the checkpoint: what was read may be that file. */
static int is_of_source(const options *o) {
    struct stat from, to, folder;
    char *copy = strdup(o->to);
    const int yes = copy && !stat(o->from, &from) && !stat(o->to, &to) && !stat(dirname(copy), &folder) &&
                    folder.st_dev == from.st_dev && folder.st_ino == from.st_ino;
    free(copy);
    return yes;
}

static int convert(const options *o, const q4x_convert_opts *how, q4x_convert_done *done, q4x_err *err) {
    q4x_model *m;
    if (is_of_source(o))
        return q4x_fail(err, Q4X_E_IO, "%s: is a file of the checkpoint; write to a new file", q4x_tail(o->to));
    int rc = q4x_model_open(o->from, &m, err);
    if (rc) return rc;
    rc = q4x_convert(m, o->to, how, done, err);
    q4x_model_close(m);
    return rc;
}

static int print(const options *o, const char *type, const q4x_convert_done *done, cmd_ctx *c) {
    if (c->json)
        return cmd_print_json(c,
                              json_pack("{s:o, s:s, s:I, s:I, s:I}", "file", cmd_string(o->to, strlen(o->to)), "type",
                                        type, "tensors", (json_int_t)done->tensors, "bytes", (json_int_t)done->bytes,
                                        "left_out", (json_int_t)done->left_out),
                              9);
    printf("%s: %s, %lld tensors, %llu bytes\n", o->to, type, (long long)done->tensors,
           (unsigned long long)done->bytes);
    if (done->left_out) printf("left out: %lld tensors of parts that are not run\n", (long long)done->left_out);
    return CMD_OK;
}

int cmd_convert(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_option own[] = {
        {"type", 't', "TYPE", 0, "file type: F32, F16, BF16 (default), Q8_0, Q4_K_M, UD-IQ1_S and others", 1},
        {"name", KEY_NAME, "NAME", 0, "general.name of the file; default: the folder's", 1},
        {"no-tokenizer", KEY_NO_TOKENIZER, 0, 0, "leave the tokenizer out", 1},
        {"threads", KEY_THREADS, "N", 0, "threads; never moves a bit", 1},
        {0}};
    static const struct argp argp = {own,
                                     option,
                                     "HFDIR OUT",
                                     "Convert a checkpoint (config.json and safetensors) to a GGUF file. Prediction "
                                     "heads and vision towers are left out.",
                                     0,
                                     0,
                                     0};
    options o = {.type = "BF16"};
    q4x_err err = {0};
    cmd_parse(&argp, argc, argv, c, 1, &o);
    if (!o.to) return cmd_misuse(c, "expected a checkpoint's folder and the file to write");
    if (cmd_dash(c, "OUT", o.to)) return CMD_USAGE;
    int type = q4x_file_type_find(o.type);
    if (type < 0) {
        char types[200];
        return cmd_misuse(c, "--type: '%.40s', expected one of %s", o.type, q4x_convert_types(types, sizeof types));
    }
    char *name = folder_name(o.from);
    q4x_convert_opts how = {.type = (q4x_file_type)type, .no_tokenizer = o.no_tokenizer, .log = &c->log};
    how.name = o.name ? o.name : name ? name : "model";
    how.nth = o.threads ? o.threads : q4x_machine_cpus();
    q4x_convert_done done;
    int rc = convert(&o, &how, &done, &err);
    free(name);
    if (!rc) cmd_written(o.to);
    return rc ? cmd_refused(c, &err) : print(&o, q4x_file_types[type].name, &done, c);
}
