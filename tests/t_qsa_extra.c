/* idx_extra: the tokens past the last selected block, against the heap as the spec writes it; and what they explain:
 * llama.cpp's answers on micro-b. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/indexer.h"
#include "tests/h_call.h"
#include "tests/h_forward.h"

/* ---- qwen4_exp.md 13.13, as it is written ---- */

static void adjust(int *v, const float *score, int hole, int len, int x) {
    int top = hole, c = hole;
    while (c < (len - 1) / 2) {
        c = 2 * (c + 1);
        if (score[v[c]] > score[v[c - 1]]) c = c - 1;
        v[hole] = v[c];
        hole = c;
    }
    if (len % 2 == 0 && c == (len - 2) / 2) {
        c = 2 * (c + 1);
        v[hole] = v[c - 1];
        hole = c - 1;
    }
    for (int p = (hole - 1) / 2; hole > top && score[v[p]] > score[x]; p = (hole - 1) / 2) {
        v[hole] = v[p];
        hole = p;
    }
    v[hole] = x;
}

/* in[j] = 1 for the k tokens that the heap keeps of n. */
static void heap_set(const float *score, int n, int k, char *in) {
    int *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int i = 0; i < n; i++) v[i] = i, in[i] = 0;
    for (int p = (k - 2) / 2; p >= 0; p--) adjust(v, score, p, k, v[p]);
    for (int i = k; i < n; i++)
        if (score[v[i]] > score[v[0]]) {
            int x = v[i];
            v[i] = v[0];
            adjust(v, score, 0, k, x);
        }
    for (int i = 0; i < k; i++) in[v[i]] = 1;
    free(v);
}

enum { RATIO = 4, NSEL = 5, LONG = 90 };

/* Block scores of LONG queries, no two of a query equal but for `ties`; the selection that goes with them. */
typedef struct {
    float *score;
    int32_t *sel;
    k_dims d;
    k_levers lv;
} task;

static task task_new(uint64_t seed, int ties) {
    h_rng r = {seed};
    task a = {.d = {.ratio = RATIO, .nsel = NSEL, .rot = 8}, .lv = {.extra = K_EXTRA_STL, .tie = K_TIE_STL}};
    const int nb = LONG / RATIO;
    a.score = h_nans((int64_t)LONG * nb);
    a.sel = malloc(sizeof *a.sel * LONG * NSEL);
    assert_non_null(a.sel);
    for (int i = 0; i < LONG * nb; i++) a.score[i] = ties ? (float)h_int(&r, 0, 3) : (float)h_unit(&r);
    k_call c = h_call(&a.d, &a.lv, LONG, 0, 1, indexer_scratch(&a.d, LONG));
    c.in[0] = a.score, c.in_cols[0] = nb, c.cols = NSEL, c.out_i = a.sel;
    idx_sel_cpu(&c);
    h_scratch_free(&c);
    return a;
}

static void task_free(task *a) {
    free(a->score), free(a->sel);
}

/* Rows t0 .. t0 + n as a call of their own. */
static void run(const task *a, int t0, int n, int nth, int32_t *out) {
    const int nb = LONG / RATIO;
    k_call c = h_call(&a->d, &a->lv, n, t0, nth, indexer_scratch(&a->d, t0 + n));
    c.in[0] = a->score + t0 * nb, c.in_cols[0] = nb, c.in_i[1] = a->sel + t0 * NSEL, c.in_cols[1] = NSEL;
    c.cols = RATIO - 1, c.out_i = out + t0 * (RATIO - 1);
    idx_extra_cpu(&c);
    h_scratch_free(&c);
}

static int selected(const task *a, int t, int block) {
    for (int i = 0; i < NSEL; i++)
        if (a->sel[t * NSEL + i] == block) return 1;
    return 0;
}

/* What the spec's heap takes outside the blocks and the tail; the number of tokens, the first RATIO - 1 in ids. */
static int expected(const task *a, int t, int32_t *ids) {
    const int n = t + 1, nb = n / RATIO, k = NSEL * RATIO + RATIO - 1;
    float token[LONG];
    char in[LONG];
    int found = 0;
    for (int i = 0; i < RATIO - 1; i++) ids[i] = -1;
    if (n <= k) return 0;
    for (int j = 0; j < n; j++) token[j] = j < nb * RATIO ? a->score[t * (LONG / RATIO) + j / RATIO] : 1e9f;
    heap_set(token, n, k, in);
    for (int j = 0; j < nb * RATIO; j++) {
        if (!in[j] || selected(a, t, j / RATIO)) continue;
        if (found < RATIO - 1) ids[found] = j;
        found++;
    }
    return found;
}

static void test_heap(void **state) {
    (void)state;
    int fill[RATIO] = {0}, more = 0, not_lowest = 0;
    for (int seed = 0; seed < 40; seed++) {
        task a = task_new((uint64_t)seed, seed % 4 == 3);
        int32_t out[LONG * (RATIO - 1)], want[RATIO - 1];
        run(&a, 0, LONG, 1, out);
        for (int t = 0; t < LONG; t++) {
            int n = expected(&a, t, want);
            if (memcmp(out + t * (RATIO - 1), want, sizeof want)) fail_msg("seed %d, row %d", seed, t);
            if (seed % 4 != 3) { /* no ties: the list is always full */
                assert_int_equal(n, t + 1 <= NSEL * RATIO + RATIO - 1 ? 0 : RATIO - 1 - (t + 1) % RATIO);
                fill[n]++;
                not_lowest += n > 0 && want[0] % RATIO != 0;
            }
            more += n > RATIO - 1;
        }
        task_free(&a);
    }
    for (int i = 0; i < RATIO; i++) assert_true(fill[i] > 20);
    assert_true(not_lowest > 20 && more > 0); /* the heap's choice is one, and ties can overflow the list */
}

