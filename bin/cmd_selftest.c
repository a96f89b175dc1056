/* cmd_selftest.c: the instrument proves itself. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bin/cmd.h"
#include "bisect/selftest.h"

static error_t option(int key, char *arg, struct argp_state *state) {
    const char **model = state->input;
    if (key != ARGP_KEY_ARG || *model) return ARGP_ERR_UNKNOWN;
    *model = arg;
    return 0;
}

typedef struct {
    cmd_ctx *c;
    json_t *rows;
    int n;
} table;

static void row(void *ctx, const bis_trial *t) {
    table *k = ctx;
    if (k->c->json) {
        json_array_append_new(k->rows, json_pack("{s:s, s:s, s:s, s:b}", "trial", t->what, "found", t->found, "verdict",
                                                 t->verdict, "good", t->good));
        return;
    }
    if (!k->n++) printf("%-36s %-48s %s\n", "trial", "found", "");
    printf("%-36s %-48s %-12s %s\n", t->what, t->found, t->verdict, t->good ? "good" : "BAD");
    fflush(stdout);
}

int cmd_selftest(int argc, char **argv, cmd_ctx *c) {
    static const struct argp argp = {0,
                                     option,
                                     "[MODEL]",
                                     "Without MODEL: plant faults in runs of a tiny model and find each at its place. "
                                     "With MODEL: show that what must not move a bit of its forward does not: a second "
                                     "run, threads, taps, cutting the prompt, reading the file again.",
                                     0,
                                     0,
                                     0};
    const char *model = NULL, *tmp = getenv("TMPDIR");
    char dir[4096], tiny[4096];
    q4x_err err = {0};
    int rc = 0, bad = 0;
    cmd_parse(&argp, argc, argv, c, 1, &model);
    if (!model && cmd_find_model(c, "demo.gguf", tiny, sizeof tiny, &err)) return cmd_fail(c, &err);
    snprintf(dir, sizeof dir, "%.4000s/q4x-selftest-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) {
        q4x_fail(&err, Q4X_E_IO, "%.160s: cannot make a folder for the dumps; set TMPDIR", dir);
        return cmd_fail(c, &err);
    }
    table t = {.c = c, .rows = json_array()};
    if (model)
        rc = bis_selftest_nulls(model, dir, row, &t, &bad, &err);
    else
        rc = bis_selftest_plants(tiny, dir, row, &t, &bad, &err);
    rmdir(dir);
    int code = rc ? cmd_fail(c, &err) : bad ? CMD_DIVERGED : CMD_OK;
    if (!rc && c->json) {
        int printed = cmd_print_json(c, json_pack("{s:b, s:i, s:O}", "good", !bad, "bad", bad, "trials", t.rows), 9);
        if (printed) code = printed;
    } else if (!rc) {
        printf("selftest: %d trials, %d bad\n", t.n, bad);
    }
    json_decref(t.rows);
    return code;
}
