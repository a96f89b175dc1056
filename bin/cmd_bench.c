/* cmd_bench.c: rates and ratios of one machine in one run. Never fails on time. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bin/cmd.h"
#include "bisect/case.h"
#include "bisect/selftest.h"
#include "lib/bench.h"
#include "lib/doomed.h"
#include "lib/machine.h"

typedef struct {
    const char *model;
    int rates_only;
} options;

enum { PROMPT = 256, STEPS = 64, REPEATS = 5 };

static error_t option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case 'r': o->rates_only = 1; return 0;
    case ARGP_KEY_ARG:
        if (o->model) return ARGP_ERR_UNKNOWN;
        o->model = arg;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int rates(const q4x_net *net, q4x_err *err) {
    static const int threads[] = {1, 2};
    q4x_rate r[2];
    int rc = q4x_bench_rates(net, threads, 2, PROMPT, STEPS, REPEATS, r, err);
    if (rc) return rc;
    printf("ids a second     prompt %d    decode\n", PROMPT);
    for (int i = 0; i < 2; i++) printf("%d threads       %10.0f%10.0f\n", threads[i], r[i].prompt, r[i].decode);
    printf("ratio            %10.2f%10.2f\n", r[1].prompt / r[0].prompt, r[1].decode / r[0].decode);
    if (!(r[1].prompt >= r[0].prompt && r[1].decode >= r[0].decode))
        printf("note             2 threads are slower than 1: other work is on the cores, and threads that wait for\n"
               "                 each other spin unless OMP_WAIT_POLICY is passive; --threads 1 has none that wait\n");
    return 0;
}

static int taps(const q4x_net *net, const char *dir, q4x_err *err) {
    char path[4096];
    snprintf(path, sizeof path, "%s/bench.q4d", dir);
    q4x_tap_cost c;
    int rc = q4x_bench_taps(net, 0, PROMPT, STEPS, REPEATS, path, &c, err);
    if (rc) return rc;
    printf("\nsketch taps of the public nodes: forward of %d ids %.1f ms, tapped %.1f ms, ratio %.2f\n", PROMPT,
           1e3 * c.plain_prompt, 1e3 * c.tapped_prompt, c.tapped_prompt / c.plain_prompt);
    printf("                                 decode step %.2f ms, tapped %.2f ms, ratio %.2f\n", 1e3 * c.plain_decode,
           1e3 * c.tapped_decode, c.tapped_decode / c.plain_decode);
    return 0;
}

/* Read and judge two dumps of 8 forwards. */
static int comparison(const q4x_net *net, const char *dir, q4x_err *err) {
    int rc;
    static const int32_t ids[] = {366, 380, 486, 573, 261};
    char a[4096], b[4096];
    q4x_dump *da = NULL, *db = NULL;
    bis_case *c = NULL;
    q4x_greedy_opts go = {.prompt = ids, .n_prompt = 5, .n = 8};
    q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH, .bands = 1};
    snprintf(a, sizeof a, "%s/a.q4d", dir);
    snprintf(b, sizeof b, "%s/b.q4d", dir);
    TRY(bis_dump_arm(net, "cpu", &go, &o, a, err));
    TRY(bis_dump_arm(net, "cpu:act=bf16", &go, &o, b, err));
    double t0 = q4x_machine_now();
    TRY(q4x_dump_read(a, &da, err));
    TRY(q4x_dump_read(b, &db, err));
    double t1 = q4x_machine_now();
    TRY(bis_judge(&(bis_request){.a = da, .b = db}, &c, err));
    double t2 = q4x_machine_now();
    printf("comparing two dumps of 8 forwards: %.0f ms (reading %.0f, judging %.0f)\n", 1e3 * (t2 - t0),
           1e3 * (t1 - t0), 1e3 * (t2 - t1));
done:
    bis_case_free(c);
    q4x_dump_free(da);
    q4x_dump_free(db);
    unlink(a);
    unlink(b);
    return rc;
}

static int memory(const q4x_net *net, q4x_err *err) {
    q4x_memory m;
    int rc = q4x_bench_memory(net, PROMPT, &m, err);
    if (rc) return rc;
    const double mib = 1048576.0;
    printf("resident memory: %.1f MiB = pages of the model %.1f + state and buffers %.1f + the rest %.1f\n",
           (double)m.resident / mib, (double)m.model / mib, (double)m.run / mib,
           ((double)m.resident - (double)m.model - (double)m.run) / mib);
    return 0;
}

/* What needs dumps, in a folder of their own. */
static int costs(const q4x_net *net, q4x_err *err) {
    char dir[] = "/tmp/q4x-bench-XXXXXX";
    q4x_doomed doomed = {0};
    if (!mkdtemp(dir)) return q4x_fail(err, Q4X_E_IO, "%s: cannot make a folder for the dumps", dir);
    q4x_doom(&doomed, dir);
    int rc = memory(net, err);
    if (!rc) rc = taps(net, dir, err);
    if (!rc) rc = comparison(net, dir, err);
    rmdir(dir);
    q4x_pardon(&doomed);
    return rc;
}

int cmd_bench(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_option own[] = {{"rates", 'r', 0, 0, "only the rates", 0}, {0}};
    static const struct argp argp = {own,
                                     option,
                                     "[MODEL]",
                                     "Time forwards, taps and a comparison on MODEL (default: the demo model), each "
                                     "ratio within one run.",
                                     0,
                                     0,
                                     0};
    options o = {0};
    q4x_err err = {0};
    q4x_net *net = NULL;
    char model[4096];
    cmd_parse(&argp, argc, argv, c, 0, &o);
    if (!o.model) {
        if (cmd_find_model(c, "demo.gguf", model, sizeof model, &err)) return cmd_fail(c, &err);
        o.model = model;
    }
    int rc = q4x_net_open(o.model, &net, &err);
    if (!rc) rc = rates(net, &err);
    if (!rc && !o.rates_only) rc = costs(net, &err);
    q4x_net_close(net);
    return rc ? cmd_fail(c, &err) : CMD_OK;
}
