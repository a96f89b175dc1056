/* cmd_selftest.c: the instrument proves itself. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bin/cmd.h"
#include "bisect/selftest.h"
#include "lib/doomed.h"

enum { KEY_DEVICE = 0x100 };

typedef struct {
    const char *model, *device;
} options;

static error_t option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    if (key == KEY_DEVICE) return o->device = arg, 0;
    if (key != ARGP_KEY_ARG || o->model) return ARGP_ERR_UNKNOWN;
    o->model = arg;
    return 0;
}

typedef struct {
    cmd_ctx *c;
    json_t *rows;
    int plants; /* 1: faults are planted, each on top of honest differences too */
    int n;
    int fate[BIS_NHONEST][BIS_FATES + 1]; /* the last: moved nothing */
    int below[BIS_NHONEST];               /* of those missed: no larger than the least that an outlier of gains is */
} table;

static json_t *on_top(const bis_trial *t) {
    json_t *on = json_array();
    for (int i = 0; i < BIS_NHONEST; i++) {
        const bis_on_top *o = &t->on[i];
        if (!o->ran) continue;
        json_array_append_new(on, json_pack("{s:s, s:s, s:s, s:s, s:o}", "honest", bis_honest[i], "fate", o->word,
                                            "named", o->named, "reason", bis_reason_word(o->reason), "ratio",
                                            isfinite(o->ratio) ? json_real(o->ratio) : json_null()));
    }
    return on;
}

static void heading(const table *k) {
    printf("%-34s %-46s %-11s", "trial", "found", "verdict");
    for (int i = 0; k->plants && i < BIS_NHONEST; i++) printf(" %-15s", bis_honest[i]);
    putchar('\n');
}

static void row(void *ctx, const bis_trial *t) {
    table *k = ctx;
    if (!k->n++ && !k->c->json) heading(k);
    for (int i = 0; i < BIS_NHONEST; i++) {
        const bis_on_top *o = &t->on[i];
        if (o->ran) k->fate[i][o->moved ? o->fate : BIS_FATES]++;
        k->below[i] += o->ran && o->moved && o->fate == BIS_F_MISSED && o->ratio < BIS_GAIN_LIMIT;
    }
    if (k->c->json) {
        json_array_append_new(k->rows, json_pack("{s:s, s:s, s:s, s:b, s:o}", "trial", t->what, "found", t->found,
                                                 "verdict", t->verdict, "good", t->good, "on_top", on_top(t)));
        return;
    }
    printf("%-34s %-46s %-11s", t->what, t->found, t->verdict);
    for (int i = 0; k->plants && i < BIS_NHONEST; i++) printf(" %-15s", t->on[i].ran ? t->on[i].word : "");
    printf(" %s\n", t->good ? "good" : "BAD");
    fflush(stdout);
}

/* On top of each honest difference: how many faults came to what. */
static void sums(const table *k) {
    for (int i = 0; i < BIS_NHONEST; i++) {
        const int *n = k->fate[i];
        printf("on top of %-12s %d found, %d at the next node, %d not judged, %d below the band, %d MISSED, "
               "%d false alarms",
               bis_honest[i], n[BIS_F_EXACT], n[BIS_F_NEXT], n[BIS_F_UNJUDGED], k->below[i],
               n[BIS_F_MISSED] - k->below[i], n[BIS_F_ASTRAY]);
        if (n[BIS_FATES]) printf(", %d moved nothing", n[BIS_FATES]);
        putchar('\n');
    }
}

static int tiny_model(const char *model, const char *dir, table *t, int *ret_bad, q4x_err *err) {
    int quiet = 0, plants = 0;
    int rc = bis_selftest_quiet(model, dir, row, t, &quiet, err);
    if (!rc) rc = bis_selftest_plants(model, dir, bis_plants, bis_nplants, row, t, &plants, err);
    *ret_bad = quiet + plants;
    return rc;
}

/* Which device: a name that bis_selftest_nulls takes, in buf. Returns an exit code. */
static int find_device(const options *o, cmd_ctx *c, char *buf, size_t size) {
    q4x_arm arm = {0};
    q4x_err err = {0};
    if (o->device && !o->model)
        return cmd_misuse(c, "--device goes with a MODEL: without one the judge is tried, by faults in runs on the "
                             "processor");
    if (o->device && q4x_arm_parse(o->device, &arm, &err)) return cmd_misuse(c, "%s", err.msg);
    if (arm.nitems || arm.threads)
        return cmd_misuse(c, "--device: '%.40s', expected cpu or cuda[/N] alone: levers and threads are what is tried",
                          o->device);
    if (arm.cuda)
        snprintf(buf, size, "cuda/%d", arm.device_index);
    else
        snprintf(buf, size, "cpu");
    return CMD_OK;
}

static int run_trials(const options *o, const char *device, const char *tiny, table *t, int *ret_bad, q4x_err *err) {
    const char *tmp = getenv("TMPDIR");
    char dir[4096];
    q4x_doomed doomed = {0};
    snprintf(dir, sizeof dir, "%.4000s/q4x-selftest-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) return q4x_fail(err, Q4X_E_IO, "%.160s: cannot make a folder for the dumps; set TMPDIR", dir);
    q4x_doom(&doomed, dir);
    int rc = o->model ? bis_selftest_nulls(o->model, device, dir, row, t, ret_bad, err)
                      : tiny_model(tiny, dir, t, ret_bad, err);
    rmdir(dir);
    q4x_pardon(&doomed);
    return rc;
}

int cmd_selftest(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_option own[] = {
        {"device", KEY_DEVICE, "DEV", 0, "with MODEL: cpu (default) or cuda[/N], GPU N of those counted from 0", 0},
        {0}};
    static const struct argp argp = {own,
                                     option,
                                     "[MODEL]",
                                     "Without MODEL: plant faults in runs of a tiny model and find each at its place. "
                                     "With MODEL: show that what must not move a bit of its forward does not: a second "
                                     "run, threads, taps, cutting the prompt, reading the file again; with --device "
                                     "cuda, in place of threads, the other device.",
                                     0,
                                     0,
                                     0};
    options o = {0};
    char device[32], tiny[4096];
    q4x_err err = {0};
    int bad = 0;
    cmd_parse(&argp, argc, argv, c, 1, &o);
    int code = find_device(&o, c, device, sizeof device);
    if (code) return code;
    if (!o.model && cmd_find_model(c, "demo.gguf", tiny, sizeof tiny, &err)) return cmd_fail(c, &err);
    table t = {.c = c, .rows = json_array(), .plants = !o.model};
    const int rc = run_trials(&o, device, tiny, &t, &bad, &err);
    code = rc ? cmd_fail(c, &err) : bad ? CMD_DIVERGED : CMD_OK;
    if (!rc && c->json) {
        int printed = cmd_print_json(c, json_pack("{s:b, s:i, s:O}", "good", !bad, "bad", bad, "trials", t.rows), 9);
        if (printed) code = printed;
    } else if (!rc) {
        if (t.plants) sums(&t);
        printf("selftest: %d trials, %d bad\n", t.n, bad);
    }
    json_decref(t.rows);
    return code;
}