static void test_splits(void **state) {
    (void)state;
    task a = task_new(7, 0);
    int32_t out[4][LONG * (RATIO - 1)];
    run(&a, 0, LONG, 1, out[0]);
    run(&a, 0, LONG, 5, out[1]);
    for (int t = 0; t < LONG; t++) run(&a, t, 1, 1, out[2]);
    a.lv.extra = K_EXTRA_OFF;
    run(&a, 0, LONG, 1, out[3]);
    assert_memory_equal(out[1], out[0], sizeof out[0]);
    assert_memory_equal(out[2], out[0], sizeof out[0]);
    assert_memory_not_equal(out[3], out[0], sizeof out[0]);
    for (int i = 0; i < LONG * (RATIO - 1); i++) assert_int_equal(out[3][i], -1);
    task_free(&a);
}

/* ---- llama.cpp on micro-b ---- */

/* v0.5.0, CPU, default context, on `q4x convert -t F32` of the checkpoint: the last row of the prompt and of five
 * forced steps. */
enum { STEPS = 6, VOCAB = 320 };
static const int32_t FORCED[STEPS] = {206, 261, 126, 29, 179, 53};

static int32_t IDS[96];
static int prompt_ids(void) {
    h_golden *g = h_golden_open("tests/golden/micro-b/golden-f32.safetensors");
    const int n = g->nprompt;
    assert_true(n < 96);
    memcpy(IDS, g->prompt, (size_t)n * sizeof *IDS);
    h_golden_close(g);
    return n;
}

/* The rule that takes the lowest tokens of the block: what another library's heap could have left. */
static int lowest_tokens(void *ctx, const q4x_node_event *ev, q4x_err *err) {
    const q4x_plan *p = ctx;
    const int32_t ratio = p->d.ratio;
    (void)err;
    if (p->node[ev->node].op != K_OP_idx_extra) return 0;
    for (int32_t t = 0; t < ev->nrows; t++) {
        int32_t *ids = (int32_t *)ev->data + t * ev->cols;
        for (int64_t i = 0; i < ev->cols && ids[i] >= 0; i++) ids[i] = ids[0] / ratio * ratio + (int32_t)i;
    }
    return 0;
}

/* Largest relative L2 of the prompt's row (ret[0]) and of the steps' (ret[1]) to llama.cpp's. */
static void distances(const char *spec, q4x_node_fn hook, double ret[2]) {
    q4x_net *net = h_net("tests/golden/micro-b");
    q4x_arm arm;
    q4x_err err = {0};
    q4x_run *r = NULL;
    const int n = prompt_ids();
    float want[VOCAB];
    FILE *f = fopen("tests/golden/micro-b-llamacpp.logits", "rb");
    assert_non_null(f);
    assert_rc_ok(q4x_arm_parse(spec, &arm, &err), &err);
    assert_rc_ok(q4x_run_new(net, &arm, n + STEPS, 0, &r, &err), &err);
    q4x_run_on_node(r, hook, (void *)(uintptr_t)q4x_net_plan(net));
    ret[0] = ret[1] = 0;
    for (int i = 0; i < STEPS; i++) {
        int32_t rows;
        double d2 = 0, w2 = 0;
        assert_rc_ok(q4x_run_forward(r, i ? &FORCED[i - 1] : IDS, i ? 1 : n, 0, &err), &err);
        const float *got = q4x_run_logits(r, &rows);
        assert_int_equal(fread(want, sizeof *want, VOCAB, f), VOCAB);
        for (int k = 0; k < VOCAB; k++) {
            d2 += ((double)got[k] - (double)want[k]) * ((double)got[k] - (double)want[k]);
            w2 += (double)want[k] * (double)want[k];
        }
        double d = sqrt(d2 / w2);
        if (!(d <= ret[i > 0])) ret[i > 0] = d;
    }
    print_message("%-48s prompt %.1e, steps %.1e\n", hook ? "the lowest tokens of the next block" : spec, ret[0],
                  ret[1]);
    fclose(f);
    q4x_run_free(r);
    q4x_net_close(net);
}

static void explains_llamacpp(void **state) {
    (void)state;
    double off[2], stl[2], kv[2], twin[2];
    distances("cpu", NULL, off);
    distances("cpu:qsa.extra=stl", NULL, stl);
    distances("cpu:qsa.extra=stl,kv=f16,attn.softmax=online", NULL, kv);
    distances("cpu:qsa.extra=stl", lowest_tokens, twin);
    for (int i = 0; i < 2; i++) {
        assert_true(off[i] > 3e-2);
        assert_true(stl[i] < 3e-4);
        assert_true(kv[i] < 4e-5); /* what is left then: orders of sums */
        assert_true(twin[i] > 1e-2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heap), cmocka_unit_test(test_splits),
                                       cmocka_unit_test(explains_llamacpp)};
    return cmocka_run_group_tests_name("qsa_extra", tests, NULL, NULL);
}
