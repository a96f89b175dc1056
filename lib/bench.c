#include "lib/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/machine.h"
#include "lib/tap.h"

enum { MOST_THREADS = 8, MOST_REPEATS = 32 };

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double q4x_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_size);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static int32_t prompt_id(int i, int32_t vocab) {
    return 1 + (int32_t)((int64_t)i * 37 % (vocab - 1));
}
static int32_t step_id(int i, int32_t vocab) {
    return 1 + i % (vocab - 1);
}

static int check(const q4x_net *net, int n_prompt, int n_decode, int repeats, q4x_err *err) {
    if (n_prompt < 1 || n_decode < 1 || repeats < 1 || repeats > MOST_REPEATS)
        return q4x_fail(err, Q4X_E_ARG, "bench: prompt %d, steps %d, repeats %d; expected 1 or more, repeats up to %d",
                        n_prompt, n_decode, repeats, MOST_REPEATS);
    if (q4x_net_dims(net)->V < 2) return q4x_fail(err, Q4X_E_ARG, "bench: a vocabulary of one id");
    return 0;
}

/* One sequence: seconds of the prompt and of all steps. */
static int sequence(q4x_run *r, q4x_tapset *t, const int32_t *prompt, int n_prompt, int n_decode, double *ret_prompt,
                    double *ret_decode, q4x_err *err) {
    int rc;
    int32_t vocab = q4x_run_plan(r)->d.V;
    double t0 = q4x_machine_now();
    TRY(q4x_run_forward(r, prompt, n_prompt, 0, err));
    if (t) TRY(q4x_tapset_forward(t, prompt, n_prompt, 1, -1, err));
    double t1 = q4x_machine_now();
    for (int i = 0; i < n_decode; i++) {
        int32_t id = step_id(i, vocab);
        TRY(q4x_run_forward(r, &id, 1, 0, err));
        if (t) TRY(q4x_tapset_forward(t, &id, 1, 1, -1, err));
    }
    *ret_prompt = t1 - t0;
    *ret_decode = q4x_machine_now() - t1;
done:
    return rc;
}

static int32_t *make_prompt(const q4x_net *net, int n, q4x_err *err) {
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    if (!ids) q4x_fail(err, Q4X_E_NOMEM, "bench: no memory for %d ids", n);
    for (int i = 0; ids && i < n; i++) ids[i] = prompt_id(i, q4x_net_dims(net)->V);
    return ids;
}

static int new_run(const q4x_net *net, int threads, int64_t n_ctx, q4x_run **ret, q4x_err *err) {
    q4x_arm arm;
    q4x_arm_default(&arm);
    arm.threads = threads;
    return q4x_run_new(net, &arm, n_ctx, 0, ret, err);
}

int q4x_bench_rates(const q4x_net *net, const int *threads, int n, int n_prompt, int n_decode, int repeats,
                    q4x_rate *ret, q4x_err *err) {
    double tp[MOST_THREADS][MOST_REPEATS], td[MOST_THREADS][MOST_REPEATS], warm;
    q4x_run *run[MOST_THREADS] = {NULL};
    int rc;
    if (n > MOST_THREADS) n = MOST_THREADS;
    if ((rc = check(net, n_prompt, n_decode, repeats, err))) return rc;
    int32_t *prompt = make_prompt(net, n_prompt, err);
    if (!prompt) return Q4X_E_NOMEM;
    for (int i = 0; i < n; i++) {
        TRY(new_run(net, threads[i], (int64_t)n_prompt + n_decode, &run[i], err));
        TRY(sequence(run[i], NULL, prompt, n_prompt, n_decode, &warm, &warm, err));
    }
    for (int k = 0; k < repeats; k++)
        for (int i = 0; i < n; i++) {
            q4x_run_reset(run[i]);
            TRY(sequence(run[i], NULL, prompt, n_prompt, n_decode, &tp[i][k], &td[i][k], err));
        }
    for (int i = 0; i < n; i++)
        ret[i] = (q4x_rate){n_prompt / q4x_median(tp[i], repeats), n_decode / q4x_median(td[i], repeats)};
done:
    for (int i = 0; i < n; i++) q4x_run_free(run[i]);
    free(prompt);
    return rc;
}

