/* t_synth_range.c [long]: the activations of a synthetic model stay where the field's fingerprints are: the first mix
 * sums to thousands, the streams reach hundreds and no more, the router has near ties, nothing overflows. `tiny`
 * always; long: all 48 layers at full width (5.4 GB in TMPDIR) and a vocabulary of 4096.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/run.h"
#include "tests/check.h"
#include "tests/h_forward.h"
#include "tests/h_synth.h"

static int is_long;

typedef struct {
    const q4x_plan *p; /* while the model is open */
    int32_t D, L;
    double mix_sum, stream_max[64], out_max, gap, logit_sum; /* gap: smallest between the last chosen and the next */
    int64_t nonfinite, gaps, logits, close;
} seen;

static void look_at_router(seen *s, const float *x, int n, int k) {
    double best = -INFINITY, next = -INFINITY; /* k-th and k+1st by counting, n is small */
    for (int i = 0; i < n; i++) {
        int above = 0;
        for (int j = 0; j < n; j++) above += x[j] > x[i] || (x[j] == x[i] && j < i);
        if (above == k - 1) best = (double)x[i];
        if (above == k) next = (double)x[i];
        s->logit_sum += fabs((double)x[i]);
    }
    s->logits += n;
    s->gaps++;
    s->close += best - next < 0.01;
    if (best - next < s->gap) s->gap = best - next;
}

static int look(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    (void)err;
    seen *s = ctx;
    const q4x_node *n = &s->p->node[ev->node];
    const float *x = ev->data;
    double max = 0, sum = 0;
    if (n->is_ids) return 0;
    for (int64_t i = 0; i < ev->nrows * ev->cols; i++) {
        double a = fabs((double)x[i]);
        if (!(a <= FLT_MAX)) s->nonfinite += strstr(n->name, "attn.") == NULL; /* masked scores are -inf */
        if (a > max) max = a;
        sum += a;
    }
    if (!strcmp(n->name, "L00.ahc.mix")) s->mix_sum += sum;
    if (n->layer >= 0 && strstr(n->name, "s.mlp") && max > s->stream_max[n->layer]) s->stream_max[n->layer] = max;
    if (!strcmp(n->name, "out") && max > s->out_max) s->out_max = max;
    if (strstr(n->name, "moe.logits"))
        for (int32_t r = 0; r < ev->nrows; r++) look_at_router(s, x + r * ev->cols, (int)ev->cols, s->p->d.K);
    return 0;
}

static void measure(const char *path, seen *ret) {
    q4x_err err = {0};
    q4x_net *net = h_net(path);
    q4x_run *r = NULL;
    q4x_arm arm;
    seen s = {.p = q4x_net_plan(net), .gap = INFINITY};
    assert_rc_ok(q4x_arm_parse("cpu", &arm, &err), &err);
    assert_rc_ok(q4x_run_new(net, &arm, 16, 0, &r, &err), &err);
    q4x_run_on_node(r, look, &s);
    assert_rc_ok(q4x_run_forward(r, (int32_t[]){1, 2, 3, 4, 5}, 5, 0, &err), &err);
    int32_t rows;
    const float *z = q4x_run_logits(r, &rows);
    double zz = 0;
    for (int32_t i = 0; i < s.p->d.V; i++) zz += (double)z[i] * (double)z[i];
    print_message("    first mix sum|x| %.0f over %d values (5 ids); out max %.1f; logits rms %.2f\n", s.mix_sum,
                  5 * s.p->d.D, s.out_max, sqrt(zz / s.p->d.V));
    for (int l = 0; l < s.p->d.L; l++)
        print_message("%s%.0f%s", l % 12 ? " " : "    streams max ", s.stream_max[l],
                      l % 12 == 11 || l == s.p->d.L - 1 ? "\n" : "");
    print_message("    router: mean |logit| %.2f, smallest gap at the cut %.2e, below 0.01 in %lld of %lld rows\n",
                  s.logit_sum / (double)s.logits, s.gap, (long long)s.close, (long long)s.gaps);
    s.D = s.p->d.D, s.L = s.p->d.L, s.p = NULL;
    q4x_run_free(r);
    q4x_net_close(net);
    *ret = s;
}

static void within(const seen *s) {
    double mean = s->mix_sum / (5.0 * s->D);
    assert_true(mean * 12800 >= 1000 && mean * 12800 < 10000); /* thousands, at the released width */
    for (int l = 0; l < s->L; l++) assert_true(s->stream_max[l] >= 100 && s->stream_max[l] < 1000);
    assert_true(s->out_max > 1 && s->out_max < 1000);
    assert_int_equal(s->nonfinite, 0);
}

static void test_tiny(void **state) {
    (void)state;
    char path[] = "/tmp/q4x-tiny-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && !close(fd));
    seen s;
    h_synth_tiny(path, 0, 0);
    measure(path, &s);
    unlink(path);
    within(&s);
}

static void test_deep(void **state) {
    (void)state;
    if (!is_long) {
        print_message("    all 48 layers: t_synth_range long\n");
        return;
    }
    const char *tmp = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/q4x-deep-%ld.gguf", tmp ? tmp : "/tmp", (long)getpid());
    q4x_geometry g = *q4x_geometry_find("qwen3.8-flash-next");
    seen s;
    g.E = 32;
    g.V = 4096;
    g.ngram_base = 1009;
    h_synth(path, &g, g.type, 0, 0, 0);
    measure(path, &s);
    unlink(path);
    within(&s);
    assert_true(s.gap < 0.01); /* near ties at the cut */
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiny), cmocka_unit_test(test_deep)};
    is_long = argc > 1 && !strcmp(argv[1], "long");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