static int tapped(const q4x_net *net, q4x_run *r, const int32_t *prompt, int n_prompt, int n_decode, const char *path,
                  double *ret_prompt, double *ret_decode, q4x_err *err) {
    int rc;
    q4x_tapset *t = NULL;
    q4x_tap_opts o = {.mode = Q4X_MODE_SKETCH};
    json_t *header = json_object();
    if (!header) return q4x_fail(err, Q4X_E_NOMEM, "bench: no memory for a header");
    TRY(q4x_tapset_open(r, net, &o, path, header, &t, err));
    TRY(sequence(r, t, prompt, n_prompt, n_decode, ret_prompt, ret_decode, err));
done:
    q4x_tapset_abort(t);
    q4x_run_on_node(r, NULL, NULL);
    return rc;
}

int q4x_bench_taps(const q4x_net *net, int threads, int n_prompt, int n_decode, int repeats, const char *path,
                   q4x_tap_cost *ret, q4x_err *err) {
    double p[2][MOST_REPEATS], d[2][MOST_REPEATS], warm;
    q4x_run *r = NULL;
    int rc;
    if ((rc = check(net, n_prompt, n_decode, repeats, err))) return rc;
    int32_t *prompt = make_prompt(net, n_prompt, err);
    if (!prompt) return Q4X_E_NOMEM;
    TRY(new_run(net, threads, (int64_t)n_prompt + n_decode, &r, err));
    TRY(sequence(r, NULL, prompt, n_prompt, n_decode, &warm, &warm, err));
    for (int k = 0; k < repeats; k++) {
        q4x_run_reset(r);
        TRY(sequence(r, NULL, prompt, n_prompt, n_decode, &p[0][k], &d[0][k], err));
        q4x_run_reset(r);
        TRY(tapped(net, r, prompt, n_prompt, n_decode, path, &p[1][k], &d[1][k], err));
    }
    *ret = (q4x_tap_cost){q4x_median(p[0], repeats), q4x_median(p[1], repeats), q4x_median(d[0], repeats) / n_decode,
                          q4x_median(d[1], repeats) / n_decode};
done:
    q4x_run_free(r);
    free(prompt);
    return rc;
}

/* Resident bytes of the mappings of one file, from the kernel's own account. */
static uint64_t resident_of(const char *path) {
    char line[4400], *full = realpath(path, NULL);
    uint64_t sum = 0, kb;
    int ours = 0;
    FILE *f = full ? fopen("/proc/self/smaps", "r") : NULL;
    while (f && fgets(line, sizeof line, f)) {
        unsigned long long from, to;
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) {
            line[strcspn(line, "\n")] = 0;
            const char *name = strchr(line, '/');
            ours = name && !strcmp(name, full);
        } else if (ours && sscanf(line, "Rss: %lu kB", &kb) == 1) {
            sum += kb * 1024;
        }
    }
    if (f) fclose(f);
    free(full);
    return sum;
}

int q4x_bench_memory(const q4x_net *net, int n_prompt, q4x_memory *ret, q4x_err *err) {
    enum { STEPS = 8 };
    int rc;
    double t;
    q4x_run *r = NULL;
    if ((rc = check(net, n_prompt, STEPS, 1, err))) return rc;
    int32_t *prompt = make_prompt(net, n_prompt, err);
    if (!prompt) return Q4X_E_NOMEM;
    TRY(new_run(net, 0, (int64_t)n_prompt + STEPS, &r, err));
    TRY(sequence(r, NULL, prompt, n_prompt, STEPS, &t, &t, err));
    uint64_t arena, state, scratch;
    q4x_run_memory(r, &arena, &state, &scratch);
    *ret = (q4x_memory){.resident = q4x_machine_resident(), .run = arena + state + scratch};
    const q4x_model *m = q4x_net_model(net);
    for (int i = 0; i < q4x_model_nshards(m); i++) ret->model += resident_of(q4x_model_shard(m, i)->path);
done:
    q4x_run_free(r);
    free(prompt);
    return rc;
}
